"""What the fuzz tests throw: hostile bytes, texts, JSON and headers, and an HTTP client that breaks every habit."""

import json
import re
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
from hypothesis import strategies as st

from tests.asgi.support import App, Message, http_scope

HANG_S: Final = 2.0
"""How long one exchange may take, of which each takes milliseconds."""

FLOOD: Final = 100 * 2**20
BOUND: Final = 4 * 2**20
"""Bytes at most that the process needs more at any time while it reads under a limit of 1 MiB."""

BRACKETS: Final = 100_000
DEEP: Final = [b"[" * BRACKETS, b'{"a":' * BRACKETS, b"[" * BRACKETS + b"]" * BRACKETS, b'[{"a":' * BRACKETS]
ODD: Final = [
    b"",
    b"\x00",
    b"\xff\xfe",
    b"\xef\xbb\xbf{}",
    b"null",
    b"NaN",
    b"-Infinity",
    b"1" * 5_000,
    b"1e999",
    b'"\\ud800"',
    b'{"a":1,"a":2}',
    "{}".encode("utf-16"),
]

bodies: st.SearchStrategy[bytes] = st.binary(max_size=200) | st.sampled_from(ODD) | st.sampled_from(DEEP)
texts: st.SearchStrategy[str] = st.text(max_size=40) | st.text(
    "aZ0.:/@[]%?#\\ \t\r\n\x00\x7f\xe9\u0661\u202e\ud800\udfff\ufffe\U0001f600", max_size=12
)
"""Any characters, and often those that something stumbles over: halves of characters, NUL, line ends."""

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.just(10**4_000)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
values: st.SearchStrategy[Any] = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=12
)
"""What JSON can hold."""


