"""Cron expressions: the instants at which a five-field expression in a time zone is due."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from cronsim import CronSim, CronSimError

from a2asgi.errors import InvalidSchedule
from a2core import MINUTE_MS

MAX_EXPRESSION: Final = 1_000
"""Characters: room for a list of every value in every field, and no more than is read at once."""

_FIELDS: Final = {
    "minute": "0 to 59",
    "hour": "0 to 23",
    "day-of-month": "1 to 31",
    "month": "1 to 12 or jan to dec",
    "day-of-week": "0 to 7 or sun to sat (0 and 7 are Sunday)",
}
_BLANKS: Final = re.compile(r"[ \t\n\r\f\v]+")
_VALUE: Final = r"(?:[0-9]+|[A-Z]{3})"
_TERM: Final = rf"(?:\*|{_VALUE}(?:-{_VALUE})?)(?:/[0-9]+)?"
_LIST: Final = re.compile(rf"{_TERM}(?:,{_TERM})*", re.ASCII | re.IGNORECASE)
"""What Debian's cron and cronsim both know, so none of cronsim's own L, W and #."""

_STEPPED_POINT: Final = re.compile(r"\b0*(\w+)-0*\1/0*[1-9][0-9]*\b", re.ASCII | re.IGNORECASE)
"""`5-5/9` is 5, as in Debian's cron; cronsim takes it for `5/9`, which is 5, 14, 23 and on."""

_NO_ZONES: Final = re.compile(r"localtime|posixrules|(posix|right)/.*", re.DOTALL)
"""Files beside the zones of some machines: the machine's own zone, and clocks that count leap seconds."""

_DAY_MS: Final = 86_400_000
_MINUTE: Final = timedelta(minutes=1)
_START: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH: Final = _START.toordinal()
_LAST: Final = date.max.toordinal()


