"""Messages in the database: accepting, claiming, settling and cancelling them, each inside the caller's transaction."""

import json
import secrets
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from a2asgi.qstash_server import views
from a2asgi.qstash_server.callbacks import callback_messages
from a2asgi.qstash_server.rules import is_final, is_success, retry_delay_ms
from a2asgi.qstash_server.schema import decode, encode
from a2asgi.qstash_server.values import DeadLetter, Message, Order, Response, Schedule


@dataclass(frozen=True, slots=True)
class Accepted:
    """The answer to an order: its message, or the one that it repeats."""

    message_id: str
    deduplicated: bool = False


@dataclass(frozen=True, slots=True)
class Claimed:
    """A message that is due and now under way. `retried` counts the attempts before this one."""

    message: Message
    retried: int


@dataclass(frozen=True, slots=True)
class Due:
    """What is to be sent now, and when more comes: None while nothing waits for a time."""

    claimed: tuple[Claimed, ...]
    next_at_ms: int | None


def new_id(prefix: str) -> str:
    """A name that no other has."""
    return f"{prefix}_{secrets.token_urlsafe(20)}"


def duplicate_of(conn: sqlite3.Connection, order: Order, now_ms: int) -> str | None:
    """The id that an equal order got within the window, be its message delivered, dead or deleted since."""
    row = conn.execute(
        "SELECT id FROM deduplication WHERE key = ? AND until_ms > ?", (order.deduplication, now_ms)
    ).fetchone()
    return None if row is None else str(row[0])


def remember(conn: sqlite3.Connection, order: Order, given_id: str, now_ms: int, window_ms: int) -> None:
    """Let equal orders be duplicates of this one from now on, for the length of the window."""
    if order.deduplication is not None:
        conn.execute("DELETE FROM deduplication WHERE until_ms <= ?", (now_ms,))
        row = (order.deduplication, given_id, now_ms + window_ms)
        conn.execute("INSERT OR REPLACE INTO deduplication VALUES (?, ?, ?)", row)


def accept(
    conn: sqlite3.Connection,
    order: Order,
    caller_ip: str,
    now_ms: int,
    window_ms: int,
    *,
    schedule_id: str | None = None,
) -> Accepted:
    """Store an order as a message to deliver; an equal one within the window is answered with the first one's id."""
    if (earlier := duplicate_of(conn, order, now_ms)) is not None:
        return Accepted(earlier, deduplicated=True)
    message = Message(
        message_id=new_id("msg"),
        order=order,
        created_at_ms=now_ms,
        not_before_ms=now_ms + order.delay_ms if order.not_before_ms is None else order.not_before_ms,
        caller_ip=caller_ip,
        schedule_id=schedule_id,
    )
    remember(conn, order, message.message_id, now_ms, window_ms)
    insert(conn, message, now_ms)
    return Accepted(message.message_id)


def insert(conn: sqlite3.Connection, message: Message, now_ms: int, *, lane: tuple[str, int] | None = None) -> None:
    """Store a message. `lane` gives it another message's place in a queue; else it goes to the end of its own."""
    queue = message.order.queue
    if lane is None and queue is not None:
        conn.execute("INSERT OR IGNORE INTO queues VALUES (?, 1, 0, ?, ?)", (queue, now_ms, now_ms))
    name, turn = lane or (queue, None)
    row = (message.message_id, encode(message), max(now_ms, message.not_before_ms), name, turn)
    cursor = conn.execute("INSERT INTO messages (id, doc, due_at_ms, lane, turn) VALUES (?, ?, ?, ?, ?)", row)
    if lane is None and queue is not None:
        conn.execute("UPDATE messages SET turn = seq WHERE seq = ?", (cursor.lastrowid,))
    conn.execute("INSERT OR REPLACE INTO told VALUES (?, ?)", (message.message_id, json.dumps(views.log_view(message))))
    _log(conn, message.message_id, "CREATED", now_ms)


def claim_due(conn: sqlite3.Connection, now_ms: int, limit: int) -> Due:
    """Take up to `limit` messages whose time has come: those of no queue by time, those of queues by turn."""
    free = conn.execute(
        "SELECT seq, due_at_ms FROM messages WHERE lane IS NULL AND active = 0 ORDER BY due_at_ms, seq LIMIT ?",
        (limit + 1,),
    ).fetchall()
    waiting = sorted([*free, *_of_queues(conn)], key=lambda row: (row[1], row[0]))
    due = [seq for seq, due_at_ms in waiting if due_at_ms <= now_ms][:limit]
    later = [due_at_ms for _, due_at_ms in waiting if due_at_ms > now_ms]
    return Due(tuple(_claim(conn, seq, now_ms) for seq in due), min(later, default=None))


def _of_queues(conn: sqlite3.Connection) -> Iterator[tuple[int, int]]:
    """In each queue that runs: what waits among its first turns, as many as its parallelism."""
    for name, parallelism in conn.execute("SELECT name, parallelism FROM queues WHERE paused = 0").fetchall():
        yield from conn.execute(
            "SELECT seq, due_at_ms FROM messages WHERE lane = ? AND active = 0 AND turn IN"
            " (SELECT DISTINCT turn FROM messages WHERE lane = ? ORDER BY turn LIMIT ?)",
            (name, name, parallelism),
        )


def _claim(conn: sqlite3.Connection, seq: int, now_ms: int) -> Claimed:
    doc, retried = conn.execute("SELECT doc, retried FROM messages WHERE seq = ?", (seq,)).fetchone()
    message = decode(doc, Message)
    conn.execute("UPDATE messages SET active = 1 WHERE seq = ?", (seq,))
    _log(conn, message.message_id, "ACTIVE", now_ms)
    return Claimed(message, retried)


