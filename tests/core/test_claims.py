"""Which work may run, who holds it and until when, and when the session must be looked at again."""

from dataclasses import replace
from itertools import pairwise

import pytest

from a2core import (
    PARK_MS,
    Claim,
    Claimed,
    DeadLetter,
    Entry,
    Failure,
    Recur,
    Recurrence,
    Released,
    Renewed,
    Retrying,
    RetryPolicy,
    Roster,
    Settled,
    Stale,
    Timer,
    WorkItem,
    decide_hand_over,
)
from a2core.claims import held_item
from a2core.plan import Needs
from tests.core.helpers import BOOM, ROSTER, STEADY, TTL_MS, Session, draft, entry

NEWER = Roster({**ROSTER.handled, "newer": RetryPolicy(backoff=STEADY)}, ROSTER.unhandled)
KILLED = "claims ended without an answer: the process died, was killed, or hung"


def seqs(claimed: Claimed) -> list[int]:
    return [item.seq for item in claimed.items]


def lanes(*names: str) -> Session:
    """A session with one event in each of these lanes, in this order."""
    session = Session()
    session.append(*(draft(f"e{seq}", lane=lane) for seq, lane in enumerate(names, 1)), now_ms=0)
    return session


def timer(timer_id: str, due_at_ms: int, *names: str, lane: str = "main") -> Timer:
    return Timer(timer_id, due_at_ms, None, tuple(draft(name, lane=lane) for name in names))


# ── lanes ────────────────────────────────────────────────────────────────────────────────


def test_a_claim_is_a_lease() -> None:
    """A claimed item carries its holder, the end of the claim and its first attempt, and the session wakes then."""
    session = lanes("main")
    answer = session.claim(now_ms=5, holder="h7", ttl_ms=100)
    item = WorkItem(entry("e1"), "main", attempt=1, claim=Claim("h7", 105))
    assert Claimed(items=(item,)) == answer
    assert {1: item} == session.items
    assert 105 == session.wake_at_ms


def test_a_lane_is_handled_in_order() -> None:
    """Only the first open event of a lane is claimed; the next one follows when it is settled."""
    session = lanes("main", "main", "main")
    for seq in (1, 2, 3):
        item = session.claim_one(now_ms=seq)
        assert seq == item.seq
        assert Claimed(busy=True) == session.claim(now_ms=seq, holder="h2")
        assert Settled(()) == session.settle(item, now_ms=seq)
    assert (1, 2, 3) == session.settled
    assert Claimed() == session.claim(now_ms=4)
    assert None is session.wake_at_ms


def test_lanes_run_side_by_side() -> None:
    """Every lane's head is claimed in one pass, in seq order, and what is behind a head is not."""
    session = lanes("x", "y", "x", "z", "y")
    assert [1, 2, 4] == seqs(session.claim(now_ms=0))


@pytest.mark.parametrize(
    ("limit", "claimed", "more"),
    [(0, [], True), (1, [1], True), (2, [1, 2], True), (3, [1, 2, 4], False), (4, [1, 2, 4], False)],
)
def test_a_pass_claims_up_to_its_limit(limit: int, claimed: list[int], more: bool) -> None:  # noqa: FBT001 - a row
    """The oldest heads come first, and the answer says whether claimable ones are left; the wake covers those."""
    session = lanes("x", "y", "x", "z")
    answer = session.claim(now_ms=10, limit=limit)
    assert claimed == seqs(answer)
    assert more is answer.more
    assert (0 if more else 10 + TTL_MS) == session.wake_at_ms
    assert [2] * (3 - len(claimed)) == [2] * len(session.claim(now_ms=10).items)


def test_a_waiting_head_holds_its_lane_back() -> None:
    """An event that waits for its retry is not overtaken, and becomes claimable at that very millisecond."""
    session = lanes("main", "main", "side")
    first, side = session.claim(now_ms=0).items
    assert Retrying(1_000) == session.fail(first, now_ms=0)
    session.settle(side, now_ms=0)
    assert Claimed(retry_at_ms=1_000) == session.claim(now_ms=999)
    assert 1_000 == session.wake_at_ms
    assert [1] == seqs(session.claim(now_ms=1_000))


