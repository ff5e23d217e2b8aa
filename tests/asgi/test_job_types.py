"""Types of jobs: a checker sees the function's own parameters, and what does not fit them is an error there too.

mypy refuses an ignore that it does not need, so each one here is a mistake that it finds.
"""

from datetime import UTC, datetime, timedelta
from typing import assert_type

import pytest

from a2asgi import A2, Exponential, Fail, FailedJob, InvalidPayload, JobContext, MemoryStore, Snooze, SyncJobContext

a2 = A2(store=MemoryStore())
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@a2.job(retries=3, backoff=Exponential("10s"), timeout="5m", keep=timedelta(days=2))
async def send(to: str, order: int, *, copies: int = 1) -> str:
    return f"{to} {order} {copies}"


@a2.job(key="customer", key_concurrency=2, priority=3, on_failed=lambda failed: failed.id)
def bill(customer: str) -> int | Fail:
    return len(customer)


async def tell(failed: FailedJob) -> None:
    """To be told of a failure."""


@a2.job(backoff=lambda failures: timedelta(seconds=failures), on_failed=tell)
async def load(ctx: JobContext, path: str) -> int | Snooze:
    await ctx.progress(1, 2, path)
    return 1


@a2.job(key=lambda path: path[:1])
def load_plainly(ctx: SyncJobContext, path: str) -> int:
    ctx.progress(1, 2, path)
    return 1


async def test_a_call_that_fits_is_checked_and_taken() -> None:
    async with a2.testing() as world:
        assert_type(await send.enqueue("a", 1), str)
        await send.enqueue("a", order=1, copies=2)
        await send.enqueue("a", 1, dedupe_key="k")
        await send.enqueue("a", 1, dedupe_key="l", delay="1h", copies=2)
        await send.enqueue("a", 1, delay=timedelta(hours=1))
        await send.enqueue("a", 1, at=NOON)
        await send.later("1h", "a", 1)
        await send.at(NOON, "a", 1, copies=3)
        await bill.enqueue("a")
        await load.enqueue("p")
        await load_plainly.enqueue(path="p")
        assert_type(await send("a", 1), str)
        assert_type(bill("a"), int | Fail)
        await world.advance("1d")
        assert [] == world.dead_letters


async def test_a_call_that_does_not_fit_is_an_error_for_a_checker_and_when_it_is_made() -> None:
    async with a2.testing() as world:
        with pytest.raises(InvalidPayload):
            await send.enqueue("a", "1")  # type: ignore[call-overload]
        with pytest.raises(TypeError):
            await send.enqueue("a")  # type: ignore[call-overload]
        with pytest.raises(TypeError):
            await send.enqueue("a", 1, color="red")  # type: ignore[call-overload]
        with pytest.raises(InvalidPayload):
            await send.later("1h", "a", "1")  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            await send.at(NOON, "a")  # type: ignore[call-arg]
        with pytest.raises(InvalidPayload):
            await load.enqueue(1)  # type: ignore[call-overload]
        with pytest.raises(InvalidPayload):
            await load_plainly.enqueue(1)  # type: ignore[call-overload]
        assert [] == await world.store.sessions()
