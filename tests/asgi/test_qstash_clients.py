"""The scheduler publishes through whatever client an app has: httpx's, or QStash's own, async or not."""

import socket
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from anyio import to_thread
from qstash import AsyncQStash
from qstash import QStash as OfficialQStash

from a2asgi import QStash, SendFailed
from a2asgi.development import DEVELOPMENT_KEYS, DEVELOPMENT_TOKEN
from a2core import DrainTask
from tests.asgi.provider import KEYS
from tests.asgi.qstash_server.processes import Command, Hook

HEADERS = {"authorization": f"Bearer {DEVELOPMENT_TOKEN}"}


def scheduler(url: str, client: Any, server: Command) -> QStash:
    return QStash(
        url=url,
        client=client,
        base_url=server.url,
        headers={"X-Bypass": "b"},
        current_signing_key=DEVELOPMENT_KEYS[0],
        next_signing_key=DEVELOPMENT_KEYS[1],
        environment={},
    )


async def close(client: Any) -> None:
    """The official clients have no way to close of their own."""
    inner = client.http._client if hasattr(client, "http") else client  # noqa: SLF001 - see above
    if hasattr(inner, "aclose"):
        await inner.aclose()
    else:
        inner.close()


@pytest.mark.parametrize(
    "make_client",
    [
        pytest.param(lambda _: httpx.AsyncClient(headers=HEADERS), id="httpx"),
        pytest.param(lambda url: AsyncQStash(DEVELOPMENT_TOKEN, base_url=url, retry=False), id="official-async"),
        pytest.param(lambda url: OfficialQStash(DEVELOPMENT_TOKEN, base_url=url, retry=False), id="official"),
    ],
)
async def test_a_message_arrives_signed_and_whole(make_client: Callable[[str], Any]) -> None:
    """The same task arrives the same way, with its header, and our verifier accepts it."""
    with Command("--db", ":memory:") as server, Hook() as hook:
        url = f"{hook.origin}/api/a2/scheduler"
        client = make_client(server.url)
        sender = scheduler(url, client, server)
        await sender.send(DrainTask("orders", "é/1", 0))
        await close(client)
        path, headers, body = await to_thread.run_sync(hook.next)
        assert ("/api/a2/scheduler", "b", "application/json") == (path, headers["x-bypass"], headers["content-type"])
        assert sender.verify(headers["upstash-signature"], body, headers.get("upstash-region"))
        assert not sender.verify(headers["upstash-signature"], body + b" ", None)
        assert "é/1" in body.decode()


@pytest.mark.parametrize("client_class", [AsyncQStash, OfficialQStash])
async def test_a_refusal_is_told_by_the_official_client_too(client_class: Callable[..., Any]) -> None:
    """A wrong token is a failure for good, with the provider's status and words; no secret is in the text."""
    with Command("--db", ":memory:") as server:
        client = client_class("a-wrong-token", base_url=server.url, retry=False)
        sender = scheduler("https://app.example.com/?bypass=hunter2", client, server)
        with pytest.raises(SendFailed, match=r"401.*app\.example\.com") as failure:
            await sender.send(DrainTask("orders", "s", 0))
        await close(client)
        assert failure.value.terminal
        assert not any(secret in str(failure.value) for secret in ("a-wrong-token", "hunter2"))


async def test_a_trouble_of_the_official_client_may_be_tried_again() -> None:
    """What tells no status is not known to be pointless."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens there
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        client = OfficialQStash(DEVELOPMENT_TOKEN, base_url=url, retry=False)
        sender = QStash(
            url="https://app.example.com/",
            client=client,
            current_signing_key=KEYS[0],
            next_signing_key=KEYS[1],
            environment={},
        )
        with pytest.raises(SendFailed, match="ConnectError") as failure:
            await sender.send(DrainTask("orders", "s", 0))
        await close(client)
    assert not failure.value.terminal
