"""Tokens as QStash makes them, and as forgers do; computed apart from a2asgi."""

import hmac
import json
from base64 import urlsafe_b64encode
from hashlib import sha256
from typing import Any, Final

from a2asgi.testing import ManualClock

NOW_S: Final = 1_700_000_000
CURRENT: Final = "sig_current_key_of_all_the_tests"
NEXT: Final = "sig_next_key_of_all_these_tests_"
URL: Final = "https://example.com/api/a2/scheduler"
BODY: Final = b'{"b":1, "a":2}\n'
PLAIN: Final = b'{"alg":"HS256","typ":"JWT"}'
ABSENT: Final = object()


def at(now_s: float = NOW_S) -> ManualClock:
    """A clock that stands at that second."""
    return ManualClock(int(now_s * 1_000))


def base64url(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def signed(header: bytes, payload: bytes, key: str = CURRENT, digest: str = "sha256") -> str:
    """A token of any two texts."""
    text = f"{base64url(header)}.{base64url(payload)}"
    return f"{text}.{base64url(hmac.digest(key.encode(), text.encode(), digest))}"


def claims(raw: bytes = BODY, /, **changes: Any) -> dict[str, Any]:
    """The claims of a delivery, some of them changed or ABSENT."""
    all_claims = {
        "iss": "Upstash",
        "sub": URL,
        "exp": NOW_S + 300,
        "nbf": 0,
        "iat": NOW_S,
        "jti": "jwt_1",
        "body": base64url(sha256(raw).digest()),
        **changes,
    }
    return {name: value for name, value in all_claims.items() if value is not ABSENT}


def token(raw: bytes = BODY, /, key: str = CURRENT, **changes: Any) -> str:
    """The token of a delivery, some of its claims changed or ABSENT."""
    return signed(PLAIN, json.dumps(claims(raw, **changes)).encode(), key)
