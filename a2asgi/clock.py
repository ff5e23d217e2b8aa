"""The system's clock."""

import time

import anyio


class SystemClock:
    """Wall-clock time, and real sleep."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000

    async def sleep_ms(self, duration_ms: int) -> None:
        """Sleep for that long."""
        await anyio.sleep(duration_ms / 1_000)
