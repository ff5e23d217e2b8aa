"""The rows of a session as values, which a store keeps: log entries, open work, timers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from a2core.backoff import RetryPolicy


class EndingKind(StrEnum):
    """Why an event was settled without its handler succeeding."""

    CANCELLED = "cancelled"
    """The handler answered that the event needs no handling any more."""
    SKIPPED = "skipped"
    """An operator resolved its dead letter."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How the handling of an event ended, where that was not success."""

    kind: EndingKind
    reason: str


@dataclass(frozen=True, slots=True)
class Draft:
    """An event before it is in the log. `payload` is canonical JSON text, `lane` its ordering key.

    `key`: while its work is open, or it waits in a timer, that is found by this key (`Needs.keys`).
    """

    id: str
    type: str
    payload: str
    lane: str
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One event of the log. `seq` counts from 1 in its session; `cause` is the event whose handler produced it."""

    id: str
    type: str
    payload: str
    cause: str | None
    created_at_ms: int
    seq: int
    ending: Ending | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """A lease on one work item. It ends at `expires_at_ms`, an instant that already counts as after the end."""

    holder: str
    expires_at_ms: int


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as it is stored: its type's name and a message that every store can keep."""

    type: str
    message: str


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Why and when the handling of an event was given up."""

    failure: Failure
    at_ms: int


@dataclass(frozen=True, slots=True)
class WorkItem:
    """The handling state of one unsettled event.

    `attempt` counts claims and never falls: it is the fencing token. `failures` and `lost` are the two budgets spent.
    `progress` is JSON text, the last that a holder noted.
    """

    entry: Entry
    lane: str
    attempt: int = 0
    failures: int = 0
    lost: int = 0
    ready_at_ms: int = 0
    claim: Claim | None = None
    parked_until_ms: int | None = None
    dead: DeadLetter | None = None
    key: str | None = None
    progress: str | None = None

    @property
    def seq(self) -> int:
        """The seq of the event."""
        return self.entry.seq

    def is_claimed(self, now_ms: int) -> bool:
        """Whether someone holds a live claim on it."""
        return self.claim is not None and self.claim.expires_at_ms > now_ms

    @property
    def due_at_ms(self) -> int | None:
        """When it is worth looking at again, were it the head of its lane; None while it is a dead letter."""
        if self.dead is not None:
            return None
        if self.claim is not None:
            return self.claim.expires_at_ms
        return max(self.ready_at_ms, self.parked_until_ms or 0)


@dataclass(frozen=True, slots=True)
class Timer:
    """Events that enter the log at `due_at_ms`. `delay_ms` is the delay that was asked for, None for an instant.

    One with a `rule` recurs: its roster's `recur` reads the rule, and says what it appends and when it is due next.
    """

    id: str
    due_at_ms: int
    delay_ms: int | None
    drafts: tuple[Draft, ...]
    rule: str | None = None

    @property
    def key(self) -> str | None:
        """The key by which it is found while it waits."""
        return next((draft.key for draft in self.drafts if draft.key is not None), None)


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A cancelled timer: it stays cancelled, and a delivery that is still under way appends nothing."""

    id: str


TimerRecord: TypeAlias = Timer | Tombstone


@dataclass(frozen=True, slots=True)
class Recurrence:
    """What a recurring timer that is due appends, and the timer that takes its place, if it goes on."""

    drafts: tuple[Draft, ...]
    following: Timer | None


Recur: TypeAlias = Callable[[Timer, int], Recurrence]
"""Reads a due timer's rule at `now_ms`. Pure: it may be called again, and by another process."""


@dataclass(frozen=True, slots=True)
class Roster:
    """What one version of the code knows of a contract.

    `handled`: its handlers' policies by event type; `unhandled`: the types it declares without a handler. Any other
    type was stored by a newer version. `recur` reads the rules of its recurring timers.
    """

    handled: Mapping[str, RetryPolicy]
    unhandled: frozenset[str]
    recur: Recur | None = None

    def expiry(self, event_type: str, now_ms: int, *seqs: int) -> Mapping[int, int]:
        """When events that are settled together may be purged, by seq; empty for what its policy keeps for good."""
        policy = self.handled.get(event_type)
        return {} if policy is None or policy.keep_ms is None else dict.fromkeys(seqs, now_ms + policy.keep_ms)

    def settles_at_append(self, event_type: str) -> bool:
        """Whether an event of this type is settled by being in the log (engine.md 1)."""
        return event_type in self.unhandled
