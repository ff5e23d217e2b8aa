"""Server processes that are killed and started again, and the store that they share."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex

from anyio import to_thread

from a2asgi.testing.postgres_bench import PostgresBench
from a2asgi.testing.redis_bench import MovedRedisStore
from a2asgi.testing.store_bench import StoreClock
from tests.asgi.stores.redis_server import RedisServer, needs_redis, redis_url
from tests.asgi.stores.servers import any_postgres, started_postgres
from tests.crash.app import FOLDER, NAME, PREFIX, STORE

ROOT = Path(__file__).parents[2]
SHOWN_CHARS = 2_000
MAX_STARTS = 20


@dataclass
class House:
    """A store for all processes of a run. `restart` kills its server and starts it again on the same data."""

    url: str
    folder: Path
    prefix: str = field(default_factory=lambda: f"crash_{token_hex(6)}")
    restart: Callable[[], None] | None = None

    def environment(self, name: str) -> Mapping[str, str]:
        """What a process of this name is told."""
        names = {STORE: self.url, PREFIX: self.prefix, FOLDER: str(self.folder), NAME: name}
        return os.environ | names | {"PYTHONPATH": str(ROOT)}


@contextmanager
def house(store: str, folder: Path, *, own_server: bool) -> Iterator[House]:
    """An empty store of this kind, of which nothing is left; `own_server` makes one that can be killed."""
    if store == "sqlite":
        yield House(str(folder / "a2.db"), folder)
    elif store == "postgres" and own_server:
        with started_postgres() as postgres:

            def restart_postgres() -> None:
                postgres.kill()
                postgres.start()

            yield House(postgres.url, folder, restart=restart_postgres)
    elif store == "postgres":
        with any_postgres() as url, PostgresBench(url) as bench:
            yield House(bench.url(f"crash_{token_hex(6)}"), folder)
    elif own_server:
        needs_redis()
        with RedisServer(folder, "--appendfsync", "always") as redis:

            def restart_redis() -> None:
                redis.kill()
                redis.start()

            yield House(redis.url, folder, restart=restart_redis)
    else:
        shared = House(redis_url(), folder)
        try:
            yield shared
        finally:
            MovedRedisStore(StoreClock(), shared.url, prefix=shared.prefix).forget_blocking()


class Server:
    """One of the processes, by its number. Each time it is started it has another name, such as `3.2`."""

    def __init__(self, number: int, house: House) -> None:
        self.url: str | None = None
        """Where it serves; None while it does not."""
        self.died_ns: dict[str, int] = {}
        """When it was surely dead, by name."""
        self._house = house
        self._number = number
        self._runs = 0
        self._process: subprocess.Popen[str] | None = None

    @property
    def name(self) -> str:
        return f"{self._number}.{self._runs}"

    async def start(self) -> None:
        """Start it, and return once it serves. One that finds no store ends, and is started again."""
        for _ in range(MAX_STARTS):
            self._runs += 1
            self._process = process = self._spawned()
            assert process.stdout is not None
            if port := await to_thread.run_sync(process.stdout.readline):
                self.url = f"http://127.0.0.1:{port.strip()}"
                return
            self._process = None
            process.stdout.close()
            process.wait()
            if not any(error in self.told() for error in ("StoreUnavailable", "AnswerLost")):
                break
        raise AssertionError(f"server {self.name} did not start: {self.told()}")

    def kill(self) -> None:
        """SIGKILL. Raises AssertionError where it had ended by itself."""
        self.url = None
        process = self._process
        if process is None:
            return
        self._process = None
        process.kill()
        code = process.wait()
        self.died_ns[self.name] = time.monotonic_ns()
        if process.stdout is not None:
            process.stdout.close()
        if code != -9:
            raise AssertionError(f"server {self.name} ended by itself, with {code}: {self.told()}")

    def told(self) -> str:
        """The end of what it wrote to its log."""
        return self._log.read_text("utf-8", "replace")[-SHOWN_CHARS:]

    def _spawned(self) -> "subprocess.Popen[str]":
        command = [sys.executable, "-W", "error", "-m", "tests.crash.app"]
        with self._log.open("wb") as log:
            return subprocess.Popen(
                command, cwd=ROOT, env=self._house.environment(self.name), stdout=subprocess.PIPE, stderr=log, text=True
            )

    @property
    def _log(self) -> Path:
        return self._house.folder / f"{self.name}.log"
