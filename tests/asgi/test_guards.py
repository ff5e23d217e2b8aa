"""The guards on raw ASGI and in front of frameworks: what they let through, and what never reaches the app."""

import hmac
import logging
from collections.abc import Iterable
from functools import partial
from typing import Any

import anyio
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

from a2asgi import BodyLimitMiddleware, HmacVerifier, QStashVerifier, Refusal, SignatureMiddleware, Verdict, WiringError
from a2asgi.guards import request_url
from a2core import InvalidUrl
from tests.asgi.support import PATIENCE_S, Answer, App, Exchange, Message, Receive, Send, http_scope
from tests.asgi.tokens import BODY, CURRENT, NEXT, NOW_S, URL, at, token

MIB = 2**20
GONE = {"type": "http.disconnect"}
UNAUTHORIZED = (401, b'{"error": "unauthorized"}')
TOO_LARGE = (413, b'{"error": "content too large"}')
VERIFIER = QStashVerifier(CURRENT, NEXT, clock=at())


class Recorder:
    """An app that takes all that it is given, and remembers it."""

    def __init__(self, messages: int = 1) -> None:
        self.scopes: list[Message] = []
        self.heard: list[Message] = []
        self._messages = messages

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)
        for _ in range(self._messages):
            self.heard.append(await receive())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})


class Sender(Exchange):
    """A client that counts how much of its body was taken."""

    taken = 0

    async def receive(self) -> Message:
        message = await super().receive()
        self.taken += len(message.get("body", b""))
        return message


def scope_of(path: str = "/api/a2/scheduler", headers: Iterable[tuple[bytes, bytes]] = (), **changes: Any) -> Message:
    scope = http_scope(path, "POST")
    return {**scope, "scheme": "https", "headers": [(b"host", b"example.com"), *headers], **changes}


def signed(text: str | None = None) -> tuple[bytes, bytes]:
    return b"upstash-signature", (token() if text is None else text).encode()


async def talk(app: App, scope: Message, chunks: Iterable[bytes] = (BODY,)) -> tuple[tuple[int, bytes], Sender]:
    """One exchange: status and body of the answer, and the client."""
    sender = Sender(list(chunks))
    with anyio.fail_after(PATIENCE_S):
        await app(scope, sender.receive, sender.send)
    answer: Answer = sender.answer
    return (answer.status, answer.body), sender


# ── signatures ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("chunks", [[BODY], [BODY[:3], b"", BODY[3:8], BODY[8:]], [b"", BODY, b""]])
async def test_the_app_hears_exactly_what_was_signed_then_the_client_itself(chunks: list[bytes]) -> None:
    """V11, D4: three chunks come as one message, and then the disconnect of the real client."""
    app = Recorder(messages=3)
    scope = scope_of(headers=[signed()])
    answer, _ = await talk(SignatureMiddleware(app, VERIFIER), scope, chunks)
    assert (200, b"ok") == answer
    assert [{"type": "http.request", "body": BODY, "more_body": False}, GONE, GONE] == app.heard
    assert app.scopes[0] is scope


@pytest.mark.parametrize(
    ("headers", "chunks"),
    [
        pytest.param([], [BODY], id="V7-missing"),
        pytest.param([(b"authorization", token().encode())], [BODY], id="another-header"),
    ],
)
async def test_the_unsigned_is_refused_before_its_body_is_read(
    headers: list[tuple[bytes, bytes]], chunks: list[bytes]
) -> None:
    app = Recorder()
    answer, sender = await talk(SignatureMiddleware(app, VERIFIER), scope_of(headers=headers), chunks)
    assert (UNAUTHORIZED, 0, []) == (answer, sender.taken, app.scopes)


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param([signed("")], id="V7-empty"),
        pytest.param([signed(), signed()], id="V7-twice"),
        pytest.param([signed("x" * MIB)], id="V32-1MiB-of-signature"),
        pytest.param([(b"upstash-signature", b"\xff\x00")], id="garbage"),
        pytest.param([signed(token(key="sig_other"))], id="V21-forged"),
        pytest.param([signed(token(exp=NOW_S))], id="V28-expired"),
        pytest.param([signed(token(b"{}"))], id="V8-another-body"),
        pytest.param([signed(token(sub="https://backend.example.com/w"))], id="V2-another-url"),
        pytest.param([signed(token(sub=f"{URL}/"))], id="V5-slash"),
    ],
)
async def test_a_bad_signature_is_401_whatever_it_holds(headers: list[tuple[bytes, bytes]]) -> None:
    """V21, V36, D5: never a 5xx, never the app, and never a word on why."""
    app = Recorder()
    answer, _ = await talk(SignatureMiddleware(app, VERIFIER), scope_of(headers=headers))
    assert (UNAUTHORIZED, []) == (answer, app.scopes)


