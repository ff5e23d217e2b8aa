"""Contracts: the event types of one kind of session, their handlers and their policies, as pure data."""

import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, Generic, TypeAlias, TypeVar, overload

from a2asgi.context import AttemptInfo, Context, SyncContext
from a2asgi.errors import UnknownEvent, WiringError
from a2asgi.events import Event, EventType, NewEvent
from a2asgi.payloads import payload_type
from a2asgi.retries import Retry
from a2asgi.times import Duration, duration_ms, from_ms
from a2core import (
    Draft,
    Entry,
    InvalidPayload,
    Recur,
    RetryPolicy,
    Roster,
    Schedule,
    TaskEvent,
    check_name,
    decode_json,
)

P = TypeVar("P")
S = TypeVar("S")

log: logging.Logger = logging.getLogger("a2asgi.contract")

MakeContext: TypeAlias = Callable[[AttemptInfo], object]

START: Any = object()
"""Stands for the initial state, since None may be a state."""

DEFAULT_LANE = "main"
"""The lane of every event that names no other, so a session's events are handled in order unless told otherwise."""


@dataclass(frozen=True, slots=True)
class Handler:
    """The function that reacts to one type of event, and how it is run.

    `make_context` makes its second argument, on the event loop, of what it may do; a handler that takes none has none.
    """

    function: Callable[..., Any]
    policy: RetryPolicy
    timeout_ms: int | None
    is_async: bool
    make_context: MakeContext | None
    name: str = field(init=False)
    """The function's dotted name."""
    code: CodeType | None = field(init=False)
    """The function's code, by which a thread's stack shows that it is running."""

    def __post_init__(self) -> None:
        function = inspect.unwrap(self.function)
        name = f"{function.__module__}.{getattr(function, '__qualname__', repr(function))}"
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "code", getattr(function, "__code__", None))


class Registrar(Generic[P]):
    """The decorator that `on` returns: it takes a handler, registers it, and gives it back unchanged."""

    def __init__(self, register: Callable[[Callable[..., Any]], None]) -> None:
        self._register = register

    @overload
    def __call__(
        self, function: Callable[[Event[P], Context], Awaitable[object]]
    ) -> Callable[[Event[P], Context], Awaitable[object]]: ...
    @overload
    def __call__(
        self, function: Callable[[Event[P], SyncContext], object]
    ) -> Callable[[Event[P], SyncContext], object]: ...
    @overload
    def __call__(self, function: Callable[[Event[P]], object]) -> Callable[[Event[P]], object]: ...
    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Register the handler."""
        self._register(function)
        return function


@dataclass(frozen=True, slots=True)
class Reducer(Generic[S]):
    """Folds a session's history into a state: the same function on server and client."""

    initial: S
    step: Callable[[S, Event[Any]], S]

    def start(self) -> S:
        """The initial state, a copy of its own: a step may change what it is given."""
        return deepcopy(self.initial)

    def fold(self, events: Iterable[Event[Any]], state: S = START) -> S:
        """The state after `events`, from the initial one, or on from `state`."""
        folded = self.start() if state is START else state
        for event in events:
            folded = self.step(folded, event)
        return folded


