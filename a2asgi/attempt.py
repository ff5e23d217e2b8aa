"""One attempt: run a handler under its claim, and end the claim with what came of it."""

import inspect
import logging
import math
from collections.abc import Awaitable, Callable, MutableMapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Protocol, TypeAlias

import anyio
from anyio.abc import TaskStatus

from a2asgi.context import AttemptInfo, TimerReceipt
from a2asgi.contract import Definition
from a2asgi.errors import AttemptEnded, EventConflict, StoreBroken, StoreUnavailable
from a2asgi.events import Event
from a2asgi.groups import Shield, clean_up, ungrouped
from a2asgi.outcomes import Cancel, Fail, Snooze
from a2asgi.ports import Answer, Decide, SessionKey
from a2asgi.renewal import Held, capped
from a2asgi.runtime import Runtime
from a2asgi.telemetry import SignalName
from a2asgi.threads import run_in_thread
from a2asgi.times import Duration, duration_ms, from_ms
from a2core import (
    Buried,
    Conflict,
    Draft,
    Ending,
    EndingKind,
    Failure,
    Needs,
    Plan,
    Retrying,
    Settled,
    Stale,
    WorkItem,
    decide_fail,
    decide_give_up,
    decide_note,
    decide_settle,
    decide_snooze,
    produced_event_id,
    storable_text,
)

log: logging.Logger = logging.getLogger("a2asgi.attempt")
handler_log: logging.Logger = logging.getLogger("a2asgi.handler")

current_attempt: "ContextVar[Attempt | None]" = ContextVar("current_attempt", default=None)
"""The attempt that this task, or a thread that it started, is part of."""


@dataclass(frozen=True, slots=True)
class _Done:
    """The handler succeeded, or called its event off, and produced these events."""

    drafts: tuple[Draft, ...]
    ending: Ending | None = None


class End(Protocol):
    """Writes the end of an attempt."""

    async def __call__(self, attempt: "Attempt", needs: Needs, decide: Decide[Answer]) -> Answer:
        """As Store.transact, for the attempt's session."""
        ...


_Verdict: TypeAlias = _Done | Snooze | Fail | Failure
_Answer: TypeAlias = Settled | Retrying | Buried | Stale


