"""Scheduling: wake-ups that the store keeps and any process delivers, and a provider that carries them instead."""

from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path

import anyio
import pytest

from a2asgi import (
    A2,
    ConfigurationError,
    Context,
    DrainState,
    EmbeddedScheduler,
    Event,
    Fail,
    MemoryStore,
    SendFailed,
    SessionKey,
    Signal,
    SignalName,
    Snooze,
    SQLiteStore,
    Store,
    StoreBroken,
    StoreUnavailable,
    TimerNameTaken,
    Wakes,
)
from a2asgi.clock import SystemClock
from a2asgi.schedulers.embedded import Share, WakeLoop
from a2asgi.testing import ManualClock
from a2core import AppendTask, DrainTask, Task, TaskEvent, timer_event_id, timer_id
from tests.asgi.worlds import (
    KEY,
    NEVER,
    OFTEN,
    Provider,
    ScriptedStore,
    Shop,
    Tally,
    heads,
    leave,
    rounds,
    scripted,
    steal,
    within,
)

DAY_MS = 86_400_000
MakeStore = Callable[[ManualClock], Store]


def recording(tally: Tally) -> Callable[[Event[str], Context], Awaitable[None]]:
    """A handler that only says what it handled, and in which session."""

    async def handle(event: Event[str], ctx: Context) -> None:
        tally.add(f"{ctx.session} {event.payload}")

    return handle


async def done(_: Event[str]) -> None:
    """A handler that has nothing to do."""


async def boom(_: Event[str]) -> None:
    raise ValueError("boom")