class Definition:
    """A contract as data: its name, its event types and what handles them.

    `priority`: whose wake-ups go first, the highest. `at_once`: how many of its handlers one process runs at a time.
    `recurrence`: the rule of its recurring timer, and the schedule that the rule stands for.
    """

    priority: int = 0
    at_once: int | None = None
    recurrence: tuple[str, Schedule] | None = None

    def __init__(self, name: str) -> None:
        self.name: str = check_name("contract name", name)
        self.handlers: dict[str, Handler] = {}
        self._types: dict[str, EventType[Any]] = {}
        self._classes: dict[type, EventType[Any]] = {}
        self._roster: Roster | None = None

    @overload
    def event(self, name: str, *, lane: str | Callable[[Any], str] = DEFAULT_LANE) -> Callable[[type[P]], type[P]]: ...
    @overload
    def event(self, name: str, payload: type[P], *, lane: str | Callable[[P], str] = DEFAULT_LANE) -> EventType[P]: ...
    @overload
    def event(self, name: str, payload: None, *, lane: str = DEFAULT_LANE) -> EventType[None]: ...
    def event(
        self,
        name: str,
        payload: Any = ...,
        *,
        lane: str | Callable[[Any], str] = DEFAULT_LANE,
    ) -> Any:
        """Declare a type of event: as a class decorator, or `noted = orders.event("noted", dict)`.

        `payload` is a pydantic model, dataclass, TypedDict, msgspec struct, plain container, or None for no payload.
        `lane` names the lane in which such events are handled in order, or is a function of the payload that does.
        Raises WiringError for a name that is taken or a type that cannot be a payload.
        """
        if payload is not ...:
            return self._declare(name, payload, lane)

        def declare(cls: type[P]) -> type[P]:
            if cls in self._classes:
                raise WiringError(f"{cls!r} is event {self._classes[cls].name!r} already: one class is one event")
            self._classes[cls] = self._declare(name, cls, lane)
            return cls

        return declare

    def on(
        self, event: type[P] | EventType[P], *, retry: Retry | None = None, timeout: Duration | None = None
    ) -> Registrar[P]:
        """Declare the handler of a type of event, as a decorator.

        The handler takes the event, or the event and a context, and is async or a plain function, which runs on a
        thread. It returns None, events to append, or an outcome (Snooze, Cancel, Fail). `timeout` ends an attempt,
        which then counts as a failure. Raises WiringError for an unknown event or a second handler.
        """
        event_type = self._type_of(event)
        if event_type is None:
            raise WiringError(
                f'contract {self.name!r} has no event {event!r}: declare it first, @{self.name}.event("...")'
            )
        policy = (retry or Retry()).policy()
        timeout_ms = None if timeout is None else duration_ms(timeout)
        if timeout_ms == 0:
            raise WiringError(f"handler of {event_type.name!r}: expected a positive timeout, got {timeout!r}")

        def register(function: Callable[..., Any]) -> None:
            if (other := self.handlers.get(event_type.name)) is not None:
                raise WiringError(
                    f"event {event_type.name!r} of contract {self.name!r} is handled by {other.name} already: "
                    "an event has one handler; call the other function from it"
                )
            self.handlers[event_type.name] = make_handler(function, policy, timeout_ms)

        return Registrar(register)

    def reduce(self, initial: S, step: Callable[[S, Event[Any]], S]) -> Reducer[S]:
        """A reducer for `session.state`: `step(state, event)` returns the next state."""
        return Reducer(initial, step)

    def roster(self) -> Roster:
        """What this version of the code knows, for the core."""
        roster = self._roster
        known = (len(self.handlers), len(self._types) - len(self.handlers))
        if roster is None or (len(roster.handled), len(roster.unhandled)) != known:  # both only grow
            unhandled = frozenset(name for name in self._types if name not in self.handlers)
            handled = {name: handler.policy for name, handler in self.handlers.items()}
            roster = self._roster = Roster(handled, unhandled, self.recur)
        return roster

    @property
    def recur(self) -> Recur | None:
        """What reads the rules of its recurring timers."""
        return None

    def draft(self, event: object, make_id: Callable[[], str]) -> Draft:
        """A payload or NewEvent as the core takes it; `make_id` is asked where it has no id.

        Raises UnknownEvent, InvalidPayload or InvalidName.
        """
        new = event if isinstance(event, NewEvent) else NewEvent(event)
        event_type = self._type_of(type(new.payload) if new.type is None else new.type)
        if event_type is None:
            raise UnknownEvent(
                f"contract {self.name!r} has no event for {new.type or type(new.payload)!r}: expected one of "
                f'{sorted(self._types)}. A plain value needs its type: NewEvent(value, type="...")'
            )
        return event_type.draft(new.payload, make_id() if new.id is None else new.id)

    def task_draft(self, event: TaskEvent) -> Draft:
        """A timer's event as the core takes it.

        It was validated when it was scheduled: where the code has changed since and cannot tell its lane, it is in the
        default one, and its handler says what is wrong.
        """
        event_type = self._types.get(event.type)
        lane = DEFAULT_LANE
        if event_type is not None:
            try:
                lane = event_type.lane_of(event.payload)
            except Exception as error:  # noqa: BLE001 - the lane function is the user's
                log.warning("event %r has no lane of its own now: %r", event.id, error)
        return Draft(event.id, event.type, event.payload, lane)

    def event_of(self, entry: Entry) -> Event[Any]:
        """A log entry with its typed payload; plain JSON where this code does not know the type.

        Raises InvalidPayload, naming the event, where the payload no longer fits its type.
        """
        event_type = self._types.get(entry.type)
        try:
            payload = decode_json(entry.payload) if event_type is None else event_type.payload.decode(entry.payload)
        except InvalidPayload as error:
            raise InvalidPayload(error.path, f"{error.reason} (event {entry.id!r} of type {entry.type!r})") from error
        created_at = from_ms(entry.created_at_ms)
        return Event(entry.id, entry.type, payload, entry.cause, created_at, entry.seq, entry.ending)

    def _declare(self, name: str, payload: Any, lane: str | Callable[[Any], str]) -> EventType[Any]:
        check_name("event type", name)
        if name in self._types:
            raise WiringError(f"contract {self.name!r} declares event {name!r} twice: give one of them another name")
        annotation = type(None) if payload is None else payload
        lane = lane if callable(lane) else check_name("lane", lane)
        self._types[name] = EventType(name, self.name, payload_type(annotation), lane)
        return self._types[name]

    def _type_of(self, event: object) -> EventType[Any] | None:
        if isinstance(event, EventType):
            return event if self._types.get(event.name) is event else None
        if isinstance(event, str):
            return self._types.get(event)
        if isinstance(event, type):
            return next((self._classes[cls] for cls in event.__mro__ if cls in self._classes), None)
        return None


def make_handler(function: Callable[..., Any], policy: RetryPolicy, timeout_ms: int | None) -> Handler:
    """A function of an event, or of an event and a context, as a handler. Raises WiringError."""
    takes_context = _takes(function, "event", "context")
    if not takes_context and not _takes(function, "event"):
        raise WiringError(f"{function!r} cannot be a handler: expected (event) or (event, context) as its parameters")
    is_async = is_async_function(function)
    make_context: MakeContext = Context if is_async else SyncContext
    return Handler(function, policy, timeout_ms, is_async, make_context if takes_context else None)


def is_async_function(function: Callable[..., Any]) -> bool:
    """Whether calling it gives something to await. Raises WiringError for one that yields."""
    faces = (function, inspect.unwrap(function), type(function).__call__)
    if any(inspect.isgeneratorfunction(face) or inspect.isasyncgenfunction(face) for face in faces):
        raise WiringError(f"{function!r} cannot be a handler: it yields; return the events, or await ctx.append(...)")
    return any(inspect.iscoroutinefunction(face) for face in faces)


def _takes(function: object, *arguments: str) -> bool:
    try:
        inspect.signature(function).bind(*arguments)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return True
