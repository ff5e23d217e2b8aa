"""Jobs of streaQ on Redis. Its worker cannot be entered twice, so another one enqueues."""

from streaq import Worker

from benchmarks.peers.process import Finish, measure, timed


async def run(place: str, jobs: int) -> float:
    """Jobs per second."""
    finish = Finish(jobs)

    async def nothing() -> None:
        finish.count()

    worker: Worker[None] = Worker(redis_url=place, handle_signals=False)
    worker.task(name="nothing")(nothing)
    client: Worker[None] = Worker(redis_url=place, handle_signals=False)
    task = client.task(name="nothing")(nothing)

    async def enqueue() -> None:
        await task.enqueue()

    async with client:
        return await timed(jobs, enqueue, finish, worker.run_async())


if __name__ == "__main__":
    measure(run)
