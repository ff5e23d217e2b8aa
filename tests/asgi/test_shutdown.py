"""Shutdown: wherever it comes nothing is lost or counted, another process goes on at once, errors stay themselves."""

import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from a2asgi import (
    ConfigurationError,
    Context,
    DrainResult,
    DrainState,
    DrainTimings,
    Event,
    MemoryStore,
    Signal,
    SignalName,
    SQLiteStore,
    StoreBroken,
)
from a2asgi.testing import ManualClock
from tests.asgi.worlds import NEVER, OFTEN, Gate, ScriptedStore, Shop, Tally, heads, rounds, within

CLEAN_UP_S = 0.6
"""How long the clean-up after a shutdown's grace may take in these tests."""


@pytest.fixture(autouse=True)
def brief_clean_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where something holds up a shutdown, it does so for a moment and not for five seconds."""
    monkeypatch.setattr("a2asgi.groups.CLEAN_UP_S", CLEAN_UP_S)


def recording(tally: Tally) -> Callable[[Event[str], Context], Awaitable[None]]:
    """A handler that only says what it handled."""

    async def handle(event: Event[str], _: Context) -> None:
        tally.add(event.payload)

    return handle


async def goes_on(store: ScriptedStore, *texts: str) -> None:
    """Another process, whose clock stands still, handles what is left of these at once."""
    left = [text for text in texts if text not in store.settled()]
    handled = Tally()
    async with Shop(recording(handled), store=store, scheduler=OFTEN).a2:
        with anyio.move_on_after(1):
            await handled.until(len(left))
            await rounds()
    assert left == sorted(handled.seen)
    assert sorted(texts) == sorted(store.settled())


# ── a stop at each step ──────────────────────────────────────────────────────────────────


@within(5)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", ["append", "claim", "settle", "release"])
async def test_g1_a_stop_at_any_step_loses_and_counts_nothing(step: str, *, after: bool) -> None:
    """Whether the store has written the step yet or not: each event is settled once, by this process or the next."""
    running = anyio.Event()

    async def handle(_: Event[str]) -> None:
        running.set()
        if step in {"claim", "release"}:
            await anyio.sleep_forever()

    store = ScriptedStore(clock=ManualClock(0))
    gate = store.stop_after(step) if after else store.stop_before(step)
    shop = Shop(handle, store=store, grace="0s", scheduler=NEVER)
    stopping = anyio.Event()
    texts = ["a1", "a2"] if step == "settle" else ["a1", "a2", "b1"]  # the gate is for a1

    async def serve() -> None:
        async with shop.a2:
            tasks.start_soon(shop.append, *texts)
            await (running if step == "release" else gate.reached).wait()
            stopping.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve)
        await stopping.wait()
        await gate.reached.wait()
        await rounds()
        opened = anyio.current_time()
        gate.open()
    assert anyio.current_time() - opened < CLEAN_UP_S / 2
    await goes_on(store, *texts)
    assert store.settled().index("a1") < store.settled().index("a2")
    assert {(0, 0)} == {(item.failures, item.lost) for item in store.claimed}


@within(5)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_g1_a_stop_while_a_failure_is_written_counts_it_once(*, after: bool) -> None:
    """A handler that failed by itself has failed, and is tried again after its backoff by whoever runs then."""

    async def handle(event: Event[str]) -> None:
        raise ValueError(event.payload)

    store = ScriptedStore(clock=(clock := ManualClock(0)))
    gate = store.stop_after("fail") if after else store.stop_before("fail")
    shop = Shop(handle, store=store, grace="0s", scheduler=NEVER)
    stopping = anyio.Event()

    async def serve() -> None:
        async with shop.a2:
            await shop.append("a1")
            await gate.reached.wait()
            stopping.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve)
        await stopping.wait()
        await rounds()
        gate.open()
    [item] = heads(store)
    assert (1, 0, None, 1_000) == (item.failures, item.lost, item.claim, item.ready_at_ms)
    clock.move_to(1_000)
    await goes_on(store, "a1")


@within(5)
async def test_g1_a_handler_that_ends_in_its_grace_is_settled() -> None:
    """A shutdown waits for what runs, starts nothing new, and the next process takes the rest of the lane at once."""
    started, let_go = anyio.Event(), anyio.Event()
    runs: list[str] = []

    async def handle(event: Event[str]) -> None:
        runs.append(event.payload)
        started.set()
        await let_go.wait()

    store = ScriptedStore(clock=ManualClock(0))
    shop = Shop(handle, store=store, grace="1m", scheduler=NEVER)
    async with anyio.create_task_group() as tasks:
        async with shop.a2:
            await shop.append("a1", "a2")
            await started.wait()
            tasks.start_soon(open_soon, let_go)
        assert ["a1"] == store.settled() == runs
    await goes_on(store, "a1", "a2")


async def open_soon(event: anyio.Event) -> None:
    """Let whatever waits first wait."""
    await rounds()
    event.set()


@within(5)
async def test_g1_what_is_appended_during_the_grace_is_durable_and_left_to_the_next_process() -> None:
    """An append during a shutdown returns, starts nothing here, and another process takes it at once."""
    started, let_go = anyio.Event(), anyio.Event()

    async def handle(event: Event[str]) -> None:
        started.set()
        await let_go.wait()
        await shop.append("a2", "b1", wait=True)
        await shop.append("c1", session_id="s")

    store = ScriptedStore(clock=ManualClock(0))
    shop = Shop(handle, store=store, grace="1m", scheduler=NEVER)
    async with anyio.create_task_group() as tasks:
        async with shop.a2:
            await shop.append("a1")
            await started.wait()
            tasks.start_soon(open_soon, let_go)
        assert ["a1"] == store.settled()
    await goes_on(store, "a1", "a2", "b1", "c1")


@within(5)
async def test_g1_lanes_beyond_the_concurrency_are_taken_by_the_next_process_at_once() -> None:
    """What was waiting for a free place when the shutdown came does not wait for any lease."""
    started = anyio.Event()

    async def handle(_: Event[str]) -> None:
        started.set()
        await anyio.sleep_forever()

    store = ScriptedStore(clock=ManualClock(0))
    async with (shop := Shop(handle, store=store, grace="0s", concurrency=1, scheduler=NEVER)).a2:
        await shop.append("a1", "b1", "c1", "d1")
        await started.wait()
    await goes_on(store, "a1", "b1", "c1", "d1")


@within(5)
async def test_g1_a_stop_begun_while_another_process_waits_lets_that_one_continue() -> None:
    """A server beside it takes over what is released, with attempts that count on and no budget spent."""
    started = anyio.Event()
    attempts: list[tuple[str, int]] = []
    both = Tally()

    async def sleeps(_: Event[str]) -> None:
        started.set()
        await anyio.sleep_forever()

    async def handles(event: Event[str], ctx: Context) -> None:
        attempts.append((event.payload, ctx.attempt))
        both.add(event.payload)

    store = ScriptedStore(clock=ManualClock(0))
    one = Shop(sleeps, store=store, grace="0s", scheduler=NEVER)
    two = Shop(handles, store=store, scheduler=OFTEN)
    async with two.a2:
        async with one.a2:
            await one.append("a1", "b1")
            await started.wait()
            await rounds()
        await both.until(2)
    assert [("a1", 2), ("b1", 2)] == sorted(attempts)
    assert {(0, 0)} == {(item.failures, item.lost) for item in store.claimed}


@within(5)
async def test_g1_a_released_claim_is_reported_and_no_failure() -> None:
    """An operator sees which events a shutdown gave back."""
    signals: list[Signal] = []
    started = anyio.Event()

    async def handle(_: Event[str]) -> None:
        started.set()
        await anyio.sleep_forever()

    shop = Shop(handle, grace="0s", telemetry=signals.append)
    async with shop.a2:
        await shop.append("a1")
        await started.wait()
    assert [(SignalName.RELEASED, "a1")] == [(signal.name, signal.event_id) for signal in signals]
    [item] = heads(shop.store)
    assert (1, 0, 0, None) == (item.attempt, item.failures, item.lost, item.claim)


@within(5)
async def test_g1_a_drain_that_a_stop_cut_short_does_not_say_that_all_is_settled() -> None:
    """Whoever asked for the drain, such as a provider's delivery, must not take it for done."""
    started, let_go = anyio.Event(), anyio.Event()
    results: list[DrainResult] = []

    async def handle(_: Event[str]) -> None:
        started.set()
        await let_go.wait()

    async def drain() -> None:
        results.append(await shop.session().drain())

    shop = Shop(handle, grace="1m", scheduler=None)
    async with anyio.create_task_group() as tasks, shop.a2:
        await shop.append("a1", "a2")
        await started.wait()
        tasks.start_soon(drain)
        await rounds()
        tasks.start_soon(open_soon, let_go)
    assert DrainState.SETTLED not in {result.state for result in results}
    assert ["a2"] == [item.entry.id for item in heads(shop.store)]


