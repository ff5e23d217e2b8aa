"""Triggers: crons and maintenance tasks over HTTP, for whoever may say that a slot has come (wire.md 10)."""

import logging
from collections.abc import Iterable
from typing import Any, TypeAlias

from a2asgi import runs
from a2asgi.app import A2
from a2asgi.asgi import Receive, Scope
from a2asgi.body import read_body
from a2asgi.crons import Cron, read_rule
from a2asgi.errors import BodyTooLarge, StoreBroken, StoreUnavailable
from a2asgi.ports import DeliveringScheduler
from a2asgi.ticks import PURGE_BATCH
from a2core import (
    MAX_AGE_MS,
    MINUTE_MS,
    SIGNATURE_HEADER,
    SLOT_HEADER,
    InvalidName,
    RunState,
    check_slot_window,
    trigger_url,
)

log: logging.Logger = logging.getLogger("a2asgi.triggers")

KINDS = {"cron": "cron", "maintenance": "maintenance task"}
"""The kinds of what can be triggered, as paths and as answers name them."""

METHODS = ("GET", "POST")
EARLY_MS = 5_000
"""How much too early a trigger that names no slot may come, by our clock."""

Reply: TypeAlias = tuple[int, dict[str, str]]
UNAUTHORIZED: Reply = (401, {"error": "invalid schedule signature"})
OUTSIDE: Reply = (400, {"error": "invalid cron slot"})
UNAVAILABLE: Reply = (503, {"error": "unavailable"})


async def trigger(a2: A2, kind: str, name: str, scope: Scope, receive: Receive) -> Reply:
    """Check who asks, then run the slot, once; say what came of it.

    POST is signed, by A2_CRON_SECRET or by the scheduler that carries the schedules; GET bears CRON_SECRET, as Vercel
    Cron does. Raises ClientDisconnected.
    """
    headers: Iterable[tuple[bytes, bytes]] = scope["headers"]
    task_id = f"{kind}:{name}"
    slot_ms: int | None = None
    if scope["method"] == "GET":
        allowed = a2.cron_secrets.bears(_header(headers, "authorization"))
    elif (signature := _text(headers, "upstash-signature")) is not None:
        allowed = kind == "cron" and await _is_scheduler(
            a2.scheduler, name, signature, _text(headers, "upstash-region"), receive
        )
    else:
        request = a2.cron_secrets.signed(task_id, _text(headers, SLOT_HEADER), _text(headers, SIGNATURE_HEADER))
        allowed = request is not None
        slot_ms = None if request is None else request.slot_ms
    if not allowed:
        return UNAUTHORIZED
    cron = a2.crons.get(task_id)
    if cron is None:
        return 404, {"error": f"unknown {KINDS[kind]}"}
    now_ms = a2.now_ms()
    if slot_ms is None:
        slot_ms = _current_slot(cron, now_ms)
    elif check_slot_window(slot_ms, now_ms) is not None or not cron.is_slot(slot_ms):
        slot_ms = None
    if slot_ms is None:
        return OUTSIDE
    try:
        engine = await a2.ready()
        before, after = await runs.trigger(engine, cron.definition, slot_ms, read_rule)
    except (StoreUnavailable, StoreBroken) as error:
        log.warning("slot %d of %s waits for the store: %s", slot_ms, task_id, error)
        return UNAVAILABLE
    await engine.tidy(PURGE_BATCH)
    return _reply(before, after, kind)


async def _is_scheduler(scheduler: object, name: str, signature: str, region: str | None, receive: Receive) -> bool:
    """Whether the scheduler that carries the schedules signed this request, for this cron's URL."""
    if not isinstance(scheduler, DeliveringScheduler):
        return False
    try:
        url = trigger_url(scheduler.rules.callback, name)
        body = await read_body(receive, scheduler.rules.max_body_bytes)
    except (InvalidName, BodyTooLarge):
        return False
    return scheduler.verify(signature, body, region, url=url)


def _current_slot(cron: Cron[..., Any], now_ms: int) -> int | None:
    """The slot that a trigger which names none stands for: the last one."""
    until_ms = now_ms + EARLY_MS
    if cron.crontab is None:
        return until_ms // MINUTE_MS * MINUTE_MS
    return cron.crontab.latest_ms(now_ms - MAX_AGE_MS, until_ms)


def _reply(before: RunState | None, after: RunState | None, kind: str) -> Reply:
    if before in {RunState.SUCCEEDED, RunState.CANCELLED}:
        return 200, {"status": "duplicate"}
    match after:
        case RunState.SUCCEEDED | RunState.CANCELLED:
            return 200, {"status": "succeeded"}
        case RunState.RUNNING | RunState.QUEUED:
            return 202, {"status": "running"}
        case _:
            return 500, {"error": f"{kind} handler failed"}


def _header(headers: Iterable[tuple[bytes, bytes]], wanted: str) -> bytes | None:
    """The header's value; None where it is absent, or repeated, and so not to be trusted."""
    values = [value for name, value in headers if name.lower() == wanted.encode()]
    return values[0] if len(values) == 1 else None


def _text(headers: Iterable[tuple[bytes, bytes]], wanted: str) -> str | None:
    value = _header(headers, wanted)
    return None if value is None else value.decode("latin-1")
