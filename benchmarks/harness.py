"""What every benchmark shares: interleaved rounds, ratios with their spread, one table, and a command line."""

import argparse
import gc
import json
import os
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import repeat
from statistics import median, quantiles
from time import perf_counter
from typing import Any, TypeAlias

Sample: TypeAlias = Callable[[], float]
"""Measures once."""

ROUNDS = 15
NOT_INSTALLED = "not installed"
"""Why there is no value where a peer would have to be there."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured. A smoke run only shows that everything runs: its numbers mean nothing."""

    rounds: int = ROUNDS
    smoke: bool = False

    def of(self, full: int, smoke: int = 2) -> int:
        """A count: `full`, or next to nothing."""
        return smoke if self.smoke else full


@dataclass(frozen=True, slots=True)
class Spread:
    """What repeats gave: their median, and the quartiles around it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> "Spread":
        """Of one sample or more."""
        if len(samples) == 1:
            return cls(samples[0], samples[0], samples[0])
        low, middle, high = quantiles(samples, n=4, method="inclusive")
        return cls(middle, low, high)


@dataclass(frozen=True, slots=True)
class Goal:
    """What a value is to be: at most, or at least, so much."""

    limit: float
    at_most: bool

    def is_met(self, value: float) -> bool:
        """Whether this value meets it."""
        return value <= self.limit if self.at_most else value >= self.limit


def at_most(limit: float) -> Goal:
    """A goal from above."""
    return Goal(limit, at_most=True)


def at_least(limit: float) -> Goal:
    """A goal from below."""
    return Goal(limit, at_most=False)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `value` is in `unit`: "x" for a ratio; None where none could be had, as `detail` says."""

    path: str
    against: str
    value: Spread | None
    goal: Goal | None = None
    unit: str = "x"
    detail: str = ""
    verdict: str = ""

    def judged(self, *, smoke: bool) -> "Row":
        """With its verdict."""
        if self.value is None:
            verdict = "not measured"
        elif smoke:
            verdict = "not judged"
        elif self.goal is None:
            verdict = ""
        else:
            verdict = "met" if self.goal.is_met(self.value.median) else "not met"
        return Row(self.path, self.against, self.value, self.goal, self.unit, self.detail, verdict)


Rows: TypeAlias = Callable[[Effort], Iterable[Row]]
"""One benchmark: its lines of the table."""


def interleave(variants: Mapping[str, Sample], rounds: int) -> dict[str, list[float]]:
    """Measure each variant once a round, in an order that turns: what disturbs the machine disturbs all of them."""
    names = list(variants)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            samples[name].append(variants[name]())
    return samples


def ratio(over: Sequence[float], under: Sequence[float]) -> Spread:
    """How one variant stands to another: of each round, since only what ran side by side compares."""
    return Spread.of([one / other for one, other in zip(over, under, strict=True)])


def difference(one: Sequence[float], other: Sequence[float]) -> Spread:
    """How much more one variant takes than another, of each round."""
    return Spread.of([longer - shorter for longer, shorter in zip(one, other, strict=True)])


def per_call(function: Callable[[], object], calls: int) -> Sample:
    """Seconds per call."""

    def sample() -> float:
        started = perf_counter()
        for _ in repeat(None, calls):
            function()
        return (perf_counter() - started) / calls

    return _without_collector(sample)


def per_await(function: Callable[[], Coroutine[Any, Any, object]], calls: int) -> Sample:
    """Seconds per call of a coroutine function that never waits, so that no event loop is measured with it."""

    async def call_all() -> None:
        for _ in repeat(None, calls):
            await function()

    def sample() -> float:
        started = perf_counter()
        run_through(call_all())
        return (perf_counter() - started) / calls

    return _without_collector(sample)


def run_through(coroutine: Coroutine[Any, Any, object]) -> None:
    """Run a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise RuntimeError("expected a coroutine that never waits")


def _without_collector(sample: Sample) -> Sample:
    def quiet() -> float:
        gc.collect()
        gc.disable()
        try:
            return sample()
        finally:
            gc.enable()

    return quiet


def stay_on_one_core() -> None:
    """Keep this process, and what it starts from now on, on one core: caches stay warm, and clocks agree."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def span(seconds: Sequence[float]) -> str:
    """The median, for a reader."""
    middle = median(seconds)
    return f"{middle * 1e6:.3g} µs" if middle < 0.999e-3 else f"{middle * 1e3:.3g} ms"


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--json", action="store_true", help="print one JSON object per row, for machines")
    made.add_argument("--smoke", action="store_true", help="only show that it runs: tiny counts, nothing is judged")
    made.add_argument("--rounds", type=int, default=None, help=f"interleaved repeats of each variant ({ROUNDS})")
    return made


def effort_of(options: argparse.Namespace) -> Effort:
    """The effort that these options ask for."""
    return Effort(options.rounds or (1 if options.smoke else ROUNDS), options.smoke)


def main(rows: Rows, description: str | None, arguments: Sequence[str] | None = None) -> int:
    """Run one benchmark from the command line."""
    options = parser(description).parse_args(arguments)
    return show(rows, effort_of(options), as_json=options.json)


def show(rows: Rows, effort: Effort, *, as_json: bool) -> int:
    """Run a benchmark and print its lines, as a table, or each by itself as JSON."""
    judged = [row.judged(smoke=effort.smoke) for row in rows(effort)]
    if as_json:
        for row in judged:
            print(json.dumps(asdict(row), ensure_ascii=False))
    else:
        print(table(judged))
    sys.stdout.flush()
    return 0


def row_of(line: str) -> Row:
    """Read what `--json` printed."""
    fields = json.loads(line)
    value, goal = fields.pop("value"), fields.pop("goal")
    return Row(value=None if value is None else Spread(**value), goal=None if goal is None else Goal(**goal), **fields)


def table(rows: Iterable[Row]) -> str:
    """The rows as a Markdown table that also reads well as it is."""
    cells = [("path", "measured", "goal", "verdict", "against", "medians")]
    cells += [(row.path, _measured(row), _goal(row), row.verdict, row.against, row.detail) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in cells]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def _measured(row: Row) -> str:
    if row.value is None:
        return ""
    unit = row.unit if row.unit == "x" else f" {row.unit}"
    return f"{row.value.median:.3g}{unit} ({row.value.low:.3g} to {row.value.high:.3g})"


def _goal(row: Row) -> str:
    if row.goal is None:
        return ""
    unit = row.unit if row.unit == "x" else f" {row.unit}"
    return f"{'≤' if row.goal.at_most else '≥'} {row.goal.limit:g}{unit}"
