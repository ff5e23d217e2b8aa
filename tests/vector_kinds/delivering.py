"""Kinds of cases about deliveries: bodies, tasks, the machine's conversations, successors, outage lineages."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from a2core.body import BoundedBody, TooLarge, declared_too_large
from a2core.delivery import (
    Append,
    Busy,
    DeliveryRules,
    Drain,
    DrainAnswer,
    Ended,
    Head,
    Publish,
    ReadBody,
    Stalled,
    Verify,
    begin_delivery,
    drive,
)
from a2core.failures import send_failure
from a2core.publish import PublishRequest
from a2core.reasons import ANSWERS, Answer
from a2core.slots import DrainTimings
from a2core.tasks import Message, encode_message, parse_message
from tests.vector_kinds.cases import Case, Kind
from tests.vector_kinds.judging import SPACE, error_of
from tests.vector_kinds.publishing import clock, option, publish_rules, refusal, request_sent, request_wanted
from tests.vector_kinds.values import UNDEFINED, by_value, bytes_of, defined, text_of

TIMINGS = (30_000, 10_000, 5_000)
CALLBACK_URL = "https://app.example.com/api/a2/scheduler"


class StreamError(Exception):
    """The body's stream failed."""


def chunk_bytes(chunk: Any) -> bytes:
    """One chunk of a body's stream. Raises StreamError where the stream fails."""
    match chunk:
        case str():
            return bytes_of(chunk)
        case {"hex": str(digits)}:
            return bytes.fromhex(digits)
        case {"fill": [str(text), int(times)]}:
            return bytes_of(text) * times
        case {"error": message}:
            raise StreamError(message)
        case _:
            raise TypeError(f"no such chunk: {chunk!r}")


def header_value(value: Any) -> str | None:
    """A header as a host hands it over: trimmed, repeated lines joined."""
    if value is None:
        return None
    return ", ".join(line.strip(SPACE) for line in (value if isinstance(value, list) else [value]))


def body_bound(case: Case) -> dict[str, object]:
    """How much is read of a body, and what of it is kept."""
    most, reads = case.input["maxBytes"], 0
    if declared_too_large(header_value(case.input["content_length"]), most):
        return {"accepted": False, "reads": 0, "cancelled": False}
    body = BoundedBody(most)
    try:
        for chunk in case.input["chunks"] or []:
            data = chunk_bytes(chunk)
            reads += 1
            body.feed(data)
    except TooLarge:
        return {"accepted": False, "reads": reads, "cancelled": True}
    except StreamError as error:
        return {"rejects": str(error), "reads": reads, "cancelled": False}
    text = text_of(body.read())
    digest = sha256(text.encode()).hexdigest()
    return {"accepted": True, "reads": reads, "cancelled": False, "text": text, "text_sha256": digest}


def body_bound_wanted(case: Case) -> dict[str, object]:
    wanted = {name: value for name, value in case.output.items() if name != "text_length_utf16"}
    return wanted | ({"rejects": wanted["rejects"]["message"]} if "rejects" in wanted else {})


def body_of(given: Mapping[str, Any]) -> bytes:
    """The raw body of a delivery."""
    if "body_hex" in given:
        return bytes.fromhex(given["body_hex"])
    if "body_repeat" in given:
        return bytes_of("".join(text * times for text, times in given["body_repeat"]))
    if "chunks" in given:
        return b"".join(map(chunk_bytes, given["chunks"]))
    return bytes_of(given.get("body") or "")


def parse_task(case: Case) -> dict[str, object] | None:
    """What we read from a body; None: malformed."""
    message = parse_message(body_of(case.input))
    if message is None:
        return None
    lineage = json.loads(encode_message(message)).get("_a2QStash")
    text = encode_message(Message(message.task))
    task = json.loads(text)
    return {
        "task": by_value(text),
        "outage": None if lineage is None else by_value(json.dumps(lineage)),
        **{name: task[name] for name in ("kind", "contract", "sessionId")},
    }


def parse_task_wanted(case: Case) -> dict[str, object] | None:
    output = case.output
    if output is None:
        return None
    if "accepted" in output:
        return {name: value for name, value in output.items() if name != "accepted"}
    outage = output.get("outage_json")
    return {"task": by_value(output["task_json"]), "outage": None if outage is None else by_value(outage)}


