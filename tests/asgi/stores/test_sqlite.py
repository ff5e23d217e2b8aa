"""The SQLite store: group commit, locks, bad paths, several processes on one file, closing."""

import re
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event
from typing import Literal

import anyio
import pytest
from anyio import to_thread, wait_all_tasks_blocked

from a2asgi import ConfigurationError, SQLiteStore, StoreBroken, StoreUnavailable
from a2asgi.ports import Decide, SessionKey, Store, Wakes
from a2asgi.sqlite_worker import MAX_GROUP
from a2asgi.stores import sql
from a2asgi.stores.dialect import listed
from a2asgi.testing.store_bench import Opened
from a2core import Ending, EndingKind, Entry, Needs, Plan, Snapshot, WakeAt, WorkItem
from tests.asgi.stores.calls import KEY, PATIENCE_S, append, failing_with, log_of

GATE = SessionKey("gate", "g-1")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a2.db"


def appending(event_id: str, *more: Entry) -> Decide[int]:
    """Append an event with open work, and whatever else, and answer its seq."""

    def decide(snapshot: Snapshot, now_ms: int) -> Plan[int]:
        entry = Entry(event_id, "order", "{}", None, now_ms, snapshot.last_seq + 1)
        return Plan(entry.seq, entries=(entry, *more), items=(WorkItem(entry, event_id),))

    return decide


def remove(path: Path) -> None:
    path.unlink()


def files_in(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def no_database(path: Path) -> None:
    path.write_text("a shopping list, and no database at all " * 99)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another connection has a write transaction open."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield


class Watched(SQLiteStore):
    """Keeps its connections within reach, and notes what they execute."""

    def __init__(self, path: Path, *, synchronous: Literal["FULL", "NORMAL"] = "FULL") -> None:
        super().__init__(path, synchronous=synchronous)
        self.connections: list[sqlite3.Connection] = []
        self.statements: list[str] = []

    @property
    def commits(self) -> int:
        return self.statements.count("COMMIT")

    def _connect(self) -> sqlite3.Connection:
        connection = super()._connect()
        connection.set_trace_callback(self.statements.append)
        self.connections.append(connection)
        return connection


class Gate:
    """A transaction that keeps the writer busy until the gate is opened."""

    def __init__(self) -> None:
        self._reached = Event()
        self._open = Event()

    def decide(self, _snapshot: Snapshot, _now_ms: int) -> Plan[bool]:
        self._reached.set()
        return Plan(self._open.wait(PATIENCE_S))

    async def reached(self) -> None:
        assert await to_thread.run_sync(self._reached.wait, PATIENCE_S)

    def open(self) -> None:
        self._open.set()


async def at_once(store: SQLiteStore, decisions: Sequence[Decide[int]]) -> list[int | Exception]:
    """Have the writer find all of these waiting when it is free again. Their answers or errors, in order."""
    outcomes: dict[int, int | Exception] = {}
    gate = Gate()

    async def run(index: int, decide: Decide[int]) -> None:
        try:
            outcomes[index] = await store.transact(KEY, Needs(), decide)
        except Exception as error:  # noqa: BLE001 - the test looks at it
            outcomes[index] = error

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.transact, GATE, Needs(), gate.decide)
        await gate.reached()
        for index, decide in enumerate(decisions):
            tasks.start_soon(run, index, decide)
        await wait_all_tasks_blocked()
        gate.open()
    return [outcomes[index] for index in range(len(decisions))]


# ── group commit ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("appends", "commits"), [(1, 1), (50, 1), (MAX_GROUP, 1), (MAX_GROUP + 1, 2)])
async def test_what_waits_together_shares_a_commit(path: Path, appends: int, commits: int) -> None:
    store = Watched(path)
    await store.open()
    before = store.commits
    seqs = await at_once(store, [appending(f"e{number}") for number in range(appends)])
    assert set(range(1, appends + 1)) == set(seqs)
    assert 1 + commits == store.commits - before  # the gate has one of its own
    assert {f"e{number}" for number in range(appends)} == set(await log_of(store))
    await store.close()


