"""Dead letters: an operator skips one, or gives its event fresh budgets."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from a2core import (
    Buried,
    Claim,
    Ending,
    EndingKind,
    Entry,
    Failure,
    NotDead,
    Redriven,
    Resolved,
    RetryPolicy,
    Roster,
    Timer,
    WorkItem,
    derive_id,
)
from tests.core.helpers import BOOM, STEADY, TTL_MS, Session, draft, entry


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


# ── aside, and told ──────────────────────────────────────────────────────────────────────

TOLD = Roster(
    {
        "order": RetryPolicy(max_failures=2, max_lost=2, backoff=STEADY, aside=True, on_dead="lament"),
        "lament": RetryPolicy(max_failures=1, max_lost=1),
    },
    frozenset({"note"}),
)


def failed(session: Session, now_ms: int) -> int:
    for _ in range(2):
        session.fail(session.claim_one(now_ms=now_ms), now_ms=now_ms)
        now_ms += 1_000
    return now_ms - 1_000


def given_up(session: Session, now_ms: int) -> int:
    session.give_up(session.claim_one(now_ms=now_ms), now_ms=now_ms)
    return now_ms


def lost(session: Session, now_ms: int) -> int:
    for _ in range(3):
        session.claim(now_ms=now_ms)
        now_ms += TTL_MS
    return now_ms - TTL_MS


Bury = Callable[[Session, int], int]
"""Has the head of the only lane buried, from a time on, and says when that was."""

BURIALS: dict[Bury, tuple[int, Failure]] = {
    failed: (2, BOOM),
    given_up: (1, BOOM),
    lost: (2, Failure("Lost", "2 claims ended without an answer: the process died, was killed, or hung")),
}


def to_bury(*, payload: str = "[1]") -> Session:
    session = Session(roster=TOLD)
    session.append(draft("e1", payload=payload), now_ms=0)
    return session


def laments(session: Session) -> list[Entry]:
    return [kept for kept in session.entries.values() if kept.type == "lament"]


@pytest.mark.parametrize("bury", BURIALS)
def test_a_dead_letter_goes_aside(bury: Bury) -> None:
    """Whatever buried it, what was behind it runs at once, and the session is woken for that; it stays dead."""
    session = to_bury()
    session.append(draft("e2"), now_ms=0)
    session.roster = replace(TOLD, handled={"order": replace(TOLD.handled["order"], on_dead=None)})
    at_ms = bury(session, 0)
    assert at_ms == session.wake_at_ms
    assert (True, "aside:1") == (session.items[1].dead is not None, session.items[1].lane)
    assert 2 == session.claim_one(now_ms=at_ms).seq
    assert "e1" == session.items[1].entry.id


def test_a_pass_that_puts_one_aside_says_that_there_is_more() -> None:
    """Who follows in the lane is not known to the pass that buries its head, so it asks for another one, once."""
    session = to_bury()
    session.append(draft("e2"), now_ms=0)
    session.roster = replace(TOLD, handled={"order": replace(TOLD.handled["order"], on_dead=None)})
    session.claim(now_ms=0)
    session.claim(now_ms=TTL_MS)
    answer = session.claim(now_ms=2 * TTL_MS)
    assert ([1], (), True) == ([item.seq for item in answer.buried], answer.items, answer.more)
    answer = session.claim(now_ms=2 * TTL_MS)
    assert ([2], False) == ([item.seq for item in answer.items], answer.more)


def test_a_redriven_event_stays_aside() -> None:
    """It is tried again beside its old lane, blocks nothing there, and dies without a word that its lane is free."""
    session = to_bury()
    session.append(draft("e2"), now_ms=0)
    given_up(session, 0)
    session.claim(now_ms=0, ttl_ms=99 * TTL_MS)
    session.redrive("e1", now_ms=10)
    assert "aside:1" == session.items[1].lane
    for turn in range(2):
        assert [1] == [item.seq for item in session.claim(now_ms=10 + turn * TTL_MS).items]
    session.roster = replace(TOLD, handled={"order": replace(TOLD.handled["order"], on_dead=None)})
    answer = session.claim(now_ms=10 + 2 * TTL_MS)
    assert ([1], False) == ([item.seq for item in answer.buried], answer.more)


@pytest.mark.parametrize("bury", BURIALS)
def test_a_burial_is_told_once(bury: Bury) -> None:
    """An event tells of the dead letter, in the same plan, in a lane of its own, caused by the event that died."""
    session = to_bury()
    at_ms = bury(session, 0)
    attempts, failure = BURIALS[bury]
    [lament] = laments(session)
    assert Entry(lament.id, "lament", lament.payload, "e1", at_ms, 2) == lament
    told = {"event": "e1", "attempts": attempts, "error": failure.type, "message": failure.message, "payload": [1]}
    assert told == json.loads(lament.payload)
    assert WorkItem(lament, "dead:1", ready_at_ms=at_ms) == session.items[2]
    assert at_ms == session.wake_at_ms
    item = session.claim_one(now_ms=at_ms)
    assert "lament" == item.entry.type
    session.settle(item, now_ms=at_ms)
    session.claim(now_ms=at_ms + 99 * TTL_MS)
    assert [lament] == laments(session)


@pytest.mark.parametrize("bury", BURIALS)
def test_each_burial_is_told(bury: Bury) -> None:
    """An event that is redriven and dies again is told of again, under an id of that burial."""
    session = to_bury()
    now_ms = 0
    for turn in range(1, 4):
        now_ms = bury(session, now_ms)
        session.settle(session.claim_one(now_ms=now_ms), now_ms=now_ms)
        told = [json.loads(lament.payload)["attempts"] for lament in laments(session)]
        assert [BURIALS[bury][0] * each for each in range(1, turn + 1)] == told
        session.redrive("e1", now_ms=now_ms)
    ids = [derive_id("a2:dead-event:v1", "e1", attempts) for attempts in told]
    assert ids == [lament.id for lament in laments(session)]


def test_many_burials_of_one_pass_are_told_each() -> None:
    """Dead letters that one pass finds beside a due timer get their events after it, each with the next seq."""
    session = Session(roster=TOLD)
    session.append(draft("e1", lane="x"), draft("e2", lane="y"), now_ms=0)
    session.claim(now_ms=0)
    session.claim(now_ms=TTL_MS)
    session.schedule(Timer("t", 2 * TTL_MS, None, (draft("n", event_type="note"),)), now_ms=TTL_MS)
    answer = session.claim(now_ms=2 * TTL_MS)
    assert [1, 2] == [item.seq for item in answer.buried]
    assert [(None, 3), ("e1", 4), ("e2", 5)] == [(new.cause, new.seq) for new in answer.appended]
    assert answer.more
    assert [4, 5] == [item.seq for item in session.claim(now_ms=2 * TTL_MS).items]


def test_a_pass_that_tells_of_a_dead_letter_says_that_there_is_more() -> None:
    """The event that it made waits for a pass that may claim it, where nothing else has changed in any lane."""
    session = to_bury()
    session.roster = replace(TOLD, handled={**TOLD.handled, "order": replace(TOLD.handled["order"], aside=False)})
    assert [False, False, True, False] == [session.claim(now_ms=min(turn, 2) * TTL_MS).more for turn in range(4)]
    assert [2] == [item.seq for item in session.items.values() if item.claim is not None]


@pytest.mark.parametrize("payload", ["null", '{"event":"x"}', '"\\u0000\\ud83d"', '{"a": 1,  "a": 2}', "1e400"])
def test_a_burial_is_told_with_the_payload_as_it_is(payload: str) -> None:
    """The dead event's text goes on as it was stored, whatever it is, and names nothing of the rest."""
    session = to_bury(payload=payload)
    given_up(session, 0)
    [lament] = laments(session)
    assert lament.payload.endswith(f',"payload":{payload}}}')
    assert "e1" == json.loads(lament.payload)["event"]