@pytest.mark.parametrize("kind", [b"application/json", b"text/plain", b"application/x-www-form-urlencoded", None])
async def test_the_content_type_makes_no_difference(kind: bytes | None) -> None:
    """V9."""
    headers = [signed(), *([] if kind is None else [(b"content-type", kind)])]
    answer, _ = await talk(SignatureMiddleware(Recorder(), VERIFIER), scope_of(headers=headers))
    assert 200 == answer[0]


@pytest.mark.parametrize("name", [b"upstash-signature", b"Upstash-Signature", b"UPSTASH-SIGNATURE"])
async def test_the_headers_case_makes_no_difference(name: bytes) -> None:
    """V7."""
    answer, _ = await talk(SignatureMiddleware(Recorder(), VERIFIER), scope_of(headers=[(name, token().encode())]))
    assert 200 == answer[0]


async def test_a_huge_body_is_refused_while_it_streams() -> None:
    """V32: 50 MB without a signature cost nothing, and with any signature no more than the limit and one chunk."""
    app = Recorder()
    guarded = SignatureMiddleware(app, VERIFIER, MIB)
    chunk = bytes(64 * 1024)
    answer, sender = await talk(guarded, scope_of(), [chunk] * 800)
    assert (UNAUTHORIZED, 0) == (answer, sender.taken)
    answer, sender = await talk(guarded, scope_of(headers=[signed()]), [chunk] * 800)
    assert (TOO_LARGE, MIB + len(chunk)) == (answer, sender.taken)
    declared = scope_of(headers=[signed(), (b"content-length", b"50000000")])
    answer, sender = await talk(guarded, declared, [chunk] * 800)
    assert (TOO_LARGE, 0, []) == (answer, sender.taken, app.scopes)


async def test_a_client_that_hangs_up_is_not_answered() -> None:
    app, sent = Recorder(), []

    async def receive() -> Message:
        return dict(GONE)

    async def send(message: Message) -> None:
        sent.append(message)

    await SignatureMiddleware(app, VERIFIER)(scope_of(headers=[signed()]), receive, send)
    assert ([], []) == (app.scopes, sent)


# ── whose word counts for the URL ────────────────────────────────────────────────────────

FORWARDED = [
    (b"x-forwarded-proto", b"https"),
    (b"x-forwarded-host", b"example.com"),
    (b"x-forwarded-port", b"443"),
    (b"forwarded", b"proto=https;host=example.com"),
]


@pytest.mark.parametrize(
    ("scope", "said"),
    [
        (scope_of(scheme="http", headers=[signed(), *FORWARDED]), "http://example.com/api/a2/scheduler"),  # V1
        (
            {**scope_of("/wake", scheme="http"), "headers": [(b"host", b"10.0.0.3:8000"), signed(), *FORWARDED]},
            "http://10.0.0.3:8000/wake",  # D2
        ),
    ],
)
async def test_forwarded_headers_are_never_believed(
    scope: Message, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """V1, V2, D2: refused, with both URLs in the log; and let through by the URL that was configured."""
    app = Recorder()
    answer, _ = await talk(SignatureMiddleware(app, VERIFIER), scope)
    assert (UNAUTHORIZED, []) == (answer, app.scopes)
    [line] = caplog.messages
    assert f"signed for {URL!r}, delivered to {said!r}" in line
    public = QStashVerifier(CURRENT, NEXT, url=URL, clock=at())
    answer, _ = await talk(SignatureMiddleware(app, public), scope)
    assert 200 == answer[0]


async def test_a_public_origin_stands_for_scheme_and_host() -> None:
    """D2: path and query are the request's own."""
    scope = scope_of("/wake", scheme="http", query_string=b"a=1&b=%2F")
    scope["headers"] = [(b"host", b"10.0.0.3:8000"), signed(token(sub="https://example.com/wake?a=1&b=%2F"))]
    answer, _ = await talk(SignatureMiddleware(Recorder(), VERIFIER, origin="https://example.com/"), scope)
    assert 200 == answer[0]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "https://example.com/api/a2/scheduler"),
        ({"query_string": b"job=a&x=%C3%A9+"}, "https://example.com/api/a2/scheduler?job=a&x=%C3%A9+"),
        ({"path": "/café", "raw_path": b"/caf%C3%A9"}, "https://example.com/caf%C3%A9"),
        ({"path": "/café", "raw_path": None}, "https://example.com/caf%C3%A9"),
        ({"raw_path": b"/x?y=1", "query_string": b"y=1"}, "https://example.com/x?y=1"),
        ({"path": "/v1/x", "raw_path": b"/v1/x", "root_path": "/v1"}, "https://example.com/v1/x"),
        ({"path": "/x", "raw_path": b"/x", "root_path": "/v1/"}, "https://example.com/v1/x"),
        (
            {"headers": [(b"accept", b"*/*"), (b"Host", b"EXAMPLE.com:8443")]},
            "https://EXAMPLE.com:8443/api/a2/scheduler",
        ),
        ({"headers": [], "server": ("10.0.0.3", 8000)}, "https://10.0.0.3:8000/api/a2/scheduler"),
        ({"headers": [], "server": ("/run/a.sock", None)}, "https:///api/a2/scheduler"),
        ({"headers": [], "server": None}, "https:///api/a2/scheduler"),
    ],
)
def test_a_url_is_put_together_from_the_request(changes: dict[str, Any], expected: str) -> None:
    """D2: root path, trailing slash, query and case are as they came."""
    assert expected == request_url({**scope_of(), **changes})


