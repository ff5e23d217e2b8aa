"""Limits of jobs: how many run at a time, in a process and of a key, in which order, and which ones start first."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from a2asgi import (
    A2,
    EmbeddedScheduler,
    Fail,
    InvalidName,
    InvalidPayload,
    JobContext,
    JobState,
    MemoryStore,
    Snooze,
    SQLiteStore,
    Store,
)
from a2asgi.limits import Limit
from tests.asgi.works import START, STORES, Work, store_maker
from tests.asgi.worlds import NEVER, OFTEN, Tally, rounds, within


class Crowd:
    """Counts who is inside, of each name, and the most that ever were."""

    def __init__(self) -> None:
        self.inside: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.left = Tally()
        self.order: list[str] = []

    def enter(self, name: str, who: str = "") -> None:
        """One more inside."""
        self.order.append(who)
        self.inside[name] += 1
        self.most[name] = max(self.most[name], self.inside[name])

    def leave(self, name: str, who: str = "") -> None:
        """One less."""
        self.inside[name] -= 1
        self.left.add(who)


# ── of one process ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_no_more_than_so_many_jobs_run_at_a_time_and_no_place_is_left_empty(concurrency: int) -> None:
    """Twelve jobs of a second each take as long as twelve do in so many places."""
    crowd = Crowd()
    ended: list[float] = []

    async def take_a_second(x: int) -> None:
        crowd.enter("all")
        await world.sleep("1s")
        crowd.leave("all")
        ended.append((world.now - START).total_seconds())

    work = Work(take_a_second, concurrency=concurrency)
    async with work.a2.testing() as world:
        for x in range(12):
            await work.job.enqueue(x)
        await world.advance("1m")
    assert concurrency == crowd.most["all"]
    assert [1 + x // concurrency for x in range(12)] == ended


async def test_a_job_without_a_limit_runs_as_often_as_there_is_work() -> None:
    crowd = Crowd()

    async def take_a_second(x: int) -> None:
        crowd.enter("all")
        await world.sleep("1s")
        crowd.leave("all")

    work = Work(take_a_second)
    async with work.a2.testing() as world:
        for x in range(100):
            await work.job.enqueue(x)
        await world.advance("1m")
    assert 100 == crowd.most["all"]


@within(20)
@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_a_server_runs_no_more_than_so_many(kind: str, tmp_path: Path, *, plain: bool) -> None:
    """Of one job three at a time, and of another job any number meanwhile; all of them come to their end."""
    crowd = Crowd()
    full, let_go = anyio.Event(), anyio.Event()

    async def limited(x: int) -> None:
        crowd.enter("limited")
        if crowd.inside["limited"] == 3:
            full.set()
        await let_go.wait()
        crowd.leave("limited")

    def limited_plainly(x: int) -> None:
        anyio.from_thread.run(limited, x, token=token)

    async def free(x: int) -> None:
        crowd.enter("free")

    token = anyio.lowlevel.current_token()
    a2 = A2(store=store_maker(kind, tmp_path)(), scheduler=OFTEN)
    work = Work(limited_plainly if plain else limited, a2=a2, name="limited", concurrency=3)
    other = Work(free, a2=a2)
    async with a2:
        ids = [await work.job.enqueue(x) for x in range(20)]
        others = [await other.job.enqueue(x) for x in range(10)]
        await full.wait()
        for job_id in others:
            await other.until(job_id, JobState.SUCCEEDED)
        assert 3 == crowd.inside["limited"]
        let_go.set()
        for job_id in ids:
            await work.until(job_id, JobState.SUCCEEDED)
    assert (3, 20) == (crowd.most["limited"], len(crowd.left.seen))


@within(10)
@pytest.mark.parametrize("end", ["returns", "fails", "gives-up", "snoozes", "called-off", "out-of-time"])
async def test_whatever_ends_an_attempt_gives_its_place_to_the_next(end: str) -> None:
    """One place: while the first waits for its retry, or is over, the second one runs."""
    came: list[str] = []

    async def work_on(who: str, ctx: JobContext) -> object:
        came.append(who)
        if who == "second" or ctx.attempt > 1:
            return None
        match end:
            case "fails":
                raise ValueError(who)
            case "gives-up":
                return Fail(who)
            case "snoozes":
                return Snooze("1h")
            case "called-off" | "out-of-time":
                await world.sleep("1d")
            case _:
                pass
        return None

    work = Work(work_on, concurrency=1, timeout="1m", backoff="1h")
    async with work.a2.testing() as world:
        job_id = await work.job.enqueue("first")
        await world.settle()
        await work.job.enqueue("second")
        await world.settle()
        if end == "called-off":
            assert await work.job.cancel(job_id)
        await world.advance("1m")
        assert ["first", "second"] == came


@within(10)
async def test_a_crash_gives_every_place_back() -> None:
    """A process that dies with its places full leaves the next one its own."""
    crowd = Crowd()

    async def take_a_second(x: int) -> None:
        crowd.enter("all")
        try:
            await world.sleep("1s")
        finally:
            crowd.leave("all", str(x))

    work = Work(take_a_second, concurrency=2)
    async with work.a2.testing() as world:
        ids = [await work.job.enqueue(x) for x in range(6)]
        world.crash_after("settle")
        await world.advance("1h")
        assert [JobState.SUCCEEDED] * 6 == [await work.state(job_id) for job_id in ids]
    assert 2 == crowd.most["all"]


@within(10)
@pytest.mark.parametrize("grace", ["0s", "1h"])
async def test_a_shutdown_is_not_held_up_by_who_waits_for_a_place(grace: str) -> None:
    """One place and five sessions: what runs ends in its grace or is released, the rest is for the next server."""
    started, let_go = anyio.Event(), anyio.Event()
    runs: list[int] = []

    async def work_on(x: int) -> None:
        runs.append(x)
        started.set()
        await let_go.wait()

    def make(store: Store, scheduler: EmbeddedScheduler) -> Work:
        return Work(work_on, a2=A2(store=store, scheduler=scheduler, grace=grace), concurrency=1)

    one = make(store := MemoryStore(), NEVER)
    async with anyio.create_task_group() as tasks, one.a2:
        ids = [await one.job.enqueue(x) for x in range(5)]
        await started.wait()
        await rounds()
        if grace != "0s":
            tasks.start_soon(set_soon, let_go)
    assert 1 == len(runs)
    let_go.set()
    next_one = make(store, OFTEN)
    async with next_one.a2:
        for job_id in ids:
            await next_one.until(job_id, JobState.SUCCEEDED)


@within(10)
async def test_a_shutdown_is_not_held_up_by_drains_that_wait_without_a_scheduler() -> None:
    """There each session has a drain from its enqueue on, and all but one of them wait for the place."""
    started = anyio.Event()
    runs: list[int] = []

    async def work_on(x: int) -> None:
        runs.append(x)
        started.set()
        if len(runs) == 1:
            await anyio.sleep_forever()

    store = MemoryStore()
    one = Work(work_on, a2=A2(store=store, scheduler=None, grace="0s"), concurrency=1)
    async with one.a2:
        ids = [await one.job.enqueue(x) for x in range(5)]
        await started.wait()
        await rounds()
    assert 1 == len(runs)
    next_one = Work(work_on, a2=A2(store=store, scheduler=OFTEN), concurrency=1)
    async with next_one.a2:
        for job_id in ids:
            await next_one.until(job_id, JobState.SUCCEEDED)


async def set_soon(event: anyio.Event) -> None:
    """Let whatever waits first wait."""
    await rounds()
    event.set()


@within(10)
@pytest.mark.parametrize("how", ["itself", "each-other", "tick"])
@pytest.mark.parametrize("scheduler", [None, NEVER], ids=["unscheduled", "embedded"])
async def test_without_a_server_a_job_may_enqueue_one_that_has_to_wait_for_its_place(
    how: str, scheduler: EmbeddedScheduler | None
) -> None:
    """It is run after it, before whoever enqueued the first of them goes on."""
    seen: list[int] = []

    async def crawl(depth: int) -> None:
        seen.append(depth)
        if depth:
            await (other if how == "each-other" else work).job.enqueue(depth - 1)

    async def crawl_on(depth: int) -> None:
        seen.append(depth)
        await work.job.enqueue(depth - 1)
        seen.append(-depth)

    a2 = A2(store=(store := MemoryStore()), scheduler=scheduler)
    work, other = Work(crawl, a2=a2, concurrency=1), Work(crawl_on, a2=a2, concurrency=1)
    if how == "tick" and scheduler is not None:
        await Work(crawl, a2=A2(store=store, role="web"), concurrency=1).job.enqueue(4)
        await a2.tick()
    else:
        await work.job.enqueue(4)
    assert {"each-other": [4, 3, -3, 2, 1, -1, 0]}.get(how, [4, 3, 2, 1, 0]) == seen


# ── places ───────────────────────────────────────────────────────────────────────────────


def test_no_more_places_are_given_than_there_are() -> None:
    limit = Limit(3)
    assert [2, 1, 0] == [limit.take(2), limit.take(2), limit.take(2)]
    limit.give_back(2)
    assert [2, 0] == [limit.take(5), limit.take(1)]


def test_without_a_limit_there_are_as_many_as_are_wanted() -> None:
    limit = Limit(None)
    assert [1_000, 1_000] == [limit.take(1_000), limit.take(1_000)]


def test_who_waits_is_told_once_when_a_place_is_free() -> None:
    """All of them: each tries for itself, and waits again if it was too late."""
    limit, told = Limit(1), list[str]()
    limit.take(1)
    for name in "ab":
        limit.when_free(lambda name=name: told.append(name))  # type: ignore[misc]
    assert limit.is_contended
    limit.give_back(0)
    assert [] == told
    limit.give_back(1)
    limit.give_back(limit.take(1))
    assert ["a", "b"] == told
    assert not limit.is_contended


# ── of one key ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "key",
    ["customer", lambda customer, **_: customer, lambda customer, x: f"{customer}{x - x}"],
    ids=["name", "some", "all"],
)
async def test_jobs_of_one_key_run_one_after_the_other_in_order(key: str | Callable[..., str]) -> None:
    """In the order in which they were enqueued, while other keys run beside them."""
    crowd = Crowd()

    async def bill(customer: str, x: int) -> None:
        crowd.enter(customer, f"{customer}{x}")
        await world.sleep("1s")
        crowd.leave(customer)

    work = Work(bill, key=key)
    async with work.a2.testing() as world:
        for x in range(10):
            for customer in "abc":
                await work.job.enqueue(customer, x)
        await world.advance("10s")
    assert {"a": 1, "b": 1, "c": 1} == crowd.most
    for customer in "abc":
        assert [f"{customer}{x}" for x in range(10)] == [who for who in crowd.order if who.startswith(customer)]


async def test_a_key_may_have_more_than_one_place() -> None:
    """With key_concurrency=2 never more than two of a key run at a time, and two do."""
    crowd = Crowd()

    async def bill(customer: str, x: int) -> None:
        crowd.enter(customer)
        await world.sleep("1s")
        crowd.leave(customer)

    work = Work(bill, key="customer", key_concurrency=2)
    async with work.a2.testing() as world:
        ids = [await work.job.enqueue("a", x) for x in range(40)]
        await world.advance("1m")
        assert {JobState.SUCCEEDED} == {await work.state(job_id) for job_id in ids}
    assert {"a": 2} == crowd.most


@within(20)
async def test_the_places_of_a_key_are_those_of_all_processes(tmp_path: Path) -> None:
    """Two servers on one database never run two jobs of one key at a time."""
    crowd = Crowd()

    async def bill(customer: str, x: int) -> None:
        crowd.enter(customer, f"{customer}{x}")
        await rounds(3)
        crowd.leave(customer)

    one, other = (
        Work(bill, a2=A2(store=SQLiteStore(tmp_path / "a2.db"), scheduler=OFTEN), key="customer") for _ in range(2)
    )
    async with one.a2, other.a2:
        ids = [await work.job.enqueue(customer, x) for x in range(8) for customer, work in (("a", one), ("b", other))]
        for job_id in ids:
            await one.until(job_id, JobState.SUCCEEDED)
    assert {"a": 1, "b": 1} == crowd.most
    for customer in "ab":
        assert [f"{customer}{x}" for x in range(8)] == [who for who in crowd.order if who.startswith(customer)]


async def test_a_job_that_waits_for_its_retry_keeps_its_turn_and_one_that_failed_does_not() -> None:
    """What follows it in its key waits for it while it is tried, and goes on once it is given up."""
    came: list[tuple[str, float]] = []

    async def bill(customer: str, who: str) -> None:
        came.append((who, (world.now - START).total_seconds()))
        if who == "broken":
            raise ValueError(who)

    work = Work(bill, key="customer", retries=2, backoff="10s")
    async with work.a2.testing() as world:
        broken, sound = await work.job.enqueue("a", "broken"), await work.job.enqueue("a", "sound")
        await world.advance("5s")
        assert [JobState.RETRYING, JobState.QUEUED] == [await work.state(broken), await work.state(sound)]
        await world.advance("1h")
        assert [JobState.FAILED, JobState.SUCCEEDED] == [await work.state(broken), await work.state(sound)]
        await work.job.enqueue("a", "later")
        await world.settle()
    assert [("broken", 0), ("broken", 10), ("broken", 20), ("sound", 20), ("later", 3_605)] == came


async def test_a_job_for_later_does_not_hold_up_its_key() -> None:
    """It takes its turn when its time has come."""
    came: list[str] = []

    async def bill(customer: str, who: str) -> None:
        came.append(who)

    work = Work(bill, key="customer")
    async with work.a2.testing() as world:
        await work.job.later("1h", "a", "later")
        await work.job.enqueue("a", "now")
        await world.settle()
        assert ["now"] == came
        await world.advance("1h")
        assert ["now", "later"] == came


async def test_a_key_that_is_no_name_is_refused_at_the_call() -> None:
    async def bill(customer: str) -> None: ...

    work = Work(bill, key="customer")
    async with work.a2.testing() as world:
        with pytest.raises(InvalidName, match="key of job 'bill': expected a non-empty string"):
            await work.job.enqueue("")
        assert [] == await world.store.sessions()


async def test_a_key_function_only_sees_arguments_that_fit() -> None:
    """What does not is refused as ever, before it."""
    asked: list[object] = []

    async def bill(customer: str) -> None: ...

    def key(customer: str) -> str:
        asked.append(customer)
        return customer[:1]

    work = Work(bill, key=key)
    async with work.a2.testing():
        with pytest.raises(InvalidPayload, match=r"^\$\.customer"):
            await work.job.enqueue(5)
        await work.job.enqueue("a")
    assert ["a"] == asked


async def test_a_limit_of_the_process_holds_for_the_jobs_of_a_key_too() -> None:
    """Three keys and two places."""
    crowd = Crowd()

    async def bill(customer: str, x: int) -> None:
        crowd.enter("all")
        crowd.enter(customer, f"{customer}{x}")
        await world.sleep("1s")
        crowd.leave(customer)
        crowd.leave("all")

    work = Work(bill, key="customer", concurrency=2)
    async with work.a2.testing() as world:
        for x in range(4):
            for customer in "abc":
                await work.job.enqueue(customer, x)
        await world.advance("8s")
    assert 24 == len(crowd.left.seen)
    assert {"all": 2, "a": 1, "b": 1, "c": 1} == crowd.most


# ── priority ─────────────────────────────────────────────────────────────────────────────


class Ranked:
    """Three jobs of different priority, and the order in which they ran."""

    def __init__(self, a2: A2) -> None:
        self.a2 = a2
        self.ran = Tally()
        self.started = anyio.Event()
        self.let_go = anyio.Event()
        self.jobs = {name: self._make(name, priority) for name, priority in (("low", -1), ("usual", 0), ("high", 7))}

    def _make(self, name: str, priority: int) -> Work:
        async def run(x: int) -> None:
            self.ran.add(name)
            self.started.set()
            await self.let_go.wait()

        return Work(run, a2=self.a2, name=name, priority=priority)

    async def enqueue_all(self) -> None:
        """The least urgent first."""
        for x in range(3):
            for work in self.jobs.values():
                await work.job.enqueue(x)


@within(10)
@pytest.mark.parametrize("kind", STORES)
async def test_of_the_jobs_that_are_due_the_most_urgent_start_first(kind: str, tmp_path: Path) -> None:
    """A server with one place: once that is free, priority counts."""
    ranked = Ranked(A2(store=store_maker(kind, tmp_path)(), scheduler=EmbeddedScheduler(concurrency=1)))
    async with ranked.a2:
        await ranked.jobs["low"].job.enqueue(9)
        await ranked.started.wait()
        await ranked.enqueue_all()
        ranked.let_go.set()
        await ranked.ran.until(10)
    assert ["low", *(name for name in ("high", "usual", "low") for _ in range(3))] == ranked.ran.seen


async def test_in_a_world_the_most_urgent_start_first() -> None:
    """As in a tick: those of one priority start together."""
    ranked = Ranked(A2(store=MemoryStore()))
    ranked.let_go.set()
    async with ranked.a2.testing() as world:
        await ranked.enqueue_all()
        await world.settle()
    assert [name for name in ("high", "usual", "low") for _ in range(3)] == ranked.ran.seen