@pytest.mark.parametrize("handled", [False, True], ids=["unhandled", "handled"])
@pytest.mark.parametrize("aside", [False, True], ids=["blocking", "aside"])
@pytest.mark.parametrize("bury", BURIALS)
def test_a_burial_is_told_to_a_handler_only(bury: Bury, handled: bool, aside: bool) -> None:  # noqa: FBT001 - rows
    """Where this code has no handler for it, no event is made; one that blocks its lane is told of as well."""
    session = to_bury()
    order = replace(TOLD.handled["order"], aside=aside)
    session.roster = Roster({"order": order} | ({"lament": RetryPolicy()} if handled else {}), frozenset())
    at_ms = bury(session, 7)
    assert int(handled) == len(laments(session))
    assert ("aside:1" if aside else "main") == session.items[1].lane
    if handled or aside:
        assert at_ms == session.wake_at_ms
        assert session.claim(now_ms=at_ms).items == tuple(session.items[each.seq] for each in laments(session))


def test_a_dead_lament_is_told_to_nobody() -> None:
    """The event that tells of a dead letter may die too, and that is where it ends."""
    session = to_bury()
    given_up(session, 0)
    given_up(session, 1)
    assert 2 == sum(item.dead is not None for item in session.items.values())
    assert 1 == len(laments(session))


def test_an_attempt_that_was_buried_is_not_told_again() -> None:
    """A second answer of the same attempt is stale, and makes no second event."""
    session = to_bury()
    item = session.claim_one(now_ms=0)
    session.give_up(item, now_ms=0)
    before = session.copy()
    session.give_up(item, now_ms=1)
    session.fail(item, now_ms=1)
    assert before == session
