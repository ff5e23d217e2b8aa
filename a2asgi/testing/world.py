"""The test world: the production engine on a manual clock and a memory store, so that nothing waits for real time."""

from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

import anyio
from anyio.lowlevel import checkpoint

from a2asgi import runs
from a2asgi.activity import Activity
from a2asgi.attempt import Attempt, current_attempt
from a2asgi.clock import Clock, no_op
from a2asgi.contract import Definition
from a2asgi.drain import Drain
from a2asgi.engine import Engine
from a2asgi.groups import leave
from a2asgi.ports import Answer, Decide, SessionInfo, SessionKey, Store, Wakes
from a2asgi.session import DeadLetter, dead_letter
from a2asgi.stores.memory import MemoryStore
from a2asgi.ticks import purge
from a2asgi.times import Duration, duration_ms, from_ms, instant_ms
from a2core import Appended, Buried, Claimed, Entry, Needs, Retrying, Scheduled, Settled, WentOn, WorkItem

START = datetime(2026, 1, 1, tzinfo=UTC)
"""When a world begins, unless it is told otherwise."""

EFFECTS: Mapping[str, tuple[type, ...]] = {
    "append": (Appended,),
    "claim": (Claimed,),
    "settle": (Settled,),
    "fail": (Retrying, Buried),
    "schedule": (Scheduled,),
}
"""What a process can be crashed after, and the answers by which it is known."""


class Crashed(BaseException):
    """The process of this task is dead. Not an Exception: no code of a dead process runs on."""


