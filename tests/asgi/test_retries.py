"""Retries of jobs: when an attempt comes again, how it is ended in time, and what is told when it is given up."""

import logging
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

import pytest

from a2asgi import (
    A2,
    Cancel,
    Exponential,
    Fail,
    FailedJob,
    JobContext,
    JobState,
    JobStatus,
    MemoryStore,
    Snooze,
    SQLiteStore,
    SyncJobContext,
)
from a2asgi.retries import BackoffOption
from a2asgi.testing import World
from tests.asgi.support import until
from tests.asgi.works import START, Work, after
from tests.asgi.worlds import OFTEN, Tally, within


class Flaky:
    """A job's function that fails so many times, and notes when its attempts came, in seconds since the first."""

    def __init__(self, failures: float = inf) -> None:
        self.failures = failures
        self.world: World
        self.came: list[float] = []

    async def __call__(self, ctx: JobContext) -> str:
        """Fail or not."""
        self.came.append((self.world.now - START).total_seconds())
        if ctx.attempt <= self.failures:
            raise ValueError(f"failure {ctx.attempt}")
        return f"at attempt {ctx.attempt}"

    @property
    def waits(self) -> list[float]:
        """How long each attempt came after the one before it."""
        return [round(later - sooner, 3) for sooner, later in pairwise(self.came)]


async def after_a_week(flaky: Flaky, **options: Any) -> JobStatus[Any]:
    """Enqueue a job of this function, and let a week pass."""
    work = Work(flaky, name="flaky", keep="30d", **options)
    async with work.a2.testing() as world:
        flaky.world = world
        job_id = await work.job.enqueue()
        await world.advance("7d")
        return await work.status(job_id)


# ── attempts and waits ───────────────────────────────────────────────────────────────────


async def test_a_job_is_tried_four_times() -> None:
    """Three retries after the first attempt; then it is a dead letter, with the last error and when that was."""
    status = await after_a_week(flaky := Flaky(), backoff="1m")
    assert [0, 60, 120, 180] == flaky.came
    assert (JobState.FAILED, 4, "ValueError: failure 4", after(180)) == (
        status.state,
        status.attempt,
        status.error,
        status.finished_at,
    )


@pytest.mark.parametrize("retries", [0, 1, 5])
async def test_a_job_has_as_many_retries_as_it_says(retries: int) -> None:
    assert (JobState.FAILED, retries + 1) == (
        (status := await after_a_week(Flaky(), retries=retries)).state,
        status.attempt,
    )


@pytest.mark.parametrize("failures", [0, 1, 3])
async def test_an_attempt_that_succeeds_is_the_last(failures: int) -> None:
    status = await after_a_week(flaky := Flaky(failures))
    assert [*range(failures + 1)] == flaky.came
    assert (JobState.SUCCEEDED, f"at attempt {failures + 1}", failures + 1, None) == (
        status.state,
        status.result,
        status.attempt,
        status.error,
    )


@pytest.mark.parametrize(
    ("backoff", "came"),
    [
        pytest.param("10s", [0, 10, 20, 30], id="constant"),
        pytest.param(timedelta(milliseconds=1_500), [0, 1.5, 3, 4.5], id="timedelta"),
        pytest.param("0s", [0, 0, 0, 0], id="at-once"),
        pytest.param(Exponential("10s", jitter=0), [0, 10, 30, 70], id="doubling"),
        pytest.param(Exponential("10s", factor=3, cap="20s", jitter=0), [0, 10, 30, 50], id="capped"),
        pytest.param(Exponential("1h", jitter=0), [0, 3_600, 7_200, 10_800], id="longer-than-the-usual-cap"),
        pytest.param(lambda failures: f"{failures}m", [0, 60, 180, 360], id="function"),
        pytest.param(lambda failures: timedelta(days=failures), [0, 86_400, 259_200, 518_400], id="function-timedelta"),
    ],
)
async def test_retries_come_after_the_backoff(backoff: BackoffOption, came: list[float]) -> None:
    """A constant, a growing wait, or what a function says."""
    await after_a_week(flaky := Flaky(), backoff=backoff)
    assert came == flaky.came


async def test_the_usual_backoff_doubles_from_a_second_and_is_spread() -> None:
    """±20 %, so that jobs that failed together do not come back together."""
    waits: list[list[float]] = []
    for _ in range(20):
        work = Work(flaky := Flaky(), name="flaky", backoff=Exponential())
        async with work.a2.testing() as world:
            flaky.world = world
            await work.job.enqueue()
            await world.advance("1h")
        waits.append(flaky.waits)
    for index, usual in enumerate([1, 2, 4]):
        seen = [wait[index] for wait in waits]
        assert usual * 0.8 <= min(seen) <= max(seen) <= usual * 1.2
        assert 5 < len(set(seen))