@dataclass
class Script:
    """The world of one delivery: it answers as the case says, and writes down what it was asked."""

    request: Mapping[str, Any]
    url: str
    nows: list[int]
    verdict: bool = True
    servers: Mapping[str, Any] = field(default_factory=dict)
    accepts: list[Any] = field(default_factory=list)
    calls: list[list[object]] = field(default_factory=list)
    sent: list[PublishRequest] = field(default_factory=list)
    failure: str | None = None
    arm: Any = None
    reads: int = 0

    def now_ms(self) -> int:
        """The next reading; the last one repeats."""
        self.reads += 1
        return self.nows[min(self.reads, len(self.nows)) - 1]

    def read_body(self, max_bytes: int) -> bytes | None:
        body = BoundedBody(max_bytes)
        try:
            for chunk in self.request.get("chunks") or [{"hex": body_of(self.request).hex()}]:
                body.feed(chunk_bytes(chunk))
        except TooLarge:
            if "chunks" in self.request:
                self.calls.append(["body-cancelled"])
            return None
        return body.read()

    def verify(self, step: Verify) -> bool:
        head = step.context.head
        asked = {"signature": step.signature, "region": head.region, "body": text_of(step.body), "url": self.url}
        self.calls.append(["verify", asked])
        return self.verdict

    def append(self, step: Append) -> Ended:
        self.reads = 0  # the reference reads no clock before an append
        self.calls.append(["append", step.task.contract, by_value(encode_message(Message(step.task)))])
        return ended(self.servers[step.task.contract]["append"])

    def drain(self, step: Drain) -> DrainAnswer:
        server = self.servers[step.task.contract]
        is_structural = server.get("internals") is False
        watchdog = [] if is_structural else [{"watchdogDueAt": step.watchdog_due_at_ms}]
        name = "drain" if is_structural else "schedulerDrain"
        self.calls.append([name, step.task.contract, step.task.session_id, *watchdog])
        if "throws" in server["drain"]:
            return ended(server["drain"])
        returned = server["drain"].get("returns")
        result = returned if isinstance(returned, dict) else {}
        if is_truthy(result.get("settled")):
            return Ended.DONE
        if result.get("outcome") != "busy" or is_structural:
            return Stalled()
        self.arm = defined(result.get("schedulerArm"))
        return Busy(arming=self.arm is not None)

    def publish(self, request: PublishRequest) -> bool:
        self.calls.append(["publish", request_sent(request)])
        self.sent.append(request)
        outcome = self.accepts.pop(0) if self.accepts else {}
        if "throws" not in outcome:
            return True
        self.failure = str(send_failure(error_of(outcome["throws"])))
        return False

    def join_arm(self) -> bool:
        self.calls.append(["await-schedulerArm"])
        return "rejects" not in self.arm


def ended(answer: Mapping[str, Any]) -> Ended:
    """How an append or a drain ended. Only the package's own error with this very code says that the store is away."""
    match answer.get("throws"):
        case None:
            return Ended.DONE
        case {"class": "A2Error", "code": "STORE_UNAVAILABLE"}:
            return Ended.UNAVAILABLE
        case _:
            return Ended.FAILED


def is_truthy(value: Any) -> bool:
    """Whether ECMAScript takes the value for true: an empty list or object is."""
    return isinstance(value, list | dict) or (value is not UNDEFINED and bool(value) and value == value)  # noqa: PLR0124 - NaN


def head_of(request: Mapping[str, Any]) -> Head:
    """The head of a request, as a host hands it over."""
    lines: dict[str, list[str]] = {}
    for name, value in request.get("headers", []):
        lines.setdefault(name.lower(), []).append(value)
    joined = {name: header_value(values) for name, values in lines.items()}
    return Head(
        request.get("method", "POST"),
        joined.get("upstash-signature"),
        region=joined.get("upstash-region"),
        content_length=joined.get("content-length"),
        oidc_token=request.get("oidcToken"),
    )


def handler(case: Case) -> dict[str, object]:
    """The answer to a delivery, and what was asked of the world on the way, in order."""
    given = case.input
    options = {"url": CALLBACK_URL} | given.get("options", {})
    try:
        publishing = publish_rules(options, given.get("env", {}))
    except ValueError as error:
        return refusal(error, is_classified=False)
    servers = {server["contract"]: server for server in given["servers"]}
    script = Script(
        given["request"],
        publishing.callback.url,
        [clock(now) for now in given.get("nows", [given.get("now")])],
        verdict=given.get("verify", {"returns": True}).get("returns") is True,
        servers=servers,
        accepts=list(given.get("publish", [])),
    )
    head = head_of({**given["request"], "oidcToken": option(given, "oidcToken")})
    rules = DeliveryRules(publishing, frozenset(servers), DrainTimings(*TIMINGS))
    try:
        answer = ANSWERS[drive(begin_delivery(rules, head), script).reason]
    except StreamError:  # there is nobody left to answer
        answer = Answer(500, "")
    return {
        "status": answer.status if answer.status < 500 else "5xx",
        "text": answer.text if answer.status < 500 else None,
        "nonretryable": answer.nonretryable,
        "calls": script.calls,
        "failure": script.failure,
    }


