"""Plans: what counts as a write, and the laws that every sequence of plans keeps."""

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from a2core import (
    PARK_MS,
    Appended,
    Cancelled,
    Conflict,
    Delivered,
    Draft,
    Ending,
    EndingKind,
    Needs,
    NotDead,
    Plan,
    Released,
    Renewed,
    RetryPolicy,
    Roster,
    Settled,
    Snapshot,
    Stale,
    Timer,
    TimerConflict,
    Tombstone,
    Wake,
    WakeAt,
    WakeBy,
    WorkItem,
    moved_wake,
)
from tests.core.helpers import STEADY, TTL_MS, WINDOW_MS, Session, draft, entry

POLICY = RetryPolicy(max_failures=3, max_lost=2, backoff=STEADY)
OLDER = Roster({"order": POLICY}, frozenset({"note"}))
NEWER = Roster({"order": POLICY, "newer": POLICY}, frozenset({"note"}))
LANES = ("x", "y", "z")


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(Plan(None, entries=(entry("a"),)), id="entries"),
        pytest.param(Plan(None, items=(WorkItem(entry("a"), "x"),)), id="items"),
        pytest.param(Plan(None, settled=(1,)), id="settled"),
        pytest.param(Plan(None, endings={1: Ending(EndingKind.SKIPPED, "")}), id="endings"),
        pytest.param(Plan(None, expires={1: 2}), id="expires"),
        pytest.param(Plan(None, timers=(Tombstone("t1"),)), id="timers"),
        pytest.param(Plan(None, delivered=("t1",)), id="delivered"),
        pytest.param(Plan(None, wake=WakeBy(0)), id="wake-by"),
        pytest.param(Plan(None, wake=WakeAt(None)), id="wake-never"),
    ],
)
def test_each_part_of_a_plan_is_a_write(plan: Plan[None]) -> None:
    """A plan with any row, deletion, note or wake-up has something to write, a wake-up that is taken away too."""
    assert plan.writes


@pytest.mark.parametrize(
    ("wake", "is_due"),
    [
        (None, False),
        (WakeAt(None), False),
        (WakeAt(10), True),
        (WakeBy(9), True),
        (WakeAt(11), False),
        (WakeBy(11), False),
    ],
)
def test_a_plan_tells_whether_the_session_is_due_at_once(wake: Wake | None, *, is_due: bool) -> None:
    assert is_due is Plan(None, wake=wake).is_due(10)


def test_an_answer_alone_is_no_write() -> None:
    """A plan that only answers leaves the transaction without a write."""
    assert not Plan("answer").writes


def test_an_empty_session_has_an_empty_snapshot() -> None:
    """A decision that needs nothing, and a store that finds nothing, say so by the defaults."""
    assert Needs((), (), (), (), heads=False) == Needs()
    assert Snapshot(0, {}, {}, {}, {}, (), (), None) == Snapshot()


@pytest.mark.parametrize(
    ("before_ms", "wake", "after_ms"),
    [
        pytest.param(None, None, None, id="nothing-stays"),
        pytest.param(7, None, 7, id="nothing-leaves"),
        pytest.param(None, WakeBy(5), 5, id="by-first"),
        pytest.param(7, WakeBy(5), 5, id="by-earlier"),
        pytest.param(5, WakeBy(7), 5, id="by-later"),
        pytest.param(0, WakeBy(7), 0, id="by-later-than-the-epoch"),
        pytest.param(7, WakeBy(0), 0, id="by-the-epoch"),
        pytest.param(None, WakeAt(5), 5, id="at-first"),
        pytest.param(7, WakeAt(5), 5, id="at-earlier"),
        pytest.param(5, WakeAt(7), 7, id="at-later"),
        pytest.param(5, WakeAt(None), None, id="at-never"),
    ],
)
def test_a_plan_moves_the_wake(before_ms: int | None, wake: Wake | None, after_ms: int | None) -> None:
    """`WakeBy` only brings the wake-up forward, `WakeAt` sets it, and a plan without either leaves it."""
    assert after_ms == moved_wake(before_ms, wake)


