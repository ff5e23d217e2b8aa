"""Crons: which slots of a schedule become runs, and the recurring timer that carries the schedule on."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol, TypeAlias, assert_never

from a2core.events import Conflict, write_batch
from a2core.jobs import Triggered, decide_trigger
from a2core.plan import Plan, Snapshot, WakeBy
from a2core.records import Draft, Recur, Recurrence, Roster, Timer
from a2core.signing import MINUTE_MS

CATCH_UP_MS = 60 * MINUTE_MS
"""How far back `all` looks for missed slots (engine.md 4)."""

RECURRENCE_ID = "cron"
"""The id of the recurring timer in its cron's session."""


class CatchUp(StrEnum):
    """What becomes of slots that passed while nothing ran."""

    LATEST = "latest"
    """The last one is run."""
    ALL = "all"
    """Those of the last hour are run, each."""
    NONE = "none"
    """None is: a slot runs within its own minute, or not."""


class Schedule(Protocol):
    """The slots of a schedule: whole minutes, as milliseconds since the epoch."""

    def next_ms(self, after_ms: int) -> int | None:
        """The first slot after an instant, None if there is none."""
        ...

    def slots_ms(self, after_ms: int, until_ms: int, limit: int) -> list[int]:
        """The first slots after an instant, up to another one that counts, and up to a number of them."""
        ...

    def latest_ms(self, after_ms: int, until_ms: int) -> int | None:
        """The last of them."""
        ...


def slot_event_id(slot_ms: int) -> str:
    """The id of a slot's event, by which a slot is one run however many processes and triggers ask for it."""
    return f"slot-{slot_ms}"


def slot_draft(event_type: str, slot_ms: int) -> Draft:
    """The run of a slot, in a lane of its own: a slow one does not hold up the next."""
    return Draft(slot_event_id(slot_ms), event_type, str(slot_ms), f"slot-{slot_ms}")


def caught_up(schedule: Schedule, catch_up: CatchUp, first_ms: int, now_ms: int) -> list[int]:
    """The slots to run now, of those that have come since `first_ms`, which is one."""
    following_ms = schedule.next_ms(first_ms)
    if (following_ms is None or following_ms > now_ms) and now_ms - first_ms < MINUTE_MS:
        return [first_ms]  # the common case: nothing was missed
    match catch_up:
        case CatchUp.ALL:
            after_ms = max(first_ms - 1, now_ms - CATCH_UP_MS - 1)
            return schedule.slots_ms(after_ms, now_ms, CATCH_UP_MS // MINUTE_MS + 1)
        case CatchUp.LATEST:
            latest_ms = schedule.latest_ms(first_ms - 1, now_ms)
        case CatchUp.NONE:
            latest_ms = schedule.latest_ms(max(first_ms - 1, now_ms - MINUTE_MS), now_ms)
        case _:
            assert_never(catch_up)
    return [] if latest_ms is None else [latest_ms]


ReadRule: TypeAlias = Callable[[str], tuple[Schedule, CatchUp]]
"""Reads the rule of a recurring timer, which may be another version's."""


def recur_by(read_rule: ReadRule, event_type: str) -> Recur:
    """How a cron's timer recurs: as its own rule says, whichever version of the code put that in force."""

    def recur(timer: Timer, now_ms: int) -> Recurrence:
        schedule, catch_up = read_rule(timer.rule or "")
        drafts = tuple(slot_draft(event_type, slot) for slot in caught_up(schedule, catch_up, timer.due_at_ms, now_ms))
        return Recurrence(drafts, _following(timer, schedule, now_ms, event_type))

    return recur


def _following(timer: Timer, schedule: Schedule, after_ms: int, event_type: str) -> Timer | None:
    """The timer of the next slot. It carries that slot's run, so that one which a trigger made early is found."""
    next_ms = schedule.next_ms(after_ms)
    return None if next_ms is None else replace(timer, due_at_ms=next_ms, drafts=(slot_draft(event_type, next_ms),))


@dataclass(frozen=True, slots=True)
class Registered:
    """The schedule is in force; `next_ms` is its next slot."""

    next_ms: int | None


def decide_register(
    snapshot: Snapshot, now_ms: int, *, rule: str, schedule: Schedule, event_type: str
) -> Plan[Registered]:
    """Put a cron's schedule in force. Needs the recurring timer.

    One that is in force already goes on where it is, so a restart loses no slot. A new or changed one begins with the
    next slot from now on: it never backfills.
    """
    known = snapshot.timers.get(RECURRENCE_ID)
    if isinstance(known, Timer) and known.rule == rule:
        return Plan(Registered(known.due_at_ms))
    timer = _following(Timer(RECURRENCE_ID, now_ms, None, (), rule), schedule, now_ms, event_type)
    if timer is None:
        return Plan(Registered(None), delivered=() if known is None else (RECURRENCE_ID,))
    return Plan(Registered(timer.due_at_ms), timers=(timer,), wake=WakeBy(timer.due_at_ms))


def decide_slot(
    snapshot: Snapshot,
    now_ms: int,
    *,
    slot_ms: int,
    event_type: str,
    read_rule: ReadRule,
    roster: Roster,
    wake_by_ms: int,
) -> Plan[Triggered]:
    """Have a slot run now, because a trigger from outside asks for it. Needs the slot's event, the timer and the heads.

    Where the embedded scheduler keeps the schedule too, it goes on after this slot, and what it has missed before it
    by now is caught up as the rule says: the same runs as if it had looked first.
    """
    draft = slot_draft(event_type, slot_ms)
    plan = decide_trigger(snapshot, now_ms, draft=draft, wake_by_ms=wake_by_ms)
    timer = snapshot.timers.get(RECURRENCE_ID)
    if plan.answer.before is not None or not isinstance(timer, Timer) or timer.due_at_ms > slot_ms:
        return plan
    schedule, catch_up = read_rule(timer.rule or "")
    following = _following(timer, schedule, slot_ms, event_type)
    plan = replace(
        plan,
        timers=() if following is None else (following,),
        delivered=(RECURRENCE_ID,) if following is None else (),
    )
    missed = [slot for slot in caught_up(schedule, catch_up, timer.due_at_ms, now_ms) if slot < slot_ms]
    drafts = (draft, *(slot_draft(event_type, slot) for slot in missed))
    written = write_batch(snapshot.entries, snapshot.last_seq, now_ms, drafts, roster, cause=None)
    if isinstance(written, Conflict):  # as where it recurs: other events under these ids stop no schedule
        return plan
    _, entries, items = written
    return replace(plan, entries=entries, items=items)
