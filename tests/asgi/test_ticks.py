"""Ticks: one cycle of all that is due, at an instant of the caller's choice, and what it counts."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from a2asgi import (
    A2,
    Cancel,
    Context,
    Event,
    InvalidTime,
    JobContext,
    MemoryStore,
    Retry,
    Snooze,
    SQLiteStore,
    Store,
    StoreUnavailable,
    Tick,
)
from a2asgi.testing import ManualClock
from a2asgi.ticks import BATCH
from tests.asgi.provider import Provider, qstash
from tests.asgi.slots import at, ms, reporting
from tests.asgi.worlds import NEVER, ScriptedStore, rounds, within

NOON = at("2050-06-01T12:00")
"""An instant that no clock has come to, so that what is due then waits."""

NOTHING = Tick(sessions=0, settled=0, retrying=0, dead_letters=0, purged=0)

MakeStore = Callable[[], Store]


@pytest.fixture(params=["memory", "sqlite"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> MakeStore:
    if request.param == "memory":
        return MemoryStore
    return lambda: SQLiteStore(tmp_path / "a2.db", synchronous="NORMAL")


def minutes(count: float) -> timedelta:
    return timedelta(minutes=count)


# ── what it does ─────────────────────────────────────────────────────────────────────────


async def test_a_tick_runs_what_is_due_and_counts_how_it_ended(make_store: MakeStore) -> None:
    """What is not due is left alone; a report of a failure is an event that is settled. Time runs on during a tick."""
    a2 = A2(store=make_store())
    ran: list[str] = []

    @a2.job(name="job", retries=1, backoff="10m", on_failed=lambda job: ran.append(f"{job.arguments['what']} is told"))
    async def job(ctx: JobContext, what: str) -> object:
        ran.append(f"{what} {ctx.attempt}")
        match what, ctx.attempt:
            case (("fails" | "fails again"), 1):
                raise ValueError(what)
            case "fails again", _:
                raise ValueError(what)
            case "snoozes", 1:
                return Snooze("5m")
            case "calls off", _:
                return Cancel("not needed")
            case _:
                return None

    for what in ("succeeds", "fails", "fails again", "snoozes", "calls off"):
        await job.at(NOON, what)
    await job.at(NOON + minutes(1), "is not due")
    assert NOTHING == await a2.tick()
    assert NOTHING == await a2.tick(NOON - minutes(1))
    assert [] == ran
    assert Tick(sessions=5, settled=2, retrying=3, dead_letters=0, purged=0) == await a2.tick(NOON)
    assert ["calls off 1", "fails 1", "fails again 1", "snoozes 1", "succeeds 1"] == sorted(ran)
    ran.clear()
    assert NOTHING == await a2.tick(NOON)
    assert Tick(sessions=2, settled=2, retrying=0, dead_letters=0, purged=0) == await a2.tick(NOON + minutes(5.1))
    assert ["is not due 1", "snoozes 2"] == sorted(ran)
    ran.clear()
    assert Tick(sessions=2, settled=2, retrying=0, dead_letters=1, purged=0) == await a2.tick(NOON + minutes(10.1))
    assert ["fails 2", "fails again 2", "fails again is told"] == sorted(ran)
    await a2.close()


async def test_a_tick_puts_crons_in_force_and_runs_their_slots(make_store: MakeStore) -> None:
    a2, slots = reporting("*/5 * * * *", A2(store=make_store()))
    assert NOTHING == await a2.tick(NOON)
    assert NOTHING == await a2.tick(NOON + minutes(4))
    assert Tick(sessions=1, settled=1, retrying=0, dead_letters=0, purged=0) == await a2.tick(NOON + minutes(5))
    assert NOTHING == await a2.tick(NOON + minutes(5))
    assert 1 == (await a2.tick(NOON + minutes(61))).settled
    assert [f"2050-06-01T{time}:00+00:00" for time in ("12:05", "13:00")] == slots
    await a2.close()


async def test_a_tick_removes_all_that_has_expired(make_store: MakeStore) -> None:
    """A job and its result are two events; so are those of more jobs than one transaction removes."""
    a2 = A2(store=make_store())

    @a2.job(keep="1h")
    async def job(number: int) -> None: ...

    for number in range(20):
        await job.at(NOON, number)
    assert 20 == (await a2.tick(NOON)).settled
    assert NOTHING == await a2.tick(NOON + minutes(59))
    assert 40 == (await a2.tick(NOON + minutes(61))).purged
    assert NOTHING == await a2.tick(NOON + minutes(61))
    await a2.close()


@within(20)
async def test_due_work_of_a_higher_priority_starts_first(make_store: MakeStore) -> None:
    """Crons and jobs alike, and however much is due: a batch of the urgent ones never holds a lesser one."""
    a2 = A2(store=make_store())
    ran: list[int] = []

    @a2.job(priority=-1)
    async def low(number: int) -> None:
        ran.append(-1)

    @a2.job(priority=5, concurrency=2)
    async def high(number: int) -> None:
        ran.append(5)

    @a2.cron("0 12 1 6 *", priority=9)
    async def urgent() -> None:
        ran.append(9)

    @a2.cron("0 12 1 6 *")
    async def usual() -> None:
        ran.append(0)

    await a2.tick(NOON - minutes(10))
    for number in range(BATCH + 3):
        await low.at(NOON - minutes(1), number)
    for number in range(3):
        await high.at(NOON, number)
    await a2.tick(NOON)
    assert [9, *[5] * 3, 0, *[-1] * (BATCH + 3)] == ran
    await a2.close()


async def test_a_tick_also_runs_what_its_handlers_leave_to_be_done_now(make_store: MakeStore) -> None:
    a2 = A2(store=make_store())
    orders = a2.contract("orders")
    note = orders.event("note", str)
    ran: list[str] = []

    @orders.on(note)
    async def write(event: Event[str]) -> None:
        ran.append(event.payload)

    @a2.job()
    async def first() -> None:
        ran.append("first")
        await second.enqueue()

    @a2.job()
    async def second() -> None:
        ran.append("second")
        await orders.session("s").append(note("third"))

    await first.at(NOON)
    assert 3 == (await a2.tick(NOON)).settled
    assert ["first", "second", "third"] == ran
    await a2.close()


async def test_a_tick_recovers_what_another_process_was_killed_at(make_store: MakeStore) -> None:
    """Its claim has to run out first, by the same clock."""
    store = make_store()
    dead, alive = A2(store=store), A2(store=store)
    ran: list[int] = []
    for a2 in (dead, alive):
        orders = a2.contract("orders")
        note = orders.event("note", str)

        async def write(_: Event[str], ctx: Context) -> None:
            ran.append(ctx.attempt)
            if ctx.attempt == 1:
                begun.set()
                await anyio.sleep_forever()

        orders.on(note, retry=Retry(max_lost=2))(write)
    begun = anyio.Event()
    await orders.session("s").schedule("t", note("a"), at=NOON)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(dead.tick, NOON)
        await begun.wait()
        store.offset_ms = 0
        assert NOTHING == await alive.tick(NOON + timedelta(seconds=20))
        assert 1 == (await alive.tick(NOON + timedelta(seconds=40))).settled
        assert [1, 2] == ran
        tasks.cancel_scope.cancel()
    await alive.close()


# ── the instant ──────────────────────────────────────────────────────────────────────────


async def test_the_store_has_its_own_time_again_after_a_tick(make_store: MakeStore) -> None:
    """Whatever the tick was moved to; what handlers did meanwhile is of that time."""
    store = make_store()
    a2 = A2(store=store)
    seen: list[int] = []

    @a2.job()
    async def job() -> None:
        seen.append(store.offset_ms)

    id_ = await job.at(NOON)
    before = await job.status(id_)
    assert before is not None
    assert ("scheduled", NOON) == (before.state, before.due_at)
    await a2.tick(NOON)
    assert 0 == store.offset_ms
    assert seen[0] > 0
    after = await job.status(id_)
    assert after is not None
    assert after.finished_at is not None
    assert NOON <= after.finished_at < NOON + minutes(1)
    store.offset_ms = 7
    await a2.tick(NOON)
    assert 7 == store.offset_ms
    await a2.close()


async def test_the_store_has_its_own_time_again_after_a_tick_that_failed() -> None:
    store = ScriptedStore()
    a2, _ = reporting("* * * * *", A2(store=store))
    await a2.ready()
    store.down.add("all")
    for now in (NOON, None):
        with pytest.raises(StoreUnavailable):
            await a2.tick(now)
    assert 0 == store.offset_ms


@within(10)
async def test_the_store_has_its_own_time_again_after_ticks_at_one_time(make_store: MakeStore) -> None:
    """Whichever ends first; each slot is run once."""
    store = make_store()
    a2, slots = reporting("0 * * * *", A2(store=store))
    await a2.tick(NOON - minutes(1))
    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(a2.tick, NOON)
    assert 0 == store.offset_ms
    assert ["2050-06-01T12:00:00+00:00"] == slots
    await a2.close()


async def test_a_tick_moves_the_time_of_a_store_whose_clock_is_not_this_process_s() -> None:
    """A database has its own, and so has a test: `now` is what the store shows, however wrong its clock is."""
    a2, slots = reporting("0 * * * *", A2(store=MemoryStore(clock=ManualClock(0))))
    await a2.tick(NOON - minutes(1))
    await a2.tick(NOON)
    assert ["2050-06-01T12:00:00+00:00"] == slots


async def test_a_tick_at_a_naive_instant_is_refused() -> None:
    store = MemoryStore()
    with pytest.raises(InvalidTime, match="naive"):
        await A2(store=store).tick(NOON.replace(tzinfo=None))
    assert 0 == store.offset_ms


@within(10)
async def test_a_store_that_fails_at_one_session_leaves_the_others_to_be_run() -> None:
    """It is logged; the session is due again when its lease is over, or at once for a retry of the store's own."""
    store = ScriptedStore()
    a2 = A2(store=store)
    ran: list[int] = []

    @a2.job()
    async def job(number: int) -> None:
        ran.append(number)

    for number in range(3):
        await job.at(NOON, number)
    store.fail_next("claim")
    assert 2 == (await a2.tick(NOON)).settled
    assert 1 == (await a2.tick(NOON + minutes(1))).settled
    assert [0, 1, 2] == sorted(ran)


