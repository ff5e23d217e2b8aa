"""What every app of the matrix serves: a shop that its own store wakes, calls that a provider wakes, and streams."""

import os
from collections.abc import AsyncIterator
from typing import Any

import anyio

from a2asgi import A2, A2Middleware, Context, Event, NewEvent, SQLiteStore
from a2asgi.asgi import ASGIApp
from tests.asgi.provider import Provider, qstash

store = os.environ["HOSTS_DB"]
a2 = A2(store=SQLiteStore(store), grace="1s")
shop = a2.contract("shop")
placed, reserved, due = (shop.event(name, str) for name in ("placed", "reserved", "due"))
slow, resumed = (shop.event(name, str) for name in ("slow", "resumed"))

carried = A2(store=SQLiteStore(store), scheduler=qstash(Provider()), grace="1s")
calls = carried.contract("calls")
rung, answered = (calls.event(name, str) for name in ("rung", "answered"))

running: list[str] = []
"""The sessions at whose slow event a handler of this process is at work."""


@shop.on(placed)
async def reserve(event: Event[str], ctx: Context) -> NewEvent[str]:
    """Handle an order, whose time is up a moment later."""
    await ctx.schedule("due", due(event.payload), delay="200ms")
    return reserved(event.payload)


@shop.on(slow)
async def work(event: Event[str], ctx: Context) -> NewEvent[str]:
    """Never end at the first attempt: only another process, or another call, does."""
    if ctx.attempt == 1:
        running.append(ctx.session)
        await anyio.sleep_forever()
    return resumed(event.payload)


@calls.on(rung)
def answer(event: Event[str]) -> NewEvent[str]:
    """Handle a call, on a thread."""
    return answered(event.payload)


class Streams:
    """One streamed answer whose end waits for a word, and one that only its client ends."""

    def __init__(self) -> None:
        self.left = 0
        self._word = anyio.Event()

    async def halves(self) -> AsyncIterator[bytes]:
        """The second half is not made before the client, who has the first, says so."""
        yield b"one\n"
        await self._word.wait()
        yield b"two\n"

    def go_on(self) -> dict[str, Any]:
        """Let the second half come."""
        self._word.set()
        return {}

    async def endless(self) -> AsyncIterator[bytes]:
        """Ticks, until the client leaves."""
        try:
            while True:
                yield b"tick\n"
                await anyio.sleep(0.01)
        finally:
            self.left += 1


streams = Streams()


async def place(kind: str, session: str) -> dict[str, Any]:
    """Append an event of that type."""
    receipt = await shop.session(session).append(NewEvent(session, type={"placed": placed, "slow": slow}[kind]))
    return {"seq": receipt.events[0].seq}


async def seen(contract: str, session: str) -> dict[str, Any]:
    """The session's log, and what this process has seen."""
    events = await {"shop": shop, "calls": calls}[contract].session(session).read()
    return {"log": [event.type for event in events], "running": session in running, "left": streams.left}


def wrapped(app: ASGIApp) -> A2Middleware:
    """The app with both kinds of sessions."""
    return A2Middleware(A2Middleware(app, a2, prefix="/api/shop"), carried)
