"""The exceptions of both packages' callers: each names what was expected, what came, and what to do."""

from typing import Any, ClassVar


class A2Error(Exception):
    """Base of every error that a2 raises on purpose.

    `code` is stable and meant for programs; the text is meant for people and may change.
    """

    code: ClassVar[str] = "A2_ERROR"

    def __reduce__(self) -> tuple[Any, ...]:
        """Errors are copied and pickled as they are: their constructors take other arguments than `args` holds."""
        return _remade, (type(self), self.args, self.__dict__)


def _remade(kind: type[A2Error], args: tuple[Any, ...], state: dict[str, Any]) -> A2Error:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class InvalidPayload(A2Error, ValueError):
    """A payload that JSON, or the event's own type, cannot hold. `path` points at the value (`$.items[2].price`)."""

    code = "INVALID_PAYLOAD"

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class InvalidName(A2Error, ValueError):
    """An id, contract name, session id or lane that no store or wire could carry."""

    code = "INVALID_NAME"


MAX_NAME_BYTES = 1_024
"""Longest id in bytes of UTF-8. Two of them make an index key, and PostgreSQL refuses one above 2,704 bytes."""


def check_name(kind: str, value: object) -> str:
    """Return `value` if it can serve as an id: a non-empty string of at most 1,024 bytes of UTF-8.

    `kind` is the word used in the message ("session id").
    Raises InvalidName for another type, an empty or over-long text, a NUL or a lone surrogate.
    """
    if not isinstance(value, str):
        raise InvalidName(f"{kind}: expected a string, got {type(value).__name__}")
    if not value:
        raise InvalidName(f"{kind}: expected a non-empty string, got an empty one")
    if "\x00" in value or not is_unicode(value):
        raise InvalidName(f"{kind}: {value!r} holds a NUL or a lone surrogate, which not every store can keep")
    if (size := len(value.encode())) > MAX_NAME_BYTES:
        raise InvalidName(f"{kind}: expected at most {MAX_NAME_BYTES} bytes of UTF-8, got {size}; hash long keys")
    return value


MAX_TEXT_CHARS = 2_000
"""How much of an error's message or of a reason is stored."""


def storable_text(text: str) -> str:
    """Text that every store can keep: NUL and lone surrogates become U+FFFD, and the end is cut."""
    whole = text if is_unicode(text) else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return whole.replace("\x00", "\ufffd")[:MAX_TEXT_CHARS]


def is_unicode(text: str) -> bool:
    """Whether `text` has no lone surrogate, so that UTF-8 can carry it."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