# ── a stop that is held up ───────────────────────────────────────────────────────────────


async def time_to_stop(shop: Shop, gate: Gate, began: anyio.Event) -> float:
    """Seconds that a shutdown without any grace takes; after three clean-ups the gate opens."""
    took: list[float] = []

    async def serve() -> None:
        async with shop.a2:
            await shop.append("a1", "b1")
            await began.wait()
            took.append(-anyio.current_time())
        took.append(anyio.current_time())
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve)
        await began.wait()
        try:
            await anyio.sleep(3 * CLEAN_UP_S)
        finally:
            gate.open()
    return sum(took)


@within(10)
@pytest.mark.parametrize("step", ["settle", "release", "claim"])
async def test_g1_a_store_that_does_not_answer_holds_a_stop_no_longer_than_its_clean_up(step: str) -> None:
    """Clean-up has a time limit: a process that cannot write its last word exits, and its claims run out."""
    started = anyio.Event()

    async def handle(event: Event[str]) -> None:
        started.set()
        if event.payload == "b1" or step == "release":
            await anyio.sleep_forever()

    store = ScriptedStore()
    gate = store.stop_before(step)
    shop = Shop(handle, store=store, grace="0s", scheduler=NEVER)
    began = started if step == "release" else gate.reached
    assert await time_to_stop(shop, gate, began) < 2 * CLEAN_UP_S


