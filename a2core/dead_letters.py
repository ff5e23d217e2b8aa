"""Dead letters: how one is made, and how an operator skips it or gives its event fresh budgets."""

from dataclasses import dataclass, replace

from a2core.backoff import RetryPolicy
from a2core.ids import derive_id
from a2core.jsontext import encode_json
from a2core.plan import Plan, Snapshot, WakeBy
from a2core.records import DeadLetter, Ending, EndingKind, Entry, Failure, Roster, WorkItem


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


def bury(item: WorkItem, policy: RetryPolicy, failure: Failure, now_ms: int) -> WorkItem:
    """The item as a dead letter: in its lane, which it blocks, or aside in a lane of its own. Its key is free again."""
    lane = f"aside:{item.seq}" if policy.aside else item.lane
    return replace(item, lane=lane, claim=None, dead=DeadLetter(failure, now_ms), key=None)


def reported(dead: WorkItem, policy: RetryPolicy, seq: int, roster: Roster) -> tuple[WorkItem, ...]:
    """The event of `seq` that tells of a dead letter, as open work, where its policy wants one.

    It has a lane of its own. Its payload holds that of the dead event, as `payload`, with `event`, `attempts`,
    `error` and `message`.
    """
    if policy.on_dead is None or policy.on_dead not in roster.handled or dead.dead is None:
        return ()
    failure = dead.dead.failure
    told = {"event": dead.entry.id, "attempts": dead.attempt, "error": failure.type, "message": failure.message}
    text = f'{encode_json(told)[:-1]},"payload":{dead.entry.payload}}}'
    id_ = derive_id("a2:dead-event:v1", dead.entry.id, dead.attempt)
    entry = Entry(id_, policy.on_dead, text, dead.entry.id, dead.dead.at_ms, seq)
    return (WorkItem(entry, f"dead:{dead.seq}", ready_at_ms=dead.dead.at_ms),)


def decide_resolve(
    snapshot: Snapshot, now_ms: int, *, event_id: str, reason: str, roster: Roster
) -> Plan[Resolved | NotDead]:
    """Settle a dead letter with a reason. Needs the event id."""
    item = _dead_item(snapshot, event_id)
    if item is None:
        return Plan(NotDead(event_id))
    ending = Ending(EndingKind.SKIPPED, reason)
    return Plan(
        Resolved(replace(item.entry, ending=ending)),
        settled=(item.seq,),
        endings={item.seq: ending},
        expires=roster.expiry(item.entry.type, now_ms, item.seq),
        wake=WakeBy(now_ms),
    )


def decide_redrive(snapshot: Snapshot, now_ms: int, *, event_id: str) -> Plan[Redriven | NotDead]:
    """Make a dead letter claimable again with fresh budgets; the attempt goes on counting. Needs the event id."""
    item = _dead_item(snapshot, event_id)
    if item is None:
        return Plan(NotDead(event_id))
    return Plan(Redriven(item.entry), items=(redriven(item, now_ms),), wake=WakeBy(now_ms))


def redriven(item: WorkItem, now_ms: int) -> WorkItem:
    """The item with fresh budgets, claimable now; one that went aside stays in the lane that it has there."""
    return replace(item, failures=0, lost=0, ready_at_ms=now_ms, parked_until_ms=None, dead=None)


def _dead_item(snapshot: Snapshot, event_id: str) -> WorkItem | None:
    entry = snapshot.entries.get(event_id)
    item = snapshot.items.get(entry.seq) if entry is not None else None
    return item if item is not None and item.dead is not None else None
