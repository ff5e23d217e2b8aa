"""Runs every benchmark, each in a process of its own, and prints one table."""

import subprocess
import sys

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


def main() -> int:
    """Run all of them. One that fails says why on stderr, and costs no other its rows; then the status is 1."""
    options = parser(__doc__).parse_args()
    passed_on = ["--smoke"] * options.smoke + ([f"--rounds={options.rounds}"] if options.rounds else [])
    found: list[Row] = []
    failed: list[str] = []
    for name in BENCHMARKS:
        print(f"{name} …", file=sys.stderr, flush=True)
        command = [sys.executable, "-m", f"benchmarks.{name}", "--json", *passed_on]
        ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if ran.returncode:
            failed.append(name)
        if options.json:
            print(ran.stdout, end="", flush=True)
        else:
            found += map(row_of, ran.stdout.splitlines())
    if not options.json:
        print(table(found))
    if failed:
        print(f"these failed, and their rows are missing: {', '.join(failed)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