async def test_what_comes_one_by_one_is_committed_one_by_one(path: Path) -> None:
    store = Watched(path)
    await store.open()
    before = store.commits
    for number in range(5):
        await append(store, f"e{number}")
    assert 5 == store.commits - before
    await store.close()


async def test_a_decision_that_raises_leaves_its_neighbours_alone(path: Path) -> None:
    store = Watched(path)
    await store.open()
    before = store.commits
    refusal = LookupError("refused")

    def refuse(_snapshot: Snapshot, _now_ms: int) -> Plan[int]:
        raise refusal

    outcomes = await at_once(store, [*[appending(f"e{number}") for number in range(9)], refuse])
    assert outcomes.pop() is refusal
    assert set(range(1, 10)) == set(outcomes)
    assert 2 == store.commits - before
    assert {f"e{number}" for number in range(9)} == set(await log_of(store))
    await store.close()


def same_id_twice(snapshot: Snapshot, now_ms: int) -> Plan[int]:
    return appending("good", Entry("good", "order", "{}", None, 0, snapshot.last_seq + 2))(snapshot, now_ms)


def no_unicode_text(snapshot: Snapshot, now_ms: int) -> Plan[int]:
    return appending("good", Entry("bad", "order", '"\ud83d"', None, 0, snapshot.last_seq + 2))(snapshot, now_ms)


def number_without_end(snapshot: Snapshot, now_ms: int) -> Plan[int]:
    return appending("good", Entry("bad", "order", "{}", None, 2**70, snapshot.last_seq + 2))(snapshot, now_ms)


def ending_without_text(snapshot: Snapshot, now_ms: int) -> Plan[int]:
    plan = appending("good")(snapshot, now_ms)
    return Plan(0, entries=plan.entries, items=plan.items, endings={1: Ending(EndingKind.SKIPPED, "\ud83d")})


@pytest.mark.parametrize(
    ("breaker", "error"),
    [
        (same_id_twice, StoreBroken),
        (no_unicode_text, UnicodeEncodeError),
        (number_without_end, OverflowError),
        (ending_without_text, UnicodeEncodeError),
    ],
)
async def test_a_plan_that_cannot_be_written_fails_alone_and_whole(
    path: Path, breaker: Decide[int], error: type[Exception]
) -> None:
    store = SQLiteStore(path)
    await store.open()
    outcomes = await at_once(store, [*[appending(f"e{number}") for number in range(9)], breaker])
    assert isinstance(outcomes.pop(), error)
    assert set(range(1, 10)) == set(outcomes)
    assert {f"e{number}" for number in range(9)} == set(await log_of(store))
    with pytest.raises(error):
        store.transact_blocking(KEY, Needs(), breaker)
    assert 10 == await append(store, "next")
    await store.close()


@pytest.mark.parametrize("error", [OSError(5, "a disk of its own"), TimeoutError()])
async def test_what_a_decision_raises_is_not_taken_for_the_store_s(path: Path, error: Exception) -> None:
    store = SQLiteStore(path)
    await store.open()

    def refuse(_snapshot: Snapshot, _now_ms: int) -> Plan[int]:
        raise error

    for transact in (store.transact, to_async(store.transact_blocking)):
        with pytest.raises(type(error)) as caught:
            await transact(KEY, Needs(), refuse)
        assert caught.value is error
    await store.close()


def to_async(function: Callable[[SessionKey, Needs, Decide[int]], int]) -> Callable[..., Awaitable[int]]:
    async def call(key: SessionKey, needs: Needs, decide: Decide[int]) -> int:
        return function(key, needs, decide)

    return call


# ── locks ────────────────────────────────────────────────────────────────────────────────


async def test_a_lock_held_too_long_makes_the_store_unavailable_until_it_is_given_back(path: Path) -> None:
    store = SQLiteStore(path, busy_timeout="20ms")
    await store.open()
    await store.transact(KEY, Needs(), lambda _snapshot, _now_ms: Plan(None, wake=WakeAt(0)))
    text = f"{path}: locked by another connection for 20 ms; end that transaction, or raise busy_timeout"
    with locked(path):
        assert text == await failing_with(StoreUnavailable, append(store, "e1"))
        assert text == await failing_with(StoreUnavailable, store.claim_wakes(["shop"], limit=1, lease_ms=1))
        with pytest.raises(StoreUnavailable):
            store.transact_blocking(KEY, Needs(), appending("e1"))
    assert 1 == await append(store, "e1")
    assert (KEY,) == (await store.claim_wakes(["shop"], limit=1, lease_ms=1)).due
    await store.close()


