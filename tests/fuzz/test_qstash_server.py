"""The QStash-compatible server, whatever it is sent: the documented answers and values, with and without its token."""

import math
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import anyio
import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from a2asgi.development import DEVELOPMENT_TOKEN
from a2asgi.qstash_server import QStashServer, Settings
from a2asgi.qstash_server.expressions import evaluate, is_expression
from a2asgi.qstash_server.orders import Options, destination_url, parse_order, split_query
from a2asgi.qstash_server.rules import (
    MAX_DELAY_MS,
    MAX_RETRY_DELAY_MS,
    next_tick_ms,
    parse_duration,
    retry_delay_ms,
    steered_ms,
)
from a2asgi.qstash_server.values import Refused, Response
from a2asgi.testing import ManualClock
from tests.asgi.support import Message
from tests.fuzz.hostile import (
    BOUND,
    DEEP,
    FLOOD,
    ODD,
    Client,
    Flood,
    as_json,
    bodies,
    damaged,
    exchange,
    header_values,
    headers,
    objects,
    peak_of,
    scope_of,
    texts,
    values,
)

EXAMPLES = settings(max_examples=150)
NOW_MS: Final = 1_800_000_000_000
TOKEN: Final = (b"authorization", f"Bearer {DEVELOPMENT_TOKEN}".encode())
ANSWERS: Final = {200, 201, 202, 400, 403, 404, 405, 412, 413, 429}
"""What the one who has the token may be answered."""

unicode = st.text(max_size=20)
"""What a path can hold: a server decodes it as UTF-8."""

# ── the parsers ──────────────────────────────────────────────────────────────────────────


@given(st.from_regex(r"\A([0-9]{0,16}(\.[0-9]{0,10})?(ns|us|\u00b5s|ms|s|m|h|d)?){0,4}\Z") | texts)
def test_a_duration_is_one_or_none(text: str) -> None:
    found = parse_duration(text)
    assert found is None or found >= 0


ARITHMETIC: Final = ["retried", "pow", "min", "(", ")", ",", "+", "*", "**", "/", "%", "1e400", "0", "9" * 60]
PYTHON: Final = ["True", "-", "~", "x.y", "\x00", "\n", "[1]", "lambda:0"]
expressions = st.lists(st.sampled_from([*ARITHMETIC, *PYTHON]) | texts, max_size=12).map("".join)


@settings(max_examples=300)
@given(expressions | st.sampled_from(["(" * 250, "-" * 250 + "1", "1" + "+1" * 120, "pow(9,pow(9,pow(9,9)))"]))
@pytest.mark.filterwarnings("ignore::SyntaxWarning", "ignore::DeprecationWarning")  # of the text, as Python reads it
def test_an_expression_has_a_value_or_none(text: str) -> None:
    if is_expression(text):
        value = evaluate(text, 3)
        assert value is None or not math.isnan(value)


DATES: Final = ["Fri, 31 Dec 9999 23:59:59 GMT", "Mon, 01 Jan 0001 00:00:00 +9999"]
wishes = texts | st.sampled_from(["9" * 15, "1e9", "6m5s", "-1", *DATES])


@given(
    st.lists(st.tuples(st.sampled_from(["Retry-After", "x-ratelimit-reset"]), wishes), max_size=3),
    st.none() | expressions.filter(is_expression),
)
@pytest.mark.filterwarnings("ignore::SyntaxWarning", "ignore::DeprecationWarning")
def test_no_destination_steers_out_of_bounds(pairs: list[tuple[str, str]], expression: str | None) -> None:
    response = Response(500, tuple(pairs))
    wish = steered_ms(response, NOW_MS)
    assert wish is None or wish >= 0
    assert 0 <= retry_delay_ms(1, expression, response, NOW_MS) <= MAX_RETRY_DELAY_MS


@given(st.sampled_from(["CRON_TZ=Europe/Berlin * * * * *", "CRON_TZ=", "CRON_TZ=../x * * * * *", "0 0 30 2 *"]) | texts)
def test_a_cron_comes_next_or_is_refused(text: str) -> None:
    with suppress(Refused):
        assert next_tick_ms(text, NOW_MS) > NOW_MS


