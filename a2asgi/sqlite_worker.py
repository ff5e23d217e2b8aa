"""A thread with a SQLite connection of its own, which runs whatever jobs wait for it, several to a commit."""

import sqlite3
from collections import deque
from collections.abc import Callable
from threading import Condition, Thread
from typing import Any, TypeAlias, TypeVar

from a2asgi.errors import StoreUnavailable
from a2asgi.threads import Reply, raising, returning, set_all

MAX_GROUP = 256
"""How many jobs share one commit at most, so that the first of them does not wait long."""

T = TypeVar("T")
Job: TypeAlias = Callable[[sqlite3.Connection], T]
Queued: TypeAlias = tuple[Job[Any], Reply[Any]]


class SQLiteWorker:
    """The thread. It connects for its first jobs, and again while that fails.

    `run_group` runs the jobs that wait together, and gives the outcome of each; what it raises is the outcome of all.
    """

    def __init__(
        self,
        name: str,
        connect: Callable[[], sqlite3.Connection],
        run_group: Callable[[sqlite3.Connection, list[Queued]], list[Callable[[], Any]]],
    ) -> None:
        self._connect = connect
        self._run_group = run_group
        self._queue: deque[Queued] = deque()
        self._ready = Condition()
        self._stopped: Reply[None] | None = None
        Thread(target=self._work, name=name, daemon=True).start()

    async def run(self, job: Job[T]) -> T:
        """Run a job, or raise what it raised. Raises StoreUnavailable once stopped."""
        reply: Reply[T] = Reply()
        with self._ready:
            if self._stopped is not None:
                raise StoreUnavailable("the store is closed")
            self._queue.append((job, reply))
            self._ready.notify()
        return await reply.wait()

    def stop(self) -> Reply[None]:
        """Finish what is queued, then end the thread and its connection, and reply."""
        reply: Reply[None] = Reply()
        with self._ready:
            self._stopped = reply
            self._ready.notify()
        return reply

    def _work(self) -> None:
        connection: sqlite3.Connection | None = None
        while jobs := self._take():
            try:
                connection = connection or self._connect()
                outcomes = self._run_group(connection, jobs)
            except BaseException as error:  # noqa: BLE001 - it is raised where each of them is awaited
                outcomes = [raising(error) for _ in jobs]
            set_all(zip((reply for _, reply in jobs), outcomes, strict=True))
        if connection is not None:
            connection.close()
        if self._stopped is not None:
            self._stopped.set(returning(None))

    def _take(self) -> list[Queued]:
        """Wait for jobs, and take all of them up to a bound; none once stopped."""
        with self._ready:
            while not self._queue and self._stopped is None:
                self._ready.wait()
            return [self._queue.popleft() for _ in range(min(len(self._queue), MAX_GROUP))]


def in_transaction(connection: sqlite3.Connection, job: Job[T]) -> T:
    """Run a job and commit. What is raised undoes all of it."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        result = job(connection)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return result
