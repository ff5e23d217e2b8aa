"""Timers: events that enter the log later, once, and not at all when cancelled in time."""

from dataclasses import replace

import pytest

from a2core import (
    Appended,
    Cancelled,
    Claimed,
    Conflict,
    Delivered,
    Entry,
    Plan,
    Scheduled,
    Snapshot,
    Timer,
    TimerConflict,
    Tombstone,
    WakeBy,
    decide_schedule,
)
from tests.core.helpers import WINDOW_MS, Session, draft

BATCH = (draft("a", payload='{"x":1,"y":2}'), draft("b"))
TURNED = (draft("a", payload='{"y":2,"x":1}'), draft("b"))
IN_A_SECOND = Timer("t1", 1_000, 1_000, BATCH)
AT_A_SECOND = Timer("t1", 1_000, None, BATCH)
OTHERS = {
    "payload": (draft("a"), draft("b")),
    "type": (BATCH[0], draft("b", event_type="note")),
    "fewer": BATCH[:1],
    "more": (*BATCH, draft("c")),
    "order": BATCH[::-1],
    "first-id": (draft("c", payload=BATCH[0].payload), BATCH[1]),
    "last-id": (BATCH[0], draft("c")),
}


# ── schedule ─────────────────────────────────────────────────────────────────────────────


def test_a_timer_is_kept_until_it_is_due() -> None:
    """A schedule writes the timer and its wake-up; nothing enters the log."""
    plan = decide_schedule(Snapshot(), 300, timer=IN_A_SECOND, keep=True)
    assert Plan(Scheduled(IN_A_SECOND), timers=(IN_A_SECOND,), wake=WakeBy(1_000)) == plan


def test_a_timer_that_a_provider_carries_is_not_kept() -> None:
    """Without `keep` the answer is the same, and the store writes nothing."""
    assert Plan(Scheduled(IN_A_SECOND)) == decide_schedule(Snapshot(), 300, timer=IN_A_SECOND, keep=False)


@pytest.mark.parametrize(
    ("now_ms", "wake_at_ms"), [(999, 1_000), (1_000, 1_000), (2_000, 2_000)], ids=["ahead", "now", "B8-past"]
)
def test_a_time_in_the_past_is_due_now(now_ms: int, wake_at_ms: int) -> None:
    """B8: a timer for a time that has passed wakes the session at once, and is delivered then."""
    session = Session()
    session.schedule(AT_A_SECOND, now_ms=now_ms)
    assert wake_at_ms == session.wake_at_ms
    assert ["a", "b"] == [new.id for new in session.claim(now_ms=wake_at_ms).appended]


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "carried"])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(IN_A_SECOND, replace(IN_A_SECOND, due_at_ms=1_700), id="same-delay-later"),
        pytest.param(AT_A_SECOND, AT_A_SECOND, id="same-instant"),
        pytest.param(IN_A_SECOND, AT_A_SECOND, id="delay-then-its-instant"),
        pytest.param(AT_A_SECOND, IN_A_SECOND, id="instant-then-its-delay"),
        pytest.param(IN_A_SECOND, replace(IN_A_SECOND, drafts=TURNED), id="keys-in-another-order"),
    ],
)
def test_the_same_timer_again_is_the_same(first: Timer, second: Timer, keep: bool) -> None:  # noqa: FBT001 - a row
    """A schedule that is repeated with the same timing and batch answers with the timer that is there."""
    session = Session()
    session.schedule(first, now_ms=0)
    before = session.copy()
    assert Scheduled(first) == session.schedule(second, now_ms=700, keep=keep)
    assert not session.plan.writes
    assert before == session


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(IN_A_SECOND, replace(IN_A_SECOND, delay_ms=1_001), id="another-delay"),
        pytest.param(AT_A_SECOND, replace(AT_A_SECOND, due_at_ms=1_001), id="another-instant"),
        pytest.param(IN_A_SECOND, replace(AT_A_SECOND, due_at_ms=1_001), id="delay-then-another-instant"),
        pytest.param(AT_A_SECOND, replace(IN_A_SECOND, due_at_ms=1_001), id="instant-then-another-delay"),
        *(pytest.param(AT_A_SECOND, replace(AT_A_SECOND, drafts=other), id=name) for name, other in OTHERS.items()),
    ],
)
def test_another_timer_needs_another_name(first: Timer, second: Timer) -> None:
    """The same name with another time or batch is a conflict, and the first timer stays."""
    session = Session()
    session.schedule(first, now_ms=0)
    before = session.copy()
    assert TimerConflict("t1") == session.schedule(second, now_ms=0)
    assert not session.plan.writes
    assert before == session


