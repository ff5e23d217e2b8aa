"""Guards in front of an app's routes: a limit on bodies, and a signature without which a request never arrives."""

import json
import logging
import re
from collections.abc import Iterable
from urllib.parse import quote

from a2asgi.asgi import ASGIApp, Message, Receive, Scope, Send
from a2asgi.body import check_declared, read_body, replay
from a2asgi.errors import BodyTooLarge, ClientDisconnected, WiringError
from a2asgi.verdicts import HeaderItems, Refusal, Verdict, Verifier
from a2core import DEFAULT_MAX_BODY_BYTES, normalise_url

log: logging.Logger = logging.getLogger("a2asgi.guards")


class BodyLimitMiddleware:
    """`BodyLimitMiddleware(app, max_bytes)`: answers 413 for the app as soon as a body passes the limit.

    Nothing is buffered: the app reads chunk by chunk, and finds its client gone where the limit was passed. `paths`
    are the guarded ones, each with all that is below it; None: every path. Raises WiringError for what cannot work.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, paths: Iterable[str] | None = None) -> None:
        self.app = app
        self.max_bytes: int = _checked_limit(max_bytes)
        self._paths = _Paths(paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one scope; all but guarded HTTP requests pass through untouched."""
        if scope["type"] != "http" or not self._paths.guard(scope):
            await self.app(scope, receive, send)
            return
        try:
            check_declared(scope["headers"], self.max_bytes)
        except BodyTooLarge as error:
            await _refuse(scope, send, 413, str(error))
        else:
            await _LimitedRequest(self, scope, receive, send).run()


class _LimitedRequest:
    """One request whose body is counted on its way to the app."""

    def __init__(self, guard: BodyLimitMiddleware, scope: Scope, receive: Receive, send: Send) -> None:
        self._guard = guard
        self._scope = scope
        self._receive = receive
        self._send = send
        self._size = 0
        self._responding = False
        self._refused = False

    async def run(self) -> None:
        try:
            await self._guard.app(self._scope, self._count, self._pass_on)
        except Exception as error:
            if not self._refused:
                raise
            log.info("%s: the app ended with %r after its client was refused", _line(self._scope), error)

    async def _count(self) -> Message:
        if self._size > self._guard.max_bytes:
            return {"type": "http.disconnect"}
        message = await self._receive()
        self._size += len(message.get("body", b""))
        if self._size <= self._guard.max_bytes:
            return message
        if not self._responding:
            self._refused = True
            await _refuse(self._scope, self._send, 413, str(BodyTooLarge(self._guard.max_bytes)))
        return {"type": "http.disconnect"}

    async def _pass_on(self, message: Message) -> None:
        self._responding = True
        if not self._refused:
            await self._send(message)


