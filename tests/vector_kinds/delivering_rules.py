"""Rules about deliveries: what is malformed, how a lineage goes on, who may call."""

import json
import re
from typing import Any, Final

from tests.vector_kinds import exact
from tests.vector_kinds.cases import NOT_SAID, Case, Rule
from tests.vector_kinds.delivering import TIMINGS, body_of, handler_wanted, head_of, parse_task_wanted
from tests.vector_kinds.publishing import DEFAULT_MAX_BYTES, clock, option, publish_rules
from tests.vector_kinds.values import (
    by_value,
    bytes_of,
    compact,
    depth,
    holds,
    is_beyond_doubles,
    is_infinite,
    is_number,
    whole,
)

MAX_DEPTH = 100
READING = ("parse_task", "handler", "outage")
CARRYING_ON = ("outage", "handler")


# ── bodies ───────────────────────────────────────────────────────────────────────────────


def raw_body(case: Case) -> bytes:
    if case.kind == "outage":
        return bytes_of(case.input["body"])
    return body_of(case.input if case.kind == "parse_task" else case.input["request"])


def is_read(case: Case) -> bool:
    """Whether a delivery comes as far as its body's being parsed."""
    if case.kind != "handler":
        return True
    is_verified = case.input.get("verify", {"returns": True}).get("returns") is True
    max_bytes = case.input.get("options", {}).get("maxBodyBytes") or DEFAULT_MAX_BYTES
    return is_verified and bool(head_of(case.input["request"]).signature) and len(raw_body(case)) <= max_bytes


def text_of_body(case: Case) -> str | None:
    """The body's text; None where it is not UTF-8, or starts with a byte order mark."""
    try:
        text = raw_body(case).decode()
    except UnicodeDecodeError:
        return None
    return None if text.startswith("\ufeff") else text


def is_no_utf8(case: Case) -> bool:
    return is_read(case) and text_of_body(case) is None


def is_nested(case: Case) -> bool:
    return is_read(case) and depth(text_of_body(case) or "") > MAX_DEPTH


def has_long_integer(case: Case) -> bool:
    return is_read(case) and re.search("(?<![0-9.])[0-9]{4301,}(?![0-9.eE])", text_of_body(case) or "") is not None


def json_of_body(case: Case) -> dict[str, Any]:
    """The body as an object; empty where it is none."""
    try:
        value = json.loads(text_of_body(case) or "")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def has_infinite_events(case: Case) -> bool:
    body = json_of_body(case)
    return is_read(case) and body.get("kind") == "append" and holds(body.get("events"), is_infinite)


def malformed(case: Case) -> object:
    if case.kind == "parse_task":
        return None
    if case.kind == "outage":
        return [{"status": 489}]
    asked = handler_wanted(case)["calls"][:1]
    text = "invalid a2 scheduler message"
    return {"status": 489, "text": text, "nonretryable": True, "calls": asked, "failure": None}


# ── lineages ─────────────────────────────────────────────────────────────────────────────


def is_store_away(case: Case) -> bool:
    if case.kind == "outage":
        return True
    servers = {server["contract"]: server for server in case.input["servers"]}
    body = json_of_body(case)
    thrown = servers.get(body.get("contract"), {}).get(body.get("kind"), {}).get("throws") or {}
    return (thrown.get("class"), thrown.get("code")) == ("A2Error", "STORE_UNAVAILABLE")


def lineage_of(case: Case) -> dict[str, Any]:
    begun = json_of_body(case).get("_a2QStash")
    return begun if isinstance(begun, dict) else {}


def is_root_between_seconds(case: Case) -> bool:
    body = json_of_body(case)
    is_first = body.get("kind") == "drain" and is_number(body.get("dueAt")) and "_a2QStash" not in body
    return is_first and whole(body["dueAt"]) % exact.SECOND_MS != 0 and is_store_away(case)


def is_generation_at_its_end(case: Case) -> bool:
    generation = whole(lineage_of(case).get("generation"))
    steps = len(case.input["clocks"]) if case.kind == "outage" else 1
    is_valid = is_number(generation) and generation <= exact.LAST_GENERATION
    return is_valid and generation + steps > exact.LAST_GENERATION and is_store_away(case)


def is_drain_beyond_doubles(case: Case) -> bool:
    body, root = json_of_body(case), lineage_of(case).get("rootDueAt")
    is_beyond = is_beyond_doubles(root) or (case.kind != "parse_task" and is_beyond_doubles(body.get("dueAt")))
    return body.get("kind") == "drain" and is_beyond