def handler_wanted(case: Case) -> dict[str, Any]:
    output = case.output
    calls = [call_wanted(call) for call in output.get("calls", [])]
    if "rejects" in output:  # an HTTP layer answers 5xx; the classification is that of a publish
        has_failed = any("throws" in outcome for outcome in case.input.get("publish", []))
        failure = output["rejects"]["classification"] if has_failed else None
        return {"status": "5xx", "text": None, "nonretryable": False, "calls": calls, "failure": failure}
    response = output["response"]
    return {
        "status": response["status"],
        "text": response["body"],
        "nonretryable": response["headers"].get("upstash-nonretryable-error") == "true",
        "calls": calls,
        "failure": None,
    }


def call_wanted(call: list[Any]) -> list[object]:
    """One call of the reference's, in the terms of the script."""
    match call:
        case ["verify", asked]:
            names = {"signature": "signature", "region": "upstashRegion", "body": "body", "url": "url"}
            return ["verify", {ours: asked.get(theirs) for ours, theirs in names.items()}]
        case ["append", contract, text]:
            return ["append", contract, by_value(text)]
        case ["publish", request]:
            return ["publish", request_wanted(request)]
        case _:
            return call


def successor(case: Case) -> dict[str, object]:
    """When a busy drain looks again, and the message that says so."""
    timings = case.file["timings"]
    times = DrainTimings(timings["claimTtlMs"], timings["claimHeartbeatMs"], timings["watchdogGraceMs"])
    message = parse_message(drain_body(case))
    assert message is not None
    publishing = publish_rules({"url": CALLBACK_URL}, {})
    now_ms = clock(case.input["now"])
    begun = begin_delivery(DeliveryRules(publishing, frozenset({"orders"}), times), Head("POST", "sig"))
    assert isinstance(begun, ReadBody)
    step = begun.context.begin_task(message, now_ms)
    assert isinstance(step, Drain)
    published = step.ended(Busy(), now_ms)
    sent = request_sent(published.request) if isinstance(published, Publish) else {}
    return {"watchdogDueAt": step.watchdog_due_at_ms, **{name: sent.get(name) for name in ("body", "notBefore", "id")}}


def drain_body(case: Case) -> bytes:
    start = '{"version":1,"kind":"drain","contract":"orders","sessionId":"sess-1","dueAt":'
    return f"{start}{case.input['dueAt_json']}}}".encode()


def successor_wanted(case: Case) -> dict[str, object]:
    published = case.output["published"]
    return {
        "watchdogDueAt": case.output["watchdogDueAt"],
        "body": by_value(published["body_json"]),
        "notBefore": published.get("notBefore"),
        "id": published["deduplicationId"],
    }


def outage(case: Case) -> object:
    """The successors of one message while the store stays away, each delivered at the next clock."""
    try:
        publishing = publish_rules({"url": case.input["url"]} | case.input.get("options", {}), {})
    except ValueError as error:
        return refusal(error, is_classified=False)
    return list(lineage(bytes_of(case.input["body"]), [clock(now) for now in case.input["clocks"]], publishing))


def lineage(body: bytes, clocks: list[int], publishing: Any) -> Iterator[object]:
    """Deliver the body, then each successor, until one is refused."""
    away = {"throws": {"class": "A2Error", "code": "STORE_UNAVAILABLE"}}
    for now_ms in clocks:
        message = parse_message(body)
        contracts = frozenset() if message is None else frozenset({message.task.contract})
        servers = {contract: {"drain": away, "append": away} for contract in contracts}
        script = Script({"chunks": [{"hex": body.hex()}]}, publishing.callback.url, [now_ms], servers=servers)
        end = drive(begin_delivery(DeliveryRules(publishing, contracts), Head("POST", "sig")), script)
        status = ANSWERS[end.reason].status
        if not script.sent:
            yield {"status": status if status < 500 else "5xx"}
            return
        body = script.sent[0].body.encode()
        sent = request_sent(script.sent[0])
        yield {**{name: sent[name] for name in ("body", "notBefore", "id")}, "status": status}


def outage_wanted(case: Case) -> list[object]:
    return [step_wanted(step) for step in case.output["steps"]]


def step_wanted(step: Mapping[str, Any]) -> dict[str, object]:
    if "rejects" in step:
        return {"status": "5xx"}
    if "response" in step:
        return {"status": step["response"]["status"]}
    body = by_value(step["body_json"])
    return {"body": body, "notBefore": step.get("notBefore"), "id": step["deduplicationId"], "status": 200}


DELIVERING = {
    "body_bound": Kind(body_bound, body_bound_wanted),
    "parse_task": Kind(parse_task, parse_task_wanted),
    "handler": Kind(handler, handler_wanted),
    "successor": Kind(successor, successor_wanted),
    "outage": Kind(outage, outage_wanted),
}
