"""The bounded body: a push parser that takes chunks and stops at the first one above its limit (wire.md 8.2)."""

MAX_DIGITS = 20
"""Digits of a length that is read as a number: no limit has more."""


class TooLarge(Exception):
    """The body passed its limit."""


def declared_too_large(content_length: str | None, max_bytes: int) -> bool:
    """Whether a decimal `content-length` already says so. Anything that is not plain digits is not believed."""
    if content_length is None or not (content_length.isdigit() and content_length.isascii()):
        return False
    digits = content_length.lstrip("0")
    return len(digits) > MAX_DIGITS or int(digits or "0") > max_bytes


class BoundedBody:
    """Collects a body of at most `max_bytes` bytes, in that much memory: chunks of a byte are not kept as chunks."""

    __slots__ = ("_body", "max_bytes", "size")

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes: int = max_bytes
        self.size: int = 0
        self._body = bytearray()

    def __repr__(self) -> str:
        return f"BoundedBody(max_bytes={self.max_bytes}, size={self.size})"

    def feed(self, chunk: bytes) -> None:
        """Take one chunk. Raises TooLarge at the first one that passes the limit; what came before is dropped."""
        self.size += len(chunk)
        if self.size > self.max_bytes:
            self._body.clear()
            raise TooLarge
        self._body += chunk

    def read(self) -> bytes:
        """All that was fed."""
        return bytes(self._body)
