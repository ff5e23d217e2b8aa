"""Every SQL operation, written once: generators that yield statements and receive rows.

A small runner executes them: on a connection in a thread, or with `await` on an async one. What differs between
engines is a Dialect. Two columns are derived, and kept here alone: `head` marks the first open item of a lane, and
`wake_at_ms` of a session is when it must be looked at next.
"""

import json
from collections.abc import Collection, Sequence
from typing import Any

from a2asgi.listening import hint
from a2asgi.ports import DUE_TIMERS, Answer, Decide, SessionInfo, SessionKey, Wakes
from a2asgi.stores.dialect import Dialect, Now, Rows, Statement, Steps
from a2core import (
    Claim,
    DeadLetter,
    Draft,
    Ending,
    EndingKind,
    Entry,
    Failure,
    Needs,
    Plan,
    Snapshot,
    Timer,
    TimerRecord,
    Tombstone,
    WorkItem,
    moved_wake,
)

_LOG = "l.id, l.type, l.payload, l.cause, l.created_at_ms, l.seq, l.ending_kind, l.ending_reason"
_WORK = (
    "w.lane, w.attempt, w.failures, w.lost, w.ready_at_ms, w.holder, w.expires_at_ms, w.parked_until_ms,"
    " w.dead_type, w.dead_message, w.dead_at_ms, w.key, w.progress"
)
_WORK_OF = f"SELECT {_LOG}, {_WORK} FROM a2_work w JOIN a2_log l ON l.session = w.session AND l.seq = w.seq"
_TIMER = "id, due_at_ms, delay_ms, drafts, rule"


def transact(
    dialect: Dialect, key: SessionKey, needs: Needs, decide: Decide[Answer], now: Now, *, sender: str = ""
) -> Steps[Answer]:
    """Load, decide, write. Nothing is written before `decide` has returned.

    A `sender` tells of it: whoever watches the session what was appended, and all of what is due at once.
    """
    found = yield Statement(
        "SELECT id, last_seq, wake_at_ms, watched_until_ms FROM a2_sessions"
        f" WHERE contract = ? AND session_id = ?{dialect.hold}",
        (key.contract, key.session_id),
    )
    now_ms = now()
    session, last_seq, wake_at_ms, watched_until_ms = found[0] if found else (None, 0, None, None)
    if session is None:
        snapshot = Snapshot()
    else:
        snapshot = yield from _load(dialect, session, last_seq, needs, now_ms)
    plan = decide(snapshot, now_ms)
    if plan.writes:
        wake = moved_wake(wake_at_ms, plan.wake)
        if session is None:
            [[session]] = yield Statement(
                "INSERT INTO a2_sessions (contract, session_id, last_seq, wake_at_ms) VALUES (?, ?, ?, ?) RETURNING id",
                (key.contract, key.session_id, len(plan.entries), wake),
            )
        elif plan.entries or wake != wake_at_ms:
            yield Statement(
                "UPDATE a2_sessions SET last_seq = ?, wake_at_ms = ? WHERE id = ?",
                (last_seq + len(plan.entries), wake, session),
            )
        yield from _write(session, needs, snapshot, plan)
        is_due = plan.is_due(now_ms)
        if sender and (is_due or (plan.entries and (watched_until_ms or 0) > now_ms)):
            yield Statement(dialect.tell, (hint(sender, key, is_due=is_due),))
    return plan.answer


def watch(key: SessionKey, until_ms: int) -> Steps[bool]:
    """Have appends to a session told until then; whether there is such a session."""
    rows = yield Statement(
        "UPDATE a2_sessions SET watched_until_ms = ? WHERE contract = ? AND session_id = ? RETURNING id",
        (until_ms, key.contract, key.session_id),
    )
    return bool(rows)


def read(key: SessionKey, after_seq: int, limit: int) -> Steps[list[Entry]]:
    """A page of a session's log."""
    rows = yield Statement(
        f"SELECT {_LOG} FROM a2_sessions s JOIN a2_log l ON l.session = s.id"
        " WHERE s.contract = ? AND s.session_id = ? AND l.seq > ? ORDER BY l.seq LIMIT ?",
        (key.contract, key.session_id, after_seq, limit),
    )
    return [_entry(row) for row in rows]


def next_wake(contracts: Collection[str], late_ms: int) -> Steps[int | None]:
    """When the earliest wake-up of these contracts counts as due."""
    return earliest((yield looks(contracts)), late_ms)


def looks(contracts: Collection[str]) -> list[Statement]:
    """The statements whose rows `earliest` reads."""
    # IS NOT NULL lets the index of wake-ups serve, instead of a look at every session
    text = "SELECT min(wake_at_ms) FROM a2_sessions WHERE contract = ? AND wake_at_ms IS NOT NULL"
    return [Statement(text, (contract,)) for contract in contracts]


