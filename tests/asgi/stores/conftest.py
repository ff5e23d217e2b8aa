"""Says in the summary of a run which servers were missing."""

import pytest

from tests.asgi.stores.redis_server import MISSING as REDIS_MISSING
from tests.asgi.stores.redis_server import redis_command


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if redis_command() is None:
        terminalreporter.write_line(REDIS_MISSING)
