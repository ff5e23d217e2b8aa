"""Rules about sending: URLs, headers, tasks, numbers, tokens, replies."""

import json
import re
from base64 import urlsafe_b64decode
from dataclasses import replace
from math import isfinite
from typing import Any, Final

from tests.vector_kinds import exact
from tests.vector_kinds.cases import NOT_SAID, Case, Rule
from tests.vector_kinds.delivering import CALLBACK_URL, drain_body
from tests.vector_kinds.judging import SPACE
from tests.vector_kinds.publishing import clock, option, publish, refused, task_value, url_inference, wire_wanted
from tests.vector_kinds.values import (
    BigInt,
    depth,
    holds,
    is_beyond_doubles,
    is_infinite,
    is_number,
    is_written_otherwise,
    text_of,
    whole,
)

MAX_CLAIMS_DEPTH = 500
MAX_DATE_MS = 8_640_000_000_000_000
SCHEDULING = ("publish", "wire")
WITH_URL = ("publish", "url_inference", "wire", "handler", "trusted_source", "outage")
EXACTLY = "beyond 2^53 we count in integers, not in doubles (wire.md 11.8)"


def not_said(_: Case) -> object:
    return NOT_SAID


def refused_url(_: Case) -> object:
    return refused("InvalidUrl")


def refused_task(_: Case) -> object:
    return refused("InvalidTask", "terminal")


# ── options ──────────────────────────────────────────────────────────────────────────────


def options_of(case: Case) -> dict[str, Any]:
    return dict(case.input.get("options", {}))


def url_of(case: Case) -> Any:
    """The URL that a case configures; None: none."""
    return case.input["url"] if case.kind == "outage" else option(options_of(case), "url")


def url_rule(name: str, pattern: str) -> Rule:
    """A rule for a class of URLs that we refuse when they are configured."""

    def applies(case: Case) -> bool:
        url = url_of(case)
        return isinstance(url, str) and re.search(pattern, url) is not None

    reason = "refused when configured: it could never verify, or is ambiguous (wire.md 7)"
    return Rule(name, reason, WITH_URL, applies, refused_url)


def is_url_no_text(case: Case) -> bool:
    return not isinstance(url_of(case), str | None)


def is_null_given(case: Case) -> bool:
    options = options_of(case)
    return any(name in options and options[name] is None for name in ("url", "retries"))


def as_if_not_given(case: Case) -> object:
    options = {name: value for name, value in options_of(case).items() if value is not None}
    without = replace(case, input={**case.input, "options": options})
    return url_inference(without) if case.kind == "url_inference" else publish(without)


def has_host_options(case: Case) -> bool:
    return not {"client", "transport"}.isdisjoint(options_of(case))


def has_headers_of_no_record(case: Case) -> bool:
    return "raw" in case.input or isinstance(options_of(case).get("headers"), dict)


# ── tasks ────────────────────────────────────────────────────────────────────────────────


def events_of(case: Case) -> Any:
    return task_value(case).get("events")


def due_at(case: Case) -> Any:
    """The due time that the caller, or the message, gives."""
    return json.loads(case.input["dueAt_json"]) if case.kind == "successor" else task_value(case).get("dueAt")


def is_due_beyond_doubles(case: Case) -> bool:
    return is_beyond_doubles(due_at(case))


def is_clock_no_date(case: Case) -> bool:
    now = case.input.get("now", 0)
    return is_number(now) and not abs(now) <= MAX_DATE_MS


def by_integer_clock(case: Case) -> object:
    return exact.request(case) if isfinite(case.input["now"]) and case.kind == "publish" else NOT_SAID


def has_infinite_events(case: Case) -> bool:
    return holds(events_of(case), is_infinite)


def has_big_integers(case: Case) -> bool:
    return any(holds(case.input.get(name), lambda value: isinstance(value, BigInt)) for name in ("task", "options"))


def is_task_invalid(case: Case) -> bool:
    """Whether anything but its due time makes a task one that no receiver takes."""
    task = task_value(case)
    names = ("id", "contract", "sessionId") if task.get("kind") == "append" else ("contract", "sessionId")
    if task.get("kind") not in ("drain", "append") or not all(is_name(task.get(name)) for name in names):
        return True
    events = task.get("events")
    return task["kind"] == "append" and not (isinstance(events, list) and events)


def is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def exactly_sent(case: Case) -> object:
    sent = exact.request(case)
    if case.kind == "publish":
        return sent
    wanted = wire_wanted(case)
    headers = {**wanted["headers"], "upstash-deduplication-id": sent["id"]}
    if sent["notBefore"] is not None:
        headers["upstash-not-before"] = str(sent["notBefore"])
    return {**wanted, "headers": headers, "body": sent["body"]}


def exactly_succeeded(case: Case) -> object:
    timings, now_ms, task = case.file["timings"], clock(case.input["now"]), json.loads(drain_body(case))
    times = (timings["claimTtlMs"], timings["claimHeartbeatMs"], timings["watchdogGraceMs"])
    due = exact.watchdog(now_ms, whole(task["dueAt"]), *times)
    return {"watchdogDueAt": due, **exact.drain(CALLBACK_URL, task, now_ms, due)}


def has_events_written_otherwise(case: Case) -> bool:
    return is_written_otherwise(events_of(case))


