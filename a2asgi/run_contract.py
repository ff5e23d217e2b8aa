"""What a run is made of, as a contract: its options, its events, its handlers, and what its status tells."""

import inspect
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, make_dataclass
from datetime import datetime
from functools import update_wrapper
from types import UnionType
from typing import Any, Generic, Never, NoReturn, TypeVar, Union, get_args, get_origin

from a2asgi.context import JobContext, Progress, SyncJobContext, read_progress
from a2asgi.contract import Definition, Handler, MakeContext, is_async_function
from a2asgi.errors import InvalidTime, WiringError
from a2asgi.events import Event, EventType, NewEvent, Written
from a2asgi.outcomes import Cancel, Fail, Snooze
from a2asgi.parameters import shown, takes, type_hints
from a2asgi.retries import BackoffOption, Exponential, waits
from a2asgi.runs import RUN, Look
from a2asgi.times import Duration, duration_ms, from_ms
from a2core import InvalidPayload, RetryPolicy, RunState, decode_json, encode_json, storable_text

R_co = TypeVar("R_co", covariant=True)

log: logging.Logger = logging.getLogger("a2asgi.run_contract")

SUCCEEDED = "succeeded"
FAILED = "failed"
LANE = "run"
MIN_KEEP = "1m"
"""A run's record outlives whoever lost the run and has not heard of it: its seq is not given to another one before."""

_NOT_STORED = (Snooze, Cancel, Fail, NoReturn, Never)


@dataclass(frozen=True, slots=True)
class FailedJob:
    """A job that was given up, as `on_failed` gets it. `arguments` are those of its call, by name."""

    id: str
    name: str
    arguments: Mapping[str, Any]
    error: str
    message: str
    attempts: int


@dataclass(frozen=True, slots=True)
class JobStatus(Generic[R_co]):
    """Where a job stands.

    `attempt` counts from 1, 0 before the first and where it was cancelled. `result` is what the function returned, and
    `error` why the job was given up or cancelled. `enqueued_at` is when it came into its queue, which one for later
    does when its time has come. `due_at` is when it is to run, or to run again, or when its claim ends; None once it is
    over. `finished_at` is when it succeeded or was given up.
    """

    id: str
    name: str
    state: RunState
    attempt: int
    progress: Progress | None
    result: R_co | None
    error: str | None
    enqueued_at: datetime | None
    due_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """How a job is run. Raises WiringError, naming the job, for what makes no sense."""

    name: str
    retries: int = 3
    backoff: BackoffOption = field(default_factory=Exponential)
    timeout: Duration | None = None
    concurrency: int | None = None
    key: str | Callable[..., str] | None = None
    key_concurrency: int = 1
    priority: int = 0
    on_failed: Callable[[FailedJob], object] | None = None
    keep: Duration = "24h"

    def __post_init__(self) -> None:
        if "<" in self.name:
            raise WiringError(f'{self.name!r} is no name to find a job by: write name="..."')
        self._check_whole("retries", self.retries, 0)
        self._check_whole("concurrency", 1 if self.concurrency is None else self.concurrency, 1)
        self._check_whole("key_concurrency", self.key_concurrency, 1)
        self._check_whole("priority", self.priority, -math.inf)
        if self.timeout_ms == 0:
            raise WiringError(f'{self.name!r}: expected a positive timeout, such as timeout="5m", got {self.timeout!r}')
        if self.key is None and self.key_concurrency != 1:
            raise WiringError(f'{self.name!r}: key_concurrency needs a key, such as key="customer"')
        if self.on_failed is not None and not takes(self.on_failed, None):
            raise WiringError(f"{self.name!r}: expected on_failed to take one FailedJob, got {self.on_failed!r}")
        self.policy()

    def policy(self) -> RetryPolicy:
        """The budgets of a run, and how long it is kept."""
        try:
            backoff = waits(self.backoff)
        except InvalidTime as error:
            raise WiringError(f"{self.name!r}: backoff: {error}") from error
        except ValueError as error:
            raise WiringError(f"{self.name!r}: {error}") from error
        on_dead = None if self.on_failed is None else FAILED
        keep_ms = self._duration_ms("keep", self.keep)
        if keep_ms < duration_ms(MIN_KEEP):
            raise WiringError(f"{self.name!r}: expected keep={MIN_KEEP!r} or more, got {self.keep!r}")
        return RetryPolicy(self.retries + 1, backoff=backoff, aside=True, on_dead=on_dead, keep_ms=keep_ms)

    @property
    def timeout_ms(self) -> int | None:
        """The time-out in milliseconds."""
        return None if self.timeout is None else self._duration_ms("timeout", self.timeout)

    def _duration_ms(self, option: str, value: Duration) -> int:
        try:
            return duration_ms(value)
        except InvalidTime as error:
            raise WiringError(f"{self.name!r}: {option}: {error}") from error

    def _check_whole(self, option: str, value: object, least: float) -> None:
        if not (isinstance(value, int) and value >= least):
            wanted = "a whole number" if least == -math.inf else f"a whole number, {least} or more"
            raise WiringError(f"{self.name!r}: expected {option} to be {wanted}, got {value!r}")


