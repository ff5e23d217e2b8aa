"""Sessions as users hold them: append, dispatch, read, fold, schedule, cancel, mend, and what a handler may answer."""

import logging
import threading
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from a2asgi import (
    A2,
    Cancel,
    ConfigurationError,
    Context,
    DrainResult,
    DrainState,
    Event,
    EventConflict,
    Fail,
    InvalidName,
    InvalidPayload,
    InvalidTime,
    LaneState,
    MemoryStore,
    NewEvent,
    NoDeadLetter,
    Retry,
    Session,
    Snooze,
    SQLiteStore,
    SyncContext,
    TimerNameTaken,
    UnknownEvent,
)
from a2core import Ending, EndingKind, Task
from tests.asgi.support import PATIENCE_S, Noted, Packed, Placed, Script, Shop, ids_of, log_of, types_of, until

START = datetime(2026, 1, 1, tzinfo=UTC)
STEADY = Retry(jitter=0)
ONCE = Retry(max_failures=1)


# ── append ───────────────────────────────────────────────────────────────────────────────


async def test_an_append_answers_with_the_events_of_the_log() -> None:
    """A batch gets its seqs, times and types, in the order of the call, and is read back equal."""
    shop = Shop()
    async with shop.a2.testing() as world:
        receipt = await shop.o1.append(Noted("a"), NewEvent(Placed(), id="p1"))
        assert True is receipt.new
        assert await shop.o1.read() == list(receipt.events)
        assert [(1, "noted", Noted("a")), (2, "placed", Placed())] == [
            (e.seq, e.type, e.payload) for e in receipt.events
        ]
        assert {(None, START, None)} == {(e.cause, e.created_at, e.ending) for e in receipt.events}
        assert ("p1", START) == (receipt.events[1].id, world.now)


async def test_an_event_is_handled_and_its_products_follow() -> None:
    """A handler gets the event as the log holds it; what it returns enters the log with that event as its cause."""
    shop = Shop()
    pack = Script(Packed())
    shop.orders.on(Placed)(pack)
    async with shop.a2.testing() as world:
        await shop.o1.append(Placed(), id="p1")
        await world.settle()
        placed, packed = await shop.o1.read()
        assert [placed] == pack.events
        assert ("packed", Packed(), "p1", 2) == (packed.type, packed.payload, packed.cause, packed.seq)


async def test_an_append_may_wait_for_its_handlers() -> None:
    """`wait=True` returns once the session is settled, the events of its handlers included."""
    shop = Shop()
    shop.orders.on(Placed)(Script(Packed()))
    shop.orders.on(Packed)(Script(Noted("packed")))
    async with shop.a2.testing():
        await shop.o1.append(Placed(), wait=True)
        assert ["placed", "packed", "noted"] == await types_of(shop.o1)


async def test_an_append_does_not_wait_for_a_later_instant() -> None:
    """`wait=True` returns when what is left waits for a retry."""
    shop = Shop()
    pack = Script(ValueError("not now"))
    shop.orders.on(Placed, retry=STEADY)(pack)
    async with shop.a2.testing() as world:
        await shop.o1.append(Placed(), wait=True)
        assert [1] == pack.attempts
        await world.advance("1s")
        assert [1, 2] == pack.attempts


async def test_the_same_id_again_is_the_same_event() -> None:
    """A repeated append changes nothing, answers with the event that is there, and runs no handler again."""
    shop = Shop()
    pack = Script()
    shop.orders.on(Placed)(pack)
    async with shop.a2.testing() as world:
        first = await shop.o1.append(Placed(), id="p1")
        await world.advance("1m")
        again = await shop.o1.append(Placed(), id="p1")
        await world.advance("1d")
        assert (first.events, False) == (again.events, again.new)
        assert ([1], ["placed"]) == (pack.attempts, await types_of(shop.o1))


async def test_a_batch_that_is_partly_known_adds_the_rest() -> None:
    """The receipt lists the whole batch in the order of the call, and is new if any of it is."""
    shop = Shop()
    async with shop.a2.testing():
        await shop.o1.append(Noted("b"), id="b")
        receipt = await shop.o1.append(*(NewEvent(Noted(text), id=text) for text in "abc"))
        assert (["a", "b", "c"], [2, 1, 3], True) == (
            ids_of(receipt.events),
            [event.seq for event in receipt.events],
            receipt.new,
        )
        assert ["b", "a", "c"] == ids_of(await shop.o1.read())


async def test_an_event_twice_in_one_batch_is_one_event() -> None:
    """The same id and content twice enters the log once."""
    shop = Shop()
    async with shop.a2.testing():
        receipt = await shop.o1.append(NewEvent(Noted(), id="n1"), NewEvent(Noted(), id="n1"))
        assert (["n1", "n1"], ["n1"]) == (ids_of(receipt.events), ids_of(await shop.o1.read()))


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param([NewEvent(Placed("coffee"), id="p1")], id="payload"),
        pytest.param([NewEvent(Packed(), id="p1")], id="type"),
        pytest.param([Noted(), NewEvent(Placed("coffee"), id="p1")], id="last-of-a-batch"),
        pytest.param([NewEvent(Placed("coffee"), id="p1"), Noted()], id="first-of-a-batch"),
        pytest.param([NewEvent(Noted("a"), id="n1"), NewEvent(Noted("b"), id="n1")], id="within-a-batch"),
    ],
)
@pytest.mark.parametrize("how", [Session.append, Session.dispatch])
async def test_an_id_with_other_content_is_a_conflict(batch: list[object], how: Callable[..., Any]) -> None:
    """An id that is taken by other content is refused by name, and nothing of its batch is written."""
    shop = Shop()
    pack = Script()
    shop.orders.on(Placed)(pack)
    async with shop.a2.testing() as world:
        await shop.o1.append(Placed("tea"), id="p1")
        before = await shop.o1.read()
        with pytest.raises(
            EventConflict, match=r"event id '[pn]1' is in the log with another type or payload"
        ) as refusal:
            await how(shop.o1, *batch)
        await world.advance("1d")
        assert (before, [1]) == (await shop.o1.read(), pack.attempts)
        assert refusal.value.event_id in {"p1", "n1"}


