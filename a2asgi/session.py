"""Sessions and contracts as users hold them: the words of the library, each one call to the engine."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Any, TypeAlias, TypeVar

from a2asgi.context import TimerReceipt
from a2asgi.contract import Definition, Reducer
from a2asgi.drain import DrainResult
from a2asgi.engine import Engine, Receipt
from a2asgi.errors import NoDeadLetter
from a2asgi.events import Event, NewEvent
from a2asgi.live import EntryStream
from a2asgi.ports import SessionKey
from a2asgi.times import Duration, from_ms
from a2core import Needs, NotDead, Plan, Snapshot, WorkItem, check_name, decide_redrive, decide_resolve, storable_text

S = TypeVar("S")

Ready: TypeAlias = Callable[[], Awaitable[Engine]]
"""Gives the engine in charge, with its store open."""

PAGE = 500
"""How many events a fold reads at a time."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An event whose handling was given up, and why. It blocks its lane until it is resolved or redriven."""

    contract: str
    session: str
    event_id: str
    event_type: str
    seq: int
    error: str
    message: str
    at: datetime


class LaneState(StrEnum):
    """Where the first open event of a lane stands."""

    RUNNING = "running"
    DUE = "due"
    WAITING = "waiting"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Lane:
    """What a lane is at: its first open event, after which the others wait.

    `attempt` counts the claims of the event so far; `due_at` is when it is tried again, or when its claim ends.
    """

    name: str
    event_id: str
    event_type: str
    seq: int
    state: LaneState
    attempt: int
    due_at: datetime | None


class Session:
    """One session: an ordered log of events."""

    def __init__(self, ready: Ready, definition: Definition, session_id: str) -> None:
        self._ready = ready
        self._definition = definition
        self._key = SessionKey(definition.name, check_name("session id", session_id))

    def __repr__(self) -> str:
        return f"Session({self._key.contract!r}, {self._key.session_id!r})"

    @property
    def id(self) -> str:
        """The session's id."""
        return self._key.session_id

    async def append(
        self,
        *events: object,
        id: str | None = None,  # noqa: A002 - the field's word
        wait: bool = False,
        connection: Any = None,
    ) -> Receipt:
        """Append events, durably and all or none, and have them handled.

        `id` names a single event, so that a repeated call appends nothing; give each of several its own by
        `NewEvent(payload, id=...)`. Inside a running server it returns when the events are durable; `wait=True`
        also waits until the session is settled, or its work waits for a later instant.
        `connection`, an aiosqlite connection to the store's file, appends in the transaction that is open on it: the
        events are there if, and once, that is committed. Call `receipt.committed()` then; see also `a2.transaction`.
        Raises UnknownEvent, InvalidPayload, InvalidName, EventConflict, StoreUnavailable or StoreBroken.
        """
        engine = await self._ready()
        named = _named(events, id)
        if connection is None:
            return await engine.append(self._definition, self._key, named, wait=wait)
        if wait:
            raise ValueError("expected wait= or connection=, got both: nothing is handled before the commit")
        return await engine.append_on(connection, self._definition, self._key, named)

    async def dispatch(self, *events: object, id: str | None = None) -> Receipt:  # noqa: A002 - as above
        """Append events and hand the session to the scheduler at once, running nothing here.

        Raises as `append`, and SendFailed where a provider did not take it: repeat the call with the same ids then.
        """
        engine = await self._ready()
        return await engine.dispatch(self._definition, self._key, _named(events, id))

    async def schedule(
        self, name: str, *events: object, delay: Duration | None = None, at: datetime | None = None
    ) -> TimerReceipt:
        """Let events enter the log at `at`, or `delay` from now.

        The same name, time and events again are the same timer; another time or batch needs another name, or raises
        TimerNameTaken.
        """
        engine = await self._ready()
        return await engine.runtime.schedule(self._definition, self._key, name, events, delay=delay, at=at)

    async def cancel(self, name: str) -> bool:
        """Cancel a timer: its name stays cancelled. False: too late, its events are in the log."""
        engine = await self._ready()
        return await engine.runtime.cancel(self._key, name)

    async def read(self, *, after: int = 0, limit: int = 1_000) -> list[Event[Any]]:
        """Up to `limit` events with a seq above `after`, in order. Reading never wakes anything."""
        if after < 0 or limit < 1:
            raise ValueError(f"expected after >= 0 and limit >= 1, got after={after}, limit={limit}")
        engine = await self._ready()
        return [self._definition.event_of(entry) for entry in await engine.runtime.store.read(self._key, after, limit)]

    def stream(self, *, after: int = 0) -> "EventStream":
        """The events with a seq above `after`, then each as it is appended, by whichever process, without end.

        None is missed and none comes twice. A slow reader costs no memory: it reads the log when it is ready. Raises
        StoreUnavailable or StoreBroken: go on after the last event's seq then. Reading never wakes anything.
        """
        if after < 0:
            raise ValueError(f"expected after >= 0, got {after}")
        return EventStream(self._ready, self._definition, self._key, after)

    async def state(self, reducer: Reducer[S]) -> S:
        """The session's whole history, folded."""
        state = reducer.start()
        after = 0
        while page := await self.read(after=after, limit=PAGE):
            state = reducer.fold(page, state)
            after = page[-1].seq
        return state

    async def lanes(self) -> list[Lane]:
        """What each lane is at, by seq; empty once every event is settled. Reading never wakes anything."""
        engine = await self._ready()

        def look(snapshot: Snapshot, now_ms: int) -> Plan[list[Lane]]:
            return Plan([_lane(item, now_ms) for item in snapshot.heads])

        return await engine.runtime.transact(self._key, Needs(heads=True), look)

    async def drain(self) -> DrainResult:
        """Run whatever the session has to do now, here, until nothing is left."""
        engine = await self._ready()
        return await engine.drain(self._key)

    async def resolve(self, event_id: str, reason: str) -> None:
        """Skip a dead letter: settle its event with a reason, so that its lane goes on. Raises NoDeadLetter."""
        roster = self._definition.roster()
        await self._mend(
            event_id, partial(decide_resolve, event_id=event_id, reason=storable_text(reason), roster=roster)
        )

    async def redrive(self, event_id: str) -> None:
        """Handle a dead letter's event again, with fresh budgets. Raises NoDeadLetter."""
        await self._mend(event_id, partial(decide_redrive, event_id=event_id))

    async def _mend(self, event_id: str, decide: Callable[..., Any]) -> None:
        engine = await self._ready()
        if isinstance(await engine.runtime.transact(self._key, Needs(ids=(event_id,)), decide), NotDead):
            raise NoDeadLetter(event_id)
        await engine.wake(self._key)


