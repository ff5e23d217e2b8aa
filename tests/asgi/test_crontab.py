"""Cron expressions: what is understood and refused, and that every zone's clock has each slot, once, in order."""

import pickle
import re
from bisect import bisect_right
from calendar import monthrange
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2asgi import crontab as room
from a2asgi.crontab import Crontab
from a2asgi.errors import InvalidSchedule

START = datetime(1970, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
LAST_MS = 253_402_300_799_999
MANY = 1_000_000


def ms(text: str) -> int:
    """The instant of an ISO text, in UTC unless it says otherwise."""
    value = datetime.fromisoformat(text)
    return (value.replace(tzinfo=value.tzinfo or UTC) - START) // timedelta(milliseconds=1)


def iso(at_ms: int | None) -> str | None:
    return None if at_ms is None else f"{START + timedelta(milliseconds=at_ms):%Y-%m-%dT%H:%MZ}"


def walk(crontab: Crontab, after_ms: int, count: int) -> list[str | None]:
    return [iso(slot_ms) for slot_ms in crontab.slots_ms(after_ms, LAST_MS, count)]


@pytest.mark.parametrize(
    ("expression", "tz", "after", "expected"),
    [
        pytest.param(
            "30 2 * * *",
            "Europe/Berlin",
            "2026-10-24T12:00+02:00",
            ["2026-10-25T00:30Z", "2026-10-26T01:30Z", "2026-10-27T01:30Z", "2026-10-28T01:30Z"],
            id="A1-once",
        ),
        pytest.param(
            "*/30 * * * *",
            "Europe/Berlin",
            "2026-10-25T01:45+02:00",
            ["2026-10-25T00:00Z", "2026-10-25T00:30Z", "2026-10-25T01:00Z", "2026-10-25T01:30Z", "2026-10-25T02:00Z"],
            id="A1-elapsed-minutes",
        ),
        pytest.param(
            "0 */2 * * *",
            "Europe/Berlin",
            "2026-10-25T01:45+02:00",
            ["2026-10-25T00:00Z", "2026-10-25T01:00Z", "2026-10-25T03:00Z"],
            id="A1-elapsed-hours",
        ),
        pytest.param(
            "30 2 * * *",
            "Europe/Berlin",
            "2026-03-28T12:00+01:00",
            ["2026-03-29T01:00Z", "2026-03-30T00:30Z"],
            id="A2-Berlin",
        ),
        pytest.param(
            "0 0 * * 0",
            "America/Santiago",
            "2026-08-31",
            ["2026-09-06T04:00Z", "2026-09-13T03:00Z"],
            id="A2-Santiago",
        ),
        pytest.param(
            "15 2 * * *",
            "Australia/Lord_Howe",
            "2026-10-03",
            ["2026-10-03T15:30Z", "2026-10-04T15:15Z"],
            id="A2-Lord-Howe",
        ),
        pytest.param(
            "0 0 * * *",
            "Africa/Cairo",
            "2026-04-23T12:00",
            ["2026-04-23T22:00Z", "2026-04-24T21:00Z"],
            id="A2-Cairo",
        ),
        pytest.param(
            "0 20 * * *",
            "Europe/Paris",
            "2022-10-30T00:00+02:00",
            ["2022-10-30T19:00Z", "2022-10-31T19:00Z", "2022-11-01T19:00Z"],
            id="A4",
        ),
        pytest.param(
            "0,30 2,3 * * *",
            "Europe/Berlin",
            "2026-03-29",
            ["2026-03-29T01:00Z", "2026-03-29T01:30Z", "2026-03-30T00:00Z"],
            id="skipped-times-share-a-slot",
        ),
        pytest.param(
            "0 */2 * * *",
            "Australia/Lord_Howe",
            "2026-04-04T14:00",
            ["2026-04-04T15:30Z", "2026-04-04T17:30Z"],
            id="half-an-hour-back-over-an-hour",
        ),
        pytest.param(
            "0 */2 * * *",
            "America/St_Johns",
            "2010-11-07T00:30",
            ["2010-11-07T02:30Z", "2010-11-07T03:30Z", "2010-11-07T05:30Z"],
            id="back-over-midnight",
        ),
        pytest.param(
            "30 12 * * *",
            "Pacific/Apia",
            "2011-12-29T12:00",
            ["2011-12-29T22:30Z", "2011-12-30T10:00Z", "2011-12-30T22:30Z"],
            id="a-day-skipped",
        ),
        pytest.param("0 0 * * *", "Africa/Monrovia", "1971-01-01", ["1971-01-01T00:45Z"], id="offset-of-seconds"),
    ],
)
def test_slots_at_a_change_of_the_clock(expression: str, tz: str, after: str, expected: list[str]) -> None:
    """Fixed times run once, stars follow real time (peer-bugs A1, A2, A4)."""
    assert expected == walk(Crontab(expression, tz), ms(after), len(expected))


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("* * * * *", ["2026-11-01T00:01Z", "2026-11-01T00:02Z"]),
        ("0 0 13 * 5", ["2026-11-06T00:00Z", "2026-11-13T00:00Z", "2026-11-20T00:00Z"]),
        ("0 0 */2 * 5", ["2026-11-13T00:00Z", "2026-11-27T00:00Z"]),
        ("0 0 13 * */2", ["2026-12-13T00:00Z", "2027-02-13T00:00Z"]),
        ("0 0 * * 7", ["2026-11-08T00:00Z"]),
        ("0 0 * * 5-7", ["2026-11-06T00:00Z", "2026-11-07T00:00Z", "2026-11-08T00:00Z", "2026-11-13T00:00Z"]),
        ("5 4 * * sun", ["2026-11-01T04:05Z", "2026-11-08T04:05Z"]),
        ("5 4 1 Jan-MAR/2 *", ["2027-01-01T04:05Z", "2027-03-01T04:05Z"]),
        ("0 9 * * mon-fri", ["2026-11-02T09:00Z"]),
        ("\t00\n09  *\r\n* *\n", ["2026-11-01T09:00Z"]),
        ("5/20 0 * * *", ["2026-11-01T00:05Z", "2026-11-01T00:25Z", "2026-11-01T00:45Z", "2026-11-02T00:05Z"]),
        ("5-5/20 0 * * *", ["2026-11-01T00:05Z", "2026-11-02T00:05Z"]),
        ("5-05/20,15-5 0 * * *", None),
        ("0 0 29 2 *", ["2028-02-29T00:00Z", "2032-02-29T00:00Z"]),
        ("0 0 29 2 */7", ["2032-02-29T00:00Z", "2060-02-29T00:00Z", "2088-02-29T00:00Z", "2128-02-29T00:00Z"]),
        ("0 0 31 2 mon", ["2027-02-01T00:00Z"]),
    ],
)
def test_an_expression_is_read_as_debians_cron_reads_it(expression: str, expected: list[str] | None) -> None:
    """Five fields with names, 7 for Sunday, steps; a day of the month or of the week, both with a star (A6)."""
    if expected is None:
        with pytest.raises(InvalidSchedule):
            Crontab(expression)
    else:
        assert expected == walk(Crontab(expression), ms("2026-11-01"), len(expected))