def earliest(found: Sequence[Rows], late_ms: int) -> int | None:
    """When the earliest wake-up counts as due."""
    return min([at_ms + late_ms for [[at_ms]] in found if at_ms is not None], default=None)


def wakes(due: tuple[SessionKey, ...], at_ms: int | None, now_ms: int) -> Wakes:
    """What was taken, where the next wake-up is at that instant."""
    return Wakes(due, None if at_ms is None else at_ms - now_ms)


def claim_wakes(
    dialect: Dialect, contracts: Collection[str], now_ms: int, *, limit: int, lease_ms: int, late_ms: int
) -> Steps[tuple[tuple[SessionKey, ...], int | None]]:
    """Take the sessions that are due at `now_ms` and put each off by the lease; and when the next one is due then.

    For who writes alone: an engine where others write meanwhile has a statement of its own, which leaves them theirs.
    """
    text = (
        "SELECT wake_at_ms, id, contract, session_id FROM a2_sessions"
        " WHERE contract = ? AND wake_at_ms <= ? ORDER BY wake_at_ms LIMIT ?"
    )
    found = yield [Statement(text, (contract, now_ms - late_ms, limit)) for contract in contracts]
    taken = sorted([tuple(row) for rows in found for row in rows])[:limit]
    if taken:
        among, ids = dialect.among([id_ for _, id_, _, _ in taken])
        yield Statement(f"UPDATE a2_sessions SET wake_at_ms = ? WHERE id {among}", (now_ms + lease_ms, ids))
    at_ms = yield from next_wake(contracts, late_ms)
    return tuple([SessionKey(contract, session_id) for _, _, contract, session_id in taken]), at_ms


def purge(dialect: Dialect, limit: int, now_ms: int) -> Steps[int]:
    """Remove expired events, and then the sessions of theirs that hold nothing more."""
    rows = yield Statement(
        f"SELECT l.session, l.seq FROM {dialect.expirable}"
        f" WHERE l.expires_at_ms <= ? ORDER BY l.expires_at_ms LIMIT ?{dialect.hold}",
        (now_ms, limit),
    )
    if rows:
        yield Statement("DELETE FROM a2_log WHERE session = ? AND seq = ?", rows, many=True)
        among, ids = dialect.among({session for session, _ in rows})
        yield Statement(
            f"DELETE FROM a2_sessions WHERE id {among}"
            " AND NOT EXISTS (SELECT 1 FROM a2_log l WHERE l.session = a2_sessions.id)"
            " AND NOT EXISTS (SELECT 1 FROM a2_work w WHERE w.session = a2_sessions.id)"
            " AND NOT EXISTS (SELECT 1 FROM a2_timers t WHERE t.session = a2_sessions.id)",
            (ids,),
        )
    return len(rows)


def dead_letters(
    contract: str | None, after: tuple[SessionKey, int] | None, limit: int
) -> Steps[list[tuple[SessionKey, WorkItem]]]:
    """A page of the dead letters."""
    start = ("", "", 0) if after is None else (after[0].contract, after[0].session_id, after[1])
    rows = yield Statement(
        f"SELECT {_LOG}, {_WORK}, s.contract, s.session_id FROM a2_work w"
        " JOIN a2_sessions s ON s.id = w.session JOIN a2_log l ON l.session = w.session AND l.seq = w.seq"
        " WHERE w.dead_at_ms IS NOT NULL AND (s.contract, s.session_id, w.seq) > (?, ?, ?)"
        " AND s.contract = coalesce(?, s.contract) ORDER BY s.contract, s.session_id, w.seq LIMIT ?",
        (*start, contract, limit),
    )
    return [(SessionKey(*row[-2:]), _item(row)) for row in rows]


def sessions(contract: str | None, after: SessionKey | None, limit: int) -> Steps[list[SessionInfo]]:
    """A page of the sessions."""
    start = ("", "") if after is None else (after.contract, after.session_id)
    rows = yield Statement(
        "SELECT contract, session_id, last_seq, wake_at_ms FROM a2_sessions"
        " WHERE (contract, session_id) > (?, ?) AND contract = coalesce(?, contract)"
        " ORDER BY contract, session_id LIMIT ?",
        (*start, contract, limit),
    )
    return [SessionInfo(SessionKey(row[0], row[1]), row[2], row[3]) for row in rows]


