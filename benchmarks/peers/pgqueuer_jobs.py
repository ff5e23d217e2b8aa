"""Jobs of PgQueuer on Postgres."""

from datetime import timedelta

import asyncpg
from pgqueuer import AsyncpgDriver, Job, PgQueuer, Queries

from benchmarks.peers.process import Finish, measure, timed

BATCH = 100


async def run(place: str, jobs: int) -> float:
    """Jobs per second, in batches of the size that is fastest for it."""
    finish = Finish(jobs)
    connection, other = await asyncpg.connect(place), await asyncpg.connect(place)
    queries = Queries(AsyncpgDriver(other))
    await queries.install()
    worker = PgQueuer(AsyncpgDriver(connection))

    @worker.entrypoint("nothing")
    async def nothing(job: Job) -> None:
        del job
        finish.count()

    running = worker.run(dequeue_timeout=timedelta(milliseconds=50), batch_size=BATCH)
    return await timed(jobs, lambda: queries.enqueue("nothing", b""), finish, running)


if __name__ == "__main__":
    measure(run)
