"""Signed schedule requests: cron and maintenance over HTTP (wire.md 10)."""

import hmac
import re
from dataclasses import dataclass
from enum import Enum

MINUTE_MS = 60_000
MAX_AGE_MS = 60 * MINUTE_MS
"""How old a slot may be that a request names, or stands for."""

MAX_AHEAD_MS = MINUTE_MS
SLOT_HEADER = "x-a2-cron-slot"
SIGNATURE_HEADER = "x-a2-cron-signature"
MAX_SLOT_DIGITS = 16

_SIGNATURE = re.compile("sha256=[0-9a-f]{64}")
_SLOT = re.compile(f"[0-9]{{1,{MAX_SLOT_DIGITS}}}")


def sign_schedule(secret: str, task_id: str, slot_ms: int) -> str:
    """The signature of one slot of a task (`cron:name` or `maintenance:name`)."""
    message = f"{task_id}\n{slot_ms}"
    return "sha256=" + hmac.digest(_bytes(secret), _bytes(message), "sha256").hex()


def verify_schedule(secret: str, task_id: str, slot_ms: int, signature: object) -> bool:
    """Whether the signature is the one of this slot and task: exact form, compared in constant time."""
    if not isinstance(signature, str) or _SIGNATURE.fullmatch(signature) is None:
        return False
    return hmac.compare_digest(sign_schedule(secret, task_id, slot_ms), signature)


class ScheduleRefusal(Enum):
    """Why a signed schedule request is refused; the value is its HTTP status."""

    UNAUTHORIZED = 401
    OUTSIDE_WINDOW = 400


@dataclass(frozen=True, slots=True)
class ScheduleRequest:
    """A signed request, verified: this slot of this task."""

    task_id: str
    slot_ms: int


def check_schedule_request(
    secret: str, task_id: str, slot: str | None, signature: str | None
) -> ScheduleRequest | ScheduleRefusal:
    """Read and verify the two headers. A slot is plain decimal digits (wire.md 11.9)."""
    if slot is None or signature is None or _SLOT.fullmatch(slot) is None:
        return ScheduleRefusal.UNAUTHORIZED
    if not verify_schedule(secret, task_id, int(slot), signature):
        return ScheduleRefusal.UNAUTHORIZED
    return ScheduleRequest(task_id, int(slot))


def check_slot_window(slot_ms: int, now_ms: int) -> ScheduleRefusal | None:
    """None for a whole minute that is at most an hour old and at most a minute ahead. Asked once the name is known."""
    if slot_ms % MINUTE_MS or not now_ms - MAX_AGE_MS <= slot_ms <= now_ms + MAX_AHEAD_MS:
        return ScheduleRefusal.OUTSIDE_WINDOW
    return None


def _bytes(text: str) -> bytes:
    """UTF-8, with U+FFFD for a lone surrogate as other languages write it."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
