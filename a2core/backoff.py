"""How long to wait after a failure, and how many are allowed."""

from dataclasses import dataclass, field
from math import inf, nan
from typing import Protocol

from a2core.ids import spread


class Waits(Protocol):
    """How long to wait after a failure."""

    def delay_ms(self, failures: int, key: str) -> int:
        """Milliseconds to wait after the `failures`-th failure (1 or more) of the event with id `key`."""
        ...


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential waiting: `base_ms * factor ** (failures - 1)`, at most `cap_ms`, then spread by the jitter.

    Raises ValueError where a wait would be negative, shrink, or not grow to its cap.
    """

    base_ms: int = 1_000
    factor: int = 2
    cap_ms: int = 300_000
    jitter_percent: int = 20

    def __post_init__(self) -> None:
        if not 0 <= self.base_ms <= self.cap_ms:
            raise ValueError(f"backoff: expected 0 <= base <= cap, got base {self.base_ms} ms, cap {self.cap_ms} ms")
        if self.factor < 1:
            raise ValueError(f"backoff: expected a factor of 1 or more, got {self.factor}")
        if not 0 <= self.jitter_percent <= 100:  # noqa: PLR2004 - a percentage
            raise ValueError(f"backoff: expected a jitter of 0 to 100 percent, got {self.jitter_percent}")

    def delay_ms(self, failures: int, key: str) -> int:
        """Milliseconds to wait after the `failures`-th failure (1 or more) of the event with id `key`.

        The jitter is derived from both, so it is the same wherever it is computed (engine.md 2).
        """
        delay = self.base_ms
        for _ in range(failures - 1):
            if delay == 0 or self.factor == 1 or delay >= self.cap_ms:
                break
            delay *= self.factor
        delay = min(delay, self.cap_ms)
        reach = delay * self.jitter_percent // 100
        return delay - reach + spread(key, failures, 2 * reach)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The budgets of one handler, and what becomes of its events (engine.md 2 and 4).

    `max_failures` answers of failure, or `max_lost` claims that ended without an answer, and the event is a dead
    letter; one that goes `aside` does not block its lane, and `on_dead` is the type of an event that is appended then.
    `keep_ms` is how long an event that was settled stays in the log, for good if None, and with it what its handler
    produced that needs no handler.
    Raises ValueError for a budget below 1.
    """

    max_failures: int = 10
    max_lost: int = 10
    backoff: Waits = field(default_factory=Backoff)
    aside: bool = False
    on_dead: str | None = None
    keep_ms: int | None = None

    def __post_init__(self) -> None:
        if self.max_failures < 1 or self.max_lost < 1:
            raise ValueError(
                f"retry: expected budgets of 1 or more, got max_failures={self.max_failures}, max_lost={self.max_lost}"
            )


def exponential_delay_ms(attempt: float, base_ms: float = 1_000, factor: float = 2) -> float:
    """`base_ms * factor ** (attempt - 1)` milliseconds, without a cap: infinite where a double ends.

    It rises from the first attempt, 1, as other languages compute it over doubles; nothing raises.
    """
    try:
        power = pow(float(factor), attempt - 1)
    except (OverflowError, ZeroDivisionError):
        return base_ms * inf
    return nan if isinstance(power, complex) else base_ms * power
