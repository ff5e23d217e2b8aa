"""Plans in a few words, for traces."""

from dataclasses import dataclass
from typing import Any

from a2core import Plan, Timer, WorkItem


@dataclass(frozen=True, slots=True)
class Told:
    """A plan, and the time of its transaction. It is put into words only if somebody reads it."""

    plan: Plan[Any]
    now_ms: int

    def __str__(self) -> str:
        plan = self.plan
        parts = [_named(plan.answer)]
        parts += [f"+{entry.seq}:{entry.type}:{entry.id[:24]}" for entry in plan.entries]
        parts += [self._item(item) for item in plan.items]
        parts += [f"settles {seq}" for seq in plan.settled]
        parts += [
            f"timer {timer.id[:24]} in {timer.due_at_ms - self.now_ms}"
            if isinstance(timer, Timer)
            else f"no {timer.id}"
            for timer in plan.timers
        ]
        parts += [f"without timer {id_[:24]}" for id_ in plan.delivered]
        if plan.wake is not None:
            in_ms = None if plan.wake.at_ms is None else plan.wake.at_ms - self.now_ms
            parts.append(f"{type(plan.wake).__name__} in {in_ms}")
        return "; ".join(parts)

    def _item(self, item: WorkItem) -> str:
        if item.dead is not None:
            state = f"dead of {item.dead.failure.type}"
        elif item.claim is not None:
            state = f"held by {item.claim.holder} for {item.claim.expires_at_ms - self.now_ms}"
        else:
            state = f"due in {(item.due_at_ms or 0) - self.now_ms}"
        return f"#{item.seq} lane {item.lane} attempt {item.attempt} failures {item.failures} lost {item.lost} {state}"


def _named(answer: object) -> str:
    ended = getattr(answer, "ended", None)
    return f"{type(ended).__name__} and {type(answer).__name__}" if ended is not None else type(answer).__name__
