"""What the tests of the QStash-compatible server share: a clock to move, destinations that tell, the server between."""

import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import anyio
import httpx
from qstash import Receiver
from qstash.errors import SignatureError

from a2asgi.development import DEVELOPMENT_TOKEN
from a2asgi.qstash_server import QStashServer, Settings
from a2asgi.qstash_server.credentials import DEV_KEYS
from a2asgi.qstash_server.rules import parse_duration
from a2asgi.testing import ManualClock

START_MS = 1_800_000_000_000
PATIENCE_S = 10.0
"""How long a test waits for what must come at once: a hang fails, and a slow machine does not."""

URL = "https://shop.example.com/hook"


@dataclass
class Delivery:
    """One request that reached a destination. `genuine` is the official receiver's verdict."""

    url: str
    method: str
    headers: httpx.Headers = field(repr=False)
    body: bytes = field(repr=False)
    genuine: bool

    @property
    def retried(self) -> int:
        return int(self.headers["upstash-retried"])

    def json(self) -> Any:
        return json.loads(self.body)


def done(_: Delivery) -> httpx.Response:
    return httpx.Response(200, text="done")


class Destinations(httpx.AsyncBaseTransport):
    """All destinations at once: keeps what arrives, and answers as the test says."""

    def __init__(self) -> None:
        self.seen: list[Delivery] = []
        self.answers: dict[str, Callable[[Delivery], httpx.Response]] = {}
        self.held: dict[str, anyio.Event] = {}
        self.arrived = anyio.Event()
        self._receiver = Receiver(DEV_KEYS.current, DEV_KEYS.next)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        delivery = Delivery(str(request.url), request.method, request.headers, body, genuine=self._judge(request, body))
        self.seen.append(delivery)
        self.arrived.set()
        self.arrived = anyio.Event()
        path = request.url.path
        if path in self.held:
            await self.held[path].wait()
        answer = self.answers.get(path, done)(delivery)
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content, request=request)

    def _judge(self, request: httpx.Request, body: bytes) -> bool:
        try:
            self._receiver.verify(
                signature=request.headers.get("upstash-signature", ""), body=body.decode(), url=str(request.url)
            )
        except SignatureError:
            return False
        return True

    def answer(self, path: str, status: int, text: str = "", **headers: str) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.answers[path] = lambda _: httpx.Response(status, text=text, headers=named)

    def at(self, path: str) -> list[Delivery]:
        return [delivery for delivery in self.seen if httpx.URL(delivery.url).path == path]


class House:
    """A server in this process, with its clock, its destinations and a client, for the length of a test."""

    def __init__(self, **settings: Any) -> None:
        self.clock = ManualClock(START_MS)
        self.destinations = Destinations()
        self.server = QStashServer(Settings(**settings), clock=self.clock, transport=self.destinations)
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(self.server),
            base_url="http://127.0.0.1:8080",
            headers={"authorization": f"Bearer {DEVELOPMENT_TOKEN}"},
        )
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._group = await self._stack.enter_async_context(anyio.create_task_group())
        await self._stack.enter_async_context(self.client)
        await self._group.start(self.server.run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._group.cancel_scope.cancel()
        return await self._stack.__aexit__(kind, error, trace)

    async def call(self, method: str, path: str, status: int = 200, body: Any = None, **headers: str) -> Any:
        """One request to the API; the answer must have that status. `upstash_retries="3"` is a header."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        content = body if isinstance(body, bytes | str | None) else json.dumps(body)
        answer = await self.client.request(method, path, content=content, headers=named)
        assert status == answer.status_code, answer.text
        return answer.json()

    async def publish(self, url: str = URL, body: str | bytes = "{}", status: int = 200, **headers: str) -> Any:
        return await self.call("POST", f"/v2/publish/{url}", status, body, **headers)

    async def settled(self) -> None:
        with anyio.fail_after(PATIENCE_S):
            await self.server.deliveries.settled()

    async def after(self, duration: str) -> None:
        """Move the clock, and wait until all that is due by then is done."""
        duration_ms = parse_duration(duration)
        assert duration_ms is not None
        self.clock.move_to(self.clock.now_ms() + duration_ms)
        self.server.deliveries.wake()
        await self.settled()

    async def arrivals(self, count: int) -> None:
        """Wait until so many requests have reached the destinations, answered or not."""
        with anyio.fail_after(PATIENCE_S):
            while len(self.destinations.seen) < count:
                await self.destinations.arrived.wait()

    async def events(self, **query: str) -> list[dict[str, Any]]:
        answer = await self.client.get("/v2/events", params=query)
        found: list[dict[str, Any]] = answer.json()["events"]
        return found

    async def states(self, message_id: str) -> list[str]:
        """The states that the logs tell of a message, the first first."""
        return [event["state"] for event in reversed(await self.events(messageId=message_id))]
