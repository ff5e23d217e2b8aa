"""Schedules, queues, dead letters, logs and keys in the database, each inside the caller's transaction."""

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from a2asgi.qstash_server import views
from a2asgi.qstash_server.records import accept, duplicate_of, remember
from a2asgi.qstash_server.rules import next_tick_ms
from a2asgi.qstash_server.schema import decode, encode
from a2asgi.qstash_server.signing import SigningKeys
from a2asgi.qstash_server.values import DeadLetter, Queue, Refused, Schedule

View = dict[str, Any]

# ── schedules ────────────────────────────────────────────────────────────────────────────


def put_schedule(conn: sqlite3.Connection, schedule: Schedule, now_ms: int, window_ms: int) -> tuple[str, bool]:
    """Create a schedule, or overwrite the one of its id: the id, and whether it repeats an earlier order.

    As with the provider, deleting a schedule does not free its deduplication id.
    """
    if (earlier := duplicate_of(conn, schedule.order, now_ms)) is not None:
        return earlier, True
    next_at_ms = next_tick_ms(schedule.cron, now_ms)
    conn.execute(
        "INSERT OR REPLACE INTO schedules (id, doc, next_at_ms) VALUES (?, ?, ?)",
        (schedule.schedule_id, encode(schedule), next_at_ms),
    )
    remember(conn, schedule.order, schedule.schedule_id, now_ms, window_ms)
    return schedule.schedule_id, False


def schedule_views(conn: sqlite3.Connection, schedule_id: str | None = None) -> list[View]:
    """All schedules as the API shows them, or the one of that id. Raises Refused where it is unknown."""
    rows = conn.execute(
        "SELECT doc, next_at_ms, paused FROM schedules WHERE ? IS NULL OR id = ? ORDER BY rowid",
        (schedule_id, schedule_id),
    ).fetchall()
    if schedule_id is not None and not rows:
        raise Refused(404, f"schedule {schedule_id} not found")
    return [
        views.schedule_view(decode(doc, Schedule), next_at_ms, paused=bool(paused)) for doc, next_at_ms, paused in rows
    ]


def pause_schedule(conn: sqlite3.Connection, schedule_id: str, now_ms: int, *, paused: bool) -> None:
    """Pause or resume. What a paused schedule missed is not made up for. Raises Refused where it is unknown."""
    row = conn.execute("SELECT doc FROM schedules WHERE id = ?", (schedule_id,)).fetchone()
    if row is None:
        raise Refused(404, f"schedule {schedule_id} not found")
    conn.execute(
        "UPDATE schedules SET paused = ?, next_at_ms = ? WHERE id = ?",
        (int(paused), next_tick_ms(decode(row[0], Schedule).cron, now_ms), schedule_id),
    )


def delete_schedule(conn: sqlite3.Connection, schedule_id: str) -> None:
    """Delete; messages that it made go on. Raises Refused where it is unknown."""
    if conn.execute("DELETE FROM schedules WHERE id = ?", (schedule_id,)).rowcount == 0:
        raise Refused(404, f"schedule {schedule_id} not found")


def run_schedules(conn: sqlite3.Connection, now_ms: int) -> int | None:
    """Make the messages of all schedules that are due: one each, however many ticks were missed. The next tick."""
    rows = conn.execute("SELECT doc FROM schedules WHERE paused = 0 AND next_at_ms <= ?", (now_ms,)).fetchall()
    for [doc] in rows:
        schedule = decode(doc, Schedule)
        order = replace(schedule.order, deduplication=None)  # that was the schedule's own
        made = accept(conn, order, schedule.caller_ip, now_ms, 0, schedule_id=schedule.schedule_id)
        schedule = replace(schedule, last_at_ms=now_ms, last_states={made.message_id: "IN_PROGRESS"})
        conn.execute(
            "UPDATE schedules SET doc = ?, next_at_ms = ? WHERE id = ?",
            (encode(schedule), next_tick_ms(schedule.cron, now_ms), schedule.schedule_id),
        )
    [next_at_ms] = conn.execute("SELECT MIN(next_at_ms) FROM schedules WHERE paused = 0").fetchone()
    return None if next_at_ms is None else int(next_at_ms)


# ── queues ───────────────────────────────────────────────────────────────────────────────


def put_queue(conn: sqlite3.Connection, name: str, parallelism: int, now_ms: int, *, paused: bool) -> None:
    """Create or change a queue."""
    conn.execute(
        "INSERT INTO queues VALUES (?, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET"
        " parallelism = excluded.parallelism, paused = excluded.paused, updated_at_ms = excluded.updated_at_ms",
        (name, parallelism, int(paused), now_ms, now_ms),
    )


