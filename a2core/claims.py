"""Claims: which work may run next, who holds it and until when, and when the session must be looked at again."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

from a2core.dead_letters import bury, reported
from a2core.events import Conflict, write_batch
from a2core.plan import Plan, Snapshot, WakeAt, WakeBy
from a2core.records import Claim, Entry, Failure, Roster, Timer, WorkItem

PARK_MS = 300_000
"""How long work of an unknown type waits before the session is looked at again (engine.md 2)."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """What one claim pass found.

    `items` are now held by the caller. `buried` became dead letters because their claims were lost too often.
    `parked` are types that this code has no handler for. `appended` came from due timers. `busy`: live claims are held,
    by others or by the caller. `more`: lanes or due timers are left that another pass could take right now.
    `retry_at_ms`: the next instant at which waiting or parked work is worth another look; timers and the ends of live
    claims do not count. `next_timer_at_ms`: when the next of the timers is due that it left.
    """

    items: tuple[WorkItem, ...] = ()
    buried: tuple[WorkItem, ...] = ()
    parked: frozenset[str] = frozenset()
    appended: tuple[Entry, ...] = ()
    busy: bool = False
    more: bool = False
    retry_at_ms: int | None = None
    next_timer_at_ms: int | None = None


def decide_claim(
    snapshot: Snapshot, now_ms: int, *, holder: str, limit: int, roster: Roster, expires_at_ms: int
) -> Plan[Claimed]:
    """Append the events of due timers, then claim up to `limit` lane heads until `expires_at_ms`.

    Per lane only the first open item is eligible. A claim that expired counts as lost; past its budget the item is
    buried without running, so an event that kills its process ends as a dead letter too. Needs the heads.
    """
    if not snapshot.heads and not snapshot.due_timers:  # the end of most drains
        at_ms = snapshot.next_timer_at_ms
        return Plan(Claimed(more=_is_past(at_ms, now_ms), next_timer_at_ms=at_ms), wake=WakeAt(at_ms))
    entries, arrivals, following = _deliver_timers(snapshot, now_ms, roster)
    heads = [_unparked(item, roster) for item in _with_arrivals(snapshot.heads, arrivals)]
    by_turn: tuple[list[WorkItem], ...] = tuple([] for _ in range(_TURNS))
    for item in heads:
        by_turn[_turn(item, roster, now_ms)].append(item)
    ready = by_turn[_Turn.READY]
    claim = Claim(holder, expires_at_ms)
    claimed = tuple([_claimed(item, claim) for item in ready[:limit]])
    spent = by_turn[_Turn.SPENT]
    buried = tuple([_buried(item, roster, now_ms) for item in spent])
    reports = _reports(buried, snapshot.last_seq + len(entries), roster)
    parked = tuple([_parked(item, now_ms) for item in by_turn[_Turn.UNKNOWN]])
    now_open = {item.seq: item for item in (*heads, *arrivals, *claimed, *buried, *parked, *reports)}
    before = {item.seq: item for item in snapshot.heads}
    # what is left alone is the very value of the snapshot
    changed = tuple([item for item in now_open.values() if before.get(item.seq) is not item])
    # who follows in its lane is not known yet
    went_aside = any(dead.lane != item.lane for dead, item in zip(buried, spent, strict=True))
    next_timer_at_ms = _earliest((snapshot.next_timer_at_ms, *[timer.due_at_ms for timer in following]))
    answer = Claimed(
        items=claimed,
        buried=buried,
        parked=frozenset(item.entry.type for item in parked),
        appended=(*entries, *(item.entry for item in reports)),
        busy=bool(by_turn[_Turn.BUSY]),
        more=len(ready) > limit or went_aside or bool(reports) or _is_past(next_timer_at_ms, now_ms),
        retry_at_ms=_earliest([item.due_at_ms for item in (*by_turn[_Turn.WAITING], *parked)]),
        next_timer_at_ms=next_timer_at_ms,
    )
    return Plan(
        answer,
        entries=answer.appended,
        items=changed,
        timers=following,
        delivered=_gone(snapshot.due_timers, following),
        wake=WakeAt(now_ms)
        if went_aside or reports
        else _next_wake([now_open[item.seq] for item in heads], next_timer_at_ms),
    )


@dataclass(frozen=True, slots=True)
class Renewed:
    """Which of the held work items, by seq, are still the caller's."""

    kept: frozenset[int]
    lost: frozenset[int]


def decide_renew(snapshot: Snapshot, now_ms: int, *, held: Mapping[int, int], expires_at_ms: int) -> Plan[Renewed]:
    """Extend the claims that still carry their attempt; `held` maps seq to attempt. Needs those seqs and the heads.

    A claim that expired but that nobody took over is extended too: its attempt still fences everyone else out.
    """
    del now_ms  # every decision has one signature; this one is bounded by `expires_at_ms` alone
    renewed: dict[int, WorkItem] = {}
    for seq, attempt in held.items():
        item = held_item(snapshot, seq, attempt)
        if item is not None and item.claim is not None:
            until = max(item.claim.expires_at_ms, expires_at_ms)
            renewed[seq] = replace(item, claim=replace(item.claim, expires_at_ms=until))
    heads = {item.seq: item for item in snapshot.heads} | renewed
    next_timer = _earliest((*(timer.due_at_ms for timer in snapshot.due_timers), snapshot.next_timer_at_ms))
    return Plan(
        Renewed(frozenset(renewed), frozenset(held) - frozenset(renewed)),
        items=tuple(renewed.values()),
        wake=_next_wake(heads.values(), next_timer) if renewed else None,
    )


@dataclass(frozen=True, slots=True)
class Released:
    """The held claims that were given back, by seq."""

    seqs: frozenset[int]


