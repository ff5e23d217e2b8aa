"""Crons across restarts and releases: what a start finds missed, changed or new, on one SQLite file and one clock."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from a2asgi import A2, Cron, MemoryStore, SessionKey, SQLiteStore
from a2asgi.testing import ManualClock
from tests.asgi.slots import MINUTE_MS, at, ms, reporting, utc
from tests.asgi.worlds import NEVER, OFTEN, ScriptedStore, Tally, rounds, within


class Machine:
    """A disk and a clock that outlive each release that runs there. Days and times are of 2026, in UTC."""

    def __init__(self, path: Path, now: str) -> None:
        self._path = path
        self.clock = ManualClock(0)
        self.reach(now)

    def reach(self, now: str) -> None:
        """Let time pass, with nothing running."""
        self.clock.move_to(ms(f"2026-{now}"))

    def store(self) -> SQLiteStore:
        return SQLiteStore(self._path, synchronous="NORMAL", clock=self.clock)

    def release(self, *, scheduler: Any = NEVER) -> A2:
        """A release without crons."""
        return A2(store=self.store(), scheduler=scheduler)

    async def run(self, expression: str, *times: str, **options: Any) -> list[str]:
        """Start a release with one cron, have it look at these times and stop; the slots that it ran.

        It looks when it starts, before the first of them.
        """
        a2, slots = reporting(expression, self.release(), **options)
        await a2.tick()
        for time in times:
            self.reach(time)
            await a2.tick()
        await a2.close()
        return slots


Make = Callable[[str], Machine]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return lambda now: Machine(tmp_path / "a2.db", now)


# ── what passed while nothing ran ────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("expression", "catch_up", "until", "expected"),
    [
        pytest.param("0 * * * *", "none", "06-01T12:10", [], id="hourly-none"),
        pytest.param("0 * * * *", "latest", "06-01T12:10", ["12:00"], id="hourly-latest"),
        pytest.param("0 * * * *", "all", "06-01T12:10", ["12:00"], id="hourly-all"),
        pytest.param("0 * * * *", "all", "06-01T12:00", ["11:00", "12:00"], id="all-of-an-hour-with-both-its-ends"),
        pytest.param("*/20 * * * *", "all", "06-01T12:10", ["11:20", "11:40", "12:00"], id="20-minutes-all"),
        pytest.param("*/20 * * * *", "all", "06-01T09:50", ["09:20", "09:40"], id="less-than-an-hour-all"),
        pytest.param("*/20 * * * *", "latest", "06-01T12:10", ["12:00"], id="20-minutes-latest"),
        pytest.param("*/20 * * * *", "none", "06-01T12:10", [], id="20-minutes-none"),
        pytest.param("*/20 * * * *", "none", "06-01T12:00:59.999", ["12:00"], id="none-within-the-slots-minute"),
        pytest.param("*/20 * * * *", "none", "06-01T12:01", [], id="none-after-it"),
        pytest.param("0 9 * * *", "latest", "06-01T12:10", [], id="nothing-missed"),
        pytest.param("0 10 * * *", "latest", "06-01T12:10", ["10:00"], id="daily-latest"),
        pytest.param("0 10 * * *", "all", "06-01T12:10", [], id="daily-all-is-bounded"),
    ],
)
async def test_a9_a_server_that_was_down_from_nine(
    make: Make, expression: str, catch_up: str, until: str, expected: list[str]
) -> None:
    """It catches up as it is told, side by side, and then goes on with the slots to come."""
    machine = make("06-01T08:59")
    assert {"09:00"} >= {slot[11:16] for slot in await machine.run(expression, "06-01T09:00", catch_up=catch_up)}
    machine.reach(until)
    again = await machine.run(expression, "06-02T09:00", "06-02T10:00", catch_up=catch_up)
    assert [f"2026-06-01T{slot}:00+00:00" for slot in expected] == sorted(slot for slot in again if "06-01" in slot)
    assert f"2026-06-02T{'09' if expression == '0 9 * * *' else '10'}:00:00+00:00" == max(again)


async def test_all_never_runs_more_than_an_hour_of_minutes(make: Make) -> None:
    machine = make("06-01T09:00")
    await machine.run("* * * * *", catch_up="all")
    machine.reach("06-08T12:00:30")
    slots = await machine.run("* * * * *", catch_up="all")
    assert 60 == len(slots) == len(set(slots))
    assert (utc("06-08T11:01")[0], utc("06-08T12:00")[0]) == (min(slots), max(slots))


@within(10)
@pytest.mark.parametrize(("catch_up", "expected"), [("latest", ["12:00"]), ("all", ["11:30", "12:00"]), ("none", [])])
async def test_a9_a_server_catches_up_when_it_starts(make: Make, catch_up: str, expected: list[str]) -> None:
    """The same of a server with its embedded scheduler, which is told of nothing."""
    machine = make("06-01T09:00")
    assert [] == await machine.run("*/30 * * * *", catch_up=catch_up)
    machine.reach("06-01T12:20")
    ran = Tally()
    a2 = machine.release(scheduler=OFTEN)

    @a2.cron("*/30 * * * *", catch_up=catch_up)
    async def report(slot: Any) -> None:
        ran.add(f"{slot:%H:%M}")

    async with a2:
        await ran.until(len(expected))
        for slot in expected:  # before time passes, in which its claim would run out
            while await state(report, f"2026-06-01T{slot}") != "succeeded":
                await rounds()
        machine.reach("06-01T12:30")
        await ran.until(len(expected) + 1)
    assert [*expected, "12:30"] == [*sorted(ran.seen[:-1]), ran.seen[-1]]


async def state(cron: Cron[..., Any], slot: str) -> str | None:
    status = await cron.status(at(slot))
    return None if status is None else str(status.state)


# ── restarts and releases ────────────────────────────────────────────────────────────────


async def test_a9_a_restart_inside_the_minute_runs_nothing_again(make: Make) -> None:
    machine = make("06-01T08:59:30")
    assert utc("06-01T09:00") == await machine.run("* * * * *", "06-01T09:00:20")
    machine.reach("06-01T09:00:40")
    assert utc("06-01T09:01") == await machine.run("* * * * *", "06-01T09:00:59", "06-01T09:01")


@within(10)
async def test_a9_a_process_that_is_killed_inside_the_minute_has_its_slot_run_on_by_the_next(make: Make) -> None:
    """Killed at its work, not after it: the next process takes the slot over once the claim has run out."""
    machine = make("06-01T08:59:30")
    killed = machine.release()
    begun = anyio.Event()

    @killed.cron("0 9 * * *", name="report")
    async def hangs() -> None:
        begun.set()
        await anyio.sleep_forever()

    await killed.tick()
    machine.reach("06-01T09:00:00")
    engine = await killed.ready()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(killed.tick)
        await begun.wait()
        await engine.runtime.store.close()  # whatever it does from now on does not reach the store
        tasks.cancel_scope.cancel()
    machine.reach("06-01T09:00:20")
    assert [] == await machine.run("0 9 * * *")
    machine.reach("06-01T09:00:40")
    assert utc("06-01T09:00") == await machine.run("0 9 * * *", "06-01T09:59")


@pytest.mark.parametrize("catch_up", ["latest", "all", "none"])
async def test_a_new_cron_never_backfills(make: Make, catch_up: str) -> None:
    """Whatever it catches up otherwise, it begins with the next slot; one that is due this instant has passed."""
    machine = make("06-01T09:00")
    slots = await machine.run("*/20 * * * *", "06-01T09:19", "06-01T09:20", catch_up=catch_up)
    assert utc("06-01T09:20") == slots


@pytest.mark.parametrize(
    ("changed", "options", "expected"),
    [
        pytest.param("15 * * * *", {}, ["06-01T12:15", "06-01T13:15"], id="expression"),
        pytest.param("0 13,22 * * *", {"tz": "Asia/Tokyo"}, ["06-01T22:00"], id="zone"),
        pytest.param("0 * * * *", {"catch_up": "all"}, ["06-01T13:00"], id="catch-up"),
    ],
)
async def test_a_changed_schedule_takes_effect_and_never_backfills(
    make: Make, changed: str, options: dict[str, Any], expected: list[str]
) -> None:
    """The old one's missed slots are gone with it; the new one begins with its next slot."""
    machine = make("06-01T08:59")
    assert utc("06-01T09:00") == await machine.run("0 * * * *", "06-01T09:00")
    machine.reach("06-01T12:10")
    slots = await machine.run(changed, "06-01T12:15", "06-01T13:00", "06-01T13:16", **options)
    assert [slot[5:16] for slot in slots] == expected


