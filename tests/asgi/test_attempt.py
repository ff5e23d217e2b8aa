"""One attempt: what a handler may raise, answer and swallow, and that a stale one writes nothing."""

import gc
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from a2asgi import (
    A2,
    Cancel,
    Context,
    DrainState,
    EmbeddedScheduler,
    Event,
    Fail,
    MemoryStore,
    NewEvent,
    Retry,
    Signal,
    SignalName,
    Snooze,
    SQLiteStore,
    Store,
    SyncContext,
)
from a2asgi.testing import ManualClock
from a2core import Ending, EndingKind
from tests.asgi.worlds import Provider, ScriptedStore, Shop, heads, rounds, scripted, steal, within

ONCE = Retry(max_failures=1)
"""The first failure makes a dead letter, which shows how the error was stored."""


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Each durable and undurable store."""
    return MemoryStore() if request.param == "memory" else SQLiteStore(tmp_path / "a2.db", synchronous="NORMAL")


# ── what a handler raises ────────────────────────────────────────────────────────────────


class Unreadable(Exception):
    """Its text cannot be read."""

    def __str__(self) -> str:
        raise RuntimeError("broken")


class NotText(Exception):
    """Its text is no text."""

    def __str__(self) -> str:
        return None  # type: ignore[return-value]  # noqa: PLE0307 - that is its fault


class Unprintable(Exception):
    """Its representation cannot be made either."""

    def __str__(self) -> str:
        raise RuntimeError("broken")

    __repr__ = __str__


def boom() -> ValueError:
    return ValueError("boom")


ERRORS = {
    "plain": (boom, "ValueError", "boom"),
    "key": (lambda: KeyError("key"), "KeyError", "'key'"),
    "no-text": (ValueError, "ValueError", ""),
    "group": (lambda: ExceptionGroup("one", [boom()]), "ValueError", "boom"),
    "nested-group": (lambda: ExceptionGroup("one", [ExceptionGroup("in one", [boom()])]), "ValueError", "boom"),
    "two": (lambda: ExceptionGroup("two", [boom(), KeyError("b")]), "ExceptionGroup", "two (2 sub-exceptions)"),
    "nested-two": (
        lambda: ExceptionGroup("one", [ExceptionGroup("of two", [boom(), KeyError("b")])]),
        "ExceptionGroup",
        "of two (2 sub-exceptions)",
    ),
    "stop": (StopIteration, "RuntimeError", "coroutine raised StopIteration"),
    "stop-async": (StopAsyncIteration, "StopAsyncIteration", ""),
    "timeout": (TimeoutError, "TimeoutError", ""),
    "end-of-stream": (anyio.EndOfStream, "EndOfStream", ""),
    "unreadable": (Unreadable, "Unreadable", "(its text could not be read: RuntimeError)"),
    "not-text": (NotText, "NotText", "(its text could not be read: TypeError)"),
    "unprintable": (Unprintable, "Unprintable", "(its text could not be read: RuntimeError)"),
    "unreadable-in-group": (
        lambda: ExceptionGroup("one", [Unreadable()]),
        "Unreadable",
        "(its text could not be read: RuntimeError)",
    ),
}
"""What a handler raises, and how it is stored."""


@within(5)
@pytest.mark.parametrize(("error", "kind", "text"), ERRORS.values(), ids=ERRORS)
@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_g3_an_error_is_stored_as_itself(
    error: Callable[[], BaseException], kind: str, text: str, *, plain: bool
) -> None:
    """A group of one is that one, and an error whose text cannot be read is still counted and named."""

    async def handle(_: Event[str]) -> None:
        raise error()

    def handle_plainly(_: Event[str]) -> None:
        raise error()

    shop = Shop(handle_plainly if plain else handle, retry=ONCE, scheduler=None)
    await shop.append("a1")
    [letter] = await shop.a2.dead_letters()
    assert (kind, text) == (letter.error, letter.message)


@within(5)
async def test_g3_an_error_inside_a_task_group_is_stored_as_itself() -> None:
    """A handler that raises in a nursery of its own has failed with that error, not with a group."""

    async def fail() -> None:
        raise ValueError("boom")

    async def handle(_: Event[str]) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.sleep_forever)
            tasks.start_soon(fail)

    shop = Shop(handle, retry=ONCE, scheduler=None)
    await shop.append("a1")
    [letter] = await shop.a2.dead_letters()
    assert ("ValueError", "boom") == (letter.error, letter.message)


@within(5)
async def test_g3_two_handlers_that_fail_together_fail_each_for_itself() -> None:
    """Errors in one moment are two failures of two events, and no error of whoever appended."""
    both = anyio.Event()

    async def handle(event: Event[str]) -> None:
        if event.payload == "b1":
            both.set()
        await both.wait()
        raise ValueError(event.payload)

    shop = Shop(handle, retry=ONCE, scheduler=None)
    await shop.append("a1", "b1")
    assert ["a1", "b1"] == [letter.message for letter in await shop.a2.dead_letters()]


@within(5)
@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("\x00", "\ufffd"),
        ("a\x00b", "a\ufffdb"),
        ("\ud83d", "\ufffd"),
        ("a\udc00b\x00", "a\ufffdb\ufffd"),
        ("\U0001f378", "\U0001f378"),
        ("x" * 10_000, "x" * 2_000),
        ("\U0001f378" * 10_000, "\U0001f378" * 2_000),
    ],
    ids=["nul", "nul-inside", "surrogate", "both", "emoji", "long", "long-emoji"],
)
async def test_c2_c3_an_error_text_is_storable_on_every_store(store: Store, text: str, stored: str) -> None:
    """NUL and lone surrogates become U+FFFD and the end is cut, whether an error, Fail or Cancel brings them."""

    async def handle(event: Event[str]) -> object:
        match event.payload:
            case "a1":
                raise ValueError(text)
            case "b1":
                return Fail(text)
            case _:
                return Cancel(text)

    shop = Shop(handle, store=store, retry=ONCE, scheduler=None)
    async with shop.a2:
        await shop.append("a1", "b1", "c1", wait=True)
        assert [stored, stored] == [letter.message for letter in await shop.a2.dead_letters()]
        assert Ending(EndingKind.CANCELLED, stored) == (await shop.session().read())[2].ending


@within(5)
@pytest.mark.parametrize("text", ["a\x00b", "a\ud83db"], ids=["nul", "surrogate"])
async def test_c2_c3_an_operators_reason_is_storable_on_every_store(store: Store, text: str) -> None:
    """A dead letter is resolved whatever characters its reason holds; nothing is half written."""

    async def handle(event: Event[str]) -> object:
        return Fail("no") if event.payload == "a1" else None

    shop = Shop(handle, store=store, scheduler=None)
    async with shop.a2:
        await shop.append("a1", "a2", wait=True)
        await shop.session().resolve("a1", text)
        await shop.session().drain()
        assert [] == await shop.a2.dead_letters()
        assert Ending(EndingKind.SKIPPED, "a\ufffdb") == (await shop.session().read())[0].ending
        assert () == heads(store)


@within(5)
async def test_c2_a_payload_with_nul_comes_to_the_handler_as_it_was_sent(store: Store) -> None:
    """NUL in a payload round-trips on every store, key and value, and fails nothing."""
    seen: list[str] = []

    async def handle(event: Event[str]) -> None:
        seen.append(event.payload)
        raise ValueError(event.payload)

    shop = Shop(handle, store=store, retry=ONCE, scheduler=None)
    async with shop.a2:
        await shop.session().append(shop.order("a\x00b"), wait=True)
        assert ["a\x00b"] == seen == await shop.log()
        assert ["a\ufffdb"] == [letter.message for letter in await shop.a2.dead_letters()]


# ── what is no failure ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("mode", ["inline", "inline behind a provider", "drain", "server"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_g1_keyboard_interrupt_and_system_exit_go_through(error: type[BaseException], mode: str, backend: str) -> None:
    """They end the program as themselves; the event, and the one beside it, are free at once with nothing counted."""

    async def handle(event: Event[str]) -> None:
        if event.payload == "b1":
            both.set()
            await anyio.sleep_forever()
        await both.wait()
        raise error("enough")

    both = anyio.Event()
    shop = Shop(handle, scheduler=Provider() if "provider" in mode else EmbeddedScheduler())

    async def main() -> None:
        match mode:
            case "drain":
                await shop.dispatch("a1", "b1")
                await shop.session().drain()
            case "server":
                async with shop.a2:
                    await shop.append("a1", "b1")
                    await anyio.sleep_forever()
            case _:
                await shop.append("a1", "b1")

    with pytest.raises(error, match="enough"):
        anyio.run(main, backend=backend)
    gc.collect()  # asyncio logs a traceback of the task that raised, and must not do so inside of pytest's own
    assert [("a1", 0, 0, None), ("b1", 0, 0, None)] == [
        (item.entry.id, item.failures, item.lost, item.claim) for item in heads(shop.store)
    ]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_g1_a_plain_function_that_raises_system_exit_gives_its_claim_back(
    error: type[BaseException], backend: str
) -> None:
    """Its thread has ended, so nothing runs on that a claim would have to fence off."""

    def handle(_: Event[str]) -> None:
        raise error("enough")

    shop = Shop(handle)
    with pytest.raises(error, match="enough"):
        anyio.run(shop.append, "a1", backend=backend)
    gc.collect()  # asyncio logs a traceback of the task that raised, and must not do so inside of pytest's own
    [item] = heads(shop.store)
    assert (0, 0, None) == (item.failures, item.lost, item.claim)


@within(5)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_g1_a_cancellation_that_nobody_asked_for_stays_with_its_event(anyio_backend: str) -> None:
    """A handler that awaits a task of its own that was cancelled neither stops its siblings nor runs in a hot loop."""
    import asyncio  # noqa: PLC0415 - only here a handler can cancel without a scope

    runs: Counter[str] = Counter()
    ended: list[str] = []

    async def handle(event: Event[str]) -> None:
        runs[event.payload] += 1
        if event.payload == "b1":
            await world.sleep("10s")
            ended.append("b1")
            return
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    shop = Shop(handle, retry=Retry(max_failures=3, max_lost=3))
    async with shop.a2.testing() as world:
        await shop.append("b1", "a1")
        with anyio.move_on_after(1):
            await world.advance("1h")
        assert ["b1"] == ended
        assert 1 == runs["b1"]
        assert 3 >= runs["a1"]


@within(5)
async def test_g1_an_error_raised_because_of_a_release_is_no_failure() -> None:
    """Many drivers turn a cancellation into an error of their own: a handler stopped by a shutdown has not failed."""
    started = anyio.Event()

    async def handle(_: Event[str]) -> None:
        started.set()
        try:
            await anyio.sleep_forever()
        except BaseException as error:
            raise ConnectionError("the connection was closed") from error

    signals: list[Signal] = []
    shop = Shop(handle, grace="0s", telemetry=signals.append)
    async with shop.a2:
        await shop.append("a1")
        await started.wait()
    [item] = heads(shop.store)
    assert (0, 0, None) == (item.failures, item.lost, item.claim)
    assert [SignalName.RELEASED] == [signal.name for signal in signals]


# ── who swallows a cancellation ──────────────────────────────────────────────────────────


@within(5)
async def test_a_handler_that_swallows_its_release_and_succeeds_has_succeeded() -> None:
    """The claim is still its own, so what it answers after the shutdown's cancellation is settled, once."""
    started = anyio.Event()

    async def handle(_: Event[str]) -> object:
        started.set()
        with suppress(anyio.get_cancelled_exc_class()):
            await anyio.sleep_forever()
        return shop.note("finished")

    store = ScriptedStore()
    shop = Shop(handle, store=store, grace="0s")
    async with shop.a2:
        await shop.append("a1")
        await started.wait()
    assert [("append", "a1"), ("claim", "a1"), ("settle", "a1")] == [one for one in store.journal if one[1] == "a1"]
    assert ["a1", "finished"] == await shop.log()


