"""The Redis store: conformance, clusters, lost connections, servers that go away, what it leaves behind, secrets."""

import logging
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from secrets import token_hex
from typing import Any

import anyio
import pytest
from anyio import to_thread
from hypothesis import given
from hypothesis import strategies as st

from a2asgi import A2, A2Middleware, ConfigurationError, RedisStore, StoreBroken, StoreUnavailable
from a2asgi.ports import SessionKey, Store
from a2asgi.stores import redis_scripts as scripts
from a2asgi.stores.redis_link import AnswerLost, Link
from a2asgi.stores.redis_records import Layout, event_at, key_of, member_of, place_of
from a2asgi.stores.redis_scripts import Script
from a2asgi.stores.redis_store import MAX_STARTS
from a2asgi.testing import check_store
from a2asgi.testing.conformance import CHECKS, DURABLE_CHECKS, main
from a2asgi.testing.redis_bench import MovedRedisStore, RedisBench
from a2asgi.testing.store_bench import HOUR_MS, Opened, appending, appending_as, together
from a2core import DeadLetter, Failure, Needs, Plan, Snapshot, Timer, Tombstone, WakeAt
from tests.asgi.stores.calls import CANCELLATIONS, KEY, Cancelling, all_is_whole, append, kept, log_of
from tests.asgi.stores.redis_server import RedisServer, keys_of, needs_redis, redis_forget, redis_url, slot_of
from tests.asgi.support import Served

SECRET = "hunter2/with:odd@chars"


@pytest.fixture
def prefix() -> Iterator[str]:
    """A prefix of its own, of which nothing is left on the server that all share."""
    own = f"test-{token_hex(6)}"
    yield own
    redis_forget(redis_url(), own)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    needs_redis()
    with RedisServer(tmp_path) as own:
        yield own


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RedisServer]:
    """A cluster of one node, which refuses what touches two slots as every cluster does."""
    needs_redis()
    with RedisServer(tmp_path, "--cluster-enabled", "yes") as own:
        client = own.client()
        client("CLUSTER", "ADDSLOTS", *range(16_384))
        while b"cluster_state:ok" not in client("CLUSTER", "INFO"):
            pass
        client.close()
        yield own


async def served_again(store: Store) -> None:
    """Return once it answers, as whoever tries again later finds out."""
    with anyio.fail_after(20):
        while True:
            try:
                await store.ping()
            except StoreUnavailable:
                await anyio.sleep(0.01)
            else:
                return


