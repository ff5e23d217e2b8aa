"""Jobs of arq on Redis, with a short pause between its looks and room for many jobs."""

from typing import Any

from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker, func

from benchmarks.peers.process import Finish, measure, timed


async def run(place: str, jobs: int) -> float:
    """Jobs per second."""
    finish = Finish(jobs)

    async def nothing(context: Any) -> None:
        del context
        finish.count()

    pool = await create_pool(RedisSettings.from_dsn(place))
    worker = Worker(
        [func(nothing, name="nothing")],
        redis_pool=pool,
        poll_delay=0.01,
        max_jobs=100,
        handle_signals=False,
        keep_result=0,
    )
    return await timed(jobs, lambda: pool.enqueue_job("nothing"), finish, worker.async_run())


if __name__ == "__main__":
    measure(run)
