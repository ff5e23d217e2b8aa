"""Dead letters: an operator skips one, or gives its event fresh budgets."""

from dataclasses import dataclass, replace

from a2core.plan import Plan, Snapshot, WakeBy
from a2core.records import Ending, EndingKind, Entry, WorkItem


@dataclass(frozen=True, slots=True)
class Resolved:
    """The dead letter is skipped: its event is settled with the reason, and the lane goes on."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class Redriven:
    """The event is claimable again."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class NotDead:
    """No dead letter has this event id: it is unknown, settled, or still being tried."""

    event_id: str


def decide_resolve(snapshot: Snapshot, now_ms: int, *, event_id: str, reason: str) -> Plan[Resolved | NotDead]:
    """Settle a dead letter with a reason. Needs the event id."""
    item = _dead_item(snapshot, event_id)
    if item is None:
        return Plan(NotDead(event_id))
    ending = Ending(EndingKind.SKIPPED, reason)
    return Plan(
        Resolved(replace(item.entry, ending=ending)),
        settled=(item.seq,),
        endings={item.seq: ending},
        wake=WakeBy(now_ms),
    )


def decide_redrive(snapshot: Snapshot, now_ms: int, *, event_id: str) -> Plan[Redriven | NotDead]:
    """Make a dead letter claimable again with fresh budgets; the attempt goes on counting. Needs the event id."""
    item = _dead_item(snapshot, event_id)
    if item is None:
        return Plan(NotDead(event_id))
    fresh = replace(item, failures=0, lost=0, ready_at_ms=now_ms, parked_until_ms=None, dead=None)
    return Plan(Redriven(item.entry), items=(fresh,), wake=WakeBy(now_ms))


def _dead_item(snapshot: Snapshot, event_id: str) -> WorkItem | None:
    entry = snapshot.entries.get(event_id)
    item = snapshot.items.get(entry.seq) if entry is not None else None
    return item if item is not None and item.dead is not None else None
