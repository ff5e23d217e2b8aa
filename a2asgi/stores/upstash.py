"""The Upstash store: the Redis store's scripts over Upstash's REST interface, with no connection held."""

import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from a2asgi.errors import ConfigurationError, StoreBroken, StoreUnavailable
from a2asgi.signatures import shown_url
from a2asgi.stores.redis_link import AnswerLost, Link, refusal
from a2asgi.stores.redis_scripts import Script
from a2asgi.stores.redis_store import ScriptStore
from a2asgi.times import Duration, duration_ms

PASSING_STATUSES = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}
MAX_SHOWN = 300


class UpstashStore(ScriptStore):
    """Keeps sessions in Upstash Redis, or behind any server of its REST protocol, for serverless hosts.

    `url` is the database's REST URL, `token` its token; on Upstash they are called UPSTASH_REDIS_REST_URL and
    UPSTASH_REDIS_REST_TOKEN. `prefix`, `shards` and `timeout` are those of RedisStore, and the data is the same: a
    RedisStore on the same database finds it. A transaction is two requests. Nothing connects before `open`.

    What is acknowledged is as durable as the database: one with replicas in several regions may lose the last writes
    when its leader fails. Eviction must be off.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        prefix: str = "a2",
        shards: int | None = None,
        timeout: Duration = "5s",
    ) -> None:
        if not re.match(r"https?://[^/]", url):
            raise ConfigurationError(f"UpstashStore: expected an http(s) URL, got {shown_url(url)!r}")
        if "@" in urlsplit(url).netloc:
            raise ConfigurationError("UpstashStore: expected a URL without a user, as HTTP clients log URLs: got one")
        if not token or not token.isascii() or not token.isprintable():
            raise ConfigurationError("UpstashStore: expected the REST token of the database, got none, or no token")
        self._url = url
        self._token = token
        self._timeout_s = duration_ms(timeout) / 1_000
        super().__init__(shown_url(url), self._connect, prefix=prefix, shards=shards, default=1)

    def __repr__(self) -> str:
        return f"UpstashStore({shown_url(self._url)!r}, prefix={self._prefix!r})"

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[Link]:
        try:
            import httpx  # noqa: PLC0415 - only who uses Upstash needs it
        except ImportError as error:
            raise ConfigurationError('UpstashStore needs httpx: install "a2[upstash]"') from error
        headers = {"authorization": f"Bearer {self._token}", "content-type": "application/json"}
        async with httpx.AsyncClient(headers=headers, timeout=self._timeout_s, follow_redirects=False) as client:
            yield _Client(httpx, client, self._url, self._where)


class _Client:
    """Posts one command at a time, as JSON. A script that the server knows is named by its digest."""

    def __init__(self, httpx: Any, client: Any, url: str, where: str) -> None:
        self._httpx = httpx
        self._client = client
        self._url = url
        self._where = where

    async def run(self, script: Script, keys: Sequence[str], arguments: Sequence[str | int]) -> Any:
        """As Link.run."""
        parts = [len(keys), *keys, *arguments]
        reply = await self._post(["EVALSHA", script.sha, *parts])
        if str(reply.get("error", "")).startswith("NOSCRIPT"):
            reply = await self._post(["EVAL", script.text, *parts])
        if "error" in reply:
            raise refusal(self._where, str(reply["error"])[:MAX_SHOWN])
        return reply["result"]

    async def _post(self, command: Sequence[str | int]) -> dict[str, Any]:
        """One command's reply. Raises AnswerLost, StoreUnavailable or StoreBroken for whatever is none."""
        try:
            body = json.dumps(command, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise StoreBroken(f"{self._where}: {error}; a lone surrogate is no text that Redis keeps") from None
        try:
            response = await self._client.post(self._url, content=body)
        except self._httpx.TimeoutException as error:
            raise AnswerLost(f"{self._where}: no answer in time: {type(error).__name__}") from error
        except (self._httpx.TransportError, OSError) as error:
            raise AnswerLost(f"{self._where}: {type(error).__name__}: {error}") from error
        status: int = response.status_code
        try:
            reply = response.json()
        except ValueError:
            reply = None
        if isinstance(reply, dict) and ("result" in reply) != ("error" in reply) and status not in PASSING_STATUSES:
            if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
                raise StoreBroken(f"{self._where}: {str(reply.get('error'))[:MAX_SHOWN]}; check the token")
            if status < HTTPStatus.INTERNAL_SERVER_ERROR:
                return reply
        told = f"{self._where}: expected a reply of Upstash's REST interface, got status {status}"
        if status in PASSING_STATUSES:
            raise StoreUnavailable(told)
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise AnswerLost(told)
        raise StoreBroken(told)
