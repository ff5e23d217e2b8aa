"""Verdicts on signed requests: what a verifier is asked, and what it answers.

A verdict is never an exception: whatever a request holds, it is accepted, or refused with its true cause. Causes are
for logs; a response that told them would help who forges.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeAlias

HeaderItems: TypeAlias = Iterable[tuple[bytes, bytes]]
"""Headers as an ASGI scope has them."""


class Refusal(StrEnum):
    """Why a request is refused, in the order in which it is looked at."""

    UNSIGNED = "unsigned"
    MALFORMED = "malformed"
    WRONG_ALGORITHM = "wrong algorithm"
    UNKNOWN_KEY = "unknown key"
    WRONG_ISSUER = "wrong issuer"
    EXPIRED = "expired"
    NOT_YET_VALID = "not yet valid"
    WRONG_SUBJECT = "wrong subject"
    WRONG_BODY = "wrong body hash"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verifier found. `cause` is for the log alone, and holds no secret."""

    refusal: Refusal | None = None
    cause: str = ""
    message_id: str | None = None
    """What a replay defence may key on, where the signature vouches for one: a token's `jti`, a `webhook-id`."""

    @property
    def accepted(self) -> bool:
        """Whether the request is genuine."""
        return self.refusal is None


class Verifier(Protocol):
    """Judges whole requests by their signature."""

    @property
    def header(self) -> str:
        """The header, in lower case, without which a request is unsigned."""
        ...

    def verify_request(self, headers: HeaderItems, body: bytes, url: str) -> Verdict:
        """Judge a request to this URL. Raises nothing, whatever it holds."""
        ...


class Refused(Exception):
    """Ends a judgement inside of a verifier; nothing outside ever meets it."""

    def __init__(self, refusal: Refusal, cause: str) -> None:
        super().__init__(cause)
        self.verdict: Verdict = Verdict(refusal, cause)


def one_header(headers: HeaderItems, name: str) -> str:
    """The header's one value, without the white space around it. Raises Refused where there is none, or several."""
    values = [value for key, value in headers if key.lower() == name.encode()]
    if not values:
        raise Refused(Refusal.UNSIGNED, f"no {name} header")
    if len(values) > 1:
        raise Refused(Refusal.MALFORMED, f"{len(values)} {name} headers, expected one")
    return values[0].decode("latin-1").strip(" \t")
