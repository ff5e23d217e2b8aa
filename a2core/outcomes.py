"""Outcomes: how a holder ends one attempt, fenced by it, so that a stale holder writes nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from a2core.claims import held_item
from a2core.dead_letters import bury, reported
from a2core.events import Conflict, write_batch
from a2core.plan import Plan, Snapshot, WakeBy
from a2core.records import DeadLetter, Draft, Ending, Entry, Failure, Roster, WorkItem


@dataclass(frozen=True, slots=True)
class Settled:
    """The event is handled for good; `entries` are the events that its handler produced."""

    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Retrying:
    """The event will be claimable again at `ready_at_ms`."""

    ready_at_ms: int


@dataclass(frozen=True, slots=True)
class Buried:
    """The event is a dead letter, and blocks its lane until it is resolved or redriven, unless it went aside."""

    dead: DeadLetter


@dataclass(frozen=True, slots=True)
class Stale:
    """The claim is someone else's by now, or ended: nothing was written."""


def decide_settle(
    snapshot: Snapshot,
    now_ms: int,
    *,
    seq: int,
    attempt: int,
    drafts: Sequence[Draft],
    roster: Roster,
    ending: Ending | None = None,
) -> Plan[Settled | Stale | Conflict]:
    """Settle the event and append what its handler produced, in one transaction. Needs the seq and the drafts' ids.

    A draft whose id is in the log with other content is a Conflict, and nothing is written. The wake-up that came with
    the claim stands, so what follows in the lane is looked after if the holder dies now. Where the policy keeps events
    for a while only, the event and what it produced expire together, but for what waits for a handler of its own.
    """
    item = held_item(snapshot, seq, attempt)
    if item is None:
        return Plan(Stale())
    written = write_batch(snapshot.entries, snapshot.last_seq, now_ms, drafts, roster, cause=item.entry.id)
    if isinstance(written, Conflict):
        return Plan(written)
    entries, new, items = written
    waiting = {item.seq for item in items}
    return Plan(
        Settled(entries),
        entries=new,
        items=items,
        settled=(seq,),
        endings={} if ending is None else {seq: ending},
        expires=roster.expiry(item.entry.type, now_ms, seq, *(entry.seq for entry in new if entry.seq not in waiting)),
    )


def decide_fail(
    snapshot: Snapshot,
    now_ms: int,
    *,
    seq: int,
    attempt: int,
    roster: Roster,
    failure: Failure,
    delay_ms: int,
) -> Plan[Retrying | Buried | Stale]:
    """Count a failure: try again after `delay_ms`, or bury the event once the budget is spent. Needs the seq.

    The delay is the policy's backoff, which may be a user's function: so it is asked before, outside the transaction.
    """
    item = held_item(snapshot, seq, attempt)
    if item is None:
        return Plan(Stale())
    item = replace(item, failures=item.failures + 1)
    if item.failures >= roster.handled[item.entry.type].max_failures:
        return _bury(snapshot, item, roster, failure, now_ms)
    return _retry(item, now_ms + delay_ms)


def decide_snooze(snapshot: Snapshot, now_ms: int, *, seq: int, attempt: int, delay_ms: int) -> Plan[Retrying | Stale]:
    """Make the event claimable again after `delay_ms`; that is not a failure. Needs the seq."""
    item = held_item(snapshot, seq, attempt)
    return Plan(Stale()) if item is None else _retry(item, now_ms + delay_ms)


def decide_give_up(
    snapshot: Snapshot, now_ms: int, *, seq: int, attempt: int, roster: Roster, failure: Failure
) -> Plan[Buried | Stale]:
    """Bury the event at once, whatever is left of its budget. Needs the seq."""
    item = held_item(snapshot, seq, attempt)
    if item is None:
        return Plan(Stale())
    return _bury(snapshot, replace(item, failures=item.failures + 1), roster, failure, now_ms)


@dataclass(frozen=True, slots=True)
class Noted:
    """The progress is kept with the open work."""


def decide_note(snapshot: Snapshot, now_ms: int, *, seq: int, attempt: int, progress: str) -> Plan[Noted | Stale]:
    """Keep a holder's progress, which is JSON text. Needs the seq."""
    del now_ms  # every decision has one signature; this one does not depend on the time
    item = held_item(snapshot, seq, attempt)
    return Plan(Stale()) if item is None else Plan(Noted(), items=(replace(item, progress=progress),))


def _retry(item: WorkItem, ready_at_ms: int) -> Plan[Retrying]:
    waiting = replace(item, claim=None, ready_at_ms=ready_at_ms)
    return Plan(Retrying(ready_at_ms), items=(waiting,), wake=WakeBy(ready_at_ms))


def _bury(snapshot: Snapshot, item: WorkItem, roster: Roster, failure: Failure, now_ms: int) -> Plan[Buried]:
    policy = roster.handled[item.entry.type]
    dead = bury(item, policy, failure, now_ms)
    reports = reported(dead, policy, snapshot.last_seq + 1, roster)
    return Plan(
        Buried(DeadLetter(failure, now_ms)),
        entries=tuple(report.entry for report in reports),
        items=(dead, *reports),
        wake=WakeBy(now_ms) if reports or policy.aside else None,
    )
