"""Ids and jitter, all derived by hashing: racing duplicates compute the same answer."""

import json
from collections.abc import Callable
from hashlib import sha256
from typing import TypeAlias

Parts: TypeAlias = tuple[str | int, ...]


def make_encoder() -> Callable[[Parts, int], tuple[str, ...]]:
    """What JSONEncoder makes anew at every call: an array's compact JSON, in a tuple of one."""
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:  # an interpreter without CPython's accelerator
        return lambda parts, _: (json.dumps(parts, ensure_ascii=False, separators=(",", ":")),)
    check_circular = indent = default = None
    sort_keys = skip_keys = allow_nan = False
    return make(  # type: ignore[no-any-return]
        check_circular, default, json.encoder.encode_basestring, indent, ":", ",", sort_keys, skip_keys, allow_nan
    )


_encode = make_encoder()


def derive_id(*parts: str | int) -> str:
    """`"a2_"` and the SHA-256 of the parts as a compact JSON array (wire.md 3); lone surrogates are escaped."""
    try:
        return "a2_" + sha256(_encode(parts, 0)[0].encode()).hexdigest()
    except UnicodeEncodeError:
        return "a2_" + sha256(_encode(parts, 0)[0].encode("utf-8", "backslashreplace")).hexdigest()


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
