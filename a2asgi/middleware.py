"""The middleware: pure ASGI that owns one path prefix and the lifespan, and passes all else through."""

import json
import logging
from collections.abc import Iterator
from functools import partial

from a2asgi import deliveries
from a2asgi.app import A2
from a2asgi.callback import deliver
from a2asgi.errors import ClientDisconnected, WiringError
from a2asgi.lifespan import ASGIApp, LifespanTalk, Receive, Scope, Send
from a2asgi.oidc import request_token, token_of
from a2asgi.ports import DeliveringScheduler
from a2asgi.schedulers.qstash import QStash
from a2asgi.triggers import KINDS, METHODS, UNAVAILABLE, trigger
from a2core import ANSWERS, A2Error, Reason

log: logging.Logger = logging.getLogger("a2asgi.middleware")

SWEEP_LIMIT = 4
"""How many lost wake-ups one delivery looks after."""


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
        _check_wiring(app, a2, prefix)
        self.app = app
        self.a2 = a2
        self.prefix = prefix
        # told once: to ask whether something fits a protocol takes as long as to verify a signature
        self._scheduler = a2.scheduler if isinstance(a2.scheduler, DeliveringScheduler) else None
        # wire.md 6: elsewhere no request's token is passed on, so none is looked for
        self._forwards = isinstance(a2.scheduler, QStash) and a2.scheduler.rules.callback.is_preview

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one scope."""
        kind = scope["type"]
        if kind == "http":
            serve = self.app
            if self.prefix in scope["path"] and (path := self._own_path(scope)) is not None:
                serve = partial(self._answer, path)
            if not self._forwards or (token := token_of(scope["headers"])) == request_token.get():
                await serve(scope, receive, send)
                return
            before = request_token.set(token)
            try:
                await serve(scope, receive, send)
            finally:
                request_token.reset(before)
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

    async def _answer(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        _, kind, *rest = path.split("/") if path else ("", "")
        if path == "/scheduler" and self._scheduler is not None:
            await self._deliver(self._scheduler, scope, receive, send)
        elif kind in KINDS and len(rest) == 1 and rest[0]:
            await self._trigger(kind, rest[0], scope, receive, send)
        elif path != "/healthz":
            await _respond(send, 404, {"error": "not found"})
        elif scope["method"] not in {"GET", "HEAD"}:
            await _respond(send, 405, {"error": "method not allowed"}, (b"allow", b"GET, HEAD"))
        else:
            try:
                await self.a2.ping()
            except A2Error as error:
                log.warning("not ready: %s", error)
                await _respond(send, 503, {"status": "unavailable"})
            else:
                await _respond(send, 200, {"status": "ok"})

    async def _trigger(self, kind: str, name: str, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in METHODS:
            await _respond(send, 405, {"error": "method not allowed"}, (b"allow", ", ".join(METHODS).encode()))
            return
        try:
            status, content = await trigger(self.a2, kind, name, scope, receive)
        except ClientDisconnected:
            return
        except A2Error as error:
            log.warning("%s %r was not triggered: %s", kind, name, error)
            status, content = UNAVAILABLE
        await _respond(send, status, content)

    async def _deliver(self, scheduler: DeliveringScheduler, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            engine = await self.a2.ready()
            answer = await deliver(engine, scheduler, scope, receive)
        except ClientDisconnected:
            return  # nobody is there to be answered, and nothing was acknowledged
        except A2Error as error:
            log.warning("a delivery found no store, and comes again: %s", error)
            answer = ANSWERS[Reason.FAILED]
        headers = [(b"content-type", b"text/plain;charset=UTF-8"), (b"content-length", str(len(answer.text)).encode())]
        headers += [(name.encode(), value.encode()) for name, value in answer.headers]
        if answer.nonretryable:
            headers.append((b"upstash-nonretryable-error", b"true"))
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.text.encode()})
        if answer.status < 300:  # noqa: PLR2004 - a delivery that went well has a moment for what others lost
            await deliveries.sweep(engine, SWEEP_LIMIT)

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


def _check_wiring(app: object, a2: A2, prefix: str, above: str = "") -> None:
    """Look through the middlewares that tell what they wrap, the routes of the app, and what is mounted there.

    `above` is the path at which `app` is mounted.
    """
    if isinstance(app, A2Middleware) and above + app.prefix == prefix:
        raise WiringError(f"A2Middleware: {prefix} is served by an inner A2Middleware already; wrap the app once")
    if isinstance(app, A2Middleware) and app.a2 is a2:
        raise WiringError(f"A2Middleware: this A2 serves {above + app.prefix} already; wrap the app once")
    for route in _routes(app):
        path = above + getattr(route, "path", "")
        if path == prefix or path.startswith(f"{prefix}/"):
            raise WiringError(
                f"A2Middleware: the app's route {path!r} is below {prefix!r}, which a2 answers, so it could never be "
                'reached: rename it, or write A2Middleware(app, a2, prefix="/...")'
            )
        if hasattr(route, "routes"):
            _check_wiring(route, a2, prefix, path)
    if (inner := getattr(app, "app", None)) is not None:
        _check_wiring(inner, a2, prefix, above)


def _routes(app: object) -> Iterator[object]:
    """The routes of an app, of a mount, or of a router that FastAPI includes when it first needs it."""
    for route in getattr(app, "routes", None) or ():
        included = getattr(route, "effective_route_contexts", None)
        if included is None:
            yield route
        else:
            yield from included()


async def _respond(send: Send, status: int, content: dict[str, str], *headers: tuple[bytes, bytes]) -> None:
    body = json.dumps(content).encode()
    fixed = ((b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": [*fixed, *headers]})
    await send({"type": "http.response.body", "body": body})
