"""Pools: connections for each event loop and for threads, the talks that are held on them, and what goes wrong there.

Whoever talks to the server is a generator (a Talk): it yields queries that are sent together and is sent their rows.
On asyncio a Talk runs in a task of its own, elsewhere on a thread, so that to stop waiting for one tears neither it
nor its connection. Queries are one text with the values written into it by the driver: none is ever prepared.
"""

import asyncio
import math
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import Any, Generic, TypeAlias, TypeVar

import anyio
import psycopg
from anyio.lowlevel import current_token
from psycopg.abc import PQGen
from psycopg.pq import ConnStatus, ExecStatus, TransactionStatus

from a2asgi.errors import StoreBroken, StoreUnavailable
from a2asgi.postgres.sqlstates import is_gone, is_retryable
from a2asgi.postgres.url import read_url
from a2asgi.threads import Refused, Workers
from a2asgi.turns import Turns

T = TypeVar("T")
RV = TypeVar("RV")
Query: TypeAlias = tuple[str, Sequence[Any]]
"""SQL with %s for each of its values."""
Rows: TypeAlias = Sequence[Sequence[Any]]
Talk: TypeAlias = Generator[Sequence[Query], list[Rows], T]
"""Yields queries that are sent together, and is sent the rows of each that has any."""

MAX_AGE_S = 3_600
"""A pooled connection is not used for longer than this: what a failover or a new password changed is noticed."""


class _NoAnswer(psycopg.OperationalError):
    """The server was silent for too long."""


class _Stale(Exception):
    """A pooled connection turned out to be gone before anything was done on it."""


class _Connection(psycopg.Connection[Any]):
    """One whose waits end at a deadline: an operating system may not notice for hours that a peer is gone."""

    deadline = math.inf
    born = 0.0

    def wait(self, gen: PQGen[RV], *args: Any, **kwargs: Any) -> RV:
        return super().wait(_until(self.deadline, gen), *args, **kwargs)


class _AsyncConnection(psycopg.AsyncConnection[Any]):
    """The same for asyncio."""

    deadline = math.inf
    born = 0.0

    async def wait(self, gen: PQGen[RV], *args: Any, **kwargs: Any) -> RV:
        return await super().wait(_until(self.deadline, gen), *args, **kwargs)


_Any = TypeVar("_Any", _Connection, _AsyncConnection)


