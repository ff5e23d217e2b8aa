"""Rules about cron expressions."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from tests.vector_kinds.cases import NOT_SAID, Case, Rule
from tests.vector_kinds.scheduling import REFUSED, VALUES, times, values

FIRST_MS = -62_135_596_800_000
LAST_MS = 253_402_300_799_999
FAR_BLANKS = re.compile("[\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff]")
WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
MONTH_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def parts(case: Case) -> list[str]:
    """The five fields as they were written; five empty ones if there are not five."""
    found = case.input["expr"].split()
    return found if len(found) == len(VALUES) else [""] * len(VALUES)


def at(case: Case) -> datetime:
    """The instant; a fraction of a millisecond is cut off, as the reference's dates do it."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=int(case.input["epochMs"]))


def is_outside_the_calendar(case: Case) -> bool:
    return not FIRST_MS <= case.input["epochMs"] <= LAST_MS


def has_far_blanks(case: Case) -> bool:
    return FAR_BLANKS.search(case.input["expr"]) is not None


def has_weekday_name(case: Case) -> bool:
    return parts(case)[4].lower() in WEEKDAYS


def by_weekday_name(case: Case) -> object:
    return {"refused": False, "matches": WEEKDAYS[at(case).isoweekday() % 7] == parts(case)[4].lower()}


def is_never_due(case: Case) -> bool:
    """Whether the month is too short for the day, which the day of the week does not replace."""
    _, _, day, month, weekday = parts(case)
    return weekday[:1] == "*" and (day + month).isdecimal() and int(day) > MONTH_DAYS[(int(month) - 1) % 12]


def open_steps(case: Case) -> dict[str, int]:
    """The fields that are one of their numbers with the step 1, and the number."""
    fields = zip(VALUES, parts(case), strict=True)
    numbers = {name: int(part.partition("/")[0]) for name, part in fields if re.fullmatch("[0-9]+/0*1", part)}
    return {name: number for name, number in numbers.items() if number in VALUES[name]}


def with_open_steps(case: Case) -> object:
    opened = {name: list(range(number, VALUES[name][-1] + 1)) for name, number in open_steps(case).items()}
    return by_debian(case, {**case.output["parsed"], **opened})


def is_day_rule_ours(case: Case) -> bool:
    """Whether both fields of days are limited, and one of them begins with a star nevertheless."""
    days = parts(case)[2], parts(case)[4]
    return "*" not in days and any(part.startswith("*") for part in days)


def by_debian(case: Case, parsed: Mapping[str, Any]) -> object:
    """What an expression of these values does where the first character of a field of days decides."""
    moment = at(case)
    now = (moment.minute, moment.hour, moment.day, moment.month, moment.isoweekday() % 7)
    minute, hour, day, month, weekday = (value in values(parsed, name) for name, value in zip(VALUES, now, strict=True))
    has_star = any(part.startswith("*") for part in (parts(case)[2], parts(case)[4]))
    is_day = day and weekday if has_star else day or weekday
    return {"refused": False, "matches": minute and hour and month and is_day, "times": times(parsed)}


SCHEDULING_RULES: Final = (
    Rule(
        "instants are those of the calendar",
        "they are whole numbers from the year 1 to 9999, and others have no word in our API (wire.md 11.8)",
        ("cron_match",),
        is_outside_the_calendar,
        lambda _: NOT_SAID,
    ),
    Rule(
        "fields stand apart by ASCII blanks",
        "the other blanks of Unicode are none in a crontab (wire.md 11.9)",
        ("cron_match",),
        has_far_blanks,
        lambda _: REFUSED,
    ),
    Rule(
        "weekdays and months have names",
        "Debian's cron knows them (wire.md 11.9)",
        ("cron_match",),
        has_weekday_name,
        by_weekday_name,
    ),
    Rule(
        "what is never due is refused",
        "the mistake is told when it is made, by cronsim, not by silence (wire.md 11.9)",
        ("cron_match",),
        is_never_due,
        lambda _: REFUSED,
    ),
    Rule(
        "a number with a step has no end",
        "5/1 is 5 and on, as 5/2 is; cronsim makes no exception for 1 (wire.md 11.9)",
        ("cron_match",),
        lambda case: bool(open_steps(case)),
        with_open_steps,
    ),
    Rule(
        "a step over a star is a star for the day rule",
        "as in Debian's cron, where the field's first character decides (wire.md 11.9)",
        ("cron_match",),
        is_day_rule_ours,
        lambda case: by_debian(case, case.output["parsed"]),
    ),
)
