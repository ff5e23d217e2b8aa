"""What the tests of crons share: instants as texts, a cron that notes its slots, and whoever triggers it over HTTP."""

import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx

from a2asgi import A2
from a2asgi.lifespan import ASGIApp
from a2asgi.testing import World
from a2asgi.times import instant_ms
from tests.asgi.provider import Provider, Reply

MINUTE_MS = 60_000
SECRET = "hunter2-signing"
BASE = "https://app.example.com"


def at(text: str) -> datetime:
    """The instant that a text names, in UTC unless it says otherwise."""
    instant = datetime.fromisoformat(text)
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)


def ms(text: str) -> int:
    """The same in milliseconds since the Unix epoch."""
    return instant_ms(at(text))


async def reach(world: World, text: str) -> None:
    """Let time pass until an instant."""
    await world.advance(at(text) - world.now)


def reporting(expression: str, a2: A2 | None = None, **options: Any) -> tuple[A2, list[str]]:
    """An A2 with the cron `report`, and the slots that it is run for, as they come."""
    a2 = A2() if a2 is None else a2
    slots: list[str] = []

    @a2.cron(expression, **options)
    async def report(slot: datetime) -> None:
        slots.append(slot.isoformat())

    return a2, slots


def utc(*texts: str) -> list[str]:
    """Slots of a day in UTC as `reporting` notes them: "01-02T03:04" of 2026."""
    return [f"2026-{text}:00+00:00" for text in texts]


def signed(task_id: str, slot_ms: int, secret: str = SECRET) -> dict[str, str]:
    """The headers of a signed schedule request as wire.md 10 has them, made apart from the core."""
    digest = hmac.digest(secret.encode(), f"{task_id}\n{slot_ms}".encode(), "sha256").hex()
    return {"X-A2-Cron-Slot": str(slot_ms), "X-A2-Cron-Signature": f"sha256={digest}"}


async def call(
    app: ASGIApp,
    path: str,
    method: str = "POST",
    headers: Mapping[str, str] | Sequence[tuple[str, str]] = (),
    *,
    content: bytes = b"",
    prefix: str = "/api/a2",
    root_path: str = "",
) -> httpx.Response:
    """One request below a2's prefix."""
    transport = httpx.ASGITransport(app, root_path=root_path)
    async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
        return await client.request(method, f"{prefix}{path}", headers=headers or None, content=content)


async def sign_and_call(app: ASGIApp, path: str, slot_ms: int, **options: Any) -> tuple[int, dict[str, str]]:
    """A signed request for a slot of `/cron/name` or `/maintenance/name`: its status, and what it answers."""
    task_id = path.removeprefix("/").replace("/", ":")
    response = await call(app, path, headers=signed(task_id, slot_ms), **options)
    return response.status_code, response.json()


@dataclass
class Schedules(Provider):
    """A QStash that holds schedules; `replies` are answered first, instead."""

    listing: dict[str, dict[str, str]] = field(default_factory=dict)

    async def request(self, method: str, url: str, *, content: bytes, headers: dict[str, str]) -> Reply:
        """As httpx.AsyncClient.request."""
        if self.replies:
            reply = self.replies.pop(0)
            if isinstance(reply, Exception):
                raise reply
            return reply
        if method == "GET":
            return Reply(200, json.dumps(list(self.listing.values())))
        self.listing[headers["upstash-schedule-id"]] = {
            "scheduleId": headers["upstash-schedule-id"],
            "cron": headers["upstash-cron"],
            "destination": url.partition("/v2/schedules/")[2],
            "method": headers["upstash-method"],
            "body": content.decode(),
        }
        return Reply(200, '{"scheduleId":"s"}')
