"""The asynchronous driver has every conversation that the synchronous one has."""

from dataclasses import dataclass

import anyio
from anyio.lowlevel import checkpoint

from a2asgi.driver import drive
from a2core import Append, Drain, DrainAnswer, Ended, PublishRequest, Verify, begin_delivery
from tests.core.test_delivery import Replay, conversations


@dataclass
class AsyncReplay:
    """A host that answers as a conversation went, after letting others run."""

    replay: Replay

    def now_ms(self) -> int:
        return self.replay.now_ms()

    async def read_body(self, max_bytes: int) -> bytes | None:
        await checkpoint()
        return self.replay.read_body(max_bytes)

    async def verify(self, step: Verify) -> bool:
        await checkpoint()
        return self.replay.verify(step)

    async def append(self, step: Append) -> Ended:
        await checkpoint()
        return self.replay.append(step)

    async def drain(self, step: Drain) -> DrainAnswer:
        await checkpoint()
        return self.replay.drain(step)

    async def publish(self, request: PublishRequest) -> bool:
        await checkpoint()
        return self.replay.publish(request)

    async def join_arm(self) -> bool:
        await checkpoint()
        return self.replay.join_arm()


async def test_the_async_driver_has_every_conversation() -> None:
    """It asks the same questions, in the same order, and ends the same way."""
    for told in conversations():
        replay = Replay(told)
        assert told.end == await drive(begin_delivery(told.rules, told.head), AsyncReplay(replay))
        assert len(told.turns) == replay.turn


async def test_deliveries_do_not_get_into_each_others_way() -> None:
    """All of them at once end as each does alone."""
    ends: list[bool] = []

    async def deliver(number: int) -> None:
        told = conversations()[number]
        end = await drive(begin_delivery(told.rules, told.head), AsyncReplay(Replay(told)))
        ends.append(told.end == end)

    async with anyio.create_task_group() as tasks:
        for number in range(len(conversations())):
            tasks.start_soon(deliver, number)
    assert [True] * len(conversations()) == ends
