"""Appends in the caller's own transaction: its rows and the events are committed together, or neither is there."""

import sqlite3
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiosqlite
import anyio
import psycopg
import pytest
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row

from a2asgi import (
    A2,
    ConfigurationError,
    Contract,
    Event,
    EventConflict,
    EventType,
    MemoryStore,
    PostgresStore,
    SQLiteStore,
    Store,
    StoreUnavailable,
)
from a2asgi.testing.postgres_bench import PostgresBench

# both drivers are for asyncio alone
pytestmark = pytest.mark.parametrize("anyio_backend", ["asyncio"])


@dataclass
class Shop:
    """An app whose orders are rows and events, in one database."""

    a2: A2
    orders: Contract
    placed: EventType[str]
    db: Any
    handled: list[str] = field(default_factory=list)

    async def rows(self) -> list[Any]:
        cursor = await self.db.execute("SELECT sku FROM orders")
        return [row[0] for row in await cursor.fetchall()]

    def is_in_transaction(self) -> bool:
        if isinstance(self.db, aiosqlite.Connection):
            return self.db.in_transaction
        return bool(self.db.info.transaction_status != TransactionStatus.IDLE)

    async def log(self) -> list[str]:
        return [event.payload for event in await self.orders.session("o").read()]

    async def insert(self, sku: str) -> None:
        text = "INSERT INTO orders VALUES (?)"
        await self.db.execute(text if isinstance(self.db, aiosqlite.Connection) else text.replace("?", "%s"), (sku,))

    async def settle(self) -> None:
        """Wait until the drain under way has ended."""
        await self.orders.session("o").drain()


async def serving(store: Store, db: Any) -> AsyncIterator[Shop]:
    a2 = A2(store=store)
    orders = a2.contract("orders")
    placed = orders.event("placed", str)
    async with a2, db:
        await db.execute("CREATE TABLE orders (sku TEXT)")
        await db.commit()
        shop = Shop(a2, orders, placed, db)

        @orders.on(placed)
        async def handle(event: Event[str]) -> None:
            shop.handled.append(event.payload)

        yield shop


@pytest.fixture
async def sqlite_shop(tmp_path: Path) -> AsyncIterator[Shop]:
    async for shop in serving(SQLiteStore(tmp_path / "a2.db"), aiosqlite.connect(tmp_path / "a2.db")):
        yield shop


@pytest.fixture
async def postgres_shop(bench: PostgresBench) -> AsyncIterator[Shop]:
    url = bench.url("a2_transactions")
    async for shop in serving(PostgresStore(url), await psycopg.AsyncConnection.connect(url)):
        yield shop


@pytest.fixture(params=["sqlite_shop", "postgres_shop"])
def shop(request: pytest.FixtureRequest, anyio_backend: str) -> Shop:
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


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
    assert (False, [], []) == (shop.is_in_transaction(), await shop.rows(), await shop.log())


async def test_a_cancellation_leaves_neither(shop: Shop) -> None:
    async with anyio.create_task_group() as tasks, shop.a2.transaction(shop.db) as tx:
        await shop.insert("tea")
        await tx.append(shop.orders.session("o"), shop.placed("tea"))
        tasks.cancel_scope.cancel()
        await anyio.sleep_forever()
    assert (False, [], []) == (shop.is_in_transaction(), await shop.rows(), await shop.log())


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


async def test_the_same_id_twice_is_one_event(shop: Shop) -> None:
    for new in (True, False):
        async with shop.a2.transaction(shop.db) as tx:
            assert new is (await tx.append(shop.orders.session("o"), shop.placed("tea"), id="e1")).new
    assert ["tea"] == await shop.log()


async def test_rows_of_another_kind_are_the_callers_own_in_sqlite(sqlite_shop: Shop) -> None:
    """Rows as dicts, or whatever an app likes, do not reach the store's statements, nor is the setting changed."""
    shop = sqlite_shop
    shop.db.row_factory = lambda cursor, row: {column[0]: value for column, value in zip(cursor.description, row)}  # noqa: B905
    async with shop.a2.transaction(shop.db) as tx:
        await tx.append(shop.orders.session("o"), shop.placed("tea"))
    shop.db.row_factory = sqlite3.Row
    assert ["tea"] == await shop.log()


async def test_a_connection_that_cannot_join_is_refused_by_sqlite(sqlite_shop: Shop, tmp_path: Path) -> None:
    """No transaction, another file, memory, another kind of store: each is told, with what to write."""
    shop = sqlite_shop
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