async def test_a_changed_schedule_may_come_back(make: Make) -> None:
    """A roll-back is a change too. A slot that both schedules have is run once."""
    machine = make("06-01T08:59")
    assert utc("06-01T09:00") == await machine.run("0 * * * *", "06-01T09:00")
    assert utc("06-01T09:30") == await machine.run("*/30 * * * *", "06-01T09:30:10")
    assert utc("06-01T10:00") == await machine.run("0 * * * *", "06-01T10:00:20")
    assert utc("06-01T10:30") == await machine.run("*/30 * * * *", "06-01T10:00:40", "06-01T10:30")


async def test_an_older_release_that_runs_on_follows_the_schedule_in_force(make: Make) -> None:
    """In a rolling deployment the last one to start has put its schedule in force, and all run its slots."""
    machine = make("06-01T08:59")
    old, old_slots = reporting("0 * * * *", machine.release(scheduler=OFTEN))
    with anyio.fail_after(10):
        async with old:
            while (await (await old.ready()).runtime.store.sessions()) == []:
                await rounds()
            assert [] == await machine.run("*/20 * * * *")
            machine.reach("06-01T09:20:01")
            while len(old_slots) < 1:
                await rounds()
    assert utc("06-01T09:20") == old_slots


async def test_a_removed_crons_sessions_are_left_alone(make: Make) -> None:
    """Nothing of it runs, fails or is removed; other crons go on. Back again, it is a server that was down."""
    machine = make("06-01T08:59")
    await machine.run("0 * * * *", "06-01T09:00")
    other, slots = reporting("30 * * * *", machine.release(), name="other")
    store = (await other.ready()).runtime.store
    key = SessionKey("cron:report", "slots")
    before = [info for info in await store.sessions() if info.key == key]
    assert [ms("2026-06-01T10:00")] == [info.wake_at_ms for info in before]
    for time in ("06-01T09:30", "06-01T10:30"):
        machine.reach(time)
        await other.tick()
    assert before == [info for info in await store.sessions() if info.key == key]
    assert utc("06-01T10:30") == slots
    await other.close()
    assert utc("06-01T10:00", "06-01T11:00") == await machine.run("0 * * * *", "06-01T11:00")


