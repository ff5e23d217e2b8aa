"""Where a Postgres database is: read from a URL, to connect and to be shown."""

import math
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from a2asgi.errors import ConfigurationError


def read_url(url: str, timeout_ms: int) -> tuple[str, str]:
    """Where the database is, to be shown, and how to connect to it, not to be shown. Raises ConfigurationError."""
    try:
        parts = conninfo_to_dict(url)
    except psycopg.Error:
        parts = {}
    if not parts:  # the driver's words would repeat the URL, and with it the password
        raise ConfigurationError(
            "PostgresStore: expected a URL as postgresql://user:password@host:5432/database, got another text"
        ) from None
    shown = {name: parts.get(name) for name in ("user", "host", "port", "dbname")}
    user = f"{shown['user']}@" if shown["user"] else ""
    port = f":{shown['port']}" if shown["port"] else ""
    where = f"postgresql://{user}{shown['host'] or ''}{port}/{shown['dbname'] or ''}"
    settings: dict[str, Any] = {"connect_timeout": max(2, math.ceil(timeout_ms / 1_000)), "application_name": "a2"}
    return where, make_conninfo(**(settings | parts | {"client_encoding": "UTF8"}))
