"""An event loop on virtual time: asyncio's own, whose waiting is skipped and whose order can be repeated."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, TypeVar

import sniffio
from anyio._backends import _asyncio as anyio_asyncio

T = TypeVar("T")

MOST_TURNS = 20_000
"""How many rounds the loop may make without time passing, before that is a hot loop."""

GRAIN_S = 1e-6
"""Timers this close to now are due: floats do not add up exactly."""


class _Task(asyncio.Task[Any]):
    """A task that sets keep in an order of its own making, not in that of addresses."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._number: int = next(kwargs["loop"].task_numbers)
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self._number


class VirtualLoop(asyncio.BaseEventLoop):
    """Jumps to whatever is due next. It has no selector but itself, and no way to the outside."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.task_numbers = count()
        self.on_hot_loop: Callable[[], object] = _nothing
        self._turns = 0
        self._selector = self
        self._clock_resolution = GRAIN_S
        self.set_task_factory(_make_task)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self.now_s

    def now_ms(self) -> int:
        """The same in whole milliseconds."""
        return int(self.now_s * 1_000 + 0.01)

    def select(self, timeout: float | None) -> list[Any]:
        """Let the time pass until the next timer. Raises RuntimeError where nothing is left that could ever happen."""
        if timeout is None:
            raise RuntimeError("nothing is left that could ever happen")
        self._turns = 0 if timeout > 0 else self._turns + 1
        self.now_s += timeout
        if self._turns == MOST_TURNS:
            self.on_hot_loop()
        return []

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """It never sleeps."""


def _make_task(loop: asyncio.AbstractEventLoop, coro: Any, **kwargs: Any) -> Any:
    return _Task(coro, loop=loop, **kwargs)


def _by_host(scope: Any) -> int:
    return hash(scope._host_task)  # noqa: SLF001 - the order in which anyio cancels must not be that of addresses


@contextmanager
def ordered_scopes() -> Iterator[None]:
    """Within it anyio's sets of scopes have an order that can be repeated."""
    scope: Any = anyio_asyncio.CancelScope
    scope.__hash__ = _by_host
    try:
        yield
    finally:
        del scope.__hash__


def run(main: Callable[[VirtualLoop], Coroutine[Any, Any, T]]) -> T:
    """Run to the end. Raises RuntimeError where it leaves a task behind."""
    loop = VirtualLoop()
    with ordered_scopes():
        try:
            answer = loop.run_until_complete(_within(main, loop))
        finally:
            loop.close()
    if left := asyncio.all_tasks(loop):
        raise RuntimeError(f"left behind: {left}")
    return answer


def _nothing() -> None:
    """Nobody asked to be told."""


async def _within(main: Callable[[VirtualLoop], Coroutine[Any, Any, T]], loop: VirtualLoop) -> T:
    sniffio.current_async_library_cvar.set("asyncio")  # so that nobody has to find out
    return await main(loop)