class SignatureMiddleware:
    """`SignatureMiddleware(app, verifier)`: the app hears of a request only if its signature holds.

    What carries no signature is refused before its body is read (401), what is larger than `max_bytes` while it is
    read (413), and what the verifier refuses whatever else it is (401). The app then receives exactly the bytes that
    were verified. `paths` are the guarded ones, each with all that is below it; None: every path. `origin` is the
    public one, `https://example.com`, where a proxy stands in front: headers such as X-Forwarded-Proto are anyone's
    to send, and are never believed. Raises WiringError and InvalidUrl for what cannot work.
    """

    def __init__(
        self,
        app: ASGIApp,
        verifier: Verifier,
        max_bytes: int = DEFAULT_MAX_BODY_BYTES,
        paths: Iterable[str] | None = None,
        origin: str | None = None,
    ) -> None:
        self.app = app
        self.verifier = verifier
        self.max_bytes: int = _checked_limit(max_bytes)
        self._paths = _Paths(paths)
        self._origin = None if origin is None else _checked_origin(origin)
        self._header = verifier.header.lower().encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one scope; all but guarded HTTP requests pass through untouched."""
        if scope["type"] != "http" or not self._paths.guard(scope):
            await self.app(scope, receive, send)
            return
        headers: HeaderItems = list(scope["headers"])
        if not any(name.lower() == self._header for name, _ in headers):
            await _refuse(scope, send, 401, f"no {self.verifier.header} header")
            return
        try:
            body = await read_body(receive, self.max_bytes, headers)
        except BodyTooLarge as error:
            await _refuse(scope, send, 413, str(error))
            return
        except ClientDisconnected:
            return  # nobody is there to be answered
        verdict = self._judge(headers, body, request_url(scope, self._origin))
        if verdict.accepted:
            await self.app(scope, replay(body, receive), send)
        else:
            await _refuse(scope, send, 401, verdict.cause)

    def _judge(self, headers: HeaderItems, body: bytes, url: str) -> Verdict:
        try:
            return self.verifier.verify_request(headers, body, url)
        except Exception:
            log.exception("the verifier failed, so the request is refused")
            return Verdict(Refusal.MALFORMED, "the verifier failed")


def request_url(scope: Scope, origin: str | None = None) -> str:
    """The URL that an HTTP request was made to, as far as it shows; `origin` replaces its scheme and host."""
    raw = scope.get("raw_path")
    path = quote(scope["path"]) if raw is None else raw.partition(b"?")[0].decode("latin-1")
    root = quote(scope.get("root_path", "").rstrip("/"))
    if root and path != root and not path.startswith(f"{root}/"):
        path = root + path  # a host that keeps the root path out of the path
    query = scope.get("query_string", b"").decode("latin-1")
    if origin is None:
        origin = f"{scope.get('scheme', 'http')}://{_host(scope)}"
    return f"{origin}{path}?{query}" if query else f"{origin}{path}"


def _host(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name.lower() == b"host":
            host: str = value.decode("latin-1")
            return host
    name, port = scope.get("server") or ("", None)
    return "" if port is None else f"{name}:{port}"  # a socket of this machine has no host's name


class _Paths:
    """Which paths are guarded: those given, and all below them."""

    def __init__(self, paths: Iterable[str] | None) -> None:
        if isinstance(paths, str):
            raise WiringError(f'paths: expected several, got {paths!r}; write ["{paths}"]')
        self._paths = None if paths is None else tuple(paths)
        for path in self._paths or ():
            if not path.startswith("/") or "//" in path or (path != "/" and path.endswith("/")):
                raise WiringError(f'paths: expected such as "/hooks", got {path!r}')
        if self._paths == ():
            raise WiringError("paths: expected at least one, got none, which would guard nothing; None guards all")

    def guard(self, scope: Scope) -> bool:
        """Whether this request is guarded, whether or not its host repeats the root path.

        Slashes are folded, since some routers do so: `//hooks` must not be a way around the guard.
        """
        if self._paths is None:
            return True
        path = _folded(scope["path"])
        root = _folded(scope.get("root_path", "")).rstrip("/")
        if self._guards(path):
            return True
        return bool(root) and path.startswith(f"{root}/") and self._guards(path[len(root) :])

    def _guards(self, path: str) -> bool:
        return any(path == own or path.startswith(own.rstrip("/") + "/") for own in self._paths or ())


def _folded(path: str) -> str:
    return re.sub("/+", "/", path) if "//" in path else path


def _checked_limit(max_bytes: int) -> int:
    if type(max_bytes) is not int or max_bytes < 0:
        raise WiringError(f"max_bytes: expected a number of bytes, 0 or more, got {max_bytes!r}")
    return max_bytes


def _checked_origin(origin: str) -> str:
    bare = origin.removesuffix("/")
    if normalise_url(origin).count("/") != 3 or bare.count("/") != 2 or "?" in bare:  # noqa: PLR2004 - scheme://host/
        raise WiringError('origin: expected such as "https://example.com", without a path')
    return bare


def _line(scope: Scope) -> str:
    return f"{ascii(scope['method'])[1:-1]} {ascii(scope['path'])[1:-1][:500]}"


async def _refuse(scope: Scope, send: Send, status: int, cause: str) -> None:
    """Answer, and tell the log why. The answer tells nothing that would help who forges."""
    log.warning("%s was refused with %d: %s", _line(scope), status, cause)
    text = {401: "unauthorized", 413: "content too large"}[status]
    body = json.dumps({"error": text}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