@pytest.mark.parametrize(
    ("expression", "field"),
    [
        ("60 * * * *", "minute"),
        ("*/0 * * * *", "minute"),
        ("H * * * *", "minute"),
        ("5-1 * * * *", "minute"),
        ("5-5/0 * * * *", "minute"),
        ("mon * * * *", "minute"),
        ("-1 * * * *", "minute"),
        (", * * * *", "minute"),
        ("*/2/2 * * * *", "minute"),
        ("\u0663 * * * *", "minute"),
        ("0\x1c * * * *", "minute"),
        ("0 24 * * *", "hour"),
        ("0 0 0 * *", "day-of-month"),
        ("0 0 L * *", "day-of-month"),
        ("0 0 LW * *", "day-of-month"),
        ("0 0 15W * *", "day-of-month"),
        ("0 0 ? * 1", "day-of-month"),
        ("0 0 31 2 *", "day-of-month"),
        ("0 0 31 2,4,6,9,11 */2", "day-of-month"),
        ("0 0 1 13 *", "month"),
        ("0 0 1 mon *", "month"),
        ("0 0 * * 8", "day-of-week"),
        ("0 0 * * 5L", "day-of-week"),
        ("0 0 * * 5#2", "day-of-week"),
        ("0 0 * * sat-sun", "day-of-week"),
        ("0 0 * * fr\u0131", "day-of-week"),
        ("0 0 * * frida", "day-of-week"),
    ],
    ids=ascii,
)
def test_a_wrong_field_is_named(expression: str, field: str) -> None:
    """What Debian's cron does not know, and what is never due, is refused at once, by the field's name (A6)."""
    with pytest.raises(InvalidSchedule, match=f"^expected the field {field} of .* got '[^ ]+'"):
        Crontab(expression)


