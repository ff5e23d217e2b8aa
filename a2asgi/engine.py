"""The engine: appends, and drains that a server's task group runs, or the caller itself where there is no server."""

import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import anyio

from a2asgi.attempt import current_attempt
from a2asgi.contract import Definition
from a2asgi.drain import Drain, DrainResult, DrainState
from a2asgi.entropy import random_id
from a2asgi.errors import ConfigurationError, EventConflict, StoreBroken, StoreUnavailable
from a2asgi.events import Event
from a2asgi.groups import clean_up, ungrouped
from a2asgi.passes import Opening
from a2asgi.ports import Answer, Decide, JoiningStore, SessionKey
from a2asgi.runtime import Runtime
from a2asgi.schedulers.embedded import Place, Share
from a2core import (
    Appended,
    Conflict,
    Needs,
    Plan,
    Snapshot,
    decide_append,
)

log: logging.Logger = logging.getLogger("a2asgi.engine")

StartSoon: TypeAlias = Callable[[Callable[[Drain], Coroutine[Any, Any, Any]], Drain], object]
"""Runs a function of a drain in a task of its own."""

BUSY_LOOK_MS = 250
"""How often `wait=True` looks again at a session that another process works on."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What an append did: the events as the log holds them, and whether any of them is new."""

    events: tuple[Event[Any], ...]
    new: bool
    _on_commit: Callable[[], Awaitable[object]] | None = field(default=None, repr=False, compare=False)

    async def committed(self) -> None:
        """Have the events handled that were appended by `connection=`: its transaction is committed now.

        Forgotten, they are handled all the same, a little later. For any other append this does nothing.
        """
        if self._on_commit is not None:
            await self._on_commit()


