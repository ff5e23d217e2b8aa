"""Jobs of Procrastinate on Postgres."""

from procrastinate import App, PsycopgConnector

from benchmarks.peers.process import Finish, measure, timed

CONCURRENCY = 10


async def run(place: str, jobs: int) -> float:
    """Jobs per second."""
    finish = Finish(jobs)
    app = App(connector=PsycopgConnector(conninfo=place))

    @app.task
    async def nothing() -> None:
        finish.count()

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        worker = app.run_worker_async(concurrency=CONCURRENCY, install_signal_handlers=False, delete_jobs="always")
        return await timed(jobs, nothing.defer_async, finish, worker)


if __name__ == "__main__":
    measure(run)