@pytest.fixture(params=["memory", "sqlite"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> MakeStore:
    """A way for several processes to the same sessions, on a clock that the test moves."""
    memory: dict[ManualClock, Store] = {}

    def make(clock: ManualClock) -> Store:
        if request.param == "memory":
            return memory.setdefault(clock, MemoryStore(clock=clock))
        return SQLiteStore(tmp_path / "a2.db", synchronous="NORMAL", clock=clock)

    return make


# ── the embedded scheduler ───────────────────────────────────────────────────────────────


@within(5)
async def test_a9_wake_ups_missed_while_nothing_ran_are_delivered_at_the_next_start(make_store: MakeStore) -> None:
    """A timer, a retry, a crashed claim and a bare append that fell due in three days run without any request."""
    clock = ManualClock(0)
    first = Shop(boom, store=make_store(clock), scheduler=NEVER)
    async with first.a2:
        await first.session("timer").schedule("t", first.order("a1"), delay="1d")
        await first.append("a1", session_id="retry", wait=True)
        leave(first, "a1", session_id="append", wake_after_ms=35_000)
        leave(first, "a1", session_id="claim", wake_after_ms=35_000)
        steal(first.store, SessionKey("orders", "claim"), later_ms=0)
    clock.move_to(3 * DAY_MS)
    handled = Tally()
    second = Shop(recording(handled), store=make_store(clock), scheduler=NEVER)
    async with second.a2:
        await handled.until(4)
    assert ["append a1", "claim a1", "retry a1", "timer a1"] == sorted(handled.seen)


@within(10)
async def test_a8_two_processes_share_the_wake_ups_of_one_file_and_each_is_delivered_once(tmp_path: Path) -> None:
    """Forty due sessions, two A2 that take four at a time: both get some, none is handled twice."""
    handled = Tally()
    starts = {"one": anyio.Event(), "two": anyio.Event()}

    def process(name: str) -> Shop:
        async def handle(_: Event[str], ctx: Context) -> None:
            starts[name].set()
            for start in starts.values():
                await start.wait()
            handled.add(f"{name} {ctx.session}")

        scheduler = EmbeddedScheduler(poll="10ms", concurrency=4)
        return Shop(handle, store=SQLiteStore(tmp_path / "a2.db", synchronous="NORMAL"), scheduler=scheduler)

    one, two = process("one"), process("two")
    await one.store.open()
    for number in range(40):
        leave(one, "a1", session_id=f"s{number}")
    async with one.a2, two.a2:
        await handled.until(40)
        await rounds()
    assert sorted(f"s{number}" for number in range(40)) == sorted(text.split()[1] for text in handled.seen)
    assert {"one", "two"} == {text.split()[0] for text in handled.seen}


@within(5)
async def test_no_more_sessions_are_woken_at_a_time_than_the_schedulers_concurrency() -> None:
    """Seven due sessions, three at a time: as one ends, the next is taken, without waiting for a poll."""
    running = 0
    most = 0
    handled = Tally()

    async def handle(_: Event[str], ctx: Context) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await rounds(5)
        running -= 1
        handled.add(ctx.session)

    shop = Shop(handle, scheduler=EmbeddedScheduler(poll="1d", concurrency=3))
    for number in range(7):
        leave(shop, "a1", session_id=f"s{number}")
    async with shop.a2:
        await handled.until(7)
    assert 3 == most


@within(5)
async def test_a_session_with_many_lanes_does_not_take_up_the_schedulers_places() -> None:
    """However often a long drain leaves lanes for its next pass, a timer of another session rings meanwhile."""
    handled = Tally()
    rung = anyio.Event()

    async def handle(event: Event[str], ctx: Context) -> None:
        if ctx.session == "other":
            rung.set()
        elif event.payload == "h":
            await rung.wait()
        await rounds(20)
        handled.add(f"{ctx.session} {event.payload}")

    shop = Shop(handle, concurrency=1, scheduler=EmbeddedScheduler(poll="1d", concurrency=3))
    async with shop.a2:
        await shop.append(*"abcdefgh", session_id="long")
        await handled.until(5)
        await shop.session("other").schedule("t", shop.order("t1"), delay="1ms")
        with anyio.move_on_after(1):
            await rung.wait()
        in_time = rung.is_set()
        rung.set()
        assert in_time
        await handled.until(9)


# ── what it costs to be idle ─────────────────────────────────────────────────────────────


async def nothing_to_do(shop: Shop) -> None:
    await shop.append("a1", wait=True)


async def a_far_timer(shop: Shop) -> None:
    await shop.session().schedule("t", shop.order("a1"), delay="3d")


async def a_dead_letter(shop: Shop) -> None:
    await shop.append("dead", wait=True)


async def a_long_snooze(shop: Shop) -> None:
    await shop.append("snooze", wait=True)


async def a_running_handler(shop: Shop) -> None:
    await shop.append("long")


async def anothers_claim(shop: Shop) -> None:
    leave(shop, "a1")
    steal(shop.store, later_ms=0)
    await shop.session().drain()


async def anothers_contract(shop: Shop) -> None:
    elsewhere = A2(store=shop.store)
    parcels = elsewhere.contract("parcels")
    parcel = parcels.event("parcel", str)
    parcels.on(parcel)(done)
    await parcels.session("p").dispatch(parcel("p1"))


IDLE = [nothing_to_do, a_far_timer, a_dead_letter, a_long_snooze, a_running_handler, anothers_claim, anothers_contract]


@within(5)
@pytest.mark.parametrize("leave_behind", IDLE)
async def test_an_idle_process_does_not_look_again_and_again(leave_behind: Callable[[Shop], Awaitable[None]]) -> None:
    """Once what is to be done now is done, no store call is made until a poll or the next wake-up is due."""

    async def handle(event: Event[str]) -> object:
        match event.payload:
            case "dead":
                return Fail("no")
            case "snooze":
                return Snooze("1d")
            case "long":
                await anyio.sleep_forever()
            case _:
                pass
        return None

    store = ScriptedStore(clock=ManualClock(1_000))
    shop = Shop(handle, store=store, scheduler=NEVER, grace="0s")
    async with shop.a2:
        await leave_behind(shop)
        await rounds()
        before = Counter(store.calls)
        await rounds(1_000)
        assert before == store.calls


@within(5)
async def test_polls_come_no_faster_than_they_are_set() -> None:
    """A poll of 20 ms looks no more often than that, and each look of an idle process is one store call."""
    store = ScriptedStore()
    shop = Shop(done, store=store, scheduler=EmbeddedScheduler(poll="20ms"))
    began = anyio.current_time()
    async with shop.a2:
        looks = Tally()
        store.before_step = looks.add
        await looks.until(5)
        took = anyio.current_time() - began
    assert {"wakes"} == set(looks.seen)
    assert len(looks.seen) <= took / 0.02 + 2


# ── its own wake-ups ring at once ────────────────────────────────────────────────────────


async def a_timer(shop: Shop) -> None:
    await shop.session().schedule("t", shop.order("a1"), delay="20ms")


async def a_past_timer(shop: Shop) -> None:
    await shop.session().schedule("t", shop.order("a1"), at=datetime(2020, 1, 1, tzinfo=UTC))


async def a_dispatch(shop: Shop) -> None:
    await shop.dispatch("a1")


async def a_sooner_timer(shop: Shop) -> None:
    await shop.session("t").schedule("later", shop.note("never"), delay="1h")
    await shop.session().schedule("t", shop.order("a1"), delay="20ms")


async def a_retry(shop: Shop) -> None:
    await shop.append("a1", session_id="retry")


async def a_timer_of_a_handler(shop: Shop) -> None:
    await shop.append("a1", session_id="sets a timer")


RINGS = [a_timer, a_past_timer, a_dispatch, a_sooner_timer, a_retry, a_timer_of_a_handler]


@within(5)
@pytest.mark.parametrize("durable", [False, True], ids=["memory", "sqlite"])
@pytest.mark.parametrize("write", RINGS)
async def test_a_wake_up_that_the_process_wrote_itself_rings_in_time(
    write: Callable[[Shop], Awaitable[None]], tmp_path: Path, *, durable: bool
) -> None:
    """Without any poll, what this process schedules, dispatches or retries runs when it is due."""
    handled = Tally()

    async def handle(event: Event[str], ctx: Context) -> object:
        if ctx.session == "retry" and ctx.attempt == 1:
            return Snooze("20ms")
        if ctx.session == "sets a timer" and event.cause is None and event.id == "a1":
            await ctx.schedule("t", shop.order("b1"), delay="20ms")
            return None
        handled.add(event.payload)
        return None

    store: Store = SQLiteStore(tmp_path / "a2.db", synchronous="NORMAL") if durable else MemoryStore()
    shop = Shop(handle, store=store, scheduler=NEVER)
    async with shop.a2:
        await write(shop)
        await handled.until(1)
    assert handled.seen in (["a1"], ["b1"])


@within(5)
@pytest.mark.parametrize("late", [False, True], ids=["the-first-look", "a-later-look"])
async def test_a_wake_up_written_during_a_look_is_not_slept_over(*, late: bool) -> None:
    """A look that does not see what is written meanwhile is followed by one that does."""
    handled = Tally()
    store = ScriptedStore()
    shop = Shop(recording(handled), store=store, scheduler=NEVER)
    gate = store.stop_after("wakes")
    async with shop.a2:
        await gate.reached.wait()
        if late:
            gate.open()
            await rounds()
            gate = store.stop_after("wakes")
            await shop.dispatch("a1", session_id="earlier")
            await gate.reached.wait()
        await shop.session().schedule("t", shop.order("a1"), delay="20ms")
        await rounds()
        gate.open()
        await handled.until(2 if late else 1)
    assert "s a1" == handled.seen[-1]


@within(5)
async def test_a_wake_up_does_not_wait_for_as_long_again_as_it_took_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """A timer of an hour whose write took that hour rings at once: the hour is not counted from the answer on."""
    handled = Tally()
    store = ScriptedStore()
    shop = Shop(recording(handled), store=store, scheduler=NEVER)
    async with shop.a2, anyio.create_task_group() as tasks:
        gate = store.stop_after("schedule")
        tasks.start_soon(partial(shop.session().schedule, "t", shop.order("a1"), delay="1h"))
        await gate.reached.wait()
        right = SystemClock().now_ms
        monkeypatch.setattr(SystemClock, "now_ms", lambda _: right() + 3_600_000)
        gate.open()
        await handled.until(1)


class Skewed(SystemClock):
    """A clock that is off by so much."""

    def __init__(self, offset_ms: int) -> None:
        self._offset_ms = offset_ms

    def now_ms(self) -> int:
        """As Clock.now_ms."""
        return super().now_ms() + self._offset_ms


@within(2)
@pytest.mark.parametrize("offset_ms", [-180_000, 180_000], ids=["behind", "ahead"])
async def test_a10_a_timer_rings_by_the_stores_clock_however_far_the_process_is_off(offset_ms: int) -> None:
    """A database whose clock is three minutes away delays no timer by three minutes, and none is early."""
    handled: list[int] = []
    rung = anyio.Event()
    clock = Skewed(offset_ms)

    async def handle(event: Event[str]) -> None:
        handled.append(clock.now_ms())
        assert due_ms <= int(event.created_at.timestamp() * 1_000)
        rung.set()

    shop = Shop(handle, store=MemoryStore(clock=clock), scheduler=NEVER)
    async with shop.a2:
        await rounds()  # the first look is over
        due_ms = clock.now_ms() + 20
        await shop.session().schedule("t", shop.order("a1"), delay="20ms")
        await rung.wait()
    assert due_ms <= handled[0]


@within(5)
async def test_a_clock_that_is_set_back_puts_off_no_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of day goes back by two hours, as after a wrong start, and the next look comes when it would have."""
    handled = Tally()
    shop = Shop(recording(handled), store=MemoryStore(clock=ManualClock(0)), scheduler=OFTEN)
    async with shop.a2:
        await rounds()
        right = SystemClock().now_ms
        monkeypatch.setattr(SystemClock, "now_ms", lambda _: right() - 7_200_000)
        leave(shop, "a1")
        await handled.until(1)


# ── outages ──────────────────────────────────────────────────────────────────────────────


class Failing(ScriptedStore):
    """A store whose looks for wake-ups raise what is left in `errors`."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__()
        self.errors = list(errors)
        self.looks: list[float] = []

    async def claim_wakes(self, *args: object, **kwargs: object) -> Wakes:
        """As Store.claim_wakes."""
        self.looks.append(anyio.current_time())
        if self.errors:
            raise self.errors.pop(0)
        return await super().claim_wakes(*args, **kwargs)


@within(5)
async def test_a_store_outage_is_survived_by_the_loop() -> None:
    """It tries again, more slowly each time, whether the store is away or broken, and then delivers what is due."""
    handled = Tally()
    store = Failing(StoreUnavailable("away"), StoreBroken("broken"))
    shop = Shop(recording(handled), store=store, scheduler=NEVER)
    leave(shop, "a1")
    async with shop.a2:
        await handled.until(1)
    first, second = (after - before for before, after in pairwise(store.looks[:3]))
    assert 0.2 <= first <= second / 1.5


@within(5)
async def test_an_outage_of_a_drain_puts_the_session_off_and_no_other() -> None:
    """A woken session that cannot be claimed is looked at again when its lease ends; others go on meanwhile."""
    handled = Tally()
    clock = ManualClock(0)
    store = ScriptedStore(clock=clock)
    shop = Shop(recording(handled), store=store, scheduler=OFTEN)
    store.fail_next("claim")
    leave(shop, "a1", session_id="first")
    async with shop.a2:
        while not store.calls["claim"]:
            await rounds(1)
        leave(shop, "a1", session_id="second")
        await handled.until(1)
        assert ["second a1"] == handled.seen
        clock.move_to(35_000)
        await handled.until(2)
    assert ["second a1", "first a1"] == handled.seen


@within(5)
async def test_b7_a_process_that_dies_with_the_wake_up_in_its_hand_is_followed_by_another(
    make_store: MakeStore,
) -> None:
    """A wake-up is taken with a lease: until that ends nobody else takes it, then the next one does."""
    clock = ManualClock(0)
    handled = Tally()
    shop = Shop(recording(handled), store=make_store(clock), scheduler=OFTEN)
    await shop.store.open()
    leave(shop, "a1")
    taken = await shop.store.claim_wakes(["orders"], limit=10, lease_ms=35_000)
    assert (KEY,) == taken.due
    clock.move_to(34_999)
    assert () == (await shop.store.claim_wakes(["orders"], limit=10, lease_ms=35_000)).due
    async with shop.a2:
        clock.move_to(35_000)
        await handled.until(1)
    assert ["s a1"] == handled.seen


# ── timers: not early, not twice ─────────────────────────────────────────────────────────


@within(5)
async def test_a7_a_wake_that_comes_early_twice_delivers_nothing_and_the_timer_rings_once() -> None:
    """Woken 3 ms early, twice and side by side, a session only finds that its timer is not due yet."""
    runs: list[tuple[str, datetime]] = []

    async def handle(event: Event[str]) -> None:
        runs.append((event.payload, world.now))

    shop = Shop(handle)
    world, store = scripted(shop.a2)
    async with world:
        due = world.now + timedelta(seconds=10)
        await shop.session().schedule("t", shop.order("a1"), delay="10s")
        await world.advance("9997ms")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(shop.session().drain)
            tasks.start_soon(shop.session().drain)
        assert DrainState.SETTLED == (await shop.session().drain()).state
        assert [] == await shop.log()
        world.duplicate_next_delivery()
        await world.advance("1h")
        assert [("a1", due)] == runs
        assert ["a1"] == await shop.log()
    assert 1 == len(store.settled())


@within(5)
async def test_a7_a_timer_that_sets_its_successor_does_not_ring_in_a_burst() -> None:
    """Sixty rings of a timer that sets itself again each minute, each woken early and twice, are a minute apart."""
    rings: list[float] = []

    async def handle(event: Event[str], ctx: Context) -> None:
        rings.append((world.now - start).total_seconds())
        number = int(event.payload[1:]) + 1
        at = start + timedelta(minutes=number)
        if number < 60:
            await ctx.schedule(f"slot {number}", shop.order(f"a{number}"), at=at)

    shop = Shop(handle)
    async with shop.a2.testing() as world:
        start = world.now
        await shop.append("a0")
        for _ in range(60):
            await world.advance("59999ms")
            await shop.session().drain()
            await shop.session().drain()
            world.duplicate_next_delivery()
            await world.advance("1ms")
    assert [minute * 60.0 for minute in range(60)] == rings


@within(10)
async def test_a8_eight_claimers_of_one_due_timer_and_a_late_one_run_it_once(make_store: MakeStore) -> None:
    """However many processes meet at its time, and come back a minute later, its event is there once and runs once."""
    clock = ManualClock(0)
    runs: list[str] = []

    async def handle(event: Event[str]) -> None:
        runs.append(event.payload)
        await rounds(5)

    shops = [Shop(handle, store=make_store(clock), scheduler=None) for _ in range(9)]
    async with AsyncExitStack() as stack:
        for shop in shops:
            await stack.enter_async_context(shop.a2)
        await shops[0].session().schedule("t", shops[0].order("a1"), delay="1h")
        clock.move_to(3_600_000)
        async with anyio.create_task_group() as tasks:
            for shop in shops[:8]:
                tasks.start_soon(shop.session().drain)
        clock.move_to(3_660_000)
        await shops[8].session().drain()
        assert ["a1"] == await shops[8].log()
        receipt = await shops[8].session().schedule("t", shops[8].order("a1"), delay="1h")
        assert "delivered" == receipt.state
    assert ["a1"] == runs


@within(5)
async def test_b1_a_wake_up_every_minute_for_three_days_does_not_hasten_a_timer() -> None:
    """Each early wake-up finds nothing to do, nothing piles up, and the timer rings on time."""
    runs: list[datetime] = []

    async def handle(_: Event[str]) -> None:
        runs.append(world.now)

    shop = Shop(handle)
    async with shop.a2.testing() as world:
        due = world.now + timedelta(days=3)
        await shop.session().schedule("t", shop.order("a1"), delay="3d")
        for _ in range(3 * 24 * 60 - 1):
            await world.advance("1m")
            assert DrainState.SETTLED == (await shop.session().drain()).state
        assert [] == runs
        await world.advance("1m")
        assert [due] == runs


@within(10)
async def test_hundreds_of_timers_that_are_due_together_come_in_the_order_of_their_times(make_store: MakeStore) -> None:
    """One drain takes them in bounded portions until none is left, each once, the earliest first."""
    clock = ManualClock(0)
    shop = Shop(done, store=make_store(clock), scheduler=None)
    async with shop.a2:
        for number in range(250):
            at = datetime.fromtimestamp((number * 7) % 250 + 1, UTC)
            await shop.session().schedule(f"t{number}", shop.order(f"a{at.timestamp():.0f}"), at=at)
        clock.move_to(251_000)
        assert DrainState.SETTLED == (await shop.session().drain()).state
        assert [f"a{second}" for second in range(1, 251)] == await shop.log()
        assert () == heads(shop.store)


@within(5)
async def test_unknown_contracts_are_left_alone(make_store: MakeStore) -> None:
    """A due session of a contract that this process does not have stays due, for one that has it."""
    clock = ManualClock(0)
    handled = Tally()
    elsewhere = Shop(done, store=make_store(clock))
    parcels = elsewhere.a2.contract("parcels")
    parcel = parcels.event("parcel", str)

    @parcels.on(parcel)
    async def deliver(event: Event[str]) -> None:
        handled.add(f"parcel {event.payload}")

    shop = Shop(recording(handled), store=make_store(clock), scheduler=OFTEN)
    await elsewhere.store.open()
    await parcels.session("p").dispatch(parcel("p1"))
    [before] = await elsewhere.store.sessions("parcels")
    async with shop.a2:
        await shop.dispatch("a1")
        await handled.until(1)
    await elsewhere.store.open()
    assert ["s a1"] == handled.seen
    assert [before] == await elsewhere.store.sessions("parcels")
    async with elsewhere.a2:
        await handled.until(2)
    assert ["s a1", "parcel p1"] == handled.seen


@within(5)
async def test_without_a_scheduler_only_appends_and_drains_wake_a_session() -> None:
    """A dispatch is refused, a timer waits for the next append or drain, and reads and starts never run anything."""
    clock = ManualClock(0)
    handled = Tally()
    store = ScriptedStore(clock=clock)
    shop = Shop(recording(handled), store=store, scheduler=None)
    leave(shop, "left")
    async with shop.a2:
        with pytest.raises(ConfigurationError, match="needs a scheduler"):
            await shop.dispatch("a1")
        await shop.session("t").schedule("t", shop.order("timer"), delay="1s")
        clock.move_to(2_000)
        assert ["left"] == await shop.log()
        await rounds(200)
        assert [] == handled.seen
        assert 0 == store.calls["wakes"]
        await shop.session().drain()
        await shop.append("b1", session_id="t", wait=True)
    assert ["s left", "t b1", "t timer"] == sorted(handled.seen)


# ── a provider ───────────────────────────────────────────────────────────────────────────


@within(5)
@pytest.mark.parametrize("mode", ["inline", "server"])
async def test_the_watchdog_is_armed_beside_the_work(mode: str) -> None:
    """The send waits for the handler and the handler for the send: only side by side do both come to an end."""
    sending, running = anyio.Event(), anyio.Event()

    async def on_send(_: Task) -> None:
        sending.set()
        await running.wait()

    async def handle(_: Event[str]) -> None:
        running.set()
        await sending.wait()

    signals: list[Signal] = []
    provider = Provider(on_send)
    shop = Shop(handle, scheduler=provider, telemetry=signals.append)
    began_ms = SystemClock().now_ms()
    if mode == "server":
        async with shop.a2:
            await shop.append("a1", wait=True)
    else:
        await shop.append("a1")
    [task] = provider.sent
    assert isinstance(task, DrainTask)
    assert ("orders", "s", 0) == (task.contract, task.session_id, task.due_at_ms % 1_000)
    assert 35_000 <= task.due_at_ms - began_ms <= 38_000
    assert [SignalName.SETTLED] == [signal.name for signal in signals]


@within(5)
async def test_nothing_is_armed_where_nothing_is_to_be_done() -> None:
    """An event without a handler, and a repeated append of what is settled, cost no send."""
    provider = Provider()
    shop = Shop(done, scheduler=provider)
    await shop.session().append(shop.note("n"))
    assert [] == provider.sent
    await shop.append("a1")
    await shop.append("a1")
    assert 1 == len(provider.sent)


@within(5)
@pytest.mark.parametrize("mode", ["inline", "server"])
async def test_a_hanging_send_delays_an_append_by_the_bound_at_most(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The handler runs meanwhile, the append returns after the bound, and the lost wake-up is reported."""
    monkeypatch.setattr("a2asgi.runtime.ARM_TIMEOUT_S", 0.1)
    handled = Tally()
    signals: list[Signal] = []

    async def hang(_: Task) -> None:
        await anyio.sleep_forever()

    shop = Shop(recording(handled), scheduler=Provider(hang), telemetry=signals.append)

    async def conversation() -> None:
        began = anyio.current_time()
        await shop.append("a1")
        assert 0.09 <= anyio.current_time() - began <= 1
        await handled.until(1)

    if mode == "server":
        async with shop.a2:
            await conversation()
    else:
        await conversation()
    assert ["s a1"] == handled.seen
    [failed] = [signal for signal in signals if signal.name is SignalName.SEND_FAILED]
    assert ("orders", "s") == (failed.contract, failed.session)
    assert "no answer within 0.1 s" in failed.detail


SEND_ERRORS: dict[str, Exception] = {
    "terminal": SendFailed("refused", terminal=True),
    "later": SendFailed("try again", terminal=False),
    "bug": RuntimeError("a bug in the client"),
    "timeout": TimeoutError(),
    "group": ExceptionGroup("one", [OSError("no route")]),
}


@within(5)
@pytest.mark.parametrize("error", SEND_ERRORS.values(), ids=SEND_ERRORS)
@pytest.mark.parametrize("mode", ["inline", "server"])
async def test_a_failing_send_never_fails_an_append(mode: str, error: Exception) -> None:
    """Whatever the provider raises, the event is durable and handled, and the failure is reported."""
    handled = Tally()
    signals: list[Signal] = []

    async def fail(_: Task) -> None:
        raise error

    shop = Shop(recording(handled), scheduler=Provider(fail), telemetry=signals.append)
    if mode == "server":
        async with shop.a2:
            receipt = await shop.append("a1")
            await handled.until(1)
    else:
        receipt = await shop.append("a1")
    assert receipt.new
    assert ["s a1"] == handled.seen
    assert 1 == [signal.name for signal in signals].count(SignalName.SEND_FAILED)


@within(5)
async def test_failed_sends_are_counted() -> None:
    """A process knows how many wake-ups it could not send."""

    async def fail(_: Task) -> None:
        raise SendFailed("refused", terminal=True)

    shop = Shop(done, scheduler=Provider(fail))
    await shop.append("a1")
    await shop.append("a2")
    runtime = (await shop.a2.ready()).runtime
    assert 2 == runtime.send_failures


@within(5)
async def test_a_dispatch_whose_send_fails_says_so_and_can_be_repeated() -> None:
    """The event is durable, the caller hears of the failure, and the same ids again send without a second event."""
    errors: list[Exception] = [SendFailed("try again", terminal=False)]
    runs: list[str] = []

    async def fail_once(_: Task) -> None:
        if errors:
            raise errors.pop()

    async def handle(event: Event[str]) -> None:
        runs.append(event.payload)

    provider = Provider(fail_once)
    shop = Shop(handle, scheduler=provider)
    with pytest.raises(SendFailed, match="try again"):
        await shop.dispatch("a1")
    assert ["a1"] == await shop.log()
    now_ms = SystemClock().now_ms()
    receipt = await shop.dispatch("a1")
    assert not receipt.new
    [task] = provider.sent
    assert isinstance(task, DrainTask)
    assert ("orders", "s") == (task.contract, task.session_id)
    assert now_ms - 1_000 <= task.due_at_ms <= now_ms + 1_000
    assert ["a1"] == await shop.log()
    assert [] == runs  # the provider's delivery runs it
    await shop.session().drain()
    assert ["a1"] == runs
    await shop.dispatch("a1")
    assert 1 == len(provider.sent)  # it is settled by now


@within(5)
@pytest.mark.parametrize("mode", ["inline", "server"])
async def test_a_stalled_drain_arms_its_retry(mode: str) -> None:
    """Work that waits for a later instant has a wake-up on its way: never early, at most a second late."""

    async def handle(event: Event[str]) -> object:
        if event.payload == "a1":
            return Snooze("90s")
        return Snooze("10m")

    provider = Provider()
    shop = Shop(handle, scheduler=provider)
    if mode == "server":
        async with shop.a2:
            await shop.append("a1", "b1", wait=True)
            await rounds()
    else:
        await shop.append("a1", "b1")
    retry_at_ms = min(item.ready_at_ms for item in heads(shop.store))
    retries = [task.due_at_ms for task in provider.sent if task.due_at_ms >= retry_at_ms]
    assert 2 == len(provider.sent)
    assert 1 == len(retries)
    assert retries[0] < retry_at_ms + 1_000


@within(5)
async def test_a_stalled_drain_whose_retry_cannot_be_sent_fails_nobody() -> None:
    """The retry's send is bounded and forgiven like the watchdog's."""
    tasks: list[Task] = []

    async def refuse_the_second(task: Task) -> None:
        tasks.append(task)
        if len(tasks) == 2:
            raise SendFailed("refused", terminal=True)

    signals: list[Signal] = []
    shop = Shop(boom, scheduler=Provider(refuse_the_second), telemetry=signals.append)
    await shop.append("a1")
    assert [SignalName.RETRYING, SignalName.SEND_FAILED] == sorted(signal.name for signal in signals)


@within(5)
async def test_b11_a_parked_drain_arms_a_look_five_minutes_away() -> None:
    """What only a newer version can handle keeps a wake-up on its way to it."""
    provider = Provider()
    newer = Shop(done)
    shipment = newer.orders.event("shipment", str)
    newer.orders.on(shipment)(done)
    await newer.session().dispatch(shipment("x1"))
    older = Shop(done, store=newer.store, scheduler=provider)
    now_ms = SystemClock().now_ms()
    assert DrainState.STALLED == (await older.session().drain()).state
    [task] = provider.sent
    assert 300_000 <= task.due_at_ms - now_ms <= 302_000


@within(5)
async def test_schedule_sends_the_events_themselves() -> None:
    """Nothing enters the log before delivery; the task and its events have ids that a repeated call has again."""
    provider = Provider()
    shop = Shop(done, scheduler=provider)
    at = datetime(2030, 1, 1, 12, 0, 0, 500_000, tzinfo=UTC)
    for _ in range(2):
        receipt = await shop.session().schedule("expire", shop.order("a1"), shop.note("n"), at=at)
        assert ("scheduled", at) == (receipt.state, receipt.due_at)
    id_ = timer_id("orders", "s", "expire")
    events = (
        TaskEvent(timer_event_id(id_, 0), "order", '"a1"').to_json(),
        TaskEvent(timer_event_id(id_, 1), "note", '"n"').to_json(),
    )
    due_at_ms = int(datetime(2030, 1, 1, 12, 0, 1, tzinfo=UTC).timestamp()) * 1_000
    assert [AppendTask(id_, "orders", "s", due_at_ms, events)] * 2 == provider.sent
    assert [] == await shop.log()


@within(5)
async def test_a_handlers_timer_counts_from_its_event_and_is_the_same_at_each_attempt() -> None:
    """A handler that schedules and then fails sends the same task again at the next attempt."""

    async def handle(event: Event[str], ctx: Context) -> object:
        await ctx.schedule("expire", shop.order("b1"), delay="15m")
        created_ms.append(int(event.created_at.timestamp() * 1_000))
        if ctx.attempt == 1:
            clock.move_to(clock.now_ms() + 5_000)
            return Snooze("0s")
        return None

    created_ms: list[int] = []
    clock = ManualClock(SystemClock().now_ms())
    provider = Provider()
    shop = Shop(handle, store=MemoryStore(clock=clock), scheduler=provider)
    await shop.append("a1")
    timers = [task for task in provider.sent if isinstance(task, AppendTask)]
    assert 2 == len(timers)
    assert timers[0] == timers[1]
    assert 0 <= timers[0].due_at_ms - created_ms[0] - 900_000 < 1_000


@within(5)
async def test_a_schedule_that_is_not_accepted_says_so_and_can_be_repeated() -> None:
    """The caller hears that the provider refused, and the same call again is the same timer."""
    errors: list[Exception] = [SendFailed("try again", terminal=False)]

    async def fail_once(_: Task) -> None:
        if errors:
            raise errors.pop()

    provider = Provider(fail_once)
    shop = Shop(done, scheduler=provider)
    with pytest.raises(SendFailed, match="try again"):
        await shop.session().schedule("t", shop.order("a1"), delay="1h")
    assert "scheduled" == (await shop.session().schedule("t", shop.order("a1"), delay="1h")).state
    assert 1 == len(provider.sent)


@within(5)
async def test_a_cancelled_timer_is_not_sent_again() -> None:
    """A cancelled name stays cancelled: scheduling it again sends nothing and says what became of it."""
    provider = Provider()
    shop = Shop(done, scheduler=provider)
    await shop.session().schedule("t", shop.order("a1"), delay="1h")
    assert await shop.session().cancel("t")
    assert "cancelled" == (await shop.session().schedule("t", shop.order("a1"), delay="1h")).state
    assert 1 == len(provider.sent)


@within(5)
async def test_a_timer_name_that_is_taken_is_refused(make_store: MakeStore) -> None:
    """Another time or batch under one name raises, and the first timer stays as it was."""
    clock = ManualClock(0)
    handled = Tally()
    shop = Shop(recording(handled), store=make_store(clock), scheduler=NEVER)
    async with shop.a2:
        await shop.session().schedule("t", shop.order("a1"), delay="1h")
        with pytest.raises(TimerNameTaken):
            await shop.session().schedule("t", shop.order("a1"), delay="2h")
        with pytest.raises(TimerNameTaken):
            await shop.session().schedule("t", shop.order("a2"), delay="1h")
        clock.move_to(3_600_000)
        await shop.session().drain()
    assert ["s a1"] == handled.seen


# ── the sweep behind a provider ──────────────────────────────────────────────────────────


@within(5)
async def test_the_sweep_arms_again_what_a_provider_lost() -> None:
    """An append whose process died before its wake-up was sent is armed again at the next start, after the window."""
    clock = ManualClock(0)
    store = ScriptedStore(clock=clock)
    armed = Tally()

    async def on_send(task: Task) -> None:
        armed.add(task.session_id)

    shop = Shop(done, store=store, scheduler=Provider(on_send))
    leave(shop, "a1", session_id="lost", wake_after_ms=35_000)
    leave(shop, "a1", session_id="young", wake_after_ms=35_001)
    leave(shop, "a1", session_id="held", wake_after_ms=35_000)
    clock.move_to(50_000)
    steal(store, SessionKey("orders", "held"), later_ms=0)
    clock.move_to(70_000)
    async with shop.a2:
        await armed.until(1)
        await rounds(100)
        assert ["lost"] == armed.seen


@within(5)
async def test_the_sweep_looks_every_minute_and_shares_with_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two servers whose sweeps meet send one wake-up for a lost session, and another if that is lost too."""
    monkeypatch.setattr("a2asgi.app.SWEEP_MS", 10)
    clock = ManualClock(0)
    store = ScriptedStore(clock=clock)
    armed = Tally()

    async def on_send(task: Task) -> None:
        armed.add(task.session_id)

    shops = [Shop(done, store=store, scheduler=Provider(on_send)) for _ in range(2)]
    async with shops[0].a2, shops[1].a2:
        leave(shops[0], "a1", session_id="lost", wake_after_ms=35_000)
        clock.move_to(69_999)
        looks = Tally()
        store.before_step = looks.add
        await looks.until(len(looks.seen) + 6)
        assert [] == armed.seen
        clock.move_to(70_000)
        await armed.until(1)
        await looks.until(len(looks.seen) + 6)
        assert ["lost"] == armed.seen
        clock.move_to(200_000)
        await armed.until(2)
    assert ["lost", "lost"] == armed.seen


@within(5)
async def test_the_sweep_alone_counts_a_wake_up_by_how_late_it_is() -> None:
    """A WakeLoop with `late_ms` leaves a wake-up to its provider for that long, to the millisecond."""
    clock = ManualClock(0)
    store = MemoryStore(clock=clock)
    taken = Tally()

    async def deliver(key: SessionKey) -> None:
        taken.add(key.session_id)

    shop = Shop(done, store=store)
    leave(shop, "a1", session_id="x", wake_after_ms=1_000)
    loop = WakeLoop(
        store,
        deliver,
        shares=lambda: [Share(("orders",))],
        poll_ms=5,
        lease_ms=10_000,
        concurrency=1,
        late_ms=2_000,
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(loop.run)
        clock.move_to(2_999)
        with anyio.move_on_after(0.05):
            await taken.until(1)
        assert [] == taken.seen
        clock.move_to(3_000)
        await taken.until(1)
        tasks.cancel_scope.cancel()
    assert ["x"] == taken.seen
