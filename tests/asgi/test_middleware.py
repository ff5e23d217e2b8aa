"""The middleware on raw ASGI: what it leaves untouched, what it answers, and both lifespans around each other."""

import json
import logging
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from fastapi import APIRouter, FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.routing import Host as HostRoute

from a2asgi import (
    A2,
    A2Middleware,
    ConfigurationError,
    DrainResult,
    DrainState,
    Event,
    MemoryStore,
    Retry,
    SessionKey,
    SQLiteStore,
    StoreBroken,
    StoreNotConfigured,
    StoreUnavailable,
    Wakes,
    WiringError,
)
from a2asgi.testing import ManualClock
from tests.asgi.support import (
    PATIENCE_S,
    App,
    BrokenStore,
    Exchange,
    Host,
    JournalStore,
    Message,
    Noted,
    Packed,
    Placed,
    Receive,
    Script,
    Send,
    Served,
    Shop,
    http_scope,
    log_of,
    request,
    types_of,
    until,
)

COMPLETE = {"type": "lifespan.startup.complete"}
ENDED = {"type": "lifespan.shutdown.complete"}
KEY = SessionKey("orders", "o1")
SECRET = "hunter2"
UNSPENT = Retry(max_failures=1, max_lost=1)
"""A handler that may neither fail nor be lost once."""


async def echo(scope: Message, receive: Receive, send: Send) -> None:
    """An app without lifespan: it answers each part of a body as it comes."""
    if scope["type"] != "http":
        raise NotImplementedError(scope["type"])
    await send({"type": "http.response.start", "status": 200, "headers": [(b"x-app", b"echo")]})
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        more = message["more_body"]
        await send({"type": "http.response.body", "body": message["body"], "more_body": more})


# ── what is not its own ──────────────────────────────────────────────────────────────────


class Remembering:
    """An app that remembers what it was called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    async def __call__(self, *call: object) -> None:
        self.calls.append(call)


async def no_receive() -> Message:
    raise AssertionError("the middleware read a message that is not its own")


async def no_send(message: Message) -> None:
    raise AssertionError(f"the middleware answered a request that is not its own: {message}")


@pytest.mark.parametrize(
    "scope",
    [
        *(
            pytest.param(http_scope(path, root_path=root), id=f"{root or 'no-root'}:{path}")
            for root, path in [
                ("", "/"),
                ("", ""),
                ("", "/api"),
                ("", "/api/a2x"),
                ("", "/api/a2x/healthz"),
                ("", "/API/A2/healthz"),
                ("", "/v1/api/a2/healthz"),
                ("", "//api/a2/healthz"),
                ("", "/healthz"),
                ("/v1", "/v1"),
                ("/v1", "/v1/"),
                ("/v1", "/v1/api/a2x"),
                ("/v1", "/v1/v1/api/a2/healthz"),
                ("/v1", "/v12/api/a2/healthz"),
                ("/api", "/api/a2x"),
            ]
        ),
        pytest.param(http_scope("/", "POST"), id="post"),
        pytest.param({"type": "websocket", "path": "/api/a2/live"}, id="websocket"),
        pytest.param({"type": "websocket", "path": "/"}, id="websocket-elsewhere"),
        pytest.param({"type": "webtransport", "path": "/api/a2/healthz"}, id="unknown-scope"),
        pytest.param({"type": "lifespan.v2"}, id="unknown-scope-without-path"),
    ],
)
async def test_what_is_not_its_own_is_passed_through_untouched(scope: Message) -> None:
    """D4: the app is called with the very same scope, receive and send, and nothing in the scope has changed."""
    app = Remembering()
    before = dict(scope)
    await A2Middleware(app, A2())(scope, no_receive, no_send)
    [[given, receive, send]] = app.calls
    assert (True, True, True) == (given is scope, receive is no_receive, send is no_send)
    assert before == scope


async def test_what_the_app_raises_is_raised() -> None:
    """An app's error reaches the server as itself."""

    async def failing(scope: Message, receive: Receive, send: Send) -> None:
        raise KeyError(scope["path"])

    with pytest.raises(KeyError, match="/lost"):
        await A2Middleware(failing, A2())(http_scope("/lost"), no_receive, no_send)


async def test_a_body_streams_both_ways() -> None:
    """Each part is answered before the next one is sent: nothing is held back on either way."""
    app = A2Middleware(echo, A2())
    to_app, app_receives = anyio.create_memory_object_stream[Message]()
    app_sends, from_app = anyio.create_memory_object_stream[Message]()
    parts = [b"a", b"b" * 100_000, b""]
    with to_app, app_receives, app_sends, from_app, anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(app, http_scope("/", "POST"), app_receives.receive, app_sends.send)
            assert 200 == (await from_app.receive())["status"]
            for part in parts:
                await to_app.send({"type": "http.request", "body": part, "more_body": part != b""})
                assert part == (await from_app.receive())["body"]


