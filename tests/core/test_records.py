"""The rows of a session: when a claim ends, when an item is due, and what a roster knows."""

from dataclasses import FrozenInstanceError, replace

import pytest

from a2core import Claim, DeadLetter, Draft, EndingKind, Roster, Timer, WorkItem
from tests.core.helpers import BOOM, ROSTER, draft, entry

ITEM = WorkItem(entry("e1", 7), "main", ready_at_ms=1_000)
CLAIM = Claim("h1", 2_000)
DEAD = DeadLetter(BOOM, 3_000)


def test_an_item_has_its_events_seq() -> None:
    """Work is named by the seq of its event."""
    assert 7 == ITEM.seq


def test_new_work_has_spent_nothing() -> None:
    """An item starts without attempts, failures, lost claims, claim, parking, dead letter, key or progress."""
    fresh = WorkItem(entry("e1"), "main")
    assert WorkItem(entry("e1"), "main", 0, 0, 0, 0, None, None, None, None, None) == fresh


@pytest.mark.parametrize(
    ("now_ms", "expected"), [(1_999, True), (2_000, False), (2_001, False)], ids=["before", "at", "after"]
)
def test_a_claim_ends_at_its_last_instant(now_ms: int, expected: bool) -> None:  # noqa: FBT001 - a row's expectation
    """The instant at which a claim expires is already after its end."""
    assert expected is replace(ITEM, claim=CLAIM).is_claimed(now_ms)


def test_work_without_a_claim_is_not_claimed() -> None:
    """No claim, no holder, at any time."""
    assert not ITEM.is_claimed(0)


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        pytest.param(ITEM, 1_000, id="waiting"),
        pytest.param(replace(ITEM, claim=CLAIM), 2_000, id="claimed"),
        pytest.param(replace(ITEM, claim=CLAIM, ready_at_ms=9_000), 2_000, id="claimed-not-ready"),
        pytest.param(replace(ITEM, parked_until_ms=5_000), 5_000, id="parked"),
        pytest.param(replace(ITEM, parked_until_ms=999), 1_000, id="parked-before-ready"),
        pytest.param(replace(ITEM, dead=DEAD), None, id="dead"),
        pytest.param(replace(ITEM, dead=DEAD, parked_until_ms=5_000), None, id="dead-parked"),
        pytest.param(replace(ITEM, dead=DEAD, claim=CLAIM), None, id="dead-claimed"),
    ],
)
def test_an_item_is_due_when_a_look_is_worth_it(item: WorkItem, expected: int | None) -> None:
    """Due is the end of the claim, else the later of ready and parked; a dead letter is never due."""
    assert expected == item.due_at_ms


def test_only_a_type_without_a_handler_settles_at_append() -> None:
    """A declared type without a handler settles in the log; a handled or a newer one is work."""
    assert ROSTER.settles_at_append("note")
    assert not ROSTER.settles_at_append("order")
    assert not ROSTER.settles_at_append("newer")
    assert not Roster({}, frozenset()).settles_at_append("note")


@pytest.mark.parametrize(
    ("drafts", "expected"),
    [
        pytest.param((), None, id="empty"),
        pytest.param((draft("a"),), None, id="none"),
        pytest.param((draft("a", key="k"),), "k", id="its-own"),
        pytest.param((draft("a", key=""),), "", id="empty-text"),
        pytest.param((draft("a"), draft("b", key="k"), draft("c", key="l")), "k", id="first-that-has-one"),
    ],
)
def test_a_timer_has_the_key_of_what_it_carries(drafts: tuple[Draft, ...], expected: str | None) -> None:
    """A timer is found by the first key among its events, where any has one."""
    assert expected == Timer("t", 0, None, drafts).key


def test_a_timer_recurs_by_its_rule_alone() -> None:
    """Neither a timer nor a roster knows of recurring unless it is told."""
    assert None is Timer("t", 0, None, ()).rule
    assert None is ROSTER.recur


def test_the_stored_words_of_an_ending_are_stable() -> None:
    """What stores keep for a cancelled and a skipped event never changes."""
    assert {"cancelled", "skipped"} == {kind.value for kind in EndingKind}
    assert EndingKind.CANCELLED == EndingKind("cancelled")
    assert EndingKind.SKIPPED == EndingKind("skipped")


def test_a_row_changes_by_making_another() -> None:
    """A row that a decision read cannot change while it is being written."""
    with pytest.raises(FrozenInstanceError):
        ITEM.attempt = 1  # type: ignore[misc]
