"""The delivery loop: it takes what is due, signs and sends each attempt, and has its outcome written down."""

import logging
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import anyio
import httpx
from anyio.abc import TaskGroup, TaskStatus

from a2asgi.clock import Clock, SystemClock
from a2asgi.errors import StoreBroken, StoreUnavailable
from a2asgi.qstash_server import records, registers
from a2asgi.qstash_server.records import Claimed
from a2asgi.qstash_server.signing import SigningKeys, sign
from a2asgi.qstash_server.store import Store
from a2asgi.qstash_server.values import MAX_BODY_BYTES, Response

log: logging.Logger = logging.getLogger("a2asgi.qstash_server.deliveries")

MAX_WAIT_MS = 60_000
"""How long the loop sleeps at most, so that a clock that was set does not stop it for long."""

STORE_PAUSE_MS = 1_000
"""How long to wait where the store does not answer."""

MAX_TIMEOUT_MS = 7_200_000
"""Two hours for one attempt, as on the provider's paid plan; Upstash-Timeout shortens it."""

_OURS = frozenset({"connection", "content-length", "host", "transfer-encoding"})
"""Headers that belong to the connection, and are never taken from a message."""


class Deliveries:
    """Delivers messages until it is cancelled. What was under way then is delivered again by the next server.

    `transport` sends one request and follows no redirect. `concurrency` bounds the attempts under way.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        transport: httpx.AsyncBaseTransport,
        keys: SigningKeys,
        *,
        region: str,
        retention_ms: int,
        concurrency: int,
    ) -> None:
        self._store = store
        self._clock = clock
        self._transport = transport
        self._keys = keys
        self._region = region
        self._retention_ms = retention_ms
        self._concurrency = concurrency
        self._under_way = 0
        self._news = anyio.Event()
        self._settled = anyio.Event()
        self._pruned_at_ms = 0

    def wake(self) -> None:
        """Look at the store again: something was published, changed, or the clock was moved."""
        if self._settled.is_set():
            self._settled = anyio.Event()
        self._news.set()

    async def settled(self) -> None:
        """Wait until nothing is due and nothing is under way. After `wake` it waits for the loop to look."""
        while not (settled := self._settled).is_set():
            await settled.wait()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Deliver until cancelled."""
        async with anyio.create_task_group() as group:
            task_status.started()
            while True:
                await self._round(group)

    async def _round(self, group: TaskGroup) -> None:
        settled, self._news = self._settled, anyio.Event()
        news = self._news
        now_ms = self._clock.now_ms()
        free = self._concurrency - self._under_way
        if free == 0:
            await news.wait()
            return

        def look(conn: sqlite3.Connection) -> tuple[records.Due, int | None]:
            tick_ms = registers.run_schedules(conn, now_ms)  # first, so that what they make is taken at once
            return records.claim_due(conn, now_ms, free), tick_ms

        try:
            due, tick_ms = await self._store.run(look)
        except (StoreUnavailable, StoreBroken) as error:
            log.warning("cannot look for due messages: %s", error)
            await self._wait(news, STORE_PAUSE_MS)
            return
        for claimed in due.claimed:
            self._under_way += 1
            group.start_soon(self._deliver, claimed)
        if not due.claimed:
            await self._prune(now_ms)
            if self._under_way == 0 and not news.is_set():
                settled.set()
            times = [at_ms for at_ms in (due.next_at_ms, tick_ms) if at_ms is not None]
            await self._wait(news, min([MAX_WAIT_MS, *(max(0, at_ms - now_ms) for at_ms in times)]))

    async def _wait(self, news: anyio.Event, longest_ms: int) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(self._sleep, longest_ms, group.cancel_scope.cancel)
            await news.wait()
            group.cancel_scope.cancel()

    async def _sleep(self, duration_ms: int, on_wake: Callable[[], object]) -> None:
        await self._clock.sleep_ms(duration_ms)
        on_wake()

    async def _prune(self, now_ms: int) -> None:
        """Forget what is past its retention, at most once a minute."""
        if now_ms - self._pruned_at_ms >= MAX_WAIT_MS:
            self._pruned_at_ms = now_ms
            await self._patiently(lambda: self._store.run(lambda c: registers.prune(c, now_ms - self._retention_ms)))

    async def _deliver(self, claimed: Claimed) -> None:
        try:
            response = await self._attempt(claimed)
            now_ms = self._clock.now_ms()
            log.info("%s attempt %d: %d", claimed.message.message_id, claimed.retried, response.status)
            await self._patiently(lambda: self._store.run(lambda c: records.settle(c, claimed, response, now_ms)))
        finally:
            self._under_way -= 1
            self.wake()

    async def _patiently(self, write: Callable[[], Awaitable[None]]) -> None:
        """Write until the store takes it: an outcome that is lost would be an attempt too many."""
        while True:
            try:
                return await write()
            except (StoreUnavailable, StoreBroken) as error:
                log.warning("cannot write down what happened, and try again: %s", error)
                await self._clock.sleep_ms(STORE_PAUSE_MS)

    async def _attempt(self, claimed: Claimed) -> Response:
        """One attempt. Whatever goes wrong is an answer of status 0."""
        order = claimed.message.order
        timeout_ms = min(order.timeout_ms or MAX_TIMEOUT_MS, MAX_TIMEOUT_MS)
        answer = Response(0, error=f"the destination did not answer within {timeout_ms} ms")

        async def exchange() -> None:
            nonlocal answer
            try:
                answer = await self._exchange(claimed)
            except Exception as error:  # noqa: BLE001 - no destination may stop the server
                answer = Response(0, error=f"no answer: {type(error).__name__}")
            group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(exchange)
            group.start_soon(self._sleep, timeout_ms, group.cancel_scope.cancel)
        return answer

    async def _exchange(self, claimed: Claimed) -> Response:
        order = claimed.message.order
        keys = await self._store.run(lambda conn: registers.signing_keys(conn, self._keys))
        # The token is for the receiver's clock, which does not travel with this server's.
        token = sign(order.destination, order.body, keys.current, SystemClock().now_ms() // 1_000)
        request = httpx.Request(
            order.method, order.destination, headers=self._headers(claimed, token), content=order.body
        )
        answer = await self._transport.handle_async_request(request)
        body = bytearray()
        async with aclosing(answer):
            async for chunk in answer.aiter_bytes():  # to its end, or to the time-out: what is too long is cut
                body += chunk[: MAX_BODY_BYTES - len(body)]
        headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in answer.headers.raw)
        return Response(answer.status_code, headers, bytes(body))

    def _headers(self, claimed: Claimed, token: str) -> list[tuple[bytes, bytes]]:
        message = claimed.message
        ours = {
            "Upstash-Signature": token,
            "Upstash-Message-Id": message.message_id,
            "Upstash-Retried": str(claimed.retried),
            "Upstash-Region": self._region,
            "Upstash-Caller-Ip": message.caller_ip,
        }
        if message.schedule_id is not None:
            ours["Upstash-Schedule-Id"] = message.schedule_id
        taken = {*_OURS, *(name.lower() for name in ours)}
        own = [(name, value) for name, value in message.order.headers if name.lower() not in taken]
        plain = {"User-Agent": "Upstash-QStash", "Accept-Encoding": "gzip"}
        named = {name.lower() for name, _ in own}
        rest = [(name, value) for name, value in plain.items() if name.lower() not in named]
        return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in [*rest, *own, *ours.items()]]
