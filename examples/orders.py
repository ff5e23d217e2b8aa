"""An order shop: durable sessions, timers, retries, a job and a cron in one FastAPI app, without a worker process.

    uvicorn examples.orders:app

    curl localhost:8000/orders/o1 --json '{"skus": ["tea", "cup"], "card": "4242"}'  # twice is once
    curl localhost:8000/orders/o1                                                    # its state and its log
    curl localhost:8000/dead-letters                                                 # try the card "unreachable"
    curl localhost:8000/stocktakes/cellar -X POST                                    # a job: twice at a time is once
    curl localhost:8000/jobs/...                                                     # how far it is

An order without a card expires after three seconds. Kill the server with -9 while it packs or counts, and start it
again: what was cut off goes on by itself, once the dead server's claims have run out. `make demo` shows all of this.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any

import anyio
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field, StringConstraints

from a2asgi import (
    A2,
    A2Middleware,
    Cancel,
    Context,
    EmbeddedScheduler,
    Event,
    EventConflict,
    JobContext,
    NewEvent,
    QStash,
    Retry,
    SQLiteStore,
    SyncContext,
)
from a2core import DrainTimings


@dataclass(frozen=True)
class Shop:
    """What handlers are given: here, how long a second of work takes."""

    second: float = 1.0

    async def work(self, seconds: float) -> None:
        """Be busy for so long."""
        await anyio.sleep(seconds * self.second)


a2 = A2(
    store=SQLiteStore(os.environ.get("ORDERS_DB", ".a2/orders.db")),
    scheduler=QStash(url=os.environ["ORDERS_URL"]) if "ORDERS_URL" in os.environ else EmbeddedScheduler(),
    timings=DrainTimings(ttl_ms=3_000, heartbeat_ms=1_000, grace_ms=500),  # a killed server's claims run out soon
    dependencies=Shop(),
)
orders = a2.contract("orders")


@orders.event("placed")
class Placed(BaseModel):
    """What a customer ordered, and the card to charge."""

    skus: list[str] = Field(min_length=1)
    card: str | None = None


wanted = orders.event("wanted", str)
reserved = orders.event("reserved", str)
payment_due = orders.event("payment_due", str)  # in one lane with what is wanted, so only once all of it is reserved
paid = orders.event("paid", str, lane="shipping")
shipped = orders.event("shipped", str)
expired = orders.event("expired", None, lane="expiry")  # a lane of its own, which no stuck payment blocks


@contextmanager
def at_work(ctx: Context | SyncContext | JobContext) -> Iterator[Shop]:
    """Log when a piece of work starts, and how it ends."""
    ctx.log.info("attempt %d started", ctx.attempt)
    try:
        yield ctx.dependencies
    except BaseException:
        ctx.log.info("attempt %d failed", ctx.attempt)
        raise
    ctx.log.info("attempt %d done", ctx.attempt)


@orders.on(Placed)
async def accept(event: Event[Placed], ctx: Context) -> list[NewEvent[str]]:
    """Give the customer three seconds to pay. Reserve everything, then charge the card."""
    with at_work(ctx):
        await ctx.schedule("unpaid", expired(None), delay="3s")
    skus, card = event.payload.skus, event.payload.card
    return [*map(wanted, skus), *([payment_due(card)] if card else [])]


@orders.on(wanted)
def reserve(event: Event[str], ctx: SyncContext) -> NewEvent[str]:
    """Ask the old warehouse. A plain function runs on a thread, where it may block."""
    with at_work(ctx) as shop:
        time.sleep(0.15 * shop.second)
    return reserved(event.payload)


@orders.on(payment_due, retry=Retry(max_failures=3, base="200ms"))
async def charge(event: Event[str], ctx: Context) -> NewEvent[str] | Cancel:
    """Stop the clock, then ask the bank. The event's id tells it, should this be the second time."""
    with at_work(ctx) as shop:
        if not await ctx.cancel("unpaid"):
            return Cancel("expired before it was paid")
        await shop.work(0.1)
        if event.payload == "unreachable":
            raise ConnectionError("the bank does not answer")
    return paid(f"receipt-{ctx.session}")


