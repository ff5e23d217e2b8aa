"""What do a million waiting timers cost: while nothing is due, when a hundred are, and in memory?"""

import asyncio
import json
import sqlite3
import subprocess
import sys
from asyncio import Runner
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from time import perf_counter, process_time, time
from typing import Any

from a2asgi import A2, Job, SQLiteStore
from benchmarks.harness import Effort, Row, Spread, at_most, interleave, main, ratio, span
from benchmarks.seeds import copy_session
from benchmarks.servers import sqlite_places

FEW, MANY, DUE = 1_000, 1_000_000, 100
CONTRACT = ("job:remind",)
LEASE_MS = 60_000


async def remind() -> None:
    """What a timer is for."""


def app(path: str) -> tuple[A2, Job[[], Any]]:
    """An app with timers."""
    a2 = A2(store=SQLiteStore(path, synchronous="NORMAL"))
    return a2, a2.job(name="remind")(remind)


async def seed(path: str, timers: int) -> None:
    """Let so many timers wait for a month."""
    a2, job = app(path)
    job_id = await job.later("30d")
    await a2.close()
    copy_session(path, job_id, timers)


class Look:
    """Looks for what is due, by the store and by hand."""

    def __init__(self, runner: Runner, path: str) -> None:
        self._runner = runner
        self._store = SQLiteStore(path, synchronous="NORMAL")
        self._raw = sqlite3.connect(path, isolation_level=None)
        self._raw.execute("PRAGMA synchronous=NORMAL")
        runner.run(self._store.open())

    def close(self) -> None:
        """Disconnect."""
        self._runner.run(self._store.close())
        self._raw.close()

    def idle(self, looks: int) -> float:
        """Seconds of a look at which nothing is due."""

        async def look() -> None:
            for _ in range(looks):
                wakes = await self._store.claim_wakes(CONTRACT, limit=DUE, lease_ms=LEASE_MS)
                assert not wakes.due

        started = perf_counter()
        self._runner.run(look())
        return (perf_counter() - started) / looks

    def due(self, *, by_hand: bool) -> float:
        """Seconds to take a hundred that are due."""
        now_ms = int(time() * 1e3)
        self._raw.execute(
            f"UPDATE a2_sessions SET wake_at_ms = ? WHERE id IN (SELECT id FROM a2_sessions LIMIT {DUE})", (now_ms - 1,)
        )
        taken, took = self._runner.run(self._take(now_ms, by_hand=by_hand))
        assert taken == DUE, taken
        self._raw.execute(
            "UPDATE a2_sessions SET wake_at_ms = ? WHERE contract = ? AND wake_at_ms < ?",
            (now_ms + 10**9, *CONTRACT, now_ms + 10**6),
        )
        return took

    async def _take(self, now_ms: int, *, by_hand: bool) -> tuple[int, float]:
        started = perf_counter()
        taken = self._by_hand(now_ms) if by_hand else await self._by_store()
        return taken, perf_counter() - started

    async def _by_store(self) -> int:
        return len((await self._store.claim_wakes(CONTRACT, limit=DUE, lease_ms=LEASE_MS)).due)

    def _by_hand(self, now_ms: int) -> int:
        self._raw.execute("BEGIN IMMEDIATE")
        rows = self._raw.execute(
            "SELECT id, session_id FROM a2_sessions WHERE contract = ? AND wake_at_ms <= ? ORDER BY wake_at_ms LIMIT ?",
            (*CONTRACT, now_ms, DUE),
        ).fetchall()
        self._raw.executemany(
            "UPDATE a2_sessions SET wake_at_ms = ? WHERE id = ?", [(now_ms + LEASE_MS, id_) for id_, _ in rows]
        )
        self._raw.execute(
            "SELECT min(wake_at_ms) FROM a2_sessions WHERE contract = ? AND wake_at_ms IS NOT NULL", CONTRACT
        ).fetchall()
        self._raw.execute("COMMIT")
        return len(rows)


def memory_kib() -> int:
    """What this process has in memory; its peak, where the system does not tell that, may be that of who started it."""
    status = Path("/proc/self/status")
    if not status.exists():
        return getrusage(RUSAGE_SELF).ru_maxrss
    [line] = [line for line in status.read_text().splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1])


async def serve(path: str, seconds: float) -> None:
    """A server that has nothing to do: prints its share of a core, and its memory."""
    a2, _ = app(path)
    async with a2:
        await asyncio.sleep(0.3)
        began = process_time()
        await asyncio.sleep(seconds)
        used = process_time() - began
    print(json.dumps([used / seconds, memory_kib()]))


def idle_server(path: str, seconds: float) -> tuple[float, float]:
    """As `serve`, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.timers", "--serve", path, str(seconds)]
    share, memory = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return share, memory


def rows(effort: Effort) -> Iterator[Row]:
    """A thousand timers beside a million."""
    few, many = effort.of(FEW, DUE), effort.of(MANY, 2 * DUE)
    with sqlite_places() as new_place, Runner() as runner:
        paths = {"few": new_place(), "many": new_place()}
        for name, timers in (("few", few), ("many", many)):
            runner.run(seed(paths[name], timers))
        looks = {name: Look(runner, path) for name, path in paths.items()}
        count = effort.of(300)
        found = interleave({name: partial(look.idle, count) for name, look in looks.items()}, effort.rounds)
        detail = f"{span(found['many'])} / {span(found['few'])}"
        against = f"{few:,} timers"
        yield Row(
            f"idle look at {many:,} timers", against, ratio(found["many"], found["few"]), at_most(1.3), detail=detail
        )
        look = looks["many"]
        found = interleave(
            {"ours": partial(look.due, by_hand=False), "raw": partial(look.due, by_hand=True)}, effort.rounds
        )
        detail = f"{span(found['ours'])} / {span(found['raw'])}"
        path = f"take {DUE} of {many:,} timers that are due"
        yield Row(path, "the bare SQL", ratio(found["ours"], found["raw"]), at_most(2), detail=detail)
        for look in looks.values():
            look.close()
        seconds = effort.of(20, 1) / 10
        shares: dict[str, list[float]] = {name: [] for name in paths}
        memories: dict[str, list[float]] = {name: [] for name in paths}
        for _ in range(min(effort.rounds, 3)):
            for name, file in paths.items():
                share, memory = idle_server(file, seconds)
                shares[name].append(share)
                memories[name].append(memory)
        detail = f"{max(memories['many']) / 2**10:.0f} / {max(memories['few']) / 2**10:.0f} MiB"
        path = f"memory of a server with {many:,} timers"
        yield Row(path, against, ratio(memories["many"], memories["few"]), at_most(1.1), detail=detail)
        percent = Spread.of([100 * one for one in shares["many"]])
        yield Row(f"idle server with {many:,} timers", "one core", percent, at_most(2), "%")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        asyncio.run(serve(sys.argv[2], float(sys.argv[3])))
    else:
        sys.exit(main(rows, __doc__))
