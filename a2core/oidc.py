"""The platform's OIDC token: when it may be forwarded to the provider, which brings it back as proof of the caller."""

import re
from base64 import urlsafe_b64decode
from binascii import Error as Base64Error

from a2core.jsontext import NotJson, parse_json_text

TOKEN_HEADER = "x-vercel-oidc-token"  # noqa: S105 - the name of a header
TRUSTED_HEADER = "x-vercel-trusted-oidc-idp-token"
MARGIN_MS = 60_000
"""How long after its first delivery a forwarded token must live."""

MAX_EXPIRY_S = (2**53 - 1) // 1_000
MAX_CLAIMS_DEPTH = 500
"""Deepest nesting of claims: CPython's reader gives up below 1,000 levels, the sooner the deeper it is called."""


def token_expiry_ms(token: str) -> int | None:
    """When the JWT expires; None for what is no JWT with an integer `exp` in range (wire.md 6).

    Neither its header nor its signature is looked at: the token is only passed on. Its claims are read as leniently
    as the receiver reads them: without a byte order mark, with U+FFFD for what is not UTF-8.
    """
    parts = token.split(".")
    if len(parts) != 3 or re.fullmatch("[A-Za-z0-9_-]+", parts[1]) is None:  # noqa: PLR2004 - header, claims, signature
        return None
    try:
        text = urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)).decode("utf-8-sig", "replace")
        claims = parse_json_text(text, MAX_CLAIMS_DEPTH)
    except (NotJson, Base64Error):
        return None
    expiry = claims.get("exp") if isinstance(claims, dict) else None
    if isinstance(expiry, float) and expiry.is_integer():
        expiry = int(expiry)
    if isinstance(expiry, bool) or not isinstance(expiry, int) or not 0 < expiry <= MAX_EXPIRY_S:
        return None
    return expiry * 1_000


def may_forward(token: str, first_delivery_ms: int) -> bool:
    """Whether the token lives long enough past the first delivery, and could be sent as a header (wire.md 11.3)."""
    expiry_ms = token_expiry_ms(token)
    return expiry_ms is not None and first_delivery_ms + MARGIN_MS <= expiry_ms and is_header_value(token)


def is_header_value(text: str) -> bool:
    """Whether HTTP can carry the text as a header's value: Latin-1, no NUL, CR or LF."""
    return all(ord(char) <= 0xFF and char not in "\x00\r\n" for char in text)  # noqa: PLR2004 - Latin-1