def carried_on(case: Case) -> object:
    """As the reference, with a lineage that can be read back, and exact numbers."""
    match case.kind:
        case "parse_task":
            return exact_root(case)
        case "outage":
            most = option(case.input.get("options", {}), "maxBodyBytes") or DEFAULT_MAX_BYTES
            url = publish_rules({"url": case.input["url"]}, {}).callback.url
            return list(exact.lineage(url, case.input["body"], [clock(now) for now in case.input["clocks"]], most))
        case _:
            wanted = handler_wanted(case)
            return {**wanted, "calls": [exact_call(case, call) for call in wanted["calls"]]}


def exact_root(case: Case) -> object:
    """A lineage's first due time counts as it is written, not as the nearest double."""
    body, lineage, wanted = json_of_body(case), lineage_of(case), parse_task_wanted(case)
    if whole(lineage["rootDueAt"]) % exact.SECOND_MS:
        return None
    if wanted is not None:
        return wanted
    own = {name: lineage[name] for name in ("version", "generation", "rootDueAt")}
    return {"task": by_value(compact(exact.message(body, body["dueAt"]))), "outage": by_value(compact(own))}


def exact_call(case: Case, call: list[Any]) -> list[Any]:
    """One call of a handler's, with exact numbers."""
    body = json_of_body(case)
    nows = [clock(now) for now in case.input.get("nows", [case.input.get("now")])]
    due = exact.watchdog(nows[0], whole(body["dueAt"]), *TIMINGS)
    if call[0] == "schedulerDrain":
        return [*call[:3], {"watchdogDueAt": due}]
    if call[0] != "publish":
        return call
    url, now_ms = call[1]["url"], nows[min(body["kind"] == "drain", len(nows) - 1)]
    if is_store_away(case):
        [sent] = exact.lineage(url, compact(body), [now_ms], DEFAULT_MAX_BYTES)
        return ["publish", {**call[1], **{name: sent[name] for name in ("body", "notBefore", "id")}}]
    return ["publish", {**call[1], **exact.drain(url, body, now_ms, due)}]


# ── who may call ─────────────────────────────────────────────────────────────────────────


def is_other_method(case: Case) -> bool:
    return bool(case.input["request"].get("method", "POST") != "POST")


def wrong_method(_: Case) -> object:
    return {"status": 405, "nonretryable": False, "calls": [], "failure": None}


def is_contract_twice(case: Case) -> bool:
    names = [server["contract"] for server in case.input["servers"]]
    return len(names) != len(set(names))


def is_verdict_no_boolean(case: Case) -> bool:
    verdict = case.input.get("verify", {"returns": True})
    return "returns" in verdict and not isinstance(verdict["returns"], bool)


def unauthorized(case: Case) -> object:
    asked = handler_wanted(case)["calls"][:1]
    return {"status": 401, "text": "unauthorized", "nonretryable": False, "calls": asked, "failure": None}


DELIVERING_RULES: Final = (
    Rule(
        "other methods are refused",
        "405 for all but POST (wire.md 11.6)",
        ("handler",),
        is_other_method,
        wrong_method,
    ),
    Rule(
        "contracts are a set",
        "two servers for one contract have no word in our API (wire.md 8.5)",
        ("handler",),
        is_contract_twice,
        lambda _: NOT_SAID,
    ),
    Rule(
        "a verdict is a boolean",
        "whatever else a verifier returns is no yes (wire.md 8.3)",
        ("handler",),
        is_verdict_no_boolean,
        unauthorized,
    ),
    Rule(
        "a byte order mark and bad UTF-8 are malformed",
        "bytes are hashed as they came, and nothing is replaced (wire.md 11.5)",
        READING,
        is_no_utf8,
        malformed,
    ),
    Rule("nesting is bounded", "deeper than 100 levels is malformed (wire.md 11.6)", READING, is_nested, malformed),
    Rule(
        "digits are bounded",
        "an integer of thousands of digits is malformed (wire.md 1)",
        READING,
        has_long_integer,
        malformed,
    ),
    Rule(
        "NaN and infinities are refused",
        "they are never written as null (wire.md 1)",
        READING,
        has_infinite_events,
        malformed,
    ),
    Rule(
        "a lineage's first due time is a whole second",
        "it is rounded down, so that the successor can be read back (wire.md 11.1)",
        CARRYING_ON,
        is_root_between_seconds,
        carried_on,
    ),
    Rule(
        "a generation stays at its last",
        "so that every successor can be read back (wire.md 11.1)",
        CARRYING_ON,
        is_generation_at_its_end,
        carried_on,
    ),
    Rule(
        "numbers are exact",
        "beyond 2^53 we count in integers, not in doubles (wire.md 11.8)",
        READING,
        is_drain_beyond_doubles,
        carried_on,
    ),
)
