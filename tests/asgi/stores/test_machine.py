"""Whatever several holders do on a store, in turn or at once, it answers and holds what the memory store would.

Hypothesis looks for what differs, and shrinks it to a short story.
"""

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from itertools import permutations
from pathlib import Path
from secrets import token_hex
from traceback import format_exception
from typing import Any

import pytest
from anyio import to_thread
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from a2asgi import MemoryStore, SQLiteStore, UpstashStore
from a2asgi.ports import Answer, Decide, SessionInfo, SessionKey, Store
from a2asgi.testing.conformance import MakeStore, StoreClock
from a2asgi.testing.postgres_bench import PostgresBench
from a2asgi.testing.redis_bench import RedisBench
from a2asgi.testing.store_bench import HOUR_MS, expect, expect_near, together
from a2core import Claimed, Entry, Needs, Plan, Snapshot, Stale, WorkItem
from tests.asgi.stores import holders as who
from tests.asgi.stores.holders import Act, Look
from tests.asgi.stores.redis_bridge import TOKEN, bridge_process
from tests.asgi.stores.redis_server import RedisServer, needs_redis, redis_url

KEYS = (SessionKey("bank", "s-1"), SessionKey("shop", "s-1"), SessionKey("shop", "s-2"))
CONTRACTS = sorted({key.contract for key in KEYS})
ALL = 1_000
"""More than there is of anything."""

MAX_ENTRIES = 30
"""More events than one decision appends: those of a claim are of all timers, and of all that was lost."""

State = tuple[Snapshot, list[Entry]]
keys = st.sampled_from([KEYS[1], KEYS[1], KEYS[1], KEYS[0], KEYS[2]])  # most happens where much happens
doors = st.integers(0, 2)


class Told:
    """The oracle's clock: it stands at what the store under test said last."""

    def __init__(self) -> None:
        self.at_ms = 0

    def now_ms(self) -> int:
        return self.at_ms

    async def sleep_ms(self, *_: object) -> None:
        raise AssertionError("a store does not sleep")


class Oracle(MemoryStore):
    """A memory store of which a copy can be tried out."""

    def __init__(self, clock: Told, sessions: dict[SessionKey, Any] | None = None) -> None:
        super().__init__(clock=clock)
        self._sessions = sessions or {}

    def last_seq(self, key: SessionKey) -> int:
        return self._sessions[key].last_seq if key in self._sessions else 0

    def untied(self, limit: int) -> int:
        """So many and those that expired in the same millisecond as the last: nobody says which of them go first."""
        instants = sorted(at_ms for session in self._sessions.values() for at_ms in session.expires.values())
        while limit < len(instants) and instants[limit - 1] == instants[limit]:
            limit += 1
        return limit

    def copy(self, clock: Told, key: SessionKey) -> "Oracle":
        """Another one of the same sessions, in which this one is its own."""
        sessions = dict(self._sessions)
        if (one := sessions.get(key)) is not None:
            sessions[key] = replace(
                one,
                log=dict(one.log),
                seqs=dict(one.seqs),
                expires=dict(one.expires),
                work=dict(one.work),
                lanes={name: dict(lane) for name, lane in one.lanes.items()},
                timers=dict(one.timers),
            )
        return Oracle(clock, sessions)