def test_a_dead_head_blocks_its_lane_alone() -> None:
    """A dead letter holds its lane until it is resolved; it is neither busy nor worth a wake-up."""
    session = lanes("x", "x", "y", "y")
    dead, live = session.claim(now_ms=0).items
    session.give_up(dead, now_ms=0)
    session.settle(live, now_ms=0)
    assert [4] == seqs(session.claim(now_ms=1))
    assert Claimed(busy=True) == session.claim(now_ms=2)
    session.settle(session.items[4], now_ms=3)
    assert Claimed() == session.claim(now_ms=4)
    assert None is session.wake_at_ms
    session.resolve("e1", now_ms=5)
    assert [2] == seqs(session.claim(now_ms=5))


def test_the_earliest_of_what_waits_is_the_retry_time() -> None:
    """Over several waiting lanes the answer has the earliest retry, and the wake also counts claims."""
    session = lanes("x", "y", "z")
    one, two, _ = session.claim(now_ms=0, ttl_ms=400).items
    session.snooze(one, now_ms=0, delay_ms=700)
    session.snooze(two, now_ms=0, delay_ms=600)
    assert Claimed(busy=True, retry_at_ms=600) == session.claim(now_ms=1)
    assert 400 == session.wake_at_ms


# ── leases ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("now_ms", "taken"), [(TTL_MS - 1, []), (TTL_MS, [1]), (TTL_MS + 1, [1])], ids=["B2-before", "B2-at", "B2-after"]
)
def test_a_claim_is_taken_over_from_its_end_on(now_ms: int, taken: list[int]) -> None:
    """A claim is live until the millisecond before its end; from its end on it is lost, and another holder's."""
    session = lanes("main")
    old = session.claim_one(now_ms=0)
    answer = session.claim(now_ms=now_ms, holder="h2")
    assert taken == seqs(answer)
    assert (not taken) is answer.busy
    if taken:
        [new] = answer.items
        assert replace(old, attempt=2, lost=1, claim=Claim("h2", now_ms + TTL_MS)) == new


def test_retry_and_redelivery_meet() -> None:
    """B2: of a holder that ends late and the one that took over, only the second one's answer counts."""
    session = lanes("main", "main")
    late = session.claim_one(now_ms=0)
    current = session.claim_one(now_ms=TTL_MS)
    before = session.copy()
    assert Stale() == session.settle(late, draft("late"), now_ms=TTL_MS + 1)
    assert Stale() == session.fail(late, now_ms=TTL_MS + 1)
    assert before == session
    assert Settled((Entry("good", "order", "{}", "e1", TTL_MS + 1, 3),)) == session.settle(
        current, draft("good"), now_ms=TTL_MS + 1
    )
    assert Stale() == session.settle(current, draft("twice"), now_ms=TTL_MS + 2)
    assert (1,) == session.settled
    assert ["e1", "e2", "good"] == list(session.entries)


def test_the_clock_that_writes_an_expiry_judges_it() -> None:
    """A10: expiry and judgement are on the time that comes in; a challenger's holder name or window moves nothing."""
    session = lanes("main")
    session.claim(now_ms=0, ttl_ms=120_000)
    assert Claimed(busy=True) == session.claim(now_ms=119_999, holder="h2", ttl_ms=1)
    assert 120_000 == session.wake_at_ms
    assert [1] == seqs(session.claim(now_ms=120_000, holder="h2", ttl_ms=1))
    assert 120_001 == session.wake_at_ms


def test_a_long_task_keeps_its_claim_while_it_is_renewed() -> None:
    """B3: a handler of 35 minutes under a lease of 5 runs once while it renews, and again once it stops."""
    minute = 60_000
    session = lanes("main")
    [item] = session.claim(now_ms=0, ttl_ms=5 * minute).items
    for now in range(4 * minute, 36 * minute, 4 * minute):
        assert Renewed(frozenset({1}), frozenset()) == session.renew(item, now_ms=now, ttl_ms=5 * minute)
        assert now + 5 * minute == session.wake_at_ms
        assert Claimed(busy=True) == session.claim(now_ms=now + 4 * minute, holder="h2")
    assert [1] == seqs(session.claim(now_ms=37 * minute, holder="h2"))
    assert 2 == session.items[1].attempt


