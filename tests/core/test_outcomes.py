"""How a holder ends an attempt: settled, tried again, put off or given up, and never by a stale hand."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from a2core import (
    Buried,
    Conflict,
    DeadLetter,
    Draft,
    Ending,
    EndingKind,
    Entry,
    Failure,
    Noted,
    Retrying,
    RetryPolicy,
    Roster,
    Settled,
    Stale,
    WorkItem,
)
from tests.core.helpers import BOOM, ROSTER, STEADY, TTL_MS, Session, draft, entry

Outcome = Callable[[Session, WorkItem, int], object]

OUTCOMES: dict[str, Outcome] = {
    "settle": lambda session, item, now_ms: session.settle(item, draft("produced"), now_ms=now_ms),
    "cancel": lambda session, item, now_ms: session.settle(
        item, now_ms=now_ms, ending=Ending(EndingKind.CANCELLED, "no need")
    ),
    "conflict": lambda session, item, now_ms: session.settle(item, draft("e1", payload="[]"), now_ms=now_ms),
    "fail": lambda session, item, now_ms: session.fail(item, now_ms=now_ms),
    "snooze": lambda session, item, now_ms: session.snooze(item, now_ms=now_ms, delay_ms=5),
    "give-up": lambda session, item, now_ms: session.give_up(item, now_ms=now_ms),
}
NOT_ENDING: dict[str, Outcome] = {
    **OUTCOMES,
    "note": lambda session, item, now_ms: session.note(item, "[1]", now_ms=now_ms),
}
"""What a holder may also do without ending its attempt."""


def running() -> tuple[Session, WorkItem]:
    """A session whose first event, of two in its lane, is claimed."""
    session = Session()
    session.append(draft("e1"), draft("e2"), now_ms=0)
    return session, session.claim_one(now_ms=0)


def taken_over(session: Session) -> None:
    session.claim(now_ms=TTL_MS, holder="h2")


def settled(session: Session) -> None:
    session.settle(session.items[1], now_ms=1)


def failed(session: Session) -> None:
    session.fail(session.items[1], now_ms=1)


def released(session: Session) -> None:
    session.release(session.items[1], now_ms=1)


def buried(session: Session) -> None:
    session.give_up(session.items[1], now_ms=1)


# ── the fence ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("end", [taken_over, settled, failed, released, buried])
@pytest.mark.parametrize("outcome", NOT_ENDING)
def test_a_stale_attempt_writes_nothing(outcome: str, end: Callable[[Session], None]) -> None:
    """Once a claim is another's, or has ended in any way, no answer of its holder changes a row."""
    session, item = running()
    end(session)
    before = session.copy()
    assert Stale() == NOT_ENDING[outcome](session, item, TTL_MS + 1)
    assert not session.plan.writes
    assert before == session


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_an_attempt_answers_once(outcome: str) -> None:
    """After the first answer the same attempt is stale, whatever the two answers are."""
    for second, again in OUTCOMES.items():
        session, item = running()
        assert Stale() != OUTCOMES[outcome](session, item, 1)
        answer = again(session, item, 1)
        # a conflict wrote nothing, so the attempt is still to be answered
        assert (outcome == "conflict") is (Stale() != answer), second


@pytest.mark.parametrize("now_ms", [TTL_MS - 1, TTL_MS, TTL_MS + 1], ids=["B2-before", "B2-at", "B2-after"])
@pytest.mark.parametrize("outcome", NOT_ENDING)
def test_a_late_answer_counts_while_nobody_took_over(outcome: str, now_ms: int) -> None:
    """B2: around the end of its lease an attempt that nobody fenced out may answer, to the millisecond and after."""
    session, item = running()
    assert Stale() != NOT_ENDING[outcome](session, item, now_ms)


# ── settle ───────────────────────────────────────────────────────────────────────────────