REFUSED: dict[str, tuple[tuple[object, ...], str | None, type[Exception], str]] = {
    "nothing": ((), None, ValueError, "at least one event"),
    "one-id-for-nothing": ((), "a", ValueError, "id= names one event, got 0"),
    "one-id-for-two": (
        (Noted(), Noted()),
        "a",
        ValueError,
        "id= names one event, got 2: give each its own by NewEvent",
    ),
    "unknown-event": (({"text": ""},), None, UnknownEvent, "no event for <class 'dict'>"),
    "unknown-after-known": ((Noted(), 7), None, UnknownEvent, "no event for <class 'int'>"),
    "wrong-payload": ((Noted(), NewEvent({"text": 1}, type="noted")), None, InvalidPayload, r"\$\.text"),
    "half-a-character": ((Noted("\ud83d"),), None, InvalidPayload, r"\$\.text"),
    "empty-id": ((Noted(),), "", InvalidName, "event id: expected a non-empty string"),
    "id-of-another-type": ((NewEvent(Noted(), id=7),), None, InvalidName, "event id: expected a string"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(("events", "event_id", "error", "text"), REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("how", [Session.append, Session.dispatch])
async def test_a_wrong_append_writes_nothing(
    events: tuple[object, ...], event_id: str | None, error: type[Exception], text: str, how: Callable[..., Any]
) -> None:
    """What cannot be appended is refused before anything of the call is written."""
    shop = Shop()
    async with shop.a2.testing():
        with pytest.raises(error, match=text):
            await how(shop.o1, *events, id=event_id)
        assert [] == await shop.o1.read()


async def test_a_lane_function_that_raises_writes_nothing() -> None:
    """Whatever a lane function makes of one event, the others of its batch are not written either."""
    shop = Shop()
    read = shop.orders.event("read", dict, lane=lambda reading: str(reading["sensor"]))
    async with shop.a2.testing():
        with pytest.raises(KeyError, match="sensor"):
            await shop.o1.append(Noted(), read({}))
        assert [] == await shop.o1.read()


async def test_sessions_do_not_see_each_other() -> None:
    """The same event ids in another session, or another contract, are other events."""
    shop = Shop()
    other = shop.a2.contract("returns")
    other.event("noted")(Noted)
    async with shop.a2.testing():
        for session in (shop.o1, shop.orders.session("o2"), other.session("o1")):
            assert True is (await session.append(Noted(), id="n1")).new
        assert ["n1"] == ids_of(await shop.o1.read())


async def test_an_append_from_within_a_handler_is_handled_too() -> None:
    """A handler may append to its own session or to another one, and asking to wait never waits for itself."""
    shop = Shop()
    o2 = shop.orders.session("o2")

    @shop.orders.on(Placed)
    async def pack(event: Event[Placed], ctx: Context) -> None:
        await shop.o1.append(Packed("own"), wait=True)
        await o2.append(Packed("other"), wait=True)

    packed = Script()
    shop.orders.on(Packed)(packed)
    async with shop.a2.testing() as world:
        with anyio.fail_after(PATIENCE_S):
            await shop.o1.append(Placed(), wait=True)
            await world.settle()
        assert {"own", "other"} == {event.payload.sku for event in packed.events}


# ── dispatch ─────────────────────────────────────────────────────────────────────────────


async def test_a_dispatch_runs_nothing_here() -> None:
    """The events are durable when it returns, and the scheduler has them handled."""
    shop = Shop()
    pack = Script()
    shop.orders.on(Placed)(pack)
    async with shop.a2.testing() as world:
        await shop.o1.dispatch(Placed(), id="p1")
        assert (["p1"], []) == (ids_of(await shop.o1.read()), pack.attempts)
        await world.settle()
        assert [1] == pack.attempts


async def test_a_dispatch_needs_a_scheduler() -> None:
    """Without one nobody would come, so it is refused with what to call instead, and nothing is written."""
    shop = Shop(scheduler=None)
    async with shop.a2.testing():
        with pytest.raises(ConfigurationError, match="use append"):
            await shop.o1.dispatch(Noted())
        assert [] == await shop.o1.read()


# ── read and fold ────────────────────────────────────────────────────────────────────────


async def test_a_log_is_read_in_pages() -> None:
    """`after` is the last seq that was read, `limit` the size of a page; past the end there is nothing."""
    shop = Shop()
    async with shop.a2.testing():
        await shop.o1.append(*(Noted(text) for text in "abcde"))
        pages = [await shop.o1.read(after=after, limit=2) for after in (0, 2, 4, 5, 99)]
        assert ["ab", "cd", "e", "", ""] == ["".join(event.payload.text for event in page) for page in pages]
        assert [] == await shop.orders.session("o2").read()


@pytest.mark.parametrize("page", [{"after": -1}, {"limit": 0}], ids=str)
async def test_a_page_that_makes_no_sense_is_refused(page: dict[str, int]) -> None:
    """A negative seq or an empty page is the caller's mistake."""
    shop = Shop()
    async with shop.a2.testing():
        with pytest.raises(ValueError, match="expected after >= 0 and limit >= 1"):
            await shop.o1.read(**page)


async def test_reading_wakes_nothing() -> None:
    """Neither reading nor folding runs a handler."""
    shop = Shop(scheduler=None)
    pack = Script(ValueError())
    shop.orders.on(Placed, retry=STEADY)(pack)
    async with shop.a2.testing() as world:
        await shop.o1.append(Placed(), wait=True)
        await world.advance("1h")
        await shop.o1.read()
        await shop.o1.state(shop.orders.reduce(0, lambda count, _: count + 1))
        assert [1] == pack.attempts
        assert DrainResult(DrainState.SETTLED) == await shop.o1.drain()
        assert [1, 2] == pack.attempts


async def test_a_state_is_the_whole_history_folded() -> None:
    """However long the log is, each event counts once, in order, and folding again gives the same."""
    shop = Shop()
    seqs = shop.orders.reduce(list[int](), lambda state, event: [*state, event.seq])
    async with shop.a2.testing():
        assert [] == await shop.o1.state(seqs)
        await shop.o1.append(*[Noted()] * 1_001)
        assert list(range(1, 1_002)) == await shop.o1.state(seqs)
        assert list(range(1, 1_002)) == await shop.o1.state(seqs)


async def test_a_state_may_become_none() -> None:
    """None is a state as any other, also where one page of a long log ends and the next begins."""
    shop = Shop()

    def released(state: str | None, event: Event[Any]) -> str | None:
        return None if event.seq == 1 else state

    first: str | None = "nobody yet"
    holder = shop.orders.reduce(first, released)
    async with shop.a2.testing():
        await shop.o1.append(*[Noted()] * 1_001)
        assert None is await shop.o1.state(holder)


# ── drain ────────────────────────────────────────────────────────────────────────────────


async def test_a_drain_says_how_it_found_the_session() -> None:
    """Settled where nothing is left, stalled until the retry, settled again where only a dead letter remains."""
    shop = Shop()
    shop.orders.on(Placed, retry=Retry(max_failures=2, jitter=0))(Script(ValueError(), ValueError()))
    async with shop.a2.testing() as world:
        assert DrainResult(DrainState.SETTLED) == await shop.o1.drain()
        await shop.o1.append(Placed())
        retry_at_ms = world.clock.now_ms() + 1_000
        assert DrainResult(DrainState.STALLED, retry_at_ms) == await shop.o1.drain()
        await world.advance("1s")
        assert DrainResult(DrainState.SETTLED) == await shop.o1.drain()
        assert 1 == len(world.dead_letters)


# ── timers ───────────────────────────────────────────────────────────────────────────────


async def test_a_timer_enters_the_log_when_it_is_due() -> None:
    """Nothing is in the log before; then its events are, once, in the order of the call, and are handled."""
    shop = Shop()
    pack = Script()
    shop.orders.on(Placed)(pack)
    async with shop.a2.testing() as world:
        receipt = await shop.o1.schedule("later", Placed(), Noted("b"), delay="15m")
        assert ("later", "scheduled", START + timedelta(minutes=15)) == (receipt.name, receipt.state, receipt.due_at)
        await world.advance(timedelta(minutes=15) - timedelta(milliseconds=1))
        assert [] == await shop.o1.read()
        await world.advance("1ms")
        assert [("placed", Placed()), ("noted", Noted("b"))] == await log_of(shop.o1)
        assert {(None, world.now)} == {(event.cause, event.created_at) for event in await shop.o1.read()}
        await world.advance("30d")
        assert ([1], 2) == (pack.attempts, len(await shop.o1.read()))


async def test_the_same_timer_again_is_the_same() -> None:
    """The same name, delay and events mean the first timer, also when they are asked for later."""
    shop = Shop()
    async with shop.a2.testing() as world:
        first = await shop.o1.schedule("later", Noted(), delay="15m")
        await world.advance("10m")
        assert first == await shop.o1.schedule("later", Noted(), delay=timedelta(minutes=15))
        await world.advance("1d")
        assert ["noted"] == await types_of(shop.o1)


async def test_a_delivered_timer_again_is_delivered() -> None:
    """Once its events are in the log, the same call answers that, and appends nothing."""
    shop = Shop()
    async with shop.a2.testing() as world:
        first = await shop.o1.schedule("later", Noted(), delay="1s")
        await world.advance("1s")
        again = await shop.o1.schedule("later", Noted(), delay="1s")
        assert (first.id, "delivered", None) == (again.id, again.state, again.due_at)
        await world.advance("1d")
        assert ["noted"] == await types_of(shop.o1)


@pytest.mark.parametrize("delivered", [False, True], ids=["waiting", "delivered"])
@pytest.mark.parametrize(
    ("events", "when"),
    [
        pytest.param([Noted("b")], {"delay": "1h"}, id="payload"),
        pytest.param([Packed()], {"delay": "1h"}, id="type"),
        pytest.param([Noted("a"), Noted("a")], {"delay": "1h"}, id="more"),
    ],
)
async def test_a_name_stands_for_one_batch(
    events: list[object],
    when: dict[str, Any],
    delivered: bool,  # noqa: FBT001 - a row
) -> None:
    """Other events under the same name are refused, before and after the first ones are delivered."""
    shop = Shop()
    async with shop.a2.testing() as world:
        await shop.o1.schedule("later", Noted("a"), delay="1h")
        if delivered:
            await world.advance("1h")
        with pytest.raises(TimerNameTaken, match="timer 'later' is scheduled with another time or other events"):
            await shop.o1.schedule("later", *events, **when)
        await world.advance("1d")
        assert [("noted", Noted("a"))] == await log_of(shop.o1)


@pytest.mark.parametrize(
    "when",
    [{"delay": "2h"}, {"delay": "0s"}, {"at": START + timedelta(hours=2)}, {"at": START}],
    ids=["longer", "shorter", "another-instant", "now"],
)
async def test_a_name_stands_for_one_time(when: dict[str, Any]) -> None:
    """Another time under the same name is refused, and the first one stands."""
    shop = Shop()
    async with shop.a2.testing() as world:
        await shop.o1.schedule("later", Noted(), delay="1h")
        with pytest.raises(TimerNameTaken) as refusal:
            await shop.o1.schedule("later", Noted(), **when)
        assert ("later", "TIMER_NAME_TAKEN") == (refusal.value.name, refusal.value.code)
        await world.advance("59m")
        assert [] == await shop.o1.read()
        await world.advance("1m")
        assert ["noted"] == await types_of(shop.o1)


async def test_a_name_is_a_session_s_own() -> None:
    """The same name in another session is another timer."""
    shop = Shop()
    o2 = shop.orders.session("o2")
    async with shop.a2.testing() as world:
        await shop.o1.schedule("later", Noted("a"), delay="1h")
        await o2.schedule("later", Noted("b"), delay="2h")
        await world.advance("2h")
        assert [[("noted", Noted("a"))], [("noted", Noted("b"))]] == [await log_of(shop.o1), await log_of(o2)]


async def test_a_cancelled_timer_never_comes() -> None:
    """Its name stays cancelled: nothing is delivered, and scheduling it again schedules nothing."""
    shop = Shop()
    async with shop.a2.testing() as world:
        await shop.o1.schedule("later", Noted(), delay="1h")
        assert True is await shop.o1.cancel("later")
        assert True is await shop.o1.cancel("later")
        for events in ([Noted()], [Packed()]):
            receipt = await shop.o1.schedule("later", *events, delay="1h")
            assert ("cancelled", None) == (receipt.state, receipt.due_at)
        await world.advance("30d")
        assert [] == await shop.o1.read()


async def test_a_name_can_be_cancelled_before_it_is_scheduled() -> None:
    """A cancel that overtakes its schedule holds."""
    shop = Shop()
    async with shop.a2.testing() as world:
        assert True is await shop.o1.cancel("later")
        assert "cancelled" == (await shop.o1.schedule("later", Noted(), delay="1s")).state
        await world.advance("1d")
        assert [] == await shop.o1.read()


async def test_a_cancel_may_come_too_late() -> None:
    """Once the events are in the log a cancel says so, and changes nothing."""
    shop = Shop()
    async with shop.a2.testing() as world:
        await shop.o1.schedule("later", Noted(), delay="1s")
        await world.advance("1s")
        assert False is await shop.o1.cancel("later")
        assert "delivered" == (await shop.o1.schedule("later", Noted(), delay="1s")).state
        assert ["noted"] == await types_of(shop.o1)


@pytest.mark.parametrize(
    "when",
    [
        pytest.param({"at": START - timedelta(seconds=1)}, id="B8-past"),
        pytest.param({"at": START}, id="now"),
        pytest.param({"at": datetime(1, 1, 1, tzinfo=UTC)}, id="first-year"),
        pytest.param({"delay": "0s"}, id="no-delay"),
        pytest.param({"delay": timedelta()}, id="no-timedelta"),
    ],
)
async def test_a_time_that_has_passed_is_due_now(when: dict[str, Any]) -> None:
    """B8: a timer of the past is delivered at once."""
    shop = Shop()
    async with shop.a2.testing() as world:
        await shop.o1.schedule("later", Noted(), **when)
        await world.settle()
        assert (["noted"], START) == (await types_of(shop.o1), world.now)


REFUSED_TIMERS: dict[str, tuple[tuple[object, ...], dict[str, Any], type[Exception], str]] = {
    "no-time": ((Noted(),), {}, InvalidTime, "either delay= or at="),
    "two-times": ((Noted(),), {"delay": "1s", "at": START}, InvalidTime, "either delay= or at="),
    "naive": ((Noted(),), {"at": datetime(2026, 1, 2)}, InvalidTime, r"naive .* add tzinfo=UTC"),  # noqa: DTZ001 - the point
    "negative": ((Noted(),), {"delay": timedelta(seconds=-1)}, InvalidTime, "from zero"),
    "garbage": ((Noted(),), {"delay": "soon"}, InvalidTime, "expected a duration"),
    "number": ((Noted(),), {"delay": 15}, InvalidTime, "expected a duration"),
    "text-instant": ((Noted(),), {"at": "2026-01-02"}, InvalidTime, "expected an aware datetime"),
    "no-events": ((), {"delay": "1s"}, ValueError, "one event or more"),
    "own-id": ((NewEvent(Noted(), id="n1"),), {"delay": "1s"}, ValueError, "without ids"),
    "unknown-event": ((Noted(), 7), {"delay": "1s"}, UnknownEvent, "no event for <class 'int'>"),
    "wrong-payload": ((NewEvent({}, type="noted"), Noted("\ud83d")), {"delay": "1s"}, InvalidPayload, r"\$\.text"),
    "past-the-calendar": ((Noted(),), {"at": datetime.max.replace(tzinfo=UTC)}, InvalidTime, "expected"),
    "delay-past-the-calendar": ((Noted(),), {"delay": timedelta(days=2_930_000)}, InvalidTime, "expected"),
    "longest-delay": ((Noted(),), {"delay": timedelta.max}, InvalidTime, "expected"),
}


@pytest.mark.parametrize(("events", "when", "error", "text"), REFUSED_TIMERS.values(), ids=REFUSED_TIMERS)
async def test_a_wrong_timer_schedules_nothing(
    events: tuple[object, ...], when: dict[str, Any], error: type[Exception], text: str
) -> None:
    """What cannot be scheduled is refused at once, and its name is still free."""
    shop = Shop()
    async with shop.a2.testing() as world:
        with pytest.raises(error, match=text):
            await shop.o1.schedule("later", *events, **when)
        assert "scheduled" == (await shop.o1.schedule("later", Noted("ok"), delay="1s")).state
        await world.advance("1s")
        assert [("noted", Noted("ok"))] == await log_of(shop.o1)


@pytest.mark.parametrize("name", ["", "a" * 1_025, "\x00", "\ud83d", None], ids=ascii)
async def test_a_timer_name_is_a_name_as_any_other(name: Any) -> None:
    """What no store could keep is refused, when a timer is scheduled and when it is cancelled."""
    shop = Shop()
    async with shop.a2.testing():
        with pytest.raises(InvalidName, match="timer name"):
            await shop.o1.schedule(name, Noted(), delay="1s")
        with pytest.raises(InvalidName, match="timer name"):
            await shop.o1.cancel(name)


# ── what a handler may answer ────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(None, [], id="nothing"),
        pytest.param([], [], id="empty-list"),
        pytest.param(Packed("a"), [("packed", Packed("a"))], id="one"),
        pytest.param([Packed("a"), Noted("b")], [("packed", Packed("a")), ("noted", Noted("b"))], id="list"),
        pytest.param((Noted("b"), Packed("a")), [("noted", Noted("b")), ("packed", Packed("a"))], id="tuple"),
        pytest.param(NewEvent({"text": "c"}, type="noted"), [("noted", Noted("c"))], id="new-event"),
    ],
)
@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_a_handler_returns_events(
    answer: object,
    expected: list[object],
    plain: bool,  # noqa: FBT001 - a row
) -> None:
    """One event, several or none: they are appended when the handled event is settled, in order."""
    shop = Shop()
    if plain:
        shop.orders.on(Placed)(lambda _: answer)
    else:
        shop.orders.on(Placed)(Script(answer))
    async with shop.a2.testing() as world:
        await shop.o1.append(Placed())
        await world.settle()
        assert [("placed", Placed()), *expected] == await log_of(shop.o1)
        assert DrainResult(DrainState.SETTLED) == await shop.o1.drain()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        pytest.param(7, "UnknownEvent", id="number"),
        pytest.param(True, "UnknownEvent", id="boolean"),
        pytest.param("packed", "UnknownEvent", id="text"),
        pytest.param({"sku": "a"}, "UnknownEvent", id="dict"),
        pytest.param([Packed(), object()], "UnknownEvent", id="one-of-a-list"),
        pytest.param([Snooze("1s")], "UnknownEvent", id="outcome-in-a-list"),
        pytest.param([[Packed()]], "UnknownEvent", id="list-in-a-list"),
        pytest.param(Packed, "UnknownEvent", id="class"),
        pytest.param(Packed("\ud83d"), "InvalidPayload", id="half-a-character"),
        pytest.param(NewEvent(Packed(), id=""), "InvalidName", id="empty-id"),
        pytest.param(NewEvent(Packed("b"), id="p1"), "EventConflict", id="taken-id"),
    ],
)
async def test_a_handler_that_returns_garbage_has_failed(answer: object, error: str) -> None:
    """What cannot be appended is the handler's failure: it is tried again, given up, and nothing of it is written."""
    shop = Shop()
    pack = Script(answer, answer)
    shop.orders.on(Placed, retry=Retry(max_failures=2))(pack)
    async with shop.a2.testing() as world:
        await shop.o1.append(Placed(), id="p1")
        await world.advance("1h")
        [dead] = world.dead_letters
        assert ([1, 2], error, "p1") == (pack.attempts, dead.error, dead.event_id)
        assert ["placed"] == await types_of(shop.o1)


