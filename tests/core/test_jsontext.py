"""What a payload may be, how it is written, and when two texts mean the same."""

import datetime as dt
import json
import math
from contextlib import suppress
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2core import EndingKind, InvalidPayload, Json, decode_json, encode_json, path_step, same_json
from a2core.jsontext import NotJson, dump_json, parse_json, parse_json_text

LONE = "the text holds a lone surrogate, which is not Unicode text"
DEEP = "the payload is nested deeper than 97 levels"
LONG = "the integer has thousands of digits"
LARGEST = 2**14_000 - 1

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values: st.SearchStrategy[Json] = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def nested(levels: int) -> Json:
    """Arrays and objects in turn, `levels` deep."""
    value: Json = []
    for level in range(1, levels):
        value = {"a": value} if level % 2 else [value]
    return value


def refusal_of(value: object) -> tuple[str, str]:
    with pytest.raises(InvalidPayload) as refusal:
        encode_json(value)
    return refusal.value.path, refusal.value.reason


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (False, "false"),
        (0, "0"),
        (-12, "-12"),
        (1.5, "1.5"),
        (1e300, "1e+300"),
        ("", '""'),
        ("é \U0001f378 \u2028", '"é \U0001f378 \u2028"'),
        ('"\\\n', '"\\"\\\\\\n"'),
        pytest.param("a\x00b", '"a\\u0000b"', id="C2-nul"),
        ([], "[]"),
        ({}, "{}"),
        ((1, (2,)), "[1,[2]]"),
        ({"b": 1, "a": [2, {"c": None}]}, '{"b":1,"a":[2,{"c":null}]}'),
        ({"": {"é": "\x00", "\x00": 1}}, '{"":{"é":"\\u0000","\\u0000":1}}'),
        (EndingKind.SKIPPED, '"skipped"'),
    ],
    ids=ascii,
)
def test_a_value_is_written_compactly(value: object, text: str) -> None:
    """A payload is written without spaces, keys in their order, non-ASCII characters as they are."""
    assert text == encode_json(value)


@pytest.mark.parametrize("value", [LARGEST, -LARGEST], ids=["most", "least"])
def test_the_largest_integer_comes_back(value: int) -> None:
    """An integer of 14,000 bits is written and read exactly."""
    assert value == decode_json(encode_json(value))


@pytest.mark.parametrize(
    ("value", "path", "reason"),
    [
        pytest.param(math.nan, "$", "nan is not a JSON number; send None or a text instead", id="nan"),
        pytest.param({"x": math.nan}, "$.x", "nan is not a JSON number; send None or a text instead", id="C1-nan"),
        pytest.param([math.inf], "$[0]", "inf is not a JSON number; send None or a text instead", id="C1-inf"),
        pytest.param([-math.inf], "$[0]", "-inf is not a JSON number; send None or a text instead", id="C1-minus"),
        pytest.param("\ud83d", "$", LONE, id="C3-value"),
        pytest.param(["é", "a\udf78"], "$[1]", LONE, id="C3-item"),
        pytest.param(
            {"a": {"b\ud83d": 1}},
            "$.a",
            r"the key 'b\ud83d' holds a lone surrogate, which is not Unicode text",
            id="C3-key",
        ),
        pytest.param(LARGEST + 1, "$", LONG, id="long-integer"),
        pytest.param([0, -LARGEST - 1], "$[1]", LONG, id="long-negative"),
        pytest.param({1: 2}, "$", "a key is of type int; JSON keys are text", id="number-key"),
        pytest.param([{None: 2}], "$[0]", "a key is of type NoneType; JSON keys are text", id="none-key"),
        pytest.param({True: 2}, "$", "a key is of type bool; JSON keys are text", id="boolean-key"),
        pytest.param({"items": [1, 2, {"price": math.nan}]}, "$.items[2].price", None, id="path-mixed"),
        pytest.param({"a b": [math.nan]}, '$["a b"][0]', None, id="path-space"),
        pytest.param({"": math.nan}, '$[""]', None, id="path-empty-key"),
        pytest.param({'"\\': math.nan}, r'$["\"\\"]', None, id="path-quote"),
        pytest.param({"1": math.nan}, '$["1"]', None, id="path-digit"),
        pytest.param({"é_1": {"\U0001f378": math.nan}}, '$.é_1["\U0001f378"]', None, id="path-accents"),
        pytest.param(((), (0, (math.nan,))), "$[1][1][0]", None, id="path-tuples"),
        pytest.param({"a": 1, "b": [math.nan], "c": math.inf}, "$.b[0]", None, id="first-fault"),
        pytest.param({"a": math.inf, 1: 2}, "$.a", None, id="fault-before-key"),
        pytest.param({1: 2, "a": math.inf}, "$", None, id="key-before-fault"),
    ],
)
def test_the_first_fault_is_named(value: object, path: str, reason: str | None) -> None:
    """What JSON cannot hold is refused with the path of the first such value, and never written as null."""
    found_path, found_reason = refusal_of(value)
    assert path == found_path
    assert (reason or found_reason) == found_reason


