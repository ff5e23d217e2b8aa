"""The app of a world, in an older and a newer version: its handlers do what an event's script tells each attempt."""

from collections.abc import Callable
from contextvars import ContextVar
from datetime import datetime
from functools import cache
from typing import Any, Protocol, TypedDict

import anyio

from a2asgi import A2, Cancel, Context, EmbeddedScheduler, Event, Fail, Job, JobContext, NewEvent, QStash, Retry, Snooze
from a2asgi.clock import no_op
from a2asgi.contract import Definition
from a2asgi.engine import Engine
from a2asgi.live import News
from a2asgi.ports import SessionKey, Store
from a2asgi.renewal import Renewer
from a2asgi.runtime import Runtime
from a2asgi.serving import Serving
from a2asgi.session import Contract
from a2core import DrainTimings, produced_event_id
from tests.world.laws import Act, Laws, Outcome

TIMINGS = DrainTimings()
RETRY = Retry(max_failures=3, max_lost=3, cap="30s")
LANES = "abc"
TIMER_MS = 7_000
SNOOZE_MS = 4_000
BRIEF = "5s"
CRON_MS = 300_000
URL = "https://a2.example/api/a2/scheduler"
KEEP = "52w"
"""Longer than any world: the observer expects every event to stay in the log."""


class Boom(Exception):
    """What a handler fails with."""


class Step(TypedDict):
    """An event's script: in which lane it is handled, and what each attempt does; the last word is repeated."""

    lane: str
    does: list[str]


class Host(Protocol):
    """The process that runs a handler."""

    name: str
    laws: Laws
    engine: Engine
    stopping: bool
    works: bool

    def now_ms(self) -> int: ...
    async def sleep_ms(self, duration_ms: int, on_wake: Callable[[], None] = ...) -> None: ...
    def crash(self) -> None: ...
    def deadline(self) -> datetime | None: ...


current: ContextVar[Any] = ContextVar("current")
"""The process of this task."""


class _Here:
    """The clock, and the way to the provider, of whichever process asks."""

    def now_ms(self) -> int:
        now_ms: int = current.get().now_ms()
        return now_ms

    async def sleep_ms(self, duration_ms: int, on_wake: Callable[[], None] = no_op) -> None:
        await current.get().sleep_ms(duration_ms, on_wake)

    async def request(self, method: str, url: str, *, content: bytes, headers: dict[str, str]) -> object:
        """As httpx.AsyncClient.request."""
        del method, url
        return await current.get().carrier.post(content, headers)


class Wire(QStash):
    """QStash as it is, but for its signatures, which take longer than all else."""

    def __init__(self) -> None:
        super().__init__(
            url=URL,
            client=_Here(),
            environment={},
            clock=_Here(),
            current_signing_key="sig_current",
            next_signing_key="sig_next",
        )

    def verify(self, signature: str, body: bytes, region: str | None, *, url: str | None = None) -> bool:
        del body, region, url
        return signature == "genuine"


class App(A2):
    """One version of the app, which any number of processes share: each has an engine of its own."""

    def __init__(self, *, provider: bool, newer: bool) -> None:
        super().__init__(
            scheduler=Wire() if provider else EmbeddedScheduler(poll="10s"), timings=TIMINGS, grace="3s", role="all"
        )
        self.provider = self._scheduler if isinstance(self._scheduler, Wire) else None
        self.newer = newer
        self.orders: Contract = self.contract("orders")
        self.scripted(self.orders, newer=newer)
        if newer:
            self.extras: Contract = self.contract("extras")
            self.scripted(self.extras, newer=True)
        self.work: Job[..., Any] = self.job(name="work", retries=2, key="customer", keep=KEEP)(_work)
        self.solo: Job[..., Any] = self.job(
            name="solo", retries=1, concurrency=1, timeout="20s", on_failed=_failed, keep=KEEP
        )(_solo)
        self.cron("*/5 * * * *", name="tick", catch_up="all", keep=KEEP)(_tick)

    def scripted(self, contract: Contract, *, newer: bool) -> None:
        """Declare the events of a contract."""
        contract.event("note", Step)
        for name, timeout in [("step", None), ("brief", BRIEF), *[("novel", None)] * newer]:
            event_type = contract.event(name, Step, lane=_lane)
            contract.on(event_type, retry=RETRY, timeout=timeout)(_handler(contract.name))

    async def ready(self) -> Engine:
        """The engine of the process that asks."""
        engine: Engine = current.get().engine
        return engine

    def definition(self, contract: str) -> Definition | None:
        """What this version knows of a contract."""
        return self._contracts.get(contract)

    def equip(self, host: Host, store: Store, make_renewer: Callable[[Store], Renewer]) -> None:
        """Give a process its engine, with the ports of that process; until a server begins, drains run inline."""
        runtime = Runtime(
            store,
            host,
            self._timings,
            self.provider,
            self._concurrency,
            host,
            None,
            host.deadline,
            make_renewer(store),
            News(store),
            holder=host.name,
        )
        host.engine = Engine(runtime, self._contracts, schedules=True, handles=host.works)

    def server(self, host: Host) -> Serving:
        """A server of this version, as `serving` makes it."""
        return Serving(host.engine, self._wake_loop(host.engine), self._grace_s, install=_nobody_asks)


