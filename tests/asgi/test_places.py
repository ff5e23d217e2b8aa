"""Places: a job that is due now starts in the process that enqueued it, where there is room, and never out of turn."""

from collections.abc import Collection, Coroutine
from typing import Any

import anyio
import pytest

from a2asgi import A2, EmbeddedScheduler, Job, MemoryStore, SessionKey, Store, StoreUnavailable, Wakes
from a2asgi.ports import Answer, Decide
from a2asgi.times import Duration
from a2core import DrainTimings, Needs, RunState
from tests.asgi.worlds import within

LONG = DrainTimings(ttl_ms=60_000, heartbeat_ms=20_000, grace_ms=30_000)
"""Nobody else looks meanwhile."""


class Counting(MemoryStore):
    """Knows which contracts' wake-ups were taken, and counts transactions; `down` makes it refuse to write."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[str] = []
        self.transactions = 0
        self.down = False

    async def claim_wakes(self, contracts: Collection[str], *, limit: int, lease_ms: int, late_ms: int = 0) -> Wakes:
        wakes = await super().claim_wakes(contracts, limit=limit, lease_ms=lease_ms, late_ms=late_ms)
        self.taken += [key.contract for key in wakes.due]
        return wakes

    def transact_blocking(self, key: SessionKey, needs: Needs, decide: Decide[Answer]) -> Answer:
        if self.down:
            raise StoreUnavailable("down")
        self.transactions += 1
        return super().transact_blocking(key, needs, decide)


def alone(store: Store, *, concurrency: int = 64, grace: Duration = "10s") -> A2:
    """Looks at its start and when it is told to; nobody else does."""
    scheduler = EmbeddedScheduler(poll="1h", concurrency=concurrency)
    return A2(store=store, scheduler=scheduler, timings=LONG, grace=grace)


def job_that_tells(a2: A2) -> tuple[Job[[], Coroutine[Any, Any, None]], anyio.Event]:
    """A job, and what is set when it runs."""
    ran = anyio.Event()

    @a2.job()
    async def job() -> None:
        ran.set()

    return job, ran


@within(5)
async def test_a_job_starts_at_once_where_there_is_room() -> None:
    """No wake-up has to be taken for it: one transaction less, and nobody polls."""
    store = Counting()
    a2 = alone(store)
    job, ran = job_that_tells(a2)
    async with a2:
        await anyio.wait_all_tasks_blocked()
        await job.enqueue()
        await ran.wait()
    assert [] == store.taken


@within(5)
async def test_what_finds_no_room_waits_its_turn() -> None:
    """With one place, taken, the urgent job that came last starts before the others."""
    store = Counting()
    a2 = alone(store, concurrency=1)
    order: list[str] = []
    go, all_ran = anyio.Event(), anyio.Event()

    @a2.job()
    async def plain(name: str) -> None:
        order.append(name)
        await go.wait()

    @a2.job(priority=5)
    async def urgent(name: str) -> None:
        order.append(name)
        if len(order) == 3:
            all_ran.set()

    @a2.job(priority=-5)
    async def idle(name: str) -> None:
        order.append(name)
        if len(order) == 3:
            all_ran.set()

    async with a2:
        await anyio.wait_all_tasks_blocked()
        await plain.enqueue("first")
        await anyio.wait_all_tasks_blocked()
        await idle.enqueue("last")
        await urgent.enqueue("second")
        go.set()
        await all_ran.wait()
    assert ["first", "second", "last"] == order
    assert ["job:urgent", "job:idle"] == store.taken


@within(5)
async def test_an_enqueue_that_fails_gives_its_place_back() -> None:
    """With one place, the next job still finds it."""
    store = Counting()
    a2 = alone(store, concurrency=1)
    job, ran = job_that_tells(a2)
    async with a2:
        await anyio.wait_all_tasks_blocked()
        store.down = True
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                await job.enqueue()
        store.down = False
        await job.enqueue()
        await ran.wait()
    assert [] == store.taken


@within(5)
async def test_a_job_that_is_there_already_is_not_started_again() -> None:
    """Its dedupe key finds it, and the place that was meant for a new one is free again."""
    a2 = alone(MemoryStore(), concurrency=2)
    runs: list[str] = []
    go, both = anyio.Event(), anyio.Event()

    @a2.job()
    async def job(name: str) -> None:
        runs.append(name)
        if len(runs) == 2:
            both.set()
        await go.wait()

    async with a2:
        await anyio.wait_all_tasks_blocked()
        ids = {await job.enqueue("a", dedupe_key="k") for _ in range(5)}
        await job.enqueue("b")
        await both.wait()
        go.set()
    assert 1 == len(ids)
    assert ["a", "b"] == sorted(runs)


class Slow(MemoryStore):
    """Holds what it wrote for a job until `go`, and answers only then."""

    def __init__(self) -> None:
        super().__init__()
        self.written, self.go = anyio.Event(), anyio.Event()

    async def transact(self, key: SessionKey, needs: Needs, decide: Decide[Answer]) -> Answer:
        answer = await super().transact(key, needs, decide)
        if key.contract == "job:job" and not self.written.is_set():
            self.written.set()
            await self.go.wait()
        return answer


@within(5)
async def test_an_enqueue_and_its_claim_are_one_transaction() -> None:
    """And the end of the job is the second and last."""
    store = Counting()
    a2 = alone(store)

    @a2.job()
    async def job() -> None:
        pass

    async with a2:
        await anyio.wait_all_tasks_blocked()
        before = store.transactions
        await job.enqueue()
        await anyio.wait_all_tasks_blocked()
        assert 2 == store.transactions - before


@within(5)
async def test_an_enqueue_that_is_cancelled_leaves_no_claim_behind() -> None:
    """What the store accepts is run, whether or not somebody still waits for its answer."""
    store = Slow()
    a2 = alone(store)
    job, ran = job_that_tells(a2)
    async with a2:
        await anyio.wait_all_tasks_blocked()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(job.enqueue)
            await store.written.wait()
            tasks.cancel_scope.cancel()
        store.go.set()
        await ran.wait()


@within(5)
async def test_an_enqueue_under_way_at_a_shutdown_is_answered_and_its_job_has_the_grace() -> None:
    store = Slow()
    a2 = alone(store)
    ids: list[str] = []

    @a2.job()
    async def job() -> None:
        pass

    async def enqueue() -> None:
        ids.append(await job.enqueue())

    async def answer() -> None:
        await anyio.wait_all_tasks_blocked()
        store.go.set()

    async with anyio.create_task_group() as tasks, a2:
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(enqueue)
        await store.written.wait()
        tasks.start_soon(answer)
    [job_id] = ids
    status = await job.status(job_id)
    assert status is not None
    assert RunState.SUCCEEDED is status.state


@within(5)
async def test_an_enqueue_without_an_answer_at_the_end_of_the_grace_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be accepted, and is here: whoever finds its claim expired runs it."""
    monkeypatch.setattr("a2asgi.groups.CLEAN_UP_S", 0.02)
    store = Slow()
    a2 = alone(store, grace="10ms")
    told: list[str] = []

    @a2.job()
    async def job() -> None:
        raise AssertionError("nobody has heard of its claim")

    async def enqueue() -> None:
        with pytest.raises(StoreUnavailable) as caught:
            await job.enqueue()
        told.append(str(caught.value))

    async with anyio.create_task_group() as tasks, a2:
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(enqueue)
        await store.written.wait()
    assert ["the process stops, and the store has not answered yet"] == told
    [info] = await store.sessions()
    assert 1 == info.last_seq