@orders.on(paid)
async def ship(_: Event[str], ctx: Context) -> NewEvent[str]:
    """Pack, which takes a while."""
    with at_work(ctx) as shop:
        await shop.work(1.5)
    return shipped(f"parcel-{ctx.session}")


@orders.on(expired)
async def give_back(_: Event[None], ctx: Context) -> None:
    """Put everything back on the shelf."""
    with at_work(ctx) as shop:
        await shop.work(0.1)


@a2.job()
async def stocktake(ctx: JobContext, room: str, bays: int = 5) -> str:
    """Count a room, bay by bay. Whoever takes over from a killed server begins with the bay that it was at."""
    counted = 0 if ctx.last_progress is None else int(ctx.last_progress.done)
    with at_work(ctx) as shop:
        for bay in range(counted + 1, bays + 1):
            ctx.log.info("attempt %d bay %d", ctx.attempt, bay)
            await shop.work(0.4)
            await ctx.progress(bay, bays, f"bay {bay} of the {room}")
    return f"{bays} bays of the {room} counted"


@a2.cron("* * * * *")
async def restock(slot: datetime, ctx: JobContext) -> str:
    """Look over the shelves, once a minute, however many processes, restarts and triggers there are."""
    with at_work(ctx) as shop:
        await shop.work(0.05)
    return f"shelves looked over at {slot:%H:%M}"


@dataclass(frozen=True)
class Order:
    """What a log amounts to."""

    status: str = "unknown"
    reserved: tuple[str, ...] = ()


def follow(order: Order, event: Event[Any]) -> Order:
    """Step from one state to the next."""
    match event.type:
        case "placed" | "paid" | "shipped" | "expired" as status:
            return replace(order, status=status)
        case "reserved":
            return replace(order, reserved=(*order.reserved, event.payload))
        case _:
            return order


summary = orders.reduce(Order(), follow)
api = FastAPI()
OrderId = Annotated[str, StringConstraints(pattern=r"^[\w-]{1,64}$")]


@api.post("/orders/{order_id}")
async def place(order_id: OrderId, order: Placed) -> dict[str, object]:
    """Place an order. Its event is named after it, so that placing it again appends nothing."""
    try:
        receipt = await orders.session(order_id).append(order, id=f"placed-{order_id}")
    except EventConflict as conflict:
        raise HTTPException(409, f"order {order_id!r} was placed with other content") from conflict
    return {"new": receipt.new, "seq": receipt.events[0].seq}


@api.get("/orders/{order_id}")
async def show(order_id: OrderId) -> dict[str, object]:
    """Tell an order's state, its log, and which of its events were given up."""
    log = await orders.session(order_id).read()
    dead = [letter for letter in await a2.dead_letters("orders") if letter.session == order_id]
    return {"state": summary.fold(log), "log": log, "dead_letters": dead}


@api.get("/dead-letters")
async def dead_letters() -> dict[str, object]:
    """Tell what was given up, and why."""
    return {"dead_letters": await a2.dead_letters("orders")}


@api.post("/stocktakes/{room}")
async def count(room: Annotated[str, StringConstraints(pattern=r"^\w{1,64}$")]) -> dict[str, str]:
    """Have a room counted. Asked again while that is under way, the answer is the same job."""
    return {"job": await stocktake.enqueue(room, dedupe_key=room)}


@api.get("/jobs/{job_id}")
async def job(job_id: str) -> dict[str, object]:
    """Tell how far a stocktake is, and what came of it."""
    if (status := await stocktake.status(job_id)) is None:
        raise HTTPException(404, f"no job {job_id!r}")
    return {"job": status}


app = A2Middleware(api, a2)
