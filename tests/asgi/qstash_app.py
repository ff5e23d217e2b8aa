"""The app of the end-to-end tests: it runs behind a QStash server, and tells a socket what its handlers do."""

import os
import socket
import threading
from datetime import timedelta

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import a2asgi.app
from a2asgi import A2, A2Middleware, DrainTimings, Event, NewEvent, QStash, Retry, SendFailed, SQLiteStore, SyncContext

a2asgi.app.SWEEP_MS = 500  # a minute is long for a test

a2 = A2(
    store=SQLiteStore(os.environ["APP_DB"], busy_timeout="1s"),
    scheduler=QStash(url=f"http://127.0.0.1:{os.environ['APP_PORT']}/api/a2/scheduler", timeout="2s"),
    timings=DrainTimings(ttl_ms=2_000, heartbeat_ms=500, grace_ms=500),
    grace="1s",
)
orders = a2.contract("orders")
note = orders.event("note", str)


def tell(line: str) -> None:
    """Let the test know."""
    with socket.create_connection(("127.0.0.1", int(os.environ["EFFECTS_PORT"]))) as connection:
        connection.sendall(line.encode())


@orders.on(note, retry=Retry(base="1s", jitter=0))
def handle(event: Event[str], ctx: SyncContext) -> None:
    """Fail once, hang once, or just be done, as the text says."""
    tell(f"{event.payload} {ctx.attempt}")
    if event.payload == "fails" and ctx.attempt == 1:
        raise ValueError("once")
    if event.payload == "hangs" and ctx.attempt == 1:
        threading.Event().wait()


async def post(request: Request) -> JSONResponse:
    """Append or dispatch a text in the session, or schedule it for the next minute."""
    verb, session_id, text = (request.path_params[name] for name in ("verb", "session_id", "text"))
    session = orders.session(session_id)
    event = NewEvent(text, id=None if verb == "schedule" else text, type=note)
    try:
        if verb == "append":
            await session.append(event)
        elif verb == "dispatch":
            await session.dispatch(event)
        else:
            await session.schedule(text, event, delay=timedelta(minutes=1))
    except SendFailed as error:
        return JSONResponse({"error": str(error)}, 503)
    return JSONResponse({})


async def texts(request: Request) -> JSONResponse:
    """What is in the session's log."""
    return JSONResponse([event.payload for event in await orders.session(request.path_params["session_id"]).read()])


routes = [
    Route("/{verb}/{session_id}/{text}", post, methods=["POST"]),
    Route("/log/{session_id}", texts),
]
app = A2Middleware(Starlette(routes=routes), a2)
