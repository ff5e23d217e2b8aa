"""A thread with an event loop of its own, which runs coroutines for any other loop, and for threads without one."""

from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from threading import Event, Lock, Thread
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import anyio
from anyio.abc import TaskGroup

from a2asgi.errors import StoreUnavailable
from a2asgi.threads import Loop, Reply, raising, returning

T = TypeVar("T")
R = TypeVar("R")
Job: TypeAlias = Callable[[R], Awaitable[T]]


class _Answered(Protocol):
    def set(self, outcome: Callable[[], Any]) -> None: ...


class _BlockingReply(Generic[T]):
    """One answer, for a thread that waits without an event loop."""

    def __init__(self) -> None:
        self._done = Event()
        self._outcome: Callable[[], T]

    def set(self, outcome: Callable[[], T]) -> None:
        self._outcome = outcome
        self._done.set()

    def wait(self) -> T:
        self._done.wait()
        return self._outcome()


class LoopThread(Generic[R]):
    """The thread. It holds a resource, opened on its loop, and gives it to each job; jobs run side by side.

    Who stops waiting for a job does not stop it: what a connection was asked for is always heard to its end.
    """

    def __init__(self, name: str, open_resource: Callable[[], AbstractAsyncContextManager[R]]) -> None:
        self._open_resource = open_resource
        self._lock = Lock()
        self._queue: deque[tuple[Job[R, Any], _Answered]] = deque()
        self._running: set[_Answered] = set()
        self._ring: Callable[[], None] | None = None
        self._bell: anyio.Event
        self._companion: Callable[[R], Coroutine[Any, Any, None]] | None = None
        self._stopped: Reply[None] | None = None
        self._ended: Exception | None = None
        Thread(target=self._work, name=name, daemon=True).start()

    @property
    def has_ended(self) -> bool:
        """Whether it takes no more jobs: it was stopped, or its resource failed."""
        return self._ended is not None or self._stopped is not None

    async def run(self, job: Job[R, T]) -> T:
        """Run a job, or raise what it raised. Raises StoreUnavailable once it has ended."""
        reply: Reply[T] = Reply()
        self._submit(job, reply)
        return await reply.wait()

    def run_blocking(self, job: Job[R, T]) -> T:
        """The same for a thread without an event loop."""
        reply: _BlockingReply[T] = _BlockingReply()
        self._submit(job, reply)
        return reply.wait()

    def accompany(self, companion: Callable[[R], Coroutine[Any, Any, None]]) -> None:
        """Run this beside the jobs; it is cancelled after the last of them, and raises nothing else."""
        with self._lock:
            self._companion = companion
            if self._ring is not None:
                self._ring()

    def stop(self) -> Reply[None]:
        """Finish what was accepted, then close the resource, end the thread, and reply."""
        reply: Reply[None] = Reply()
        with self._lock:
            self._stopped = reply
            if self._ended is not None:
                reply.set(returning(None))
            elif self._ring is not None:
                self._ring()
        return reply

    def _submit(self, job: Job[R, Any], reply: _Answered) -> None:
        with self._lock:
            if self._ended is not None:
                raise self._ended
            if self._stopped is not None:
                raise StoreUnavailable("the store is closed")
            self._queue.append((job, reply))
            if self._ring is not None:
                self._ring()

    def _work(self) -> None:
        error: Exception = StoreUnavailable("the store is closed, or its connections have ended")
        try:
            anyio.run(self._main)
        except Exception as raised:  # noqa: BLE001 - it is raised where each of them is awaited
            error = raised
        with self._lock:
            self._ended = error
            left = [*self._running, *(reply for _, reply in self._queue)]
        for reply in left:
            reply.set(raising(error))
        if self._stopped is not None:
            self._stopped.set(returning(None))

    async def _main(self) -> None:
        loop = Loop()
        self._bell = anyio.Event()
        with self._lock:
            self._ring = lambda: loop.call_soon(self._wake)
        async with self._open_resource() as resource, anyio.create_task_group() as companions:
            async with anyio.create_task_group() as tasks:
                while not self._stopped_after(resource, tasks, companions):
                    await self._bell.wait()
            companions.cancel_scope.cancel()

    def _stopped_after(self, resource: R, tasks: TaskGroup, companions: TaskGroup) -> bool:
        """Start what has come; whether that was all."""
        self._bell = anyio.Event()
        with self._lock:
            jobs, stopped = list(self._queue), self._stopped is not None
            self._queue.clear()
            self._running.update(reply for _, reply in jobs)
            companion, self._companion = self._companion, None
        for job, reply in jobs:
            tasks.start_soon(self._run, resource, job, reply)
        if companion is not None:
            companions.start_soon(companion, resource)
        return stopped

    def _wake(self) -> None:
        self._bell.set()

    async def _run(self, resource: R, job: Job[R, T], reply: _Answered) -> None:
        try:
            outcome: Callable[[], T] = returning(await job(resource))
        except Exception as error:  # noqa: BLE001 - it is raised again where it is awaited
            outcome = raising(error)
        with self._lock:
            self._running.discard(reply)
        reply.set(outcome)
