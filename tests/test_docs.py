"""The page about a delivery tells of the machine as it is, and its code runs."""

import re
import runpy
from collections.abc import Iterator
from enum import EnumMeta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from a2core import (
    ANSWERS,
    AppendTask,
    Busy,
    Callback,
    DeliveryRules,
    DrainTask,
    Ended,
    Head,
    Hop,
    Message,
    PublishRequest,
    PublishRules,
    Reason,
    Respond,
    Stalled,
    Step,
    begin_delivery,
    encode_message,
)
from docs import make_delivery_diagram
from docs.make_delivery_diagram import PAGE, STEPS, answering_methods, answers, diagram, remade

TEXT = PAGE.read_text("utf-8")
NOW_MS = 1_700_000_000_000
RULES = DeliveryRules(PublishRules(Callback("https://app.example.com/api/a2/scheduler")), frozenset({"orders"}))
DRAIN = DrainTask("orders", "s-1", NOW_MS)
APPEND = AppendTask("t-1", "orders", "s-1", NOW_MS, ({"id": "e-1", "type": "placed", "payload": None},))
BODIES = [encode_message(message).encode() for message in (Message(DRAIN), Message(APPEND), Message(APPEND, Hop(0)))]


def test_the_page_is_as_the_machine_is() -> None:
    assert remade(TEXT) == TEXT, "run: python -m docs.make_delivery_diagram"


@pytest.mark.parametrize("planted", ["    Append --> Verify: ended\n", "| `ok` | 204 | ok | is done |\n"])
def test_a_page_that_drifted_is_found(planted: str) -> None:
    name, marked, rest = TEXT.partition("stateDiagram-v2\n" if "-->" in planted else "| --- | --- | --- | --- |\n")
    drifted = f"{name}{marked}{planted}{rest}"
    assert TEXT == remade(drifted) != drifted


def test_a_step_that_changed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_delivery_diagram, "STEPS", STEPS[:-1])
    assert remade(TEXT) != TEXT


@pytest.mark.parametrize("step", STEPS)
def test_each_step_takes_its_answer_in_one_method_and_the_end_takes_none(step: type) -> None:
    assert len(answering_methods(step)) == (step is not Respond)


def values(kind: type) -> list[Any]:
    """Answers of a type, such that each step that can follow does."""
    if isinstance(kind, EnumMeta):
        return list(kind)
    some: dict[type, list[Any]] = {bool: [True, False], bytes: [b"", *BODIES], type(None): [None]}
    return (some | {Busy: [Busy(), Busy(arming=True)], Stalled: [Stalled()]})[kind]


def arrows_from(step: Step) -> Iterator[str]:
    """Every arrow that is taken on some way from a step to its end."""
    if isinstance(step, Respond):
        yield "Respond --> [*]"
        return
    [method] = answering_methods(type(step))
    now = {"now_ms": NOW_MS} if "now_ms" in method.__annotations__ else {}
    for answer in (value for kind in answers(method) for value in values(kind)):
        after = method(step, answer, **now)
        yield f"{type(step).__name__} --> {type(after).__name__}: {method.__name__}"
        yield from arrows_from(after)


def test_each_arrow_is_taken_and_no_other() -> None:
    """What the types allow does happen, whichever answers it takes."""
    taken = set()
    for head in (Head("POST", "signature"), Head("GET", None)):
        step = begin_delivery(RULES, head)
        taken |= {f"[*] --> {type(step).__name__}: begin_delivery", *arrows_from(step)}
    assert taken == {line.strip() for line in diagram().splitlines() if "-->" in line}


def test_each_reason_has_its_row() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (\d+) \|", TEXT, re.MULTILINE))
    assert {f"{reason}": f"{ANSWERS[reason].status}" for reason in Reason} == rows


def test_each_law_has_its_test() -> None:
    source = (Path(__file__).parent / "core" / "test_delivery.py").read_text("utf-8")
    tests = set(re.findall(r"^def (test_\w+)", source, re.MULTILINE))
    laws = re.findall(r"`(test_\w+)` \|$", TEXT, re.MULTILINE)
    assert len(laws) > 5
    assert set() == {*laws} - tests


def test_each_link_leads_to_a_file() -> None:
    links = re.findall(r"\]\(([^)]+)\)", TEXT)
    assert [] == [link for link in links if not (PAGE.parent / link).is_file()]


@pytest.mark.parametrize(
    ("task", "accepts", "reason", "calls"),
    [
        (APPEND, True, Reason.OK, ["read", "verify", "append"]),
        (DRAIN, True, Reason.OK, ["read", "verify", "drain", "publish"]),
        (DRAIN, False, Reason.NOT_PUBLISHED, ["read", "verify", "drain", "publish"]),
    ],
)
def test_the_host_on_the_page_runs(
    tmp_path: Path, *, task: AppendTask | DrainTask, accepts: bool, reason: Reason, calls: list[str]
) -> None:
    [code] = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(code.partition("def serve")[2].splitlines()) <= 20
    (tmp_path / "host.py").write_text(code)
    body = encode_message(Message(task)).encode()
    request = SimpleNamespace(method="POST", headers={"upstash-signature": "signature"}, body=body)
    called: list[str] = []

    def noted(name: str, answer: Any) -> Any:
        called.append(name)
        return answer

    host = {
        "read_body": lambda request, limit: noted("read", request.body[:limit]),
        "is_genuine": lambda body, signature: noted("verify", (body, signature) == (request.body, "signature")),
        "append": lambda told: noted("append", Ended.DONE if told == task else Ended.FAILED),
        "drain": lambda told: noted("drain", Stalled() if told == task else Ended.FAILED),
        "publish": lambda message: noted("publish", accepts and isinstance(message, PublishRequest)),
        "now_ms": lambda: NOW_MS,
    }
    serve = runpy.run_path(str(tmp_path / "host.py"), host)["serve"]
    assert (ANSWERS[reason], calls) == (serve(request, RULES), called)
