"""Definitions of crons: what is refused when it is declared, and which slots a definition has to come."""

import json
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from a2asgi import A2, Cron, InvalidName, InvalidSchedule, InvalidTime, WiringError
from a2asgi.times import instant_ms
from tests.asgi.slots import at, ms

# ── declarations ─────────────────────────────────────────────────────────────────────────


async def nothing() -> None: ...


@pytest.mark.parametrize(
    ("expression", "options", "error", "expected"),
    [
        pytest.param("60 * * * *", {}, InvalidSchedule, "the field minute", id="minute"),
        pytest.param("* * * *", {}, InvalidSchedule, "five fields", id="four-fields"),
        pytest.param("@hourly", {}, InvalidSchedule, "five fields", id="nickname"),
        pytest.param("0 0 31 2 *", {}, InvalidSchedule, "never be due", id="never"),
        pytest.param("* * * * *", {"tz": "Mars/Olympus"}, InvalidSchedule, "Mars/Olympus", id="zone"),
        pytest.param("* * * * *", {"catch_up": "some"}, WiringError, "'latest', 'all', 'none'", id="catch-up"),
        pytest.param("* * * * *", {"keep": "119m"}, WiringError, "keep='2h' or more, got '119m'", id="keep"),
        pytest.param("* * * * *", {"keep": timedelta(hours=1)}, WiringError, "keep='2h' or more", id="keep-timedelta"),
        pytest.param("* * * * *", {"name": "a/b"}, WiringError, "without a slash", id="slash"),
        pytest.param("* * * * *", {"name": "."}, WiringError, "neither '.' nor '..'", id="dot"),
        pytest.param("* * * * *", {"name": ".."}, WiringError, "neither '.' nor '..'", id="dots"),
        pytest.param("* * * * *", {"retries": -1}, WiringError, "retries", id="retries"),
        pytest.param("* * * * *", {"timeout": "0s"}, WiringError, "positive timeout", id="timeout"),
        pytest.param("* * * * *", {"name": "\ud800"}, InvalidName, "surrogate", id="surrogate"),
    ],
)
def test_a_cron_that_makes_no_sense_is_refused_when_it_is_declared(
    expression: str, options: dict[str, Any], error: type[Exception], expected: str
) -> None:
    with pytest.raises(error) as raised:
        A2().cron(expression, **options)(nothing)
    assert expected in str(raised.value)


def two(slot: datetime, other: datetime) -> None: ...
def flag(verbose: bool = False) -> None: ...  # noqa: FBT001, FBT002 - it is what is refused
def text(slot: str) -> None: ...
def many(*slots: datetime) -> None: ...
def undefined(slot: "Undefined") -> None: ...  # type: ignore[name-defined]  # noqa: F821 - as above


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (two, "at most one parameter"),
        (flag, "'verbose' gets the slot: expected it to be a datetime, got bool"),
        (text, "'slot' gets the slot: expected it to be a datetime, got str"),
        (many, "slots"),
        (undefined, "Undefined"),
    ],
)
def test_a_function_that_cannot_take_a_slot_is_refused(function: Callable[..., Any], expected: str) -> None:
    """Both as a cron and as a maintenance task; the text names the function."""
    for decorate in (A2().cron("* * * * *"), A2().maintenance()):
        with pytest.raises(WiringError) as raised:
            decorate(function)
        assert expected in str(raised.value)
        assert function.__name__ in str(raised.value)


def test_a_slot_may_be_taken_as_whatever_a_datetime_is() -> None:
    def day(slot: date) -> None: ...

    def anything(slot: Any) -> None: ...

    def maybe(slot: datetime | None = None) -> None: ...

    a2 = A2()
    for function in (day, anything, maybe):
        a2.cron("* * * * *")(function)
    assert ["cron:anything", "cron:day", "cron:maybe"] == sorted(a2.crons)


