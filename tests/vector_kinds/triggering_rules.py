"""Rules about slots that are triggered."""

import re
from typing import Any, Final

from tests.vector_kinds.cases import NOT_SAID, Case, Rule
from tests.vector_kinds.judging import schedule_task
from tests.vector_kinds.judging_rules import is_slot_no_plain_text
from tests.vector_kinds.triggering import CAN_TRIGGER, CRONS, lease_wanted
from tests.vector_kinds.values import whole

LAST_INSTANT_MS = 253_402_300_799_999
NOT_SIGNED: Final = {"status": 401, "body": {"error": "invalid schedule signature"}, "ran": 0}


def row_of(case: Case) -> Any:
    return case.input.get("row") or {}


def is_beyond_the_calendar(case: Case) -> bool:
    slot = whole(case.input["slot"])
    return isinstance(slot, int) and slot > LAST_INSTANT_MS


def is_row_of_no_state(case: Case) -> bool:
    """Whether the row stands in a state that ours cannot be in."""
    row = row_of(case)
    is_locked_for_ever = row.get("status") == "running" and row.get("locked_until") is None
    return bool(row) and (row["status"] not in {"succeeded", "failed", "running"} or is_locked_for_ever)


def is_lease_at_its_end(case: Case) -> bool:
    row = row_of(case)
    return bool(row) and (row["status"], row.get("locked_until")) == ("running", case.input["now"])


def claimed_at_its_end(case: Case) -> object:
    status = "failed" if "throws" in case.input["handler"] else "succeeded"
    return {"status": status, "ran": 1, "attempts": row_of(case)["attempts"] + 1}


def by_fenced_leases(case: Case) -> list[str]:
    """The sequence as leases with fences go: free from the instant of its end, and closed to who lost it."""
    ended: list[str] = []
    holder, until_ms, state = None, 0, "free"
    for one in case.input["steps"]:
        if "finish" in one:
            if one["finish"] != holder:
                ended.append("lost")
                continue
            holder, state = None, "failed" if "throws" in one else "succeeded"
            ended.append(state)
        elif state == "succeeded":
            ended.append("duplicate")
        elif holder is not None and one["now"] < until_ms:
            ended.append("running")
        else:
            holder, until_ms = one["start"], one["now"] + case.file["lease_ms"]
            ended.append("started")
    return ended


def is_unfenced(case: Case) -> bool:
    return case.input["kind"] == "sequence" and lease_wanted(case) != {"steps": by_fenced_leases(case)}


def is_no_route(case: Case) -> bool:
    return re.fullmatch("/(cron|maintenance)/[^/]+", case.input["path"].partition("?")[0]) is None


def is_another_method(case: Case) -> bool:
    return case.input["method"] != "POST" and not is_no_route(case)


def by_method(case: Case) -> object:
    if case.input["method"] == "GET":
        return NOT_SIGNED
    return {"status": 405, "body": {"error": "method not allowed"}, "ran": 0}


def is_cron_that_cannot_be(case: Case) -> bool:
    """Whether the request is for the cron whose expression is no expression, so that we cannot declare it."""
    task = schedule_task(case)
    return task is not None and task[1] and task[0].startswith("cron:") and task[0][5:] not in CRONS


TRIGGERING_RULES: Final[tuple[Rule, ...]] = (
    ()
    if not CAN_TRIGGER
    else (
        Rule(
            "slots are in the calendar",
            "the year 9999 is its last, and a slot beyond it is none (wire.md 11.9)",
            ("lease",),
            is_beyond_the_calendar,
            lambda _: {"status": "no slot", "ran": 0},
        ),
        Rule(
            "a run is open, held until an instant, or over",
            "our work items have no other states (engine.md 2)",
            ("lease",),
            is_row_of_no_state,
            lambda _: NOT_SAID,
        ),
        Rule(
            "a lease has ended at its end",
            "an expired claim is claimable from its instant on (engine.md 2)",
            ("lease",),
            is_lease_at_its_end,
            claimed_at_its_end,
        ),
        Rule(
            "leases are fenced",
            "a claim is free from its end on, and who lost it writes nothing (wire.md 11.9)",
            ("lease",),
            is_unfenced,
            lambda case: {"steps": by_fenced_leases(case)},
        ),
        Rule(
            "a slot's text is plain decimal digits, over HTTP",
            "no sign, exponent, prefix or fraction (wire.md 11.9)",
            ("cron_router",),
            lambda case: is_slot_no_plain_text(case) and not is_another_method(case),
            lambda _: NOT_SIGNED,
        ),
        Rule(
            "what is no route is not found",
            "in JSON, as all our answers are (app.md 2)",
            ("cron_router",),
            is_no_route,
            lambda _: {"status": 404, "body": {"error": "not found"}, "ran": 0},
        ),
        Rule(
            "GET is for Vercel Cron, other methods for nobody",
            "a bearer secret instead of a signature, and 405 (app.md 2)",
            ("cron_router",),
            is_another_method,
            by_method,
        ),
        Rule(
            "a cron whose expression is none cannot be declared",
            "definitions are checked when the module loads (engine.md 4)",
            ("cron_router",),
            is_cron_that_cannot_be,
            lambda _: {"status": 404, "body": {"error": "unknown cron"}, "ran": 0},
        ),
    )
)
