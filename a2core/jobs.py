"""Jobs: one event to run, now or later, found again by its key, its id, and called off by it."""

from dataclasses import dataclass, replace
from enum import StrEnum

from a2core.dead_letters import redriven
from a2core.plan import Plan, Snapshot, WakeBy
from a2core.records import Draft, Ending, EndingKind, Entry, Roster, Timer, WorkItem


class RunState(StrEnum):
    """Where a run stands."""

    SCHEDULED = "scheduled"
    """It waits for its time."""
    QUEUED = "queued"
    """It waits for its turn."""
    RUNNING = "running"
    RETRYING = "retrying"
    """An attempt ended without success, by whatever cause, and another one follows."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """It is a dead letter."""
    CANCELLED = "cancelled"

    @property
    def is_finished(self) -> bool:
        """Whether nothing follows by itself."""
        return self in {RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED}


@dataclass(frozen=True, slots=True)
class Run:
    """What is known of a run: its open work, its timer while it waits, its log entry once it has one."""

    state: RunState
    entry: Entry | None = None
    item: WorkItem | None = None
    timer: Timer | None = None


@dataclass(frozen=True, slots=True)
class Enqueued:
    """The run of this id is accepted. `new` is false where one with the same key was unfinished: this is that one.

    `due_at_ms` is when to look at the session for it; `seq` that of its event, None while it waits in a timer.
    """

    id: str
    new: bool
    due_at_ms: int
    seq: int | None = None


def decide_enqueue(
    snapshot: Snapshot, now_ms: int, *, draft: Draft, due_at_ms: int, wake_after_ms: int = 0
) -> Plan[Enqueued]:
    """Accept a run, due at `due_at_ms`, unless one with its key is unfinished. Needs the draft's key.

    The session must be looked at `wake_after_ms` after it is due, which is later only where its caller is about to.
    The key alone decides, in the session's transaction: however many enqueue at once, one of them is new.
    """
    unfinished = None if draft.key is None else snapshot.keyed.get(draft.key)
    if unfinished is not None:
        return Plan(Enqueued(unfinished, new=False, due_at_ms=now_ms))
    if due_at_ms > now_ms:
        timer = Timer(draft.id, due_at_ms, None, (draft,))
        return Plan(Enqueued(draft.id, new=True, due_at_ms=due_at_ms), timers=(timer,), wake=WakeBy(due_at_ms))
    item = _opened(snapshot, draft, now_ms)
    answer = Enqueued(draft.id, new=True, due_at_ms=now_ms, seq=item.seq)
    return Plan(answer, entries=(item.entry,), items=(item,), wake=WakeBy(now_ms + wake_after_ms))


def look_at_run(snapshot: Snapshot, now_ms: int, run_id: str) -> Run | None:
    """Where a run stands. Needs its id, as an event's and as a timer's; None where it is unknown or was purged.

    A timer that recurs is not a run: it makes them.
    """
    timer = snapshot.timers.get(run_id)
    if isinstance(timer, Timer) and timer.rule is None:
        return Run(RunState.SCHEDULED, timer=timer)
    entry = snapshot.entries.get(run_id)
    if entry is None:
        return None
    item = snapshot.items.get(entry.seq)
    return Run(_state(entry, item, now_ms), entry, item)


@dataclass(frozen=True, slots=True)
class CalledOff:
    """The run will not run, or not on; a holder learns of it at its next heartbeat. `seq` is that of its event."""

    seq: int


@dataclass(frozen=True, slots=True)
class TooLate:
    """The run is finished, or unknown."""


def decide_call_off(
    snapshot: Snapshot, now_ms: int, *, run_id: str, reason: str, roster: Roster
) -> Plan[CalledOff | TooLate]:
    """Settle an unfinished run as cancelled. Needs its id, as an event's and as a timer's.

    Who holds it is fenced off by that: its answer is stale.
    """
    run = look_at_run(snapshot, now_ms, run_id)
    if run is None or run.state.is_finished:
        return Plan(TooLate())
    ending = Ending(EndingKind.CANCELLED, reason)
    if run.timer is not None:
        [draft] = run.timer.drafts
        entry = _opened(snapshot, draft, now_ms).entry
        return Plan(
            CalledOff(entry.seq),
            entries=(entry,),
            endings={entry.seq: ending},
            expires=roster.expiry(entry.type, now_ms, entry.seq),
            delivered=(run_id,),
        )
    entry = snapshot.entries[run_id]
    return Plan(
        CalledOff(entry.seq),
        settled=(entry.seq,),
        endings={entry.seq: ending},
        expires=roster.expiry(entry.type, now_ms, entry.seq),
        wake=WakeBy(now_ms),
    )


@dataclass(frozen=True, slots=True)
class Triggered:
    """How a triggered run was found: None where it is new, else the state that it was in."""

    before: RunState | None


def decide_trigger(snapshot: Snapshot, now_ms: int, *, draft: Draft, wake_by_ms: int) -> Plan[Triggered]:
    """Have a run with a known id, such as a cron's slot, run now: once, whoever else asks. Needs the draft's id.

    One that waits for a retry is tried now, and a dead letter gets fresh budgets; one that is running, or over, is
    left alone.
    """
    run = look_at_run(snapshot, now_ms, draft.id)
    if run is None:
        item = _opened(snapshot, draft, now_ms)
        return Plan(Triggered(None), entries=(item.entry,), items=(item,), wake=WakeBy(wake_by_ms))
    if run.item is None or run.state is RunState.RUNNING:
        return Plan(Triggered(run.state))
    item = redriven(run.item, now_ms) if run.item.dead is not None else replace(run.item, ready_at_ms=now_ms)
    return Plan(Triggered(run.state), items=(item,), wake=WakeBy(wake_by_ms))


def _opened(snapshot: Snapshot, draft: Draft, now_ms: int) -> WorkItem:
    entry = Entry(draft.id, draft.type, draft.payload, None, now_ms, snapshot.last_seq + 1)
    return WorkItem(entry, draft.lane, ready_at_ms=now_ms, key=draft.key)


def _state(entry: Entry, item: WorkItem | None, now_ms: int) -> RunState:
    if item is None:
        return RunState.SUCCEEDED if entry.ending is None else RunState.CANCELLED
    if item.dead is not None:
        return RunState.FAILED
    if item.is_claimed(now_ms):
        return RunState.RUNNING
    return RunState.QUEUED if item.attempt == 0 else RunState.RETRYING