def settle(conn: sqlite3.Connection, claimed: Claimed, response: Response, now_ms: int) -> None:
    """Write down how an attempt went: delivered, to be tried again, or dead; and the callbacks it calls for."""
    message, retried = claimed.message, claimed.retried
    row = conn.execute(
        "SELECT cancelled, queues.name, turn FROM messages LEFT JOIN queues ON queues.name = lane WHERE id = ?",
        (message.message_id,),
    ).fetchone()
    if row is None:
        return
    cancelled, lane, turn = row
    letter: DeadLetter | None = None
    if is_success(response):
        _end(conn, message, "DELIVERED", now_ms, {"responseStatus": response.status})
    elif cancelled:
        _log(conn, message.message_id, "ERROR", now_ms, views.response_view(response))
        _end(conn, message, "CANCELED", now_ms)
    elif retried >= message.order.retries or is_final(response):
        letter = _bury(conn, claimed, response, now_ms)
        _log(conn, message.message_id, "ERROR", now_ms, views.response_view(response))
        _end(conn, message, "FAILED", now_ms, {**views.response_view(response), "dlqId": letter.dlq_id})
    else:
        _try_again(conn, claimed, response, now_ms)
    for callback in callback_messages(message, retried, response, letter=letter, now_ms=now_ms, new_id=new_id):
        insert(conn, callback, now_ms, lane=None if lane is None else (lane, turn))


def _try_again(conn: sqlite3.Connection, claimed: Claimed, response: Response, now_ms: int) -> None:
    message_id = claimed.message.message_id
    at_ms = now_ms + retry_delay_ms(claimed.retried, claimed.message.order.retry_delay, response, now_ms)
    next_time = {"nextDeliveryTime": at_ms}
    _log(conn, message_id, "ERROR", now_ms, {**views.response_view(response), **next_time})
    _log(conn, message_id, "RETRY", now_ms, next_time)
    conn.execute(
        "UPDATE messages SET active = 0, retried = retried + 1, due_at_ms = ? WHERE id = ?", (at_ms, message_id)
    )


def cancel(conn: sqlite3.Connection, message_id: str, now_ms: int) -> bool:
    """Cancel a message. One that is under way ends with its attempt. False where there is none to cancel."""
    row = conn.execute("SELECT doc, active FROM messages WHERE id = ? AND cancelled = 0", (message_id,)).fetchone()
    if row is None:
        return False
    doc, active = row
    _log(conn, message_id, "CANCEL_REQUESTED", now_ms)
    if active:
        conn.execute("UPDATE messages SET cancelled = 1 WHERE id = ?", (message_id,))
    else:
        _end(conn, decode(doc, Message), "CANCELED", now_ms)
    return True


def message(conn: sqlite3.Connection, message_id: str) -> Message | None:
    """A message that waits or is under way."""
    row = conn.execute("SELECT doc FROM messages WHERE id = ?", (message_id,)).fetchone()
    return None if row is None else decode(row[0], Message)


def messages(conn: sqlite3.Connection) -> Iterator[Message]:
    """All messages that wait or are under way, in the order of their arrival."""
    for [doc] in conn.execute("SELECT doc FROM messages WHERE cancelled = 0 ORDER BY seq"):
        yield decode(doc, Message)


def retry_dead(conn: sqlite3.Connection, letter: DeadLetter, order: Order, now_ms: int) -> str:
    """Send a dead letter again, as a new message with the same content, and take it out of the queue of the dead."""
    again = replace(
        letter.message,
        message_id=new_id("msg"),
        order=order,
        created_at_ms=now_ms,
        not_before_ms=now_ms + order.delay_ms if order.not_before_ms is None else order.not_before_ms,
    )
    insert(conn, again, now_ms)
    conn.execute("DELETE FROM dead_letters WHERE id = ?", (letter.dlq_id,))
    return again.message_id


def _bury(conn: sqlite3.Connection, claimed: Claimed, response: Response, now_ms: int) -> DeadLetter:
    [count] = conn.execute("SELECT COUNT(*) FROM dead_letters WHERE failed_at_ms = ?", (now_ms,)).fetchone()
    while conn.execute("SELECT 1 FROM dead_letters WHERE id = ?", (f"{now_ms}-{count}",)).fetchone():
        count += 1
    letter = DeadLetter(f"{now_ms}-{count}", claimed.message, response, now_ms, claimed.retried)
    conn.execute(
        "INSERT INTO dead_letters (id, doc, failed_at_ms) VALUES (?, ?, ?)", (letter.dlq_id, encode(letter), now_ms)
    )
    return letter


def _end(
    conn: sqlite3.Connection, ended: Message, state: str, now_ms: int, detail: dict[str, Any] | None = None
) -> None:
    conn.execute("DELETE FROM messages WHERE id = ?", (ended.message_id,))
    _log(conn, ended.message_id, state, now_ms, detail)
    if ended.schedule_id is None:
        return
    row = conn.execute("SELECT doc FROM schedules WHERE id = ?", (ended.schedule_id,)).fetchone()
    if row is None:
        return
    schedule = decode(row[0], Schedule)
    if ended.message_id in schedule.last_states:
        result = "SUCCESS" if state == "DELIVERED" else "FAIL"
        states = {**schedule.last_states, ended.message_id: result}
        conn.execute(
            "UPDATE schedules SET doc = ? WHERE id = ?",
            (encode(replace(schedule, last_states=states)), ended.schedule_id),
        )


def _log(
    conn: sqlite3.Connection, message_id: str, state: str, now_ms: int, detail: dict[str, Any] | None = None
) -> None:
    row = (now_ms, message_id, state, json.dumps(detail or {}))
    conn.execute("INSERT INTO logs (time_ms, id, state, detail) VALUES (?, ?, ?, ?)", row)