# ── paths ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("path", "root", "guarded"),
    [
        ("/hooks", "", True),
        ("/hooks/", "", True),
        ("/hooks/github", "", True),
        ("//hooks", "", True),
        ("/hooks//github", "", True),
        ("/v1/hooks", "/v1", True),
        ("/v1//hooks", "/v1/", True),
        ("/hooks", "/v1", True),
        ("/", "", False),
        ("/hook", "", False),
        ("/hooksx", "", False),
        ("/HOOKS", "", False),
        ("/v1/hooks", "", False),
        ("/v1", "/v1", False),
    ],
)
async def test_a_path_is_guarded_with_all_below_it(path: str, root: str, *, guarded: bool) -> None:
    """V36: other callers keep their routes; and no other spelling is a way around the guard."""
    scope = scope_of(path, root_path=root)
    for middleware, refusal in (
        (SignatureMiddleware(Recorder(), VERIFIER, paths=["/other", "/hooks"]), 401),
        (BodyLimitMiddleware(Recorder(), 3, paths=["/other", "/hooks"]), 413),
    ):
        (status, _), _ = await talk(middleware, scope)
        assert (refusal if guarded else 200) == status


@pytest.mark.parametrize(
    "make",
    [partial(SignatureMiddleware, verifier=VERIFIER), partial(BodyLimitMiddleware, max_bytes=0)],
    ids=["signature", "limit"],
)
@pytest.mark.parametrize(
    "scope",
    [{"type": "websocket", "path": "/hooks"}, {"type": "lifespan"}, {"type": "webtransport", "path": "/"}],
    ids=lambda scope: scope["type"],
)
async def test_other_scopes_pass_through_untouched(make: Any, scope: Message) -> None:
    calls: list[tuple[object, ...]] = []

    async def app(*call: object) -> None:
        calls.append(call)

    call = (scope, Exchange().receive, Exchange().send)
    await make(app)(*call)
    assert [call] == calls
    assert calls[0][0] is scope


@pytest.mark.parametrize("paths", [[], "/hooks", ["hooks"], ["/hooks/"], ["/a", ""], ["//hooks"]])
def test_paths_that_guard_something_else_are_refused(paths: Any) -> None:
    with pytest.raises(WiringError, match="paths: expected"):
        SignatureMiddleware(Recorder(), VERIFIER, paths=paths)
    with pytest.raises(WiringError, match="paths: expected"):
        BodyLimitMiddleware(Recorder(), 1, paths)


@pytest.mark.parametrize("limit", [-1, None, 1.5, True, "1"])
def test_a_limit_is_a_number_of_bytes(limit: Any) -> None:
    with pytest.raises(WiringError, match="max_bytes: expected"):
        SignatureMiddleware(Recorder(), VERIFIER, limit)
    with pytest.raises(WiringError, match="max_bytes: expected"):
        BodyLimitMiddleware(Recorder(), limit)


def test_an_origin_is_scheme_and_host() -> None:
    for origin in ("https://example.com/x", "https://example.com?x", "https://example.com//"):
        with pytest.raises(WiringError, match="origin: expected"):
            SignatureMiddleware(Recorder(), VERIFIER, origin=origin)
    with pytest.raises(InvalidUrl):
        SignatureMiddleware(Recorder(), VERIFIER, origin="example.com")


# ── nothing is told ──────────────────────────────────────────────────────────────────────


