"""A2: the one object that an app makes, with its contracts, its store and its scheduler."""

import logging
import os
from collections.abc import Callable
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, cast, get_args

from a2asgi.clock import Clock, SystemClock
from a2asgi.cron_auth import CronSecrets
from a2asgi.declarations import Declarations
from a2asgi.engine import Engine
from a2asgi.errors import ConfigurationError, StoreNotConfigured
from a2asgi.live import News
from a2asgi.ports import DeliveringScheduler, Scheduler, SessionKey, Store
from a2asgi.renewal import Renewer
from a2asgi.runtime import Runtime
from a2asgi.schedulers.embedded import EmbeddedScheduler, WakeLoop
from a2asgi.schedulers.qstash import QStash
from a2asgi.schedulers.qstash_schedules import Schedule, SyncReport
from a2asgi.serving import Serving
from a2asgi.session import DeadLetter, dead_letter
from a2asgi.stores.sqlite import SQLiteStore
from a2asgi.telemetry import Hook
from a2asgi.ticks import Moves, Tick, tick
from a2asgi.times import Duration, duration_ms, instant_ms
from a2asgi.transactions import Transaction
from a2core import DrainTimings

if TYPE_CHECKING:
    from a2asgi.testing.world import World

log: logging.Logger = logging.getLogger("a2asgi")

DEVELOPMENT_STORE = ".a2/a2.db"
Role: TypeAlias = Literal["all", "web", "worker"]
ROLES: tuple[str, ...] = get_args(Role)
SWEEP_CONCURRENCY = 8
SWEEP_MS = 60_000
"""How often a server looks for sessions whose wake-up a provider lost (engine.md 3)."""