class EventStream(AsyncIterator[Event[Any]]):
    """A session's events as they come. Leaving it needs no closing."""

    def __init__(self, ready: Ready, definition: Definition, key: SessionKey, after: int) -> None:
        self._ready = ready
        self._definition = definition
        self._key = key
        self._after = after
        self._entries: EntryStream | None = None

    def __repr__(self) -> str:
        return f"EventStream({self._key.contract!r}, {self._key.session_id!r}, after={self._after})"

    async def __anext__(self) -> Event[Any]:
        """The next event; it waits until there is one."""
        if self._entries is None:
            engine = await self._ready()
            self._entries = engine.runtime.news.stream(self._key, self._after)
        return self._definition.event_of(await anext(self._entries))


class Contract(Definition):
    """A contract of an A2: its event types, its handlers, and the way to its sessions."""

    def __init__(self, ready: Ready, name: str) -> None:
        super().__init__(name)
        self._ready = ready

    def __repr__(self) -> str:
        return f"Contract({self.name!r})"

    def session(self, session_id: str) -> Session:
        """The session of this id. It exists once something is appended. Raises InvalidName."""
        return Session(self._ready, self, session_id)


def dead_letter(key: SessionKey, item: WorkItem) -> DeadLetter:
    """A dead work item as users see it."""
    if item.dead is None:
        raise ValueError(f"expected a dead letter, got {item}")
    failure = item.dead.failure
    at = from_ms(item.dead.at_ms)
    entry = item.entry
    return DeadLetter(key.contract, key.session_id, entry.id, entry.type, entry.seq, failure.type, failure.message, at)


def _lane(item: WorkItem, now_ms: int) -> Lane:
    due_at_ms = item.due_at_ms
    if due_at_ms is None:
        state = LaneState.DEAD
    elif item.is_claimed(now_ms):
        state = LaneState.RUNNING
    else:
        state = LaneState.DUE if due_at_ms <= now_ms else LaneState.WAITING
    due_at = None if due_at_ms is None else from_ms(due_at_ms)
    return Lane(item.lane, item.entry.id, item.entry.type, item.seq, state, item.attempt, due_at)


def _named(events: tuple[object, ...], event_id: str | None) -> tuple[object, ...]:
    if event_id is None:
        return events
    if len(events) != 1:
        raise ValueError(f"id= names one event, got {len(events)}: give each its own by NewEvent(payload, id=...)")
    [event] = events
    if not isinstance(event, NewEvent):
        return (NewEvent(event, id=event_id),)
    if event.id not in {None, event_id}:
        raise ValueError(f"expected one id for the event, got id={event_id!r} and NewEvent(..., id={event.id!r})")
    return (replace(event, id=event_id),)
