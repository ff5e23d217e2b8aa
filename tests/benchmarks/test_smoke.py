"""Every benchmark runs: a smoke run of each, in which no time is judged, and the harness on made-up times."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import jobs
from benchmarks.__main__ import BENCHMARKS
from benchmarks.__main__ import main as run_all
from benchmarks.harness import Effort, Goal, Row, Spread, at_least, at_most, interleave, ratio, row_of, table
from benchmarks.instructions import differences

ROOT = Path(__file__).parent.parent.parent
HELPERS = {"__main__", "harness", "instructions", "seeds", "servers"}


def ran(*command: str) -> str:
    """What a module of the repository printed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, check=False, cwd=ROOT, env=environment
    )
    assert 0 == done.returncode, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_runs(name: str) -> None:
    """Each row is measured, or says why it is not."""
    rows = [row_of(line) for line in ran(f"benchmarks.{name}", "--smoke", "--json").splitlines()]
    assert rows
    for row in rows:
        assert ("not measured" if row.value is None else "not judged") == row.verdict
        assert row.value is not None or row.detail


def test_every_file_is_a_benchmark_that_is_run_or_a_helper() -> None:
    assert {*BENCHMARKS, *HELPERS} == {path.stem for path in (ROOT / "benchmarks").glob("*.py")}


def test_the_benchmark_of_a_delivery_tells_how_it_is_used() -> None:
    assert "--body" in ran("benchmarks.delivery", "--help")


def test_variants_take_turns_in_going_first() -> None:
    order: list[str] = []

    def measuring(name: str) -> float:
        order.append(name)
        return float(len(order))

    found = interleave({name: lambda name=name: measuring(name) for name in "abc"}, 3)  # type: ignore[misc]
    assert "abcbcacab" == "".join(order)
    assert {"a": [1, 6, 8], "b": [2, 4, 9], "c": [3, 5, 7]} == found


def test_a_ratio_is_taken_round_by_round() -> None:
    """A round in which the whole machine was slow tells as much as any other."""
    assert Spread(2, 2, 2) == ratio([2, 20, 200], [1, 10, 100])


@pytest.mark.parametrize(
    ("value", "goal", "verdict"),
    [
        (3.5, at_most(3.5), "met"),
        (3.6, at_most(3.5), "not met"),
        (4.5, at_least(4.5), "met"),
        (4.4, at_least(4.5), "not met"),
        (4.4, None, ""),
    ],
)
def test_a_goal_that_is_not_met_is_called_so(value: float, goal: Goal | None, verdict: str) -> None:
    row = Row("path", "peer", Spread(value, value, value), goal)
    assert verdict == row.judged(smoke=False).verdict


def test_what_could_not_be_measured_is_called_so() -> None:
    assert "not measured" == Row("path", "peer", None, at_most(1), detail="not installed").judged(smoke=False).verdict


def test_a_benchmark_that_fails_costs_no_other_its_rows(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("benchmarks.__main__.BENCHMARKS", ("missing", "ids"))
    monkeypatch.setattr("sys.argv", ["benchmarks", "--smoke"])
    assert 1 == run_all()
    printed, told = capfd.readouterr()
    assert "| deduplication id |" in printed
    assert told.endswith("these failed, and their rows are missing: missing\n")


def test_a_peer_that_does_not_run_here_costs_no_other_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that needs a newer server than there is."""

    def rate(_: object, name: str, jobs: int) -> float:
        if name == "json":
            raise RuntimeError("Traceback:\n  | deep.Error: unknown | command\n  +-----")
        return 20.0 if name == "a2" else jobs

    monkeypatch.setattr(jobs, "rate", rate)
    peers = ("json", "csv", "no_such_peer")
    goals = {"json": at_least(1), "csv": at_least(2), "no_such_peer": at_least(1), "": at_least(1)}
    one, other, absent, best = jobs.contest(Effort(1), jobs.Contest("sqlite", "SQLite", 10, goals, peers))
    assert (None, "a2 20/s, json: deep.Error: unknown / command") == (one.value, one.detail)
    assert (Spread(2, 2, 2), "a2 20/s, csv 10/s") == (other.value, other.detail)
    assert (None, "a2 20/s, no_such_peer: not installed") == (absent.value, absent.detail)
    assert ("best of csv", Spread(2, 2, 2)) == (best.against, best.value)
    assert best.detail.endswith("json: deep.Error: unknown / command, no_such_peer: not installed")


def test_a_row_survives_its_json(capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks.harness import show  # noqa: PLC0415 - beside what it prints

    row = Row("path", "peer", Spread(2, 1, 3), at_most(3), detail="1 µs / 2 µs", verdict="met")
    assert 0 == show(lambda _: [row], Effort(), as_json=True)
    printed = capsys.readouterr().out
    assert row == row_of(printed)
    assert ["path", "against", "value", "goal", "unit", "detail", "verdict"] == list(json.loads(printed))


def test_the_table_shows_what_was_measured() -> None:
    row = Row("import", "a bare one", Spread(20.04, 19, 21), at_most(25), "ms", verdict="met")
    expected = "| import | 20 ms (19 to 21) | ≤ 25 ms | met     | a bare one |         |"
    assert expected == table([row]).splitlines()[-1]


def test_more_instructions_than_the_record_allows_are_a_fault() -> None:
    """Five in a hundred, and a path that was never recorded."""
    assert [] == differences({"machine": 105}, {"machine": 100})
    [fault] = differences({"machine": 106}, {"machine": 100})
    assert fault.startswith("machine: 106 instructions, 100 on record")
    [fault] = differences({"machine": 105, "new": 1}, {"machine": 100})
    assert fault.startswith("new: 1 instructions, None on record")