async def test_whoever_waits_for_a_lock_in_one_group_is_told(path: Path) -> None:
    store = SQLiteStore(path, busy_timeout="20ms")
    await store.open()
    with locked(path):
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(failing_with, StoreUnavailable, append(store, f"e{number}"))
    assert 1 == await append(store, "e1")
    await store.close()


async def test_everything_that_reads_works_beside_a_lock_the_very_first_time_too(path: Path) -> None:
    async with Opened(SQLiteStore(path)) as store:
        await append(store, "e1")
    async with Opened(SQLiteStore(path, busy_timeout="20ms")) as store:
        with locked(path):
            assert ["e1"] == await log_of(store)
            assert [(KEY, 1)] == [(info.key, info.last_seq) for info in await store.sessions()]
            assert [] == await store.dead_letters()
            assert Wakes((), None) == await store.claim_wakes(["shop"], limit=1, lease_ms=1)
            await store.ping()


@pytest.mark.parametrize("held", ["EXCLUSIVE", "WAL"])
async def test_opening_a_file_that_another_process_has_locked(path: Path, held: str) -> None:
    with children(("lock", path, held)) as [locker]:
        store = SQLiteStore(path, busy_timeout="20ms")
        text = await failing_with(StoreUnavailable, store.open())
        assert text.startswith(f"{path}: locked by another connection for 20 ms")
        patient = SQLiteStore(path)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(patient.open)
            await wait_all_tasks_blocked()
            assert ["done\n"] == tell([locker])
    await store.open()
    assert [1, 2] == [await append(store, "e1"), await append(patient, "e2")]
    await store.close()
    await patient.close()


# ── what cannot be a database ────────────────────────────────────────────────────────────


@pytest.mark.parametrize("nowhere", ["", ":memory:", ":memory:?cache=shared", "file:a2.db"])
def test_a_path_that_names_no_file_is_refused_at_once(nowhere: str) -> None:
    text = f"SQLiteStore: expected the path of a file, got {nowhere!r}; or use MemoryStore()"
    with pytest.raises(ConfigurationError, match=re.escape(text)):
        SQLiteStore(nowhere)


def test_another_synchronous_is_refused_at_once(path: Path) -> None:
    with pytest.raises(ConfigurationError, match="got 'OFF'"):
        SQLiteStore(path, synchronous="OFF")  # type: ignore[arg-type]


@pytest.mark.parametrize(("synchronous", "level"), [("FULL", 2), ("NORMAL", 1)])
async def test_synchronous_is_what_every_connection_gets(
    path: Path, synchronous: Literal["FULL", "NORMAL"], level: int
) -> None:
    store = Watched(path, synchronous=synchronous)
    await store.open()
    await store.ping()
    levels = [connection.execute("PRAGMA synchronous").fetchone() for connection in store.connections]
    assert [(level,), (level,)] == levels
    await store.close()


async def test_a_missing_folder_is_made(tmp_path: Path) -> None:
    async with Opened(SQLiteStore(tmp_path / "some" / "where" / "a2.db")) as store:
        assert 1 == await append(store, "e1")


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("file/a2.db", "cannot make its directory: File exists; choose a path that can be written"),
        ("file/below/a2.db", "cannot make its directory: Not a directory; choose a path that can be written"),
        ("folder", "cannot be written (unable to open database file); check the path and its rights"),
        ("file", "file is not a database; choose another path, or restore the file from a backup"),
    ],
)
async def test_a_path_that_cannot_be_a_database_breaks_the_store(tmp_path: Path, where: str, text: str) -> None:
    no_database(tmp_path / "file")
    (tmp_path / "folder").mkdir()
    store = SQLiteStore(tmp_path / where)
    expected = f"{tmp_path / where}: {text}"
    assert expected == await failing_with(StoreBroken, store.open())
    assert expected == await failing_with(StoreBroken, append(store, "e1"))
    with pytest.raises(StoreBroken, match=re.escape(expected)):
        store.transact_blocking(KEY, Needs(), appending("e1"))
    await store.close()
    assert ["file", "folder"] == files_in(tmp_path)


