"""Publish requests: a message's body, its id, headers and redaction, under the size limit (wire.md 2 to 6)."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from a2core.errors import A2Error
from a2core.ids import derive_id
from a2core.oidc import TRUSTED_HEADER, is_header_value, may_forward
from a2core.outage import next_outage, outage_due_at_ms
from a2core.slots import SECOND_MS, slot_ms
from a2core.tasks import AppendTask, DrainTask, Hop, Message, Outage, Task, encode_message
from a2core.urls import Callback

Headers: TypeAlias = tuple[tuple[str, str], ...]

DEFAULT_MAX_BODY_BYTES = 1_048_576
HOP_MARGIN_MS = 60_000
"""How much of the provider's longest delay a hop leaves, for the time that its own delivery takes."""

SHORTEST_DELAY_MS = HOP_MARGIN_MS + SECOND_MS
"""The least that a provider's longest delay may be."""

LARGEST_GENERATION = 2**53 - 1
"""The lineage that a first publish leaves room for."""

MAX_SETTING = 2**53 - 1
"""Largest number of retries, and of bytes: what every JSON reader holds exactly."""

RESERVED_HEADERS = frozenset(
    {
        "connection",
        "content-length",
        "host",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "x-vercel-oidc-token",
        TRUSTED_HEADER,
    }
)
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")


class InvalidHeaders(A2Error, ValueError):
    """Headers that HTTP cannot carry, or that are not the caller's to set. The text names them, never a value."""

    code = "INVALID_HEADERS"


class MessageTooLarge(A2Error, ValueError):
    """A message above the provider's limit. Sending it again cannot help."""

    code = "MESSAGE_TOO_LARGE"


@dataclass(frozen=True, slots=True)
class PublishRules:
    """What every message of one scheduler has in common.

    `retries` is the provider's own unless it is given. `longest_delay_ms`: what the provider accepts, None for no
    bound; an append due later travels in hops. Raises ValueError for numbers that no provider takes.
    """

    callback: Callback
    headers: Headers = field(default=(), repr=False)
    retries: int | None = None
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES
    longest_delay_ms: int | None = None

    def __post_init__(self) -> None:
        if self.retries is not None and not _is_setting(self.retries, at_least=0):
            raise ValueError(f"retries: expected an integer of 0 or more, got {self.retries!r}")
        if not _is_setting(self.max_body_bytes, at_least=1):
            raise ValueError(f"max_body_bytes: expected an integer of 1 or more, got {self.max_body_bytes!r}")
        if self.longest_delay_ms is not None and not _is_setting(self.longest_delay_ms, at_least=SHORTEST_DELAY_MS):
            raise ValueError(
                f"longest_delay_ms: expected {SHORTEST_DELAY_MS} or more, so that a hop moves on by a second, got "
                f"{self.longest_delay_ms!r}"
            )


@dataclass(frozen=True, slots=True)
class PublishRequest:
    """One message as a provider takes it. `redact` names the headers that the provider must never show."""

    url: str = field(repr=False)  # its query may be a secret
    body: str = field(repr=False)
    deduplication_id: str
    not_before_s: int | None = None
    retries: int | None = None
    headers: Headers = field(default=(), repr=False)
    redact: tuple[str, ...] = ()


def check_headers(headers: Iterable[tuple[str, str]]) -> Headers:
    """Valid, lower-cased headers with trimmed values (wire.md 6). Raises InvalidHeaders, which names the header."""
    checked: dict[str, str] = {}
    for name, value in headers:
        if not (isinstance(name, str) and isinstance(value, str)):  # type: ignore[redundant-expr]
            raise InvalidHeaders(f"header {name!r}: expected text, got {type(value).__name__}")
        trimmed = value.strip("\t\n\r ")
        if _TOKEN.fullmatch(name) is None or not is_header_value(trimmed):
            raise InvalidHeaders(f"header {name!r}: expected a token with a Latin-1 value on one line")
        lowered = name.lower()
        if lowered in checked:
            raise InvalidHeaders(f"header {name!r} is given twice")
        if lowered in RESERVED_HEADERS or lowered.startswith(("upstash-", "content-type")):
            raise InvalidHeaders(f"header {name!r} is reserved: the provider or the host sets it")
        checked[lowered] = trimmed
    return tuple(checked.items())


def publish_task(task: Task, now_ms: int, rules: PublishRules, oidc_token: str | None = None) -> PublishRequest:
    """The request for a task's first publish.

    Where the provider's longest delay ends earlier, it is for the first hop of an append, or for an earlier drain.
    `oidc_token` is the current request's, forwarded where wire.md 6 allows it. Raises MessageTooLarge: what is
    accepted can carry any later lineage under the same limit.
    """
    return _publish_leg(task, now_ms, rules, oidc_token, hop=0)


def publish_next_hop(
    task: AppendTask, hop: Hop, now_ms: int, rules: PublishRules, oidc_token: str | None = None
) -> PublishRequest:
    """The request that follows a delivered hop: the next one, or the task itself once the rest of its time fits."""
    return _publish_leg(task, now_ms, rules, oidc_token, hop=hop.number + 1)