PIECES: Final = [
    "http://",
    "https%3A%2F%2F",
    "a.example",
    "[",
    "]",
    "%",
    "%ff",
    "\u00e9",
    "xn--",
    ":",
    "@",
    "/",
    "?",
    "#",
]
destinations = st.lists(st.sampled_from([*PIECES, "65536", " ", "\x00"]) | texts, max_size=6).map("".join)


@settings(max_examples=300)
@given(destinations, destinations)
def test_a_destination_has_a_host_and_no_control_characters_or_is_refused(raw: str, query: str) -> None:
    own, _ = split_query(query)
    with suppress(Refused):
        url = destination_url(raw, own)
        assert urlsplit(url).hostname
        assert not set(map(chr, range(33))) & {*url, "#"}


NAMES: Final = [
    *("Content-Type", "Upstash-Method", "Upstash-Retries", "Upstash-Retry-Delay", "Upstash-Timeout", "Upstash-Delay"),
    *("Upstash-Not-Before", "Upstash-Callback", "Upstash-Callback-Delay", "Upstash-Failure-Callback", "Upstash-Label"),
    *("Upstash-Flow-Control-Key", "Upstash-Flow-Control-Value", "Upstash-Redact-Fields", "Upstash-Deduplication-Id"),
    *("Upstash-Content-Based-Deduplication", "Upstash-Header-Forward", "Upstash-Forward-X", "Upstash-Forward-\u00e9"),
    *("Upstash-Cron", "Upstash-Queue-Name", "Upstash-Schedule-Id", "X-Other"),
]
VALUES: Final = [
    *("true", "GET", "3", "1d", "* * * * *", "http://a.example/", "q-1", "pow(2, retried)"),
    *("parallelism=2, rate=1, period=1m", "body, header[x]"),
]
option_texts = st.sampled_from(VALUES) | texts
options = st.lists(st.tuples(st.sampled_from(NAMES) | texts, option_texts), max_size=8)


@settings(max_examples=300)
@given(options, st.binary(max_size=20), st.none() | texts)
def test_an_order_keeps_to_its_bounds_or_is_refused(
    pairs: list[tuple[str, str]], body: bytes, queue: str | None
) -> None:
    with suppress(Refused, UnicodeEncodeError):
        order = parse_order("http://a.example/", Options(pairs), body, queue=queue)
        assert 0 <= order.delay_ms <= MAX_DELAY_MS
        for _, value in order.headers:
            value.encode("latin-1")


# ── the server ───────────────────────────────────────────────────────────────────────────


