"""Run the matrix of hosts and apps, and print it.

    python -m tests.hosts [HOST ...]

It exits with 1 if any cell failed.
"""

import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.hosts.cells import APPS, CHECKS, HOSTS, Cell, run

AT_A_TIME = 2
"""Cells that run beside each other: each spends most of its time on one core, starting."""


def row(cells: Sequence[str]) -> str:
    """One line of the table."""
    widths = (17, 9, *(max(len(name), 5) for name in CHECKS))
    return "  ".join(f"{cell:{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()


def main(arguments: Sequence[str]) -> int:
    """Run the hosts that are named, or all."""
    began = time.monotonic()
    hosts = arguments or HOSTS
    with TemporaryDirectory() as folder, ThreadPoolExecutor(AT_A_TIME) as pool:

        def run_in_folder(pair: tuple[str, str]) -> Cell:
            own = Path(folder, "-".join(pair))
            own.mkdir()
            return run(*pair, own)

        sys.stdout.write(f"{row(['host', 'app', *CHECKS])}\n")
        failures: list[str] = []
        for cell in pool.map(run_in_folder, [(host, app) for host in hosts for app in APPS]):
            marks = [cell.marks.get(check, "FAIL") for check in CHECKS]
            sys.stdout.write("  ".join([row([cell.host, cell.app, *marks]), "; ".join(cell.notes)]).rstrip() + "\n")
            sys.stdout.flush()
            failures += cell.failures
    sys.stdout.write(f"\n{len(hosts) * len(APPS)} cells in {time.monotonic() - began:.0f} s\n")
    for failure in failures:
        sys.stdout.write(f"\n{failure}")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
