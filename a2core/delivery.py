"""One scheduler delivery as typestate steps: each is a state, and the one question that it asks the world.

Its one method takes the answer and returns the next step, so an order that wire.md 8 forbids cannot be written:
nothing is parsed before the signature holds, and nothing is acknowledged before its successor is published. A driver
is one `match` over the steps (`drive` here for synchronous hosts, a2asgi's for asynchronous ones).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Protocol, TypeAlias, assert_never

from a2core.body import declared_too_large
from a2core.publish import (
    MessageTooLarge,
    PublishRequest,
    PublishRules,
    publish_next_hop,
    publish_outage,
    publish_task,
)
from a2core.reasons import Reason
from a2core.slots import SECOND_MS, DrainTimings, slot_ms
from a2core.tasks import AppendTask, DrainTask, Hop, InvalidTask, Message, Outage, parse_message


@dataclass(frozen=True, slots=True)
class DeliveryRules:
    """What one callback route knows before any request: its publishing, its timings, the contracts it serves."""

    publish: PublishRules
    contracts: frozenset[str]
    timings: DrainTimings = DrainTimings()  # noqa: RUF009 - frozen


@dataclass(frozen=True, slots=True)
class Head:
    """The request's line and headers, as far as they matter."""

    method: str
    signature: str | None = field(repr=False)
    region: str | None = None
    content_length: str | None = None
    oidc_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Respond:
    """The end: answer the request as `ANSWERS` says for this reason."""

    reason: Reason


ACCEPTED: Respond = Respond(Reason.OK)
"""The end that acknowledges the delivery: the provider delivers it no more."""


@dataclass(frozen=True, slots=True)
class Publish:
    """Asks: have the provider accept this message. Only then may the delivery be acknowledged."""

    request: PublishRequest

    def confirmed(self, accepted: bool) -> Respond:  # noqa: FBT001 - the answer to a yes-or-no question
        """`accepted`: the provider has it. Anything else, an unknown outcome too, is False."""
        return Respond(Reason.OK if accepted else Reason.NOT_PUBLISHED)


@dataclass(frozen=True, slots=True)
class JoinArm:
    """Asks whether the watchdog was accepted that the drain sent on its way itself."""

    def confirmed(self, accepted: bool) -> Respond:  # noqa: FBT001 - the answer to a yes-or-no question
        """As Publish.confirmed."""
        return Respond(Reason.OK if accepted else Reason.NOT_PUBLISHED)


class Ended(StrEnum):
    """How an append or a drain ended, where there is nothing more to say."""

    DONE = "done"
    """Appended; or drained, and nothing is left to do."""
    UNAVAILABLE = "unavailable"
    """The store is away: a successor carries the task on."""
    FAILED = "failed"
    """Anything else went wrong."""


@dataclass(frozen=True, slots=True)
class Busy:
    """Others hold live claims. `arming`: the drain has a watchdog on its way, to be joined.

    `retry_at_ms`: when work in other lanes is worth a look, which is not to wait for those claims.
    """

    arming: bool = False
    retry_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Stalled:
    """Work waits, until `retry_at_ms` if that is known."""

    retry_at_ms: int | None = None


DrainAnswer: TypeAlias = Ended | Busy | Stalled


@dataclass(frozen=True, slots=True)
class Append:
    """Asks: append the task's events, and run what is pending."""

    task: AppendTask
    outage: Outage | None
    context: "Context"

    def ended(self, answer: Ended, now_ms: int) -> Publish | Respond:
        """How it went. A store that is away makes a successor."""
        match answer:
            case Ended.DONE:
                return ACCEPTED
            case Ended.UNAVAILABLE:
                return self.context.outage_successor(self.task, self.outage, now_ms)
            case Ended.FAILED:
                return Respond(Reason.FAILED)
            case _:
                assert_never(answer)


@dataclass(frozen=True, slots=True)
class Drain:
    """Asks: drain the session; a watchdog that it sends itself is due at `watchdog_due_at_ms`.

    It was asked at `asked_at_ms`.
    """

    task: DrainTask
    outage: Outage | None
    asked_at_ms: int
    context: "Context"

    @property
    def watchdog_due_at_ms(self) -> int | float:
        """When a watchdog is due that the drain sends on its way itself."""
        return successor_due_at_ms(self.task, self.asked_at_ms, self.context.rules.timings)

    def ended(self, answer: DrainAnswer, now_ms: int) -> Publish | JoinArm | Respond:
        """How it went. Unless the session is settled, a successor is on its way before the acknowledgement."""
        match answer:
            case Ended.DONE:
                return ACCEPTED
            case Ended.UNAVAILABLE:
                return self.context.outage_successor(self.task, self.outage, now_ms)
            case Ended.FAILED:
                return Respond(Reason.FAILED)
            case Busy(arming=True):
                return JoinArm()
            case Busy(retry_at_ms=at_ms):
                due_at_ms = min(self._retry_due_at_ms(at_ms, now_ms), self.watchdog_due_at_ms)
                return self.context.successor(self.task, due_at_ms, now_ms)
            case Stalled(at_ms):
                return self.context.successor(self.task, self._retry_due_at_ms(at_ms, now_ms), now_ms)
            case _:
                assert_never(answer)

    def _retry_due_at_ms(self, at_ms: int | None, now_ms: int) -> int | float:
        """A later second than this task's, whose name the provider would fold away; the watchdog's if none is known."""
        if at_ms is None:
            return self.watchdog_due_at_ms
        return max(slot_ms(now_ms, at_ms), self.task.due_at_ms + SECOND_MS)


