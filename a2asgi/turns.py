"""Turns: whoever wants the same thing on one event loop gets it one after another, in the order of asking."""

from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

import anyio
from anyio.lowlevel import current_token


class Turns:
    """The queues, one for each thing that somebody has or waits for. One of these serves any number of loops."""

    def __init__(self) -> None:
        self._queues: dict[Hashable, deque[anyio.Event]] = {}

    @asynccontextmanager
    async def of(self, thing: Hashable) -> AsyncIterator[None]:
        """Have a turn for as long as this is entered."""
        await self.take(thing)
        try:
            yield
        finally:
            self.give(thing)

    async def take(self, thing: Hashable) -> None:
        """Wait until it is the caller's turn, which lasts until `give`."""
        place = current_token().native_token, thing
        queue = self._queues.get(place)
        if queue is None:
            self._queues[place] = deque()
            return
        called = anyio.Event()
        queue.append(called)
        try:
            await called.wait()
        except BaseException:
            if called.is_set():
                self.give(thing)
            else:
                queue.remove(called)
            raise

    def give(self, thing: Hashable) -> None:
        """Let the next one have it."""
        place = current_token().native_token, thing
        if queue := self._queues[place]:
            queue.popleft().set()
        else:
            del self._queues[place]
