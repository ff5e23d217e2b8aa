"""Short runs of `python -m tests.crash` on each store, and planted faults, each of which its laws find."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import pytest

from a2asgi.ports import SessionKey
from a2core import Entry
from tests.crash.__main__ import main
from tests.crash.campaign import Options, run
from tests.crash.laws import CONTRACT, JOBS, Evidence, judge

KILLS = 5


@pytest.mark.parametrize("store", ["postgres", "redis"])
def test_the_command_finds_every_promise_kept(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["--store", store, "--kills", f"{KILLS}", "--kill-server"])
    lines = capsys.readouterr().out.splitlines()
    assert (0, f"{KILLS} kills, 0 faults") == (status, lines[-1]), lines
    assert KILLS == sum(line.startswith("kill ") for line in lines)


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    """That of a run on SQLite."""
    with TemporaryDirectory(prefix="a2-crash-") as folder:
        return anyio.run(run, Options("sqlite", KILLS, sessions=8), Path(folder), lambda _: None)


def test_every_promise_is_kept_on_sqlite(evidence: Evidence) -> None:
    verdict = judge(evidence)
    assert [] == verdict.faults
    assert 0 not in {verdict.counts[what] for what in ("acknowledged", "jobs", "timers", "events handled")}


Plant = Callable[[Evidence], Evidence]


def without(evidence: Evidence, gone: Callable[[Entry], bool], contract: str = CONTRACT) -> Evidence:
    """The same without the first such event; what followed it moves up."""
    key, entry = find(evidence, gone, contract)
    log = [one if one.seq < entry.seq else replace(one, seq=one.seq - 1) for one in evidence.logs[key] if one != entry]
    return with_log(evidence, key, log)


def find(evidence: Evidence, wanted: Callable[[Entry], bool], contract: str = CONTRACT) -> tuple[SessionKey, Entry]:
    return next(
        (key, entry)
        for key, log in evidence.logs.items()
        for entry in log
        if key.contract == contract and entry.seq not in evidence.open[key] and wanted(entry)
    )


def with_log(evidence: Evidence, key: SessionKey, log: Sequence[Entry]) -> Evidence:
    logs: Mapping[SessionKey, Sequence[Entry]] = {**evidence.logs, key: log}
    return replace(evidence, logs=logs)


def settles_twice(evidence: Evidence) -> Evidence:
    key, entry = find(evidence, lambda entry: entry.type == "done")
    log = evidence.logs[key]
    return with_log(evidence, key, [*log, replace(entry, id="done-again", seq=len(log) + 1)])


def appends_twice(evidence: Evidence) -> Evidence:
    key, entry = find(evidence, lambda entry: entry.type == "step")
    log = evidence.logs[key]
    return with_log(evidence, key, [*log, replace(entry, seq=len(log) + 1)])


def forgets_the_marks(evidence: Evidence) -> Evidence:
    _, entry = find(evidence, lambda entry: entry.type == "step")
    return replace(evidence, marks=[mark for mark in evidence.marks if mark.event != entry.id])


def handles_out_of_order(evidence: Evidence) -> Evidence:
    """The first event of a lane, last of all."""
    lanes = [[entry.id for entry in log if entry.type == "step"] for log in evidence.logs.values()]
    first = next(lane[0] for lane in lanes if len(lane) > 1)
    marks = [replace(mark, at_ns=10**30) if mark.event == first else mark for mark in evidence.marks]
    return replace(evidence, marks=marks)


def hides_a_dead_letter(evidence: Evidence) -> Evidence:
    return replace(evidence, letters=frozenset(list(evidence.letters)[1:]))


def loses_a_head(evidence: Evidence) -> Evidence:
    key, _ = next(iter(evidence.letters))
    return replace(evidence, heads={**evidence.heads, key: frozenset()})


def leaves_work_open(evidence: Evidence) -> Evidence:
    key, seq = next(iter(evidence.letters))
    item = replace(evidence.open[key][seq], dead=None, lane="another")
    return replace(evidence, open={**evidence.open, key: {**evidence.open[key], seq: item}})


def never_died(evidence: Evidence) -> Evidence:
    """What was handled again, again by a process that lived."""
    [mark, *_] = [mark for mark in evidence.marks if mark.what == "begin"]
    again = replace(mark, attempt=mark.attempt + 99, at_ns=mark.at_ns + 1)
    return replace(evidence, marks=[*evidence.marks, again], died_ns={})


def rings_early(evidence: Evidence) -> Evidence:
    key, entry = find(evidence, lambda entry: entry.type == "rang")
    log = [replace(one, created_at_ms=0) if one == entry else one for one in evidence.logs[key]]
    return with_log(evidence, key, log)


@pytest.mark.parametrize(
    ("plant", "fault"),
    [
        (lambda evidence: without(evidence, lambda entry: entry.type == "step"), "is not in the log of"),
        (lambda evidence: without(evidence, lambda entry: entry.type == "rang"), "rang 0 times"),
        (lambda evidence: without(evidence, lambda entry: entry.type == "run", JOBS), "was accepted, and is in no log"),
        (lambda evidence: without(evidence, lambda entry: entry.type == "done"), "was settled 0 times"),
        (settles_twice, "was settled 2 times"),
        (appends_twice, "is in the logs 2 times"),
        (forgets_the_marks, "was never handled to its end"),
        (handles_out_of_order, "begun before"),
        (hides_a_dead_letter, "the list of dead letters says otherwise"),
        (loses_a_head, "and its first open work is"),
        (leaves_work_open, "is still open"),
        (never_died, "although nobody had died"),
        (rings_early, "rang early"),
    ],
)
def test_a_planted_fault_is_found(evidence: Evidence, plant: Plant, fault: str) -> None:
    assert any(fault in found for found in judge(plant(evidence)).faults)
