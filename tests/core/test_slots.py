"""Providers count in whole seconds, and a claim outlives two heartbeats."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2core import DrainTimings, slot_ms


@pytest.mark.parametrize(
    ("now_ms", "due_at_ms", "expected"),
    [
        pytest.param(1_700_000_000_123, 0, 1_700_000_000_000, id="long-due"),
        pytest.param(1_700_000_000_123, 1_700_000_000_123, 1_700_000_000_000, id="due-now"),
        pytest.param(1_700_000_000_123, 1_700_000_000_124, 1_700_000_001_000, id="due-next-ms"),
        pytest.param(1_700_000_030_000, 1_700_000_070_000, 1_700_000_070_000, id="whole-second"),
        pytest.param(0, 1, 1_000, id="from-the-start"),
        pytest.param(0, 0, 0, id="at-the-start"),
        pytest.param(57_000, 59_999, 60_000, id="A7-before-the-slot"),
        pytest.param(57_000, 60_000, 60_000, id="A7-at-the-slot"),
        pytest.param(57_000, 60_001, 61_000, id="A7-after-the-slot"),
        pytest.param(59_997, 60_000, 60_000, id="A7-early-wake"),
        pytest.param(60_000, 60_000, 60_000, id="A7-wake-in-time"),
    ],
)
def test_a_due_time_has_a_slot(now_ms: int, due_at_ms: int, expected: int) -> None:
    """What is due takes the second that runs, anything later the first whole second at or after its time."""
    assert expected == slot_ms(now_ms, due_at_ms)


@given(st.integers(0, 10**13), st.integers(-(10**6), 10**9))
def test_a_slot_is_never_early_and_at_most_a_second_late(now_ms: int, wait_ms: int) -> None:
    """A slot is a whole second: not before a due time that lies ahead, and less than a second after it."""
    due_at_ms = now_ms + wait_ms
    slot = slot_ms(now_ms, due_at_ms)
    assert 0 == slot % 1_000
    if wait_ms > 0:
        assert due_at_ms <= slot < due_at_ms + 1_000
    else:
        assert slot <= now_ms < slot + 1_000


def test_the_default_window_is_35_seconds() -> None:
    """A claim lives 30 s, is renewed every 10 s, and is looked after 5 s past its end."""
    assert DrainTimings(ttl_ms=30_000, heartbeat_ms=10_000, grace_ms=5_000) == DrainTimings()
    assert 35_000 == DrainTimings().window_ms
    assert 2 == DrainTimings(2, 1, 0).window_ms


@pytest.mark.parametrize(
    ("ttl_ms", "heartbeat_ms", "grace_ms"),
    [(19_999, 10_000, 0), (1, 1, 0), (10, 0, 0), (10, -1, 0), (20, 10, -1)],
    ids=["late-renewal", "no-renewal", "no-heartbeat", "negative-heartbeat", "negative-grace"],
)
def test_timings_that_would_lose_a_claim_are_refused(ttl_ms: int, heartbeat_ms: int, grace_ms: int) -> None:
    """A claim outlives two heartbeats, so that one late renewal does not lose it."""
    with pytest.raises(ValueError, match="timings: ") as refusal:
        DrainTimings(ttl_ms, heartbeat_ms, grace_ms)
    assert (
        "timings: expected heartbeat >= 1 ms, ttl >= 2 heartbeats and grace >= 0, got "
        f"ttl {ttl_ms} ms, heartbeat {heartbeat_ms} ms, grace {grace_ms} ms"
    ) == str(refusal.value)


@pytest.mark.parametrize("timings", [(2, 1, 0), (20_000, 10_000, 0), (7, 3, 1)], ids=str)
def test_the_tightest_timings_are_valid(timings: tuple[int, int, int]) -> None:
    """Two heartbeats exactly, a heartbeat of a millisecond, and no grace are allowed."""
    assert timings[0] + timings[2] == DrainTimings(*timings).window_ms


# ── fractions and far times ──────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("now_ms", "due_at_ms", "expected"),
    [
        (1_700_000_000_123, 1_700_000_000_122.9, 1_700_000_000_000),
        (1_700_000_000_123, 1_700_000_000_123.5, 1_700_000_001_000),
        (1_700_000_000_000, 1_700_000_000_000.5, 1_700_000_001_000),
        (0, 5e-324, 1_000),
        (0, -0.5, 0),
        (-1_500, -1_500, -2_000),
        (-1_500, -999.5, 0),
        (0, 10**300 + 1, 10**300 + 1_000),
        (0, 2**53 + 1, 2**53 + 8),
    ],
)
def test_a_due_time_of_another_sender_has_a_slot_too(now_ms: int, due_at_ms: float, expected: int) -> None:
    """Fractions of a millisecond, times before 1970 and integers of any size have their whole second, exactly."""
    slot = slot_ms(now_ms, due_at_ms)
    assert (expected, int) == (slot, type(slot))


@given(st.integers(-(10**13), 10**13), st.floats(-(10**13), 10**13))
def test_a_slot_of_a_fraction_is_never_early_and_at_most_a_second_late(now_ms: int, due_at_ms: float) -> None:
    """A slot is an integer number of whole seconds: at or after what lies ahead, and less than a second after it."""
    slot = slot_ms(now_ms, due_at_ms)
    assert 0 == slot % 1_000
    if due_at_ms > now_ms:
        assert slot - 1_000 < due_at_ms <= slot
    else:
        assert slot <= now_ms < slot + 1_000
