"""Jobs of taskiq on Redis: a stream, whose messages are acknowledged once they are done."""

from taskiq.api import run_receiver_task
from taskiq_redis import RedisStreamBroker

from benchmarks.peers.process import Finish, measure, timed


async def run(place: str, jobs: int) -> float:
    """Jobs per second."""
    finish = Finish(jobs)
    broker = RedisStreamBroker(place)

    @broker.task
    async def nothing() -> None:
        finish.count()

    await broker.startup()
    return await timed(jobs, nothing.kiq, finish, run_receiver_task(broker))


if __name__ == "__main__":
    measure(run)