@within(5)
async def test_g1_a_second_stop_does_nothing_and_the_first_one_ends() -> None:
    """Asked to stop twice at a time, it gives one grace, settles what ends in it, and stops once."""
    started, let_go = anyio.Event(), anyio.Event()

    async def handle(_: Event[str]) -> None:
        started.set()
        await let_go.wait()

    store = ScriptedStore(clock=ManualClock(0))
    shop = Shop(handle, store=store, grace="1m", scheduler=NEVER)
    async with shop.a2.serving() as serving, anyio.create_task_group() as tasks:
        serving.begin()
        await shop.append("a1", "a2")
        await started.wait()
        tasks.start_soon(serving.stop)
        await rounds()
        tasks.start_soon(serving.stop)
        await rounds()
        assert [] == store.settled()
        let_go.set()
    assert ["a1"] == store.settled()
    await goes_on(store, "a1", "a2")


@within(5)
async def test_g1_a_cancellation_during_the_grace_ends_it_and_gives_the_claims_back() -> None:
    """Who has no patience for the grace cancels it: what runs is released, and the server is left properly."""
    started = anyio.Event()

    async def handle(_: Event[str]) -> None:
        started.set()
        await anyio.sleep_forever()

    store = ScriptedStore(clock=ManualClock(0))
    shop = Shop(handle, store=store, grace="1h", scheduler=NEVER)

    async def serve_in(scope: anyio.CancelScope) -> None:
        async with shop.a2:
            await shop.append("a1", "b1")
            await started.wait()
            await rounds()
            scope.deadline = anyio.current_time() + 0.05

    with anyio.CancelScope() as scope:
        await serve_in(scope)
    assert scope.cancelled_caught
    assert [(0, 0, None)] * 2 == [(item.failures, item.lost, item.claim) for item in heads(store)]
    await goes_on(store, "a1", "b1")
    async with shop.a2:
        assert ["a1", "b1"] == await shop.log()