def test_a_renewal_never_shortens_a_claim() -> None:
    """A late or repeated renewal leaves the later end, and the wake with it."""
    session = lanes("main")
    item = session.claim_one(now_ms=100)
    session.renew(item, now_ms=90)
    assert Claim("h1", 100 + TTL_MS) == session.items[1].claim
    assert 100 + TTL_MS == session.wake_at_ms
    session.renew(item, now_ms=101)
    assert Claim("h1", 101 + TTL_MS) == session.items[1].claim
    assert 101 + TTL_MS == session.wake_at_ms


def test_an_expired_claim_that_nobody_took_is_still_its_holders() -> None:
    """The attempt is the fence, not the time: until another claims, a holder may renew, and settle."""
    session = lanes("main")
    item = session.claim_one(now_ms=0)
    assert Renewed(frozenset({1}), frozenset()) == session.renew(item, now_ms=TTL_MS + 5)
    assert Claimed(busy=True) == session.claim(now_ms=TTL_MS + 5, holder="h2")
    assert Settled(()) == session.settle(item, now_ms=9 * TTL_MS)


def test_a_renewal_tells_which_claims_are_lost() -> None:
    """Of several held items those that were taken over, settled or put back are lost, and only the kept are written."""
    session = lanes("kept", "taken", "settled", "failed")
    kept, taken, settled, failed = session.claim(now_ms=0).items
    session.settle(settled, now_ms=0)
    session.fail(failed, now_ms=0)
    session.renew(kept, now_ms=10)
    session.release(session.claim(now_ms=TTL_MS, holder="h2").items[0], now_ms=TTL_MS)
    before = session.copy()
    answer = session.renew(kept, taken, settled, failed, now_ms=TTL_MS + 1)
    assert Renewed(frozenset({1}), frozenset({2, 3, 4})) == answer
    before.items[1] = replace(kept, claim=Claim("h1", TTL_MS + 1 + TTL_MS))
    before.wake_at_ms = session.wake_at_ms
    assert before == session


def test_a_renewal_that_kept_nothing_writes_nothing() -> None:
    """A holder that lost all its claims, or has none, learns that and moves no wake-up."""
    session = lanes("main")
    item = session.claim_one(now_ms=0)
    session.settle(item, now_ms=1)
    before = session.copy()
    assert Renewed(frozenset(), frozenset({1})) == session.renew(item, now_ms=2)
    assert not session.plan.writes
    assert Renewed(frozenset(), frozenset()) == session.renew(now_ms=3)
    assert not session.plan.writes
    assert before == session


def test_a_renewal_moves_the_wake_to_the_earliest_reason() -> None:
    """The wake after a renewal is the earliest of all heads and timers: claims, retries, and what is due already."""
    session = lanes("x", "y")
    held, other = session.claim(now_ms=0).items
    session.renew(held, other, now_ms=100)
    assert 100 + TTL_MS == session.wake_at_ms
    session.snooze(other, now_ms=200, delay_ms=60_000)
    session.renew(held, now_ms=300, ttl_ms=90_000)
    assert 60_200 == session.wake_at_ms
    session.schedule(timer("t1", 50_000, "t"), now_ms=300)
    session.renew(held, now_ms=400, ttl_ms=90_000)
    assert 50_000 == session.wake_at_ms
    session.renew(held, now_ms=50_001, ttl_ms=90_000)
    assert 50_000 == session.wake_at_ms
    session.schedule(timer("t2", 20_000, "u"), now_ms=50_001)
    session.schedule(timer("t3", 20_001, "v"), now_ms=50_001)
    session.renew(held, now_ms=50_002, ttl_ms=90_000)
    assert 20_000 == session.wake_at_ms


def test_a_released_claim_is_free_at_once() -> None:
    """A claim that is given back can be taken at once, under a new attempt, and spends neither budget."""
    session = lanes("main", "side")
    item, other = session.claim(now_ms=0).items
    assert Released(frozenset({1})) == session.release(item, now_ms=7)
    assert replace(item, claim=None) == session.items[1]
    assert 7 == session.wake_at_ms
    [again] = session.claim(now_ms=7, holder="h2").items
    assert replace(item, attempt=2, claim=Claim("h2", 7 + TTL_MS)) == again
    assert other == session.items[2]