class Engine:
    """Sessions of one process: their appends and their drains."""

    def __init__(
        self, runtime: Runtime, definitions: Mapping[str, Definition], *, schedules: bool, handles: bool = True
    ) -> None:
        self.runtime = runtime
        self.definitions = definitions
        self.schedules = schedules
        self.handles = handles
        self._drains: dict[SessionKey, Drain] = {}
        self._levels: list[list[Share]] = []
        self._put_off: set[SessionKey] = set()
        self._start_soon: StartSoon | None = None

    def run_in(self, start_soon: StartSoon) -> None:
        """Run drains by this (a task group's `start_soon`) from now on, instead of inline; start those put off."""
        self._start_soon = start_soon
        while self._put_off:
            self.start(self._put_off.pop())

    def joining_store(self) -> JoiningStore:
        """The store, where it can take part in the caller's own transactions. Raises ConfigurationError."""
        store = self.runtime.store
        if not isinstance(store, JoiningStore):
            raise ConfigurationError(
                "cannot append in your own transaction: expected a store in a database of yours, "
                f"such as SQLiteStore(path), got {store!r}"
            )
        return store

    async def append_on(
        self, connection: Any, definition: Definition, key: SessionKey, events: Sequence[object]
    ) -> Receipt:
        """Append a batch in the caller's own transaction; nothing is handled before the receipt's `committed`.

        Raises as `append`, and ConfigurationError where the store or the connection cannot do that.
        """
        transact = partial(self.joining_store().transact_on, connection)
        wake_after_ms = self.runtime.timings.grace_ms if self.handles else 0
        receipt, pending = await self._append(definition, key, events, wake_after_ms, transact)

        async def committed() -> None:
            self.runtime.news.tell(key)
            if not self.handles:
                await self.runtime.send_wake(key, self.runtime.store_now_ms(), seq=receipt.events[-1].seq)
            elif pending:
                await self.wake(key)

        return replace(receipt, _on_commit=committed)

    async def append(
        self, definition: Definition, key: SessionKey, events: Sequence[object], *, wait: bool = False
    ) -> Receipt:
        """Append a batch, and have what is pending of it handled.

        Raises EventConflict, what a bad event raises, and StoreUnavailable or StoreBroken; nothing was written then.
        """
        if not self.handles:
            if wait:
                raise ConfigurationError(
                    "append: wait=True needs a process that handles events, and this one's role "
                    'is "web"; look at session.lanes(), or use role="all"'
                )
            return await self.dispatch(definition, key, events)
        # a store that keeps its own wake-ups has another process look soon, should this one die before its claim
        timings = self.runtime.timings
        wake_after_ms = timings.grace_ms if self.runtime.provider is None else timings.window_ms
        receipt, pending = await self._append(definition, key, events, wake_after_ms)
        if pending:
            await self.wake(key, wait=wait)
        return receipt

    async def dispatch(self, definition: Definition, key: SessionKey, events: Sequence[object]) -> Receipt:
        """Append a batch and hand the session to the scheduler at once, running nothing here.

        Raises as `append`, and SendFailed where a provider did not take the wake-up: the events may be durable then,
        and with explicit ids the call can be repeated.
        """
        if not self.schedules:
            raise ConfigurationError("dispatch needs a scheduler, and A2(scheduler=None) has none: use append")
        receipt, pending = await self._append(definition, key, events, 0)
        if pending:
            await self.runtime.send_wake(key, self.runtime.store_now_ms(), seq=receipt.events[-1].seq)
        return receipt

    async def hand_on(self, key: SessionKey, due_at_ms: int, *, seq: int | None) -> None:
        """Have the scheduler start what was written with a wake-up at `due_at_ms`; `seq` is its event's, if it has one.

        Where no scheduler and no server runs it, what is due runs here and now. Raises SendFailed.
        """
        await self.runtime.send_wake(key, due_at_ms, seq=seq)
        serves = self.schedules and (self._start_soon is not None or not self.handles)
        if self.runtime.provider is None and seq is not None and not serves:
            await self.wake(key)

    @property
    def contracts(self) -> frozenset[str]:
        """The contracts that this code serves."""
        return frozenset(self.definitions)

    def shares(self) -> list[Share]:
        """The contracts as their wake-ups are taken: by priority, and with their limits for one process."""
        return [share for level in self.levels() for share in level]

    def levels(self) -> list[list[Share]]:
        """The same, those of one priority together, the highest first."""
        if sum(len(share.contracts) for level in self._levels for share in level) != len(self.definitions):
            self._levels = self._make_levels()  # contracts are only ever added
        return self._levels

    def _make_levels(self) -> list[list[Share]]:
        levels: list[list[Share]] = []
        for priority in sorted({definition.priority for definition in self.definitions.values()}, reverse=True):
            level = [definition for definition in self.definitions.values() if definition.priority == priority]
            unlimited = tuple(definition.name for definition in level if definition.at_once is None)
            limited = [Share((one.name,), one.at_once) for one in level if one.at_once is not None]
            levels.append([*limited, *[Share(unlimited)] * bool(unlimited)])
        return levels

    def start(self, key: SessionKey) -> None:
        """Have the session drained without waiting for it: by the drain under way, or in the server's tasks."""
        if (drain := self._drains.get(key)) is not None:
            drain.poke()
        elif self._start_soon is not None:
            self._start_soon(self._attend, self._begin(key))

    async def write_in(self, place: Place, key: SessionKey, needs: Needs, decide: Decide[Answer]) -> Answer:
        """Write, and have what came of it run in this place: by a new drain, which claims it in the same transaction.

        Where a drain of the session is under way, that one is told. Raises what `decide` raises, and StoreUnavailable
        or StoreBroken. Cancelling the caller stops no drain.
        """
        if key not in self._drains:
            opening = Opening(needs, decide)
            place.start(key, partial(self._attend, self._begin(key, opening)))
            return await opening.wait()
        try:
            answer = await self.runtime.transact(key, needs, decide)
        except BaseException:
            place.give_back()
            raise
        place.start(key, partial(self.deliver, key))
        return answer

    async def drain(self, key: SessionKey, *, arms: bool = True) -> DrainResult:
        """Run what the session has to do now; join a drain of this process that is under way.

        `arms` has the provider wake the session for its next retry; a delivery publishes that wake-up itself.
        A handler that asks only tells that drain to look again: waiting for it could be waiting for itself. Nor does
        it wait for a place to run in: what is left for want of one is run after it, by who runs it.
        """
        while (drain := self._drains.get(key)) is not None:
            drain.poke()
            if current_attempt.get() is not None:
                return DrainResult(DrainState.BUSY)
            await drain.finished.wait()
            if drain.result is not None:
                return drain.result
            # whoever ran it was cancelled, or failed: the rest is ours
        drain = self._begin(key)
        drain.patient = current_attempt.get() is None
        result = await self._run(drain, arms=arms)
        if drain.turned_away:
            self._put_off.add(key)
        return result

    async def deliver(self, key: SessionKey) -> None:
        """Drain a session whose wake-up came, or tell its drain under way.

        What goes wrong is logged; the store wakes the session again.
        """
        if (drain := self._drains.get(key)) is not None:
            drain.poke()
            return
        with _logged(key):
            await self.drain(key)

    def call_off(self, key: SessionKey, seq: int) -> None:
        """Stop the handler of an event that was settled as cancelled, if this process runs it."""
        if (drain := self._drains.get(key)) is not None:
            drain.call_off(seq)

    async def wake(self, key: SessionKey, *, wait: bool = False) -> None:
        """Have handled what became claimable just now; the watchdog is armed beside that, never before it."""
        if self.runtime.provider is None:
            await self._handle(key, wait=wait)
            return
        with ungrouped():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.runtime.arm_watchdog, key)
                await self._handle(key, wait=wait)

    async def tidy(self, limit: int) -> None:
        """Remove a few expired events, where there may be no server that sees to it. Trouble is only logged."""
        try:
            await self.runtime.store.purge(limit)
        except (StoreUnavailable, StoreBroken) as error:
            log.warning("nothing was purged, the next request does: %s", error)

    async def looked(self) -> None:
        """Wait until each drain under way has seen what there is to claim."""
        for drain in list(self._drains.values()):
            await drain.looked.wait()

    async def stop(self, grace_s: float) -> None:
        """Claim nothing more, give running handlers `grace_s`, then stop them and give their claims back."""
        self.runtime.stopping = True
        with anyio.move_on_after(grace_s):
            await self._all_finished()
        self.release()
        with clean_up(shield=False):
            await self._all_finished()

    def release(self) -> None:
        """Stop what runs, now; each claim is given back, if that takes no longer than its clean-up."""
        self.runtime.stopping = True
        for drain in list(self._drains.values()):
            drain.release()

    async def _all_finished(self) -> None:
        while self._drains:
            await next(iter(self._drains.values())).finished.wait()

    async def _append(
        self,
        definition: Definition,
        key: SessionKey,
        events: Sequence[object],
        wake_after_ms: int,
        transact: Callable[..., Awaitable[Any]] | None = None,
    ) -> tuple[Receipt, bool]:
        if not events:
            raise ValueError("expected at least one event to append, got none")
        drafts = [definition.draft(event, random_id) for event in events]
        roster = definition.roster()

        def decide(snapshot: Snapshot, now_ms: int) -> Plan[Appended | Conflict]:
            return decide_append(snapshot, now_ms, drafts=drafts, roster=roster, wake_by_ms=now_ms + wake_after_ms)

        needs = Needs(ids=tuple(draft.id for draft in drafts))
        answer: Appended | Conflict = await (transact or self.runtime.transact)(key, needs, decide)
        if isinstance(answer, Conflict):
            raise EventConflict(answer.event_id)
        logged = tuple(definition.event_of(entry) for entry in answer.entries)
        return Receipt(logged, bool(answer.new)), answer.pending

    async def _handle(self, key: SessionKey, *, wait: bool) -> None:
        """Have new work run: by the drain under way, in the server's task group, or here and now."""
        if self.runtime.stopping:
            self._put_off.add(key)
            await self.runtime.hand_over(key)
            return
        self.start(key)
        if wait or self._start_soon is None:
            with _logged(key):
                result = await self.drain(key)
                while wait and result.state is DrainState.BUSY and current_attempt.get() is None:
                    await self.runtime.clock.sleep_ms(BUSY_LOOK_MS)
                    result = await self.drain(key)
        while self._start_soon is None and current_attempt.get() is None and self._put_off:
            with _logged(key := self._put_off.pop()):
                await self.drain(key)

    def _begin(self, key: SessionKey, opening: Opening[Any] | None = None) -> Drain:
        definition = self.definitions[key.contract]
        drain = self._drains[key] = Drain(self.runtime, definition, key, on_end=self._forget, opening=opening)
        return drain

    def _forget(self, drain: Drain) -> None:
        if self._drains.get(drain.key) is drain:
            del self._drains[drain.key]

    async def _attend(self, drain: Drain) -> None:
        with _logged(drain.key):
            await self._run(drain)

    async def _run(self, drain: Drain, *, arms: bool = True) -> DrainResult:
        result = await drain.run()
        if arms and result.retry_at_ms is not None:
            await self.runtime.arm(drain.key, result.retry_at_ms)
        return result


@contextmanager
def _logged(key: SessionKey) -> Iterator[None]:
    """Work that nobody waits for: its errors are logged, and the session's next wake-up goes on."""
    try:
        yield
    except (StoreUnavailable, StoreBroken) as error:
        log.warning("the drain of session %s stopped, its next wake-up goes on: %s", key, error)
    except Exception:
        log.exception("the drain of session %s failed, which is a bug; its next wake-up goes on", key)
