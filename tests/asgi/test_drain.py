"""A drain: lanes in order and side by side, retries, parking, outcomes, outages, and appends from within."""

import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest

from a2asgi import (
    Cancel,
    Context,
    DrainResult,
    DrainState,
    Event,
    Fail,
    MemoryStore,
    Receipt,
    Retry,
    SessionKey,
    Signal,
    SignalName,
    Snooze,
    SQLiteStore,
    StoreUnavailable,
)
from a2asgi.clock import SystemClock
from a2asgi.ports import Answer, Decide
from a2asgi.testing import ManualClock
from a2core import Ending, EndingKind, Needs, Task
from tests.asgi.worlds import Gate, Provider, ScriptedStore, Shop, Tally, heads, leave, rounds, scripted, steal, within


async def done(_: Event[str]) -> None:
    """A handler that has nothing to do."""


async def boom(_: Event[str]) -> None:
    raise ValueError("boom")


# ── lanes ────────────────────────────────────────────────────────────────────────────────


@within(5)
async def test_a_lane_is_handled_in_order_while_lanes_run_side_by_side() -> None:
    """Two lanes meet half-way, which only concurrent ones can, and each keeps its order."""
    steps: list[str] = []
    met = {"a": anyio.Event(), "b": anyio.Event()}

    async def handle(event: Event[str]) -> None:
        steps.append(f"{event.payload} starts")
        lane, other = ("a", "b") if event.payload.startswith("a") else ("b", "a")
        met[lane].set()
        await met[other].wait()
        await rounds(3)
        steps.append(f"{event.payload} ends")

    shop = Shop(handle, scheduler=None)
    await shop.append("a1", "b1", "a2", "b2", "a3")
    assert ["a1 starts", "a1 ends", "a2 starts", "a2 ends", "a3 starts", "a3 ends"] == [s for s in steps if s[0] == "a"]
    assert ["b1 starts", "b1 ends", "b2 starts", "b2 ends"] == [s for s in steps if s[0] == "b"]


@within(5)
async def test_no_more_lanes_run_at_a_time_than_the_concurrency() -> None:
    """Six lanes of a second each take three seconds two by two, and none starts early or late."""
    running = 0
    most = 0
    starts: list[tuple[str, datetime]] = []

    async def handle(event: Event[str]) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        starts.append((event.payload, world.now))
        await world.sleep("1s")
        running -= 1

    shop = Shop(handle, concurrency=2)
    async with shop.a2.testing() as world:
        start = world.now
        await shop.append("a", "b", "c", "d", "e", "f")
        await world.advance("1m")
    after = [(text, (at - start).total_seconds()) for text, at in sorted(starts)]
    assert [("a", 0), ("b", 0), ("c", 1), ("d", 1), ("e", 2), ("f", 2)] == after
    assert 2 == most


@within(5)
async def test_a_free_place_is_taken_at_once() -> None:
    """Where one of two places frees up, the next lane starts there; it does not wait for the other place."""
    starts: list[str] = []
    slow = anyio.Event()

    async def handle(event: Event[str]) -> None:
        starts.append(event.payload)
        if event.payload == "a":
            await slow.wait()
        if event.payload == "d":
            slow.set()

    shop = Shop(handle, concurrency=2, scheduler=None)
    await shop.append("a", "b", "c", "d")
    assert ["a", "b", "c", "d"] == sorted(starts)


@within(5)
async def test_an_event_waits_until_the_retries_of_the_one_before_it_are_over() -> None:
    """Lane order holds through failures: a2 does not run before a1 has succeeded, b1 does not wait for either."""
    runs: list[tuple[str, float]] = []

    async def handle(event: Event[str], ctx: Context) -> None:
        runs.append((event.payload, (world.now - start).total_seconds()))
        if event.payload == "a1" and ctx.attempt < 3:
            raise ValueError("not yet")

    shop = Shop(handle)
    async with shop.a2.testing() as world:
        start = world.now
        await shop.append("a1", "a2", "b1")
        await world.advance("1m")
    assert [("a1", 0), ("a1", 1), ("a1", 3), ("a2", 3), ("b1", 0)] == sorted(runs)


@within(5)
async def test_b9_a_poison_event_does_not_stop_other_lanes() -> None:
    """A dead letter blocks its own lane and no other, now and for what is appended later."""
    runs: list[str] = []

    async def handle(event: Event[str]) -> None:
        runs.append(event.payload)
        if event.payload == "a1":
            raise ValueError("poison")

    shop = Shop(handle, retry=Retry(max_failures=1))
    async with shop.a2.testing() as world:
        await shop.append("a1", "a2", "b1")
        await world.advance("1d")
        await shop.append("a3", "b2", "c1")
        await world.advance("1d")
        assert ["a1", "b1", "b2", "c1"] == sorted(runs)
        assert ["a1"] == [letter.event_id for letter in world.dead_letters]


