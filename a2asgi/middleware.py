"""The middleware: pure ASGI around any app. It owns one path prefix and the lifespan, and passes all else through."""

import json
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from a2asgi.app import A2
from a2asgi.errors import StoreBroken, StoreUnavailable, WiringError
from a2asgi.serving import Serving

log = logging.getLogger("a2asgi.middleware")

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


class A2Middleware:
    """`app = A2Middleware(app, a2)`: any ASGI app, with sessions that outlive it.

    `prefix` is the path below which requests are a2's own. Raises WiringError where the app could never be reached,
    or a2 could not.
    """

    def __init__(self, app: ASGIApp, a2: A2, *, prefix: str = "/api/a2") -> None:
        if not callable(app):
            raise WiringError(f"A2Middleware: expected an ASGI app, got {app!r}; write A2Middleware(app, a2)")
        if not isinstance(a2, A2):
            raise WiringError(f"A2Middleware: expected an A2, got {a2!r}; write A2Middleware(app, a2)")
        if not prefix.startswith("/") or prefix.endswith("/"):
            raise WiringError(f'A2Middleware: expected a prefix such as "/api/a2", got {prefix!r}')
        _check_nothing_shadowed(app, prefix)
        self.app = app
        self.a2 = a2
        self.prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one scope."""
        kind = scope["type"]
        if kind == "http" and self.prefix in scope["path"] and (path := self._own_path(scope)) is not None:
            await self._answer(path, scope["method"], send)
        elif kind == "lifespan":
            await self._lifespan(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _own_path(self, scope: Scope) -> str | None:
        """What follows the prefix; None for a path that is the app's. A host may or may not repeat the root path."""
        path: str = scope["path"]
        root: str = scope.get("root_path", "")
        if root and path.startswith(f"{root}/"):
            path = path[len(root) :]
        if path == self.prefix or path.startswith(f"{self.prefix}/"):
            return path[len(self.prefix) :]
        return None

    async def _answer(self, path: str, method: str, send: Send) -> None:
        if path != "/healthz":
            await _respond(send, 404, {"error": "not found"})
        elif method not in {"GET", "HEAD"}:
            await _respond(send, 405, {"error": "method not allowed"}, (b"allow", b"GET, HEAD"))
        else:
            try:
                await self.a2.ping()
            except (StoreUnavailable, StoreBroken) as error:
                log.warning("not ready: %s", error)
                await _respond(send, 503, {"status": "unavailable"})
            else:
                await _respond(send, 200, {"status": "ok"})

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Start and stop A2 around the app's own lifespan; stand in for it where the app has none."""
        talk = _LifespanTalk(receive, send)
        try:
            async with self.a2.serving() as serving:
                await talk.run(self.app, scope, serving)
        except Exception as error:
            log.exception("a2 did not %s", "stop cleanly" if talk.started else "start")
            await talk.fail(str(error))
        else:
            await talk.finish()


class _LifespanTalk:
    """One conversation of host, middleware and app. The host hears of a stage once, when both sides are through."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self.started = False
        self._receive = receive
        self._send = send
        self._heard: set[str] = set()
        self._answered: set[str] = set()
        self._last: Message | None = None

    async def run(self, app: ASGIApp, scope: Scope, serving: Serving) -> None:
        """Both lifespans, up to the point where only the host's last answer is due."""

        async def receive() -> Message:
            message = await self._hear()
            if message["type"] == "lifespan.shutdown":
                await serving.stop()
            return message

        async def send(message: Message) -> None:
            stage = message["type"].split(".")[1]
            self._answered.add(stage)
            if stage == "shutdown":
                self._last = message  # the store is closed first
                return
            if message["type"] == "lifespan.startup.complete":
                serving.begin()
                self.started = True
            await self._send(message)

        try:
            await app(scope, receive, send)
        except Exception as error:
            if self._answered:
                raise
            # ASGI: an app that raises before it answers has no lifespan, and is served all the same
            log.info("the wrapped app has no lifespan: %r", error)
        if not self._answered:
            if "lifespan.startup" not in self._heard:
                await self._hear()
            await send({"type": "lifespan.startup.complete"})
        if self.started and "lifespan.shutdown" not in self._heard:
            await receive()

    async def finish(self) -> None:
        """All is closed: tell the host, unless it was told that the start failed."""
        if self.started:
            await self._send(self._last or {"type": "lifespan.shutdown.complete"})

    async def fail(self, reason: str) -> None:
        """Tell the host that a2 did not start, or did not stop."""
        if not self.started and "lifespan.startup" not in self._heard:
            await self._hear()
        if self.started or not self._answered:
            stage = "shutdown" if self.started else "startup"
            await self._send({"type": f"lifespan.{stage}.failed", "message": reason})

    async def _hear(self) -> Message:
        message = await self._receive()
        self._heard.add(message["type"])
        return message


def _check_nothing_shadowed(app: object, prefix: str) -> None:
    """Look through the middlewares that tell what they wrap, down to the routes of the app."""
    layer = app
    while layer is not None:
        if isinstance(layer, A2Middleware) and layer.prefix == prefix:
            raise WiringError(f"A2Middleware: {prefix} is served by an inner A2Middleware already; wrap the app once")
        for route in getattr(layer, "routes", None) or ():
            path = getattr(route, "path", "")
            if path == prefix or path.startswith(f"{prefix}/"):
                raise WiringError(
                    f"A2Middleware: the app's route {path!r} is below {prefix!r}, which a2 answers, so it could never "
                    'be reached: rename it, or write A2Middleware(app, a2, prefix="/...")'
                )
        layer = getattr(layer, "app", None)


async def _respond(send: Send, status: int, content: dict[str, str], *headers: tuple[bytes, bytes]) -> None:
    body = json.dumps(content).encode()
    fixed = ((b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": [*fixed, *headers]})
    await send({"type": "http.response.body", "body": body})
