"""The SQLite store: one file, one writer thread per process with group commit, several processes at once."""

import sqlite3
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from os import PathLike, fspath
from pathlib import Path
from threading import Lock
from typing import Any, Generic, Literal, TypeVar

from anyio import CancelScope

from a2asgi.clock import Clock, SystemClock
from a2asgi.errors import ConfigurationError, StoreBroken, StoreUnavailable
from a2asgi.ports import Answer, Decide, SessionInfo, SessionKey, Wakes
from a2asgi.sqlite_worker import Job, Queued, SQLiteWorker, in_transaction
from a2asgi.stores import sql
from a2asgi.stores.dialect import Dialect, Rows, Statement, Steps, json_list, listed, migrate
from a2asgi.threads import raising, returning
from a2asgi.times import Duration, duration_ms
from a2core import Entry, Needs, WorkItem

DIALECT = Dialect(
    integer="INTEGER",
    serial="INTEGER",
    name="TEXT",
    any_of="IN (SELECT value FROM json_each(?))",
    list_param=json_list,
    table_exists="SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?",
    hold="",
    expirable="a2_log l",
)
T = TypeVar("T")


class LookFirst(Generic[T]):
    """A job that is done already where a look, which needs no transaction, has an answer."""

    def __init__(self, look: Job[T | None], job: Job[T]) -> None:
        self.look: Job[T | None] = look
        self._job = job

    def __call__(self, connection: sqlite3.Connection) -> T:
        """Do it."""
        return self._job(connection)