async def test_what_a_context_appends_comes_before_what_is_returned() -> None:
    """Events of `ctx.append` and of the answer enter the log together, in the order in which they were named."""
    shop = Shop()

    @shop.orders.on(Placed)
    async def pack(event: Event[Placed], ctx: Context) -> Noted:
        await ctx.append(Packed("a"), Packed("b"))
        await ctx.append(Noted("c"))
        return Noted("d")

    async with shop.a2.testing() as world:
        await shop.o1.append(Placed(), id="p1")
        await world.settle()
        _, *produced = await shop.o1.read()
        assert [Packed("a"), Packed("b"), Noted("c"), Noted("d")] == [event.payload for event in produced]
        assert {"p1"} == {event.cause for event in produced}


@pytest.mark.parametrize("answer", [ValueError("late"), Snooze("1s"), Fail("no")], ids=["error", "snooze", "fail"])
async def test_an_attempt_that_does_not_succeed_appends_nothing(answer: object) -> None:
    """What an attempt appended is written with its success, or not at all."""
    shop = Shop()

    @shop.orders.on(Placed, retry=ONCE)
    async def pack(event: Event[Placed], ctx: Context) -> object:
        await ctx.append(Packed())
        if isinstance(answer, Exception):
            raise answer
        return answer

    async with shop.a2.testing() as world:
        await shop.o1.append(Placed())
        await world.settle()
        assert ["placed"] == await types_of(shop.o1)


