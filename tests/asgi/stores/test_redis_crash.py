"""What Redis has acknowledged outlives processes and servers that are killed, and processes share the work on it."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from secrets import randbits, token_hex
from threading import Thread
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from a2asgi import A2, Job, RedisStore, StoreUnavailable
from a2asgi.ports import SessionKey, Store
from a2asgi.testing.store_bench import Opened, appending_as
from a2core import Needs, Plan
from tests.asgi.stores.redis_server import RedisServer, needs_redis, redis_forget, redis_url

KEY = SessionKey("shop", "s-1")
ROOT = Path(__file__).parents[3]
KILLS = 4
TASKS = 8
PROCESSES = 8
JOBS = 200


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    needs_redis()
    with RedisServer(tmp_path, "--appendfsync", "everysec") as own:
        yield own


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def append_for_ever(url: str, name: str) -> None:
    """Append from several tasks at once, and tell each event once it is acknowledged."""

    async def append(store: Store, task: int) -> None:
        number = 0
        while True:
            event_id = f"{name}-{task}-{number}"
            try:
                await store.transact(KEY, Needs(ids=(event_id,)), appending_as(event_id))
            except StoreUnavailable:
                await anyio.sleep(0.01)
            else:
                say(event_id)
            number += 1

    async with Opened(RedisStore(url)) as store, anyio.create_task_group() as tasks:
        for task in range(TASKS):
            tasks.start_soon(append, store, task)


def jobs_on(url: str, prefix: str) -> tuple[A2, Job[[int], Any]]:
    a2 = A2(store=RedisStore(url, prefix=prefix))

    @a2.job(name="count")
    async def count(number: int) -> None:
        await anyio.lowlevel.checkpoint()
        say(f"{number}")

    return a2, count


async def tick_until_nothing_is_due(url: str, prefix: str) -> None:
    a2, _ = jobs_on(url, prefix)
    await a2.ready()
    say("ready")
    await anyio.to_thread.run_sync(sys.stdin.readline)
    while (await a2.tick()).sessions:
        pass
    await a2.close()


def started(*arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.asgi.stores.test_redis_crash", *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def whole(lines: list[str]) -> list[str]:
    return [line.removesuffix("\n") for line in lines if line.endswith("\n")]


async def ids_with_open_work(url: str) -> list[str]:
    async with Opened(RedisStore(url)) as store:
        log = await store.read(KEY, 0, 1_000_000)
        seqs = tuple(entry.seq for entry in log)
        found = await store.transact(KEY, Needs(seqs=seqs, heads=True), lambda snapshot, _: Plan(snapshot))
    assert tuple(range(1, len(log) + 1)) == seqs
    assert len(log) == found.last_seq
    assert {entry.seq: entry for entry in log} == {seq: item.entry for seq, item in found.items.items()}
    assert set(found.heads) == set(found.items.values())  # each has a lane of its own
    return [entry.id for entry in log]


def seeded() -> Random:
    seed = int(os.environ.get("A2_CRASH_SEED") or randbits(32))
    say(f"replay with A2_CRASH_SEED={seed}")
    return Random(seed)  # noqa: S311 - it picks moments, not secrets


def test_what_was_acknowledged_is_in_the_log_after_the_server_is_killed(server: RedisServer) -> None:
    """The processes that use it go on when it is back; what they were told was unavailable is there once, or not."""
    random = seeded()
    with started("append", server.url, "live", "asyncio") as process:
        assert process.stdout is not None
        lines: list[str] = []
        for _ in range(KILLS):
            lines += [process.stdout.readline() for _ in range(random.randint(1, 300))]
            server.kill()
            server.start()
        lines += [process.stdout.readline() for _ in range(100)]
        process.kill()
        lines += process.stdout.readlines()
    log = anyio.run(ids_with_open_work, server.url)
    assert set(whole(lines)) <= set(log)
    assert len(log) == len(set(log))


def test_processes_that_share_the_work_do_each_job_once() -> None:
    url, prefix = redis_url(), f"test-{token_hex(6)}"

    async def enqueue() -> None:
        a2, count = jobs_on(url, prefix)
        await a2.ready()
        for number in range(JOBS):
            await count.later("1ms", number)  # for whoever ticks
        await a2.close()

    anyio.run(enqueue)
    done: list[list[str]] = [[] for _ in range(PROCESSES)]
    with ExitStack() as stack:
        backends = ("asyncio", "trio")
        processes = [
            stack.enter_context(started("tick", url, prefix, backends[number % 2])) for number in range(PROCESSES)
        ]
        outputs = [process.stdout for process in processes if process.stdout is not None]
        assert ["ready\n"] * PROCESSES == [output.readline() for output in outputs]
        readers = [
            Thread(target=lambda lines=lines, output=output: lines.extend(whole(output.readlines())))
            for lines, output in zip(done, outputs, strict=True)
        ]
        for reader, process in zip(readers, processes, strict=True):
            reader.start()
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        for reader in readers:
            reader.join()
    redis_forget(url, prefix)
    assert [0] * PROCESSES == [process.returncode for process in processes]
    assert Counter(map(str, range(JOBS))) == Counter(number for lines in done for number in lines)
    assert 2 <= sum(bool(lines) for lines in done)


if __name__ == "__main__":
    todo = {"append": append_for_ever, "tick": tick_until_nothing_is_due}[sys.argv[1]]
    anyio.run(todo, sys.argv[2], sys.argv[3], backend=sys.argv[4])