def test_only_what_is_held_is_released() -> None:
    """A stale attempt gives nothing back, and where nothing is given back nobody is woken."""
    session = lanes("x", "y")
    old, gone = session.claim(now_ms=0).items
    session.settle(gone, now_ms=0)
    new = session.claim_one(now_ms=TTL_MS)
    before = session.copy()
    assert Released(frozenset()) == session.release(old, gone, now_ms=TTL_MS + 1)
    assert not session.plan.writes
    assert before == session
    assert Released(frozenset({1})) == session.release(new, gone, now_ms=TTL_MS + 2)


@pytest.mark.parametrize(
    ("seq", "attempt", "held"),
    [(1, 2, True), (1, 1, False), (1, 3, False), (2, 0, False), (3, 1, False)],
    ids=["current", "stale", "future", "unclaimed", "unknown"],
)
def test_the_fence_is_the_attempt_of_a_claim(seq: int, attempt: int, held: bool) -> None:  # noqa: FBT001 - a row
    """An item is held by exactly the attempt of its claim: no other one, and none where there is no claim."""
    session = lanes("x", "x")
    session.claim(now_ms=0)
    session.claim(now_ms=TTL_MS)
    item = held_item(session.load(Needs(seqs=(1, 2)), TTL_MS), seq, attempt)
    assert (session.items[1] if held else None) == item


# ── lost claims ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("budget", [1, 2, 3], ids=lambda budget: f"B9-{budget}")
def test_an_event_that_kills_its_process_ends_as_a_dead_letter(budget: int) -> None:
    """B9: claims count when they are made, so after `max_lost` of them the next pass buries without running."""
    session = lanes("main", "main")
    session.roster = Roster({"order": RetryPolicy(max_failures=99, max_lost=budget)}, frozenset())
    for attempt in range(1, budget + 1):
        item = session.claim_one(now_ms=attempt * TTL_MS)
        assert (attempt, attempt - 1) == (item.attempt, item.lost)
    now = (budget + 1) * TTL_MS
    dead = DeadLetter(Failure("Lost", f"{budget} {KILLED}"), now)
    buried = WorkItem(entry("e1"), "main", attempt=budget, lost=budget, dead=dead)
    assert Claimed(buried=(buried,)) == session.claim(now_ms=now)
    assert buried == session.items[1]
    assert None is session.wake_at_ms
    assert Claimed() == session.claim(now_ms=2 * now)


def test_failures_and_lost_claims_are_two_budgets() -> None:
    """Two failures and two lost claims are within three of each; the third loss alone buries."""
    session = lanes("main")
    session.fail(session.claim_one(now_ms=0), now_ms=0)
    session.claim(now_ms=100_000)
    session.fail(session.claim_one(now_ms=200_000), now_ms=200_000)
    session.claim(now_ms=300_000)
    item = session.claim_one(now_ms=400_000)
    assert (5, 2, 2) == (item.attempt, item.failures, item.lost)
    [buried] = session.claim(now_ms=500_000).buried
    assert (5, 2, 3) == (buried.attempt, buried.failures, buried.lost)


def test_a_released_or_snoozed_claim_is_not_lost() -> None:
    """Only a claim that ends without an answer counts as lost."""
    session = lanes("main")
    for now in range(0, 50, 10):
        session.release(session.claim_one(now_ms=now), now_ms=now)
        session.snooze(session.claim_one(now_ms=now), now_ms=now, delay_ms=10)
    item = session.claim_one(now_ms=50)
    assert (11, 0, 0) == (item.attempt, item.failures, item.lost)


def test_burying_is_not_limited() -> None:
    """Dead letters cost no slot of a pass: all spent heads are buried, and the others are claimed to the limit."""
    session = lanes("x", "y", "z")
    for turn in range(3):
        session.claim(now_ms=turn * TTL_MS, limit=2)
    answer = session.claim(now_ms=3 * TTL_MS, limit=1)
    assert [1, 2] == [item.seq for item in answer.buried]
    assert [3] == seqs(answer)
    assert not answer.more


# ── work of unknown types ────────────────────────────────────────────────────────────────