# ── where it runs ────────────────────────────────────────────────────────────────────────


@within(10)
async def test_a_tick_inside_a_world_runs_what_is_due_there() -> None:
    """By the world's clock, or moved from it; the world's own time does not move."""
    a2, slots = reporting("0 * * * *")

    @a2.job()
    async def job() -> None: ...

    async with a2.testing() as world:
        await job.enqueue()
        assert Tick(sessions=1, settled=1, retrying=0, dead_letters=0, purged=0) == await a2.tick()
        assert 1 == (await a2.tick(world.now + timedelta(hours=1))).settled
        assert (0, at("2026-01-01")) == (world.store.offset_ms, world.now)
        assert ["2026-01-01T01:00:00+00:00"] == slots
        await world.advance("2h")
        assert ["2026-01-01T01:00:00+00:00", "2026-01-01T02:00:00+00:00"] == slots


@within(10)
async def test_a_tick_beside_a_running_server_runs_what_is_due() -> None:
    """Of which the server has not heard yet: only the store's clock has moved."""
    clock = ManualClock(ms("2050-06-01T11:59"))
    a2, slots = reporting("0 * * * *", A2(store=(store := MemoryStore(clock=clock)), scheduler=NEVER))
    async with a2:
        while not await store.sessions():
            await rounds()
        clock.move_to(ms("2050-06-01T12:00"))
        assert 1 == (await a2.tick()).settled
    assert ["2050-06-01T12:00:00+00:00"] == slots


async def test_without_the_embedded_scheduler_a_tick_puts_no_cron_in_force() -> None:
    """A provider has the schedules, or nobody has; what is due is drained all the same."""
    for scheduler in (None, qstash(Provider())):
        a2, slots = reporting("*/5 * * * *", A2(store=MemoryStore(), scheduler=scheduler))
        orders = a2.contract("orders")
        note = orders.event("note", str)

        @orders.on(note, retry=Retry(base="10m"))
        async def fails_once(_: Event[str], ctx: Context) -> None:
            if ctx.attempt == 1:
                raise ValueError("no")

        await orders.session("s").append(note("a"))
        assert NOTHING == await a2.tick()
        assert 1 == (await a2.tick(NOON)).settled
        assert NOTHING == await a2.tick(NOON + minutes(60))
        assert [] == slots
        await a2.close()
