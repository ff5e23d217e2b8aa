"""Runs: one per key while it is unfinished, where each stands, and how it is called off or made to run now."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from a2core import (
    CalledOff,
    Claimed,
    Ending,
    EndingKind,
    Enqueued,
    Entry,
    Needs,
    Plan,
    Released,
    Renewed,
    RetryPolicy,
    Roster,
    Run,
    RunState,
    Snapshot,
    Stale,
    Timer,
    TooLate,
    Triggered,
    WakeBy,
    WorkItem,
    decide_enqueue,
)
from tests.core.helpers import STEADY, TTL_MS, WINDOW_MS, Session, draft, entry

KEEP_MS = 86_400_000
POLICY = RetryPolicy(max_failures=3, max_lost=2, backoff=STEADY, aside=True, keep_ms=KEEP_MS)
ROSTER = Roster({"order": POLICY}, frozenset({"note"}))
LATER_MS = 5_000
NOW_MS = 200_000
"""After all that leads to a state, and after the time of a run that waits for it."""

R1 = draft("r1", key="k")
R2 = draft("r2", key="k")
NO_USE = Ending(EndingKind.CANCELLED, "no use")


# ── the states that a run can be in ──────────────────────────────────────────────────────


def scheduled(session: Session) -> None:
    session.enqueue(R1, now_ms=0, due_at_ms=NOW_MS + LATER_MS)


def due(session: Session) -> None:
    session.enqueue(R1, now_ms=0, due_at_ms=LATER_MS)


def queued(session: Session) -> None:
    session.enqueue(R1, now_ms=0)


def arrived(session: Session) -> None:
    """Its timer was delivered while its lane was busy."""
    session.append(draft("before"), now_ms=0)
    due(session)
    session.claim(now_ms=LATER_MS, ttl_ms=NOW_MS)


def parked(session: Session) -> None:
    queued(session)
    session.roster = Roster({}, frozenset())
    session.claim(now_ms=NOW_MS - 1)
    session.roster = ROSTER


def running(session: Session) -> None:
    queued(session)
    session.claim_one(now_ms=NOW_MS - 1)


def lost(session: Session) -> None:
    queued(session)
    session.claim_one(now_ms=NOW_MS - TTL_MS)


def failed_once(session: Session) -> None:
    queued(session)
    session.fail(session.claim_one(now_ms=NOW_MS - 1), now_ms=NOW_MS - 1)


def snoozed(session: Session) -> None:
    queued(session)
    session.snooze(session.claim_one(now_ms=NOW_MS - 1), now_ms=NOW_MS - 1, delay_ms=LATER_MS)


def released(session: Session) -> None:
    queued(session)
    session.release(session.claim_one(now_ms=NOW_MS - 1), now_ms=NOW_MS - 1)


def redriven(session: Session) -> None:
    given_up(session)
    session.redrive("r1", now_ms=NOW_MS - 1)


def succeeded(session: Session) -> None:
    queued(session)
    session.settle(session.claim_one(now_ms=1), now_ms=2)


def cancelled(session: Session) -> None:
    queued(session)
    session.settle(session.claim_one(now_ms=1), now_ms=2, ending=NO_USE)


def called_off(session: Session) -> None:
    queued(session)
    session.call_off("r1", now_ms=2)


def called_off_early(session: Session) -> None:
    due(session)
    session.call_off("r1", now_ms=2)


def given_up(session: Session) -> None:
    queued(session)
    session.give_up(session.claim_one(now_ms=1), now_ms=2)


def spent(session: Session) -> None:
    queued(session)
    for turn in range(3):
        session.fail(session.claim_one(now_ms=turn * LATER_MS), now_ms=turn * LATER_MS)


def lost_too_often(session: Session) -> None:
    queued(session)
    for turn in range(3):
        session.claim(now_ms=turn * TTL_MS)


def skipped(session: Session) -> None:
    given_up(session)
    session.resolve("r1", now_ms=3)


Lead = Callable[[Session], None]

STATES: dict[Lead, RunState] = {
    scheduled: RunState.SCHEDULED,
    due: RunState.SCHEDULED,
    queued: RunState.QUEUED,
    arrived: RunState.QUEUED,
    parked: RunState.QUEUED,
    running: RunState.RUNNING,
    lost: RunState.RETRYING,
    failed_once: RunState.RETRYING,
    snoozed: RunState.RETRYING,
    released: RunState.RETRYING,
    redriven: RunState.RETRYING,
    succeeded: RunState.SUCCEEDED,
    cancelled: RunState.CANCELLED,
    called_off: RunState.CANCELLED,
    called_off_early: RunState.CANCELLED,
    skipped: RunState.CANCELLED,
    given_up: RunState.FAILED,
    spent: RunState.FAILED,
    lost_too_often: RunState.FAILED,
}
UNFINISHED = [lead for lead, state in STATES.items() if not state.is_finished]
FINISHED = [lead for lead, state in STATES.items() if state.is_finished]
OVER = {RunState.SUCCEEDED, RunState.CANCELLED}


def led(lead: Lead) -> Session:
    session = Session(roster=ROSTER)
    lead(session)
    return session


def name(lead: Lead) -> str:
    return lead.__name__


def test_three_states_are_finished() -> None:
    """Nothing follows by itself where a run succeeded, failed or was cancelled, and something does in all others."""
    finished = {RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED}
    assert finished == {state for state in RunState if state.is_finished}


def test_each_state_can_be_come_to() -> None:
    """The table of states leaves none out."""
    assert {*RunState} == {*STATES.values()}


# ── enqueue ──────────────────────────────────────────────────────────────────────────────


def test_a_run_that_is_due_is_open_work() -> None:
    """It enters the log and waits for its turn, found by its key, and the session is looked at now."""
    plan = decide_enqueue(Snapshot(last_seq=4), 70, draft=draft("r", lane="x", payload="[1]", key="k"), due_at_ms=70)
    kept = Entry("r", "order", "[1]", None, 70, 5)
    work = WorkItem(kept, "x", ready_at_ms=70, key="k")
    answer = Enqueued("r", new=True, due_at_ms=70, seq=5)
    assert Plan(answer, entries=(kept,), items=(work,), wake=WakeBy(70)) == plan


@pytest.mark.parametrize("due_at_ms", [-1, 0, 69, 70], ids=["before-the-epoch", "epoch", "past", "now"])
def test_a_time_that_has_come_is_now(due_at_ms: int) -> None:
    """A run for now or for a time in the past waits for nothing, and is looked for now."""
    session = Session(roster=ROSTER)
    assert Enqueued("r1", new=True, due_at_ms=70, seq=1) == session.enqueue(R1, now_ms=70, due_at_ms=due_at_ms)
    assert 70 == session.wake_at_ms
    assert "r1" == session.claim_one(now_ms=70).entry.id


def test_a_run_for_later_waits_in_a_timer() -> None:
    """From a millisecond ahead on nothing enters the log before its time, and then the run is as it was asked for."""
    session = Session(roster=ROSTER)
    assert Enqueued("r1", new=True, due_at_ms=71) == session.enqueue(R1, now_ms=70, due_at_ms=71)
    assert {"r1": Timer("r1", 71, None, (R1,))} == session.timers
    assert ({}, {}, 71) == (session.entries, session.items, session.wake_at_ms)
    assert Claimed(next_timer_at_ms=71) == session.claim(now_ms=70)
    item = session.claim_one(now_ms=71)
    assert ("r1", "main", "k") == (item.entry.id, item.lane, item.key)
    assert {} == session.timers


@pytest.mark.parametrize("due_at_ms", [NOW_MS, NOW_MS + 1], ids=["now", "later"])
@pytest.mark.parametrize("lead", [lead for lead in UNFINISHED if lead is not redriven], ids=name)
def test_an_unfinished_run_has_its_key_alone(lead: Lead, due_at_ms: int) -> None:
    """However far a run has come, one with its key is that run: the caller gets its id, and nothing is written."""
    session = led(lead)
    before = session.copy()
    assert Enqueued("r1", new=False, due_at_ms=NOW_MS) == session.enqueue(R2, now_ms=NOW_MS, due_at_ms=due_at_ms)
    assert not session.plan.writes
    assert before == session


@pytest.mark.parametrize("due_at_ms", [NOW_MS, NOW_MS + 1], ids=["now", "later"])
@pytest.mark.parametrize("lead", FINISHED, ids=name)
def test_a_finished_runs_key_is_free(lead: Lead, due_at_ms: int) -> None:
    """Once a run succeeded, was called off, or is a dead letter, the next one with its key is new."""
    session = led(lead)
    assert session.enqueue(R2, now_ms=NOW_MS, due_at_ms=due_at_ms).new
    assert ["r2"] == session.unfinished("k")


def test_a_run_that_was_given_up_has_no_key_any_more() -> None:
    """The key was free, so another may have it: who is redriven runs beside that one."""
    session = led(redriven)
    assert session.enqueue(R2, now_ms=NOW_MS, due_at_ms=NOW_MS).new
    assert ["r2"] == session.unfinished("k")


def test_of_many_that_enqueue_at_once_one_is_new() -> None:
    """Fifty callers with one key get one run's id, wherever they come before, between and after its steps."""
    session = Session(roster=ROSTER)
    answers = [session.enqueue(draft(f"r{turn}", key="k"), now_ms=0, due_at_ms=1) for turn in range(25)]
    item = session.claim_one(now_ms=1)
    answers += [session.enqueue(draft(f"r{turn}", key="k"), now_ms=1) for turn in range(25, 50)]
    assert [True] + 49 * [False] == [answer.new for answer in answers]
    assert {"r0"} == {answer.id for answer in answers}
    session.settle(item, now_ms=2)
    assert ["r0"] == list(session.entries)