@within(5)
async def test_what_is_appended_while_a_drain_runs_is_handled_by_it() -> None:
    """An append beside a running drain of the same session needs no drain of its own, in its lane or another."""
    runs: list[str] = []
    first = anyio.Event()

    async def handle(event: Event[str]) -> None:
        runs.append(event.payload)
        if event.payload == "a1":
            await first.wait()

    shop = Shop(handle, scheduler=None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(shop.append, "a1")
        await rounds()
        tasks.start_soon(shop.append, "b1")
        tasks.start_soon(shop.append, "a2")
        await rounds()
        assert ["a1", "b1"] == runs
        first.set()
    assert ["a1", "b1", "a2"] == runs


# ── retries and dead letters ─────────────────────────────────────────────────────────────


@within(5)
async def test_failures_wait_ever_longer_then_make_a_dead_letter() -> None:
    """Four failures wait 1, 2 and 4 s; the dead letter tells the last error and when, and nothing runs again."""
    runs: list[float] = []

    async def handle(event: Event[str]) -> None:
        runs.append((world.now - start).total_seconds())
        raise ValueError(f"boom {len(runs)}")

    shop = Shop(handle, retry=Retry(max_failures=4, jitter=0))
    async with shop.a2.testing() as world:
        start = world.now
        await shop.append("a1")
        await world.advance("30d")
        [letter] = world.dead_letters
    assert [0, 1, 3, 7] == runs
    assert ("orders", "s", "a1", "order", 1) == (
        letter.contract,
        letter.session,
        letter.event_id,
        letter.event_type,
        letter.seq,
    )
    assert ("ValueError", "boom 4", start + timedelta(seconds=7)) == (letter.error, letter.message, letter.at)


@within(5)
async def test_waits_are_capped_and_spread_by_the_jitter() -> None:
    """With ±20 % no wait leaves its band, the cap holds, and not all events wait equally long."""
    runs: dict[str, list[float]] = {}

    async def handle(event: Event[str]) -> None:
        runs.setdefault(event.payload, []).append((world.now - start).total_seconds())
        raise ValueError("boom")

    shop = Shop(handle, retry=Retry(max_failures=6, base="10s", cap="40s"))
    async with shop.a2.testing() as world:
        start = world.now
        await shop.append(*"abcdefgh")
        await world.advance("1d")
    waits = [tuple(b - a for a, b in pairwise(times)) for times in runs.values()]
    for wait in waits:
        for expected, actual in zip((10, 20, 40, 40, 40), wait, strict=True):
            assert expected * 0.8 <= actual <= expected * 1.2
    assert 8 == len(set(waits))


@within(5)
@pytest.mark.parametrize("max_lost", [1, 3])
async def test_b9_an_event_that_kills_its_process_is_a_dead_letter_once_its_claims_are_lost(max_lost: int) -> None:
    """Attempts are counted when they are claimed: the claim past the budget buries the event without running it."""
    signals: list[Signal] = []
    shop = Shop(done, retry=Retry(max_lost=max_lost), telemetry=signals.append)
    world, store = scripted(shop.a2)
    async with world:
        for _ in range(max_lost):
            world.crash_after("claim")
        await shop.append("a1", "b1")
        await world.advance("1h")
        assert [("a1", "Lost"), ("b1", "Lost")] == [(letter.event_id, letter.error) for letter in world.dead_letters]
        assert max_lost == Counter(item.entry.id for item in store.claimed)["a1"]
        assert [] == store.settled()
    assert [("a1", SignalName.DEAD_LETTER), ("b1", SignalName.DEAD_LETTER)] == sorted(
        (signal.event_id, signal.name) for signal in signals
    )


@within(5)
async def test_b9_lost_attempts_and_failures_spend_budgets_of_their_own() -> None:
    """One lost claim and one failure are within budgets of two each, in either order."""
    runs: list[int] = []

    async def handle(event: Event[str], ctx: Context) -> None:
        runs.append(ctx.attempt)
        if len(runs) == 1:
            raise ValueError("boom")

    shop = Shop(handle, retry=Retry(max_failures=2, max_lost=2))
    async with shop.a2.testing() as world:
        world.crash_after("claim")
        await shop.append("a1")
        await world.advance("1h")
        assert [2, 3] == runs
        assert [] == world.dead_letters


@within(5)
async def test_b9_a_lost_lane_head_does_not_keep_the_lane_from_its_budget() -> None:
    """What follows a buried event waits for an operator, and runs in order once it is resolved."""
    runs: list[str] = []

    async def handle(event: Event[str]) -> None:
        runs.append(event.payload)

    shop = Shop(handle, retry=Retry(max_lost=1))
    async with shop.a2.testing() as world:
        world.crash_after("claim")
        await shop.append("a1", "a2", "a3")
        await world.advance("1h")
        assert [] == runs
        await shop.session().resolve("a1", "poison")
        await world.settle()
        assert ["a2", "a3"] == runs
        assert Ending(EndingKind.SKIPPED, "poison") == (await shop.session().read())[0].ending


@within(5)
async def test_b9_a_redriven_event_has_both_budgets_again() -> None:
    """After a redrive an event may be lost and fail as often as at first."""
    shop = Shop(boom, retry=Retry(max_lost=2, max_failures=2))
    world, store = scripted(shop.a2)
    async with world:
        for _ in range(2):
            world.crash_after("claim")
        await shop.append("a1")
        await world.advance("1h")
        assert ["Lost"] == [letter.error for letter in world.dead_letters]
        await shop.session().redrive("a1")
        await world.advance("1h")
        assert ["ValueError"] == [letter.error for letter in world.dead_letters]
    assert [1, 2, 3, 4] == [item.attempt for item in store.claimed]


# ── versions ─────────────────────────────────────────────────────────────────────────────


class NextShop(Shop):
    """The next version of the shop: it also ships."""

    def __init__(self, handle: Callable[..., object] = done, **settings: Any) -> None:
        super().__init__(handle, **settings)
        self.shipment = self.orders.event("shipment", str, lane=lambda text: text[0])
        self.shipped: list[str] = []
        self.orders.on(self.shipment)(self.ship)

    async def ship(self, event: Event[str]) -> None:
        """Handle a shipment."""
        self.shipped.append(event.payload)


@within(5)
async def test_b11_an_event_of_a_newer_version_is_parked_and_runs_there() -> None:
    """The old version neither settles, fails nor spins on it: an hour costs a look every five minutes."""
    signals: list[Signal] = []
    old = Shop(done, telemetry=signals.append)
    world, store = scripted(old.a2)
    new = NextShop(store=store)
    async with world:
        await new.session().dispatch(new.shipment("a1"))
        before = store.calls.total() - store.calls["wakes"]
        await world.advance("1h")
        looks = store.calls.total() - store.calls["wakes"] - before
        assert 12 <= looks <= 14
        [item] = heads(store)
        assert (0, 0, None, None) == (item.failures, item.lost, item.claim, item.dead)
        assert {SignalName.PARKED} == {signal.name for signal in signals}
        assert "shipment" in signals[0].detail
        assert DrainResult(DrainState.SETTLED) == await new.session().drain()
        assert ["a1"] == new.shipped
        before = store.calls.total() - store.calls["wakes"]
        await world.advance("1d")
        assert 1 >= store.calls.total() - store.calls["wakes"] - before


@within(5)
async def test_b11_the_old_version_alone_reports_a_retry_five_minutes_away() -> None:
    """A drain that finds nothing but parked work is stalled, so that a wake-up stays on its way."""
    old = Shop(done)
    world, store = scripted(old.a2)
    new = NextShop(store=store)
    async with world:
        await new.session().dispatch(new.shipment("a1"))
        five_minutes = world.clock.now_ms() + 300_000
        assert DrainResult(DrainState.STALLED, five_minutes) == await old.session().drain()


@within(5)
async def test_b11_a_parked_event_holds_up_its_lane_and_no_other() -> None:
    """Order in the lane is kept across versions: a2 waits behind the unknown a1 until the new version ran it."""
    runs: list[str] = []

    async def handle(event: Event[str]) -> None:
        runs.append(event.payload)

    old = Shop(handle)
    world, store = scripted(old.a2)
    new = NextShop(handle, store=store)
    async with world:
        await new.session().dispatch(new.shipment("a1"), new.order("a2"), new.order("b1"))
        await world.advance("1h")
        assert ["b1"] == runs
        await new.session().drain()
        assert ["b1", "a2"] == runs
        assert ["a1"] == new.shipped


@within(5)
async def test_b11_a_timer_of_a_newer_version_is_not_lost_on_an_old_one() -> None:
    """The old version puts the timer's event into the log at its time, and leaves it for the new one."""
    old = Shop(done)
    world, store = scripted(old.a2)
    new = NextShop(store=store)
    async with world:
        await new.session().schedule("ship", new.shipment("a1"), delay="10m")
        await world.advance("1h")
        assert ["a1"] == await old.log()
        assert [] == new.shipped
        await new.session().drain()
        assert ["a1"] == new.shipped


@within(5)
async def test_b11_an_old_version_that_declares_the_type_without_a_handler_settles_only_what_it_appends() -> None:
    """What a newer version left pending stays pending, though here such an event needs no handling."""
    old = Shop(done)
    old.orders.event("shipment", str)
    world, store = scripted(old.a2)
    new = NextShop(store=store)
    async with world:
        await new.session().dispatch(new.shipment("a1"))
        await world.advance("1h")
        await new.session().drain()
        assert ["a1"] == new.shipped


@within(5)
async def test_b12_a_timer_of_three_days_runs_on_the_code_of_that_day() -> None:
    """Nothing is pinned to a code version: what was armed before a deployment runs on what is deployed then."""
    runs: list[str] = []

    async def on_old(event: Event[str]) -> None:
        runs.append(f"old {event.payload}")

    async def on_new(event: Event[str]) -> None:
        runs.append(f"new {event.payload}")

    store = MemoryStore(clock=(clock := ManualClock(0)))
    old = Shop(on_old, store=store)
    await old.session().schedule("expire", old.order("a1"), delay="3d")
    clock.move_to(3 * 86_400_000)
    new = Shop(on_new, store=store)
    await new.session().drain()
    assert ["new a1"] == runs


@within(5)
async def test_b12_a_retry_runs_on_new_code_and_keeps_its_count() -> None:
    """A deployment between two attempts changes the handler, not what was spent of the budget."""
    attempts: list[int] = []

    async def repaired(event: Event[str], ctx: Context) -> None:
        attempts.append(ctx.attempt)
        raise ValueError("not quite")

    store = ScriptedStore(clock=(clock := ManualClock(0)))
    await Shop(boom, store=store, retry=Retry(max_failures=3, jitter=0)).append("a1")
    clock.move_to(1_000)
    new = Shop(repaired, store=store, retry=Retry(max_failures=2, jitter=0))
    assert DrainResult(DrainState.SETTLED) == await new.session().drain()
    assert [2] == attempts
    assert ["ValueError"] == [letter.error for letter in await new.a2.dead_letters()]


# ── outcomes ─────────────────────────────────────────────────────────────────────────────


@within(5)
async def test_a_snooze_is_no_failure() -> None:
    """Twenty snoozes of a minute spend neither budget, keep the lane's order and run at their times."""
    runs: list[tuple[str, float]] = []

    async def handle(event: Event[str], ctx: Context) -> Snooze | None:
        runs.append((event.payload, (world.now - start).total_seconds()))
        return Snooze("1m") if event.payload == "a1" and ctx.attempt <= 20 else None

    shop = Shop(handle, retry=Retry(max_failures=1, max_lost=1))
    world, store = scripted(shop.a2)
    async with world:
        start = world.now
        await shop.append("a1", "a2")
        await world.advance("10m")
        [item] = heads(store)
        assert ("a1", 0, 0) == (item.entry.id, item.failures, item.lost)
        await world.advance("1h")
        assert [] == world.dead_letters
    assert [*(("a1", minute * 60) for minute in range(21)), ("a2", 1_200)] == runs


@within(5)
async def test_a_snoozed_attempt_appends_nothing() -> None:
    """What a handler appended before it answered Snooze waits for the attempt that succeeds."""

    async def handle(event: Event[str], ctx: Context) -> Snooze | None:
        await ctx.append(shop.note(f"attempt {ctx.attempt}"))
        return Snooze("1m") if ctx.attempt == 1 else None

    shop = Shop(handle)
    async with shop.a2.testing() as world:
        await shop.append("a1")
        await world.advance("30s")
        assert ["a1"] == await shop.log()
        await world.advance("30s")
        assert ["a1", "attempt 2"] == await shop.log()


@within(5)
async def test_cancel_settles_with_a_reason_and_the_lane_goes_on() -> None:
    """A handler that calls its event off leaves no dead letter and no retry, and the log says why."""
    runs: list[str] = []

    async def handle(event: Event[str]) -> Cancel | None:
        runs.append(event.payload)
        return Cancel("sold out") if event.payload == "a1" else None

    signals: list[Signal] = []
    shop = Shop(handle, telemetry=signals.append)
    async with shop.a2.testing() as world:
        await shop.append("a1", "a2")
        await world.advance("1d")
        assert ["a1", "a2"] == runs
        assert [] == world.dead_letters
        assert [Ending(EndingKind.CANCELLED, "sold out"), None] == [e.ending for e in await shop.session().read()]
    assert [(SignalName.CANCELLED, "a1"), (SignalName.SETTLED, "a2")] == [(s.name, s.event_id) for s in signals]


@within(5)
async def test_fail_makes_a_dead_letter_at_once() -> None:
    """A handler that says trying again cannot help is believed: one run, whatever the budget, and nothing appended."""
    runs: list[str] = []

    async def handle(event: Event[str], ctx: Context) -> Fail:
        runs.append(event.payload)
        await ctx.append(shop.note("never"))
        return Fail("no such customer")

    shop = Shop(handle)
    async with shop.a2.testing() as world:
        await shop.append("a1", "a2")
        await world.advance("1d")
        assert ["a1"] == runs
        assert ["a1", "a2"] == await shop.log()
        [letter] = world.dead_letters
        assert ("Fail", "no such customer") == (letter.error, letter.message)


@within(5)
async def test_each_ending_is_told_to_telemetry_once() -> None:
    """An operator can count how attempts end, and a hook that raises disturbs none of them."""
    seen: list[tuple[SignalName, str, str]] = []

    def hook(signal: Signal) -> None:
        seen.append((signal.name, signal.session, signal.event_id))
        raise RuntimeError("the hook is broken")

    async def handle(event: Event[str], ctx: Context) -> object:
        match event.payload, ctx.attempt:
            case "b", 1:
                raise ValueError("boom")
            case "c", 1:
                return Snooze("1s")
            case "d", _:
                return Cancel("no")
            case "e", _:
                return Fail("no")
            case _:
                return None

    shop = Shop(handle, telemetry=hook)
    async with shop.a2.testing() as world:
        await shop.append("a", "b", "c", "d", "e")
        await world.advance("1m")
    assert [
        (SignalName.CANCELLED, "s", "d"),
        (SignalName.DEAD_LETTER, "s", "e"),
        (SignalName.RETRYING, "s", "b"),
        (SignalName.SETTLED, "s", "a"),
        (SignalName.SETTLED, "s", "b"),
        (SignalName.SETTLED, "s", "c"),
        (SignalName.SNOOZED, "s", "c"),
    ] == sorted(seen)


# ── events from handlers ─────────────────────────────────────────────────────────────────


@within(5)
async def test_events_that_handlers_produce_ride_the_same_drain() -> None:
    """With no scheduler at all a chain of five is through when the first append returns, each caused by the last."""

    async def handle(event: Event[str], ctx: Context) -> object:
        letter, number = event.payload[0], int(event.payload[1:])
        if number == 5:
            return None
        following = shop.order(f"{letter}{number + 1}")
        if number % 2:
            return following
        await ctx.append(following)
        return [shop.note("even")]

    shop = Shop(handle, scheduler=None)
    await shop.append("a1")
    log = await shop.session().read()
    assert ["a1", "a2", "a3", "even", "a4", "a5", "even"] == [event.payload for event in log]
    ids = {event.payload: event.id for event in log}
    causes = {event.payload: event.cause for event in log if event.type == "order"}
    assert {"a1": None, "a2": ids["a1"], "a3": ids["a2"], "a4": ids["a3"], "a5": ids["a4"]} == causes
    assert () == heads(shop.store)


@within(5)
async def test_b8_what_a_failed_attempt_appended_is_rolled_back_with_it() -> None:
    """Append, then raise: the log gets the event once, from the attempt that succeeds."""

    async def handle(event: Event[str], ctx: Context) -> None:
        if event.payload != "a1":
            return
        await ctx.append(shop.order("a2"), shop.note(f"attempt {ctx.attempt}"))
        if ctx.attempt < 3:
            raise ValueError("boom")

    shop = Shop(handle)
    async with shop.a2.testing() as world:
        await shop.append("a1")
        await world.advance("2s")
        assert ["a1"] == await shop.log()
        await world.advance("1d")
        assert ["a1", "a2", "attempt 3"] == await shop.log()


@within(5)
@pytest.mark.parametrize("when", ["at a second ago", "at now", "delay of zero", "delay that is over"])
async def test_b8_a_past_due_timer_of_a_handler_is_due_now(when: str) -> None:
    """A timer whose time is past enters the log at once, and once, though the handler that set it fails twice."""

    async def handle(event: Event[str], ctx: Context) -> None:
        if event.payload != "a1":
            runs.append((event.payload, world.now))
            return
        match when:
            case "at a second ago":
                await ctx.schedule("t", shop.order("b1"), at=start - timedelta(seconds=1))
            case "at now":
                await ctx.schedule("t", shop.order("b1"), at=start)
            case "delay of zero":
                await ctx.schedule("t", shop.order("b1"), delay="0s")
            case _:
                await world.sleep("2m")
                await ctx.schedule("t", shop.order("b1"), delay="1m")
        if ctx.attempt < 3:
            raise ValueError("boom")

    runs: list[tuple[str, datetime]] = []
    shop = Shop(handle)
    async with shop.a2.testing() as world:
        start = world.now
        await shop.append("a1")
        await world.advance("1d")
        due = start + timedelta(minutes=2 if when == "delay that is over" else 0)
        assert [("b1", due)] == runs
        assert ["a1", "b1"] == await shop.log()


@within(5)
async def test_b8_a_timer_that_its_own_event_sets_again_is_neither_lost_nor_early() -> None:
    """An alarm that sets the next one, fails once each time, and sets it again, rings every minute, once."""
    rings: list[tuple[str, float]] = []

    async def handle(event: Event[str], ctx: Context) -> None:
        number = int(event.payload[1:])
        if number < 5:
            await ctx.schedule(f"alarm {number + 1}", shop.order(f"a{number + 1}"), delay="1m")
        if ctx.attempt == 1:
            raise ValueError("boom")
        rings.append((event.payload, (world.now - start).total_seconds()))

    shop = Shop(handle)
    async with shop.a2.testing() as world:
        start = world.now
        await shop.append("a1")
        await world.advance("1h")
    assert [(f"a{n + 1}", n * 60 + 1) for n in range(5)] == rings


# ── appends from within never wait for themselves ────────────────────────────────────────

Inside = Callable[[Shop, str], Awaitable[object]]


async def append_own(shop: Shop, session_id: str) -> None:
    await shop.append("b1", session_id=session_id)


async def append_own_lane(shop: Shop, session_id: str) -> None:
    await shop.append("a2", session_id=session_id)


async def append_own_and_wait(shop: Shop, session_id: str) -> None:
    await shop.append("a2", "b1", session_id=session_id, wait=True)


async def append_to_other(shop: Shop, session_id: str) -> None:
    await shop.append(f"to-{session_id}", session_id="t" if session_id == "s" else "s")


async def append_to_other_and_wait(shop: Shop, session_id: str) -> None:
    await shop.append(f"to-{session_id}", session_id="t" if session_id == "s" else "s", wait=True)


async def drain_own(shop: Shop, session_id: str) -> None:
    await shop.session(session_id).drain()


async def drain_other(shop: Shop, session_id: str) -> None:
    await shop.session("t" if session_id == "s" else "s").drain()


async def redrive_own(shop: Shop, session_id: str) -> None:
    await shop.session(session_id).schedule("t", shop.order("b1"), delay="0s")


INSIDES: list[Inside] = [
    append_own,
    append_own_lane,
    append_own_and_wait,
    append_to_other,
    append_to_other_and_wait,
    drain_own,
    drain_other,
    redrive_own,
]


@within(5)
@pytest.mark.parametrize("inside", INSIDES)
@pytest.mark.parametrize("mode", ["inline", "server"])
@pytest.mark.parametrize("concurrency", [1, 16])
async def test_a_handler_may_append_and_drain_anywhere(inside: Inside, mode: str, concurrency: int) -> None:
    """Two sessions whose handlers append to themselves and to each other, or drain, all end, with all handled."""
    ended = Tally()

    async def handle(event: Event[str], ctx: Context) -> None:
        if event.payload == "a1":
            await inside(shop, ctx.session)
        ended.add(f"{ctx.session} {event.payload}")

    shop = Shop(handle, concurrency=concurrency)

    async def both() -> None:
        async with anyio.create_task_group() as tasks:
            for session_id in ("s", "t"):
                tasks.start_soon(partial(shop.append, "a1", session_id=session_id, wait=True))
        for session_id in ("s", "t"):
            assert DrainState.SETTLED == (await shop.session(session_id).drain()).state
            logged = [f"{session_id} {text}" for text in await shop.log(session_id)]
            assert sorted(logged) == sorted(text for text in ended.seen if text.startswith(session_id))

    if mode == "server":
        async with shop.a2:
            await both()
    else:
        await both()


@within(5)
@pytest.mark.parametrize("mode", ["inline", "server"])
async def test_a_ring_of_sessions_that_wait_for_each_other_comes_round(mode: str) -> None:
    """S appends to t, t to u, and u to s, each with wait=True: nobody waits for whoever waits for him."""
    ended = Tally()
    ring = {"s": "t", "t": "u", "u": "s"}

    async def handle(event: Event[str], ctx: Context) -> None:
        number = int(event.payload[1:])
        if number < 7:
            await shop.append(f"a{number + 1}", session_id=ring[ctx.session], wait=True)
        ended.add(event.payload)

    shop = Shop(handle)
    if mode == "server":
        async with shop.a2:
            await shop.append("a1", wait=True)
            await ended.until(7)
    else:
        await shop.append("a1")
    assert [f"a{number}" for number in range(1, 8)] == sorted(ended.seen)


@within(5)
async def test_a_handler_that_appends_to_a_session_beyond_its_concurrency_is_not_held_up() -> None:
    """With one place and a lane that waits for it, an append from inside still returns."""
    ended: list[str] = []

    async def handle(event: Event[str]) -> None:
        if event.payload == "a1":
            await shop.append("b1", "c1", "d1", wait=True)
        ended.append(event.payload)

    shop = Shop(handle, concurrency=1, scheduler=None)
    await shop.append("a1", "a2")
    assert ["a1", "a2", "b1", "c1", "d1"] == sorted(ended)


# ── results ──────────────────────────────────────────────────────────────────────────────


@within(5)
async def test_a_drain_tells_how_it_left_the_session() -> None:
    """Settled with nothing to do, or with only dead letters or timers left; stalled with a retry; busy with others."""
    clock = ManualClock(1_000)
    store = MemoryStore(clock=clock)

    async def handle(event: Event[str]) -> object:
        return Snooze("1m") if event.payload == "a1" else Fail("no")

    shop = Shop(handle, store=store, scheduler=None)
    session = shop.session()
    assert DrainResult(DrainState.SETTLED) == await session.drain()
    await session.schedule("later", shop.order("c1"), delay="1d")
    assert DrainResult(DrainState.SETTLED) == await session.drain()
    await shop.append("b1")
    assert DrainResult(DrainState.SETTLED) == await session.drain()
    await shop.append("a1")
    assert DrainResult(DrainState.STALLED, 61_000) == await session.drain()
    clock.move_to(61_000)
    steal(store, later_ms=0)
    assert DrainResult(DrainState.BUSY) == await session.drain()


@within(5)
async def test_a_busy_session_is_left_to_whoever_holds_it() -> None:
    """A second A2 on the same store neither waits for the first one's handler nor runs it again."""
    store = MemoryStore(clock=ManualClock(0))
    runs: list[str] = []
    hold = anyio.Event()

    async def slow(event: Event[str]) -> None:
        runs.append(f"one {event.payload}")
        await hold.wait()

    async def quick(event: Event[str]) -> None:
        runs.append(f"two {event.payload}")

    one, two = Shop(slow, store=store, scheduler=None), Shop(quick, store=store, scheduler=None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.append, "a1")
        await rounds()
        await two.append("a2", "b1")
        assert ["one a1", "two b1"] == runs
        assert DrainState.BUSY == (await two.session().drain()).state
        hold.set()
    assert ["one a1", "two b1", "one a2"] == runs


@within(5)
async def test_wait_true_waits_for_another_process_too() -> None:
    """`wait=True` returns once the session is settled, also where the work before it is another A2's."""
    store = MemoryStore()
    hold = anyio.Event()
    runs: list[str] = []

    async def slow(event: Event[str]) -> None:
        await hold.wait()
        runs.append(event.payload)

    one, two = Shop(slow, store=store), Shop(slow, store=store)
    async with one.a2, two.a2, anyio.create_task_group() as tasks:
        await one.append("a1")
        await rounds()
        waiting = anyio.Event()

        async def wait() -> None:
            await two.append("a2", wait=True)
            runs.append("returned")
            waiting.set()

        tasks.start_soon(wait)
        await rounds()
        assert [] == runs
        hold.set()
        await waiting.wait()
    assert ["a1", "a2", "returned"] == runs


@within(5)
async def test_wait_true_does_not_wait_for_a_retry() -> None:
    """Where the work waits for a later instant, `wait=True` returns: the session is stalled."""
    shop = Shop(boom, store=MemoryStore(clock=ManualClock(0)))
    async with shop.a2:
        await shop.append("a1", wait=True)
        [item] = heads(shop.store)
        assert (1, 1_000) == (item.failures, item.ready_at_ms)


@within(5)
async def test_a8_drains_that_meet_are_one() -> None:
    """Ten drains of one session at a time claim and run each event once, and all hear the same result."""
    runs: list[str] = []

    async def handle(event: Event[str]) -> None:
        runs.append(event.payload)
        await rounds(10)

    store = ScriptedStore()
    shop = Shop(handle, store=store)
    await shop.dispatch("a1", "a2", "b1")
    results: list[DrainResult] = []

    async def drain() -> None:
        results.append(await shop.session().drain())

    async with anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(drain)
    assert ["a1", "a2", "b1"] == sorted(runs)
    assert [DrainResult(DrainState.SETTLED)] * 10 == results
    assert 3 == len(store.claimed)


@within(5)
async def test_an_inline_append_whose_leader_is_cancelled_is_still_handled() -> None:
    """Two callers share one inline drain; where the one that runs it is cancelled, the other one's event runs on."""
    runs: list[str] = []
    scope = anyio.CancelScope()

    async def handle(event: Event[str]) -> None:
        runs.append(event.payload)
        if event.payload == "a1" and len(runs) == 1:
            await anyio.sleep_forever()

    shop = Shop(handle, scheduler=None)

    async def lead() -> None:
        with scope:
            await shop.append("a1")

    async def follow() -> None:
        await shop.append("b1", "a2")
        runs.append("returned")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lead)
        await rounds()
        tasks.start_soon(follow)
        await rounds()
        scope.cancel()
    assert "returned" == runs[-1]
    assert ["a1", "a1", "a2", "b1"] == sorted(runs[:-1])