def test_a_settle_appends_what_the_handler_produced() -> None:
    """The item goes and its products enter the log, caused by its event, in one plan that leaves the wake."""
    session, item = running()
    first = Entry("p1", "order", "[1]", "e1", 40, 3)
    second = Entry("p2", "note", "{}", "e1", 40, 4)
    answer = session.settle(item, draft("p1", lane="side", payload="[1]"), draft("p2", event_type="note"), now_ms=40)
    assert Settled((first, second)) == answer
    assert (1,) == session.settled
    assert [2, 3] == list(session.items)
    assert WorkItem(first, "side", ready_at_ms=40) == session.items[3]
    assert (first, second) == (session.entries["p1"], session.entries["p2"])
    assert TTL_MS == session.wake_at_ms
    assert None is session.plan.wake


def test_a_settled_event_has_no_ending() -> None:
    """Success is the absence of an ending: the log entry stays as it was appended."""
    session, item = running()
    session.settle(item, now_ms=40)
    assert entry("e1") == session.entries["e1"]
    assert {} == session.plan.endings


def test_a_cancelled_event_says_why() -> None:
    """A handler's cancellation settles its event, notes the reason in the log, and the lane goes on."""
    session, item = running()
    ending = Ending(EndingKind.CANCELLED, "paid already")
    assert Settled(()) == session.settle(item, now_ms=40, ending=ending)
    assert replace(entry("e1"), ending=ending) == session.entries["e1"]
    assert entry("e2", 2) == session.entries["e2"]
    assert 2 == session.claim_one(now_ms=41).seq


def test_a_product_that_is_in_the_log_is_the_same_event() -> None:
    """A handler that ran before its process died produces the same ids again, and they enter the log once."""
    session, item = running()
    session.append(draft("p1"), now_ms=5)
    known = session.entries["p1"]
    produced = Entry("p2", "order", "{}", "e1", 40, 4)
    assert Settled((known, produced)) == session.settle(item, draft("p1"), draft("p2"), now_ms=40)
    assert known == session.entries["p1"]
    assert [2, 3, 4] == list(session.items)


@pytest.mark.parametrize(
    "product", [draft("e2", payload="[]"), draft("e2", event_type="note")], ids=["payload", "type"]
)
def test_a_conflicting_product_settles_nothing(product: Draft) -> None:
    """A product under a known id with other content writes nothing: the event is still held, and can still fail."""
    session, item = running()
    before = session.copy()
    assert Conflict("e2") == session.settle(item, draft("p1"), product, now_ms=40)
    assert not session.plan.writes
    assert before == session
    assert Retrying(1_040) == session.fail(item, now_ms=40)


# ── fail ─────────────────────────────────────────────────────────────────────────────────


def test_failures_wait_longer_until_the_budget_is_spent() -> None:
    """Each failure waits its backoff from now on; the last one buries the event with its error and time."""
    session, item = running()
    assert Retrying(1_007) == session.fail(item, now_ms=7)
    assert WorkItem(entry("e1"), "main", attempt=1, failures=1, ready_at_ms=1_007) == session.items[1]
    assert 1_007 == session.wake_at_ms
    assert Retrying(3_500) == session.fail(session.claim_one(now_ms=1_500), now_ms=1_500)
    assert 3_500 == session.wake_at_ms
    dead = DeadLetter(Failure("KeyError", "'sku'"), 4_000)
    answer = session.fail(session.claim_one(now_ms=3_500), now_ms=4_000, failure=dead.failure)
    assert Buried(dead) == answer
    expected = WorkItem(entry("e1"), "main", attempt=3, failures=3, ready_at_ms=3_500, dead=dead)
    assert expected == session.items[1]
    assert [] == list(session.claim(now_ms=9_000).items)
    assert {} == session.plan.endings


@pytest.mark.parametrize("budget", [1, 2, 4])
def test_a_budget_of_failures_is_exact(budget: int) -> None:
    """`max_failures` answers of failure bury an event, and not one fewer."""
    session = Session(roster=Roster({"order": RetryPolicy(max_failures=budget)}, frozenset()))
    session.append(draft("e1"), now_ms=0)
    now = 0
    for _ in range(budget - 1):
        answer = session.fail(session.claim_one(now_ms=now), now_ms=now)
        assert isinstance(answer, Retrying)
        now = answer.ready_at_ms
    assert Buried(DeadLetter(BOOM, now)) == session.fail(session.claim_one(now_ms=now), now_ms=now)


