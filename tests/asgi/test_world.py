"""The test kit: time that moves in order, crashes and duplicates on demand, and an A2 that is left as it was."""

import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from a2asgi import (
    A2,
    ConfigurationError,
    Context,
    Contract,
    DrainState,
    Event,
    MemoryStore,
    Retry,
    Signal,
    SignalName,
    Snooze,
    SyncContext,
)
from a2asgi.testing import Crashed, World
from tests.asgi.worlds import STEADY, Provider, ScriptedStore, Shop, heads, rounds, scripted, within

START = datetime(2026, 1, 1, tzinfo=UTC)
EFFECTS = ["append", "claim", "settle", "fail", "schedule"]


async def done(_: Event[str]) -> None:
    """A handler that has nothing to do."""


async def boom(_: Event[str]) -> None:
    raise ValueError("boom")


# ── time ─────────────────────────────────────────────────────────────────────────────────


@within(5)
async def test_time_goes_through_all_that_falls_due_in_order() -> None:
    """Timers of several sessions, a retry, a snooze and a timer set on the way each run at their own time."""
    runs: list[tuple[float, str]] = []

    async def handle(event: Event[str], ctx: Context) -> object:
        runs.append(((world.now - START).total_seconds(), f"{ctx.session} {event.payload} {ctx.attempt}"))
        match event.payload, ctx.attempt:
            case "fails", 1:
                raise ValueError("boom")
            case "snoozes", 1:
                return Snooze("25s")
            case "sets", _:
                await ctx.schedule("next", shop.order("was set"), delay="15s")
            case _:
                pass
        return None

    shop = Shop(handle)
    async with shop.a2.testing() as world:
        assert START == world.now
        await shop.session("s").schedule("t", shop.order("late"), delay="1h")
        await shop.session("u").schedule("t", shop.order("early"), at=START + timedelta(seconds=10))
        await shop.session("t").schedule("t", shop.order("sets"), delay="20s")
        await shop.append("fails", session_id="v")
        await shop.append("snoozes", session_id="w")
        await world.advance("1d")
        assert START + timedelta(days=1) == world.now
    assert [
        (0, "v fails 1"),
        (0, "w snoozes 1"),
        (1, "v fails 2"),
        (10, "u early 1"),
        (20, "t sets 1"),
        (25, "w snoozes 2"),
        (35, "t was set 1"),
        (3_600, "s late 1"),
    ] == sorted(runs[:2]) + runs[2:]


