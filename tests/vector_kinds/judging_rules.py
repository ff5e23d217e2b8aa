"""Rules about errors, signatures, signed requests and waits, and what of them comes later."""

import hmac
import re
from collections.abc import Mapping
from math import isclose, isfinite
from typing import Any, Final

from a2core import Backoff
from tests.vector_kinds.cases import NOT_SAID, Case, Later, Rule
from tests.vector_kinds.judging import CAN_RUN, SPACE, error_of, schedule_task
from tests.vector_kinds.values import BigInt, bytes_of, is_beyond_doubles, is_number, whole

MINUTE_MS = 60_000
NEIGHBOUR = 2**-52
STATUS_NAMES = ("status", "statusCode", "status_code")
RETRYABLE_4XX = frozenset({408, 409, 425, 429})


# ── errors ───────────────────────────────────────────────────────────────────────────────


def told(case: Case) -> list[tuple[str, Any]]:
    """Every status that an error, or its response, tells, with its name."""
    error = error_of(case.input["error"])
    properties = error if isinstance(error, Mapping) else getattr(error, "properties", {})
    response = properties.get("response")
    places = (properties, response if isinstance(response, Mapping) else {})
    return [(name, place[name]) for place in places for name in STATUS_NAMES if name in place]


def has_status_of_ours(case: Case) -> bool:
    return any(name == "status_code" or isinstance(status, BigInt) for name, status in told(case))


def status_of_ours(case: Case) -> object:
    statuses = {status for _, status in told(case) if is_status(status)}
    status = whole(statuses.pop()) if len(statuses) == 1 else None
    is_terminal = status is not None and 400 <= status < 500 and status not in RETRYABLE_4XX
    return {"status": status, "failure": "terminal" if is_terminal else "retryable"}


def is_status(value: Any) -> bool:
    return is_number(value) and 100 <= value < 600 and value == int(value)


# ── schedules ────────────────────────────────────────────────────────────────────────────


def is_slot_no_integer(case: Case) -> bool:
    return not isinstance(whole(case.input["slot"]), int)


def is_slot_beyond_doubles(case: Case) -> bool:
    return is_beyond_doubles(case.input["slot"])


def sign(secret: str, task_id: str, slot_ms: int) -> str:
    """The signature of a slot (wire.md 10), computed apart from a2core."""
    return "sha256=" + hmac.digest(bytes_of(secret), bytes_of(f"{task_id}\n{slot_ms}"), "sha256").hex()


def exactly_signed(case: Case) -> object:
    signature = sign(case.input["secret"], case.input["taskId"], whole(case.input["slot"]))
    if case.input["kind"] == "sign":
        return {"signature": signature}
    return {"valid": signature == case.input["signature"]}


def slot_text(case: Case) -> str:
    return (case.input["slot_header"] or "").strip(SPACE)


def is_slot_no_plain_text(case: Case) -> bool:
    return schedule_task(case) is not None and re.fullmatch("[0-9]{0,16}", slot_text(case)) is None


def is_schedule_checked(case: Case) -> bool:
    """Whether a request passes every check that comes before its schedule and handler."""
    task, text = schedule_task(case), slot_text(case)
    if task is None or not task[1] or re.fullmatch("[0-9]{1,16}", text) is None:
        return False
    age_ms = case.input["now"] - int(text)
    is_signed = (case.input["signature"] or "").strip(SPACE) == sign(case.file["secret"], task[0], int(text))
    return is_signed and int(text) % MINUTE_MS == 0 and -MINUTE_MS <= age_ms <= 60 * MINUTE_MS


# ── waits ────────────────────────────────────────────────────────────────────────────────


def is_power_of_fraction(case: Case) -> bool:
    attempt = case.input.get("attempt")
    return is_number(attempt) and isfinite(attempt) and attempt != int(attempt)


class Near(float):
    """A double, or one of its neighbours."""

    __hash__ = float.__hash__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, float) and isclose(float(self), other, rel_tol=NEIGHBOUR, abs_tol=0.0)


def by_our_power(case: Case) -> object:
    return {"delayMs": Near(case.output["delayMs"])}


def is_function_without_a_wait(case: Case) -> bool:
    return case.input.get("backoff_function") in {"throws", "returns string"}


def by_default(case: Case) -> object:
    return {"delayMs": Backoff().delay_ms(case.input["attempt"], case.id)}


JUDGING_RULES: Final = (
    Rule(
        "statuses as Python's clients tell them",
        "status_code is a name of it, and an integer has one type (wire.md 6)",
        ("failures",),
        has_status_of_ours,
        status_of_ours,
    ),
    Rule(
        "a slot is an integer",
        "other numbers have no word in our API (wire.md 10)",
        ("cron_sign",),
        is_slot_no_integer,
        lambda _: NOT_SAID,
    ),
    Rule(
        "numbers are exact",
        "beyond 2^53 we count in integers, not in doubles (wire.md 11.8)",
        ("cron_sign",),
        is_slot_beyond_doubles,
        exactly_signed,
    ),
    *(
        ()
        if CAN_RUN
        else (
            Rule(
                "a slot's text is plain decimal digits",
                "no sign, exponent, prefix or fraction (wire.md 11.9)",
                ("cron_router",),
                is_slot_no_plain_text,
                lambda _: {"status": 401},
            ),
        )
    ),
    Rule(
        "a backoff function that fails loses no event",
        "the default stands in for what it should have said, and the log says so (engine.md 4)",
        ("backoff",),
        is_function_without_a_wait,
        by_default,
    ),
    Rule(
        "powers of fractions are the platform's",
        "each library rounds them its own way, to a neighbour (wire.md 11.8)",
        ("backoff",),
        is_power_of_fraction,
        by_our_power,
    ),
)

JUDGING_LATER: Final = (
    ()
    if CAN_RUN
    else (
        Later(
            "cron_router: schedules, runs and rows", ("cron_router",), is_schedule_checked, lambda _: {"status": None}
        ),
        Later("backoff: functions", ("backoff",), lambda case: "backoff_function" in case.input),
    )
)
