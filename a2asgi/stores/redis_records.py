"""What the Redis stores keep, as text: names of keys, rows of a session, a plan as a script's arguments."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from a2asgi.ports import SessionKey
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
    WakeAt,
    WorkItem,
)

SEQ_DIGITS = 16

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_ESCAPES = str.maketrans({"\0": "\1\1", "\1": "\1\2"})
_PLAIN = {"\1\1": "\0", "\1\2": "\1"}


@dataclass(frozen=True, slots=True)
class Layout:
    """Where things are: a session belongs to one of so many shards, and a shard's keys have one hash tag.

    What is kept of a session and the indexes in which it stands are in one slot, so that one script writes both.
    """

    prefix: str
    shards: int

    @property
    def channel(self) -> str:
        """Where it is told what was written."""
        return f"{self.prefix}:told"

    def shard_of(self, key: SessionKey) -> int:
        """The shard of a session."""
        return crc32(member_of(key).encode("utf-8", "surrogatepass")) % self.shards

    def name(self, shard: int, part: str, of: str = "") -> str:
        """The key of one part of a shard, or of what is `of` one session or contract."""
        tagged = f"{{{self.prefix}:{shard}}}:{part}"
        return f"{tagged}:{of}" if of else tagged

    def names(self, key: SessionKey, *parts: str) -> list[str]:
        """The keys of these parts of a session, and of the indexes in which it stands."""
        shard, of = self.shard_of(key), {"wakes": escaped(key.contract)} | dict.fromkeys(INDEXES, "")
        member = member_of(key)
        return [self.name(shard, part, of.get(part, member)) for part in parts]


PARTS = ("meta", "log", "ids", "work", "lanes", "heads", "keyed", "timers", "due")
INDEXES = ("sessions", "dead", "expiring")


def escaped(text: str) -> str:
    """Text without NUL, in the same order, code point by code point."""
    return text.translate(_ESCAPES)


def member_of(key: SessionKey) -> str:
    """A session's name in an index. Names are in the order of contract and session id, code point by code point."""
    return f"{escaped(key.contract)}\0{escaped(key.session_id)}"


def key_of(member: str) -> SessionKey:
    """The session of this name."""
    contract, _, session_id = member.partition("\0")
    return SessionKey(_unescaped(contract), _unescaped(session_id))


def place_of(key: SessionKey, seq: int) -> str:
    """The name of one event of a session in an index."""
    return f"{member_of(key)}\0{seq:0{SEQ_DIGITS}}"


def event_at(place: str) -> tuple[SessionKey, int]:
    """The event of this name."""
    member, _, seq = place.rpartition("\0")
    return key_of(member), int(seq)


def names_of(contract: str | None, after: str | None) -> tuple[str, str]:
    """The range of a contract's names, or of all, that come after this one."""
    first = "-" if contract is None else f"[{escaped(contract)}\0"
    last = "+" if contract is None else f"({escaped(contract)}\1"
    return (first if after is None else max(first, f"({after}", key=lambda bound: bound[1:])), last


def needs_text(needs: Needs) -> str:
    """What to load, for the script that does."""
    wanted: dict[str, Any] = {"ids": needs.ids, "seqs": needs.seqs, "timers": needs.timers, "keys": needs.keys}
    wanted["heads"] = needs.heads
    if needs.behind is not None:
        wanted["behind"] = needs.behind
    return _ENCODER.encode(wanted)


def snapshot(needs: Needs, found: Sequence[Any]) -> Snapshot:
    """What the script loaded, from its last seq on."""
    last_seq, log, work, heads, behind, timers, due, next_timer_at_ms, keyed = found
    entries = {entry.seq: entry for entry in log_of(log)}
    items = {int(seq): _item(entries[int(seq)], row) for seq, row in _pairs(work)}
    due_timers = tuple(timer for id_, row in _pairs(due) if isinstance(timer := _timer(id_, row), Timer))
    ids = {*needs.ids, *(draft.id for timer in due_timers for draft in timer.drafts)}
    known = {entry.id: entry for entry in entries.values() if entry.id in ids}
    seqs = {*needs.seqs, *(entry.seq for entry in known.values())}
    return Snapshot(
        last_seq=int(last_seq),
        entries=known,
        items={seq: item for seq, item in items.items() if seq in seqs},
        timers={id_: _timer(id_, row) for id_, row in _pairs(timers)},
        keyed=dict(_pairs(keyed)),
        heads=tuple(items[int(seq)] for seq in heads),
        due_timers=due_timers,
        next_timer_at_ms=int(next_timer_at_ms) if next_timer_at_ms else None,
        behind=items[int(behind)] if behind else None,
    )


