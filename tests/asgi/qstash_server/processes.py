"""Real processes and sockets for the tests of the QStash-compatible server: the command, and a destination."""

import http.server
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Self

import httpx
from qstash import Receiver

from a2asgi.development import DEVELOPMENT_TOKEN
from a2asgi.qstash_server.credentials import DEV_KEYS

PATIENCE_S = 20.0


class Command:
    """`a2 qstash` as a process, on a free port, with its banner read."""

    def __init__(self, *options: str, environ: dict[str, str] | None = None) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("QSTASH_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "a2asgi.qstash_server", "--port", "0", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**clean, **(environ or {})},
        )
        assert self.process.stdout is not None
        self.banner = "".join(iter(self.process.stdout.readline, "\n"))
        line = self.process.stdout.readline()
        self.url = line.removeprefix("QSTASH_URL=").strip()
        self.port = int(self.url.rpartition(":")[2]) if self.url else 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.stop()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> str:
        """Stop the process, and give back what it wrote to its error stream."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.communicate(timeout=PATIENCE_S)[1]

    def post(self, path: str, json: object = None, **headers: str) -> httpx.Response:
        """A request with the development token."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        bearer = {"authorization": f"Bearer {DEVELOPMENT_TOKEN}"}
        return httpx.post(f"{self.url}{path}", json=json, headers=bearer | named, trust_env=False)

    def travel(self, by: str) -> None:
        """Move its time forward."""
        assert 200 == self.post("/time-travel", {"by": by}).status_code


class Hook:
    """A destination on a loopback socket. It verifies with the official receiver, then keeps what it got."""

    def __init__(self) -> None:
        self.status = 200
        self._seen: SimpleQueue[tuple[str, dict[str, str], bytes]] = SimpleQueue()
        hook, receiver = self, Receiver(DEV_KEYS.current, DEV_KEYS.next)

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.verify(
                    signature=headers["upstash-signature"], body=body.decode(), url=f"{hook.origin}{self.path}"
                )
                hook._seen.put((self.path, headers, body))
                self.send_response(hook.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.origin = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def next(self) -> tuple[str, dict[str, str], bytes]:
        """The next genuine request: path, headers in lower case, body."""
        return self._seen.get(timeout=PATIENCE_S)


def run(command: Sequence[str | Path], **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, and give back what it wrote."""
    return subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, **environ},
    )
