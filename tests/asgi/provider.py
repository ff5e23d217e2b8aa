"""A QStash in memory: it takes messages as an HTTP client, and delivers them signed, when a test says so."""

import base64
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

import httpx
import jwt

from a2asgi import A2, A2Middleware, QStash
from a2asgi.clock import SystemClock, no_op
from a2asgi.lifespan import ASGIApp, Receive, Scope, Send

URL = "https://app.example.com/api/a2/scheduler"
KEYS = ("sig_current_0123456789abcdef0123456789", "sig_next_0123456789abcdef0123456789")


class Frozen:
    """A clock that starts at the time of day and then stands still, until a test moves it."""

    def __init__(self) -> None:
        self.at_ms = SystemClock().now_ms()

    def now_ms(self) -> int:
        return self.at_ms

    async def sleep_ms(self, duration_ms: int, on_wake: Any = no_op) -> None:
        self.at_ms += duration_ms
        on_wake()


@dataclass(frozen=True)
class Reply:
    """What QStash answers to a publish."""

    status_code: int = 201
    text: str = '{"messageId":"msg_1"}'


@dataclass
class Provider:
    """Takes messages as an httpx client does, and keeps each deduplication id once."""

    replies: list[Reply | Exception] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    held: dict[str, dict[str, Any]] = field(default_factory=dict)
    key: str = KEYS[0]

    async def request(self, method: str, url: str, *, content: bytes, headers: dict[str, str]) -> Reply:
        """As httpx.AsyncClient.request."""
        call = {"method": method, "url": url, "body": content, **headers}
        self.calls.append(call)
        reply = self.replies.pop(0) if self.replies else Reply()
        if isinstance(reply, Exception):
            raise reply
        if reply.status_code < 300:
            self.held.setdefault(headers["upstash-deduplication-id"], call)
        return reply

    @property
    def tasks(self) -> list[dict[str, Any]]:
        """The bodies that were taken, once for each id."""
        return [json.loads(call["body"]) for call in self.held.values()]

    def take(self, index: int = 0) -> bytes:
        """One of the messages, to be delivered; it is kept no longer."""
        name = list(self.held)[index]
        body: bytes = self.held.pop(name)["body"]
        return body

    def sign(self, body: bytes, **claims: Any) -> str:
        """A signature as QStash makes it."""
        digest = base64.urlsafe_b64encode(hashlib.sha256(body).digest()).decode()
        usual = {"iss": "Upstash", "sub": URL, "exp": 4_102_444_800, "nbf": 0, "iat": 1_700_000_000, "body": digest}
        return jwt.encode(usual | claims, self.key, algorithm="HS256")

    async def deliver(self, app: ASGIApp, body: bytes, **headers: str) -> httpx.Response:
        """Call the app back; `headers` with underscores replace or add to the usual ones."""
        sent = {"upstash-signature": self.sign(body), "content-type": "application/json"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="https://app.example.com") as client:
            return await client.post("/api/a2/scheduler", content=body, headers=sent)


PREVIEW = {"VERCEL": "1", "VERCEL_ENV": "preview", "VERCEL_BRANCH_URL": "app-git-x.vercel.app"}
"""The environment of a Vercel preview, from which the callback's URL is inferred; only there is a token passed on."""


def qstash(provider: Provider, clock: Frozen | None = None, **options: Any) -> QStash:
    """The scheduler of an app that this provider carries for."""
    keys = {"current_signing_key": KEYS[0], "next_signing_key": KEYS[1]}
    return QStash(**{"url": URL, "client": provider, "environment": {}, "clock": clock, **keys, **options})


async def nothing_else(scope: Scope, receive: Receive, send: Send) -> None:
    """An app that has no routes."""
    del receive
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b""})


def served(a2: A2) -> A2Middleware:
    """The app around nothing."""
    return A2Middleware(nothing_else, a2)
