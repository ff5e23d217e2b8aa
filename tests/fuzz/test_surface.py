"""Hostile clients at every route: only the documented answers, no secret, no hang, and bounded memory."""

import re
from datetime import datetime
from hmac import digest
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from a2asgi import (
    A2,
    A2Middleware,
    BodyLimitMiddleware,
    Event,
    HmacVerifier,
    MemoryStore,
    SignatureMiddleware,
    SQLiteStore,
    Store,
)
from a2asgi.clock import SystemClock
from a2core import ANSWERS, Reason, sign_schedule
from tests.asgi.provider import Provider, qstash
from tests.asgi.support import App, Message, Receive, Send
from tests.fuzz.hostile import (
    BOUND,
    DEEP,
    FLOOD,
    HANG_S,
    LENGTHS,
    ODD,
    Client,
    Flood,
    as_json,
    bodies,
    damaged,
    exchange,
    headers,
    objects,
    peak_of,
    scope_of,
    texts,
    values,
)

EXAMPLES = settings(max_examples=150)
PREFIX: Final = "/api/a2"
SCHEDULER: Final = f"{PREFIX}/scheduler"
OFTEN: Final = f"{PREFIX}/cron/often"
LIMIT: Final = 1_000
METHODS: Final = ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "get", "\u00e9", "", "X" * 5_000]
STATUSES: Final = {
    "/limited": {200, 413},
    "/signed": {401, 413},
    f"{PREFIX}/": {404},
    f"{PREFIX}/healthz": {200, 404, 405},
    f"{PREFIX}/scheduler": {401, 404, 405, 489},
    f"{PREFIX}/cron/": {401, 404, 405},
    f"{PREFIX}/maintenance/": {401, 404, 405},
}
"""What nobody gets beyond who has no secret, by the beginning of the path."""

DELIVERED: Final = {ANSWERS[reason].status for reason in Reason} - {401, 405}
SECRET: Final = "the cron secret"
DRAIN: Final = b'{"version":1,"kind":"drain","contract":"orders","sessionId":"s","dueAt":0}'

parts = st.sampled_from(
    ["api", "a2", "scheduler", "cron", "maintenance", "healthz", "often", "signed", "..", "", "%2e"]
)
known = st.sampled_from(
    [*STATUSES, f"{SCHEDULER}/", OFTEN, f"{OFTEN}/x", f"{PREFIX}x", "//signed", "/api//a2/scheduler"]
)
paths = known | st.lists(parts | texts, max_size=5).map(lambda found: "/" + "/".join(found))
clients = st.builds(
    Client,
    chunks=st.lists(bodies, min_size=1, max_size=4),
    leaves_early=st.booleans(),
    patience=st.none() | st.integers(0, 2),
)


async def reads_all(scope: Message, receive: Receive, send: Send) -> None:
    """The wrapped app: it reads the body to its end, without keeping it, and says how long it was."""
    assert scope["type"] == "http"
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": f"{size}".encode()})


def made(store: Store | None = None, **options: Any) -> tuple[App, A2, Provider]:
    """An app with every kind of route, each behind a secret."""
    provider = Provider()
    a2 = A2(store=store or MemoryStore(), scheduler=qstash(provider, **options), cron_secret=SECRET)
    orders = a2.contract("orders")
    note = orders.event("note", str)

    @orders.on(note)
    def handle(_: Event[str]) -> None: ...

    @a2.cron("* * * * *")
    def often(slot: datetime) -> None: ...

    guarded = SignatureMiddleware(reads_all, HmacVerifier("the secret"), LIMIT, ["/signed"])
    return A2Middleware(BodyLimitMiddleware(guarded, LIMIT, ["/limited"]), a2), a2, provider


def documented(path: str) -> set[int]:
    """The answers of a path to who has no secret."""
    if not path.startswith(f"{PREFIX}/") and path != PREFIX:
        path = re.sub("/+", "/", path)
        return next((STATUSES[own] for own in ("/limited", "/signed") if f"{path}/".startswith(f"{own}/")), {200})
    return STATUSES[max((own for own in STATUSES if f"{path}/".startswith(own)), key=len)]


def signature_of(body: bytes) -> bytes:
    """What the sender of the webhooks sends."""
    return b"sha256=" + digest(b"the secret", body, "sha256").hex().encode()


# ── who has no secret ────────────────────────────────────────────────────────────────────


