"""One SQLite database on a thread of its own, which runs jobs in transactions, several to a commit."""

import sqlite3
from collections import deque
from collections.abc import Callable
from os import PathLike, fspath
from pathlib import Path
from threading import Condition, Thread
from typing import Any, TypeAlias, TypeVar

from a2asgi.errors import StoreBroken, StoreUnavailable
from a2asgi.qstash_server.schema import open_schema
from a2asgi.threads import Reply, raising, returning

BUSY_S = 1
"""How long to wait for a server that is just letting go of the file."""

MAX_GROUP = 256
"""How many jobs share one commit at most, so that the first of them does not wait long."""

T = TypeVar("T")
Job: TypeAlias = Callable[[sqlite3.Connection], T]
_Queued: TypeAlias = "tuple[Job[Any], Reply[Any]]"


class Store:
    """Keeps everything that the server knows in one file, or in memory where `path` is None.

    The file is this process's alone: a second server on it fails to open with StoreUnavailable. A commit survives a
    killed process and a power cut.
    """

    def __init__(self, path: str | PathLike[str] | None) -> None:
        self._path = None if path is None else Path(fspath(path))
        self._queue: deque[_Queued] = deque()
        self._ready = Condition()
        self._open = False
        self._stopped: Reply[None] | None = None

    async def open(self) -> None:
        """Start the thread and make the schema. Raises StoreBroken or StoreUnavailable where that cannot be."""
        self._stopped = None
        self._open = True
        Thread(target=self._work, name="a2-qstash-store", daemon=True).start()
        await self.run(lambda _: None)

    async def close(self) -> None:
        """Finish what waits, and let go of the file."""
        if self._open:
            self._open = False
            reply: Reply[None] = Reply()
            with self._ready:
                self._stopped = reply
                self._ready.notify()
            await reply.wait()

    async def run(self, job: Job[T]) -> T:
        """Run `job` in a transaction; what it raises undoes what it wrote, and is raised here.

        Raises StoreUnavailable where trying again later is right, StoreBroken where it is not.
        """
        reply: Reply[T] = Reply()
        with self._ready:
            if not self._open:
                raise StoreUnavailable("the server's store is not open")
            self._queue.append((job, reply))
            self._ready.notify()
        try:
            return await reply.wait()
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

    def _work(self) -> None:
        connection: sqlite3.Connection | None = None
        while jobs := self._take():
            try:
                connection = connection or self._connect()
                outcomes = _in_one_commit(connection, jobs)
            except BaseException as error:  # noqa: BLE001 - it is raised where each of them is awaited
                outcomes = [raising(error) for _ in jobs]
            for (_, reply), outcome in zip(jobs, outcomes, strict=True):
                reply.set(outcome)
        if connection is not None:
            connection.close()
        if self._stopped is not None:
            self._stopped.set(returning(None))

    def _take(self) -> list[_Queued]:
        with self._ready:
            while not self._queue and self._stopped is None:
                self._ready.wait()
            return [self._queue.popleft() for _ in range(min(len(self._queue), MAX_GROUP))]


def _in_one_commit(connection: sqlite3.Connection, jobs: list[_Queued]) -> list[Callable[[], Any]]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        outcomes = [_in_savepoint(connection, job) for job, _ in jobs]
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return outcomes


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
