"""Rules about the provider's signature."""

import hmac
import json
import re
from base64 import urlsafe_b64decode
from hashlib import sha256
from typing import Any, Final

from tests.vector_kinds.cases import Case, Rule
from tests.vector_kinds.values import is_infinite
from tests.vector_kinds.verifying import base64url, body_of, environment, status_of, token

DIGESTS = {"HS256": "sha256", "HS384": "sha384", "HS512": "sha512"}
REFUSED = {"verified": False, "status": 401}


def parts_of(case: Case) -> list[str]:
    """The token's three parts, as HTTP brings them; none of what is no token."""
    parts = (token(case.input) or "").strip("\t\n\r ").split(".")
    return parts if len(parts) == 3 else []


def decoded(part: str) -> bytes:
    try:
        return urlsafe_b64decode(part.rstrip("=") + "==")
    except ValueError:
        return b""


def object_in(data: bytes) -> dict[str, Any]:
    """The JSON object that lenient readers find in the bytes; empty if there is none."""
    try:
        value = json.loads(data.decode("utf-8-sig", "replace"))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def header_of(case: Case) -> dict[str, Any]:
    return object_in(decoded(parts_of(case)[0])) if parts_of(case) else {}


def claims_of(case: Case) -> dict[str, Any]:
    return object_in(decoded(parts_of(case)[1])) if parts_of(case) else {}


def is_signed_by(case: Case, *keys: str) -> bool:
    """Whether one of the keys made the token, by the algorithm that it names."""
    *signed, mac = parts_of(case) or ("", "", "")
    digest = DIGESTS.get(header_of(case).get("alg", ""), "sha256")
    macs = [hmac.digest(key.encode(), ".".join(signed).encode(), digest) for key in keys if key]
    return decoded(mac) in macs


def is_another_hmac(case: Case) -> bool:
    return header_of(case).get("alg") in {"HS384", "HS512"}


def has_no_end(case: Case) -> bool:
    """Whether the token does not say when its time begins, or ends."""
    claims = claims_of(case)
    return bool(claims) and ("exp" not in claims or "nbf" not in claims)


def is_loose(case: Case) -> bool:
    """Whether a lenient reader takes what RFC 7515 and RFC 8259 do not allow, or we do not know."""
    if not parts_of(case):
        return False
    data = decoded(parts_of(case)[1])
    is_padded = any(re.fullmatch("[A-Za-z0-9_-]*", part) is None for part in parts_of(case))
    is_text = data.decode("utf-8", "replace").encode() == data and not data.startswith(b"\xef\xbb\xbf")
    return is_padded or not is_text or "crit" in header_of(case) or any(map(is_infinite, claims_of(case).values()))


def is_no_clean_text(case: Case) -> bool:
    """Whether the body's text, decoded and encoded again, has other bytes."""
    body = body_of(case.input)
    return body.decode("utf-8-sig", "replace").encode() != body


def over_raw_bytes(case: Case) -> object:
    body = body_of(case.input)
    verified = claims_of(case)["body"].rstrip("=").encode() == base64url(sha256(body).digest())
    return {"verified": verified, "status": status_of(delivered=verified, body=body)}


def is_development_with_keys(case: Case) -> bool:
    """Whether development is asked for where keys are configured."""
    asked = environment(case.input).get("QSTASH_DEV", "") in {"1", "true"}
    return asked and bool(case.input["current_signing_key"] and case.input["next_signing_key"])


def by_configured_keys(case: Case) -> object:
    keys = case.input["current_signing_key"], case.input["next_signing_key"]
    return {"verdict": "accept" if is_signed_by(case, *keys) else "reject"}


VERIFYING_RULES: Final = (
    Rule(
        "HS256 only", "every other algorithm is refused (wire.md 9)", ("receiver",), is_another_hmac, lambda _: REFUSED
    ),
    Rule(
        "exp and nbf are required",
        "a token without them would be good for ever (wire.md 9)",
        ("receiver",),
        has_no_end,
        lambda _: REFUSED,
    ),
    Rule(
        "tokens are read strictly",
        "no padding of its parts, no critical extension, UTF-8 without a byte order mark, finite numbers (wire.md 9)",
        ("receiver",),
        is_loose,
        lambda _: REFUSED,
    ),
    Rule(
        "the hash is over the raw bytes",
        "a byte order mark or bad UTF-8 is hashed as it came, and malformed then (wire.md 11.5)",
        ("receiver",),
        is_no_clean_text,
        over_raw_bytes,
    ),
    Rule(
        "configured keys win",
        "development mode never weakens what is configured (wire.md 11.4)",
        ("signature",),
        is_development_with_keys,
        by_configured_keys,
    ),
)