scopes = st.builds(
    scope_of,
    paths,
    st.sampled_from(METHODS),
    headers,
    raw_path=st.none() | st.binary(max_size=30),
    query_string=st.binary(max_size=30),
)


@EXAMPLES
@given(scopes, clients)
async def test_nobody_without_a_secret_gets_beyond_a_refusal(scope: Message, client: Client) -> None:
    store = MemoryStore()
    app, a2, _ = made(store)
    status = await exchange(app, scope, client)
    assert status is None or status in documented(scope["path"])
    assert [] == await store.sessions()
    await a2.close()


@pytest.mark.parametrize("length", LENGTHS, ids=range(len(LENGTHS)))
@pytest.mark.parametrize("repeats", [1, 2])
@pytest.mark.parametrize("path", ["/signed", "/limited", SCHEDULER])
async def test_a_length_that_lies_is_no_way_around_a_limit(path: str, repeats: int, length: bytes) -> None:
    """A small body is read for what it is, unless a plain number says that it is large; a large one is refused."""
    app, a2, provider = made(max_body_bytes=LIMIT)
    lengths = [(b"content-length", length)] * repeats
    too_large = 489 if path == SCHEDULER else 413
    for body in (DRAIN, bytes(LIMIT + 1)):
        signatures = [
            (b"upstash-signature", provider.sign(body).encode()),
            (b"x-hub-signature-256", signature_of(body)),
        ]
        status = await exchange(app, scope_of(path, "POST", [*lengths, *signatures]), Client([body[:7], body[7:]]))
        is_declared = length.isdigit() and length.isascii() and int(length[:6] or b"0") > LIMIT
        is_believed = is_declared and (repeats == 1 or path != SCHEDULER)  # there HTTP joins them: `9, 9` is no number
        assert (too_large if is_believed or len(body) > LIMIT else 200) == status
    await a2.close()


# ── who has one ──────────────────────────────────────────────────────────────────────────

events = st.lists(objects(id=texts, type=st.just("note"), payload=values), max_size=3)
tasks = objects(
    version=st.just(1),
    kind=st.sampled_from(["drain", "append"]),
    id=texts,
    contract=st.just("orders"),
    sessionId=texts,
    dueAt=st.integers(0, 10**13),
    events=events,
)
deliveries = damaged(as_json(tasks)) | bodies


async def delivered(app: App, provider: Provider, body: bytes) -> None:
    """A delivery whose signature holds is answered as documented, whatever it is, and the app goes on."""
    items = [(b"upstash-signature", provider.sign(body).encode())]
    client = Client([body])
    assert await exchange(app, scope_of(SCHEDULER, "POST", items), client) in DELIVERED
    assert client.sent[1]["body"].decode() in {answer.text for answer in ANSWERS.values()}
    assert 200 == await exchange(app, scope_of(f"{PREFIX}/healthz", "GET", []), Client())


@EXAMPLES
@given(deliveries)
async def test_whatever_is_signed_is_answered_as_documented(body: bytes) -> None:
    app, a2, provider = made()
    await delivered(app, provider, body)
    await a2.close()


@pytest.mark.parametrize("body", [*DEEP, *ODD], ids=range(len(DEEP) + len(ODD)))
async def test_what_is_no_message_is_never_sent_again(body: bytes) -> None:
    app, a2, provider = made()
    items = [(b"upstash-signature", provider.sign(body).encode())]
    assert 489 == await exchange(app, scope_of(SCHEDULER, "POST", items), Client([body]))
    await a2.close()


async def test_a_file_keeps_what_was_signed_or_refuses_it(tmp_path: Path) -> None:
    """SQLite cannot keep half a character, nor Postgres a NUL: the delivery is refused, and the next one is served."""
    app, a2, provider = made(SQLiteStore(tmp_path / "a2.db"))
    for odd in ("\\ud800", "\\u0000", "\\ufffe", "x" * 2_000):
        for name in ("contract", "sessionId", "id"):
            fields = {"contract": "orders", "sessionId": "s", "id": "t-1", name: odd}
            whole = ",".join(f'"{key}":"{value}"' for key, value in fields.items())
            event = f'{{"id":"{odd}","type":"note","payload":"{odd}"}}'
            for rest in ('"kind":"drain"', f'"kind":"append","events":[{event}]'):
                await delivered(app, provider, f'{{"version":1,{whole},"dueAt":0,{rest}}}'.encode())
    await a2.close()


