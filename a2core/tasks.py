"""Tasks: what a scheduler carries until its due time, and the message that carries it (wire.md 1, 2 and 4)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite
from typing import Any, TypeAlias, assert_never

from a2core.errors import A2Error
from a2core.jsontext import MAX_WIRE_DEPTH, Json, NotJson, decode_json, dump_json, parse_json

MAX_GENERATION = 2**53 - 2
"""The last generation of an outage lineage that every JSON reader holds exactly; it stays there (wire.md 11.1)."""

OUTAGE_KEY = "_a2QStash"
HOP_KEY = "_a2Hop"
WIRE_VERSION = 1
SHOWN_CHARS = 40
"""How much of a text an error message repeats."""


class InvalidTask(A2Error, ValueError):
    """A task that no receiver would take: an empty id, a due time that is no finite number, no events."""

    code = "INVALID_TASK"


@dataclass(frozen=True, slots=True)
class DrainTask:
    """Wake this session and run what is pending. It carries recovery only; the store is the truth."""

    contract: str
    session_id: str
    due_at_ms: int | float

    def __post_init__(self) -> None:
        _check(self, contract=self.contract, sessionId=self.session_id)


@dataclass(frozen=True, slots=True)
class TaskEvent:
    """One event of an append task; `payload` is canonical JSON text."""

    id: str
    type: str
    payload: str

    def to_json(self) -> Json:
        """The event as the wire holds it."""
        return {"id": self.id, "type": self.type, "payload": decode_json(self.payload)}


@dataclass(frozen=True, slots=True)
class AppendTask:
    """Append these events, whose ids are fixed, then run what is pending. `id` is stable across retries.

    Each event is a JSON object of `id`, `type` and `payload`; they are looked at when they are appended.
    Raises InvalidTask for what could not be read back.
    """

    id: str
    contract: str
    session_id: str
    due_at_ms: int | float
    events: tuple[Json, ...] = field(repr=False, hash=False)  # what users write is never printed

    def __post_init__(self) -> None:
        _check(self, id=self.id, contract=self.contract, sessionId=self.session_id)
        if not (isinstance(self.events, tuple) and self.events):  # type: ignore[redundant-expr]
            got = "none" if self.events == () else _shown(self.events)
            raise InvalidTask(f"append task: expected one event or more, in a tuple, got {got}")
        try:
            dump_json(list(self.events), MAX_WIRE_DEPTH - 1)
        except NotJson as error:
            raise InvalidTask(f"append task: expected events that JSON can hold, got one that is {error}") from error


Task: TypeAlias = DrainTask | AppendTask


@dataclass(frozen=True, slots=True)
class Outage:
    """A place in the lineage of successors that a store outage made. A drain's knows its first due time."""

    generation: int
    root_due_at_ms: int | None


@dataclass(frozen=True, slots=True)
class Hop:
    """The nth leg of an append whose due time is beyond the provider's longest delay."""

    number: int


@dataclass(frozen=True, slots=True)
class Message:
    """A task with what only the scheduler's own messages carry."""

    task: Task
    private: Outage | Hop | None = None


class TaskKind(StrEnum):
    """The kinds of tasks as the wire names them."""

    DRAIN = "drain"
    APPEND = "append"


def parse_events(task: AppendTask) -> tuple[TaskEvent, ...] | None:
    """The task's events; None where one is no object of a text `id`, a text `type` and a `payload`."""
    events: list[TaskEvent] = []
    for event in task.events:
        match event:
            case {"id": str(id_), "type": str(type_), "payload": payload} if id_ and type_:
                events.append(TaskEvent(id_, type_, dump_json(payload)))
            case _:
                return None
    return tuple(events)


def encode_message(message: Message) -> str:
    """The message's body: compact JSON, keys in the order of wire.md 1, the private key last."""
    return dump_json(message_object(message))


