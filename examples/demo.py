"""The demonstration: a real server on SQLite, orders over HTTP, a timer, a dead letter, and a SIGKILL at work.

    python -m examples.demo

It keeps to a temporary folder, prints what happens as it happens, and ends with a table of what was promised and what
was seen. It exits with 1 if any promise was not kept.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import httpx

from a2asgi import SQLiteStore
from examples._promises import TIMER_S, Seen, effect_of, lane_of, report
from examples.orders import orders

ROOT = Path(__file__).parent.parent
LIMIT_S = 25.0  # for all of it
HOLD_S = 0.1  # how long a line waits to be printed, for what happened before it and is seen after it
ORDERS: dict[str, dict[str, Any]] = {
    "paid-1": {"skus": ["tea", "cup"], "card": "4242"},
    "unpaid-1": {"skus": ["tea"]},
    "stuck-1": {"skus": ["cup"], "card": "unreachable"},
}
MORE_ORDERS: dict[str, dict[str, Any]] = {
    "paid-2": {"skus": ["pot", "tea"], "card": "4242"},
    "paid-3": {"skus": ["cup", "cup"], "card": "4242"},
    "paid-4": {"skus": ["tea", "tea"], "card": "4242"},
}
LAST_ORDER: dict[str, dict[str, Any]] = {"unpaid-2": {"skus": ["pot"]}}


class Server:
    """uvicorn in a process group of its own, which picks a free port, logs to a file and never sees `.a2/`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.effects = folder / "effects"
        self.database = folder / "orders.db"
        self.port = 0  # which the system picks
        self.slack_s = 0.0  # how much later than asked a timer may fire
        self.environment = {"ORDERS_DB": str(self.database)}
        self._runs = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        """What the last run wrote."""
        path = self.folder / f"server-{self._runs}.log"
        return path.read_text() if path.exists() else ""

    @property
    def url(self) -> str | None:
        """Where it listens, as its log tells, so that nobody needs to ask it. Raises if it has ended."""
        if self._process is not None and (code := self._process.poll()) is not None:
            raise ChildProcessError(f"the server ended by itself, with {code}")
        match = re.search(r"running on (http://\S+)", self.log)
        return match[1] if match else None

    @property
    def requests(self) -> int:
        """How many requests the last run has had, by its access log; a provider's deliveries are none."""
        return len(re.findall(r'- "(?!POST /api/a2/scheduler)\S+ \S+ HTTP/1\.1"', self.log))

    def start(self) -> None:
        """Start it, without waiting for it."""
        self._runs += 1
        self.folder.joinpath("logging.json").write_text(json.dumps(self._logging()))
        command = [sys.executable, "-m", "uvicorn", "examples.orders:app", "--port", str(self.port), "--workers", "1"]
        with (self.folder / f"server-{self._runs}.log").open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - the command is our own
                [*command, "--lifespan", "on", "--log-config", self.folder / "logging.json"],
                cwd=ROOT,
                env=os.environ | self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Kill it with SIGKILL, and return when it is dead."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(timeout=5)
        self._process = None

    def end(self) -> None:
        """Leave nothing running."""
        self.kill()

    def _logging(self) -> dict[str, Any]:
        """What handlers log goes to the effects file, a line at a time: it is seen apart from the database."""
        return {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"effect": {"format": "%(created)f %(message)s"}},
            "handlers": {
                "effects": {"class": "logging.FileHandler", "filename": str(self.effects), "formatter": "effect"},
                "log": {"class": "logging.StreamHandler"},
            },
            "loggers": {"a2asgi.handler": {"handlers": ["effects"], "propagate": False}},
            "root": {"level": "INFO", "handlers": ["log"]},
        }