async def test_a_path_that_was_mended_can_be_opened(path: Path) -> None:
    no_database(path)
    store = SQLiteStore(path)
    await failing_with(StoreBroken, store.open())
    remove(path)
    await store.open()
    assert 1 == await append(store, "e1")
    await store.close()


async def test_a_schema_of_the_future_breaks_the_store(path: Path) -> None:
    async with Opened(SQLiteStore(path)) as store:
        await append(store, "e1")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE a2_meta SET value = '99' WHERE key = 'schema'")
    store = SQLiteStore(path)
    text = await failing_with(StoreBroken, store.open())
    assert "the store has schema 99, this version of a2 knows up to 2: upgrade a2" == text
    await store.close()


async def test_a_full_disk_makes_the_store_unavailable_until_there_is_room(path: Path) -> None:
    store = Watched(path)
    await store.open()
    writer = store.connections[0]
    [full] = writer.execute("PRAGMA page_count").fetchone()
    writer.execute(f"PRAGMA max_page_count={full}")
    large = Entry("large", "order", f'"{"x" * 100_000}"', None, 0, 2)
    text = await failing_with(StoreUnavailable, store.transact(KEY, Needs(), appending("e1", large)))
    assert f"{path}: database or disk is full" == text
    assert [] == await log_of(store)
    writer.execute(f"PRAGMA max_page_count={full + 100}")
    assert 1 == await store.transact(KEY, Needs(), appending("e1", large))
    await store.close()


async def test_a_ping_asks_the_file(path: Path) -> None:
    async with Opened(SQLiteStore(path)) as store:
        await store.ping()
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("DROP TABLE a2_sessions")
        assert "no such table" in await failing_with(StoreBroken, store.ping())


# ── closing ──────────────────────────────────────────────────────────────────────────────


async def test_closing_answers_everything_that_was_queued(path: Path) -> None:
    store = SQLiteStore(path)
    await store.open()
    gate, seqs = Gate(), []

    async def run(number: int) -> None:
        seqs.append(await append(store, f"e{number}"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.transact, GATE, Needs(), gate.decide)
        await gate.reached()
        for number in range(MAX_GROUP + 50):
            tasks.start_soon(run, number)
        await wait_all_tasks_blocked()
        tasks.start_soon(store.close)
        await wait_all_tasks_blocked()
        assert "is not open" in await failing_with(StoreUnavailable, append(store, "late"))
        gate.open()
    assert list(range(1, MAX_GROUP + 51)) == sorted(seqs)
    async with Opened(store):
        assert MAX_GROUP + 50 == len(await log_of(store))


async def test_who_stops_waiting_for_the_end_leaves_no_thread_behind(path: Path) -> None:
    before = set(threading.enumerate())
    store = SQLiteStore(path)
    await store.open()
    await store.ping()
    workers = [
        thread for thread in threading.enumerate() if thread.name.startswith("a2-sqlite") and thread not in before
    ]
    assert 2 == len(workers)
    gate = Gate()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.transact, GATE, Needs(), gate.decide)
        await gate.reached()
        with anyio.CancelScope() as scope:
            scope.cancel()
            await store.close()
        gate.open()
    for worker in workers:
        await to_thread.run_sync(worker.join, PATIENCE_S)
    assert [] == [worker for worker in workers if worker.is_alive()]


@pytest.mark.parametrize("was_open", [False, True])
async def test_a_store_that_is_not_open_is_unavailable(path: Path, *, was_open: bool) -> None:
    store = SQLiteStore(path)
    if was_open:
        await store.open()
    await store.close()
    calls: list[Awaitable[object]] = [
        append(store, "e1"),
        store.read(KEY, 0, 1),
        store.claim_wakes(["shop"], limit=1, lease_ms=1),
        store.dead_letters(),
        store.sessions(),
        store.ping(),
    ]
    text = f"{store!r} is not open: await store.open() first, or use it through A2"
    assert [text] * 6 == [await failing_with(StoreUnavailable, call) for call in calls]
    with pytest.raises(StoreUnavailable, match=re.escape(text)):
        store.transact_blocking(KEY, Needs(), appending("e1"))
    assert was_open == (path.name in files_in(path.parent))


