"""The `a2` command."""

import importlib
import sys
from collections.abc import Sequence

USAGE = "usage: a2 qstash [options]\n\n  qstash   a QStash-compatible server for development, tests and self-hosting\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the first argument names; 2 where it names none, or its parts are not installed."""
    command, *rest = [*(sys.argv[1:] if arguments is None else arguments), ""]
    if command in {"-h", "--help"}:
        sys.stdout.write(USAGE)
        return 0
    if command != "qstash":
        sys.stderr.write(USAGE)
        return 2
    try:
        qstash = importlib.import_module("a2asgi.qstash_server.__main__")
    except ModuleNotFoundError as error:
        sys.stderr.write(f"a2 qstash needs {error.name}: pip install 'a2[qstash-server]'\n")
        return 2
    return int(qstash.main(rest[:-1]))


if __name__ == "__main__":
    sys.exit(main())
