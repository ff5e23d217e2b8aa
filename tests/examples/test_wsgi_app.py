"""The WSGI app under a server that checks the protocol, with signed requests and a publisher that only takes note."""

import io
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import pytest

from a2core import DEFAULT_MAX_BODY_BYTES, Outage, PublishRequest
from examples import wsgi_app
from tests.examples.qstash import (
    DUE_MS,
    ENVIRONMENT,
    FORGED,
    GENUINE,
    NEXT_KEY,
    Signer,
    append_task,
    body_of,
    drain_task,
    event,
    outage_of,
    sign,
)


class Unread(io.BytesIO):
    """A body that nobody may look at."""

    def read(self, size: int | None = -1, /) -> bytes:
        raise AssertionError(f"asked for {size} bytes")


class Endless(io.BytesIO):
    """A body that never ends."""

    served = 0

    def read(self, size: int | None = -1, /) -> bytes:
        assert size is not None
        assert size >= 0
        self.served += size
        return b" " * size


@dataclass
class Server:
    """Serves the app, and is the provider that takes its messages."""

    log: Path
    accepts: bool = True
    published: list[PublishRequest] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    text: str = ""

    def publish(self, request: PublishRequest) -> bool:
        self.published.append(request)
        return self.accepts

    def deliver(self, body: bytes, sign: Signer = sign) -> int:
        return self.request(io.BytesIO(body), CONTENT_LENGTH=str(len(body)), HTTP_UPSTASH_SIGNATURE=sign(body))

    def request(self, body: io.BytesIO, **environ: Any) -> int:
        """The status of the answer."""
        environ = {"REQUEST_METHOD": "POST", "QUERY_STRING": "", "wsgi.input": body} | environ
        setup_testing_defaults(environ)
        statuses: list[str] = []

        def start(status: str, headers: list[tuple[str, str]], _: object = None, /) -> Callable[[bytes], object]:
            statuses.append(status)
            self.headers = dict(headers)
            return io.BytesIO().write

        answer = validator(partial(wsgi_app.app, self.publish))(environ, start)
        self.text = b"".join(answer).decode()
        answer.close()  # type: ignore[attr-defined]
        [status] = statuses
        return int(status.partition(" ")[0])

    def rows(self) -> list[tuple[str, str, int]]:
        """The log: session, event and whether it is done."""
        with closing(sqlite3.connect(self.log)) as log:
            return log.execute("select session, id, done from log order by rowid").fetchall()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("A2_DB", str(tmp_path / "log.db"))
    return Server(tmp_path / "log.db")