def test_two_names_are_two_timers() -> None:
    """Timers of other names stand side by side; the earlier one is the wake."""
    session = Session()
    session.schedule(AT_A_SECOND, now_ms=0)
    session.schedule(Timer("t2", 2_000, None, (draft("c"),)), now_ms=0)
    assert ["t1", "t2"] == list(session.timers)
    assert 1_000 == session.wake_at_ms


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "carried"])
def test_a_delivered_timer_is_not_scheduled_again(keep: bool) -> None:  # noqa: FBT001 - a row
    """A schedule that is repeated after delivery finds its events in the log, whatever has become of them."""
    session = Session()
    session.schedule(AT_A_SECOND, now_ms=0)
    session.settle(session.claim(now_ms=1_000).items[0], now_ms=1_000)
    before = session.copy()
    for again in (AT_A_SECOND, replace(AT_A_SECOND, drafts=TURNED)):
        assert Delivered() == session.schedule(again, now_ms=5_000, keep=keep)
        assert not session.plan.writes
    assert before == session


@pytest.mark.parametrize("name", [name for name in OTHERS if name not in {"order", "fewer"}])
def test_a_delivered_name_is_taken(name: str) -> None:
    """After delivery, too, another batch needs another name."""
    session = Session()
    session.append(*BATCH, now_ms=0)
    before = session.copy()
    assert TimerConflict("t1") == session.schedule(replace(AT_A_SECOND, drafts=OTHERS[name]), now_ms=0)
    assert not session.plan.writes
    assert before == session


def test_a_slot_is_scheduled_and_run_once() -> None:
    """A8: eight processes that schedule one slot, and one more after its run, make one event."""
    session = Session()
    slot = Timer("cron:report:60000", 60_000, None, (draft("slot-60000"),))
    for _ in range(8):
        assert Scheduled(slot) == session.schedule(slot, now_ms=59_997)
    session.settle(session.claim_one(now_ms=60_000), now_ms=60_001)
    assert Delivered() == session.schedule(slot, now_ms=120_001)
    assert Claimed() == session.claim(now_ms=120_002)
    assert (1, ["slot-60000"]) == (len(session.settled), list(session.entries))


# ── cancel ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("scheduled", [True, False], ids=["scheduled", "never-scheduled"])
def test_a_cancelled_name_stays_cancelled(scheduled: bool) -> None:  # noqa: FBT001 - a row
    """A cancel leaves a tombstone: no claim, schedule or delivery under this name appends anything any more."""
    session = Session()
    if scheduled:
        session.schedule(IN_A_SECOND, now_ms=0)
    assert Cancelled() == session.cancel(IN_A_SECOND, now_ms=999)
    assert {"t1": Tombstone("t1")} == session.timers
    assert Claimed() == session.claim(now_ms=1_000)
    before = session.copy()
    for keep in (True, False):
        assert Cancelled() == session.schedule(IN_A_SECOND, now_ms=1_000, keep=keep)
        assert not session.plan.writes
    assert Cancelled() == session.deliver(IN_A_SECOND, now_ms=1_000)
    assert not session.plan.writes
    assert Cancelled() == session.cancel(IN_A_SECOND, now_ms=1_000)
    assert not session.plan.writes
    assert before == session


def test_a_cancel_ends_one_timer() -> None:
    """Other names are delivered as before."""
    session = Session()
    session.schedule(AT_A_SECOND, now_ms=0)
    session.schedule(Timer("t2", 1_000, None, (draft("c"),)), now_ms=0)
    session.cancel(AT_A_SECOND, now_ms=1)
    assert ["c"] == [new.id for new in session.claim(now_ms=1_000).appended]


