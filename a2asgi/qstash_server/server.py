"""The server as an ASGI application: its settings, its life, and who may speak to it."""

from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from os import PathLike
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, urlsplit

import anyio
import httpx
from anyio.abc import TaskStatus
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from a2asgi.clock import Clock, SystemClock
from a2asgi.errors import ConfigurationError, StoreBroken, StoreUnavailable
from a2asgi.qstash_server.api import MessagesApi, read_object
from a2asgi.qstash_server.credentials import DEV_CREDENTIALS, Credentials, is_loopback
from a2asgi.qstash_server.deliveries import Deliveries
from a2asgi.qstash_server.limits import Limits
from a2asgi.qstash_server.registers_api import RegistersApi
from a2asgi.qstash_server.rules import DEDUPLICATION_WINDOW_MS, MAX_DELAY_MS, parse_duration
from a2asgi.qstash_server.store import Store
from a2asgi.qstash_server.travel import TravelClock
from a2asgi.qstash_server.values import Refused

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

RETENTION_MS = 7 * 86_400_000
"""How long logs and dead letters are kept: the provider's paid plan keeps dead letters for seven days."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What can be set. Times are milliseconds; `daily_limit` and `burst_limit` count messages, None is no limit.

    `path` is the file that keeps everything; None keeps it in memory. `time_travel` serves `POST /time-travel`.
    """

    path: str | PathLike[str] | None = None
    credentials: Credentials = DEV_CREDENTIALS
    region: str = "EU-CENTRAL-1"
    deduplication_window_ms: int = DEDUPLICATION_WINDOW_MS
    retention_ms: int = RETENTION_MS
    concurrency: int = 64
    time_travel: bool = False
    daily_limit: int | None = None
    burst_limit: int | None = None

    def __post_init__(self) -> None:
        if self.concurrency < 1 or not 0 <= self.deduplication_window_ms <= MAX_DELAY_MS or self.retention_ms < 1:
            raise ConfigurationError("qstash server: expected a concurrency of 1 or more, and windows of time")


class QStashServer:
    """A QStash-compatible server for development, for tests, and for self-hosting where no provider is wanted.

    It is an ASGI application, whose lifespan delivers. `clock` and `transport` are for tests: whose time delays are
    measured by, and how one request is sent. It does not check where it is served: `Credentials.check_bind` does.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        clock: Clock | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        settings = settings or Settings()
        self._credentials = settings.credentials
        self._clock = TravelClock(clock or SystemClock())
        self._store = Store(settings.path)
        self._transport = transport or httpx.AsyncHTTPTransport(trust_env=False)
        keys = settings.credentials.keys
        self.deliveries: Deliveries = Deliveries(
            self._store,
            self._clock,
            self._transport,
            keys,
            region=settings.region,
            retention_ms=settings.retention_ms,
            concurrency=settings.concurrency,
        )
        limits = Limits(self._clock, daily=settings.daily_limit, burst=settings.burst_limit)
        window_ms = settings.deduplication_window_ms
        registers_api = RegistersApi(self._store, self._clock, self.deliveries, keys)
        messages_api = MessagesApi(self._store, self._clock, self.deliveries, limits, window_ms)
        travel = [Route("/time-travel", self._travel, methods=["POST"])] if settings.time_travel else []
        self._app = Starlette(
            routes=[
                Route("/health", self._health, methods=["GET"]),
                *travel,
                *registers_api.routes(),
                *messages_api.routes(),
            ],
            exception_handlers={
                Refused: _refused,
                HTTPException: _http_error,
                StoreUnavailable: _unavailable,
                StoreBroken: _broken,
            },
        )
        self._app.router.redirect_slashes = False  # `/v2/messages/` is a request of its own

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve as an ASGI application."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["type"] == "http" and scope["path"] != "/health":
            try:
                self._admit(scope)
            except Refused as refused:
                await _error(refused.status, refused.text)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Open the store and deliver until cancelled. Raises StoreBroken or StoreUnavailable at the start."""
        await self._store.open()
        try:
            await self.deliveries.run(task_status=task_status)
        finally:
            with anyio.CancelScope(shield=True):
                await self._store.close()
                await self._transport.aclose()

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            async with anyio.create_task_group() as group:
                await group.start(self.run)
                await send({"type": "lifespan.startup.complete"})
                await receive()
                group.cancel_scope.cancel()
        except* (StoreUnavailable, StoreBroken) as errors:
            await send({"type": "lifespan.startup.failed", "message": str(errors.exceptions[0])})
        else:
            await send({"type": "lifespan.shutdown.complete"})

    def _admit(self, scope: Scope) -> None:
        """Raise Refused for who does not show the token.

        The public token keeps nobody out, so with it a request must also be meant for this machine, and come from no
        foreign web page: neither a name that was rebound to loopback nor a form elsewhere may publish through us.
        """
        headers = Headers(scope=scope)
        if self._credentials.are_public:
            origin = _host_of(headers.get("origin", "http://localhost"))
            host = _host_of(f"//{headers.get('host', 'localhost')}")
            if not is_loopback(host) or not is_loopback(origin):
                raise Refused(403, "the development credentials serve this machine only")
        kind, _, token = headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer":
            query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
            token = query.get("qstash_token", "")
        if not self._credentials.accept(token.strip()):
            raise Refused(401, "invalid token")

    async def _health(self, _: Request) -> Response:
        await self._store.run(lambda _: None)
        return JSONResponse({"status": "ok"})

    async def _travel(self, request: Request) -> Response:
        """Move the server's time forward by `{"by": "10m"}`: what is due by then is delivered at once."""
        by = (await read_object(request)).get("by")
        duration_ms = parse_duration(by) if isinstance(by, str) else None
        if duration_ms is None or not self._clock.travel(duration_ms):
            raise Refused(400, 'invalid travel: expected {"by": "10m"}, up to ten years in all')
        self.deliveries.wake()
        return JSONResponse({"now": self._clock.now_ms()})


def _host_of(url: str) -> str:
    """The host's name; empty, which is no place, where there is none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _error(status: int, text: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": text}, status, headers)


def _refused(_: Request, error: Exception) -> Response:
    return _error(error.status, error.text, error.headers) if isinstance(error, Refused) else _broken(_, error)


def _http_error(_: Request, error: Exception) -> Response:
    return _error(error.status_code, error.detail) if isinstance(error, HTTPException) else _broken(_, error)


def _unavailable(_: Request, error: Exception) -> Response:
    return _error(503, str(error))


def _broken(_: Request, error: Exception) -> Response:
    return _error(500, str(error))
