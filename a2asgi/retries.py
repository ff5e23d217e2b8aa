"""Retries as users write them: when a handler is tried again, and when it is given up."""

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from a2asgi.errors import InvalidTime
from a2asgi.times import Duration, duration_ms
from a2core import Backoff, RetryPolicy, Waits

log: logging.Logger = logging.getLogger("a2asgi.retries")


@dataclass(frozen=True, slots=True)
class Exponential:
    """A wait of `base` after the first failure, `factor` times longer after each next one, at most `cap`.

    `cap` is 5 minutes, or `base` where that is longer. `jitter` spreads it: 0.2 is ±20 %.
    """

    base: Duration = "1s"
    factor: int = 2
    cap: Duration | None = None
    jitter: float = 0.2

    def waits(self) -> Waits:
        """The same for the core. Raises ValueError for what makes no sense."""
        if not isinstance(self.factor, int):
            raise ValueError(f"backoff: expected factor to be a whole number, got {self.factor!r}")  # noqa: TRY004
        base_ms = duration_ms(self.base)
        cap_ms = max(base_ms, Backoff().cap_ms) if self.cap is None else duration_ms(self.cap)
        return Backoff(base_ms, self.factor, cap_ms, round(self.jitter * 100))


@dataclass(frozen=True, slots=True)
class Retry:
    """When a handler is tried again, and when it is given up.

    It waits `base` after the first failure, `factor` times longer after each next one, at most `cap` (5 minutes, or
    `base` where that is longer), spread by `jitter` (0.2 is ±20 %). After `max_failures` failures, or `max_lost`
    attempts that ended without an answer (a crash, a kill, a hang), the event is a dead letter.
    """

    max_failures: int = 10
    max_lost: int = 10
    base: Duration = "1s"
    cap: Duration | None = None
    factor: int = 2
    jitter: float = 0.2

    def policy(self) -> RetryPolicy:
        """The same for the core. Raises ValueError for what makes no sense."""
        waits = Exponential(self.base, self.factor, self.cap, self.jitter).waits()
        return RetryPolicy(self.max_failures, self.max_lost, waits)


BackoffOption: TypeAlias = Duration | Exponential | Callable[[int], Duration]
"""A constant wait, a growing one, or a function of the number of failures so far (1 or more)."""


def waits(option: BackoffOption) -> Waits:
    """A backoff as the core takes it. Raises InvalidTime or ValueError for what makes no sense."""
    if isinstance(option, Exponential):
        return option.waits()
    if callable(option):
        if inspect.iscoroutinefunction(option):
            raise ValueError(f"backoff: expected a plain function, got the async {option!r}")
        return _Asked(option)
    constant_ms = duration_ms(option)
    return Backoff(constant_ms, 1, constant_ms, 0)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A user's own function. Where it fails, the event must not: the default backoff stands in."""

    function: Callable[[int], Duration]

    def delay_ms(self, failures: int, key: str) -> int:
        try:
            return duration_ms(self.function(failures))
        except InvalidTime as error:
            log.error("backoff function %r, asked after %d failures: %s", self.function, failures, error)  # noqa: TRY400
        except Exception:
            log.exception("backoff function %r failed, asked after %d failures", self.function, failures)
        return Backoff().delay_ms(failures, key)
