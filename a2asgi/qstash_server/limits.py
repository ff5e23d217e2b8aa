"""Rate limits like the provider's, to try a client's behaviour against; off unless they are set."""

from a2asgi.clock import Clock
from a2asgi.qstash_server.rules import DAY_MS
from a2asgi.qstash_server.values import Refused

SECOND_MS = 1_000


class Limits:
    """Counts requests in windows of a day and of a second. None is no limit. The counts are this process's alone."""

    def __init__(self, clock: Clock, *, daily: int | None = None, burst: int | None = None) -> None:
        self._clock = clock
        self._windows = [
            _Window("RateLimit", "daily message limit exceeded", DAY_MS, daily),
            _Window("Burst-RateLimit", "burst rate limit exceeded", SECOND_MS, burst),
        ]

    def count(self) -> None:
        """Count one message. Raises Refused (429, with the documented headers) above a limit."""
        now_ms = self._clock.now_ms()
        for window in self._windows:
            window.count(now_ms)


class _Window:
    def __init__(self, prefix: str, text: str, length_ms: int, limit: int | None) -> None:
        self._prefix = prefix
        self._text = text
        self._length_ms = length_ms
        self._limit = limit
        self._number = 0
        self._used = 0

    def count(self, now_ms: int) -> None:
        if self._limit is None:
            return
        if (number := now_ms // self._length_ms) != self._number:
            self._number, self._used = number, 0
        if self._used >= self._limit:
            reset_s = (number + 1) * self._length_ms // 1_000
            headers = {"Limit": self._limit, "Remaining": 0, "Reset": reset_s}
            raise Refused(429, self._text, {f"{self._prefix}-{name}": str(value) for name, value in headers.items()})
        self._used += 1
