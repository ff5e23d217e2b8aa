"""Who may publish and who signs: the credentials, of which the documented development ones are public."""

import base64
import hmac
import ipaddress
import json
from dataclasses import dataclass, field

from a2asgi.development import DEVELOPMENT_KEYS, DEVELOPMENT_TOKEN, PUBLIC_KEYS
from a2asgi.errors import ConfigurationError
from a2asgi.qstash_server.signing import SigningKeys


def _token(user: str, password: str) -> str:
    text = json.dumps({"UserID": user, "Password": password}, separators=(",", ":"))
    return base64.b64encode(text.encode()).decode("ascii")


DEV_KEYS = SigningKeys(*DEVELOPMENT_KEYS)
_PUBLIC_TOKENS = frozenset({DEVELOPMENT_TOKEN, *(_token(f"testUser{number}", "testPassword") for number in (1, 2, 3))})


@dataclass(frozen=True, slots=True)
class Credentials:
    """The token that publishers show, and the keys that sign deliveries. The default is the public development set."""

    token: str = field(default=DEVELOPMENT_TOKEN, repr=False)
    keys: SigningKeys = DEV_KEYS

    def __post_init__(self) -> None:
        if not self.token:
            raise ConfigurationError("credentials: expected a token, got an empty text")

    @property
    def are_public(self) -> bool:
        """Whether any of them is known to everybody."""
        return self.token in _PUBLIC_TOKENS or not PUBLIC_KEYS.isdisjoint({self.keys.current, self.keys.next})

    def check_bind(self, host: str) -> None:
        """Refuse to serve public credentials beyond this machine. Raises ConfigurationError."""
        if self.are_public and not is_loopback(host):
            raise ConfigurationError(
                f"a2 qstash: the development credentials are public, so they serve loopback only, not {host!r}; set "
                "QSTASH_TOKEN, QSTASH_CURRENT_SIGNING_KEY and QSTASH_NEXT_SIGNING_KEY to secrets of your own"
            )

    def accept(self, token: str) -> bool:
        """Whether it is the token, in a time that tells nothing of it."""
        return hmac.compare_digest(token.encode(), self.token.encode())


DEV_CREDENTIALS = Credentials()


def is_loopback(host: str) -> bool:
    """Whether a name or address stays on this machine."""
    host = host.strip("[]").lower()
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
