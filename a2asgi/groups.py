"""Exception groups of one: what a task group wrapped is raised as itself."""

from collections.abc import Iterator
from contextlib import contextmanager


def single(error: BaseException) -> BaseException:
    """The error inside a group of one, however deep; anything else as it is."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


@contextmanager
def ungrouped() -> Iterator[None]:
    """Callers catch the error, not how many tasks there were."""
    try:
        yield
    except BaseExceptionGroup as group:
        raise single(group) from None
