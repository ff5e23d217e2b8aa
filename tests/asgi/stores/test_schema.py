"""The schema: an older one is brought up to date as it is, one step after another."""

import sqlite3
from pathlib import Path

import psycopg

from a2asgi import PostgresStore, SQLiteStore
from a2asgi.ports import SessionKey, Store
from a2asgi.stores import dialect, postgres, sqlite
from a2asgi.testing.postgres_bench import PostgresBench
from a2asgi.testing.store_bench import appending_as
from a2core import Needs

KEY = SessionKey("shop", "s-1")
VERSION = str(len(dialect.VERSIONS))


def first_schema(engine: dialect.Dialect) -> list[str]:
    """What the first version made, with one session of one event."""
    made = [sql.format(integer=engine.integer, serial=engine.serial, name=engine.name) for sql in dialect.FIRST_SCHEMA]
    return [
        *made,
        "INSERT INTO a2_meta (key, value) VALUES ('schema', '1')",
        "INSERT INTO a2_sessions (id, contract, session_id, last_seq, wake_at_ms) VALUES (7, 'shop', 's-1', 1, NULL)",
        "INSERT INTO a2_log (session, seq, id, type, payload, created_at_ms) VALUES (7, 1, 'e1', 'order', '{}', 0)",
    ]


async def grown(store: Store) -> list[str]:
    await store.open()
    assert 2 == await store.transact(KEY, Needs(), appending_as("e2"))
    log = [entry.id for entry in await store.read(KEY, 0, 9)]
    await store.close()
    return log


async def test_a_sqlite_file_of_the_first_version_is_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "a2.db"
    connection = sqlite3.connect(path)
    for sql in first_schema(sqlite.DIALECT):
        connection.execute(sql)
    connection.commit()
    connection.close()
    assert ["e1", "e2"] == await grown(SQLiteStore(path))
    connection = sqlite3.connect(path)
    facts: dict[str, str] = dict(connection.execute("SELECT key, value FROM a2_meta").fetchall())
    connection.close()
    assert (VERSION, 32) == (facts["schema"], len(facts["id"]))


async def test_a_postgres_database_of_the_first_version_is_brought_up_to_date_once(bench: PostgresBench) -> None:
    url = bench.url("a2_schema")
    with psycopg.connect(url, autocommit=True) as console:
        for sql in first_schema(postgres.DIALECT):
            console.execute(sql)
        assert ["e1", "e2"] == await grown(PostgresStore(url))
        facts: dict[str, str] = dict(console.execute("SELECT key, value FROM a2_meta").fetchall())
        assert (VERSION, 32) == (facts["schema"], len(facts["id"]))
        again = PostgresStore(url)
        await again.open()
        await again.close()
        assert facts == dict(console.execute("SELECT key, value FROM a2_meta").fetchall())