class Watcher:
    """Sees the database and the effects file from outside, and prints what is new.

    It reads by a store of its own, and a read wakes nothing: no server hears of it, and this process runs no A2, so
    it handles nothing itself. What goes on after the kill goes on without anyone's asking.
    """

    def __init__(self, server: Server, seen: Seen) -> None:
        self.idle = False
        self.store = SQLiteStore(server.database, busy_timeout="2s")
        self._seen = seen
        self._effects = server.effects
        self._effects_read = 0
        self._held: list[tuple[float, str]] = []

    async def until(self, what: str, condition: Callable[[], object], *, within: float) -> None:
        """Look and print until it is so. Raises TimeoutError."""
        give_up_at = time.monotonic() + within
        while time.monotonic() < give_up_at:
            await self.look()
            if condition():
                return
            await anyio.sleep(0.02)
        raise TimeoutError(f"waited {within:g} s for {what}")

    async def look(self) -> None:
        """Take in what is new, and print what is old enough to be in order."""
        sessions = await self.store.sessions("orders")
        for session in sessions:
            order = session.key.session_id
            log = self._seen.logs.setdefault(order, [])
            for event in map(orders.event_of, await self.store.read(session.key, len(log), 100)):
                log.append(event)
                lane = f"lane {lane_of(event)}" if event.type in orders.handlers else ""
                at = event.created_at.timestamp() + 0.0009  # its millisecond's end, after the handler that led to it
                self._say(at, order, f"+ #{event.seq} {event.type}", f"{lane:<14} {event.payload or ''}")
        for key, item in await self.store.dead_letters("orders"):
            if item.dead is not None and (key.session_id, item.seq) not in self._seen.dead:
                self._seen.dead[key.session_id, item.seq] = item.dead.failure.type
                text = f"! #{item.seq} {item.entry.type}"
                self._say(item.dead.at_ms / 1_000, key.session_id, text, f"dead letter: {item.dead.failure.message}")
        self._look_at_effects()
        # a session without work that could ever go on, and without a timer, has no next wake-up
        self.idle = bool(sessions) and all(session.wake_at_ms is None for session in sessions)
        self.print(until=time.time() - HOLD_S)

    def title(self, text: str) -> None:
        """Say what the demonstration does itself."""
        now = time.time()
        self._held.append((now, f"\n{_styled('1', f'{now - self._seen.began:6.2f} s  {text}')}"))
        self.print(until=now)

    def print(self, *, until: float) -> None:
        """Print what happened until then."""
        self._held.sort(key=lambda held: held[0])
        while self._held and self._held[0][0] <= until:
            print(self._held.pop(0)[1], flush=True)

    def _look_at_effects(self) -> None:
        if not self._effects.exists():
            return
        with self._effects.open("rb") as file:
            file.seek(self._effects_read)
            written = file.read()
        whole = written[: written.rfind(b"\n") + 1]
        self._effects_read += len(whole)
        for effect in map(effect_of, whole.decode().splitlines()):
            self._seen.effects.append(effect)
            text = f"attempt {effect.attempt} {effect.moment}"
            self._say(effect.at, effect.order, f"  #{effect.seq} {effect.type}", text)

    def _say(self, at: float, order: str, what: str, detail: str) -> None:
        name = _styled(str(31 + sum(order.encode()) % 6), f"{order:<9}")
        self._held.append((at, f"{at - self._seen.began:6.2f} s  {name} {what:<17} {detail}".rstrip()))


async def run(server: Server, seen: Seen) -> None:
    """Go through all of it, filling in what is seen."""
    watcher = Watcher(server, seen)
    await watcher.store.open()
    try:
        with anyio.move_on_after(LIMIT_S):
            await _start(server, watcher)
            await _orders_and_timers(server, watcher, seen)
            await _kill_at_work(server, watcher, seen)
            await _go_on(server, watcher, seen)
            await _ask_again(server, watcher, seen)
            return
        raise TimeoutError(f"all of it took longer than {LIMIT_S:g} s")
    finally:
        server.kill()
        watcher.print(until=time.time())
        with anyio.CancelScope(shield=True):
            await watcher.store.close()


