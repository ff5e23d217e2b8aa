"""A world: processes, store, provider and clients, from the first event to the calm after the storm."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

import anyio

from a2asgi import A2Middleware, MemoryStore
from a2asgi import engine as engine_room
from a2asgi import jobs as jobs_room
from a2asgi.clock import no_op
from a2asgi.ports import SessionKey
from tests.world import loop as virtual
from tests.world.app import CRON_MS, App, app
from tests.world.clients import Clients
from tests.world.laws import Breach, Law, Laws
from tests.world.process import Process
from tests.world.provider import Provider
from tests.world.scenario import Fault, Scenario

START_MS = 1_767_225_600_000
HARMLESS = {Fault.SLOW, Fault.START_OVER, Fault.DUPLICATE, Fault.REPLAY}
LONGEST_CALM_S = 4 * 86_400
MOST_PLANS = 20_000
CALM_FIRST_S = 20
CALM_LONGEST_S = 600


@dataclass(frozen=True, slots=True)
class Report:
    """What came of a world."""

    scenario: Scenario
    breach: Breach | None
    trace: list[tuple[object, ...]]
    events: int
    ended_ms: int

    def lines(self) -> list[str]:
        """The trace as text."""
        return [" ".join(map(str, one)) for one in self.trace]


class World:
    """One world on one loop."""

    def __init__(self, scenario: Scenario, loop: virtual.VirtualLoop) -> None:
        self.scenario = scenario
        self.loop = loop
        self.chance = Random(f"world {scenario.seed}")  # noqa: S311 - a world that can be repeated
        self.trace: list[tuple[object, ...]] = []
        self.laws = Laws(START_MS)
        self.laws.now_ms = START_MS
        self.store = MemoryStore(clock=self)
        self.calm = False
        self.provider = Provider(self)
        self.clients = Clients(self)
        self.processes: list[Process] = []
        self._faults = frozenset(scenario.faults)
        disturbed = scenario.limit_ms is not None or self._faults & {Fault.OUTAGE, Fault.LOST_ANSWER, Fault.PAUSE}
        self.keeps_claims = not disturbed
        self._tasks: list[asyncio.Task[None]] = []
        self._middlewares: dict[App, A2Middleware] = {}
        self._booted = 0
        self._store_back_s = 0.0
        self._provider_back_s = 0.0

    # ── time: the store's own clock, which is right ──

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return START_MS + self.loop.now_ms()

    async def sleep_ms(self, duration_ms: int, on_wake: Callable[[], None] = no_op) -> None:
        """As Clock.sleep_ms."""
        await anyio.sleep(duration_ms / 1_000)
        on_wake()

    # ── chances ──

    def has(self, fault: Fault) -> bool:
        """Whether this may go wrong now."""
        return not self.calm and fault in self._faults

    def strikes(self, fault: Fault, chance: float) -> bool:
        """Whether it does."""
        return self.has(fault) and self.chance.random() < chance

    def is_gentle(self) -> bool:
        """Whether nothing in this world loses a wake-up, or keeps it from being heeded in time."""
        harmless = self._faults <= HARMLESS and not self.scenario.hangs_up
        return harmless and not any(process.dead for process in self.processes)

    def store_is_away(self) -> bool:
        """Whether the store answers nobody."""
        return self.loop.now_s < self._store_back_s

    def provider_is_away(self) -> bool:
        """Whether the provider takes and delivers nothing."""
        return self.loop.now_s < self._provider_back_s

    def note(self, *what: object) -> None:
        """Remember what happened."""
        self.trace.append((self.loop.now_ms(), *what))

    # ── processes ──

    def boot(self, *, newer: bool) -> None:
        """Start a process."""
        self._booted += 1
        skew_ms = self.chance.randint(-90_000, 90_000) if Fault.SKEW in self._faults else 0
        version = app(provider=self.scenario.provider, newer=newer)
        works = self.calm or not self.scenario.web or self._booted % 2 == 1
        process = Process(self, self._booted, version, skew_ms, works=works)
        self.note(process.name, "starts", "newer" if newer else "older", skew_ms, "web" * (not works))
        self.processes.append(process)
        self._tasks.append(process.start())

    def some_process(self) -> Process | None:
        """One that takes requests."""
        serving = [process for process in self.processes if process.serves]
        return self.chance.choice(serving) if serving else None

    def middleware(self, process: Process) -> A2Middleware:
        """The ASGI app of a process."""
        found = self._middlewares.get(process.app)
        if found is None:
            found = self._middlewares[process.app] = A2Middleware(_nothing_else, process.app)
        return found

    # ── its course ──

    async def run(self) -> None:
        """From the beginning to the end, or to the first breach."""
        for number in range(self.scenario.processes):
            self.boot(newer=not self.has(Fault.DEPLOY) or (number > 0 and self.chance.random() < 0.5))
        for at_s, happen in sorted(self._course(), key=lambda one: one[0]):
            await asyncio.sleep(at_s - self.loop.now_s)
            if self._over():
                return
            happen()
        await self._calm_down()

    def _over(self) -> bool:
        if self.laws.plans > MOST_PLANS:
            self.laws.broken(Law.BUG, f"more than {MOST_PLANS} transactions: something goes round in circles")
        return self.laws.breach is not None

    def _course(self) -> Iterator[tuple[float, Callable[[], object]]]:
        """What happens, and when."""
        span_s = self.scenario.span_ms / 1_000
        at = self.chance.uniform
        for _ in range(self.scenario.steps):
            yield at(0.1, span_s), self.clients.step
        strikes: dict[Fault, Callable[[], object]] = {
            Fault.CRASH: self._kill,
            Fault.OUTAGE: self._take_store_away,
            Fault.PAUSE: self._stand_still,
            Fault.STEP: self._step_clock,
            Fault.DEPLOY: self._deploy,
            Fault.PROVIDER_OUTAGE: self._take_provider_away,
        }
        for fault, strike in strikes.items():
            if self.has(fault):
                for _ in range(self.chance.randint(1, 3)):
                    yield at(0.1, span_s), strike
        for _ in range(5):  # so that a breach is found soon
            yield at(0, span_s), _nothing
        if self.has(Fault.CRASH) or self.has(Fault.DEPLOY):
            for _ in range(4):
                yield at(0.1, span_s), self._replace_dead

    def _kill(self) -> None:
        if (process := self.some_process()) is not None:
            process.die()

    def _take_store_away(self) -> None:
        self._store_back_s = self.loop.now_s + self.chance.choice([2, 15, 50])
        self.note("store", "is away until", round(self._store_back_s * 1_000))

    def _take_provider_away(self) -> None:
        self._provider_back_s = self.loop.now_s + self.chance.choice([2, 15, 50])
        self.note("provider", "is away until", round(self._provider_back_s * 1_000))

    def _stand_still(self) -> None:
        if (process := self.some_process()) is not None:
            process.still_until_s = self.loop.now_s + self.chance.choice([5, 40, 80])
            self.note(process.name, "stands still until", round(process.still_until_s * 1_000))

    def _step_clock(self) -> None:
        if (process := self.some_process()) is not None:
            process.skew_ms += self.chance.choice([-3_600_000, -30_000, -1_000, 1_000, 30_000, 3_600_000])
            self.note(process.name, "has its clock set", process.skew_ms)

    def _deploy(self) -> None:
        if (process := self.some_process()) is not None:
            self.note(process.name, "shuts down")
            process.stop()
            self.boot(newer=self.chance.random() < 0.7)

    def _replace_dead(self) -> None:
        if sum(not process.dead for process in self.processes) < self.scenario.processes:
            self.boot(newer=not self.has(Fault.DEPLOY) or self.chance.random() < 0.5)

    async def _calm_down(self) -> None:
        """Nothing goes wrong any more: whatever is still open must come to its end by itself."""
        self.note("the world", "calms down")
        self.calm = True
        self._store_back_s = self._provider_back_s = 0.0
        for process in self.processes:
            if not process.dead and not process.app.newer:
                process.stop()
        calm_since_s = self.loop.now_s
        pause_s = CALM_FIRST_S
        while True:
            if all(process.dead or process.stopping or not process.works for process in self.processes):
                self.boot(newer=True)
            if self.scenario.inline:  # what was lost is found by the next delivery: an app that is used has one
                self.provider.visit()
            await asyncio.sleep(pause_s)
            if self._over():
                return
            if self._is_done(self.loop.now_s - calm_since_s):
                break
            if self.loop.now_s - calm_since_s > LONGEST_CALM_S:
                break
            pause_s = min(CALM_LONGEST_S, pause_s * 2)
        self.laws.after_the_storm()
        self.clients.after_the_storm()
        if not self.scenario.provider:
            self.laws.cron_goes_on(SessionKey("cron:tick", "slots"), round(calm_since_s * 1_000), CRON_MS)

    def _is_done(self, calm_s: float) -> bool:
        if self.scenario.cron and not self.scenario.provider and calm_s < 2.5 * CRON_MS / 1_000:
            return False
        return self.laws.is_calm() and self.clients.are_done() and not self.provider.waiting

    def give_up(self) -> None:
        """Something goes round and round while no time passes."""
        self.laws.broken(Law.BUG, f"{virtual.MOST_TURNS} rounds in which no time passed")
        for process in self.processes:
            process.die()

    async def end(self) -> None:
        """Let everything die, and wait for it."""
        for process in self.processes:
            process.die()
        await asyncio.gather(*self._tasks)


async def _nothing_else(scope: Any, receive: Any, send: Any) -> None:
    del scope, receive, send


def _nothing() -> None:
    """Nothing happens."""


def run_world(scenario: Scenario) -> Report:
    """Run one world."""
    world: World | None = None

    async def main(loop: virtual.VirtualLoop) -> None:
        nonlocal world
        world = World(scenario, loop)
        loop.on_hot_loop = world.give_up
        loop.set_exception_handler(lambda _, context: world.laws.broken(Law.BUG, str(context)))
        try:
            await world.run()
        finally:
            await world.end()

    with quiet() as errors, seeded(scenario.seed):
        virtual.run(main)
    assert world is not None
    if errors.found:
        world.laws.broken(Law.BUG, errors.found[0])
    events = sum(len(book.log) for book in world.laws.books.values())
    return Report(scenario, world.laws.breach, world.trace, events, world.loop.now_ms())


class _Errors(logging.Handler):
    """Collects what production code says is a bug."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "is a bug" in record.msg or record.name == "asyncio":
            self.found.append(f"{record.getMessage()} {record.exc_info and record.exc_info[1]!r}")


@contextmanager
def quiet() -> Iterator[_Errors]:
    """Within it production code logs nothing but what it says is a bug."""
    logger = logging.getLogger("a2asgi")
    errors = _Errors()
    before = logger.level, logger.propagate
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    logger.addHandler(errors)
    try:
        yield errors
    finally:
        logger.removeHandler(errors)
        logger.level, logger.propagate = before


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Within it the ids that production code makes follow from the seed."""
    entropy = Random(f"ids {seed}")  # noqa: S311 - a world that can be repeated

    def random_id() -> str:
        return f"{entropy.getrandbits(128):032x}"

    rooms: list[Any] = [engine_room, jobs_room]
    originals = [room.random_id for room in rooms]
    for room in rooms:
        room.random_id = random_id
    try:
        yield
    finally:
        for room, original in zip(rooms, originals, strict=True):
            room.random_id = original
