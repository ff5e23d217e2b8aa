"""The vectors pass, every rule is needed, and the runner can fail."""

import json
import re
import shutil
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from tests import vectors
from tests.vector_kinds.cases import Case

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "tests" / "vectors"
LONE = "lone \ud800"


def file_of(kind: str) -> dict[str, Any]:
    file: dict[str, Any] = json.loads((FOLDER / f"{kind}.json").read_text("utf-8"))
    return file


def write(folder: Path, kind: str, *cases: dict[str, Any]) -> vectors.Report:
    (folder / f"{kind}.json").write_text(json.dumps({**file_of(kind), "cases": cases}))
    return vectors.run(folder)


def plain_case(kind: str, category: str = "") -> dict[str, Any]:
    """The first case of a file, or of a category, that is run without a rule."""
    for case in file_of(kind)["cases"]:
        report = vectors.Report()
        [parsed] = vectors.cases(kind, {**file_of(kind), "cases": [case]})
        vectors.judge(parsed, report)
        if report.passed and not report.rules and case["category"].startswith(category):
            found: dict[str, Any] = case
            return found
    raise LookupError(kind)


def test_every_vector_passes() -> None:
    """No case of any file fails; every file is run, or is named as not yet."""
    report = vectors.run(FOLDER)
    assert [] == report.failed
    assert {path.stem for path in FOLDER.glob("*.json")} <= {*vectors.KINDS, *report.later}
    assert 2_624 == report.passed


def test_every_rule_is_needed() -> None:
    """Each deliberate difference has at least one vector, and what comes later has some too."""
    report = vectors.run(FOLDER)
    assert {rule.name for rule in vectors.RULES} == {*report.rules}
    assert {later.name for later in vectors.LATER} == {*report.later}


def test_a_rule_has_one_reason() -> None:
    """Rules of one name are one difference, seen in several kinds."""
    reasons = {(rule.name, rule.reason) for rule in vectors.RULES}
    assert len({name for name, _ in reasons}) == len(reasons)
    assert all(re.search(r"(wire|engine|app)\.md", reason) for _, reason in reasons)


def corrupt(output: Any, path: tuple[str | int, ...], value: Any) -> Any:
    """The output with another value at a path, or in its whole place."""
    if not path:
        return value
    corrupted = deepcopy(output)
    place = corrupted
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    assert corrupted != output
    return corrupted


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("publish", ("request", "deduplicationId"), "a2_0"),
        ("publish", ("request", "body_json"), '{"version":1}'),
        ("publish", ("request", "body_bytes"), 92),
        ("publish", ("request", "notBefore"), 1_700_000_000),
        ("publish", ("request", "headers"), {"x": "y"}),
        ("headers", ("normalized",), [["x-bypass", "w"]]),
        ("headers", ("publish", "redact"), {"header": []}),
        ("url_inference", ("url",), "http://localhost:3001/"),
        ("url_inference", ("sdk_client",), {}),
        ("url_inference", ("preview",), True),
        ("trusted_source", ("expirationMs",), 1_700_000_000_001),
        ("parse_task", (), None),
        ("parse_task", ("task_json",), '{"version":1}'),
        ("outage", ("steps", 0, "deduplicationId"), "a2_0"),
        ("outage", ("steps", 2, "notBefore"), 1_700_000_062),
        ("outage", ("steps",), []),
        ("successor", ("watchdogDueAt",), 1_700_000_070_001),
        ("successor", ("published", "deduplicationId"), "a2_0"),
        ("body_bound", ("accepted",), False),
        ("body_bound", ("reads",), 2),
        ("body_bound", ("text",), "a"),
        ("failures", ("status",), 401),
        ("failures", ("classification",), "retryable"),
        ("handler", ("response", "status"), 200),
        ("handler", ("response", "body"), LONE),
        ("handler", ("response", "headers"), {"upstash-nonretryable-error": "true"}),
        ("handler", ("calls",), [["await-schedulerArm"]]),
        ("cron_sign", ("signature",), "sha256=0"),
        ("cron_router", ("status",), 404),
        ("backoff", ("delayMs",), 1_001),
        ("cron_match", ("matches",), False),
        ("cron_match", ("parsed", "minute"), [1]),
        ("cron_match", (), {"error": {}}),
        ("receiver", ("verified",), False),
        ("receiver", ("status",), 489),
        ("wire", ("request", "target"), "/v2/publish/"),
        ("wire", ("request", "headers"), {}),
        ("wire", ("error",), {"classification": "terminal"}),
    ],
    ids=lambda part: part if isinstance(part, str) else None,
)
def test_a_planted_expectation_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, path: tuple[str | int, ...], value: Any
) -> None:
    """A case passes as it is, and fails once another output is expected of it."""
    case = plain_case(kind)
    assert 1 == write(tmp_path, kind, case).passed
    report = write(tmp_path, kind, {**case, "output": corrupt(case["output"], path, value)})
    assert (0, 1) == (report.passed, len(report.failed))
    assert 1 == vectors.main([str(tmp_path)])
    printed = capsys.readouterr().out
    assert printed.startswith(case["id"])
    assert printed.endswith("\n0 passed, 1 failed\n")