def test_a_name_stands_for_one_cron() -> None:
    """Of one kind: a cron, a maintenance task and a job may share it."""
    a2 = A2()
    a2.cron("* * * * *")(nothing)
    a2.maintenance()(nothing)
    a2.job()(nothing)
    a2.cron("0 * * * *", name="hourly")(nothing)
    with pytest.raises(WiringError, match="declared twice"):
        a2.cron("0 0 * * *")(nothing)
    with pytest.raises(WiringError, match="cron:"):
        a2.contract("cron:nothing")
    assert ["cron:hourly", "cron:nothing", "maintenance:nothing"] == sorted(a2.crons)


def test_a_schedule_is_kept_as_text() -> None:
    """As JSON, which every version of the code can read."""
    found = A2().cron("0 9 * * mon-fri", tz="Europe/Berlin", catch_up="all")(nothing)
    assert found.definition.recurrence is not None
    rule = json.loads(found.definition.recurrence[0])
    assert {"cron": "0 9 * * mon-fri", "tz": "Europe/Berlin", "catch_up": "all"} == rule
    assert "Cron('cron:nothing', Crontab(expression='0 9 * * mon-fri', tz='Europe/Berlin'))" == repr(found)


# ── slots to come ────────────────────────────────────────────────────────────────────────


def cron(expression: str, tz: str = "UTC") -> Cron[..., Any]:
    return A2().cron(expression, tz=tz, name="c")(lambda: None)


async def test_the_next_slots_are_those_after_now() -> None:
    a2 = A2()

    @a2.cron("0 9 * * mon-fri", tz="Asia/Tokyo")
    async def report() -> None: ...

    async with a2.testing():
        assert ["2026-01-02T09:00:00+09:00"] == [slot.isoformat() for slot in report.next()]
        assert [(2, 9), (5, 9), (6, 9)] == [(slot.day, slot.hour) for slot in report.next(3)]
        assert {ZoneInfo("Asia/Tokyo")} == {slot.tzinfo for slot in report.next(3)}


@pytest.mark.parametrize(
    ("expression", "tz", "after", "expected"),
    [
        pytest.param(
            "30 2 * * *",
            "Europe/Berlin",
            "2026-10-24T12:00:00+02:00",
            ["10-25T00:30", "10-26T01:30", "10-27T01:30", "10-28T01:30"],
            id="a1",
        ),
        pytest.param("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", ["03-29T01:00", "03-30T00:30"], id="a2"),
        pytest.param("0 9 * * *", "UTC", "2026-05-01T09:00", ["05-02T09:00"], id="a-slot-is-not-after-itself"),
        pytest.param("0 9 * * *", "UTC", "2026-05-01T08:59:59.999", ["05-01T09:00"], id="just-before"),
        pytest.param("0 9 * * *", "UTC", "2026-05-01T18:00:00+14:00", ["05-01T09:00"], id="after-in-another-zone"),
    ],
)
def test_the_next_slots_after_an_instant(expression: str, tz: str, after: str, expected: list[str]) -> None:
    """Across a change of the clock too, in the cron's own zone."""
    slots = cron(expression, tz).next(len(expected), after=at(after))
    assert [ms(f"2026-{text}") for text in expected] == [instant_ms(slot) for slot in slots]
    assert {ZoneInfo(tz)} == {slot.tzinfo for slot in slots}


def test_as_many_slots_as_there_are() -> None:
    """None, where none are asked for, nor for what has no schedule, nor past the calendar's end."""
    daily = cron("0 0 * * *")
    assert [] == daily.next(0)
    assert [] == A2().maintenance(name="m")(lambda: None).next(3)
    assert [datetime(9999, 12, 31, tzinfo=UTC)] == daily.next(3, after=datetime(9999, 12, 30, 12, tzinfo=UTC))


def test_the_slots_after_a_naive_instant_are_not_known() -> None:
    with pytest.raises(InvalidTime, match="naive"):
        cron("0 0 * * *").next(after=datetime(2026, 1, 1))  # noqa: DTZ001 - it is refused
