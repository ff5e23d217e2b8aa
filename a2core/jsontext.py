"""Payloads as canonical JSON text: what is accepted, how it is written, when two texts mean the same."""

import json
from math import isfinite
from typing import TypeAlias

from a2core.errors import InvalidPayload, is_unicode

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

MAX_WIRE_DEPTH = 100
"""Deepest nesting of a wire body (wire.md 1)."""

MAX_PAYLOAD_DEPTH = MAX_WIRE_DEPTH - 3
"""Deepest nesting of one payload: a task wraps it in an object, an array and an event."""

MAX_INTEGER_BITS = 14_000
"""Largest integer, about 4,200 digits: CPython refuses to read or print more than 4,300."""

_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"))
_SORTED = json.JSONEncoder(ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))


def encode_json(value: object) -> str:
    """Write `value` as compact JSON text, non-ASCII characters literal, keys in their order (wire.md 1).

    Accepts what JSON can hold: None, booleans, integers, finite floats, text, lists or tuples, dicts with text keys.
    Raises InvalidPayload with the path of the first value that JSON cannot hold; nothing is ever written as `null`
    in its place.
    """
    fault = _fault(value, 0)
    if fault is not None:
        path, reason = fault
        raise InvalidPayload(f"${path}", reason)
    return _ENCODER.encode(value)


def decode_json(text: str) -> Json:
    """Read a text that `encode_json` wrote."""
    value: Json = json.loads(text)
    return value


def same_json(one: str, other: str) -> bool:
    """Whether two canonical texts hold the same value: an object's order does not count, and 1.0 is 1."""
    return one == other or _SORTED.encode(_plain(one)) == _SORTED.encode(_plain(other))


def _plain(text: str) -> Json:
    value: Json = json.loads(text, parse_float=_number)
    return value


def _number(text: str) -> int | float:
    value = float(text)
    return int(value) if value.is_integer() else value


def path_step(key: str | int) -> str:
    """One step of a path to a value: `.price`, `[2]`, `["a b"]`."""
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{_ENCODER.encode(key)}]"


def _fault(value: object, depth: int) -> tuple[str, str] | None:
    """Find the first value that JSON cannot hold: its path below here, and why."""
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, str):
        return None if is_unicode(value) else ("", "the text holds a lone surrogate, which is not Unicode text")
    if isinstance(value, int):
        return None if value.bit_length() <= MAX_INTEGER_BITS else ("", "the integer has thousands of digits")
    if isinstance(value, float):
        return None if isfinite(value) else ("", f"{value} is not a JSON number; send None or a text instead")
    if isinstance(value, dict | list | tuple):
        if depth == MAX_PAYLOAD_DEPTH:
            return "", f"the payload is nested deeper than {MAX_PAYLOAD_DEPTH} levels"
        return _fault_in_object(value, depth) if isinstance(value, dict) else _fault_in_array(value, depth)
    return "", f"{type(value).__name__} is not a JSON value; convert it to text, a number, a list or a dict"


def _fault_in_object(value: dict[object, object], depth: int) -> tuple[str, str] | None:
    for key, item in value.items():
        if not isinstance(key, str):
            return "", f"a key is of type {type(key).__name__}; JSON keys are text"
        if not is_unicode(key):
            return "", f"the key {key!r} holds a lone surrogate, which is not Unicode text"
        if (fault := _fault(item, depth + 1)) is not None:
            return path_step(key) + fault[0], fault[1]
    return None


def _fault_in_array(value: list[object] | tuple[object, ...], depth: int) -> tuple[str, str] | None:
    for index, item in enumerate(value):
        if (fault := _fault(item, depth + 1)) is not None:
            return path_step(index) + fault[0], fault[1]
    return None