async def test_a_snooze_is_no_failure() -> None:
    """The event is handled again after the delay, as a further attempt, with its budget untouched."""
    shop = Shop()
    pack = Script(*[Snooze("30s")] * 3, Packed())
    shop.orders.on(Placed, retry=Retry(max_failures=1, max_lost=1))(pack)
    async with shop.a2.testing() as world:
        await shop.o1.append(Placed())
        await world.advance("29s")
        assert [1] == pack.attempts
        await world.advance("61s")
        assert ([1, 2, 3, 4], ["placed", "packed"]) == (pack.attempts, await types_of(shop.o1))


async def test_a_cancelled_event_is_settled_with_its_reason() -> None:
    """Cancel settles the event for good, notes the reason in the log, and lets the lane go on."""
    shop = Shop()
    pack = Script(Cancel("sold \x00out\ud83d"))
    shop.orders.on(Placed)(pack)
    async with shop.a2.testing() as world:
        await shop.o1.append(Placed("a"), Placed("b"))
        await world.settle()
        cancelled, handled = await shop.o1.read()
        assert Ending(EndingKind.CANCELLED, "sold \ufffdout\ufffd") == cancelled.ending
        assert (None, ["a", "b"]) == (handled.ending, [event.payload.sku for event in pack.events])


async def test_a_failed_event_is_a_dead_letter_at_once() -> None:
    """Fail spends the whole budget, blocks the lane, and says why."""
    shop = Shop()
    pack = Script(Fail("no such \x00tea"))
    shop.orders.on(Placed)(pack)
    async with shop.a2.testing() as world:
        await world.advance("1h")
        await shop.o1.append(Placed("a"), Placed("b"))
        await world.advance("1d")
        [dead] = world.dead_letters
        assert ("orders", "o1", "placed", 1) == (dead.contract, dead.session, dead.event_type, dead.seq)
        assert ("Fail", "no such \ufffdtea", START + timedelta(hours=1)) == (dead.error, dead.message, dead.at)
        assert [1] == pack.attempts


