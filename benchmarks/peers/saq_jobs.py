"""Jobs of SAQ on Redis."""

from typing import Any

from saq import Queue, Worker

from benchmarks.peers.process import Finish, measure, timed


async def run(place: str, jobs: int) -> float:
    """Jobs per second."""
    finish = Finish(jobs)

    async def nothing(context: Any) -> None:
        del context
        finish.count()

    queue = Queue.from_url(place)
    await queue.connect()
    worker = Worker(queue, [("nothing", nothing)], concurrency=10)
    return await timed(jobs, lambda: queue.enqueue("nothing"), finish, worker.start())


if __name__ == "__main__":
    measure(run)
