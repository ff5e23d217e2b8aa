"""Crons in a world on a manual clock: one run for each slot, on the days too when the clocks are changed."""

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from a2asgi import (
    A2,
    FailedJob,
    JobContext,
    MemoryStore,
    Snooze,
    SyncJobContext,
)
from tests.asgi.slots import at, ms, reach, reporting, utc
from tests.asgi.worlds import within

START = datetime(2026, 1, 1, tzinfo=UTC)
"""When a world begins."""


# ── slots ────────────────────────────────────────────────────────────────────────────────


@within(10)
async def test_each_slot_is_run_once_and_at_its_time() -> None:
    """However the time to an hour is cut. The instant at which it begins is not one of its slots."""
    runs: list[tuple[datetime, datetime]] = []
    a2 = A2()

    @a2.cron("*/10 * * * *")
    async def report(slot: datetime) -> None:
        runs.append((slot, world.now))

    async with a2.testing() as world:
        await world.advance("25m")
        await world.advance("0s")
        for _ in range(70):
            await world.advance("30s")
    slots = [START + timedelta(minutes=minutes) for minutes in range(10, 61, 10)]
    assert [(slot, slot) for slot in slots] == runs


@pytest.mark.parametrize("tz", ["UTC", "Asia/Kathmandu", "America/St_Johns"])
async def test_a_slot_is_an_aware_datetime_in_the_crons_zone(tz: str) -> None:
    seen: list[datetime] = []
    a2 = A2()

    @a2.cron("30 9 * * *", tz=tz)
    async def report(slot: datetime) -> None:
        seen.append(slot)

    async with a2.testing() as world:
        await world.advance("2d")
    assert [(1, 9, 30), (2, 9, 30)] == [(slot.day, slot.hour, slot.minute) for slot in seen]
    assert {ZoneInfo(tz)} == {slot.tzinfo for slot in seen}


async def test_a_function_may_take_the_slot_and_a_context_or_neither() -> None:
    """Whatever they are called; a plain function runs in a thread."""
    seen: list[object] = []
    a2 = A2()

    @a2.cron("1 * * * *")
    async def nothing() -> None:
        seen.append("nothing")

    @a2.cron("2 * * * *")
    async def only_context(ctx: JobContext) -> None:
        seen.append(ctx.attempt)

    @a2.cron("3 * * * *")
    async def both(when: datetime, context: JobContext) -> None:
        seen.append((when, context.attempt))

    @a2.cron("4 * * * *")
    def plain(ctx: SyncJobContext, *, slot: datetime) -> None:
        seen.append((slot, ctx.attempt))

    @a2.cron("5 * * * *")
    def unannotated(slot):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202 - so it may be
        seen.append(slot)

    async with a2.testing() as world:
        await world.advance("6m")
    third, fourth, fifth = (START + timedelta(minutes=minutes) for minutes in (3, 4, 5))
    assert ["nothing", 1, (third, 1), (fourth, 1), fifth] == seen


async def test_calling_a_cron_is_calling_its_function() -> None:
    a2 = A2()

    @a2.cron("0 9 * * *")
    async def report(slot: datetime) -> str:
        """Tell of a day."""
        return slot.date().isoformat()

    assert "2026-01-01" == await report(START)
    assert ("report", "report", "Tell of a day.") == (report.name, vars(report)["__name__"], report.__doc__)


@within(10)
async def test_slots_that_overlap_run_side_by_side() -> None:
    """A slow slot does not hold up the next one."""
    runs: list[tuple[str, str]] = []
    a2 = A2()

    @a2.cron("* * * * *")
    async def slow(slot: datetime) -> None:
        runs.append(("begins", f"{slot:%M}"))
        await world.sleep("150s")
        runs.append(("ends", f"{slot:%M}"))

    async with a2.testing() as world:
        await world.advance("4m")
    begun = [("begins", "01"), ("begins", "02"), ("begins", "03")]
    assert [*begun, ("ends", "01"), ("begins", "04")] == runs


@within(10)
async def test_a7_a_wake_up_that_comes_early_twice_runs_nothing_twice() -> None:
    """Not due: the session is looked at again when it is."""
    a2, slots = reporting("*/5 * * * *")
    async with a2.testing() as world:
        await world.advance("4m")
        [session] = await world.store.sessions()
        await reach(world, "2026-01-01T00:04:59.997")
        engine = await a2.ready()
        for _ in range(2):
            await engine.deliver(session.key)
            await world.settle()
        assert [] == slots
        [before] = await world.store.sessions()
        assert session.wake_at_ms == before.wake_at_ms
        world.duplicate_next_delivery()
        await world.advance("3ms")
        for _ in range(2):
            await engine.deliver(session.key)
        await world.advance("2m")
    assert utc("01-01T00:05") == slots


