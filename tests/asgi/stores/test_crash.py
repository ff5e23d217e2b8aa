"""What SQLite has acknowledged outlives a process that is killed at any moment."""

import os
import subprocess
import sys
from pathlib import Path
from random import Random
from secrets import randbits

import anyio

from a2asgi import SQLiteStore
from a2asgi.ports import Decide, SessionKey, Store
from a2asgi.testing.store_bench import Opened
from a2core import Entry, Needs, Plan, Snapshot, WorkItem

KEY = SessionKey("shop", "s-1")
KILLS = 6
TASKS = 8


def appending(event_id: str) -> Decide[int]:
    def decide(snapshot: Snapshot, now_ms: int) -> Plan[int]:
        entry = Entry(event_id, "order", "{}", None, now_ms, snapshot.last_seq + 1)
        return Plan(entry.seq, entries=(entry,), items=(WorkItem(entry, event_id),))

    return decide


async def append_for_ever(path: str, name: str) -> None:
    """Append from several tasks at once, and tell each event once it is acknowledged."""

    async def append(store: Store, task: int) -> None:
        number = 0
        while True:
            event_id = f"{name}-{task}-{number}"
            await store.transact(KEY, Needs(ids=(event_id,)), appending(event_id))
            sys.stdout.write(f"{event_id}\n")
            sys.stdout.flush()
            number += 1

    async with Opened(SQLiteStore(path, synchronous="FULL")) as store, anyio.create_task_group() as tasks:
        for task in range(TASKS):
            tasks.start_soon(append, store, task)


def acknowledged_before_a_kill(path: Path, name: str, backend: str, acknowledged: int) -> list[str]:
    """Run this file as a process, kill it once so many events are acknowledged, and return all that were."""
    arguments = [sys.executable, __file__, str(path), name, backend]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(acknowledged)]
        process.kill()
        lines += process.stdout.readlines()
    assert -9 == process.returncode
    return [line.removesuffix("\n") for line in lines if line.endswith("\n")]


async def ids_with_open_work(path: Path) -> list[str]:
    async with Opened(SQLiteStore(path)) as store:
        log = await store.read(KEY, 0, 1_000_000)
        seqs = tuple(entry.seq for entry in log)
        found = await store.transact(KEY, Needs(seqs=seqs, heads=True), lambda snapshot, _: Plan(snapshot))
    assert tuple(range(1, len(log) + 1)) == seqs
    assert len(log) == found.last_seq
    assert {entry.seq: entry for entry in log} == {seq: item.entry for seq, item in found.items.items()}
    assert set(found.heads) == set(found.items.values())  # each has a lane of its own
    return [entry.id for entry in log]


def test_what_was_acknowledged_is_in_the_log_after_a_kill(tmp_path: Path) -> None:
    seed = int(os.environ.get("A2_CRASH_SEED") or randbits(32))
    sys.stdout.write(f"replay with A2_CRASH_SEED={seed}\n")
    random = Random(seed)  # noqa: S311 - it picks moments, not secrets
    path = tmp_path / "a2.db"
    acknowledged: list[str] = []
    for kill in range(KILLS):
        backend = ("asyncio", "trio")[kill % 2]
        acknowledged += acknowledged_before_a_kill(path, f"kill{kill}", backend, random.randint(1, 500))
        log = anyio.run(ids_with_open_work, path)
        assert set(acknowledged) <= set(log)
        # each task may have been killed between its commit and its word
        assert len(log) <= len(acknowledged) + TASKS * (kill + 1)


if __name__ == "__main__":
    anyio.run(append_for_ever, sys.argv[1], sys.argv[2], backend=sys.argv[3])