def test_a_rule_hides_nothing_that_agrees_anyway(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its rule, a case of the class fails: the difference is there."""
    ruled: dict[str, list[Case]] = {rule.name: [] for rule in vectors.RULES}
    for kind in vectors.KINDS:
        for case in vectors.cases(kind, file_of(kind)):
            report = vectors.Report()
            vectors.judge(case, report)
            for name in report.rules:
                ruled[name].append(case)
    idle = set()
    for name, cases in ruled.items():
        rules = tuple(rule for rule in vectors.RULES if rule.name != name)
        monkeypatch.setattr(vectors, "RULES", rules)
        report = vectors.Report()
        for case in cases:
            vectors.judge(case, report)
        idle |= set() if report.failed else {name}
        monkeypatch.undo()
    assert {"claims nest 500 levels at most", "digits are bounded"} == idle  # the vectors here are malformed besides


@pytest.mark.parametrize(("recommended", "other"), [("accept", "reject"), ("reject", "accept")])
def test_a_planted_verdict_fails(tmp_path: Path, recommended: str, other: str) -> None:
    """A case that is not in two parts passes as it is, and fails once the other verdict is expected."""
    case = next(case for case in file_of("signature")["cases"] if case["recommended"] == recommended)
    assert 1 == write(tmp_path, "signature", case).passed
    report = write(tmp_path, "signature", {**case, "recommended": other})
    assert (0, 1) == (report.passed, len(report.failed))


def test_the_core_alone_leaves_what_needs_more_for_later(tmp_path: Path) -> None:
    """Where a2asgi is not, as under Pyodide, the runner runs, and counts these cases apart."""
    for folder in ("a2core", "tests/vector_kinds"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    shutil.copy(ROOT / "tests" / "vectors.py", tmp_path / "tests")
    for kind in ("signature", "cron_match", "lease"):
        write(tmp_path, kind, *file_of(kind)["cases"])
    command = [sys.executable, "-S", "-m", "tests.vectors", str(tmp_path)]  # nothing but the standard library
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    expected = "  430 not yet: cron_match\n   59 not yet: lease\n  159 not yet: signature\n0 passed, 0 failed\n"
    assert (expected, "", 0) == (ran.stdout, ran.stderr, ran.returncode)


def test_a_case_that_raises_fails_alone(tmp_path: Path) -> None:
    """A case that cannot be run is a failed one, and the others run on."""
    case = plain_case("publish")
    report = write(tmp_path, "publish", {**case, "input": {}}, case)
    assert (1, 1) == (report.passed, len(report.failed))
    assert "raised KeyError" in report.failed[0]


def test_a_kind_is_known_by_its_cases_too(tmp_path: Path) -> None:
    """A file of another name holds the kind that its cases are named after; an unknown kind fails."""
    case = plain_case("publish")
    (tmp_path / "more.json").write_text(json.dumps({"cases": [case, {**case, "id": "other-0001"}]}))
    report = vectors.run(tmp_path)
    assert (1, 1) == (report.passed, len(report.failed))


def test_nothing_is_no_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder without vectors is a mistake."""
    assert 1 == vectors.main([str(tmp_path)])
    assert f"no vectors in {tmp_path}\n0 passed, 0 failed\n" == capsys.readouterr().out


def test_it_runs_from_the_command_line() -> None:
    """`python -m tests.vectors` runs this repository's own folder, and ends with the plain count."""
    command = [sys.executable, "-m", "tests.vectors"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (0, "") == (ran.returncode, ran.stderr)
    lines = ran.stdout.splitlines()
    assert "2624 passed, 0 failed" == lines[-1]