@dataclass(frozen=True, slots=True)
class Crontab:
    """A cron expression of five fields, as Debian's cron reads them, and the IANA time zone whose clock it follows.

    Names and `7` for Sunday are understood. A day is due if its day of the month or its day of the week is; if one of
    the two begins with a star (`*/2` does), both must be. A slot is a whole minute, in milliseconds since the Unix
    epoch, from the year 1 to 9999. Where the zone's clock is changed: if the minute or the hour begins with a star,
    a slot is each minute of real time whose local time is due; else each local time that is due has one slot, its
    first occurrence, or the first minute after the gap that it fell into (wire.md 11.9).

    Raises InvalidSchedule, which names the field that is wrong, for what is never due too.
    """

    expression: str
    tz: str = "UTC"
    _zone: tzinfo = field(init=False, repr=False, compare=False)
    _fields: CronSim = field(init=False, repr=False, compare=False)
    _times_ms: Sequence[int] = field(init=False, repr=False, compare=False)
    _is_elapsed: bool = field(init=False, repr=False, compare=False)
    _memo: list[tuple[int, Sequence[int]]] = field(
        init=False, repr=False, compare=False, default_factory=lambda: [(0, (0,))]
    )
    """One item, (since, slots): those slots are all from `since` up to the last of them. A thread that loses a race
    for it has lost no more than time."""

    def __post_init__(self) -> None:
        parts, fields = _parsed(self.expression)
        times_ms = [(hour * 60 + minute) * MINUTE_MS for hour in fields.hours for minute in fields.minutes]
        object.__setattr__(self, "_zone", _zone_of(self.tz))
        object.__setattr__(self, "_fields", fields)
        object.__setattr__(self, "_times_ms", sorted(times_ms))
        object.__setattr__(self, "_is_elapsed", any(part.startswith("*") for part in parts[:2]))

    def next_ms(self, after_ms: int) -> int | None:
        """The first slot after that instant; None if there is none up to the year 9999."""
        since_ms, slots = self._memo[0]
        if not since_ms <= after_ms < slots[-1]:
            slots = self._following(after_ms)
            if not slots:
                return None
            self._memo[0] = after_ms, slots
        return slots[bisect_right(slots, after_ms)]

    def slots_ms(self, after_ms: int, until_ms: int, limit: int) -> list[int]:
        """The slots after one instant and up to another, ascending, of which the first `limit`."""
        slots: list[int] = []
        while len(slots) < limit:
            slot = self.next_ms(slots[-1] if slots else after_ms)
            if slot is None or slot > until_ms:
                break
            slots.append(slot)
        return slots

    def latest_ms(self, after_ms: int, until_ms: int) -> int | None:
        """The last slot after one instant and up to another, None if there is none.

        It looks back from the end, so the work is bounded by the longest pause (40 years, between two 29 February that
        are both a Sunday), never by how much time has passed.
        """
        first, day = _ordinal(after_ms), _ordinal(until_ms)
        while (due := self._due_date(range(day + 1, first - 2, -1))) is not None:
            day = min(day, due + 1)
            slots = self._slots_on(day)
            if (found := bisect_right(slots, until_ms)) and slots[found - 1] > after_ms:
                return slots[found - 1]
            day -= 1
        return None

    def is_slot(self, at_ms: int) -> bool:
        """Whether a slot begins at that very instant."""
        day = _ordinal(at_ms)
        return any(at_ms in self._slots_of(local) for local in (day - 1, day, day + 1))

    def _following(self, after_ms: int) -> list[int]:
        """The slots after an instant of the first UTC date that has any; empty if none has."""
        day = _ordinal(after_ms)
        while (due := self._due_date(range(day - 1, _LAST + 1))) is not None:
            day = max(day, due - 1)
            slots = self._slots_on(day)
            if found := slots[bisect_right(slots, after_ms) :]:
                return found
            day += 1
        return []

    def _due_date(self, days: range) -> int | None:
        """The first of these local dates, in days of the calendar, that is due."""
        return next((day for day in days if self._is_due(day)), None)

    def _is_due(self, day: int) -> bool:
        if not 1 <= day <= _LAST:
            return False
        local = date.fromordinal(day)
        return local.month in self._fields.months and self._fields.match_day(local)

    def _slots_on(self, day: int) -> list[int]:
        """The slots of a UTC date, ascending.

        They are those of the local dates around it, for no zone is a day away; and these are not in order where a
        clock is set back over midnight.
        """
        if not 1 <= day <= _LAST:
            return []
        begin_ms = (day - _EPOCH) * _DAY_MS
        slots = {slot for local in (day - 1, day, day + 1) for slot in self._slots_of(local)}
        return sorted(slot for slot in slots if begin_ms <= slot < begin_ms + _DAY_MS)

    def _slots_of(self, day: int) -> list[int]:
        """The slots that the times of a local date have, in any order."""
        return self._slots_at(datetime.fromordinal(day), self._times_ms) if self._is_due(day) else []

    def _slots_at(self, midnight: datetime, times_ms: Sequence[int]) -> list[int]:
        """The slots of these times of a local date: all at once, unless the clock is changed between them."""
        first, last = (midnight + timedelta(milliseconds=time_ms) for time_ms in (times_ms[0], times_ms[-1]))
        offsets = {_offset_ms(self._zone, local, fold) for local in (first, last) for fold in (0, 1)}
        if len(offsets) == 1:  # no zone's clock was ever changed, and changed back, on one day
            midnight_ms = (midnight.toordinal() - _EPOCH) * _DAY_MS - offsets.pop()
            return [midnight_ms + time_ms for time_ms in times_ms]
        if len(times_ms) == 1:
            return self._slots_near_change(first)
        half = len(times_ms) // 2
        return self._slots_at(midnight, times_ms[:half]) + self._slots_at(midnight, times_ms[half:])

    def _slots_near_change(self, local: datetime) -> list[int]:
        """The slots of a local time that comes twice or never."""
        earlier, later = _offset_ms(self._zone, local, 0), _offset_ms(self._zone, local, 1)
        utc_ms = (local - _START.replace(tzinfo=None)) // _MINUTE * MINUTE_MS
        if earlier > later:  # it comes twice
            return [utc_ms - earlier, utc_ms - later] if self._is_elapsed else [utc_ms - earlier]
        if self._is_elapsed:  # it never comes
            return []
        around = range(utc_ms - later, utc_ms - earlier + 1, MINUTE_MS)
        return [around[bisect_left(around, later, key=lambda at_ms: _offset_at_ms(self._zone, at_ms))]]