def publish_dispatch(
    task: DrainTask, seq: int, now_ms: int, rules: PublishRules, oidc_token: str | None = None
) -> PublishRequest:
    """The request for a drain that is due now, named by what was appended: `seq` is the last event's."""
    id_ = derive_id("a2:scheduler-qstash:dispatch:v1", rules.callback.url, task.contract, task.session_id, seq)
    due_at_ms = slot_ms(now_ms, task.due_at_ms)
    room_for = Outage(LARGEST_GENERATION, due_at_ms)
    return _request(Message(_due(task, due_at_ms)), id_, now_ms, rules, oidc_token, room_for=room_for)


def publish_outage(
    task: Task, outage: Outage | None, now_ms: int, rules: PublishRules, oidc_token: str | None = None
) -> PublishRequest:
    """The request for the successor of a task whose delivery found the store unavailable (wire.md 4)."""
    lineage = next_outage(task, outage)
    url = rules.callback.url
    due_at_ms = _within_reach(outage_due_at_ms(now_ms, lineage.generation), now_ms, rules)
    generation = lineage.generation
    if isinstance(task, AppendTask):
        prefix = "a2:scheduler-qstash:store-outage:append:v1"
        id_ = derive_id(prefix, url, task.contract, task.session_id, task.id, generation)
    else:
        prefix = "a2:scheduler-qstash:store-outage:drain:v1"
        root_due_at_ms = lineage.root_due_at_ms or 0  # a drain's lineage knows it
        id_ = derive_id(prefix, url, task.contract, task.session_id, root_due_at_ms, generation)
    return _request(Message(_due(task, due_at_ms), lineage), id_, now_ms, rules, oidc_token)


def _publish_leg(task: Task, now_ms: int, rules: PublishRules, oidc_token: str | None, *, hop: int) -> PublishRequest:
    due_at_ms = slot_ms(now_ms, task.due_at_ms)
    reached_ms = _within_reach(due_at_ms, now_ms, rules)
    url = rules.callback.url
    if isinstance(task, DrainTask):  # one that comes too early looks, and waits again
        id_ = derive_id("a2:scheduler-qstash:v1", url, task.contract, task.session_id, reached_ms)
        room_for = Outage(LARGEST_GENERATION, reached_ms)
        return _request(Message(_due(task, reached_ms)), id_, now_ms, rules, oidc_token, room_for=room_for)
    slotted, room_for = _due(task, due_at_ms), Outage(LARGEST_GENERATION, None)
    if reached_ms == due_at_ms:
        id_ = derive_id("a2:scheduler-qstash:append:v1", url, task.id)
        return _request(Message(slotted), id_, now_ms, rules, oidc_token, room_for=room_for)
    id_ = derive_id("a2:scheduler-qstash:hop:append:v1", url, task.contract, task.session_id, task.id, hop)
    message = Message(slotted, Hop(hop))
    return _request(message, id_, now_ms, rules, oidc_token, room_for=room_for, not_before_ms=reached_ms)


def _within_reach(due_at_ms: int, now_ms: int, rules: PublishRules) -> int:
    """The due time, or the latest whole second that the provider takes now."""
    if rules.longest_delay_ms is None or due_at_ms - now_ms <= rules.longest_delay_ms:
        return due_at_ms
    return (now_ms + rules.longest_delay_ms - HOP_MARGIN_MS) // SECOND_MS * SECOND_MS


def _due(task: Task, due_at_ms: int) -> Task:
    if isinstance(task, DrainTask):
        return DrainTask(task.contract, task.session_id, due_at_ms)
    return AppendTask(task.id, task.contract, task.session_id, due_at_ms, task.events)


def _request(
    message: Message,
    deduplication_id: str,
    now_ms: int,
    rules: PublishRules,
    oidc_token: str | None,
    *,
    room_for: Outage | None = None,
    not_before_ms: int | None = None,
) -> PublishRequest:
    if room_for is not None:
        _check_size(Message(message.task, room_for), rules)
    body = _check_size(message, rules)
    slot = int(message.task.due_at_ms) if not_before_ms is None else not_before_ms
    headers = dict(rules.headers)
    if oidc_token and rules.callback.is_preview and may_forward(oidc_token.strip("\t\n\r "), max(now_ms, slot)):
        headers[TRUSTED_HEADER] = oidc_token.strip("\t\n\r ")
    return PublishRequest(
        url=rules.callback.url,
        body=body,
        deduplication_id=deduplication_id,
        not_before_s=slot // SECOND_MS if slot > now_ms else None,
        retries=rules.retries,
        headers=tuple(sorted(headers.items())),
        redact=tuple(sorted(headers)),
    )


def _check_size(message: Message, rules: PublishRules) -> str:
    """The message's body, if it is within the limit."""
    body = encode_message(message)
    size = len(body.encode())
    if size > rules.max_body_bytes:
        raise MessageTooLarge(
            f"the message for session {message.task.session_id!r} needs {size} bytes "
            f"of at most {rules.max_body_bytes}: keep large content elsewhere, and send where it is"
        )
    return body


def _is_setting(value: object, *, at_least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and at_least <= value <= MAX_SETTING
