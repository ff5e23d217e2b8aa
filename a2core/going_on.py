"""Going on: the end of one attempt and the claim of what comes next, as one plan."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from a2core.claims import Claimed
from a2core.plan import Plan, Snapshot
from a2core.records import WorkItem

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class WentOn(Generic[Answer]):
    """What the end of the attempt came to, and what was claimed in the same transaction."""

    ended: Answer
    claimed: Claimed


def decide_go_on(
    snapshot: Snapshot,
    now_ms: int,
    *,
    end: Callable[[Snapshot, int], Plan[Answer]],
    claim: Callable[[Snapshot, int], Plan[Claimed]],
) -> Plan[WentOn[Answer]]:
    """Decide `end`, then `claim` on what is left, and write both. Needs what `end` needs, the heads, and `behind`."""
    ended = end(snapshot, now_ms)
    claimed = claim(_after(snapshot, ended), now_ms)
    items = {item.seq: item for item in (*ended.items, *claimed.items)}
    return Plan(
        WentOn(ended.answer, claimed.answer),
        entries=(*ended.entries, *claimed.entries),
        items=tuple(items.values()),
        settled=ended.settled,
        endings=ended.endings,
        expires=ended.expires,
        timers=claimed.timers,
        delivered=claimed.delivered,
        wake=claimed.wake,
    )


def _after(snapshot: Snapshot, ended: Plan[Answer]) -> Snapshot:
    """What a store would find once the end is written: who left its lane is no head, and who is behind it is one."""
    changed = {item.seq: item for item in ended.items}
    heads: dict[str, WorkItem] = {}
    for head in snapshot.heads:
        item = changed.pop(head.seq, head)
        if item.seq not in ended.settled:
            heads[item.lane] = item
    if snapshot.behind is not None:
        heads.setdefault(snapshot.behind.lane, snapshot.behind)
    for seq in sorted(changed):
        heads.setdefault(changed[seq].lane, changed[seq])
    return replace(
        snapshot,
        last_seq=snapshot.last_seq + len(ended.entries),
        entries={**snapshot.entries, **{entry.id: entry for entry in ended.entries}},
        heads=tuple(heads.values()),
    )
