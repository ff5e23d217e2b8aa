"""Ids and jitter, all derived by hashing: racing duplicates compute the same answer."""

import json
from hashlib import sha256

_quoted = json.encoder.encode_basestring  # what JSONEncoder writes a text by, without all that is around it


def derive_id(*parts: str | int) -> str:
    """`"a2_"` and the SHA-256 of the parts as a compact JSON array (wire.md 3); lone surrogates are escaped."""
    array = ",".join([_quoted(part) if isinstance(part, str) else str(part) for part in parts])
    return "a2_" + sha256(f"[{array}]".encode("utf-8", "backslashreplace")).hexdigest()


def timer_id(contract: str, session_id: str, name: str) -> str:
    """The id of a session's timer: one per name, the same at every retry (engine.md 3)."""
    return derive_id("a2:timer:v1", contract, session_id, name)


def timer_event_id(timer: str, index: int) -> str:
    """The id of the timer's event at `index`, so that a second delivery appends nothing."""
    return derive_id("a2:timer-event:v1", timer, index)


def produced_event_id(cause: str, index: int) -> str:
    """The id of the event at `index` that the handler of event `cause` produced."""
    return derive_id("a2:produced-event:v1", cause, index)


def spread(key: str, salt: int, width: int) -> int:
    """A number from 0 to `width` that only depends on `key` and `salt`, evenly spread over keys."""
    return int.from_bytes(sha256(f"{key}\n{salt}".encode()).digest()[:8]) % (width + 1)
