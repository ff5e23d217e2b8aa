"""Jobs from outside: where one stands, how far it is, calling it off, and how long it is remembered."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from a2asgi import (
    A2,
    AttemptEnded,
    DrainTimings,
    FailedJob,
    JobContext,
    JobState,
    JobStatus,
    MemoryStore,
    NoDeadLetter,
    Progress,
    Signal,
    SignalName,
    SQLiteStore,
    SyncJobContext,
)
from tests.asgi.support import until
from tests.asgi.works import START, STORES, Came, Work, after, store_maker
from tests.asgi.worlds import NEVER, OFTEN, rounds, within

CLAIM_S = 30
"""How long a claim lives, unless it is renewed."""

QUICK = DrainTimings(ttl_ms=10_000, heartbeat_ms=50, grace_ms=50)
"""For where one process learns at its heartbeat what another one did."""


# ── status ───────────────────────────────────────────────────────────────────────────────


async def test_a_status_tells_where_a_job_stands_and_when_it_is_due() -> None:
    """From its call to its end, through every state that it can be in."""

    async def run(ctx: JobContext) -> str:
        await world.sleep("5s")
        if ctx.attempt == 1:
            raise ValueError("once")
        return "done"

    work = Work(run, name="run", backoff="10s")
    async with work.a2.testing() as world:
        job_id = await work.job.later("1m")
        scheduled: JobStatus[str] = JobStatus(
            job_id, "run", JobState.SCHEDULED, 0, None, None, None, None, after(60), None
        )
        assert scheduled == await work.status(job_id)
        await world.advance("1m")
        running = replace(
            scheduled, state=JobState.RUNNING, attempt=1, enqueued_at=after(60), due_at=after(60 + CLAIM_S)
        )
        assert running == await work.status(job_id)
        await world.advance("5s")
        assert replace(running, state=JobState.RETRYING, due_at=after(75)) == await work.status(job_id)
        await world.advance("10s")
        assert replace(running, attempt=2, due_at=after(75 + CLAIM_S)) == await work.status(job_id)
        await world.advance("5s")
        assert replace(
            running, state=JobState.SUCCEEDED, attempt=2, result="done", due_at=None, finished_at=after(80)
        ) == await work.status(job_id)


async def test_a_job_that_waits_for_its_turn_is_queued() -> None:
    """From its call on, in a key whose turn another one has, and without a free place."""

    async def run(customer: str) -> None:
        await world.sleep("1m")

    work = Work(run, key="customer")
    async with work.a2.testing() as world:
        ids = [await work.job.enqueue("a") for _ in range(3)]
        assert [JobState.QUEUED] * 3 == [await work.state(job_id) for job_id in ids]
        await world.settle()
        assert [JobState.RUNNING, *[JobState.QUEUED] * 2] == [await work.state(job_id) for job_id in ids]
        await world.advance("1m")
        assert [JobState.SUCCEEDED, JobState.RUNNING, JobState.QUEUED] == [await work.state(job_id) for job_id in ids]
        queued = await work.status(ids[2])
        assert (0, START, START, None) == (queued.attempt, queued.enqueued_at, queued.due_at, queued.finished_at)


async def test_a_job_whose_process_died_is_running_until_its_claim_ends_and_retrying_then() -> None:
    work = Work(Came(), name="came")
    async with work.a2.testing() as world:
        job_id = await work.job.enqueue()
        world.crash_after("claim")
        await world.settle()
        assert (JobState.RUNNING, 1) == ((status := await work.status(job_id)).state, status.attempt)
        world.clock.move_to(world.clock.now_ms() + 30_000)
        assert (JobState.RETRYING, 1) == ((status := await work.status(job_id)).state, status.attempt)
        await world.settle()
        assert (JobState.SUCCEEDED, 2) == ((status := await work.status(job_id)).state, status.attempt)


@pytest.mark.parametrize("job_id", ["", "unknown", "x" * 2_000, "a\x00b", "\ud83d", "run"])
@pytest.mark.parametrize("kind", STORES)
async def test_an_unknown_id_has_no_status_and_nothing_to_cancel(job_id: str, kind: str, tmp_path: Path) -> None:
    """Whatever it is: it may have come from a path."""
    work = Work(Came(), a2=A2(store=store_maker(kind, tmp_path)(), scheduler=NEVER), name="came")
    async with work.a2:
        await work.job.enqueue("x", dedupe_key="run")
        assert (None, False) == (await work.job.status(job_id), await work.job.cancel(job_id))


async def test_an_id_is_one_of_its_job() -> None:
    """Another job does not know it."""
    a2 = A2(store=MemoryStore())
    one, other = (Work(Came(), a2=a2, name=name) for name in ("one", "other"))
    async with a2.testing():
        job_id = await one.job.enqueue("x", dedupe_key="k")
        await other.job.enqueue("x", dedupe_key="k")
        assert (None, False) == (await other.job.status(job_id), await other.job.cancel(job_id))
        assert JobState.QUEUED == await one.state(job_id)


async def test_a_dead_job_is_among_the_dead_letters_of_the_app() -> None:
    """With its job's name, its own id, and its error."""

    async def run() -> None:
        raise ValueError("broken")

    work = Work(run, retries=0)
    async with work.a2.testing() as world:
        job_id = await work.job.enqueue()
        await world.settle()
        [letter] = await work.a2.dead_letters("job:run")
    assert ("job:run", job_id, "ValueError", "broken") == (
        letter.contract,
        letter.event_id,
        letter.error,
        letter.message,
    )


