"""The platform's OIDC token of the request being served: in a context variable, and nowhere else (app.md 2)."""

from collections.abc import Iterable
from contextvars import ContextVar

from a2core import OIDC_HEADER

_HEADER: bytes = OIDC_HEADER.encode()

request_token: ContextVar[str | None] = ContextVar("request_token", default=None)
"""The token that came with this request. It is only passed on, and proves nothing about the caller."""


def token_of(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The request's token; None without one, and where it came twice."""
    found = None
    for name, value in headers:  # a loop, since every request of the app passes here
        if name == _HEADER:
            if found is not None:
                return None
            found = value
    return None if found is None else found.decode("latin-1")