@given(st.binary(max_size=80), st.binary(max_size=80))
def test_whatever_comes_is_refused_cleanly(signature: bytes, body: bytes) -> None:
    app = Recorder()
    guarded = SignatureMiddleware(app, VERIFIER)
    answer, _ = anyio.run(talk, guarded, scope_of(headers=[(b"upstash-signature", signature)]), [body])
    assert (UNAUTHORIZED, []) == (answer, app.scopes)


async def test_neither_log_nor_answer_holds_a_secret(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    text = token(sub=f"{URL}?x-vercel-protection-bypass=hunter2")
    scope = scope_of("/api/a2/scheduler", [signed(text), (b"authorization", b"Bearer hunter2")])
    answer, _ = await talk(SignatureMiddleware(Recorder(), VERIFIER), scope)
    shown = caplog.text + str(answer)
    assert "x-vercel-protection-bypass=***" in shown
    assert not [secret for secret in ("hunter2", CURRENT, NEXT, text) if secret in shown]
    assert b"example" not in answer[1]


async def test_a_log_line_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    path = "/x\r\nadmin logged in" + "x" * 9_000
    await talk(SignatureMiddleware(Recorder(), VERIFIER), scope_of(path, method="PO\nST"))
    [line] = caplog.messages
    assert ("\n" in line, len(line) < 1_000) == (False, True)


class Broken:
    """A verifier with a bug."""

    header = "x-signature"

    def verify_request(self, headers: object, body: bytes, url: str) -> Verdict:
        raise ZeroDivisionError(headers, body, url)


async def test_a_verifier_that_fails_lets_nothing_through(caplog: pytest.LogCaptureFixture) -> None:
    app = Recorder()
    answer, _ = await talk(SignatureMiddleware(app, Broken()), scope_of(headers=[(b"X-Signature", b"1")]))
    assert (UNAUTHORIZED, []) == (answer, app.scopes)
    assert "ZeroDivisionError" in caplog.text


class Twice:
    """Any verifier will do: this one takes a message once."""

    header = "X-Id"

    def __init__(self) -> None:
        self.seen: set[tuple[bytes, bytes, str]] = set()

    def verify_request(self, headers: Iterable[tuple[bytes, bytes]], body: bytes, url: str) -> Verdict:
        id_ = dict(headers)[b"x-id"], body, url
        if id_ in self.seen:
            return Verdict(Refusal.EXPIRED, "seen before")
        self.seen.add(id_)
        return Verdict()


async def test_a_verifier_of_ones_own() -> None:
    """D5: the same message twice."""
    guarded = SignatureMiddleware(Recorder(), Twice())
    statuses = [(await talk(guarded, scope_of(headers=[(b"x-id", b"1")])))[0][0] for _ in range(2)]
    assert [200, 401] == statuses


# ── the limit ────────────────────────────────────────────────────────────────────────────


async def test_a_body_within_the_limit_streams_through() -> None:
    app = Recorder(messages=4)
    answer, _ = await talk(BodyLimitMiddleware(app, 6), scope_of(), [b"ab", b"cd", b"ef"])
    assert (200, b"ok") == answer
    assert [b"ab", b"cd", b"ef"] == [message.get("body") for message in app.heard[:3]]
    assert GONE == app.heard[3]


async def test_a_declared_length_above_the_limit_never_reaches_the_app() -> None:
    app = Recorder()
    scope = scope_of(headers=[(b"content-length", b"7")])
    answer, sender = await talk(BodyLimitMiddleware(app, 6), scope, [b"abcdefg"])
    assert (TOO_LARGE, 0, []) == (answer, sender.taken, app.scopes)


async def test_an_app_whose_client_passes_the_limit_finds_it_gone() -> None:
    """What the app answers after that is not sent: the client has its answer."""
    app = Recorder(messages=5)
    answer, sender = await talk(BodyLimitMiddleware(app, 6), scope_of(), [b"abc"] * 1_000)
    assert (TOO_LARGE, 9) == (answer, sender.taken)
    assert [b"abc", b"abc", None, None, None] == [message.get("body") for message in app.heard]


async def test_an_app_that_answers_already_is_cut_off() -> None:
    heard: list[str] = []

    async def app(_: Message, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        heard.extend([(await receive())["type"] for _ in range(3)])
        await send({"type": "http.response.body", "body": b"partly"})

    answer, sender = await talk(BodyLimitMiddleware(app, 4), scope_of(), [b"abc"] * 1_000)
    assert ((200, b"partly"), 6) == (answer, sender.taken)
    assert ["http.request", "http.disconnect", "http.disconnect"] == heard


async def test_an_error_of_the_app_is_its_own_unless_its_client_was_refused() -> None:
    async def app(_: Message, receive: Receive, __: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        raise ZeroDivisionError

    answer, _ = await talk(BodyLimitMiddleware(app, 4), scope_of(), [b"abc"] * 3)
    assert TOO_LARGE == answer
    with pytest.raises(ZeroDivisionError):
        await talk(BodyLimitMiddleware(app, 4), scope_of(), [b"abc"])


# ── around and within frameworks ─────────────────────────────────────────────────────────


class Greedy(BaseHTTPMiddleware):
    """A middleware that reads the body on its way, as many do."""

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        await request.body()
        return await call_next(request)


async def echo(request: Request) -> JSONResponse:
    return JSONResponse({"body": (await request.body()).decode()})


async def slow(request: Request) -> StreamingResponse:
    """It streams, and watches for its client to hang up meanwhile."""

    async def parts() -> Any:
        yield "gone" if await request.is_disconnected() else "there"

    return StreamingResponse(parts())


def signature(body: bytes) -> dict[str, str]:
    return {"X-Hub-Signature-256": "sha256=" + hmac.digest(b"secret", body, "sha256").hex()}


def stacks() -> dict[str, App]:
    """A guard around, within, and between middlewares that read the body themselves."""
    routes = [Route("/echo", echo, methods=["POST"]), Route("/slow", slow, methods=["POST"])]
    verifier = HmacVerifier("secret")
    guard = Middleware(SignatureMiddleware, verifier=verifier)
    greedy = Middleware(Greedy)
    return {
        "around": SignatureMiddleware(Starlette(routes=routes), verifier),
        "within": Starlette(routes=routes, middleware=[guard]),
        "greedy-after": Starlette(routes=routes, middleware=[guard, greedy]),
        "greedy-before": Starlette(routes=routes, middleware=[greedy, guard]),
        "limited": BodyLimitMiddleware(Starlette(routes=routes, middleware=[guard, greedy]), 100),
        "mounted": Starlette(routes=[Mount("/", SignatureMiddleware(Starlette(routes=routes), verifier, paths=["/"]))]),
    }


@pytest.mark.parametrize("name", stacks())
@pytest.mark.parametrize("path", ["/echo", "/slow"])
async def test_a_signed_body_reaches_its_route_in_any_stack(name: str, path: str) -> None:
    """D4: read before us, read after us, or watched while it streams: one body, no hang."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(stacks()[name]), base_url="http://test") as client:
        with anyio.fail_after(PATIENCE_S):
            answer = await client.post(path, content=BODY, headers=signature(BODY))
            refused = await client.post(path, content=BODY + b" ", headers=signature(BODY))
    assert (200, 401) == (answer.status_code, refused.status_code)
    if path == "/echo":
        assert {"body": BODY.decode()} == answer.json()


async def test_a_framework_behind_the_limit_is_answered_for() -> None:
    """Starlette raises where its client is gone; the client has its 413 all the same."""
    app = BodyLimitMiddleware(Starlette(routes=[Route("/echo", echo, methods=["POST"])]), 10)
    answer, sender = await talk(app, scope_of("/echo"), [b"abcdef"] * 1_000)
    assert (TOO_LARGE, 12) == (answer, sender.taken)
    answer, _ = await talk(app, scope_of("/echo"), [b"abcdef", b"abcd"])
    assert (200, b'{"body":"abcdefabcd"}') == answer


async def test_requests_share_nothing() -> None:
    """One guard serves many at once: each has its own count, and its own body."""
    text = {n: f"{n:05}".encode() for n in range(20)}
    app = BodyLimitMiddleware(Starlette(routes=[Route("/echo", echo, methods=["POST"])]), 5)
    answers: dict[int, tuple[int, bytes]] = {}

    async def one(n: int) -> None:
        answers[n], _ = await talk(app, scope_of("/echo"), [text[n][:2], text[n][2:], *([b"x"] * (n % 2))])

    async with anyio.create_task_group() as tasks:
        for n in text:
            tasks.start_soon(one, n)
    assert {n: TOO_LARGE if n % 2 else (200, b'{"body":"%s"}' % text[n]) for n in text} == answers


async def test_an_answer_without_a_body_is_well_formed() -> None:
    """The refusal is whole: its length is its body's."""
    sender = Sender([BODY])
    await SignatureMiddleware(PlainTextResponse("ok"), VERIFIER)(scope_of(), sender.receive, sender.send)
    answer = sender.answer
    assert ("application/json", str(len(answer.body))) == (
        answer.headers["content-type"],
        answer.headers["content-length"],
    )
