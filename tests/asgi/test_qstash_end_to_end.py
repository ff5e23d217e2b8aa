"""An app, a QStash server between, and real sockets: what happens when either of them dies."""

import base64
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from anyio.abc import SocketStream

from a2asgi.development import DEVELOPMENT_TOKEN

ROOT = Path(__file__).parent.parent.parent
PATIENCE_S = 20.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class House:
    """The processes of one test, and what the app's handlers told."""

    def __init__(self, folder: Path, effects_port: int) -> None:
        self.folder = folder
        self.app_port, self.qstash_port = free_port(), free_port()
        self.effects: list[str] = []
        self._news = anyio.Event()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._environment = os.environ | {
            "APP_DB": str(folder / "app.db"),
            "APP_PORT": str(self.app_port),
            "EFFECTS_PORT": str(effects_port),
            "QSTASH_DEV": "1",
            "QSTASH_URL": f"http://127.0.0.1:{self.qstash_port}",
            "PYTHONPATH": str(ROOT),
        }

    async def hear(self, stream: SocketStream) -> None:
        """One line from a handler."""
        async with stream:
            self.effects.append((await stream.receive()).decode())
        self._news.set()
        self._news = anyio.Event()

    async def until(self, told: Callable[[list[str]], bool]) -> None:
        """Wait until the handlers have told enough."""
        with anyio.fail_after(PATIENCE_S):
            while not told(self.effects):
                await self._news.wait()

    async def start_app(self, **environment: str) -> None:
        """The process that the provider calls."""
        await self.start_app_at(self.app_port, "app", **environment)

    async def start_app_at(self, port: int, name: str, **environment: str) -> None:
        command = ["uvicorn", "tests.asgi.qstash_app:app", "--port", str(port), "--log-level", "warning"]
        await self._start(name, command, f"http://127.0.0.1:{port}/api/a2/healthz", **environment)

    async def start_qstash(self) -> None:
        file = str(self.folder / "qstash.db")
        command = ["a2asgi.qstash_server", "--port", str(self.qstash_port), "--db", file, "--time-travel"]
        await self._start("qstash", command, f"http://127.0.0.1:{self.qstash_port}/v2/keys")

    async def travel(self, by: str) -> None:
        """Move the provider's clock forward."""
        async with self.provider() as client:
            (await client.post("/time-travel", json={"by": by})).raise_for_status()

    async def saw(self, state: str) -> list[dict[str, Any]]:
        """The provider's log entries of that state, the earliest first, each with its `task`."""
        async with self.provider() as client:
            entries = (await client.get("/v2/logs")).json()["logs"]
        found = [entry for entry in entries if entry["state"] == state]
        return [entry | {"task": json.loads(base64.b64decode(entry["body"]))} for entry in reversed(found)]

    async def until_saw(self, state: str, enough: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
        """Wait until the provider's log entries of that state are enough."""
        with anyio.fail_after(PATIENCE_S):
            while not enough(found := await self.saw(state)):
                await anyio.lowlevel.checkpoint()
        return found

    def provider(self) -> httpx.AsyncClient:
        base_url, headers = f"http://127.0.0.1:{self.qstash_port}", {"authorization": f"Bearer {DEVELOPMENT_TOKEN}"}
        return httpx.AsyncClient(base_url=base_url, headers=headers)

    @contextmanager
    def store_away(self) -> Iterator[None]:
        """Another connection holds the database's lock for longer than the app waits for it."""
        connection = sqlite3.connect(self.folder / "app.db", isolation_level=None, timeout=PATIENCE_S)
        try:
            connection.execute("BEGIN IMMEDIATE")
            yield
        finally:
            connection.close()

    async def _start(self, name: str, command: list[str], url: str, **environment: str) -> None:
        self._spawn(name, command, environment)
        with anyio.fail_after(PATIENCE_S):
            async with httpx.AsyncClient() as client:
                while True:
                    try:
                        await client.get(url)
                    except httpx.TransportError:
                        assert self._running[name].poll() is None, (self.folder / f"{name}.log").read_text()
                        await anyio.lowlevel.checkpoint()
                    else:
                        return

    def _spawn(self, name: str, command: list[str], environment: dict[str, str]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [sys.executable, "-m", *command],
                env=self._environment | environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        """As a crash does."""
        process = self._running.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    async def post(self, path: str) -> int:
        async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
            return (await client.post(f"http://127.0.0.1:{self.app_port}{path}")).status_code

    async def log(self, session_id: str) -> list[str]:
        async with httpx.AsyncClient() as client:
            found: list[str] = (await client.get(f"http://127.0.0.1:{self.app_port}/log/{session_id}")).json()
            return found

    def end(self) -> None:
        for name in list(self._running):
            self.kill(name)


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    """App and QStash server, running."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    made = House(tmp_path, listener.extra(anyio.abc.SocketAttribute.local_port))  # noqa: S610 - anyio's word
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, made.hear)
        try:
            await made.start_qstash()
            await made.start_app()
            yield made
        finally:
            made.end()
            tasks.cancel_scope.cancel()


async def test_dispatches_retries_and_timers_come_through_the_provider(house: House) -> None:
    """What is dispatched runs by its delivery, a failure again at its retry, a timer after its minute."""
    assert [200, 200, 200] == [
        await house.post(f"/{path}") for path in ("dispatch/s/a", "dispatch/t/fails", "schedule/u/b")
    ]
    await house.until({"a 1", "fails 1", "fails 2"}.issubset)
    assert [] == await house.log("u")
    await house.travel("1m")
    await house.until({"b 1"}.issubset)
    assert ["b"] == await house.log("u")


async def test_a_killed_app_is_woken_by_its_watchdog(house: House) -> None:
    """The app dies while a handler runs; started again, it is woken by the message that was armed beside the work."""
    assert 200 == await house.post("/append/s/hangs")
    await house.until({"hangs 1"}.issubset)
    house.kill("app")
    await house.start_app()
    await house.until({"hangs 2"}.issubset)


async def test_with_the_provider_down_nothing_is_lost(house: House) -> None:
    """Appends succeed and run, a dispatch says that it was not sent, and once the provider is back it runs too."""
    house.kill("qstash")
    assert [200, 503] == [await house.post("/append/s/a"), await house.post("/dispatch/t/b")]
    await house.until({"a 1"}.issubset)
    assert (["a"], ["b"]) == (await house.log("s"), await house.log("t"))
    await house.start_qstash()
    await house.until({"b 1"}.issubset)


async def test_a_restarted_provider_still_has_its_messages(house: House) -> None:
    """A timer that was accepted survives the server that carries it."""
    assert 200 == await house.post("/schedule/s/a")
    house.kill("qstash")
    await house.start_qstash()
    await house.travel("1m")
    await house.until({"a 1"}.issubset)


async def test_a_store_outage_makes_generations_and_recovers(house: House) -> None:
    """A timer and a retry find the store away; each publishes one generation after another until it is back."""
    assert [200, 200] == [await house.post("/schedule/s/a"), await house.post("/dispatch/t/fails")]
    await house.until({"fails 1"}.issubset)
    await house.until_saw("CREATED", lambda seen: 2 <= sum(entry["task"]["kind"] == "drain" for entry in seen))
    with house.store_away():
        for generation, delay in enumerate(["1m", "1m", "3m"]):
            await house.travel(delay)
            found = await house.until_saw("CREATED", lambda seen: 2 == len(lineage(seen, generation)))  # noqa: B023
            assert {"append", "drain"} == {task["kind"] for task in lineage(found, generation)}
    await house.travel("10m")
    await house.until({"a 1", "fails 2"}.issubset)
    assert (["a"], ["fails"]) == (await house.log("s"), await house.log("t"))


def lineage(seen: list[dict[str, Any]], generation: int) -> list[dict[str, Any]]:
    """The tasks of that outage generation."""
    return [
        task for task in (entry["task"] for entry in seen) if task.get("_a2QStash", {}).get("generation") == generation
    ]


async def test_a_busy_session_is_tried_again_once_its_holder_is_gone(house: House) -> None:
    """A second process hangs at work: each delivery is followed by one more, until a last one finds it dead."""
    port = free_port()
    await house.start_app_at(port, "other")
    async with httpx.AsyncClient() as client, anyio.create_task_group() as tasks:
        tasks.start_soon(client.post, f"http://127.0.0.1:{port}/append/s/hangs")
        await house.until({"hangs 1"}.issubset)
        tasks.cancel_scope.cancel()
    assert 200 == await house.post("/dispatch/s/b")
    delivered = await house.until_saw("DELIVERED", lambda seen: 3 <= len(seen))
    due = [entry["task"]["dueAt"] for entry in delivered]
    assert sorted(set(due)) == due
    assert "hangs 2" not in house.effects
    house.kill("other")
    await house.until({"hangs 2", "b 1"}.issubset)


async def test_a_delivery_that_cannot_be_handed_on_comes_again(house: House) -> None:
    """Store and provider are away at once: 503, so the same message is delivered again, and then it is done."""
    assert 200 == await house.post("/schedule/s/a")
    house.kill("app")
    await house.start_app(QSTASH_URL=f"http://127.0.0.1:{free_port()}")
    with house.store_away():
        await house.travel("1m")
        [refused] = await house.until_saw("ERROR", bool)
    assert 503 == refused["responseStatus"]
    await house.travel("1h")
    await house.until({"a 1"}.issubset)
    [delivered] = await house.until_saw("DELIVERED", bool)
    assert (refused["messageId"], ["a"]) == (delivered["messageId"], await house.log("s"))
