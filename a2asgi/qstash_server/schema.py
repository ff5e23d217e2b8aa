"""The tables, and how the server's values lie in them."""

import sqlite3
from typing import TypeVar

import msgspec

from a2asgi.errors import StoreBroken

SCHEMA_VERSION = 1
T = TypeVar("T")

_TABLES = """
CREATE TABLE messages (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    doc BLOB NOT NULL,
    due_at_ms INTEGER NOT NULL,
    retried INTEGER NOT NULL DEFAULT 0,
    active INTEGER NOT NULL DEFAULT 0,
    cancelled INTEGER NOT NULL DEFAULT 0,
    lane TEXT,    -- the queue whose turn it takes: a callback takes that of the message it reports on
    turn INTEGER  -- its place in the lane
);
CREATE INDEX messages_due ON messages (due_at_ms) WHERE lane IS NULL AND active = 0;
CREATE INDEX messages_turn ON messages (lane, turn) WHERE lane IS NOT NULL;
CREATE TABLE deduplication (key TEXT PRIMARY KEY, id TEXT NOT NULL, until_ms INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX deduplication_until ON deduplication (until_ms);
CREATE TABLE queues (
    name TEXT PRIMARY KEY,
    parallelism INTEGER NOT NULL,
    paused INTEGER NOT NULL,
    created_at_ms INTEGER NOT NULL,
    updated_at_ms INTEGER NOT NULL
);
CREATE TABLE schedules (
    id TEXT PRIMARY KEY,
    doc BLOB NOT NULL,
    next_at_ms INTEGER NOT NULL,
    paused INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE dead_letters (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    doc BLOB NOT NULL,
    failed_at_ms INTEGER NOT NULL
);
CREATE TABLE told (
    id TEXT PRIMARY KEY,
    view TEXT NOT NULL  -- redacted: what the logs may show of a message
) WITHOUT ROWID;
CREATE TABLE logs (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    time_ms INTEGER NOT NULL,
    id TEXT NOT NULL,
    state TEXT NOT NULL,
    detail TEXT NOT NULL
);
CREATE INDEX logs_id ON logs (id);
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""


def open_schema(connection: sqlite3.Connection) -> None:
    """Make the tables in an empty file, and let what a killed server had under way be tried again.

    Raises StoreBroken for a file of another version.
    """
    [version] = connection.execute("PRAGMA user_version").fetchone()
    if version == 0:
        for statement in filter(str.strip, _TABLES.split(";\n")):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    elif version != SCHEMA_VERSION:
        raise StoreBroken(f"the file has schema {version}, and this server knows {SCHEMA_VERSION}; use another file")
    connection.execute("UPDATE messages SET active = 0 WHERE active = 1")
    connection.execute(  # what was to be cancelled with an attempt that the killed server never finished
        "INSERT INTO logs (time_ms, id, state, detail)"
        " SELECT (SELECT MAX(time_ms) FROM logs), id, 'CANCELED', '{}' FROM messages WHERE cancelled = 1"
    )
    connection.execute("DELETE FROM messages WHERE cancelled = 1")


def encode(value: object) -> bytes:
    """A value of the server as it is stored."""
    return msgspec.json.encode(value)


def decode(doc: bytes, kind: type[T]) -> T:
    """The stored value again."""
    return msgspec.json.decode(doc, type=kind)
