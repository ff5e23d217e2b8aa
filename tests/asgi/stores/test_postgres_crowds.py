"""The Postgres store under many at once: calls that are cancelled, claims that are shared, an app in an outage."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from itertools import count
from typing import Any

import anyio
import psycopg
import pytest
from anyio import to_thread

from a2asgi import A2Middleware, DrainTimings, EmbeddedScheduler, Event, PostgresStore, StoreUnavailable
from a2asgi.ports import SessionKey
from a2asgi.testing.postgres_bench import PostgresBench
from a2asgi.testing.store_bench import HOUR_MS, Opened, together
from a2core import Needs, Plan, WakeAt
from tests.asgi.stores.calls import CANCELLATIONS, Cancelling, all_is_whole, kept
from tests.asgi.stores.servers import PostgresServer, operator
from tests.asgi.support import Served
from tests.asgi.worlds import Shop, Tally, within


@pytest.fixture
def url(bench: PostgresBench) -> str:
    return bench.url("a2_of_one_test")


@pytest.fixture
def console(url: str) -> Iterator["psycopg.Connection[Any]"]:
    with operator(url) as connection:
        yield connection


# ── calls that are cancelled ─────────────────────────────────────────────────────────────


async def all_at_rest(console: "psycopg.Connection[Any]", name: str, *, most: int) -> None:
    """Return once the server has no more than so many sessions of this name, and each waits outside a transaction."""
    text = (
        "SELECT state, count(l.pid) FROM pg_stat_activity a"
        " LEFT JOIN pg_locks l ON l.pid = a.pid AND l.locktype = 'advisory'"
        " WHERE application_name = %s GROUP BY a.pid, state"
    )
    with anyio.fail_after(30):
        while True:
            found = console.execute(text, (name,)).fetchall()
            if len(found) <= most and set(found) <= {("idle", 0)}:
                return
            await anyio.lowlevel.checkpoint()


@within(120)
async def test_calls_that_are_cancelled_at_any_await_poison_no_connection_and_leave_none_behind(
    url: str, console: "psycopg.Connection[Any]"
) -> None:
    async with Opened(PostgresStore(f"{url}&application_name=cancelled", connections=2, timeout="60s")) as store:
        cancelling = Cancelling(store, at_once=4)  # few more than there are connections: most are in their middle
        while cancelling.caught < CANCELLATIONS:
            await cancelling.round()
            await all_at_rest(console, "cancelled", most=2)
            await kept(store, f"kept-{cancelling.calls}")
        assert cancelling.caught < cancelling.calls
        await together(*[lambda number=number: kept(store, f"last-{number}") for number in range(20)])
        await all_is_whole(store)
    await all_at_rest(console, "cancelled", most=0)


# ── claims that are shared ───────────────────────────────────────────────────────────────


@within(60)
async def test_stores_that_claim_at_once_share_what_is_due(url: str) -> None:
    due = {SessionKey("shop", f"s-{number}") for number in range(200)}
    stores = [PostgresStore(url, connections=4) for _ in range(4)]
    await together(*[store.open for store in stores])

    def wake(key: SessionKey) -> Callable[[], Awaitable[None]]:
        return lambda: stores[0].transact(key, Needs(), lambda _snapshot, _now_ms: Plan(None, wake=WakeAt(0)))

    await together(*map(wake, due))
    taken: list[list[SessionKey]] = [[] for _ in stores]

    async def take(number: int) -> None:
        while sum(map(len, taken)) < len(due):
            taken[number] += (await stores[number].claim_wakes(["shop"], limit=number + 3, lease_ms=HOUR_MS)).due

    await together(*[lambda number=number: take(number) for number in range(4)])
    assert Counter(due) == sum(map(Counter, taken), Counter[SessionKey]())
    assert 2 <= sum(map(bool, taken))
    for store in stores:
        assert () == (await store.claim_wakes(["shop"], limit=9, lease_ms=HOUR_MS)).due
        await store.close()


# ── an app in an outage ──────────────────────────────────────────────────────────────────


async def bare(scope: Any, receive: Any, send: Any) -> None:
    """An app without a lifespan."""
    raise LookupError


async def append_orders(shop: Shop, session_id: str, acknowledged: Tally, stopped: anyio.Event) -> None:
    """Append one order after another, each as often as it takes."""
    for number in count():
        if stopped.is_set():
            return
        text = f"{'abc'[number % 3]}-{session_id}-{number}"
        while text not in acknowledged.seen:
            with suppress(StoreUnavailable):
                await shop.append(text, session_id=session_id)
                acknowledged.add(text)
            await anyio.sleep(0.005)


async def settled(shop: Shop, session_id: str) -> None:
    """Return once a session has no open work."""
    key = SessionKey("orders", session_id)
    while await shop.store.transact(key, Needs(heads=True), lambda snapshot, _now_ms: Plan(snapshot.heads)):
        await anyio.lowlevel.checkpoint()


@within(120)
async def test_an_app_goes_on_after_its_server_was_killed_and_handles_all_it_acknowledged(
    own_postgres: PostgresServer, own_url: str
) -> None:
    handled, acknowledged, stopped = Tally(), Tally(), anyio.Event()

    async def handle(event: Event[str]) -> None:
        await anyio.lowlevel.checkpoint()
        handled.add(event.payload)

    shop = Shop(
        handle,
        store=PostgresStore(own_url, timeout="2s"),
        scheduler=EmbeddedScheduler(poll="50ms"),
        timings=DrainTimings(ttl_ms=2_000, heartbeat_ms=500, grace_ms=100),
    )
    sessions = [f"s{number}" for number in range(4)]
    late = [f"late-{session_id}" for session_id in sessions]
    async with Served(A2Middleware(bare, shop.a2)):
        for session_id, text in zip(sessions, late, strict=True):
            await shop.session(session_id).schedule("late", shop.order(text), delay="1s")
        async with anyio.create_task_group() as tasks:
            for session_id in sessions:
                tasks.start_soon(append_orders, shop, session_id, acknowledged, stopped)
            await acknowledged.until(40)
            await to_thread.run_sync(own_postgres.kill)
            await to_thread.run_sync(own_postgres.start)
            await acknowledged.until(len(acknowledged.seen) + 40)
            stopped.set()
        expected = {*acknowledged.seen, *late}
        while not expected <= set(handled.seen):
            await handled.until(len(handled.seen) + 1)
        for session_id in sessions:
            await settled(shop, session_id)
        assert expected == set(handled.seen)
        assert [] == await shop.a2.dead_letters()
        logs = [await shop.log(session_id) for session_id in sessions]
    assert sorted(expected) == sorted(text for log in logs for text in log)
