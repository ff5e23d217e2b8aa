"""The Redis store: sessions on a Redis or Valkey server or cluster, through coredis."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, cast
from urllib.parse import unquote, urlsplit

import anyio

from a2asgi.errors import ConfigurationError, StoreBroken, StoreUnavailable
from a2asgi.listening import Ears
from a2asgi.loop_thread import LoopThread
from a2asgi.ports import Ear, SessionKey
from a2asgi.signatures import shown_url
from a2asgi.stores.redis_link import AnswerLost, Data, Link, refusal
from a2asgi.stores.redis_scripts import WATCH, Script
from a2asgi.stores.redis_store import ScriptStore
from a2asgi.times import Duration, duration_ms

SCHEMES = ("redis://", "rediss://", "unix://")
CLUSTER_SHARDS = 16
DEFAULT_PORT = 6379
IDLE_S = 5
"""After so long without a hint the subscriber's connection is asked whether it still answers."""

TIMEOUTS = ("stream_timeout", "connect_timeout", "pool_timeout")
CODES = (
    ("AuthenticationFailureError", "WRONGPASS"),
    ("AuthenticationRequiredError", "NOAUTH"),
    ("AuthorizationError", "NOPERM"),
    ("ClusterDownError", "CLUSTERDOWN"),
    ("ClusterError", "CLUSTERDOWN"),
    ("ClusterCrossSlotError", "CROSSSLOT"),
    ("MovedError", "MOVED"),
    ("AskError", "ASK"),
    ("ReadOnlyError", "READONLY"),
    ("TryAgainError", "TRYAGAIN"),
)


class RedisStore(ScriptStore):
    """Keeps sessions on a Redis or Valkey server, 6.2 or later, shared by any number of processes.

    `url`: `redis://[user:password@]host:port/db`, `rediss://` for TLS, or `unix://path`; characters with a meaning
    in URLs are percent-encoded. `cluster`: the server is one of a cluster, the others are found through it. `prefix`
    begins all keys: two stores of one server need two. `shards`: into how many slots the sessions are spread, 16 on
    a cluster and 1 elsewhere; it is decided when the data begins, and found there later. `timeout` bounds each
    command. Nothing connects before `open`.

    What is acknowledged is as durable as the server. With `appendonly yes` and `appendfsync always` it survives a power
    cut; with `everysec`, Redis's default, a killed server loses nothing and a power cut, or a kernel crash, up to the
    last second or two, in which events were acknowledged, claims taken and timers set; without an append-only file
    it is the last snapshot that is left. A fail-over loses what the old server had not yet sent to its replica.
    Whatever is left is whole: a plan is there with all its rows and indexes, or not at all. `maxmemory-policy` must
    be `noeviction`, as another one may remove part of a session. A server that comes back empty is found out by a
    mark, told as an error in the log and StoreUnavailable, and then used as it is: servers put their crons in force
    again.
    """

    def __init__(
        self,
        url: str,
        *,
        cluster: bool = False,
        prefix: str = "a2",
        shards: int | None = None,
        timeout: Duration = "5s",
    ) -> None:
        if not url.startswith(SCHEMES):
            raise ConfigurationError(f"RedisStore: expected redis://, rediss:// or unix://, got {shown_url(url)!r}")
        self._url = url
        self._cluster = cluster
        self._timeout_s = duration_ms(timeout) / 1_000
        self._is_listening = False
        default = CLUSTER_SHARDS if cluster else 1
        super().__init__(shown_url(url), self._connect, prefix=prefix, shards=shards, default=default)

    def __repr__(self) -> str:
        return f"RedisStore({shown_url(self._url)!r}, prefix={self._prefix!r})"

    @property
    def hears(self) -> bool:
        """As PushingStore.hears."""
        return self._ears.hears

    @contextmanager
    def listening(self, ear: Ear) -> Iterator[None]:
        """As PushingStore.listening, by SUBSCRIBE: one connection more, from the first ear on until `close`."""
        with self._ears.listening(ear):
            with self._lock:
                if self._thread is not None and not self._is_listening:
                    self._is_listening = True
                    self._thread.accompany(self._listen)
            yield

    async def watch(self, key: SessionKey, for_ms: int) -> bool:
        """As PushingStore.watch."""

        async def job(data: Data) -> bool:
            arguments = [data.offset_ms, for_ms]
            [found] = await data.ask(WATCH, data.layout.shard_of(key), data.layout.names(key, "meta"), arguments)
            return bool(found == "1")

        return await self._run(job)

    def _new_thread(self) -> LoopThread[Link]:
        thread = super()._new_thread()
        self._is_listening = bool(self._ears)
        if self._is_listening:
            thread.accompany(self._listen)
        return thread

    async def _listen(self, link: Link) -> None:
        """Hear of what others write, on the store's thread, and subscribe again after each failure."""
        client = cast("_Client", link)
        try:
            while True:
                try:
                    data = await self._data(link)
                    await client.hear(data.layout.channel, self._ears)
                except (StoreUnavailable, StoreBroken) as error:
                    await anyio.sleep(self._ears.lost(error))
        finally:
            self._ears.turn(hears=False)

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[Link]:
        try:
            import coredis  # noqa: PLC0415 - only who uses Redis needs it
        except ImportError as error:
            raise ConfigurationError('RedisStore needs coredis: install "a2[redis]"') from error
        settings: dict[str, Any] = dict.fromkeys(TIMEOUTS, self._timeout_s) | {"verify_version": False}
        client: Any
        if self._cluster:
            node = urlsplit(self._url)
            client = coredis.RedisCluster(
                startup_nodes=[coredis.connection.TCPLocation(node.hostname or "localhost", node.port or DEFAULT_PORT)],
                username=node.username and unquote(node.username),
                password=node.password and unquote(node.password),
                ssl=node.scheme == "rediss",
                **settings,
            )
        else:
            settings["retry_policy"] = coredis.retry.NoRetryPolicy()
            client = coredis.Redis.from_url(self._url, decode_components=True, **settings)
        async with client:
            yield _Client(coredis, client, self._where)