def objects(**usual: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with these keys, of which each may be missing or hold anything, and with others."""
    optional = {name: usual_value | values for name, usual_value in usual.items()}
    known = st.fixed_dictionaries({}, optional=optional)
    return st.builds(lambda one, other: other | one, known, st.dictionaries(texts, values, max_size=2))


def damaged(whole: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Those bytes, or with a piece of them cut out and another put in."""

    def cut(data: bytes, start: int, length: int, piece: bytes) -> bytes:
        start %= len(data) + 1
        return data[:start] + piece + data[start + length :]

    return whole | st.builds(cut, whole, st.integers(0, 500), st.integers(0, 5), st.binary(max_size=5))


def as_json(values: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    """Those values as JSON, with escapes for all that is not ASCII."""
    return values.map(lambda value: json.dumps(value).encode())


LENGTHS: Final = [
    *(b"0", b"3", b"1048576", b"1048577", b"9" * 30, b"9" * 5_000),
    *(b"-1", b"+5", b"1e9", b"0x10", b" 5", b"\xd9\xa3", b"", b"5, 5", b"nan"),
]
"""Values of a content-length: too big, too small, and no number."""

TOKENS: Final = [
    *(b"a.b.c", b"..", b"." * 10_000, b"e" * 1_000_000, b"\xff.\xff.\xff", b"\x00"),
    b"eyJhbGciOiJub25lIn0.e30.",
]
HOSTS: Final = [b"[", b"[::1", b"http://[x", b"a:99999", b"null", b"//", b"localhost:x", b"http://localhost", b"127.1"]
NAMES: Final = [
    b"upstash-signature",
    b"Upstash-Signature",
    b"upstash-region",
    b"content-length",
    b"content-type",
    b"authorization",
    b"x-a2-cron-slot",
    b"x-a2-cron-signature",
    b"x-vercel-oidc-token",
    b"x-hub-signature-256",
    b"host",
    b"origin",
    b"transfer-encoding",
]
header_values = st.binary(max_size=60) | st.sampled_from(LENGTHS) | st.sampled_from(TOKENS) | st.sampled_from(HOSTS)
headers: st.SearchStrategy[list[tuple[bytes, bytes]]] = st.lists(
    st.tuples(st.sampled_from(NAMES) | st.binary(max_size=20), header_values), max_size=8
)

TRACES: Final = re.compile(rb"Traceback|File \"|\.py\b|0x[0-9a-f]{6,}|sqlite", re.IGNORECASE)
"""What no answer may hold: how it was made."""

SECRETS: Final = re.compile(rb"secret|sig_", re.IGNORECASE)
"""What no answer may hold but to who has it; every secret of the fuzz tests has one of these in it."""


class Gone(OSError):
    """What a server raises where an app sends to a client that is gone."""


@dataclass
class Client:
    """One request: it sends these chunks and is gone, before the end of its body or after.

    `patience` is how many messages of the answer it takes; None for all.
    """

    chunks: Sequence[bytes] = (b"",)
    leaves_early: bool = False
    patience: int | None = None
    sent: list[Message] = field(default_factory=list)
    asked: int = 0

    async def receive(self) -> Message:
        await anyio.lowlevel.checkpoint()
        self.asked += 1
        if self.asked > len(self.chunks):
            return {"type": "http.disconnect"}
        more = self.leaves_early or self.asked < len(self.chunks)
        return {"type": "http.request", "body": self.chunks[self.asked - 1], "more_body": more}

    async def send(self, message: Message) -> None:
        await anyio.lowlevel.checkpoint()
        if self.patience is not None and len(self.sent) >= self.patience:
            raise Gone
        self.sent.append(message)


async def exchange(app: App, scope: Message, client: Client, *, owner: bool = False) -> int | None:
    """The status of the answer, after the rules of ASGI and the promises of every answer; None where there is none.

    A client that leaves need not be answered, and an app may hear that it cannot be. An `owner` may be told secrets.
    """
    try:
        with anyio.fail_after(HANG_S):
            await app(scope, client.receive, client.send)
    except Gone:
        pass
    if not client.sent:
        assert client.leaves_early or client.patience == 0, "a client that waits is answered"
        return None
    start, *rest = client.sent
    assert "http.response.start" == start["type"]
    assert {"http.response.body"} >= {message["type"] for message in rest}
    body = b"".join(message.get("body", b"") for message in rest)
    if client.patience is None:
        assert [True] * (len(rest) - 1) + [False] == [message.get("more_body", False) for message in rest]
        lengths = [int(value) for name, value in start["headers"] if name == b"content-length"]
        assert [len(body)] >= lengths or scope["method"] == "HEAD"
    told = b"\n".join([body, *(part for header in start["headers"] for part in header)])
    assert TRACES.search(told) is None, told
    assert owner or SECRETS.search(told) is None, told
    status: int = start["status"]
    return status


def scope_of(path: str, method: str, headers: Sequence[tuple[bytes, bytes]], **more: Any) -> Message:
    """The scope of that request, with none but these headers. A server decodes paths, so half a character is none."""
    decoded = path.encode("utf-8", "replace").decode()
    return {**http_scope(decoded, method), "headers": list(headers), **more}


class Flood:
    """A client that sends that many bytes in chunks of one size, without an end."""

    def __init__(self, size: int, chunk: int) -> None:
        self.left = size
        self.taken = 0
        self.sent: list[Message] = []
        self._chunk = chunk

    async def receive(self) -> Message:
        self.left -= self._chunk
        self.taken += self._chunk
        return {"type": "http.request", "body": b"x" * self._chunk, "more_body": self.left > 0}

    async def send(self, message: Message) -> None:
        self.sent.append(message)


async def peak_of(app: App, path: str, flood: Flood) -> int:
    """The memory that this request needed at most."""
    items = [(b"upstash-signature", b"a.b.c"), (b"x-hub-signature-256", b"sha256=" + b"0" * 64)]
    scope = scope_of(path, "POST", items)
    tracemalloc.start()
    try:
        await app(scope, flood.receive, flood.send)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