class Attempt:
    """One claimed work item, from its claim to its end. It counts as awake from its creation on."""

    def __init__(
        self,
        runtime: Runtime,
        definition: Definition,
        key: SessionKey,
        item: WorkItem,
        *,
        until_ms: int | None,
        shield: Shield,
        on_beat: Callable[[], object],
        end: "End",
    ) -> None:
        self._runtime = runtime
        self._definition = definition
        self._key = key
        self._item = item
        self._handler = definition.handlers[item.entry.type]
        self._until_ms = until_ms
        self._shield = shield
        self._write_end = end
        self.went_on: bool = False
        """Whether its end told its drain what comes next."""
        self._scope = anyio.CancelScope()
        self._lost = False
        self._called_off = False
        self._in_thread = False
        code = self._handler.code if self._handler.is_async else None
        ends_at_ms = runtime.by_store(until_ms)
        self._held = Held(key, item.seq, item.attempt, self._handler.name, code, ends_at_ms, self._lose, on_beat)
        runtime.renewer.hold(self._held)  # from now on, not from when its task gets a turn
        runtime.activity.enter()

    @property
    def seq(self) -> int:
        """The seq of its event."""
        return self._item.seq

    async def run(self) -> None:
        """Run the handler and end the claim.

        Raises StoreUnavailable or StoreBroken where it cannot be ended; then it expires. Cancellation,
        KeyboardInterrupt and SystemExit are no failure of the handler: they give the claim back, and go on.
        """
        try:
            try:
                verdict = await self._run_handler()
            except BaseException:
                await self._release()
                raise
            if verdict is not None:
                await self._shield.run(partial(self._end, verdict))
            elif self._called_off:
                log.info("event %r of session %s was called off while it ran", self._item.entry.id, self._key)
            else:
                await self._release()
        finally:
            self._runtime.renewer.drop(self._held)
            self._runtime.activity.leave()

    async def abandon(self) -> None:
        """Give the claim back without ever running the handler."""
        try:
            await self._release()
        finally:
            self._runtime.renewer.drop(self._held)
            self._runtime.activity.leave()

    def release(self) -> None:
        """Stop the handler and give the claim back."""
        self._scope.cancel()

    def call_off(self, seq: int) -> None:
        """Stop the handler if it is at this event, which was settled as cancelled: the claim is gone."""
        if self._item.seq == seq:
            self._called_off = True
            self._scope.cancel()

    def _lose(self) -> None:
        self._lost = True
        self._scope.cancel()

    async def _run_handler(self) -> _Verdict | None:
        """What came of it; None where `release` or `_lose` ended it."""
        with self._scope:
            try:
                return await self._answer()
            except Exception as error:  # noqa: BLE001 - any error of the user's code is a failure of this attempt
                return self._failed(error)
            except anyio.get_cancelled_exc_class() as error:
                if anyio.current_effective_deadline() == -math.inf:
                    raise
                return self._failed(error)  # nobody cancelled us: the handler awaited something that was cancelled
        return None

    def _failed(self, error: BaseException) -> Failure | None:
        if self._scope.cancel_called:
            return None  # many drivers turn a cancellation into an error of their own
        log.warning(
            "handler %s failed on event %r of session %s (attempt %d)",
            self._handler.name,
            self._item.entry.id,
            self._key,
            self._item.attempt,
            exc_info=error,
        )
        return failure_of(error)

    async def _answer(self) -> _Verdict:
        event = self._definition.event_of(self._item.entry)
        timeout_ms = self._handler.timeout_ms
        ends_at_ms = self._until_ms
        if timeout_ms is not None:
            ends_at_ms = capped(self._runtime.clock.now_ms() + timeout_ms, self._until_ms)
        info = AttemptInfo(
            self._key.session_id,
            self._item.entry.id,
            self._item.attempt,
            None if ends_at_ms is None else from_ms(ends_at_ms),
            _HandlerLog(handler_log, self._key, event),
            self._runtime.dependencies,
            _Timers(self._runtime, self._definition, self._key, self._item.entry.created_at_ms),
            self._note,
            self._item.progress,
        )
        token = current_attempt.set(self)
        try:
            answer = await self._in_time(partial(self._call, event, info), timeout_ms)
        finally:
            current_attempt.reset(token)
        return self._verdict(answer, info.produced)

    async def _call(self, event: Event[Any], info: AttemptInfo) -> object:
        function = self._handler.function
        make_context = self._handler.make_context
        call = partial(function, event)
        if make_context is not None:
            call = partial(function, event, make_context(info))
        answer = call() if self._handler.is_async else await self._run_in_thread(call)
        return await answer if inspect.isawaitable(answer) else answer

    async def _run_in_thread(self, call: Callable[[], object]) -> object:
        def work() -> object:
            try:
                return call()
            finally:
                self._in_thread = False

        self._in_thread = True
        return await run_in_thread(work, f"a2-{self._handler.name}")

    async def _in_time(self, call: Callable[[], Awaitable[object]], timeout_ms: int | None) -> object:
        """Call, and raise TimeoutError if it takes longer on the clock in charge."""
        if timeout_ms is None:
            return await call()
        activity = self._runtime.activity
        woken = False

        def wake() -> None:
            nonlocal woken
            woken = True
            activity.enter()

        async def expire(*, task_status: TaskStatus[None]) -> None:
            task_status.started()
            await self._runtime.clock.sleep_ms(timeout_ms, wake)
            tasks.cancel_scope.cancel()

        try:
            with ungrouped():
                async with anyio.create_task_group() as tasks:
                    await tasks.start(expire)  # so that it counts from now on, not from when its task gets a turn
                    answer = await call()
                    tasks.cancel_scope.cancel()
                    return answer
        finally:
            if woken:
                activity.leave()
        raise TimeoutError(f"the handler took longer than its timeout of {timeout_ms} ms")

    async def _note(self, progress: str) -> None:
        note = self._fenced(partial(decide_note, progress=progress))
        if isinstance(await self._runtime.transact(self._key, Needs(seqs=(self.seq,)), note), Stale):
            self._lose()
            raise AttemptEnded  # a thread is not cancelled with its attempt, but it can be told

    def _verdict(self, answer: object, produced: list[object]) -> _Verdict:
        if isinstance(answer, Snooze | Fail):
            return answer
        events = list(produced)
        if isinstance(answer, list | tuple):
            events += answer
        elif not isinstance(answer, Cancel) and answer is not None:
            events.append(answer)
        cause = self._item.entry.id
        drafts = tuple(
            self._definition.draft(event, partial(produced_event_id, cause, index))
            for index, event in enumerate(events)
        )
        ending = Ending(EndingKind.CANCELLED, storable_text(answer.reason)) if isinstance(answer, Cancel) else None
        return _Done(drafts, ending)

    async def _end(self, verdict: _Verdict) -> None:
        match verdict:
            case _Done(drafts, ending):
                ids = tuple(draft.id for draft in drafts)
                settle = partial(decide_settle, drafts=drafts, roster=self._definition.roster(), ending=ending)
                answer = await self._finish(settle, ids)
                if isinstance(answer, Conflict):
                    await self._end(failure_of(EventConflict(answer.event_id)))
                else:
                    self._report(answer, SignalName.SETTLED if ending is None else SignalName.CANCELLED)
            case Snooze(delay):
                self._report(
                    await self._finish(partial(decide_snooze, delay_ms=duration_ms(delay))), SignalName.SNOOZED
                )
            case Fail(reason):
                roster, failure = self._definition.roster(), Failure("Fail", storable_text(reason))
                self._report(await self._finish(partial(decide_give_up, roster=roster, failure=failure)))
            case Failure() as failure:
                roster = self._definition.roster()
                delay_ms = self._handler.policy.backoff.delay_ms(self._item.failures + 1, self._item.entry.id)
                fail = partial(decide_fail, roster=roster, failure=failure, delay_ms=delay_ms)
                self._report(await self._finish(fail))

    async def _finish(self, decide: Callable[..., Plan[Any]], ids: tuple[str, ...] = ()) -> Any:
        return await self._write_end(self, Needs(ids=ids, seqs=(self.seq,)), self._fenced(decide))

    def _fenced(self, decide: Callable[..., Plan[Any]]) -> Decide[Any]:
        return partial(decide, seq=self._item.seq, attempt=self._item.attempt)

    async def _release(self) -> None:
        """Give the claim back, also where it only seemed lost.

        A thread cannot be stopped: while it runs its claim runs out, and fences it off.
        """
        given_back = False
        if self._in_thread:
            log.warning("handler %s runs on in its thread; its claim expires", self._handler.name)
        else:
            with clean_up():
                try:
                    given_back = bool(await self._runtime.give_back(self._key, {self.seq: self._item.attempt}))
                    self._lost = not given_back
                except (StoreUnavailable, StoreBroken) as error:
                    log.warning("a claim of session %s was not given back, so it expires: %s", self._key, error)
        if given_back:
            self._signal(SignalName.RELEASED)
        elif self._lost:
            self._report(Stale())

    def _report(self, answer: _Answer, name: SignalName = SignalName.RETRYING) -> None:
        match answer:
            case Settled():
                self._signal(name)
            case Retrying(ready_at_ms):
                self._signal(name, f"again at {from_ms(ready_at_ms).isoformat()}")
            case Buried(dead):
                log.error("event %r of session %s is a dead letter", self._item.entry.id, self._key)
                self._signal(SignalName.DEAD_LETTER, f"{dead.failure.type}: {dead.failure.message}")
            case Stale():
                log.warning("the claim of event %r of session %s was lost", self._item.entry.id, self._key)
                self._signal(SignalName.LOST)

    def _signal(self, name: SignalName, detail: str = "") -> None:
        self._runtime.signal(name, self._key, event=(self._item.entry.id, self._item.entry.type), detail=detail)


