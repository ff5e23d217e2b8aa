"""The bench of a store check: the store under test, a clock that the check moves, and small plans to write."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TypeAlias, TypeVar

import anyio

from a2asgi.clock import SystemClock
from a2asgi.ports import Answer, Decide, SessionKey, Store
from a2asgi.testing.world import ManualClock
from a2core import Entry, Needs, Plan, Snapshot, Timer, Wake, WorkItem

T = TypeVar("T")

KEY = SessionKey("shop", "s-1")
OTHER = SessionKey("shop", "s-2")

HOUR_MS = 3_600_000
SLACK_MS = 120_000
"""How far a server's own clock may run on while a check does: checks move the time by hours, and compare with this."""

MAX_REPR_CHARS = 600
"""A fault longer than this helps nobody to read it."""


class StoreClock(ManualClock):
    """Stands still at the moment at which its check began, until the check moves it.

    A store with a clock of its own choice reads `now_ms`; one whose clock is its server's adds `moved_ms` to that.
    """

    def __init__(self) -> None:
        self._began_ms = SystemClock().now_ms()
        super().__init__(self._began_ms)

    @property
    def moved_ms(self) -> int:
        """How far the check has moved the time."""
        return self.now_ms() - self._began_ms

    def move(self, duration_ms: int) -> None:
        """Let time pass."""
        self.move_to(self.now_ms() + duration_ms)


MakeStore: TypeAlias = Callable[[StoreClock, str], Store]
"""`make_store(clock, name)` makes a store that is not open yet. Stores made with one name hold the same data, where
they are durable; a name that was never used before, made of a-z, 0-9 and _, stands for an empty store."""


class Bench:
    """What one check works with. `store` is open, empty and its alone; `another` makes one on the same data."""

    def __init__(self, clock: StoreClock, another: Callable[[], Store]) -> None:
        self.clock = clock
        self.store: Store = another()
        self.another = another

    async def put(self, key: SessionKey, plan: Plan[Answer]) -> Answer:
        """Write this plan, as a decision that has read whatever it changes."""
        needs = Needs(
            ids=tuple(entry.id for entry in plan.entries),
            seqs=(*plan.settled, *plan.endings, *(item.seq for item in plan.items)),
            timers=(*plan.delivered, *(timer.id for timer in plan.timers)),
            heads=True,
        )
        return await self.store.transact(key, needs, lambda _snapshot, _now_ms: plan)

    async def look(
        self,
        key: SessionKey = KEY,
        *,
        ids: Sequence[str] = (),
        seqs: Sequence[int] = (),
        timers: Sequence[str] = (),
        keys: Sequence[str] = (),
        heads: bool = False,
        behind: int | None = None,
    ) -> Snapshot:
        """What the store loads for a decision."""
        needs = Needs(tuple(ids), tuple(seqs), tuple(timers), tuple(keys), heads, behind)
        return await self.store.transact(key, needs, _as_it_is)

    async def now_ms(self) -> int:
        """The time by the store's clock."""
        return await self.store.transact(KEY, Needs(), lambda _snapshot, now_ms: Plan(now_ms))

    async def append(self, *lanes: str, key: SessionKey = KEY) -> tuple[WorkItem, ...]:
        """Append one event of open work in each of these lanes, with its seq in its id: e1, e2, and so on."""
        return await self.store.transact(key, Needs(), appending(*lanes))

    async def settle(self, *seqs: int, key: SessionKey = KEY) -> None:
        """Settle this open work."""
        await self.put(key, Plan(None, settled=seqs))

    async def wake(self, wake: Wake, *keys: SessionKey) -> None:
        """Move the wake-ups of these sessions."""
        for key in keys:
            await self.put(key, Plan(None, wake=wake))

    async def head_seqs(self, key: SessionKey = KEY) -> list[int]:
        """The seqs of the heads, in order."""
        return sorted(item.seq for item in (await self.look(key, heads=True)).heads)

    async def log_ids(self, key: SessionKey = KEY) -> list[str]:
        """The ids in the log, in order, read in small pages; the seqs are found to count from 1."""
        log: list[Entry] = []
        while page := await self.store.read(key, len(log), 50):
            log += page
            expect(list(range(1, len(log) + 1)), [entry.seq for entry in log], f"the seqs in the log of {key}")
        return [entry.id for entry in log]


class Opened(AbstractAsyncContextManager[Store]):
    """A store that is open for as long as this is entered."""

    def __init__(self, store: Store, *, close_within_s: float = 30) -> None:
        self._store = store
        self._close_within_s = close_within_s

    async def __aenter__(self) -> Store:
        await self._store.open()
        return self._store

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with anyio.move_on_after(self._close_within_s, shield=True):
            await self._store.close()


def order(seq: int, now_ms: int = 0, *, event_id: str | None = None, payload: str = "{}") -> Entry:
    """The entry of a small event."""
    return Entry(event_id or f"e{seq}", "order", payload, None, now_ms, seq)


def appending(*lanes: str) -> Decide[tuple[WorkItem, ...]]:
    """Decide to append one event of open work in each of these lanes."""

    def decide(snapshot: Snapshot, now_ms: int) -> Plan[tuple[WorkItem, ...]]:
        items = tuple(WorkItem(order(seq, now_ms), lane) for seq, lane in enumerate(lanes, snapshot.last_seq + 1))
        return Plan(items, entries=tuple(item.entry for item in items), items=items)

    return decide


def appending_as(event_id: str) -> Decide[int]:
    """Decide to append one event of this id, and answer its seq."""

    def decide(snapshot: Snapshot, now_ms: int) -> Plan[int]:
        entry = order(snapshot.last_seq + 1, now_ms, event_id=event_id)
        return Plan(entry.seq, entries=(entry,), items=(WorkItem(entry, event_id),))

    return decide


def plain_timer(timer_id: str, due_at_ms: int) -> Timer:
    """A timer without events."""
    return Timer(timer_id, due_at_ms, None, ())


async def together(*functions: Callable[[], Awaitable[T]]) -> list[T]:
    """Run all at once and return their answers in order; the first error of one is raised as itself."""
    answers: dict[int, T] = {}

    async def run(index: int, function: Callable[[], Awaitable[T]]) -> None:
        answers[index] = await function()

    try:
        async with anyio.create_task_group() as tasks:
            for index, function in enumerate(functions):
                tasks.start_soon(run, index, function)
    except BaseExceptionGroup as group:
        raise _first(group) from None
    return [answers[index] for index in range(len(functions))]


def expect(expected: T, actual: T, what: str) -> None:
    """Raise AssertionError if they differ."""
    if actual != expected:
        raise AssertionError(f"{what}: expected {_short(expected)}, got {_short(actual)}")


def expect_near(expected_ms: int, actual_ms: int | None, what: str) -> None:
    """Raise AssertionError if an instant or a duration is too early, or later than a running clock explains."""
    if actual_ms is None or abs(actual_ms - expected_ms) > SLACK_MS:
        raise AssertionError(f"{what}: expected {expected_ms} ms within {SLACK_MS} ms, got {actual_ms}")


def _as_it_is(snapshot: Snapshot, now_ms: int) -> Plan[Snapshot]:
    del now_ms  # a decision has one signature
    return Plan(snapshot)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _short(value: object) -> str:
    text = repr(value)
    half = MAX_REPR_CHARS // 2
    return text if len(text) <= MAX_REPR_CHARS else f"{text[:half]} … {text[-half:]}"
