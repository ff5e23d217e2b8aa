"""Time arguments as users write them: a timedelta, an aware datetime, or a text such as "15m"."""

import re
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from a2asgi.errors import InvalidTime

Duration: TypeAlias = timedelta | str

_TEXT = re.compile(r"([0-9]{1,9})(ms|s|m|h|d|w)", re.ASCII)
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAX_MS = 253_402_300_799_999
"""The end of the year 9999, which is as far as a datetime goes."""


def duration_ms(value: Duration) -> int:
    """Milliseconds of a duration, rounded up so that nothing is early. Raises InvalidTime for anything else."""
    match = _TEXT.fullmatch(value) if isinstance(value, str) else None
    if isinstance(value, timedelta):
        milliseconds = _rounded_up(value)
    elif match is not None:
        milliseconds = int(match[1]) * _UNITS_MS[match[2]]
    else:
        raise InvalidTime(f'expected a duration such as "15m" or timedelta(minutes=15), got {value!r}')
    if not 0 <= milliseconds <= MAX_MS:
        raise InvalidTime(f"expected a duration from zero to thousands of years, got {value!r}")
    return milliseconds


def instant_ms(value: datetime) -> int:
    """Milliseconds since the Unix epoch, rounded up so that nothing is early.

    Raises InvalidTime for a naive datetime, since whose clock it was read from is unknown, and past the year 9999.
    """
    if not isinstance(value, datetime):
        raise InvalidTime(f"expected an aware datetime, got {type(value).__name__}")
    if value.utcoffset() is None:
        raise InvalidTime(f"expected an aware datetime, got the naive {value.isoformat()}; add tzinfo=UTC")
    return check_instant(_rounded_up(value - _EPOCH))


def check_instant(milliseconds: int) -> int:
    """The instant, if the calendar has it. Raises InvalidTime past the year 9999."""
    if milliseconds > MAX_MS:
        raise InvalidTime(f"expected an instant up to the year 9999, got {milliseconds} ms after 1970")
    return milliseconds


def from_ms(milliseconds: int) -> datetime:
    """The instant as an aware datetime in UTC, or the calendar's last one."""
    return _EPOCH + timedelta(milliseconds=min(milliseconds, MAX_MS))


def _rounded_up(value: timedelta) -> int:
    return value.days * _UNITS_MS["d"] + value.seconds * _UNITS_MS["s"] - (-value.microseconds // 1_000)
