"""The servers of the matrix: each starts an app in a process of its own, is talked to, and is told to end."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

ROOT: Final = Path(__file__).parent.parent.parent
PATIENCE_S: Final = 30.0
"""How long a cell waits for what must come: a hang fails, and a slow machine does not."""

MOMENT_S: Final = 1.0
COMMANDS: Final[Mapping[str, Callable[[str, int], list[str]]]] = {
    "uvicorn": lambda app, port: ["uvicorn", app, "--port", f"{port}", "--log-level", "warning"],
    "hypercorn-asyncio": lambda app, port: ["hypercorn", app, "--bind", f"127.0.0.1:{port}", "-k", "asyncio"],
    "hypercorn-trio": lambda app, port: ["hypercorn", app, "--bind", f"127.0.0.1:{port}", "-k", "trio"],
    "granian": lambda app, port: ["granian", app, "--interface", "asgi", "--port", f"{port}"],
}
TROUBLE: Final = re.compile(r"Traceback|Warning:|^ERROR|\[ERROR\]|panicked", re.MULTILINE)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class Server:
    """One app behind one server, on one SQLite file, through any number of starts."""

    name: str
    app: str
    folder: Path
    port: int = field(default_factory=free_port)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        """All that it wrote."""
        return (self.folder / "log").read_text()

    @property
    def trouble(self) -> str | None:
        """The first line of its log that tells of trouble, and what follows it."""
        found = TROUBLE.search(self.log)
        return None if found is None else self.log[found.start() :][:2_000]

    def start(self) -> None:
        """Start it, and return once it is ready."""
        command = COMMANDS[self.name](f"tests.hosts.{self.app}_app:app", self.port)
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=ROOT,
                env=os.environ | {"HOSTS_DB": str(self.folder / "shop.db"), "PYTHONPATH": str(ROOT)},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until(self._is_ready)

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log
        try:
            return httpx.get(f"{self.url}/api/a2/healthz").status_code == 200
        except httpx.TransportError:
            return False

    def end(self, within_s: float) -> float:
        """Tell it to end, as every platform does, and return how many seconds it took. Raises TimeoutError."""
        assert self._process is not None
        began = time.monotonic()
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"still running {within_s:.0f} s after SIGTERM") from None
        return time.monotonic() - began

    def kill(self) -> None:
        """Leave none of its processes."""
        if self._process is not None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:  # it ended, and all that it started
                return
            finally:
                self._process.wait()

    # ── a client ─────────────────────────────────────────────────────────────────────────

    def call(self, method: str, path: str, content: bytes = b"", **headers: str) -> httpx.Response:
        """One request; headers with underscores for hyphens."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return httpx.request(method, f"{self.url}{path}", content=content, headers=named, timeout=PATIENCE_S)

    @contextmanager
    def stream(self, path: str) -> Iterator[Iterator[bytes]]:
        """The chunks of an answer as they come; the client hangs up when it is left."""
        with httpx.stream("GET", f"{self.url}{path}", timeout=PATIENCE_S) as response:
            yield response.iter_raw()

    def announce(self, path: str, content_length: int, **headers: str) -> bytes:
        """What is answered to the head of a request whose body never comes, up to the end of the connection.

        A server that keeps the connection has a moment to finish: some of them stumble over a client that leaves in it.
        """
        lines = [f"POST {path} HTTP/1.1", "host: x", "connection: close", f"content-length: {content_length}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S) as connection:
            connection.sendall("\r\n".join([*lines, "", ""]).encode())
            answer = b""
            try:
                while more := connection.recv(65_536):
                    answer += more
                    connection.settimeout(MOMENT_S)
            except TimeoutError:
                assert answer, "no answer"
        return answer


def until(true: Callable[[], Any]) -> None:
    """Wait until it is so. Raises TimeoutError."""
    end = time.monotonic() + PATIENCE_S
    while not true():
        if time.monotonic() > end:
            raise TimeoutError(f"not so within {PATIENCE_S:.0f} s")
        time.sleep(0.02)
