"""The context of one attempt: all that a handler may do besides its own work."""

import json
import logging
import math
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Protocol, TypeVar, TypeVarTuple

from anyio import from_thread
from anyio.lowlevel import current_token

from a2asgi.times import Duration
from a2core import encode_json, storable_text

T = TypeVar("T")
Args = TypeVarTuple("Args")


@dataclass(frozen=True, slots=True)
class TimerReceipt:
    """An accepted timer. `state` is "scheduled", or what became of the name: "delivered" or "cancelled"."""

    name: str
    id: str
    state: str
    due_at: datetime | None


class Timers(Protocol):
    """What a context can do with its session's timers."""

    async def schedule(
        self, name: str, *events: object, delay: Duration | None = None, at: datetime | None = None
    ) -> TimerReceipt:
        """Let events enter the log later."""
        ...

    async def cancel(self, name: str) -> bool:
        """Cancel a timer by name."""
        ...


@dataclass(slots=True)
class AttemptInfo:
    """What both kinds of context know of the attempt.

    `number` counts the claims of this event from 1; `deadline` is when the platform or the handler's time-out ends
    it, if that is known. `log` names the session in every line; `dependencies` is what A2 was given. `note` keeps
    progress, which is JSON text; the last is in `progress`.
    """

    session: str
    event_id: str
    number: int
    deadline: datetime | None
    log: "logging.LoggerAdapter[logging.Logger]"
    dependencies: Any
    timers: Timers
    note: Callable[[str], Coroutine[Any, Any, None]]
    progress: str | None
    produced: list[object] = field(default_factory=list)


class _Context:
    """What both kinds of context can tell."""

    def __init__(self, attempt: AttemptInfo) -> None:
        self._attempt = attempt

    @property
    def session(self) -> str:
        """The session's id."""
        return self._attempt.session

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        return self._attempt.number

    @property
    def deadline(self) -> datetime | None:
        """When this attempt will be ended, if that is known."""
        return self._attempt.deadline

    @property
    def log(self) -> "logging.LoggerAdapter[logging.Logger]":
        """A logger that names the session and event."""
        return self._attempt.log

    @property
    def dependencies(self) -> Any:
        """What `A2(dependencies=...)` was given."""
        return self._attempt.dependencies


class _ThreadContext(_Context):
    """What both kinds of context can do from a thread. It is made on the event loop, to which `run` comes back."""

    def __init__(self, attempt: AttemptInfo) -> None:
        super().__init__(attempt)
        self._token = current_token()

    def run(self, function: Callable[[*Args], Coroutine[Any, Any, T]], *args: *Args) -> T:
        """Call an async function on the event loop, such as a job's `enqueue`, and wait for it here."""
        return from_thread.run(function, *args, token=self._token)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job is: `done` of `total`, in any unit, and a note for people."""

    done: int | float
    total: int | float | None = None
    note: str | None = None

    def __post_init__(self) -> None:
        given: dict[str, Any] = {"done": self.done, "total": 0 if self.total is None else self.total}
        for name, value in given.items():
            if not (isinstance(value, int | float) and 0 <= value < math.inf):
                raise ValueError(f"progress: expected {name} to be a number, zero or more, got {value!r}")

    @property
    def fraction(self) -> float | None:
        """From 0.0 to 1.0; None where the total is not known."""
        return min(1.0, self.done / self.total) if self.total else None


def read_progress(text: str) -> Progress:
    """Progress as it is stored."""
    return Progress(**json.loads(text))


class _JobContext(_Context):
    """What both kinds of job context can tell."""

    @property
    def job_id(self) -> str:
        """The job's id, by which its status is asked."""
        return self._attempt.event_id

    @property
    def last_progress(self) -> Progress | None:
        """What was noted last, by this attempt or one before it, which tells where to go on."""
        return None if self._attempt.progress is None else read_progress(self._attempt.progress)

    def _noted(self, done: float, total: float | None, note: str | None) -> str:
        progress = Progress(done, total, None if note is None else storable_text(note))
        self._attempt.progress = encode_json({"done": progress.done, "total": progress.total, "note": progress.note})
        return self._attempt.progress


class JobContext(_JobContext):
    """What an async job may do."""

    async def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Keep how far the job is, for `status` to tell. Each call is one write.

        Raises AttemptEnded once the job was cancelled, or is another attempt's; StoreUnavailable or StoreBroken.
        """
        await self._attempt.note(self._noted(done, total, note))


class SyncJobContext(_ThreadContext, _JobContext):
    """What a plain-function job may do, from its thread."""

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """As JobContext.progress. A thread cannot be cancelled: what it raises is how a cancelled job is stopped."""
        self.run(self._attempt.note, self._noted(done, total, note))


class Context(_Context):
    """What an async handler may do."""

    async def append(self, *events: object) -> None:
        """Append events when this handler succeeds, in the transaction that settles its event.

        A failed attempt appends nothing.
        """
        self._attempt.produced.extend(events)

    async def schedule(
        self, name: str, *events: object, delay: Duration | None = None, at: datetime | None = None
    ) -> TimerReceipt:
        """Let events enter this session's log at `at`, or `delay` after the handled event was created.

        Accepted at once, whatever becomes of this attempt; calling it again with the same name, time and events is
        the same timer.
        """
        return await self._attempt.timers.schedule(name, *events, delay=delay, at=at)

    async def cancel(self, name: str) -> bool:
        """Cancel a timer of this session. False: too late, its events are in the log."""
        return await self._attempt.timers.cancel(name)


class SyncContext(_ThreadContext):
    """What a plain-function handler may do, from its thread."""

    def append(self, *events: object) -> None:
        """As Context.append."""
        self._attempt.produced.extend(events)

    def schedule(
        self, name: str, *events: object, delay: Duration | None = None, at: datetime | None = None
    ) -> TimerReceipt:
        """As Context.schedule."""
        return self.run(partial(self._attempt.timers.schedule, name, *events, delay=delay, at=at))

    def cancel(self, name: str) -> bool:
        """As Context.cancel."""
        return self.run(self._attempt.timers.cancel, name)