def queues(conn: sqlite3.Connection, name: str | None = None) -> list[Queue]:
    """All queues, or the one of that name. Raises Refused where it is unknown."""
    rows = conn.execute(
        "SELECT name, parallelism, paused, created_at_ms, updated_at_ms,"
        " (SELECT COUNT(*) FROM messages WHERE lane = queues.name AND turn = seq)"
        " FROM queues WHERE ? IS NULL OR name = ? ORDER BY name",
        (name, name),
    ).fetchall()
    if name is not None and not rows:
        raise Refused(404, f"queue {name} not found")
    return [Queue(row[0], row[1], bool(row[2]), row[3], row[4], row[5]) for row in rows]


def pause_queue(conn: sqlite3.Connection, name: str, now_ms: int, *, paused: bool) -> None:
    """Pause or resume a queue; one that does not exist yet is made."""
    conn.execute("INSERT OR IGNORE INTO queues VALUES (?, 1, 0, ?, ?)", (name, now_ms, now_ms))
    conn.execute("UPDATE queues SET paused = ?, updated_at_ms = ? WHERE name = ?", (int(paused), now_ms, name))


def delete_queue(conn: sqlite3.Connection, name: str) -> list[str]:
    """Delete a queue; the ids of the messages in it, which the caller cancels in the same transaction."""
    conn.execute("DELETE FROM queues WHERE name = ?", (name,))
    return [row[0] for row in conn.execute("SELECT id FROM messages WHERE lane = ?", (name,))]


# ── dead letters ─────────────────────────────────────────────────────────────────────────


def dead_letter(conn: sqlite3.Connection, dlq_id: str) -> DeadLetter | None:
    """One dead letter."""
    row = conn.execute("SELECT doc FROM dead_letters WHERE id = ?", (dlq_id,)).fetchone()
    return None if row is None else decode(row[0], DeadLetter)


def dead_letters(conn: sqlite3.Connection, after_seq: int) -> Iterator[tuple[int, DeadLetter]]:
    """All dead letters behind that place, the earliest first."""
    for seq, doc in conn.execute("SELECT seq, doc FROM dead_letters WHERE seq > ? ORDER BY seq", (after_seq,)):
        yield seq, decode(doc, DeadLetter)


def delete_dead_letter(conn: sqlite3.Connection, dlq_id: str) -> bool:
    """Forget a dead letter; False where it is unknown."""
    return conn.execute("DELETE FROM dead_letters WHERE id = ?", (dlq_id,)).rowcount > 0


# ── logs ─────────────────────────────────────────────────────────────────────────────────


def log_entries(conn: sqlite3.Connection, before_seq: int | None) -> Iterator[tuple[int, View]]:
    """All log entries before that place, the latest first, as the API shows them."""
    rows = conn.execute(
        "SELECT logs.seq, time_ms, logs.id, state, detail, view FROM logs LEFT JOIN told ON told.id = logs.id"
        " WHERE ? IS NULL OR logs.seq < ? ORDER BY logs.seq DESC",
        (before_seq, before_seq),
    )
    for seq, time_ms, message_id, state, detail, view in rows:
        told = json.loads(view or "{}")
        yield seq, {**told, **json.loads(detail), "time": time_ms, "messageId": message_id, "state": state}


def prune(conn: sqlite3.Connection, before_ms: int) -> None:
    """Forget logs and dead letters from before that instant."""
    conn.execute("DELETE FROM logs WHERE time_ms < ?", (before_ms,))
    conn.execute("DELETE FROM dead_letters WHERE failed_at_ms < ?", (before_ms,))
    # A message that waits for longer than that has logs to come, which tell of it.
    conn.execute("DELETE FROM told WHERE id NOT IN (SELECT id FROM logs) AND id NOT IN (SELECT id FROM messages)")


# ── keys ─────────────────────────────────────────────────────────────────────────────────


def signing_keys(conn: sqlite3.Connection, configured: SigningKeys) -> SigningKeys:
    """The keys that are in force: the configured ones, until they are rotated."""
    row = conn.execute("SELECT value FROM settings WHERE name = 'keys'").fetchone()
    if row is None:
        return configured
    first, current, following = json.loads(row[0])
    return SigningKeys(current, following) if first == [configured.current, configured.next] else configured


def rotate_keys(conn: sqlite3.Connection, configured: SigningKeys) -> SigningKeys:
    """Put the next pair in force; other configured keys will win over it."""
    rotated = signing_keys(conn, configured).rotated()
    value = json.dumps([[configured.current, configured.next], rotated.current, rotated.next])
    conn.execute("INSERT OR REPLACE INTO settings VALUES ('keys', ?)", (value,))
    return rotated