# ── a store that is away ─────────────────────────────────────────────────────────────────


@within(5)
@pytest.mark.parametrize("step", ["claim", "settle", "fail"])
async def test_b6_an_outage_loses_nothing_and_lets_siblings_end(step: str) -> None:
    """Whatever the store cannot write once, the other lane's handler ends undisturbed, and all is handled later."""
    ended: list[str] = []

    async def handle(event: Event[str], ctx: Context) -> object:
        if event.payload == "b1":
            await world.sleep("10s")
        if event.payload == "a1" and ctx.attempt == 1 and step == "fail":
            raise ValueError("boom")
        ended.append(event.payload)
        return shop.note(f"{event.payload} done")

    shop = Shop(handle)
    world, store = scripted(shop.a2)
    async with world:
        store.fail_next(step)
        await shop.append("a1", "b1", "a2")
        await world.advance("10s")
        assert (["b1"] if step != "claim" else []) == [text for text in store.settled() if text == "b1"]
        await world.advance("10m")
        assert ["a1", "a2", "b1"] == sorted(store.settled())
        assert ["a1", "a2"] == [text for text in store.settled() if text.startswith("a")]
        assert ["a1 done", "a2 done", "b1 done"] == sorted((await shop.log())[3:])
        assert [] == world.dead_letters
        assert {"a1", "a2", "b1"} == set(ended)