class Watched(RedisStore):
    """Notes which scripts it runs on which keys, and what they answer; a test may come between."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self.calls: list[tuple[Script, tuple[str, ...], Any]] = []
        self.before: Callable[[Script], None] = _nothing
        self.after: Callable[[Script], None] = _nothing

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[Link]:
        async with super()._connect() as link:
            yield _Between(self, link)

    @property
    def scripts(self) -> list[Script]:
        return [script for script, _, _ in self.calls]


class _Between:
    def __init__(self, store: Watched, link: Link) -> None:
        self._store = store
        self._link = link

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    async def run(self, script: Script, keys: Sequence[str], arguments: Sequence[str | int]) -> Any:
        self._store.before(script)
        answer = await self._link.run(script, keys, arguments)
        self._store.calls.append((script, tuple(keys), answer))
        self._store.after(script)
        return answer


def _nothing(_: Script) -> None:
    pass


def losing(nth: int, which: Script) -> Callable[[Script], None]:
    """The nth run of this script loses its connection, before it or after it."""
    seen = 0

    def lose(script: Script) -> None:
        nonlocal seen
        seen += script is which
        if script is which and seen == nth:
            raise AnswerLost("the connection was lost")

    return lose


async def everything(store: RedisStore, key: SessionKey) -> None:
    """Use every operation of a store on a session, and leave nothing of it."""
    await append(store, "gone", key)
    [_, second, third] = await store.transact(key, Needs(), appending("a", "a", "b"))
    dead = replace(third, dead=DeadLetter(Failure("E", "m"), 0), key="k")
    now_ms = await store.transact(key, Needs(), lambda _, now_ms: Plan(now_ms))
    timers = (Timer("t", now_ms, 0, ()), Timer("u", now_ms + HOUR_MS, 0, ()), Tombstone("v"))
    changed = Plan(None, items=(dead, replace(second, lane="c", key="l")), timers=timers, wake=WakeAt(now_ms))
    needs = Needs(("gone",), (2, 3, 4), ("t", "u", "v"), ("k", "l"), heads=True, behind=2)
    await store.transact(key, needs, lambda *_: changed)
    await store.transact(key, needs, lambda seen, _: Plan(seen))
    assert key in (await store.claim_wakes([key.contract], limit=99, lease_ms=HOUR_MS)).due
    assert [(key, dead)] == await store.dead_letters(key.contract)
    assert key in [info.key for info in await store.sessions()]
    assert 4 == len(await store.read(key, 0, 10))
    assert await store.watch(key, 1)
    expires = dict.fromkeys((1, 2, 3, 4), now_ms - 1)
    ended: Plan[None] = Plan(None, settled=(1, 2, 3, 4), expires=expires, delivered=("t", "u", "v"))
    await store.transact(key, needs, lambda *_: ended)
    assert 4 == await store.purge(99)


# ── conformance ──────────────────────────────────────────────────────────────────────────


async def test_the_redis_store_conforms() -> None:
    with RedisBench(redis_url()) as bench:
        assert [*CHECKS, *DURABLE_CHECKS] == await check_store(bench.make_store, durable=True)


def test_the_command_checks_it_and_leaves_nothing(server: RedisServer, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--store", "redis", "--url", server.url, "--check", "check_lookups", "check_runs_outlive_their_store"]
    assert 0 == main(options)
    assert "4 passed, 0 failed" == capsys.readouterr().out.splitlines()[-1]
    client = server.client()
    assert 0 == client("DBSIZE")
    client.close()


async def test_the_redis_store_conforms_on_a_cluster_with_its_sessions_in_many_slots(cluster: RedisServer) -> None:
    passed = await check_store(
        lambda clock, name: MovedRedisStore(clock, cluster.url, prefix=name, cluster=True, shards=3), durable=True
    )
    assert [*CHECKS, *DURABLE_CHECKS] == passed


# ── keys and slots ───────────────────────────────────────────────────────────────────────


async def test_no_script_touches_two_slots(prefix: str) -> None:
    async with Opened(Watched(redis_url(), prefix=prefix, shards=5)) as store:
        assert isinstance(store, Watched)
        for number in range(20):
            await everything(store, SessionKey("shop", f"{{s}}-{number}"))
        assert {1} == {len({slot_of(key) for key in keys}) for _, keys, _ in store.calls}
        assert 5 == len({slot_of(key) for _, keys, _ in store.calls for key in keys})
        every = {script for script in vars(scripts).values() if isinstance(script, Script)}
        assert every == {*store.scripts, scripts.TAKE}  # which is for who has one slot


async def test_nothing_is_left_of_sessions_that_were_purged_but_the_marks(server: RedisServer, prefix: str) -> None:
    async with Opened(RedisStore(server.url, prefix=prefix, shards=3)) as store:
        for number in range(20):
            assert isinstance(store, RedisStore)
            await everything(store, SessionKey("shop", f"s-{number}"))
    client = server.client()
    assert [f"{{{prefix}:{shard}}}:mark" for shard in range(3)] == keys_of(client, prefix)
    assert 3 == client("DBSIZE")
    client.close()


names = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("\0\1\2{}:"), max_size=8)
keys = st.builds(SessionKey, names, names)


@given(st.lists(keys, max_size=8), st.integers(1, 2**53))
def test_names_in_an_index_are_in_the_order_of_sessions_and_are_read_back(found: list[SessionKey], seq: int) -> None:
    assert [(key, seq) for key in found] == [event_at(place_of(key, seq)) for key in found]
    assert found == [key_of(member_of(key)) for key in found]
    in_order = sorted(found, key=lambda key: member_of(key).encode())
    for one, other in pairwise(in_order):
        assert (one.contract, one.session_id) <= (other.contract, other.session_id)


@given(keys)
def test_a_sessions_name_never_moves_it_to_another_slot(key: SessionKey) -> None:
    layout = Layout("a2", 7)
    slots = {slot_of(name) for name in layout.names(key, "meta", "log", "wakes", "sessions")}
    assert {slot_of(f"{{a2:{layout.shard_of(key)}}}")} == slots


async def test_what_is_loaded_does_not_grow_with_the_log_or_the_backlog(prefix: str) -> None:
    async with Opened(Watched(redis_url(), prefix=prefix)) as store:
        assert isinstance(store, Watched)
        sizes: list[int] = []
        for count in (20, 1_000):
            await store.transact(KEY, Needs(), appending(*["one"] * count))
            await store.transact(KEY, Needs(heads=True), lambda seen, _: Plan(seen))
            script, _, answer = store.calls[-1]
            assert scripts.LOAD is script
            sizes.append(len(str(answer)))
        assert sizes[0] == pytest.approx(sizes[1], abs=5)


# ── layouts ──────────────────────────────────────────────────────────────────────────────


async def test_data_in_other_shards_than_asked_for_is_refused_and_without_a_wish_is_found(prefix: str) -> None:
    async with Opened(RedisStore(redis_url(), prefix=prefix, shards=2)) as store:
        await append(store, "e1")
    async with Opened(RedisStore(redis_url(), prefix=prefix)) as store:
        assert ["e1"] == await log_of(store)
    with pytest.raises(StoreBroken, match="in 2 shards, not in 3"):
        await RedisStore(redis_url(), prefix=prefix, shards=3).open()


@pytest.mark.parametrize(
    ("mark", "says"),
    [
        ("2 1 0123456789abcdef", "has schema 2, this version of a2 knows up to 1: upgrade a2"),
        ("a list", "not one of a2"),
    ],
)
async def test_data_of_a_later_version_or_of_something_else_is_refused(
    server: RedisServer, prefix: str, mark: str, says: str
) -> None:
    client = server.client()
    client("SET", f"{{{prefix}:0}}:mark", mark)
    client.close()
    store = RedisStore(server.url, prefix=prefix)
    with pytest.raises(StoreBroken, match=says):
        await store.open()
    await store.close()


async def test_a_server_that_lost_its_state_is_told_once_and_then_used(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    client = server.client()
    async with Opened(RedisStore(server.url, shards=2)) as store:
        assert isinstance(store, RedisStore)
        await append(store, "e1")
        assert 0 == store.losses
        client("FLUSHALL")
        with pytest.raises(StoreUnavailable, match="lost its state"):
            await append(store, "e2")
        assert 1 == store.losses
        assert 1 == await append(store, "e3")
        assert ["e3"] == await log_of(store)
        assert 1 == store.losses
    client.close()
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert 1 == len(told)
    assert f"{server.url} lost its state" in told[0]


async def test_crons_are_in_force_again_after_the_server_lost_them(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("a2asgi.ticks.UPKEEP_MS", 10)
    monkeypatch.setattr("a2asgi.ticks.UPKEEP_RETRY_MS", 10)
    store = RedisStore(server.url)
    a2 = A2(store=store)

    @a2.cron("0 9 * * *")
    async def report(slot: datetime) -> None:
        del slot

    client = server.client()

    async def in_force() -> None:
        with anyio.fail_after(20):
            while not client("EXISTS", f"{{a2:0}}:due:{member_of(SessionKey('cron:report', 'slots'))}"):
                await anyio.lowlevel.checkpoint()

    async with Served(A2Middleware(nothing, a2)):
        await in_force()
        client("FLUSHALL")
        await in_force()
    assert 1 == store.losses
    client.close()


async def nothing(scope: Any, receive: Any, send: Any) -> None:
    """An app without a lifespan."""
    raise LookupError


async def test_one_node_that_lost_its_state_is_told_at_the_start(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with Opened(RedisStore(server.url, shards=3)):
        pass
    client = server.client()
    client("DEL", "{a2:1}:mark")
    client.close()
    async with Opened(RedisStore(server.url)):
        assert "shard 1 of 3 is empty" in caplog.text


# ── races and lost answers ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("script", [scripts.LOAD, scripts.WRITE])
async def test_a_transaction_whose_connection_is_lost_is_written_once(
    prefix: str, script: Script, *, late: bool
) -> None:
    async with Opened(Watched(redis_url(), prefix=prefix)) as store:
        assert isinstance(store, Watched)
        setattr(store, "after" if late else "before", losing(1, script))
        [item] = await store.transact(KEY, Needs(), appending("a"))
        assert 1 == item.seq
        assert ["e1"] == await log_of(store)


async def test_a_write_whose_answer_is_lost_is_known_behind_the_writes_of_others(prefix: str) -> None:
    async with Opened(RedisStore(redis_url(), prefix=prefix)) as other:
        async with Opened(Watched(redis_url(), prefix=prefix)) as store:
            assert isinstance(store, Watched)
            lose = losing(1, scripts.WRITE)

            def lose_and_be_overtaken(script: Script) -> None:
                try:
                    lose(script)
                except AnswerLost:
                    for number in range(5):
                        other.transact_blocking(KEY, Needs(), appending_as(f"o{number}"))
                    raise

            store.after = lose_and_be_overtaken
            assert 1 == await append(store, "mine")
        assert ["mine", "o0", "o1", "o2", "o3", "o4"] == await log_of(other)


async def test_a_lost_race_starts_over_on_a_fresh_snapshot(prefix: str) -> None:
    async with Opened(RedisStore(redis_url(), prefix=prefix)) as other:
        async with Opened(Watched(redis_url(), prefix=prefix)) as store:
            seen: list[int] = []

            def decide(snapshot: Snapshot, now_ms: int) -> Plan[int]:
                seen.append(snapshot.last_seq)
                if len(seen) < 3:
                    other.transact_blocking(KEY, Needs(), appending_as(f"o{len(seen)}"))
                return appending_as("mine")(snapshot, now_ms)

            assert 3 == await store.transact(KEY, Needs(), decide)
        assert [0, 1, 2] == seen
        assert ["o1", "o2", "mine"] == await log_of(other)


async def test_who_always_loses_is_told_that_the_store_is_unavailable(
    prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("a2asgi.stores.redis_store.MAX_STARTS", 3)
    assert MAX_STARTS > 3
    async with Opened(RedisStore(redis_url(), prefix=prefix)) as other:
        async with Opened(RedisStore(redis_url(), prefix=prefix)) as store:

            def decide(snapshot: Snapshot, now_ms: int) -> Plan[int]:
                other.transact_blocking(KEY, Needs(), lambda *_: Plan(None, wake=WakeAt(now_ms)))
                return appending_as("mine")(snapshot, now_ms)

            with pytest.raises(StoreUnavailable, match="others wrote session shop/s-1 first, 3 times"):
                await store.transact(KEY, Needs(), decide)
        assert [] == await log_of(other)


async def test_who_lost_the_race_for_what_is_due_takes_what_is_left(prefix: str) -> None:
    async with Opened(RedisStore(redis_url(), prefix=prefix, shards=2)) as other:
        async with Opened(Watched(redis_url(), prefix=prefix)) as store:
            assert isinstance(store, Watched)
            due = [SessionKey("shop", f"s-{number}") for number in range(3)]
            for key in due:
                await store.transact(key, Needs(), lambda _, now_ms: Plan(None, wake=WakeAt(now_ms)))
            taken: list[SessionKey] = []

            def overtake(script: Script) -> None:
                if script is scripts.CLAIM and not taken:
                    claim = partial(other.claim_wakes, ["shop"], limit=1, lease_ms=HOUR_MS)
                    with ThreadPoolExecutor(1) as pool:
                        taken.extend(pool.submit(anyio.run, claim).result().due)

            store.before = overtake
            wakes = await store.claim_wakes(["shop"], limit=2, lease_ms=HOUR_MS)
        assert sorted(due, key=str) == sorted([*taken, *wakes.due], key=str)


@pytest.mark.parametrize(("shards", "claims"), [(1, [scripts.TAKE]), (2, [scripts.PEEK, scripts.CLAIM])])
async def test_wherever_a_claimer_dies_the_wake_up_is_there_again_after_the_lease(
    prefix: str, shards: int, claims: list[Script]
) -> None:
    """It dies before or after each of the scripts of an append and a claim, and somebody else looks."""
    for script, late in [(scripts.WRITE, True), *product(claims, [False, True])]:
        key = SessionKey("shop", f"{script.sha}-{late}")
        async with Opened(Watched(redis_url(), prefix=prefix, shards=shards)) as store:
            assert isinstance(store, Watched)

            def die(ran: Script, script: Script = script) -> None:
                if ran is script:
                    raise StoreBroken("the process died")

            setattr(store, "after" if late else "before", die)

            def decide(snapshot: Snapshot, now_ms: int) -> Plan[int]:
                return replace(appending_as("e1")(snapshot, now_ms), wake=WakeAt(now_ms))

            async def live(store: Store, key: SessionKey) -> None:
                await store.transact(key, Needs(), decide)
                await store.claim_wakes(["shop"], limit=9, lease_ms=HOUR_MS)

            with pytest.raises(StoreBroken, match="died"):
                await live(store, key)
        async with Opened(RedisStore(redis_url(), prefix=prefix)) as heir:
            heir.offset_ms = HOUR_MS
            assert (key,) == (await heir.claim_wakes(["shop"], limit=9, lease_ms=9 * HOUR_MS)).due
            assert ["e1"] == await log_of(heir, key)


async def test_calls_of_which_hundreds_at_once_are_cancelled_keep_their_answers(prefix: str) -> None:
    """At whatever await they have come to; each call that nobody cancels has its own answer."""
    async with Opened(RedisStore(redis_url(), prefix=prefix)) as store:
        cancelling = Cancelling(store, at_once=CANCELLATIONS)
        await together(cancelling.round, *[partial(kept, store, f"kept-{number}") for number in range(50)])
        assert 0 < cancelling.caught
        await all_is_whole(store)


# ── servers that go away ─────────────────────────────────────────────────────────────────


async def test_connections_that_are_killed_are_made_again(server: RedisServer) -> None:
    """While they are, every append is answered, or refused as unavailable; what was answered is there once."""
    answered: dict[str, int] = {}

    async def work(task: int) -> None:
        number = 0
        while len(answered) < 60 * (task + 1):
            number += 1
            with suppress(StoreUnavailable):
                answered[f"{task}-{number}"] = await append(store, f"{task}-{number}")

    async def kill() -> None:
        client = server.client()
        for _ in range(100):  # and then no more: on a slow machine few are answered meanwhile
            client("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            await anyio.sleep(0.003)
        client.close()

    async with Opened(RedisStore(server.url)) as store:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kill)
            for task in range(4):
                tasks.start_soon(work, task)
        log = await log_of(store)
    assert answered == {event_id: seq for seq, event_id in enumerate(log, 1) if event_id in answered}
    assert len(set(log)) == len(log)


async def test_a_server_that_was_killed_and_started_again_is_found_without_a_restart(server: RedisServer) -> None:
    async with Opened(RedisStore(server.url, timeout="2s")) as store:
        await append(store, "e1")
        server.kill()
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                await append(store, "e2")
        with pytest.raises(StoreUnavailable):
            await to_thread.run_sync(store.transact_blocking, KEY, Needs(), appending("a"))
        with pytest.raises(StoreUnavailable):
            await store.claim_wakes(["shop"], limit=1, lease_ms=1)
        server.start()
        await served_again(store)
        await append(store, "e3")
        assert ["e1", "e3"] == await log_of(store)


async def test_a_server_that_has_gone_silent_is_unavailable_within_the_timeout(server: RedisServer) -> None:
    """As over a half-open connection: nothing is refused, and nothing answers."""
    async with Opened(RedisStore(server.url, timeout="100ms")) as store:
        await append(store, "e1")
        server.pause()
        with anyio.fail_after(10), pytest.raises(StoreUnavailable, match="no answer in time"):
            await append(store, "e2")
        server.resume()
        await served_again(store)
        assert 1 <= await append(store, "e3") - 1 <= 2
        assert {"e1", "e3"} <= set(await log_of(store))


async def test_what_a_full_or_a_read_only_server_refuses_is_unavailable_and_not_half_written(
    server: RedisServer,
) -> None:
    client = server.client()
    async with Opened(RedisStore(server.url)) as store:
        await append(store, "e1")
        for refuse, allow in (
            (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0")),
            (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE")),
        ):
            client(*refuse)
            with pytest.raises(StoreUnavailable):
                await append(store, "refused")
            assert ["e1"] == await log_of(store)
            found = await store.transact(KEY, Needs(heads=True), lambda seen, _: Plan(seen))
            assert [1] == [item.seq for item in found.heads]
            client(*allow)
        assert 2 == await append(store, "e2")
    client.close()


async def test_a_script_that_the_server_forgot_is_sent_again(server: RedisServer) -> None:
    client = server.client()
    async with Opened(RedisStore(server.url)) as store:
        await append(store, "e1")
        client("SCRIPT", "FLUSH")
        assert 2 == await append(store, "e2")
    client.close()


# ── settings and secrets ─────────────────────────────────────────────────────────────────


async def test_no_password_is_ever_shown(
    server: RedisServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    client = server.client()
    client("CONFIG", "SET", "requirepass", "another")
    client.close()
    quoted = "hunter2%2Fwith%3Aodd%40chars"
    texts: list[str] = []
    for auth in (f":{quoted}@", f"nobody:{quoted}@", ""):
        store = RedisStore(server.url.replace("redis://", f"redis://{auth}"))
        with pytest.raises(StoreBroken) as caught:
            await store.open()
        await store.close()
        error: BaseException | None = caught.value
        while error is not None:
            texts += [str(error), repr(error)]
            error = error.__cause__ or error.__context__
        texts.append(repr(store))
    server.kill()
    store = RedisStore(server.url.replace("redis://", f"redis://:{quoted}@"))
    with pytest.raises(StoreUnavailable) as gone:
        await store.open()
    await store.close()
    with pytest.raises(ConfigurationError) as refused:
        RedisStore(f"http://:{quoted}@localhost")
    for text in (*texts, str(gone.value), str(refused.value), caplog.text):
        assert SECRET not in text
        assert quoted not in text
        assert "hunter2" not in text


async def test_a_password_with_odd_characters_is_read_from_its_url(server: RedisServer) -> None:
    client = server.client()
    client("CONFIG", "SET", "requirepass", SECRET)
    client.close()
    async with Opened(RedisStore(server.url.replace("redis://", "redis://:hunter2%2Fwith%3Aodd%40chars@"))) as store:
        assert 1 == await append(store, "e1")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"prefix": ""}, "prefix: expected 1 to 64"),
        ({"prefix": "a{b}"}, "prefix: expected 1 to 64"),
        ({"shards": 0}, "shards: expected 1 to 1024, got 0"),
        ({"shards": 1_025}, "shards: expected 1 to 1024, got 1025"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        RedisStore("redis://localhost", **options)


async def test_a_store_that_is_not_open_says_so() -> None:
    store = RedisStore("redis://localhost:1")
    for call in (store.ping(), append(store, "e1"), store.read(KEY, 0, 1)):
        with pytest.raises(StoreUnavailable, match=r"is not open: await store.open\(\) first"):
            await call


async def test_without_coredis_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "coredis", None)
    store = RedisStore("redis://localhost:1")
    with pytest.raises(ConfigurationError, match=r'install "a2\[redis\]"'):
        await store.open()
    await store.close()


async def test_text_that_is_not_unicode_is_refused(prefix: str) -> None:
    async with Opened(RedisStore(redis_url(), prefix=prefix)) as store:
        with pytest.raises(StoreBroken, match="surrogate"):
            await append(store, "\ud83d")
        assert [] == await log_of(store)
