"""A run: servers, load, kills, and then the evidence."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup

from a2asgi.ports import SessionInfo, SessionKey, Store
from a2asgi.testing.store_bench import Opened
from a2core import Entry, Needs, Plan, Snapshot, WorkItem
from tests.crash.app import store_at
from tests.crash.laws import CONTRACT, JOBS, Evidence, Mark
from tests.crash.load import Load
from tests.crash.processes import House, Server, house

PAGE = 500
READERS = 8
LOOK_S = 0.05
PATIENCE_S = 120
"""How long what is left may take once nobody is killed any more, and a little of the load at any time."""

SERVER_KILLS = 4
"""One kill of so many is that of the store's own server, where that is wanted."""

EVENTS_BETWEEN_KILLS = 10
"""Or on a slow machine no server would serve."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """How much of what."""

    store: str
    kills: int
    processes: int = 3
    sessions: int = 40
    clients: int = 12
    every_s: float = 1.0
    kill_server: bool = False
    seed: int = 0


async def run(options: Options, folder: Path, say: Say) -> Evidence:
    """Do all of it on a new store, and gather the evidence."""
    with house(options.store, folder, own_server=options.kill_server) as place:
        return await Campaign(options, place, say).run()


class Campaign:
    """One run."""

    def __init__(self, options: Options, place: House, say: Say) -> None:
        self._options = options
        self._place = place
        self._say = say
        self._random = Random(options.seed)  # noqa: S311 - it picks moments, not secrets
        self._servers = [Server(number, place) for number in range(1, options.processes + 1)]
        self._load = Load(self._servers, options.sessions, options.seed)
        self._began_s = time.monotonic()
        self._server_kills = 0
        self._back = anyio.Event()

    async def run(self) -> Evidence:
        try:
            await self._start_all()
            self._say(f"{len(self._servers)} servers serve after {self._elapsed()}")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._load.run, self._options.clients)
                await self._kill_on()
                self._load.is_over = True
            self._say(f"the load ends after {self._elapsed()}")
            async with Opened(store_at(self._place.url, self._place.prefix)) as store:
                await self._settle(store)
                return await self._gather(store)
        finally:
            for server in self._servers:
                server.kill()

    async def _start_all(self) -> None:
        async with anyio.create_task_group() as tasks:
            for server in self._servers:
                tasks.start_soon(server.start)

    async def _kill_on(self) -> None:
        """Kill one process after another, which may be before the last one is back."""
        async with anyio.create_task_group() as tasks:
            for number in range(1, self._options.kills + 1):
                with anyio.fail_after(PATIENCE_S):
                    await self._load.until(len(self._load.ledger.acknowledged) + EVENTS_BETWEEN_KILLS)
                await anyio.sleep(self._random.uniform(0, self._options.every_s))
                if self._options.kill_server and number % SERVER_KILLS == 0:
                    await self._kill_the_store(number)
                else:
                    await self._kill_a_server(number, tasks)

    async def _kill_a_server(self, number: int, tasks: TaskGroup) -> None:
        while not (alive := [server for server in self._servers if server.url is not None]):
            self._back = anyio.Event()
            await self._back.wait()
        server = self._random.choice(alive)
        self._say_kill(number, f"server {server.name}")
        server.kill()
        tasks.start_soon(self._restart, server)

    async def _restart(self, server: Server) -> None:
        await server.start()
        self._back.set()

    async def _kill_the_store(self, number: int) -> None:
        assert self._place.restart is not None
        self._server_kills += 1
        self._say_kill(number, f"the {self._options.store} server")
        await to_thread.run_sync(self._place.restart)

    def _say_kill(self, number: int, what: str) -> None:
        ledger = self._load.ledger
        told = f"{len(ledger.acknowledged)} events acknowledged, {ledger.repeated} requests sent again"
        self._say(f"kill {number} of {self._options.kills}: {what} after {self._elapsed()}, {told}")

    async def _settle(self, store: Store) -> None:
        """Wait until no session waits for anybody, or for too long."""
        with anyio.move_on_after(PATIENCE_S):
            while True:
                wakes = await store.claim_wakes([CONTRACT, JOBS], limit=0, lease_ms=0)
                if wakes.next_in_ms is None:
                    self._say(f"nothing is due any more after {self._elapsed()}")
                    return
                await anyio.sleep(LOOK_S)
        self._say(f"gave up waiting after {self._elapsed()}")

    async def _gather(self, store: Store) -> Evidence:
        for server in self._servers:
            server.kill()
        keys = [info.key for info in await _all_sessions(store)]
        logs: dict[SessionKey, Sequence[Entry]] = {}
        work: dict[SessionKey, dict[int, WorkItem]] = {}
        heads: dict[SessionKey, frozenset[int]] = {}

        async def read_on() -> None:
            while keys:
                key = keys.pop()
                logs[key] = log = await _whole_log(store, key)
                seqs = tuple(entry.seq for entry in log)
                seen = await store.transact(key, Needs(seqs=seqs, heads=True), _as_it_is)
                work[key] = dict(seen.items)
                heads[key] = frozenset(item.seq for item in seen.heads)

        async with anyio.create_task_group() as tasks:
            for _ in range(READERS):
                tasks.start_soon(read_on)
        died_ns = {name: at_ns for server in self._servers for name, at_ns in server.died_ns.items()}
        letters = await _all_letters(store)
        return Evidence(self._load.ledger, logs, work, heads, letters, self._marks(), died_ns, self._server_kills)

    def _marks(self) -> list[Mark]:
        return [
            Mark(**json.loads(line), by=path.stem)
            for path in sorted(self._place.folder.glob("*.marks"))
            for line in path.read_text().splitlines()
        ]

    def _elapsed(self) -> str:
        return f"{time.monotonic() - self._began_s:.1f} s"


async def _all_sessions(store: Store) -> list[SessionInfo]:
    found: list[SessionInfo] = []
    while page := await store.sessions(after=found[-1].key if found else None, limit=PAGE):
        found += page
    return found


async def _all_letters(store: Store) -> frozenset[tuple[SessionKey, int]]:
    found: list[tuple[SessionKey, int]] = []
    while page := await store.dead_letters(after=found[-1] if found else None, limit=PAGE):
        found += [(key, item.seq) for key, item in page]
    return frozenset(found)


async def _whole_log(store: Store, key: SessionKey) -> list[Entry]:
    log: list[Entry] = []
    while page := await store.read(key, log[-1].seq if log else 0, PAGE):
        log += page
    return log


def _as_it_is(snapshot: Snapshot, now_ms: int) -> Plan[Snapshot]:
    del now_ms  # a decision has one signature
    return Plan(snapshot)