@pytest.mark.parametrize("delay", ["soon", -timedelta(seconds=1), 30], ids=ascii)
def test_a_snooze_has_a_duration(delay: Any) -> None:
    """A delay that is none is refused where it is written."""
    with pytest.raises(InvalidTime):
        Snooze(delay)


@pytest.mark.parametrize(
    ("answer", "options"),
    [
        pytest.param(Snooze(timedelta(days=2_930_000)), {}, id="snooze"),
        pytest.param(None, {"timeout": timedelta(days=2_930_000)}, id="timeout"),
        pytest.param(ValueError(), {"retry": Retry(base=timedelta(days=2_930_000), jitter=0)}, id="retry"),
    ],
)
async def test_a_wait_beyond_the_calendar_breaks_nothing(
    answer: object, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """A wait past the year 9999 is refused where it is written, or is as long as time goes; it breaks no drain."""
    shop = Shop()
    try:
        shop.orders.on(Placed, **options)(Script(answer))
    except InvalidTime:
        return
    async with shop.a2.testing() as world:
        await shop.o1.append(Placed())
        await world.settle()
        assert [] == [record.message for record in caplog.records if "a bug" in record.message]
        assert [] == [dead for dead in world.dead_letters if dead.error == "OverflowError"]


# ── failures ─────────────────────────────────────────────────────────────────────────────


async def test_a_failure_is_tried_again_ever_later() -> None:
    """Each wait is twice the one before, up to the cap, until the budget is spent."""
    shop = Shop()
    pack = Script(*[ValueError(f"no {n}") for n in range(4)])
    times: list[float] = []

    @shop.orders.on(Placed, retry=Retry(max_failures=4, base="1s", cap="3s", jitter=0))
    async def noting(event: Event[Placed], ctx: Context) -> object:
        times.append((world.now - START).total_seconds())
        return await pack(event, ctx)

    async with shop.a2.testing() as world:
        await shop.o1.append(Placed())
        await world.advance("1d")
        [dead] = world.dead_letters
        assert [0, 1, 3, 6] == times
        assert ("ValueError", "no 3") == (dead.error, dead.message)


class Unspeakable(Exception):
    """An error whose text cannot be read."""

    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        pytest.param(ValueError("a\x00b"), ("ValueError", "a\ufffdb"), id="C2-nul"),
        pytest.param(ValueError("a\ud83d"), ("ValueError", "a\ufffd"), id="C3-half-a-character"),
        pytest.param(ValueError("é" * 10_000), ("ValueError", "é" * 2_000), id="endless"),
        pytest.param(ValueError(), ("ValueError", ""), id="wordless"),
        pytest.param(Unspeakable(), ("Unspeakable", "(its text could not be read: RuntimeError)"), id="unspeakable"),
        pytest.param(ExceptionGroup("of one", [ValueError("a")]), ("ValueError", "a"), id="G3-group-of-one"),
        pytest.param(
            ExceptionGroup("outer", [ExceptionGroup("inner", [ValueError("a")])]), ("ValueError", "a"), id="G3-nested"
        ),
        pytest.param(
            ExceptionGroup("both", [ValueError("a"), KeyError("b")]),
            ("ExceptionGroup", "both (2 sub-exceptions)"),
            id="G3-two",
        ),
    ],
)
@pytest.mark.parametrize("limit", [None, "1h"], ids=["no-timeout", "timeout"])
async def test_any_error_can_be_stored(error: Exception, expected: tuple[str, str], limit: str | None) -> None:
    """A dead letter names the error itself, in a text that every store can keep."""
    shop = Shop()
    shop.orders.on(Placed, retry=ONCE, timeout=limit)(Script(error))
    async with shop.a2.testing() as world:
        await shop.o1.append(Placed())
        await world.settle()
        [dead] = world.dead_letters
        assert expected == (dead.error, dead.message)


async def test_two_handlers_that_fail_together_fail_apart() -> None:
    """G3: errors of two lanes at one moment are two failures, each its own, and the drain goes on."""
    shop = Shop()
    both = threading.Barrier(2, timeout=PATIENCE_S)
    read = shop.orders.event("read", dict, lane=lambda reading: str(reading["sensor"]))

    @shop.orders.on(read, retry=ONCE)
    def fail(event: Event[dict[str, str]]) -> None:
        both.wait()
        raise ValueError(event.payload["sensor"])

    async with shop.a2.testing() as world:
        await shop.o1.append(read({"sensor": "a"}), read({"sensor": "b"}))
        await world.settle()
        assert [("ValueError", "a"), ("ValueError", "b")] == [(dead.error, dead.message) for dead in world.dead_letters]


class Abrupt(BaseException):
    """What is no Exception is nobody's failure."""


class Provider:
    """A scheduler that takes whatever it is sent."""

    async def send(self, task: Task, *, seq: int | None = None, now_ms: int | None = None) -> None:
        """As Scheduler.send."""