async def _start(server: Server, watcher: Watcher) -> None:
    watcher.title("a server starts")
    server.start()
    await watcher.until("the server to start", lambda: server.url, within=10)


async def _orders_and_timers(server: Server, watcher: Watcher, seen: Seen) -> None:
    watcher.title("three orders are placed at once: one paid, one not, one whose bank never answers")
    await _place(server, seen, ORDERS)

    def expired() -> bool:
        return any(event.type == "expired" for event in seen.logs.get("unpaid-1", ()))

    within = TIMER_S + server.slack_s + 5
    await watcher.until("the first orders to settle", lambda: watcher.idle and expired(), within=within)


async def _kill_at_work(server: Server, watcher: Watcher, seen: Seen) -> None:
    watcher.title("three paid orders are placed at once")
    await _place(server, seen, MORE_ORDERS)

    def packing() -> int:
        return sum(effect.type == "paid" for effect in seen.running().values())

    await watcher.until("two parcels being packed", lambda: packing() > 1, within=5)
    await _place(server, seen, LAST_ORDER)
    server.kill()
    seen.killed_at = time.time()
    await watcher.look()
    watcher.title("one more was placed, and the server killed with SIGKILL while it packed")


async def _go_on(server: Server, watcher: Watcher, seen: Seen) -> None:
    watcher.title("a server starts, and nobody sends it a request")
    server.start()
    await watcher.until("the server to start again", lambda: server.url, within=8)
    await watcher.until("all that was cut off to settle", lambda: watcher.idle, within=10)
    seen.settled_at = time.time()
    seen.requests_since_kill = server.requests


async def _ask_again(server: Server, watcher: Watcher, seen: Seen) -> None:
    watcher.title("the first order is placed again, with the same event id")
    before = len(seen.logs["paid-1"])
    new = await _place(server, seen, {"paid-1": ORDERS["paid-1"]})
    last_timer_at = max(log[0].created_at.timestamp() for log in seen.logs.values()) + TIMER_S + server.slack_s
    within = TIMER_S + server.slack_s + 2
    await watcher.until("the last timer", lambda: watcher.idle and time.time() > last_timer_at, within=within)
    seen.repeated = (any(new), before, len(seen.logs["paid-1"]))
    async with _client(server) as client:
        letters = (await client.get("/dead-letters")).raise_for_status().json()["dead_letters"]
    seen.listed = [(letter["session"], letter["seq"]) for letter in letters]


async def _place(server: Server, seen: Seen, bodies: dict[str, dict[str, Any]]) -> list[bool]:
    """Place orders at once, over HTTP. The answers: whether each was new."""
    new: list[bool] = []

    async def place(client: httpx.AsyncClient, order: str) -> None:
        response = await client.post(f"/orders/{order}", json=bodies[order])
        new.append(response.raise_for_status().json()["new"])
        seen.acknowledged.append(order)

    async with _client(server) as client, anyio.create_task_group() as tasks:
        for order in bodies:
            tasks.start_soon(place, client, order)
    return new


def _client(server: Server) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=server.url or "", timeout=5, trust_env=False)


def _styled(style: str, text: str) -> str:
    return f"\x1b[{style}m{text}\x1b[0m" if sys.stdout.isatty() else text


def main(make_server: Callable[[Path], Server] = Server) -> int:
    """Run the demonstration. The exit code: 0 if every promise was kept."""
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, lambda *_: sys.exit(1))  # leave by the way on which the server is killed
    seen = Seen()
    with TemporaryDirectory(prefix="a2-demo-") as folder:
        server = make_server(Path(folder))
        try:
            anyio.run(run, server, seen)
        except Exception as error:  # noqa: BLE001 - whatever it was, the table tells how far it came
            while isinstance(error, ExceptionGroup):
                error = error.exceptions[0]
            seen.trouble = f"{type(error).__name__}: {error}"
        finally:
            server.end()
        seen.ended = time.time()
        return report(seen, server.log)


if __name__ == "__main__":
    sys.exit(main())
