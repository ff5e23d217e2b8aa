"""Exploring: world after world from a base seed, until the time is up or a law is broken; then a smaller world."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count

from tests.world.scenario import Scenario
from tests.world.world import Report, run_world

SHOWN_LINES = 60
SHRINK_WORLDS = 400
SHOWN_CHARS = 260


@dataclass(frozen=True, slots=True)
class Exploration:
    """How many worlds were run, in how long, and the first that broke a law."""

    worlds: int
    events: int
    seconds: float
    found: Report | None

    @property
    def per_minute(self) -> float:
        """Worlds in a minute."""
        return self.worlds / self.seconds * 60


def explore(base: int, goes_on: Callable[[int], bool]) -> Exploration:
    """Run the worlds of the seeds from `base` on while `goes_on(worlds so far)`."""
    began = time.monotonic()
    worlds = events = 0
    for seed in seeds(base):
        if not goes_on(worlds):
            break
        report = run_world(Scenario.draw(seed))
        worlds += 1
        events += report.events
        if report.breach is not None:
            return Exploration(worlds, events, time.monotonic() - began, report)
    return Exploration(worlds, events, time.monotonic() - began, None)


def seeds(base: int) -> Iterator[int]:
    """The seeds of an exploration."""
    return count(base)


def shrink(report: Report, most: int = SHRINK_WORLDS) -> Report:
    """The smallest world found near a failing one in which the same law is broken, by the first step down each time.

    Each candidate is tried with a few seeds of its own, since a smaller world meets other chances.
    """
    law = report.breach and report.breach.law
    left = most
    smaller = True
    while smaller and left > 0:
        smaller = False
        for scenario in report.scenario.smaller():
            left -= 1
            found = run_world(scenario)
            if found.breach is not None and found.breach.law is law:
                report, smaller = found, True
                break
            if left <= 0:
                break
    return report


def described(report: Report) -> Iterator[str]:
    """A failure as it is printed: seed, law, the world and the end of its trace."""
    breach = report.breach
    if breach is None:
        yield f"seed {report.scenario.seed}: every law held"
        return
    yield f"seed {report.scenario.seed}: {breach.law.name}: {breach.law.value}"
    yield f"  {report.scenario}"
    yield f"  at {breach.at_ms} ms: {breach.text}"
    lines = [
        line for line, (at_ms, *_) in zip(report.lines(), report.trace, strict=True) if _is_by(at_ms, breach.at_ms)
    ]
    yield f"  the last {min(SHOWN_LINES, len(lines))} of {len(lines)} lines of its trace:"
    for line in lines[-SHOWN_LINES:]:
        yield f"    {line[:SHOWN_CHARS]}"


def _is_by(at_ms: object, end_ms: int) -> bool:
    return isinstance(at_ms, int) and at_ms <= end_ms