@pytest.mark.parametrize("scheduler", [None, Provider()], ids=["none", "provider"])
@pytest.mark.parametrize("limit", [None, "1h"], ids=["no-timeout", "timeout"])
async def test_what_is_no_exception_is_not_swallowed(scheduler: Provider | None, limit: str | None) -> None:
    """G3: it reaches the caller as itself, not in a group, is no failure, gives the claim back, and ends the drain."""
    shop = Shop(store=MemoryStore(), scheduler=scheduler)
    pack = Script(Abrupt())
    shop.orders.on(Placed, retry=Retry(max_failures=1, max_lost=1), timeout=limit)(pack)
    with pytest.raises(Abrupt):
        await shop.o1.append(Placed())
    assert [1] == pack.attempts
    assert DrainResult(DrainState.SETTLED) == await shop.o1.drain()
    assert ([1, 2], []) == (pack.attempts, await shop.a2.dead_letters())


# ── the context ──────────────────────────────────────────────────────────────────────────


async def test_a_context_knows_its_attempt(caplog: pytest.LogCaptureFixture) -> None:
    """Session, attempt, deadline, log and dependencies are there for a handler to read."""
    shop = Shop(dependencies="real")
    pack = Script(ValueError())
    shop.orders.on(Placed, retry=STEADY, timeout="5m")(pack)
    async with shop.a2.testing() as world:
        await shop.o1.append(Placed())
        await world.advance("1s")
    first, second = pack.contexts
    assert ("o1", 1, 2, "real") == (second.session, first.attempt, second.attempt, second.dependencies)
    assert (START + timedelta(minutes=5), START + timedelta(minutes=5, seconds=1)) == (first.deadline, second.deadline)
    with caplog.at_level(logging.INFO):
        second.log.info("packing %s", "tea")
    assert "[orders/o1 placed #1] packing tea" == caplog.messages[-1]


@pytest.mark.parametrize(
    ("options", "limit", "expected"),
    [
        pytest.param({}, None, None, id="none"),
        pytest.param({"deadline": lambda: None}, None, None, id="unknown"),
        pytest.param({"deadline": lambda: START + timedelta(hours=1)}, None, timedelta(hours=1), id="platform"),
        pytest.param({"deadline": lambda: START + timedelta(hours=1)}, "5m", timedelta(minutes=5), id="timeout-first"),
        pytest.param({"deadline": lambda: START + timedelta(hours=1)}, "2h", timedelta(hours=1), id="platform-first"),
    ],
)
async def test_a_deadline_is_the_first_end_that_is_known(
    options: dict[str, Any], limit: str | None, expected: timedelta | None
) -> None:
    """The handler's timeout or the platform's own end, whichever comes first; None where neither is known."""
    shop = Shop(**options)
    pack = Script()
    shop.orders.on(Placed, timeout=limit)(pack)
    async with shop.a2.testing() as world:
        await shop.o1.append(Placed())
        await world.settle()
    assert (None if expected is None else START + expected) == pack.contexts[0].deadline


async def test_a_test_may_hand_in_its_own_dependencies() -> None:
    """`a2.testing(dependencies=...)` replaces what A2 was given, in this world only."""
    shop = Shop(dependencies="real")
    pack = Script()
    shop.orders.on(Placed)(pack)
    async with shop.a2.testing(dependencies="fake"):
        await shop.o1.append(Placed(), wait=True)
    async with shop.a2.testing():
        await shop.o1.append(Placed(), wait=True)
    assert ["fake", "real"] == [ctx.dependencies for ctx in pack.contexts]


async def test_a_handler_s_delay_counts_from_its_event() -> None:
    """Every attempt means the same timer: its delay counts from the event's own time, whenever the attempt runs."""
    shop = Shop()
    due: list[datetime | None] = []
    errors = [ValueError("once"), ValueError("twice")]

    @shop.orders.on(Placed, retry=STEADY)
    async def pack(event: Event[Placed], ctx: Context) -> None:
        due.append((await ctx.schedule("expire", Noted("unpaid"), delay="15m")).due_at)
        if errors:
            raise errors.pop()

    async with shop.a2.testing() as world:
        await shop.o1.append(Placed())
        await world.advance(timedelta(minutes=15) - timedelta(milliseconds=1))
        assert ([START + timedelta(minutes=15)] * 3, ["placed"]) == (due, await types_of(shop.o1))
        await world.advance("1ms")
        assert ["placed", "noted"] == await types_of(shop.o1)


async def test_a_timer_outlives_the_attempt_that_asked_for_it() -> None:
    """A timer is accepted at once, also where its handler is given up."""
    shop = Shop()

    @shop.orders.on(Placed, retry=ONCE)
    async def pack(event: Event[Placed], ctx: Context) -> None:
        await ctx.schedule("expire", Noted("unpaid"), at=START + timedelta(minutes=1))
        raise ValueError

    async with shop.a2.testing() as world:
        await shop.o1.append(Placed())
        await world.advance("1m")
        assert ["placed", "noted"] == await types_of(shop.o1)


async def test_a_handler_may_cancel_a_timer() -> None:
    """`ctx.cancel` answers as `session.cancel`."""
    shop = Shop()
    answers: list[bool] = []

    @shop.orders.on(Packed)
    async def ship(event: Event[Packed], ctx: Context) -> None:
        answers.extend([await ctx.cancel("expire"), await ctx.cancel("gone")])

    async with shop.a2.testing() as world:
        await shop.o1.schedule("gone", Noted("gone"), delay="1s")
        await shop.o1.schedule("expire", Noted("unpaid"), delay="15m")
        await world.advance("1m")
        await shop.o1.append(Packed())
        await world.advance("1h")
        assert ([True, False], ["noted", "packed"]) == (answers, await types_of(shop.o1))


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda ctx: ctx.schedule("later", Noted()), id="no-time"),
        pytest.param(lambda ctx: ctx.schedule("later", 7, delay="1s"), id="unknown-event"),
        pytest.param(lambda ctx: ctx.schedule("", Noted(), delay="1s"), id="no-name"),
        pytest.param(lambda ctx: ctx.cancel(""), id="cancel-no-name"),
    ],
)
async def test_a_context_refuses_at_once(call: Callable[[Context], Any]) -> None:
    """What a context is asked wrongly is raised where it is asked, and can be caught there."""
    shop = Shop()
    caught: list[Exception] = []

    @shop.orders.on(Placed)
    async def pack(event: Event[Placed], ctx: Context) -> None:
        try:
            await call(ctx)
        except (InvalidTime, UnknownEvent, InvalidName) as error:
            caught.append(error)

    async with shop.a2.testing() as world:
        await shop.o1.append(Placed())
        await world.settle()
        assert (1, []) == (len(caught), world.dead_letters)


# ── plain functions ──────────────────────────────────────────────────────────────────────

tenant: ContextVar[str] = ContextVar("tenant")


