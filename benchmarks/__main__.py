"""Runs every benchmark, each in a process of its own, and prints one table."""

import subprocess
import sys
from collections.abc import Iterator

from benchmarks.harness import Row, parser, row_of, table

BENCHMARKS = (
    "delivery",
    "middleware",
    "ids",
    "appends",
    "jobs",
    "start_latency",
    "timers",
    "growth",
    "imports",
    "cron_week",
)


def rows_of(name: str, options: list[str]) -> Iterator[Row]:
    """What one benchmark found. Raises CalledProcessError where it failed; what it said of that is on stderr."""
    command = [sys.executable, "-m", f"benchmarks.{name}", "--json", *options]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    yield from map(row_of, ran.stdout.splitlines())


def main() -> int:
    """Run all of them."""
    options = parser(__doc__).parse_args()
    passed_on = ["--smoke"] * options.smoke + ([f"--rounds={options.rounds}"] if options.rounds else [])
    found: list[Row] = []
    for name in BENCHMARKS:
        if options.json:
            command = [sys.executable, "-m", f"benchmarks.{name}", "--json", *passed_on]
            subprocess.run(command, check=True)
            continue
        print(f"{name} …", file=sys.stderr, flush=True)
        found += rows_of(name, passed_on)
    if not options.json:
        print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