@pytest.mark.parametrize(
    ("key", "step"),
    [
        ("price", ".price"),
        ("é", ".é"),
        ("a b", '["a b"]'),
        ("", '[""]'),
        ("2", '["2"]'),
        ('"', r'["\""]'),
        (2, "[2]"),
        (0, "[0]"),
    ],
    ids=ascii,
)
def test_a_path_is_made_of_steps(key: str | int, step: str) -> None:
    """A step is `.key` for a name, and the key or index in brackets for anything else."""
    assert step == path_step(key)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (b"a", "bytes"),
        ({1, 2}, "set"),
        (Decimal("1.5"), "Decimal"),
        (dt.date(2026, 12, 1), "date"),
        (1j, "complex"),
        (range(3), "range"),
        (object(), "object"),
        (int, "type"),
    ],
    ids=["bytes", "set", "decimal", "date", "complex", "range", "object", "type"],
)
def test_another_kind_of_value_is_refused(value: object, kind: str) -> None:
    """A value of another type is refused by its type's name, with what to do instead."""
    reason = f"{kind} is not a JSON value; convert it to text, a number, a list or a dict"
    assert ("$.a[0]", reason) == refusal_of({"a": [value]})


def test_a_key_that_cannot_be_printed_is_refused_as_any_other() -> None:
    """A key that is an integer of thousands of digits is refused as every other key that is not text."""
    path, _ = refusal_of({"a": {10**5_000: None}})
    assert "$.a" == path


def test_a_payload_may_be_97_levels_deep() -> None:
    """Nesting of 97 levels is accepted, so that a task around it stays within the 100 of the wire."""
    deepest = nested(97)
    text = encode_json(deepest)
    assert 97 == text.count("[") + text.count("{")
    assert deepest == decode_json(text)


@pytest.mark.parametrize("levels", [98, 99, 100_000])
def test_a_deeper_payload_is_refused(levels: int) -> None:
    """The 98th level is refused, however many follow: no stack is exhausted, and its path has 97 steps."""
    path, reason = refusal_of([nested(levels - 1)])
    assert DEEP == reason
    assert 97 == path.count("[") + path.count(".")


@pytest.mark.parametrize("innermost", [[], {}, ()], ids=["list", "dict", "tuple"])
def test_an_empty_container_is_a_level(innermost: object) -> None:
    """Lists, tuples and dicts count as levels, empty or not; a scalar at the same depth does not."""
    around: object = innermost
    scalar: object = 1
    for _ in range(97):
        around, scalar = [around], [scalar]
    assert ("$" + "[0]" * 97, DEEP) == refusal_of(around)
    assert "[" * 97 + "1" + "]" * 97 == encode_json(scalar)


def test_a_value_that_holds_itself_is_refused() -> None:
    """A cycle is refused as nesting without end."""
    loop: list[object] = [1]
    loop.append(loop)
    assert ("$" + "[1]" * 97, DEEP) == refusal_of(loop)


@given(values)
def test_what_is_written_comes_back(value: Json) -> None:
    """Every JSON value is read back as it was, to the type of each number and the order of the keys."""
    assert repr(value) == repr(decode_json(encode_json(value)))


@given(st.lists(st.integers(0, 3) | st.text(), max_size=8), st.sampled_from([math.nan, "\ud800", b"", {1: 1}]))
def test_a_planted_fault_is_found_at_its_path(steps: list[int | str], fault: object) -> None:
    """Wherever a fault is planted, the path leads to it: `[i]` to an item, `.key` or `["key"]` to a member."""
    value, path = fault, "$"
    for step in reversed(steps):
        value = {"": 0, step: value} if isinstance(step, str) else [*range(step), value]
    for step in steps:
        if isinstance(step, int):
            path += f"[{step}]"
        else:
            path += f".{step}" if step.isidentifier() else f"[{json.dumps(step, ensure_ascii=False)}]"
    found_path, _ = refusal_of(value)
    assert path == found_path


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("{}", "{}", True),
        ('{"a":1,"b":[{"c":2,"d":3}]}', '{"b":[{"d":3,"c":2}],"a":1}', True),
        ('{"a":1}', '{"a":2}', False),
        ('{"a":1}', '{"a":1,"b":null}', False),
        ("[1,2]", "[2,1]", False),
        ("1", "true", False),
        ("0", "false", False),
        ("null", "false", False),
        ('"1"', "1", False),
        ("[1]", "[1.0]", True),
        ("1e2", "100", True),
        ("-0.0", "0", True),
        ("1.5", "1.25", False),
        ("9007199254740993", "9007199254740992", False),
        ("[]", "{}", False),
        ('"\u00e9"', '"e\u0301"', False),
        pytest.param('"\\ud83c\\udf78"', '"\U0001f378"', True, id="C3-pair"),
    ],
    ids=ascii,
)
def test_the_order_of_keys_does_not_count(one: str, other: str, expected: bool) -> None:  # noqa: FBT001 - as above
    """Two texts are the same when they hold the same value: keys in any order, numbers by value, all else exactly."""
    assert expected is same_json(one, other)
    assert expected is same_json(other, one)