async def test_a_plain_function_runs_on_a_thread() -> None:
    """It gets the event, and a context without `await`, on a thread that is not the loop's."""
    shop = Shop()
    seen: list[object] = []

    @shop.orders.on(Placed)
    def pack(event: Event[Placed], ctx: SyncContext) -> Noted:
        seen.extend([threading.get_ident(), type(ctx), ctx.session, ctx.attempt, ctx.dependencies])
        ctx.append(Packed("a"))
        receipt = ctx.schedule("expire", Noted("unpaid"), delay="15m")
        seen.extend([receipt.due_at, ctx.cancel("other")])
        return Noted("b")

    async with shop.a2.testing(dependencies="fake") as world:
        await shop.o1.append(Placed())
        await world.settle()
        assert [("placed", Placed()), ("packed", Packed("a")), ("noted", Noted("b"))] == await log_of(shop.o1)
        await world.advance("15m")
        assert ("noted", Noted("unpaid")) == (await log_of(shop.o1))[-1]
    ident, *rest = seen
    assert threading.get_ident() != ident
    assert [SyncContext, "o1", 1, "fake", START + timedelta(minutes=15), True] == rest


async def test_a_plain_function_may_call_async_code() -> None:
    """`ctx.run` calls it on the loop, and gives back what it returns or raises."""
    shop = Shop()
    o2 = shop.orders.session("o2")
    seen: list[object] = []

    async def refuse() -> None:
        raise KeyError("no")

    @shop.orders.on(Placed)
    def pack(event: Event[Placed], ctx: SyncContext) -> None:
        seen.append(ctx.run(o2.append, Noted("from a thread")).new)
        try:
            ctx.run(refuse)
        except KeyError as error:
            seen.append(error.args)

    async with shop.a2.testing() as world:
        await shop.o1.append(Placed())
        await world.settle()
        assert ([True, ("no",)], ["noted"]) == (seen, await types_of(o2))


async def test_a_plain_function_fails_as_any_handler() -> None:
    """What it raises, or is refused in its thread, is a failure with its own error."""
    shop = Shop()

    @shop.orders.on(Placed, retry=ONCE)
    def pack(event: Event[Placed], ctx: SyncContext) -> None:
        ctx.append(Packed())
        ctx.schedule("later", 7, delay="1s")

    async with shop.a2.testing() as world:
        await shop.o1.append(Placed())
        await world.settle()
        assert (["UnknownEvent"], ["placed"]) == ([dead.error for dead in world.dead_letters], await types_of(shop.o1))


async def test_a_plain_function_that_returns_a_coroutine_has_it_awaited() -> None:
    """A plain function in front of an async one works as the async one does."""
    shop = Shop()

    async def packed() -> Packed:
        return Packed("late")

    shop.orders.on(Placed)(lambda _: packed())
    async with shop.a2.testing() as world:
        await shop.o1.append(Placed())
        await world.settle()
        assert ["placed", "packed"] == await types_of(shop.o1)


# ── timeouts ─────────────────────────────────────────────────────────────────────────────


async def test_a_handler_is_ended_by_its_timeout() -> None:
    """It is cancelled, its clean-up runs, and the attempt is a failure that says so."""
    shop = Shop(store=MemoryStore(), scheduler=None)
    cleaned: list[int] = []

    @shop.orders.on(Placed, timeout="1ms", retry=ONCE)
    async def hang(event: Event[Placed], ctx: Context) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            cleaned.append(ctx.attempt)

    with anyio.fail_after(PATIENCE_S):
        await shop.o1.append(Placed())
    [dead] = await shop.a2.dead_letters()
    assert ([1], "TimeoutError", True) == (cleaned, dead.error, "timeout of 1 ms" in dead.message)


async def test_a_timeout_passes_on_the_world_s_clock() -> None:
    """In a test world an hour's timeout ends a handler after an hour of that world, as its deadline says."""
    shop = Shop()
    ends: list[str] = []

    @shop.orders.on(Placed, timeout="1h", retry=ONCE)
    async def sleep(event: Event[Placed], ctx: Context) -> None:
        await world.sleep("2h")
        ends.append("too late")

    async with shop.a2.testing() as world:
        await shop.o1.append(Placed())
        await world.advance("3h")
        assert ([], ["TimeoutError"]) == (ends, [dead.error for dead in world.dead_letters])
        assert [START + timedelta(hours=1)] == [dead.at for dead in world.dead_letters]


async def test_a_plain_function_that_outlasts_its_timeout_is_left_behind() -> None:
    """The attempt is a failure in time; what the thread returns later is nowhere."""
    shop = Shop(store=MemoryStore(), scheduler=None)
    let_go, done = threading.Event(), threading.Event()

    @shop.orders.on(Placed, timeout="1ms", retry=ONCE)
    def hang(event: Event[Placed], ctx: SyncContext) -> Packed:
        ctx.append(Noted("never"))
        let_go.wait(PATIENCE_S)
        done.set()
        return Packed()

    with anyio.fail_after(PATIENCE_S):
        await shop.o1.append(Placed())
    assert ["TimeoutError"] == [dead.error for dead in await shop.a2.dead_letters()]
    let_go.set()
    await until(done)
    await anyio.wait_all_tasks_blocked()
    assert DrainResult(DrainState.SETTLED) == await shop.o1.drain()
    assert ["placed"] == await types_of(shop.o1)


async def test_a_handler_in_time_is_not_ended() -> None:
    """A handler that ends on the last millisecond of its timeout has succeeded, and nothing of the timeout is left."""
    shop = Shop()

    @shop.orders.on(Placed, timeout="1h", retry=ONCE)
    async def sleep(event: Event[Placed], ctx: Context) -> Packed:
        await world.sleep(timedelta(hours=1) - timedelta(milliseconds=1))
        return Packed()

    async with shop.a2.testing() as world:
        await shop.o1.append(Placed())
        await world.advance("1d")
        assert ([], ["placed", "packed"]) == (world.dead_letters, await types_of(shop.o1))


# ── dead letters ─────────────────────────────────────────────────────────────────────────


async def test_a_dead_letter_blocks_its_own_lane_alone() -> None:
    """What follows it in its lane waits; other lanes go on."""
    shop = Shop()
    paid = shop.orders.event("paid", dict, lane="payments")
    pack, book = Script(Fail("no")), Script()
    shop.orders.on(Placed)(pack)
    shop.orders.on(paid)(book)
    async with shop.a2.testing() as world:
        await shop.o1.append(Placed("a"), paid({}), Placed("b"), paid({}))
        await world.advance("1d")
        assert (["a"], 2) == ([event.payload.sku for event in pack.events], len(book.events))


async def test_a_resolved_dead_letter_is_skipped() -> None:
    """Its event is settled with the reason, and the lane goes on."""
    shop = Shop()
    pack = Script(Fail("no"))
    shop.orders.on(Placed)(pack)
    async with shop.a2.testing() as world:
        await shop.o1.append(NewEvent(Placed("a"), id="a"), NewEvent(Placed("b"), id="b"))
        await world.settle()
        await shop.o1.resolve("a", "customer gave up")
        await world.settle()
        assert (["a", "b"], []) == ([event.payload.sku for event in pack.events], world.dead_letters)
        assert [Ending(EndingKind.SKIPPED, "customer gave up"), None] == [
            event.ending for event in await shop.o1.read()
        ]