@within(5)
async def test_a_handler_that_swallows_the_loss_of_its_claim_writes_nothing() -> None:
    """What it answers after it lost the claim is discarded, appended events and all."""
    swallowed: list[str] = []

    async def handle(_: Event[str], ctx: Context) -> object:
        await ctx.append(shop.note("from a stale hand"))
        try:
            await world.sleep("1h")
        except BaseException as error:  # noqa: BLE001 - that is the fault of this handler
            swallowed.append(type(error).__name__)
        return shop.note("stale too")

    signals: list[Signal] = []
    shop = Shop(handle, telemetry=signals.append)
    world, store = scripted(shop.a2)
    async with world:
        await shop.append("a1")
        await world.settle()
        assert ["a1"] == [item.entry.id for item in steal(store, later_ms=30_000)]
        await world.advance("10s")
        assert 1 == len(swallowed)
        assert ["a1"] == await shop.log()
        assert [SignalName.LOST] == [signal.name for signal in signals]
        assert ["thief"] == [item.claim.holder for item in heads(store) if item.claim is not None]


@within(5)
@pytest.mark.parametrize("answer", ["events", "error", "Snooze", "Fail", "Cancel"])
async def test_a_stale_attempt_changes_nothing_whatever_it_answers(answer: str) -> None:
    """Fencing: a holder whose claim was taken over neither settles, fails, snoozes, buries nor cancels the event."""

    async def handle(_: Event[str], ctx: Context) -> object:
        await ctx.append(shop.note("from a stale hand"))
        steal(store, later_ms=30_000)
        match answer:
            case "error":
                raise ValueError("boom")
            case "Snooze":
                return Snooze("1h")
            case "Fail":
                return Fail("no")
            case "Cancel":
                return Cancel("no")
            case _:
                return [shop.note("stale too")]

    signals: list[Signal] = []
    store = ScriptedStore()
    shop = Shop(handle, store=store, retry=ONCE, scheduler=None, telemetry=signals.append)
    await shop.append("a1")
    assert ["a1"] == await shop.log()
    [item] = heads(store)
    assert item.claim is not None
    assert ("thief", 2, 0, None) == (item.claim.holder, item.attempt, item.failures, item.dead)
    assert [SignalName.LOST] == [signal.name for signal in signals]
    assert DrainState.BUSY == (await shop.session().drain()).state


