"""What a2asgi raises beside the core's errors, each with a stable code."""

from a2core import A2Error


class WiringError(A2Error, TypeError):
    """Definitions that do not fit together, found when the app is built. The text says what to write."""

    code = "WIRING"


class ConfigurationError(A2Error):
    """A setting that is missing or does not fit where the app runs."""

    code = "CONFIGURATION"


class StoreNotConfigured(ConfigurationError):
    """Production without a store: events would be lost with the machine."""

    code = "STORE_NOT_CONFIGURED"

    def __init__(self) -> None:
        super().__init__(
            "no store is configured, and this is production: write A2(store=SQLiteStore(path)) with a path that "
            "outlives the deployment"
        )


class UnknownEvent(A2Error, LookupError):
    """A payload or type name that the contract does not declare."""

    code = "UNKNOWN_EVENT"


class EventConflict(A2Error):
    """An event id that is in the log with another type or payload. Nothing was written."""

    code = "EVENT_CONFLICT"

    def __init__(self, event_id: str) -> None:
        super().__init__(
            f"event id {event_id!r} is in the log with another type or payload; nothing was written. "
            "An id names one event: give this one its own"
        )
        self.event_id = event_id


class TimerNameTaken(A2Error):
    """A timer name that stands for another time or batch. Nothing was written."""

    code = "TIMER_NAME_TAKEN"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"timer {name!r} is scheduled with another time or other events; nothing was written. "
            "Another time or batch needs another name"
        )
        self.name = name


class NoDeadLetter(A2Error, LookupError):
    """No dead letter has this event id: it is unknown, settled, or still being tried."""

    code = "NO_DEAD_LETTER"

    def __init__(self, event_id: str) -> None:
        super().__init__(f"event {event_id!r} is no dead letter: it is unknown, settled, or still being tried")
        self.event_id = event_id


class AttemptEnded(A2Error):
    """The handler's claim is gone: its job was cancelled, or is another attempt's. Whatever it returns is discarded."""

    code = "ATTEMPT_ENDED"

    def __init__(self) -> None:
        super().__init__("this attempt is over: its job was cancelled, or another attempt has taken it; stop here")


class InvalidTime(A2Error, ValueError):
    """A time argument that is naive, negative, or not understood."""

    code = "INVALID_TIME"


class InvalidSchedule(A2Error, ValueError):
    """A cron expression or its time zone that is not understood, or never due. The text names what is wrong."""

    code = "INVALID_SCHEDULE"


class StoreUnavailable(A2Error):
    """The store cannot answer now: a connection, a lock, a time-out, a full disk. Trying again later is right."""

    code = "STORE_UNAVAILABLE"


class StoreBroken(A2Error):
    """The store will not answer until someone acts: a bad path, a schema of the future, a corrupt file, a bug."""

    code = "STORE_BROKEN"


class SendFailed(A2Error):
    """A scheduler did not take a task. `terminal` says that trying the same again cannot help."""

    code = "SEND_FAILED"

    def __init__(self, text: str, *, terminal: bool) -> None:
        super().__init__(text)
        self.terminal = terminal


class BodyTooLarge(A2Error):
    """A request's body passed its limit, or declared that it would; the rest of it was not read."""

    code = "BODY_TOO_LARGE"

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"the request's body is larger than {max_bytes} bytes")
        self.max_bytes = max_bytes


class ClientDisconnected(A2Error):
    """The client was gone before its request was whole. Nobody is left to be answered."""

    code = "CLIENT_DISCONNECTED"

    def __init__(self) -> None:
        super().__init__("the client disconnected before its request was whole")