@within(5)
async def test_b6_a_long_outage_is_waited_out() -> None:
    """A store that is away for an hour, with work claimed, running and waiting, has lost nothing in the end."""
    runs: list[str] = []

    async def handle(event: Event[str]) -> None:
        runs.append(event.payload)
        if event.payload[1] == "1":
            await world.sleep("10s")

    shop = Shop(handle)
    world, store = scripted(shop.a2)
    async with world:
        await shop.append("a1", "a2", "b1", "b2")
        await world.advance("5s")
        store.down |= {"claim", "look", "settle", "fail", "release", "renew"}
        await world.advance("1h")
        assert [] == store.settled()
        store.down.clear()
        await world.advance("2m")
        assert ["a1", "a2", "b1", "b2"] == sorted(store.settled())
        assert [] == world.dead_letters


@within(5)
async def test_b6_an_append_during_an_outage_writes_nothing_and_can_be_repeated() -> None:
    """The caller is told, and the same append a little later is the first one."""
    shop = Shop(done)
    world, store = scripted(shop.a2)
    async with world:
        store.fail_next("append")
        with pytest.raises(StoreUnavailable, match="not at this append"):
            await shop.append("a1")
        assert [] == await shop.log()
        receipt: Receipt = await shop.append("a1")
        assert receipt.new
        await world.settle()
        assert ["a1"] == store.settled()


