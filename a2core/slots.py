"""Due times: the timings of a claim, and the whole seconds in which providers count (wire.md 2 and 5)."""

from dataclasses import dataclass

SECOND_MS = 1_000


@dataclass(frozen=True, slots=True)
class DrainTimings:
    """How long a claim lives, how often it is renewed, and how long after its end a watchdog looks.

    Raises ValueError unless the claim outlives two heartbeats: one late renewal must not lose it.
    """

    ttl_ms: int = 30_000
    heartbeat_ms: int = 10_000
    grace_ms: int = 5_000

    def __post_init__(self) -> None:
        if self.heartbeat_ms < 1 or self.ttl_ms < 2 * self.heartbeat_ms or self.grace_ms < 0:
            raise ValueError(
                "timings: expected heartbeat >= 1 ms, ttl >= 2 heartbeats and grace >= 0, got "
                f"ttl {self.ttl_ms} ms, heartbeat {self.heartbeat_ms} ms, grace {self.grace_ms} ms"
            )

    @property
    def window_ms(self) -> int:
        """From a claim to the watchdog that looks after it."""
        return self.ttl_ms + self.grace_ms


def slot_ms(now_ms: int, due_at_ms: float) -> int:
    """The whole second, in ms, at which a provider delivers: never early, at most a second late (wire.md 2)."""
    if due_at_ms <= now_ms:
        return now_ms // SECOND_MS * SECOND_MS
    return int(-(-due_at_ms // SECOND_MS)) * SECOND_MS
