"""The `a2` command."""

import importlib
import sys
from collections.abc import Mapping, Sequence

COMMANDS: Mapping[str, tuple[str, str, str]] = {
    "run": ("a2asgi.runner", "run", "handle events, jobs and crons in a worker process; --once drains and exits"),
    "sync": ("a2asgi.runner", "sync", "bring QStash's schedules in step with an app's crons"),
    "qstash": (
        "a2asgi.qstash_server.__main__",
        "main",
        "a QStash-compatible server for development, tests and self-hosting",
    ),
}
USAGE = "usage: a2 COMMAND [options]\n\n" + "".join(
    f"  {name:8} {purpose}\n" for name, (_, _, purpose) in COMMANDS.items()
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the first argument names; 2 where it names none, or its parts are not installed."""
    command, *rest = [*(sys.argv[1:] if arguments is None else arguments), ""]
    if command in {"-h", "--help"}:
        sys.stdout.write(USAGE)
        return 0
    if command not in COMMANDS:
        sys.stderr.write(USAGE)
        return 2
    module, function, _ = COMMANDS[command]
    try:
        room = importlib.import_module(module)
    except ModuleNotFoundError as error:
        sys.stderr.write(f"a2 {command} needs {error.name}: pip install 'a2[qstash-server]'\n")
        return 2
    return int(getattr(room, function)(rest[:-1]))


if __name__ == "__main__":
    sys.exit(main())