@within(10)
@pytest.mark.parametrize("effect", ["claim", "settle"])
async def test_a_process_that_dies_at_a_slot_loses_none(effect: str) -> None:
    """Killed as it claims, the slot is run once its claim has run out; killed when it was settled, not again."""
    a2, slots = reporting("*/5 * * * *")
    async with a2.testing() as world:
        await world.advance("4m")
        world.crash_after(effect)
        await world.advance("10m")
    assert utc("01-01T00:05", "01-01T00:10") == slots


# ── days on which clocks are changed ─────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("expression", "tz", "since", "expected"),
    [
        pytest.param(
            "30 2 * * *",
            "Europe/Berlin",
            "2026-10-24T10:00",
            ["10-25T02:30:00+02:00", "10-26T02:30:00+01:00", "10-27T02:30:00+01:00", "10-28T02:30:00+01:00"],
            id="a1-berlin-back",
        ),
        pytest.param(
            "*/30 * * * *",
            "Europe/Berlin",
            "2026-10-24T23:30",
            [
                *("10-25T02:00:00+02:00", "10-25T02:30:00+02:00"),
                *("10-25T02:00:00+01:00", "10-25T02:30:00+01:00", "10-25T03:00:00+01:00"),
            ],
            id="a1-berlin-back-elapsed",
        ),
        pytest.param(
            "0 */2 * * *",
            "Europe/Berlin",
            "2026-10-24T22:30",
            ["10-25T02:00:00+02:00", "10-25T02:00:00+01:00", "10-25T04:00:00+01:00"],
            id="a1-berlin-back-hours",
        ),
        pytest.param(
            "30 2 * * *",
            "Europe/Berlin",
            "2026-03-28T12:00",
            ["03-29T03:00:00+02:00", "03-30T02:30:00+02:00"],
            id="a2-berlin-forward",
        ),
        pytest.param(
            "*/30 * * * *",
            "Europe/Berlin",
            "2026-03-29T00:30",
            ["03-29T03:00:00+02:00", "03-29T03:30:00+02:00"],
            id="a2-berlin-forward-elapsed",
        ),
        pytest.param(
            "0 0 * * 0",
            "America/Santiago",
            "2026-08-31T00:00",
            ["09-06T01:00:00-03:00", "09-13T00:00:00-03:00"],
            id="a2-santiago-forward",
        ),
        pytest.param(
            "15 2 * * *",
            "Australia/Lord_Howe",
            "2026-10-03T00:00",
            ["10-04T02:30:00+11:00", "10-05T02:15:00+11:00"],
            id="a2-lord-howe-forward",
        ),
        pytest.param(
            "0 0 * * *",
            "Africa/Cairo",
            "2026-04-23T12:00",
            ["04-24T01:00:00+03:00", "04-25T00:00:00+03:00"],
            id="a2-cairo-forward",
        ),
        pytest.param(
            "0 20 * * *",
            "Europe/Paris",
            "2026-10-24T22:00",
            ["10-25T20:00:00+01:00", "10-26T20:00:00+01:00", "10-27T20:00:00+01:00"],
            id="a4-paris-after-the-change",
        ),
    ],
)
@within(20)
async def test_slots_around_a_change_of_the_clock(expression: str, tz: str, since: str, expected: list[str]) -> None:
    """Each is run once, at the instant that it stands for, and is given as that zone's clock shows it."""
    runs: list[tuple[datetime, str]] = []
    a2 = A2()

    async def report(slot: datetime) -> None:
        runs.append((world.now, slot.isoformat()))

    a2.cron(expression, tz=tz)(report)
    async with a2.testing() as world:
        world.clock.move_to(ms(since))
        await reach(world, f"2026-{expected[-1]}")
    assert [f"2026-{slot}" for slot in expected] == [slot for _, slot in runs]
    assert [at(slot) for _, slot in runs] == [ran_at for ran_at, _ in runs]


async def test_a4_a_slot_keeps_its_local_time_in_a_year_gone_by() -> None:
    """The same by ticks, which may be of any year: 20:00 in Paris stays 20:00 when summer time ends."""
    a2, slots = reporting("0 20 * * *", A2(store=MemoryStore()), tz="Europe/Paris")
    for hours in range(73):
        await a2.tick(at("2022-10-29T22:00") + timedelta(hours=hours))
    assert [f"2022-10-{day}T20:00:00+01:00" for day in (30, 31)] + ["2022-11-01T20:00:00+01:00"] == slots


# ── a slot is a job ──────────────────────────────────────────────────────────────────────


def failing(a2: A2, times: int, **options: Any) -> list[tuple[str, int]]:
    """The cron `fails`, each of whose slots fails so many times; when it ran, and in which attempt."""
    runs: list[tuple[str, int]] = []

    @a2.cron("0 * * * *", **options)
    async def fails(slot: datetime, ctx: JobContext) -> str:
        now_ms = (await a2.ready()).runtime.clock.now_ms()
        runs.append((f"{datetime.fromtimestamp(now_ms / 1_000, UTC):%H:%M:%S}", ctx.attempt))
        if ctx.attempt <= times:
            raise ValueError(f"not at {slot:%H:%M}")
        return "fine"

    return runs