def decide_release(snapshot: Snapshot, now_ms: int, *, held: Mapping[int, int]) -> Plan[Released]:
    """Give claims back unanswered, so that another process continues at once; neither budget is spent.

    `held` maps seq to attempt. Needs those seqs.
    """
    items = [held_item(snapshot, seq, attempt) for seq, attempt in held.items()]
    free = tuple(replace(item, claim=None) for item in items if item is not None)
    return Plan(Released(frozenset(item.seq for item in free)), items=free, wake=WakeBy(now_ms) if free else None)


def decide_hand_over(snapshot: Snapshot, now_ms: int) -> Plan[None]:
    """Have someone else look at the session now, because who works on it stops. Needs nothing."""
    del snapshot  # every decision has one signature; this one holds for any session
    return Plan(None, wake=WakeBy(now_ms))


def held_item(snapshot: Snapshot, seq: int, attempt: int) -> WorkItem | None:
    """The work item, if its claim still carries this attempt: the fence of every write by a holder."""
    item = snapshot.items.get(seq)
    return item if item is not None and item.claim is not None and item.attempt == attempt else None


def _deliver_timers(
    snapshot: Snapshot, now_ms: int, roster: Roster
) -> tuple[tuple[Entry, ...], tuple[WorkItem, ...], tuple[Timer, ...]]:
    """What the due timers append, and the recurring ones as they go on.

    A timer whose ids are in the log was delivered before, and appends nothing.
    """
    known = dict(snapshot.entries)
    entries: list[Entry] = []
    items: list[WorkItem] = []
    following: list[Timer] = []
    for timer in sorted(snapshot.due_timers, key=_timer_order):
        drafts = timer.drafts
        if timer.rule is not None and roster.recur is not None:
            recurrence = roster.recur(timer, now_ms)
            drafts = recurrence.drafts
            following += () if recurrence.following is None else (recurrence.following,)
        written = write_batch(known, snapshot.last_seq + len(entries), now_ms, drafts, roster, cause=None)
        if isinstance(written, Conflict):
            continue
        _, new, pending = written
        entries += new
        items += pending
        known |= {entry.id: entry for entry in new}
    return tuple(entries), tuple(items), tuple(following)


def _gone(due: Iterable[Timer], following: Iterable[Timer]) -> tuple[str, ...]:
    """The ids of due timers in whose place none follows."""
    stay = {timer.id for timer in following}
    return tuple([timer.id for timer in due if timer.id not in stay])


def _timer_order(timer: Timer) -> tuple[int, str]:
    return timer.due_at_ms, timer.id


def _with_arrivals(heads: tuple[WorkItem, ...], arrivals: tuple[WorkItem, ...]) -> list[WorkItem]:
    """The heads in seq order, with the first arrival of each lane that had no open work."""
    lanes = {item.lane for item in heads}
    ordered = sorted(heads, key=lambda item: item.seq)
    for item in arrivals:
        if item.lane not in lanes:
            lanes.add(item.lane)
            ordered.append(item)
    return ordered


class _Turn(IntEnum):
    """Where the head of a lane stands."""

    READY = 0
    WAITING = 1
    BUSY = 2
    DEAD = 3
    SPENT = 4
    UNKNOWN = 5


_TURNS = len(_Turn)


def _turn(item: WorkItem, roster: Roster, now_ms: int) -> _Turn:
    if item.dead is not None:
        return _Turn.DEAD
    if item.is_claimed(now_ms):
        return _Turn.BUSY
    policy = roster.handled.get(item.entry.type)
    if policy is None:
        return _Turn.UNKNOWN
    if item.ready_at_ms > now_ms:
        return _Turn.WAITING
    return _Turn.SPENT if _lost(item) >= policy.max_lost else _Turn.READY


def _lost(item: WorkItem) -> int:
    """The claims that ended without an answer, an expired one included."""
    return item.lost + (item.claim is not None)


def _claimed(item: WorkItem, claim: Claim) -> WorkItem:
    return replace(item, attempt=item.attempt + 1, lost=_lost(item), claim=claim)


def _unparked(item: WorkItem, roster: Roster) -> WorkItem:
    """Work that an older version put off is due for the version that knows it."""
    if item.parked_until_ms is None or item.entry.type not in roster.handled:
        return item
    return replace(item, parked_until_ms=None)


def _parked(item: WorkItem, now_ms: int) -> WorkItem:
    """Put off work that this code has no handler for. It stays as it is while an earlier parking lasts."""
    if item.claim is None and item.parked_until_ms is not None and item.parked_until_ms > now_ms:
        return item
    return replace(item, lost=_lost(item), claim=None, parked_until_ms=now_ms + PARK_MS)


def _buried(item: WorkItem, roster: Roster, now_ms: int) -> WorkItem:
    lost = _lost(item)
    failure = Failure("Lost", f"{lost} claims ended without an answer: the process died, was killed, or hung")
    return bury(replace(item, lost=lost), roster.handled[item.entry.type], failure, now_ms)


def _reports(buried: Iterable[WorkItem], last_seq: int, roster: Roster) -> tuple[WorkItem, ...]:
    """The events that tell of the dead letters, after `last_seq`."""
    reports: list[WorkItem] = []
    for dead in buried:
        reports += reported(dead, roster.handled[dead.entry.type], last_seq + len(reports) + 1, roster)
    return tuple(reports)


def _is_past(at_ms: int | None, now_ms: int) -> bool:
    return at_ms is not None and at_ms <= now_ms


def _earliest(instants: Iterable[int | None]) -> int | None:
    return min([at for at in instants if at is not None], default=None)


def _next_wake(heads: Iterable[WorkItem], next_timer_at_ms: int | None) -> WakeAt:
    return WakeAt(_earliest([*[item.due_at_ms for item in heads], next_timer_at_ms]))