@within(5)
async def test_b6_two_recoverers_of_250_sessions_with_an_outage_half_way_run_each_once() -> None:
    """Recovery is an ordinary claim: what a dead holder left is handled once each, however often it is interrupted."""
    clock = ManualClock(0)
    store = ScriptedStore(clock=clock)
    sessions = [f"s{number}" for number in range(250)]
    runs: list[str] = []

    async def handle(_: Event[str], ctx: Context) -> None:
        runs.append(ctx.session)
        await rounds(2)

    dead = Shop(done, store=store)
    for session_id in sessions:
        await dead.dispatch("a1", session_id=session_id)
        steal(store, SessionKey("orders", session_id), later_ms=0)
    clock.move_to(30_000)
    shops = [Shop(handle, store=store, scheduler=None) for _ in range(2)]

    async def recover(shop: Shop) -> None:
        for session_id in sessions:
            if session_id == "s120" and faults:
                store.fail_next("claim", faults.pop())
                store.fail_next("settle", faults.pop())
            with suppress(StoreUnavailable):
                await shop.session(session_id).drain()

    faults = [5, 10]
    for _ in range(3):
        async with anyio.create_task_group() as tasks:
            for shop in shops:
                tasks.start_soon(recover, shop)
        clock.move_to(clock.now_ms() + 30_000)
    assert 250 == len(store.settled())
    assert 255 == len(runs)  # five answers could not be written, so those sessions ran again
    assert set(sessions) == set(runs)
    assert [] == await shops[0].a2.dead_letters()


