"""Clocks: what one is, and the system's."""

import time
from collections.abc import Callable
from typing import Protocol

import anyio


def no_op() -> None:
    """What a sleeper does on waking, unless it says otherwise."""


class Clock(Protocol):
    """The time of one process."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        ...

    async def sleep_ms(self, duration_ms: int, on_wake: Callable[[], None] = ...) -> None:
        """Sleep on this clock. `on_wake` is called the moment the time has come, before the sleeper runs."""
        ...


class SystemClock:
    """Wall-clock time, and real sleep."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000

    async def sleep_ms(self, duration_ms: int, on_wake: Callable[[], None] = no_op) -> None:
        """Sleep for that long."""
        await anyio.sleep(duration_ms / 1_000)
        on_wake()