# ── cancel ───────────────────────────────────────────────────────────────────────────────


class Stoppable:
    """A job's function that waits for an hour, or for a retry, and notes what becomes of it."""

    def __init__(self) -> None:
        self.sleep: Callable[[str], Any]
        self.seen: list[str] = []

    async def __call__(self, what: str = "wait") -> None:
        """Wait or fail."""
        self.seen.append("began")
        if what == "fail":
            raise ValueError(what)
        try:
            await self.sleep("1h")
        except anyio.get_cancelled_exc_class():
            self.seen.append("stopped")
            raise
        self.seen.append("ended")


@pytest.mark.parametrize(
    ("state", "seen"),
    [
        (JobState.SCHEDULED, []),
        (JobState.QUEUED, []),
        (JobState.RUNNING, ["began", "stopped"]),
        (JobState.RETRYING, ["began"]),
    ],
)
@pytest.mark.parametrize("dedupe_key", [None, "k"])
async def test_an_unfinished_job_can_be_called_off(state: JobState, seen: list[str], dedupe_key: str | None) -> None:
    """It does not begin, is stopped at once where it runs, and is not tried again; `status` says why."""
    failed: list[object] = []
    function = Stoppable()
    work = Work(function, name="wait", on_failed=failed.append, backoff="1h", keep="30d")
    async with work.a2.testing() as world:
        function.sleep = world.sleep
        job_id = await work.job.enqueue(
            "fail" if state is JobState.RETRYING else "wait",
            delay="1h" if state is JobState.SCHEDULED else "0s",
            **({} if dedupe_key is None else {"dedupe_key": dedupe_key}),
        )
        if state is not JobState.QUEUED:
            await world.settle()
        assert state == await work.state(job_id)
        assert await work.job.cancel(job_id, "nobody wants it")
        cancelled = await work.status(job_id)
        assert (JobState.CANCELLED, "nobody wants it", None, None) == (
            cancelled.state,
            cancelled.error,
            cancelled.result,
            cancelled.due_at,
        )
        await world.settle()
        assert seen == function.seen
        await world.advance("7d")
        assert cancelled == await work.status(job_id)
        assert not await work.job.cancel(job_id)
        assert ([], []) == (failed, world.dead_letters)
    assert seen == function.seen


async def test_a_finished_job_cannot_be_called_off() -> None:
    """It stays what it is."""

    async def run(what: str) -> str:
        if what == "fail":
            raise ValueError(what)
        return what

    work = Work(run, retries=0)
    async with work.a2.testing() as world:
        ids = [await work.job.enqueue(what) for what in ("succeed", "fail")]
        await world.settle()
        before = [await work.status(job_id) for job_id in ids]
        assert [False, False] == [await work.job.cancel(job_id) for job_id in ids]
        assert before == [await work.status(job_id) for job_id in ids]
        assert [JobState.SUCCEEDED, JobState.FAILED] == [status.state for status in before]


