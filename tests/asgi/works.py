"""What the tests of jobs share: an A2 with one job, and ways to look at where its calls stand."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import anyio

from a2asgi import A2, Job, JobState, JobStatus, MemoryStore, SQLiteStore, Store
from tests.asgi.support import PATIENCE_S

START = datetime(2026, 1, 1, tzinfo=UTC)
"""When a world begins."""

STORES = ["memory", "sqlite"]


def after(seconds: float) -> datetime:
    """So long after a world began."""
    return START + timedelta(seconds=seconds)


class Work:
    """An A2 with one job, which is the function that it is given."""

    def __init__(self, function: Callable[..., Any], *, a2: A2 | None = None, **options: Any) -> None:
        self.a2 = A2(store=MemoryStore()) if a2 is None else a2
        self.job: Job[..., Any] = self.a2.job(**{"backoff": "1s", **options})(function)

    async def status(self, job_id: str) -> JobStatus[Any]:
        """Where a job stands that is known."""
        status = await self.job.status(job_id)
        assert status is not None
        return status

    async def state(self, job_id: str) -> JobState:
        """The state of a job that is known."""
        return (await self.status(job_id)).state

    async def until(self, job_id: str, state: JobState, *, patience_s: float = PATIENCE_S) -> JobStatus[Any]:
        """Wait until a job stands there."""
        with anyio.fail_after(patience_s):
            while (status := await self.status(job_id)).state != state:  # noqa: ASYNC110 - others do it
                await anyio.sleep(0.001)
        return status


class Came:
    """A job's function that notes when it came, in seconds since the world began, and what for."""

    def __init__(self) -> None:
        self.now: Callable[[], datetime] = lambda: START
        self.seen: list[tuple[float, str]] = []

    async def __call__(self, what: str = "") -> None:
        """Note it."""
        self.seen.append(((self.now() - START).total_seconds(), what))


def store_maker(kind: str, folder: Path) -> Callable[[], Store]:
    """What opens the same store each time, as another process does; of a kind in STORES."""
    if kind == "memory":
        return repeat(MemoryStore()).__next__
    return partial(SQLiteStore, folder / "a2.db")
