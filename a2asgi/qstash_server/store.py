"""One SQLite database on a thread of its own, which runs jobs in transactions, several to a commit."""

import sqlite3
from collections.abc import Callable
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeVar

from a2asgi.errors import StoreBroken, StoreUnavailable
from a2asgi.qstash_server.schema import open_schema
from a2asgi.sqlite_worker import Job, Queued, SQLiteWorker, in_transaction
from a2asgi.threads import raising, returning

BUSY_S = 1
"""How long to wait for a server that is just letting go of the file."""

T = TypeVar("T")


class Store:
    """Keeps everything that the server knows in one file, or in memory where `path` is None.

    The file is this process's alone: a second server on it fails to open with StoreUnavailable. A commit survives a
    killed process and a power cut.
    """

    def __init__(self, path: str | PathLike[str] | None) -> None:
        self._path = None if path is None else Path(fspath(path))
        self._worker: SQLiteWorker | None = None

    async def open(self) -> None:
        """Start the thread and make the schema. Raises StoreBroken or StoreUnavailable where that cannot be."""
        self._worker = SQLiteWorker("a2-qstash-store", self._connect, _in_one_commit)
        await self.run(lambda _: None)

    async def close(self) -> None:
        """Finish what waits, and let go of the file."""
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.stop().wait()

    async def run(self, job: Job[T]) -> T:
        """Run `job` in a transaction; what it raises undoes what it wrote, and is raised here.

        Raises StoreUnavailable where trying again later is right, StoreBroken where it is not.
        """
        if self._worker is None:
            raise StoreUnavailable("the server's store is not open")
        try:
            return await self._worker.run(job)
        except sqlite3.Error as error:
            raise self._translated(error) from error

    def _translated(self, error: sqlite3.Error) -> Exception:
        name = getattr(error, "sqlite_errorname", "")
        where = self._path or "memory"
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            return StoreUnavailable(f"{where}: in use by another process; stop that server, or choose another file")
        if name.startswith(("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_NOMEM")):
            return StoreUnavailable(f"{where}: {error}")
        return StoreBroken(f"{where}: {error}")

    def _connect(self) -> sqlite3.Connection:
        if self._path is None:
            target = ":memory:"
        else:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise StoreBroken(f"{self._path}: cannot make its directory: {error.strerror}") from error
            target = str(self._path)
        connection = sqlite3.connect(target, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA locking_mode=EXCLUSIVE")
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("BEGIN EXCLUSIVE")
            open_schema(connection)
            connection.execute("COMMIT")
        except BaseException:
            connection.close()
            raise
        return connection


def _in_one_commit(connection: sqlite3.Connection, jobs: list[Queued]) -> list[Callable[[], Any]]:
    return in_transaction(connection, lambda conn: [_in_savepoint(conn, job) for job, _ in jobs])


def _in_savepoint(connection: sqlite3.Connection, job: Job[T]) -> Callable[[], T]:
    connection.execute("SAVEPOINT job")
    try:
        outcome = returning(job(connection))
    except Exception as error:
        if not connection.in_transaction:  # SQLite itself gave up on the whole transaction
            raise
        connection.execute("ROLLBACK TO job")
        outcome = raising(error)
    connection.execute("RELEASE job")
    return outcome
