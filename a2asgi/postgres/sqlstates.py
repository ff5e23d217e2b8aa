"""What Postgres's SQLSTATEs say of an error: whether a later try is right, and whether the connection is gone."""

RETRYABLE_CLASSES = ("08", "40", "53", "55", "57", "58")
"""Connections, conflicts, limits of the server, locks, shutdowns, its operating system."""

RETRYABLE = ("25006", "25P03", "25P04")
"""A server that is a standby by now; a transaction that was ended for being idle or too long."""

GONE = ("08", "57P")
"""A broken connection; a server that shuts down, crashed, or ended this session."""


def is_retryable(state: str) -> bool:
    """Whether to try again later is right."""
    return state.startswith(RETRYABLE_CLASSES) or state in RETRYABLE


def is_gone(state: str) -> bool:
    """Whether the connection that it came over is of no more use."""
    return state.startswith(GONE)