async def test_a_backoff_function_is_asked_after_each_failure_that_is_followed_by_a_retry() -> None:
    """With the number of failures so far, from 1; the last one may be asked about too, and is not waited for."""
    asked: list[int] = []

    def backoff(failures: int) -> str:
        asked.append(failures)
        return "1s"

    await after_a_week(Flaky(), backoff=backoff)
    assert [1, 2, 3] == asked[:3]


def raises(failures: int) -> str:
    """A backoff with a bug."""
    raise ZeroDivisionError(failures)


@pytest.mark.parametrize(
    "backoff",
    [
        raises,
        lambda _: None,
        lambda _: "soon",
        lambda _: -1,
        lambda _: timedelta(seconds=-1),
        lambda _: timedelta.max,
    ],
    ids=["raises", "none", "text", "number", "negative", "endless"],
)
async def test_a_backoff_function_that_fails_loses_no_job(
    backoff: Callable[[int], Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The usual backoff stands in for it, and each failure is logged as an error."""
    status = await after_a_week(flaky := Flaky(3), backoff=backoff)
    assert JobState.SUCCEEDED == status.state
    for wait, usual in zip(flaky.waits, [1, 2, 4], strict=True):
        assert usual * 0.8 <= wait <= usual * 1.2
    logged = [record for record in caplog.records if record.name == "a2asgi.retries"]
    assert [logging.ERROR] * 3 == [record.levelno for record in logged]
    assert "asked after 1 failures" in logged[0].getMessage()


# ── time-outs ────────────────────────────────────────────────────────────────────────────


async def test_a_timeout_cancels_the_attempt_and_counts_as_a_failure() -> None:
    """The function sees a cancellation where it waits, and its retry comes as after any error."""
    ended: list[float] = []

    async def linger(ctx: JobContext) -> str:
        try:
            if ctx.attempt < 3:
                await world.sleep("1h")
        finally:
            ended.append((world.now - START).total_seconds())
        return "in time"

    work = Work(linger, timeout="10s", backoff="1m")
    async with work.a2.testing() as world:
        job_id = await work.job.enqueue()
        await world.advance("1d")
        status = await work.status(job_id)
    assert [10, 80, 140] == ended
    assert (JobState.SUCCEEDED, "in time", 3) == (status.state, status.result, status.attempt)


async def test_a_job_that_never_is_in_time_is_given_up() -> None:
    failed: list[FailedJob] = []

    async def linger() -> None:
        await world.sleep("1h")

    work = Work(linger, timeout="10s", retries=1, on_failed=failed.append)
    async with work.a2.testing() as world:
        job_id = await work.job.enqueue()
        await world.advance("1d")
        error = (await work.status(job_id)).error
    assert "TimeoutError: the handler took longer than its timeout of 10000 ms" == error
    assert [("TimeoutError", 2)] == [(one.error, one.attempts) for one in failed]


async def test_a_timeout_may_be_longer_than_a_claim() -> None:
    """While a function runs its claim is renewed, so it is not run twice."""
    runs: list[int] = []

    async def linger(ctx: JobContext) -> None:
        runs.append(ctx.attempt)
        await world.sleep("10m")

    work = Work(linger, timeout="11m")
    async with work.a2.testing() as world:
        job_id = await work.job.enqueue()
        await world.advance("1h")
        assert (JobState.SUCCEEDED, [1]) == (await work.state(job_id), runs)


@within(10)
async def test_a_thread_that_is_out_of_time_runs_on_and_what_it_returns_is_discarded() -> None:
    """A thread cannot be stopped: its place and its claim go to the next attempt, whose answer alone counts."""
    let_go, late = threading.Event(), threading.Event()

    def linger(ctx: SyncJobContext) -> str:
        if ctx.attempt == 1:
            let_go.wait()
            late.set()
        return f"by attempt {ctx.attempt}"

    work = Work(linger, a2=A2(store=MemoryStore(), scheduler=OFTEN), timeout="50ms", backoff="0s", concurrency=1)
    async with work.a2:
        job_id = await work.job.enqueue()
        status = await work.until(job_id, JobState.SUCCEEDED)
        assert ("by attempt 2", 2) == (status.result, status.attempt)
        let_go.set()
        await until(late)
        again = await work.job.enqueue()
        await work.until(again, JobState.SUCCEEDED)
        assert status == await work.status(job_id)


# ── given up ─────────────────────────────────────────────────────────────────────────────


async def broken(to: str, copies: int = 1) -> None:
    """A job that never succeeds."""
    raise ConnectionError(f"no way to {to}, {copies} times")


def plain_broken(to: str, copies: int = 1) -> None:
    """The same as a plain function."""
    raise ConnectionError(f"no way to {to}, {copies} times")


def tellers(told: list[FailedJob]) -> dict[str, Callable[[FailedJob], object]]:
    """Every way to be told."""

    async def tell(failed: FailedJob) -> None:
        told.append(failed)

    def tell_plainly(failed: FailedJob) -> None:
        told.append(failed)

    def tell_later(failed: FailedJob) -> Awaitable[None]:
        return tell(failed)

    return {"async": tell, "plain": tell_plainly, "plain-over-async": tell_later, "method": told.append}


@pytest.mark.parametrize("function", [broken, plain_broken])
@pytest.mark.parametrize("way", sorted(tellers([])))
async def test_on_failed_is_called_once_after_the_last_attempt(way: str, function: Callable[..., Any]) -> None:
    """With the job's id, name, arguments and last error; not before it is given up, and never again."""
    told: list[FailedJob] = []
    work = Work(function, name="send", retries=2, on_failed=tellers(told)[way])
    async with work.a2.testing() as world:
        job_id = await work.job.enqueue("a")
        await world.advance("1s")
        assert [] == told
        await world.advance("7d")
    message = "no way to a, 1 times"
    assert [FailedJob(job_id, "send", {"to": "a", "copies": 1}, "ConnectionError", message, 3)] == told


async def test_on_failed_is_not_called_for_a_job_that_succeeds() -> None:
    told: list[FailedJob] = []
    await after_a_week(Flaky(3), on_failed=told.append)
    assert [] == told


async def test_on_failed_gets_the_arguments_as_the_function_would() -> None:
    """With their types."""
    told: list[FailedJob] = []

    async def wait_for(delay_s: timedelta) -> None:
        raise ValueError(delay_s)

    work = Work(wait_for, retries=0, on_failed=told.append)
    async with work.a2.testing() as world:
        await work.job.enqueue(timedelta(seconds=5))
        await world.settle()
    assert [{"delay_s": timedelta(seconds=5)}] == [one.arguments for one in told]


def failing_tellers(told: list[str]) -> dict[str, Callable[[FailedJob], object]]:
    """Every way to fail at it."""

    async def tell(failed: FailedJob) -> None:
        told.append(failed.id)
        raise OSError("no mail today")

    def tell_plainly(failed: FailedJob) -> None:
        told.append(failed.id)
        raise OSError("no mail today")

    def tell_later(failed: FailedJob) -> Awaitable[None]:
        return tell(failed)

    return {"async": tell, "plain": tell_plainly, "plain-over-async": tell_later}


@pytest.mark.parametrize("way", sorted(failing_tellers([])))
async def test_an_error_in_on_failed_is_logged_and_that_is_all(way: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is not tried again, makes no dead letter of its own, and changes nothing about the job."""
    told: list[str] = []
    work = Work(broken, retries=0, on_failed=failing_tellers(told)[way])
    async with work.a2.testing() as world:
        job_id = await work.job.enqueue("a")
        await world.advance("7d")
        assert [job_id] == told == [letter.event_id for letter in world.dead_letters]
        assert JobState.FAILED == await work.state(job_id)
    [record] = [record for record in caplog.records if record.name == "a2asgi.run_contract"]
    assert (logging.ERROR, f"on_failed of 'broken' failed, for job '{job_id}'") == (record.levelno, record.getMessage())
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], OSError)


async def test_on_failed_may_enqueue_another_job() -> None:
    """As a job that repairs what is left."""
    a2 = A2(store=MemoryStore())
    seen: list[FailedJob] = []

    async def repair(failed: FailedJob) -> None:
        seen.append(failed)

    work = Work(broken, a2=a2, retries=0, on_failed=a2.job()(repair).enqueue)
    async with a2.testing() as world:
        job_id = await work.job.enqueue("a")
        await world.settle()
    assert [(job_id, {"to": "a", "copies": 1})] == [(one.id, one.arguments) for one in seen]


async def test_a_job_whose_process_dies_at_it_every_time_is_given_up_too() -> None:
    """Ten lost claims, whatever its retries; `on_failed` is called once, by the process that finds it."""
    told: list[FailedJob] = []
    runs: list[int] = []

    async def work_on(ctx: JobContext) -> None:
        runs.append(ctx.attempt)

    work = Work(work_on, retries=0, on_failed=told.append)
    async with work.a2.testing() as world:
        job_id = await work.job.enqueue()
        for _ in range(10):
            world.crash_after("claim")
        await world.advance("1h")
        status = await work.status(job_id)
    assert [] == runs
    assert (JobState.FAILED, 10) == (status.state, status.attempt)
    message = "10 claims ended without an answer: the process died, was killed, or hung"
    assert [FailedJob(job_id, "work_on", {}, "Lost", message, 10)] == told


@pytest.mark.parametrize("effect", ["fail", "claim", "settle"])
async def test_a_crash_on_the_way_to_on_failed_does_not_keep_it_from_being_told(effect: str) -> None:
    """The process dies after the job is given up, after it has claimed the news, or after it told them."""
    told: list[FailedJob] = []
    work = Work(broken, retries=0, on_failed=told.append)
    async with work.a2.testing() as world:
        job_id = await work.job.enqueue("a")
        world.crash_after(effect)
        await world.advance("1h")
        assert [job_id] == [one.id for one in told]
        assert [job_id] == [letter.event_id for letter in world.dead_letters]


@within(10)
async def test_on_failed_is_called_once_with_two_servers_on_one_database(tmp_path: Path) -> None:
    """Whichever of them sees the end of the job."""
    told = Tally()

    async def tell(failed: FailedJob) -> None:
        told.add(failed.id)

    def make() -> Work:
        a2 = A2(store=SQLiteStore(tmp_path / "a2.db"), scheduler=OFTEN)
        return Work(broken, a2=a2, retries=1, backoff="0s", on_failed=tell)

    one, other = make(), make()
    async with one.a2, other.a2:
        ids = [await work.job.enqueue("a") for work in (one, other) for _ in range(10)]
        await told.until(20)
        for job_id in ids:
            await one.until(job_id, JobState.FAILED)
    assert sorted(ids) == sorted(told.seen)


# ── answers that are no results ──────────────────────────────────────────────────────────


async def test_a_snoozed_job_comes_again_and_spends_no_retry() -> None:
    """It is another attempt, and no failure."""
    came: list[float] = []

    async def wait_for_it(ctx: JobContext) -> str | Snooze:
        came.append((world.now - START).total_seconds())
        return "now" if ctx.attempt == 6 else Snooze("10m")

    work = Work(wait_for_it, retries=0)
    async with work.a2.testing() as world:
        job_id = await work.job.enqueue()
        await world.settle()
        waiting = await work.status(job_id)
        assert (JobState.RETRYING, 1, after(600)) == (waiting.state, waiting.attempt, waiting.due_at)
        await world.advance("1d")
        status = await work.status(job_id)
    assert [0, 600, 1_200, 1_800, 2_400, 3_000] == came
    assert (JobState.SUCCEEDED, "now", 6) == (status.state, status.result, status.attempt)


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_job_may_call_itself_off(kind: str) -> None:
    """It is cancelled, for the reason that it gives, and is no failure."""
    told: list[FailedJob] = []

    async def decline() -> Cancel:
        return Cancel("nobody waits for it")

    def decline_plainly() -> Cancel:
        return Cancel("nobody waits for it")

    work = Work(decline if kind == "async" else decline_plainly, on_failed=told.append)
    async with work.a2.testing() as world:
        job_id = await work.job.enqueue()
        await world.advance("1h")
        status = await work.status(job_id)
        assert ([], []) == (world.dead_letters, told)
    assert (JobState.CANCELLED, "nobody waits for it", None) == (status.state, status.error, status.result)


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_job_may_give_itself_up(kind: str) -> None:
    """Trying again could not help: it is a dead letter at once, and `on_failed` is called."""
    told: list[FailedJob] = []

    async def refuse() -> Fail:
        return Fail("no such address")

    def refuse_plainly() -> Fail:
        return Fail("no such address")

    work = Work(refuse if kind == "async" else refuse_plainly, name="refuse", on_failed=told.append)
    async with work.a2.testing() as world:
        job_id = await work.job.enqueue()
        await world.advance("1h")
        status = await work.status(job_id)
    assert (JobState.FAILED, 1, "Fail: no such address") == (status.state, status.attempt, status.error)
    assert [FailedJob(job_id, "refuse", {}, "Fail", "no such address", 1)] == told