@within(5)
@pytest.mark.parametrize("end", ["cancel", "error"])
async def test_g1_a_server_that_is_cancelled_or_fails_gives_its_claims_back_at_once(end: str) -> None:
    """Without a proper shutdown there is no grace, but nothing is lost or counted either."""
    started = anyio.Event()

    async def handle(_: Event[str]) -> None:
        started.set()
        await anyio.sleep_forever()

    store = ScriptedStore(clock=ManualClock(0))
    shop = Shop(handle, store=store, grace="1h", scheduler=NEVER)

    async def serve_in(scope: anyio.CancelScope) -> None:
        async with shop.a2:
            await shop.append("a1", "b1")
            await started.wait()
            if end == "error":
                raise ValueError("the app failed")
            scope.cancel()
            await anyio.sleep_forever()

    with suppress(ValueError), anyio.CancelScope() as scope:
        await serve_in(scope)
    assert (end == "cancel") == scope.cancelled_caught
    await goes_on(store, "a1", "b1")
    assert {(0, 0)} == {(item.failures, item.lost) for item in store.claimed}


# ── inline ───────────────────────────────────────────────────────────────────────────────


@within(5)
async def test_g1_a_cancelled_inline_append_gives_its_claims_back() -> None:
    """A request that is cut off in the middle of its handlers leaves the events for the next drain, uncounted."""
    runs: list[tuple[str, int]] = []

    async def handle(event: Event[str], ctx: Context) -> None:
        runs.append((event.payload, ctx.attempt))
        if len(runs) <= 2:
            await anyio.sleep_forever()

    store = ScriptedStore(clock=ManualClock(0))
    shop = Shop(handle, store=store, scheduler=None)
    with anyio.move_on_after(0.05) as scope:
        await shop.append("a1", "b1", "a2")
    assert scope.cancelled_caught
    assert [(0, 0, None)] * 2 == [(item.failures, item.lost, item.claim) for item in heads(store)]
    assert DrainResult(DrainState.SETTLED) == await shop.session().drain()
    assert [("a1", 1), ("a1", 2), ("a2", 1), ("b1", 1), ("b1", 2)] == sorted(runs)
    assert ["a1", "a2", "b1"] == sorted(store.settled())


