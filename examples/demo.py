"""The demonstration: a real server on SQLite, orders over HTTP, a timer, a job, a cron, and a SIGKILL at work.

    python -m examples.demo

It keeps to a temporary folder, prints what happens as it happens, and ends with a table of what was promised and what
was seen. It exits with 1 if any promise was not kept.
"""

import json
import os
import re
import secrets
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

from a2core import SIGNATURE_HEADER, SLOT_HEADER, sign_schedule
from examples._promises import TIMER_S, Seen, report
from examples._watcher import Watcher
from examples.orders import restock

ROOT = Path(__file__).parent.parent
LIMIT_S = 25.0  # for all of it
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
BAYS_BEFORE_THE_KILL = 2
LAST_ORDER: dict[str, dict[str, Any]] = {"unpaid-2": {"skus": ["pot"]}}


class Server:
    """uvicorn in a process group of its own, which picks a free port, logs to a file and never sees `.a2/`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.effects = folder / "effects"
        self.database = folder / "orders.db"
        self.port = 0  # which the system picks
        self.slack_s = 0.0  # how much later than asked a timer may fire
        self.cron_secret = secrets.token_hex()  # of who may trigger a slot
        self.environment = {"ORDERS_DB": str(self.database), "A2_CRON_SECRET": self.cron_secret}
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


async def run(server: Server, seen: Seen) -> None:
    """Go through all of it, filling in what is seen."""
    watcher = Watcher(server.database, server.effects, seen)
    await watcher.store.open()
    try:
        with anyio.move_on_after(LIMIT_S):
            await _start(server, watcher)
            await _trigger_a_slot(server, watcher, seen)
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


async def _trigger_a_slot(server: Server, watcher: Watcher, seen: Seen) -> None:
    watcher.title("a cron's slot is triggered twice over HTTP, by signed requests")
    seen.slot_ms = int(seen.began) // 60 * 60_000  # the server started in this minute, and a new cron never backfills
    for _ in range(2):
        await _trigger(server, seen)
    await watcher.look()


async def _orders_and_timers(server: Server, watcher: Watcher, seen: Seen) -> None:
    watcher.title("three orders are placed at once: one paid, one not, one whose bank never answers")
    await _place(server, seen, ORDERS)

    def expired() -> bool:
        return any(event.type == "expired" for event in seen.logs.get("unpaid-1", ()))

    within = TIMER_S + server.slack_s + 5
    await watcher.until("the first orders to settle", lambda: watcher.idle and expired(), within=within)


async def _kill_at_work(server: Server, watcher: Watcher, seen: Seen) -> None:
    watcher.title("three paid orders are placed at once, and a stocktake is asked for by a double click")
    await _place(server, seen, MORE_ORDERS)
    async with _client(server) as client, anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(_click, client, seen)

    def at_work() -> bool:
        packing = sum(effect.type == "paid" for effect in seen.running().values())
        return packing > 1 and any(told.done >= BAYS_BEFORE_THE_KILL for told in seen.told)

    await watcher.until("two parcels being packed and two bays counted", at_work, within=5)
    await _place(server, seen, LAST_ORDER)
    server.kill()
    await watcher.look()  # at what it leaves behind
    seen.killed_at = time.time()
    watcher.title("one more was placed, and the server killed with SIGKILL while it packed and counted")


async def _go_on(server: Server, watcher: Watcher, seen: Seen) -> None:
    watcher.title("a server starts, and nobody sends it a request")
    server.start()
    await watcher.until("the server to start again", lambda: server.url, within=8)
    await watcher.until("all that was cut off to settle", lambda: watcher.idle, within=10)
    seen.settled_at = time.time()
    seen.requests_since_kill = server.requests


async def _ask_again(server: Server, watcher: Watcher, seen: Seen) -> None:
    watcher.title("the first order is placed again, with the same event id, and the slot is triggered again")
    before = len(seen.logs["paid-1"])
    new = await _place(server, seen, {"paid-1": ORDERS["paid-1"]})
    await _trigger(server, seen)
    last_timer_at = max(log[0].created_at.timestamp() for log in seen.logs.values()) + TIMER_S + server.slack_s
    within = TIMER_S + server.slack_s + 2
    await watcher.until("the last timer", lambda: watcher.idle and time.time() > last_timer_at, within=within)
    seen.repeated = (any(new), before, len(seen.logs["paid-1"]))
    async with _client(server) as client:
        letters = (await client.get("/dead-letters")).raise_for_status().json()["dead_letters"]
        job = (await client.get(f"/jobs/{seen.jobs_answered[0]}")).raise_for_status().json()["job"]
    seen.listed = [(letter["session"], letter["seq"]) for letter in letters]
    seen.job_state = job["state"]


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


async def _click(client: httpx.AsyncClient, seen: Seen) -> None:
    """Ask for a stocktake. The answer: the job."""
    response = await client.post("/stocktakes/cellar")
    seen.jobs_answered.append(response.raise_for_status().json()["job"])


async def _trigger(server: Server, seen: Seen) -> None:
    """Ask for the slot, as whoever knows the secret may."""
    signature = sign_schedule(server.cron_secret, restock.definition.name, seen.slot_ms)
    headers = {SLOT_HEADER: str(seen.slot_ms), SIGNATURE_HEADER: signature}
    async with _client(server) as client:
        response = await client.post(f"/api/a2/cron/{restock.name}", headers=headers)
    seen.slot_answers.append(response.raise_for_status().json()["status"])


def _client(server: Server) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=server.url or "", timeout=5, trust_env=False)


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
