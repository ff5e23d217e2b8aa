"""Reasons: every way a delivery ends, and the one table that maps each to its answer (wire.md 8)."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Reason(StrEnum):
    """Why a delivery was answered as it was."""

    OK = "ok"
    """Nothing is left to do, or a successor is on its way."""
    WRONG_METHOD = "wrong_method"
    UNSIGNED = "unsigned"
    """No signature header: the body is not read."""
    FORGED = "forged"
    """The signature does not hold, or could not be checked."""
    TOO_LARGE = "too_large"
    MALFORMED = "malformed"
    UNKNOWN_CONTRACT = "unknown_contract"
    """This deployment has no such contract; a newer one may: the provider tries again."""
    FAILED = "failed"
    """The append or drain failed, and not because the store is away."""
    NOT_PUBLISHED = "not_published"
    """The successor was not accepted: the provider must redeliver."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer: status, a short text, and whether the provider is told never to try again."""

    status: int
    text: str
    nonretryable: bool = False
    headers: tuple[tuple[str, str], ...] = ()


NONRETRYABLE_STATUS: Final = 489
"""By this status and `Upstash-NonRetryable-Error: true` QStash stops to retry."""

ANSWERS: Final[Mapping[Reason, Answer]] = {
    Reason.OK: Answer(200, "ok"),
    Reason.WRONG_METHOD: Answer(405, "method not allowed", headers=(("allow", "POST"),)),
    Reason.UNSIGNED: Answer(401, "unauthorized"),
    Reason.FORGED: Answer(401, "unauthorized"),
    Reason.TOO_LARGE: Answer(NONRETRYABLE_STATUS, "a2 scheduler message is too large", nonretryable=True),
    Reason.MALFORMED: Answer(NONRETRYABLE_STATUS, "invalid a2 scheduler message", nonretryable=True),
    Reason.UNKNOWN_CONTRACT: Answer(500, "unknown contract"),
    Reason.FAILED: Answer(500, "delivery failed"),
    Reason.NOT_PUBLISHED: Answer(503, "successor not published"),
}