@within(5)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", ["append", "claim", "settle"])
async def test_g1_an_inline_append_cancelled_at_any_step_leaves_no_claim_behind(step: str, *, after: bool) -> None:
    """Wherever it is cut off, the store is as before the step or as after it, and no lease keeps anyone waiting."""

    async def handle(_: Event[str]) -> None:
        await rounds(2)

    store = ScriptedStore(clock=ManualClock(0))
    gate = store.stop_after(step) if after else store.stop_before(step)
    shop = Shop(handle, store=store, scheduler=None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(shop.append, "a1", "b1", "a2")
        await gate.reached.wait()
        tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await rounds()
            gate.open()
    assert [None] * len(heads(store)) == [item.claim for item in heads(store)]
    await shop.append("a1", "b1", "a2")
    assert ["a1", "a2", "b1"] == sorted(store.settled())
    assert {(0, 0)} == {(item.failures, item.lost) for item in store.claimed}


# ── a thread that is stuck ───────────────────────────────────────────────────────────────

STUCK = """
import sys, threading, time
import anyio
from a2asgi import A2, SQLiteStore

backend, database = sys.argv[1:]
a2 = A2(store=SQLiteStore(database), grace="200ms")
orders = a2.contract("orders")
order = orders.event("order", str, lane=lambda text: text[0])
started = threading.Event()

@orders.on(order)
def handle(event):
    started.set()
    time.sleep(60)

async def main():
    async with a2:
        await orders.session("s").append(order("a1", id="a1"))
        await anyio.to_thread.run_sync(started.wait)
        began = time.monotonic()
    print(time.monotonic() - began)

anyio.run(main, backend=backend)
print("end")
"""


@within(20)
async def test_g5_a_process_whose_thread_is_stuck_exits_all_the_same(tmp_path: Path, anyio_backend_name: str) -> None:
    """For real: grace, then the thread is abandoned, the process ends, and the claim runs out for the next one."""
    script = tmp_path / "stuck.py"
    script.write_text(STUCK)
    command = [sys.executable, str(script), anyio_backend_name, str(tmp_path / "a2.db")]
    began = anyio.current_time()
    ran = await anyio.run_process(command, check=False)
    took = anyio.current_time() - began
    assert (0, False) == (ran.returncode, b"Traceback" in ran.stderr), ran.stderr
    stopped, end = ran.stdout.decode().split()
    assert "end" == end
    assert 0.2 <= float(stopped) <= 0.2 + 5.0
    assert took < 10  # the thread sleeps for 60
    store = SQLiteStore(tmp_path / "a2.db")
    await store.open()
    [item] = heads(store)
    await store.close()
    assert item.claim is not None
    assert (1, 0, 0) == (item.attempt, item.failures, item.lost)


@within(5)
async def test_g5_a_stuck_threads_claim_is_renewed_until_the_grace_ends_and_then_fenced() -> None:
    """During the grace nobody else takes it; then the lease runs out, and what the thread says late is discarded."""
    started, let_go, ended = threading.Event(), threading.Event(), threading.Event()

    def handle(_: Event[str]) -> object:
        started.set()
        let_go.wait(5)
        ended.set()
        return shop.note("too late")

    clock = ManualClock(0)
    store = ScriptedStore(clock=clock)
    timings = DrainTimings(ttl_ms=60_000, heartbeat_ms=20, grace_ms=0)
    shop = Shop(handle, store=store, timings=timings, grace="300ms", scheduler=NEVER)
    async with shop.a2:
        await shop.append("a1")
        await to_thread.run_sync(started.wait)
        before = store.calls["renew"]
    after = store.calls["renew"]
    assert after - before >= 3
    [item] = heads(store)
    assert item.claim is not None
    assert (60_000, 0, 0) == (item.claim.expires_at_ms, item.failures, item.lost)
    handled = Tally()
    other = Shop(recording(handled), store=store, scheduler=OFTEN)
    async with other.a2:
        clock.move_to(59_999)
        assert DrainState.BUSY == (await other.session().drain()).state
        clock.move_to(60_000)
        await handled.until(1)
        let_go.set()
        await to_thread.run_sync(ended.wait)
        await rounds()
    assert ["a1"] == store.settled()
    assert ["a1"] == await other.log()
    assert after == store.calls["renew"]


# ── in and out again ─────────────────────────────────────────────────────────────────────


@within(5)
async def test_g2_an_a2_can_be_entered_again_and_again() -> None:
    """Hosts that start and stop on every call get a working A2 each time, and between the times appends run inline."""
    handled = Tally()
    shop = Shop(recording(handled))
    for number in range(3):
        async with shop.a2:
            await shop.append(f"a{number}")
            await handled.until(2 * number + 1)
        await shop.append(f"b{number}")
    assert ["a0", "b0", "a1", "b1", "a2", "b2"] == handled.seen


def test_g2_an_a2_can_be_entered_in_one_loop_after_another(tmp_path: Path) -> None:
    """One A2 and one SQLite file serve asyncio, then trio, then asyncio again, inline and as a server."""
    runs: list[str] = []

    async def handle(event: Event[str]) -> None:
        runs.append(event.payload)

    shop = Shop(handle, store=SQLiteStore(tmp_path / "a2.db", synchronous="NORMAL"))

    async def serve(text: str) -> None:
        async with shop.a2:
            await shop.append(text, wait=True)

    for number, backend in enumerate(["asyncio", "trio", "asyncio"]):
        anyio.run(serve, f"a{number}", backend=backend)
        anyio.run(partial(shop.append, f"b{number}"), backend=backend)
    anyio.run(shop.store.close)
    assert ["a0", "b0", "a1", "b1", "a2", "b2"] == runs


@within(5)
async def test_g2_an_a2_that_runs_already_is_not_entered_and_runs_on() -> None:
    """The second entry is refused, by whatever way it comes, and the first one neither notices nor leaves badly."""
    handled = Tally()
    shop = Shop(recording(handled))
    async with shop.a2:
        with pytest.raises(ConfigurationError, match="runs already"):
            async with shop.a2:
                pass
        with pytest.raises(ConfigurationError, match="runs already"):
            async with shop.a2.testing():
                pass
        await shop.append("a1")
        await handled.until(1)
    await shop.append("a2")
    assert ["a1", "a2"] == handled.seen


@within(5)
async def test_g2_an_a2_that_could_not_start_can_be_started_again() -> None:
    """A store that refuses to open is the caller's to see, and its repair is enough."""
    broken = True

    class Refusing(MemoryStore):
        """A store that does not open at first."""

        async def open(self) -> None:
            """As Store.open."""
            if broken:
                raise StoreBroken("no such path")

    handled = Tally()
    shop = Shop(recording(handled), store=Refusing())
    for _ in range(2):
        with pytest.raises(StoreBroken, match="no such path"):
            async with shop.a2:
                pass
    broken = False
    async with shop.a2:
        await shop.append("a1")
        await handled.until(1)


@within(5)
async def test_g2_two_a2_nest_in_any_order() -> None:
    """Two A2 in one task, and two side by side, do not get into each other's scopes."""
    tallies = [Tally(), Tally()]
    one, two = (Shop(recording(tally)) for tally in tallies)
    for outer, inner in ((one, two), (two, one)):
        async with outer.a2, inner.a2:
            await inner.append("a1", session_id=f"{id(outer)}")
            await outer.append("a1", session_id=f"{id(outer)}")
            await rounds()
    both = anyio.Event()

    async def serve(shop: Shop) -> None:
        async with shop.a2:
            await shop.append("b1")
            await both.wait()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve, one)
        tasks.start_soon(serve, two)
        await tallies[0].until(3)
        await tallies[1].until(3)
        both.set()
    assert [["a1", "a1", "b1"]] * 2 == [tally.seen for tally in tallies]


