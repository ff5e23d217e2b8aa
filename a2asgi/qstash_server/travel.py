"""A clock that can be moved forward, so that tests need not wait for delays."""

from collections.abc import Callable

from a2asgi.clock import Clock, no_op

MAX_TRAVEL_MS = 3_660 * 86_400_000
"""Ten years ahead in all: delays reach no further."""


class TravelClock:
    """Another clock and an offset. It sleeps like the other: who sleeps is woken by whoever moves it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset_ms = 0

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch, as far as it has been moved."""
        return self._clock.now_ms() + self._offset_ms

    async def sleep_ms(self, duration_ms: int, on_wake: Callable[[], None] = no_op) -> None:
        """Sleep on the other clock."""
        await self._clock.sleep_ms(duration_ms, on_wake)

    def travel(self, duration_ms: int) -> bool:
        """Move forward; False where that is too far."""
        if not 0 <= duration_ms <= MAX_TRAVEL_MS - self._offset_ms:
            return False
        self._offset_ms += duration_ms
        return True
