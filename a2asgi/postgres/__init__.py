"""The one room that knows psycopg: pools of connections, a listener, and the caller's own connection."""

CHANNEL = "a2"
"""On which it is told what was written."""
