"""The app under load: events in lanes, timers and jobs, whose every handling leaves a mark in a file of its process.

`python -m tests.crash.app` serves it until it is killed, and tells its port once it does.
"""

import json
import os
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from a2asgi import (
    A2,
    A2Middleware,
    Context,
    Contract,
    DrainTimings,
    EmbeddedScheduler,
    Event,
    Fail,
    Job,
    JobContext,
    NewEvent,
    PostgresStore,
    RedisStore,
    Retry,
    SQLiteStore,
    StoreUnavailable,
    SyncContext,
)
from a2asgi.ports import Store
from a2asgi.times import from_ms, instant_ms

STORE = "A2_CRASH_STORE"
PREFIX = "A2_CRASH_PREFIX"
FOLDER = "A2_CRASH_FOLDER"
NAME = "A2_CRASH_NAME"
TIMINGS = DrainTimings(ttl_ms=4_000, heartbeat_ms=1_000, grace_ms=500)
"""A claim outlives three lost beats: a machine that is busy must not look like one that is dead."""

FAILS = 10
"""One event of so many fails at its first attempt."""


@dataclass(frozen=True)
class Numbered:
    """The payload of an event that a client numbers."""

    number: int


@dataclass(frozen=True)
class Done:
    """Who handled the event that caused this one, and in which attempt."""

    by: str
    attempt: int


@dataclass(frozen=True)
class Rang:
    """The payload of a timer's event."""

    name: str


def store_at(url: str, prefix: str) -> Store:
    """The store that a command line names: a path, or the URL of a server."""
    if url.startswith("redis://"):
        return RedisStore(url, prefix=prefix)
    return PostgresStore(url) if url.startswith("postgresql://") else SQLiteStore(Path(url))


class Marks:
    """A file of this process to which each mark is one write: what was marked outlives the process."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self._file = os.open(folder / f"{name}.marks", os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def mark(self, what: str, event_id: str, attempt: int) -> None:
        """Note that something happened to an event just now, by the clock that all processes share."""
        line = {"what": what, "event": event_id, "attempt": attempt, "at_ns": time.monotonic_ns()}
        os.write(self._file, json.dumps(line).encode() + b"\n")


def make(store: Store, marks: Marks) -> A2Middleware:
    """The app on this store."""
    a2 = A2(store=store, scheduler=EmbeddedScheduler(poll="50ms"), timings=TIMINGS)
    return A2Middleware(Starlette(routes=routes(handled(a2, marks), counting(a2, marks))), a2)


def handled(a2: A2, marks: Marks) -> Contract:
    """The events, and what handles them."""
    contract = a2.contract("crash")
    step = contract.event("step", Numbered, lane="a")
    task = contract.event("task", Numbered, lane="b")
    poison = contract.event("poison", Numbered, lane="poison")
    rang = contract.event("rang", Rang, lane="timers")
    done = contract.event("done", Done)
    retry = Retry(base="50ms", cap="50ms")

    def begin(event: Event[Any], attempt: int) -> None:
        marks.mark("begin", event.id, attempt)

    def end(event: Event[Any], attempt: int) -> NewEvent[Done]:
        marks.mark("end", event.id, attempt)
        return done(Done(marks.name, attempt), id=f"done-{uuid4().hex}")  # another one each time: two would be seen

    @contract.on(step, retry=retry)
    async def take(event: Event[Numbered], ctx: Context) -> object:
        begin(event, ctx.attempt)
        if event.payload.number % FAILS == 0 and ctx.attempt == 1:
            marks.mark("fail", event.id, ctx.attempt)
            raise ConnectionError("as some do at first")
        await anyio.sleep(event.payload.number % 4 / 100)
        return end(event, ctx.attempt)

    @contract.on(task, retry=retry)
    def work(event: Event[Numbered], ctx: SyncContext) -> object:
        begin(event, ctx.attempt)
        time.sleep(event.payload.number % 4 / 100)
        return end(event, ctx.attempt)

    @contract.on(poison)
    async def give_up(event: Event[Numbered], ctx: Context) -> object:
        begin(event, ctx.attempt)
        await anyio.lowlevel.checkpoint()
        return Fail("poisoned")

    @contract.on(rang)
    async def hear(event: Event[Rang], ctx: Context) -> object:
        begin(event, ctx.attempt)
        await anyio.lowlevel.checkpoint()
        return end(event, ctx.attempt)

    return contract


def counting(a2: A2, marks: Marks) -> Job[[int], Any]:
    """The job."""

    @a2.job(name="count")
    async def count(ctx: JobContext, number: int) -> None:
        marks.mark("begin", ctx.job_id, ctx.attempt)
        await anyio.sleep(number % 4 / 100)
        marks.mark("end", ctx.job_id, ctx.attempt)

    return count


def routes(contract: Contract, count: Job[[int], Any]) -> list[Route]:
    """What clients may ask for."""

    async def append(body: dict[str, Any]) -> object:
        events = [NewEvent(Numbered(event["number"]), id=event["id"], type=event["type"]) for event in body["events"]]
        receipt = await contract.session(body["session"]).append(*events)
        return {"new": receipt.new, "seqs": [event.seq for event in receipt.events]}

    async def schedule(body: dict[str, Any]) -> object:
        event = NewEvent(Rang(body["name"]), type="rang")
        at = from_ms(body["at_ms"])
        receipt = await contract.session(body["session"]).schedule(body["name"], event, at=at)
        return {"state": receipt.state, "due_at_ms": receipt.due_at and instant_ms(receipt.due_at)}

    async def cancel(body: dict[str, Any]) -> object:
        return {"cancelled": await contract.session(body["session"]).cancel(body["name"])}

    async def enqueue(body: dict[str, Any]) -> object:
        key = body["key"]
        job_id = await (count.enqueue(body["number"], dedupe_key=key) if key else count.enqueue(body["number"]))
        return {"id": job_id}

    return [_route(f"/{function.__name__}", function) for function in (append, schedule, cancel, enqueue)]


def _route(path: str, function: Any) -> Route:
    async def endpoint(request: Request) -> JSONResponse:
        try:
            return JSONResponse(await function(await request.json()))
        except StoreUnavailable as error:
            return JSONResponse({"unavailable": str(error)}, 503)

    return Route(path, endpoint, methods=["POST"])


class _Telling(uvicorn.Server):
    """Tells its port once it serves."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for one in sockets or ():
            sys.stdout.write(f"{one.getsockname()[1]}\n")
        sys.stdout.flush()


def serve() -> None:
    """Be one server process."""
    app = make(store_at(os.environ[STORE], os.environ[PREFIX]), Marks(Path(os.environ[FOLDER]), os.environ[NAME]))
    listening = socket.socket(proto=socket.IPPROTO_TCP)  # by which asyncio knows to send at once
    listening.bind(("127.0.0.1", 0))
    _Telling(uvicorn.Config(app, log_level="warning", lifespan="on")).run([listening])


if __name__ == "__main__":
    serve()
