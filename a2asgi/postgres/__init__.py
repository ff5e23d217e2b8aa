"""The one room that knows psycopg: pools of connections, a listener, and the caller's own connection."""