class Machine(RuleBasedStateMachine):
    """Two processes, as it were, on the same data: each has a store of its own, and one has a thread beside its loop.

    They are the three doors through which something is done: two stores, and the first one without an event loop.
    """

    def __init__(self, portal: BlockingPortal, make_store: MakeStore) -> None:
        super().__init__()
        self._portal = portal
        self._clock = StoreClock()
        self._make = partial(make_store, self._clock, f"a2_{token_hex(8)}")
        self._stores = [self._make(), self._make()]
        self._told = Told()
        self._oracle = Oracle(self._told)
        self._held: dict[SessionKey, dict[str, list[WorkItem]]] = {key: {} for key in KEYS}
        self._touched: Collection[SessionKey] = KEYS
        for store in self._stores:
            portal.call(store.open)

    def teardown(self) -> None:
        for store in self._stores:
            self._portal.call(store.close)

    @rule(key=keys, acts=st.lists(who.acts, min_size=1, max_size=5), door=doors)
    def act(self, key: SessionKey, acts: list[Act], door: int) -> None:
        for act in acts:
            self._portal.call(self._do, key, act, door)

    @rule(key=keys, batch=who.appends, claim=who.claims, endings=st.lists(who.endings, max_size=3), door=doors)
    def work(self, key: SessionKey, batch: Act, claim: who.Claim, endings: list[who.End], door: int) -> None:
        """Append, then claim, and end so many of the claims."""
        self._portal.call(self._do, key, batch, door)
        claimed: Claimed = self._portal.call(self._do, key, claim, door)
        for back, ending in enumerate(endings[: len(claimed.items)]):
            self._portal.call(self._do, key, replace(ending, holder=claim.holder, back=back), door)

    @rule(key=keys, acts=st.lists(who.acts, min_size=2, max_size=3))
    def act_at_once(self, key: SessionKey, acts: list[Act]) -> None:
        self._portal.call(self._do_at_once, key, acts)

    @rule(key=keys, holders=st.lists(who.holders, min_size=2, max_size=3), how=who.ways, back=st.integers(0, 1))
    def end_at_once(self, key: SessionKey, holders: list[str], how: str, back: int) -> None:
        """Holders end what each believes to be its own."""
        self._portal.call(self._do_at_once, key, [who.End(how, holder, back, ()) for holder in holders])

    @rule(hours=st.integers(0, 3), limit=st.sampled_from([0, 1, 3, ALL]), door=st.integers(0, 1))
    def time_passes(self, hours: int, limit: int, door: int) -> None:
        """And then so much may be purged."""
        self._clock.move(hours * HOUR_MS)
        self._touched = KEYS
        if limit:
            self._portal.call(self._purge, limit, door)

    @rule(doors=st.lists(st.integers(0, 1), min_size=1, max_size=3), late_hours=st.sampled_from([0, 0, 1]))
    def claim_wakes(self, doors: list[int], late_hours: int) -> None:
        """At once, as several schedulers do: each session that is due is given to one of them."""
        self._portal.call(self._claim_wakes, doors, late_hours * HOUR_MS)

    @rule(key=keys, after=st.integers(0, 9), limit=st.integers(1, 4), door=st.integers(0, 1), anew=st.booleans())
    def reopen_and_read(self, key: SessionKey, after: int, limit: int, door: int, anew: bool) -> None:  # noqa: FBT001
        self._portal.call(self._stores[door].close)
        if anew:
            self._stores[door] = self._make()
        self._portal.call(self._stores[door].open)
        page = self._portal.call(self._stores[door].read, key, after, limit)
        expect(self._portal.call(self._oracle.read, key, after, limit), page, f"the page after {after}")
        self._touched = KEYS

    @invariant()
    def the_store_holds_what_the_oracle_holds(self) -> None:
        self._portal.call(self._agree)

    async def _do(self, key: SessionKey, act: Act, door: int) -> Any:
        needs, decide = act.decision(self._held[key])
        answer, self._told.at_ms = await self._ask(door, key, needs, decide)
        expect(self._oracle.transact_blocking(key, needs, decide), answer, "the answer")
        self._note(key, act, answer)
        return answer

    async def _do_at_once(self, key: SessionKey, acts: Sequence[Act]) -> None:
        """Each through its own door. Answers, rows and wake-up must be those of some order of them."""
        decisions = [act.decision(self._held[key]) for act in acts]
        said = await together(*(partial(self._ask, door, key, *one) for door, one in enumerate(decisions)))
        last_seq = self._oracle.last_seq(key) + MAX_ENTRIES * len(acts)
        after_ms, state = await self._state(key, last_seq)
        infos = await self._stores[0].sessions()
        found: list[Oracle] = []
        for order in permutations(range(len(acts))):
            twin = self._oracle.copy(self._told, key)
            for number in order:
                self._told.at_ms = said[number][1]
                if twin.transact_blocking(key, *decisions[number]) != said[number][0]:
                    break
            else:
                self._told.at_ms = after_ms
                same = await _state_of(twin, key, last_seq) == state and _same(await twin.sessions(), infos)
                found += [twin] if same else []
        self._told.at_ms = after_ms
        assert found, f"no order of {acts} explains the answers {said} and then {state}, {infos}"
        self._oracle = found[0]
        for act, (answer, _) in zip(acts, said, strict=True):
            self._note(key, act, answer)

    def _note(self, key: SessionKey, act: Act, answer: object) -> None:
        self._touched = {key, *self._touched}
        if isinstance(act, who.Claim) and isinstance(answer, Claimed):
            self._held[key].setdefault(act.holder, []).extend(answer.items)

    async def _ask(self, door: int, key: SessionKey, needs: Needs, decide: Decide[Answer]) -> tuple[Answer, int]:
        """The answer, and what time it was by the store."""
        times: list[int] = []

        def timed(snapshot: Snapshot, now_ms: int) -> Plan[Answer]:
            times.append(now_ms)
            return decide(snapshot, now_ms)

        if door < len(self._stores):
            answer = await self._stores[door].transact(key, needs, timed)
        else:
            answer = await to_thread.run_sync(self._stores[0].transact_blocking, key, needs, timed)
        return answer, times[-1]

    async def _claim_wakes(self, doors: Sequence[int], late_ms: int) -> None:
        await self._tell_the_time()

        def claiming(store: Store) -> Callable[[], Awaitable[Any]]:
            return partial(store.claim_wakes, CONTRACTS, limit=9, lease_ms=HOUR_MS, late_ms=late_ms)

        taken = await together(*(claiming(self._stores[door]) for door in doors))
        expected = await claiming(self._oracle)()
        expect(Counter(expected.due), Counter(key for wakes in taken for key in wakes.due), "the sessions that are due")

    async def _purge(self, limit: int, door: int) -> None:
        await self._tell_the_time()
        limit = self._oracle.untied(limit)
        expected = await self._oracle.purge(limit)
        expect(expected, await self._stores[door].purge(limit), "how many events were purged")

    async def _tell_the_time(self) -> None:
        _, self._told.at_ms = await self._ask(0, KEYS[0], Needs(), lambda _, now_ms: Plan(now_ms))

    async def _log(self, key: SessionKey) -> list[Entry]:
        return await self._stores[0].read(key, 0, ALL)

    async def _state(self, key: SessionKey, last_seq: int) -> tuple[int, State]:
        """What time it is, and all that the store holds of the session."""
        seen, now_ms = await self._ask(1, key, *Look(last_seq).decision({}))
        return now_ms, (seen, await self._log(key))

    async def _agree(self) -> None:
        for key in sorted(self._touched, key=str):
            last_seq = self._oracle.last_seq(key)
            self._told.at_ms, (seen, log) = await self._state(key, last_seq)
            expected, expected_log = await _state_of(self._oracle, key, last_seq)
            expect(expected_log, log, f"the log of {key}")
            expect(expected, seen, f"the work and timers of {key}")
        letters = await self._stores[1].dead_letters()
        expect(self._oracle.all_dead_letters(), letters, "the dead letters")
        _expect_infos(await self._oracle.sessions(), await self._stores[0].sessions())
        self._touched = ()