async def test_a_job_that_is_called_off_while_it_runs_gives_its_turn_to_the_next_at_once() -> None:
    seen: list[tuple[str, float]] = []

    async def run(customer: str, what: str) -> None:
        seen.append((what, (world.now - START).total_seconds()))
        await world.sleep("1h")

    work = Work(run, key="customer")
    async with work.a2.testing() as world:
        first, second = [await work.job.enqueue("a", what) for what in ("first", "second")]
        await world.advance("1m")
        assert await work.job.cancel(first)
        await world.settle()
        assert JobState.RUNNING == await work.state(second)
    assert [("first", 0), ("second", 60)] == seen


async def test_what_a_called_off_job_does_on_its_way_out_is_discarded() -> None:
    """Its result, or an error of its clean-up: it stays cancelled."""

    async def run(how: str) -> str:
        try:
            await world.sleep("1h")
        except anyio.get_cancelled_exc_class():
            if how == "raises":
                raise ValueError(how) from None
            if how == "goes on":
                raise
        return "a result"

    work = Work(run)
    async with work.a2.testing() as world:
        ids = [await work.job.enqueue(how) for how in ("raises", "goes on")]
        await world.settle()
        for job_id in ids:
            assert await work.job.cancel(job_id)
        await world.advance("1h")
        for job_id in ids:
            status = await work.status(job_id)
            assert (JobState.CANCELLED, "cancelled", None) == (status.state, status.error, status.result)
        assert [] == world.dead_letters


@within(10)
async def test_a_plain_function_that_is_called_off_is_told_so_and_what_it_answers_is_discarded() -> None:
    """A thread cannot be stopped: it learns of it when it notes its progress, which is not kept any more."""
    started, let_go, over = threading.Event(), threading.Event(), threading.Event()
    told: list[str] = []

    def run(ctx: SyncJobContext) -> str:
        started.set()
        let_go.wait()
        try:
            ctx.progress(1)
        except AttemptEnded as error:
            told.append(error.code)
        over.set()
        return "late"

    work = Work(run, a2=A2(store=MemoryStore(), scheduler=NEVER))
    async with work.a2:
        job_id = await work.job.enqueue()
        await until(started)
        assert await work.job.cancel(job_id)
        let_go.set()
        await until(over)
        await rounds()
        status = await work.status(job_id)
        assert (JobState.CANCELLED, None, None) == (status.state, status.result, status.progress)
    assert ["ATTEMPT_ENDED"] == told


@within(20)
@pytest.mark.parametrize("learns", ["at-its-heartbeat", "at-its-next-progress"])
async def test_a_job_that_another_process_runs_is_stopped_too(learns: str, tmp_path: Path) -> None:
    """That one learns of it with the next write about its claim."""
    started, stopped, look = anyio.Event(), anyio.Event(), anyio.Event()

    async def run(ctx: JobContext) -> None:
        started.set()
        try:
            await look.wait()
            await ctx.progress(1)
            await anyio.sleep_forever()
        finally:
            stopped.set()

    timings = QUICK if learns == "at-its-heartbeat" else DrainTimings()
    runner, caller = (
        Work(run, a2=A2(store=SQLiteStore(tmp_path / "a2.db"), scheduler=OFTEN, timings=timings, role=role))
        for role in ("all", "web")
    )
    async with runner.a2, caller.a2:
        job_id = await caller.job.enqueue()
        await started.wait()
        assert JobState.RUNNING == await caller.state(job_id)
        assert await caller.job.cancel(job_id)
        if learns == "at-its-next-progress":
            look.set()
        await stopped.wait()
        assert JobState.CANCELLED == await caller.state(job_id) == await runner.state(job_id)


# ── given up, and taken up again ─────────────────────────────────────────────────────────


