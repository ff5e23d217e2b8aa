"""Waiting grows to a cap and is spread; budgets are at least one."""

from math import inf, isnan, nan

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from a2core import Backoff, RetryPolicy
from a2core.backoff import exponential_delay_ms
from a2core.ids import spread

backoffs = st.builds(
    lambda base, more, factor, jitter: Backoff(base, factor, base + more, jitter),
    st.integers(0, 10**6),
    st.integers(0, 10**7),
    st.integers(1, 10),
    st.integers(0, 100),
)


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [
        pytest.param(
            Backoff(jitter_percent=0),
            [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000, 256_000, 300_000, 300_000],
            id="default",
        ),
        pytest.param(Backoff(100, 3, 2_699, 0), [100, 300, 900, 2_699, 2_699], id="just-under"),
        pytest.param(Backoff(100, 3, 2_700, 0), [100, 300, 900, 2_700, 2_700], id="just-at"),
        pytest.param(Backoff(100, 3, 2_701, 0), [100, 300, 900, 2_700, 2_701], id="just-over"),
        pytest.param(Backoff(250, 1, 1_000, 0), [250, 250, 250], id="constant"),
        pytest.param(Backoff(0, 2, 1_000, 0), [0, 0, 0], id="none"),
        pytest.param(Backoff(700, 2, 700, 0), [700, 700], id="at-cap"),
    ],
)
def test_a_wait_grows_to_its_cap(backoff: Backoff, delays: list[int]) -> None:
    """The first failure waits the base, each later one `factor` times as long, none longer than the cap."""
    assert delays == [backoff.delay_ms(failures, "e1") for failures in range(1, len(delays) + 1)]


@pytest.mark.parametrize(
    ("backoff", "expected"),
    [(Backoff(1, 2, 10**9, 0), 10**9), (Backoff(5, 1, 10, 0), 5), (Backoff(0, 2, 10, 0), 0)],
    ids=["growing", "constant", "none"],
)
def test_a_trillion_failures_are_soon_counted(backoff: Backoff, expected: int) -> None:
    """The wait is found in as many steps as it takes to the cap, not in one per failure."""
    assert expected == backoff.delay_ms(10**12, "e1")


def test_the_default_waits_a_second_and_up_to_a_fifth_more_or_less() -> None:
    """Without options: 1 s doubling to 5 min, 20 % jitter, ten failures, ten lost claims."""
    assert Backoff(base_ms=1_000, factor=2, cap_ms=300_000, jitter_percent=20) == Backoff()
    assert RetryPolicy(max_failures=10, max_lost=10, backoff=Backoff()) == RetryPolicy()


def test_by_default_a_dead_letter_blocks_and_what_is_settled_stays() -> None:
    """Without options a dead letter holds its lane and is told to nobody, and no event is ever purged."""
    assert RetryPolicy(aside=False, on_dead=None, keep_ms=None) == RetryPolicy()


@given(backoffs, st.integers(1, 40), st.text())
@example(Backoff(), 1, "e1")
@example(Backoff(0, 1, 0, 100), 1, "")
def test_jitter_stays_within_its_percentage(backoff: Backoff, failures: int, key: str) -> None:
    """A wait differs from the plain one by at most the jitter's share, and is the same each time."""
    plain = min(backoff.base_ms * backoff.factor ** (failures - 1), backoff.cap_ms)
    reach = plain * backoff.jitter_percent // 100
    delay = backoff.delay_ms(failures, key)
    assert plain - reach <= delay <= plain + reach
    assert delay == backoff.delay_ms(failures, key)


@pytest.mark.parametrize(
    ("jitter", "expected"),
    [(0, range(10, 11)), (10, range(9, 12)), (19, range(9, 12)), (20, range(8, 13)), (100, range(21))],
    ids=str,
)
def test_jitter_reaches_both_ends(jitter: int, expected: range) -> None:
    """Over many events every wait from the shortest to the longest occurs."""
    backoff = Backoff(10, 2, 10, jitter)
    assert set(expected) == {backoff.delay_ms(1, f"e{turn}") for turn in range(500)}


