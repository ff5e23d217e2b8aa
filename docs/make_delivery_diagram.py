"""Makes the parts of delivery.md that tell of the machine, from its steps' types and the table of its answers.

`python -m docs.make_delivery_diagram` writes them into the page.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from enum import EnumMeta
from pathlib import Path
from types import FunctionType
from typing import Any, get_args, get_type_hints

from a2core import ANSWERS, Answer, Step, begin_delivery

PAGE = Path(__file__).parent / "delivery.md"
STEPS: tuple[type, ...] = get_args(Step)


def answering_methods(step: type) -> list[FunctionType]:
    """The public methods of a step, each of which takes an answer."""
    return [value for name, value in vars(step).items() if isinstance(value, FunctionType) and name[0] != "_"]


def successors(function: Callable[..., Any]) -> tuple[type, ...]:
    """The steps that a function may return, as its type says."""
    returned = get_type_hints(function)["return"]
    return get_args(returned) or (returned,)


def answers(method: FunctionType) -> tuple[type, ...]:
    """The types of the answers that a method takes, as its type says."""
    hints = get_type_hints(method)
    answer = next(hint for name, hint in hints.items() if name not in {"now_ms", "return"})
    return get_args(answer) or (answer,)


def diagram() -> str:
    """The machine, in Mermaid's notation."""
    return "\n".join(["```mermaid", "stateDiagram-v2", *(f"    {arrow}" for arrow in _arrows()), "```"])


def _arrows() -> Iterator[str]:
    for step in successors(begin_delivery):
        yield f"[*] --> {step.__name__}: begin_delivery"
    for step in STEPS:
        for method in answering_methods(step):
            for after in successors(method):
                yield f"{step.__name__} --> {after.__name__}: {method.__name__}"
        if not answering_methods(step):
            yield f"{step.__name__} --> [*]"


def steps_table() -> str:
    """What each step asks, which method takes the answer, and what may follow."""
    rows = [_step_row(step) for step in STEPS]
    return _table(("step", "asks", "is told by", "answers", "next"), rows)


def _step_row(step: type) -> tuple[str, ...]:
    asks = re.sub(r"^(Asks|The end):? |\..*", "", step.__doc__ or "", flags=re.DOTALL)
    methods = answering_methods(step)
    return (
        _code([step.__name__]),
        asks,
        _code(method.__name__ for method in methods),
        _code(name for method in methods for kind in answers(method) for name in _values(kind)),
        _code(after.__name__ for method in methods for after in successors(method)),
    )


def _values(kind: type) -> list[str]:
    """An enum's members, both truths, or what the type is called."""
    if kind is bool:
        return ["True", "False"]
    if isinstance(kind, EnumMeta):
        return [f"{kind.__name__}.{name}" for name in kind.__members__]
    return ["None" if kind is type(None) else kind.__name__]


def answers_table() -> str:
    """Every reason for which a delivery ends, with its answer and what the provider makes of it."""
    rows = [
        (_code([f"{reason}"]), str(answer.status), answer.text, _outcome(answer)) for reason, answer in ANSWERS.items()
    ]
    return _table(("reason", "status", "text", "the provider"), rows)


def _outcome(answer: Answer) -> str:
    if answer.nonretryable:
        return "gives up: `Upstash-NonRetryable-Error: true`"
    return "is done" if 200 <= answer.status < 300 else "delivers it again"  # noqa: PLR2004 - HTTP's 2xx


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = tuple(head)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


PARTS = {"diagram": diagram, "steps": steps_table, "answers": answers_table}


def remade(page: str) -> str:
    """The page with each part between its two marks made anew."""
    for name, make in PARTS.items():
        opening, closing = f"<!-- {name}: made by make_delivery_diagram.py -->", f"<!-- {name} ends -->"
        before, _, rest = page.partition(opening)
        _, _, after = rest.partition(closing)
        page = f"{before}{opening}\n\n{make()}\n\n{closing}{after}"
    return page


if __name__ == "__main__":
    PAGE.write_text(remade(PAGE.read_text("utf-8")), "utf-8")
