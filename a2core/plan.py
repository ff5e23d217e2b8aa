"""What a decision reads and what it writes: Needs, Snapshot and Plan, the whole contract with a store."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

from a2core.records import Ending, Entry, Timer, TimerRecord, WorkItem

Answer_co = TypeVar("Answer_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Needs:
    """What a store loads for a decision, besides the last seq.

    `ids`: events by id, and their open work; `seqs`: open work by seq; `timers`: timers by id; `keys`: which open
    event, or waiting timer, has such a key; `heads`: the first open item of each lane, the timers that are due (a
    bounded number) and the next one's time; `behind`: a seq, for the next open item in its lane.
    """

    ids: tuple[str, ...] = ()
    seqs: tuple[int, ...] = ()
    timers: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    heads: bool = False
    behind: int | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a store found of it, in one transaction. `entries` also holds the events that due timers would append.

    `keyed` maps a key to the id of the event whose work is open and not dead, or of the timer that waits.
    """

    last_seq: int = 0
    entries: Mapping[str, Entry] = field(default_factory=dict)
    items: Mapping[int, WorkItem] = field(default_factory=dict)
    timers: Mapping[str, TimerRecord] = field(default_factory=dict)
    keyed: Mapping[str, str] = field(default_factory=dict)
    heads: tuple[WorkItem, ...] = ()
    due_timers: tuple[Timer, ...] = ()
    next_timer_at_ms: int | None = None
    behind: WorkItem | None = None


@dataclass(frozen=True, slots=True)
class WakeBy:
    """The session must be looked at by `at_ms`, or earlier if that was already so."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class WakeAt:
    """The session must be looked at exactly at `at_ms`, or never: only a plan that saw all heads may say so."""

    at_ms: int | None


Wake: TypeAlias = WakeBy | WakeAt


def moved_wake(wake_at_ms: int | None, wake: Wake | None) -> int | None:
    """A session's next wake-up after a plan's `wake`."""
    if wake is None:
        return wake_at_ms
    if isinstance(wake, WakeAt) or wake_at_ms is None:
        return wake.at_ms
    return min(wake_at_ms, wake.at_ms)


@dataclass(frozen=True, slots=True)
class Plan(Generic[Answer_co]):
    """Rows to write in the transaction that loaded the snapshot, and what the caller is told.

    `entries` are inserted; `items` and `timers` are inserted or replaced; `settled` work and `delivered` timers are
    deleted; `endings` are noted on log entries by seq, and so is when they expire, after which a purge may remove them;
    `wake` moves the session's next wake-up, None leaves it. An item may change its lane.
    """

    answer: Answer_co
    entries: tuple[Entry, ...] = ()
    items: tuple[WorkItem, ...] = ()
    settled: tuple[int, ...] = ()
    endings: Mapping[int, Ending] = field(default_factory=dict)
    expires: Mapping[int, int] = field(default_factory=dict)
    timers: tuple[TimerRecord, ...] = ()
    delivered: tuple[str, ...] = ()
    wake: Wake | None = None

    @property
    def writes(self) -> bool:
        """Whether there is anything to write."""
        return bool(
            self.entries
            or self.items
            or self.settled
            or self.endings
            or self.expires
            or self.timers
            or self.delivered
            or self.wake
        )

    def is_due(self, now_ms: int) -> bool:
        """Whether it makes the session due at once, so that who could look after it should hear of it."""
        return self.wake is not None and self.wake.at_ms is not None and self.wake.at_ms <= now_ms
