"""A store's outage makes a lineage of successors, each later than the one before, which every reader reads back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2core.outage import next_outage, outage_due_at_ms
from a2core.tasks import MAX_GENERATION, AppendTask, DrainTask, Outage

NOW_MS = 1_700_000_030_123
SECOND_MS, DAY_MS = 1_000, 86_400_000


def drain(due_at_ms: float = 1_700_000_030_000) -> DrainTask:
    return DrainTask("orders", "s-1", due_at_ms)


def append() -> AppendTask:
    return AppendTask("t-1", "orders", "s-1", 1_700_000_030_123, ({"n": 1},))


@pytest.mark.parametrize(
    ("due_at_ms", "root"),
    [
        (1_700_000_030_000, 1_700_000_030_000),
        (1_700_000_030_999, 1_700_000_030_000),
        (0.25, 0),
        (-1_500, -2_000),
        (-0.5, -1_000),
        (10**300 + 104, 10**300),
    ],
    ids=str,
)
def test_a_drains_lineage_begins_with_its_first_whole_second(due_at_ms: float, root: int) -> None:
    """The first due time is rounded down to a whole second, so that the successor can be read back."""
    assert Outage(0, root) == next_outage(drain(due_at_ms), None)


def test_an_appends_lineage_knows_no_first_due_time() -> None:
    """An append is named by its own id, so its lineage only counts."""
    assert Outage(0, None) == next_outage(append(), None)
    assert Outage(5, None) == next_outage(append(), Outage(4, None))


def test_a_lineage_keeps_its_first_due_time() -> None:
    """However late a successor is, its lineage names the drain that failed first."""
    assert Outage(8, 1_699_999_000_000) == next_outage(drain(), Outage(7, 1_699_999_000_000))


def test_a_lineage_stays_at_its_last_generation() -> None:
    """The last generation succeeds itself: recovery is never lost to a number that readers refuse."""
    last = Outage(MAX_GENERATION, 0)
    assert 2**53 - 2 == MAX_GENERATION
    assert last == next_outage(drain(), Outage(MAX_GENERATION - 1, 0)) == next_outage(drain(), last)


@pytest.mark.parametrize(
    ("generation", "delay_ms"),
    [(0, 30_000), (1, 120_000), (2, 480_000), (3, 1_920_000), (4, 7_680_000), (5, 30_720_000), (6, DAY_MS)],
)
def test_a_successor_waits_four_times_longer_each_time(generation: int, delay_ms: int) -> None:
    """The wait grows from 30 s to a day, and ends at a whole second."""
    assert delay_ms == outage_due_at_ms(0, generation)
    assert NOW_MS + delay_ms + (SECOND_MS - 123) == outage_due_at_ms(NOW_MS, generation)


@given(st.integers(-(10**13), 10**13), st.integers(7, MAX_GENERATION))
def test_a_successor_never_waits_longer_than_a_day(now_ms: int, generation: int) -> None:
    """From the seventh on each waits a day, and less than a second more."""
    due_at_ms = outage_due_at_ms(now_ms, generation)
    assert 0 == due_at_ms % SECOND_MS
    assert DAY_MS <= due_at_ms - now_ms < DAY_MS + SECOND_MS
