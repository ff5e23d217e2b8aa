"""Large SQLite stores, made in seconds: rows that the library wrote, copied by SQL."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

NUMBERS = "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?)"


@contextmanager
def writing(path: str) -> Iterator[sqlite3.Connection]:
    """A transaction on the file, for which a crash is no matter."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous=OFF")
        connection.execute("PRAGMA cache_size=-400000")  # 400 MB: all of it
        connection.execute("BEGIN IMMEDIATE")
        yield connection
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def copy_session(path: str, session: str, copies: int) -> None:
    """Make so many sessions like this one, with its log, its open work and its timers, named 0000001 and so on."""
    with writing(path) as db:
        [own, last] = db.execute(
            "SELECT id, (SELECT max(id) FROM a2_sessions) FROM a2_sessions WHERE session_id = ?", (session,)
        ).fetchone()
        db.execute(
            f"{NUMBERS} INSERT INTO a2_sessions (id, contract, session_id, last_seq, wake_at_ms)"
            " SELECT ? + n, contract, printf('%07d', n), last_seq, wake_at_ms + n"
            " FROM numbers, a2_sessions WHERE id = ?",
            (copies, last, own),
        )
        for table in ("a2_log", "a2_work", "a2_timers"):
            rest = ", ".join(name for name in columns(db, table) if name != "session")
            db.execute(
                f"{NUMBERS} INSERT INTO {table} (session, {rest}) SELECT ? + n, {rest} FROM numbers, {table}"
                " WHERE session = ? ORDER BY n",
                (copies, last, own),
            )


def copy_event(path: str, session: str, copies: int) -> None:
    """Write so many events like the last one at the end of a session's log, with its open work, if it has any."""
    with writing(path) as db:
        [own, last] = db.execute("SELECT id, last_seq FROM a2_sessions WHERE session_id = ?", (session,)).fetchone()
        for table in ("a2_log", "a2_work"):
            rest = [name for name in columns(db, table) if name not in {"session", "seq", "id"}]
            id_ = ["id"] if table == "a2_log" else []
            values = ", ".join(["id || '-' || n"] * len(id_) + rest)
            db.execute(
                f"{NUMBERS} INSERT INTO {table} (session, seq, {', '.join(id_ + rest)})"
                f" SELECT session, seq + n, {values} FROM numbers, {table} WHERE session = ? AND seq = ?",
                (copies, own, last),
            )
        db.execute("UPDATE a2_sessions SET last_seq = last_seq + ? WHERE id = ?", (copies, own))


def columns(db: sqlite3.Connection, table: str) -> list[str]:
    """The names of a table's columns."""
    return [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