def backwards(value: Json) -> Json:
    """The same value, with the keys of every object in the other order."""
    match value:
        case dict():
            return {key: backwards(value[key]) for key in reversed(value)}
        case list():
            return [backwards(item) for item in value]
        case _:
            return value


@given(values)
def test_a_value_is_the_same_backwards(value: Json) -> None:
    """Turning the keys of every object round leaves a value the same; wrapping it makes another."""
    text = encode_json(value)
    assert same_json(text, encode_json(backwards(value)))
    assert not same_json(text, encode_json([value]))


# ── texts of the wire ────────────────────────────────────────────────────────────────────


def nested_lists(levels: int) -> Json:
    value: Json = []
    for _ in range(levels - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"1", 1),
        (b" \t\r\n[1] ", [1]),
        (b'{"a":1,"b":2,"a":3}', {"a": 3, "b": 2}),
        (b"-0", 0),
        (b"1e400", math.inf),
        (b"12345678901234567890", 12345678901234567890),
        (b'"\\ud800"', "\ud800"),
        (b'"\xf0\x9f\x8e\x89"', "\U0001f389"),
        (b"[" * 100 + b"]" * 100, nested_lists(100)),
        (b'"' + b"[" * 200 + b'"', "[" * 200),
        (b'["\\"' + b"[" * 200 + b'"]', ['"' + "[" * 200]),
        (b"[" + b"[]," * 200 + b"0]", [*([[]] * 200), 0]),
    ],
    ids=lambda part: ascii(part)[:24] if isinstance(part, bytes) else "",
)
def test_a_text_of_the_wire_is_read(data: bytes, value: Json) -> None:
    """JSON in UTF-8 is read exactly; brackets in a text are no nesting."""
    assert value == parse_json(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b'"\xed\xa0\x80"',
        b"\xef\xbb\xbf1",
        b"NaN",
        b"-Infinity",
        b"01",
        b"1,",
        b"'a'",
        b'"a\tb"',
        b"[1",
        b"\x00",
        "1".encode("utf-16"),
        b"1" * 4_301,
        b"[" * 101 + b"]" * 101,
        b'{"a":' * 101,
        b"[" * 100_000,
        b'"' + b"[" * 200,
        b'["\\',
        b"]" * 200 + b"[" * 200,
    ],
    ids=lambda data: f"{len(data)}{data[:16]!r}",
)
def test_what_is_no_json_raises_only_that(data: bytes) -> None:
    """Bad UTF-8, a byte order mark, NaN, depth, digits and every other fault are one refusal."""
    with pytest.raises(NotJson):
        parse_json(data)


@given(st.binary(max_size=64))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    """Whatever comes from the wire, it is JSON or NotJson."""
    with suppress(NotJson):
        parse_json(data)


def test_a_depth_is_the_readers_to_choose() -> None:
    """A reader of other texts has another bound."""
    assert nested_lists(300) == parse_json_text("[" * 300 + "]" * 300, 300)
    with pytest.raises(NotJson, match="nested deeper than 299 levels"):
        parse_json_text("[" * 300 + "]" * 300, 299)


def test_a_stack_that_is_exhausted_is_no_json() -> None:
    """Nesting beyond what the decoder takes is a refusal, however high the bound was set."""
    with pytest.raises(NotJson):
        parse_json_text("[" * 200_000 + "]" * 200_000, 10**6)


def test_a_text_of_many_quotes_is_read_in_one_pass() -> None:
    """Escaped quotes without an end are looked at once: a megabyte of them takes no longer than any other."""
    hostile = b'"' + b'\\"' * 500_000 + b"[" * 200
    with pytest.raises(NotJson):
        parse_json(hostile)


@given(values)
def test_what_the_wire_carries_comes_back(value: Json) -> None:
    """What is written for the wire is read back from its bytes, to the type of each number."""
    assert repr(value) == repr(parse_json(dump_json(value).encode()))


@pytest.mark.parametrize(
    ("value", "text"), [("\ud800x", '"\\ud800x"'), (["é\udfff"], '["é\\udfff"]'), ("é", '"é"')], ids=ascii
)
def test_a_lone_surrogate_is_written_as_its_escape(value: Json, text: str) -> None:
    """UTF-8 carries every text of the wire; all else stays literal."""
    assert text == dump_json(value)
    assert value == parse_json(text.encode())


@pytest.mark.parametrize(
    "value",
    [math.nan, [math.inf], object(), {"a": b""}, {(): 1}, 10**4_300, nested_lists(101), nested_lists(100_000)],
    ids=["nan", "inf", "object", "bytes", "key", "digits", "deep", "deepest"],
)
def test_what_the_wire_cannot_carry_is_not_written(value: Any) -> None:
    """Nothing is written that could not be read again."""
    with pytest.raises(NotJson):
        dump_json(value)
