"""Postgres under the conformance suite: a schema for each name that a check gives, and the server's clock, moved."""

import re
from contextlib import AbstractContextManager
from types import TracebackType

from a2asgi.postgres.pools import Query, Server, Talk
from a2asgi.stores.postgres import PostgresStore
from a2asgi.testing.store_bench import StoreClock


class MovedPostgresStore(PostgresStore):
    """Tells the time of its server, moved as far as a check has moved the time."""

    def __init__(self, url: str, clock: StoreClock) -> None:
        super().__init__(url)
        self._moved = clock

    def _moved_ms(self) -> int:
        return super()._moved_ms() + self._moved.moved_ms


class PostgresBench(AbstractContextManager["PostgresBench"]):
    """Makes stores in a database, which needs the right to create schemas; on leaving these are dropped.

    `url` has the form postgresql://…; PostgresStore itself would take other forms too.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._server = Server(url, connections=1, timeout_ms=30_000)
        self._names: dict[str, None] = {}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            for name in self._names:
                self._do(f"DROP SCHEMA IF EXISTS {name} CASCADE")
        finally:
            self._server.close_blocking()

    def make_store(self, clock: StoreClock, name: str) -> PostgresStore:
        """As MakeStore."""
        return MovedPostgresStore(self.url(name), clock)

    def url(self, name: str) -> str:
        """Where the tables of this name are; the schema is made if it is missing."""
        if not re.fullmatch("[a-z0-9_]+", name):
            raise ValueError(f"expected a name of a-z, 0-9 and _, got {name!r}")
        if name not in self._names:
            self._do(f"CREATE SCHEMA IF NOT EXISTS {name}")
            self._names[name] = None
        return f"{self._url}{'&' if '?' in self._url else '?'}options=-csearch_path%3D{name}"

    def _do(self, text: str) -> None:
        def talk() -> Talk[None]:
            query: Query = (text, ())
            yield [query]

        self._server.run_blocking(talk)
