"""Request bodies over ASGI: read under a limit, and given to an app as if it were the first to read."""

from collections.abc import Iterable

from a2asgi.asgi import Message, Receive
from a2asgi.errors import BodyTooLarge, ClientDisconnected
from a2core import BoundedBody, TooLarge, declared_too_large


async def read_body(receive: Receive, max_bytes: int, headers: Iterable[tuple[bytes, bytes]] = ()) -> bytes:
    """The whole body of an HTTP request, of at most `max_bytes` bytes, exactly as it came.

    Never more than the limit and the one chunk that passes it is in memory. `headers`, as the scope has them, refuse
    a body unread that declares itself too large.
    Raises BodyTooLarge, or ClientDisconnected where the client is gone before its body is whole.
    """
    check_declared(headers, max_bytes)
    body = BoundedBody(max_bytes)
    more = True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientDisconnected
        chunk = message.get("body", b"")
        more = message.get("more_body", False)
        if chunk:  # an endless row of empty frames, which HTTP/2 allows, is not kept either
            try:
                body.feed(chunk)
            except TooLarge as error:
                raise BodyTooLarge(max_bytes) from error
    return body.read()


def check_declared(headers: Iterable[tuple[bytes, bytes]], max_bytes: int) -> None:
    """Raises BodyTooLarge where a decimal `content-length` is above the limit (wire.md 8.2)."""
    for name, value in headers:
        if name.lower() == b"content-length" and declared_too_large(value.decode("latin-1"), max_bytes):
            raise BodyTooLarge(max_bytes)


def replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body, once and whole, and then whatever the real one has to say.

    So an app that waits for the client to hang up waits on the real connection: it neither spins nor hangs.
    """
    replayed = False

    async def receive_again() -> Message:
        nonlocal replayed
        if replayed:
            return await receive()
        replayed = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again
