"""The kind of cases about cron expressions; it needs a2asgi and cronsim, and comes later where those are not."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, Final

from tests.vector_kinds.cases import Case, Kind, Later

MINUTE_MS = 60_000
DAY_MS = 86_400_000
VALUES = {
    "minute": range(60),
    "hour": range(24),
    "dayOfMonth": range(1, 32),
    "month": range(1, 13),
    "dayOfWeek": range(7),
}
REFUSED: Final[dict[str, object]] = {"refused": True}
CAN_SCHEDULE: Final = find_spec("a2asgi") is not None and find_spec("cronsim") is not None


def cron_match(case: Case) -> dict[str, object]:
    """Whether the minute of the instant is a slot, and the times of the first day that has slots, in milliseconds."""
    from a2asgi.crontab import Crontab  # noqa: PLC0415 - not there under Pyodide
    from a2asgi.errors import InvalidSchedule  # noqa: PLC0415 - not there under Pyodide

    try:
        crontab = Crontab(case.input["expr"])
    except InvalidSchedule:
        return REFUSED
    first_ms = crontab.next_ms(-1)
    assert first_ms is not None
    day_ms = first_ms // DAY_MS * DAY_MS
    times_ms = [slot_ms - day_ms for slot_ms in crontab.slots_ms(day_ms - 1, day_ms + DAY_MS - 1, DAY_MS)]
    minute_ms = int(case.input["epochMs"]) // MINUTE_MS * MINUTE_MS
    return {"refused": False, "matches": crontab.is_slot(minute_ms), "times": times_ms}


def cron_match_wanted(case: Case) -> dict[str, object]:
    if "error" in case.output:
        return REFUSED
    return {"refused": False, "matches": case.output["matches"], "times": times(case.output["parsed"])}


def values(parsed: Mapping[str, Any], name: str) -> list[int]:
    """The values of one field."""
    return list(VALUES[name]) if parsed[name] == "*" else parsed[name]


def times(parsed: Mapping[str, Any]) -> list[int]:
    """The times of a day that is due, in milliseconds."""
    return [(hour * 60 + minute) * MINUTE_MS for hour in values(parsed, "hour") for minute in values(parsed, "minute")]


SCHEDULING: Final = {"cron_match": Kind(cron_match, cron_match_wanted)}
SCHEDULING_LATER: Final = () if CAN_SCHEDULE else (Later("cron_match", ("cron_match",)),)
