"""Jobs in processes of their own that are killed, or that block: each job comes to its end."""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.abc import Process
from anyio.streams.text import TextReceiveStream

from a2asgi import A2, JobState, SQLiteStore
from tests.asgi.works import Work
from tests.asgi.worlds import within

ROOT = Path(__file__).parent.parent.parent


class Worker:
    """A process that runs jobs, and what it tells, line by line."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.lines: list[str] = []
        self._news = anyio.Event()

    async def hear(self) -> None:
        """Read all that it tells."""
        assert self.process.stdout is not None
        rest = ""
        async for text in TextReceiveStream(self.process.stdout):
            *lines, rest = (rest + text).split("\n")
            self.lines += lines
            self._news.set()
            self._news = anyio.Event()

    async def until(self, line: str) -> None:
        """Wait until it has told this."""
        while line not in self.lines:
            await self._news.wait()


class House:
    """Workers on one database, and a web process, which is the test's own."""

    def __init__(self, folder: Path, backend: str) -> None:
        self._database = folder / "a2.db"
        self._backend = backend
        self.a2 = A2(store=SQLiteStore(self._database), role="web")

        async def copy(lines: int) -> str:
            raise AssertionError(lines)

        async def compute() -> str:
            raise AssertionError

        self.copy = Work(copy, a2=self.a2)
        self.compute = Work(compute, a2=self.a2)

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[Worker]:
        """A worker that is ready, until it is killed."""
        environment = os.environ | {"APP_DB": str(self._database), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "tests.asgi.job_app", self._backend]
        async with await anyio.open_process(command, env=environment, cwd=ROOT, stderr=None) as process:
            worker = Worker(process)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(worker.hear)
                try:
                    await worker.until("ready")
                    yield worker
                finally:
                    process.kill()


@pytest.fixture
async def house(tmp_path: Path, anyio_backend_name: str) -> AsyncIterator[House]:
    house = House(tmp_path, anyio_backend_name)
    async with house.a2:
        yield house


@within(30)
async def test_a_job_that_is_killed_in_the_middle_is_run_on_by_another_process(house: House) -> None:
    """Once the dead one's claim has ended, from the progress that it had noted; nothing is counted as a failure."""
    job_id = await house.copy.job.enqueue(10)
    async with house.worker() as worker:
        await worker.until("half way")
    assert -9 == worker.process.returncode
    assert await house.copy.state(job_id) in {JobState.RUNNING, JobState.RETRYING}
    async with house.worker() as other:
        status = await house.copy.until(job_id, JobState.SUCCEEDED, patience_s=20)
        assert ("copied by attempt 2", 2) == (status.result, status.attempt)
    assert ["ready", "attempt 1 begins at line 0", "half way"] == worker.lines
    assert ["ready", "attempt 2 begins at line 5.0"] == other.lines


@within(30)
async def test_a_job_that_blocks_its_loop_for_longer_than_its_claim_is_not_run_twice(house: House) -> None:
    """A thread renews the claim meanwhile: another worker, which waits for just that, never gets it."""
    async with house.worker() as worker:
        job_id = await house.compute.job.enqueue()
        await worker.until("attempt 1 begins")
        async with house.worker() as other:
            status = await house.compute.until(job_id, JobState.SUCCEEDED, patience_s=20)
    assert ("computed by attempt 1", 1) == (status.result, status.attempt)
    assert ["ready", "attempt 1 begins", "attempt 1 ends"] == worker.lines
    assert ["ready"] == other.lines
