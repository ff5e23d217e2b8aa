"""Jobs of a2 on any of its stores, the worker in the process that enqueues."""

from a2asgi import A2, MemoryStore, PostgresStore, RedisStore, Signal, SignalName, SQLiteStore, Store
from benchmarks.peers.process import Finish, measure, timed


def store_at(place: str) -> Store:
    """The store that this place names."""
    scheme, _, _ = place.partition("://")
    if scheme == "memory":
        return MemoryStore()
    if scheme == "redis":
        return RedisStore(place)
    if scheme == "postgresql":
        return PostgresStore(place)
    return SQLiteStore(place)


async def run(place: str, jobs: int) -> float:
    """Jobs per second, until the last one is settled."""
    finish = Finish(jobs)

    def hear(signal: Signal) -> None:
        if signal.name is SignalName.SETTLED:
            finish.count()

    a2 = A2(store=store_at(place), telemetry=hear)

    @a2.job()
    async def nothing() -> None:
        pass

    async with a2:
        return await timed(jobs, nothing.enqueue, finish)


if __name__ == "__main__":
    measure(run)