def test_a_retry_time_is_the_policys_for_this_event() -> None:
    """The wait is the backoff of this failure under this event's id, so that a crowd of retries is spread."""
    session = Session(roster=Roster({"order": RetryPolicy()}, frozenset()))
    session.append(draft("a", lane="x"), draft("b", lane="y"), now_ms=0)
    for item in session.claim(now_ms=0).items:
        wait = RetryPolicy().backoff.delay_ms(1, item.entry.id)
        assert Retrying(10 + wait) == session.fail(item, now_ms=10)
    assert session.items[1].ready_at_ms != session.items[2].ready_at_ms


def test_the_earlier_of_two_retries_is_the_wake() -> None:
    """A failure brings the wake forward to its retry, and never puts an earlier one off."""
    session = Session()
    session.append(draft("a", lane="x"), draft("b", lane="y"), now_ms=0)
    one, two = session.claim(now_ms=0).items
    session.fail(one, now_ms=0)
    session.fail(two, now_ms=500)
    assert 1_000 == session.wake_at_ms


@pytest.mark.parametrize("outcome", ["fail", "snooze", "give-up"])
def test_a_failed_attempt_appends_nothing(outcome: str) -> None:
    """B8: what a handler meant to append goes with its attempt: only a settle writes to the log."""
    session, item = running()
    OUTCOMES[outcome](session, item, 1)
    assert ["e1", "e2"] == list(session.entries)
    assert () == session.settled


def test_a_failure_spends_no_lost_claim() -> None:
    """An answer, however late, is an answer: the claim that it ends is not lost."""
    session, item = running()
    session.fail(item, now_ms=2 * TTL_MS)
    assert (0, 1) == (session.items[1].lost, session.items[1].failures)


# ── snooze ───────────────────────────────────────────────────────────────────────────────


def test_a_snooze_is_no_failure() -> None:
    """A snoozed event is claimable again after its delay, with its budgets as they were, however often."""
    session, item = running()
    session.fail(item, now_ms=0)
    for turn in range(1, 20):
        item = session.claim_one(now_ms=1_000 * turn)
        assert Retrying(1_000 * (turn + 1)) == session.snooze(item, now_ms=1_000 * turn, delay_ms=1_000)
    assert WorkItem(entry("e1"), "main", attempt=20, failures=1, ready_at_ms=20_000) == session.items[1]
    assert 20_000 == session.wake_at_ms


def test_a_snooze_of_nothing_is_due_now() -> None:
    """B8: a delay of zero makes the event claimable at once, by the next pass, with a wake-up for it."""
    session, item = running()
    assert Retrying(50) == session.snooze(item, now_ms=50, delay_ms=0)
    assert 50 == session.wake_at_ms
    assert 1 == session.claim_one(now_ms=50).seq


# ── give up ──────────────────────────────────────────────────────────────────────────────


def test_giving_up_buries_at_once() -> None:
    """A handler that says the event cannot succeed leaves a dead letter now, whatever the budget, and no wake-up."""
    session, item = running()
    dead = DeadLetter(BOOM, 30)
    assert Buried(dead) == session.give_up(item, now_ms=30)
    assert WorkItem(entry("e1"), "main", attempt=1, failures=1, dead=dead) == session.items[1]
    assert None is session.plan.wake


def test_a_budget_that_is_spent_frees_the_lane_where_its_policy_says_so() -> None:
    """A dead letter that goes aside lets the lane go on now, and the wake-up that came with the claim is too late."""
    session, item = held_by(RetryPolicy(max_failures=1, aside=True))
    dead = DeadLetter(BOOM, 30)
    assert Buried(dead) == session.fail(item, now_ms=30)
    assert WorkItem(entry("e1"), "aside:1", attempt=1, failures=1, dead=dead) == session.items[1]
    assert 30 == session.wake_at_ms
    assert 2 == session.claim_one(now_ms=30).seq


