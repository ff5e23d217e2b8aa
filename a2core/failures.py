"""Send failures: which HTTP status an error tells of, and whether sending the same again can help (wire.md 6)."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from a2core.errors import InvalidName, InvalidPayload
from a2core.publish import MessageTooLarge
from a2core.tasks import InvalidTask


class SendFailure(StrEnum):
    """What to do about a message that was not accepted."""

    TERMINAL = "terminal"
    """Sending the same again cannot help."""
    RETRYABLE = "retryable"
    """It may: a time-out, a conflict, a limit, the provider's own trouble, or no answer at all."""


_NEVER_SENT: Final = (InvalidName, InvalidPayload, InvalidTask, MessageTooLarge)
_RETRYABLE_4XX: Final = frozenset({408, 409, 425, 429})
_STATUS_NAMES: Final = ("status", "statusCode", "status_code")
"""As clients call it, those of Python included."""


def send_failure(error: object) -> SendFailure:
    """Terminal for what this package refused to send, and for a recognised 4xx except 408, 409, 425 and 429.

    Everything else is retryable.
    """
    if isinstance(error, _NEVER_SENT):
        return SendFailure.TERMINAL
    return failure_of_status(status_of(error))


def failure_of_status(status: int | None) -> SendFailure:
    """What a status tells of a message that was not accepted; None: there was no answer, or a contradictory one."""
    if status is not None and 400 <= status < 500 and status not in _RETRYABLE_4XX:  # noqa: PLR2004 - HTTP's 4xx
        return SendFailure.TERMINAL
    return SendFailure.RETRYABLE


def status_of(error: object) -> int | None:
    """The HTTP status that the error itself, or its response, tells; None where there is none or they disagree.

    Only integers from 100 to 599 count, under the names that clients use: status, statusCode, status_code. Asking
    raises nothing: an error that cannot be asked tells nothing.
    """
    try:
        places = (error, _part(error, "response"))
        told = {_status(_part(place, name)) for place in places for name in _STATUS_NAMES}
    except Exception:  # noqa: BLE001 - a property of a client's error may raise anything
        return None
    told.discard(None)
    return told.pop() if len(told) == 1 else None


def _status(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 100 <= value < 600:  # noqa: PLR2004 - HTTP's
        return None
    return int(value) if value == int(value) else None


def _part(value: object, name: str) -> object:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
