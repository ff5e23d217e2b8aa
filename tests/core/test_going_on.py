"""The end of an attempt and the next claim in one plan come to what they come to one after the other."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2core import (
    Claimed,
    Needs,
    Plan,
    RetryPolicy,
    Roster,
    Snapshot,
    Stale,
    Timer,
    WentOn,
    WorkItem,
    decide_claim,
    decide_fail,
    decide_give_up,
    decide_go_on,
    decide_settle,
    decide_snooze,
)
from tests.core.helpers import BOOM, STEADY, TTL_MS, Session, draft

Decide: TypeAlias = Callable[[Snapshot, int], Plan[Any]]

POLICY = RetryPolicy(max_failures=2, max_lost=2, backoff=STEADY, keep_ms=5)
ROSTER = Roster(
    {"order": replace(POLICY, on_dead="lament"), "aside": replace(POLICY, aside=True), "lament": POLICY},
    frozenset({"note"}),
)
TYPES = ("order", "aside", "note")
ENDS: dict[str, Callable[..., Plan[Any]]] = {
    "settle": decide_settle,
    "fail": partial(decide_fail, failure=BOOM, delay_ms=1_000),
    "give up": partial(decide_give_up, failure=BOOM),
    "snooze": partial(decide_snooze, delay_ms=500),
}


def end_of(name: str, item: WorkItem, number: int) -> tuple[Needs, Decide]:
    """What ends this attempt, and what it needs; a settled one produces an event in a lane that may be new."""
    end = partial(ENDS[name], seq=item.seq, attempt=item.attempt)
    if name == "snooze":
        return Needs(seqs=(item.seq,)), end
    if name != "settle":
        return Needs(seqs=(item.seq,)), partial(end, roster=ROSTER)
    produced = draft(f"p{number}", lane="abc"[number % 3], event_type=TYPES[number % 3])
    return Needs(ids=(produced.id,), seqs=(item.seq,)), partial(end, roster=ROSTER, drafts=(produced,))


def claiming(limit: int, now_ms: int) -> Callable[[Snapshot, int], Plan[Claimed]]:
    return partial(decide_claim, holder="h", limit=limit, roster=ROSTER, expires_at_ms=now_ms + TTL_MS)


@given(st.data())
def test_going_on_is_ending_and_then_claiming(data: st.DataObject) -> None:
    """Over any life of a session the rows, the wake-up and both answers are the same."""
    session = Session(roster=ROSTER)
    now_ms = 0
    held: list[WorkItem] = []
    for number in range(data.draw(st.integers(1, 12))):
        kind = data.draw(st.sampled_from(("append", "append", "time", "timer", "claim", "end", "end")))
        if kind == "append":
            lane, event_type = data.draw(st.sampled_from("abc")), data.draw(st.sampled_from(TYPES))
            session.append(draft(f"e{number}", lane=lane, event_type=event_type), now_ms=now_ms)
        elif kind == "time":
            now_ms += data.draw(st.sampled_from((1, 1_000, TTL_MS)))
        elif kind == "timer":
            session.schedule(Timer(f"t{number}", now_ms + 1, 1, (draft(f"e{number}", lane="a"),)), now_ms=now_ms)
        elif kind == "claim":
            held += session.claim(now_ms=now_ms, limit=data.draw(st.integers(1, 2))).items
        elif held:
            item = data.draw(st.sampled_from(held))
            needs, end = end_of(data.draw(st.sampled_from(sorted(ENDS))), item, number)
            limit = data.draw(st.integers(0, 3))
            other = session.copy()
            ended: object = other.run(needs, end, now_ms)
            claimed: Claimed = other.run(Needs(heads=True), claiming(limit, now_ms), now_ms)
            both = replace(needs, heads=True, behind=item.seq)
            went_on: WentOn[Any] = session.run(both, decide_go_on, now_ms, end=end, claim=claiming(limit, now_ms))
            assert WentOn(ended, ordered(claimed)) == replace(went_on, claimed=ordered(went_on.claimed))
            assert other == session
            held += went_on.claimed.items


def ordered(claimed: Claimed) -> Claimed:
    return replace(claimed, items=tuple(sorted(claimed.items, key=lambda item: item.seq)))


def test_who_is_behind_is_claimed_at_once() -> None:
    """The head settles, and the next one of its lane is the caller's, in one transaction."""
    session = Session(roster=ROSTER)
    session.append(draft("e1"), draft("e2"), now_ms=0)
    item = session.claim_one(now_ms=0)
    end = partial(decide_settle, seq=1, attempt=1, roster=ROSTER, drafts=())
    went_on: WentOn[Any] = session.run(
        Needs(seqs=(1,), heads=True, behind=1), decide_go_on, 0, end=end, claim=claiming(1, 0)
    )
    assert [2] == [one.seq for one in went_on.claimed.items]
    assert 1 == item.seq
    assert {2} == session.items.keys()


@pytest.mark.parametrize("limit", [0, 1])
def test_a_stale_end_claims_all_the_same(limit: int) -> None:
    """Who lost its claim writes no end; what it claims beside that is claimed as by anyone."""
    session = Session(roster=ROSTER)
    session.append(draft("e1"), draft("e2", lane="other"), now_ms=0)
    session.claim(now_ms=0, limit=1)
    end = partial(decide_settle, seq=1, attempt=9, roster=ROSTER, drafts=())
    went_on: WentOn[Any] = session.run(
        Needs(seqs=(1,), heads=True, behind=1), decide_go_on, 0, end=end, claim=claiming(limit, 0)
    )
    assert (Stale(), [2][:limit]) == (went_on.ended, [one.seq for one in went_on.claimed.items])