@cache
def app(*, provider: bool, newer: bool) -> App:
    """A version is built once: nothing in it is of one world."""
    return App(provider=provider, newer=newer)


def _nobody_asks(engine: Engine | None) -> None:
    """Processes find their engines by themselves."""
    del engine


def _lane(step: Step) -> str:
    return step["lane"]


def _handler(contract: str) -> Callable[..., Any]:
    async def handle(event: Event[Step], ctx: Context) -> object:
        host: Host = ctx.dependencies
        key = SessionKey(contract, ctx.session)
        word, _, lane = _word(event.payload["does"], ctx.attempt).partition(":")
        act = host.laws.begin(key, event.id, ctx.attempt)
        child = NewEvent({"lane": lane or LANES[0], "does": ["ok"]}, type="step")
        if word == "timer":
            name = f"of-{event.id}"
            host.laws.may_come(key, name, host.laws.ms_of(event.created_at) + TIMER_MS)
            await host.laws.scheduling(ctx.schedule(name, child, delay=f"{TIMER_MS}ms"), key, name)
        with act:
            answer = await _do(host, act, word)
        if word == "emit" or (lane and word in {"long", "stubborn", "slow"}):
            act.products = [produced_event_id(event.id, index) for index in range(2)]
            return [child, NewEvent({"lane": "", "does": []}, type="note")]
        return answer

    return handle


def _word(does: list[str], attempt: int) -> str:
    return does[min(attempt, len(does)) - 1]


async def _do(host: Host, act: Act, word: str) -> object:
    match word:
        case "fail":
            raise Boom
        case "snooze":
            act.outcome = Outcome.SNOOZED
            return Snooze(f"{SNOOZE_MS}ms")
        case "cancel":
            act.outcome = Outcome.CALLED_OFF
            return Cancel("no need")
        case "give_up":
            act.outcome = Outcome.GIVEN_UP
            return Fail("no use")
        case "slow":
            await host.sleep_ms(3_000)
        case "long":
            await host.sleep_ms(2 * TIMINGS.window_ms)
        case "crash":
            host.crash()
        case "stubborn":
            with anyio.CancelScope(shield=True):
                await host.sleep_ms(TIMINGS.window_ms)
        case _:
            pass
    return None


async def _run(ctx: JobContext, contract: str, does: list[str]) -> object:
    host: Host = ctx.dependencies
    act = host.laws.begin(SessionKey(contract, ctx.session), ctx.job_id, ctx.attempt)
    word = _word(does, ctx.attempt)
    if word == "slow":
        await ctx.progress(1, 2)
    with act:
        answer = await _do(host, act, word)
    if act.outcome is Outcome.DONE:
        act.products = [produced_event_id(ctx.job_id, 0)]
    return answer


async def _work(ctx: JobContext, customer: str, does: list[str]) -> Any:
    del customer
    return await _run(ctx, "job:work", does)


async def _solo(ctx: JobContext, does: list[str]) -> Any:
    return await _run(ctx, "job:solo", does)


async def _failed(told: object) -> None:
    """A job was given up."""
    del told


async def _tick(ctx: JobContext, slot: datetime) -> Any:
    del slot
    return await _run(ctx, "cron:tick", ["ok"])
