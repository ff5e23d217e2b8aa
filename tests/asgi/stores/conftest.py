"""What the tests of stores share: servers, each made once, and a line in the summary for those that are missing."""

from collections.abc import Iterator

import pytest

from a2asgi.testing.postgres_bench import PostgresBench
from tests.asgi.stores.redis_server import MISSING as REDIS_MISSING
from tests.asgi.stores.redis_server import redis_command
from tests.asgi.stores.servers import PostgresServer, answers, any_postgres, started_postgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a Postgres server."""
    with any_postgres() as url:
        yield url


@pytest.fixture
def bench(postgres: str) -> Iterator[PostgresBench]:
    """Makes stores on the server, and clears up after the test."""
    with PostgresBench(postgres) as made:
        yield made


@pytest.fixture(scope="session")
def own_postgres() -> Iterator[PostgresServer]:
    """A Postgres server that tests kill and start again."""
    with started_postgres() as server:
        yield server


@pytest.fixture
def own_url(own_postgres: PostgresServer) -> Iterator[str]:
    """A schema of the test's own on that server, which runs again afterwards."""
    with PostgresBench(own_postgres.url) as bench:
        yield bench.url("a2_of_one_test")
        if not answers(own_postgres.url):
            own_postgres.start()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if redis_command() is None:
        terminalreporter.write_line(REDIS_MISSING)
