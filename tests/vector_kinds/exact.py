"""What a2 sends, computed apart from a2core in exact arithmetic (wire.md 2 to 5): the expected side of some rules."""

import json
from collections.abc import Iterator, Mapping
from fractions import Fraction
from math import ceil, isfinite
from typing import Any

from tests.vector_kinds.cases import Case
from tests.vector_kinds.publishing import clock, publish_rules, refusal, refused, task_value
from tests.vector_kinds.values import by_value, compact, double, id_of, is_number, whole

SECOND_MS = 1_000
DAY_MS = 86_400_000
FIRST_DELAY_MS = 30_000
LARGEST_GENERATION = 2**53 - 1
LAST_GENERATION = LARGEST_GENERATION - 1
MESSAGE_KEYS = ("id", "contract", "sessionId", "dueAt", "events")


def slot(now_ms: int, due_at: float) -> int:
    """The slot of a due time."""
    return now_ms // SECOND_MS * SECOND_MS if due_at <= now_ms else ceil(Fraction(due_at) / SECOND_MS) * SECOND_MS


def message(task: Mapping[str, Any], due_at_ms: int, lineage: Mapping[str, int] | None = None) -> dict[str, Any]:
    """A message as an object: the task's own keys in order, then its lineage."""
    own = ("contract", "sessionId", "dueAt") if task["kind"] == "drain" else MESSAGE_KEYS
    values = {**task, "dueAt": due_at_ms}
    begun = {"version": 1, "kind": task["kind"], **{key: values[key] for key in own}}
    return begun if lineage is None else begun | {"_a2QStash": lineage}


def request(case: Case) -> dict[str, object]:
    """The publish request of a task with valid names and events, or its refusal."""
    task, now_ms = task_value(case), clock(case.input["now"])
    try:
        rules = publish_rules(case.input["options"], case.input.get("env", {}))
    except ValueError as error:
        return refusal(error, is_classified=False)
    if not is_number(task.get("dueAt")) or not isfinite(double(task["dueAt"])):
        return refused("InvalidTask", "terminal")
    url, due_at_ms = rules.callback.url, slot(now_ms, whole(task["dueAt"]))
    if task["kind"] == "append":
        id_, lineage = id_of("a2:scheduler-qstash:append:v1", url, task["id"]), {}
    else:
        id_ = id_of("a2:scheduler-qstash:v1", url, task["contract"], task["sessionId"], due_at_ms)
        lineage = {"rootDueAt": due_at_ms}
    largest = message(task, due_at_ms, {"version": 1, "generation": LARGEST_GENERATION} | lineage)
    if len(compact(largest).encode()) > rules.max_body_bytes:
        return refused("MessageTooLarge", "terminal")
    body = compact(message(task, due_at_ms))
    return {
        "url": url,
        "body": by_value(body),
        "bytes": len(body.encode()),
        "id": id_,
        "notBefore": due_at_ms // SECOND_MS if due_at_ms > now_ms else None,
        "retries": rules.retries,
        "headers": dict(rules.headers),
        "redact": sorted(dict(rules.headers)),
    }


def watchdog(now_ms: int, due_at: float, ttl_ms: int, heartbeat_ms: int, grace_ms: int) -> float:
    """When a busy drain of this due time looks again."""
    beats = max(1, ceil((now_ms + ttl_ms + grace_ms - Fraction(due_at)) / heartbeat_ms))
    due = Fraction(due_at) + beats * heartbeat_ms
    return int(due) if due.denominator == 1 else float(due)


def drain(url: str, task: Mapping[str, Any], now_ms: int, due_at: float) -> dict[str, object]:
    """What is published for a drain's successor, as far as it depends on numbers."""
    due_at_ms = slot(now_ms, due_at)
    return {
        "body": by_value(compact(message(task, due_at_ms))),
        "notBefore": due_at_ms // SECOND_MS if due_at_ms > now_ms else None,
        "id": id_of("a2:scheduler-qstash:v1", url, task["contract"], task["sessionId"], due_at_ms),
    }


def lineage(url: str, body: str, clocks: list[int], max_bytes: int) -> Iterator[dict[str, object]]:
    """The successors of a message while the store stays away, one for each clock."""
    task = json.loads(body)
    begun = task.get("_a2QStash")
    generation = -1 if begun is None else whole(begun["generation"])
    root = None
    if task["kind"] == "drain":
        root = whole(task["dueAt"]) // SECOND_MS * SECOND_MS if begun is None else whole(begun["rootDueAt"])
        root = whole(root)
    for now_ms in clocks:
        generation = min(generation + 1, LAST_GENERATION)
        delay_ms = min(DAY_MS, FIRST_DELAY_MS * 4 ** min(generation, 6))
        due_at_ms = -(-(now_ms + delay_ms) // SECOND_MS) * SECOND_MS
        own = {"version": 1, "generation": generation} | ({} if root is None else {"rootDueAt": root})
        text = compact(message(task, due_at_ms, own))
        if len(text.encode()) > max_bytes:
            yield {"status": "5xx"}
            return
        id_ = successor_id(url, task, generation, root)
        yield {"body": by_value(text), "notBefore": due_at_ms // SECOND_MS, "id": id_, "status": 200}


def successor_id(url: str, task: Mapping[str, Any], generation: int, root: int | None) -> str:
    """The id of an outage successor."""
    whose = (url, task["contract"], task["sessionId"])
    if root is None:
        return id_of("a2:scheduler-qstash:store-outage:append:v1", *whose, task["id"], generation)
    return id_of("a2:scheduler-qstash:store-outage:drain:v1", *whose, root, generation)