@within(5)
async def test_a_stale_attempt_of_an_event_that_is_settled_by_now_changes_nothing() -> None:
    """Where the thief has even settled it, the late answer neither settles again nor appends."""

    async def handle(_: Event[str]) -> object:
        clock.move_to(30_000)
        await thief.session().drain()
        return shop.note("too late")

    clock = ManualClock(0)
    store = ScriptedStore(clock=clock)
    shop = Shop(handle, store=store, scheduler=None)
    thief = Shop(lambda _: [thief.note("by the thief")], store=store, scheduler=None)
    await shop.append("a1")
    assert ["a1", "by the thief"] == await shop.log()
    assert ["a1"] == store.settled()


# ── what a handler answers ───────────────────────────────────────────────────────────────


@within(5)
@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ("text of no type", "UnknownEvent"),
        (42, "UnknownEvent"),
        (object(), "UnknownEvent"),
        ([None], "UnknownEvent"),
        (NewEvent({"no": "text"}, type="order"), "InvalidPayload"),
        (NewEvent("\ud83d", type="note"), "InvalidPayload"),
        (NewEvent("b2", id="", type="order"), "InvalidName"),
        (NewEvent("other text", id="a1", type="note"), "EventConflict"),
    ],
    ids=["text", "number", "object", "list-of-none", "payload", "surrogate", "id", "conflict"],
)
async def test_an_answer_that_cannot_be_appended_is_a_failure(answer: object, error: str) -> None:
    """It is counted and ends as a dead letter like any error; of a batch with one bad event nothing is written."""

    async def handle(_: Event[str], ctx: Context) -> object:
        await ctx.append(shop.note("good"))
        return answer

    shop = Shop(handle, retry=Retry(max_failures=2))
    world, store = scripted(shop.a2)
    async with world:
        await shop.append("a1", "b1")
        await world.advance("1h")
        assert [("a1", error), ("b1", error)] == [(letter.event_id, letter.error) for letter in world.dead_letters]
        assert [1, 1, 2, 2] == sorted(item.attempt for item in store.claimed)
        assert ["a1", "b1"] == await shop.log()