# ── who leaves ───────────────────────────────────────────────────────────────────────────


def exchanges() -> dict[str, tuple[str, bytes, list[tuple[bytes, bytes]]]]:
    """One request of each kind that is accepted: where, with which body, with which headers."""
    minute_ms = SystemClock().now_ms() // 60_000 * 60_000
    slot = [
        (b"x-a2-cron-slot", f"{minute_ms}".encode()),
        (b"x-a2-cron-signature", sign_schedule(SECRET, "cron:often", minute_ms).encode()),
    ]
    return {
        "delivery": (SCHEDULER, DRAIN, [(b"upstash-signature", Provider().sign(DRAIN).encode())]),
        "cron": (OFTEN, b"{}", slot),
        "webhook": ("/signed", b"hook", [(b"x-hub-signature-256", signature_of(b"hook"))]),
        "limited": ("/limited", b"text", []),
        "other": ("/elsewhere", b"text", []),
    }


@pytest.mark.parametrize("kind", exchanges())
async def test_a_client_may_leave_at_any_point(kind: str) -> None:
    """Before, between and after the bytes of its body, and before, between and after the parts of the answer."""
    path, body, items = exchanges()[kind]
    whole = [bytes([byte]) for byte in body]
    for left in range(len(whole) + 1):
        app, a2, _ = made()
        status = await exchange(app, scope_of(path, "POST", items), Client(whole[:left], leaves_early=True))
        assert status == (200 if kind == "cron" else None)  # which reads no body
        await a2.close()
    for patience in range(3):
        app, a2, _ = made()
        assert await exchange(app, scope_of(path, "POST", items), Client(whole, patience=patience)) in {200, None}
        assert await exchange(app, scope_of(path, "POST", items), Client(whole)) == 200
        await a2.close()


# ── who floods ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("path", "status", "most"),
    [
        pytest.param(SCHEDULER, 489, 2**20 + 65_536, id="callback"),
        pytest.param("/signed", 413, 65_536, id="signed"),
        pytest.param("/limited", 413, 65_536, id="limited"),
        pytest.param("/elsewhere", 200, FLOOD, id="passed-through"),
    ],
)
async def test_a_flood_is_read_no_further_than_its_limit(path: str, status: int, most: int) -> None:
    """100 MiB: what is refused is refused at the first chunk above the limit, and nothing is ever kept."""
    app, a2, _ = made()
    await exchange(app, scope_of(f"{PREFIX}/healthz", "GET", []), Client())
    flood = Flood(FLOOD, 65_536)
    peak = await peak_of(app, path, flood)
    assert (status, True) == (flood.sent[0]["status"], flood.taken <= most)
    assert peak <= BOUND, f"{peak:,} bytes"
    await a2.close()


@pytest.mark.parametrize("chunk", [0, 1, 2, 3])
async def test_crumbs_need_no_more_memory_than_their_bytes(chunk: int) -> None:
    """Each piece of a body has a price of its own, so a body of crumbs must not be kept as crumbs."""
    app, a2, _ = made()
    await exchange(app, scope_of(f"{PREFIX}/healthz", "GET", []), Client())
    flood = Flood(2**18 if chunk else 0, chunk)
    peak = await peak_of(app, SCHEDULER, flood)
    assert 401 == flood.sent[0]["status"]
    assert peak <= BOUND, f"{peak:,} bytes"
    await a2.close()


async def test_slow_bodies_hold_up_nobody() -> None:
    """Clients that send nothing any more wait alone: others are served beside them."""
    app, a2, provider = made()
    items = [(b"upstash-signature", provider.sign(DRAIN).encode())]
    answers: list[Message] = []

    async def never() -> Message:
        await anyio.sleep_forever()
        raise AssertionError

    async def heard(message: Message) -> None:
        answers.append(message)

    async def wait(scope: Message) -> None:
        await app(scope, never, heard)

    with anyio.fail_after(HANG_S):
        async with anyio.create_task_group() as group:
            for _ in range(100):
                group.start_soon(wait, scope_of(SCHEDULER, "POST", items))
            await anyio.wait_all_tasks_blocked()
            assert 200 == await exchange(app, scope_of(SCHEDULER, "POST", items), Client([DRAIN]))
            group.cancel_scope.cancel()
    assert [] == answers
    await a2.close()