class Nowhere(httpx.AsyncBaseTransport):
    """All destinations: they take whatever comes, and say yes."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        return httpx.Response(200, request=request)


@dataclass(frozen=True)
class Request:
    """One request of the API."""

    method: str
    path: str
    query: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes

    @property
    def scope(self) -> Message:
        raw = self.path.encode() + b"?" * bool(self.query) + self.query
        return scope_of(self.path, self.method, [TOKEN, *self.headers], query_string=self.query, raw_path=raw)


PATHS: Final = [
    *("publish/{}", "publish/http://a.example/{}", "enqueue/q/{}", "enqueue/{}/http://a.example", "batch"),
    *("messages/{}", "messages", "queues", "queues/{}", "queues/{}/resume", "logs", "events", "keys", "{}"),
    *("schedules", "schedules/{}", "schedules/http://a.example/{}", "schedules/{}/pause"),
    *("dlq", "dlq/{}", "dlq/retry", "dlq/retry/{}"),
]
PARAMETERS: Final = [
    *(b"count", b"cursor", b"messageIds", b"dlqIds", b"state", b"label", b"fromDate", b"url"),
    *(b"upstash-retries", b"qstash_token"),
]
OTHERWISE: Final = {b"authorization", b"host", b"origin"}
"""Headers that decide who is asking."""

wire_options = st.tuples(
    st.sampled_from([name.encode("latin-1") for name in NAMES]),
    st.sampled_from([value.encode() for value in VALUES]) | header_values,
)
elements = objects(
    destination=st.just("http://a.example/") | destinations,
    headers=st.dictionaries(st.sampled_from(NAMES) | texts, option_texts, max_size=4),
    body=texts,
    queue=st.just("q") | texts,
)
asked = (
    st.lists(elements, max_size=3)
    | objects(queueName=st.just("q") | texts, parallelism=st.integers(0, 9), paused=st.booleans())
    | objects(messageIds=st.lists(texts, max_size=2), dlqIds=st.lists(texts, max_size=2), by=texts)
    | values
)
requests = st.builds(
    Request,
    st.sampled_from(["GET", "POST", "DELETE", "PATCH", "PUT", "HEAD"]),
    st.builds(lambda path, name: "/v2/" + path.replace("{}", name), st.sampled_from(PATHS), st.just("q") | unicode)
    | st.sampled_from(["/time-travel", "/health", "/", "/v2/"]),
    st.lists(st.tuples(st.sampled_from(PARAMETERS), header_values), max_size=3).map(
        lambda pairs: b"&".join(b"%b=%b" % pair for pair in pairs)
    ),
    st.lists(wire_options, max_size=5)
    | headers.map(lambda found: [one for one in found if one[0].lower() not in OTHERWISE]),
    damaged(as_json(asked)) | bodies,
)


class House:
    """A server in memory, while it is asked."""

    def __init__(self) -> None:
        self.server = QStashServer(Settings(time_travel=True), clock=ManualClock(NOW_MS), transport=Nowhere())

    async def ask(self, *some: Request) -> list[int | None]:
        """The answers to those requests, one after another."""
        async with anyio.create_task_group() as group:
            await group.start(self.server.run)
            answers = [await exchange(self.server, one.scope, Client([one.body]), owner=True) for one in some]
            assert 200 == await exchange(self.server, scope_of("/health", "GET", []), Client())
            group.cancel_scope.cancel()
        return answers


@EXAMPLES
@given(st.lists(requests, min_size=1, max_size=4))
async def test_the_owner_of_the_token_is_answered_as_documented(some: list[Request]) -> None:
    assert {*await House().ask(*some)} <= ANSWERS


@EXAMPLES
@given(
    st.sampled_from(["/v2/keys", "/v2/publish/http://a.example", "/time-travel", "/v2/\u00e9"]),
    headers,
    st.binary(max_size=60),
)
async def test_nobody_else_is_served(path: str, items: list[tuple[bytes, bytes]], query: bytes) -> None:
    server = QStashServer(Settings(time_travel=True), clock=ManualClock(NOW_MS), transport=Nowhere())
    assert await exchange(server, scope_of(path, "POST", items, query_string=query), Client()) in {401, 403}


@pytest.mark.parametrize("body", [*DEEP, *ODD], ids=range(len(DEEP) + len(ODD)))
@pytest.mark.parametrize("path", ["/v2/batch", "/v2/queues", "/v2/dlq/retry", "/time-travel"])
async def test_what_is_no_object_is_refused(path: str, body: bytes) -> None:
    may = {201, 400} if path == "/v2/dlq/retry" and not body.strip() else {400}
    assert {*await House().ask(Request("POST", path, b"", [], body))} <= may


@pytest.mark.parametrize(("path", "most"), [("/v2/publish/http://a.example", 2**20), ("/v2/batch", 16 * 2**20)])
async def test_a_flood_is_read_no_further_than_its_limit(path: str, most: int) -> None:
    """The answer comes at the first chunk above the limit."""
    server = QStashServer(Settings(), clock=ManualClock(NOW_MS), transport=Nowhere())
    flood = Flood(FLOOD, 65_536)

    async def served(scope: Message, receive: Any, send: Any) -> None:
        await server({**scope, "headers": [TOKEN]}, receive, send)

    peak = await peak_of(served, path, flood)
    assert (413, True) == (flood.sent[0]["status"], flood.taken <= most + 65_536)
    assert peak <= 2 * most + BOUND, f"{peak:,} bytes"