# ── notes ────────────────────────────────────────────────────────────────────────────────


def test_a_note_is_kept_with_the_work() -> None:
    """A holder's progress is there for whoever looks and for the next attempt; the last one counts."""
    session, item = running()
    for progress in ("1", '{"done":2}'):
        assert Noted() == session.note(item, progress, now_ms=5)
    assert replace(item, progress='{"done":2}') == session.items[1]
    assert None is session.plan.wake
    session.fail(item, now_ms=6)
    assert '{"done":2}' == session.claim_one(now_ms=1_006).progress


def test_a_note_ends_nothing() -> None:
    """After a note the attempt still has its answer to give."""
    session, item = running()
    session.note(item, "1", now_ms=5)
    assert Settled(()) == session.settle(item, now_ms=6)


# ── how long events are kept ─────────────────────────────────────────────────────────────

KEPT = RetryPolicy(max_failures=2, backoff=STEADY, keep_ms=1_000)


def held_by(policy: RetryPolicy) -> tuple[Session, WorkItem]:
    """As `running`, under this policy."""
    session, item = running()
    session.roster = Roster({**ROSTER.handled, "order": policy, "other": RetryPolicy()}, ROSTER.unhandled)
    return session, item


@pytest.mark.parametrize("ending", [None, Ending(EndingKind.CANCELLED, "no need")], ids=["success", "cancel"])
def test_a_settled_event_expires_with_what_it_produced(ending: Ending | None) -> None:
    """Where events are kept for a while, it begins when they are settled, for the event and its products alike."""
    session, item = held_by(KEPT)
    session.settle(item, draft("p1", event_type="note"), draft("p2", event_type="note"), now_ms=40, ending=ending)
    assert {1: 1_040, 3: 1_040, 4: 1_040} == session.expires


def test_a_product_that_waits_for_its_own_handler_does_not_expire() -> None:
    """Open work is never purged: it is kept for as long as its own policy says, once it is settled itself."""
    session, item = held_by(KEPT)
    products = [draft(f"p-{name}", lane=name, event_type=name) for name in ("note", "order", "other", "newer")]
    session.settle(item, *products, now_ms=40)
    assert {1: 1_040, 3: 1_040} == session.expires
    for each in session.claim(now_ms=50).items:
        session.settle(each, now_ms=60)
    assert {1: 1_040, 3: 1_040, 2: 1_060, 4: 1_060} == session.expires


def test_a_product_that_was_in_the_log_keeps_its_time() -> None:
    """What somebody else appended does not expire because a handler produced it too."""
    session, item = held_by(KEPT)
    session.append(draft("p1", event_type="note"), now_ms=30)
    session.settle(item, draft("p1", event_type="note"), now_ms=40)
    assert {1: 1_040} == session.expires


@pytest.mark.parametrize("outcome", ["conflict", "fail", "snooze", "give-up", "note"])
def test_what_is_not_settled_does_not_expire(outcome: str) -> None:
    """A failed event is kept for good, alive or dead, and so is one that waits."""
    session, item = held_by(KEPT)
    NOT_ENDING[outcome](session, item, 40)
    assert {} == session.expires
    if outcome == "fail":
        session.fail(session.claim_one(now_ms=1_040), now_ms=1_041)
        assert session.items[1].dead is not None
        assert {} == session.expires


def test_an_event_that_is_kept_for_good_does_not_expire() -> None:
    """Without a time in the policy nothing of an event is ever purged."""
    session, item = held_by(RetryPolicy())
    session.settle(item, draft("p1", event_type="note"), now_ms=40)
    assert {} == session.plan.expires


def test_an_event_that_succeeds_after_all_expires_from_then_on() -> None:
    """A dead letter that is redriven is kept by its policy once it is settled."""
    session, item = held_by(KEPT)
    session.give_up(item, now_ms=40)
    session.redrive("e1", now_ms=9_000)
    session.settle(session.claim_one(now_ms=9_000), now_ms=9_500)
    assert {1: 10_500} == session.expires
