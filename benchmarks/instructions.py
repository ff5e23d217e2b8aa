"""How many instructions does the hot path take? Counted by Valgrind, so that other load on the machine is no excuse.

`python -m benchmarks.instructions` compares with what is on record for this build of Python, and fails at 5 % more;
`--record` writes the record anew. The counts are of one call, without what starts an interpreter.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.delivery import by_hand, by_machine
from benchmarks.harness import run_through
from benchmarks.middleware import HEADERS, bare, wrapped

RECORD = Path(__file__).with_suffix(".json")
TOLERANCE = 1.05
WARM = 300
"""Calls after which the interpreter has adapted to what it runs."""

CALLS = 1_000


async def no_receive() -> Any:
    """No body is read."""


async def no_send(message: Any) -> None:
    """Nobody is told."""
    del message


SCOPE = {"type": "http", "method": "GET", "path": "/orders/1001", "root_path": "", "headers": HEADERS}
PATHS: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
    "delivery machine": by_machine,
    "delivery by hand": by_hand,
    "middleware pass-through": partial(wrapped, SCOPE, no_receive, no_send),
    "bare app": partial(bare, SCOPE, no_receive, no_send),
}


def fork_and_call() -> None:
    """Make the calls in processes that are forked off, so that one start of an interpreter serves all of them."""
    for name, path in PATHS.items():
        for calls in (0, CALLS):
            pid = os.fork()
            if pid == 0:
                for _ in range(WARM + calls):
                    run_through(path())
                os._exit(0)
            os.waitpid(pid, 0)
            print(json.dumps([pid, name, calls]), flush=True)


def per_call() -> dict[str, int]:
    """Instructions of one call of each path."""
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", sys.executable]
    command += ["-m", "benchmarks.instructions", "--forks"]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    collected = {int(pid): int(count) for pid, count in re.findall(r"==(\d+)== Collected : (\d+)", ran.stderr)}
    counts: dict[str, dict[int, int]] = {name: {} for name in PATHS}
    for line in ran.stdout.splitlines():
        pid, name, calls = json.loads(line)
        counts[name][calls] = collected[pid]
    return {name: round((count[CALLS] - count[0]) / CALLS) for name, count in counts.items()}


def differences(found: dict[str, int], record: dict[str, int]) -> list[str]:
    """Each path that takes more than it may."""
    return [
        f"{name}: {count} instructions, {record.get(name)} on record: profile it, or run with --record"
        for name, count in found.items()
        if count > TOLERANCE * record.get(name, 0)
    ]


def main() -> int:
    """Count, and compare or record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="write down what is found as what it may be")
    parser.add_argument("--forks", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.forks:
        fork_and_call()
        return 0
    records: dict[str, dict[str, int]] = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    record = records.get(sys.version)
    if shutil.which("valgrind") is None:
        print("instructions: not counted, valgrind is not installed")
        return int(os.environ.get("CI") == "true")
    if record is None and not options.record:
        print(f"instructions: not counted, there is no record of Python {sys.version}; --record makes one")
        return 0
    found = per_call()
    for name, count in found.items():
        print(f"{name:<24} {count:>8,} instructions")
    if record is None or options.record:
        RECORD.write_text(json.dumps({**records, sys.version: found}, indent=2) + "\n")
        return 0
    faults = differences(found, record)
    print("\n".join(faults) or "within 5 % of the record")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
