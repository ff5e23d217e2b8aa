"""The app of the matrix in Litestar."""

from typing import Any

from litestar import Litestar, get, post
from litestar.params import FromPath
from litestar.response import Stream

from tests.hosts import shop


@post("/place/{kind:str}/{session:str}")
async def place(kind: FromPath[str], session: FromPath[str]) -> dict[str, Any]:
    return await shop.place(kind, session)


@get("/seen/{contract:str}/{session:str}")
async def seen(contract: FromPath[str], session: FromPath[str]) -> dict[str, Any]:
    return await shop.seen(contract, session)


@post("/go", sync_to_thread=False)
def go() -> dict[str, Any]:
    return shop.streams.go_on()


@get("/stream", sync_to_thread=False)
def stream() -> Stream:
    return Stream(shop.streams.halves(), media_type="text/plain")


@get("/endless", sync_to_thread=False)
def endless() -> Stream:
    return Stream(shop.streams.endless(), media_type="text/plain")


app = shop.wrapped(Litestar([place, seen, go, stream, endless], openapi_config=None))
