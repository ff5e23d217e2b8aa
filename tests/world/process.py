"""One process of a world: production code between a faulty clock, a faulty way to the store, and its own death."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from contextlib import ExitStack, asynccontextmanager
from contextvars import ContextVar, copy_context
from datetime import datetime
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from a2asgi.clock import no_op
from a2asgi.engine import Engine
from a2asgi.errors import StoreUnavailable
from a2asgi.ports import Answer, Decide, SessionInfo, SessionKey, Store, Wakes
from a2asgi.renewal import Held, Renewer
from a2asgi.times import from_ms
from a2core import DrainTimings, Entry, Needs, Plan, RetryPolicy, Snapshot, WorkItem
from tests.world.app import SNOOZE_MS, TIMINGS, App, app, current
from tests.world.laws import Law, Laws
from tests.world.scenario import Fault
from tests.world.told import Told

if TYPE_CHECKING:
    from tests.world.provider import Carrier
    from tests.world.world import World


ends_ms: ContextVar[int | None] = ContextVar("ends_ms", default=None)
"""When the request of this task is to be over, by the clock of its process."""


class Crashed(BaseException):
    """This process is dead. Not an Exception: no code of a dead process runs on."""


class Process:
    """One process, from its start to its death or its shutdown. It is its own clock."""

    snooze_ms = SNOOZE_MS
    timings: DrainTimings = TIMINGS
    engine: Engine

    def __init__(self, world: "World", number: int, app: App, skew_ms: int, *, works: bool) -> None:
        self.world = world
        self.name = f"p{number}"
        self.app = app
        self.laws: Laws = world.laws
        self.skew_ms = skew_ms
        self.works = works
        """Whether it handles events: it is not of role "web"."""
        self.carrier: Carrier = world.provider.carrier(self)
        self.dead = False
        self.serves = False
        self.stopping = False
        self.still_until_s = 0.0
        self._scope = anyio.CancelScope()
        self._stop = asyncio.Event()
        self._requests: TaskGroup

    def __repr__(self) -> str:
        return self.name

    # ── its clock ──

    def now_ms(self) -> int:
        """The time of day, as this process has it."""
        return self.world.now_ms() + self.skew_ms

    async def sleep_ms(self, duration_ms: int, on_wake: Callable[[], None] = no_op) -> None:
        """As Clock.sleep_ms."""
        await anyio.sleep(duration_ms / 1_000)
        on_wake()

    # ── its life ──

    def start(self) -> "asyncio.Task[None]":
        """Start it."""
        context = copy_context()
        context.run(current.set, self)
        return self.world.loop.create_task(self._live(), context=context)

    async def _live(self) -> None:
        try:
            with self._scope:
                self.app.equip(self, Handle(self), partial(_Heart, self))
                async with self._hosted(), anyio.create_task_group() as self._requests:
                    self.serves = not self.stopping  # it may be told to stop as it starts
                    await self._stop.wait()
        except* Crashed:
            pass  # that is what being dead means
        except* Exception as error:  # noqa: BLE001 - whatever it is, a process must not end by it
            if not self.dead:  # a drain in which one handler crashes may have another's trouble with the store to tell
                self.laws.broken(Law.BUG, f"{self} ended by {_told(error)}")
        self.serves = False
        self.dead = True

    @asynccontextmanager
    async def _hosted(self) -> AsyncIterator[None]:
        """Run in a server, or where there is none, as a serverless function that lives from request to request."""
        if self.world.scenario.inline:
            yield
            return
        async with self.app.server(self) as serving:
            serving.begin()
            yield

    def stop(self) -> None:
        """Shut down in good order: what was asked is answered, handlers get their grace."""
        self.serves = False
        self.stopping = True
        self._stop.set()

    def die(self) -> None:
        """Nothing of it runs on, and nothing that it does reaches the world."""
        if not self.dead:
            self.world.note(self.name, "dies")
            self.dead = True
            self.serves = False
            self._scope.cancel()

    def crash(self) -> None:
        """Die here and now, in the middle of a step. Raises Crashed."""
        self.die()
        raise Crashed

    def request(self, function: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Have it do something for someone outside. It must be serving."""
        context = copy_context()
        context.run(current.set, self)
        context.run(self._requests.start_soon, self._in_time, function)

    async def _in_time(self, function: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Do it within the time that the platform gives to one request, and while who asked waits for it."""
        scenario, loop = self.world.scenario, self.world.loop

        def hang_up() -> None:
            self.world.note("somebody", "hangs up on", self)
            scope.cancel()

        with anyio.CancelScope() as scope, ExitStack() as ends:
            if scenario.limit_ms is not None:
                ends_ms.set(self.now_ms() + scenario.limit_ms)
                ends.callback(loop.call_later(scenario.limit_ms / 1_000, self.die).cancel)
            if scenario.hangs_up and not self.world.calm and self.world.chance.random() < 0.5:
                ends.callback(loop.call_later(self.world.chance.choice([0, 0.2, 2, 20]), hang_up).cancel)
            await function()

    def deadline(self) -> datetime | None:
        """When the platform ends this process, because of the request that asks."""
        at_ms = ends_ms.get()
        return None if at_ms is None else from_ms(at_ms)

    def policy(self, contract: str, event_type: str) -> RetryPolicy | None:
        """The policy of a type of event; None where this version has no handler for it."""
        definition = self.app.definition(contract)
        handler = None if definition is None else definition.handlers.get(event_type)
        return None if handler is None else handler.policy

    def is_handled(self, contract: str, event_type: str) -> bool:
        """Whether the newest version has a handler for it."""
        definition = app(provider=self.world.scenario.provider, newer=True).definition(contract)
        return definition is not None and event_type in definition.handlers

    def should_hold(self, holder: str) -> bool:
        """Whether nothing has happened to this process by which it could lose a claim."""
        return self.world.keeps_claims and any(
            one.name == holder and not one.dead and not one.stopping for one in self.world.processes
        )

    # ── its steps to the outside ──

    def has(self, fault: Fault, chance: float) -> bool:
        """Whether this fault strikes now."""
        return self.world.has(fault) and self.world.chance.random() < chance

    async def reach(self, longest_ms: int) -> None:
        """Before a step: it may take time, or be the last thing."""
        self.check()
        if self.has(Fault.SLOW, 0.5):
            await self.pause(self.world.chance.randint(1, longest_ms))
        elif self.still_until_s <= self.world.loop.now_s:
            await checkpoint()
        await self.stand_still()
        if self.has(Fault.CRASH, 0.002):
            self.crash()

    async def returned(self, longest_ms: int) -> None:
        """After a step: the same."""
        self.check()
        if self.has(Fault.CRASH, 0.004):
            self.crash()
        if self.has(Fault.SLOW, 0.2):
            await self.pause(self.world.chance.randint(1, longest_ms))
        await self.stand_still()

    async def pause(self, duration_ms: int) -> None:
        """Wait, unless it dies meanwhile."""
        await anyio.sleep(duration_ms / 1_000)
        self.check()

    async def stand_still(self) -> None:
        """While the process stands still, as in a long collection of garbage, no step ends."""
        while (left_s := self.still_until_s - self.world.loop.now_s) > 0:
            await anyio.sleep(left_s)
            self.check()

    def check(self) -> None:
        """Raises Crashed in a dead process."""
        if self.dead:
            raise Crashed


class _Heart(Renewer):
    """Renewal on virtual time, as its thread does it."""

    def __init__(self, process: Process, store: Store) -> None:
        super().__init__(store, TIMINGS, process.world)
        self._process = process
        self._beats = False

    def hold(self, held: Held) -> None:
        """As Renewer.hold."""
        super().hold(held)
        if not self._beats:
            self._beats = True
            self._wait()

    def _wait(self) -> None:
        loop = self._process.world.loop
        loop.call_at(max(loop.now_s + TIMINGS.heartbeat_ms / 1_000, self._process.still_until_s), self._tick)

    def _tick(self) -> None:
        if self._process.dead or self.idle:
            self._beats = False
        elif self._process.still_until_s > self._process.world.loop.now_s:
            self._wait()
        else:
            try:
                self.beat()
            except Crashed:
                return
            self._wait()


class Handle:
    """A process's way to the store of its world, along which anything may happen."""

    offset_ms: int = 0

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world
        self._store = process.world.store
        self._chance: Random = process.world.chance

    async def open(self) -> None:
        """As Store.open."""

    async def close(self) -> None:
        """As Store.close."""

    async def ping(self) -> None:
        """As Store.ping."""
        await self._process.reach(200)
        self._refuse()

    async def transact(self, key: SessionKey, needs: Needs, decide: Decide[Answer]) -> Answer:
        """As Store.transact."""
        await self._process.reach(200)
        self._refuse()
        if self._process.has(Fault.START_OVER, 0.1):
            self._store.transact_blocking(key, needs, partial(_undone, decide))
            await self._process.pause(self._chance.randint(1, 100))
            self._refuse()
        answer = self._store.transact_blocking(key, needs, partial(self._watched, key, decide))
        await self._answered()
        return answer

    def transact_blocking(self, key: SessionKey, needs: Needs, decide: Decide[Answer]) -> Answer:
        """As Store.transact_blocking."""
        self._process.check()
        self._refuse()
        answer = self._store.transact_blocking(key, needs, partial(self._watched, key, decide))
        self._lose_answer()
        return answer

    async def read(self, key: SessionKey, after_seq: int, limit: int) -> list[Entry]:
        """As Store.read."""
        await self._process.reach(200)
        self._refuse()
        return await self._store.read(key, after_seq, limit)

    async def claim_wakes(self, contracts: Collection[str], *, limit: int, lease_ms: int, late_ms: int = 0) -> Wakes:
        """As Store.claim_wakes."""
        await self._process.reach(200)
        self._refuse()
        self._world.laws.now_ms = self._world.now_ms()
        wakes = self._store.take_wakes(contracts, limit=limit, lease_ms=lease_ms, late_ms=late_ms)
        if wakes.due:
            self._world.note(self._process.name, "is handed", wakes.due)
            self._world.laws.took(self._process, wakes.due, lease_ms, late_ms)
            if late_ms and self._world.is_gentle():
                self._world.laws.broken(Law.LOST, f"{self._process} found {wakes.due} without a wake-up")
        await self._answered()
        return wakes

    async def purge(self, limit: int) -> int:
        """As Store.purge."""
        await self._process.reach(200)
        self._refuse()
        return await self._store.purge(limit)

    async def dead_letters(
        self, contract: str | None = None, *, after: tuple[SessionKey, int] | None = None, limit: int = 100
    ) -> list[tuple[SessionKey, WorkItem]]:
        """As Store.dead_letters."""
        await self._process.reach(200)
        self._refuse()
        return await self._store.dead_letters(contract, after=after, limit=limit)

    async def sessions(
        self, contract: str | None = None, *, after: SessionKey | None = None, limit: int = 100
    ) -> list[SessionInfo]:
        """As Store.sessions."""
        await self._process.reach(200)
        self._refuse()
        return await self._store.sessions(contract, after=after, limit=limit)

    def _watched(self, key: SessionKey, decide: Decide[Answer], snapshot: Snapshot, now_ms: int) -> Plan[Answer]:
        plan = decide(snapshot, now_ms)
        world = self._world
        world.laws.now_ms = now_ms
        if plan.writes:
            world.note(self._process.name, "writes", key, Told(plan, now_ms))
        world.laws.judge(self._process, key, now_ms, plan)
        return plan

    def _refuse(self) -> None:
        if self._world.store_is_away():
            raise StoreUnavailable("the store is away")

    def _lose_answer(self) -> None:
        if self._process.has(Fault.LOST_ANSWER, 0.03):
            raise StoreUnavailable("the store wrote, and its answer is lost")

    async def _answered(self) -> None:
        await self._process.returned(200)
        self._lose_answer()


def _undone(decide: Decide[Any], snapshot: Snapshot, now_ms: int) -> Plan[None]:
    """Decide, and write nothing of it."""
    decide(snapshot, now_ms)
    return Plan(None)


def _told(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return repr(error)