def test_each_key_has_its_own_run() -> None:
    """A run with another key, or with none, is new whatever else is unfinished, twice as often too."""
    session = Session(roster=ROSTER)
    keys = ("k", "K", "", None, None)
    answers = [session.enqueue(draft(f"r{turn}", key=key), now_ms=0) for turn, key in enumerate(keys)]
    assert len(keys) * [True] == [answer.new for answer in answers]
    assert ["r2"] == session.unfinished("")


# ── where a run stands ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("lead", STATES, ids=name)
def test_a_run_is_where_it_stands(lead: Lead) -> None:
    """A look finds the state, and beside it the timer that waits, or the log entry with its open work."""
    session = led(lead)
    before = session.copy()
    run = session.look("r1", now_ms=NOW_MS)
    kept, timer = session.entries.get("r1"), session.timers.get("r1")
    assert timer is None or isinstance(timer, Timer)
    item = None if kept is None else session.items.get(kept.seq)
    assert Run(STATES[lead], kept, item, timer) == run
    assert STATES[lead].is_finished is (timer is None and (item is None or item.dead is not None))
    assert before == session


@pytest.mark.parametrize("now_ms", [TTL_MS - 1, TTL_MS], ids=["before", "at"])
def test_a_run_runs_until_its_claim_ends(now_ms: int) -> None:
    """From the end of its claim on a run is one that was lost, and will be tried again."""
    session = led(queued)
    session.claim_one(now_ms=0)
    run = session.look("r1", now_ms=now_ms)
    assert run is not None
    assert (RunState.RUNNING if now_ms < TTL_MS else RunState.RETRYING) is run.state


