"""The commands `a2 run` and `a2 sync`: what they run, how they end, and what they say where they cannot."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import anyio
import pytest

from a2asgi import A2, ConfigurationError, Event, Job, MemoryStore, SQLiteStore
from a2asgi.__main__ import main
from tests.asgi.provider import Reply, qstash
from tests.asgi.slots import MINUTE_MS, Schedules
from tests.asgi.worlds import Tally, within

NOTHING_DUE = "Tick(sessions=0, settled=0, retrying=0, dead_letters=0, purged=0)\n"


@pytest.fixture(autouse=True)
def _apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In a directory, and with an environment, of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("A2_ROLE", "all")
    monkeypatch.setattr(sys, "path", [*sys.path])


Install: TypeAlias = Callable[..., None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Have a module `shop`, with these names in it."""

    def put(**names: object) -> None:
        module = ModuleType("shop")
        vars(module).update(names)
        monkeypatch.setitem(sys.modules, "shop", module)

    return put


def shop(path: Path, ran: list[str], **options: Any) -> tuple[A2, Job[[str], Any]]:
    """An A2 on this file, and its job `greet`."""
    a2 = A2(store=SQLiteStore(path), **options)

    @a2.job(retries=0)
    async def greet(name: str) -> None:
        ran.append(name)
        if name == "nobody":
            raise ValueError("nobody is there")

    return a2, greet


def enqueue(path: Path, *names: str) -> None:
    """Write jobs down, as a web process does."""
    web, greet = shop(path, [], role="web")

    async def write() -> None:
        for name in names:
            await greet.enqueue(name)
        await web.close()

    anyio.run(write)


# ── a2 run --once ────────────────────────────────────────────────────────────────────────


def test_once_drains_what_is_due_and_prints_the_counts(
    tmp_path: Path, install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    """And ends well, whatever became of it: a dead letter is the job's failure, not the command's."""
    path, ran = tmp_path / "a2.db", list[str]()
    install(a2=shop(path, ran)[0])
    assert 0 == main(["run", "shop:a2", "--once"])
    assert (NOTHING_DUE, "") == capsys.readouterr()
    enqueue(path, "ada", "bob", "nobody")
    assert 0 == main(["run", "shop:a2", "--once"])
    expected = "Tick(sessions=3, settled=2, retrying=0, dead_letters=1, purged=0)\n"
    assert (expected, ["ada", "bob", "nobody"]) == (capsys.readouterr().out, sorted(ran))
    assert 0 == main(["run", "--once", "shop:a2"])
    assert (NOTHING_DUE, 3) == (capsys.readouterr().out, len(ran))


def test_once_as_a_process_of_its_own_tells_an_app_that_it_is_a_worker(tmp_path: Path) -> None:
    """Whatever A2_ROLE says otherwise: the module is found in the directory, and made for this."""
    (tmp_path / "app.py").write_text(APP)
    enqueue(tmp_path / "a2.db", "ada")
    done = subprocess.run(
        [sys.executable, "-m", "a2asgi", "run", "app:a2", "--once"],
        env={**os.environ, "A2_ROLE": "web"},
        capture_output=True,
        text=True,
        check=False,
    )
    expected = "worker greets ada\nTick(sessions=1, settled=1, retrying=0, dead_letters=0, purged=0)\n"
    assert (0, expected, "") == (done.returncode, done.stdout, done.stderr)


def test_a8_eight_processes_drain_one_file_and_run_each_job_and_slot_once(tmp_path: Path) -> None:
    """A cron that missed ten minutes and catches up with all of them, and a dozen jobs."""
    (tmp_path / "app.py").write_text(APP + CRON)
    now = datetime.now(UTC)

    async def missed() -> None:
        a2 = A2(store=SQLiteStore("a2.db"))
        a2.cron("* * * * *", name="report", catch_up="all")(lambda: None)
        await a2.tick(now - timedelta(minutes=10))
        await a2.close()

    anyio.run(missed)
    enqueue(tmp_path / "a2.db", *(f"guest{number}" for number in range(12)))
    command = [sys.executable, "-m", "a2asgi", "run", "app:a2", "--once"]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(8)]
    lines = [line for process in processes for line in process.communicate()[0].splitlines()]
    assert [0] * 8 == [process.returncode for process in processes]
    greeted = Counter(line for line in lines if line.startswith("worker greets"))
    assert {f"worker greets guest{number}": 1 for number in range(12)} == greeted
    slots = [int(line.removeprefix("slot ")) for line in lines if line.startswith("slot")]
    assert len(set(slots)) == len(slots) in {10, 11}  # the minute may have ended meanwhile
    assert [*range(min(slots), max(slots) + MINUTE_MS, MINUTE_MS)] == sorted(slots)


