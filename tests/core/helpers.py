"""One session in a few dicts: it loads what a decision needs, applies the plan, and decides nothing."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Concatenate, ParamSpec, TypeVar

from a2core import (
    RECURRENCE_ID,
    Appended,
    Backoff,
    Buried,
    CalledOff,
    Cancelled,
    Claimed,
    Conflict,
    Delivered,
    Draft,
    Ending,
    Enqueued,
    Entry,
    Failure,
    Needs,
    NotDead,
    Noted,
    Plan,
    ReadRule,
    Redriven,
    Registered,
    Released,
    Renewed,
    Resolved,
    Retrying,
    RetryPolicy,
    Roster,
    Run,
    ScheduleAnswer,
    Settled,
    Snapshot,
    Stale,
    Timer,
    TimerRecord,
    TooLate,
    Triggered,
    WorkItem,
    decide_append,
    decide_call_off,
    decide_cancel,
    decide_claim,
    decide_delivery,
    decide_enqueue,
    decide_fail,
    decide_give_up,
    decide_note,
    decide_redrive,
    decide_register,
    decide_release,
    decide_renew,
    decide_resolve,
    decide_schedule,
    decide_settle,
    decide_slot,
    decide_snooze,
    decide_trigger,
    look_at_run,
    moved_wake,
    slot_event_id,
)

Answer = TypeVar("Answer")
Args = ParamSpec("Args")

TTL_MS = 30_000
WINDOW_MS = 35_000
BOOM = Failure("ValueError", "boom")
STEADY = Backoff(base_ms=1_000, jitter_percent=0)
ROSTER = Roster({"order": RetryPolicy(max_failures=3, max_lost=3, backoff=STEADY)}, frozenset({"note"}))


def draft(
    event_id: str, *, lane: str = "main", event_type: str = "order", payload: str = "{}", key: str | None = None
) -> Draft:
    return Draft(event_id, event_type, payload, lane, key)


def entry(event_id: str, seq: int = 1, *, event_type: str = "order", payload: str = "{}") -> Entry:
    return Entry(event_id, event_type, payload, None, 0, seq)


def held(*items: WorkItem) -> Mapping[int, int]:
    return {item.seq: item.attempt for item in items}


@dataclass(slots=True)
class Session:
    """The rows of one session. A command loads a snapshot, decides, applies the plan, and answers."""

    entries: dict[str, Entry] = field(default_factory=dict)
    items: dict[int, WorkItem] = field(default_factory=dict)
    timers: dict[str, TimerRecord] = field(default_factory=dict)
    expires: dict[int, int] = field(default_factory=dict)
    settled: tuple[int, ...] = ()
    wake_at_ms: int | None = None
    roster: Roster = ROSTER
    due_limit: int = 2
    plan: Plan[object] = field(default=Plan(None), compare=False, repr=False)

    def copy(self) -> "Session":
        return replace(
            self,
            entries=dict(self.entries),
            items=dict(self.items),
            timers=dict(self.timers),
            expires=dict(self.expires),
        )

    def heads(self) -> tuple[WorkItem, ...]:
        lanes: dict[str, WorkItem] = {}
        for seq in sorted(self.items):
            lanes.setdefault(self.items[seq].lane, self.items[seq])
        return tuple(lanes.values())

    def unfinished(self, key: str) -> list[str]:
        """The open events and the waiting timers that have this key."""
        work = [item.entry.id for item in self.items.values() if item.key == key and item.dead is None]
        return work + [timer.id for timer in self.timers.values() if isinstance(timer, Timer) and timer.key == key]

    def behind(self, seq: int | None) -> WorkItem | None:
        """The next open item in the lane of this one."""
        if seq not in self.items:
            return None
        lane = self.items[seq].lane
        return next((self.items[n] for n in sorted(self.items) if n > seq and self.items[n].lane == lane), None)

    def load(self, needs: Needs, now_ms: int) -> Snapshot:
        waiting = sorted(
            (record for record in self.timers.values() if isinstance(record, Timer)),
            key=lambda timer: timer.due_at_ms,
        )
        due = tuple(timer for timer in waiting if timer.due_at_ms <= now_ms)[: self.due_limit]
        later = [timer.due_at_ms for timer in waiting if timer not in due]
        ids = {*needs.ids, *(draft.id for timer in due for draft in timer.drafts if needs.heads)}
        entries = {event_id: self.entries[event_id] for event_id in ids & self.entries.keys()}
        seqs = {*needs.seqs, *(entries[event_id].seq for event_id in entries.keys() & {*needs.ids})}
        return Snapshot(
            last_seq=len(self.entries),
            entries=entries,
            items={seq: self.items[seq] for seq in seqs & self.items.keys()},
            timers={timer_id: self.timers[timer_id] for timer_id in {*needs.timers} & self.timers.keys()},
            keyed={key: id_ for key in needs.keys for id_ in self.unfinished(key)},
            heads=tuple(reversed(self.heads())) if needs.heads else (),
            due_timers=tuple(reversed(due)) if needs.heads else (),
            next_timer_at_ms=min(later, default=None) if needs.heads else None,
            behind=self.behind(needs.behind),
        )

    def apply(self, plan: Plan[Answer]) -> Answer:
        self.plan = plan
        for new in plan.entries:
            assert len(self.entries) + 1 == new.seq
            assert new.id not in self.entries
            self.entries[new.id] = new
        self.items |= {item.seq: item for item in plan.items}
        for seq in plan.settled:
            del self.items[seq]
            self.settled += (seq,)
        by_seq = {old.seq: old for old in self.entries.values()}
        for seq, ending in plan.endings.items():
            self.entries[by_seq[seq].id] = replace(by_seq[seq], ending=ending)
        self.expires |= plan.expires
        assert plan.expires.keys() <= by_seq.keys() - self.items.keys(), "no open work expires"
        self.timers |= {record.id: record for record in plan.timers}
        for timer_id in plan.delivered:
            del self.timers[timer_id]
        self.wake_at_ms = moved_wake(self.wake_at_ms, plan.wake)
        return plan.answer

    def run(
        self,
        needs: Needs,
        decide: Callable[Concatenate[Snapshot, int, Args], Plan[Answer]],
        now_ms: int,
        *args: Args.args,
        **kwargs: Args.kwargs,
    ) -> Answer:
        return self.apply(decide(self.load(needs, now_ms), now_ms, *args, **kwargs))

    def append(self, *drafts: Draft, now_ms: int) -> Appended | Conflict:
        needs = Needs(ids=tuple(draft.id for draft in drafts))
        by_ms = now_ms + WINDOW_MS
        return self.run(needs, decide_append, now_ms, drafts=drafts, roster=self.roster, wake_by_ms=by_ms)

    def claim(self, *, now_ms: int, limit: int = 10, holder: str = "h1", ttl_ms: int = TTL_MS) -> Claimed:
        needs = Needs(heads=True)
        until_ms = now_ms + ttl_ms
        return self.run(
            needs,
            decide_claim,
            now_ms,
            holder=holder,
            limit=limit,
            roster=self.roster,
            expires_at_ms=until_ms,
        )

    def claim_one(self, *, now_ms: int) -> WorkItem:
        [item] = self.claim(now_ms=now_ms).items
        return item

    def renew(self, *items: WorkItem, now_ms: int, ttl_ms: int = TTL_MS) -> Renewed:
        needs = Needs(seqs=tuple(held(*items)), heads=True)
        return self.run(needs, decide_renew, now_ms, held=held(*items), expires_at_ms=now_ms + ttl_ms)

    def release(self, *items: WorkItem, now_ms: int) -> Released:
        return self.run(Needs(seqs=tuple(held(*items))), decide_release, now_ms, held=held(*items))

    def settle(
        self, item: WorkItem, *drafts: Draft, now_ms: int, ending: Ending | None = None
    ) -> Settled | Stale | Conflict:
        needs = Needs(seqs=(item.seq,), ids=tuple(draft.id for draft in drafts))
        seq, attempt, roster = item.seq, item.attempt, self.roster
        return self.run(
            needs,
            decide_settle,
            now_ms,
            seq=seq,
            attempt=attempt,
            drafts=drafts,
            roster=roster,
            ending=ending,
        )

    def fail(self, item: WorkItem, *, now_ms: int, failure: Failure = BOOM) -> Retrying | Buried | Stale:
        delay_ms = self.roster.handled[item.entry.type].backoff.delay_ms(item.failures + 1, item.entry.id)
        return self.run(
            Needs(seqs=(item.seq,)),
            decide_fail,
            now_ms,
            seq=item.seq,
            attempt=item.attempt,
            roster=self.roster,
            failure=failure,
            delay_ms=delay_ms,
        )

    def snooze(self, item: WorkItem, *, now_ms: int, delay_ms: int) -> Retrying | Stale:
        needs = Needs(seqs=(item.seq,))
        return self.run(needs, decide_snooze, now_ms, seq=item.seq, attempt=item.attempt, delay_ms=delay_ms)

    def give_up(self, item: WorkItem, *, now_ms: int, failure: Failure = BOOM) -> Buried | Stale:
        needs = Needs(seqs=(item.seq,))
        seq, attempt, roster = item.seq, item.attempt, self.roster
        return self.run(needs, decide_give_up, now_ms, seq=seq, attempt=attempt, roster=roster, failure=failure)

    def resolve(self, event_id: str, reason: str = "no use", *, now_ms: int) -> Resolved | NotDead:
        needs = Needs(ids=(event_id,))
        return self.run(needs, decide_resolve, now_ms, event_id=event_id, reason=reason, roster=self.roster)

    def redrive(self, event_id: str, *, now_ms: int) -> Redriven | NotDead:
        return self.run(Needs(ids=(event_id,)), decide_redrive, now_ms, event_id=event_id)

    def schedule(self, timer: Timer, *, now_ms: int, keep: bool = True) -> ScheduleAnswer:
        needs = Needs(ids=tuple(draft.id for draft in timer.drafts), timers=(timer.id,))
        return self.run(needs, decide_schedule, now_ms, timer=timer, keep=keep)

    def cancel(self, timer: Timer, *, now_ms: int) -> Cancelled | Delivered:
        first = timer.drafts[0].id
        needs = Needs(ids=(first,), timers=(timer.id,))
        return self.run(needs, decide_cancel, now_ms, timer_id=timer.id, first_event_id=first)

    def deliver(self, timer: Timer, *, now_ms: int) -> Appended | Conflict | Cancelled:
        drafts, by_ms = timer.drafts, now_ms + WINDOW_MS
        needs = Needs(ids=tuple(draft.id for draft in drafts), timers=(timer.id,))
        return self.run(
            needs,
            decide_delivery,
            now_ms,
            timer_id=timer.id,
            drafts=drafts,
            roster=self.roster,
            wake_by_ms=by_ms,
        )

    def note(self, item: WorkItem, progress: str, *, now_ms: int) -> Noted | Stale:
        seq, attempt = item.seq, item.attempt
        return self.run(Needs(seqs=(seq,)), decide_note, now_ms, seq=seq, attempt=attempt, progress=progress)

    # ── jobs and crons ───────────────────────────────────────────────────────────────────

    def enqueue(self, new: Draft, *, now_ms: int, due_at_ms: int = 0) -> Enqueued:
        needs = Needs(keys=() if new.key is None else (new.key,))
        return self.run(needs, decide_enqueue, now_ms, draft=new, due_at_ms=due_at_ms)

    def look(self, run_id: str, *, now_ms: int) -> Run | None:
        return look_at_run(self.load(Needs(ids=(run_id,), timers=(run_id,)), now_ms), now_ms, run_id)

    def call_off(self, run_id: str, reason: str = "not needed", *, now_ms: int) -> CalledOff | TooLate:
        needs = Needs(ids=(run_id,), timers=(run_id,))
        return self.run(needs, decide_call_off, now_ms, run_id=run_id, reason=reason, roster=self.roster)

    def trigger(self, new: Draft, *, now_ms: int) -> Triggered:
        needs = Needs(ids=(new.id,), timers=(new.id,))
        return self.run(needs, decide_trigger, now_ms, draft=new, wake_by_ms=now_ms + WINDOW_MS)

    def register(self, rule: str, read_rule: ReadRule, *, now_ms: int, event_type: str = "order") -> Registered:
        schedule, _ = read_rule(rule)
        needs = Needs(timers=(RECURRENCE_ID,))
        return self.run(needs, decide_register, now_ms, rule=rule, schedule=schedule, event_type=event_type)

    def slot(self, slot_ms: int, read_rule: ReadRule, *, now_ms: int, event_type: str = "order") -> Triggered:
        needs = Needs(ids=(slot_event_id(slot_ms),), timers=(RECURRENCE_ID,), heads=True)
        return self.run(
            needs,
            decide_slot,
            now_ms,
            slot_ms=slot_ms,
            event_type=event_type,
            read_rule=read_rule,
            roster=self.roster,
            wake_by_ms=now_ms + WINDOW_MS,
        )