@dataclass(frozen=True, slots=True)
class Verify:
    """Asks whether the signature is the provider's, over these very bytes and this URL."""

    body: bytes = field(repr=False)
    context: "Context"

    @property
    def signature(self) -> str:
        """What to verify."""
        return self.context.head.signature or ""

    def answered(self, genuine: bool, now_ms: int) -> Append | Drain | Publish | Respond:  # noqa: FBT001 - as above
        """Only a genuine body is parsed."""
        if not genuine:
            return Respond(Reason.FORGED)
        message = parse_message(self.body)
        if message is None:
            return Respond(Reason.MALFORMED)
        return self.context.begin_task(message, now_ms)


@dataclass(frozen=True, slots=True)
class ReadBody:
    """Asks: read the body, at most `max_bytes` bytes of it."""

    context: "Context"

    @property
    def max_bytes(self) -> int:
        """The limit."""
        return self.context.rules.publish.max_body_bytes

    def received(self, body: bytes | None) -> Verify | Respond:
        """`body` is None where it passed the limit."""
        return Respond(Reason.TOO_LARGE) if body is None else Verify(body, self.context)


Step: TypeAlias = ReadBody | Verify | Append | Drain | Publish | JoinArm | Respond


@dataclass(frozen=True, slots=True)
class Context:
    """What every step of one delivery carries along."""

    rules: DeliveryRules
    head: Head

    def begin_task(self, message: Message, now_ms: int) -> Append | Drain | Publish | Respond:
        """The first step after verification. A hop touches no store, so it needs no contract."""
        task, private = message.task, message.private
        if isinstance(task, AppendTask) and isinstance(private, Hop):
            return self._publish(partial(publish_next_hop, task, private), now_ms)
        if task.contract not in self.rules.contracts:
            return Respond(Reason.UNKNOWN_CONTRACT)
        outage = private if isinstance(private, Outage) else None
        if isinstance(task, AppendTask):
            return Append(task, outage, self)
        return Drain(task, outage, now_ms, self)

    def successor(self, task: DrainTask, due_at_ms: float, now_ms: int) -> Publish | Respond:
        """The next wake-up of the same session."""
        return self._publish(partial(_publish_drain, task, due_at_ms), now_ms)

    def outage_successor(self, task: AppendTask | DrainTask, outage: Outage | None, now_ms: int) -> Publish | Respond:
        """The same task again, once the store may be back."""
        return self._publish(partial(publish_outage, task, outage), now_ms)

    def _publish(self, request: "_Request", now_ms: int) -> Publish | Respond:
        """A message that could not be sent is one that was not published: the provider keeps what it delivered."""
        try:
            return Publish(request(now_ms, self.rules.publish, self.head.oidc_token))
        except (InvalidTask, MessageTooLarge):  # due beyond all numbers, or above the limit
            return Respond(Reason.NOT_PUBLISHED)


_Request: TypeAlias = Callable[[int, PublishRules, str | None], PublishRequest]


def _publish_drain(
    task: DrainTask, due_at_ms: float, now_ms: int, rules: PublishRules, oidc_token: str | None
) -> PublishRequest:
    return publish_task(DrainTask(task.contract, task.session_id, due_at_ms), now_ms, rules, oidc_token)


def begin_delivery(rules: DeliveryRules, head: Head) -> ReadBody | Respond:
    """The first step of a delivery, from the request's head alone."""
    if head.method != "POST":
        return Respond(Reason.WRONG_METHOD)
    if not head.signature:
        return Respond(Reason.UNSIGNED)
    if declared_too_large(head.content_length, rules.publish.max_body_bytes):
        return Respond(Reason.TOO_LARGE)
    return ReadBody(Context(rules, head))


def successor_due_at_ms(task: DrainTask, now_ms: int, timings: DrainTimings) -> int | float:
    """When a busy or stalled drain is tried again: on its message's own series, past the claim window (wire.md 5)."""
    late_ms = now_ms + timings.window_ms - task.due_at_ms
    beats = max(1, -int(-late_ms // timings.heartbeat_ms))
    return task.due_at_ms + beats * timings.heartbeat_ms


class Ports(Protocol):
    """What a synchronous host provides: an answer to each step's question. None of them may raise."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        ...

    def read_body(self, max_bytes: int) -> bytes | None:
        """The body; None once it passes the limit."""
        ...

    def verify(self, step: Verify) -> bool:
        """Whether the signature holds; an error is False."""
        ...

    def append(self, step: Append) -> Ended:
        """Append and run."""
        ...

    def drain(self, step: Drain) -> DrainAnswer:
        """Drain."""
        ...

    def publish(self, request: PublishRequest) -> bool:
        """Whether the provider accepted it; an error is False."""
        ...

    def join_arm(self) -> bool:
        """Whether the watchdog on its way was accepted; an error is False."""
        ...


def drive(step: Step, ports: Ports) -> Respond:
    """Carry a delivery to its end, synchronously."""
    while True:
        match step:
            case ReadBody():
                step = step.received(ports.read_body(step.max_bytes))
            case Verify():
                step = step.answered(ports.verify(step), ports.now_ms())
            case Drain():
                step = step.ended(ports.drain(step), ports.now_ms())
            case Append():
                step = step.ended(ports.append(step), ports.now_ms())
            case Respond():
                return step
            case Publish():
                step = step.confirmed(ports.publish(step.request))
            case JoinArm():
                step = step.confirmed(ports.join_arm())
            case _:
                assert_never(step)
