"""The Lambda function, called as AWS calls it, with signed requests and a connection to QStash that only takes note."""

import sqlite3
import subprocess
import sys
import time
from base64 import b64encode
from contextlib import closing
from dataclasses import dataclass, field
from http.client import RemoteDisconnected
from pathlib import Path
from typing import Any

import pytest

from a2core import DEFAULT_MAX_BODY_BYTES, AppendTask, DrainTask, Outage
from examples import lambda_function
from tests.examples.qstash import (
    DUE_MS,
    ENVIRONMENT,
    FORGED,
    GENUINE,
    NEXT_KEY,
    URL,
    Signer,
    append_task,
    body_of,
    drain_task,
    event,
    outage_of,
    sign,
)


@dataclass
class Connection:
    """A connection to QStash: takes note of the request, and answers with a status, or breaks."""

    answer: int | Exception = 200
    opened: list[str] = field(default_factory=list)
    requests: list[tuple[str, str, bytes, dict[str, str]]] = field(default_factory=list)
    closed: int = 0

    def open(self, host: str, *, timeout: float) -> "Connection":
        assert timeout <= 10
        self.opened.append(host)
        return self

    def request(self, method: str, target: str, body: bytes, headers: dict[str, str]) -> None:
        self.requests.append((method, target, body, headers))

    def getresponse(self) -> "Connection":
        if isinstance(self.answer, Exception):
            raise self.answer
        return self

    @property
    def status(self) -> int | Exception:
        return self.answer

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("A2_DB", str(tmp_path / "log.db"))
    return tmp_path / "log.db"


@pytest.fixture
def connection(log: Path, monkeypatch: pytest.MonkeyPatch) -> Connection:
    connection = Connection()
    monkeypatch.setattr(lambda_function, "HTTPSConnection", connection.open)
    return connection