@within(5)
async def test_a_payload_that_no_longer_fits_its_type_is_a_failure() -> None:
    """What an older version stored and this one cannot read does not reach the handler, nor stop the drain."""
    runs: list[int] = []
    older = Shop(lambda _: None)
    await older.dispatch("a1", "1")
    newer = A2(store=older.store, scheduler=None)
    orders = newer.contract("orders")
    number = orders.event("order", int)

    @orders.on(number, retry=ONCE)
    async def handle(event: Event[int]) -> None:
        runs.append(event.payload)

    assert DrainState.SETTLED == (await orders.session("s").drain()).state
    assert [("a1", "InvalidPayload"), ("1", "InvalidPayload")] == [
        (letter.event_id, letter.error) for letter in await newer.dead_letters()
    ]
    assert [] == runs


@within(5)
async def test_events_that_a_handler_names_itself_are_appended_once() -> None:
    """An id of the handler's own choice that is in the log with the same content is the same event, and no failure."""

    async def handle(_: Event[str]) -> object:
        return [NewEvent("receipt", id="receipt", type="note"), NewEvent("receipt", id="receipt", type="note")]

    shop = Shop(handle, scheduler=None)
    await shop.append("a1", "b1")
    assert ["a1", "b1", "receipt"] == await shop.log()
    assert [] == await shop.a2.dead_letters()


