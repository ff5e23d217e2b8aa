"""Kinds of cases that judge one thing: an error, a signature, a signed request, a wait."""

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from importlib.util import find_spec
from typing import Any, Final
from urllib.parse import unquote

from a2core.backoff import exponential_delay_ms
from a2core.failures import send_failure, status_of
from a2core.signing import ScheduleRefusal, check_schedule_request, check_slot_window, sign_schedule, verify_schedule
from tests.vector_kinds.cases import Case, Kind
from tests.vector_kinds.values import THROWING_GETTER, UNDEFINED, defined, whole

KNOWN_CRONS = {"nightly", "minutely", "a b", "日本", "broken"}
KNOWN_MAINTENANCE = {"storage-sweep"}
SPACE = "\t\n\r "
CAN_RUN: Final = find_spec("a2asgi") is not None
RATE_LIMITED = 429


class ForeignError(Exception):
    """An error of some client's, with the properties that it was made with."""

    def __init__(self, message: str, properties: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.properties = properties

    def __getattr__(self, name: str) -> Any:
        if name == "properties" or name not in self.properties or self.properties[name] is UNDEFINED:
            raise AttributeError(name)
        value = self.properties[name]
        if value is THROWING_GETTER:
            raise RuntimeError("this property raises")
        return value


def error_of(spec: Mapping[str, Any]) -> Any:
    """What is raised: an error, or whatever else another language can throw."""
    match spec:
        case {"value": value}:
            return value
        case {"sdk": [str(name), [*_]]} if "Ratelimit" in name:
            return ForeignError(name, {"status": RATE_LIMITED})
        case {"sdk": [str(name), [_, status]]}:
            return ForeignError(name, {"status": status})
        case {"sdk": [str(name), [*_]]}:
            return ForeignError(name, {})
        case {"error": error}:
            return error_of(error)
        case _:
            return ForeignError(spec.get("message", ""), spec.get("props", {}))


def failures(case: Case) -> dict[str, object]:
    error = error_of(case.input["error"])
    return {"status": status_of(error), "failure": str(send_failure(error))}


def failures_wanted(case: Case) -> dict[str, object]:
    return {"status": case.output["status"], "failure": case.output["classification"]}


def cron_sign(case: Case) -> dict[str, object]:
    secret, task_id, slot_ms = case.input["secret"], case.input["taskId"], whole(case.input["slot"])
    if case.input["kind"] == "sign":
        return {"signature": sign_schedule(secret, task_id, slot_ms)}
    return {"valid": verify_schedule(secret, task_id, slot_ms, case.input["signature"])}


def schedule_task(case: Case) -> tuple[str, bool] | None:
    """The task id that a request's path names, and whether there is such a task; None: no such route."""
    path = case.input["path"].partition("?")[0]
    found = re.fullmatch("/(cron|maintenance)/([^/]+)", path)
    if found is None or case.input["method"] != "POST":
        return None
    name = unquote(found[2])
    return f"{found[1]}:{name}", name in (KNOWN_CRONS if found[1] == "cron" else KNOWN_MAINTENANCE)


def cron_router(case: Case) -> dict[str, object]:
    """The status of a request that is refused before anything runs; None where a handler would run."""
    task = schedule_task(case)
    if task is None:
        return {"status": 404}
    task_id, is_known = task
    slot, signature = (None if text is None else text.strip(SPACE) for text in header_texts(case))
    request = check_schedule_request(case.file["secret"], task_id, slot, signature)
    if isinstance(request, ScheduleRefusal):
        return {"status": request.value}
    if not is_known:
        return {"status": 404}
    refusal = check_slot_window(request.slot_ms, case.input["now"])
    return {"status": None if refusal is None else refusal.value}


def header_texts(case: Case) -> tuple[str | None, str | None]:
    return case.input["slot_header"], case.input["signature"]


FUNCTIONS: Mapping[str, Callable[[int], Any]] = {
    "a*7": lambda failures: timedelta(milliseconds=failures * 7),
    "constant 250": lambda _: timedelta(milliseconds=250),
    "min(60000,1000*3**a)": lambda failures: timedelta(milliseconds=min(60_000, 1_000 * 3**failures)),
    "returns string": lambda _: "soon",
    "throws": lambda _: next(iter(())),
}
"""The backoff functions of the cases, which their file names, as a user writes them."""


def backoff(case: Case) -> dict[str, object]:
    if "backoff_function" in case.input:
        from a2asgi.retries import waits  # noqa: PLC0415 - not there under Pyodide

        delay_ms = waits(FUNCTIONS[case.input["backoff_function"]]).delay_ms(case.input["attempt"], case.id)
        return {"delayMs": delay_ms}
    growth = defined(case.input.get("backoff")) or {}
    base_ms, factor = growth.get("baseMs"), growth.get("factor")
    base_ms, factor = 1_000 if base_ms is None else base_ms, 2 if factor is None else factor
    return {"delayMs": exponential_delay_ms(case.input["attempt"], base_ms, factor)}


JUDGING = {
    "failures": Kind(failures, failures_wanted),
    "cron_sign": Kind(cron_sign, lambda case: case.output),
    "cron_router": Kind(cron_router, lambda case: {"status": case.output["status"]}),
    "backoff": Kind(backoff, lambda case: case.output),
}
