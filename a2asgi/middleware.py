"""The middleware: pure ASGI that owns one path prefix and the lifespan, and passes all else through."""

import json
import logging

from a2asgi.app import A2
from a2asgi.errors import StoreBroken, StoreUnavailable, WiringError
from a2asgi.lifespan import ASGIApp, LifespanTalk, Receive, Scope, Send

log = logging.getLogger("a2asgi.middleware")


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
        talk = LifespanTalk(receive, send)
        try:
            async with self.a2.serving() as serving:
                await talk.run(self.app, scope, serving)
        except Exception as error:
            log.exception("a2 did not %s", "stop cleanly" if talk.started else "start")
            await talk.fail(str(error))
        else:
            await talk.finish()


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
