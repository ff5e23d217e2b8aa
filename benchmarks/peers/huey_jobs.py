"""Jobs of huey on SQLite, enqueued and then run in one loop, which is faster for it than threads beside."""

from pathlib import Path
from time import perf_counter

from huey import SqliteHuey

from benchmarks.peers.process import measure


async def run(place: str, jobs: int) -> float:
    """Jobs per second. `fsync` is SQLite's FULL."""
    huey = SqliteHuey(filename=str(Path(place)), fsync=True, results=False)
    done = 0

    @huey.task()
    def nothing() -> None:
        nonlocal done
        done += 1

    started = perf_counter()
    for _ in range(jobs):
        nothing()
    while (task := huey.dequeue()) is not None:
        huey.execute(task)
    took = perf_counter() - started
    assert jobs == done
    return jobs / took


if __name__ == "__main__":
    measure(run)