async def test_a_disconnect_arrives() -> None:
    """A client that goes away after its second part is seen to go by the app."""
    exchange = Exchange()
    messages: list[Message] = [
        {"type": "http.request", "body": b"a", "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def receive() -> Message:
        return messages.pop(0)

    await A2Middleware(echo, A2())(http_scope("/", "POST"), receive, exchange.send)
    assert ([], b"a") == (messages, exchange.answer.body)


class Reading(BaseHTTPMiddleware):
    """A middleware of Starlette's that reads the whole body first."""

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        await request.body()
        return await call_next(request)


async def echoed(request: Request) -> Response:
    return PlainTextResponse(await request.body())


@pytest.mark.parametrize("around", [False, True], ids=["inside", "around"])
@pytest.mark.parametrize("size", [1, 100_000])
async def test_a_middleware_that_reads_the_body_changes_nothing(
    size: int,
    around: bool,  # noqa: FBT001 - a row
) -> None:
    """D4: a body of three parts is whole, with a reading middleware on either side, whatever its size."""
    shop = Shop(store=MemoryStore())
    inner = Starlette(routes=[Route("/", echoed, methods=["POST"])], middleware=[Middleware(Reading)])
    app: App = A2Middleware(inner, shop.a2)
    if around:
        app = Reading(app)
    exchange = Exchange([b"a" * size, b"b" * size, b"c" * size])
    with anyio.fail_after(PATIENCE_S):
        await app(http_scope("/", "POST"), exchange.receive, exchange.send)
    assert (200, b"a" * size + b"b" * size + b"c" * size) == (exchange.answer.status, exchange.answer.body)


async def test_a_client_that_goes_away_hangs_nothing() -> None:
    """D4: an app that waits for the third part of a body learns that it will not come."""
    gone: list[str] = []

    async def reading(request: Request) -> Response:
        try:
            await request.body()
        except ClientDisconnect:
            gone.append("gone")
        return PlainTextResponse("")

    app = A2Middleware(Starlette(routes=[Route("/", reading, methods=["POST"])]), A2())
    messages: list[Message] = [
        {"type": "http.request", "body": b"a", "more_body": True},
        {"type": "http.request", "body": b"b", "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def receive() -> Message:
        return messages.pop(0)

    with anyio.fail_after(PATIENCE_S):
        await app(http_scope("/", "POST"), receive, Exchange().send)
    assert ["gone"] == gone


# ── what is its own ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("root_path", "path", "status"),
    [
        ("", "/api/a2/healthz", 200),
        ("", "/api/a2", 404),
        ("", "/api/a2/", 404),
        ("", "/api/a2/healthz/", 404),
        ("", "/api/a2/healthz/x", 404),
        ("", "/api/a2/lost", 404),
        ("", "/api/a2//healthz", 404),
        ("/v1", "/v1/api/a2/healthz", 200),
        ("/v1", "/api/a2/healthz", 200),
        ("/v1", "/v1/api/a2/lost", 404),
        ("/v1/", "/v1//api/a2/healthz", 200),
        ("/api/a2", "/api/a2/api/a2/healthz", 200),
        ("/api", "/api/api/a2/healthz", 200),
    ],
)
async def test_it_answers_below_its_prefix(root_path: str, path: str, status: int) -> None:
    """What lies under the prefix is its own, whether or not the host repeats the root path; the app is not asked."""
    app = Remembering()
    answer = await request(A2Middleware(app, A2(store=MemoryStore())), path, root_path=root_path)
    assert (status, []) == (answer.status, app.calls)


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "get", ""])
async def test_only_documented_methods_do_work(method: str) -> None:
    """Another method is refused with those that are allowed."""
    answer = await request(A2Middleware(echo, A2(store=MemoryStore())), "/api/a2/healthz", method)
    assert (405, "GET, HEAD", {"error": "method not allowed"}) == (
        answer.status,
        answer.headers["allow"],
        json.loads(answer.body),
    )


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_ready_app_says_so(method: str) -> None:
    """A store that answers is a 200 of fixed size."""
    answer = await request(A2Middleware(echo, A2(store=MemoryStore())), "/api/a2/healthz", method)
    assert (200, "application/json", {"status": "ok"}) == (
        answer.status,
        answer.headers["content-type"],
        json.loads(answer.body),
    )
    assert str(len(answer.body)) == answer.headers["content-length"]


@pytest.mark.parametrize("error", [StoreUnavailable, StoreBroken])
async def test_an_app_without_store_is_not_ready(error: type[Exception]) -> None:
    """A store that does not answer is a 503 that tells no secret, and a 200 again once it answers."""
    store = BrokenStore(error(f"postgres://a2:{SECRET}@db refused the connection"))
    app = A2Middleware(echo, A2(store=store))
    answer = await request(app, "/api/a2/healthz")
    assert (503, {"status": "unavailable"}) == (answer.status, json.loads(answer.body))
    assert SECRET not in str(answer)
    store.error = None
    assert 200 == (await request(app, "/api/a2/healthz")).status


async def test_an_app_that_is_not_configured_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a host without lifespan a missing store is found by the readiness check, which answers and does not raise."""
    monkeypatch.setenv("A2_ENV", "production")
    answer = await request(A2Middleware(echo, A2()), "/api/a2/healthz")
    assert (503, {"status": "unavailable"}) == (answer.status, json.loads(answer.body))


async def test_the_prefix_can_be_chosen() -> None:
    """Another prefix moves what is its own, and the usual one is the app's then."""
    app = A2Middleware(echo, A2(store=MemoryStore()), prefix="/_jobs")
    assert {"status": "ok"} == json.loads((await request(app, "/_jobs/healthz")).body)
    assert "echo" == (await request(app, "/api/a2/healthz")).headers["x-app"]


# ── wiring ───────────────────────────────────────────────────────────────────────────────


async def page(request: Request) -> Response:
    return PlainTextResponse("")


def fastapi_with(prefix: str) -> FastAPI:
    """An app whose routes come from a router of their own."""
    router = APIRouter()
    router.add_api_route("/jobs", page)
    api = FastAPI()
    api.include_router(router, prefix=prefix)
    return api


def fastapi_route(path: str) -> FastAPI:
    api = FastAPI()
    api.add_api_route(path, page)
    return api


def fastapi_mount(path: str) -> FastAPI:
    api = FastAPI()
    api.mount(path, echo)
    return api


def wrapped(*routes: BaseRoute) -> App:
    """Starlette under middlewares that tell what they wrap."""
    return GZipMiddleware(Reading(Starlette(routes=list(routes), middleware=[Middleware(Reading)])))


@pytest.mark.parametrize(
    ("build", "path"),
    [
        pytest.param(lambda: Starlette(routes=[Route("/api/a2/jobs", page)]), "/api/a2/jobs", id="starlette"),
        pytest.param(lambda: Starlette(routes=[Route("/api/a2", page)]), "/api/a2", id="starlette-prefix-itself"),
        pytest.param(lambda: Starlette(routes=[Route("/api/a2/{name}", page)]), "/api/a2/{name}", id="starlette-param"),
        pytest.param(lambda: Starlette(routes=[Mount("/api/a2", echo)]), "/api/a2", id="mount"),
        pytest.param(
            lambda: Starlette(routes=[Mount("/api", routes=[Route("/a2/jobs", page)])]), "/api/a2/jobs", id="in-a-mount"
        ),
        pytest.param(
            lambda: Starlette(routes=[Mount("/api", Starlette(routes=[Mount("/a2", echo)]))]),
            "/api/a2",
            id="in-a-mounted-app",
        ),
        pytest.param(
            lambda: Starlette(routes=[Mount("/", routes=[Route("/api/a2/jobs", page)])]),
            "/api/a2/jobs",
            id="D6-in-a-mount-at-the-root",
        ),
        pytest.param(
            lambda: Starlette(routes=[HostRoute("a.example", Starlette(routes=[Route("/api/a2/jobs", page)]))]),
            "/api/a2/jobs",
            id="in-a-host",
        ),
        pytest.param(lambda: wrapped(Route("/api/a2/jobs", page)), "/api/a2/jobs", id="under-middlewares"),
        pytest.param(lambda: fastapi_route("/api/a2/jobs"), "/api/a2/jobs", id="fastapi"),
        pytest.param(lambda: fastapi_mount("/api/a2"), "/api/a2", id="fastapi-mount"),
        pytest.param(lambda: FastAPI(docs_url="/api/a2/docs"), "/api/a2/docs", id="fastapi-docs"),
        pytest.param(lambda: fastapi_with("/api/a2"), "/api/a2/jobs", id="fastapi-router"),
    ],
)
def test_a_route_that_could_never_be_reached_is_a_wiring_error(build: Callable[[], App], path: str) -> None:
    """D6: a route of the app below the prefix is named when the app is built, with what to write."""
    with pytest.raises(WiringError) as refusal:
        A2Middleware(build(), A2())
    assert f"route {path!r} is below '/api/a2'" in str(refusal.value)
    assert 'rename it, or write A2Middleware(app, a2, prefix="/...")' in str(refusal.value)


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(lambda: Starlette(routes=[Route("/{rest:path}", page)]), id="D6-catch-all"),
        pytest.param(lambda: Starlette(routes=[Mount("/", echo)]), id="D6-mount-at-the-root"),
        pytest.param(lambda: Starlette(routes=[Mount("/api", routes=[Route("/jobs", page)])]), id="sibling"),
        pytest.param(lambda: Starlette(routes=[Mount("/v1", routes=[Route("/api/a2/jobs", page)])]), id="elsewhere"),
        pytest.param(lambda: Starlette(routes=[Route("/api/a2x", page), Route("/api", page)]), id="neighbours"),
        pytest.param(lambda: Starlette(routes=[WebSocketRoute("/live", echo)]), id="websocket"),
        pytest.param(lambda: fastapi_with("/api"), id="fastapi-router"),
        pytest.param(FastAPI, id="fastapi"),
        pytest.param(lambda: echo, id="function"),
    ],
)
def test_an_app_that_can_be_reached_is_wrapped(build: Callable[[], App]) -> None:
    """A catch-all, a mount around the prefix or a neighbour of it is no mistake: what is below the prefix is a2's."""
    A2Middleware(build(), A2())


