"""Telemetry: the moments that an operator wants to count, handed to one hook."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

log: logging.Logger = logging.getLogger("a2asgi.telemetry")


class SignalName(StrEnum):
    """What happened."""

    SETTLED = "settled"
    RETRYING = "retrying"
    SNOOZED = "snoozed"
    CANCELLED = "cancelled"
    DEAD_LETTER = "dead_letter"
    LOST = "lost"
    RELEASED = "released"
    PARKED = "parked"
    SEND_FAILED = "send_failed"


@dataclass(frozen=True, slots=True)
class Signal:
    """One moment. `event_id` is empty where it concerns the whole session; `detail` is for people."""

    name: SignalName
    contract: str
    session: str
    event_id: str = ""
    event_type: str = ""
    detail: str = ""


Hook: TypeAlias = Callable[[Signal], None]


def emit(hook: Hook | None, signal: Signal) -> None:
    """Tell the hook. What it raises is logged, and does not disturb the work."""
    if hook is None:
        return
    try:
        hook(signal)
    except Exception:
        log.exception("the telemetry hook failed on %s", signal.name)