# ── what cannot be run ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("once", [["--once"], []], ids=["once", "worker"])
@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("shop", "expected module:name of an A2, such as app:a2, got 'shop'"),
        ("shop:", "got 'shop:'"),
        (":a2", "got ':a2'"),
        ("./shop:a2", "got './shop:a2'"),
        ("", "got ''"),
        ("nowhere_at_all:a2", "found no module 'nowhere_at_all' in "),
        ("nowhere_at_all.app:a2", "found no module 'nowhere_at_all.app' in "),
        (
            "shop:other",
            "shop:other: expected module:name of an A2, such as app:a2, found no 'other' in <module 'shop'>",
        ),
        ("shop:app.a2", "found no 'a2' in 'an app'"),
        ("shop:app", "shop:app: expected an A2, got 'an app'"),
        ("shop:made", "shop:made: expected an A2, got <class 'a2asgi.app.A2'>"),
        ("shop:web", 'this A2 is made with role="web", so it handles nothing: leave the role to A2_ROLE'),
        ("shop:broken", "/proc/none/a2.db: cannot make its directory"),
    ],
)
def test_what_cannot_be_run_is_said_in_one_line(
    target: str, expected: str, once: list[str], install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    web = A2(store=MemoryStore(), role="web")
    install(app="an app", made=A2, web=web, broken=A2(store=SQLiteStore("/proc/none/a2.db")))
    assert 1 == main(["run", target, *once])
    told = capsys.readouterr()
    assert "" == told.out
    assert told.err.startswith("a2: ")
    assert expected in told.err
    assert 1 == told.err.count("\n")


def test_a_module_that_misses_another_shows_that(tmp_path: Path) -> None:
    """It is there; its own error says more than that there is no such module."""
    (tmp_path / "needy.py").write_text("import nothing_of_that_name\n")
    with pytest.raises(ModuleNotFoundError, match="nothing_of_that_name"):
        main(["run", "needy:a2"])


def test_a_module_with_a_definition_that_makes_no_sense_shows_which(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a2_wrong.py").write_text("from a2asgi import A2\na2 = A2()\na2.cron('61 * * * *')(print)\n")
    assert 1 == main(["run", "a2_wrong:a2"])
    told = capsys.readouterr().err
    assert told.startswith("a2: expected the field minute of the cron expression '61 * * * *'")


@pytest.mark.parametrize("arguments", [["run"], ["run", "shop:a2", "--twice"], ["run", "a:b", "c:d"], ["sync"]])
def test_arguments_that_make_no_sense_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert 2 == ended.value.code
    assert f"usage: a2 {arguments[0]} " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code"), [(["--help"], 0), (["-h"], 0), ([], 2), (["walk"], 2), ([""], 2), (["--once", "run"], 2)]
)
def test_the_commands_are_told(arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert code == main(arguments)
    told = capsys.readouterr()
    text = told.err if code else told.out
    assert text.startswith("usage: a2 COMMAND [options]\n")
    assert ["run", "sync", "qstash"] == [line.split()[0] for line in text.splitlines()[2:]]
    assert "" == (told.out if code else told.err)


# ── a worker ─────────────────────────────────────────────────────────────────────────────

APP = """
import sys
import anyio
from anyio import to_thread
from a2asgi import A2, SQLiteStore

a2 = A2(store=SQLiteStore("a2.db"), grace="5s")

def say(line):
    sys.stdout.write(line + "\\n")
    sys.stdout.flush()

@a2.job(retries=0)
async def greet(name: str):
    if name == "waits":
        say("waits")
        await to_thread.run_sync(sys.stdin.readline)
    elif name == "hangs":
        say("hangs")
        await anyio.sleep_forever()
    say(f"{a2.role} greets {name}")
"""
CRON = """
@a2.cron("* * * * *", catch_up="all")
async def report(slot):
    say(f"slot {int(slot.timestamp() * 1_000)}")
"""

Child: TypeAlias = "subprocess.Popen[str]"


@contextmanager
def worker(tmp_path: Path, app: str = APP) -> Iterator[Child]:
    """`a2 run` as a process, once it says that it works."""
    (tmp_path / "app.py").write_text(app)
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", "a2asgi", "run", "app:a2"]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stderr is not None
            assert process.stderr.readline().startswith("a2: working on A2(contracts=['job:greet']")
            yield process
        finally:
            process.kill()


def hear(process: Child) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_works_until_it_is_told_to_stop_and_ends_what_it_is_at(tmp_path: Path, stop: signal.Signals) -> None:
    """What another process writes down it handles; a job that is running has its grace; then it ends well."""
    with worker(tmp_path) as process:
        enqueue(tmp_path / "a2.db", "ada")
        assert "worker greets ada\n" == hear(process)
        enqueue(tmp_path / "a2.db", "waits")
        assert "waits\n" == hear(process)
        process.send_signal(stop)
        out, err = process.communicate("go\n", timeout=20)
    assert (0, "worker greets waits\n", "") == (process.returncode, out, err)


def test_a_worker_gives_back_what_outlasts_its_grace(tmp_path: Path) -> None:
    """Another one takes it at once: nothing waits for a claim to run out."""
    with worker(tmp_path, APP.replace('"5s"', '"0s"')) as process:
        enqueue(tmp_path / "a2.db", "hangs")
        assert "hangs\n" == hear(process)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
    assert 0 == process.returncode
    ran: list[str] = []
    a2, _ = shop(tmp_path / "a2.db", ran)

    async def look() -> None:
        await a2.tick()
        await a2.close()

    anyio.run(look)
    assert ["hangs"] == ran


def test_once_may_be_stopped_too(tmp_path: Path) -> None:
    """What it was at is given back."""
    (tmp_path / "app.py").write_text(APP)
    enqueue(tmp_path / "a2.db", "hangs")
    command = [sys.executable, "-m", "a2asgi", "run", "app:a2", "--once"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert "hangs\n" == hear(process)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
    ran: list[str] = []
    a2, _ = shop(tmp_path / "a2.db", ran)
    anyio.run(a2.tick)
    anyio.run(a2.close)
    assert ["hangs"] == ran


# ── roles ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("environment", "argument", "expected"),
    [
        (None, None, "all"),
        ("", None, "all"),
        ("web", None, "web"),
        ("worker", None, "worker"),
        ("web", "worker", "worker"),
        ("nonsense", "all", "all"),
    ],
)
def test_a_role_is_given_or_is_that_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, environment: str | None, argument: str | None, expected: str
) -> None:
    monkeypatch.delenv("A2_ROLE")
    if environment is not None:
        monkeypatch.setenv("A2_ROLE", environment)
    assert expected == A2(store=MemoryStore(), role=argument).role


@pytest.mark.parametrize("role", ["Web", "server", "all,web"])
def test_an_unknown_role_is_refused(monkeypatch: pytest.MonkeyPatch, role: str) -> None:
    """Given or not; the text tells what there is."""
    expected = r"expected role, or A2_ROLE, to be one of \['all', 'web', 'worker'\], got "
    with pytest.raises(ConfigurationError, match=expected):
        A2(store=MemoryStore(), role=role)
    monkeypatch.setenv("A2_ROLE", role)
    with pytest.raises(ConfigurationError, match=expected):
        A2(store=MemoryStore())


def test_a_web_process_needs_someone_who_wakes_the_worker() -> None:
    with pytest.raises(ConfigurationError, match='role "web" needs a scheduler'):
        A2(store=MemoryStore(), role="web", scheduler=None)
    assert "worker" == A2(store=MemoryStore(), role="worker", scheduler=None).role


@within(10)
async def test_a_web_process_writes_down_and_a_worker_handles() -> None:
    """Jobs and events alike, with a server around each; waiting for what is not handled here is refused."""
    store = MemoryStore()
    handled = Tally()

    def app(role: str) -> tuple[A2, Callable[..., Any], Job[[], Any]]:
        a2 = A2(store=store, role=role)
        orders = a2.contract("orders")
        note = orders.event("note", str)

        @orders.on(note)
        async def handle(event: Event[str]) -> None:
            handled.add(f"{role} {event.payload}")

        @a2.job()
        async def job() -> None:
            handled.add(f"{role} job")

        return a2, partial(orders.session("s").append, note("a")), job

    web, append, job = app("web")
    worker_app, _, _ = app("worker")
    async with web:
        with pytest.raises(ConfigurationError, match="wait=True needs a process that handles events"):
            await append(wait=True)
        assert [] == await store.sessions()
        await append()
        job_id = await job.enqueue()
        await anyio.wait_all_tasks_blocked()
        status = await job.status(job_id)
        assert status is not None
        assert ("queued", []) == (status.state, handled.seen)
        async with worker_app:
            await handled.until(2)
    assert ["worker a", "worker job"] == sorted(handled.seen)


# ── a2 sync ──────────────────────────────────────────────────────────────────────────────


def test_sync_brings_the_providers_schedules_in_step(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    a2 = A2(store=MemoryStore(), scheduler=qstash(Schedules()))
    a2.cron("0 9 * * *", name="daily")(lambda: None)
    install(a2=a2)
    assert [0, 0] == [main(["sync", "shop:a2"]) for _ in range(2)]
    created = "SyncReport(created=('daily',), updated=(), removed=(), kept=())\n"
    kept = "SyncReport(created=(), updated=(), removed=(), kept=('daily',))\n"
    assert (created + kept, "") == capsys.readouterr()


@pytest.mark.parametrize(
    ("replies", "expected"),
    [
        ([Reply(401, "bad token")], "401"),
        ([Reply(200, "[]"), Reply(412, "plan")], "the schedule of cron 'daily'"),
        ([OSError("hunter2")], "OSError"),
    ],
)
def test_a_provider_that_refuses_is_told_in_one_line(
    replies: list[Any], expected: str, install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    a2 = A2(store=MemoryStore(), scheduler=qstash(Schedules(replies=replies)))
    a2.cron("0 9 * * *", name="daily")(lambda: None)
    install(a2=a2)
    assert 1 == main(["sync", "shop:a2"])
    told = capsys.readouterr()
    assert ("", 1) == (told.out, told.err.count("\n"))
    assert told.err.startswith("a2: ")
    assert expected in told.err


def test_sync_without_a_provider_says_what_to_write(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install(a2=A2(store=MemoryStore()))
    assert 1 == main(["sync", "shop:a2"])
    assert "expected A2(scheduler=QStash(...))" in capsys.readouterr().err