class SQLiteStore:
    """Keeps sessions in one SQLite file, safe for several processes of one machine.

    `synchronous="FULL"` survives a power cut; "NORMAL" may lose the last moments to one, never to a killed process.
    `busy_timeout` is how long to wait for another process's lock before StoreUnavailable. The directory is made if
    it is missing. Nothing is opened before `open`.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        synchronous: Literal["FULL", "NORMAL"] = "FULL",
        busy_timeout: Duration = "30s",
        clock: Clock | None = None,
    ) -> None:
        text = fspath(path)
        if not text or text.startswith((":memory:", "file:")):
            raise ConfigurationError(f"SQLiteStore: expected the path of a file, got {text!r}; or use MemoryStore()")
        if synchronous not in {"FULL", "NORMAL"}:
            raise ConfigurationError(f'SQLiteStore: expected synchronous "FULL" or "NORMAL", got {synchronous!r}')
        self._path = Path(text)
        self._synchronous = synchronous
        self._busy_timeout_ms = duration_ms(busy_timeout)
        self._clock = clock or SystemClock()
        self.offset_ms: int = 0
        self._lock = Lock()
        self._writer: SQLiteWorker | None = None
        self._reader: SQLiteWorker | None = None

    def __repr__(self) -> str:
        return f"SQLiteStore({str(self._path)!r}, synchronous={self._synchronous!r})"

    async def open(self) -> None:
        """As Store.open. Raises StoreBroken for a path that cannot be written, or that is no database."""
        with self._lock:
            if self._writer is None:
                self._writer = SQLiteWorker("a2-sqlite-writer", self._connect_and_migrate, self._run_group)
                self._reader = SQLiteWorker("a2-sqlite-reader", self._connect, self._run_each)
        await self._on(self._writer, _nothing)

    async def close(self) -> None:
        """As Store.close."""
        with self._lock:
            workers = [worker for worker in (self._writer, self._reader) if worker is not None]
            self._writer = self._reader = None
        for ended in [worker.stop() for worker in workers]:
            await ended.wait()

    async def ping(self) -> None:
        """As Store.ping."""
        await self._on(self._reader, self._steps(sql.sessions, None, None, 1))

    async def transact(self, key: SessionKey, needs: Needs, decide: Decide[Answer]) -> Answer:
        """As Store.transact: it shares its commit with whatever waits beside it."""
        return await self._on(self._writer, self._transaction(key, needs, decide))

    def transact_blocking(self, key: SessionKey, needs: Needs, decide: Decide[Answer]) -> Answer:
        """As Store.transact_blocking: a connection and a commit of its own."""
        if self._writer is None:
            raise self._not_open()
        with self._translated():
            connection = self._connect()
            try:
                return in_transaction(connection, self._transaction(key, needs, decide))
            finally:
                connection.close()

    async def begin(self, connection: Any) -> None:
        """As JoiningStore.begin, on an aiosqlite connection. It waits for another writer here, not at the end."""
        with self._translated():
            if not connection.in_transaction:
                await connection.execute("BEGIN IMMEDIATE")

    async def transact_on(self, connection: Any, key: SessionKey, needs: Needs, decide: Decide[Answer]) -> Answer:
        """As JoiningStore.transact_on, on an aiosqlite connection to this store's file.

        While that transaction is open, whatever else writes to the file waits for it.
        """
        with self._translated():
            await self._check_joins(connection)
            await connection.execute("SAVEPOINT a2")
            try:
                steps = sql.transact(DIALECT, key, needs, decide, self._now_ms)
                answer = await _run_on(connection, steps)
            except BaseException:
                with CancelScope(shield=True):
                    await connection.execute("ROLLBACK TO a2")
                    await connection.execute("RELEASE a2")
                raise
            await connection.execute("RELEASE a2")
            return answer

    async def _check_joins(self, connection: Any) -> None:
        if not connection.in_transaction:
            raise ConfigurationError(
                "connection=: expected one in a transaction, so that the events are committed with its rows: "
                'await db.execute("BEGIN") first, or write async with a2.transaction(db)'
            )
        rows = await _execute_on(connection, Statement("PRAGMA database_list"))
        files = {row[1]: row[2] for row in rows}
        main = files["main"]
        if not self._is_at(main):
            raise ConfigurationError(f"connection=: expected one to {self._path}, got one to {main or 'memory'}")

    def _is_at(self, path: str) -> bool:
        return bool(path) and self._path.samefile(path)

    async def read(self, key: SessionKey, after_seq: int, limit: int) -> list[Entry]:
        """As Store.read."""
        return await self._on(self._reader, self._steps(sql.read, key, after_seq, limit))

    async def claim_wakes(self, contracts: Collection[str], *, limit: int, lease_ms: int, late_ms: int = 0) -> Wakes:
        """As Store.claim_wakes. While nothing is due it only reads."""

        def look(connection: sqlite3.Connection) -> Wakes | None:
            at_ms, now_ms = _run(connection, sql.next_wake(contracts, late_ms)), self._now_ms()
            if at_ms is None or at_ms > now_ms:
                return sql.wakes((), at_ms, now_ms)
            return None

        def claim(connection: sqlite3.Connection) -> Wakes:
            now_ms = self._now_ms()
            steps = sql.claim_wakes(DIALECT, contracts, now_ms, limit=limit, lease_ms=lease_ms, late_ms=late_ms)
            keys, at_ms = _run(connection, steps)
            return sql.wakes(keys, at_ms, now_ms)

        return await self._on(self._writer, LookFirst(look, claim))

    async def purge(self, limit: int) -> int:
        """As Store.purge."""

        def job(connection: sqlite3.Connection) -> int:
            return _run(connection, sql.purge(DIALECT, limit, self._now_ms()))

        return await self._on(self._writer, job)

    async def dead_letters(
        self, contract: str | None = None, *, after: tuple[SessionKey, int] | None = None, limit: int = 100
    ) -> list[tuple[SessionKey, WorkItem]]:
        """As Store.dead_letters."""
        return await self._on(self._reader, self._steps(sql.dead_letters, contract, after, limit))

    async def sessions(
        self, contract: str | None = None, *, after: SessionKey | None = None, limit: int = 100
    ) -> list[SessionInfo]:
        """As Store.sessions."""
        return await self._on(self._reader, self._steps(sql.sessions, contract, after, limit))

    def _now_ms(self) -> int:
        return self._clock.now_ms() + self.offset_ms

    def _steps(self, operation: Callable[..., Steps[T]], *args: object) -> Job[T]:
        return lambda connection: _run(connection, operation(*args))

    def _transaction(self, key: SessionKey, needs: Needs, decide: Decide[Answer]) -> Job[Answer]:
        def job(connection: sqlite3.Connection) -> Answer:
            return _run(connection, sql.transact(DIALECT, key, needs, decide, self._now_ms))

        return job

    async def _on(self, worker: SQLiteWorker | None, job: Job[T]) -> T:
        if worker is None:
            raise self._not_open()
        with self._translated():
            return await worker.run(job)

    def _not_open(self) -> StoreUnavailable:
        return StoreUnavailable(f"{self!r} is not open: await store.open() first, or use it through A2")

    def _connect_and_migrate(self) -> sqlite3.Connection:
        connection = self._connect()
        try:
            in_transaction(connection, self._steps(migrate, DIALECT))
        except BaseException:
            connection.close()
            raise
        return connection

    def _connect(self) -> sqlite3.Connection:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreBroken(
                f"{self._path}: cannot make its directory: {error.strerror}; choose a path that can be written"
            ) from error
        connection = sqlite3.connect(
            self._path, timeout=self._busy_timeout_ms / 1_000, isolation_level=None, check_same_thread=False
        )
        try:
            self._enter_wal(connection)
            connection.execute(f"PRAGMA synchronous={self._synchronous}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _enter_wal(self, connection: sqlite3.Connection) -> None:
        """Switch the file to WAL. That needs a moment alone, for which SQLite itself does not wait."""
        patience = time.monotonic() + self._busy_timeout_ms / 1_000
        while True:
            try:
                [mode] = connection.execute("PRAGMA journal_mode=WAL").fetchone()
            except sqlite3.OperationalError as error:
                if not _is_busy(error) or time.monotonic() > patience:
                    raise
                time.sleep(0.01)
            else:
                break
        if mode != "wal":
            raise StoreBroken(f"{self._path}: this file system cannot do WAL (a network path?); use a local disk")

    def _run_group(self, connection: sqlite3.Connection, jobs: list[Queued]) -> list[Callable[[], object]]:
        """Run all in one transaction. Where one of them breaks it, run each in its own, so only that one fails."""
        first, _ = jobs[0]
        try:
            if len(jobs) == 1 and isinstance(first, LookFirst) and (found := first.look(connection)) is not None:
                return [returning(found)]
            return in_transaction(connection, lambda conn: [_outcome(job, conn) for job, _ in jobs])
        except Exception as error:  # noqa: BLE001 - it is raised again where its job is awaited
            if len(jobs) == 1 or _is_busy(error):
                return [raising(error) for _ in jobs]
        return [outcome for queued in jobs for outcome in self._run_group(connection, [queued])]

    def _run_each(self, connection: sqlite3.Connection, jobs: list[Queued]) -> list[Callable[[], object]]:
        outcomes: list[Callable[[], object]] = []
        for job, _ in jobs:
            try:
                outcomes.append(_outcome(job, connection))
            except sqlite3.Error as error:
                outcomes.append(raising(error))
        return outcomes

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Turn the driver's errors into the two that a store has."""
        try:
            yield
        except sqlite3.Error as error:
            name = getattr(error, "sqlite_errorname", "")
            if _is_busy(error):
                raise StoreUnavailable(
                    f"{self._path}: locked by another connection for {self._busy_timeout_ms} ms; "
                    "end that transaction, or raise busy_timeout"
                ) from error
            if name.startswith(("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_NOMEM", "SQLITE_INTERRUPT")):
                raise StoreUnavailable(f"{self._path}: {error}") from error
            if name.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM", "SQLITE_AUTH")):
                raise StoreBroken(
                    f"{self._path}: cannot be written ({error}); check the path and its rights"
                ) from error
            if name.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")):
                raise StoreBroken(
                    f"{self._path}: {error}; choose another path, or restore the file from a backup"
                ) from error
            raise StoreBroken(f"{self._path}: {error}") from error


