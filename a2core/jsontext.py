"""Payloads as canonical JSON text: what is accepted, how it is written, when two texts mean the same."""

import json
import re
from math import isfinite
from typing import NoReturn, TypeAlias

from a2core.errors import InvalidPayload, is_unicode

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

MAX_WIRE_DEPTH = 100
"""Deepest nesting of a wire body (wire.md 1)."""

MAX_PAYLOAD_DEPTH = MAX_WIRE_DEPTH - 3
"""Deepest nesting of one payload: a task wraps it in an object, an array and an event."""

MAX_INTEGER_BITS = 14_000
"""Largest integer, about 4,200 digits: CPython refuses to read or print more than 4,300."""

_CONTAINERS = (dict, list, tuple)
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


def dump_json(value: Json, max_depth: int = MAX_WIRE_DEPTH) -> str:
    """Write what the wire carries, so that `parse_json` reads it again: at most `max_depth` levels, no NaN.

    A lone surrogate becomes its escape, as ECMAScript writes it, so that UTF-8 can carry the text.
    Raises NotJson, and nothing else, for what JSON cannot hold.
    """
    if _nests_deeper(value, max_depth):
        raise NotJson(f"nested deeper than {max_depth} levels")
    try:
        text = _ENCODER.encode(value)
    except (ValueError, TypeError) as error:
        raise NotJson(str(error)) from error
    return text if is_unicode(text) else text.encode("utf-8", "backslashreplace").decode()


def decode_json(text: str) -> Json:
    """Read a text that `encode_json` wrote."""
    value: Json = json.loads(text)
    return value


class NotJson(ValueError):
    """What is not JSON as the wire takes it: bad UTF-8, NaN, too deep, thousands of digits."""


def parse_json(data: bytes) -> Json:
    """Read JSON from the wire, strictly (wire.md 1 and 11): UTF-8 without a BOM, at most 100 levels, no NaN.

    Raises NotJson, and nothing else, whatever the bytes are.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise NotJson(f"not UTF-8: {error}") from error
    return parse_json_text(text, MAX_WIRE_DEPTH)


def parse_json_text(text: str, max_depth: int) -> Json:
    """Read JSON of at most `max_depth` levels, without NaN. Raises NotJson, and nothing else, whatever the text is.

    `max_depth` stays under what the decoder's own recursion takes: 500 is safe on CPython.
    """
    if _is_deeper(text, max_depth):
        raise NotJson(f"nested deeper than {max_depth} levels")
    try:
        value: Json = _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise NotJson(str(error)) from error
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


def _refuse_constant(name: str) -> NoReturn:
    raise NotJson(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
# a string without its end runs to the end of the text, so that no character is looked at twice
_STRING_OR_BRACKET = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[\]{}]', re.DOTALL)


def _is_deeper(text: str, max_depth: int) -> bool:
    if text.count("[") + text.count("{") <= max_depth:
        return False
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(text):
        opened = match[0]
        if opened in "[{":
            depth += 1
            if depth > max_depth:
                return True
        elif opened in "]}":
            depth -= 1
    return False


def _nests_deeper(value: object, max_depth: int) -> bool:
    """Told before it is written: under WebAssembly the writer's own recursion ends the interpreter, not the call."""
    if not isinstance(value, _CONTAINERS):
        return False
    if max_depth == 0:
        return True
    for item in value.values() if isinstance(value, dict) else value:
        if isinstance(item, _CONTAINERS) and _nests_deeper(item, max_depth - 1):
            return True
    return False


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