def message_object(message: Message) -> dict[str, Json]:
    """The message as a JSON object."""
    task = message.task
    kind = TaskKind.APPEND if isinstance(task, AppendTask) else TaskKind.DRAIN
    encoded: dict[str, Json] = {"version": WIRE_VERSION, "kind": kind.value}
    if isinstance(task, AppendTask):
        encoded["id"] = task.id
    encoded |= {"contract": task.contract, "sessionId": task.session_id, "dueAt": task.due_at_ms}
    if isinstance(task, AppendTask):
        encoded["events"] = list(task.events)
    match message.private:
        case Outage(generation, root_due_at_ms):
            lineage: dict[str, Json] = {"version": WIRE_VERSION, "generation": generation}
            if root_due_at_ms is not None:
                lineage["rootDueAt"] = root_due_at_ms
            encoded[OUTAGE_KEY] = lineage
        case Hop(number):
            encoded[HOP_KEY] = {"version": WIRE_VERSION, "hop": number}
        case None:
            pass
        case _:
            assert_never(message.private)
    return encoded


def parse_message(body: bytes) -> Message | None:
    """Read a message; None for anything malformed (wire.md 1 and 4). Unknown keys are ignored. Raises nothing."""
    try:
        value = parse_json(body)
        if not isinstance(value, dict) or _whole(value.get("version")) != WIRE_VERSION:
            return None
        task = read_task(value)
        if OUTAGE_KEY in value:
            outage = _outage(value[OUTAGE_KEY], task)
            return None if outage is None or HOP_KEY in value else Message(task, outage)
        if HOP_KEY in value:
            hop = _hop(value[HOP_KEY], task)
            return None if hop is None else Message(task, hop)
        return Message(task)
    except (NotJson, InvalidTask):
        return None


def read_task(value: Mapping[str, Any]) -> Task:
    """The task that a JSON object holds; its version is the message's. Raises InvalidTask, which says what is wrong."""
    due_at = value.get("dueAt")
    whole = _whole(due_at)
    due_at_ms: Any = due_at if whole is None else whole
    contract, session_id = value.get("contract"), value.get("sessionId")
    match value.get("kind"):
        case TaskKind.DRAIN.value:
            return DrainTask(contract, session_id, due_at_ms)  # type: ignore[arg-type]
        case TaskKind.APPEND.value:
            events = value.get("events")
            if not isinstance(events, list):
                raise InvalidTask(f"append task: expected a list of events, got {_shown(events)}")
            return AppendTask(value.get("id"), contract, session_id, due_at_ms, tuple(events))  # type: ignore[arg-type]
        case kind:
            raise InvalidTask(f'task: expected the kind "drain" or "append", got {_shown(kind)}')


def _outage(value: Json, task: Task) -> Outage | None:
    if not isinstance(value, dict) or _whole(value.get("version")) != WIRE_VERSION:
        return None
    generation = _whole(value.get("generation"))
    if generation is None or not 0 <= generation <= MAX_GENERATION:
        return None
    if isinstance(task, AppendTask):
        return None if "rootDueAt" in value else Outage(generation, None)
    root = _whole(value.get("rootDueAt"))
    return None if root is None or root % 1_000 else Outage(generation, root)


def _hop(value: Json, task: Task) -> Hop | None:
    if not isinstance(value, dict) or _whole(value.get("version")) != WIRE_VERSION:
        return None
    number = _whole(value.get("hop"))
    return None if number is None or number < 0 or isinstance(task, DrainTask) else Hop(number)


def _whole(value: object) -> int | None:
    """The integer that a JSON number stands for (`1.0` and `1e0` are 1), None for anything else; true is not 1."""
    if isinstance(value, bool):
        return None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) else None


def _check(task: Task, **names: object) -> None:
    for name, value in names.items():
        if not isinstance(value, str) or not value:
            raise InvalidTask(f"task: expected {name} to be a non-empty string, got {_shown(value)}")
    due_at_ms: object = task.due_at_ms
    if isinstance(due_at_ms, bool) or not isinstance(due_at_ms, int | float) or not _is_finite(due_at_ms):
        raise InvalidTask(f"task: expected dueAt to be a finite number of milliseconds, got {_shown(due_at_ms)}")


def _is_finite(number: float) -> bool:
    """Whether a double can hold the number: other languages read anything larger as infinity."""
    try:
        return isfinite(number)
    except OverflowError:
        return False


def _shown(value: object) -> str:
    """A short scalar as it is, anything else by its type: what came from the wire may be long, or a user's."""
    if value is None or isinstance(value, bool | float) or (isinstance(value, str) and len(value) <= SHOWN_CHARS):
        return ascii(value)
    return f"a value of type {type(value).__name__}"
