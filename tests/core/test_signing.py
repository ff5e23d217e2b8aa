"""A schedule request is signed for one slot of one task, and read strictly."""

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2core.signing import (
    ScheduleRefusal,
    ScheduleRequest,
    check_schedule_request,
    check_slot_window,
    sign_schedule,
    verify_schedule,
)

SECRET = "whsec_0123456789abcdef"
TASK = "cron:nightly"
SLOT_MS = 1_784_257_200_000
SIGNATURE = "sha256=5b0e45b499f3bf31743aeb942cde310d12dfca822ea663daeb831d9a41f70a9e"
MINUTE_MS, HOUR_MS = 60_000, 3_600_000


def test_a_signature_is_the_same_in_every_language() -> None:
    """The signature is an HMAC-SHA-256 over the task's id, a newline and the slot, in lower-case hexadecimal."""
    expected = hmac.new(SECRET.encode(), f"{TASK}\n{SLOT_MS}".encode(), hashlib.sha256).hexdigest()
    assert f"sha256={expected}" == SIGNATURE == sign_schedule(SECRET, TASK, SLOT_MS)


def test_a_lone_surrogate_is_signed_as_a_replacement_character() -> None:
    """Text that UTF-8 cannot carry is signed as other languages write it, and nothing raises."""
    assert sign_schedule("\ufffd", "a\ufffd", 0) == sign_schedule("\ud800", "a\udfff", 0)


@given(st.text(), st.text(), st.integers())
def test_what_is_signed_holds(secret: str, task_id: str, slot_ms: int) -> None:
    """A signature verifies for its own slot and task, and for no other slot."""
    signature = sign_schedule(secret, task_id, slot_ms)
    assert verify_schedule(secret, task_id, slot_ms, signature)
    assert not verify_schedule(secret, task_id, slot_ms + 1, signature)
    assert not verify_schedule(secret, task_id + "x", slot_ms, signature)


@pytest.mark.parametrize(
    "signature",
    [
        None,
        5,
        b"sha256=",
        "",
        "sha256=",
        SIGNATURE.upper(),
        SIGNATURE + "\n",
        SIGNATURE + "0",
        " " + SIGNATURE,
        SIGNATURE[:-1],
        SIGNATURE.replace("=", ":"),
        "sha256=" + "\u0663" * 64,
        "sha256=" + "0" * 64,
    ],
    ids=ascii,
)
def test_another_form_is_no_signature(signature: object) -> None:
    """Only `sha256=` and 64 lower-case digits are compared at all, and only the right ones hold."""
    assert not verify_schedule(SECRET, TASK, SLOT_MS, signature)


def test_a_signed_request_is_read() -> None:
    """Both headers together name a slot of a task."""
    assert ScheduleRequest(TASK, SLOT_MS) == check_schedule_request(SECRET, TASK, str(SLOT_MS), SIGNATURE)
    assert ScheduleRequest(TASK, SLOT_MS) == check_schedule_request(SECRET, TASK, f"0{SLOT_MS}", SIGNATURE)


@pytest.mark.parametrize(
    ("slot", "signature"),
    [
        (None, SIGNATURE),
        (str(SLOT_MS), None),
        ("", SIGNATURE),
        ("abc", SIGNATURE),
        (f"+{SLOT_MS}", SIGNATURE),
        (f"-{SLOT_MS}", SIGNATURE),
        (f"{SLOT_MS}.0", SIGNATURE),
        ("1.7842572e12", SIGNATURE),
        ("0x19f6dc21f80", SIGNATURE),
        (f" {SLOT_MS}", SIGNATURE),
        (f"{SLOT_MS}\n", SIGNATURE),
        ("1_784_257_200_000", SIGNATURE),
        ("9" * 17, SIGNATURE),
        (str(SLOT_MS + MINUTE_MS), SIGNATURE),
        (str(SLOT_MS), "sha256=" + "0" * 64),
    ],
    ids=ascii,
)
def test_an_unread_or_unsigned_slot_is_unauthorized(slot: str | None, signature: str | None) -> None:
    """A slot is plain decimal digits; anything else, and any other signature, is a 401."""
    refusal = check_schedule_request(SECRET, TASK, slot, signature)
    assert ScheduleRefusal.UNAUTHORIZED is refusal
    assert 401 == refusal.value


@pytest.mark.parametrize(
    ("now_ms", "expected"),
    [
        (SLOT_MS, None),
        (SLOT_MS + HOUR_MS, None),
        (SLOT_MS + HOUR_MS + 1, ScheduleRefusal.OUTSIDE_WINDOW),
        (SLOT_MS - MINUTE_MS, None),
        (SLOT_MS - MINUTE_MS - 1, ScheduleRefusal.OUTSIDE_WINDOW),
    ],
)
def test_a_slot_has_its_window(now_ms: int, expected: ScheduleRefusal | None) -> None:
    """A slot is at most an hour old and at most a minute ahead, both included."""
    assert expected is check_slot_window(SLOT_MS, now_ms)


@given(st.integers(1, 59_999))
def test_a_slot_is_a_whole_minute(beside_ms: int) -> None:
    """A slot between two minutes is refused with a 400, however fresh it is."""
    refusal = check_slot_window(SLOT_MS + beside_ms, SLOT_MS + beside_ms)
    assert ScheduleRefusal.OUTSIDE_WINDOW is refusal
    assert 400 == refusal.value
