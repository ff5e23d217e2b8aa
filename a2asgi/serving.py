"""Serving: A2 inside a running server, from the opened store to the last released claim."""

from collections.abc import Callable
from types import TracebackType
from typing import Self

import anyio

from a2asgi.engine import Engine
from a2asgi.groups import clean_up, leave
from a2asgi.schedulers.embedded import WakeLoop
from a2asgi.ticks import keep_up


class Serving:
    """Runs an engine's drains and its wake-ups in a task group. Enter and leave it in one task.

    Nothing is claimed before `begin`, so an app can finish its own start-up first; `stop` claims nothing more,
    gives running handlers their grace, and releases what is left, so that an app can then end its own part.
    A life may be as short as one call of a serverless host, so what was due at its start is claimed in any case.
    """

    def __init__(
        self,
        engine: Engine,
        wake_loop: WakeLoop | None,
        grace_s: float,
        *,
        install: Callable[[Engine | None], None],
    ) -> None:
        self._engine = engine
        self._install = install
        self._wake_loop = wake_loop
        self._grace_s = grace_s
        self._tasks = anyio.create_task_group()
        self._stopped = False
        self._began_s: float | None = None
        self._kept_up = anyio.Event()
        engine.runtime.stopping = True

    async def __aenter__(self) -> Self:
        self._install(self._engine)
        try:
            await self._engine.runtime.store.open()
        except BaseException:
            self._install(None)
            raise
        await self._tasks.__aenter__()
        return self

    def begin(self) -> None:
        """Start to claim."""
        self._began_s = anyio.current_time()
        self._engine.runtime.stopping = False
        self._engine.run_in(self._tasks.start_soon)
        if self._engine.handles:
            self._tasks.start_soon(keep_up, self._engine, self._kept_up)
        if self._wake_loop is not None:
            self._engine.runtime.on_wake = self._wake_loop.wake_in
            self._engine.runtime.reserve = self._wake_loop.reserve
            self._tasks.start_soon(self._wake_loop.run)

    async def stop(self) -> None:
        """Stop to claim, and end what runs. Doing it again does nothing."""
        if not self._stopped:
            self._stopped = True
            end_s = anyio.current_time() + self._grace_s
            if self._began_s is not None:
                with anyio.CancelScope(deadline=self._began_s + self._grace_s):
                    await self._first_round()
            if self._wake_loop is not None:
                self._wake_loop.stop()
            await self._engine.stop(end_s - anyio.current_time())
            if self._wake_loop is not None and self._began_s is not None:
                with clean_up(shield=False):  # what it took at the last moment would else stay taken for a claim window
                    await self._wake_loop.ended()

    async def _first_round(self) -> None:
        if self._engine.handles:
            await self._kept_up.wait()
        if self._wake_loop is not None:
            await self._wake_loop.first_round()
        await self._engine.looked()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        try:
            try:
                if kind is None:
                    await self.stop()
            except BaseException as interruption:
                self._engine.release()
                await leave(self._tasks, interruption)
                raise
            self._engine.release()
            return await leave(self._tasks, error)
        finally:
            self._install(None)
            with clean_up():
                await self._engine.runtime.close()