async def test_a_slot_that_fails_is_tried_again_after_its_backoff() -> None:
    a2 = A2()
    runs = failing(a2, 2, backoff="10m")
    async with a2.testing() as world:
        await reach(world, "2026-01-01T01:59")
        assert [("01:00:00", 1), ("01:10:00", 2), ("01:20:00", 3)] == runs
        assert [] == world.dead_letters


async def test_a_slot_out_of_retries_is_failed_and_told_of_once() -> None:
    """Its record stays; the next slot has retries of its own."""
    told: list[FailedJob] = []
    a2 = A2()
    runs = failing(a2, 9, retries=1, backoff="1m", on_failed=told.append)
    async with a2.testing() as world:
        await reach(world, "2026-01-01T02:30")
        assert ["01:00:00", "01:01:00", "02:00:00", "02:01:00"] == [when for when, _ in runs]
        assert [f"slot-{ms(f'2026-01-01T{hour}:00')}" for hour in ("01", "02")] == [one.id for one in told]
        first = told[0]
        assert ("fails", "ValueError", "not at 01:00", 2) == (first.name, first.error, first.message, first.attempts)
        assert {"slot": at("2026-01-01T01:00")} == first.arguments
        assert 2 == len(world.dead_letters)


async def test_a_slot_that_takes_too_long_is_cancelled_and_tried_again() -> None:
    a2 = A2()
    runs: list[tuple[int, datetime]] = []

    @a2.cron("0 * * * *", timeout="1m", retries=1, backoff="10s")
    async def hangs(ctx: JobContext) -> None:
        runs.append((ctx.attempt, world.now))
        await world.sleep("1d")

    async with a2.testing() as world:
        await reach(world, "2026-01-01T01:30")
        assert [(1, at("2026-01-01T01:00")), (2, at("2026-01-01T01:01:10"))] == runs
        [letter] = world.dead_letters
        assert ("cron:hangs", "TimeoutError") == (letter.contract, letter.error)


async def test_a_slot_may_put_itself_off() -> None:
    a2 = A2()
    runs: list[datetime] = []

    @a2.cron("0 * * * *", retries=0)
    async def patient(ctx: JobContext) -> object:
        runs.append(world.now)
        return Snooze("20m") if ctx.attempt == 1 else None

    async with a2.testing() as world:
        await reach(world, "2026-01-01T01:30")
        assert [at("2026-01-01T01:00"), at("2026-01-01T01:20")] == runs


async def test_a_slot_that_succeeded_is_forgotten_after_its_retention_and_a_failed_one_is_not() -> None:
    a2 = A2()

    @a2.cron("0 1 1 1 *", keep="3h")
    async def fine() -> None: ...

    @a2.cron("0 1 1 1 *", keep="3h", retries=0)
    async def broken() -> None:
        raise ValueError("no")

    async with a2.testing() as world:
        slot = at("2026-01-01T01:00")
        await reach(world, "2026-01-01T03:59:59")
        assert [True, True] == [await cron.status(slot) is not None for cron in (fine, broken)]
        await world.advance("1s")
        assert [False, True] == [await cron.status(slot) is not None for cron in (fine, broken)]


# ── what became of it ────────────────────────────────────────────────────────────────────


@within(10)
async def test_the_status_of_a_slot() -> None:
    """Unknown, running with its progress, waiting for a retry, succeeded with its result, or failed with its error."""
    a2 = A2()

    @a2.cron("0 * * * *", retries=1, backoff="5m")
    async def report(slot: datetime, ctx: JobContext) -> dict[str, int]:
        await ctx.progress(1, 2, "half")
        await world.sleep("1m")
        if slot.hour == 2 or ctx.attempt == 1:
            raise ValueError("no")
        return {"rows": 7}

    async def state(text: str) -> str | None:
        status = await report.status(at(text))
        return None if status is None else str(status.state)

    one, two = "2026-01-01T01:00", "2026-01-01T02:00"
    async with a2.testing() as world:
        assert None is await state(one)
        await reach(world, one)
        running = await report.status(at(one))
        assert running is not None
        assert ("running", 1) == (running.state, running.attempt)
        assert running.progress is not None
        assert (1, 2, "half") == (running.progress.done, running.progress.total, running.progress.note)
        await world.advance("2m")
        retrying = await report.status(at("2026-01-01T02:00:00+01:00"))  # the same instant
        assert retrying is not None
        assert ("retrying", at("2026-01-01T01:06")) == (retrying.state, retrying.due_at)
        await reach(world, "2026-01-01T01:30")
        done = await report.status(at(one))
        assert done is not None
        assert ("succeeded", {"rows": 7}, 2) == (done.state, done.result, done.attempt)
        assert (at(one), at("2026-01-01T01:07")) == (done.enqueued_at, done.finished_at)
        await reach(world, "2026-01-01T02:30")
        failed = await report.status(at(two))
        assert failed is not None
        assert ("failed", "ValueError: no", "report") == (failed.state, failed.error, failed.name)
        assert [None, None] == [await state("2026-01-01T02:01"), await state("2026-01-01T02:00:01")]
