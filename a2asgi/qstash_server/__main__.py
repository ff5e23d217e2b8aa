"""The command line of the server: its options, its credentials from the environment, its banner."""

import argparse
import logging
import os
import socket
import sys
from collections.abc import Sequence

import uvicorn

from a2asgi.development import DEVELOPMENT_KEYS, DEVELOPMENT_TOKEN
from a2asgi.errors import ConfigurationError, InvalidTime
from a2asgi.qstash_server.credentials import Credentials
from a2asgi.qstash_server.server import QStashServer, Settings
from a2asgi.qstash_server.signing import SigningKeys
from a2asgi.times import duration_ms

DEFAULT_PORT = 8080
DEFAULT_FILE = ".a2/qstash.sqlite3"
GRACE_S = 5
"""How long requests may go on when the server is told to stop."""


def parser() -> argparse.ArgumentParser:
    """The options of `a2 qstash`."""
    made = argparse.ArgumentParser(
        prog="a2 qstash",
        description="A QStash-compatible server for development, for tests, and for self-hosting where no provider is "
        "wanted. QSTASH_TOKEN, QSTASH_CURRENT_SIGNING_KEY and QSTASH_NEXT_SIGNING_KEY replace the public development "
        "credentials.",
    )
    made.add_argument("--host", default="127.0.0.1", help="address to bind; beyond loopback only with own credentials")
    made.add_argument("--port", type=int, default=int(os.environ.get("QSTASH_DEV_PORT") or DEFAULT_PORT))
    made.add_argument("--db", default=DEFAULT_FILE, help=f"file that keeps everything ({DEFAULT_FILE}), or :memory:")
    made.add_argument("--region", default="EU-CENTRAL-1", help="value of the Upstash-Region header of deliveries")
    made.add_argument("--deduplication-window", default="10m", help="how long an equal message is a duplicate (10m)")
    made.add_argument("--retention", default="7d", help="how long logs and dead letters are kept (7d)")
    made.add_argument("--daily-limit", type=int, help="messages a day, to try a client against; none unless set")
    made.add_argument("--burst-limit", type=int, help="messages a second, to try a client against; none unless set")
    made.add_argument("--time-travel", action="store_true", help='serve POST /time-travel {"by": "10m"}, for tests')
    return made


def settings_of(options: argparse.Namespace, environ: "os._Environ[str] | dict[str, str]") -> Settings:
    """The settings of a command line. Raises ConfigurationError or InvalidTime for what cannot be."""
    names = ("QSTASH_TOKEN", "QSTASH_CURRENT_SIGNING_KEY", "QSTASH_NEXT_SIGNING_KEY")
    given = [environ.get(name, "") for name in names]
    if any(given) and not all(given):
        raise ConfigurationError(f"a2 qstash: expected all of {', '.join(names)}, or none")
    token, current, following = given if all(given) else (DEVELOPMENT_TOKEN, *DEVELOPMENT_KEYS)
    credentials = Credentials(token, SigningKeys(current, following))
    credentials.check_bind(options.host)
    return Settings(
        path=None if options.db == ":memory:" else options.db,
        credentials=credentials,
        region=options.region,
        deduplication_window_ms=duration_ms(options.deduplication_window),
        retention_ms=duration_ms(options.retention),
        time_travel=options.time_travel,
        daily_limit=options.daily_limit,
        burst_limit=options.burst_limit,
    )


def banner(options: argparse.Namespace, settings: Settings, port: int) -> str:
    """What is told at the start: where it is, and the credentials where they are public anyway."""
    host = f"[{options.host}]" if ":" in options.host else options.host
    lines = [f"QStash-compatible server is running at http://{host}:{port}", ""]
    lines.append(f"QSTASH_URL=http://{host}:{port}")
    if settings.credentials.are_public:
        lines.append(f"QSTASH_TOKEN={settings.credentials.token}")
        lines.append(f"QSTASH_CURRENT_SIGNING_KEY={settings.credentials.keys.current}")
        lines.append(f"QSTASH_NEXT_SIGNING_KEY={settings.credentials.keys.next}")
    else:
        lines.append("with the token and the signing keys of the environment")
    if settings.time_travel:
        lines += ["", "Time travel is on: this is a server for tests."]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until told to stop; 2 where the options do not fit."""
    options = parser().parse_args(arguments)
    try:
        settings = settings_of(options, os.environ)
    except (ConfigurationError, InvalidTime) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    logging.basicConfig(level=logging.INFO)
    # No access log: a request's line may hold the token and the destination's secrets.
    config = uvicorn.Config(
        QStashServer(settings),
        host=options.host,
        port=options.port,
        access_log=False,
        log_level="warning",
        lifespan="on",
        timeout_graceful_shutdown=GRACE_S,
    )
    bound = config.bind_socket()
    server = _Server(config, banner(options, settings, bound.getsockname()[1]))
    server.run([bound])
    return 0 if server.started else 1


class _Server(uvicorn.Server):
    """Tells the banner once requests are taken: who waits for it may ask at once."""

    def __init__(self, config: uvicorn.Config, text: str) -> None:
        super().__init__(config)
        self._text = text

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            sys.stdout.write(f"{self._text}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
