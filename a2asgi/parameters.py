"""Parameters of a job as a payload: what a call gives is checked, stored as JSON, and given back by name."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import field, make_dataclass
from functools import partial
from typing import Any, get_type_hints

from a2asgi.context import JobContext, SyncJobContext
from a2asgi.contract import is_async_function
from a2asgi.errors import WiringError

CONTEXT_NAME = "ctx"
"""A parameter of this name is the context, annotated or not."""

_CONTEXTS = (JobContext, SyncJobContext)
_BY_NAME = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}


class Parameters:
    """The parameters of a function, but for its context, as the fields of one dataclass.

    `reserved` are names that mean something else to whoever calls. Raises WiringError for a function that cannot be
    called by names, or whose annotations cannot be read yet.
    """

    def __init__(self, function: Callable[..., Any], *, reserved: Sequence[str] = ()) -> None:
        if isinstance(function, type) or not callable(function):
            raise WiringError(f"expected a function, got {function!r}")
        self.function = function
        hints = type_hints(function)
        signature = inspect.signature(function)
        for parameter in signature.parameters.values():
            if parameter.kind not in _BY_NAME:
                raise WiringError(
                    f"{shown(function)}: parameter {parameter} cannot be given by its name: name each one, "
                    "without *, ** or /"
                )
        self.context: str | None = _context_name(function, signature, hints)
        parameters = [one for one in signature.parameters.values() if one.name != self.context]
        for parameter in parameters:
            if parameter.name in reserved:
                raise WiringError(f"{shown(function)}: parameter {parameter.name!r} is an option of enqueue; rename it")
        self.names: list[str] = [one.name for one in parameters]
        """In order."""
        self.signature: inspect.Signature = signature.replace(parameters=parameters)
        self.payload: type = make_dataclass(
            getattr(function, "__name__", "Arguments"), [_field(one, hints.get(one.name, Any)) for one in parameters]
        )

    def pack(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The arguments of one call, as the payload. Raises TypeError as the call itself would."""
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{shown(self.function)}: {error}; expected {self.signature}") from None
        bound.apply_defaults()
        return self.payload(**bound.arguments)

    def unpack(self, payload: Any) -> dict[str, Any]:
        """A payload's arguments, by name."""
        return {name: getattr(payload, name) for name in self.names}


def type_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """A function's annotations. Raises WiringError for one that names what is not defined yet."""
    plain = inspect.unwrap(function)
    while isinstance(plain, partial):
        plain = inspect.unwrap(plain.func)
    if not inspect.isroutine(plain):
        plain = type(plain).__call__
    try:
        return get_type_hints(plain, include_extras=True)
    except Exception as error:  # an annotation may be any expression
        raise WiringError(
            f"{shown(function)}: cannot read its annotations: {error}; what they name must be defined before it, "
            "at the top of a module"
        ) from error


def takes(function: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
    """Whether it is a function that can be called like this, or one of the builtins that do not tell."""
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    except ValueError:
        return True
    return True


def shown(function: Callable[..., Any]) -> str:
    """A function as messages name it."""
    return f"{getattr(function, '__qualname__', repr(function))}()"


def _context_name(function: Callable[..., Any], signature: inspect.Signature, hints: Mapping[str, Any]) -> str | None:
    names = [
        name
        for name in signature.parameters
        if name == CONTEXT_NAME or any(hints.get(name) is context for context in _CONTEXTS)
    ]
    if len(names) > 1:
        raise WiringError(f"{shown(function)}: asks for two contexts, {names}; one is enough")
    try:
        wanted = JobContext if is_async_function(function) else SyncJobContext
    except WiringError as error:
        raise WiringError(f"{shown(function)}: it yields; expected a function that returns its result") from error
    if names and hints.get(names[0], wanted) is not wanted:
        raise WiringError(f"{shown(function)}: expected its context {names[0]!r} to be a {wanted.__name__}")
    return names[0] if names else None


def _field(parameter: inspect.Parameter, annotation: Any) -> tuple[str, Any, Any]:
    if parameter.default is inspect.Parameter.empty:
        return parameter.name, annotation, field(kw_only=True)
    return parameter.name, annotation, field(kw_only=True, default_factory=partial(deepcopy, parameter.default))
