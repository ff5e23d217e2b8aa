"""Runs vector files: `python -m tests.vectors [FOLDER]` reports each failing case, and exits 1 if there is one.

A file is named after its kind, or its cases are (`publish-0001`). Differences on purpose are rules, each with its
reason and its count; what arrives with a later issue is counted apart.
"""

import json
import logging
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.vector_kinds.cases import NOT_SAID, Case, Kind, Later, Rule
from tests.vector_kinds.delivering import DELIVERING
from tests.vector_kinds.delivering_rules import DELIVERING_RULES
from tests.vector_kinds.judging import JUDGING
from tests.vector_kinds.judging_rules import JUDGING_LATER, JUDGING_RULES
from tests.vector_kinds.publishing import PUBLISHING
from tests.vector_kinds.publishing_rules import PUBLISHING_RULES
from tests.vector_kinds.scheduling import SCHEDULING, SCHEDULING_LATER
from tests.vector_kinds.scheduling_rules import SCHEDULING_RULES
from tests.vector_kinds.triggering import TRIGGERING, TRIGGERING_LATER
from tests.vector_kinds.triggering_rules import TRIGGERING_RULES
from tests.vector_kinds.values import agrees, decode
from tests.vector_kinds.verifying import VERIFYING, VERIFYING_LATER
from tests.vector_kinds.verifying_rules import VERIFYING_RULES

FOLDER = Path("tests/vectors")
SHOWN_CHARS = 4_000
KINDS: Mapping[str, Kind] = PUBLISHING | DELIVERING | JUDGING | SCHEDULING | TRIGGERING | VERIFYING
RULES: tuple[Rule, ...] = (
    PUBLISHING_RULES + DELIVERING_RULES + JUDGING_RULES + SCHEDULING_RULES + TRIGGERING_RULES + VERIFYING_RULES
)
LATER: tuple[Later, ...] = (
    *JUDGING_LATER,
    *SCHEDULING_LATER,
    *TRIGGERING_LATER,
    *VERIFYING_LATER,
)


@dataclass
class Report:
    """What came of a run: how many cases passed, which failed and how, and the counts by rule."""

    passed: int = 0
    failed: list[str] = field(default_factory=list)
    rules: Counter[str] = field(default_factory=Counter)
    later: Counter[str] = field(default_factory=Counter)


def run(folder: Path) -> Report:
    """Run every *.json of a folder."""
    report = Report()
    for path in sorted(folder.glob("*.json")):
        for case in cases(path.stem, json.loads(path.read_text("utf-8"))):
            judge(case, report)
    return report


def cases(name: str, file: Mapping[str, Any]) -> Iterator[Case]:
    """The cases of one file."""
    for number, given in enumerate(file["cases"], 1):
        id_ = given.get("id") or f"{name}-{given.get('name', number)}"
        kind = name if name in KINDS else id_.rpartition("-")[0] or name
        # a case without the two parts is both: its kind knows which member is which
        yield Case(kind, id_, decode(given.get("input", given)), decode(given.get("output", given)), file)


def judge(case: Case, report: Report) -> None:
    """Run one case, and add it to the report."""
    rule = later = None
    try:
        later = next((later for later in LATER if case.kind in later.kinds and later.applies(case)), None)
        rule = next((rule for rule in RULES if case.kind in rule.kinds and rule.applies(case)), None)
        if later is not None:
            expected = later.so_far(case)
        else:
            expected = KINDS[case.kind].expected(case) if rule is None else rule.instead(case)
        actual = NOT_SAID if expected is NOT_SAID else KINDS[case.kind].actual(case)
    except Exception as error:  # noqa: BLE001 - a case that raises has failed, and the others run on
        report.failed.append(f"{case.id}\n  raised {type(error).__name__}: {error}")
        return
    if not agrees(expected, actual):
        by = "" if rule is None else f" (by the rule {rule.name!r})"
        report.failed.append(f"{case.id}{by}\n  expected {shown(expected)}\n  actual   {shown(actual)}")
    elif later is not None:
        report.later[later.name] += 1
    else:
        report.passed += expected is not NOT_SAID
        report.rules.update([] if rule is None else [rule.name])


def shown(value: object) -> str:
    """A value for a person: the middle of a very long one is left out."""
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[: SHOWN_CHARS // 2]} ... {text[-SHOWN_CHARS // 2 :]}"


def say(line: str) -> None:
    """Print a line; a lone surrogate as its escape, which every terminal takes."""
    print(line.encode("utf-8", "backslashreplace").decode())  # noqa: T201 - it reports to a person


def main(arguments: list[str]) -> int:
    """Run a folder and report. 1 if a case failed, or there is none."""
    folder = Path(arguments[0]) if arguments else FOLDER
    report = run(folder)
    for failure in report.failed:
        say(failure)
    reasons = {rule.name: rule.reason for rule in RULES}
    for name, count in report.rules.items():
        say(f"{count:5} by rule: {name}: {reasons[name]}")
    for name, count in sorted(report.later.items()):
        say(f"{count:5} not yet: {name}")
    is_empty = not (report.passed or report.failed or report.rules or report.later)
    if is_empty:
        say(f"no vectors in {folder}")
    say(f"{report.passed} passed, {len(report.failed)} failed")
    return 1 if report.failed or is_empty else 0


if __name__ == "__main__":
    logging.basicConfig(level=logging.CRITICAL)  # what is logged of a bad case is no part of the report
    sys.exit(main(sys.argv[1:]))