async def test_a_clock_that_is_set_back_runs_nothing_twice(make: Make) -> None:
    """Nothing is run again for the time that comes twice."""
    machine = make("06-01T08:59")
    assert utc("06-01T09:00", "06-01T09:05") == await machine.run("*/5 * * * *", "06-01T09:00", "06-01T09:05")
    machine.clock = ManualClock(machine.clock.now_ms() - 10 * MINUTE_MS)
    assert utc("06-01T09:10") == await machine.run("*/5 * * * *", "06-01T09:00", "06-01T09:05", "06-01T09:10")


@within(10)
async def test_a_start_that_finds_no_store_puts_its_crons_in_force_once_it_does(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And runs no slot of before that: the schedule began when it was written down."""
    monkeypatch.setattr("a2asgi.ticks.UPKEEP_RETRY_MS", 1)
    clock = ManualClock(ms("2026-06-01T08:59"))
    store = ScriptedStore(clock=clock)
    store.fail_next("other", 3)
    a2, slots = reporting("0 * * * *", A2(store=store, scheduler=OFTEN))
    async with a2:
        while not await store.sessions():
            await rounds()
        clock.move_to(ms("2026-06-01T09:00"))
        while not slots:
            await rounds()
    assert utc("06-01T09:00") == slots
    assert 3 == caplog.text.count("the upkeep waits for the store")


async def test_a_schedule_at_the_end_of_the_calendar_has_no_slot_any_more(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock(ms("9999-12-31T23:58:30"))
    a2, slots = reporting("* * * * *", A2(store=MemoryStore(clock=clock)))
    await a2.tick()
    clock.move_to(ms("9999-12-31T23:59:30"))
    assert 1 == (await a2.tick()).settled
    assert ["9999-12-31T23:59:00+00:00"] == slots
    await a2.tick()
    assert "cron:report has no slot any more" in caplog.text
