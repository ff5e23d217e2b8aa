"""The signature of deliveries: a fresh token for each attempt, and the pair of keys it is made with."""

import base64
import hashlib
import secrets
from dataclasses import dataclass, field

import jwt

from a2asgi.errors import ConfigurationError

TOKEN_LIFETIME_S = 300
MIN_KEY_BYTES = 32
"""What HMAC-SHA-256 wants of a key (RFC 7518 3.2)."""


@dataclass(frozen=True, slots=True)
class SigningKeys:
    """The key that signs now, and the one that will after the next rotation."""

    current: str = field(repr=False)
    next: str = field(repr=False)

    def __post_init__(self) -> None:
        if any(len(key.encode()) < MIN_KEY_BYTES for key in (self.current, self.next)):
            raise ConfigurationError(f"signing keys: expected two of at least {MIN_KEY_BYTES} bytes each")

    def rotated(self) -> "SigningKeys":
        """The pair after a rotation: next becomes current, and the new next is random."""
        return SigningKeys(self.next, f"sig_{secrets.token_urlsafe(24)}")


def sign(url: str, body: bytes, key: str, now_s: int) -> str:
    """The token that goes with one attempt. `now_s` is the world's time, which the receiver's clock tells too.

    `nbf` is 0, as the provider has it since September 2024: a receiver whose clock is behind would refuse more.
    """
    digest = base64.urlsafe_b64encode(hashlib.sha256(body).digest()).decode("ascii")
    claims = {
        "iss": "Upstash",
        "sub": url,
        "exp": now_s + TOKEN_LIFETIME_S,
        "nbf": 0,
        "iat": now_s,
        "jti": f"jwt_{secrets.token_urlsafe(16)}",
        "body": digest,
    }
    return jwt.encode(claims, key, algorithm="HS256")