@pytest.mark.parametrize("run_id", ["r0", "k", "R1", ""])
def test_a_run_that_was_never_enqueued_is_unknown(run_id: str) -> None:
    """A look by another id finds nothing."""
    assert None is led(queued).look(run_id, now_ms=NOW_MS)


def test_a_timer_that_recurs_is_no_run() -> None:
    """What makes runs cannot be looked at as one, nor be called off as one, so its schedule goes on."""
    session = Session(roster=ROSTER)
    session.timers["cron"] = Timer("cron", 60_000, None, (draft("slot-60000"),), "a rule")
    before = session.copy()
    assert None is session.look("cron", now_ms=0)
    assert TooLate() == session.call_off("cron", now_ms=0)
    assert before == session


# ── calling off ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("lead", UNFINISHED, ids=name)
def test_an_unfinished_run_is_called_off(lead: Lead) -> None:
    """Wherever it stands, it will not run, or not on: its log entry says why, and is kept for as long as others."""
    session = led(lead)
    answer = session.call_off("r1", "no use", now_ms=NOW_MS)
    kept = session.entries["r1"]
    assert CalledOff(kept.seq) == answer
    assert NO_USE == kept.ending
    assert Run(RunState.CANCELLED, kept) == session.look("r1", now_ms=NOW_MS)
    assert {kept.seq: NOW_MS + KEEP_MS} == session.expires
    assert [] == session.unfinished("k")
    assert {} == session.timers
    for now_ms in (NOW_MS, NOW_MS + LATER_MS, NOW_MS + 20 * TTL_MS):
        assert "r1" not in {item.entry.id for item in session.claim(now_ms=now_ms).items}


