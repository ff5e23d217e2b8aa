"""What a handler may answer instead of events."""

from dataclasses import dataclass
from typing import TypeAlias

from a2asgi.times import Duration, duration_ms


@dataclass(frozen=True, slots=True)
class Snooze:
    """Handle the event again after this long. Not a failure: no budget is spent."""

    delay: Duration

    def __post_init__(self) -> None:
        duration_ms(self.delay)


@dataclass(frozen=True, slots=True)
class Cancel:
    """The event needs no handling any more: settle it and note the reason in the log."""

    reason: str


@dataclass(frozen=True, slots=True)
class Fail:
    """Trying again cannot help: make the event a dead letter now."""

    reason: str


Outcome: TypeAlias = Snooze | Cancel | Fail
