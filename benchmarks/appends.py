"""How many durable appends a second does SQLite take, beside a bare loop of one insert per transaction?"""

import asyncio
import sqlite3
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Literal

from a2asgi import A2, SQLiteStore
from benchmarks.harness import Effort, Goal, Row, Sample, at_least, interleave, main, ratio

Synchronous = Literal["FULL", "NORMAL"]
RAW = "raw sqlite3, one at a time"
PAYLOAD = {"sku": "tea", "note": "green"}


def raw(folder: Path, synchronous: Synchronous, appends: int) -> float:
    """Transactions per second of the least that a log needs, on the loop's own thread."""
    connection = sqlite3.connect(folder / "raw.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(f"PRAGMA synchronous={synchronous}")
    connection.execute("CREATE TABLE IF NOT EXISTS log (seq INTEGER PRIMARY KEY, id TEXT, type TEXT, payload TEXT)")
    started = perf_counter()
    for number in range(appends):
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(
            "INSERT INTO log (id, type, payload) VALUES (?, ?, ?)",
            (f"e{number}", "placed", '{"sku":"tea","note":"green"}'),
        )
        connection.execute("COMMIT")
    took = perf_counter() - started
    connection.close()
    return appends / took


async def ours(folder: Path, synchronous: Synchronous, appends: int, at_once: int) -> float:
    """Appends per second by so many tasks, each to a session of its own and one after another."""
    a2 = A2(store=SQLiteStore(folder / "a2.db", synchronous=synchronous))
    orders = a2.contract("orders")
    placed = orders.event("placed", dict[str, str])

    async def append(session: str) -> None:
        for _ in range(max(1, appends // at_once)):
            await orders.session(session).append(placed(PAYLOAD))

    async with a2:
        await orders.session("first").append(placed(PAYLOAD))
        started = perf_counter()
        await asyncio.gather(*[append(f"s{number}") for number in range(at_once)])
        took = perf_counter() - started
    return max(1, appends // at_once) * at_once / took


def appends_of(effort: Effort, synchronous: Synchronous, goals: dict[int, Goal]) -> Iterator[Row]:
    """One at a time, and 64 at once."""
    counts = {1: effort.of(2_000), 64: effort.of(10_000, 64)}
    with TemporaryDirectory(prefix="a2-bench-") as name:
        folder = Path(name)
        variants: dict[str, Sample] = {"raw": partial(raw, folder, synchronous, counts[1])}

        def sample(at_once: int) -> float:
            return asyncio.run(ours(folder, synchronous, counts[at_once], at_once))

        variants |= {str(at_once): partial(sample, at_once) for at_once in goals}
        found = interleave(variants, min(effort.rounds, 9))
    for at_once, goal in goals.items():
        rates = [f"{sorted(found[name])[len(found[name]) // 2]:,.0f}/s" for name in (str(at_once), "raw")]
        path = f"durable append, SQLite {synchronous}, {at_once} at once"
        yield Row(path, RAW, ratio(found[str(at_once)], found["raw"]), goal, detail=" / ".join(rates))


def rows(effort: Effort) -> Iterator[Row]:
    """Both promises of durability; no handler."""
    yield from appends_of(effort, "FULL", {1: at_least(0.6), 64: at_least(3)})
    yield from appends_of(effort, "NORMAL", {64: at_least(0.4)})


if __name__ == "__main__":
    sys.exit(main(rows, __doc__))
