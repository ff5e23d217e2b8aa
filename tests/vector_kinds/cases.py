"""What the runner speaks of: cases, kinds of cases, rules for deliberate differences, and what comes later."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True)
class Case:
    """One case: what goes in, what the reference gave out, what its file says for all of its cases."""

    kind: str
    id: str
    input: Any
    output: Any
    file: Mapping[str, Any]


@dataclass(frozen=True)
class Kind:
    """How one kind of case is run: what we do with the input, and what of the output concerns us.

    Both speak in the same terms; an object's members that are not expected are not compared.
    """

    actual: Callable[[Case], object]
    expected: Callable[[Case], object]


class NotSaid:
    """Our API has no word for the input, so there is nothing to run."""


NOT_SAID: Final = NotSaid()


@dataclass(frozen=True)
class Rule:
    """A deliberate difference, for the kinds that it concerns.

    `applies` looks at the input alone; `instead` gives what we do, in the kind's terms, or NOT_SAID.
    """

    name: str
    reason: str
    kinds: tuple[str, ...]
    applies: Callable[[Case], bool]
    instead: Callable[[Case], object]


@dataclass(frozen=True)
class Later:
    """Cases whose subject arrives with a later issue; `so_far` gives what we do until then, which is compared."""

    name: str
    kinds: tuple[str, ...]
    applies: Callable[[Case], bool] = lambda _: True
    so_far: Callable[[Case], object] = lambda _: NOT_SAID