class _Client:
    """A client of coredis, which keeps connections, and connects again where one is lost."""

    def __init__(self, coredis: Any, client: Any, where: str) -> None:
        self._coredis = coredis
        self._errors = coredis.exceptions
        self._client = client
        self._where = where

    async def run(self, script: Script, keys: Sequence[str], arguments: Sequence[str | int]) -> Any:
        """As Link.run."""
        errors = self._errors
        try:
            names = [key.encode() for key in keys]
            values = [value.encode() if isinstance(value, str) else value for value in arguments]
        except UnicodeEncodeError as error:
            raise StoreBroken(f"{self._where}: {error}; a lone surrogate is no text that Redis keeps") from None
        try:
            try:
                answer = await self._client.evalsha(script.sha, keys=names, args=values)
            except errors.NoScriptError:
                answer = await self._client.eval(script.text, keys=names, args=values)
        except TimeoutError as error:
            self._client.connection_pool.disconnect()  # one that has gone silent is not asked again
            raise AnswerLost(f"{self._where}: no answer in time: {error}") from error
        except (errors.ConnectionError, OSError, anyio.ClosedResourceError, anyio.BrokenResourceError) as error:
            raise AnswerLost(f"{self._where}: {error}") from error
        except errors.RedisError as error:
            raise refusal(self._where, f"{self._code(error)}{error}") from error
        return _text(answer)

    async def hear(self, channel: str, ears: Ears) -> None:
        """Pass on what comes on a channel, until the connection is lost: then it raises AnswerLost."""
        errors = self._errors
        retry = self._coredis.retry.NoRetryPolicy()
        lost: ExceptionGroup[Exception] | None = None
        try:
            async with self._client.pubsub(
                channels=[channel], ignore_subscribe_messages=True, retry_policy=retry, max_idle_seconds=IDLE_S
            ) as messages:
                ears.turn(hears=True)
                async for message in messages:
                    ears.hear(_text(message["data"]))
        except* (errors.RedisError, OSError, anyio.ClosedResourceError, anyio.BrokenResourceError) as group:
            lost = group  # what is raised here would come as a group of its own, up to Python 3.11.3
        raise AnswerLost(f"{self._where}: {lost.exceptions[0] if lost else 'the subscription has ended'}") from lost

    def _code(self, error: Exception) -> str:
        """The server's code for an error, where coredis takes it out of the text."""
        return next((f"{code} " for name, code in CODES if isinstance(error, getattr(self._errors, name))), "")


def _text(answer: Any) -> Any:
    if isinstance(answer, bytes):
        return answer.decode()
    return [_text(part) for part in answer] if isinstance(answer, list) else answer