async def _state_of(oracle: Oracle, key: SessionKey, last_seq: int) -> State:
    return oracle.transact_blocking(key, *Look(last_seq).decision({})), await oracle.read(key, 0, ALL)


def _same(expected: list[SessionInfo], actual: list[SessionInfo]) -> bool:
    try:
        _expect_infos(expected, actual)
    except AssertionError:
        return False
    return True


def _expect_infos(expected: list[SessionInfo], actual: list[SessionInfo]) -> None:
    rows = [(info.key, info.last_seq, info.wake_at_ms is None) for info in expected]
    expect(rows, [(info.key, info.last_seq, info.wake_at_ms is None) for info in actual], "the sessions")
    for one, other in zip(expected, actual, strict=True):
        if one.wake_at_ms is not None:
            expect_near(one.wake_at_ms, other.wake_at_ms, f"wake_at_ms of {one.key}")


def run(backend: str, make_store: MakeStore, examples: int = 10, **options: Any) -> None:
    """Play so many stories on new stores of this kind, on this event loop."""
    chosen = settings(
        max_examples=examples,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],  # a step is an answer of a server
        **options,
    )
    with start_blocking_portal(backend) as portal:

        class Story(Machine):
            def __init__(self) -> None:
                super().__init__(portal, make_store)

        run_state_machine_as_test(Story, settings=chosen)