class ManualClock:
    """A clock that stands still until it is moved."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._sleepers: list[tuple[int, Callable[[], None]]] = []

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return self._now_ms

    def next_ms(self) -> int | None:
        """When the first sleeper is to wake."""
        return min((at_ms for at_ms, _ in self._sleepers), default=None)

    def move_to(self, now_ms: int) -> None:
        """Set the time, which never runs backwards, and wake whose time has come."""
        self._now_ms = max(self._now_ms, now_ms)
        due = sorted((one for one in self._sleepers if one[0] <= self._now_ms), key=lambda one: one[0])
        self._sleepers = [one for one in self._sleepers if one[0] > self._now_ms]
        for _, wake in due:
            wake()

    async def sleep_ms(self, duration_ms: int, on_wake: Callable[[], None] = no_op) -> None:
        """Sleep until the clock has been moved that far; `on_wake` is called by who moves it."""
        if duration_ms <= 0:
            on_wake()
            return
        woken = anyio.Event()

        def wake() -> None:
            on_wake()
            woken.set()

        sleeper = (self._now_ms + duration_ms, wake)
        self._sleepers.append(sleeper)
        try:
            await woken.wait()
        finally:
            if not woken.is_set():
                self._sleepers.remove(sleeper)


class World:
    """One A2 in a world of its own, entered by `async with a2.testing() as world`.

    Sessions are used as ever. Their handlers run at `settle` and `advance` at the latest; the clock stands still
    while they run. `advance("3d")` goes through every timer, retry and recovery that falls due, in order.
    """

    def __init__(
        self,
        make_engine: Callable[[Store, Clock], Engine],
        install: Callable[[Engine | None], None],
        contracts: Mapping[str, Definition],
    ) -> None:
        self.clock: ManualClock = ManualClock(instant_ms(START))
        self.store: MemoryStore = MemoryStore(clock=self.clock)
        self._make_engine = make_engine
        self._install = install
        self._contracts = contracts
        self._tasks = anyio.create_task_group()
        self._process: _Process | None = None
        self._registered: Engine | None = None
        self._crash_after: list[str] = []
        self._beat_at_ms: int | None = None
        self._duplicates = 0
        self._asleep: Counter[Attempt] = Counter()

    async def __aenter__(self) -> Self:
        self._boot()
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._install(None)
        return await leave(self._tasks, error)

    @property
    def now(self) -> datetime:
        """What time it is here."""
        return from_ms(self.clock.now_ms())

    @property
    def dead_letters(self) -> list[DeadLetter]:
        """Every dead letter, by contract, session and seq."""
        return [dead_letter(key, item) for key, item in self.store.all_dead_letters()]

    async def settle(self) -> None:
        """Run whatever is to be done now: the clock does not move."""
        while True:
            engine = self._engine
            if engine is not self._registered:
                self._registered = engine
                await runs.register(engine)
            await engine.runtime.activity.quiet()
            if engine is not self._engine:
                continue
            if self._beat_is_due():
                engine.runtime.renewer.beat()
                await checkpoint()  # who lost its claim learns of it
                continue
            due = self._take_due(engine)
            if not due:
                await checkpoint()  # who was cancelled ends
                if engine.runtime.activity.is_quiet:
                    return
            for key in due:
                self._deliver(key)

    def _take_due(self, engine: Engine) -> list[SessionKey]:
        """The sessions that are due, of the highest priority that has any: on trio, tasks start in any order."""
        lease_ms = engine.runtime.timings.window_ms
        limit = 100 if engine.schedules else 0
        for level in engine.levels():
            due: list[SessionKey] = []
            for share in level:
                due += self.store.take_wakes(share.contracts, limit=limit, lease_ms=lease_ms).due
            if due:
                return due
        return []

    async def advance(self, duration: Duration) -> None:
        """Let time pass, through everything that falls due on the way, in order."""
        end_ms = self.clock.now_ms() + duration_ms(duration)
        await self.settle()
        while (at_ms := self._next_ms()) is not None and at_ms <= end_ms:
            self.clock.move_to(at_ms)
            await self.settle()
        self.clock.move_to(end_ms)
        await self.settle()
        await purge(self._engine)

    async def sleep(self, duration: Duration) -> None:
        """For a handler under test: take this long on the world's clock."""
        attempt = current_attempt.get()
        if attempt is None:
            await self.clock.sleep_ms(duration_ms(duration))
            return
        activity = self._engine.runtime.activity
        asleep = self._asleep
        woken = False

        def wake() -> None:
            nonlocal woken
            woken = True
            asleep[attempt] -= 1
            activity.enter()

        if not asleep[attempt]:
            activity.leave()
        asleep[attempt] += 1
        try:
            await self.clock.sleep_ms(duration_ms(duration), wake)
        finally:
            if not woken:  # cancelled
                wake()
            if asleep[attempt]:  # others of its tasks sleep on: it counts as asleep again once this one waits
                self._tasks.start_soon(self._leave_when_blocked, activity)

    async def _leave_when_blocked(self, activity: Activity) -> None:
        await anyio.wait_all_tasks_blocked()
        activity.leave()

    def crash_after(self, effect: str) -> None:
        """Let the process die right after the next effect of this kind, and another one start in its place.

        Effects: append, claim, settle, fail, schedule. What was written stays; whoever waited for the effect gets
        Crashed; the dead process's claims run out as time passes.
        """
        if effect not in EFFECTS:
            raise ValueError(f"expected one of {sorted(EFFECTS)}, got {effect!r}")
        self._crash_after.append(effect)

    def duplicate_next_delivery(self) -> None:
        """Have the next wake-up delivered twice at the same time."""
        self._duplicates += 1

    @property
    def _engine(self) -> Engine:
        if self._process is None:
            raise RuntimeError("the world is not entered: write `async with a2.testing() as world`")
        return self._process.engine

    def _boot(self) -> None:
        process = _Process(self._tasks, self.store, self._after_effect)
        process.engine = self._make_engine(process, self.clock)
        process.engine.run_in(process.start_soon)
        self._process = process
        self._install(process.engine)

    def _after_effect(self, process: "_Process", answer: object) -> None:
        """Crash the process if it was to die after this."""
        answers = (answer.ended, answer.claimed) if isinstance(answer, WentOn) else (answer,)
        told = [one for one in answers if not isinstance(one, Claimed) or one.items]
        for effect in self._crash_after:
            if any(isinstance(one, EFFECTS[effect]) for one in told):
                self._crash_after.remove(effect)
                process.die()
                self._install(None)
                self._boot()
                return

    def _deliver(self, key: SessionKey) -> None:
        self._engine.start(key)
        if self._duplicates and self._process is not None:
            self._duplicates -= 1
            twin = Drain(self._engine.runtime, self._contracts[key.contract], key, on_end=_nothing)
            self._process.start_soon(_run, twin)

    def _beat_is_due(self) -> bool:
        """Whether a heartbeat has passed; the grid starts when something is held."""
        runtime = self._engine.runtime
        if runtime.renewer.idle:
            self._beat_at_ms = None
            return False
        now_ms = self.clock.now_ms()
        due = self._beat_at_ms is not None and self._beat_at_ms <= now_ms
        if due or self._beat_at_ms is None:
            self._beat_at_ms = now_ms + runtime.timings.heartbeat_ms
        return due

    def _next_ms(self) -> int | None:
        wake_ms = None
        if self._engine.runtime.renewer.idle:
            self._beat_at_ms = None
        if self._engine.schedules:
            wakes = self.store.take_wakes(self._contracts, limit=0, lease_ms=0)
            wake_ms = None if wakes.next_in_ms is None else self.clock.now_ms() + wakes.next_in_ms
        instants = (wake_ms, self.clock.next_ms(), self._beat_at_ms)
        return min((at_ms for at_ms in instants if at_ms is not None), default=None)


