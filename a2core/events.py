"""Append rules: seqs, and what makes two events the same one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from a2core.jsontext import same_json
from a2core.plan import Plan, Snapshot, WakeBy
from a2core.records import Draft, Entry, Roster, WorkItem


@dataclass(frozen=True, slots=True)
class Appended:
    """The batch as the log holds it now. `new` are the entries that this append wrote."""

    entries: tuple[Entry, ...]
    new: tuple[Entry, ...]
    pending: bool
    """Whether any of the entries is open work that a handler may still get to."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """The id is in the log with other content. Nothing of the batch was written."""

    event_id: str


Write: TypeAlias = tuple[tuple[Entry, ...], tuple[Entry, ...], tuple[WorkItem, ...]]


def decide_append(
    snapshot: Snapshot, now_ms: int, *, drafts: Sequence[Draft], roster: Roster, wake_by_ms: int
) -> Plan[Appended | Conflict]:
    """Append a batch. `wake_by_ms` is when someone must have looked at the work that is new (engine.md 3).

    What was pending before has its wake-up, from whoever looked at it last. Needs the drafts' ids.
    """
    written = write_batch(snapshot.entries, snapshot.last_seq, now_ms, drafts, roster, cause=None)
    if isinstance(written, Conflict):
        return Plan(written)
    entries, new, items = written
    known = (snapshot.items.get(entry.seq) for entry in entries)
    pending = bool(items) or any(item is not None and item.dead is None for item in known)
    return Plan(Appended(entries, new, pending), entries=new, items=items, wake=WakeBy(wake_by_ms) if items else None)


def write_batch(
    known: Mapping[str, Entry],
    last_seq: int,
    now_ms: int,
    drafts: Sequence[Draft],
    roster: Roster,
    *,
    cause: str | None,
) -> Write | Conflict:
    """Give seqs to the drafts that are new, and say which log entry each one is.

    An id that is already there with the same type and payload is the same event: it is not written again. The same
    holds inside one batch.
    """
    seen = dict(known)
    entries: list[Entry] = []
    new: list[Entry] = []
    items: list[WorkItem] = []
    for draft in drafts:
        entry = seen.get(draft.id)
        if entry is None:
            last_seq += 1
            entry = Entry(draft.id, draft.type, draft.payload, cause, now_ms, last_seq)
            seen[draft.id] = entry
            new.append(entry)
            if not roster.settles_at_append(draft.type):
                items.append(WorkItem(entry, draft.lane, ready_at_ms=now_ms, key=draft.key))
        elif entry.type != draft.type or not same_json(entry.payload, draft.payload):
            return Conflict(draft.id)
        entries.append(entry)
    return tuple(entries), tuple(new), tuple(items)
