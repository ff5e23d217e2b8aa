"""A8: many look at one schedule at the same time, and each slot is run once: by tasks, by processes, by triggers."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeAlias

import anyio
from anyio.lowlevel import checkpoint

from a2asgi import A2, EmbeddedScheduler, MemoryStore, SQLiteStore
from a2asgi.testing import ManualClock
from a2asgi.times import instant_ms

EIGHT = 8
NOON = datetime(2050, 6, 1, 12, tzinfo=UTC)
INSTANTS = [NOON + timedelta(seconds=seconds) for seconds in (0, 30, 60, 61, 120, 185, 240, 300, 1_000, 3_600)]
"""What the time is at each look: on a slot, between two, a second time, and after a pause."""

EVERY_MINUTE = [NOON + timedelta(minutes=minute) for minute in (1, 2, 3, 4, 5, 16, 60)]
"""The slots that are run of a cron that is due each minute, and catches up with the last one."""

EVERY_FIVE = [NOON + timedelta(minutes=minute) for minute in (5, 10, 15, *range(20, 61, 5))]
"""Those of one that is due every five minutes, and catches up with all."""


def scheduled(a2: A2, ran: "Counter[tuple[str, datetime]]") -> A2:
    """Two crons that note what they are run for."""

    @a2.cron("* * * * *")
    async def latest(slot: datetime) -> None:
        await checkpoint()
        ran["latest", slot] += 1

    @a2.cron("*/5 * * * *", catch_up="all")
    async def every(slot: datetime) -> None:
        await checkpoint()
        ran["every", slot] += 1

    return a2


EXPECTED = {("latest", slot): 1 for slot in EVERY_MINUTE} | {("every", slot): 1 for slot in EVERY_FIVE}


async def test_a8_eight_apps_in_one_process_run_each_slot_once(tmp_path: Path) -> None:
    """Each with a connection of its own to one file, at the same moments."""
    ran: Counter[tuple[str, datetime]] = Counter()
    path = tmp_path / "a2.db"
    apps = [scheduled(A2(store=SQLiteStore(path, synchronous="NORMAL")), ran) for _ in range(EIGHT)]
    for instant in INSTANTS:
        async with anyio.create_task_group() as tasks:
            for a2 in apps:
                tasks.start_soon(a2.tick, instant)
    assert EXPECTED == ran
    for a2 in apps:
        await a2.close()


async def test_a8_eight_servers_of_one_store_run_each_slot_once() -> None:
    """Their embedded schedulers look as often as they can, and share what is due."""
    ran: Counter[tuple[str, datetime]] = Counter()
    clock = ManualClock(instant_ms(NOON))
    store = MemoryStore(clock=clock)
    async with AsyncExitStack() as servers:
        apps = [scheduled(A2(store=store, scheduler=EmbeddedScheduler(poll="10ms")), ran) for _ in range(EIGHT)]
        for a2 in apps:
            await servers.enter_async_context(a2)
        while len(await store.sessions()) < 2:
            await checkpoint()
        for instant in INSTANTS:
            clock.move_to(instant_ms(instant))
            for name, slot in [one for one in EXPECTED if one[1] <= instant]:
                while not await succeeded(apps[0], name, slot):
                    await checkpoint()
        for _ in range(500):
            await checkpoint()
    assert EXPECTED == ran


async def succeeded(a2: A2, name: str, slot: datetime) -> bool:
    """Settled too, before time passes, in which its claim would run out."""
    status = await a2.crons[f"cron:{name}"].status(slot)
    return status is not None and status.state == "succeeded"


def test_a8_eight_processes_run_each_slot_once(tmp_path: Path) -> None:
    """They tick one SQLite file at the same moments; half of them are killed on the way, and others start."""
    path = tmp_path / "a2.db"
    ran: Counter[tuple[str, datetime]] = Counter()
    with children(path, EIGHT) as first:
        for instant in INSTANTS[:5]:
            ran += look(first, instant)
        for process in first[::2]:
            process.kill()
        with children(path, EIGHT // 2) as second:
            for instant in INSTANTS[5:]:
                ran += look([*first[1::2], *second], instant)
    assert EXPECTED == ran


Child: TypeAlias = "subprocess.Popen[str]"


@contextmanager
def children(path: Path, count: int) -> Iterator[list[Child]]:
    """Run this file in so many processes, on both event loops."""
    commands = [[sys.executable, __file__, str(path), ("asyncio", "trio")[number % 2]] for number in range(count)]
    pipe = subprocess.PIPE
    processes = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for command in commands]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def look(processes: Sequence[Child], instant: datetime) -> Counter[tuple[str, datetime]]:
    """Have all of them tick at once, and wait for each; what they ran."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(f"{instant.isoformat()}\n")
        process.stdin.flush()
    ran: Counter[tuple[str, datetime]] = Counter()
    for process in processes:
        assert process.stdout is not None
        ran.update((name, datetime.fromisoformat(slot)) for name, slot in json.loads(process.stdout.readline()))
    return ran


async def tick_when_told(path: str) -> None:
    """Be one of those processes."""
    ran: Counter[tuple[str, datetime]] = Counter()
    a2 = scheduled(A2(store=SQLiteStore(path, synchronous="NORMAL")), ran)
    for line in sys.stdin:
        await a2.tick(datetime.fromisoformat(line.strip()))
        sys.stdout.write(json.dumps([(name, slot.isoformat()) for name, slot in ran.elements()]) + "\n")
        sys.stdout.flush()
        ran.clear()


if __name__ == "__main__":
    anyio.run(tick_when_told, sys.argv[1], backend=sys.argv[2])
