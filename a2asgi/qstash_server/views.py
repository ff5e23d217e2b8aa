"""What the API shows of messages, dead letters, schedules and queues: the documented JSON, redacted."""

import base64
import hashlib
from typing import Any, TypeAlias

from a2asgi.qstash_server.values import Callback, DeadLetter, Headers, Message, Order, Queue, Redact, Response, Schedule

View: TypeAlias = dict[str, Any]


def message_view(message: Message) -> View:
    """A message that waits or is on its way."""
    view = {
        "messageId": message.message_id,
        "url": message.order.destination,
        **_order_view(message.order),
        "maxRetries": message.order.retries,
        "notBefore": message.not_before_ms,
        "createdAt": message.created_at_ms,
        "scheduleId": message.schedule_id,
        "callerIP": message.caller_ip,
        "timeout": message.order.timeout_ms,
    }
    return _without_none(view)


def dead_letter_view(letter: DeadLetter) -> View:
    """A message in the dead-letter queue, with the answer that ended it."""
    view = {
        **message_view(letter.message),
        "dlqId": letter.dlq_id,
        "responseStatus": letter.response.status,
        "responseHeader": _grouped(letter.response.headers, Redact()),
        **_text_or_base64("responseBody", letter.response.body),
        "error": letter.response.error,
    }
    return _without_none(view)


def log_view(message: Message) -> View:
    """What each log entry of a message tells of it; its names differ a little from the message's own."""
    view = message_view(message)
    body = view.pop("body", None)
    view.pop("bodyBase64", None)
    view["body"] = body if message.order.redact.body else base64.b64encode(message.order.body).decode("ascii")
    for name in ("callbackHeader", "failureCallbackHeader"):
        if name in view:
            view[f"{name}s"] = view.pop(name)
    if "retryDelayExpression" in view:
        view["retryDelayExpr"] = view["retryDelayExpression"]  # the name that the Python client reads
    return view


def response_view(response: Response) -> View:
    """What a log entry tells of an attempt's answer. The clients and the documents spell its headers differently."""
    headers = _grouped(response.headers, Redact())
    view = {
        "responseStatus": response.status,
        "responseHeader": headers,
        "responseHeaders": headers,
        "responseBody": base64.b64encode(response.body).decode("ascii"),
        "error": response.error,
    }
    return _without_none(view)


def schedule_view(schedule: Schedule, next_at_ms: int, *, paused: bool) -> View:
    """A schedule, with its last run and its next."""
    order = schedule.order
    view = {
        "scheduleId": schedule.schedule_id,
        "cron": schedule.cron,
        "destination": order.destination,
        "createdAt": schedule.created_at_ms,
        **_order_view(order),
        "retries": order.retries,
        "delay": order.delay_ms // 1_000 or None,
        "timeout": None if order.timeout_ms is None else order.timeout_ms // 1_000,
        "callerIP": schedule.caller_ip,
        "isPaused": paused,
        "lastScheduleTime": schedule.last_at_ms,
        "nextScheduleTime": next_at_ms,
        "lastScheduleStates": schedule.last_states or None,
    }
    return _without_none(view)


def queue_view(queue: Queue) -> View:
    """A queue."""
    return {
        "name": queue.name,
        "parallelism": queue.parallelism,
        "paused": queue.paused,
        "createdAt": queue.created_at_ms,
        "updatedAt": queue.updated_at_ms,
        "lag": queue.lag,
    }


def redacted(value: bytes) -> str:
    """What stands for a value that is not shown: its hash, by which two can be compared."""
    return f"REDACTED:{hashlib.sha256(value).hexdigest()}"


def _order_view(order: Order) -> View:
    flow = order.flow
    body = {"body": redacted(order.body)} if order.redact.body else _text_or_base64("body", order.body)
    return {
        "method": order.method,
        "header": _grouped(order.headers, order.redact),
        **body,
        **_callback_view("callback", order.callback, order.redact),
        **_callback_view("failureCallback", order.failure_callback, order.redact),
        "queueName": order.queue,
        "retryDelayExpression": order.retry_delay,
        "label": order.labels[0] if order.labels else None,
        "labels": list(order.labels) or None,
        "flowControlKey": flow and flow.key,
        "parallelism": flow and flow.parallelism,
        "rate": flow and flow.rate,
        "period": flow and flow.period_s,
    }


def _callback_view(name: str, callback: Callback | None, redact: Redact) -> View:
    if callback is None:
        return {}
    return {name: callback.url, f"{name}Header": _grouped(callback.headers, redact) or None}


def _grouped(headers: Headers, redact: Redact) -> dict[str, list[str]]:
    grouped: dict[str, list[str]] = {}
    for name, value in headers:
        hidden = redact.all_headers or name.lower() in redact.header_names
        grouped.setdefault(name, []).append(redacted(value.encode("latin-1")) if hidden else value)
    return grouped


def _text_or_base64(name: str, body: bytes) -> View:
    try:
        return {name: body.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}Base64": base64.b64encode(body).decode("ascii")}


def _without_none(view: View) -> View:
    return {name: value for name, value in view.items() if value is not None}
