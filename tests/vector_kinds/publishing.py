"""Kinds of cases about sending: options, headers, callback URLs, tokens, publish requests and their HTTP."""

import json
import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from a2core.failures import send_failure
from a2core.oidc import token_expiry_ms
from a2core.publish import PublishRequest, PublishRules, check_headers, publish_task
from a2core.qstash import qstash_call, reply_failure
from a2core.tasks import Task, read_task
from a2core.urls import callback
from tests.vector_kinds.cases import Case, Kind
from tests.vector_kinds.values import (
    UNDEFINED,
    by_value,
    defined,
    in_ecmascript_order,
    whole,
)

DEFAULT_PORT = 3_000
DEFAULT_MAX_BYTES = 1_048_576
NO_REPLY = 0
PREVIEW = {"VERCEL": "1", "VERCEL_ENV": "preview", "VERCEL_BRANCH_URL": "app-git-x.vercel.app"}

OUR_CLASS = (
    ("absolute callback url|callback url must|could not infer url|needs url", "InvalidUrl"),
    ("retries must|maxBodyBytes must", "ValueError"),
    ("header", "InvalidHeaders"),
    ("exceeds maxBodyBytes", "MessageTooLarge"),
    ("dueAt must|serialize a BigInt|circular structure", "InvalidTask"),
)
"""Which of our errors stands for a message of the reference's, whose own errors are all TypeError or RangeError."""


def option(options: Mapping[str, Any], name: str) -> Any:
    """An option as a caller of ours gives it; None: not given."""
    value = options.get(name)
    return None if value is UNDEFINED else value


def publish_rules(options: Mapping[str, Any], env: Mapping[str, str]) -> PublishRules:
    """What a scheduler with these options is made of, or the error that it raises."""
    environment = {"A2_ENV" if name == "NODE_ENV" else name: value for name, value in defined(env).items()}
    place = callback(option(options, "url"), environment, DEFAULT_PORT)
    headers = check_headers([(name, value) for name, value in option(options, "headers") or []])
    most = whole(option(options, "maxBodyBytes"))
    limit = DEFAULT_MAX_BYTES if most is None else most
    return PublishRules(place, headers, retries=whole(option(options, "retries")), max_body_bytes=limit)


def refusal(error: Exception, *, is_classified: bool = True) -> dict[str, object]:
    """An error of ours, in the vectors' terms."""
    return {"refused": type(error).__name__, "failure": str(send_failure(error)) if is_classified else None}


def refusal_by(error: Mapping[str, Any]) -> dict[str, object]:
    """The error of ours that stands for the reference's."""
    name = next((ours for pattern, ours in OUR_CLASS if re.search(pattern, error["message"])), error["message"])
    return {"refused": name, "failure": error["classification"]}


def refused(name: str, failure: str | None = None) -> dict[str, object]:
    """A refusal of ours, where the reference goes on."""
    return {"refused": name, "failure": failure}


def request_sent(request: PublishRequest) -> dict[str, object]:
    """A publish request, in the vectors' terms."""
    return {
        "url": request.url,
        "body": by_value(request.body),
        "id": request.deduplication_id,
        "notBefore": request.not_before_s,
        "retries": request.retries,
        "headers": dict(request.headers),
        "redact": list(request.redact),
    }


def request_wanted(request: Mapping[str, Any]) -> dict[str, object]:
    """A publish request of the reference's, in the same terms. A very long body is known by its hash alone."""
    return ({"body": by_value(request["body_json"])} if "body_json" in request else {}) | {
        "url": request["url"],
        "id": request["deduplicationId"],
        "notBefore": request.get("notBefore"),
        "retries": request.get("retries"),
        "headers": request.get("headers", {}),
        "redact": request.get("redact", {}).get("header", []),
    }


def task_value(case: Case) -> Any:
    """The task that a case schedules, as JSON."""
    return json.loads(case.input["task_json"]) if "task_json" in case.input else defined(case.input["task"])


def clock(now: Any) -> int:
    """A clock's reading: a Date drops the fraction, towards zero."""
    return int(now)


def publish(case: Case) -> dict[str, object]:
    """What we publish, or refuse."""
    try:
        rules = publish_rules(case.input["options"], case.input.get("env", {}))
    except ValueError as error:
        return refusal(error, is_classified=False)
    try:
        task = read_task(task_value(case))
        request = publish_task(task, clock(case.input["now"]), rules, option(case.input, "oidcToken"))
    except ValueError as error:
        return refusal(error)
    body = request.body.encode()
    return request_sent(request) | {"bytes": len(body), "sha256": sha256(body).hexdigest()}