def unknown() -> Session:
    """A session whose first lane starts with an event that only a newer version handles."""
    session = Session()
    session.append(draft("new", event_type="newer"), draft("old"), draft("side", lane="side"), now_ms=0)
    return session


def test_work_of_an_unknown_type_is_parked() -> None:
    """B11: it is neither settled nor failed nor claimed, holds its lane, and is looked at in five minutes."""
    session = unknown()
    answer = session.claim(now_ms=10)
    assert [3] == seqs(answer)
    assert frozenset({"newer"}) == answer.parked
    assert 10 + PARK_MS == answer.retry_at_ms
    assert 300_000 == PARK_MS
    kept = WorkItem(entry("new", event_type="newer"), "main", parked_until_ms=10 + PARK_MS)
    assert kept == session.items[1]
    session.settle(session.items[3], now_ms=11)
    assert Claimed(parked=frozenset({"newer"}), retry_at_ms=10 + PARK_MS) == session.claim(now_ms=12)
    assert 10 + PARK_MS == session.wake_at_ms


def test_parking_is_no_hot_loop() -> None:
    """B11: a look while the parking lasts rewrites nothing; one at its end parks for five minutes more."""
    session = unknown()
    session.settle(session.claim_one(now_ms=0), now_ms=0)
    for now in (1, PARK_MS - 1):
        assert PARK_MS == session.claim(now_ms=now).retry_at_ms
        assert [] == list(session.plan.items)
        assert PARK_MS == session.wake_at_ms
    assert 2 * PARK_MS == session.claim(now_ms=PARK_MS).retry_at_ms
    assert 2 * PARK_MS == session.wake_at_ms
    assert (0, 0, 0) == (session.items[1].attempt, session.items[1].failures, session.items[1].lost)


def test_parked_work_runs_once_its_version_drains() -> None:
    """B11: a version that knows the type claims it at once, though its parking lasts, and the parking ends."""
    session = unknown()
    session.claim(now_ms=0)
    session.roster = NEWER
    answer = session.claim(now_ms=1)
    assert [WorkItem(entry("new", event_type="newer"), "main", attempt=1, claim=Claim("h1", 1 + TTL_MS))] == list(
        answer.items
    )
    session.settle(answer.items[0], now_ms=2)
    assert [2] == seqs(session.claim(now_ms=3))


def test_a_live_claim_of_an_unknown_type_is_left_alone() -> None:
    """B11: in a rolling deploy the older version does not park what the newer one runs, until its claim is lost."""
    session = unknown()
    session.roster = NEWER
    held, _ = session.claim(now_ms=0).items
    session.roster = ROSTER
    assert Claimed(busy=True) == session.claim(now_ms=TTL_MS - 1, holder="old", ttl_ms=9)
    assert held == session.items[1]
    assert frozenset({"newer"}) == session.claim(now_ms=TTL_MS, holder="old").parked
    assert replace(held, lost=1, claim=None, parked_until_ms=TTL_MS + PARK_MS) == session.items[1]
    session.claim(now_ms=TTL_MS + PARK_MS, holder="old")
    assert 1 == session.items[1].lost


def test_work_of_an_unknown_type_is_never_buried() -> None:
    """B11: its lost claims are counted, but only code that knows its budget buries it."""
    session = Session(roster=Roster({"newer": RetryPolicy(max_lost=1)}, frozenset()))
    session.append(draft("new", event_type="newer"), now_ms=0)
    session.claim(now_ms=0)
    session.roster = ROSTER
    assert () == session.claim(now_ms=TTL_MS).buried
    session.roster = Roster({"newer": RetryPolicy(max_lost=1)}, frozenset())
    [buried] = session.claim(now_ms=TTL_MS + 1).buried
    assert DeadLetter(Failure("Lost", f"1 {KILLED}"), TTL_MS + 1) == buried.dead


def test_a_retry_waits_no_longer_because_another_version_parked_it() -> None:
    """B11: code that knows the type wakes at the retry time, not at the end of an older version's parking."""
    session = Session(roster=NEWER)
    session.append(draft("new", event_type="newer"), now_ms=0)
    assert Retrying(1_000) == session.fail(session.claim_one(now_ms=0), now_ms=0)
    session.roster = ROSTER
    assert 500 + PARK_MS == session.claim(now_ms=500, holder="old").retry_at_ms
    session.roster = NEWER
    assert 1_000 == session.claim(now_ms=501).retry_at_ms
    assert 1_000 == session.wake_at_ms