class Laws(RuleBasedStateMachine):
    """Any commands, by any number of holders of two versions of the code, at any times."""

    def __init__(self) -> None:
        super().__init__()
        self.session = Session(roster=NEWER)
        self.now_ms = 1_000_000
        self.drafts: list[Draft] = []
        self.timers: list[Timer] = []
        self.cancelled: set[str] = set()
        self.attempts: list[WorkItem] = []  # every claim that was ever handed out, by whoever got it
        self.holding: dict[int, int] = {}  # seq to the attempt that may answer
        self.counted: dict[int, int] = {}  # seq to the last attempt
        self.covered: dict[str, int] = {}  # lane to the time until which a holder, or an append, looks after it

    # ── the commands ─────────────────────────────────────────────────────────────────────

    @rule(ms=st.sampled_from([1, 999, 1_000, 5_000, TTL_MS - 1, TTL_MS, PARK_MS]))
    def wait(self, ms: int) -> None:
        self.now_ms += ms

    @precondition(lambda self: self.session.wake_at_ms is not None)
    @rule()
    def wait_for_the_wake(self) -> None:
        self.now_ms = max(self.now_ms, self.session.wake_at_ms or 0)

    def draft(self, lane: str, event_type: str) -> Draft:
        self.drafts.append(draft(f"e{len(self.drafts)}", lane=lane, event_type=event_type))
        return self.drafts[-1]

    def cover(self, lane: str, until_ms: int) -> None:
        self.covered[lane] = max(self.covered.get(lane, 0), until_ms)

    @rule(lane=st.sampled_from(LANES), types=st.lists(st.sampled_from(["order", "note", "newer"]), max_size=3))
    def append(self, lane: str, types: list[str]) -> None:
        batch = [self.draft(lane, event_type) for event_type in types]
        answer = self.session.append(*batch, now_ms=self.now_ms)
        assert isinstance(answer, Appended)
        assert answer.entries == answer.new
        assert [new.id for new in batch] == [new.id for new in answer.new]
        self.cover(lane, self.now_ms + WINDOW_MS)

    @precondition(lambda self: self.session.entries)
    @rule(data=st.data(), same=st.booleans())
    def append_again(self, data: st.DataObject, *, same: bool) -> None:
        known = data.draw(st.sampled_from([each for each in self.drafts if each.id in self.session.entries]))
        before = self.session.copy()
        fresh = replace(known, id="fresh")
        again = known if same else replace(known, payload="[]")
        batch = (again,) if same else (fresh, again)
        answer = self.session.append(*batch, now_ms=self.now_ms)
        assert (Appended if same else Conflict) is type(answer)
        before.wake_at_ms = self.session.wake_at_ms
        assert before == self.session

    @rule(limit=st.integers(1, 3), roster=st.sampled_from([OLDER, NEWER]))
    def claim(self, limit: int, roster: Roster) -> None:
        now = self.now_ms
        for head in self.session.heads():
            if head.entry.type not in roster.handled and not head.is_claimed(now):
                self.holding.pop(head.seq, None)
        self.session.roster = roster
        answer = self.session.claim(now_ms=now, limit=limit)
        copy = self.session.copy()
        again = copy.claim(now_ms=now, limit=limit)
        self.session.roster = NEWER
        for item in answer.items:
            assert item.attempt > self.counted.get(item.seq, 0)
            assert item.lost < POLICY.max_lost
            assert item.ready_at_ms <= now
            self.counted[item.seq] = self.holding[item.seq] = item.attempt
        for item in answer.buried:
            assert POLICY.max_lost == item.lost
            self.holding.pop(item.seq, None)
        self.attempts += answer.items
        assert len(answer.items) <= limit
        assert answer.more is bool(again.items or copy.plan.delivered), "more says that another pass has work"
        assert not again.buried
        for head in self.session.heads():
            assert head.parked_until_ms is None or head.entry.type not in roster.handled
        self.exact_wake()

    def exact_wake(self) -> None:
        """After a pass that saw all heads, the wake is a reason that is there, and none is earlier."""
        reasons: set[int | None] = {None}
        for head in self.session.heads():
            if head.dead is None:
                claims = {head.claim.expires_at_ms} if head.claim is not None else set[int]()
                reasons |= claims or {head.ready_at_ms, head.parked_until_ms}
        reasons |= {timer.due_at_ms for timer in self.session.timers.values() if isinstance(timer, Timer)}
        assert self.session.wake_at_ms in reasons
        self.covered = {}
        self.a_wake_is_on_its_way()
        for item in self.session.items.values():
            if item.claim is not None:
                self.cover(item.lane, item.claim.expires_at_ms)

    @precondition(lambda self: self.attempts)
    @rule(
        data=st.data(),
        outcome=st.sampled_from(["settle", "fail", "snooze", "give_up", "release", "renew"]),
        lanes=st.lists(st.sampled_from(LANES), max_size=2),
    )
    def answer(self, data: st.DataObject, outcome: str, lanes: list[str]) -> None:
        item = data.draw(st.sampled_from(self.attempts[::-1]))
        products = [self.draft(lane, "order") for lane in lanes] if outcome == "settle" else []
        fresh = item.attempt == self.holding.get(item.seq)
        before = self.session.copy()
        stale = self.session_answer(outcome, item, products)
        assert fresh is not stale
        if stale:
            assert not self.session.plan.writes
            assert before == self.session
            return
        if outcome == "renew":
            self.exact_wake()
            return
        del self.holding[item.seq]
        for product in products:
            assert item.entry.id == self.session.entries[product.id].cause
            self.cover(product.lane, self.covered[item.lane])
        assert (outcome == "settle") is (item.seq in self.session.settled)

    def session_answer(self, outcome: str, item: WorkItem, products: list[Draft]) -> bool:
        """Give one answer, and say whether it was refused as stale."""
        session, now = self.session, self.now_ms
        match outcome:
            case "settle":
                answer = session.settle(item, *products, now_ms=now)
                assert isinstance(answer, Settled | Stale)
                return answer == Stale()
            case "fail":
                return session.fail(item, now_ms=now) == Stale()
            case "snooze":
                return session.snooze(item, now_ms=now, delay_ms=2_000) == Stale()
            case "give_up":
                return session.give_up(item, now_ms=now) == Stale()
            case "release":
                return session.release(item, now_ms=now) == Released(frozenset())
            case _:
                return session.renew(item, now_ms=now) == Renewed(frozenset(), frozenset({item.seq}))

    @precondition(lambda self: self.session.entries)
    @rule(data=st.data(), skip=st.booleans())
    def operate(self, data: st.DataObject, *, skip: bool) -> None:
        kept = data.draw(st.sampled_from(sorted(self.session.entries.values(), key=lambda each: each.seq)))
        item = self.session.items.get(kept.seq)
        operation = self.session.resolve if skip else self.session.redrive
        answer = operation(kept.id, now_ms=self.now_ms)
        assert (item is None or item.dead is None) is (answer == NotDead(kept.id))

    @rule(ms=st.sampled_from([0, 1, 40_000]), lane=st.sampled_from(LANES), size=st.integers(1, 2))
    def schedule(self, ms: int, lane: str, size: int) -> None:
        batch = tuple(self.draft(lane, "order") for _ in range(size))
        timer = Timer(f"t{len(self.timers)}", self.now_ms + ms, ms, batch)
        self.timers.append(timer)
        self.session.schedule(timer, now_ms=self.now_ms)

    @precondition(lambda self: self.timers)
    @rule(data=st.data(), action=st.sampled_from(["cancel", "deliver", "schedule", "schedule other"]))
    def change_a_timer(self, data: st.DataObject, action: str) -> None:
        timer = data.draw(st.sampled_from(self.timers))
        delivered = timer.drafts[0].id in self.session.entries
        match action:
            case "cancel":
                answer = self.session.cancel(timer, now_ms=self.now_ms)
                assert (Delivered() if delivered else Cancelled()) == answer
                if not delivered:
                    self.cancelled.add(timer.id)
            case "deliver":
                if self.now_ms >= timer.due_at_ms:
                    brought = self.session.deliver(timer, now_ms=self.now_ms)
                    assert (timer.id in self.cancelled) is (brought == Cancelled())
                    self.cover(timer.drafts[0].lane, self.now_ms + WINDOW_MS)
            case _:
                other = replace(timer, due_at_ms=timer.due_at_ms + 1, delay_ms=None)
                before = self.session.copy()
                again = self.session.schedule(timer if action == "schedule" else other, now_ms=self.now_ms)
                expected = Cancelled if timer.id in self.cancelled else Delivered
                if timer.id not in self.cancelled and timer.id in self.session.timers:
                    assert isinstance(again, TimerConflict) is (action != "schedule")
                else:
                    assert expected() == again
                assert before == self.session

    # ── the laws ─────────────────────────────────────────────────────────────────────────

    @invariant()
    def nothing_is_lost_and_nothing_settles_twice(self) -> None:
        session = self.session
        seqs = [kept.seq for kept in session.entries.values()]
        assert list(range(1, len(seqs) + 1)) == seqs
        work = {kept.seq for kept in session.entries.values() if kept.type != "note"}
        assert len(session.settled) == len({*session.settled})
        assert work == {*session.settled, *session.items}
        assert not {*session.settled} & session.items.keys()

    @invariant()
    def lanes_keep_their_order(self) -> None:
        heads = {head.lane: head.seq for head in self.session.heads()}
        for item in self.session.items.values():
            if item.attempt or item.claim or item.dead or item.parked_until_ms:
                assert heads[item.lane] == item.seq, "what was looked at has nothing open before it in its lane"

    @invariant()
    def claims_are_what_their_holders_know(self) -> None:
        claimed = {item.seq: item.attempt for item in self.session.items.values() if item.claim is not None}
        assert self.holding == claimed
        for item in self.session.items.values():
            assert self.counted.get(item.seq, 0) == item.attempt
            assert item.dead is None or item.claim is None

    @invariant()
    def a_wake_is_on_its_way(self) -> None:
        by = [
            max(head.due_at_ms, self.covered.get(head.lane, 0))
            for head in self.session.heads()
            if head.due_at_ms is not None
        ]
        by += [timer.due_at_ms for timer in self.session.timers.values() if isinstance(timer, Timer)]
        if by:
            assert self.session.wake_at_ms is not None
            assert self.session.wake_at_ms <= max(self.now_ms, min(by))

    @invariant()
    def timers_enter_whole_in_time_or_never(self) -> None:
        entries = self.session.entries
        for timer in self.timers:
            inside = [each.id in entries for each in timer.drafts]
            assert all(inside) or not any(inside)
            if any(inside):
                assert timer.id not in self.cancelled
                assert all(entries[each.id].created_at_ms >= timer.due_at_ms for each in timer.drafts)
            else:
                expected = Tombstone(timer.id) if timer.id in self.cancelled else timer
                assert expected == self.session.timers[timer.id]

    def teardown(self) -> None:
        """Whoever only follows the wakes, one claim at a time, ends with nothing open but dead letters."""
        session = self.session
        for _ in range(10 * len(self.drafts) + 10):
            if session.wake_at_ms is None:
                break
            self.now_ms = max(self.now_ms, session.wake_at_ms)
            for item in session.claim(now_ms=self.now_ms, limit=1).items:
                session.settle(item, now_ms=self.now_ms)
        assert None is session.wake_at_ms
        assert all(head.dead is not None for head in session.heads())
        assert not any(isinstance(record, Timer) for record in session.timers.values())


def test_the_laws_hold_over_any_conversation() -> None:
    """No sequence of commands breaks a lane's order, a fence, a settle's finality, a timer, or the next wake-up."""
    run_state_machine_as_test(Laws, settings=settings(max_examples=150, stateful_step_count=40))
