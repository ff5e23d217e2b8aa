"""Jobs: calls that are durable, run now or later, once for each key, and looked after by their ids."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from a2asgi import (
    A2,
    Context,
    EmbeddedScheduler,
    Event,
    InvalidName,
    InvalidTime,
    JobContext,
    JobState,
    MemoryStore,
    SendFailed,
    SQLiteStore,
    Store,
    SyncContext,
)
from a2core import slot_ms
from tests.asgi import provider as qstash_in_memory
from tests.asgi.works import START, STORES, Came, Work, store_maker
from tests.asgi.worlds import OFTEN, Tally, rounds, within


@pytest.fixture(params=STORES)
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    """What opens the same store each time, as another process does."""
    return store_maker(request.param, tmp_path)


# ── enqueue, later, at ───────────────────────────────────────────────────────────────────


async def test_an_enqueued_job_runs_once_and_has_an_id_of_its_own() -> None:
    came = Came()
    work = Work(came, name="came")
    async with work.a2.testing() as world:
        ids = [await work.job.enqueue(what) for what in "aab"]
        await world.advance("7d")
    assert 3 == len(set(ids))
    assert ["a", "a", "b"] == sorted(what for _, what in came.seen)


DAY = timedelta(days=1)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("call", "comes"),
    [
        pytest.param(lambda job: job.later("15m", "x"), 900, id="later"),
        pytest.param(lambda job: job.later(DAY, "x"), 86_400, id="later-timedelta"),
        pytest.param(lambda job: job.later("0s", "x"), 0, id="later-now"),
        pytest.param(lambda job: job.at(NOON, "x"), 43_200, id="at"),
        pytest.param(lambda job: job.at(NOON.astimezone(tz=None), "x"), 43_200, id="at-in-a-zone"),
        pytest.param(lambda job: job.at(START - DAY, "x"), 0, id="at-an-instant-gone-by"),
        pytest.param(lambda job: job.enqueue("x", delay="15m"), 900, id="delay"),
        pytest.param(lambda job: job.enqueue("x", at=NOON), 43_200, id="enqueue-at"),
        pytest.param(lambda job: job.enqueue("x", delay="1ms"), 0.001, id="a-millisecond"),
        pytest.param(lambda job: job.enqueue("x", delay="15m", dedupe_key="k"), 900, id="delay-with-a-key"),
        pytest.param(lambda job: job.later("400d", "x"), 34_560_000, id="in-a-year"),
    ],
)
async def test_a_job_comes_when_it_is_told_to(call: Callable[[Any], Any], comes: float) -> None:
    """After a delay or at an instant, neither early nor late, and once."""
    came = Came()
    work = Work(came, name="came")
    async with work.a2.testing() as world:
        came.now = lambda: world.now
        await call(work.job)
        await world.advance("500d")
    assert [(comes, "x")] == came.seen


async def test_jobs_come_in_the_order_of_their_times() -> None:
    """Not in that of their calls."""
    came = Came()
    work = Work(came, name="came")
    async with work.a2.testing() as world:
        came.now = lambda: world.now
        for what, delay in (("c", "3h"), ("a", "1h"), ("b", "2h")):
            await work.job.later(delay, what)
        await world.advance("1d")
    assert [(3_600, "a"), (7_200, "b"), (10_800, "c")] == came.seen


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({"delay": "1h", "at": NOON}, "expected delay= or at=, got both", id="both"),
        pytest.param({"at": NOON.replace(tzinfo=None)}, "add tzinfo=UTC", id="naive"),
        pytest.param({"delay": "soon"}, "expected a duration", id="text"),
        pytest.param({"delay": timedelta(seconds=-1)}, "from zero", id="negative"),
        pytest.param({"at": "noon"}, "expected an aware datetime", id="no-datetime"),
    ],
)
async def test_a_time_that_is_none_is_refused(options: dict[str, Any], message: str) -> None:
    """Nothing is enqueued then."""
    work = Work(Came(), name="came")
    async with work.a2.testing() as world:
        with pytest.raises(InvalidTime, match=message):
            await work.job.enqueue("x", **options)
        assert [] == await world.store.sessions()


@within(10)
async def test_what_was_enqueued_outlives_its_process(make_store: Callable[[], Store]) -> None:
    """Another one runs it, and at once what fell due while nothing ran."""
    seen = Tally()

    async def run(what: str) -> None:
        seen.add(what)

    async with (web := Work(run, a2=A2(store=make_store(), role="web"))).a2:
        await web.job.enqueue("now")
        await web.job.later("1ms", "later")
        await web.job.later("1d", "tomorrow")
    assert [] == seen.seen
    async with Work(run, a2=A2(store=make_store(), scheduler=OFTEN)).a2:
        await seen.until(2)
    assert ["later", "now"] == sorted(seen.seen)


async def test_a_job_may_be_enqueued_by_a_job_and_by_a_handler() -> None:
    """From async functions, and from a plain handler by way of its context."""
    a2 = A2(store=MemoryStore())
    came = Came()
    work = Work(came, a2=a2, name="came")
    orders = a2.contract("orders")
    placed, packed = orders.event("placed", str), orders.event("packed", str)

    @orders.on(placed)
    async def handle(event: Event[str], ctx: Context) -> None:
        await work.job.enqueue(event.payload)
        await ctx.append(packed(event.payload))

    @orders.on(packed)
    def handle_plainly(event: Event[str], ctx: SyncContext) -> None:
        ctx.run(work.job.enqueue, f"{event.payload} again")

    @a2.job()
    async def chain(x: int) -> None:
        await (chain.enqueue(x - 1) if x else work.job.enqueue("the end"))

    async with a2.testing() as world:
        await orders.session("s").append(placed("tea"))
        await chain.enqueue(5)
        await world.settle()
    assert ["tea", "tea again", "the end"] == sorted(what for _, what in came.seen)


# ── one for each key ─────────────────────────────────────────────────────────────────────


async def test_fifty_enqueues_of_a_key_at_a_time_are_one_job(make_store: Callable[[], Store]) -> None:
    """Each of them gets the same id, and it runs once."""
    came = Came()
    web = Work(came, a2=A2(store=make_store(), role="web"), name="came")
    ids: list[str] = []

    async def enqueue(index: int) -> None:
        ids.append(await web.job.enqueue(str(index), dedupe_key="k"))

    async with web.a2, anyio.create_task_group() as tasks:
        for index in range(50):
            tasks.start_soon(enqueue, index)
    assert (50, 1) == (len(ids), len(set(ids)))
    worker = Work(came, a2=A2(store=make_store()), name="came")
    await worker.a2.tick()
    await worker.a2.close()
    assert 1 == len(came.seen)


def test_enqueues_of_a_key_from_many_threads_are_one_job(tmp_path: Path) -> None:
    """Each thread with an A2 and a loop of its own, as processes have, on one database."""
    ids: list[str] = []
    ready = threading.Barrier(4)

    async def enqueue_some() -> None:
        web = Work(Came(), a2=A2(store=SQLiteStore(tmp_path / "a2.db"), role="web"), name="came")
        async with web.a2:
            ready.wait()
            for _ in range(10):
                ids.append(await web.job.enqueue("x", dedupe_key="k"))  # noqa: PERF401 - from four threads at a time

    threads = [threading.Thread(target=anyio.run, args=(enqueue_some,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (40, 1) == (len(ids), len(set(ids)))


async def test_a_key_is_taken_until_its_job_is_over() -> None:
    """While that is scheduled, queued, running and retrying, and for no longer: then it is free again."""
    ids: list[str] = []
    states: list[JobState] = []

    async def run(what: str, ctx: JobContext) -> None:
        await enqueue("running")
        if ctx.attempt == 1:
            raise ValueError(what)

    async def enqueue(what: str) -> None:
        ids.append(await work.job.enqueue(what, dedupe_key="k"))
        states.append(await work.state(ids[-1]))

    work = Work(run, backoff="1h")
    async with work.a2.testing() as world:
        ids.append(await work.job.enqueue("scheduled", dedupe_key="k", delay="1h"))
        await enqueue("scheduled")
        await world.advance("1h")
        await enqueue("retrying")
        await world.advance("1h")
        assert 1 == len(set(ids))
        await enqueue("queued")
        await enqueue("queued")
        assert (2, 1) == (len(set(ids)), len(set(ids[-2:])))
    assert [
        *(JobState.SCHEDULED, JobState.RUNNING, JobState.RETRYING, JobState.RUNNING),
        *(JobState.QUEUED, JobState.QUEUED),
    ] == states


@pytest.mark.parametrize("end", ["success", "cancelled", "cancelled-early", "failure", "lost"])
@pytest.mark.parametrize("key", [None, "customer"], ids=["plain", "with-a-concurrency-key"])
async def test_a_key_is_free_again_however_its_job_ended(end: str, key: str | None) -> None:
    seen: list[str] = []

    async def run(customer: str, what: str) -> None:
        seen.append(what)
        if what == "failure":
            raise ValueError(what)
        if what == "cancelled":
            await world.sleep("1h")

    work = Work(run, retries=0, key=key, keep="7d")
    async with work.a2.testing() as world:
        first = await work.job.enqueue("a", end, dedupe_key="k", delay="1m" if end == "cancelled-early" else "0s")
        if end == "lost":
            for _ in range(10):
                world.crash_after("claim")
        await world.settle()
        if end.startswith("cancelled"):
            assert await work.job.cancel(first)
        await world.advance("1h")
        assert (await work.state(first)).is_finished
        second = await work.job.enqueue("a", "again", dedupe_key="k")
        await world.settle()
        assert JobState.SUCCEEDED == await work.state(second)
        assert (await work.state(first)).is_finished
    assert first != second
    assert [end, "again"][end in {"cancelled-early", "lost"} :] == seen


async def test_other_keys_and_other_jobs_are_independent() -> None:
    """A key is one of its job."""
    came = Came()
    a2 = A2(store=MemoryStore())
    one, other = (Work(came, a2=a2, name=name) for name in ("one", "other"))
    async with a2.testing() as world:
        ids = [await work.job.enqueue(key, dedupe_key=key) for work in (one, other) for key in "abab"]
        await world.settle()
    assert 4 == len(set(ids)) == len(came.seen)


async def test_a_second_call_changes_nothing_about_the_first() -> None:
    """Neither its arguments nor its time."""
    came = Came()
    work = Work(came, name="came")
    async with work.a2.testing() as world:
        came.now = lambda: world.now
        first = await work.job.enqueue("first", dedupe_key="k", delay="1h")
        assert first == await work.job.enqueue("now", dedupe_key="k")
        assert first == await work.job.enqueue("later", dedupe_key="k", delay="2h")
        await world.advance("1d")
    assert [(3_600, "first")] == came.seen


@pytest.mark.parametrize("key", [None, "what"])
@pytest.mark.parametrize("dedupe_key", ["", "a\x00b", "\ud83d", "x" * 1_025, 5])
async def test_a_dedupe_key_that_is_no_name_is_refused(dedupe_key: Any, key: str | None) -> None:
    work = Work(Came(), name="came", key=key)
    async with work.a2.testing() as world:
        with pytest.raises(InvalidName, match=r"^dedupe_key: "):
            await work.job.enqueue("x", dedupe_key=dedupe_key)
        assert [] == await world.store.sessions()


# ── without a server, without a scheduler, and behind a provider ─────────────────────────


async def test_without_a_server_a_job_has_run_when_enqueue_returns(make_store: Callable[[], Store]) -> None:
    """As on a host that runs no lifespan. What is for later waits for a process that looks, such as a tick."""
    came = Came()
    work = Work(came, a2=A2(store=make_store()), name="came")
    job_id = await work.job.enqueue("now")
    assert ([(0, "now")], JobState.SUCCEEDED) == (came.seen, await work.state(job_id))
    later = await work.job.later("1h", "later")
    assert JobState.SCHEDULED == await work.state(later)
    await work.a2.tick(datetime.now(UTC) + timedelta(hours=1))
    assert [(0, "now"), (0, "later")] == came.seen
    await work.a2.close()


@pytest.mark.parametrize("where", ["nowhere", "server", "world"])
async def test_without_a_scheduler_a_job_is_run_by_its_enqueue(where: str) -> None:
    """Which is a top-level append: it wakes its session, and time alone wakes none."""
    seen = Tally()

    async def run(what: str) -> None:
        seen.add(what)

    work = Work(run, a2=A2(store=MemoryStore(), scheduler=None))
    match where:
        case "nowhere":
            await work.job.enqueue("now")
            await work.job.later("1ms", "later")
        case "server":
            async with work.a2:
                await work.job.enqueue("now")
                await work.job.later("1ms", "later")
                await seen.until(1)
                await rounds()
        case _:
            async with work.a2.testing() as world:
                await work.job.enqueue("now")
                await work.job.later("1m", "later")
                await world.advance("1d")
    assert ["now"] == seen.seen


@within(10)
async def test_a_web_process_only_writes_down_and_a_worker_runs_it(make_store: Callable[[], Store]) -> None:
    """The web process tells the status, and cancels, as any other."""
    seen = Tally()

    async def run(what: str) -> str:
        seen.add(what)
        return what

    web, worker = (
        Work(run, a2=A2(store=make_store(), scheduler=scheduler, role=role))
        for scheduler, role in ((EmbeddedScheduler(), "web"), (OFTEN, "worker"))
    )
    async with web.a2:
        job_id, other = await web.job.enqueue("now"), await web.job.later("1d", "never")
        await rounds()
        assert ([], JobState.QUEUED) == (seen.seen, await web.state(job_id))
        assert await web.job.cancel(other)
        async with worker.a2:
            assert "now" == (await web.until(job_id, JobState.SUCCEEDED)).result
    assert ["now"] == seen.seen


async def test_behind_a_provider_an_enqueue_publishes_a_wake_up_and_its_delivery_runs_the_job() -> None:
    """At once, or when it is due; nothing runs before the provider calls."""
    clock, carrier, came = qstash_in_memory.Frozen(), qstash_in_memory.Provider(), Came()
    a2 = A2(store=MemoryStore(clock=clock), scheduler=qstash_in_memory.qstash(carrier, clock))
    work, app = Work(came, a2=a2, name="came"), qstash_in_memory.served(a2)
    now, later = await work.job.enqueue("now"), await work.job.later("1h", "later")
    assert [] == came.seen
    soon, due = (task["dueAt"] for task in carrier.tasks)
    assert soon < clock.at_ms + 60_000
    assert slot_ms(0, clock.at_ms + 3_600_000) == due
    await carrier.deliver(app, carrier.take())
    assert [JobState.SUCCEEDED, JobState.SCHEDULED] == [await work.state(job_id) for job_id in (now, later)]
    clock.at_ms += 3_601_000
    await carrier.deliver(app, carrier.take())
    assert JobState.SUCCEEDED == await work.state(later)
    assert ["now", "later"] == [what for _, what in came.seen]
    await a2.close()


@pytest.mark.parametrize("delay", ["0s", "1h"])
async def test_where_the_provider_does_not_take_it_the_caller_is_told_and_may_call_again(delay: str) -> None:
    """With the same dedupe key that is the same job, and its wake-up is published for the time that it has."""
    clock, carrier, came = qstash_in_memory.Frozen(), qstash_in_memory.Provider(), Came()
    a2 = A2(store=MemoryStore(clock=clock), scheduler=qstash_in_memory.qstash(carrier, clock))
    work, app = Work(came, a2=a2, name="came"), qstash_in_memory.served(a2)
    carrier.replies = [qstash_in_memory.Reply(401, "no")]
    began_ms = clock.at_ms
    with pytest.raises(SendFailed):
        await work.job.enqueue("x", dedupe_key="k", delay=delay)
    assert {} == carrier.held
    carrier.replies = []
    clock.at_ms += 1_000
    job_id = await work.job.enqueue("x", dedupe_key="k", delay=delay)
    [task] = carrier.tasks
    due_ms = began_ms + 3_600_000 if delay == "1h" else clock.at_ms
    assert slot_ms(clock.at_ms, due_ms) == task["dueAt"]
    clock.at_ms = due_ms + 1_000
    await carrier.deliver(app, carrier.take())
    assert JobState.SUCCEEDED == await work.state(job_id)
    assert 1 == len(came.seen)
    await a2.close()


async def test_behind_a_provider_a_job_may_be_due_later_than_that_carries_a_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each wake-up that comes too early is followed by the next one, until the job has run."""
    clock, carrier, came = qstash_in_memory.Frozen(), qstash_in_memory.Provider(), Came()
    monkeypatch.setattr("a2asgi.app.SystemClock", lambda: clock)
    a2 = A2(store=MemoryStore(clock=clock), scheduler=qstash_in_memory.qstash(carrier, clock))
    work, app = Work(came, a2=a2, name="came"), qstash_in_memory.served(a2)
    job_id = await work.job.later("20d", "x")
    deliveries = 0
    while carrier.held and deliveries < 9:
        [task] = carrier.tasks
        clock.at_ms = max(clock.at_ms, task["dueAt"])
        await carrier.deliver(app, carrier.take())
        deliveries += 1
    assert (3, JobState.SUCCEEDED) == (deliveries, await work.state(job_id))
    assert ["x"] == [what for _, what in came.seen]
    await a2.close()


async def test_behind_a_provider_such_a_job_does_not_wait_for_the_longer_retry_of_another() -> None:
    """They share a key. Its first wake-up goes a week; the next one is for its day, not for that of the retry."""
    clock, carrier = qstash_in_memory.Frozen(), qstash_in_memory.Provider()
    a2 = A2(store=MemoryStore(clock=clock), scheduler=qstash_in_memory.qstash(carrier, clock))
    app, day_ms = qstash_in_memory.served(a2), 86_400_000

    @a2.job(key="who", backoff="5d")
    async def fails(who: str) -> None:
        raise ValueError(who)

    start_ms = clock.at_ms
    await fails.later("8d", "ann")
    clock.at_ms = start_ms + 6 * day_ms
    await fails.enqueue("ann")
    await carrier.deliver(app, carrier.take(1))
    clock.at_ms = start_ms + 7 * day_ms
    await carrier.deliver(app, carrier.take())
    assert [slot_ms(0, start_ms + 8 * day_ms)] == [task["dueAt"] for task in carrier.tasks]
    await a2.close()