def test_the_prefix_that_is_chosen_is_the_one_that_is_checked() -> None:
    """A route below the usual prefix is the app's own once a2 has another."""
    A2Middleware(fastapi_route("/api/a2/jobs"), A2(), prefix="/_jobs")
    with pytest.raises(WiringError, match="'/_jobs/run' is below '/_jobs'"):
        A2Middleware(fastapi_route("/_jobs/run"), A2(), prefix="/_jobs")


@pytest.mark.parametrize("between", [lambda app: app, GZipMiddleware], ids=["directly", "with-one-between"])
def test_an_app_is_wrapped_once(between: Callable[[App], App]) -> None:
    """A second A2Middleware of the same prefix around the first is a wiring error."""
    a2 = A2()
    with pytest.raises(WiringError, match="/api/a2 is served by an inner A2Middleware already; wrap the app once"):
        A2Middleware(between(A2Middleware(echo, a2)), a2)


def test_one_a2_is_wrapped_once() -> None:
    """The same A2 under two prefixes could never start, and is a wiring error too."""
    a2 = A2()
    with pytest.raises(WiringError, match="wrap the app once"):
        A2Middleware(A2Middleware(echo, a2), a2, prefix="/_jobs")


async def test_two_a2_live_side_by_side() -> None:
    """Two A2 objects with a prefix each are two, and both are served."""
    one, other = Shop(store=MemoryStore()), Shop(store=MemoryStore())
    app = A2Middleware(A2Middleware(echo, one.a2), other.a2, prefix="/_jobs")
    for shop in (one, other):
        shop.orders.on(Placed)(Script(Packed()))
    async with Served(app):
        for shop, prefix in ((one, "/api/a2"), (other, "/_jobs")):
            assert 200 == (await request(app, f"{prefix}/healthz")).status
            await shop.o1.append(Placed(), wait=True)
            assert ["placed", "packed"] == await types_of(shop.o1)


@pytest.mark.parametrize("prefix", ["", "/", "api/a2", "/api/a2/", "https://a.example/api"])
def test_a_prefix_is_a_path(prefix: str) -> None:
    """A prefix that no path could start with, or that would swallow the app, is refused with an example."""
    with pytest.raises(WiringError, match='expected a prefix such as "/api/a2"'):
        A2Middleware(echo, A2(), prefix=prefix)


