"""One peer in a process of its own: it is given a place and a count, and prints how many jobs a second it did."""

import argparse
import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from time import perf_counter
from typing import Any, TypeAlias

Enqueue: TypeAlias = Callable[[], Coroutine[Any, Any, object]]
PATIENCE_S = 60


class Finish:
    """Counts the jobs that ended, and tells when it was the last."""

    def __init__(self, jobs: int) -> None:
        self.left = jobs
        self._all = asyncio.Event()

    def count(self) -> None:
        """One more has ended."""
        self.left -= 1
        if self.left == 0:
            self._all.set()

    async def wait(self) -> None:
        """Until the last has ended."""
        async with asyncio.timeout(PATIENCE_S):
            await self._all.wait()


async def timed(
    jobs: int, enqueue: Enqueue, finish: Finish, worker: Coroutine[Any, Any, object] | None = None
) -> float:
    """Jobs per second: enqueued one by one while the worker runs, until all have ended."""
    running = None if worker is None else asyncio.create_task(worker)
    await asyncio.sleep(0)
    started = perf_counter()
    for _ in range(jobs):
        await enqueue()
    await finish.wait()
    took = perf_counter() - started
    if running is not None and running.done():
        running.result()
    return jobs / took


def measure(run: Callable[[str, int], Coroutine[Any, Any, float]]) -> None:
    """Serve the command line: `run(place, jobs)` answers jobs per second."""
    parser = argparse.ArgumentParser()
    parser.add_argument("place", help="where it keeps its jobs: a URL, or the path of a file that is not there yet")
    parser.add_argument("jobs", type=int)
    options = parser.parse_args()
    logging.disable(logging.WARNING)

    async def run_and_leave() -> None:
        print(await run(options.place, options.jobs), flush=True)
        os._exit(0)  # how long a worker takes to stop is not asked

    asyncio.run(run_and_leave())
