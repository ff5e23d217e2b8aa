"""The Postgres store where servers are killed, demoted or full, connections are cut, and networks fall silent."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from threading import Event

import anyio
import psycopg
import pytest
from anyio import to_thread

from a2asgi import PostgresStore, StoreUnavailable
from a2asgi.ports import Decide, SessionKey, Store
from a2asgi.postgres.sqlstates import is_gone, is_retryable
from a2asgi.testing.store_bench import Opened, appending_as, together
from a2core import Entry, Needs, Plan, Snapshot
from tests.asgi.stores.calls import KEY, OTHER, Gate, append, failing_with, hold, log_of, waiting_for_a_lock
from tests.asgi.stores.proxies import wire
from tests.asgi.stores.servers import PostgresServer, operator
from tests.asgi.worlds import Tally, rounds, within

SESSIONS = [SessionKey("shop", f"s-{number}") for number in range(3)]
TRUE = [(True,)]


@pytest.fixture
def url(own_url: str) -> str:
    """On a server of which no other test needs anything."""
    return own_url


def calls_of(store: Store, name: str) -> list[Callable[[], Awaitable[object]]]:
    """One of each kind; what is appended has an id of its own."""
    block = partial(store.transact_blocking, OTHER, Needs(), appending_as(f"{name}-blocking"))
    return [
        lambda: append(store, name),
        lambda: to_thread.run_sync(block),
        lambda: store.read(KEY, 0, 9),
        store.sessions,
        store.dead_letters,
        store.ping,
        lambda: store.purge(1),
        lambda: store.claim_wakes(["shop"], limit=1, lease_ms=1),
    ]


def appending_once(event_id: str) -> Decide[int]:
    """Append an event, or find it where it already is."""

    def decide(snapshot: Snapshot, now_ms: int) -> Plan[int]:
        known = snapshot.entries.get(event_id)
        return appending_as(event_id)(snapshot, now_ms) if known is None else Plan(known.seq)

    return decide


async def append_at_last(store: Store, event_id: str, key: SessionKey = KEY) -> int:
    """Append as whoever tries again while the store is unavailable."""
    while True:
        with suppress(StoreUnavailable):
            return await store.transact(key, Needs(ids=(event_id,)), appending_once(event_id))
        await anyio.sleep(0.01)


def transacts_of(store: Store) -> list[Callable[[SessionKey, Needs, Decide[int]], Awaitable[int]]]:
    """Both ways to transact; the one that blocks, on a thread."""
    return [store.transact, lambda *what: to_thread.run_sync(lambda: store.transact_blocking(*what))]


class Load:
    """Tasks that append to all sessions at once, and where each event is by what they were told."""

    def __init__(self, store: Store, *, tasks: int = 6) -> None:
        self.acknowledged: dict[SessionKey, dict[str, int]] = {key: {} for key in SESSIONS}
        self.tally = Tally()
        self._store = store
        self._tasks = tasks
        self._stopped = False

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            for task in range(self._tasks):
                tasks.start_soon(self._append_on, task)

    def stop(self) -> None:
        self._stopped = True

    async def _append_on(self, task: int) -> None:
        for number in count():
            if self._stopped:
                return
            key, event_id = SESSIONS[(task + number) % 3], f"{task}-{number}"
            self.acknowledged[key][event_id] = await append_at_last(self._store, event_id, key)
            self.tally.add(event_id)

    async def check(self) -> None:
        """Once stopped, each event is there once, where it was said to be, and no other."""
        for key, acknowledged in self.acknowledged.items():
            assert {event_id: seq for seq, event_id in enumerate(await log_of(self._store, key), 1)} == acknowledged


def terminate(url: str, *, name: str = "a2", limit: int = 1_000) -> int:
    """End connections of this name at the server, and return how many once they are gone."""
    text = (
        "SELECT pid FROM (SELECT pid FROM pg_stat_activity WHERE application_name = %s ORDER BY random() LIMIT %s) a"
        " WHERE pg_terminate_backend(pid)"
    )
    with operator(url) as console:
        pids = [pid for [pid] in console.execute(text, (name, limit)).fetchall()]
        while console.execute("SELECT 1 FROM pg_stat_activity WHERE pid = ANY(%s)", (pids,)).fetchall():
            pass
    return len(pids)


# ── servers that go away ─────────────────────────────────────────────────────────────────


@within(120)
async def test_a_killed_server_is_unavailable_and_found_again_with_all_it_acknowledged(
    own_postgres: PostgresServer, url: str
) -> None:
    def killing(snapshot: Snapshot, now_ms: int) -> Plan[int]:
        own_postgres.kill()
        return appending_as("lost")(snapshot, now_ms)

    async with Opened(PostgresStore(url, timeout="2s")) as store:
        await append(store, "e1")
        store.transact_blocking(OTHER, Needs(), appending_as("o1"))
        for name, transact in zip(("e2", "e3"), transacts_of(store), strict=True):
            with pytest.raises(StoreUnavailable):
                await transact(KEY, Needs(), killing)
            for call in calls_of(store, "refused"):
                with anyio.fail_after(10), pytest.raises(StoreUnavailable):
                    await call()
            own_postgres.start()
            await together(*calls_of(store, name))
        assert ["e1", "e2", "e3"] == await log_of(store)
        assert ["o1", "e2-blocking", "e3-blocking"] == await log_of(store, OTHER)


@within(120)
async def test_a_server_killed_under_load_loses_nothing_that_it_acknowledged(
    own_postgres: PostgresServer, url: str
) -> None:
    async with Opened(PostgresStore(url, connections=4)) as store:
        load = Load(store)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(load.run)
            for total in (60, 120):
                await load.tally.until(total)
                await to_thread.run_sync(own_postgres.kill)
                await to_thread.run_sync(own_postgres.start)
            await load.tally.until(180)
            load.stop()
        await load.check()


@within(120)
async def test_a_server_that_has_become_a_standby_is_unavailable_until_it_is_promoted(
    own_postgres: PostgresServer, url: str
) -> None:
    async with Opened(PostgresStore(url)) as store:
        await append(store, "e1")
        own_postgres.kill()
        own_postgres.start(standby=True)
        try:
            for transact in transacts_of(store):
                with pytest.raises(StoreUnavailable):
                    await transact(KEY, Needs(), appending_as("refused"))
            assert ["e1"] == await log_of(store)
        finally:
            with operator(url) as console:
                assert TRUE == console.execute("SELECT pg_promote()").fetchall()
        assert 2 == await append(store, "e2")
        assert ["e1", "e2"] == await log_of(store)


@within(60)
async def test_a_connection_to_a_standby_is_not_kept_for_the_next_call(own_postgres: PostgresServer, url: str) -> None:
    """After a failover the same name may lead elsewhere, and only a new connection goes there."""
    store = PostgresStore(f"{url}&application_name=demoted")
    async with Opened(store):
        await append(store, "e1")
        own_postgres.kill()
        own_postgres.start(standby=True)
        try:
            with pytest.raises(StoreUnavailable):
                await append(store, "refused")
            assert 0 == terminate(url, name="demoted")
        finally:
            with operator(url) as console:
                console.execute("SELECT pg_promote()")


# ── connections that are cut ─────────────────────────────────────────────────────────────


@within(120)
async def test_connections_terminated_under_load_lose_nothing_and_repeat_nothing(url: str) -> None:
    async with Opened(PostgresStore(url, connections=4)) as store:
        load = Load(store)
        ended = 0
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(load.run)
            while ended < 100:
                ended += await to_thread.run_sync(partial(terminate, url, limit=2))
            load.stop()
        await load.check()
        assert all(load.acknowledged.values())


@within(60)
async def test_idle_connections_that_were_terminated_are_replaced_and_nobody_hears_of_it(url: str) -> None:
    async with Opened(PostgresStore(url)) as store:
        for number, _ in enumerate(calls_of(store, "")):
            await together(*calls_of(store, f"e{number}"))
            assert 2 <= terminate(url)
            await calls_of(store, f"alone{number}")[number]()
            await together(*calls_of(store, f"f{number}"))


@within(60)
async def test_a_transaction_that_stands_still_is_ended_by_the_server_so_that_others_go_on(url: str) -> None:
    gate = Gate()
    async with Opened(PostgresStore(url)) as store, Opened(PostgresStore(url, timeout="300ms")) as slow:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(failing_with, StoreUnavailable, hold(slow, KEY, gate))
            await gate.reached()
            assert 1 == await append(store, "e1")
            gate.open()
        assert ["e1"] == await log_of(slow)


@within(60)
async def test_a_store_that_is_closed_answers_or_refuses_whoever_waits_for_a_turn(url: str) -> None:
    gate, log = Gate(), ["gate"]
    store = PostgresStore(url)
    await store.open()

    async def append_if_it_can(event_id: str) -> None:
        with suppress(StoreUnavailable):
            await append(store, event_id)
            log.append(event_id)

    async with Opened(PostgresStore(url)) as twin:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hold, twin, KEY, gate)
            await gate.reached()
            tasks.start_soon(append_if_it_can, "e1")
            await waiting_for_a_lock(url, 1)
            tasks.start_soon(append_if_it_can, "e2")
            tasks.start_soon(append_if_it_can, "e3")
            await rounds()
            tasks.start_soon(store.close)
            await rounds()
            gate.open()
        assert ["gate", "e1"] == log[:2]
        assert log == await log_of(twin)


@within(60)
async def test_a_purge_and_a_transaction_never_wait_for_each_other(url: str) -> None:
    """They take what both need in the same order, so that neither is refused for a deadlock."""
    reached, opened = Event(), Event()

    def keep_longer(snapshot: Snapshot, _now_ms: int) -> Plan[int]:
        reached.set()
        assert opened.wait(20)
        return Plan(snapshot.last_seq, expires={1: 2**53})

    async with Opened(PostgresStore(url)) as store, Opened(PostgresStore(url)) as twin:
        entry = Entry("old", "order", "{}", None, 0, 1)
        await store.transact(KEY, Needs(), lambda _snapshot, _now_ms: Plan(None, entries=(entry,), expires={1: 0}))
        purged: list[int] = []

        async def purge() -> None:
            purged.append(await twin.purge(9))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(to_thread.run_sync, store.transact_blocking, KEY, Needs(seqs=(1,)), keep_longer)
            assert await to_thread.run_sync(reached.wait, 20)
            tasks.start_soon(purge)
            await waiting_for_a_lock(url, 1)
            opened.set()
        assert [0] == purged
        assert ["old"] == await log_of(store)


# ── networks that fall silent ────────────────────────────────────────────────────────────


@within(120)
async def test_a_silent_network_is_unavailable_in_time_to_all_who_call_and_works_once_it_speaks(url: str) -> None:
    with wire(url) as between:
        async with Opened(PostgresStore(between.url, connections=2, timeout="500ms")) as store:
            assert 1 == await append(store, "e1")
            store.transact_blocking(OTHER, Needs(), appending_as("o1"))
            between.fall_silent()
            with anyio.fail_after(10):  # one wait for a connection and one for an answer, far from a wait for each
                calls = [call for number in range(6) for call in calls_of(store, f"silent{number}")]
                await together(*[partial(failing_with, StoreUnavailable, call()) for call in calls])
            between.speak_again()
            last = await append_at_last(store, "e2")
            assert ["e1", "e2"] == [entry for entry in await log_of(store) if not entry.startswith("silent")]
            assert last == len(await log_of(store))


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("answers_only", [False, True])
@within(60)
async def test_a_commit_that_nobody_answers_is_unavailable_and_tried_again_is_one_event(
    url: str, *, answers_only: bool, blocking: bool
) -> None:
    with wire(url) as between:

        def silencing(snapshot: Snapshot, now_ms: int) -> Plan[int]:
            between.fall_silent(answers_only=answers_only)
            return appending_as("e1")(snapshot, now_ms)

        async with Opened(PostgresStore(between.url, timeout="500ms")) as store, Opened(PostgresStore(url)) as twin:
            transact = transacts_of(store)[blocking]
            await append(store, "e0")
            assert "no answer within 500 ms" in await failing_with(
                StoreUnavailable, transact(KEY, Needs(ids=("e1",)), silencing)
            )
            assert (["e0", "e1"] if answers_only else ["e0"]) == await log_of(twin)
            between.speak_again()
            assert 2 == await append_at_last(store, "e1")
            assert ["e0", "e1"] == await log_of(store)


# ── servers that refuse ──────────────────────────────────────────────────────────────────


@contextmanager
def narrow_role(url: str, *, connections: int) -> Iterator[str]:
    """The URL of a user of the schema that may have so many connections."""
    with operator(url) as console:
        console.execute(f"CREATE ROLE narrow LOGIN CONNECTION LIMIT {connections}")
        console.execute("GRANT ALL ON SCHEMA a2_of_one_test TO narrow")
        try:
            yield url.replace("a2@", "narrow@")
        finally:
            console.execute("SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity WHERE usename = 'narrow'")
            console.execute("DROP OWNED BY narrow CASCADE")
            console.execute("DROP ROLE narrow")


@within(60)
async def test_too_many_connections_are_unavailable_until_one_is_free(url: str) -> None:
    with narrow_role(url, connections=1) as narrow:
        store = PostgresStore(narrow)
        with psycopg.connect(narrow):
            assert "too many connections" in await failing_with(StoreUnavailable, store.open())
            with pytest.raises(StoreUnavailable):
                store.transact_blocking(KEY, Needs(), appending_as("refused"))
        assert 1 == await append_at_last(store, "e1")
        await together(*[partial(append_at_last, store, f"crowd{number}") for number in range(20)])
        assert 21 == len(await log_of(store))
        await store.close()


@pytest.mark.parametrize(
    "state",
    [
        "08000",  # connection exception
        "08006",  # connection failure
        "08P01",  # protocol violation
        "25006",  # read-only transaction: a standby
        "0A000",  # how a standby refuses a transaction that wants to write
        "25P03",  # idle in transaction for too long
        "25P04",  # in a transaction for too long
        "40001",  # serialization failure
        "40P01",  # deadlock
        "53100",  # disk full
        "53200",  # out of memory
        "53300",  # too many connections
        "55006",  # object in use
        "55P03",  # lock not available
        "57014",  # query canceled
        "57P01",  # admin shutdown
        "57P02",  # crash shutdown
        "57P03",  # cannot connect now
        "57P05",  # idle session timeout
        "58030",  # I/O error
    ],
)
def test_what_passes_is_to_be_tried_again(state: str) -> None:
    assert is_retryable(state)


@pytest.mark.parametrize(
    "state",
    [
        "22003",  # numeric value out of range
        "22021",  # character not in repertoire
        "23505",  # unique violation
        "28000",  # no such role
        "28P01",  # wrong password
        "3D000",  # no such database
        "3F000",  # no such schema
        "42501",  # insufficient privilege
        "42601",  # syntax error
        "42P01",  # no such table
        "XX000",  # internal error
        "XX001",  # data corrupted
    ],
)
def test_what_only_a_change_can_mend_is_not(state: str) -> None:
    assert not is_retryable(state)
    assert not is_gone(state)


@pytest.mark.parametrize(
    ("state", "gone"),
    [("08006", True), ("25006", True), ("0A000", True), ("57P01", True), ("57P05", True)]
    + [(state, False) for state in ("40001", "40P01", "53100", "55P03", "57014")],
)
def test_a_connection_that_is_gone_or_leads_to_a_standby_is_not_used_again(state: str, *, gone: bool) -> None:
    assert gone == is_gone(state)
