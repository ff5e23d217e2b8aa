"""The vectors' values: tags decoded once, numbers compared as doubles, body texts by value."""

import json
import math
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from hashlib import sha256
from typing import Any

MAX_SAFE = 2**53 - 1
MAX_ARRAY_INDEX = 2**32 - 2


class Undefined:
    """A member that another language has and does not have; Python has no such value."""

    def __repr__(self) -> str:
        return "undefined"


class BigInt(int):
    """An integer of any size, which is another type elsewhere."""


class ThrowingGetter:
    """A property that raises when it is asked."""


UNDEFINED = Undefined()
THROWING_GETTER = ThrowingGetter()


def decode(value: Any) -> Any:
    """A value with its tags replaced by what they stand for."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    match value:
        case {"$num": str(number), **others} if not others:
            return float(number)
        case {"$undefined": True, **others} if not others:
            return UNDEFINED
        case {"$bigint": str(digits), **others} if not others:
            return BigInt(digits)
        case {"$circular": True, **others} if not others:
            loop: list[Any] = []
            loop.append(loop)
            return loop
        case {"$throwing_getter": True, **others} if not others:
            return THROWING_GETTER
        case {"$hex": str(digits), **others} if not others:
            return bytes.fromhex(digits)
        case {"$repeat": [str(text), int(times)], **others} if not others:
            return text * times
        case _:
            return {key: decode(item) for key, item in value.items()}


def defined(value: Any) -> Any:
    """The value as a caller of ours can give it: without undefined members, None for undefined items."""
    if isinstance(value, dict):
        return {key: defined(item) for key, item in value.items() if item is not UNDEFINED}
    if isinstance(value, list) and not any(item is value for item in value):
        return [None if item is UNDEFINED else defined(item) for item in value]
    return None if value is UNDEFINED else value


def holds(value: Any, is_it: Callable[[Any], bool]) -> bool:
    """Whether the value, or anything in it, is such a one."""
    if is_it(value):
        return True
    if isinstance(value, dict):
        return any(holds(item, is_it) for item in value.values())
    return isinstance(value, list) and any(holds(item, is_it) for item in value if item is not value)


def same(expected: Any, actual: Any) -> bool:
    """Whether two values are the same: numbers as doubles, booleans apart from them, NaN the same as NaN."""
    if is_number(expected) and is_number(actual):
        one, other = double(expected), double(actual)
        return bool(expected == actual) or one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(expected, dict) and isinstance(actual, dict):
        return expected.keys() == actual.keys() and all(same(expected[key], actual[key]) for key in expected)
    if isinstance(expected, list | tuple) and isinstance(actual, list | tuple):
        return len(expected) == len(actual) and all(map(same, expected, actual))
    return type(expected) is type(actual) and bool(expected == actual)


def agrees(expected: Any, actual: Any) -> bool:
    """Whether what was expected is there: of an object, the expected members."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        return all(key in actual and same(value, actual[key]) for key, value in expected.items())
    return same(expected, actual)


def is_number(value: object) -> bool:
    """Whether the value is a number, which a boolean is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def double(value: float) -> float:
    """The double that stands for a number, infinite beyond its range."""
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value)


def whole(value: Any) -> Any:
    """A number as Python's integer where it is one: elsewhere 5 and 5.0 are the same number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def is_infinite(value: object) -> bool:
    """Whether the value is a number that JSON has no word for."""
    return isinstance(value, float) and not math.isfinite(value)


def is_beyond_doubles(value: object) -> bool:
    """Whether not every integer around the number has a double of its own."""
    return isinstance(value, int | float) and MAX_SAFE < abs(value) and math.isfinite(double(value))


def by_value(text: str) -> str:
    """A JSON text in one form for all that hold the same value: doubles, and integer-like keys first, in order."""
    return json.dumps(_by_value(json.loads(text)))


def _by_value(value: Any) -> Any:
    if is_number(value):
        return double(value) + 0.0  # the same text for -0
    if isinstance(value, list):
        return [_by_value(item) for item in value]
    if isinstance(value, dict):
        return {key: _by_value(value[key]) for key in in_ecmascript_order(value)}
    return value


def in_ecmascript_order(keys: Any) -> list[str]:
    """Keys as an ECMAScript object lists them: array indices first, ascending, then the others as they came."""

    def is_index(key: str) -> bool:
        return re.fullmatch("0|[1-9][0-9]{0,9}", key) is not None and int(key) <= MAX_ARRAY_INDEX

    indices = sorted((key for key in keys if is_index(key)), key=int)
    return indices + [key for key in keys if not is_index(key)]


def numbers_in(value: Any) -> Iterator[float]:
    """Every number in a JSON value."""
    if is_number(value):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        if item is not value:
            yield from numbers_in(item)


def is_written_otherwise(value: Any) -> bool:
    """Whether a number in the value has another text in ECMAScript than in Python."""
    return any(number_text(number) != json.dumps(number) for number in numbers_in(value))


def number_text(value: float) -> str:
    """A number's text in ECMAScript."""
    number = double(value)
    if not math.isfinite(number):
        return "null"
    sign, digits_, exponent = Decimal(repr(number)).as_tuple()
    digits = "".join(map(str, digits_)).lstrip("0")
    point = len(digits) + int(exponent)
    digits = digits.rstrip("0")
    if not digits:
        return "0"
    if len(digits) <= point <= 21:
        text = digits.ljust(point, "0")
    elif 0 < point <= 21:
        text = f"{digits[:point]}.{digits[point:]}"
    elif -6 < point <= 0:
        text = f"0.{digits.rjust(len(digits) - point, '0')}"
    else:
        text = f"{digits[0]}{'.' if digits[1:] else ''}{digits[1:]}e{point - 1:+d}"
    return "-" + text if sign else text


def text_of(data: bytes) -> str:
    """Bytes as a TextDecoder reads them: U+FFFD for what is not UTF-8, without one leading byte order mark."""
    return data.decode("utf-8-sig", "replace")


def bytes_of(text: str) -> bytes:
    """A text as a TextEncoder writes it."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def depth(text: str) -> int:
    """How deep the brackets of a JSON text nest, outside of its strings."""
    deepest = level = 0
    for found in re.finditer(r'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', text, re.DOTALL):
        level += {"[": 1, "{": 1, "]": -1, "}": -1}.get(found[0], 0)
        deepest = max(deepest, level)
    return deepest


def id_of(*parts: object) -> str:
    """A deduplication id (wire.md 3), computed apart from a2core."""
    text = json.dumps(parts, ensure_ascii=False, separators=(",", ":"))
    return "a2_" + sha256(text.encode("utf-8", "backslashreplace")).hexdigest()


def compact(value: Any) -> str:
    """A JSON value as a2 writes it (wire.md 1), computed apart from a2core."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace").decode()