class RunDefinition(Definition):
    """A contract of runs of one function: `run` is handled, `succeeded` tells its result, `failed` that it is dead."""

    def __init__(
        self,
        contract: str,
        function: Callable[..., Any],
        options: JobOptions,
        *,
        payload: Any,
        arguments: Callable[[Any], dict[str, Any]],
        context: str | None,
    ) -> None:
        super().__init__(contract)
        self.options = options
        self.priority: int = options.priority
        self.at_once: int | None = options.concurrency
        self._arguments = arguments
        try:
            self.run: EventType[Any] = self.event(RUN, payload, lane=LANE)
        except WiringError as error:
            raise WiringError(f"{shown(function)}: its parameters cannot be stored: {error}") from error
        result = stored_result(type_hints(function).get("return", Any))
        product = make_dataclass("Succeeded", [("result", result), ("progress", Progress | None), ("attempt", int)])
        try:
            self.succeeded: EventType[Any] = self.event(SUCCEEDED, product)
        except WiringError as error:
            raise WiringError(f"{shown(function)}: its result cannot be stored: {error}") from error
        self._product = product
        self._may_be_none = result is Any or result is type(None)
        self.handlers[RUN] = self._run_handler(function, context)
        if options.on_failed is not None:
            self.event(FAILED, dict[str, Any])
            self.handlers[FAILED] = self._failed_handler(options.on_failed)

    def status(self, run_id: str, look: Look) -> JobStatus[Any]:
        """A look at a run, as users see it."""
        run, item = look.run, look.run.item
        progress = None if item is None or item.progress is None else read_progress(item.progress)
        attempt = 0 if item is None else item.attempt
        result = error = finished_at = None
        if look.product is not None and run.state is RunState.SUCCEEDED:
            result, progress, attempt = self._read(look.product.payload)
            finished_at = from_ms(look.product.created_at_ms)
        if item is not None and item.dead is not None:
            error = f"{item.dead.failure.type}: {item.dead.failure.message}"
            finished_at = from_ms(item.dead.at_ms)
        elif run.entry is not None and run.entry.ending is not None:
            error = run.entry.ending.reason
        due_at_ms = run.timer.due_at_ms if run.timer is not None else None if item is None else item.due_at_ms
        return JobStatus(
            run_id,
            self.options.name,
            run.state,
            attempt,
            progress,
            result,
            error,
            None if run.entry is None else from_ms(run.entry.created_at_ms),
            None if due_at_ms is None else from_ms(due_at_ms),
            finished_at,
        )

    def _read(self, text: str) -> tuple[Any, Progress | None, int]:
        """A result, as stored where this code no longer reads it; the last progress; and the attempt."""
        try:
            product = self.succeeded.payload.decode(text)
        except InvalidPayload:
            stored: Any = decode_json(text)
            progress = stored["progress"]
            return stored["result"], None if progress is None else Progress(**progress), stored["attempt"]
        return product.result, product.progress, product.attempt

    def _run_handler(self, function: Callable[..., Any], context: str | None) -> Handler:
        def arguments(event: Event[Any], ctx: object) -> dict[str, Any]:
            return self._arguments(event.payload) | ({} if context is None else {context: ctx})

        async def run(event: Event[Any], ctx: JobContext) -> object:
            return self._answer(await function(**arguments(event, ctx)), ctx)

        def run_in_thread(event: Event[Any], ctx: SyncJobContext) -> object:
            result = function(**arguments(event, ctx))
            return self._answer_of(result, ctx) if inspect.isawaitable(result) else self._answer(result, ctx)

        return _handler(function, run, run_in_thread, self.options.policy(), self.options.timeout_ms)

    async def _answer_of(self, result: Awaitable[object], ctx: SyncJobContext) -> object:
        """The answer of a plain function that gave something to await, which is done on the loop."""
        return self._answer(await result, ctx)

    def _answer(self, result: object, ctx: JobContext | SyncJobContext) -> object:
        """What the handler answers for a result: the event that holds it, or that it cannot be held."""
        if isinstance(result, Snooze | Cancel | Fail):
            return result
        progress = ctx.last_progress
        if result is None and progress is None and self._may_be_none:  # most jobs
            text = f'{{"result":null,"progress":null,"attempt":{ctx.attempt}}}'
            return NewEvent(Written(text), type=self.succeeded)
        product = self._product(result, progress, ctx.attempt)
        try:
            text = self.succeeded.payload.encode(product)
        except InvalidPayload as error:  # its work is done, and would only be done again
            return Fail(f"the function has run, but its result cannot be stored: {error}")
        return NewEvent(Written(text), type=self.succeeded)

    def _failed_handler(self, on_failed: Callable[[FailedJob], object]) -> Handler:
        def failed(told: Mapping[str, Any]) -> FailedJob:
            arguments = told["payload"]
            with suppress(InvalidPayload):  # it may be dead because this code no longer reads it: then it is as stored
                arguments = self._arguments(self.run.payload.decode(encode_json(arguments)))
            return FailedJob(
                told["event"], self.options.name, arguments, told["error"], told["message"], told["attempts"]
            )

        def trouble(error: Exception, event: Event[Any]) -> Cancel:
            log.error("on_failed of %r failed, for job %r", self.options.name, event.cause, exc_info=error)
            return Cancel(storable_text(f"on_failed raised {type(error).__name__}"))

        async def rest(told: Awaitable[object], event: Event[Any]) -> object:
            try:
                await told
            except Exception as error:  # noqa: BLE001 - it is told once, and never retried (engine.md 4)
                return trouble(error, event)
            return None

        def tell(event: Event[Any]) -> object:
            try:
                told = on_failed(failed(event.payload))
            except Exception as error:  # noqa: BLE001 - as above
                return trouble(error, event)
            return rest(told, event) if inspect.isawaitable(told) else None

        return _handler(on_failed, tell, tell, RetryPolicy(aside=True, keep_ms=self.options.policy().keep_ms), None)


def stored_result(annotation: Any) -> Any:
    """What is stored of what a function says that it returns: no outcome is, nor is anything where it never returns."""
    if get_origin(annotation) in {Union, UnionType}:
        kept = [part for part in get_args(annotation) if part not in _NOT_STORED]
        return Union[tuple(kept)] if kept else None  # noqa: UP007 - of what is only known now
    return None if annotation in _NOT_STORED else annotation


def _handler(
    function: Callable[..., Any],
    run: Callable[..., Any],
    run_in_thread: Callable[..., Any],
    policy: RetryPolicy,
    timeout_ms: int | None,
) -> Handler:
    """The one of two faces that fits the function, under the function's name."""
    is_async = is_async_function(function)
    face = run if is_async else run_in_thread
    takes_context = len(inspect.signature(face).parameters) > 1
    make_context: MakeContext = JobContext if is_async else SyncJobContext
    return Handler(
        update_wrapper(face, function), policy, timeout_ms, is_async, make_context if takes_context else None
    )
