"""Tasks: what a scheduler carries until its due time (wire.md 1)."""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class DrainTask:
    """Wake this session and run what is pending. It carries recovery only; the store is the truth."""

    contract: str
    session_id: str
    due_at_ms: int


@dataclass(frozen=True, slots=True)
class TaskEvent:
    """One event of an append task; `payload` is canonical JSON text."""

    id: str
    type: str
    payload: str


@dataclass(frozen=True, slots=True)
class AppendTask:
    """Append these events, whose ids are fixed, then run what is pending. `id` is stable across retries."""

    id: str
    contract: str
    session_id: str
    due_at_ms: int
    events: tuple[TaskEvent, ...]


Task: TypeAlias = DrainTask | AppendTask