class Server:
    """A database and the connections to it. It can be used from any number of event loops and threads.

    `connections` is how many each asyncio loop, and all of trio's together, use at once; a thread that blocks has one
    beside them. `timeout_ms` bounds the wait for each answer, for a free connection, and for a new one.
    Raises ConfigurationError for what is no URL of a database.
    """

    def __init__(self, url: str, *, connections: int, timeout_ms: int) -> None:
        self.where: str
        self._conninfo: str
        self.where, self._conninfo = read_url(url, timeout_ms)
        self._connections = connections
        self._timeout_ms = timeout_ms
        self.timeout_s: float = timeout_ms / 1_000
        self._lock = Lock()
        self._turns = Turns()
        self._threads = _ThreadPool(self)
        self._workers = Workers("a2-postgres", connections)
        self._loops: dict[asyncio.AbstractEventLoop, _LoopPool] = {}
        self.closed: bool = False

    async def run(self, talk: Callable[[], Talk[T]], *, lock: int | None = None) -> T:
        """Hold a talk on a connection, and return its answer. It is begun again where the connection was stale.

        Talks of one `lock` take turns here, so that those who would wait for it hold no connection meanwhile.
        What the talk raises is raised as it is, and undone. Raises StoreUnavailable, StoreBroken.
        """
        if lock is None:
            return await self._run(talk)
        try:
            with anyio.fail_after(self.timeout_s):
                await self._turns.take(lock)
        except TimeoutError as error:
            raise StoreUnavailable(f"{self.where}: others held the session for {self._timeout_ms} ms") from error
        try:
            return await self._run(talk)
        finally:
            self._turns.give(lock)

    async def _run(self, talk: Callable[[], Talk[T]]) -> T:
        loop: object = current_token().native_token
        try:
            if isinstance(loop, asyncio.AbstractEventLoop) and sys.platform != "win32":
                return await self._pool(loop).run(talk)
            return await self._workers.run(partial(self._threads.run, talk), begin_within_s=self.timeout_s)
        except Refused as error:
            why = f"no connection was free within {self.timeout_s:g} s; raise connections, or do less at once"
            raise StoreUnavailable(f"{self.where}: {'closed' if self.closed else why}") from error

    def run_blocking(self, talk: Callable[[], Talk[T]]) -> T:
        """The same on the calling thread, on a connection that it shares with nobody meanwhile."""
        return self._threads.run(talk)

    def connect(self) -> psycopg.Connection[Any]:
        """A connection of the caller's own, in which every statement is a transaction."""
        return self._threads.connect()

    def close_blocking(self) -> None:
        """End the connections of threads; where nothing else was used, that is all."""
        self.closed = True
        _finish_all(self._threads.idle)

    async def close(self) -> None:
        """Finish what was accepted on this event loop and on threads, then disconnect."""
        self.close_blocking()
        with self._lock:
            pools, self._loops = dict(self._loops), {}
        for pool in pools.values():
            _finish_all(pool.idle)
        stopped = self._workers.stop()
        loop: object = current_token().native_token
        for its, pool in pools.items():
            if its is loop:
                await pool.finish()
        await stopped.wait()

    def _pool(self, loop: asyncio.AbstractEventLoop) -> "_LoopPool":
        with self._lock:
            pool = self._loops.get(loop)
            if pool is None:
                for ended in [its for its in self._loops if its.is_closed()]:
                    _finish_all(self._loops.pop(ended).idle)
                pool = self._loops[loop] = _LoopPool(self, self._connections)
            return pool

    # ── what both kinds of pool do alike ─────────────────────────────────────────────────

    @property
    def options(self) -> dict[str, Any]:
        """How to connect."""
        return {"conninfo": self._conninfo, "autocommit": True, "prepare_threshold": None}

    def text(self, cursor: Any, queries: Sequence[Query]) -> str:
        """The queries as one text."""
        try:
            return ";\n".join(cursor.mogrify(sql, params) if params else sql for sql, params in queries)
        except psycopg.Error as error:  # a value that no text of Postgres can hold
            raise StoreBroken(f"{self.where}: {error}") from error

    def failed(self, connection: _Any, error: psycopg.Error, *, reused: bool) -> Exception:
        """What to raise for an error that came instead of an answer. A connection that may be gone is ended."""
        gone = error.sqlstate is not None and is_gone(error.sqlstate)
        if gone or isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            connection.pgconn.finish()
            if reused and not isinstance(error, _NoAnswer) and (gone or error.sqlstate is None):
                return _Stale()
        return self.translated(error)

    def translated(self, error: psycopg.Error) -> StoreUnavailable | StoreBroken:
        """The driver's error as one of the two that a store has. It tells no password and no payload."""
        state = error.sqlstate
        if isinstance(error, _NoAnswer):
            return StoreUnavailable(f"{self.where}: no answer within {self._timeout_ms} ms")
        lost = state is None and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        kind = StoreUnavailable if lost or (state and is_retryable(state)) else StoreBroken
        text = error.diag.message_primary or " ".join(str(error).split())
        return kind(f"{self.where}: {text}" + (f" (SQLSTATE {state})" if state else ""))

    def keeps(self, connection: _Any) -> bool:
        """Whether a connection may serve another talk; if not it is ended here."""
        if (
            self.closed
            or connection.pgconn.status != ConnStatus.OK
            or connection.pgconn.transaction_status != TransactionStatus.IDLE
            or time.monotonic() - connection.born > MAX_AGE_S
        ):
            connection.pgconn.finish()
            return False
        return True


