"""Structured endings: groups of one error, task groups entered by hand, and steps that a cancellation must not tear."""

import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn, TypeVar

from anyio import CancelScope, current_time, get_cancelled_exc_class, move_on_after
from anyio.abc import TaskGroup

T = TypeVar("T")

CLEAN_UP_S = 5.0
"""How long an end may take once nobody waits for it any more."""


@contextmanager
def ungrouped() -> Iterator[None]:
    """Around one task group: callers catch the error, not how many tasks there were.

    Only that group's wrapping is undone; a group that is the caller's own stays one.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        if len(group.exceptions) != 1:
            raise
        _raise_as_it_was(group.exceptions[0])


def _raise_as_it_was(error: BaseException) -> NoReturn:
    context, suppress = error.__context__, error.__suppress_context__
    try:
        raise error
    finally:
        error.__context__, error.__suppress_context__ = context, suppress


def clean_up(*, shield: bool = True) -> CancelScope:
    """A scope for what must still be done at an end, for a limited time."""
    return move_on_after(CLEAN_UP_S, shield=shield)


class Shield:
    """Shields steps that must not be torn in two; once told to hurry, for a limited time only."""

    def __init__(self) -> None:
        self._deadline = math.inf
        self._scopes: set[CancelScope] = set()

    def hurry(self) -> None:
        """From now on no step may take longer than a clean-up."""
        self._deadline = current_time() + CLEAN_UP_S
        for scope in self._scopes:
            scope.deadline = self._deadline

    async def run(self, step: Callable[[], Awaitable[T]]) -> T | None:
        """Do the step whole; None where it was in the way of an end."""
        with CancelScope(shield=True, deadline=self._deadline) as scope:
            self._scopes.add(scope)
            try:
                return await step()
            finally:
                self._scopes.discard(scope)
        return None


async def leave(tasks: TaskGroup, error: BaseException | None) -> bool | None:
    """Cancel and leave a task group that was entered by hand, while `error` is on its way through, or none.

    The group is told of a cancellation alone, which may be its own; any other error goes on as the object that it is.
    """
    tasks.cancel_scope.cancel()
    own = error if error is not None and _holds_cancellation(error) else None
    with ungrouped():
        absorbed = await tasks.__aexit__(None if own is None else type(own), own, None)
    return absorbed and own is not None


def _holds_cancellation(error: BaseException) -> bool:
    cancelled = get_cancelled_exc_class()
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(cancelled) is not None
    return isinstance(error, cancelled)