def _ordinal(at_ms: int) -> int:
    """The UTC date of an instant as the calendar counts days, or the nearest that is just outside of it."""
    return min(max(at_ms // _DAY_MS + _EPOCH, 0), _LAST + 1)


def _offset_ms(zone: tzinfo, local: datetime, fold: int) -> int:
    """How far a zone's local time is ahead of UTC, in whole minutes, so that a slot is one (until 1972 not all were).

    Of a time that comes twice, fold 0 is the first; of one that is skipped, 0 has the offset before (PEP 495).
    """
    offset = local.replace(tzinfo=zone, fold=fold).utcoffset() or timedelta()
    return offset // _MINUTE * MINUTE_MS


def _offset_at_ms(zone: tzinfo, at_ms: int) -> int:
    offset = (_START + timedelta(milliseconds=at_ms)).astimezone(zone).utcoffset() or timedelta()
    return offset // _MINUTE * MINUTE_MS


def _zone_of(tz: object) -> tzinfo:
    """The zone of an IANA key. UTC needs no database."""
    if tz == "UTC":
        return UTC
    if isinstance(tz, str) and not _NO_ZONES.fullmatch(tz):
        try:
            return ZoneInfo(tz)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            pass  # an unknown key, a path, a file that holds no zone
    text = f'expected the IANA key of a time zone, such as "Europe/Berlin" or "UTC", got {tz!r}'
    if not available_timezones():
        text += "; this machine has no time zone database: install the package tzdata"
    raise InvalidSchedule(text)


def _parsed(expression: object) -> tuple[list[str], CronSim]:
    """The five fields as they were written, and their values."""
    if not isinstance(expression, str):
        raise InvalidSchedule(f'expected a cron expression such as "0 9 * * mon-fri", got {expression!r}')
    if len(expression) > MAX_EXPRESSION:
        raise InvalidSchedule(f"expected a cron expression of up to {MAX_EXPRESSION} characters, got {len(expression)}")
    parts = [part for part in _BLANKS.split(expression) if part]
    if len(parts) != len(_FIELDS):
        raise InvalidSchedule(
            f"expected a cron expression of the five fields {', '.join(_FIELDS)}, "
            f'such as "0 9 * * mon-fri", got {expression!r} with {len(parts)}'
        )
    for index, (name, values) in enumerate(_FIELDS.items()):
        alone = [part if index == other else "*" for other, part in enumerate(parts)]
        if not _LIST.fullmatch(parts[index]) or _simulated(alone) is None:
            raise InvalidSchedule(
                f"expected the field {name} of the cron expression {expression!r} to be * or of {values}, "
                f"as a list 1,2, a rising range 1-5 or a step */2, got {parts[index]!r}"
            )
    fields = _simulated(parts)
    if fields is None:  # each field is right, so it can only be the date
        raise InvalidSchedule(
            f"expected the field day-of-month of the cron expression {expression!r} to be a day that its months have, "
            f"got {parts[2]!r}, which would never be due: write another day or month"
        )
    return parts, fields


def _simulated(parts: list[str]) -> CronSim | None:
    try:
        return CronSim(_STEPPED_POINT.sub(r"\1", " ".join(parts)), _START)
    except CronSimError:
        return None