# ── the stores ───────────────────────────────────────────────────────────────────────────


@pytest.fixture(params=["asyncio", "trio"])
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def test_sqlite(backend: str, tmp_path: Path) -> None:
    def make(clock: StoreClock, name: str) -> SQLiteStore:
        return SQLiteStore(tmp_path / f"{name}.db", clock=clock, synchronous="NORMAL")

    run(backend, make, examples=20)


def test_postgres(backend: str, bench: PostgresBench) -> None:
    run(backend, bench.make_store)


def test_redis(backend: str) -> None:
    with RedisBench(redis_url()) as redis:
        run(backend, redis.make_store)


class MovedUpstashStore(UpstashStore):
    def __init__(self, clock: StoreClock, url: str, prefix: str) -> None:
        super().__init__(url, TOKEN, prefix=prefix)
        self._moved = clock

    def _moved_ms(self) -> int:
        return self.offset_ms + self._moved.moved_ms


def test_upstash(backend: str, tmp_path: Path) -> None:
    needs_redis()
    with RedisServer(tmp_path) as server, bridge_process(server.port) as url:
        run(backend, lambda clock, name: MovedUpstashStore(clock, url, name), examples=6)


# ── planted faults ───────────────────────────────────────────────────────────────────────


class Fenceless(MemoryStore):
    """Takes an answer of whoever ever held the work."""

    def __init__(self, clock: StoreClock) -> None:
        super().__init__(clock=clock)
        self._before: dict[tuple[SessionKey, int], list[WorkItem]] = {}

    def transact_blocking(self, key: SessionKey, needs: Needs, decide: Decide[Answer]) -> Answer:
        def unfenced(snapshot: Snapshot, now_ms: int) -> Plan[Answer]:
            plan = decide(snapshot, now_ms)
            for seq in needs.seqs if plan.answer == Stale() and snapshot.items else ():
                for item in self._before.get((key, seq), ()):
                    if (other := decide(replace(snapshot, items={seq: item}), now_ms)).answer != Stale():
                        plan = other
            for item in plan.items:
                self._before.setdefault((key, item.seq), []).append(item)
            return plan

        return super().transact_blocking(key, needs, unfenced)


class ForgetsToPurge(MemoryStore):
    """Removes the ids of what expired, and leaves the events in the log."""

    async def purge(self, limit: int) -> int:
        logs = {key: dict(session.log) for key, session in self._sessions.items()}
        purged = await super().purge(limit)
        for key, session in self._sessions.items():
            session.log = logs[key]
        return purged


class LosesUpdates(MemoryStore):
    """Lets others decide between what a decision reads and what it writes."""

    async def transact(self, key: SessionKey, needs: Needs, decide: Decide[Answer]) -> Answer:
        plans: list[Plan[Answer]] = []

        def note(snapshot: Snapshot, now_ms: int) -> Plan[None]:
            plans.append(decide(snapshot, now_ms))
            return Plan(None)

        await super().transact(key, needs, note)
        return await super().transact(key, needs, lambda *_: plans[0])


@pytest.mark.parametrize(
    ("broken", "fault"),
    [
        (Fenceless, r"expected Stale\(\), got|no order of .* explains the answers"),
        (ForgetsToPurge, "the log of .*: expected"),
        (LosesUpdates, "no order of .* explains the answers"),
    ],
)
def test_a_planted_fault_is_found(backend: str, broken: Callable[..., MemoryStore], fault: str) -> None:
    made: dict[str, MemoryStore] = {}

    def shared(clock: StoreClock, name: str) -> MemoryStore:
        return made.setdefault(name, broken(clock=clock))

    with pytest.raises((AssertionError, Flaky)) as caught:  # at once, things go another way each time
        run(
            backend,
            shared,
            examples=500,
            phases=[Phase.generate],
            derandomize=True,
            database=None,
            report_multiple_bugs=False,
        )
    assert re.search(fault, "".join(format_exception(caught.value)))
