"""What the holders of a session may do: decisions of the core, as values that Hypothesis can draw, show and shrink."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

from hypothesis import strategies as st

from a2asgi.ports import Decide
from a2asgi.testing.store_bench import HOUR_MS
from a2core import (
    Backoff,
    Draft,
    Ending,
    EndingKind,
    Failure,
    Needs,
    Plan,
    RetryPolicy,
    Roster,
    Snapshot,
    Timer,
    WorkItem,
    decide_append,
    decide_cancel,
    decide_claim,
    decide_fail,
    decide_give_up,
    decide_note,
    decide_redrive,
    decide_release,
    decide_renew,
    decide_resolve,
    decide_schedule,
    decide_settle,
    decide_snooze,
)

HOLDERS = ("h1", "h2", "h3")
IDS = tuple(f"e{number}" for number in range(10))
TYPES = ("order", "run", "order", "note", "run", "novel")
TIMERS = ("t0", "t1", "t2")
LEASE_HOURS = 2
BOOM = Failure("ValueError", "boom")
STRICT = RetryPolicy(max_failures=2, max_lost=2, backoff=Backoff(HOUR_MS, 1, HOUR_MS, 0))
ROSTER = Roster(
    {
        "order": STRICT,
        "run": replace(STRICT, aside=True, on_dead="told", keep_ms=HOUR_MS),
        "told": RetryPolicy(keep_ms=HOUR_MS),
    },
    frozenset({"note"}),
)
"""A type that blocks its lane and is kept, one that goes aside, is told of and removed, and one without a handler."""

Held: TypeAlias = Mapping[str, Sequence[WorkItem]]
"""All that each holder has ever claimed of a session. It never learns what became of it: that makes it stale."""

Decision: TypeAlias = tuple[Needs, Decide[Any]]


class Act(Protocol):
    """Something that is done to a session."""

    def decision(self, held: Held, /) -> Decision:
        """What it needs and decides, by whoever holds these claims."""
        ...


@dataclass(frozen=True)
class Append:
    drafts: tuple[Draft, ...]

    def decision(self, _: Held, /) -> Decision:
        return needing(self.drafts), lambda seen, now_ms: decide_append(
            seen, now_ms, drafts=self.drafts, roster=ROSTER, wake_by_ms=now_ms + HOUR_MS
        )


@dataclass(frozen=True)
class Claim:
    holder: str
    limit: int

    def decision(self, _: Held, /) -> Decision:
        return Needs(heads=True), lambda seen, now_ms: decide_claim(
            seen,
            now_ms,
            holder=self.holder,
            limit=self.limit,
            roster=ROSTER,
            expires_at_ms=now_ms + LEASE_HOURS * HOUR_MS,
        )


@dataclass(frozen=True)
class Renew:
    holder: str

    def decision(self, held: Held, /) -> Decision:
        attempts = attempts_of(held, self.holder)
        return Needs(seqs=tuple(attempts), heads=True), lambda seen, now_ms: decide_renew(
            seen, now_ms, held=attempts, expires_at_ms=now_ms + (LEASE_HOURS + 1) * HOUR_MS
        )


@dataclass(frozen=True)
class Release:
    holder: str

    def decision(self, held: Held, /) -> Decision:
        attempts = attempts_of(held, self.holder)
        return Needs(seqs=tuple(attempts)), lambda seen, now_ms: decide_release(seen, now_ms, held=attempts)


@dataclass(frozen=True)
class End:
    """A holder ends one of its claims, the last one it took or an earlier one; without any it makes one up."""

    how: str
    holder: str
    back: int
    drafts: tuple[Draft, ...]

    def decision(self, held: Held, /) -> Decision:
        claims = held.get(self.holder, ())
        item = claims[-1 - self.back % len(claims)] if claims else None
        seq, attempt = (1, 1) if item is None else (item.seq, item.attempt)
        ending = Ending(EndingKind.CANCELLED, "moot") if self.how == "cancel" else None
        ways: dict[str, Decide[Any]] = {
            "fail": lambda seen, now_ms: decide_fail(
                seen, now_ms, seq=seq, attempt=attempt, roster=ROSTER, failure=BOOM, delay_ms=HOUR_MS
            ),
            "snooze": lambda seen, now_ms: decide_snooze(seen, now_ms, seq=seq, attempt=attempt, delay_ms=HOUR_MS),
            "give up": lambda seen, now_ms: decide_give_up(
                seen, now_ms, seq=seq, attempt=attempt, roster=ROSTER, failure=BOOM
            ),
            "note": lambda seen, now_ms: decide_note(seen, now_ms, seq=seq, attempt=attempt, progress=f"[{now_ms}]"),
        }
        return needing(self.drafts, seq), ways.get(
            self.how,
            lambda seen, now_ms: decide_settle(
                seen, now_ms, seq=seq, attempt=attempt, drafts=self.drafts, roster=ROSTER, ending=ending
            ),
        )


@dataclass(frozen=True)
class Resolve:
    event_id: str

    def decision(self, _: Held, /) -> Decision:
        return Needs(ids=(self.event_id,)), lambda seen, now_ms: decide_resolve(
            seen, now_ms, event_id=self.event_id, reason="moot", roster=ROSTER
        )


@dataclass(frozen=True)
class Redrive:
    event_id: str

    def decision(self, _: Held, /) -> Decision:
        return Needs(ids=(self.event_id,)), lambda seen, now_ms: decide_redrive(seen, now_ms, event_id=self.event_id)


@dataclass(frozen=True)
class Schedule:
    name: str
    hours: int
    drafts: tuple[Draft, ...]

    def decision(self, _: Held, /) -> Decision:
        delay_ms = self.hours * HOUR_MS
        needs = replace(needing(self.drafts), timers=(self.name,))
        return needs, lambda seen, now_ms: decide_schedule(
            seen, now_ms, timer=Timer(self.name, now_ms + delay_ms, delay_ms, self.drafts), keep=True
        )


@dataclass(frozen=True)
class Cancel:
    name: str
    first: str

    def decision(self, _: Held, /) -> Decision:
        return Needs(ids=(self.first,), timers=(self.name,)), lambda seen, now_ms: decide_cancel(
            seen, now_ms, timer_id=self.name, first_event_id=self.first
        )


@dataclass(frozen=True)
class Look:
    """Reads all that a session holds, up to a seq, and decides nothing."""

    last_seq: int = 20

    def decision(self, _: Held, /) -> Decision:
        needs = Needs(IDS, tuple(range(1, self.last_seq + 1)), TIMERS, heads=True)
        return needs, lambda seen, _now_ms: Plan(in_order(seen))


def needing(drafts: Sequence[Draft], *seqs: int) -> Needs:
    return Needs(tuple(dict.fromkeys(draft.id for draft in drafts)), seqs)


def attempts_of(held: Held, holder: str) -> dict[int, int]:
    """The last attempt at each event that this holder claimed."""
    return {item.seq: item.attempt for item in held.get(holder, ())}


def in_order(snapshot: Snapshot) -> Snapshot:
    """The same with its rows in one order, and its maps as plain dicts."""
    return replace(
        snapshot,
        entries=dict(snapshot.entries),
        items=dict(snapshot.items),
        timers=dict(snapshot.timers),
        keyed=dict(snapshot.keyed),
        heads=tuple(sorted(snapshot.heads, key=lambda item: item.seq)),
        due_timers=tuple(sorted(snapshot.due_timers, key=lambda timer: timer.id)),
    )


def _draft(number: int, payload: str) -> Draft:
    """An id has one type and one lane, and mostly one payload: another one is a conflict."""
    type_ = TYPES[number % len(TYPES)]
    return Draft(IDS[number], type_, payload, type_ if type_ == "novel" else "ab"[number % 2])


holders = st.sampled_from(HOLDERS)
_ids = st.sampled_from(IDS)
_hours = st.integers(0, 2)
_draft_of = st.builds(_draft, st.integers(0, len(IDS) - 1), st.sampled_from(["{}", "{}", "{}", "{}", "0"]))
_some = st.lists(_draft_of, min_size=1, max_size=3).map(tuple)
_any = st.lists(_draft_of, max_size=2).map(tuple)

appends = st.builds(Append, _some)
claims = st.builds(Claim, holders, st.integers(1, 3))
renewals = st.builds(Renew, holders)
releases = st.builds(Release, holders)
ways = st.sampled_from(["settle", "settle", "settle", "fail", "fail", "give up", "snooze", "cancel", "note"])
endings = st.builds(End, ways, holders, st.integers(0, 3), _any)
resolutions = st.builds(Resolve, _ids)
redrives = st.builds(Redrive, _ids)
timers = st.builds(Schedule, st.sampled_from(TIMERS), _hours, _some)
cancellations = st.builds(Cancel, st.sampled_from(TIMERS), _ids)
looks = st.just(Look())
acts: st.SearchStrategy[Act] = st.one_of(
    appends, claims, claims, endings, endings, renewals, releases, resolutions, redrives, timers, cancellations, looks
)