@pytest.mark.parametrize(
    ("app", "a2", "expected"),
    [
        pytest.param(None, A2(), "an ASGI app, got None", id="no-app"),
        pytest.param("app:app", A2(), "an ASGI app, got 'app:app'", id="text"),
        pytest.param(echo, None, "an A2, got None", id="no-a2"),
        pytest.param(A2(), echo, r"an ASGI app, got A2\(", id="swapped"),
        pytest.param(echo, A2, "an A2, got <class", id="class"),
    ],
)
def test_what_is_no_app_is_refused(app: Any, a2: Any, expected: str) -> None:
    """The two arguments are checked, and the text says what to write."""
    with pytest.raises(WiringError, match=rf"expected {expected}.*write A2Middleware\(app, a2\)"):
        A2Middleware(app, a2)


# ── lifespan ─────────────────────────────────────────────────────────────────────────────


class Living:
    """An app with a lifespan of its own, written on raw ASGI, that notes it in a journal."""

    def __init__(self, journal: list[str]) -> None:
        self.journal = journal
        self.scopes: list[Message] = []

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)
        assert "lifespan.startup" == (await receive())["type"]
        await self.start(scope)
        await send({"type": "lifespan.startup.complete"})
        assert "lifespan.shutdown" == (await receive())["type"]
        await self.stop()
        await send({"type": "lifespan.shutdown.complete"})

    async def start(self, scope: Message) -> None:
        """What it does at its start."""
        scope["state"]["app"] = "started"
        await checkpoint()
        self.journal.append("app starts")

    async def stop(self) -> None:
        """What it does at its end."""
        self.journal.append("app stops")
        await checkpoint()


class Working:
    """A handler that works until it is cancelled, or until the test lets it go."""

    def __init__(self, journal: list[str] | None = None) -> None:
        self.started = anyio.Event()
        self.let_go = anyio.Event()
        self.journal = [] if journal is None else journal

    async def __call__(self, event: Event[Placed]) -> Packed:
        self.journal.append("handler starts")
        self.started.set()
        try:
            await self.let_go.wait()
        finally:
            self.journal.append("handler ends")
        return Packed(event.payload.sku)


async def left_behind(store: MemoryStore, *skus: str) -> None:
    """Orders of an earlier process that handled none of them."""
    earlier = Shop(store=store)
    earlier.orders.on(Placed)(Script())
    for sku in skus:
        await earlier.o1.dispatch(Placed(sku))


async def waited(event: anyio.Event) -> None:
    with anyio.fail_after(PATIENCE_S):
        await event.wait()


async def test_both_lifespans_are_around_each_other() -> None:
    """Store, then app, then claiming; claiming ends and claims are released, then the app, then the store, then all."""
    journal: list[str] = []
    store = JournalStore(journal)
    await left_behind(store, "tea")
    journal.clear()
    shop = Shop(store=store, grace="1ms")
    work = Working(journal)
    shop.orders.on(Placed)(work)
    living = Living(journal)
    async with Served(A2Middleware(living, shop.a2), journal) as host:
        await waited(work.started)
    assert [
        "store opens",
        "app starts",
        "host hears lifespan.startup.complete",
        "handler starts",
        "handler ends",
        "app stops",
        "store closes",
        "host hears lifespan.shutdown.complete",
    ] == journal
    assert [host.scope] == living.scopes
    assert {"app": "started"} == host.scope["state"]


async def raises_at_once(scope: Message, receive: Receive, send: Send) -> None:
    """An app that knows no lifespan, and says so."""
    raise NotImplementedError(scope["type"])


async def returns_at_once(scope: Message, receive: Receive, send: Send) -> None:
    """An app that ignores what it does not know."""
    await checkpoint()


async def raises_on_startup(scope: Message, receive: Receive, send: Send) -> None:
    """An app that reads the first message, and is at a loss."""
    message = await receive()
    raise KeyError(message["type"])


async def returns_on_startup(scope: Message, receive: Receive, send: Send) -> None:
    """An app that reads the first message, and ends."""
    await receive()


@pytest.mark.parametrize(
    "app",
    [raises_at_once, returns_at_once, raises_on_startup, returns_on_startup],
    ids=lambda app: app.__name__,
)
async def test_an_app_without_lifespan_is_served_all_the_same(app: App) -> None:
    """A2 starts and stops around it as ever, and the host hears each stage once."""
    journal: list[str] = []
    shop = Shop(store=JournalStore(journal))
    shop.orders.on(Placed)(Script(Packed()))
    async with Served(A2Middleware(app, shop.a2), journal):
        await shop.o1.append(Placed(), wait=True)
        assert ["placed", "packed"] == await types_of(shop.o1)
    assert [
        "store opens",
        "host hears lifespan.startup.complete",
        "store closes",
        "host hears lifespan.shutdown.complete",
    ] == journal


async def leaves_early(scope: Message, receive: Receive, send: Send) -> None:
    """An app that starts, and does not wait for its end."""
    await receive()
    await send({"type": "lifespan.startup.complete"})


async def test_an_app_that_does_not_wait_for_its_end_is_served_until_then() -> None:
    """An app whose lifespan returns after the start is served until the host says that it is over."""
    shop = Shop(store=MemoryStore())
    shop.orders.on(Placed)(Script(Packed()))
    async with Served(A2Middleware(leaves_early, shop.a2)):
        await anyio.wait_all_tasks_blocked()
        await shop.o1.append(Placed(), wait=True)
        assert ["placed", "packed"] == await types_of(shop.o1)


async def fails_to_start(scope: Message, receive: Receive, send: Send) -> None:
    """An app that says that it cannot start."""
    await receive()
    await send({"type": "lifespan.startup.failed", "message": "no database"})


async def fails_to_start_and_raises(scope: Message, receive: Receive, send: Send) -> None:
    """An app that says that it cannot start, and shows why, as Starlette does."""
    await fails_to_start(scope, receive, send)
    raise ConnectionError("no database")