@within(5)
async def test_a_look_that_is_answered_late_is_not_a_drains_last_word() -> None:
    """It saw the session busy with the drain's own handler, whose end was written and heard of before the answer."""
    handler = Gate()
    shop = Shop(lambda _: handler.wait(), store=(store := ScriptedStore()), scheduler=None)
    leave(shop, "a1")
    results: list[DrainResult] = []

    async def drain() -> None:
        results.append(await shop.session().drain())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(drain)
        await handler.reached.wait()
        answer = store.stop_after("look")
        tasks.start_soon(drain)
        await answer.reached.wait()
        handler.open()
        await rounds()
        assert ["a1"] == store.settled()
        answer.open()
    assert [DrainResult(DrainState.SETTLED)] * 2 == results


@within(5)
@pytest.mark.parametrize("step", ["claim", "settle"])
async def test_f1_a_file_that_another_connection_locks_loses_nothing(tmp_path: Path, step: str) -> None:
    """For real: SQLite locked at a claim or a settle for longer than it is waited for, and all is handled later."""
    path = tmp_path / "a2.db"
    other = sqlite3.connect(path, isolation_level=None)
    clock = ManualClock(0)
    runs: list[str] = []

    async def handle(event: Event[str]) -> object:
        runs.append(event.payload)
        if step == "settle" and len(runs) == 2:
            other.execute("BEGIN IMMEDIATE")
        await both.wait() if len(runs) == 1 else both.set()
        return shop.note(f"{event.payload} done")

    both = anyio.Event()
    shop = Shop(handle, store=SQLiteStore(path, busy_timeout="30ms", clock=clock))
    await shop.dispatch("a1", "b1", "a2")
    if step == "claim":
        other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="locked by another connection"):
        await shop.session().drain()
    assert (step == "settle") == bool(runs)
    other.execute("ROLLBACK")
    other.close()
    clock.move_to(30_000)
    assert DrainResult(DrainState.SETTLED) == await shop.session().drain()
    assert ["a1 done", "a2 done", "b1 done"] == sorted((await shop.log())[3:])
    assert [] == await shop.a2.dead_letters()
    await shop.store.close()


