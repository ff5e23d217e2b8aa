"""The app of the matrix in Starlette."""

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from tests.hosts import shop


async def place(request: Request) -> JSONResponse:
    return JSONResponse(await shop.place(request.path_params["kind"], request.path_params["session"]))


async def seen(request: Request) -> JSONResponse:
    return JSONResponse(await shop.seen(request.path_params["contract"], request.path_params["session"]))


async def go(_: Request) -> JSONResponse:
    return JSONResponse(shop.streams.go_on())


async def stream(_: Request) -> StreamingResponse:
    return StreamingResponse(shop.streams.halves(), media_type="text/plain")


async def endless(_: Request) -> StreamingResponse:
    return StreamingResponse(shop.streams.endless(), media_type="text/plain")


routes = [
    Route("/place/{kind}/{session}", place, methods=["POST"]),
    Route("/seen/{contract}/{session}", seen),
    Route("/go", go, methods=["POST"]),
    Route("/stream", stream),
    Route("/endless", endless),
]
app = shop.wrapped(Starlette(routes=routes))