class _Process:
    """One process of the world: its tasks, and its way to the store, both of which end when it dies."""

    engine: Engine

    def __init__(
        self, tasks: anyio.abc.TaskGroup, store: Store, after_effect: "Callable[[_Process, object], None]"
    ) -> None:
        self._tasks = tasks
        self._store = store
        self._after_effect = after_effect
        self._scopes: set[anyio.CancelScope] = set()
        self._dead = False

    def start_soon(self, function: Callable[[Drain], Coroutine[Any, Any, Any]], drain: Drain) -> None:
        """As a task group."""
        self._tasks.start_soon(self._run, function, drain)

    def die(self) -> None:
        """Nothing of it runs on, and nothing it does reaches the store."""
        self._dead = True
        for scope in self._scopes:
            scope.cancel()

    async def _run(self, function: Callable[[Drain], Coroutine[Any, Any, Any]], drain: Drain) -> None:
        scope = anyio.CancelScope()
        self._scopes.add(scope)
        try:
            with scope:
                await function(drain)
        except* Crashed:
            pass  # that is what being dead means
        finally:
            self._scopes.discard(scope)

    @property
    def offset_ms(self) -> int:
        return self._store.offset_ms

    @offset_ms.setter
    def offset_ms(self, offset_ms: int) -> None:
        self._store.offset_ms = offset_ms

    def _check(self) -> None:
        if self._dead:
            raise Crashed

    async def open(self) -> None:
        self._check()

    async def close(self) -> None:
        self._check()

    async def ping(self) -> None:
        self._check()

    async def transact(self, key: SessionKey, needs: Needs, decide: Decide[Answer]) -> Answer:
        self._check()
        answer = await self._store.transact(key, needs, decide)
        self._check()
        self._after_effect(self, answer)
        self._check()
        return answer

    def transact_blocking(self, key: SessionKey, needs: Needs, decide: Decide[Answer]) -> Answer:
        self._check()
        return self._store.transact_blocking(key, needs, decide)

    async def read(self, key: SessionKey, after_seq: int, limit: int) -> list[Entry]:
        self._check()
        return await self._store.read(key, after_seq, limit)

    async def claim_wakes(self, contracts: Collection[str], *, limit: int, lease_ms: int, late_ms: int = 0) -> Wakes:
        self._check()
        return await self._store.claim_wakes(contracts, limit=limit, lease_ms=lease_ms, late_ms=late_ms)

    async def purge(self, limit: int) -> int:
        self._check()
        return await self._store.purge(limit)

    async def dead_letters(
        self, contract: str | None = None, *, after: tuple[SessionKey, int] | None = None, limit: int = 100
    ) -> list[tuple[SessionKey, WorkItem]]:
        self._check()
        return await self._store.dead_letters(contract, after=after, limit=limit)

    async def sessions(
        self, contract: str | None = None, *, after: SessionKey | None = None, limit: int = 100
    ) -> list[SessionInfo]:
        self._check()
        return await self._store.sessions(contract, after=after, limit=limit)


async def _run(drain: Drain) -> None:
    await drain.run()


def _nothing(*_: Any) -> None:
    """Nothing more to do."""
