"""The reports on attempts: messages of their own, to the callback and the failure callback."""

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from a2asgi.qstash_server.values import Callback, DeadLetter, Headers, Message, Order, Redact, Response


def callback_messages(
    message: Message,
    retried: int,
    response: Response,
    *,
    letter: DeadLetter | None,
    now_ms: int,
    new_id: Callable[[str], str],
) -> list[Message]:
    """What an attempt is reported with: the callback at each, the failure callback with the `letter` it ends in."""
    report = _report(message, retried, response)
    reports: list[Message] = []
    if (callback := message.order.callback) is not None:
        reports.append(_message(message, callback, report, now_ms, new_id))
    if letter is not None and (callback := message.order.failure_callback) is not None:
        reports.append(_message(message, callback, {**report, "dlqId": letter.dlq_id}, now_ms, new_id))
    return reports


def _report(message: Message, retried: int, response: Response) -> dict[str, Any]:
    order = message.order
    return {
        "status": response.status,
        "header": _grouped(response.headers),
        "body": base64.b64encode(response.body).decode("ascii"),
        "retried": retried,
        "maxRetries": order.retries,
        "sourceMessageId": message.message_id,
        "topicName": "",
        "endpointName": "",
        "url": order.destination,
        "method": order.method,
        "sourceHeader": _grouped(order.headers),
        "sourceBody": base64.b64encode(order.body).decode("ascii"),
        "notBefore": str(message.not_before_ms),
        "createdAt": str(message.created_at_ms),
        "scheduleId": message.schedule_id or "",
        "callerIP": message.caller_ip,
    }


def _message(
    source: Message, callback: Callback, report: dict[str, Any], now_ms: int, new_id: Callable[[str], str]
) -> Message:
    order = source.order
    redact = order.redact
    if redact:  # the report holds the source's body and headers, so that no view may show it
        redact = replace(redact, body=True)
    return Message(
        message_id=new_id("msg"),
        order=Order(
            destination=callback.url,
            method=callback.method,
            headers=(("Content-Type", "application/json"), *_own(callback.headers)),
            body=json.dumps(report, separators=(",", ":")).encode(),
            retries=order.retries if callback.retries is None else callback.retries,
            retry_delay=callback.retry_delay or order.retry_delay,
            timeout_ms=callback.timeout_ms or order.timeout_ms,
            labels=order.labels,
            redact=redact or Redact(),
        ),
        created_at_ms=now_ms,
        not_before_ms=now_ms,
        caller_ip=source.caller_ip,
        source_id=source.message_id,
    )


def _own(headers: Headers) -> Headers:
    return tuple((name, value) for name, value in headers if name.lower() != "content-type")


def _grouped(headers: Headers) -> dict[str, list[str]]:
    grouped: dict[str, list[str]] = {}
    for name, value in headers:
        grouped.setdefault(name, []).append(value)
    return grouped