# ── time ─────────────────────────────────────────────────────────────────────────────────


@within(5)
async def test_a10_the_stores_clock_alone_judges_a_lease() -> None:
    """A process whose own clock is 3 minutes away from the store's neither steals a lease of 30 s nor loses one."""
    clock = ManualClock(1_700_000_000_000)
    store = MemoryStore(clock=clock)
    runs: list[str] = []
    hold = anyio.Event()

    async def slow(event: Event[str]) -> None:
        runs.append(event.payload)
        await hold.wait()

    one, two = Shop(slow, store=store, scheduler=None), Shop(slow, store=store, scheduler=None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.append, "a1")
        await rounds()
        [item] = heads(store)
        assert item.claim is not None
        assert 1_700_000_030_000 == item.claim.expires_at_ms
        clock.move_to(1_700_000_029_999)
        assert DrainState.BUSY == (await two.session().drain()).state
        hold.set()
    assert ["a1"] == runs


@within(5)
async def test_a_platform_deadline_caps_the_claim_window() -> None:
    """Where the platform ends the process in 10 s, the claim ends then, and another process recovers the event then."""
    runs: list[tuple[float, datetime | None]] = []

    async def handle(_: Event[str], ctx: Context) -> None:
        runs.append(((world.now - start).total_seconds(), ctx.deadline))

    ends: list[datetime] = []
    shop = Shop(handle, deadline=lambda: ends[-1])
    world, store = scripted(shop.a2)
    async with world:
        start = world.now
        ends.append(start + timedelta(seconds=10))
        world.crash_after("claim")
        await shop.append("a1")
        await world.settle()
        [item] = heads(store)
        assert item.claim is not None
        assert 10_000 == item.claim.expires_at_ms - world.clock.now_ms()
        ends.append(start + timedelta(hours=1))
        await world.advance("1m")
    assert [(10, start + timedelta(hours=1))] == runs