def _load(dialect: Dialect, session: int, last_seq: int, needs: Needs, now_ms: int) -> Steps[Snapshot]:
    loads = _loads(dialect, session, needs)
    found: dict[str, Rows] = dict(zip(loads, (yield list(loads.values())), strict=True))
    waiting = [timer for row in found.get("due", ()) if isinstance(timer := _timer(row), Timer)]
    due = tuple(timer for timer in waiting[:DUE_TIMERS] if timer.due_at_ms <= now_ms)
    entries = [_entry(row) for row in found.get("entries", ())]
    if coming := [draft.id for timer in due for draft in timer.drafts if draft.id not in needs.ids]:
        entries += [_entry(row) for row in (yield _by_id(dialect, session, coming))]
    heads = [_item(row) for row in found.get("heads", ())]
    items = {item.seq: item for item in heads}
    wanted = {*needs.seqs, *(entry.seq for entry in entries)}
    if missing := sorted(wanted - items.keys()):
        among, seqs = dialect.among(missing)
        rows = yield Statement(f"{_WORK_OF} WHERE w.session = ? AND w.seq {among}", (session, seqs))
        items |= {item.seq: item for item in map(_item, rows)}
    return Snapshot(
        last_seq=last_seq,
        entries={entry.id: entry for entry in entries},
        items={seq: items[seq] for seq in wanted if seq in items},
        timers={timer.id: timer for timer in map(_timer, found.get("timers", ()))},
        keyed={row[0]: row[1] for row in found.get("keyed", ())},
        heads=tuple(heads),
        due_timers=due,
        next_timer_at_ms=waiting[len(due)].due_at_ms if len(waiting) > len(due) else None,
        behind=next(map(_item, found.get("behind", ())), None),
    )


def _loads(dialect: Dialect, session: int, needs: Needs) -> dict[str, Statement]:
    """What is loaded at once, by what it is."""
    loads: dict[str, Statement] = {}
    if needs.heads:
        loads["heads"] = Statement(f"{_WORK_OF} WHERE w.session = ? AND w.head = 1 ORDER BY w.seq", (session,))
        loads["due"] = Statement(
            f"SELECT {_TIMER} FROM a2_timers WHERE session = ? AND due_at_ms IS NOT NULL ORDER BY due_at_ms LIMIT ?",
            (session, DUE_TIMERS + 1),
        )
    if needs.ids:
        loads["entries"] = _by_id(dialect, session, needs.ids)
    if needs.timers:
        among, ids = dialect.among(needs.timers)
        loads["timers"] = Statement(f"SELECT {_TIMER} FROM a2_timers WHERE session = ? AND id {among}", (session, ids))
    if needs.keys:
        among, keys = dialect.among(needs.keys)
        loads["keyed"] = Statement(
            "SELECT w.key, l.id FROM a2_work w JOIN a2_log l ON l.session = w.session AND l.seq = w.seq"
            f" WHERE w.session = ? AND w.key {among} AND w.dead_at_ms IS NULL"
            f" UNION ALL SELECT key, id FROM a2_timers WHERE session = ? AND key {among}",
            (session, keys, session, keys),
        )
    if needs.behind is not None:
        loads["behind"] = Statement(
            # a minimum of its own is looked up in the index of lanes; a join that is cut short may walk the whole log
            f"{_WORK_OF} WHERE w.session = ? AND w.seq = (SELECT min(seq) FROM a2_work WHERE session = ? AND seq > ?"
            " AND lane = (SELECT lane FROM a2_work WHERE session = ? AND seq = ?))",
            (session, session, needs.behind, session, needs.behind),
        )
    return loads


def _by_id(dialect: Dialect, session: int, ids: Sequence[str]) -> Statement:
    """The events of these ids."""
    among, wanted = dialect.among(ids)
    return Statement(f"SELECT {_LOG} FROM a2_log l WHERE l.session = ? AND l.id {among}", (session, wanted))


def _write(session: int, needs: Needs, snapshot: Snapshot, plan: Plan[object]) -> Steps[None]:
    if plan.entries:
        yield Statement(
            "INSERT INTO a2_log (session, seq, id, type, payload, cause, created_at_ms, expires_at_ms)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (session, e.seq, e.id, e.type, e.payload, e.cause, e.created_at_ms, plan.expires.get(e.seq))
                for e in plan.entries
            ],
            many=True,
        )
    yield from _write_work(session, needs, snapshot, plan)
    for seq, ending in plan.endings.items():
        yield Statement(
            "UPDATE a2_log SET ending_kind = ?, ending_reason = ? WHERE session = ? AND seq = ?",
            (str(ending.kind), ending.reason, session, seq),
        )
    if rows := [(at_ms, session, seq) for seq, at_ms in plan.expires.items() if seq <= snapshot.last_seq]:
        yield Statement("UPDATE a2_log SET expires_at_ms = ? WHERE session = ? AND seq = ?", rows, many=True)
    for timer in plan.timers:
        yield Statement(
            "INSERT INTO a2_timers (session, id, due_at_ms, delay_ms, drafts, key, rule) VALUES (?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (session, id) DO UPDATE SET due_at_ms = excluded.due_at_ms,"
            " delay_ms = excluded.delay_ms, drafts = excluded.drafts, key = excluded.key, rule = excluded.rule",
            (session, timer.id, *_timer_columns(timer)),
        )
    for timer_id in plan.delivered:
        yield Statement("DELETE FROM a2_timers WHERE session = ? AND id = ?", (session, timer_id))