def test_jitter_is_pinned() -> None:
    """A wait is its shortest value and a spread of twice the jitter's reach, over the event and the failure."""
    assert 800_000 + spread("e1", 4, 400_000) == Backoff(1_000_000, 1, 1_000_000).delay_ms(4, "e1")


def test_each_event_and_each_failure_draws_its_own_jitter() -> None:
    """Events that failed together do not return together, and one that keeps failing draws anew."""
    backoff = Backoff(1_000_000, 1, 1_000_000, 20)
    assert 20 == len({backoff.delay_ms(1, f"e{turn}") for turn in range(20)})
    assert 20 == len({backoff.delay_ms(failures, "e1") for failures in range(1, 21)})


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ((-1, 2, 10, 0), "expected 0 <= base <= cap, got base -1 ms, cap 10 ms"),
        ((11, 2, 10, 0), "expected 0 <= base <= cap, got base 11 ms, cap 10 ms"),
        ((1, 0, 10, 0), "expected a factor of 1 or more, got 0"),
        ((1, 2, 10, -1), "expected a jitter of 0 to 100 percent, got -1"),
        ((1, 2, 10, 101), "expected a jitter of 0 to 100 percent, got 101"),
    ],
    ids=["negative", "base-over-cap", "shrinking", "jitter-under", "jitter-over"],
)
def test_a_backoff_cannot_exist_invalid(options: tuple[int, int, int, int], complaint: str) -> None:
    """A wait that would be negative or shrink is refused when it is made, with the numbers that came."""
    with pytest.raises(ValueError, match="backoff: ") as refusal:
        Backoff(*options)
    assert f"backoff: {complaint}" == str(refusal.value)


@pytest.mark.parametrize(("failures", "lost"), [(0, 1), (1, 0), (-1, 10)])
def test_a_budget_is_at_least_one(failures: int, lost: int) -> None:
    """An event is tried once at least."""
    with pytest.raises(ValueError, match="retry: ") as refusal:
        RetryPolicy(failures, lost)
    complaint = f"expected budgets of 1 or more, got max_failures={failures}, max_lost={lost}"
    assert f"retry: {complaint}" == str(refusal.value)


def test_the_smallest_budgets_are_valid() -> None:
    """One failure and one lost claim make a policy: the first of either is the last."""
    policy = RetryPolicy(1, 1)
    assert (1, 1) == (policy.max_failures, policy.max_lost)


# ── waits without a cap ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("attempt", "base_ms", "factor", "expected"),
    [
        (1, 1_000, 2, 1_000),
        (5, 1_000, 2, 16_000),
        (7, 100, 3, 72_900),
        (7, 250, 1, 250),
        (2, 1_000, 1.5, 1_500),
        (0, 1_000, 2, 500),
        (3, 0, 10, 0),
        (1_015, 1_000, 2, 1_000 * 2.0**1_014),
        (1_016, 1_000, 2, inf),
        (5_000, 1_000, 2, inf),
        (5_000, -1, 2, -inf),
        (0, 1_000, 0, inf),
        (inf, 1_000, 2, inf),
        (-inf, 1_000, 2, 0),
    ],
)
def test_a_wait_without_a_cap_grows_to_infinity(attempt: float, base_ms: float, factor: float, expected: float) -> None:
    """Each attempt waits a factor longer than the one before; beyond what a double holds, for ever."""
    assert expected == exponential_delay_ms(attempt, base_ms, factor)


@pytest.mark.parametrize(
    ("attempt", "base_ms", "factor"), [(nan, 1, 2), (2, nan, 2), (5, 0, 1e308), (1.5, 1_000, -2)], ids=str
)
def test_a_wait_that_is_no_number_is_none(attempt: float, base_ms: float, factor: float) -> None:
    """What has no real value is NaN, and nothing raises."""
    assert isnan(exponential_delay_ms(attempt, base_ms, factor))


def test_a_wait_starts_at_a_second_and_doubles() -> None:
    """Without settings, waits are those of the reference."""
    assert [1_000, 2_000, 4_000] == [exponential_delay_ms(attempt) for attempt in (1, 2, 3)]
