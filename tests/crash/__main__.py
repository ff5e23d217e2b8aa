"""The command `python -m tests.crash`: kill server processes under load, and compare what was promised with what is.

    python -m tests.crash --store postgres --kills 50 --kill-server

It prints a line for each kill and a summary, and exits with 1 and what differs where a promise was not kept.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from secrets import randbits
from tempfile import TemporaryDirectory

import anyio

from tests.crash.campaign import Options, run
from tests.crash.laws import judge

SHOWN_FAULTS = 20


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description="Kill servers under load, and compare.")
    parser.add_argument("--store", choices=("sqlite", "postgres", "redis"), required=True)
    parser.add_argument("--kills", type=int, default=50, metavar="N")
    parser.add_argument("--processes", type=int, default=3, metavar="N", help="server processes on the one store")
    parser.add_argument("--sessions", type=int, default=40, metavar="N", help="each gets an event at least")
    parser.add_argument("--clients", type=int, default=12, metavar="N", help="how many send at a time")
    parser.add_argument("--every", type=float, default=1.0, metavar="S", help="the longest pause between two kills")
    parser.add_argument("--kill-server", action="store_true", help="kill the store's own server too, one made for it")
    parser.add_argument("--seed", type=int, default=randbits(32), metavar="N")
    given = parser.parse_args(arguments)
    if given.kill_server and given.store == "sqlite":
        parser.error("--kill-server: SQLite has no server")
    options = Options(
        given.store,
        given.kills,
        processes=given.processes,
        sessions=given.sessions,
        clients=given.clients,
        every_s=given.every,
        kill_server=given.kill_server,
        seed=given.seed,
    )
    _say(f"{options.store}, seed {options.seed}")
    with TemporaryDirectory(prefix="a2-crash-") as folder:
        verdict = judge(anyio.run(run, options, Path(folder), _say))
    for what, count in verdict.counts.items():
        _say(f"{count:>8} {what}")
    for fault in verdict.faults[:SHOWN_FAULTS]:
        _say(f"FAULT: {fault}")
    _say(f"{options.kills} kills, {len(verdict.faults)} faults")
    return 1 if verdict.faults else 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
