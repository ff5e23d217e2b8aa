"""Random ids, drawn in advance: each draw lets go of the interpreter, and other threads keep it for milliseconds."""

import os

DRAWN_AT_ONCE = 256
ID_BYTES = 16

_drawn: dict[int, list[str]] = {}


def random_id() -> str:
    """128 random bits in hexadecimal. A forked process draws its own."""
    pid = os.getpid()
    ids = _drawn.get(pid)
    if ids is None:
        _drawn.clear()
        ids = _drawn.setdefault(pid, [])
    try:
        return ids.pop()  # one thread at a time
    except IndexError:
        fresh = os.urandom(ID_BYTES * DRAWN_AT_ONCE).hex()
        width = 2 * ID_BYTES
        ids += [fresh[start : start + width] for start in range(width, len(fresh), width)]
        return fresh[:width]