class Mended:
    """A job's function that fails until it is mended."""

    def __init__(self) -> None:
        self.is_mended = False

    async def __call__(self) -> str:
        """Fail or not."""
        if not self.is_mended:
            raise ValueError("broken")
        return "mended"


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_job_that_was_given_up_can_be_run_again(key: str | None) -> None:
    """With all its retries; it is told of again if it fails again, and is forgotten as any other if it succeeds."""
    function, failed = Mended(), list[FailedJob]()
    work = Work(function, name="mended", retries=1, on_failed=failed.append, keep="1h")
    async with work.a2.testing() as world:
        job_id = await (work.job.enqueue() if key is None else work.job.enqueue(dedupe_key=key))
        await world.advance("1m")
        await work.job.redrive(job_id)
        assert JobState.RETRYING == await work.state(job_id)
        await world.advance("1m")
        status = await work.status(job_id)
        assert (JobState.FAILED, 4) == (status.state, status.attempt)
        function.is_mended = True
        await work.job.redrive(job_id)
        await world.advance("1m")
        status = await work.status(job_id)
        assert (JobState.SUCCEEDED, "mended", 5, None) == (status.state, status.result, status.attempt, status.error)
        assert [] == world.dead_letters
        await world.advance("1h")
        assert (None, []) == (await work.job.status(job_id), await world.store.sessions())
    assert [(job_id, 2), (job_id, 4)] == [(one.id, one.attempts) for one in failed]


async def test_a_job_that_was_given_up_can_be_put_aside_for_good() -> None:
    """It ends as cancelled, for a reason, and is forgotten after its retention."""
    work = Work(Mended(), name="mended", retries=0, keep="1h")
    async with work.a2.testing() as world:
        job_id = await work.job.enqueue()
        await world.settle()
        await work.job.resolve(job_id, "nobody needs it")
        status = await work.status(job_id)
        assert (JobState.CANCELLED, "nobody needs it") == (status.state, status.error)
        assert [] == world.dead_letters
        await world.advance("1h")
        assert (None, []) == (await work.job.status(job_id), await world.store.sessions())


@pytest.mark.parametrize("job_id", ["", "unknown", "a\x00b", "\ud83d", "waiting", "succeeded"])
@pytest.mark.parametrize("verb", ["redrive", "resolve"])
async def test_what_was_not_given_up_can_be_neither(job_id: str, verb: str) -> None:
    """An unknown id, one that is none, and a job that waits or is over."""
    work = Work(Came(), name="came")
    async with work.a2.testing() as world:
        if job_id == "succeeded":
            job_id = await work.job.enqueue()
            await world.settle()
        elif job_id == "waiting":
            job_id = await work.job.enqueue()
        with pytest.raises(NoDeadLetter):
            await (work.job.redrive(job_id) if verb == "redrive" else work.job.resolve(job_id, "why"))


# ── progress ─────────────────────────────────────────────────────────────────────────────


async def test_progress_can_be_read_while_a_job_runs() -> None:
    """As far as it is, with its total and a note, by whoever asks for the status."""

    async def run(ctx: JobContext) -> None:
        assert ctx.last_progress is None
        for done in range(1, 4):
            await ctx.progress(done, 3, f"line {done}")
            assert Progress(done, 3, f"line {done}") == ctx.last_progress
            await world.sleep("1m")

    work = Work(run)
    async with work.a2.testing() as world:
        job_id = await work.job.enqueue()
        assert None is (await work.status(job_id)).progress
        for done in range(1, 4):
            await world.advance("1m" if done > 1 else "0s")
            progress = (await work.status(job_id)).progress
            assert Progress(done, 3, f"line {done}") == progress
            assert done / 3 == progress.fraction
        await world.advance("1m")
        status = await work.status(job_id)
        assert (JobState.SUCCEEDED, Progress(3, 3, "line 3")) == (status.state, status.progress)