def _write_work(session: int, needs: Needs, snapshot: Snapshot, plan: Plan[object]) -> Steps[None]:
    known = {item.seq: item for item in snapshot.heads} | dict(snapshot.items)
    if snapshot.behind is not None:
        known[snapshot.behind.seq] = snapshot.behind
    for seq in plan.settled:
        yield Statement("DELETE FROM a2_work WHERE session = ? AND seq = ?", (session, seq))
        if needs.behind != seq or snapshot.behind is not None:  # else nothing is left in its lane
            yield _promote(session, known[seq].lane)
    for item in plan.items:
        if item.seq > snapshot.last_seq:
            yield Statement(
                "INSERT INTO a2_work (attempt, failures, lost, ready_at_ms, holder, expires_at_ms, parked_until_ms,"
                " dead_type, dead_message, dead_at_ms, key, progress, lane, session, seq, head)"
                " SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?,"
                " CASE WHEN EXISTS (SELECT 1 FROM a2_work WHERE session = ? AND lane = ?) THEN 0 ELSE 1 END",
                (*_state(item), session, item.seq, session, item.lane),
            )
        else:
            yield Statement(
                "UPDATE a2_work SET attempt = ?, failures = ?, lost = ?, ready_at_ms = ?, holder = ?,"
                " expires_at_ms = ?, parked_until_ms = ?, dead_type = ?, dead_message = ?, dead_at_ms = ?,"
                " key = ?, progress = ?, lane = ? WHERE session = ? AND seq = ?",
                (*_state(item), session, item.seq),
            )
            if (lane := known[item.seq].lane) != item.lane:
                yield _promote(session, lane)
                yield Statement("UPDATE a2_work SET head = 0 WHERE session = ? AND lane = ?", (session, item.lane))
                yield _promote(session, item.lane)


def _promote(session: int, lane: str) -> Statement:
    """Make the first open item of a lane its head."""
    return Statement(
        "UPDATE a2_work SET head = 1 WHERE session = ? AND seq ="
        " (SELECT min(seq) FROM a2_work WHERE session = ? AND lane = ?)",
        (session, session, lane),
    )


def _entry(row: Sequence[Any]) -> Entry:
    id_, type_, payload, cause, created_at_ms, seq, kind, reason = row[:8]
    ending = None if kind is None else Ending(EndingKind(kind), reason)
    return Entry(id_, type_, payload, cause, created_at_ms, seq, ending)


def _item(row: Sequence[Any]) -> WorkItem:
    lane, attempt, failures, lost, ready_at_ms, holder, expires_at_ms, parked_until_ms, *dead, key, progress = row[8:21]
    return WorkItem(
        entry=_entry(row),
        lane=lane,
        attempt=attempt,
        failures=failures,
        lost=lost,
        ready_at_ms=ready_at_ms,
        claim=None if holder is None else Claim(holder, expires_at_ms),
        parked_until_ms=parked_until_ms,
        dead=None if dead[2] is None else DeadLetter(Failure(dead[0], dead[1]), dead[2]),
        key=key,
        progress=progress,
    )


def _state(item: WorkItem) -> tuple[Any, ...]:
    claim, dead = item.claim, item.dead
    return (
        item.attempt,
        item.failures,
        item.lost,
        item.ready_at_ms,
        *((None, None) if claim is None else (claim.holder, claim.expires_at_ms)),
        item.parked_until_ms,
        *((None, None, None) if dead is None else (dead.failure.type, dead.failure.message, dead.at_ms)),
        item.key,
        item.progress,
        item.lane,
    )


def _timer(row: Sequence[Any]) -> TimerRecord:
    id_, due_at_ms, delay_ms, drafts, rule = row
    if due_at_ms is None:
        return Tombstone(id_)
    return Timer(id_, due_at_ms, delay_ms, tuple(Draft(*draft) for draft in json.loads(drafts)), rule)


def _timer_columns(timer: TimerRecord) -> tuple[Any, ...]:
    if isinstance(timer, Tombstone):
        return None, None, None, None, None
    drafts = [(draft.id, draft.type, draft.payload, draft.lane, draft.key) for draft in timer.drafts]
    return timer.due_at_ms, timer.delay_ms, json.dumps(drafts, ensure_ascii=False), timer.key, timer.rule