@pytest.mark.parametrize("app", [fails_to_start, fails_to_start_and_raises], ids=["returns", "raises"])
async def test_an_app_that_fails_to_start_is_heard(app: App) -> None:
    """The host hears the app's own words once, nothing is claimed, and the store is closed."""
    journal: list[str] = []
    store = JournalStore(journal)
    await left_behind(store, "tea")
    journal.clear()
    shop = Shop(store=store)
    pack = Script()
    shop.orders.on(Placed)(pack)
    async with Host(A2Middleware(app, shop.a2)) as host:
        assert {"type": "lifespan.startup.failed", "message": "no database"} == await host.startup()
        await waited(host.ended)
    assert (1, ["store opens", "store closes"], []) == (len(host.heard), journal, pack.attempts)


async def fails_to_stop(scope: Message, receive: Receive, send: Send) -> None:
    """An app that says that it did not end well."""
    await leaves_early(scope, receive, send)
    await receive()
    await send({"type": "lifespan.shutdown.failed", "message": "no flush"})


async def raises_at_its_end(scope: Message, receive: Receive, send: Send) -> None:
    """An app that breaks at its end."""
    await leaves_early(scope, receive, send)
    await receive()
    raise ConnectionError("no flush")


@pytest.mark.parametrize("app", [fails_to_stop, raises_at_its_end], ids=["says", "raises"])
async def test_an_app_that_fails_to_stop_is_heard(app: App) -> None:
    """The store is closed first, then the host hears of the failure, once."""
    journal: list[str] = []
    shop = Shop(store=JournalStore(journal))
    async with Host(A2Middleware(app, shop.a2), journal) as host:
        assert COMPLETE == await host.startup()
        assert {"type": "lifespan.shutdown.failed", "message": "no flush"} == await host.shutdown()
        await waited(host.ended)
    assert ["store closes", "host hears lifespan.shutdown.failed"] == journal[2:]


async def test_a_host_that_quits_at_once_loses_nothing() -> None:
    """A lifespan that is cancelled releases its claims and closes its store, and the next start goes on."""
    journal: list[str] = []
    store = JournalStore(journal)
    shop = Shop(store=store)
    work = Working(journal)
    shop.orders.on(Placed, retry=UNSPENT)(work)
    app = A2Middleware(Living(journal), shop.a2)
    async with Host(app) as host:
        await host.startup()
        await shop.o1.append(Placed())
        await waited(work.started)
    assert ["handler ends", "store closes"] == journal[-2:]
    work.let_go.set()
    async with Served(app):
        assert DrainResult(DrainState.SETTLED) == await shop.o1.drain()
        assert (["placed", "packed"], []) == (await types_of(shop.o1), await shop.a2.dead_letters())


async def test_an_append_during_the_app_s_start_is_handled_once_it_runs() -> None:
    """An app may append while it starts: its events are durable at once, and handled when all have started."""
    journal: list[str] = []
    shop = Shop(store=MemoryStore())
    work = Working(journal)
    shop.orders.on(Placed)(work)

    class Appending(Living):
        async def start(self, scope: Message) -> None:
            await shop.o1.append(Placed())
            await super().start(scope)

    async with Served(A2Middleware(Appending(journal), shop.a2)):
        await waited(work.started)
        work.let_go.set()
    assert ["app starts", "handler starts", "handler ends", "app stops"] == journal


# ── what keeps it from starting ──────────────────────────────────────────────────────────


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("error", [StoreBroken("a schema of the future"), StoreUnavailable("no answer")], ids=repr)
async def test_a_store_that_does_not_open_keeps_the_app_from_starting(error: Exception) -> None:
    """The host hears why, once; the app is not started; and a later start succeeds once the store answers."""
    journal: list[str] = []
    store = BrokenStore(error)
    app = A2Middleware(Living(journal), A2(store=store))
    async with Host(app) as host:
        assert {"type": "lifespan.startup.failed", "message": str(error)} == await host.startup()
        await waited(host.ended)
    assert (1, []) == (len(host.heard), journal)
    store.error = None
    async with Served(app):
        assert ["app starts"] == journal


async def test_a_path_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """A SQLite path below a file is a start-up failure that names the path."""
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "a2.db"
    async with Host(A2Middleware(echo, A2(store=SQLiteStore(path)))) as host:
        answer = await host.startup()
    assert ("lifespan.startup.failed", True) == (answer["type"], str(path) in answer["message"])


