"""The cells of the matrix: what each pair of a server and an app is asked for, and what came of it."""

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx

from tests.asgi.provider import Provider
from tests.hosts.lambda_host import LambdaHost
from tests.hosts.servers import COMMANDS, Server, until

APPS: Final = ("bare", "starlette", "fastapi", "litestar", "quart")
LAMBDA: Final = "mangum"
HOSTS: Final = (*COMMANDS, LAMBDA)
SHUTDOWN_S: Final = 5.0
TOO_LARGE: Final = 1_048_577
CALLBACK: Final = "/api/a2/scheduler"
APPEND: Final = (
    b'{"version":1,"kind":"append","id":"t-1","contract":"calls","sessionId":"c-1","dueAt":0,'
    b'"events":[{"id":"e-1","type":"rung","payload":"x"}]}'
)
OUT_OF_REACH: Final = {("hypercorn-trio", "quart"): "Quart needs asyncio"}
"""The pairs that cannot be, and why."""

Host = Server | LambdaHost


@dataclass
class Cell:
    """One pair: by name of each check `ok`, a time, or `n/a`; and the failures in full."""

    host: str
    app: str
    marks: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def run(name: str, app: str, folder: Path) -> Cell:
    """Ask one pair for everything, in order; what follows a failure is asked all the same."""
    cell = Cell(name, app)
    if (name, app) in OUT_OF_REACH:
        cell.marks = dict.fromkeys(CHECKS, "n/a")
        cell.notes.append(f"n/a: {OUT_OF_REACH[name, app]}")
        return cell
    host = LambdaHost(app, folder) if name == LAMBDA else Server(name, app, folder)
    if isinstance(host, LambdaHost):
        cell.notes.append(LambdaHost.REMARK)
    try:
        host.start()
        for check, ask in CHECKS.items():
            if isinstance(host, LambdaHost) and check in LambdaHost.CANNOT:
                cell.marks[check] = "n/a"
                cell.notes.append(f"{check} n/a: {LambdaHost.CANNOT[check]}")
                continue
            try:
                cell.marks[check] = ask(host) or "ok"
            except (AssertionError, TimeoutError, httpx.HTTPError, OSError):
                cell.marks[check] = "FAIL"
                cell.failures.append(f"{name} {app}, {check}: {traceback.format_exc()}")
    finally:
        host.kill()
    return cell


def place(host: Host) -> None:
    """An append through a route of the app is durable, and its handler runs."""
    answer = host.call("POST", "/place/placed/s-1")
    assert (True, {"seq": 1}) == (answer.is_success, answer.json())
    until(lambda: ["placed", "reserved"] == log(host, "s-1")[:2])


def timer(host: Host) -> None:
    """The timer that the handler set fires."""
    until(lambda: ["placed", "reserved", "due"] == log(host, "s-1"))


def callback(host: Host) -> None:
    """A delivery that is signed appends once and runs, and whatever is none has its documented answer."""
    signed = host.call("POST", CALLBACK, APPEND, upstash_signature=Provider().sign(APPEND))
    assert (200, "ok") == (signed.status_code, signed.text)
    until(lambda: ["rung", "answered"] == log(host, "c-1", "calls"))
    again = host.call("POST", CALLBACK, APPEND, upstash_signature=Provider().sign(APPEND))
    assert (200, "ok", ["rung", "answered"]) == (again.status_code, again.text, log(host, "c-1", "calls"))
    wrong = host.call("GET", CALLBACK)
    assert (405, "POST") == (wrong.status_code, wrong.headers["allow"])
    unsigned = host.call("POST", CALLBACK, APPEND)
    assert (401, "unauthorized") == (unsigned.status_code, unsigned.text)
    forged = host.call("POST", CALLBACK, APPEND, upstash_signature=Provider().sign(b"other"))
    assert (401, "unauthorized") == (forged.status_code, forged.text)
    malformed = host.call("POST", CALLBACK, b"{", upstash_signature=Provider().sign(b"{"))
    assert (489, "true") == (malformed.status_code, malformed.headers["upstash-nonretryable-error"])
    if isinstance(host, Server):
        announced = host.announce(CALLBACK, TOO_LARGE, upstash_signature="a.b.c")
        assert announced.startswith(b"HTTP/1.1 489 "), announced
        assert announced.endswith(b"a2 scheduler message is too large"), announced


def stream(host: Host) -> None:
    """The first chunk of a streamed answer is with the client before the second is made."""
    assert isinstance(host, Server)
    with host.stream("/stream") as chunks:
        assert b"one\n" == next(chunks)
        assert host.call("POST", "/go").is_success
        assert b"two\n" == b"".join(chunks)


def disconnect(host: Host) -> None:
    """A client that leaves in the middle of a streamed answer is noticed by the app."""
    assert isinstance(host, Server)
    with host.stream("/endless") as chunks:
        assert next(chunks).startswith(b"tick\n")
        assert 0 == host.call("GET", "/seen/shop/s-1").json()["left"]
    until(lambda: 1 == host.call("GET", "/seen/shop/s-1").json()["left"])


def shutdown(host: Host) -> str:
    """Told to end while a handler is at work, it does, in time and without a word of trouble in its log."""
    assert host.call("POST", "/place/slow/s-2").is_success
    if isinstance(host, Server):
        until(lambda: host.call("GET", "/seen/shop/s-2").json()["running"])
    took_s = host.end(SHUTDOWN_S)
    assert host.trouble is None, host.trouble
    return f"{took_s:.1f} s"


def restart(host: Host) -> str | None:
    """Started again on its file, all that was there is there, and what was at work is finished."""
    host.kill()
    host.start()
    until(lambda: ["slow", "resumed"] == log(host, "s-2"))
    assert ["placed", "reserved", "due"] == log(host, "s-1")
    assert host.trouble is None, host.trouble
    return None


def log(host: Host, session: str, contract: str = "shop") -> list[str]:
    """The types of the events in that session."""
    found: list[str] = host.call("GET", f"/seen/{contract}/{session}").json()["log"]
    return found


CHECKS: Final[Mapping[str, Callable[[Host], str | None]]] = {
    "place": place,
    "timer": timer,
    "callback": callback,
    "stream": stream,
    "disconnect": disconnect,
    "shutdown": shutdown,
    "restart": restart,
}
