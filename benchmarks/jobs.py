"""How many jobs a second go through, enqueued one by one and run to the end, beside other job libraries?"""

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from statistics import median
from typing import NamedTuple

from benchmarks.harness import Effort, Goal, Row, at_least, interleave, main, ratio
from benchmarks.servers import NewPlace, places

OURS = "a2"


class Contest(NamedTuple):
    """A kind of store, the peers on it, and what is to be reached beside each; or beside the best, under ""."""

    kind: str
    name: str
    jobs: int
    goals: dict[str, Goal]
    peers: tuple[str, ...]


CONTESTS = (
    Contest("sqlite", "SQLite FULL", 600, {"huey": at_least(1.2), "dbos": at_least(4)}, ("huey", "dbos")),
    Contest(
        "postgres",
        "Postgres",
        400,
        {"pgqueuer": at_least(1), "procrastinate": at_least(5), "dbos": at_least(3)},
        ("pgqueuer", "procrastinate", "dbos"),
    ),
    Contest("redis", "Redis", 1_000, {"": at_least(1)}, ("taskiq", "saq", "streaq", "arq")),
)


def rate(new_place: NewPlace, name: str, jobs: int) -> float:
    """Jobs per second, in a process of its own at an empty place."""
    module = f"benchmarks.peers.{name}_jobs"
    ran = subprocess.run(
        [sys.executable, "-m", module, new_place(), str(jobs)], capture_output=True, text=True, check=False, timeout=120
    )
    if ran.returncode:
        raise RuntimeError(f"{module} failed:\n{ran.stderr}")
    return float(ran.stdout)


def contest(effort: Effort, one: Contest) -> Iterator[Row]:
    """Ours beside each peer that is installed, in turn."""
    path = f"jobs end to end, {one.name}"
    place = places(one.kind)
    there = [name for name in one.peers if find_spec(name) is not None]
    if place is None:
        yield Row(path, f"no {one.kind} server here", None)
        return
    with place as new_place:
        jobs = effort.of(one.jobs, 3)
        variants = {name: partial(rate, new_place, name, jobs) for name in (OURS, *there)}
        found = interleave(variants, min(effort.rounds, 3))
    for against, goal in one.goals.items():
        yield _row(path, against, goal, found, one.peers)


def _row(path: str, against: str, goal: Goal, found: dict[str, list[float]], peers: tuple[str, ...]) -> Row:
    if not against:
        installed = [name for name in peers if name in found]
        if not installed:
            return Row(path, f"best of {', '.join(peers)}", None, goal)
        best = max(installed, key=lambda name: median(found[name]))
        rates = ", ".join(f"{name} {median(found[name]):,.0f}/s" for name in (OURS, *installed))
        return Row(path, f"best of {', '.join(installed)}", ratio(found[OURS], found[best]), goal, detail=rates)
    if against not in found:
        return Row(path, against, None, goal)
    rates = f"{median(found[OURS]):,.0f}/s / {median(found[against]):,.0f}/s"
    return Row(path, against, ratio(found[OURS], found[against]), goal, detail=rates)


def rows(effort: Effort) -> Iterator[Row]:
    """Each kind of store."""
    for one in CONTESTS:
        yield from contest(effort, one)


if __name__ == "__main__":
    sys.exit(main(rows, __doc__))
