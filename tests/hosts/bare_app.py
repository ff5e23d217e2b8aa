"""The app of the matrix as a bare ASGI function."""

import json
from collections.abc import AsyncIterator
from typing import Any

import anyio

from a2asgi.asgi import Receive, Scope, Send
from tests.hosts import shop


async def serve(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer by hand. It has no lifespan of its own, and says so as ASGI has it: by raising."""
    assert scope["type"] == "http"
    match scope["path"].split("/")[1:]:
        case ["place", kind, session]:
            await respond(send, await shop.place(kind, session))
        case ["seen", contract, session]:
            await respond(send, await shop.seen(contract, session))
        case ["go"]:
            await respond(send, shop.streams.go_on())
        case ["stream"]:
            await stream(receive, send, shop.streams.halves())
        case ["endless"]:
            await stream(receive, send, shop.streams.endless())
        case _:
            raise AssertionError(scope["path"])


async def respond(send: Send, content: dict[str, Any]) -> None:
    """One JSON answer."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": json.dumps(content).encode()})


async def stream(receive: Receive, send: Send, chunks: AsyncIterator[bytes]) -> None:
    """Chunk by chunk, until the end or until the client is gone."""
    async with anyio.create_task_group() as tasks:

        async def pour() -> None:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
            async for chunk in chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
            tasks.cancel_scope.cancel()

        tasks.start_soon(pour)
        while (await receive())["type"] != "http.disconnect":
            pass
        tasks.cancel_scope.cancel()


app = shop.wrapped(serve)
