"""The token that QStash signs a request with, taken apart: a JSON Web Token (RFC 7515), whose claims nobody checked."""

import json
from binascii import Error as Base64Error
from binascii import a2b_base64
from typing import Any, Final, NoReturn

import msgspec

from a2asgi.verdicts import Refusal, Refused

MAX_TOKEN_CHARS: Final = 8_192
"""Longest token. A real one is some 400 characters and its URL; what forgers send is not decoded beyond this."""

MAX_BRACKETS: Final = 100
"""Brackets in a token's JSON. Claims are flat; so no nesting can exhaust the reader's stack."""

_PLAIN_HEADER = b"eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9"  # {"alg":"HS256","typ":"JWT"}: what QStash sends
_LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_ELSE = bytes(set(range(256)) - set(_LETTERS + b"-_."))
_TO_BASE64 = bytes.maketrans(b"-_" + _ELSE, b"+/" + b"!" * len(_ELSE))
"""From base64url; `!` is what is in no token."""


_DECODER = msgspec.json.Decoder(dict[str, Any])


def split(token: str | None) -> tuple[bytes, bytes, bytes, bytes]:
    """What was signed of a token, its header and its claims in base64, and the signature. Raises Refused."""
    if not isinstance(token, str) or not token:
        raise Refused(Refusal.UNSIGNED, "no token")
    if len(token) > MAX_TOKEN_CHARS:
        raise Refused(Refusal.MALFORMED, f"a token of {len(token)} characters, more than {MAX_TOKEN_CHARS}")
    data = token.encode("utf-8", "replace")
    parts = data.translate(_TO_BASE64)
    header, _, rest = parts.partition(b".")
    claims, dot, mac = rest.partition(b".")
    if not dot or b"." in mac or b"!" in parts:
        raise Refused(Refusal.MALFORMED, "expected a token of three parts in base64url without padding")
    return data[: -len(mac) - 1], header, claims, _decoded(mac, "signature")


def check_header(part: bytes) -> None:
    """Raise Refused for any algorithm but HS256, and for what a verifier has to know and this one does not."""
    if part == _PLAIN_HEADER:
        return
    header = read_object(part, "header")
    if header.get("alg") != "HS256":
        raise Refused(Refusal.WRONG_ALGORITHM, f"algorithm: expected 'HS256', got {brief(header.get('alg'))}")
    if "crit" in header:
        raise Refused(Refusal.MALFORMED, f"critical extensions {brief(header['crit'])}, of which none is known here")


def read_object(part: bytes, name: str) -> dict[str, Any]:
    """A part's JSON object as it is written: nothing says yet of which type a member is. Raises Refused."""
    data = _decoded(part, name)
    try:
        return _DECODER.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return _read_slowly(data, name)


def brief(value: object) -> str:
    """What came, for a log: printable and bounded."""
    return ascii(value)[:60]


def _decoded(part: bytes, name: str) -> bytes:
    try:
        return a2b_base64(part + b"==")  # which may be more than it lacks
    except Base64Error:
        raise Refused(Refusal.MALFORMED, f"the token's {name} is no base64url") from None


def _read_slowly(data: bytes, name: str) -> dict[str, Any]:
    """An object that msgspec does not read, though it is JSON: one with half a character, or a number of any length."""
    try:
        value = None if data.count(b"{") + data.count(b"[") > MAX_BRACKETS else _ANY_JSON.decode(data.decode())
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise Refused(Refusal.MALFORMED, f"the token's {name} is no flat JSON object in UTF-8")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# every number becomes a float: exact up to 2^53 s, and no number of digits is too long to be read
_ANY_JSON = json.JSONDecoder(parse_int=float, parse_constant=_refuse_constant)