def test_parked_work_that_a_limited_pass_left_is_due_now() -> None:
    """B11: claimable work that a pass has no slot for is a reason to wake now, parked by an older version or not."""
    session = Session()
    session.append(draft("old", lane="x"), draft("new", lane="y", event_type="newer"), now_ms=0)
    session.release(session.claim_one(now_ms=10), now_ms=20)
    session.roster = NEWER
    answer = session.claim(now_ms=20, limit=1)
    assert ([1], True) == (seqs(answer), answer.more)
    assert session.wake_at_ms is not None
    assert session.wake_at_ms <= 20


# ── timers ───────────────────────────────────────────────────────────────────────────────


def test_a_due_timer_enters_the_log_and_runs() -> None:
    """The pass that finds a timer due appends its events, claims what it can, and deletes the timer."""
    session = lanes("busy")
    session.claim(now_ms=0, ttl_ms=90_000)
    session.schedule(timer("t1", 50, "a", "b", lane="main"), now_ms=0)
    answer = session.claim(now_ms=60)
    first, second = (Entry(name, "order", "{}", None, 60, seq) for name, seq in (("a", 2), ("b", 3)))
    assert (first, second) == answer.appended
    assert (WorkItem(first, "main", 1, ready_at_ms=60, claim=Claim("h1", 60 + TTL_MS)),) == answer.items
    assert WorkItem(second, "main", ready_at_ms=60) == session.items[3]
    assert {} == session.timers
    assert Claimed(busy=True) == session.claim(now_ms=61)


@pytest.mark.parametrize("now_ms", [57, 59], ids=["A7-3ms-early", "A7-1ms-early"])
def test_an_early_wake_delivers_nothing(now_ms: int) -> None:
    """A7: a wake that arrives before the time, however often, appends nothing, and arms the rest of the wait."""
    session = Session()
    session.schedule(timer("t1", 60, "a"), now_ms=0)
    for _ in range(2):
        assert Claimed(next_timer_at_ms=60) == session.claim(now_ms=now_ms)
        assert 60 == session.wake_at_ms
    assert [1] == seqs(session.claim(now_ms=60))
    assert Claimed(busy=True) == session.claim(now_ms=60)


def test_timers_enter_in_the_order_of_their_times() -> None:
    """Timers that are due together append by due time, those of one instant by id, and then get their seqs."""
    session = Session(due_limit=9)
    for each in (timer("t3", 20, "d"), timer("t9", 10, "a", "b"), timer("t2", 20, "c")):
        session.schedule(each, now_ms=0)
    answer = session.claim(now_ms=30)
    assert [("a", 1), ("b", 2), ("c", 3), ("d", 4)] == [(new.id, new.seq) for new in answer.appended]


def test_an_arrival_queues_behind_its_lane() -> None:
    """A timer's event of a lane with open work waits for it; one of a free lane runs at once."""
    session = lanes("main")
    session.schedule(timer("t1", 5, "a", lane="main"), now_ms=0)
    session.schedule(timer("t2", 5, "b", "c", lane="free"), now_ms=0)
    assert [1, 3] == seqs(session.claim(now_ms=5))
    assert [1, 2, 3, 4] == sorted(session.items)


@pytest.mark.parametrize("third_ms", [0, 3, 10], ids=["epoch", "overdue", "due-now"])
def test_a_pass_takes_a_bounded_number_of_timers(third_ms: int) -> None:
    """What is due beyond the bound is left for a pass that can follow at once, and keeps its time as the wake."""
    session = Session(due_limit=2)
    for number, due_at_ms in ((1, -1), (2, -1), (3, third_ms)):
        session.schedule(timer(f"t{number}", due_at_ms, f"e{number}", lane=f"x{number}"), now_ms=-1)
    answer = session.claim(now_ms=10)
    assert [1, 2] == seqs(answer)
    assert answer.more
    assert third_ms == session.wake_at_ms
    answer = session.claim(now_ms=10)
    assert [3] == seqs(answer)
    assert not answer.more
    assert 10 + TTL_MS == session.wake_at_ms