def _nothing(connection: sqlite3.Connection) -> None:
    """The job of who only wants to know that there is a connection."""


def _outcome(job: Job[T], connection: sqlite3.Connection) -> Callable[[], T]:
    """Run one job. What a decision raises is its own outcome: it wrote nothing. Any other error ends the group."""
    changes = connection.total_changes
    try:
        return returning(job(connection))
    except sqlite3.Error:
        raise
    except Exception as error:
        if connection.total_changes != changes:  # part of its plan is written, and must not be committed
            raise
        return raising(error)


def _run(connection: sqlite3.Connection, steps: Steps[T]) -> T:
    """Execute a generator of statements."""
    lists = listed(steps)
    try:
        statements = next(lists)
        while True:
            statements = lists.send([_execute(connection, statement) for statement in statements])
    except StopIteration as end:
        result: T = end.value
        return result


def _execute(connection: sqlite3.Connection, statement: Statement) -> Rows:
    execute = connection.executemany if statement.many else connection.execute
    return execute(statement.sql, statement.params).fetchall()


async def _run_on(connection: Any, steps: Steps[T]) -> T:
    """Execute a generator of statements on the caller's aiosqlite connection."""
    lists = listed(steps)
    try:
        statements = next(lists)
        while True:
            statements = lists.send([await _execute_on(connection, statement) for statement in statements])
    except StopIteration as end:
        result: T = end.value
        return result


async def _execute_on(connection: Any, statement: Statement) -> Rows:
    """The statement's rows as tuples, whatever rows the caller's connection makes elsewhere."""
    cursor = await connection.cursor()
    try:
        cursor.row_factory = None
        await (cursor.executemany if statement.many else cursor.execute)(statement.sql, statement.params)
        rows: Rows = await cursor.fetchall()
        return rows
    finally:
        await cursor.close()


def _is_busy(error: Exception) -> bool:
    return getattr(error, "sqlite_errorname", "").startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))
