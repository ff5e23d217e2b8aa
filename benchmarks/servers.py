"""The servers that benchmarks need: Postgres and Redis of our own, with the durability that they come with."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

import psycopg

from tests.asgi.stores.redis_server import RedisServer, redis_command
from tests.asgi.stores.servers import postgres_binaries, started_postgres

NewPlace: TypeAlias = Callable[[], str]
"""Names an empty place: a URL of a database of its own or of memory, or the path of a file that is not there yet."""


@contextmanager
def sqlite_places() -> Iterator[NewPlace]:
    """Files in a folder that is removed."""
    with TemporaryDirectory(prefix="a2-bench-") as folder:
        numbers = count()
        yield lambda: f"{folder}/{next(numbers)}.db"


@contextmanager
def postgres_places() -> Iterator[NewPlace]:
    """Databases of a server with PostgreSQL's own settings: each commit is on disk before it is told."""
    with started_postgres() as server:
        numbers = count()

        def new_place() -> str:
            name = f"bench_{next(numbers)}"
            with psycopg.connect(server.url, autocommit=True) as connection:
                connection.execute(f"CREATE DATABASE {name}".encode())
            return server.url.removesuffix("postgres") + name

        yield new_place


@contextmanager
def redis_places() -> Iterator[NewPlace]:
    """One server, emptied, with an append-only file that is written down each second."""
    with TemporaryDirectory(prefix="a2-bench-") as folder, RedisServer(Path(folder)) as server:

        def new_place() -> str:
            client = server.client()
            client("FLUSHALL")
            client.close()
            return server.url

        yield new_place


def places(kind: str) -> AbstractContextManager[NewPlace] | None:
    """Empty places of a kind, memory, sqlite, postgres or redis; None where this machine has no such server."""
    if kind == "memory":
        return nullcontext(lambda: "memory://")
    if kind == "postgres":
        return postgres_places() if postgres_binaries() is not None else None
    if kind == "redis":
        return redis_places() if redis_command() is not None else None
    return sqlite_places()