@dataclass(frozen=True, slots=True)
class _Timers:
    """A handler's timers: a delay counts from the event, so that every attempt means the same timer."""

    runtime: Runtime
    definition: Definition
    key: SessionKey
    since_ms: int

    async def schedule(
        self, name: str, *events: object, delay: Duration | None = None, at: datetime | None = None
    ) -> TimerReceipt:
        return await self.runtime.schedule(
            self.definition, self.key, name, events, delay=delay, at=at, since_ms=self.since_ms
        )

    async def cancel(self, name: str) -> bool:
        return await self.runtime.cancel(self.key, name)


class _HandlerLog(logging.LoggerAdapter[logging.Logger]):
    """Names the session and the event in front of every line."""

    def __init__(self, logger: logging.Logger, key: SessionKey, event: Event[Any]) -> None:
        super().__init__(logger, {"contract": key.contract, "session": key.session_id, "event": event.id})
        self._where = f"{key.contract}/{key.session_id} {event.type} #{event.seq}"

    def process(self, msg: object, kwargs: MutableMapping[str, Any]) -> tuple[str, MutableMapping[str, Any]]:
        """Add the prefix, and the parts of it as the record's attributes."""
        return f"[{self._where}] {msg}", {**kwargs, "extra": {**(self.extra or {}), **kwargs.get("extra", {})}}


def failure_of(error: BaseException) -> Failure:
    """An error as it is stored: a group of one is that one, and the text is one that every store can keep."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    try:
        message = str(error)
    except Exception as broken:  # noqa: BLE001 - a broken __str__ must not hide that the handler failed
        message = f"(its text could not be read: {type(broken).__name__})"
    return Failure(type(error).__name__, storable_text(message))