@pytest.fixture
def away(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file system of the log is not mounted."""
    monkeypatch.setenv("A2_DB", str(log.parent / "away" / log.name))


def request(body: bytes, headers: dict[str, str], method: str = "POST") -> dict[str, Any]:
    """A request as a function URL hands it over."""
    context = {"http": {"method": method, "path": "/", "protocol": "HTTP/1.1", "sourceIp": "192.0.2.1"}}
    event = {"version": "2.0", "rawPath": "/", "headers": headers, "requestContext": context}
    return event | ({"body": body.decode()} if body else {}) | {"isBase64Encoded": False}


def deliver(body: bytes, sign: Signer = sign) -> tuple[int, str]:
    """The status of the answer, and its text."""
    return told(request(body, {"upstash-signature": sign(body), "content-length": str(len(body))}))


def told(event: dict[str, Any]) -> tuple[int, str]:
    answer = lambda_function.handler(event, None)
    assert ("upstash-nonretryable-error" in answer["headers"]) == (answer["statusCode"] == 489)
    return answer["statusCode"], answer["body"]


def rows(log: Path) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(log)) as db:
        return db.execute("select session, id from log order by rowid").fetchall()


def test_it_is_under_80_lines_and_stands_on_the_core_alone() -> None:
    """Importing it needs no environment either."""
    assert Path(lambda_function.__file__).read_text().count("\n") < 80
    code = "import sys, examples.lambda_function; sys.exit('a2asgi' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2], env={})


def test_an_append_that_is_delivered_twice_is_appended_and_handled_once(
    log: Path, connection: Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [(200, "ok"), (200, "ok")] == [deliver(body_of(append_task())) for _ in range(2)]
    assert [("s-1", "e-1")] == rows(log)
    assert ('s-1 e-1 placed {"sku":"thé"}\n', []) == (capsys.readouterr().out, connection.requests)


@pytest.mark.usefixtures("log")
def test_a_body_in_base64_is_verified_and_read_as_it_was_sent() -> None:
    body = body_of(append_task())
    encoded = request(b"", {"upstash-signature": sign(body)})
    encoded |= {"body": b64encode(body).decode(), "isBase64Encoded": True}
    assert (200, "ok") == told(encoded)
    garbled = {"body": b64encode(b"\xff").decode(), "headers": {"upstash-signature": sign(b"\xff")}}
    assert (489, "invalid a2 scheduler message") == told(encoded | garbled)


def test_a_handler_that_fails_leaves_nothing_in_the_log(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The provider keeps the message, and delivers it again."""
    handled: list[str] = []
    broken = ["e-2"]

    def handle(_session: str, id_: str, *_: object) -> None:
        if id_ in broken:
            raise ConnectionError("the bank does not answer")
        handled.append(id_)

    monkeypatch.setattr(lambda_function, "print", handle, raising=False)
    body = body_of(append_task(event("e-1"), event("e-2")))
    assert (500, "delivery failed") == deliver(body)
    assert [] == rows(log)
    broken.clear()
    assert (200, "ok") == deliver(body)
    assert ["e-1", "e-1", "e-2"] == handled


def test_an_event_that_cannot_be_read_is_not_acknowledged(log: Path) -> None:
    assert (500, "delivery failed") == deliver(body_of(append_task(event("e-1"), {"id": "e-2"})))
    assert [] == rows(log)


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize("signer", GENUINE.values(), ids=GENUINE)
def test_what_the_provider_signs_is_genuine(signer: Signer) -> None:
    assert (200, "ok") == deliver(body_of(drain_task()), signer)


@pytest.mark.parametrize("signer", FORGED.values(), ids=FORGED)
def test_a_forgery_changes_nothing(log: Path, monkeypatch: pytest.MonkeyPatch, signer: Signer) -> None:
    monkeypatch.setenv("QSTASH_NEXT_SIGNING_KEY", "")  # as where nobody set it
    assert (401, "unauthorized") == deliver(body_of(append_task()), signer)
    assert not log.exists()


@pytest.mark.usefixtures("log")
def test_rotated_keys_hold_from_the_next_request_on(monkeypatch: pytest.MonkeyPatch) -> None:
    body = body_of(drain_task())
    monkeypatch.setenv("QSTASH_CURRENT_SIGNING_KEY", NEXT_KEY)
    assert [(401, "unauthorized"), (200, "ok")] == [deliver(body), deliver(body, GENUINE["with the next key"])]


@pytest.mark.usefixtures("log")
def test_what_is_refused_is_told_by_its_status() -> None:
    signed = {"upstash-signature": "signature"}
    too_large = b" " * (DEFAULT_MAX_BODY_BYTES + 1)
    assert (401, "unauthorized") == told(request(too_large, {}))
    assert (489, "a2 scheduler message is too large") == told(request(too_large, signed))
    assert (489, "a2 scheduler message is too large") == told(request(b"", {"content-length": "9" * 5_000, **signed}))
    assert (489, "invalid a2 scheduler message") == deliver(b"{}")
    assert (500, "unknown contract") == deliver(body_of(append_task(contract="billing")))
    refused = lambda_function.handler(request(b"", signed, "GET"), None)
    assert (405, "POST") == (refused["statusCode"], refused["headers"]["allow"])


@pytest.mark.usefixtures("away")
@pytest.mark.parametrize(
    ("task", "lineage"),
    [(append_task(), Outage(0, None)), (drain_task(), Outage(0, DUE_MS))],
)
def test_a_store_that_is_away_is_outlived_by_a_successor(
    connection: Connection, task: AppendTask | DrainTask, lineage: Outage
) -> None:
    assert (200, "ok") == deliver(body_of(task))
    [(method, target, body, headers)] = connection.requests
    assert ("POST", f"/v2/publish/{URL}", "Bearer s3cret") == (method, target, headers["authorization"])
    assert (["qstash.upstash.io"], 1) == (connection.opened, connection.closed)
    carried, told = outage_of(body.decode())
    assert (type(task), lineage) == (type(carried), told)
    assert 29 < int(headers["upstash-not-before"]) - time.time() <= 31


@pytest.mark.usefixtures("away")
@pytest.mark.parametrize(
    ("answer", "end"),
    [
        (202, (200, "ok")),
        (302, (503, "successor not published")),
        (400, (503, "successor not published")),
        (500, (503, "successor not published")),
        (TimeoutError(), (503, "successor not published")),
        (RemoteDisconnected("gone"), (503, "successor not published")),
    ],
    ids=repr,
)
def test_only_what_the_provider_accepted_is_acknowledged(
    connection: Connection, answer: int | Exception, end: tuple[int, str]
) -> None:
    connection.answer = answer
    assert end == deliver(body_of(append_task()))
    assert (1, 1) == (len(connection.requests), connection.closed)
