"""The matrix in short: each server with one app, and each app with one server; `make hosts` runs all of it."""

from pathlib import Path

import pytest

from tests.hosts.cells import APPS, CHECKS, HOSTS, LAMBDA, OUT_OF_REACH, run
from tests.hosts.lambda_host import LambdaHost

PAIRS = [(host, "starlette") for host in HOSTS] + [("uvicorn", app) for app in APPS if app != "starlette"]


@pytest.mark.parametrize(("host", "app"), PAIRS)
def test_an_app_keeps_its_promises_behind_a_server(host: str, app: str, tmp_path: Path) -> None:
    cell = run(host, app, tmp_path)
    assert [] == cell.failures
    cannot = {check for check, mark in cell.marks.items() if mark == "n/a"}
    assert (list(CHECKS), set(LambdaHost.CANNOT) if host == LAMBDA else set()) == (list(cell.marks), cannot)


@pytest.mark.parametrize(("host", "app"), OUT_OF_REACH)
def test_what_cannot_be_says_so(host: str, app: str, tmp_path: Path) -> None:
    cell = run(host, app, tmp_path)
    assert ({"n/a"}, [f"n/a: {OUT_OF_REACH[host, app]}"]) == ({*cell.marks.values()}, cell.notes)


def test_a_check_that_fails_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is asked all the same."""
    monkeypatch.setattr("tests.hosts.cells.CALLBACK", "/api/a2/nowhere")
    cell = run("uvicorn", "bare", tmp_path)
    assert ["callback"] == [check for check, mark in cell.marks.items() if mark == "FAIL"]
    assert ["uvicorn bare, callback"] == [failure.partition(":")[0] for failure in cell.failures]
