"""Says in the summary of a run what was left out, and why."""

import shutil

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    missing = [name for name in ("node", "npm") if shutil.which(name) is None]
    if missing:
        terminalreporter.write_line(f"official JavaScript client: not run, {' and '.join(missing)} not on the PATH")
