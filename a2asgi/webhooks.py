"""Signed webhooks of any sender: plain HMAC headers, and the Standard Webhooks form."""

import hmac
import re
from base64 import b64decode
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from a2asgi.clock import Clock, SystemClock
from a2asgi.errors import ConfigurationError
from a2asgi.verdicts import HeaderItems, Refusal, Refused, Verdict, one_header


@dataclass(frozen=True, slots=True)
class HmacVerifier:
    """Judges a header that holds the HMAC-SHA-256 of the raw body, as GitHub, Shopify and many others send it.

    `prefix` stands before the hash, which is written as `encoding` says. Such a signature never expires and names no
    URL, so replays are the app's to notice.
    Raises ConfigurationError for an empty secret or an unknown encoding.
    """

    secret: str = field(repr=False)
    header: str = "X-Hub-Signature-256"
    prefix: str = "sha256="
    encoding: Literal["hex", "base64"] = "hex"

    def __post_init__(self) -> None:
        _check_secret(self.secret)
        if self.encoding not in {"hex", "base64"}:
            raise ConfigurationError(f"encoding: expected 'hex' or 'base64', got {self.encoding!r}")
        object.__setattr__(self, "header", self.header.lower())

    def verify_request(self, headers: HeaderItems, body: bytes, url: str) -> Verdict:  # noqa: ARG002 - it is not signed
        """Judge a request. Raises nothing, whatever it holds."""
        try:
            text = one_header(headers, self.header)
        except Refused as refused:
            return refused.verdict
        encoded = text.removeprefix(self.prefix)
        form = "[0-9a-fA-F]{64}" if self.encoding == "hex" else "[A-Za-z0-9+/]{43}="
        if not text.startswith(self.prefix) or re.fullmatch(form, encoded) is None:
            return Verdict(Refusal.MALFORMED, f"{self.header}: expected {self.prefix!r} and a hash in {self.encoding}")
        given = bytes.fromhex(encoded) if self.encoding == "hex" else b64decode(encoded)
        if not hmac.compare_digest(given, hmac.digest(self.secret.encode(), body, "sha256")):
            return Verdict(Refusal.UNKNOWN_KEY, "our secret did not make this signature over this body")
        return Verdict()


@dataclass(frozen=True, slots=True)
class StandardWebhooksVerifier:
    """Judges `webhook-id`, `webhook-timestamp` and `webhook-signature`, as the Standard Webhooks form has them.

    `secret` is the sender's, `whsec_...`. `tolerance_s`: how old, or how far ahead, a request may be, in seconds.
    Raises ConfigurationError for a secret that is none, or a negative tolerance.
    """

    secret: str = field(repr=False)
    tolerance_s: int = 300
    clock: Clock | None = field(default=None, repr=False, compare=False)
    _webhook: Any = field(init=False, repr=False, compare=False)
    _clock: Clock = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_secret(self.secret)
        if type(self.tolerance_s) is not int or self.tolerance_s < 0:
            raise ConfigurationError(f"tolerance_s: expected whole seconds, 0 or more, got {self.tolerance_s!r}")
        object.__setattr__(self, "_webhook", _webhook(self.secret))
        object.__setattr__(self, "_clock", self.clock or SystemClock())

    @property
    def header(self) -> str:
        """The header, in lower case, without which a request is unsigned."""
        return "webhook-signature"

    def verify_request(self, headers: HeaderItems, body: bytes, url: str) -> Verdict:  # noqa: ARG002 - it is not signed
        """Judge a request. One genuine signature is enough: a sender that rotates its secret sends several."""
        items = list(headers)
        try:
            signatures, message_id, timestamp = (
                one_header(items, name) for name in (self.header, "webhook-id", "webhook-timestamp")
            )
            self._judge(signatures, message_id, timestamp, body)
        except Refused as refused:
            return refused.verdict
        return Verdict(message_id=message_id)

    def _judge(self, signatures: str, message_id: str, timestamp: str, body: bytes) -> None:
        if not message_id or re.fullmatch("[1-9][0-9]{0,10}", timestamp) is None:
            raise Refused(Refusal.MALFORMED, "expected a webhook-id, and a webhook-timestamp of whole seconds")
        try:
            text = body.decode()
        except UnicodeDecodeError:
            raise Refused(Refusal.MALFORMED, "the body is no text in UTF-8") from None
        sent = datetime.fromtimestamp(int(timestamp), UTC)
        genuine = self._webhook.sign(msg_id=message_id, timestamp=sent, data=text).encode()
        if not any(hmac.compare_digest(genuine, one.encode()) for one in signatures.split(" ")):
            raise Refused(Refusal.UNKNOWN_KEY, "our secret made none of these signatures over this body")
        age_s = self._clock.now_ms() / 1_000 - int(timestamp)
        if age_s > self.tolerance_s:
            raise Refused(Refusal.EXPIRED, f"sent {age_s:.0f} s ago, by this machine's clock")
        if -age_s > self.tolerance_s:
            raise Refused(Refusal.NOT_YET_VALID, f"sent in {-age_s:.0f} s, by this machine's clock")


def _webhook(secret: str) -> Any:
    try:
        from standardwebhooks import Webhook  # noqa: PLC0415 - only who verifies such requests needs it
    except ImportError as error:
        raise ConfigurationError('verifying Standard Webhooks needs its package: install "a2[webhooks]"') from error
    try:
        return Webhook(secret)
    except Exception:  # noqa: BLE001 - whatever is wrong with it; and its text may quote the secret
        raise ConfigurationError("secret: expected the sender's, whsec_ and base64") from None


def _check_secret(secret: str) -> None:
    if not isinstance(secret, str) or not secret or not secret.isprintable():  # type: ignore[redundant-expr]
        raise ConfigurationError("secret: expected a non-empty, printable text; an empty one would let anyone sign")
