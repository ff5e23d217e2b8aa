"""How many jobs a second go through, enqueued one by one and run to the end, beside other job libraries?"""

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from statistics import median
from typing import NamedTuple

from benchmarks.harness import NOT_INSTALLED, Effort, Goal, Row, at_least, interleave, main, ratio
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
    """Jobs per second, in a process of its own at an empty place. Raises RuntimeError with what that said."""
    module = f"benchmarks.peers.{name}_jobs"
    command = [sys.executable, "-m", module, new_place(), str(jobs)]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    except subprocess.CalledProcessError as error:
        raise RuntimeError(f"{module} failed:\n{error.stderr}") from error
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"{module} did not end within {error.timeout:g} s") from error
    return float(ran.stdout)


def hindrance(new_place: NewPlace, peer: str) -> str | None:
    """Why a peer cannot be measured here, such as a server that is too old for it; None where it can."""
    if find_spec(peer) is None:
        return NOT_INSTALLED
    try:
        rate(new_place, peer, 3)
    except RuntimeError as error:
        said = [line.strip(" |+-") for line in str(error).splitlines()]
        return [line for line in said if line][-1].replace("|", "/")[:80]  # a cell of a table
    return None


def contest(effort: Effort, one: Contest) -> Iterator[Row]:
    """Ours beside each peer that runs here, in turn."""
    path = f"jobs end to end, {one.name}"
    place = places(one.kind)
    if place is None:
        yield Row(path, ", ".join(one.peers), None, detail=f"no {one.kind} server here")
        return
    with place as new_place:
        jobs = effort.of(one.jobs, 3)
        hindrances = {peer: why for peer in one.peers if (why := hindrance(new_place, peer)) is not None}
        there = [peer for peer in one.peers if peer not in hindrances]
        variants = {name: partial(rate, new_place, name, jobs) for name in (OURS, *there)}
        found = interleave(variants, min(effort.rounds, 3))
    for against, goal in one.goals.items():
        peers = [against] if against else one.peers
        measured = [peer for peer in peers if peer in there]
        rates = [f"{name} {median(found[name]):,.0f}/s" for name in (OURS, *measured)]
        detail = ", ".join(rates + [f"{peer}: {hindrances[peer]}" for peer in peers if peer not in there])
        best = max(measured, key=lambda name: median(found[name]), default=None)
        value = None if best is None else ratio(found[OURS], found[best])
        yield Row(path, against or f"best of {', '.join(measured or peers)}", value, goal, detail=detail)


def rows(effort: Effort) -> Iterator[Row]:
    """Each kind of store."""
    for one in CONTESTS:
        yield from contest(effort, one)


if __name__ == "__main__":
    sys.exit(main(rows, __doc__))
