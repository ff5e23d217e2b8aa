"""House rules that no linter knows, each shown to fail on a planted fault."""

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("a2core", "a2asgi")
FOLDERS = (*PACKAGES, "docs", "tests", "examples", "benchmarks")
FILES = [path.relative_to(ROOT) for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
ROOMS = [path for path in FILES if path.parts[0] in PACKAGES]

MAX_ROOM_LINES = 400
MAX_FUNCTION_LINES = 60
PURE_MODULE = re.compile(
    r"a2core(\..+)?|base64|binascii|collections(\.abc)?|dataclasses|datetime|enum|functools|hashlib|hmac"
    r"|ipaddress|itertools|json|math|re|struct|types|typing|zoneinfo"
)
IMPURE_NAMES = {"__import__", "breakpoint", "hash", "input", "open", "print"}  # hash() is salted per process
CLOCKS = {"now", "today", "utcnow"}


def faults(source: str, package: str) -> Iterator[str]:
    """Name each fault of a room, with its line."""
    tree = ast.parse(source)
    opening = (ast.get_docstring(tree) or "").partition("\n")[0]
    if not opening.endswith(".") or re.search(r"[.!?] [A-Z]", opening):
        yield f"1: opens with {opening!r}, which is not one sentence"
    if (lines := len(source.splitlines())) > MAX_ROOM_LINES:
        yield f"1: room of {lines} lines"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                yield f"{node.lineno}: function of {lines} lines"
        if package == "a2core":
            yield from (f"{getattr(node, 'lineno', '?')}: {fault}" for fault in impurities(node))


def impurities(node: ast.AST) -> Iterator[str]:
    """Name what this one node does that the core may not."""
    match node:
        case ast.AsyncFunctionDef() | ast.AsyncFor() | ast.AsyncWith() | ast.Await():
            yield "async"
        case ast.Name(id=name) if name in IMPURE_NAMES:
            yield name
        case ast.Attribute(attr=name) if name in CLOCKS:
            yield f".{name}"
        case ast.Import(names=names):
            yield from (f"import {alias.name}" for alias in names if not PURE_MODULE.fullmatch(alias.name))
        case ast.ImportFrom(module=str(name), level=0) if not PURE_MODULE.fullmatch(name):
            yield f"from {name} import"
        case ast.ClassDef(decorator_list=decorators):
            for text in map(ast.unparse, decorators):
                if "dataclass" in text and not ("frozen=True" in text and "slots=True" in text):
                    yield f"loose @{text}"
        case _:
            pass


@pytest.mark.parametrize("room", ROOMS, ids=str)
def test_a_room_is_tidy(room: Path) -> None:
    assert [] == list(faults((ROOT / room).read_text("utf-8"), room.parts[0]))


def test_each_core_room_has_its_own_test_and_no_other_is_there() -> None:
    rooms = {f"test_{path.name}" for path in ROOMS if path.parts[0] == "a2core"}
    tests = {path.name for path in FILES if path.parts[:2] == ("tests", "core")}
    assert rooms - {"test___init__.py"} == tests - {"conftest.py", "helpers.py"}


@pytest.mark.parametrize("file", FILES, ids=str)
def test_a_file_leaves_nothing_for_later(file: Path) -> None:
    assert [] == re.findall(r"TO[D]O|FIX[M]E", (ROOT / file).read_text("utf-8"))


@pytest.mark.parametrize(
    ("planted", "fault"),
    [
        ("'No period'", "1: opens with 'No period', which is not one sentence"),
        ("'One. Two.'", "1: opens with 'One. Two.', which is not one sentence"),
        ("'One.'" + "\nx = 1" * 400, "1: room of 401 lines"),
        ("'One.'\ndef f():" + "\n    x = 1" * 60, "2: function of 61 lines"),
        ("'One.'\nimport time", "2: import time"),
        ("'One.'\nimport json, urllib.request", "2: import urllib.request"),
        ("'One.'\ndef f():\n    from os import environ", "3: from os import"),
        ("'One.'\nfrom datetime import datetime\ndatetime.now()", "3: .now"),
        ("'One.'\nsorted([], key=hash)", "2: hash"),
        ("'One.'\nprint()", "2: print"),
        ("'One.'\nasync def f(): ...", "2: async"),
        ("'One.'\n@dataclass(frozen=True)\nclass A: ...", "3: loose @dataclass(frozen=True)"),
    ],
)
def test_a_planted_fault_is_found(planted: str, fault: str) -> None:
    assert [fault] == list(faults(planted, "a2core"))


@pytest.mark.parametrize(
    ("package", "statement", "verdict"),
    [
        ("a2core", "import time", "a2core.errors -> time"),
        ("a2core", "import a2asgi", "a2core.errors -> a2asgi"),
        ("a2asgi", "import a2core.events", "a2asgi.errors -> a2core.events"),
        ("a2asgi", "import a2core", " 0 broken."),
    ],
)
def test_a_planted_import_is_found(tmp_path: Path, package: str, statement: str, verdict: str) -> None:
    for name in PACKAGES:
        shutil.copytree(ROOT / name, tmp_path / name)
        room = tmp_path / name / "errors.py"
        room.write_text(f"{room.read_text()}\n{statement if name == package else ''}\n")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    lint = "from importlinter.cli import lint_imports_command as lint; lint(['--no-cache', '--no-logo'])"
    command = [sys.executable, "-c", lint]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert verdict in ran.stdout, ran.stdout + ran.stderr
    assert (" 0 broken." in ran.stdout) == (ran.returncode == 0)
