"""The values of the QStash-compatible server: what is asked, what is sent, what came back."""

from dataclasses import dataclass, field
from typing import TypeAlias

Headers: TypeAlias = tuple[tuple[str, str], ...]
"""Names in canonical spelling (Content-Type) with their values, of which HTTP's bytes are the Latin-1 form."""

MAX_BODY_BYTES = 1_048_576
"""The largest message, as on the provider's free plan; a larger one is refused while it is read."""


class Refused(Exception):
    """A request that is answered with an error: `status`, and `{"error": text}`."""

    def __init__(self, status: int, text: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.headers: dict[str, str] = headers or {}


@dataclass(frozen=True, slots=True)
class Redact:
    """Which parts of a message no view shows. `header_names` are in lower case."""

    body: bool = False
    all_headers: bool = False
    header_names: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.body or self.all_headers or bool(self.header_names)


@dataclass(frozen=True, slots=True)
class Flow:
    """Flow control as the publisher wrote it. It is kept and shown; this server does not enforce it."""

    key: str
    parallelism: int | None = None
    rate: int | None = None
    period_s: int | None = None


@dataclass(frozen=True, slots=True)
class Callback:
    """Where and how the result of a message is reported. What is None is as the message has it."""

    url: str = field(repr=False)  # its query may hold a secret
    method: str = "POST"
    retries: int | None = None
    retry_delay: str | None = None
    timeout_ms: int | None = None
    headers: Headers = field(default=(), repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a publisher asks for: to send these bytes there, then, and how often to try."""

    destination: str = field(repr=False)  # its query may hold a secret
    method: str = "POST"
    headers: Headers = field(default=(), repr=False)
    body: bytes = field(default=b"", repr=False)
    retries: int = 3
    retry_delay: str | None = None
    timeout_ms: int | None = None
    delay_ms: int = 0
    not_before_ms: int | None = None
    callback: Callback | None = None
    failure_callback: Callback | None = None
    queue: str | None = None
    labels: tuple[str, ...] = ()
    flow: Flow | None = None
    redact: Redact = Redact()
    deduplication: str | None = None
    """What equal orders share: their id, or the hash of their content; None where duplicates are welcome."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """An accepted order. `schedule_id` is set where a schedule gave it, `source_id` where it reports on another."""

    message_id: str
    order: Order
    created_at_ms: int
    not_before_ms: int
    caller_ip: str
    schedule_id: str | None = None
    source_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """An order to repeat by `cron`. `last_states` tells how the messages of its last run fare."""

    schedule_id: str
    cron: str
    order: Order
    created_at_ms: int
    caller_ip: str
    last_at_ms: int | None = None
    last_states: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Response:
    """What a destination answered; `status` 0 with an `error` where it did not answer."""

    status: int
    headers: Headers = field(default=(), repr=False)
    body: bytes = field(default=b"", repr=False)
    error: str | None = None

    def values(self, name: str) -> list[str]:
        """All values of a header, named in lower case."""
        return [value for key, value in self.headers if key.lower() == name]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that was given up, with the answer to its last attempt."""

    dlq_id: str
    message: Message
    response: Response
    failed_at_ms: int
    retried: int


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue. `lag` counts the messages that wait or run in it."""

    name: str
    parallelism: int
    paused: bool
    created_at_ms: int
    updated_at_ms: int
    lag: int