class _Pool(Generic[_Any]):
    """Connections that wait for their next use, the last one on top."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.idle: list[_Any] = []

    def take(self) -> _Any | None:
        """One that waits; None where there is none. Threads may ask at once."""
        try:
            return self.idle.pop()
        except IndexError:
            return None

    def give_back(self, connection: _Any) -> None:
        """Let it wait, if it is fit for that."""
        if self.server.keeps(connection):
            self.idle.append(connection)
            if self.server.closed:  # meanwhile, so that nobody else ends it
                _finish_all(self.idle)


class _LoopPool(_Pool[_AsyncConnection]):
    """The connections of one asyncio loop."""

    def __init__(self, server: Server, connections: int) -> None:
        super().__init__(server)
        self._free = asyncio.Semaphore(connections)
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(self, talk: Callable[[], Talk[T]]) -> T:
        task = asyncio.get_running_loop().create_task(self._run(talk))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def finish(self) -> None:
        """Wait for what was accepted."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _run(self, talk: Callable[[], Talk[T]]) -> T:
        try:
            async with asyncio.timeout(self.server.timeout_s):
                await self._free.acquire()
        except TimeoutError as error:
            raise Refused from error
        try:
            while True:
                with suppress(_Stale):
                    return await self._hold(talk())
        finally:
            self._free.release()

    async def _hold(self, conversation: Talk[T]) -> T:
        connection = self.take()
        reused = connection is not None
        connection = connection or await self._connect()
        try:
            queries = next(conversation)
            while True:
                rows = await self._send(connection, queries, reused=reused)
                reused = False
                queries = conversation.send(rows)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            await self._end(connection)

    async def _end(self, connection: _AsyncConnection) -> None:
        if connection.pgconn.transaction_status in {TransactionStatus.INTRANS, TransactionStatus.INERROR}:
            with suppress(StoreUnavailable, StoreBroken):
                await self._send(connection, [("ROLLBACK", ())], reused=False)
        self.give_back(connection)

    async def _connect(self) -> _AsyncConnection:
        try:
            connection = await _AsyncConnection.connect(**self.server.options, cursor_factory=psycopg.AsyncClientCursor)
        except psycopg.Error as error:
            raise self.server.translated(error) from error
        connection.born = time.monotonic()
        return connection

    async def _send(self, connection: _AsyncConnection, queries: Sequence[Query], *, reused: bool) -> list[Rows]:
        cursor = connection.cursor()
        connection.deadline = time.monotonic() + self.server.timeout_s
        try:
            return await ask(cursor, self.server.text(cursor, queries))
        except psycopg.Error as error:
            raise self.server.failed(connection, error, reused=reused) from error
        except BaseException:
            connection.pgconn.finish()
            raise


class _ThreadPool(_Pool[_Connection]):
    """The connections of all threads. Each thread that comes gets one."""

    def run(self, talk: Callable[[], Talk[T]]) -> T:
        while True:
            with suppress(_Stale):
                return self._hold(talk())

    def _hold(self, conversation: Talk[T]) -> T:
        connection = self.take()
        reused = connection is not None
        connection = connection or self.connect()
        try:
            queries = next(conversation)
            while True:
                rows = self._send(connection, queries, reused=reused)
                reused = False
                queries = conversation.send(rows)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            self._end(connection)

    def _end(self, connection: _Connection) -> None:
        if connection.pgconn.transaction_status in {TransactionStatus.INTRANS, TransactionStatus.INERROR}:
            with suppress(StoreUnavailable, StoreBroken):
                self._send(connection, [("ROLLBACK", ())], reused=False)
        self.give_back(connection)

    def connect(self) -> _Connection:
        try:
            connection = _Connection.connect(**self.server.options, cursor_factory=psycopg.ClientCursor)
        except psycopg.Error as error:
            raise self.server.translated(error) from error
        connection.born = time.monotonic()
        return connection

    def _send(self, connection: _Connection, queries: Sequence[Query], *, reused: bool) -> list[Rows]:
        cursor = connection.cursor()
        connection.deadline = time.monotonic() + self.server.timeout_s
        text = self.server.text(cursor, queries)
        try:
            cursor.execute(text)
            found: list[Rows] = []
            while True:
                if _has_rows(cursor):
                    found.append(cursor.fetchall())
                if not cursor.nextset():
                    return found
        except psycopg.Error as error:
            raise self.server.failed(connection, error, reused=reused) from error
        except BaseException:
            connection.pgconn.finish()
            raise


async def ask(cursor: psycopg.AsyncCursor[Any], text: str) -> list[Rows]:
    """Send a text of queries, and return the rows of each that has any."""
    await cursor.execute(text)
    found: list[Rows] = []
    while True:
        if _has_rows(cursor):
            found.append(await cursor.fetchall())
        if not cursor.nextset():
            return found


def _until(deadline: float, gen: PQGen[RV]) -> PQGen[RV]:
    """The same wait, with an end."""
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() > deadline:
                gen.close()
                raise _NoAnswer
            wanted = gen.send(ready)
    except StopIteration as end:
        result: RV = end.value
        return result


def _has_rows(cursor: psycopg.Cursor[Any] | psycopg.AsyncCursor[Any]) -> bool:
    return cursor.pgresult is not None and cursor.pgresult.status == ExecStatus.TUPLES_OK


def _finish_all(connections: list[_Any]) -> None:
    while connections:
        with suppress(IndexError):  # where two do this at once
            connection = connections.pop()
            connection.pgconn.finish()
