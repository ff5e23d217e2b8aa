"""Workflows of DBOS through its queue, on SQLite or Postgres."""

import asyncio
from time import perf_counter

from dbos import DBOS, DBOSConfig

from benchmarks.peers.process import measure


async def run(place: str, jobs: int) -> float:
    """Jobs per second. Its pause between looks at the queue is set to the shortest that still pays."""
    url = place if "://" in place else f"sqlite:///{place}"
    config: DBOSConfig = {"name": "bench", "system_database_url": url, "enable_otlp": False, "log_level": "ERROR"}
    return await asyncio.to_thread(_run, config, jobs)


def _run(config: DBOSConfig, jobs: int) -> float:
    DBOS(config=config)

    @DBOS.workflow()
    def nothing() -> None:
        pass

    DBOS.launch()
    DBOS.register_queue("bench", polling_interval_sec=0.01)
    started = perf_counter()
    handles = [DBOS.enqueue_workflow("bench", nothing) for _ in range(jobs)]
    for handle in handles:
        handle.get_result(polling_interval_sec=0.01)
    return jobs / (perf_counter() - started)


if __name__ == "__main__":
    measure(run)