@pytest.mark.parametrize("lead", FINISHED, ids=name)
def test_a_finished_run_is_called_off_too_late(lead: Lead) -> None:
    """What it ended as stays, and nothing is written."""
    session = led(lead)
    before = session.copy()
    assert TooLate() == session.call_off("r1", now_ms=NOW_MS)
    assert not session.plan.writes
    assert before == session


def test_an_unknown_run_is_called_off_too_late() -> None:
    """A run that was never there, or that a purge removed, is answered as a finished one."""
    session = led(queued)
    before = session.copy()
    assert TooLate() == session.call_off("r0", now_ms=NOW_MS)
    assert before == session


def test_a_run_is_called_off_once() -> None:
    """The second caller learns that it was too late, and the first one's reason stays."""
    session = led(running)
    session.call_off("r1", "no use", now_ms=NOW_MS)
    assert TooLate() == session.call_off("r1", "no reason", now_ms=NOW_MS)
    assert NO_USE == session.entries["r1"].ending


def test_a_run_of_an_unknown_type_is_called_off_for_good() -> None:
    """Code that does not know how long the type is kept settles the run, and has its entry stay."""
    session = led(queued)
    session.roster = Roster({}, frozenset())
    assert CalledOff(1) == session.call_off("r1", now_ms=NOW_MS)
    assert {} == session.expires
    assert {} == session.items