def test_a_timer_that_is_ahead_is_nothing_more_to_take() -> None:
    """A timer that is due a millisecond after a pass does not ask for another pass now."""
    session = Session()
    session.schedule(timer("t1", 11, "a"), now_ms=0)
    assert Claimed(next_timer_at_ms=11) == session.claim(now_ms=10)
    assert 11 == session.wake_at_ms


def test_a_pass_wakes_for_the_next_timer() -> None:
    """A timer ahead is a reason to wake, but no reason to call the session waiting."""
    session = lanes("main")
    session.schedule(timer("t1", 700, "a"), now_ms=0)
    session.claim(now_ms=0)
    assert 700 == session.wake_at_ms
    session.settle(session.items[1], now_ms=1)
    assert Claimed(next_timer_at_ms=700) == session.claim(now_ms=2)
    assert 700 == session.wake_at_ms


def test_a_timer_whose_events_are_in_the_log_appends_nothing() -> None:
    """A timer that was delivered on another way, in full or under other content, only goes away."""
    session = Session(due_limit=9)
    session.append(draft("a"), now_ms=0)
    for each in (timer("t1", 1, "a"), timer("t2", 1, "a", "b"), timer("t3", 2, "b", "c")):
        session.timers[each.id] = each
    session.timers["t0"] = Timer("t0", 0, None, (draft("d"), draft("a", payload="1")))
    answer = session.claim(now_ms=5)
    assert [("b", 2), ("c", 3)] == [(new.id, new.seq) for new in answer.appended]
    assert {} == session.timers
    assert ["a", "b", "c"] == list(session.entries)


def test_a_timers_event_without_a_handler_only_enters_the_log() -> None:
    """An event that settles at append is appended by its timer too, and leaves nothing to claim."""
    session = Session()
    session.schedule(Timer("t1", 1, None, (draft("a", event_type="note"),)), now_ms=0)
    kept = Entry("a", "note", "{}", None, 5, 1)
    assert Claimed(appended=(kept,)) == session.claim(now_ms=5)
    assert {} == session.items
    assert None is session.wake_at_ms


def test_an_arrival_of_an_unknown_type_is_parked() -> None:
    """B11: a timer's event that this code does not know enters the log, and is parked in the same pass."""
    session = Session()
    session.schedule(Timer("t1", 1, None, (draft("a", event_type="newer"),)), now_ms=0)
    assert frozenset({"newer"}) == session.claim(now_ms=5).parked
    assert 5 + PARK_MS == session.items[1].parked_until_ms
    assert 5 + PARK_MS == session.wake_at_ms


# ── timers that recur ────────────────────────────────────────────────────────────────────


def every_ten(turn: Timer, now_ms: int) -> Recurrence:
    """One event per turn, under its time and its rule, and the next turn ten later, up to 50."""
    name, next_ms = f"{turn.rule}-{turn.due_at_ms}", now_ms // 10 * 10 + 10
    following = replace(turn, due_at_ms=next_ms, drafts=(draft(f"{turn.rule}-{next_ms}"),))
    return Recurrence((draft(name, lane=name),), following if now_ms < 50 else None)


def recurring(recur: Recur = every_ten, *, rule: str = "r") -> Session:
    """A session with one recurring timer, due at 10."""
    session = Session(roster=replace(ROSTER, recur=recur), due_limit=9)
    session.schedule(Timer("t", 10, None, (draft(f"{rule}-10"),), rule), now_ms=0)
    return session


def test_a_timer_recurs_as_its_rule_says() -> None:
    """Each time that it is due its rule is asked what to append and when to go on, until it does not go on."""
    session = recurring()
    wakes: list[int | None] = []
    for now_ms in (9, 10, 11, 20, 39, 40, 50, 60):
        session.claim(now_ms=now_ms, ttl_ms=1_000)
        wakes.append(session.wake_at_ms)
    assert ["r-10", "r-20", "r-30", "r-40", "r-50"] == list(session.entries)
    assert [10, 20, 20, 30, 40, 50, 1_010, 1_010] == wakes
    assert {} == session.timers


