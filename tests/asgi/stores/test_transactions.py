"""Appends in the caller's own transaction: its rows and the events are committed together, or neither is there."""

import sqlite3
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiosqlite
import anyio
import pytest

from a2asgi import A2, ConfigurationError, Contract, Event, EventConflict, EventType, MemoryStore, SQLiteStore

pytestmark = pytest.mark.parametrize("anyio_backend", ["asyncio"])  # aiosqlite is for asyncio alone


@dataclass
class Shop:
    """An app whose orders are rows and events, in one file."""

    a2: A2
    orders: Contract
    placed: EventType[str]
    db: aiosqlite.Connection
    handled: list[str] = field(default_factory=list)

    async def rows(self) -> list[Any]:
        async with self.db.execute("SELECT sku FROM orders") as cursor:
            return [row[0] for row in await cursor.fetchall()]

    async def log(self) -> list[str]:
        return [event.payload for event in await self.orders.session("o").read()]

    async def insert(self, sku: str) -> None:
        await self.db.execute("INSERT INTO orders VALUES (?)", (sku,))

    async def settle(self) -> None:
        """Wait until the drain under way has ended."""
        await self.orders.session("o").drain()


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    a2 = A2(store=SQLiteStore(tmp_path / "a2.db"))
    orders = a2.contract("orders")
    placed = orders.event("placed", str)
    async with a2, aiosqlite.connect(tmp_path / "a2.db") as db:
        await db.execute("CREATE TABLE orders (sku TEXT)")
        shop = Shop(a2, orders, placed, db)

        @orders.on(placed)
        async def handle(event: Event[str]) -> None:
            shop.handled.append(event.payload)

        yield shop


async def test_a_commit_leaves_both_and_only_then_the_event_is_handled(shop: Shop) -> None:
    async with shop.a2.transaction(shop.db) as tx:
        await shop.insert("tea")
        receipt = await tx.append(shop.orders.session("o"), shop.placed("tea"), id="e1")
        assert (True, 1) == (receipt.new, receipt.events[0].seq)
        assert ([], []) == (await shop.log(), shop.handled)
    await shop.settle()
    assert (["tea"], ["tea"], ["tea"]) == (await shop.rows(), await shop.log(), shop.handled)


async def test_an_error_leaves_neither(shop: Shop) -> None:
    async def fail() -> None:
        async with shop.a2.transaction(shop.db) as tx:
            await shop.insert("tea")
            await tx.append(shop.orders.session("o"), shop.placed("tea"))
            raise LookupError

    with pytest.raises(LookupError):
        await fail()
    assert ([], [], False) == (await shop.rows(), await shop.log(), shop.db.in_transaction)


async def test_a_cancellation_leaves_neither(shop: Shop) -> None:
    async with anyio.create_task_group() as tasks, shop.a2.transaction(shop.db) as tx:
        await shop.insert("tea")
        await tx.append(shop.orders.session("o"), shop.placed("tea"))
        tasks.cancel_scope.cancel()
        await anyio.sleep_forever()
    assert ([], [], False) == (await shop.rows(), await shop.log(), shop.db.in_transaction)


@pytest.mark.parametrize("tells", [True, False], ids=["told", "forgotten"])
async def test_a_bare_connection_commits_when_its_owner_does(shop: Shop, *, tells: bool) -> None:
    """The receipt is told of the commit; forgotten, the event is handled after the grace time all the same."""
    await shop.insert("tea")
    receipt = await shop.orders.session("o").append(shop.placed("tea"), connection=shop.db)
    assert [] == await shop.log()
    await shop.db.commit()
    assert ["tea"] == await shop.log()
    if tells:
        await receipt.committed()
        await shop.settle()
        assert ["tea"] == shop.handled
    else:
        [session] = await shop.orders.session("o").lanes()
        assert "due" == session.state


async def test_a_rollback_of_the_owner_leaves_neither(shop: Shop) -> None:
    await shop.insert("tea")
    await shop.orders.session("o").append(shop.placed("tea"), connection=shop.db)
    await shop.db.rollback()
    assert ([], []) == (await shop.rows(), await shop.log())


async def test_a_refused_append_leaves_the_transaction_as_it_was(shop: Shop) -> None:
    """The caller decides: its row, and what it appended before, can still be committed."""
    await shop.orders.session("o").append(shop.placed("tea"), id="e1", wait=True)
    await shop.insert("cup")
    await shop.orders.session("o").append(shop.placed("cup"), connection=shop.db)
    with pytest.raises(EventConflict):
        await shop.orders.session("o").append(shop.placed("pot"), id="e1", connection=shop.db)
    await shop.db.commit()
    assert (["cup"], ["tea", "cup"]) == (await shop.rows(), await shop.log())


async def test_a_callers_row_factory_is_its_own(shop: Shop) -> None:
    """Rows as dicts, or whatever an app likes, do not reach the store's statements, nor is the setting changed."""
    shop.db.row_factory = lambda cursor, row: {column[0]: value for column, value in zip(cursor.description, row)}  # type: ignore[assignment]  # noqa: B905
    async with shop.a2.transaction(shop.db) as tx:
        await tx.append(shop.orders.session("o"), shop.placed("tea"))
    shop.db.row_factory = sqlite3.Row
    assert ["tea"] == await shop.log()


async def test_the_same_id_twice_is_one_event(shop: Shop) -> None:
    for new in (True, False):
        async with shop.a2.transaction(shop.db) as tx:
            assert new is (await tx.append(shop.orders.session("o"), shop.placed("tea"), id="e1")).new
    assert ["tea"] == await shop.log()


async def test_a_connection_that_cannot_join_is_refused(shop: Shop, tmp_path: Path) -> None:
    """No transaction, another file, memory, another kind of store: each is told, with what to write."""
    session = shop.orders.session("o")
    with pytest.raises(ConfigurationError, match="BEGIN"):
        await session.append(shop.placed("tea"), connection=shop.db)
    for where in (tmp_path / "other.db", ":memory:"):
        async with aiosqlite.connect(where) as other:
            await other.execute("BEGIN")
            with pytest.raises(ConfigurationError, match=r"a2\.db"):
                await session.append(shop.placed("tea"), connection=other)
    with pytest.raises(ValueError, match="wait="):
        await session.append(shop.placed("tea"), connection=shop.db, wait=True)
    kept = A2(store=MemoryStore())
    notes = kept.contract("notes")
    noted = notes.event("noted", str)
    with pytest.raises(ConfigurationError, match="SQLiteStore"):
        await notes.session("n").append(noted("x"), connection=shop.db)
    with pytest.raises(ConfigurationError, match="database of yours"):
        async with kept.transaction(shop.db):
            pass
    assert [] == await shop.log()