@within(5)
@pytest.mark.parametrize("offset_ms", [-180_000, 180_000], ids=["behind", "ahead"])
async def test_a10_a_platform_deadline_is_as_far_away_by_the_stores_clock(offset_ms: int) -> None:
    """Taken as it is for an instant of the store, the claim would be over at once, or not capped; renewed too."""
    gate = Gate()

    async def handle(_: Event[str]) -> None:
        await gate.wait()

    store = MemoryStore()
    store.offset_ms = offset_ms
    ends = datetime.now(UTC) + timedelta(seconds=10)
    shop = Shop(handle, store=store, scheduler=None, deadline=lambda: ends)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(shop.append, "a1")
        await gate.reached.wait()
        for _ in range(2):
            [item] = heads(store)
            assert item.claim is not None
            assert round(ends.timestamp() * 1_000) + offset_ms == pytest.approx(item.claim.expires_at_ms, abs=50)
            (await shop.a2.ready()).runtime.renewer.beat()
        gate.open()


@within(5)
async def test_after_the_platforms_deadline_nothing_is_claimed_and_nothing_spent() -> None:
    """A process that outlives its deadline says that work is left, and burns no budget with claims that are over."""
    runs: list[str] = []

    async def handle(event: Event[str]) -> None:
        runs.append(event.payload)

    store = ScriptedStore()
    shop = Shop(handle, store=store, deadline=lambda: datetime(2020, 1, 1, tzinfo=UTC))
    await shop.append("a1", "b1", "a2")
    assert DrainState.STALLED == (await shop.session().drain()).state
    assert [] == store.claimed
    assert [(0, 0), (0, 0)] == [(item.attempt, item.lost) for item in heads(store)]
    await Shop(handle, store=store).session().drain()
    assert ["a1", "a2", "b1"] == sorted(runs)


@within(5)
async def test_a_deadline_that_passes_on_the_way_to_the_store_claims_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that was frozen there claims for no time at all, and its attempt would count as lost."""
    clock = ManualClock(0)
    monkeypatch.setattr(SystemClock, "now_ms", lambda _: clock.now_ms())

    class Freezing(MemoryStore):
        async def transact(self, key: SessionKey, needs: Needs, decide: Decide[Answer]) -> Answer:
            if needs.heads:
                clock.move_to(20_000)
            return await super().transact(key, needs, decide)

    store = Freezing(clock=clock)
    shop = Shop(boom, store=store, scheduler=None, deadline=lambda: datetime(1970, 1, 1, 0, 0, 20, tzinfo=UTC))
    await shop.append("a1")
    [item] = heads(store)
    assert (0, None) == (item.attempt, item.claim)


@within(30)
async def test_behind_a_provider_a_retry_is_armed_while_another_lane_is_at_work() -> None:
    """Nobody else wakes the session for it: it must not wait for the handlers of other lanes, nor for the watchdog."""
    gate, armed = Gate(), anyio.Event()

    async def handle(event: Event[str]) -> None:
        if event.payload == "b1":
            await gate.wait()
        else:
            await gate.reached.wait()
            raise ValueError(event.payload)

    async def on_send(task: Task) -> None:
        if task.due_at_ms - SystemClock().now_ms() < 10_000:  # a watchdog is due after the claim window, 35 s
            armed.set()

    shop = Shop(handle, scheduler=Provider(on_send))
    async with shop.a2:
        await shop.append("a1", "b1")
        await armed.wait()
        gate.open()
