"""What Postgres's SQLSTATEs say of an error: whether a later try is right, and whether the connection is gone."""

RETRYABLE_CLASSES = ("08", "40", "53", "55", "57", "58")
"""Connections, conflicts, limits of the server, locks, shutdowns, its operating system."""

STANDBY = ("0A000", "25006")
"""A server that is a standby by now: it refuses a transaction that is to write at its beginning, or at its writes."""

RETRYABLE = (*STANDBY, "25P03", "25P04")
"""Beside these, a transaction that was ended for being idle or too long."""

GONE = ("08", "57P", *STANDBY)
"""A broken connection; a server that shuts down, crashed, or ended this session; one that no longer takes writes."""


def is_retryable(state: str) -> bool:
    """Whether to try again later is right."""
    return state.startswith(RETRYABLE_CLASSES) or state in RETRYABLE


def is_gone(state: str) -> bool:
    """Whether the connection that it came over is of no more use."""
    return state.startswith(GONE)
