"""What the tests of the running part share: a small shop of events, fakes, and an ASGI host without a server."""

import math
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from threading import Event as ThreadEvent
from types import TracebackType
from typing import Any, Self, TypeAlias

import anyio

from a2asgi import A2, Context, Event, MemoryStore, Session, SessionKey, Wakes
from a2core import Json

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]

PATIENCE_S = 5.0
"""How long a test waits for what must come at once: a hang fails, and a slow machine does not."""


# ── a small shop ─────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Placed:
    """An order, which a handler reacts to."""

    sku: str = "tea"


@dataclass(frozen=True)
class Packed:
    """What a handler produces."""

    sku: str = "tea"


@dataclass(frozen=True)
class Noted:
    """A note, which no handler reacts to."""

    text: str = ""


class Shop:
    """An A2 with one contract of three events, of which a test handles what it likes."""

    def __init__(self, **options: Any) -> None:
        self.a2 = A2(**options)
        self.orders = self.a2.contract("orders")
        self.placed = self.orders.event("placed")(Placed)
        self.packed = self.orders.event("packed")(Packed)
        self.noted = self.orders.event("noted")(Noted)
        self.o1 = self.orders.session("o1")


class Script:
    """A handler that answers each attempt by the next entry of its script: an error is raised, the rest returned."""

    def __init__(self, *answers: object) -> None:
        self.events: list[Event[Any]] = []
        self.contexts: list[Context] = []
        self._answers = list(answers)

    async def __call__(self, event: Event[Any], ctx: Context) -> object:
        self.events.append(event)
        self.contexts.append(ctx)
        answer = self._answers.pop(0) if self._answers else None
        if isinstance(answer, BaseException):
            raise answer
        return answer

    @property
    def attempts(self) -> list[int]:
        """The number of each attempt, in the order in which they ran."""
        return [ctx.attempt for ctx in self.contexts]


async def log_of(session: Session) -> list[tuple[str, object]]:
    """The type and payload of each event in the session's log."""
    return [(event.type, event.payload) for event in await session.read()]


async def types_of(session: Session) -> list[str]:
    """The type of each event in the session's log."""
    return [event.type for event in await session.read()]


def ids_of(events: Iterable[Event[Any]]) -> list[str]:
    """The id of each event."""
    return [event.id for event in events]


def nested(levels: int) -> Json:
    """Lists, `levels` deep."""
    value: Json = 0
    for _ in range(levels):
        value = [value]
    return value


async def until(event: ThreadEvent) -> None:
    """Wait for a thread's event without blocking the loop, and without leaving a thread behind."""
    with anyio.fail_after(PATIENCE_S):
        while not event.is_set():
            await anyio.lowlevel.checkpoint()


# ── fakes ────────────────────────────────────────────────────────────────────────────────


class JournalStore(MemoryStore):
    """A memory store that notes in a journal when it is opened, closed, and asked for wake-ups."""

    def __init__(self, journal: list[str], **options: Any) -> None:
        super().__init__(**options)
        self.journal = journal

    async def open(self) -> None:
        self.journal.append("store opens")
        await super().open()

    async def close(self) -> None:
        self.journal.append("store closes")
        await super().close()

    async def wakes_due(self, key: SessionKey) -> Wakes:
        """What a process that looked now would take."""
        return await self.claim_wakes([key.contract], limit=1, lease_ms=0)