@pytest.mark.parametrize(
    ("expression", "got"),
    [
        ("", "with 0"),
        ("* * * *", "with 4"),
        ("* * * * * *", "with 6"),
        ("@hourly", "'@hourly' with 1"),
        ("0\xa03 * * *", "with 4"),
        pytest.param("0," * 500 + "0 * * * *", "got 1009", id="long"),
        (5, "got 5"),
        (None, "got None"),
    ],
)
def test_what_is_no_expression_is_refused(expression: Any, got: str) -> None:
    with pytest.raises(InvalidSchedule, match=f"^expected a cron expression .*{re.escape(got)}$"):
        Crontab(expression)


@pytest.mark.parametrize(
    "tz",
    ["", "local", "localtime", "posixrules", "right/UTC", "Mars/Base", "Europe", "../x", "/etc/localtime", "UTC\0",
     " UTC", "zone.tab", "x" * 5_000, "\ud800", None, UTC],
    ids=ascii,
)  # fmt: skip
def test_what_is_no_time_zone_is_refused(tz: Any) -> None:
    with pytest.raises(InvalidSchedule, match=r"^expected the IANA key of a time zone, .* got (?!.*tzdata)"):
        Crontab("* * * * *", tz)


def test_a_machine_without_time_zones_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows has no database of time zones, nor have some containers; UTC needs none."""
    monkeypatch.setattr(room, "available_timezones", set)
    with pytest.raises(InvalidSchedule, match="install the package tzdata"):
        Crontab("* * * * *", "Mars/Base")
    assert Crontab("* * * * *").is_slot(0)


def test_it_is_a_value() -> None:
    """It compares, hashes, prints and pickles by what it was made from, wherever it was last asked."""
    crontab = Crontab("0 9 * * *", "Europe/Berlin")
    assert "Crontab(expression='0 9 * * *', tz='Europe/Berlin')" == repr(crontab)
    again: Crontab = pickle.loads(pickle.dumps(crontab))  # noqa: S301 - our own bytes
    assert crontab.next_ms(0) == again.next_ms(0)
    assert {crontab} == {again, Crontab("0 9 * * *", "Europe/Berlin")}
    assert Crontab("0 9 * * *") != crontab
    assert Crontab("00 9 * * *", "Europe/Berlin") != crontab


@pytest.mark.parametrize("tz", ["UTC", "Pacific/Kiritimati", "Etc/GMT+12", "Australia/Lord_Howe"])
def test_the_calendar_has_ends(tz: str) -> None:
    """There is no slot after the year 9999, nor before the year 1; to ask for one is no error."""
    for expression in ("* * * * *", "0-59 0-23 * * *"):
        crontab = Crontab(expression, tz)
        last_ms = crontab.latest_ms(0, 10**18)
        assert last_ms is not None
        assert LAST_MS - DAY_MS < last_ms <= LAST_MS
        assert None is crontab.next_ms(last_ms)
        assert None is crontab.next_ms(10**18)
        assert [] == crontab.slots_ms(last_ms, 10**18, MANY)
        first_ms = crontab.next_ms(-(10**18))
        assert first_ms is not None
        assert ms("0001-01-01") <= first_ms < ms("0001-01-02")
        assert None is crontab.latest_ms(-(10**18), first_ms - 1)
        assert (True, False, False, False) == tuple(map(crontab.is_slot, (first_ms, -(10**18), 10**18, LAST_MS)))


def test_the_rarest_expression_is_found_however_far_it_is() -> None:
    """29 February as a Sunday pauses for up to 40 years: its slots of 8000 years are those of the calendar."""
    years = [year for year in range(1970, 10_000) if monthrange(year, 2) == (6, 29)]  # as its first day is
    expected = [f"{year}-02-29T00:00Z" for year in years]
    crontab = Crontab("0 0 29 2 */7")
    assert 40 == max(later - earlier for earlier, later in pairwise(years))
    assert expected == walk(crontab, 0, MANY)
    assert expected[-1] == iso(crontab.latest_ms(0, LAST_MS))


# ── every change of every clock, against brute force ─────────────────────────────────────


@dataclass(frozen=True)
class Plan:
    """An expression, and apart from it what its author means: which local times are due."""

    expression: str
    is_due: Callable[[datetime], bool]

    @property
    def has_star(self) -> bool:
        return any(part.startswith("*") for part in self.expression.split()[:2])


PLANS = [
    Plan("* * * * *", lambda _: True),
    Plan("*/30 * * * *", lambda local: local.minute in {0, 30}),
    Plan("0 */2 * * *", lambda local: local.minute == 0 and local.hour % 2 == 0),
    Plan("*/7 1-3 * * *", lambda local: local.minute % 7 == 0 and 1 <= local.hour <= 3),
    Plan("15 * * * sun", lambda local: local.minute == 15 and local.weekday() == 6),
    Plan("1 */23 */2 * *", lambda local: local.minute == 1 and local.hour in {0, 23} and local.day % 2 == 1),
    Plan("30 2 * * *", lambda local: (local.hour, local.minute) == (2, 30)),
    Plan("0 0 * * *", lambda local: (local.hour, local.minute) == (0, 0)),
    Plan("0,1,30 0-4,22,23 * * *", lambda local: local.minute in {0, 1, 30} and (local.hour < 5 or local.hour > 21)),
    Plan("0-59 0-23 * * *", lambda _: True),
    Plan("5-59/7 0-23/2 * * 0,6", lambda local: local.minute % 7 == 5 and local.hour % 2 == 0 and local.weekday() > 4),
]
ODD_ZONES = [
    "Africa/Cairo",  # at midnight
    "Africa/Casablanca",  # set back for Ramadan
    "America/Santiago",  # at midnight
    "America/Scoresbysund",
    "Antarctica/Troll",  # two hours
    "Asia/Gaza",  # by the moon
    "Australia/Lord_Howe",  # half an hour
    "Europe/Dublin",  # its winter is the exception
]
OLD_CHANGES = [
    ("America/St_Johns", "2010-11-07"),  # back over midnight
    ("America/Toronto", "1972-10-29"),
    ("Pacific/Apia", "2011-12-30"),  # a day skipped
]


def local_of(zone: ZoneInfo, at_ms: int) -> datetime:
    return (START + timedelta(milliseconds=at_ms)).astimezone(zone).replace(tzinfo=None, fold=0)


def changes(zone: ZoneInfo, begin: str, end: str) -> list[int]:
    """The hours in which the zone's clock is changed."""
    hours = range(ms(begin), ms(end), HOUR_MS)
    offsets = [(local_of(zone, at_ms) - START.replace(tzinfo=None)) // MINUTE - at_ms // MINUTE_MS for at_ms in hours]
    return [hour for hour, (before, after) in zip(hours, pairwise(offsets), strict=False) if before != after]


class Oracle:
    """What a zone's clock shows at each minute of a time, and the slots that follow from that by themselves."""

    def __init__(self, tz: str, begin_ms: int, end_ms: int) -> None:
        zone = ZoneInfo(tz)
        self.shown = [(local_of(zone, at_ms), at_ms) for at_ms in range(begin_ms, end_ms, MINUTE_MS)]
        self.first: dict[datetime, int] = {}
        """When each local time is shown first, or passed."""
        due = self.shown[0][0]
        for local, at_ms in self.shown:
            while due < local:
                self.first.setdefault(due, at_ms)
                due += MINUTE
            self.first.setdefault(local, at_ms)

    def slots_ms(self, plan: Plan, after_ms: int, until_ms: int) -> list[int]:
        shown = self.shown if plan.has_star else list(self.first.items())
        return sorted({at_ms for local, at_ms in shown if after_ms < at_ms <= until_ms and plan.is_due(local)})


def check(tz: str, plan: Plan, oracle: Oracle, days: tuple[int, int], asked: range) -> None:
    """A Crontab gives the oracle's slots between two instants, in order, and the same ones wherever it is asked."""
    crontab, expected = Crontab(plan.expression, tz), oracle.slots_ms(plan, *days)
    assert expected == crontab.slots_ms(*days, MANY), (tz, plan.expression)
    for at_ms in asked:
        passed = bisect_right(expected, at_ms)
        if passed < len(expected):
            assert expected[passed] == crontab.next_ms(at_ms)
            assert expected[passed] == Crontab(plan.expression, tz).next_ms(at_ms)
        assert (expected[passed - 1] if passed else None) == crontab.latest_ms(days[0], at_ms)
        minute_ms = at_ms // MINUTE_MS * MINUTE_MS
        assert (passed > 0 and expected[passed - 1] == minute_ms) == crontab.is_slot(minute_ms)


def check_change(tz: str, at_ms: int) -> None:
    """Each plan, around one change of one clock, asked from three hours before it to three hours after it."""
    oracle = Oracle(tz, at_ms - 3 * DAY_MS, at_ms + 3 * DAY_MS)
    asked = range(at_ms - 3 * HOUR_MS, at_ms + 4 * HOUR_MS, 37 * MINUTE_MS + 1)
    for plan in PLANS:
        check(tz, plan, oracle, (at_ms - DAY_MS, at_ms + 2 * DAY_MS), asked)


@pytest.mark.parametrize("tz", ODD_ZONES)
def test_odd_zones_at_their_changes(tz: str) -> None:
    """An expression with a star is due at each minute that shows its times, another one once for each time."""
    found = changes(ZoneInfo(tz), "2025-01-01", "2025-12-31")
    assert 2 == len(found)
    for at_ms in found:
        check_change(tz, at_ms)


@pytest.mark.parametrize(("tz", "day"), OLD_CHANGES)
def test_changes_of_the_past(tz: str, day: str) -> None:
    check_change(tz, ms(day))


def test_zones_of_every_kind_at_a_change() -> None:
    """A sample of all zones, each at one of its changes from 2024 to 2030, if it has one."""
    zones = sorted(available_timezones() - {"localtime"})
    for number, tz in enumerate(zones[::30]):
        year = 2024 + number % 7
        for at_ms in changes(ZoneInfo(tz), f"{year}-01-01", f"{year + 1}-01-01")[:1]:
            check_change(tz, at_ms)


# ── every expression ─────────────────────────────────────────────────────────────────────

RANGES = (range(60), range(24), range(1, 32), range(1, 13), range(8))
Term = tuple[str, frozenset[int]]


def terms(values: range) -> st.SearchStrategy[Term]:
    """A text of one field, and the values that it stands for."""
    number, step = st.sampled_from(values), st.integers(1, 70)
    rising = st.tuples(number, number).map(sorted).map(lambda ends: range(ends[0], ends[1] + 1))
    return st.one_of(
        st.just(("*", frozenset(values))),
        step.map(lambda by: (f"*/{by}", frozenset(values[::by]))),
        number.map(lambda value: (f"{value}", frozenset({value}))),
        rising.map(lambda span: (f"{span[0]}-{span[-1]}", frozenset(span))),
        st.tuples(number, step).map(lambda it: (f"{it[0]}/{it[1]}", frozenset(range(it[0], values[-1] + 1, it[1])))),
        st.tuples(rising, step).map(lambda it: (f"{it[0][0]}-{it[0][-1]}/{it[1]}", frozenset(it[0][:: it[1]]))),
    )


def joined(parts: list[Term]) -> Term:
    return ",".join(text for text, _ in parts), frozenset().union(*(values for _, values in parts))


def plan_of(fields: tuple[Term, ...]) -> Plan:
    (_, minutes), (_, hours), (day, days), (_, months), (weekday, weekdays) = fields
    both = day.startswith("*") or weekday.startswith("*")

    def is_due(local: datetime) -> bool:
        due = local.day in days, bool({local.isoweekday(), local.isoweekday() % 7} & weekdays)
        is_day = all(due) if both else any(due)
        return local.minute in minutes and local.hour in hours and local.month in months and is_day

    return Plan(" ".join(text for text, _ in fields), is_due)


FIELDS = st.tuples(*(st.lists(terms(values), min_size=1, max_size=3).map(joined) for values in RANGES))
ZONES = st.sampled_from(["UTC", "Europe/Berlin", "America/St_Johns", "Pacific/Apia", *ODD_ZONES])


@given(FIELDS, ZONES, st.integers(ms("1975-01-01"), ms("2100-01-01")))
def test_any_expression_has_the_slots_of_its_values(fields: tuple[Term, ...], tz: str, after_ms: int) -> None:
    """Whatever the expression, the zone and the time, the slots are the oracle's; or no month has its days."""
    plan = plan_of(fields)
    try:
        Crontab(plan.expression)
    except InvalidSchedule:
        longest = max(monthrange(2024, month)[1] for month in fields[3][1])
        assert min(fields[2][1]) > longest
        return
    begin_ms = after_ms // MINUTE_MS * MINUTE_MS
    oracle, asked = Oracle(tz, begin_ms - DAY_MS, begin_ms + 3 * DAY_MS), range(begin_ms + MINUTE_MS, begin_ms + DAY_MS)
    check(tz, plan, oracle, (after_ms, after_ms + 2 * DAY_MS), asked[:: 5 * HOUR_MS + 1])


@given(FIELDS, ZONES, st.lists(st.integers(ms("1900-01-01"), ms("2100-01-01")), min_size=1, max_size=8))
def test_every_question_has_the_same_answer(fields: tuple[Term, ...], tz: str, starts: list[int]) -> None:
    """next_ms, slots_ms, latest_ms and is_slot agree, in whatever order they are asked, and slots rise."""
    try:
        crontab = Crontab(plan_of(fields).expression, tz)
    except InvalidSchedule:
        return
    for after_ms in starts:
        slots = crontab.slots_ms(after_ms, LAST_MS, 5)
        assert 5 == len(slots)
        for before_ms, slot_ms in pairwise([after_ms, *slots]):
            assert before_ms < slot_ms
            assert 0 == slot_ms % MINUTE_MS
            assert slot_ms == crontab.next_ms(before_ms) == crontab.next_ms(slot_ms - 1)
            assert slot_ms == crontab.latest_ms(before_ms, slot_ms)
            assert None is crontab.latest_ms(before_ms, slot_ms - 1)
            assert crontab.is_slot(slot_ms)
            assert not crontab.is_slot(slot_ms + 1)
        assert slots[:4] == crontab.slots_ms(after_ms, slots[4] - 1, MANY)
        assert [] == crontab.slots_ms(after_ms, LAST_MS, 0) == crontab.slots_ms(after_ms, after_ms, MANY)


def test_threads_share_it() -> None:
    """Threads that walk one Crontab through different times do not disturb each other."""
    crontab = Crontab("*/5 * * * *", "Europe/Berlin")
    starts = [ms("2026-10-24T00:00") + number * HOUR_MS for number in range(8)]
    expected = [Crontab("*/5 * * * *", "Europe/Berlin").slots_ms(start, LAST_MS, 600) for start in starts]
    with ThreadPoolExecutor(8) as pool:
        assert expected == list(pool.map(lambda start: crontab.slots_ms(start, LAST_MS, 600), starts))