def plan_rows(plan: Plan[object]) -> list[str | int]:
    """A plan as the script's arguments: of each part how many, and then their rows."""
    parts: tuple[Iterable[tuple[str | int, ...]], ...] = (
        [(entry.seq, entry.id, _entry_row(entry)) for entry in plan.entries],
        [(seq,) for seq in plan.settled],
        [(item.seq, _item_row(item)) for item in plan.items],
        [(seq, _ENCODER.encode((ending.kind, ending.reason))) for seq, ending in plan.endings.items()],
        plan.expires.items(),
        [(timer.id, _timer_row(timer)) for timer in plan.timers],
        [(timer_id,) for timer_id in plan.delivered],
    )
    rows: list[str | int] = []
    for part in parts:
        part_rows = list(part)
        rows.append(len(part_rows))
        rows += [value for row in part_rows for value in row]
    if plan.wake is None:
        return [*rows, "", ""]
    at_ms = "" if plan.wake.at_ms is None else plan.wake.at_ms
    return [*rows, "at" if isinstance(plan.wake, WakeAt) else "by", at_ms]


def log_of(rows: Sequence[str]) -> list[Entry]:
    """Entries of a log."""
    return [_entry(row) for row in rows]


def _entry(row: str) -> Entry:
    """An entry. Its ending, if it has one, stands on a second line."""
    first, _, second = row.partition("\n")
    id_, type_, payload, cause, created_at_ms, seq = json.loads(first)
    kind, reason = json.loads(second) if second else (None, "")
    ending = None if kind is None else Ending(EndingKind(kind), reason)
    return Entry(id_, type_, payload, cause, created_at_ms, seq, ending)


def _entry_row(entry: Entry) -> str:
    row = (entry.id, entry.type, entry.payload, entry.cause, entry.created_at_ms, entry.seq)
    if entry.ending is None:
        return _ENCODER.encode(row)
    return f"{_ENCODER.encode(row)}\n{_ENCODER.encode((entry.ending.kind, entry.ending.reason))}"


def _item(entry: Entry, row: str) -> WorkItem:
    lane, key, dead, _, attempt, failures, lost, ready_at_ms, claim, parked_until_ms, progress = json.loads(row)
    return WorkItem(
        entry=entry,
        lane=lane,
        attempt=attempt,
        failures=failures,
        lost=lost,
        ready_at_ms=ready_at_ms,
        claim=None if claim is None else Claim(*claim),
        parked_until_ms=parked_until_ms,
        dead=None if dead is None else DeadLetter(Failure(dead[0], dead[1]), dead[2]),
        key=key,
        progress=progress,
    )


def _item_row(item: WorkItem) -> str:
    claim, dead = item.claim, item.dead
    return _ENCODER.encode(
        (
            item.lane,
            item.key,
            None if dead is None else (dead.failure.type, dead.failure.message, dead.at_ms),
            item.entry.id,
            item.attempt,
            item.failures,
            item.lost,
            item.ready_at_ms,
            None if claim is None else (claim.holder, claim.expires_at_ms),
            item.parked_until_ms,
            item.progress,
        )
    )


def _timer(timer_id: str, row: str) -> TimerRecord:
    columns = json.loads(row)
    if not columns:
        return Tombstone(timer_id)
    _, due_at_ms, _, delay_ms, drafts, rule = columns
    return Timer(timer_id, due_at_ms, delay_ms, tuple(Draft(*draft) for draft in drafts), rule)


def _timer_row(timer: TimerRecord) -> str:
    if isinstance(timer, Tombstone):
        return "[]"
    ids = [draft.id for draft in timer.drafts]
    drafts = [(draft.id, draft.type, draft.payload, draft.lane, draft.key) for draft in timer.drafts]
    return _ENCODER.encode((timer.key, timer.due_at_ms, ids, timer.delay_ms, drafts, timer.rule))


def _pairs(flat: Sequence[str]) -> Iterator[tuple[str, str]]:
    return zip(flat[::2], flat[1::2], strict=True)


def _unescaped(text: str) -> str:
    """The text before it was escaped."""
    if "\1" not in text:
        return text
    parts = [text[at : at + 2] for at in _places(text)]
    return "".join(_PLAIN.get(part, part[:1]) for part in parts)


def _places(text: str) -> Iterator[int]:
    at = 0
    while at < len(text):
        yield at
        at += 2 if text[at] == "\1" else 1
