"""Timers: events that enter the log later, once, and not at all when cancelled in time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from a2core.events import Appended, Conflict, decide_append
from a2core.jsontext import same_json
from a2core.plan import Plan, Snapshot, WakeBy
from a2core.records import Draft, Roster, Timer, Tombstone


@dataclass(frozen=True, slots=True)
class Scheduled:
    """The timer is accepted, now or by an earlier call with the same timing and batch."""

    timer: Timer


@dataclass(frozen=True, slots=True)
class Delivered:
    """The timer's events are in the log already."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The timer is cancelled, and stays so."""


@dataclass(frozen=True, slots=True)
class TimerConflict:
    """The name is taken by a timer of another time or batch."""

    timer_id: str


ScheduleAnswer: TypeAlias = Scheduled | Delivered | Cancelled | TimerConflict


def decide_schedule(snapshot: Snapshot, now_ms: int, *, timer: Timer, keep: bool) -> Plan[ScheduleAnswer]:
    """Accept a timer once per name. Needs the timer's id and its events' ids.

    `keep` says that this store carries the timer; without it a provider does, and only the tombstone and the log are
    consulted here.
    """
    known = snapshot.timers.get(timer.id)
    if isinstance(known, Tombstone):
        return Plan(Cancelled())
    if known is not None:
        return Plan(Scheduled(known) if _same_timer(known, timer) else TimerConflict(timer.id))
    logged = [snapshot.entries[draft.id] for draft in timer.drafts if draft.id in snapshot.entries]
    if logged:
        same = len(logged) == len(timer.drafts) and all(
            entry.type == draft.type and same_json(entry.payload, draft.payload)
            for entry, draft in zip(logged, timer.drafts, strict=True)
        )
        return Plan(Delivered() if same else TimerConflict(timer.id))
    if not keep:
        return Plan(Scheduled(timer))
    return Plan(Scheduled(timer), timers=(timer,), wake=WakeBy(max(now_ms, timer.due_at_ms)))


def decide_cancel(
    snapshot: Snapshot, now_ms: int, *, timer_id: str, first_event_id: str
) -> Plan[Cancelled | Delivered]:
    """Cancel a timer by a tombstone, unless its events are in the log. Needs both ids.

    A timer that was never scheduled can be cancelled: its name stays cancelled.
    """
    del now_ms  # every decision has one signature; this one does not depend on the time
    if first_event_id in snapshot.entries:
        return Plan(Delivered())
    if isinstance(snapshot.timers.get(timer_id), Tombstone):
        return Plan(Cancelled())
    return Plan(Cancelled(), timers=(Tombstone(timer_id),))


def decide_delivery(
    snapshot: Snapshot, now_ms: int, *, timer_id: str, drafts: Sequence[Draft], roster: Roster, wake_by_ms: int
) -> Plan[Appended | Conflict | Cancelled]:
    """Append what a provider carried, unless it was cancelled. Needs the timer's id and the drafts' ids."""
    if isinstance(snapshot.timers.get(timer_id), Tombstone):
        return Plan(Cancelled())
    return decide_append(snapshot, now_ms, drafts=drafts, roster=roster, wake_by_ms=wake_by_ms)


def _same_timer(one: Timer, other: Timer) -> bool:
    """Whether two calls meant the same: the same delay, or the same instant, and the same batch."""
    if one.delay_ms is not None and other.delay_ms is not None:
        same_time = one.delay_ms == other.delay_ms
    else:
        same_time = one.due_at_ms == other.due_at_ms
    return (
        same_time
        and len(one.drafts) == len(other.drafts)
        and all(
            mine.id == theirs.id and mine.type == theirs.type and same_json(mine.payload, theirs.payload)
            for mine, theirs in zip(one.drafts, other.drafts, strict=True)
        )
    )