@pytest.mark.parametrize(("variable", "value"), [("A2_ENV", "production"), ("VERCEL", "1")])
async def test_production_needs_a_store(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without one the start fails with what to write, under a stable code, and no file is made."""
    monkeypatch.setenv(variable, value)
    monkeypatch.chdir(tmp_path)
    shop = Shop()
    async with Host(A2Middleware(echo, shop.a2)) as host:
        answer = await host.startup()
    assert "lifespan.startup.failed" == answer["type"]
    assert "no store is configured, and this is production: write A2(store=" in answer["message"]
    with pytest.raises(StoreNotConfigured) as refusal:
        async with shop.a2:
            pass
    with pytest.raises(StoreNotConfigured):
        await shop.o1.append(Noted())
    assert ("STORE_NOT_CONFIGURED", []) == (refusal.value.code, names_in(tmp_path))


@pytest.mark.parametrize(("variable", "value"), [("A2_ENV", "production"), ("VERCEL", "1")])
async def test_production_with_a_store_starts(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a store is named the same code runs in production."""
    monkeypatch.setenv(variable, value)
    shop = Shop(store=MemoryStore())
    shop.orders.on(Placed)(Script(Packed()))
    async with Served(A2Middleware(echo, shop.a2)):
        await shop.o1.append(Placed(), wait=True)
        assert ["placed", "packed"] == await types_of(shop.o1)


@pytest.mark.parametrize(("options", "expected"), [({}, True), ({"scheduler": None}, False)], ids=["embedded", "none"])
async def test_a_serverless_host_is_told_what_waits(
    options: dict[str, Any],
    expected: bool,  # noqa: FBT001 - a row
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The embedded scheduler on a serverless host is a warning that names the consequence."""
    monkeypatch.setenv("VERCEL", "1")
    async with Served(A2Middleware(echo, A2(store=MemoryStore(), **options))):
        pass
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert expected is any("timers and retries wait for the next request" in message for message in warnings)


async def test_development_makes_its_file_when_it_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing connects before the start; then the events are in `.a2/`."""
    monkeypatch.chdir(tmp_path)
    shop = Shop()
    app = A2Middleware(echo, shop.a2)
    assert [] == names_in(tmp_path)
    async with Served(app):
        await shop.o1.append(Noted())
    assert [".a2"] == names_in(tmp_path)
    assert "a2.db" in names_in(tmp_path / ".a2")


# ── hosts of another kind ────────────────────────────────────────────────────────────────


def placing(shop: Shop) -> App:
    """An app whose only route places an order, and tells what is in the log when the append has returned."""

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        await shop.o1.append(Placed(scope["path"]))
        body = json.dumps(await types_of(shop.o1)).encode()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    return app


async def test_a_host_without_lifespan_is_served_from_its_first_request_on() -> None:
    """The store is opened by the first request that needs it, and handlers run before their append returns."""
    journal: list[str] = []
    shop = Shop(store=JournalStore(journal))
    shop.orders.on(Placed)(Script(Packed(), Packed()))
    app = A2Middleware(placing(shop), shop.a2)
    assert [] == journal
    assert ["placed", "packed"] == json.loads((await request(app, "/a")).body)
    assert ["placed", "packed"] * 2 == json.loads((await request(app, "/b")).body)
    assert ["store opens"] == journal


async def test_first_requests_may_come_together() -> None:
    """Two requests that both find nothing open are both served, by one engine."""
    shop = Shop(store=MemoryStore())
    pack = Script()
    shop.orders.on(Placed)(pack)
    app = A2Middleware(placing(shop), shop.a2)
    async with anyio.create_task_group() as tasks:
        for path in ("/a", "/b", "/c"):
            tasks.start_soon(request, app, path)
    assert {Placed("/a"), Placed("/b"), Placed("/c")} == {event.payload for event in pack.events}
    assert [1, 1, 1] == pack.attempts


async def test_a_host_without_lifespan_hears_of_a_failure_later() -> None:
    """An append whose handler fails has succeeded all the same; the event waits for its next attempt."""
    shop = Shop(store=MemoryStore())
    shop.orders.on(Placed)(Script(ValueError("not now")))
    app = A2Middleware(placing(shop), shop.a2)
    assert ["placed"] == json.loads((await request(app, "/a")).body)
    assert DrainState.STALLED == (await shop.o1.drain()).state


async def called(app: App, path: str, *, lifespan: bool) -> object:
    """One call of a serverless host, which runs a lifespan around each, or none at all."""
    if not lifespan:
        return json.loads((await request(app, path)).body)
    async with Served(app):
        return json.loads((await request(app, path)).body)


LOOPS = {"asyncio": ["asyncio"] * 3, "trio": ["trio"] * 3, "both": ["asyncio", "trio", "asyncio"]}


@pytest.mark.parametrize("loops", LOOPS.values(), ids=LOOPS)
@pytest.mark.parametrize("lifespan", [True, False], ids=["lifespan", "no-lifespan"])
@pytest.mark.parametrize("durable", [False, True], ids=["memory", "sqlite"])
def test_a_host_may_run_each_call_in_a_loop_of_its_own(
    loops: list[str],
    lifespan: bool,  # noqa: FBT001 - a row
    durable: bool,  # noqa: FBT001 - a row
    tmp_path: Path,
) -> None:
    """Start and stop around every call, or neither, each in another event loop: nothing is lost on the way."""
    store = SQLiteStore(tmp_path / "a2.db") if durable else MemoryStore()
    shop = Shop(store=store)
    shop.orders.on(Placed)(lambda event: Packed(event.payload.sku))
    app = A2Middleware(placing(shop), shop.a2)

    async def call(path: str) -> object:
        return await called(app, path, lifespan=lifespan)

    async def look() -> list[tuple[str, object]]:
        await store.open()
        try:
            return await log_of(shop.o1)
        finally:
            await store.close()

    for number, backend in enumerate(loops):
        anyio.run(call, f"/{number}", backend=backend)
    log = anyio.run(look)
    for number in range(3):
        assert [("placed", Placed(f"/{number}")), ("packed", Packed(f"/{number}"))] == log[2 * number : 2 * number + 2]


async def test_a_life_of_one_call_does_what_was_due_at_its_start() -> None:
    """A host that stops as soon as it has started fires timers and runs crons all the same, in its next call."""
    store = MemoryStore(clock=ManualClock(1_700_000_000_000))
    shop = Shop(store=store)
    shop.orders.on(Placed)(Script(Packed()))
    slots: list[datetime] = []

    @shop.a2.cron("* * * * *")
    def often(slot: datetime) -> None:
        slots.append(slot)

    app = A2Middleware(echo, shop.a2)
    async with Served(app):
        await shop.o1.schedule("later", Placed(), delay="1m")
    assert ([], []) == (await types_of(shop.o1), slots)
    store.offset_ms = 60_000
    async with Served(app):
        pass
    assert (["placed", "packed"], 1) == (await types_of(shop.o1), len(slots))


async def test_a_life_is_no_longer_than_its_grace_for_what_was_due_at_its_start() -> None:
    """A handler that hangs is cut off, and gives back what it had."""
    store = JournalStore([])
    shop = Shop(store=store, grace="50ms")
    work = Working()
    shop.orders.on(Placed, retry=UNSPENT)(work)
    await shop.o1.dispatch(Placed())
    await shop.a2.close()
    async with Served(A2Middleware(echo, shop.a2)):
        pass
    assert (["handler starts"], (KEY,)) == (work.journal[:1], (await store.wakes_due(KEY)).due)


async def test_a_lifespan_may_follow_requests_that_came_without_one() -> None:
    """What a first request opened is taken over by a start that comes later, and again after the end."""
    shop = Shop(store=MemoryStore())
    shop.orders.on(Placed)(Script(Packed(), Packed(), Packed()))
    app = A2Middleware(placing(shop), shop.a2)
    await request(app, "/a")
    async with Served(app):
        await request(app, "/b")
        await shop.o1.drain()
    assert ["placed", "packed"] * 3 == json.loads((await request(app, "/c")).body)


async def test_one_a2_has_one_server_at_a_time() -> None:
    """A second lifespan beside the first fails to start with a sentence, and the first goes on."""
    shop = Shop(store=MemoryStore())
    shop.orders.on(Placed)(Script(Packed()))
    app = A2Middleware(echo, shop.a2)
    async with Served(app):
        async with Host(app) as second:
            answer = await second.startup()
            assert ("lifespan.startup.failed", True) == (answer["type"], "this A2 runs already" in answer["message"])
        await shop.o1.append(Placed(), wait=True)
        assert ["placed", "packed"] == await types_of(shop.o1)


# ── shutdown ─────────────────────────────────────────────────────────────────────────────


async def test_a_handler_may_finish_within_the_grace() -> None:
    """A shutdown waits for what runs, and what it returns is kept; nothing new is begun meanwhile."""
    shop = Shop(store=MemoryStore(), grace=f"{PATIENCE_S:.0f}s")
    work = Working()
    shop.orders.on(Placed)(work)
    async with Host(A2Middleware(echo, shop.a2)) as host:
        await host.startup()
        await shop.o1.append(Placed("a"))
        await waited(work.started)
        host.say_shutdown()
        await anyio.wait_all_tasks_blocked()
        await shop.orders.session("o2").append(Placed("b"))
        await anyio.wait_all_tasks_blocked()
        assert (["handler starts"], [COMPLETE]) == (work.journal, host.heard)
        work.let_go.set()
        assert ENDED == await host.answer()
    assert [("placed", Placed("a")), ("packed", Packed("a"))] == await log_of(shop.o1)
    assert (["handler starts", "handler ends"], ["placed"]) == (
        work.journal,
        await types_of(shop.orders.session("o2")),
    )


async def test_what_the_grace_does_not_cover_is_given_back() -> None:
    """G1: a handler that is cut off spends no budget, and another process can go on at once."""
    store = JournalStore([])
    shop = Shop(store=store, grace="1ms")
    work = Working()
    shop.orders.on(Placed, retry=UNSPENT)(work)
    async with Served(A2Middleware(echo, shop.a2)):
        await shop.o1.append(Placed())
        await waited(work.started)
    assert (KEY,) == (await store.wakes_due(KEY)).due
    other = Shop(store=store)
    pack = Script(Packed())
    other.orders.on(Placed, retry=UNSPENT)(pack)
    async with Served(A2Middleware(echo, other.a2)):
        await other.o1.drain()
    assert ([2], ["placed", "packed"]) == (pack.attempts, await types_of(other.o1))


class SlowToTell(JournalStore):
    """A store whose answer, once it has taken a wake-up, comes when the test says so."""

    def __init__(self) -> None:
        super().__init__([])
        self.taken = anyio.Event()
        self.let_go = anyio.Event()

    async def claim_wakes(self, *args: Any, **options: Any) -> Wakes:
        wakes = await super().claim_wakes(*args, **options)
        if wakes.due:
            self.taken.set()
            await self.let_go.wait()
        return wakes


async def test_a_wake_up_that_is_taken_as_the_shutdown_comes_is_handed_on() -> None:
    """G1: it is due at once for whoever comes next, and not only once its lease is over."""
    store = SlowToTell()
    shop = Shop(store=store)
    pack = Script()
    shop.orders.on(Placed)(pack)
    async with Host(A2Middleware(echo, shop.a2)) as host:
        await host.startup()
        await anyio.wait_all_tasks_blocked()
        await shop.o1.dispatch(Placed())
        with anyio.fail_after(PATIENCE_S):
            await store.taken.wait()
        host.say_shutdown()
        await anyio.wait_all_tasks_blocked()
        store.let_go.set()
        assert ENDED == await host.answer()
    assert ([], (KEY,)) == (pack.events, (await store.wakes_due(KEY)).due)


async def test_what_is_appended_during_a_shutdown_is_left_for_the_next_start() -> None:
    """G1: an app that appends at its very end finds it durable, and due at once for whoever comes next."""
    journal: list[str] = []
    store = JournalStore(journal)
    shop = Shop(store=store)
    pack = Script()
    shop.orders.on(Placed)(pack)

    class Appending(Living):
        async def stop(self) -> None:
            await shop.o1.append(Placed())
            await super().stop()

    async with Served(A2Middleware(Appending(journal), shop.a2)):
        pass
    assert ([], ["placed"], (KEY,)) == (pack.attempts, await types_of(shop.o1), (await store.wakes_due(KEY)).due)


@pytest.mark.parametrize("swallows", [False, True], ids=["cleans-up", "swallows"])
async def test_a_handler_that_takes_its_time_to_end_is_waited_for(swallows: bool) -> None:  # noqa: FBT001 - a row
    """One that cleans up is released then; one that swallows the cancellation and succeeds is settled."""
    store = MemoryStore()
    shop = Shop(store=store, grace="1ms")
    started, told, let_go = anyio.Event(), anyio.Event(), anyio.Event()

    @shop.orders.on(Placed, retry=UNSPENT)
    async def stubborn(event: Event[Placed]) -> Packed:
        started.set()
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            told.set()
            with anyio.CancelScope(shield=True):
                await let_go.wait()
            if not swallows:
                raise
        return Packed()

    async with Host(A2Middleware(echo, shop.a2)) as host:
        await host.startup()
        await shop.o1.append(Placed())
        await waited(started)
        host.say_shutdown()
        await waited(told)
        await anyio.wait_all_tasks_blocked()
        assert [COMPLETE] == host.heard
        let_go.set()
        assert ENDED == await host.answer()
    other = Shop(store=store)
    pack = Script(Packed("again"))
    other.orders.on(Placed, retry=UNSPENT)(pack)
    await other.o1.drain()
    assert ([] if swallows else [2]) == pack.attempts
    assert [("placed", Placed()), ("packed", Packed() if swallows else Packed("again"))] == await log_of(other.o1)


async def test_a_blocked_thread_does_not_hold_up_a_shutdown() -> None:
    """G5: a plain function that hangs is left behind; its claim runs out, and fences its late result off."""
    clock = ManualClock(0)
    store = MemoryStore(clock=clock)
    let_go, started, done = threading.Event(), threading.Event(), threading.Event()
    shop = Shop(store=store, grace="1ms")

    @shop.orders.on(Placed)
    def hang(event: Event[Placed]) -> Packed:
        started.set()
        let_go.wait(PATIENCE_S)
        done.set()
        return Packed("late")

    async with Served(A2Middleware(echo, shop.a2)):
        await shop.o1.append(Placed())
        await until(started)
    other = Shop(store=store)
    pack = Script(Packed("in time"))
    other.orders.on(Placed)(pack)
    async with Served(A2Middleware(echo, other.a2)):
        assert DrainState.BUSY == (await other.o1.drain()).state
        clock.move_to(60_000)
        assert DrainState.SETTLED == (await other.o1.drain()).state
        let_go.set()
        await until(done)
        await anyio.wait_all_tasks_blocked()
        assert ([2], [("placed", Placed()), ("packed", Packed("in time"))]) == (pack.attempts, await log_of(other.o1))


# ── frameworks ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("framework", [Starlette, FastAPI])
async def test_a_framework_s_own_lifespan_is_run(framework: Callable[..., Any]) -> None:
    """Starlette's and FastAPI's lifespan starts after the store and ends before it; its state reaches the requests."""
    journal: list[str] = []
    shop = Shop(store=JournalStore(journal))
    shop.orders.on(Placed)(Script(Packed()))

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[dict[str, str]]:
        journal.append("app starts")
        await shop.o1.append(Placed())
        yield {"greeting": "hello"}
        journal.append("app stops")

    async def greet(request: Request) -> Response:
        return PlainTextResponse(request.state.greeting)

    app = framework(lifespan=lifespan)
    app.add_route("/", greet)
    served = A2Middleware(app, shop.a2)
    async with Served(served, journal) as host:
        exchange = Exchange()
        await served({**http_scope("/"), "state": host.scope["state"].copy()}, exchange.receive, exchange.send)
        assert b"hello" == exchange.answer.body
        await shop.o1.drain()
        assert ["placed", "packed"] == await types_of(shop.o1)
    assert [
        "store opens",
        "app starts",
        "host hears lifespan.startup.complete",
        "app stops",
        "store closes",
        "host hears lifespan.shutdown.complete",
    ] == journal


@pytest.mark.parametrize("framework", [Starlette, FastAPI])
async def test_a_framework_that_fails_to_start_is_heard(framework: Callable[..., Any]) -> None:
    """What Starlette says of its lifespan's error is what the host hears, and the store is closed."""
    journal: list[str] = []

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        raise ConnectionError("no database")
        yield

    async with Host(A2Middleware(framework(lifespan=lifespan), A2(store=JournalStore(journal)))) as host:
        answer = await host.startup()
        await waited(host.ended)
    assert ("lifespan.startup.failed", True) == (answer["type"], "no database" in answer["message"])
    assert (1, ["store opens", "store closes"]) == (len(host.heard), journal)


# ── without any server ───────────────────────────────────────────────────────────────────


async def test_a_script_is_a_server_of_its_own() -> None:
    """`async with a2` runs handlers and wake-ups in a script, closes the store, and can be entered again."""
    journal: list[str] = []
    shop = Shop(store=JournalStore(journal))
    shop.orders.on(Placed)(Script(Packed(), Packed()))
    for _ in range(2):
        async with shop.a2 as entered:
            assert shop.a2 is entered
            await shop.o1.append(Placed(), wait=True)
    assert ["placed", "packed"] * 2 == await types_of(shop.o1)
    assert ["store opens", "store closes"] * 2 == journal[:4]


async def test_a_script_s_error_is_its_own() -> None:
    """G3: what the body raises leaves `async with a2` as itself, running handlers are released, the store is closed."""
    journal: list[str] = []
    shop = Shop(store=JournalStore(journal))
    work = Working(journal)
    shop.orders.on(Placed)(work)

    async def script() -> None:
        async with shop.a2:
            await shop.o1.append(Placed())
            await waited(work.started)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await script()
    assert ["store opens", "handler starts", "handler ends", "store closes"] == journal


async def test_an_a2_that_runs_refuses_to_run_again() -> None:
    """A second `async with a2` inside the first is refused, and the first goes on and ends as if nothing was."""
    journal: list[str] = []
    shop = Shop(store=JournalStore(journal))
    shop.orders.on(Placed)(Script(Packed()))
    with anyio.fail_after(PATIENCE_S):
        async with shop.a2:
            with pytest.raises(ConfigurationError, match="this A2 runs already"):
                async with shop.a2:
                    pass
            await shop.o1.append(Placed(), wait=True)
            assert ["placed", "packed"] == await types_of(shop.o1)
    assert "store closes" == journal[-1]
    async with shop.a2:
        assert ["placed", "packed"] == await types_of(shop.o1)
