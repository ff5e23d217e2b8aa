"""The asynchronous driver: carries out the steps of one delivery, and decides nothing."""

from typing import Protocol, assert_never

from a2core import (
    Append,
    Drain,
    DrainAnswer,
    Ended,
    JoinArm,
    Publish,
    PublishRequest,
    ReadBody,
    Respond,
    Step,
    Verify,
)


class Ports(Protocol):
    """What an asynchronous host provides: an answer to each step's question. None of them may raise an Exception."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        ...

    async def read_body(self, max_bytes: int) -> bytes | None:
        """The body; None once it passes the limit."""
        ...

    async def verify(self, step: Verify) -> bool:
        """Whether the signature holds; an error is False."""
        ...

    async def append(self, step: Append) -> Ended:
        """Append and run."""
        ...

    async def drain(self, step: Drain) -> DrainAnswer:
        """Drain."""
        ...

    async def publish(self, request: PublishRequest) -> bool:
        """Whether the provider accepted it; an error is False."""
        ...

    async def join_arm(self) -> bool:
        """Whether the watchdog on its way was accepted; an error is False."""
        ...


async def drive(step: Step, ports: Ports) -> Respond:
    """Carry a delivery to its end. Cancelled on the way it acknowledges nothing, so the provider delivers again."""
    while True:
        match step:
            case ReadBody():
                step = step.received(await ports.read_body(step.max_bytes))
            case Verify():
                step = step.answered(await ports.verify(step), ports.now_ms())
            case Drain():
                step = step.ended(await ports.drain(step), ports.now_ms())
            case Append():
                step = step.ended(await ports.append(step), ports.now_ms())
            case Respond():
                return step
            case Publish():
                step = step.confirmed(await ports.publish(step.request))
            case JoinArm():
                step = step.confirmed(await ports.join_arm())
            case _:
                assert_never(step)