# ── Postgres ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("autocommit", [True, False])
async def test_a_connection_may_commit_by_itself_elsewhere(postgres_shop: Shop, *, autocommit: bool) -> None:
    shop = postgres_shop
    await shop.db.set_autocommit(autocommit)
    for number in range(2):
        async with shop.a2.transaction(shop.db) as tx:
            await shop.insert("tea")
            await tx.append(shop.orders.session("o"), shop.placed(f"tea {number}"))
    assert (["tea", "tea"], ["tea 0", "tea 1"]) == (await shop.rows(), await shop.log())
    async with shop.db.transaction(force_rollback=True):
        await shop.orders.session("o").append(shop.placed("tea 2"), connection=shop.db)
    await shop.db.rollback()
    assert ["tea 0", "tea 1"] == await shop.log()


async def test_rows_of_another_kind_are_the_callers_own_in_postgres(postgres_shop: Shop) -> None:
    shop = postgres_shop
    shop.db.row_factory = dict_row
    async with shop.a2.transaction(shop.db) as tx:
        await shop.insert("tea")
        await tx.append(shop.orders.session("o"), shop.placed("tea"))
    assert ["tea"] == await shop.log()
    cursor = await shop.db.execute("SELECT sku FROM orders")
    assert [{"sku": "tea"}] == await cursor.fetchall()


async def test_a_connection_that_cannot_join_is_refused_by_postgres(
    postgres_shop: Shop, bench: PostgresBench, tmp_path: Path
) -> None:
    """Autocommit, no tables, another store's tables, a failed transaction, another driver: each is told."""
    shop, session = postgres_shop, postgres_shop.orders.session("o")
    await shop.db.set_autocommit(True)
    with pytest.raises(ConfigurationError, match=r"connection\.transaction\(\)"):
        await session.append(shop.placed("tea"), connection=shop.db)
    await shop.db.set_autocommit(False)
    other = bench.url("a2_other")
    for message in ("without its tables", "to another database"):
        async with await psycopg.AsyncConnection.connect(other) as elsewhere:
            with pytest.raises(ConfigurationError, match=message):
                await session.append(shop.placed("tea"), connection=elsewhere)
            await elsewhere.execute("SELECT 1")  # its transaction is as it was
        store = PostgresStore(other)
        await store.open()
        await store.close()
    with pytest.raises(psycopg.errors.SyntaxError):
        await shop.db.execute("no SQL")
    with pytest.raises(ConfigurationError, match="roll it back"):
        await session.append(shop.placed("tea"), connection=shop.db)
    await shop.db.rollback()
    async with aiosqlite.connect(tmp_path / "a2.db") as wrong:
        with pytest.raises(ConfigurationError, match=r"expected a psycopg\.AsyncConnection, got Connection"):
            await session.append(shop.placed("tea"), connection=wrong)
    assert [] == await shop.log()


@pytest.mark.parametrize("is_new", [True, False], ids=["new session", "known session"])
async def test_a_snapshot_from_before_another_append_is_to_be_run_again(postgres_shop: Shop, *, is_new: bool) -> None:
    """A strict transaction that began earlier cannot see the other's event: it is refused, not numbered twice."""
    shop, session = postgres_shop, postgres_shop.orders.session("o")
    if not is_new:
        await session.append(shop.placed("first"), wait=True)
    await shop.db.set_isolation_level(psycopg.IsolationLevel.SERIALIZABLE)
    await shop.rows()
    await session.append(shop.placed("other"), wait=True)
    with pytest.raises(StoreUnavailable):
        await session.append(shop.placed("tea"), connection=shop.db)
    await shop.db.rollback()
    await session.append(shop.placed("tea"), connection=shop.db)
    await shop.db.commit()
    assert ["other", "tea"] == (await shop.log())[-2:]


async def test_a_cancelled_append_leaves_the_transaction_usable(postgres_shop: Shop) -> None:
    """Wherever the append is cancelled, the caller's row can be committed, and the event is there whole or not."""
    shop, session = postgres_shop, postgres_shop.orders.session("o")
    for steps in range(12):
        await shop.insert("tea")
        with anyio.CancelScope() as scope:

            async def cancel(scope: anyio.CancelScope = scope, steps: int = steps) -> None:
                for _ in range(steps):
                    await anyio.lowlevel.checkpoint()
                scope.cancel()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(cancel)
                await session.append(shop.placed(f"tea {steps}"), connection=shop.db)
        await shop.db.commit()
        assert ["tea"] * (steps + 1) == await shop.rows()
        await shop.db.commit()
    await session.append(shop.placed("last"))
    assert "last" == (await shop.log())[-1]
