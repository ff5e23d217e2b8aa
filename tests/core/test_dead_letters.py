"""Dead letters: an operator skips one, or gives its event fresh budgets."""

from dataclasses import replace

import pytest

from a2core import Buried, Claim, Ending, EndingKind, NotDead, Redriven, Resolved, RetryPolicy, Roster, WorkItem
from tests.core.helpers import TTL_MS, Session, draft, entry


def with_dead_letter() -> Session:
    """A session whose first event, of two in its lane, is a dead letter after two failures and two lost claims."""
    session = Session()
    session.append(draft("e1"), draft("e2"), now_ms=0)
    session.fail(session.claim_one(now_ms=0), now_ms=0)
    session.claim(now_ms=TTL_MS)
    session.claim(now_ms=2 * TTL_MS)
    session.give_up(session.claim_one(now_ms=3 * TTL_MS), now_ms=3 * TTL_MS)
    session.claim(now_ms=4 * TTL_MS)
    assert None is session.wake_at_ms
    return session


def test_a_resolved_dead_letter_lets_its_lane_go_on() -> None:
    """It is settled with the reason, for good, and what is behind it can be claimed at once."""
    session = with_dead_letter()
    skipped = replace(entry("e1"), ending=Ending(EndingKind.SKIPPED, "sent by hand"))
    assert Resolved(skipped) == session.resolve("e1", "sent by hand", now_ms=200_000)
    assert skipped == session.entries["e1"]
    assert (1,) == session.settled
    assert 200_000 == session.wake_at_ms
    assert 2 == session.claim_one(now_ms=200_000).seq


def test_a_redriven_dead_letter_starts_afresh() -> None:
    """It can be claimed at once with both budgets whole, under the next attempt, before what is behind it."""
    session = with_dead_letter()
    assert (4, 2, 2) == (session.items[1].attempt, session.items[1].failures, session.items[1].lost)
    assert Redriven(entry("e1")) == session.redrive("e1", now_ms=200_000)
    assert WorkItem(entry("e1"), "main", attempt=4, ready_at_ms=200_000) == session.items[1]
    assert 200_000 == session.wake_at_ms
    again = session.claim_one(now_ms=200_000)
    expected = WorkItem(entry("e1"), "main", attempt=5, ready_at_ms=200_000, claim=Claim("h1", 200_000 + TTL_MS))
    assert expected == again


def test_a_redriven_event_can_die_again() -> None:
    """Its fresh budget is the whole one: as many failures as the first time bury it."""
    session = with_dead_letter()
    session.redrive("e1", now_ms=200_000)
    now, answers = 200_000, []
    for _ in range(3):
        answers.append(session.fail(session.claim_one(now_ms=now), now_ms=now))
        now += 100_000
    assert [False, False, True] == [isinstance(answer, Buried) for answer in answers]


@pytest.mark.parametrize("row", ["as-buried", "as-an-older-version-left-it"])
def test_a_redriven_event_keeps_nothing_of_an_older_parking(row: str) -> None:
    """B11: a dead letter that was parked once is due as soon as it is redriven, whichever version buried it."""
    known = Roster({"newer": RetryPolicy(max_lost=1)}, frozenset())
    session = Session(roster=known)
    session.append(draft("e1", event_type="newer"), now_ms=0)
    session.claim(now_ms=0)
    session.roster = Roster({}, frozenset())
    session.claim(now_ms=TTL_MS)
    parked_until_ms = session.items[1].parked_until_ms
    session.roster = known
    assert [1] == [item.seq for item in session.claim(now_ms=TTL_MS + 1).buried]
    if row == "as-an-older-version-left-it":
        session.items[1] = replace(session.items[1], parked_until_ms=parked_until_ms)
    session.redrive("e1", now_ms=TTL_MS + 2)
    assert TTL_MS + 2 == session.items[1].due_at_ms


def test_the_holder_of_a_buried_attempt_stays_fenced_out() -> None:
    """A redrive gives nothing back to the attempts before it."""
    session = with_dead_letter()
    buried = session.items[1]
    session.redrive("e1", now_ms=200_000)
    before = session.copy()
    session.settle(buried, now_ms=200_001)
    assert before == session


@pytest.mark.parametrize("event_id", ["e0", "e2", "e3", "e4"], ids=["unknown", "waiting", "settled", "claimed"])
def test_only_a_dead_letter_is_resolved_or_redriven(event_id: str) -> None:
    """An event that is unknown, waiting, claimed or settled is no dead letter, and nothing is written."""
    session = with_dead_letter()
    session.append(draft("e3", event_type="note"), draft("e4", lane="side"), now_ms=200_000)
    session.claim(now_ms=200_000)
    before = session.copy()
    assert NotDead(event_id) == session.resolve(event_id, now_ms=200_001)
    assert not session.plan.writes
    assert NotDead(event_id) == session.redrive(event_id, now_ms=200_001)
    assert not session.plan.writes
    assert before == session


def test_a_dead_letter_is_dealt_with_once() -> None:
    """A second resolve or redrive finds no dead letter."""
    session = with_dead_letter()
    session.redrive("e1", now_ms=200_000)
    assert NotDead("e1") == session.redrive("e1", now_ms=200_000)
    assert NotDead("e1") == session.resolve("e1", now_ms=200_000)
    session.give_up(session.claim_one(now_ms=200_000), now_ms=200_000)
    session.resolve("e1", now_ms=200_000)
    assert NotDead("e1") == session.resolve("e1", now_ms=200_000)
    assert (1,) == session.settled
