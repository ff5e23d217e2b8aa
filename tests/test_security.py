"""What SECURITY.md says is shown by tests is shown by tests that there are."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "SECURITY.md").read_text("utf-8")
ROWS = re.findall(r"^\| (?!guarantee|---)(.+) \| (.+) \|$", TEXT, re.MULTILINE)


def missing(named: str) -> list[str]:
    """The tests among these, `file::name` between backticks, that there are not; all of it where it names none."""
    tests = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", named)
    gone = [
        f"{file}::{name}"
        for file, name in tests
        if not (ROOT / file).is_file()
        or not re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text("utf-8"), re.MULTILINE)
    ]
    return gone if tests else [named]


def test_it_is_short_and_linked() -> None:
    assert len(TEXT.splitlines()) <= 80
    assert "](SECURITY.md)" in (ROOT / "README.md").read_text("utf-8").splitlines()[-1]


def test_there_are_guarantees() -> None:
    assert len(ROWS) > 15


@pytest.mark.parametrize(("guarantee", "named"), ROWS, ids=[guarantee for guarantee, _ in ROWS])
def test_a_guarantee_names_tests_that_there_are(guarantee: str, named: str) -> None:
    assert [] == missing(named)


@pytest.mark.parametrize(
    ("planted", "expected"),
    [
        ("`tests/test_security.py::test_gone`", ["tests/test_security.py::test_gone"]),
        ("`tests/gone.py::test_it`", ["tests/gone.py::test_it"]),
        ("a promise", ["a promise"]),
        ("`tests/test_security.py::test_there_are_guarantees`", []),
    ],
)
def test_a_guarantee_that_nothing_shows_is_found(planted: str, expected: list[str]) -> None:
    assert expected == missing(planted)