# ── errors on the way out ────────────────────────────────────────────────────────────────


class Odd(BaseException):
    """Neither an Exception nor anything that Python knows."""


ERRORS = {
    "error": ValueError("boom"),
    "timeout": TimeoutError("late"),
    "group-of-one": ExceptionGroup("mine", [ValueError("boom")]),
    "group-of-two": ExceptionGroup("mine", [ValueError("boom"), KeyError("k")]),
    "group-of-group": ExceptionGroup("mine", [ExceptionGroup("inner", [ValueError("boom")])]),
    "keyboard": KeyboardInterrupt("enough"),
    "exit": SystemExit(3),
    "odd": Odd("odd"),
}


@within(5)
@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
@pytest.mark.parametrize("way", ["server", "world"])
async def test_g3_an_error_leaves_an_a2_as_itself(way: str, error: BaseException) -> None:
    """What the body raises is what the caller catches: the same object, no group around it, its cause untouched."""
    shop = Shop(recording(Tally()))
    cause = RuntimeError("the cause")

    async def fail() -> None:
        async with shop.a2 if way == "server" else shop.a2.testing():
            await shop.append("a1")
            raise error from cause

    with pytest.raises(BaseException) as caught:  # noqa: PT011 - which one is what this is about
        await fail()
    assert error is caught.value
    assert cause is error.__cause__


@within(5)
@pytest.mark.parametrize("way", ["server", "world"])
async def test_g3_a_cancellation_leaves_an_a2_as_a_cancellation(way: str) -> None:
    """A scope around it catches its own cancellation, and nothing else comes out."""
    shop = Shop(recording(Tally()))
    with anyio.move_on_after(0.02) as scope:
        async with shop.a2 if way == "server" else shop.a2.testing():
            await shop.append("a1")
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    async with shop.a2:
        await shop.append("a2")


@within(5)
async def test_g3_an_error_while_handlers_run_leaves_alone() -> None:
    """Handlers that are stopped by it, and even fail at that, add nothing to the error of the body."""
    started = Tally()

    async def handle(event: Event[str]) -> None:
        started.add(event.payload)
        try:
            await anyio.sleep_forever()
        finally:
            if event.payload == "a1":
                raise RuntimeError("stopped badly")

    shop = Shop(handle, grace="0s")
    error = ValueError("boom")

    async def serve() -> None:
        async with shop.a2:
            await shop.append("a1", "b1")
            await started.until(2)
            raise error

    with pytest.raises(ValueError, match="boom") as caught:
        await serve()
    assert error is caught.value