@within(10)
async def test_another_process_reads_the_progress_of_a_plain_function(tmp_path: Path) -> None:
    """It is stored when `ctx.progress` returns, which a thread may call too."""
    noted, let_go = threading.Event(), threading.Event()

    def run(ctx: SyncJobContext) -> None:
        ctx.progress(0.5, note="half way")
        noted.set()
        let_go.wait()

    runner, asker = (
        Work(run, a2=A2(store=SQLiteStore(tmp_path / "a2.db"), scheduler=OFTEN, role=role)) for role in ("all", "web")
    )
    async with runner.a2, asker.a2:
        job_id = await asker.job.enqueue()
        await until(noted)
        status = await asker.status(job_id)
        assert (JobState.RUNNING, Progress(0.5, None, "half way")) == (status.state, status.progress)
        let_go.set()
        status = await asker.until(job_id, JobState.SUCCEEDED)
        assert Progress(0.5, None, "half way") == status.progress


@pytest.mark.parametrize("ends", ["error", "crash"])
async def test_a_later_attempt_goes_on_from_the_last_progress(ends: str) -> None:
    """It learns how far the one before it came, also where that one's process died."""
    seen: list[Progress | None] = []

    async def run(ctx: JobContext) -> None:
        seen.append(ctx.last_progress)
        done = 0 if ctx.last_progress is None else ctx.last_progress.done
        await ctx.progress(done + 1, 3)
        if ends == "error" and done < 2:
            raise ValueError(done)
        await world.sleep("1s")

    work = Work(run)
    bait = Work(Came(), a2=work.a2, name="bait")
    async with work.a2.testing() as world:
        job_id = await work.job.enqueue()
        for _ in range(2 if ends == "crash" else 0):
            await world.settle()
            world.crash_after("claim")
            await bait.job.enqueue()
            await world.settle()
            await world.advance("30s")
        await world.advance("1h")
        status = await work.status(job_id)
        assert (JobState.SUCCEEDED, Progress(3, 3)) == (status.state, status.progress)
    assert [None, Progress(1, 3), Progress(2, 3)] == seen


async def test_the_progress_of_a_job_that_failed_tells_how_far_it_came() -> None:
    async def run(ctx: JobContext) -> None:
        await ctx.progress(2, 5)
        raise ValueError("stuck")

    work = Work(run, retries=1)
    async with work.a2.testing() as world:
        job_id = await work.job.enqueue()
        await world.settle()
        assert Progress(2, 5) == (await work.status(job_id)).progress
        await world.advance("1h")
        status = await work.status(job_id)
        assert (JobState.FAILED, Progress(2, 5)) == (status.state, status.progress)


@pytest.mark.parametrize(
    ("done", "total"),
    [
        (-1, None),
        (float("nan"), None),
        (float("inf"), None),
        ("1", None),
        (None, 5),
        (1, -1),
        (1, float("nan")),
        (1, "2"),
    ],
    ids=str,
)
async def test_progress_that_is_no_number_is_refused(done: Any, total: Any) -> None:
    """A ValueError where it is noted, and what was noted before it stands."""
    errors: list[str] = []

    async def run(ctx: JobContext) -> None:
        await ctx.progress(1, 2)
        try:
            await ctx.progress(done, total)
        except ValueError as error:
            errors.append(str(error))
        assert Progress(1, 2) == ctx.last_progress

    work = Work(run, retries=0)
    async with work.a2.testing() as world:
        job_id = await work.job.enqueue()
        await world.settle()
        status = await work.status(job_id)
        assert (JobState.SUCCEEDED, Progress(1, 2)) == (status.state, status.progress)
    name, value = ("total", total) if done == 1 else ("done", done)
    assert [f"progress: expected {name} to be a number, zero or more, got {value!r}"] == errors


@pytest.mark.parametrize(
    ("progress", "fraction"),
    [(Progress(1), None), (Progress(0, 0), None), (Progress(1, 4), 0.25), (Progress(5, 4), 1.0), (Progress(0, 4), 0.0)],
)
def test_a_fraction_is_from_zero_to_one(progress: Progress, fraction: float | None) -> None:
    assert fraction == progress.fraction