def test_its_repr_names_the_file() -> None:
    assert "SQLiteStore('some/a2.db', synchronous='FULL')" == repr(SQLiteStore("some/a2.db"))
    assert "SQLiteStore('/a2.db', synchronous='NORMAL')" == repr(SQLiteStore(Path("/a2.db"), synchronous="NORMAL"))


# ── several processes ────────────────────────────────────────────────────────────────────


def test_processes_that_open_a_fresh_file_at_once(path: Path) -> None:
    with children(*[("append", path, f"process{number}-", 1) for number in range(8)]) as processes:
        assert ["done\n"] * 8 == tell(processes)
    assert {f"process{number}-0" for number in range(8)} == set(anyio.run(log_in, path))


def test_processes_that_append_beside_a_long_reader(path: Path) -> None:
    anyio.run(log_in, path)
    with (
        closing(sqlite3.connect(path, isolation_level=None)) as reader,
        children(*[("append", path, f"process{number}-", 200) for number in range(4)]) as processes,
    ):
        reader.execute("BEGIN")
        assert (0,) == reader.execute("SELECT count(*) FROM a2_log").fetchone()
        assert ["done\n"] * 4 == tell(processes)
        assert (0,) == reader.execute("SELECT count(*) FROM a2_log").fetchone()
    appended = {f"process{number}-{count}" for number in range(4) for count in range(200)}
    log = anyio.run(log_in, path)
    assert (800, appended) == (len(log), set(log))


async def log_in(path: Path) -> list[str]:
    async with Opened(SQLiteStore(path)) as store:
        return await log_of(store)


@contextmanager
def children(*commands: tuple[object, ...]) -> Iterator[list["subprocess.Popen[str]"]]:
    """Run this file in several processes, each of which is ready and waits to be told to go on."""
    pipe = subprocess.PIPE
    lines = [[sys.executable, __file__, *map(str, command)] for command in commands]
    processes = [subprocess.Popen(line, stdin=pipe, stdout=pipe, text=True) for line in lines]
    try:
        assert ["ready\n"] * len(processes) == [hear(process) for process in processes]
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def hear(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def tell(processes: Sequence["subprocess.Popen[str]"]) -> list[str]:
    """Have all of them go on at once, and return what they say then."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return [hear(process) for process in processes]


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def wait_for_word() -> None:
    say("ready")
    assert "go\n" == sys.stdin.readline()


def lock(path: str, mode: str) -> None:
    """Hold a lock on a fresh file: on all of it, or for writing as it is in WAL mode."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        if mode == "WAL":
            connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("BEGIN EXCLUSIVE")
        wait_for_word()
        connection.execute("COMMIT")


async def append_many(path: str, prefix: str, count: int) -> None:
    """Append so many events, a few at a time."""
    wait_for_word()
    ids = iter([f"{prefix}{number}" for number in range(count)])

    async def append_some(store: Store) -> None:
        for event_id in ids:
            await append(store, event_id)

    async with Opened(SQLiteStore(path)) as store, anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(append_some, store)


async def test_the_next_wake_up_is_found_without_a_look_at_every_session(tmp_path: Path) -> None:
    """The index of wake-ups holds only what waits, and is used where the question says that it asks for no other."""
    async with Opened(SQLiteStore(tmp_path / "a2.db")):
        pass
    [statement] = next(listed(sql.next_wake(["shop"], 0)))
    with closing(sqlite3.connect(tmp_path / "a2.db")) as connection:
        [[*_, plan]] = connection.execute(f"EXPLAIN QUERY PLAN {statement.sql}", statement.params).fetchall()
    assert "USING COVERING INDEX a2_sessions_wake" in plan


def main(command: str, *arguments: str) -> None:
    path, how, *count = arguments
    if command == "lock":
        lock(path, how)
    else:
        anyio.run(append_many, path, how, int(count[0]))
    say("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
