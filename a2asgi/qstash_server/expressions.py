"""The arithmetic of Upstash-Retry-Delay: a checked expression over `retried`, in milliseconds."""

import ast
import math
import operator
from collections.abc import Callable
from typing import Any

MAX_EXPRESSION = 256
"""Characters, so that neither parsing nor evaluating takes long."""

_BINARY: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: math.fmod,
}
_FUNCTIONS: dict[str, tuple[int | None, Callable[..., float]]] = {
    "pow": (2, math.pow),
    "sqrt": (1, math.sqrt),
    "abs": (1, math.fabs),
    "exp": (1, math.exp),
    "floor": (1, math.floor),
    "ceil": (1, math.ceil),
    "round": (1, lambda value: math.floor(value + 0.5)),
    "min": (None, min),
    "max": (None, max),
}
"""How many arguments each takes (None: one or more), and what it does."""


def is_expression(text: str) -> bool:
    """Whether the text is an expression that `evaluate` understands, whatever its value."""
    try:
        _check(_parsed(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def evaluate(text: str, retried: int) -> float | None:
    """The value in milliseconds; infinity where it overflows, None where there is none (a division by zero)."""
    try:
        value = float(_value(_parsed(text), float(retried)))
    except OverflowError:
        return math.inf
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None
    return None if math.isnan(value) else value


def _parsed(text: str) -> ast.expr:
    if len(text) > MAX_EXPRESSION:
        raise ValueError("too long")
    return ast.parse(text.strip(), mode="eval").body


def _check(node: ast.expr) -> None:
    match node:
        case ast.Constant(value=bool()):
            raise ValueError("a truth value")
        case ast.Constant(value=int() | float()) | ast.Name(id="retried"):
            return
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            _check(left)
            _check(right)
        case ast.UnaryOp(op=ast.UAdd() | ast.USub(), operand=operand):
            _check(operand)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            wanted, _ = _FUNCTIONS[name]
            if not args or (wanted is not None and len(args) != wanted):
                raise ValueError("the number of arguments")
            for arg in args:
                _check(arg)
        case _:
            raise ValueError("not arithmetic")


def _value(node: Any, retried: float) -> float:
    match node:
        case ast.Constant(value=int() | float() as value):
            return float(value)
        case ast.Name():
            return retried
        case ast.BinOp(left=left, op=op, right=right):
            return _BINARY[type(op)](_value(left, retried), _value(right, retried))
        case ast.UnaryOp(op=op, operand=operand):
            value = _value(operand, retried)
            return -value if isinstance(op, ast.USub) else value
        case _:
            _, function = _FUNCTIONS[node.func.id]
            values = [_value(arg, retried) for arg in node.args]
            return function(values) if node.func.id in {"min", "max"} else function(*values)
