"""The load: clients that send until they are answered, and the ledger of what was answered."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import anyio
import httpx

from tests.crash.processes import Server

PAUSE_S = 0.02
TIMEOUT_S = 15
MAX_DELAY_MS = 3_000
KEYS = 12
POISON = 40
"""One event of so many is never handled with success."""


@dataclass(frozen=True)
class Sent:
    """An event that a client sent, until it was answered, in a batch of these ids."""

    session: str
    type: str
    number: int
    batch: tuple[str, ...]


@dataclass
class Timer:
    """A timer that was accepted; `cancelled` says that it was called off in time."""

    session: str
    name: str
    at_ms: int
    cancelled: bool = False


@dataclass
class Ledger:
    """What was sent, and what was answered."""

    sent: dict[str, Sent] = field(default_factory=dict)
    acknowledged: dict[str, list[tuple[int, bool]]] = field(default_factory=dict)
    """The seq that each answer told, and whether it said that the event is new."""
    timers: dict[str, Timer] = field(default_factory=dict)
    jobs: list[str] = field(default_factory=list)
    repeated: int = 0
    """Requests that were sent again, since no answer or a refusal came."""


class Load:
    """Clients of all servers, on so many sessions."""

    def __init__(self, servers: Sequence[Server], sessions: int, seed: int) -> None:
        self.ledger = Ledger()
        self.is_over = False
        """Clients end once this is true and every session has an event."""
        self._servers = servers
        self._random = Random(seed)  # noqa: S311 - the same load each time
        self._names = [f"s{number}" for number in range(sessions)]
        self._fresh = self._random.sample(self._names, sessions)
        self._number = 0
        self._news = anyio.Event()

    async def until(self, acknowledged: int) -> None:
        """Return once so many events are acknowledged."""
        while len(self.ledger.acknowledged) < acknowledged:
            self._news = anyio.Event()
            await self._news.wait()

    async def run(self, clients: int) -> None:
        """Let so many clients send, each one request after another, until it is over."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=clients * len(self._servers))
        async with httpx.AsyncClient(timeout=TIMEOUT_S, limits=limits) as client, anyio.create_task_group() as tasks:
            for _ in range(clients):
                tasks.start_soon(self._send_on, client)

    async def _send_on(self, client: httpx.AsyncClient) -> None:
        while self._fresh or not self.is_over:
            await self._send(client)

    async def _send(self, client: httpx.AsyncClient) -> None:
        draw = self._random.random()
        if draw < 0.7:
            await self._append(client)
        elif draw < 0.85:
            await self._enqueue(client)
        else:
            await self._schedule(client)

    async def _append(self, client: httpx.AsyncClient) -> None:
        session = self._fresh.pop() if self._fresh else self._random.choice(self._names)
        events = [self._event() for _ in range(self._random.choice((1, 1, 1, 2)))]
        ids = tuple(event["id"] for event in events)
        for event in events:
            self.ledger.sent[event["id"]] = Sent(session, event["type"], event["number"], ids)
        times = self._random.choice((1, 1, 1, 1, 1, 1, 2, 3))  # the same, at once or after another
        at_once = self._random.random() < 1 / 2
        body = {"session": session, "events": events}
        async with anyio.create_task_group() as tasks:
            for _ in range(times):
                if at_once:
                    tasks.start_soon(self._append_once, client, body, ids)
                else:
                    await self._append_once(client, body, ids)

    async def _append_once(self, client: httpx.AsyncClient, body: dict[str, Any], ids: Sequence[str]) -> None:
        answer = await self._ask(client, "append", body)
        for id_, seq in zip(ids, answer["seqs"], strict=True):
            self.ledger.acknowledged.setdefault(id_, []).append((seq, answer["new"]))
        self._news.set()

    def _event(self) -> dict[str, Any]:
        self._number += 1
        type_ = "poison" if self._number % POISON == 0 else self._random.choice(("step", "step", "task"))
        return {"type": type_, "id": f"{type_}-{self._number}", "number": self._number}

    async def _enqueue(self, client: httpx.AsyncClient) -> None:
        self._number += 1
        key = f"k{self._random.randrange(KEYS)}" if self._random.random() < 1 / 2 else None
        answer = await self._ask(client, "enqueue", {"number": self._number, "key": key})
        self.ledger.jobs.append(answer["id"])

    async def _schedule(self, client: httpx.AsyncClient) -> None:
        self._number += 1
        name = f"t{self._number}"
        at_ms = time.time_ns() // 1_000_000 + self._random.randrange(MAX_DELAY_MS)
        timer = self.ledger.timers[name] = Timer(self._random.choice(self._names), name, at_ms)
        where = {"session": timer.session, "name": name}
        await self._ask(client, "schedule", where | {"at_ms": at_ms})
        if self._random.random() < 1 / 4:
            timer.cancelled = (await self._ask(client, "cancel", where))["cancelled"]

    async def _ask(self, client: httpx.AsyncClient, what: str, body: dict[str, Any]) -> Any:
        """Ask one server after another, until one answers."""
        while True:
            urls = [server.url for server in self._servers if server.url is not None]
            if urls:
                try:
                    response = await client.post(f"{self._random.choice(urls)}/{what}", json=body)
                except httpx.TransportError:
                    pass
                else:
                    if response.status_code == httpx.codes.OK:
                        return response.json()
                    if response.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                        raise AssertionError(f"{what} {body}: {response.status_code} {response.text}")
                self.ledger.repeated += 1
            await anyio.sleep(PAUSE_S)
