"""How soon does a job start that is due, while there is little to do?"""

import asyncio
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from time import time

from a2asgi import A2
from benchmarks.harness import Effort, Row, Spread, at_most, main
from benchmarks.peers.a2_jobs import store_at
from benchmarks.servers import places

KINDS = {"memory": "memory", "sqlite": "SQLite FULL", "postgres": "Postgres", "redis": "Redis"}
AHEAD_S = 0.05
"""How far ahead a job for later is enqueued, and how long the pause between two is."""


async def latencies(place: str, jobs: int, *, later: bool) -> list[float]:
    """Milliseconds from when each job was due until its handler began."""
    a2 = A2(store=store_at(place))
    started: asyncio.Queue[float] = asyncio.Queue()

    @a2.job()
    async def note() -> None:
        started.put_nowait(time())

    found: list[float] = []
    async with a2:
        await note.enqueue()
        await started.get()
        for _ in range(jobs):
            await asyncio.sleep(AHEAD_S)
            due = time() + (AHEAD_S if later else 0)
            if later:
                when = datetime.fromtimestamp(int(due * 1e3) / 1e3, UTC) + timedelta(milliseconds=1)
                due = when.timestamp()
                await note.enqueue(at=when)
            else:
                await note.enqueue()
            found.append((await started.get() - due) * 1e3)
    return found


def rows(effort: Effort) -> Iterator[Row]:
    """Every store: a job that is due at once, and one that was to wait."""
    for kind, name in KINDS.items():
        place = places(kind)
        for later, way in ((False, "enqueued now"), (True, "due later")):
            path, against = f"start of a job, {way}, {name}", "the instant it is due"
            if place is None:
                yield Row(path, against, None, at_most(5), "ms", detail=f"no {kind} server here")
                continue
            with place as new_place:
                found = asyncio.run(latencies(new_place(), effort.of(60), later=later))
            place = places(kind)
            yield Row(path, against, Spread.of(found), at_most(5), "ms")


if __name__ == "__main__":
    sys.exit(main(rows, __doc__))
