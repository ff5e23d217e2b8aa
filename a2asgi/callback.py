"""The scheduler callback: one delivery over ASGI, carried out by the steps of the core (wire.md 8)."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from a2asgi import deliveries
from a2asgi.body import read_body
from a2asgi.driver import drive
from a2asgi.engine import Engine
from a2asgi.errors import BodyTooLarge, SendFailed
from a2asgi.lifespan import Receive, Scope
from a2asgi.oidc import token_of
from a2asgi.ports import DeliveringScheduler
from a2core import (
    ANSWERS,
    Answer,
    Append,
    DeliveryRules,
    Drain,
    DrainAnswer,
    Ended,
    Head,
    PublishRequest,
    Reason,
    Verify,
    begin_delivery,
)

log: logging.Logger = logging.getLogger("a2asgi.callback")


async def deliver(engine: Engine, scheduler: DeliveringScheduler, scope: Scope, receive: Receive) -> Answer:
    """Carry out the delivery that this request is, and say what to answer.

    Raises ClientDisconnected where the provider hung up: then nothing is acknowledged.
    """
    rules = DeliveryRules(scheduler.rules, engine.contracts, engine.runtime.timings)
    head = _head(scope)
    end = await drive(begin_delivery(rules, head), _Delivery(engine, scheduler, head, receive))
    if end.reason is not Reason.OK:
        log.warning("a delivery ended with %r, answered %d", end.reason.value, ANSWERS[end.reason].status)
    return ANSWERS[end.reason]


@dataclass(frozen=True, slots=True)
class _Delivery:
    """The ports of one delivery."""

    engine: Engine
    scheduler: DeliveringScheduler
    head: Head
    receive: Receive = field(repr=False)

    def now_ms(self) -> int:
        return self.engine.runtime.store_now_ms()

    async def read_body(self, max_bytes: int) -> bytes | None:
        try:
            return await read_body(self.receive, max_bytes)
        except BodyTooLarge:
            return None

    async def verify(self, step: Verify) -> bool:
        return self.scheduler.verify(step.signature, step.body, self.head.region)

    async def append(self, step: Append) -> Ended:
        return await deliveries.append(self.engine, step.task)

    async def drain(self, step: Drain) -> DrainAnswer:
        return await deliveries.drain(self.engine, step.task)

    async def publish(self, request: PublishRequest) -> bool:
        try:
            await self.scheduler.publish(request)
        except SendFailed as error:
            log.warning("a successor was not published, so the delivery comes again: %s", error)
            return False
        return True

    async def join_arm(self) -> bool:
        return False  # our drains arm nothing that would have to be joined


def _head(scope: Scope) -> Head:
    headers: Iterable[tuple[bytes, bytes]] = scope["headers"]
    return Head(
        method=scope["method"],
        signature=_joined(headers, b"upstash-signature"),
        region=_joined(headers, b"upstash-region"),
        content_length=_joined(headers, b"content-length"),
        oidc_token=token_of(headers),
    )


def _joined(headers: Iterable[tuple[bytes, bytes]], wanted: bytes) -> str | None:
    """The header's value; a repeated one as HTTP joins it."""
    values = [value.decode("latin-1") for name, value in headers if name.lower() == wanted]
    return ", ".join(values) if values else None