def publish_wanted(case: Case) -> dict[str, object]:
    if not case.output["ok"]:
        return refusal_by(case.output["error"])
    request = case.output["request"]
    digest = {"sha256": request["body_sha256"]} if "body_sha256" in request else {}
    return request_wanted(request) | {"bytes": request["body_bytes"]} | digest


def headers(case: Case) -> dict[str, object]:
    """Which headers we take, and how they travel."""
    try:
        checked = check_headers([(name, value) for name, value in case.input["headers"]])
    except ValueError as error:
        return refusal(error, is_classified=False)
    place = callback("https://app.example.com/", {})
    request = publish_task(drain(0), 0, PublishRules(place, checked))
    named = dict(checked)
    return {
        "normalized": [[name, named[name]] for name in in_ecmascript_order(named)],
        "headers": dict(request.headers),
        "redact": list(request.redact),
    }


def headers_wanted(case: Case) -> dict[str, object]:
    if not case.output["ok"]:
        return refusal_by(case.output["error"])
    sent = case.output["publish"]
    return {
        "normalized": case.output["normalized"] or [],
        "headers": sent.get("headers", {}),
        "redact": sent.get("redact", {}).get("header", []),
    }


def url_inference(case: Case) -> dict[str, object]:
    """Where the callback is, or what is wrong with it."""
    try:
        place = publish_rules(case.input.get("options", {}), case.input["env"]).callback
    except ValueError as error:
        return refusal(error, is_classified=False)
    return {"url": place.url, "is_development": place.is_development, "is_preview": place.is_preview}


def url_inference_wanted(case: Case) -> dict[str, object]:
    output = case.output
    if not output["ok"]:
        return refusal_by(output["error"])
    is_development = output["sdk_client"].get("devMode") is True
    return {"url": output["url"], "is_development": is_development, "is_preview": output["preview"]}


def drain(due_at: float) -> Task:
    return read_task({"kind": "drain", "contract": "orders", "sessionId": "sess-1", "dueAt": due_at})


def trusted_source(case: Case) -> dict[str, object]:
    """When a token expires, and whether it is forwarded."""
    if case.input["kind"] == "jwt":
        return {"expirationMs": token_expiry_ms(case.input["token"])}
    rules = publish_rules(case.input.get("options", {}), case.input.get("env", PREVIEW))
    request = publish_task(drain(case.input["dueAt"]), clock(case.input["now"]), rules, option(case.input, "token"))
    headers = dict(request.headers)
    return {
        "forwarded": "x-vercel-trusted-oidc-idp-token" in headers,
        "headers": headers,
        "redact": list(request.redact),
        "notBefore": request.not_before_s,
    }


def trusted_source_wanted(case: Case) -> dict[str, object]:
    output = case.output
    if case.input["kind"] == "jwt":
        return {"expirationMs": output["expirationMs"]}
    return {
        "forwarded": output["forwarded"],
        "headers": output["headers"] or {},
        "redact": (output["redact"] or {}).get("header", []),
        "notBefore": output["notBefore"],
    }


def wire(case: Case) -> dict[str, object]:
    """The HTTP request that publishes, and what its reply means to us. The token is the transport's."""
    try:
        rules = publish_rules(case.input["options"], case.input.get("env", {}))
    except ValueError as error:
        return refusal(error, is_classified=False)
    task = read_task(task_value(case))
    call = qstash_call(publish_task(task, clock(case.input["now"]), rules, option(case.input, "oidcToken")))
    failure = reply_failure(case.input.get("reply", {"status": 200}).get("status", NO_REPLY))
    return {
        "method": call.method,
        "target": call.target,
        "headers": dict(call.headers),
        "body": by_value(call.body.decode()),
        "failure": None if failure is None else str(failure),
    }


def wire_wanted(case: Case) -> dict[str, Any]:
    request = case.output["request"]
    headers = {name: value for name, value in request["headers"].items() if name != "authorization"}
    return {
        "method": request["method"],
        "target": request["target"],
        "headers": headers,
        "body": by_value(request["body"]),
        "failure": case.output.get("error", {}).get("classification"),
    }


PUBLISHING = {
    "publish": Kind(publish, publish_wanted),
    "headers": Kind(headers, headers_wanted),
    "url_inference": Kind(url_inference, url_inference_wanted),
    "trusted_source": Kind(trusted_source, trusted_source_wanted),
    "wire": Kind(wire, wire_wanted),
}
