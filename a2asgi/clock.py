"""The system's clock."""

import time
from collections.abc import Callable

import anyio


def no_op() -> None:
    """What a sleeper does on waking, unless it says otherwise."""


class SystemClock:
    """Wall-clock time, and real sleep."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000

    async def sleep_ms(self, duration_ms: int, on_wake: Callable[[], None] = no_op) -> None:
        """Sleep for that long."""
        await anyio.sleep(duration_ms / 1_000)
        on_wake()