async def test_progress_comes_back_as_it_was_noted() -> None:
    """A count stays the integer that it is, however great, and a note is one that every store can keep."""
    seen: list[Progress | None] = []

    async def run(ctx: JobContext) -> None:
        await ctx.progress(2**60 + 1, 2**61, "half a \ud83d")
        seen.append(ctx.last_progress)

    work = Work(run)
    async with work.a2.testing() as world:
        job_id = await work.job.enqueue()
        await world.settle()
        seen.append((await work.status(job_id)).progress)
    assert [Progress(2**60 + 1, 2**61, "half a \ufffd")] * 2 == seen


# ── retention ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "options", [{}, {"dedupe_key": "k"}, {"delay": "1s"}], ids=["plain", "with-a-key", "with-a-delay"]
)
@pytest.mark.parametrize("key", [None, "what"], ids=["", "in-a-concurrency-key"])
@pytest.mark.parametrize("end", ["success", "cancelled"])
async def test_a_job_that_is_over_is_forgotten_after_its_retention(
    options: dict[str, Any], key: str | None, end: str
) -> None:
    """Nothing is left of it, nor of its session."""

    async def run(what: str) -> str:
        if what == "cancelled":
            await world.sleep("1h")
        return what

    work = Work(run, key=key, keep="2h")
    async with work.a2.testing() as world:
        job_id = await work.job.enqueue(end, **options)
        await world.advance("1s")
        if end == "cancelled":
            await work.job.cancel(job_id)
        await world.advance("1h")
        assert (await work.state(job_id)).is_finished
        await world.advance("1h")
        assert None is await work.job.status(job_id)
        assert [] == await world.store.sessions()


async def test_a_job_is_kept_for_a_day_unless_it_says_otherwise() -> None:
    job = (a2 := A2(store=MemoryStore())).job(name="came")(Came())
    async with a2.testing() as world:
        job_id = await job.enqueue()
        await world.advance("23h")
        assert None is not await job.status(job_id)
        await world.advance("1h")
        assert None is await job.status(job_id)


async def test_a_job_that_failed_is_never_forgotten() -> None:
    """Nor is it a reason to keep others of its session."""

    async def run(customer: str, what: str) -> None:
        if what == "broken":
            raise ValueError(what)

    work = Work(run, key="customer", retries=0, keep="1h")
    async with work.a2.testing() as world:
        sound, broken = [await work.job.enqueue("a", what) for what in ("sound", "broken")]
        await world.advance("400d")
        assert (None, JobState.FAILED) == (await work.job.status(sound), await work.state(broken))


async def test_the_runs_of_one_key_are_forgotten_one_by_one() -> None:
    """Each when its own time has come."""
    work = Work(Came(), name="came", keep="1h")
    async with work.a2.testing() as world:
        first = await work.job.enqueue("x", dedupe_key="k")
        await world.advance("30m")
        second = await work.job.enqueue("x", dedupe_key="k")
        await world.advance("30m")
        assert (None, JobState.SUCCEEDED) == (await work.job.status(first), await work.state(second))
        await world.advance("30m")
        third = await work.job.enqueue("x", dedupe_key="k")
        await world.settle()
        assert (None, JobState.SUCCEEDED) == (await work.job.status(second), await work.state(third))


async def test_telemetry_hears_of_a_cancelled_job_and_why() -> None:
    signals: list[Signal] = []
    a2 = A2(store=MemoryStore(), telemetry=signals.append)
    job = a2.job(name="came")(Came())
    async with a2.testing():
        job_id = await job.later("1h")
        assert await job.cancel(job_id, "nobody needs it")
    assert [(SignalName.CANCELLED, job_id, "nobody needs it")] == [
        (signal.name, signal.event_id, signal.detail) for signal in signals
    ]


async def test_a_plain_job_calls_async_functions_on_the_loop() -> None:
    """One job can enqueue another, whichever kind each is."""
    a2 = A2(store=MemoryStore())
    came = a2.job(name="came")(Came())

    @a2.job()
    def relay(ctx: SyncJobContext) -> str:
        return ctx.run(came.enqueue)

    async with a2.testing() as world:
        job_id = await relay.enqueue()
        await world.settle()
        status = await relay.status(job_id)
        assert status is not None
        relayed = await came.status(str(status.result))
    assert relayed is not None
    assert JobState.SUCCEEDED == relayed.state
