"""The bridge between threads and an event loop: answers that travel to the loop that waits for them."""

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from threading import Condition, Thread
from typing import Any, Generic, NoReturn, TypeVar

import anyio
from anyio.lowlevel import current_token

try:
    import sniffio
except ModuleNotFoundError:  # then there is no trio, and asyncio is known by its own means
    sniffio = None  # type: ignore[assignment]

T = TypeVar("T")


class Loop:
    """The event loop of the calling task, to be spoken to from any thread without waiting for it."""

    def __init__(self) -> None:
        native: Any = current_token().native_token
        self.native: object = native
        # asyncio and trio name the same operation differently
        self._call_soon: Callable[[Callable[[], object]], object] = (
            getattr(native, "call_soon_threadsafe", None) or native.run_sync_soon
        )

    def call_soon(self, function: Callable[[], object]) -> None:
        """Run `function` on the loop soon. A loop that has ended runs nothing: who waited there is gone."""
        with suppress(RuntimeError):
            self._call_soon(function)


class Promise(Generic[T]):
    """One answer that another task of the same loop gives."""

    def __init__(self) -> None:
        self._done = anyio.Event()
        self._outcome: Callable[[], T]

    @property
    def is_kept(self) -> bool:
        """Whether it was given."""
        return self._done.is_set()

    def keep(self, outcome: Callable[[], T]) -> None:
        """Deliver: the waiter calls `outcome`, which returns the value or raises the error."""
        self._outcome = outcome
        self._done.set()

    async def wait(self) -> T:
        """Wait for the answer. Cancelling the wait does not stop the work on it."""
        await self._done.wait()
        return self._outcome()


class Reply(Promise[T]):
    """One answer from a thread. Made on the loop, set on any thread, awaited on the loop."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = Loop()

    def set(self, outcome: Callable[[], T]) -> None:
        """Deliver from any thread, as `keep` does from the loop."""
        set_all([(self, outcome)])


def set_all(answers: Iterable[tuple[Reply[Any], Callable[[], Any]]]) -> None:
    """Deliver these together: each loop is woken once."""
    loops: dict[int, tuple[Loop, list[anyio.Event]]] = {}
    for reply, outcome in answers:
        reply._outcome = outcome  # noqa: SLF001 - of this room
        loops.setdefault(id(reply._loop.native), (reply._loop, []))[1].append(reply._done)  # noqa: SLF001 - as above
    for loop, waiting in loops.values():
        loop.call_soon(partial(_wake, waiting))


def _wake(waiting: list[anyio.Event]) -> None:
    for done in waiting:
        done.set()


def returning(value: T) -> Callable[[], T]:
    """An outcome that returns `value`."""
    return lambda: value


def raising(error: BaseException) -> Callable[[], NoReturn]:
    """An outcome that raises `error`."""

    def raise_it() -> NoReturn:
        raise error

    return raise_it


async def run_in_thread(function: Callable[[], T], name: str) -> T:
    """Run a plain function on a daemon thread of its own, with the caller's context variables.

    A pool's threads would keep the process from ending while one of them is stuck; a daemon thread does not.
    """
    reply: Reply[T] = Reply()
    context = copy_context()

    def work() -> None:
        context.run(_leave_loop)
        try:
            outcome: Callable[[], T] = returning(context.run(function))
        except BaseException as error:  # noqa: BLE001 - it is raised again where it is awaited
            outcome = raising(error)
        reply.set(outcome)

    Thread(target=work, name=name, daemon=True).start()
    return await reply.wait()


def _leave_loop() -> None:
    """A thread runs no event loop, whatever the copied context says of the one that started it."""
    if sniffio is not None:
        sniffio.current_async_library_cvar.set(None)


class Refused(Exception):
    """No thread has begun it: all were busy for too long, or they were stopped."""


class Workers:
    """Up to `most` daemon threads that run what they are given. Each is begun when it is needed first."""

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self._ready = Condition()
        self._queue: deque[Callable[[], None]] = deque()
        self._threads = 0
        self._resting = 0
        self._stopped: Reply[None] | None = None

    async def run(self, function: Callable[[], T], *, begin_within_s: float) -> T:
        """Run a plain function on one of the threads. Cancelling the wait does not stop it. Raises Refused."""
        reply: Reply[T] = Reply()

        def work() -> None:
            try:
                outcome: Callable[[], T] = returning(function())
            except BaseException as error:  # noqa: BLE001 - it is raised again where it is awaited
                outcome = raising(error)
            reply.set(outcome)

        with self._ready:
            if self._stopped is not None:
                raise Refused(f"{self._name}: the threads were stopped")
            self._queue.append(work)
            if len(self._queue) > self._resting and self._threads < self._most:
                self._threads += 1
                Thread(target=self._work, name=self._name, daemon=True).start()
            else:
                self._ready.notify()
        with anyio.move_on_after(begin_within_s):
            return await reply.wait()
        with self._ready:
            if work in self._queue:
                self._queue.remove(work)
                raise Refused(f"{self._name}: no thread was free within {begin_within_s:g} s")
        return await reply.wait()

    def stop(self) -> Reply[None]:
        """Finish what is queued, end the threads, then reply."""
        reply: Reply[None] = Reply()
        with self._ready:
            self._stopped = reply
            self._ready.notify_all()
            if not self._threads:
                reply.set(returning(None))
        return reply

    def _work(self) -> None:
        while work := self._take():
            work()
        with self._ready:
            self._threads -= 1
            if not self._threads and self._stopped is not None:
                self._stopped.set(returning(None))

    def _take(self) -> Callable[[], None] | None:
        """Wait for something to do; None once stopped."""
        with self._ready:
            self._resting += 1
            while not self._queue and self._stopped is None:
                self._ready.wait()
            self._resting -= 1
            return self._queue.popleft() if self._queue else None