class BrokenStore(MemoryStore):
    """A memory store whose `open` and `ping` raise what they are told to."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error: Exception | None = error

    async def open(self) -> None:
        await self.ping()

    async def ping(self) -> None:
        if self.error is not None:
            raise self.error


# ── an ASGI host ─────────────────────────────────────────────────────────────────────────


class Host:
    """A server's side of one lifespan: the app runs in a task, and is told of start and end when the test says so.

    Leaving it ends that task as a server does that is told to quit at once.
    """

    def __init__(self, app: App, journal: list[str] | None = None) -> None:
        self.heard: list[Message] = []
        self.scope: Message = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": {}}
        self._journal = [] if journal is None else journal
        self._app = app
        self._tasks = anyio.create_task_group()
        self._to_app, self._app_receives = anyio.create_memory_object_stream[Message](math.inf)
        self._app_sends, self._from_app = anyio.create_memory_object_stream[Message](math.inf)
        self.ended = anyio.Event()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tasks.cancel_scope.cancel()
        try:
            await self._tasks.__aexit__(kind, error, trace)
        finally:
            for stream in (self._to_app, self._app_receives, self._app_sends, self._from_app):
                stream.close()

    async def startup(self) -> Message:
        """Say `lifespan.startup`, and return the app's answer."""
        return await self._ask("lifespan.startup")

    async def shutdown(self) -> Message:
        """Say `lifespan.shutdown`, and return the app's answer."""
        return await self._ask("lifespan.shutdown")

    def say_shutdown(self) -> None:
        """Say `lifespan.shutdown`, and wait for nothing."""
        self._to_app.send_nowait({"type": "lifespan.shutdown"})

    async def answer(self) -> Message:
        """The app's next answer."""
        with anyio.fail_after(PATIENCE_S):
            return await self._from_app.receive()

    async def _ask(self, kind: str) -> Message:
        self._to_app.send_nowait({"type": kind})
        return await self.answer()

    async def _run(self) -> None:
        await self._app(self.scope, self._app_receives.receive, self._hear)
        self.ended.set()

    async def _hear(self, message: Message) -> None:
        self.heard.append(message)
        self._journal.append(f"host hears {message['type']}")
        await self._app_sends.send(message)


class Served:
    """An app between its start and its end, both of which must succeed."""

    def __init__(self, app: App, journal: list[str] | None = None) -> None:
        self._host = Host(app, journal)

    async def __aenter__(self) -> Host:
        await self._host.__aenter__()
        assert {"type": "lifespan.startup.complete"} == await self._host.startup()
        return self._host

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                assert {"type": "lifespan.shutdown.complete"} == await self._host.shutdown()
                with anyio.fail_after(PATIENCE_S):
                    await self._host.ended.wait()
        finally:
            await self._host.__aexit__(kind, error, trace)


@dataclass(frozen=True)
class Answer:
    """A whole HTTP response."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass
class Exchange:
    """One HTTP exchange: what the client sends, chunk by chunk, and all that the app answers."""

    chunks: list[bytes] = field(default_factory=lambda: [b""])
    sent: list[Message] = field(default_factory=list)

    async def receive(self) -> Message:
        """The next chunk; once the client has nothing more to send, it is gone."""
        await anyio.lowlevel.checkpoint()
        if not self.chunks:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": self.chunks.pop(0), "more_body": bool(self.chunks)}

    async def send(self, message: Message) -> None:
        """Note what the app sends."""
        await anyio.lowlevel.checkpoint()
        self.sent.append(message)

    @property
    def answer(self) -> Answer:
        """All of it as one response."""
        start, *bodies = self.sent
        headers = {name.decode(): value.decode() for name, value in start["headers"]}
        return Answer(start["status"], headers, b"".join(body.get("body", b"") for body in bodies))


def http_scope(path: str, method: str = "GET", *, root_path: str = "") -> Message:
    """The scope of an HTTP request, as uvicorn makes it."""
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": root_path,
        "headers": [(b"host", b"testserver")],
        "client": ("127.0.0.1", 50_000),
        "server": ("127.0.0.1", 8_000),
    }


async def request(app: App, path: str, method: str = "GET", *, root_path: str = "") -> Answer:
    """One request, from its first byte to the last of its response."""
    exchange = Exchange()
    with anyio.fail_after(PATIENCE_S):
        await app(http_scope(path, method, root_path=root_path), exchange.receive, exchange.send)
    return exchange.answer
