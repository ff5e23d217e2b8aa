"""Tasks are values: what a scheduler carries compares and hashes by content, and cannot change on the way."""

from dataclasses import FrozenInstanceError, replace

import pytest

from a2core import AppendTask, DrainTask, Task, TaskEvent

EVENT = TaskEvent("e1", "order", '{"n":1}')


def drain(due_at_ms: int = 5_000) -> Task:
    return DrainTask("orders", "s-1", due_at_ms)


def append(*events: TaskEvent) -> Task:
    return AppendTask("t-1", "orders", "s-1", 5_000, events)


@pytest.mark.parametrize(
    ("one", "other"), [(drain(), drain()), (append(EVENT), append(EVENT))], ids=["drain", "append"]
)
def test_tasks_of_the_same_content_are_the_same(one: Task, other: Task) -> None:
    """A redelivered task equals the one before it, so a set of them holds each once."""
    assert one == other
    assert 1 == len({one, other})


def test_tasks_of_other_content_differ() -> None:
    """Kind, due time, and the events with their order all count."""
    second = replace(EVENT, id="e2")
    assert 5 == len({drain(), drain(5_001), append(EVENT), append(EVENT, second), append(second, EVENT)})


@pytest.mark.parametrize("task", [drain(), append(EVENT)], ids=["drain", "append"])
def test_a_task_is_moved_by_making_another(task: Task) -> None:
    """A task cannot change under the scheduler that carries it; another due time is another task."""
    with pytest.raises(FrozenInstanceError):
        task.due_at_ms = 6_000  # type: ignore[misc]
    assert (5_000, 6_000) == (task.due_at_ms, replace(task, due_at_ms=6_000).due_at_ms)
