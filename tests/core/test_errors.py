"""Names that every store and wire can carry, and errors that programs and people can read."""

import copy
import pickle
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2core import A2Error, InvalidName, InvalidPayload, check_name, storable_text
from a2core.errors import is_unicode

STORABLE = "holds a NUL or a lone surrogate, which not every store can keep"


@pytest.mark.parametrize(
    "name",
    ["a", " ", "order:17/é", "\U0001f378", "\x01", "x" * 1_024, "\U0001f378" * 256],
    ids=["one", "space", "accents", "C3-pair", "control", "longest", "longest-wide"],
)
def test_a_name_comes_back_as_it_is(name: str) -> None:
    """A text of 1 to 1,024 characters is a name, whatever its alphabet."""
    assert name == check_name("event id", name)


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        pytest.param(None, "expected a string, got NoneType", id="none"),
        pytest.param(7, "expected a string, got int", id="number"),
        pytest.param(b"a", "expected a string, got bytes", id="bytes"),
        pytest.param("", "expected a non-empty string, got an empty one", id="empty"),
        pytest.param("x" * 1_025, "expected at most 1024 bytes of UTF-8, got 1025; hash long keys", id="long"),
        pytest.param("\U0001f378" * 257, "expected at most 1024 bytes of UTF-8, got 1028; hash long keys", id="wide"),
        pytest.param("a\x00b", rf"'a\x00b' {STORABLE}", id="C2-nul"),
        pytest.param("\x00", rf"'\x00' {STORABLE}", id="C2-nul-alone"),
        pytest.param("\ud83d", rf"'\ud83d' {STORABLE}", id="C3-high"),
        pytest.param("a\udf78", rf"'a\udf78' {STORABLE}", id="C3-low"),
        pytest.param("\udf78\ud83c", rf"'\udf78\ud83c' {STORABLE}", id="C3-swapped"),
    ],
)
def test_what_is_no_name_is_refused(value: object, complaint: str) -> None:
    """What no store or wire could carry is refused with its kind and what came, in a text that can be sent."""
    with pytest.raises(InvalidName) as refusal:
        check_name("session id", value)
    assert f"session id: {complaint}" == str(refusal.value)
    assert str(refusal.value).isascii()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", True),
        ("plain", True),
        ("\x00", True),
        ("é", True),
        ("\ud7ff\ue000", True),
        ("\U0001f378", True),
        ("\ud800", False),
        ("é\udbff", False),
        ("\udc00é", False),
        ("a\udfff", False),
    ],
    ids=ascii,
)
def test_unicode_text_has_no_lone_surrogate(text: str, expected: bool) -> None:  # noqa: FBT001 - a row's expectation
    """A text is Unicode exactly when no code point of it lies from U+D800 to U+DFFF."""
    assert expected is is_unicode(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("", "", id="empty"),
        pytest.param("boom é \U0001f378\n\x01", "boom é \U0001f378\n\x01", id="storable"),
        pytest.param("\x00", "\ufffd", id="C2-nul-alone"),
        pytest.param("a\x00b\x00", "a\ufffdb\ufffd", id="C2-nul"),
        pytest.param("\ud83d", "\ufffd", id="C3-high"),
        pytest.param("é\ud83d", "é\ufffd", id="C3-high-at-the-end"),
        pytest.param("\ud83db", "\ufffdb", id="C3-high-before-text"),
        pytest.param("\ud83d\ud83dé", "\ufffd\ufffdé", id="C3-two-highs"),
        pytest.param("a\udf78é", "a\ufffdé", id="C3-low"),
        pytest.param("\udf78\ud83c", "\ufffd\ufffd", id="C3-swapped"),
        pytest.param("\ud83c\udf78", "\U0001f378", id="C3-pair-in-two-parts"),
        pytest.param("\ufeff\udf78", "\ufeff\ufffd", id="C3-after-a-byte-order-mark"),
        pytest.param("\x00\ud83d\x00", "\ufffd\ufffd\ufffd", id="C2-and-C3"),
        pytest.param("x" * 2_000, "x" * 2_000, id="longest"),
        pytest.param("x" * 1_999 + "yz", "x" * 1_999 + "y", id="cut"),
        pytest.param("\U0001f378" * 2_001, "\U0001f378" * 2_000, id="cut-wide"),
        pytest.param("\ud83d" * 2_001, "\ufffd" * 2_000, id="cut-replaced"),
    ],
)
def test_an_errors_text_can_always_be_stored(text: str, expected: str) -> None:
    """What no store keeps becomes U+FFFD, character by character, and only the first 2,000 are kept."""
    assert expected == storable_text(text)


@given(st.text(st.characters(exclude_categories=[]), max_size=40))
def test_storable_text_is_storable(text: str) -> None:
    """Whatever an error says, its stored text has no NUL and no lone surrogate, and is stored as it is again."""
    stored = storable_text(text)
    assert "\x00" not in stored
    assert is_unicode(stored)
    assert stored == storable_text(stored)
    if is_unicode(text) and "\x00" not in text:
        assert text == stored


def test_an_invalid_payload_points_at_the_value() -> None:
    """The error holds path and reason apart for programs, and together for people."""
    error = InvalidPayload("$.items[2].price", "nan is not a JSON number")
    assert "$.items[2].price" == error.path
    assert "nan is not a JSON number" == error.reason
    assert "$.items[2].price: nan is not a JSON number" == str(error)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (A2Error("?"), "A2_ERROR"),
        (InvalidPayload("$", "?"), "INVALID_PAYLOAD"),
        (InvalidName("?"), "INVALID_NAME"),
    ],
    ids=["base", "payload", "name"],
)
def test_an_error_has_a_stable_code(error: A2Error, code: str) -> None:
    """Programs tell errors apart by a code that does not change."""
    assert code == error.code


@pytest.mark.parametrize("kind", [InvalidPayload, InvalidName])
def test_a_bad_value_is_a_value_error_of_ours(kind: type[Exception]) -> None:
    """A caller may catch what a2 raises on purpose as A2Error, or a bad value as ValueError."""
    assert issubclass(kind, A2Error)
    assert issubclass(kind, ValueError)


def pickled(error: InvalidPayload) -> InvalidPayload:
    copied: InvalidPayload = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    return copied


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled])
def test_an_error_can_be_copied(copied: Callable[[InvalidPayload], InvalidPayload]) -> None:
    """An error crosses processes as it is, with its text and its parts."""
    error = copied(InvalidPayload("$.a", "no"))
    assert ("$.a: no", "$.a", "no") == (str(error), error.path, error.reason)