# ── time-outs and plain functions ────────────────────────────────────────────────────────


@within(5)
async def test_a_timeout_ends_an_attempt_as_a_failure() -> None:
    """A handler that takes too long is cancelled, and tried again like any that failed."""
    ends: list[str] = []

    async def handle(_: Event[str], ctx: Context) -> None:
        try:
            if ctx.attempt == 1:
                await anyio.sleep_forever()
        finally:
            ends.append(f"attempt {ctx.attempt}")

    shop = Shop(handle, timeout="20ms", retry=Retry(base="0s", cap="0s"), scheduler=None)
    await shop.append("a1", "a2")
    assert ["attempt 1", "attempt 2", "attempt 1", "attempt 2"] == ends
    assert () == heads(shop.store)


@within(5)
async def test_a_timeout_counts_on_the_worlds_clock() -> None:
    """In the test world a time-out of ten minutes ends a handler that takes an hour of the world's time."""
    ends: list[tuple[str, timedelta]] = []

    async def handle(_: Event[str]) -> None:
        try:
            await world.sleep("1h")
        except BaseException:
            ends.append(("cancelled", world.now - start))
            raise
        ends.append(("finished", world.now - start))

    shop = Shop(handle, timeout="10m", retry=ONCE)
    async with shop.a2.testing() as world:
        start = world.now
        await shop.append("a1")
        await world.advance("2h")
        assert [("cancelled", timedelta(minutes=10))] == ends
        assert ["TimeoutError"] == [letter.error for letter in world.dead_letters]


