"""The app of the matrix in FastAPI."""

from typing import Any

from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from tests.hosts import shop

api = FastAPI()


@api.post("/place/{kind}/{session}")
async def place(kind: str, session: str) -> dict[str, Any]:
    return await shop.place(kind, session)


@api.get("/seen/{contract}/{session}")
async def seen(contract: str, session: str) -> dict[str, Any]:
    return await shop.seen(contract, session)


@api.post("/go")
async def go() -> dict[str, Any]:
    return shop.streams.go_on()


@api.get("/stream")
async def stream() -> StreamingResponse:
    return StreamingResponse(shop.streams.halves(), media_type="text/plain")


@api.get("/endless")
async def endless() -> StreamingResponse:
    return StreamingResponse(shop.streams.endless(), media_type="text/plain")


app = shop.wrapped(api)