def test_a_timer_that_goes_on_is_written_and_not_deleted() -> None:
    """One plan appends what it brings and puts its next turn in its place; one that ends is deleted."""
    session = recurring()
    session.claim(now_ms=10)
    assert (("t",), ()) == (tuple(record.id for record in session.plan.timers), session.plan.delivered)
    session.claim(now_ms=55)
    assert ((), ("t",)) == (session.plan.timers, session.plan.delivered)


def test_a_recurring_timer_brings_what_its_rule_says_and_not_what_it_carries() -> None:
    """A rule may bring several events or none, and may go on all the same."""
    brought = {10: ("a", "b"), 20: (), 30: ("c",)}

    def recur(turn: Timer, now_ms: int) -> Recurrence:
        drafts = tuple(draft(name) for name in brought[now_ms])
        return Recurrence(drafts, replace(turn, due_at_ms=now_ms + 10) if now_ms < 30 else None)

    session = recurring(recur)
    for now_ms in (10, 20, 30):
        assert list(brought[now_ms]) == [new.id for new in session.claim(now_ms=now_ms).appended]


@pytest.mark.parametrize("payload", ["{}", "[]"], ids=["same", "other-content"])
def test_a_turn_that_is_in_the_log_appends_nothing_and_goes_on(payload: str) -> None:
    """An event that came earlier on another way is not written again, whatever its content, and the next turn comes."""
    session = recurring()
    session.append(draft("r-10", lane="x", payload=payload), now_ms=5)
    assert () == session.claim(now_ms=10).appended
    assert 20 == session.wake_at_ms
    assert ["r-20"] == [new.id for new in session.claim(now_ms=20).appended]


def test_a_turn_that_is_due_already_is_left_for_another_pass() -> None:
    """A rule that goes on in the past is followed turn by turn, one in a pass."""
    session = recurring(lambda turn, _: Recurrence(turn.drafts, replace(turn, due_at_ms=turn.due_at_ms + 10)))
    for due_at_ms, following in pairwise((10, 20, 30, 40)):
        answer = session.claim(now_ms=35)
        assert (due_at_ms <= 35, following) == (True, session.timers["t"].due_at_ms)  # type: ignore[union-attr]
        assert (following <= 35) is answer.more
        assert following == session.wake_at_ms


def test_each_recurring_timer_follows_its_own_rule() -> None:
    """Beside others, and beside timers that do not recur, each goes on by the rule that it has."""
    session = recurring()
    session.schedule(Timer("s", 10, None, (draft("s-10"),), "s"), now_ms=0)
    session.schedule(timer("once", 10, "o"), now_ms=0)
    session.claim(now_ms=10)
    session.claim(now_ms=20)
    assert ["o", "s-10", "r-10", "s-20", "r-20"] == list(session.entries)
    assert {"s", "t"} == session.timers.keys()


def test_code_that_reads_no_rules_delivers_what_a_recurring_timer_carries() -> None:
    """Without a reader a rule is nothing: the timer brings its events once, and is gone."""
    session = recurring()
    session.roster = ROSTER
    assert ["r-10"] == [new.id for new in session.claim(now_ms=35).appended]
    assert {} == session.timers


def test_a_pass_writes_what_it_changed() -> None:
    """A pass rewrites the items that it claimed, buried, parked or appended, and no other row."""
    session = lanes("x", "y")
    one, _ = session.claim(now_ms=0, ttl_ms=90_000).items
    session.fail(one, now_ms=0, failure=BOOM)
    session.claim(now_ms=999)
    assert [] == list(session.plan.items)
    session.claim(now_ms=1_000)
    assert [session.items[1]] == list(session.plan.items)


def test_a_session_that_is_handed_over_is_due_now() -> None:
    """G1: who stops working on a session has another one look at it now, at the latest, and changes nothing else."""
    session = lanes("a", "b")
    session.claim(now_ms=0)
    before = session.copy()
    session.run(Needs(), decide_hand_over, 7)
    assert 7 == session.wake_at_ms
    session.wake_at_ms = before.wake_at_ms
    assert before == session
    session.wake_at_ms = 3
    session.run(Needs(), decide_hand_over, 7)
    assert 3 == session.wake_at_ms