@pytest.mark.parametrize("way", ["kept", "carried"])
def test_a_cancel_after_delivery_is_too_late(way: str) -> None:
    """Once its events are in the log a timer cannot be cancelled; the caller learns so, and no tombstone is left."""
    session = Session()
    if way == "kept":
        session.schedule(AT_A_SECOND, now_ms=0)
        session.claim(now_ms=1_000)
    else:
        session.deliver(AT_A_SECOND, now_ms=1_000)
    before = session.copy()
    assert Delivered() == session.cancel(AT_A_SECOND, now_ms=1_001)
    assert not session.plan.writes
    assert before == session


def test_a_cancel_a_millisecond_before_the_claim_is_in_time() -> None:
    """A timer that is due, but that no pass has delivered, can still be cancelled."""
    session = Session()
    session.schedule(AT_A_SECOND, now_ms=0)
    assert Cancelled() == session.cancel(AT_A_SECOND, now_ms=5_000)
    assert Claimed() == session.claim(now_ms=5_001)
    assert {} == session.entries


def test_a_waiting_timer_has_its_key_until_it_is_cancelled() -> None:
    """The key of a timer's event is in use while it waits and while its work is open, and free after a cancel."""
    keyed = Timer("t1", 1_000, None, (draft("a", key="k"),))
    session = Session()
    session.schedule(keyed, now_ms=0)
    assert ["t1"] == session.unfinished("k")
    waiting = session.copy()
    waiting.cancel(keyed, now_ms=1)
    assert [] == waiting.unfinished("k")
    session.claim(now_ms=1_000)
    assert (["a"], {}) == (session.unfinished("k"), session.timers)


def test_a_timer_that_recurs_is_accepted_as_any_other() -> None:
    """A rule moves neither the time at which a timer is due, nor the wake-up, nor what makes two of them the same."""
    recurring = replace(AT_A_SECOND, rule="every second")
    plan = decide_schedule(Snapshot(), 300, timer=recurring, keep=True)
    assert Plan(Scheduled(recurring), timers=(recurring,), wake=WakeBy(1_000)) == plan
    session = Session()
    session.schedule(recurring, now_ms=0)
    assert Scheduled(recurring) == session.schedule(AT_A_SECOND, now_ms=0)
    assert {"t1": recurring} == session.timers


# ── delivery by a provider ───────────────────────────────────────────────────────────────


def test_a_delivery_is_an_append() -> None:
    """What a provider carried is appended as a top-level append would be, with its work and its wake-up."""
    session = Session()
    first = Entry("a", "order", BATCH[0].payload, None, 1_200, 1)
    second = Entry("b", "order", "{}", None, 1_200, 2)
    answer = session.deliver(AT_A_SECOND, now_ms=1_200)
    assert Appended((first, second), (first, second), pending=True) == answer
    assert [1, 2] == list(session.items)
    assert 1_200 + WINDOW_MS == session.wake_at_ms


def test_a_second_delivery_appends_nothing() -> None:
    """Providers deliver more than once: the events are in the log already, and stay as they are."""
    session = Session()
    session.deliver(AT_A_SECOND, now_ms=1_000)
    for item in (1, 2):
        session.settle(session.claim_one(now_ms=1_000 + item), now_ms=1_000 + item)
    before = session.copy()
    kept = tuple(session.entries.values())
    assert Appended(kept, (), pending=False) == session.deliver(AT_A_SECOND, now_ms=9_000)
    assert not session.plan.writes
    assert before == session


def test_a_delivery_of_other_content_is_a_conflict() -> None:
    """A delivery whose ids are in the log with other content writes nothing."""
    session = Session()
    session.append(draft("b", payload="[]"), now_ms=0)
    before = session.copy()
    assert Conflict("b") == session.deliver(AT_A_SECOND, now_ms=1_000)
    assert before == session


def test_a_timer_that_came_both_ways_enters_once() -> None:
    """A provider's delivery before the kept timer is due leaves nothing for the timer to append."""
    session = Session()
    session.schedule(AT_A_SECOND, now_ms=0)
    session.deliver(AT_A_SECOND, now_ms=900)
    answer = session.claim(now_ms=1_000)
    assert [] == list(answer.appended)
    assert [1] == [item.seq for item in answer.items]
    assert {} == session.timers
    assert ["a", "b"] == list(session.entries)
