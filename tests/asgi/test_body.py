"""Bodies are read under a limit, and replayed once."""

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2asgi import BodyTooLarge, ClientDisconnected, read_body
from a2asgi.body import replay
from tests.asgi.support import PATIENCE_S, Exchange, Message

GONE = {"type": "http.disconnect"}


class Client:
    """A client that sends these messages, and no others; it counts what was taken of it."""

    def __init__(self, *messages: Message) -> None:
        self.messages = list(messages)
        self.taken = 0

    async def receive(self) -> Message:
        message = self.messages.pop(0)
        self.taken += len(message.get("body", b""))
        return message


def part(body: bytes, *, more: bool = True) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([part(b"", more=False)], b""),
        ([{"type": "http.request"}], b""),
        ([part(b"ab"), part(b""), part(b"\xff\x00"), part(b"cd", more=False)], b"ab\xff\x00cd"),
        ([part(b"abcdef"), {"type": "http.request"}], b"abcdef"),
    ],
)
async def test_a_body_is_what_came(messages: list[Message], expected: bytes) -> None:
    client = Client(*messages)
    assert expected == await read_body(client.receive, 6)
    assert [] == client.messages


async def test_it_stops_at_the_first_chunk_above_the_limit() -> None:
    client = Client(part(b"abcd"), part(b"efg"), part(b"never taken", more=False))
    with pytest.raises(BodyTooLarge, match="larger than 6 bytes") as caught:
        await read_body(client.receive, 6)
    assert (7, 6, "BODY_TOO_LARGE") == (client.taken, caught.value.max_bytes, caught.value.code)


async def test_a_declared_length_above_the_limit_is_refused_unread() -> None:
    client = Client(part(b"never taken"))
    with pytest.raises(BodyTooLarge):
        await read_body(client.receive, 6, [(b"host", b"a"), (b"Content-Length", b"7")])
    assert 0 == client.taken


@pytest.mark.parametrize("length", [b"6", b"7, 7", b"+7", b"1e9", b"-1", b"", b"\xb2"])
async def test_what_is_no_larger_plain_number_is_not_believed(length: bytes) -> None:
    client = Client(part(b"abc", more=False))
    assert b"abc" == await read_body(client.receive, 6, [(b"content-length", length)])


@pytest.mark.parametrize("parts", [0, 1, 2])
async def test_a_client_that_hangs_up_is_gone(parts: int) -> None:
    """D4: a disconnect after part 2 of 3 is an error of its own, and nothing waits for the third."""
    client = Client(*[part(b"a")] * parts, GONE)
    with pytest.raises(ClientDisconnected) as caught:
        await read_body(client.receive, 6)
    assert "CLIENT_DISCONNECTED" == caught.value.code


async def test_an_endless_row_of_empty_chunks_is_not_kept() -> None:
    client = Client(*[part(b"")] * 10_000, part(b"a", more=False))
    assert b"a" == await read_body(client.receive, 1)


@given(st.lists(st.binary(max_size=8), max_size=8), st.integers(0, 20))
def test_no_more_is_taken_than_the_limit_and_one_chunk(chunks: list[bytes], max_bytes: int) -> None:
    client = Client(*map(part, chunks), part(b"", more=False))
    whole = b"".join(chunks)

    async def read() -> bytes | None:
        try:
            return await read_body(client.receive, max_bytes)
        except BodyTooLarge:
            return None

    body = anyio.run(read)
    assert body == (whole if len(whole) <= max_bytes else None)
    assert client.taken <= max_bytes + max(map(len, chunks), default=0)


async def test_a_replayed_body_comes_once_and_then_the_real_receive() -> None:
    """V11, D4: what follows is the client's own word, so an app that waits for its end does not hang."""
    exchange = Exchange([b"a", b"b", b"c"])
    again = replay(await read_body(exchange.receive, 10), exchange.receive)
    with anyio.fail_after(PATIENCE_S):
        assert [part(b"abc", more=False), GONE, GONE] == [await again() for _ in range(3)]


async def test_a_replay_waits_as_long_as_the_client_does() -> None:
    """Until the client hangs up, the second receive is pending: it neither spins nor ends."""
    hung_up = anyio.Event()

    async def receive() -> Message:
        await hung_up.wait()
        return dict(GONE)

    again = replay(b"", receive)
    assert part(b"", more=False) == await again()
    answers: list[Message] = []

    async def wait() -> None:
        answers.append(await again())

    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            assert [] == answers
            hung_up.set()
    assert [GONE] == answers