@within(5)
async def test_a_plain_function_runs_beside_the_loop_and_may_append_and_schedule() -> None:
    """Two plain handlers wait for each other in their threads, and what they append and schedule is kept."""
    both = threading.Barrier(2)

    def handle(event: Event[str], ctx: SyncContext) -> object:
        both.wait(5)
        ctx.append(shop.note(f"{event.payload} appended"))
        ctx.schedule(f"later {event.payload}", shop.note(f"{event.payload} later"), delay="1h")
        ctx.schedule(f"never {event.payload}", shop.note("never"), delay="1h")
        assert ctx.cancel(f"never {event.payload}")
        return shop.note(f"{event.payload} returned")

    shop = Shop(handle)
    async with shop.a2.testing() as world:
        await shop.append("a1", "b1")
        await world.advance("1d")
        log = await shop.log()
    assert ["a1", "b1"] == log[:2]
    assert sorted(f"{who} {what}" for who in ("a1", "b1") for what in ("appended", "returned", "later")) == sorted(
        log[2:]
    )


@within(5)
async def test_a_plain_function_that_lost_its_claim_runs_on_and_writes_nothing() -> None:
    """A thread cannot be stopped: what it returns, appends or raises after it was fenced off is discarded."""
    go_on = threading.Event()
    ended = threading.Event()

    def handle(_: Event[str], ctx: SyncContext) -> object:
        go_on.wait(5)
        ctx.append(shop.note("from a stale hand"))
        ended.set()
        return shop.note("stale too")

    signals: list[Signal] = []
    shop = Shop(handle, telemetry=signals.append)
    world, store = scripted(shop.a2)
    async with world:
        await shop.append("a1")
        await rounds()
        steal(store, later_ms=30_000)
        world.clock.move_to(world.clock.now_ms() + 10_000)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(world.settle)
            await rounds()
            go_on.set()
            await to_thread.run_sync(ended.wait, 5)
        assert ["a1"] == await shop.log()
        assert [SignalName.LOST] == [signal.name for signal in signals]


# ── an event that kills its process ──────────────────────────────────────────────────────

POISON = """
import os, sys
import anyio
from a2asgi import A2, DrainTimings, Event, Retry, SignalName, SQLiteStore

backend, database, runs = sys.argv[1:]
buried = anyio.Event()

def on_signal(signal):
    if signal.name is SignalName.DEAD_LETTER:
        buried.set()

timings = DrainTimings(ttl_ms=200, heartbeat_ms=100, grace_ms=0)
a2 = A2(store=SQLiteStore(database), timings=timings, telemetry=on_signal)
orders = a2.contract("orders")
order = orders.event("order", str, lane=lambda text: text[0])

@orders.on(order, retry=Retry(max_lost=3))
async def handle(event):
    with open(runs, "a") as file:
        file.write(event.payload + "\\n")
    if event.payload == "a1":
        os._exit(137)

async def main():
    async with a2:
        await orders.session("s").append(order("a1", id="a1"), order("a2", id="a2"))
        with anyio.fail_after(10):
            await buried.wait()

anyio.run(main, backend=backend)
"""


@within(30)
async def test_b9_an_event_that_kills_its_process_ends_as_a_dead_letter(
    tmp_path: Path, anyio_backend_name: str
) -> None:
    """For real: three processes die of it, the fourth buries it without running it, and the lane is never stuck."""
    script, runs, database = tmp_path / "poison.py", tmp_path / "runs", tmp_path / "a2.db"
    script.write_text(POISON)
    command = [sys.executable, str(script), anyio_backend_name, str(database), str(runs)]
    codes = [(await anyio.run_process(command, check=False)).returncode for _ in range(4)]
    assert [137, 137, 137, 0] == codes
    assert "a1\na1\na1\n" == runs.read_text()
    handled: list[str] = []
    shop = Shop(lambda event: handled.append(event.payload), store=SQLiteStore(database), scheduler=None)
    async with shop.a2:
        [letter] = await shop.a2.dead_letters()
        assert ("a1", "Lost") == (letter.event_id, letter.error)
        await shop.session().resolve("a1", "it kills")
        await shop.session().drain()
        assert ["a2"] == handled