# ── tokens ───────────────────────────────────────────────────────────────────────────────


def is_token_no_header(case: Case) -> bool:
    """Whether the platform's token could not be sent as a header value."""
    token = case.input.get("token" if case.kind == "trusted_source" else "oidcToken")
    is_forwarding = case.input.get("kind", "forward") == "forward"
    unsendable = "[^\x01-\x09\x0b\x0c\x0e-\xff]"
    return is_forwarding and isinstance(token, str) and re.search(unsendable, token.strip(SPACE)) is not None


def without_token(case: Case) -> object:
    if case.kind == "publish":
        return exact.request(case)
    now_ms = clock(case.input["now"])
    due_at_ms = exact.slot(now_ms, case.input["dueAt"])
    return {"forwarded": False, "notBefore": due_at_ms // exact.SECOND_MS if due_at_ms > now_ms else None}


def has_deep_claims(case: Case) -> bool:
    parts = (option(case.input, "token") or "").split(".")
    is_jwt = len(parts) == 3 and re.fullmatch("[A-Za-z0-9_-]+", parts[1]) is not None and len(parts[1]) % 4 != 1
    return is_jwt and depth(text_of(urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))) > MAX_CLAIMS_DEPTH


def no_claims(case: Case) -> object:
    return {"expirationMs": None} if case.input["kind"] == "jwt" else without_token(case)


# ── replies ──────────────────────────────────────────────────────────────────────────────


def is_success_without_json(case: Case) -> bool:
    reply = case.input.get("reply", {})
    return 200 <= reply.get("status", 0) < 300 and "body" in reply and not is_json(reply["body"])


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def accepted(case: Case) -> object:
    return {**wire_wanted(case), "failure": None}


def has_proto_header(case: Case) -> bool:
    return any(name.lower() == "__proto__" for name, _ in option(options_of(case), "headers") or [])


def with_proto_header(case: Case) -> object:
    wanted = wire_wanted(case)
    [value] = [value for name, value in case.input["options"]["headers"] if name.lower() == "__proto__"]
    return {**wanted, "headers": {**wanted["headers"], "upstash-forward-__proto__": value}}


PUBLISHING_RULES: Final = (
    Rule(
        "no client, no transport",
        "options of the reference's host; ours are the scheduler's own (wire.md 7)",
        ("url_inference",),
        has_host_options,
        not_said,
    ),
    Rule(
        "None is not given",
        "Python has no undefined: None stands for it (wire.md 6 and 7)",
        ("publish", "url_inference"),
        is_null_given,
        as_if_not_given,
    ),
    Rule(
        "a URL is text",
        "what is no text is refused, not converted (wire.md 7)",
        WITH_URL,
        is_url_no_text,
        refused_url,
    ),
    url_rule("a URL with a fragment", "#"),
    url_rule("a URL with an empty query", r"\?\Z"),
    url_rule("a URL with white space or control characters", r"[\x00-\x20\x7f]"),
    url_rule("a URL with a backslash", r"\\"),
    url_rule("a URL with non-ASCII text", r"[^\x00-\x7f]|\A[a-zA-Z]+:/*[^/?#]*%[89a-fA-F][0-9a-fA-F]"),
    Rule(
        "headers are pairs of text",
        "what is no record of headers has no word in our API (wire.md 6)",
        ("headers", "publish"),
        has_headers_of_no_record,
        not_said,
    ),
    Rule(
        "a clock is an integer",
        "there is no invalid date: milliseconds are integers of any size (wire.md, top)",
        ("publish", "successor"),
        is_clock_no_date,
        by_integer_clock,
    ),
    Rule(
        "NaN and infinities are refused",
        "they are never written as null (wire.md 1)",
        SCHEDULING,
        has_infinite_events,
        refused_task,
    ),
    Rule(
        "the whole task is validated",
        "ids, kind and events as well as dueAt (wire.md 11.2)",
        SCHEDULING,
        is_task_invalid,
        refused_task,
    ),
    Rule(
        "integers of any size are numbers",
        "there is no other type for them (wire.md 11.8)",
        SCHEDULING,
        has_big_integers,
        exactly_sent,
    ),
    Rule(
        "a token that is no header value stays",
        "the publish goes on without it (wire.md 11.3)",
        ("publish", "trusted_source"),
        is_token_no_header,
        without_token,
    ),
    Rule("numbers are exact", EXACTLY, SCHEDULING, is_due_beyond_doubles, exactly_sent),
    Rule("numbers are exact", EXACTLY, ("successor",), is_due_beyond_doubles, exactly_succeeded),
    Rule(
        "numbers as Python writes them",
        "so a body may be longer or shorter (wire.md 1 and 11.8)",
        ("publish",),
        has_events_written_otherwise,
        exact.request,
    ),
    Rule(
        "claims nest 500 levels at most",
        "a token of more is not forwarded (wire.md 6)",
        ("trusted_source",),
        has_deep_claims,
        no_claims,
    ),
    Rule(
        "a 2xx is success",
        "with an empty or non-JSON body too (wire.md 11.7)",
        ("wire",),
        is_success_without_json,
        accepted,
    ),
    Rule(
        "__proto__ is a header as any other",
        "it is sent as well as redacted (wire.md 6)",
        ("wire",),
        has_proto_header,
        with_proto_header,
    ),
)
