"""Time arguments: what is understood, what is refused, and that nothing is ever early."""

from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2asgi import InvalidTime
from a2asgi.times import duration_ms, from_ms, instant_ms

BERLIN = ZoneInfo("Europe/Berlin")
LAST_MS = 253_402_300_799_999
MILLISECOND = timedelta(milliseconds=1)
MICROSECOND = timedelta(microseconds=1)


class Shapeless(tzinfo):
    """A time zone that does not know its own offset, which leaves a datetime naive."""

    def utcoffset(self, _: datetime | None) -> None:
        return None

    def dst(self, _: datetime | None) -> None:
        return None

    def tzname(self, _: datetime | None) -> None:
        return None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0s", 0),
        ("1ms", 1),
        ("15m", 900_000),
        ("2h", 7_200_000),
        ("3d", 259_200_000),
        ("1w", 604_800_000),
        ("007s", 7_000),
        ("999999999ms", 999_999_999),
        (timedelta(), 0),
        (timedelta(minutes=15), 900_000),
        (timedelta(days=1, milliseconds=1), 86_400_001),
        pytest.param(MICROSECOND, 1, id="rounded-up"),
        pytest.param(MILLISECOND + MICROSECOND, 2, id="rounded-up-again"),
        pytest.param(timedelta(milliseconds=LAST_MS), LAST_MS, id="longest"),
    ],
)
def test_a_duration_is_understood(value: timedelta | str, expected: int) -> None:
    """A text of digits and a unit, or a timedelta, is a number of milliseconds, rounded up."""
    assert expected == duration_ms(value)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "15",
        "m",
        "15 m",
        " 15m",
        "15m\n",
        "15M",
        "1.5h",
        "-5m",
        "+5m",
        "1h30m",
        "15min",
        "1e3s",
        "\u0661m",
        "9999999999s",
        15,
        1.5,
        None,
        True,
        b"15m",
        datetime(2026, 1, 1, tzinfo=UTC),
    ],
    ids=ascii,
)
def test_another_duration_is_refused(value: Any) -> None:
    """Whatever else stands for a duration is refused, with the forms to write."""
    with pytest.raises(InvalidTime, match=r'such as "15m" or timedelta\(minutes=15\)'):
        duration_ms(value)


@pytest.mark.parametrize(
    "value",
    [
        timedelta(seconds=-1),
        pytest.param(-MICROSECOND * 1_000, id="minus-a-millisecond"),
        timedelta(milliseconds=LAST_MS + 1),
        timedelta.max,
        timedelta.min,
        "999999999w",
    ],
    ids=ascii,
)
def test_an_extreme_duration_is_refused(value: timedelta | str) -> None:
    """A negative duration, or one that outlasts the calendar, is refused and named."""
    with pytest.raises(InvalidTime, match="from zero to thousands of years"):
        duration_ms(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(2026, 12, 1, tzinfo=UTC), 1_796_083_200_000),
        (datetime(2026, 12, 1, 1, tzinfo=BERLIN), 1_796_083_200_000),
        pytest.param(datetime(1970, 1, 1, microsecond=1, tzinfo=UTC), 1, id="rounded-up"),
        pytest.param(datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), 0, id="rounded-up-to-zero"),
        pytest.param(datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN), 1_792_888_200_000, id="A1-first-02:30"),
        pytest.param(datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1), 1_792_891_800_000, id="A1-second-02:30"),
        pytest.param(datetime(1, 1, 1, tzinfo=UTC), -62_135_596_800_000, id="first-year"),
        pytest.param(datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))), -62_135_647_200_000, id="before-it"),
        pytest.param(datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC), LAST_MS, id="last-millisecond"),
    ],
)
def test_an_instant_is_understood(value: datetime, expected: int) -> None:
    """An aware datetime of any zone is its milliseconds since the epoch, rounded up."""
    assert expected == instant_ms(value)


@pytest.mark.parametrize(
    "value",
    [datetime(2026, 12, 1, 9, 30), datetime(2026, 12, 1, 9, 30, tzinfo=Shapeless())],  # noqa: DTZ001 - the point
    ids=["no-zone", "zone-without-offset"],
)
def test_a_naive_datetime_is_refused(value: datetime) -> None:
    """A datetime that does not say whose clock it was read from is refused, with what to add."""
    with pytest.raises(InvalidTime, match=r"the naive 2026-12-01T09:30:00; add tzinfo=UTC"):
        instant_ms(value)


@pytest.mark.parametrize("value", [date(2026, 12, 1), 0, "2026-12-01", None, timedelta(1)], ids=ascii)
def test_another_instant_is_refused(value: Any) -> None:
    """What is no datetime is refused by its type's name."""
    with pytest.raises(InvalidTime, match=f"expected an aware datetime, got {type(value).__name__}"):
        instant_ms(value)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(datetime.max.replace(tzinfo=UTC), id="last-microsecond"),
        pytest.param(datetime.max.replace(tzinfo=timezone(-timedelta(hours=12))), id="year-10000-in-UTC"),
    ],
)
def test_an_instant_after_the_calendar_is_refused(value: datetime) -> None:
    """An instant that rounds up past the year 9999 is refused, since no receipt could ever show it."""
    with pytest.raises(InvalidTime):
        instant_ms(value)


@given(st.datetimes(max_value=datetime(9999, 12, 30), timezones=st.timezones() | st.just(UTC)))  # noqa: DTZ001 - a bound
def test_no_instant_is_early(value: datetime) -> None:
    """An instant comes back as the same one, or up to a millisecond later."""
    late = from_ms(instant_ms(value)) - value
    assert timedelta() <= late < MILLISECOND


@given(st.timedeltas(min_value=timedelta(), max_value=timedelta(days=2_000_000)))
def test_no_duration_is_short(value: timedelta) -> None:
    """A duration is kept whole, or made up to a millisecond longer."""
    assert timedelta() <= timedelta(milliseconds=duration_ms(value)) - value < MILLISECOND