class A2(Declarations):
    """Durable sessions for an ASGI app.

    `store`: where sessions live; in development SQLite in `.a2/`, in production it must be given.
    `scheduler`: what wakes them: the embedded one, a provider, or None, and then only an append or `drain` does.
    `role`: "all" serves and handles; "web" only writes down what a "worker", `a2 run`, then handles. A2_ROLE, or "all".
    `timings`: how long a claim lives and how often it is renewed. `concurrency`: how many lanes of one session run
    at a time. `grace`: how long a shutdown lets handlers run on. `dependencies`: handed to handlers as
    `ctx.dependencies`. `telemetry`: called with each Signal. `deadline`: says when the platform ends this process,
    if it does, so that claims end with it. `cron_secret`: what triggers of crons are signed with, or A2_CRON_SECRET.

    Making it connects to nothing. Wrap the app in A2Middleware, or use `async with a2:` in a script.
    """

    def __init__(
        self,
        *,
        store: Store | None = None,
        scheduler: EmbeddedScheduler | Scheduler | None = EmbeddedScheduler(),  # noqa: B008 - frozen
        timings: DrainTimings = DrainTimings(),  # noqa: B008 - frozen
        concurrency: int = 16,
        grace: Duration = "10s",
        dependencies: Any = None,
        telemetry: Hook | None = None,
        deadline: Callable[[], datetime | None] | None = None,
        role: str | None = None,
        cron_secret: str | None = None,
    ) -> None:
        super().__init__()
        if concurrency < 1:
            raise ConfigurationError(f"A2: expected a concurrency of 1 or more, got {concurrency}")
        if isinstance(scheduler, DeliveringScheduler):
            scheduler.bind(self)
        self._store = store
        self._scheduler = scheduler
        self._timings = timings
        self._concurrency = concurrency
        self._grace_s = duration_ms(grace) / 1_000
        self._dependencies = dependencies
        self._telemetry = telemetry
        self._deadline = deadline
        self.role: Role = _role(role, scheduler)
        self.cron_secrets: CronSecrets = CronSecrets.from_environment(cron_secret)
        self._engine: Engine | None = None
        self._moves = Moves()
        self._installed = False
        self._serving: Serving | None = None

    def __repr__(self) -> str:
        return f"A2(contracts={sorted(self._contracts)}, store={self._store!r}, scheduler={self._scheduler!r})"

    @property
    def scheduler(self) -> EmbeddedScheduler | Scheduler | None:
        """What wakes sessions."""
        return self._scheduler

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch, by the clock in charge."""
        return (SystemClock() if self._engine is None else self._engine.runtime.clock).now_ms()

    async def dead_letters(
        self, contract: str | None = None, *, after: DeadLetter | None = None, limit: int = 100
    ) -> list[DeadLetter]:
        """Up to `limit` dead letters, of one contract or of all, from the one after `after` on."""
        engine = await self.ready()
        start = None if after is None else (SessionKey(after.contract, after.session), after.seq)
        found = await engine.runtime.store.dead_letters(contract, after=start, limit=limit)
        return [dead_letter(key, item) for key, item in found]

    async def ping(self) -> None:
        """Return if the store answers; raises StoreUnavailable or StoreBroken if not."""
        engine = await self.ready()
        await engine.runtime.store.ping()

    async def tick(self, now: datetime | None = None) -> Tick:
        """Run all that is due, cron slots and retries included, to the end, and count it: for tests and one-shot runs.

        `now` moves the store's clock to an instant while it runs. Where no server runs this A2, call `close` after it.
        """
        engine = await self.ready()
        if now is None:
            return await tick(engine)
        async with self._moves.to(engine, instant_ms(now)):
            return await tick(engine)

    def transaction(self, connection: Any) -> Transaction:
        """Your rows and events in one transaction: `async with a2.transaction(db) as tx: await tx.append(session, ..)`.

        `connection` is an aiosqlite connection to the store's file. It commits at the end, or rolls back.
        """
        return Transaction(self.ready, connection)

    async def sync_schedules(self) -> SyncReport:
        """Have QStash's schedules be those of the crons: create, update and remove what differs. Idempotent.

        Raises SendFailed, and ConfigurationError where the scheduler is not QStash.
        """
        if not isinstance(self._scheduler, QStash):
            raise ConfigurationError(
                f"sync_schedules: expected A2(scheduler=QStash(...)), got {self._scheduler!r}; the embedded scheduler "
                "keeps its crons itself"
            )
        crontabs = {cron.name: cron.crontab for cron in self.crons.values() if cron.crontab is not None}
        return await self._scheduler.sync_schedules(
            [Schedule(name, crontab.expression, crontab.tz) for name, crontab in crontabs.items()]
        )

    async def close(self) -> None:
        """Close what the first use opened, where no server runs this A2."""
        if self._installed:
            return
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.runtime.close()
        elif isinstance(self._scheduler, DeliveringScheduler):
            await self._scheduler.close()

    def serving(self) -> Serving:
        """A2 inside a server: enter it, and call `begin` once the app is ready. A2Middleware does that."""
        engine = self._make_engine(self._store_in_charge(), SystemClock(), self._dependencies)
        if _on_serverless() and isinstance(self._scheduler, EmbeddedScheduler):
            log.warning(
                "the embedded scheduler only runs while this process does, and a serverless host ends it: timers and "
                "retries wait for the next request. Configure a scheduler such as QStash"
            )
        return Serving(engine, self._wake_loop(engine), self._grace_s, install=self._install)

    async def __aenter__(self) -> Self:
        serving = await self.serving().__aenter__()
        serving.begin()
        self._serving = serving
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        serving, self._serving = self._serving, None
        return None if serving is None else await serving.__aexit__(kind, error, trace)

    def testing(self, *, dependencies: Any = None) -> "World":
        """A test world: this A2's definitions on a manual clock and a memory store, until its `async with` ends."""
        from a2asgi.testing.world import World  # noqa: PLC0415 - only tests have the test kit loaded

        if dependencies is None:
            dependencies = self._dependencies

        def make_engine(store: Store, clock: Clock) -> Engine:
            return self._make_engine(store, clock, dependencies, in_world=True)

        return World(make_engine, self._install, self._contracts)

    async def ready(self) -> Engine:
        """The engine in charge. Where no server runs one, drains run inline, and the first use opens the store."""
        if self._engine is None:
            engine = self._make_engine(self._store_in_charge(), SystemClock(), self._dependencies)
            await engine.runtime.store.open()
            if self._engine is None:
                self._engine = engine
        return self._engine

    def _install(self, engine: Engine | None) -> None:
        if engine is not None and self._installed:
            raise ConfigurationError("this A2 runs already: one server, script or test world at a time")
        self._installed = engine is not None
        self._engine = engine

    def _store_in_charge(self) -> Store:
        if self._store is None:
            if os.environ.get("A2_ENV") == "production" or _on_serverless():
                raise StoreNotConfigured
            self._store = SQLiteStore(DEVELOPMENT_STORE)
        return self._store

    def _make_engine(self, store: Store, clock: Clock, dependencies: Any, *, in_world: bool = False) -> Engine:
        provider = None if in_world or isinstance(self._scheduler, EmbeddedScheduler | None) else self._scheduler
        runtime = Runtime(
            store,
            clock,
            self._timings,
            provider,
            self._concurrency,
            dependencies,
            self._telemetry,
            self._deadline,
            Renewer(store, self._timings, clock if in_world else None),
            News(store),
        )
        handles = in_world or self.role != "web"
        return Engine(runtime, self._contracts, schedules=self._scheduler is not None, handles=handles)

    def _wake_loop(self, engine: Engine) -> WakeLoop | None:
        """The embedded scheduler; or, behind a provider, the sweep for wake-ups that it lost (engine.md 3)."""
        if self._scheduler is None or not engine.handles:
            return None
        runtime = engine.runtime
        window_ms = self._timings.window_ms
        if isinstance(self._scheduler, EmbeddedScheduler):
            return WakeLoop(
                runtime.store,
                engine.deliver,
                shares=engine.shares,
                poll_ms=self._scheduler.poll_ms,
                lease_ms=window_ms,
                concurrency=self._scheduler.concurrency,
            )
        return WakeLoop(
            runtime.store,
            runtime.arm_watchdog,
            shares=engine.shares,
            poll_ms=SWEEP_MS,
            lease_ms=window_ms,
            concurrency=SWEEP_CONCURRENCY,
            late_ms=window_ms,
        )


def _role(role: str | None, scheduler: object) -> Role:
    found = role or os.environ.get("A2_ROLE") or "all"
    if found not in ROLES:
        raise ConfigurationError(f"A2: expected role, or A2_ROLE, to be one of {list(ROLES)}, got {found!r}")
    if found == "web" and scheduler is None:
        raise ConfigurationError('A2: role "web" needs a scheduler that wakes the worker, and scheduler=None has none')
    return cast("Role", found)


def _on_serverless() -> bool:
    return os.environ.get("VERCEL") == "1"