@within(5)
async def test_many_small_steps_are_one_large_one() -> None:
    """However the time to a day is cut, the same runs happen at the same instants."""

    async def day(step: timedelta) -> list[tuple[str, datetime]]:
        runs: list[tuple[str, datetime]] = []

        async def handle(event: Event[str], ctx: Context) -> None:
            runs.append((event.payload, world.now))
            await world.sleep("7m")
            if ctx.attempt < 5:
                raise ValueError("boom")

        shop = Shop(handle, retry=Retry(base="10m", cap="3h"))
        async with shop.a2.testing() as world:
            await shop.append("a", "b")
            for _ in range(timedelta(days=1) // step):
                await world.advance(step)
        return sorted(runs)

    assert await day(timedelta(days=1)) == await day(timedelta(minutes=20)) == await day(timedelta(seconds=97))


@within(5)
async def test_settle_runs_what_is_due_and_moves_no_time() -> None:
    """What is due at this very instant runs, timers of zero delay included; a millisecond later is later."""
    runs: list[str] = []

    async def handle(event: Event[str]) -> None:
        runs.append(event.payload)

    shop = Shop(handle)
    async with shop.a2.testing() as world:
        await shop.append("a1")
        await shop.session().schedule("now", shop.order("a2"), delay="0s")
        await shop.session().schedule("later", shop.order("a3"), delay="1ms")
        await world.settle()
        assert ["a1", "a2"] == runs
        await world.advance("0s")
        assert ["a1", "a2"] == runs
        assert START == world.now
        await world.advance("1ms")
        assert ["a1", "a2", "a3"] == runs


@within(5)
async def test_three_days_and_ten_retries_take_no_time() -> None:
    """A timer of three days and an event that fails ten times before it is given up are over in a blink."""
    attempts: list[int] = []

    async def handle(event: Event[str], ctx: Context) -> None:
        if event.payload == "fails":
            attempts.append(ctx.attempt)
            raise ValueError("boom")

    shop = Shop(handle, retry=Retry())
    began = time.perf_counter()
    async with shop.a2.testing() as world:
        await shop.session().schedule("t", shop.order("after three days"), delay="3d")
        await shop.append("fails")
        await world.advance("3d")
        assert [*range(1, 11)] == attempts
        assert ["fails", "after three days"] == await shop.log()
        assert ["fails"] == [letter.event_id for letter in world.dead_letters]
    assert time.perf_counter() - began < 0.5


@within(5)
async def test_a_handler_that_waits_for_real_things_is_waited_for() -> None:
    """Threads and real time are no part of the world, but its clock stands still until they are through."""
    seen: list[tuple[str, datetime]] = []

    def plain(event: Event[str], ctx: SyncContext) -> None:
        time.sleep(0.02)
        ctx.run(anyio.sleep, 0.01)
        seen.append((event.payload, world.now))

    shop = Shop(plain)
    async with shop.a2.testing() as world:
        await shop.append("a1", "b1", "a2")
        await world.advance("1h")
    assert [("a1", START), ("a2", START), ("b1", START)] == sorted(seen)


@within(2)
async def test_a_handler_may_sleep_in_several_tasks_at_once() -> None:
    """Children of one handler that sleep side by side take as long as the longest, and time goes on."""
    wakes: list[tuple[str, timedelta]] = []

    async def sleep(duration: str) -> None:
        await world.sleep(duration)
        wakes.append((duration, world.now - START))

    async def handle(_: Event[str]) -> None:
        async with anyio.create_task_group() as tasks:
            for duration in ("3m", "1m", "2m"):
                tasks.start_soon(sleep, duration)

    shop = Shop(handle)
    async with shop.a2.testing() as world:
        await shop.append("a1")
        await world.advance("1h")
        assert [(f"{minutes}m", timedelta(minutes=minutes)) for minutes in (1, 2, 3)] == wakes
        assert () == heads(world.store)


@within(5)
async def test_a_test_may_sleep_on_the_worlds_clock_too() -> None:
    """A task of the test that sleeps wakes when the time is there, and holds up nothing meanwhile."""
    wakes: list[datetime] = []

    async def sleep() -> None:
        await world.sleep("10m")
        wakes.append(world.now)

    shop = Shop(done)
    async with shop.a2.testing() as world, anyio.create_task_group() as tasks:
        tasks.start_soon(sleep)
        await rounds()
        await world.advance("9m")
        assert [] == wakes
        await world.advance("1h")
        await rounds()
    assert 1 == len(wakes)
    assert START + timedelta(minutes=10) <= wakes[0]


# ── crashes ──────────────────────────────────────────────────────────────────────────────


class Scenario:
    """A small life of two sessions: lanes, a failure, produced events, timers; and a journal of what happened."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.faults: list[str] = []
        self.failed = False
        self.shop = Shop(self.handle)
        self.world, self.store = scripted(self.shop.a2)

    async def handle(self, event: Event[str], ctx: Context) -> object:
        """React to an order."""
        shop = self.shop
        self.runs.append(event.payload)
        self.check_order(event, await shop.session(ctx.session).read())
        match event.payload:
            case "a1":
                await ctx.append(shop.order("a3"))
                return [shop.note("a1 done")]
            case "a2" if not self.failed:
                self.failed = True
                raise ValueError("boom")
            case "b1":
                await ctx.schedule("t", shop.order("b2"), shop.order("a4"), delay="1m")
            case "c1":
                await world_sleep(self.world)
            case _:
                pass
        return None

    def check_order(self, event: Event[str], log: list[Event[str]]) -> None:
        """Whatever is before this event in its lane must be settled."""
        settled = set(self.store.settled())
        self.faults += [
            f"{event.payload} ran before {earlier.payload} was settled"
            for earlier in log[: event.seq - 1]
            if earlier.type == "order" and earlier.payload[0] == event.payload[0] and earlier.id not in settled
        ]

    async def live(self) -> None:
        """From the first append to an hour later; a caller whose process dies tries again."""
        shop = self.shop
        await insisting(lambda: shop.append("a1", "b1", "a2"))
        await self.world.advance("30s")
        await insisting(lambda: shop.session().schedule("c", shop.order("c1"), delay="5s"))
        await self.world.advance("1h")

    async def obeys_the_laws(self) -> None:
        """Each event is in the log once, was handled at least once and settled once, in its lane's order."""
        orders = ["a1", "a2", "a3", "a4", "b1", "b2", "c1"]
        log = await self.shop.session().read()
        assert sorted([*orders, "a1 done"]) == sorted(event.payload for event in log)
        assert set(orders) == set(self.runs)
        payloads = {event.id: event.payload for event in log}
        settled = [payloads[event_id] for event_id in self.store.settled()]
        assert orders == sorted(settled)
        assert {"a1", "a2", "a3", "a4"} == set(settled) & {"a1", "a2", "a3", "a4"}
        in_lane = [event.payload for event in log if event.payload in orders and event.payload[0] == "a"]
        assert in_lane == [payload for payload in settled if payload[0] == "a"]
        assert [] == self.faults
        assert [] == self.world.dead_letters
        assert () == heads(self.store)


async def world_sleep(world: World) -> None:
    """A handler that takes longer than a lease."""
    await world.sleep("2m")


async def insisting(call: Callable[[], Awaitable[object]]) -> None:
    """A caller that tries again in the process that follows the dead one."""
    for _ in range(5):
        try:
            await call()
        except Crashed:
            continue
        return
    raise AssertionError("five processes died in a row")


@within(30)
@pytest.mark.parametrize("then", [None, *EFFECTS])
@pytest.mark.parametrize("effect", EFFECTS)
async def test_b6_a_crash_after_each_effect_is_recovered_from(effect: str, then: str | None) -> None:
    """Killed after the first, second, … effect of a kind, and once more after the next of another: the laws hold."""
    crashes = 0
    while True:
        scenario = Scenario()
        seen: Counter[str] = Counter()
        crashed = crash_at(scenario, effect, crashes + 1, then, seen)
        async with scenario.world:
            await scenario.live()
            await scenario.obeys_the_laws()
        if not crashed:
            break
        crashes += 1
    assert {"append": 1, "claim": 5, "settle": 7, "fail": 1, "schedule": 2}[effect] <= crashes


def crash_at(scenario: Scenario, effect: str, number: int, then: str | None, seen: Counter[str]) -> list[str]:
    """Let the process die after the `number`-th effect of its kind; what is returned tells later that it did."""
    crashed: list[str] = []

    def before_step(step: str) -> None:
        seen[step] += 1
        if step == effect and seen[step] == number:
            crashed.append(step)
            scenario.world.crash_after(effect)
            if then is not None:
                scenario.world.crash_after(then)

    scenario.store.before_step = before_step
    return crashed


@within(5)
async def test_a_life_without_a_crash_runs_everything_once() -> None:
    """The scenario itself obeys the laws, with one run more than events: the one that failed."""
    scenario = Scenario()
    async with scenario.world:
        await scenario.live()
        await scenario.obeys_the_laws()
    assert ["a1", "a2", "a2", "a3", "a4", "b1", "b2", "c1"] == sorted(scenario.runs)


@within(5)
async def test_whoever_waited_for_the_effect_gets_crashed_and_what_was_written_stays() -> None:
    """An append and a schedule of a dying process raise, the events are there, and the next process takes them on."""
    runs: list[str] = []

    async def handle(event: Event[str]) -> None:
        runs.append(event.payload)

    shop = Shop(handle)
    async with shop.a2.testing() as world:
        world.crash_after("append")
        with pytest.raises(Crashed):
            await shop.append("a1")
        assert ["a1"] == await shop.log()
        world.crash_after("schedule")
        with pytest.raises(Crashed):
            await shop.session().schedule("t", shop.order("a2"), delay="10m")
        await world.advance("1h")
    assert ["a1", "a2"] == runs


@within(2)
@pytest.mark.parametrize("effect", ["claim", "settle", "fail"])
async def test_whoever_waits_for_the_work_of_a_dying_process_gets_crashed(effect: str) -> None:
    """`append(wait=True)` and `drain` belong to the process that runs them, and end with it."""

    async def handle(event: Event[str], ctx: Context) -> None:
        if effect == "fail" and ctx.attempt == 1:
            raise ValueError(event.payload)

    shop = Shop(handle)
    async with shop.a2.testing() as world:
        world.crash_after(effect)
        with pytest.raises(Crashed):
            await shop.append("a1", wait=True)
        await world.advance("1h")
        await shop.dispatch("b1")
        world.crash_after(effect)
        if effect != "fail":
            with pytest.raises(Crashed):
                await shop.session().drain()
            await world.advance("1h")
            assert () == heads(world.store)


@within(5)
async def test_a_crash_ends_every_handler_of_the_process_and_gives_nothing_back() -> None:
    """Siblings of the effect die too: their claims run out like any dead process's, a lease later."""
    runs: list[tuple[str, float]] = []
    ended: list[str] = []

    async def handle(event: Event[str]) -> None:
        runs.append((event.payload, (world.now - START).total_seconds()))
        if event.payload == "b1":
            await world.sleep("10s")
        else:
            await world.sleep("1s")
        ended.append(event.payload)

    signals: list[Signal] = []
    shop = Shop(handle, telemetry=signals.append)
    async with shop.a2.testing() as world:
        world.crash_after("settle")
        await shop.append("a1", "b1")
        await world.advance("1h")
    assert [("a1", 0), ("b1", 0), ("b1", 30)] == sorted(runs)
    assert ["a1", "b1"] == ended
    assert SignalName.RELEASED not in {signal.name for signal in signals}


@within(5)
async def test_a_thread_of_a_dead_process_reaches_nothing() -> None:
    """A plain handler outlives its process here as a thread only: what it schedules or returns is not written."""
    started, let_go, over = threading.Event(), threading.Event(), threading.Event()
    raised: list[str] = []

    def handle(event: Event[str], ctx: SyncContext) -> object:
        if event.payload != "a1" or ctx.attempt != 1:
            return shop.note(f"{event.payload} by {ctx.attempt}")
        started.set()
        let_go.wait(5)
        try:
            ctx.schedule("t", shop.note("by the dead"), delay="1s")
        except Crashed as error:
            raised.append(type(error).__name__)
        over.set()
        return shop.note("by the dead")

    shop = Shop(handle)
    async with shop.a2.testing() as world:
        await shop.append("a1")
        await to_thread.run_sync(started.wait, 5)
        world.crash_after("settle")
        await shop.append("b1")
        while len(await shop.log()) < 3:  # b1 runs on a thread too
            await rounds(1)
        await rounds()
        let_go.set()
        await to_thread.run_sync(over.wait, 5)
        await world.advance("1h")
        assert ["a1", "b1", "b1 by 1", "a1 by 2"] == await shop.log()
    assert ["Crashed"] == raised


@within(5)
async def test_an_effect_that_is_none_is_refused() -> None:
    """A misspelt effect would never crash anything: it is an error that lists the right ones."""
    async with Shop(done).a2.testing() as world:
        with pytest.raises(ValueError, match=r"expected one of \['append', 'claim', 'fail', 'schedule', 'settle'\]"):
            world.crash_after("commit")


# ── duplicates ───────────────────────────────────────────────────────────────────────────


@within(5)
@pytest.mark.parametrize("kind", ["dispatch", "timer", "retry", "recovery"])
async def test_a8_a_wake_up_that_is_delivered_twice_at_a_time_runs_each_event_once(kind: str) -> None:
    """Two deliveries of one wake-up share the work: nothing runs twice, in the log twice, or out of order."""
    runs: list[tuple[str, int]] = []

    async def handle(event: Event[str], ctx: Context) -> object:
        runs.append((event.payload, ctx.attempt))
        await rounds(3)
        return Snooze("10s") if kind == "retry" and ctx.attempt == 1 else None

    shop = Shop(handle)
    world, store = scripted(shop.a2)
    attempt = {"recovery": 2}.get(kind, 1)
    async with world:
        match kind:
            case "timer":
                batch = [shop.order(text) for text in ("a1", "a2", "b1")]
                await shop.session().schedule("t", *batch, delay="10s")
            case "recovery":
                world.crash_after("claim")
                await shop.append("a1", "a2", "b1")
                await world.settle()
            case "retry":
                await shop.append("a1", "a2", "b1")
                await world.settle()
            case _:
                await shop.dispatch("a1", "a2", "b1")
        world.duplicate_next_delivery()
        await world.advance("1h")
        assert ["a1", "a2", "b1"] == await shop.log()
    assert 3 == len(store.settled()) == len(set(store.settled()))
    if kind == "retry":
        assert [("a1", 1), ("a1", 2), ("a2", 1), ("a2", 2), ("b1", 1), ("b1", 2)] == sorted(runs)
    else:
        assert [("a1", attempt), ("a2", 1), ("b1", attempt)] == sorted(runs)


# ── what a test can look at ──────────────────────────────────────────────────────────────


@within(5)
async def test_dead_letters_are_told_by_contract_session_and_seq() -> None:
    """All of them, of every contract and session, each with its error and time."""

    async def handle(event: Event[str]) -> None:
        raise ValueError(event.payload)

    shop = Shop(handle, retry=Retry(max_failures=1))
    parcels = shop.a2.contract("parcels")
    parcel = parcels.event("parcel", str)
    parcels.on(parcel, retry=Retry(max_failures=1))(handle)
    async with shop.a2.testing() as world:
        await parcels.session("p").append(parcel("x", id="x"))
        await shop.append("b1", "a1", session_id="t")
        await world.advance("1m")
        await shop.append("a1", session_id="s")
        await world.advance("1m")
        letters = world.dead_letters
        assert letters == await shop.a2.dead_letters()
        await shop.session("s").resolve("a1", "known")
        assert 3 == len(world.dead_letters)
    assert [
        ("orders", "s", 1, "a1", START + timedelta(minutes=1)),
        ("orders", "t", 1, "b1", START),
        ("orders", "t", 2, "a1", START),
        ("parcels", "p", 1, "x", START),
    ] == [(letter.contract, letter.session, letter.seq, letter.message, letter.at) for letter in letters]


@within(5)
async def test_a_world_has_the_dependencies_that_the_test_gives_it() -> None:
    """Handlers get the test's fakes inside the world, and the app's own dependencies outside."""
    seen: list[object] = []

    async def handle(_: Event[str], ctx: Context) -> None:
        seen.append(ctx.dependencies)

    shop = Shop(handle, dependencies="real")
    async with shop.a2.testing(dependencies="fake") as world:
        await shop.append("a1")
        await world.settle()
    async with shop.a2.testing() as world:
        await shop.append("a1")
        await world.settle()
    await shop.append("a1")
    assert ["fake", "real", "real"] == seen


@within(5)
async def test_a_world_sends_nothing_to_a_provider() -> None:
    """An app behind a provider is tested without it: the world delivers retries and timers itself."""
    runs: list[str] = []

    async def handle(event: Event[str], ctx: Context) -> None:
        if event.payload == "a1" and ctx.attempt == 1:
            await ctx.schedule("t", shop.order("b1"), delay="1m")
            raise ValueError("boom")
        runs.append(event.payload)

    provider = Provider()
    shop = Shop(handle, scheduler=provider)
    async with shop.a2.testing() as world:
        await shop.append("a1")
        await shop.dispatch("c1")
        await world.advance("1h")
    assert ["a1", "b1", "c1"] == sorted(runs)
    assert [] == provider.sent


@within(5)
async def test_a_world_without_a_scheduler_wakes_nothing() -> None:
    """With `scheduler=None` time alone runs nothing there either: only an append or a drain does."""
    runs: list[str] = []

    async def handle(event: Event[str]) -> None:
        runs.append(event.payload)

    shop = Shop(handle, scheduler=None)
    async with shop.a2.testing() as world:
        await shop.session().schedule("t", shop.order("b1"), delay="1m")
        await shop.append("a1")
        await world.advance("1d")
        assert ["a1"] == runs
        assert DrainState.SETTLED == (await shop.session().drain()).state
        assert ["a1", "b1"] == runs


# ── in and out ───────────────────────────────────────────────────────────────────────────


@within(5)
async def test_g2_a_world_inside_a_world_is_refused_and_the_outer_one_goes_on() -> None:
    """One A2 is in one world or server at a time; the refusal breaks nothing."""
    runs: list[str] = []

    async def handle(event: Event[str]) -> None:
        runs.append(event.payload)

    shop = Shop(handle)
    async with shop.a2.testing() as world:
        with pytest.raises(ConfigurationError, match="runs already"):
            async with shop.a2.testing():
                pass
        with pytest.raises(ConfigurationError, match="runs already"):
            async with shop.a2:
                pass
        await shop.append("a1")
        await world.settle()
    async with shop.a2.testing() as world:
        await shop.append("a2")
        await world.settle()
    assert ["a1", "a2"] == runs


@within(5)
async def test_a_world_that_is_not_entered_says_what_to_write() -> None:
    """Using it without `async with` is a mistake that is named."""
    world = Shop(done).a2.testing()
    with pytest.raises(RuntimeError, match=r"async with a2\.testing\(\) as world"):
        await world.settle()


@within(5)
@pytest.mark.parametrize("way_out", ["end", "error", "cancellation"])
async def test_a_world_leaves_the_a2_as_it_was(way_out: str) -> None:
    """Its sessions are its own, before and after it the app's store is used, and each world begins anew."""
    runs: list[tuple[str, str]] = []

    async def handle(event: Event[str], ctx: Context) -> None:
        runs.append((ctx.dependencies, event.payload))

    async def world_of_its_own(scope: anyio.CancelScope) -> None:
        async with shop.a2.testing(dependencies="world") as world:
            assert START == world.now
            assert [] == await shop.log()
            await shop.append("a1", "a2")
            await world.advance("1d")
            await shop.append("never", session_id="t")
            if way_out == "error":
                raise ValueError("boom")
            if way_out == "cancellation":
                scope.cancel()
                await anyio.sleep_forever()

    store = MemoryStore()
    shop = Shop(handle, store=store, dependencies="app")
    await shop.append("a1")
    for _ in range(2):
        with anyio.CancelScope() as scope:
            if way_out == "error":
                with pytest.raises(ValueError, match="boom"):
                    await world_of_its_own(scope)
            else:
                await world_of_its_own(scope)
    await shop.append("a3")
    async with shop.a2:
        await shop.append("a4", wait=True)
    assert ["a1", "a3", "a4"] == await shop.log()
    assert [("app", text) for text in ("a1", "a3", "a4")] == [run for run in runs if run[0] == "app"]
    assert 2 == runs.count(("world", "a2"))


@within(5)
async def test_a_world_ends_with_handlers_still_asleep() -> None:
    """A test may leave in the middle of a handler: it is cancelled, and nothing of it reaches the app's store."""
    ends: list[str] = []

    async def handle(event: Event[str]) -> None:
        try:
            await world.sleep("1h")
        finally:
            ends.append(event.payload)

    store = ScriptedStore()
    shop = Shop(handle, store=store)
    async with shop.a2.testing() as world:
        await shop.append("a1", "b1")
        await world.advance("1m")
        assert [] == ends
    assert ["a1", "b1"] == sorted(ends)
    assert 0 == store.calls.total()


# ── the fixture ──────────────────────────────────────────────────────────────────────────

fixture_runs: list[tuple[str, str]] = []


@pytest.fixture
def a2() -> A2:
    """What the plugin's `a2_world` makes a world of."""

    async def handle(event: Event[str], ctx: Context) -> None:
        fixture_runs.append((ctx.session, event.payload))
        if ctx.attempt == 1:
            raise ValueError("boom")

    shop = Shop(handle, retry=STEADY)
    return shop.a2


@within(5)
async def test_the_fixture_gives_a_world_of_the_modules_own_a2(a2: A2, a2_world: World) -> None:
    """`a2_world` is entered before the test and left after it, on either loop."""
    fixture_runs.clear()
    orders = a2._contracts["orders"]  # noqa: SLF001 - the shop that the fixture made is out of reach
    assert isinstance(orders, Contract)
    session = orders.session("s")
    order = next(iter(orders._types.values()))  # noqa: SLF001 - see above
    await session.append(order("a1"))
    await a2_world.advance("1h")
    assert [("s", "a1"), ("s", "a1")] == fixture_runs
    assert START + timedelta(hours=1) == a2_world.now


USERS_TEST = """
import anyio
import pytest
from a2asgi import A2
from a2asgi.testing import World

app = A2()
orders = app.contract("orders")
placed = orders.event("placed", str)
expired = orders.event("expired", str)

@orders.on(placed)
async def expire(event, ctx):
    await ctx.schedule("expire", expired(event.payload), delay="15m")

@pytest.fixture
def a2():
    return app

@pytest.mark.anyio
async def test_an_order_expires(a2_world: World):
    await orders.session("o1").append(placed("tea"))
    await a2_world.advance("15m")
    assert ["placed", "expired"] == [event.type for event in await orders.session("o1").read()]

@pytest.mark.anyio
async def test_each_test_has_its_own_world(a2_world: World):
    assert [] == await orders.session("o1").read()

@pytest.mark.anyio
async def test_a_failure_is_reported_as_itself(a2_world: World):
    await orders.session("o1").append(placed("tea"))
    raise ValueError("this very error")
"""


@within(30)
@pytest.mark.parametrize("mode", ["auto", "strict"])
async def test_the_plugin_works_in_a_project_of_its_own(tmp_path: Path, mode: str, anyio_backend_name: str) -> None:
    """A user's tests pass, fail with their own errors, and never share a world, with warnings as errors."""
    (tmp_path / "test_users.py").write_text(USERS_TEST)
    only = ["-k", anyio_backend_name]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-W",
        "error",
        "-o",
        f"anyio_mode={mode}",
        *only,
        "-p",
        "no:cacheprovider",
    ]
    ran = await anyio.run_process(command, cwd=tmp_path, check=False)
    output = ran.stdout.decode()
    assert "1 failed, 2 passed" in output, output
    assert "ValueError: this very error" in output
    assert "ExceptionGroup" not in output
    assert not (tmp_path / ".a2").exists()
