"""QStash's signatures, judged over the raw bytes with no trust in anything but the keys (wire.md 9)."""

import hmac
import logging
import os
import re
import sys
from binascii import b2a_base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, Self

from a2asgi.clock import Clock, SystemClock
from a2asgi.development import DEVELOPMENT_KEYS, PUBLIC_KEYS
from a2asgi.errors import ConfigurationError
from a2asgi.tokens import brief, check_header, read_object, split
from a2asgi.verdicts import HeaderItems, Refusal, Refused, Verdict, one_header
from a2core import normalise_url

log: logging.Logger = logging.getLogger("a2asgi.signatures")

MAX_LEEWAY_S: Final = 30 * 86_400
"""Largest leeway. Beyond a month it would say that tokens never expire."""

REGIONS: Final = ("EU_CENTRAL_1", "US_EAST_1")

_TO_BASE64URL = bytes.maketrans(b"+/", b"-_")
_FARTHEST_S = int(sys.float_info.max)  # what is beyond is infinite to who reads JSON's numbers as doubles


@dataclass(frozen=True, slots=True)
class QStashVerifier:
    """Judges QStash's `Upstash-Signature` (wire.md 9): an HS256 token over the callback URL and the raw body.

    `current_key` and `next_key` are both tried; `regions` names further pairs (`{"US_EAST_1": (current, next)}`),
    used instead where a request tells its region. `url`: the public URL, where requests do not show it themselves.
    `leeway_s`: how far, in seconds, clocks may be apart. `production`: whether the published keys of the development
    server are refused; None: as A2_ENV and VERCEL say.
    Raises ConfigurationError for a missing, empty or published key and a bad leeway, InvalidUrl for a bad url.
    """

    current_key: str | None = field(default=None, repr=False)
    next_key: str | None = field(default=None, repr=False)
    url: str | None = field(default=None, repr=False)
    regions: Mapping[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]], repr=False, hash=False)
    leeway_s: float = 0
    clock: Clock | None = field(default=None, repr=False, compare=False)
    production: bool | None = None
    _pairs: Mapping[str, tuple[bytes, bytes]] = field(init=False, repr=False, compare=False)
    _clock: Clock = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if type(self.leeway_s) not in {int, float} or not 0 <= self.leeway_s <= MAX_LEEWAY_S:
            raise ConfigurationError(f"leeway_s: expected seconds from 0 to {MAX_LEEWAY_S}, got {self.leeway_s!r}")
        if self.url is not None:
            normalise_url(self.url)
        given = {_region(name): pair for name, pair in self.regions.items()}
        if self.current_key is not None or self.next_key is not None or not given:
            given[""] = (self.current_key or "", self.next_key or "")
        production = is_production(os.environ) if self.production is None else self.production
        algorithm = _hs256()
        pairs = {name: _prepared(algorithm, name, pair, production=production) for name, pair in given.items()}
        object.__setattr__(self, "_pairs", pairs)
        object.__setattr__(self, "_clock", self.clock or SystemClock())

    @classmethod
    def from_environment(
        cls, environment: Mapping[str, str], *, url: str | None = None, leeway_s: float = 0, clock: Clock | None = None
    ) -> Self:
        """With the keys of QSTASH_CURRENT_SIGNING_KEY and QSTASH_NEXT_SIGNING_KEY.

        Where QSTASH_REGION names a region, also with those of US_EAST_1_QSTASH_CURRENT_SIGNING_KEY and so on. Without
        any key, QSTASH_DEV=1 outside of production stands for the development server's.
        Raises ConfigurationError naming the variables to set.
        """
        production = is_production(environment)
        regions: dict[str, tuple[str, str]] = {}
        if _region(environment.get("QSTASH_REGION", "")) in REGIONS:
            for name in REGIONS:
                current, following = _pair(environment, f"{name}_")
                if current and following:
                    regions[name] = (current, following)
                elif current or following:
                    log.warning("%s_QSTASH_..._SIGNING_KEY: one key of two is set, so neither is used", name)
        current, following = _pair(environment)
        if not (current or following or regions) and _develops(environment) and not production:
            current, following = DEVELOPMENT_KEYS
        if bool(current) != bool(following) or not (current or regions):
            raise ConfigurationError("set QSTASH_CURRENT_SIGNING_KEY and QSTASH_NEXT_SIGNING_KEY, both")
        return cls(current or None, following or None, url, regions, leeway_s, clock, production)

    def __repr__(self) -> str:
        shown = None if self.url is None else shown_url(self.url)
        return f"QStashVerifier(url={shown!r}, regions={sorted(filter(None, self._pairs))}, leeway_s={self.leeway_s})"

    @property
    def header(self) -> str:
        """The header, in lower case, without which a request is unsigned."""
        return "upstash-signature"

    def verify_request(self, headers: HeaderItems, body: bytes, url: str) -> Verdict:
        """Judge a request to this URL, or to the configured one. Raises nothing, whatever it holds."""
        items = list(headers)
        region = b", ".join(value for name, value in items if name.lower() == b"upstash-region").decode("latin-1")
        try:
            return self.verify(one_header(items, self.header), body, url, region)
        except Refused as refused:
            return refused.verdict

    def verify(self, signature: str | None, body: bytes, url: str | None, region: str | None = None) -> Verdict:
        """Judge a token over these raw bytes. Raises nothing, whatever the arguments are.

        The subject has to be the configured url, or else `url`; it is not compared where both are None. `iat` is not
        compared with the clock: QStash sends `nbf` 0 just because receivers' clocks run behind.
        """
        if self.url is not None:
            url = self.url
        try:
            signed, header, payload, mac = split(signature)
            check_header(header)
            pair = self._pairs.get(_region(region)) if region else None
            for key in pair or self._pairs.get("") or ():
                if hmac.compare_digest(hmac.digest(key, signed, "sha256"), mac):
                    break
            else:
                return Verdict(_NO_KEY.refusal, _NO_KEY.cause + _of_region(region, pair)) if region else _NO_KEY
            claims = read_object(payload, "claims")
            self._check_claims(claims, url)
            _check_body(claims.get("body"), body)
        except Refused as refused:
            return refused.verdict
        message_id = claims.get("jti")
        return Verdict(None, "", message_id if isinstance(message_id, str) else None)

    def _check_claims(self, claims: Mapping[str, Any], url: str | None) -> None:
        now_s = self._clock.now_ms() / 1_000
        if claims.get("iss") != "Upstash":
            raise Refused(Refusal.WRONG_ISSUER, f"issuer: expected 'Upstash', got {brief(claims.get('iss'))}")
        expiry_s, start_s = _seconds(claims, "exp"), _seconds(claims, "nbf")
        if "iat" in claims:
            _seconds(claims, "iat")
        if expiry_s + self.leeway_s <= now_s:
            raise Refused(Refusal.EXPIRED, f"expired {now_s - expiry_s:.0f} s ago, by this machine's clock")
        if start_s - self.leeway_s > now_s:
            raise Refused(Refusal.NOT_YET_VALID, f"valid in {start_s - now_s:.0f} s, by this machine's clock")
        subject = claims.get("sub")
        if not isinstance(subject, str):
            raise Refused(Refusal.MALFORMED, f"claim sub: expected a text, got {brief(subject)}")
        if url is not None and subject != url:
            raise Refused(Refusal.WRONG_SUBJECT, _differ(subject, url))