@pytest.fixture
def away(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of the log is not there."""
    monkeypatch.setenv("A2_DB", str(server.log.parent / "away" / server.log.name))


def test_it_is_under_80_lines_and_stands_on_the_core_alone() -> None:
    """Importing it needs no environment either."""
    assert Path(wsgi_app.__file__).read_text().count("\n") < 80
    code = "import sys, examples.wsgi_app; sys.exit('a2asgi' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2], env={})


def test_an_append_that_is_delivered_twice_is_appended_and_handled_once(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [200, 200] == [server.deliver(body_of(append_task())) for _ in range(2)]
    assert "ok" == server.text
    assert [("s-1", "e-1", 1)] == server.rows()
    assert ('s-1 e-1 placed {"sku":"thé"}\n', []) == (capsys.readouterr().out, server.published)


def test_a_handler_that_fails_leaves_its_event_pending_until_a_drain(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was handled before it stays so, and what comes after it waits."""
    handled: list[str] = []
    broken = ["e-2"]

    def handle(_session: str, id_: str, *_: object) -> None:
        if id_ in broken:
            raise ConnectionError("the bank does not answer")
        handled.append(id_)

    monkeypatch.setattr(wsgi_app, "print", handle, raising=False)
    assert 500 == server.deliver(body_of(append_task(event("e-1"), event("e-2"), event("e-3"))))
    assert [("s-1", "e-1", 1), ("s-1", "e-2", 0), ("s-1", "e-3", 0)] == server.rows()
    assert 500 == server.deliver(body_of(drain_task()))
    broken.clear()
    assert 200 == server.deliver(body_of(drain_task()))
    assert (["e-1", "e-2", "e-3"], []) == (handled, server.published)


def test_an_event_is_appended_for_good_before_it_is_handled(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    monkeypatch.setattr(wsgi_app, "print", lambda *_: seen.extend(server.rows()), raising=False)
    assert 200 == server.deliver(body_of(append_task()))
    assert [("s-1", "e-1", 0)] == seen


def test_an_event_that_cannot_be_read_is_not_acknowledged(server: Server) -> None:
    assert 500 == server.deliver(body_of(append_task(event("e-1"), {"id": "e-2"})))
    assert [] == server.rows()


@pytest.mark.parametrize("signer", GENUINE.values(), ids=GENUINE)
def test_what_the_provider_signs_is_genuine(server: Server, signer: Signer) -> None:
    assert 200 == server.deliver(body_of(append_task()), signer)


@pytest.mark.parametrize("signer", FORGED.values(), ids=FORGED)
def test_a_forgery_changes_nothing(server: Server, monkeypatch: pytest.MonkeyPatch, signer: Signer) -> None:
    monkeypatch.setenv("QSTASH_NEXT_SIGNING_KEY", "")  # as where nobody set it
    assert (401, "unauthorized") == (server.deliver(body_of(append_task()), signer), server.text)
    assert (False, []) == (server.log.exists(), server.published)


def test_rotated_keys_hold_from_the_next_request_on(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    body = body_of(drain_task())
    monkeypatch.setenv("QSTASH_CURRENT_SIGNING_KEY", NEXT_KEY)
    assert [401, 200] == [server.deliver(body), server.deliver(body, GENUINE["with the next key"])]


def test_without_a_signature_the_body_is_not_read(server: Server) -> None:
    assert (401, "unauthorized") == (server.request(Unread()), server.text)


def test_only_post_is_answered(server: Server) -> None:
    assert (405, "POST") == (server.request(Unread(), REQUEST_METHOD="GET"), server.headers["allow"])


def test_a_body_that_says_it_is_too_large_is_not_read(server: Server) -> None:
    length = str(DEFAULT_MAX_BODY_BYTES + 1)
    assert 489 == server.request(Unread(), CONTENT_LENGTH=length, HTTP_UPSTASH_SIGNATURE="signature")
    assert ("a2 scheduler message is too large", "true") == (server.text, server.headers["upstash-nonretryable-error"])


def test_a_body_that_tells_no_length_is_read_up_to_the_limit(server: Server) -> None:
    """A server that takes chunks says so: `wsgi.input_terminated`."""
    body, endless = body_of(append_task()), Endless()
    chunked = {"wsgi.input_terminated": True}
    assert 200 == server.request(io.BytesIO(body), HTTP_UPSTASH_SIGNATURE=sign(body), **chunked)
    assert 489 == server.request(endless, HTTP_UPSTASH_SIGNATURE="signature", **chunked)
    assert DEFAULT_MAX_BODY_BYTES + 1 == endless.served


@pytest.mark.parametrize("length", [None, "", "-1", "1e3", "²"])
def test_without_a_length_nothing_is_waited_for(server: Server, length: str | None) -> None:
    declared = {} if length is None else {"CONTENT_LENGTH": length}
    endless = Endless()
    environ = {"REQUEST_METHOD": "POST", "wsgi.input": endless, "HTTP_UPSTASH_SIGNATURE": "signature"} | declared
    answer = wsgi_app.app(server.publish, environ, lambda *_: io.BytesIO().write)
    assert ([b"unauthorized"], 0) == (answer, endless.served)


def test_what_is_no_message_is_never_delivered_again(server: Server) -> None:
    assert (489, "true") == (server.deliver(b"{}"), server.headers["upstash-nonretryable-error"])


def test_a_contract_of_another_deployment_is_delivered_again(server: Server) -> None:
    status = server.deliver(body_of(append_task(contract="billing")))
    assert (500, False) == (status, "upstash-nonretryable-error" in server.headers)


@pytest.mark.usefixtures("away")
@pytest.mark.parametrize(
    ("task", "lineage"),
    [(append_task(), Outage(0, None)), (drain_task(), Outage(0, DUE_MS))],
)
def test_a_store_that_is_away_is_outlived_by_a_successor(server: Server, task: Any, lineage: Outage) -> None:
    assert 200 == server.deliver(body_of(task))
    [successor] = server.published
    carried, told = outage_of(successor.body)
    assert (type(task), lineage) == (type(carried), told)
    assert successor.not_before_s is not None
    assert 29 < successor.not_before_s - time.time() <= 31


@pytest.mark.usefixtures("away")
def test_a_delivery_whose_successor_is_not_published_is_not_acknowledged(server: Server) -> None:
    server.accepts = False
    assert (503, "successor not published") == (server.deliver(body_of(append_task())), server.text)
    assert 1 == len(server.published)
