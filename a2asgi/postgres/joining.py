"""The caller's own psycopg connection: talks that are held in the transaction which is open on it."""

from contextlib import suppress
from typing import Any

import anyio
import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from a2asgi.errors import ConfigurationError, StoreUnavailable
from a2asgi.postgres.pools import Server, T, Talk, ask

SAVEPOINT = "SAVEPOINT a2"
RELEASE = "RELEASE a2"
UNDO = f"ROLLBACK TO a2; {RELEASE}"
KEEP_LIMIT = "SELECT set_config('a2.lock_timeout', current_setting('lock_timeout'), true)"
RESTORE_LIMIT = "SELECT set_config('lock_timeout', current_setting('a2.lock_timeout'), true)"


async def begin(connection: Any) -> None:
    """Begin a transaction, unless one is open, or psycopg would begin it with the first statement."""
    if _checked(connection).autocommit and connection.info.transaction_status == TransactionStatus.IDLE:
        await connection.execute("BEGIN")


def check_joins(connection: Any) -> None:
    """Raise ConfigurationError for a connection on which nothing can be written in a transaction of the caller's."""
    status = _checked(connection).info.transaction_status
    if status == TransactionStatus.INERROR:
        raise ConfigurationError("connection=: its transaction has failed: roll it back, and begin another")
    if status == TransactionStatus.IDLE and connection.autocommit:
        raise ConfigurationError(
            "connection=: expected one in a transaction, so that the events are committed with its rows, got one with "
            "autocommit: write async with connection.transaction(), or async with a2.transaction(connection)"
        )


async def hold(server: Server, connection: psycopg.AsyncConnection[Any], talk: Talk[T]) -> T:
    """Hold a talk on the caller's connection. What goes wrong undoes the talk, and leaves the transaction open.

    A statement under way is not cancelled, since psycopg would close the connection; for a lock it waits no longer
    than the store's timeout. Raises StoreUnavailable, StoreBroken, and ConfigurationError for another database.
    """
    try:
        async with psycopg.AsyncClientCursor(connection, row_factory=tuple_row) as cursor:
            try:
                with anyio.CancelScope(shield=True):
                    answer = await _answer_of(server, cursor, talk)
            except BaseException:
                with anyio.CancelScope(shield=True), suppress(psycopg.errors.InvalidSavepointSpecification):
                    if connection.info.transaction_status in {TransactionStatus.INTRANS, TransactionStatus.INERROR}:
                        await cursor.execute(UNDO)
                raise
            return answer
    except psycopg.errors.UndefinedTable as error:
        raise ConfigurationError(f"connection=: expected one to {server.where}, got one without its tables") from error
    except psycopg.errors.UniqueViolation as error:
        raise StoreUnavailable(
            f"{server.where}: another transaction wrote the session first: run yours again (SQLSTATE {error.sqlstate})"
        ) from error
    except psycopg.Error as error:
        raise server.translated(error) from error


async def _answer_of(server: Server, cursor: psycopg.AsyncClientCursor[Any], talk: Talk[T]) -> T:
    try:
        queries = next(talk)
        while True:
            queries = talk.send(await ask(cursor, server.text(cursor, queries)))
    except StopIteration as end:
        result: T = end.value
        return result


def _checked(connection: Any) -> psycopg.AsyncConnection[Any]:
    if not isinstance(connection, psycopg.AsyncConnection):
        raise ConfigurationError(f"connection=: expected a psycopg.AsyncConnection, got {type(connection).__name__}")
    return connection