_NO_KEY = Verdict(Refusal.UNKNOWN_KEY, "no configured key made this signature")


def is_production(environment: Mapping[str, str]) -> bool:
    """Whether this is no development process: A2_ENV says production, or a platform runs it."""
    return environment.get("A2_ENV") == "production" or environment.get("VERCEL") == "1"


def shown_url(url: str) -> str:
    """The URL for a log, bounded: user info and the values of its query may be secret."""
    return re.sub(r"=[^&#]*", "=***", re.sub(r"(?<=//)[^/?#]*@", "***@", url))[:500]


def _differ(subject: str, url: str) -> str:
    one, other = shown_url(subject), shown_url(url)
    note = " (they differ in what is not shown)" if one == other else ""
    return f"signed for {one!r}, delivered to {other!r}{note}; behind a proxy, configure the public URL"


def _hs256() -> Any:
    try:
        from jwt.algorithms import HMACAlgorithm  # noqa: PLC0415 - only who verifies tokens needs it
    except ImportError as error:
        raise ConfigurationError('verifying QStash needs PyJWT: install "a2[qstash]"') from error
    return HMACAlgorithm(HMACAlgorithm.SHA256)


def _prepared(algorithm: Any, region: str, pair: tuple[str, str], *, production: bool) -> tuple[bytes, bytes]:
    """The keys as bytes. The texts of what is refused tell which key, and nothing of it."""
    keys = []
    for name, key in zip(("current_key", "next_key"), pair, strict=True):
        where = f"{name} of {region}" if region else name
        if not isinstance(key, str) or not key or key != key.strip():  # type: ignore[redundant-expr]
            raise ConfigurationError(f"{where}: expected a signing key, got none, an empty one, or one between blanks")
        if production and key in PUBLIC_KEYS:
            raise ConfigurationError(f"{where}: this is the development server's key, which anyone can sign with")
        try:
            prepared: bytes = algorithm.prepare_key(key)
        except Exception:  # noqa: BLE001 - the library's own text may quote the key
            raise ConfigurationError(f"{where}: expected QStash's signing key, got what is none") from None
        keys.append(prepared)
    current, following = keys
    return current, following


def _pair(environment: Mapping[str, str], prefix: str = "") -> tuple[str, str]:
    current = environment.get(f"{prefix}QSTASH_CURRENT_SIGNING_KEY", "")
    return current, environment.get(f"{prefix}QSTASH_NEXT_SIGNING_KEY", "")


def _develops(environment: Mapping[str, str]) -> bool:
    text = environment.get("QSTASH_DEV", "")
    if text not in {"", "0", "1", "false", "true"}:
        raise ConfigurationError(f"QSTASH_DEV: expected 1, true, 0 or false, got {text!r}")
    return text in {"1", "true"}


def _region(name: str) -> str:
    return name.replace("-", "_").upper()


def _of_region(region: str, pair: object) -> str:
    return f" (region {brief(region)}{'' if pair else ', which has no keys of its own'})"


def _seconds(claims: Mapping[str, Any], name: str) -> float:
    value = claims.get(name)
    if not (type(value) is int or type(value) is float) or abs(value) > _FARTHEST_S:
        raise Refused(Refusal.MALFORMED, f"claim {name}: expected a number of seconds, got {brief(value)}")
    return value


def _check_body(claimed: object, body: bytes) -> None:
    """Compare the claimed hash with that of the raw bytes, in constant time; padding is optional."""
    if not isinstance(claimed, str):
        raise Refused(Refusal.MALFORMED, f"claim body: expected a text, got {brief(claimed)}")
    if not isinstance(body, (bytes, bytearray, memoryview)):
        raise Refused(Refusal.WRONG_BODY, f"expected the body's raw bytes, got {type(body).__name__}")
    found = b2a_base64(sha256(body).digest(), newline=False).translate(_TO_BASE64URL, b"=")
    if not hmac.compare_digest(found, claimed.rstrip("=").encode("utf-8", "replace")):
        cause = f"the {len(body)} bytes that came are not those that were signed; was the body parsed and written anew?"
        raise Refused(Refusal.WRONG_BODY, cause)
