"""Outage lineage: what succeeds a task whose delivery found the store unavailable, and when (wire.md 4)."""

from a2core.slots import SECOND_MS
from a2core.tasks import MAX_GENERATION, AppendTask, Outage, Task

FIRST_DELAY_MS = 30_000
MAX_DELAY_MS = 86_400_000
CAPPED_GENERATION = 6
"""From here on the delay stays at its cap."""


def next_outage(task: Task, outage: Outage | None) -> Outage:
    """The lineage of the successor: generation 0 first, then one more; a drain's keeps its first due time.

    That is rounded down to a whole second, and the generation stays at its last, so that every successor can be read
    back (wire.md 11.1).
    """
    if outage is not None:
        return Outage(min(outage.generation + 1, MAX_GENERATION), outage.root_due_at_ms)
    if isinstance(task, AppendTask):
        return Outage(0, None)
    whole_seconds = int(task.due_at_ms // SECOND_MS)
    return Outage(0, whole_seconds * SECOND_MS)


def outage_due_at_ms(now_ms: int, generation: int) -> int:
    """When the successor is due: 30 s after the first failure, four times longer each time, at most a day."""
    delay_ms = min(MAX_DELAY_MS, FIRST_DELAY_MS << 2 * min(generation, CAPPED_GENERATION))
    return -(-(now_ms + delay_ms) // SECOND_MS) * SECOND_MS