ANSWERS: dict[str, tuple[object, Callable[[Session, WorkItem], object]]] = {
    "settle": (Stale(), lambda session, item: session.settle(item, draft("late"), now_ms=NOW_MS)),
    "cancel": (Stale(), lambda session, item: session.settle(item, now_ms=NOW_MS, ending=NO_USE)),
    "fail": (Stale(), lambda session, item: session.fail(item, now_ms=NOW_MS)),
    "snooze": (Stale(), lambda session, item: session.snooze(item, now_ms=NOW_MS, delay_ms=1)),
    "give-up": (Stale(), lambda session, item: session.give_up(item, now_ms=NOW_MS)),
    "note": (Stale(), lambda session, item: session.note(item, "1", now_ms=NOW_MS)),
    "renew": (Renewed(frozenset(), frozenset({1})), lambda session, item: session.renew(item, now_ms=NOW_MS)),
    "release": (Released(frozenset()), lambda session, item: session.release(item, now_ms=NOW_MS)),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_the_holder_of_a_run_that_was_called_off_writes_nothing(answer: str) -> None:
    """Whatever it does next, it learns that the run is not its own any more, even once the key is another's."""
    session = led(running)
    item = session.items[1]
    session.call_off("r1", now_ms=NOW_MS)
    session.enqueue(R2, now_ms=NOW_MS)
    session.claim_one(now_ms=NOW_MS)
    before = session.copy()
    expected, act = ANSWERS[answer]
    assert expected == act(session, item)
    assert not session.plan.writes
    assert before == session


def test_what_follows_in_the_lane_goes_on_at_once() -> None:
    """A run that is called off while it runs frees its lane now, and the session is looked at for that."""
    session = led(running)
    session.enqueue(draft("r2"), now_ms=NOW_MS)
    session.claim(now_ms=NOW_MS)
    assert NOW_MS - 1 + TTL_MS == session.wake_at_ms
    session.call_off("r1", now_ms=NOW_MS)
    assert NOW_MS == session.wake_at_ms
    assert "r2" == session.claim_one(now_ms=NOW_MS).entry.id


# ── triggers ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("lead", STATES, ids=name)
def test_a_trigger_has_a_run_run_now(lead: Lead) -> None:
    """One that waits for its turn or its retry, or is dead, can be claimed now; one that runs or is over is left."""
    session = led(lead)
    before = session.copy()
    assert Triggered(STATES[lead]) == session.trigger(R1, now_ms=NOW_MS)
    if STATES[lead] in {RunState.SCHEDULED, RunState.RUNNING} | OVER:
        assert not session.plan.writes
        assert before == session
        return
    item = session.items[session.entries["r1"].seq]
    assert (NOW_MS, None) == (item.ready_at_ms, item.dead)
    assert session.wake_at_ms is not None
    assert session.wake_at_ms <= NOW_MS + WINDOW_MS
    if lead is not arrived:
        assert "r1" == session.claim_one(now_ms=NOW_MS).entry.id


def test_a_run_that_is_not_there_is_made_by_its_trigger() -> None:
    """It enters the log once, as open work, and is looked at by the time that the trigger gives."""
    session = Session(roster=ROSTER)
    assert Triggered(None) == session.trigger(R1, now_ms=NOW_MS)
    kept = replace(entry("r1"), created_at_ms=NOW_MS)
    assert {1: WorkItem(kept, "main", ready_at_ms=NOW_MS, key="k")} == session.items
    assert NOW_MS + WINDOW_MS == session.wake_at_ms
    assert Triggered(RunState.QUEUED) == session.trigger(R1, now_ms=NOW_MS)
    assert ["r1"] == list(session.entries)


def test_a_dead_letter_gets_fresh_budgets_from_a_trigger() -> None:
    """It may fail as often as a new run before it is dead again."""
    session = led(spent)
    session.trigger(R1, now_ms=NOW_MS)
    item = session.claim_one(now_ms=NOW_MS)
    assert (0, 0) == (item.failures, item.lost)


# ── any order of all of it ───────────────────────────────────────────────────────────────


@dataclass(slots=True)
class Told:
    """What a run was last known to be, by what was answered alone."""

    key: str | None
    due_at_ms: int
    over: RunState | None = None
    """What it ended as."""


TELLING = Roster({"order": replace(POLICY, on_dead="lament"), "lament": RetryPolicy()}, ROSTER.unhandled)


class Runs(RuleBasedStateMachine):
    """Callers who enqueue, call off and skip, beside holders who answer early, late and twice."""

    def __init__(self) -> None:
        super().__init__()
        self.session = Session(roster=TELLING)
        self.burials = 0
        self.now_ms = 1_000_000
        self.told: dict[str, Told] = {}
        self.claims: list[WorkItem] = []

    @rule(ms=st.sampled_from([1, 999, 1_000, LATER_MS, TTL_MS]))
    def wait(self, ms: int) -> None:
        self.now_ms += ms

    @rule(key=st.sampled_from(["k", "l", None]), delay_ms=st.sampled_from([-1, 0, 1, LATER_MS]))
    def enqueue(self, key: str | None, delay_ms: int) -> None:
        unfinished = [id_ for id_, run in self.told.items() if run.over is None and key is not None and run.key == key]
        new = draft(f"r{len(self.told)}", key=key, lane=str(len(self.told) % 2))
        answer = self.session.enqueue(new, now_ms=self.now_ms, due_at_ms=self.now_ms + delay_ms)
        assert (unfinished or [new.id]) == [answer.id]
        assert (not unfinished) is answer.new
        if answer.new:
            self.told[new.id] = Told(key, self.now_ms + max(0, delay_ms))

    @rule(limit=st.integers(1, 3))
    def claim(self, limit: int) -> None:
        answer = self.session.claim(now_ms=self.now_ms, limit=limit)
        for item in answer.items:
            if item.entry.type == "lament":
                self.session.settle(item, now_ms=self.now_ms)
                continue
            assert None is self.told[item.entry.id].over, "no run that is over is claimed"
            assert self.told[item.entry.id].due_at_ms <= self.now_ms
            self.claims.append(item)
        for item in answer.buried:
            self.buried(item)

    def buried(self, item: WorkItem) -> None:
        self.told[item.entry.id].over = RunState.FAILED
        self.burials += 1

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), outcome=st.sampled_from(["settle", "cancel", "fail", "give-up", "note"]))
    def answer(self, data: st.DataObject, outcome: str) -> None:
        item = data.draw(st.sampled_from(self.claims[::-1]))
        run = self.told[item.entry.id]
        before = self.session.copy()
        match outcome:
            case "settle":
                answer: object = self.session.settle(item, now_ms=self.now_ms)
            case "cancel":
                answer = self.session.settle(item, now_ms=self.now_ms, ending=NO_USE)
            case "fail":
                answer = self.session.fail(item, now_ms=self.now_ms)
            case "give-up":
                answer = self.session.give_up(item, now_ms=self.now_ms)
            case _:
                answer = self.session.note(item, str(self.now_ms), now_ms=self.now_ms)
        if answer == Stale():
            assert before == self.session
            return
        assert None is run.over, "a run that is over hears no answer"
        kept = self.session.items.get(item.seq)
        if kept is None:
            run.over = RunState.SUCCEEDED if outcome == "settle" else RunState.CANCELLED
        elif kept.dead is not None:
            self.buried(kept)

    @precondition(lambda self: self.told)
    @rule(data=st.data(), skip=st.booleans())
    def operate(self, data: st.DataObject, *, skip: bool) -> None:
        id_ = data.draw(st.sampled_from(list(self.told)))
        run = self.told[id_]
        if skip:
            self.session.resolve(id_, now_ms=self.now_ms)
            run.over = RunState.CANCELLED if run.over is RunState.FAILED else run.over
            return
        answer = self.session.call_off(id_, now_ms=self.now_ms)
        assert (run.over is None) is isinstance(answer, CalledOff)
        run.over = run.over or RunState.CANCELLED

    @invariant()
    def each_run_is_where_it_was_told_to_be(self) -> None:
        for id_, run in self.told.items():
            look = self.session.look(id_, now_ms=self.now_ms)
            assert look is not None
            assert run.over == (look.state if look.state.is_finished else None)

    @invariant()
    def a_key_has_one_unfinished_run(self) -> None:
        for key in ("k", "l"):
            assert len(self.session.unfinished(key)) <= 1

    @invariant()
    def what_succeeded_or_was_cancelled_expires(self) -> None:
        runs = [kept for kept in self.session.entries.values() if kept.type == "order"]
        over = {kept.seq for kept in runs if self.told[kept.id].over in OVER}
        assert over == self.session.expires.keys()

    @invariant()
    def each_burial_is_told_once(self) -> None:
        assert self.burials == sum(kept.type == "lament" for kept in self.session.entries.values())

    def teardown(self) -> None:
        """Whoever only follows the wakes ends with no unfinished run."""
        for _ in range(5 * len(self.told) + 5):
            if self.session.wake_at_ms is None:
                break
            self.now_ms = max(self.now_ms, self.session.wake_at_ms)
            for item in self.session.claim(now_ms=self.now_ms, limit=1).items:
                self.session.settle(item, now_ms=self.now_ms)
        assert None is self.session.wake_at_ms
        looks = [self.session.look(id_, now_ms=self.now_ms) for id_ in self.told]
        assert all(look is not None and look.state.is_finished for look in looks)


def test_the_laws_of_runs_hold_over_any_conversation() -> None:
    """In any order of calls and answers each run ends once, as its last answer said, and keys never meet."""
    run_state_machine_as_test(Runs, settings=settings(max_examples=100, stateful_step_count=40))


@pytest.mark.parametrize("wake_after_ms", [0, 5_000])
def test_a_run_that_is_due_is_looked_at_when_its_caller_says(wake_after_ms: int) -> None:
    """At once by whoever takes wake-ups; later where the caller starts it itself, and may die before that."""
    session = Session(roster=ROSTER)
    session.run(Needs(), decide_enqueue, NOW_MS, draft=draft("r1"), due_at_ms=NOW_MS, wake_after_ms=wake_after_ms)
    assert NOW_MS + wake_after_ms == session.wake_at_ms