async def test_a_redriven_dead_letter_has_fresh_budgets() -> None:
    """Its event is handled again, as many times as a new one, and its attempts go on counting."""
    shop = Shop()
    pack = Script(*[ValueError()] * 3)
    shop.orders.on(Placed, retry=Retry(max_failures=2))(pack)
    async with shop.a2.testing() as world:
        await shop.o1.append(Placed(), id="p1")
        await world.advance("1h")
        assert ([1, 2], 1) == (pack.attempts, len(world.dead_letters))
        await shop.o1.redrive("p1")
        await world.advance("1h")
        assert ([1, 2, 3, 4], []) == (pack.attempts, world.dead_letters)
        assert [None] == [event.ending for event in await shop.o1.read()]


@pytest.mark.parametrize("event_id", ["unknown", "settled", "waiting"])
async def test_only_a_dead_letter_can_be_mended(event_id: str) -> None:
    """An event that is unknown, settled or still being tried is refused by name, and nothing changes."""
    shop = Shop()
    shop.orders.on(Placed, retry=STEADY)(Script(ValueError()))
    async with shop.a2.testing() as world:
        await shop.o1.append(NewEvent(Noted(), id="settled"), NewEvent(Placed(), id="waiting"))
        await world.settle()
        before = await shop.o1.read()
        for mend in (shop.o1.redrive(event_id), shop.o1.resolve(event_id, "why not")):
            with pytest.raises(NoDeadLetter, match=f"event '{event_id}' is no dead letter") as refusal:
                await mend
            assert event_id == refusal.value.event_id
        assert before == await shop.o1.read()


@pytest.mark.parametrize("reason", ["sold\x00out", "sold\ud83d"], ids=["C2-nul", "C3-half-a-character"])
async def test_any_reason_can_be_stored(reason: str, tmp_path: Path) -> None:
    """C2, C3: an operator's reason is kept as a handler's is, on a real store too, and the event is skipped."""
    shop = Shop(store=SQLiteStore(tmp_path / "a2.db"), scheduler=None)
    shop.orders.on(Placed)(Script(Fail("no")))
    async with shop.a2:
        await shop.o1.append(Placed(), id="p1", wait=True)
        await shop.o1.resolve("p1", reason)
        [event] = await shop.o1.read()
        assert Ending(EndingKind.SKIPPED, reason.replace(reason[4], "\ufffd")) == event.ending
        assert [] == await shop.a2.dead_letters()


async def test_dead_letters_are_listed_by_contract() -> None:
    """An operator sees those of one contract or of all, up to a limit, by session and seq."""
    shop = Shop()
    returns = shop.a2.contract("returns")
    returns.event("placed")(Placed)
    for contract in (shop.orders, returns):
        contract.on(Placed)(lambda _: Fail("no"))
    async with shop.a2.testing() as world:
        for session in (returns.session("r1"), shop.orders.session("o2"), shop.o1):
            await session.append(Placed())
        await world.settle()
        assert world.dead_letters == await shop.a2.dead_letters()
        assert ["o1", "o2", "r1"] == [dead.session for dead in await shop.a2.dead_letters()]
        assert ["r1"] == [dead.session for dead in await shop.a2.dead_letters("returns")]
        assert ["o1"] == [dead.session for dead in await shop.a2.dead_letters(limit=1)]
        assert [] == await shop.a2.dead_letters("lost")


# ── one A2, one place ────────────────────────────────────────────────────────────────────


async def test_an_a2_is_in_one_world_at_a_time() -> None:
    """A second world inside the first is refused, and the first goes on."""
    shop = Shop()
    async with shop.a2.testing():
        with pytest.raises(ConfigurationError, match="this A2 runs already"):
            async with shop.a2.testing():
                pass
        await shop.o1.append(Noted())
        assert ["noted"] == await types_of(shop.o1)


async def test_a_world_is_new_each_time() -> None:
    """Nothing of an earlier world is in the next one."""
    shop = Shop()
    for _ in range(2):
        async with shop.a2.testing() as world:
            assert ([], START) == (await shop.o1.read(), world.now)
            await shop.o1.append(Noted())
            await world.advance("1d")


def test_what_a_user_holds_can_be_printed() -> None:
    """Sessions, contracts and the A2 itself show what they are."""
    shop = Shop(store=MemoryStore())
    scheduler = "EmbeddedScheduler(poll='250ms', concurrency=64)"
    shown = f"A2(contracts=['orders'], store=MemoryStore(0 sessions), scheduler={scheduler})"
    assert (shown, "Contract('orders')", "Session('orders', 'o1')") == (repr(shop.a2), repr(shop.orders), repr(shop.o1))
    assert ("o1", A2) == (shop.o1.id, type(shop.a2))


async def test_lanes_tell_what_a_session_is_at() -> None:
    """Each lane shows its first open event: running, waiting, dead; a settled session shows none."""
    a2 = A2()
    jobs = a2.contract("jobs")
    job = jobs.event("job", str, lane=lambda text: text)

    @jobs.on(job, retry=Retry(base="1m", jitter=0))
    async def run(event: Event[str]) -> object:
        if event.payload == "slow":
            await world.sleep("1h")
        if event.payload == "failing":
            raise ValueError(event.payload)
        return Fail(event.payload) if event.payload == "dead" else None

    async with a2.testing() as world:
        session = jobs.session("j1")
        await session.append(*(job(text, id=text) for text in ("done", "slow", "failing", "dead")))
        await world.settle()
        lanes = await session.lanes()
        assert [
            ("slow", LaneState.RUNNING, START + timedelta(seconds=30)),
            ("failing", LaneState.WAITING, START + timedelta(minutes=1)),
            ("dead", LaneState.DEAD, None),
        ] == [(lane.name, lane.state, lane.due_at) for lane in lanes]
        assert [("slow", "job", 2, 1), ("failing", "job", 3, 1), ("dead", "job", 4, 1)] == [
            (lane.event_id, lane.event_type, lane.seq, lane.attempt) for lane in lanes
        ]
        assert [] == await jobs.session("settled").lanes()


async def test_lanes_that_wait_for_a_server_are_due() -> None:
    """What was dispatched is due until someone runs it."""
    shop = Shop(store=MemoryStore())
    shop.orders.on(Placed)(Script())
    await shop.o1.dispatch(Placed())
    assert [(LaneState.DUE, 0)] == [(lane.state, lane.attempt) for lane in await shop.o1.lanes()]


async def test_dead_letters_are_read_in_pages() -> None:
    """A page goes on after the last dead letter of the one before."""
    shop = Shop()
    shop.orders.on(Placed, retry=Retry(max_failures=1))(Script(*(ValueError() for _ in range(3))))
    async with shop.a2.testing() as world:
        for name in ("o1", "o2", "o3"):
            await shop.orders.session(name).append(Placed())
            await world.settle()
        first = await shop.a2.dead_letters(limit=2)
        rest = await shop.a2.dead_letters(after=first[-1], limit=2)
        assert (["o1", "o2"], ["o3"]) == ([dead.session for dead in first], [dead.session for dead in rest])
