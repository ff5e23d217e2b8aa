"""What does the middleware add to a request that is not its own, in process and through uvicorn?"""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from itertools import repeat
from time import perf_counter, sleep
from typing import Any

from a2asgi import A2, A2Middleware, MemoryStore
from benchmarks.delivery import provider
from benchmarks.harness import (
    NOT_INSTALLED,
    Effort,
    Row,
    at_least,
    at_most,
    difference,
    interleave,
    main,
    per_await,
    ratio,
    span,
    stay_on_one_core,
)

HEADERS = [
    (b"host", b"example.com"),
    (b"user-agent", b"benchmark/1.0"),
    (b"accept", b"*/*"),
    (b"accept-encoding", b"gzip, deflate, br"),
    (b"accept-language", b"en"),
    (b"cookie", b"session=0123456789abcdef"),
    (b"authorization", b"Bearer 0123456789abcdef"),
    (b"connection", b"keep-alive"),
]
ANSWER = b"hello"
REQUEST = b"GET /orders/1001 HTTP/1.1\r\n" + b"".join(b"%b: %b\r\n" % pair for pair in HEADERS) + b"\r\n"
CONNECTIONS = 8
PIPELINE = 16
"""Requests under way on each connection, so that the server always has the next one, and the client costs little."""


async def bare(scope: Any, receive: Any, send: Any) -> None:
    """The smallest app that answers."""
    del receive
    if scope["type"] != "http":
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": ANSWER})


wrapped = A2Middleware(bare, A2(store=MemoryStore()))
behind_provider = A2Middleware(bare, A2(store=MemoryStore(), scheduler=provider()))


def in_process(effort: Effort) -> Iterator[Row]:
    """Called directly."""
    scope = {"type": "http", "method": "GET", "path": "/orders/1001", "root_path": "", "headers": HEADERS}

    async def receive() -> Any:
        raise AssertionError

    async def send(message: Any) -> None:
        del message

    calls = effort.of(50_000)
    apps: dict[str, Any] = {
        "the bare app": bare,
        "in process": wrapped,
        "in process, behind a provider": behind_provider,
    }
    variants = {name: per_await(partial(app, scope, receive, send), calls) for name, app in apps.items()}
    found = interleave(variants, effort.rounds)
    floor = found.pop("the bare app")
    for name, took in found.items():
        added = difference([one * 1e6 for one in took], [one * 1e6 for one in floor])
        path, detail = f"middleware pass-through, {name}", f"{span(took)} / {span(floor)}"
        yield Row(path, "the bare app", added, at_most(0.4), "µs", detail)


class Client(asyncio.Protocol):
    """One connection that asks again as soon as it is answered."""

    def __init__(self, answer_bytes: int, requests: int, done: "asyncio.Future[None]") -> None:
        self._answer_bytes = answer_bytes
        self._to_ask = requests - min(PIPELINE, requests)
        self._left = requests
        self._asked = min(PIPELINE, requests)
        self._pending = 0
        self._done = done
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        """Begin."""
        self._transport = transport
        transport.write(REQUEST * self._asked)

    def data_received(self, data: bytes) -> None:
        """Count answers, and ask as many times again."""
        self._pending += len(data)
        answers, self._pending = divmod(self._pending, self._answer_bytes)
        self._left -= answers
        more = min(answers, self._to_ask)
        self._to_ask -= more
        if more:
            self._transport.write(REQUEST * more)
        if self._left == 0:
            self._transport.close()
            self._done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        """A server that hangs up fails the run."""
        if not self._done.done():
            self._done.set_exception(error or ConnectionError("the server hung up"))


async def throughput(port: int, answer_bytes: int, requests: int) -> float:
    """Requests per second."""
    loop = asyncio.get_running_loop()
    started = perf_counter()
    endings: list[asyncio.Future[None]] = []
    for _ in repeat(None, CONNECTIONS):
        done = loop.create_future()
        endings.append(done)
        await loop.create_connection(partial(Client, answer_bytes, requests // CONNECTIONS, done), "127.0.0.1", port)
    await asyncio.gather(*endings)
    return requests / (perf_counter() - started)


def answer_length(port: int) -> int:
    """How long each answer is, which is always the same one."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(REQUEST)
        found = b""
        while not found.endswith(ANSWER):
            found += connection.recv(65_536)
    return len(found)


@contextmanager
def served(name: str) -> Iterator[int]:
    """The port of a uvicorn process with this app."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", f"benchmarks.middleware:{name}", "--port", str(port)]
    process = subprocess.Popen([*command, "--log-level", "warning", "--no-access-log"])
    try:
        while not answers(port):
            if process.poll() is not None:
                raise RuntimeError("uvicorn did not start")
            sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait()


def answers(port: int) -> bool:
    """Whether a server is there by now."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=10).close()
    except ConnectionRefusedError:
        return False
    return True


def through_uvicorn(effort: Effort) -> Iterator[Row]:
    """Over sockets, one worker, with uvloop and httptools where they are installed."""
    path, goal = "middleware pass-through, through uvicorn", at_least(0.98)
    if find_spec("uvicorn") is None:
        yield Row(path, "the bare app", None, goal, detail=f"uvicorn: {NOT_INSTALLED}")
        return
    requests = effort.of(12_000, CONNECTIONS)
    with ExitStack() as servers:
        if hasattr(os, "sched_setaffinity"):  # the servers share one core, of which only one is busy at a time
            cores = os.sched_getaffinity(0)
            os.sched_setaffinity(0, {max(cores)})
            servers.callback(os.sched_setaffinity, 0, cores)
        ports = {name: servers.enter_context(served(name)) for name in ("bare", "wrapped")}
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {min(cores)})

        def sample(name: str) -> float:
            port = ports[name]
            return asyncio.run(throughput(port, lengths[name], requests))

        lengths = {name: answer_length(port) for name, port in ports.items()}
        found = interleave({name: partial(sample, name) for name in ports}, effort.rounds)
    rates = [f"{sorted(found[name])[len(found[name]) // 2]:,.0f}/s" for name in ("wrapped", "bare")]
    yield Row(path, "the bare app", ratio(found["wrapped"], found["bare"]), goal, detail=" / ".join(rates))


def rows(effort: Effort) -> Iterator[Row]:
    """Both."""
    yield from through_uvicorn(effort)
    stay_on_one_core()
    yield from in_process(effort)


if __name__ == "__main__":
    sys.exit(main(rows, __doc__))
