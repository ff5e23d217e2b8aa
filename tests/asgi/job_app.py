"""A worker of the process tests: it runs jobs until it is killed, and prints what they do."""

import os
import sys
import time

import anyio

from a2asgi import A2, DrainTimings, EmbeddedScheduler, JobContext, SQLiteStore

TTL_MS = 500

a2 = A2(
    store=SQLiteStore(os.environ["APP_DB"]),
    scheduler=EmbeddedScheduler(poll="20ms"),
    timings=DrainTimings(ttl_ms=TTL_MS, heartbeat_ms=100, grace_ms=100),
)


def tell(line: str) -> None:
    """Let the test know."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


@a2.job()
async def copy(lines: int, ctx: JobContext) -> str:
    """Note half of it as done, and hang there in the first attempt."""
    begin = 0 if ctx.last_progress is None else ctx.last_progress.done
    tell(f"attempt {ctx.attempt} begins at line {begin}")
    await ctx.progress(lines / 2, lines)
    if ctx.attempt == 1:
        tell("half way")
        await anyio.sleep_forever()
    return f"copied by attempt {ctx.attempt}"


@a2.job()
async def compute(ctx: JobContext) -> str:
    """Block the loop for as long as several claims live."""
    tell(f"attempt {ctx.attempt} begins")
    time.sleep(4 * TTL_MS / 1_000)  # noqa: ASYNC251 - that is the test
    tell(f"attempt {ctx.attempt} ends")
    return f"computed by attempt {ctx.attempt}"


async def work() -> None:
    """Run jobs."""
    async with a2:
        tell("ready")
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(work, backend=sys.argv[1])
