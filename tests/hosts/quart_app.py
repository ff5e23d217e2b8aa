"""The app of the matrix in Quart."""

from collections.abc import AsyncIterator
from typing import Any

from quart import Quart

from tests.hosts import shop

quart = Quart(__name__)


@quart.post("/place/<kind>/<session>")
async def place(kind: str, session: str) -> dict[str, Any]:
    return await shop.place(kind, session)


@quart.get("/seen/<contract>/<session>")
async def seen(contract: str, session: str) -> dict[str, Any]:
    return await shop.seen(contract, session)


@quart.post("/go")
async def go() -> dict[str, Any]:
    return shop.streams.go_on()


@quart.get("/stream")
async def stream() -> tuple[AsyncIterator[bytes], dict[str, str]]:
    return shop.streams.halves(), {"content-type": "text/plain"}


@quart.get("/endless")
async def endless() -> tuple[AsyncIterator[bytes], dict[str, str]]:
    return shop.streams.endless(), {"content-type": "text/plain"}


app = shop.wrapped(quart)
