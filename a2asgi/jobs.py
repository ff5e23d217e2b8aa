"""Jobs: a function whose calls are durable, each one an event to run in a session."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime
from functools import update_wrapper
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from a2asgi import runs
from a2asgi.context import JobContext, SyncJobContext
from a2asgi.entropy import random_id
from a2asgi.errors import InvalidTime, NoDeadLetter, WiringError
from a2asgi.events import Written
from a2asgi.parameters import Parameters, takes
from a2asgi.ports import SessionKey
from a2asgi.run_contract import LANE, JobOptions, JobStatus, RunDefinition
from a2asgi.session import Ready, Session
from a2asgi.times import Duration, duration_ms, instant_ms
from a2core import InvalidName, check_name, derive_id, storable_text

P = ParamSpec("P")
R = TypeVar("R")

RESERVED = ("dedupe_key", "delay", "at")
SESSION_CHARS = 32
"""How many characters of a job's id name its session."""


class Job(Generic[P, R]):
    """A function whose calls are durable. Calling it is calling the function; `enqueue` has it run later, for good."""

    def __init__(self, ready: Ready, function: Callable[..., Any], options: JobOptions) -> None:
        self._ready = ready
        self._function = function
        self._parameters = Parameters(function, reserved=RESERVED)
        self.options: JobOptions = options
        if isinstance(options.key, str) and options.key not in self._parameters.names:
            raise WiringError(
                f"{options.name!r}: key={options.key!r} is no parameter: expected one of {self._parameters.names}, "
                "or a function of the arguments"
            )
        if callable(options.key) and not takes(options.key, **dict.fromkeys(self._parameters.names)):
            raise WiringError(
                f"{options.name!r}: its key function is called with the arguments by name: expected it to take "
                f"{self._parameters.names}; **_ takes those that it needs not"
            )
        self.definition: RunDefinition = RunDefinition(
            f"job:{options.name}",
            function,
            options,
            payload=self._parameters.payload,
            arguments=self._parameters.unpack,
            context=self._parameters.context,
        )
        update_wrapper(self, function)

    def __repr__(self) -> str:
        return f"Job({self.options.name!r})"

    def __call__(self, /, *args: Any, **kwargs: Any) -> R:
        """Call the function here and now, as if it were no job; one that takes a context is to be given one."""
        result: R = self._function(*args, **kwargs)
        return result

    @property
    def name(self) -> str:
        """The job's name."""
        return self.options.name

    @overload
    async def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> str: ...
    @overload
    async def enqueue(
        self, /, *args: Any, dedupe_key: str, delay: Duration | None = None, at: datetime | None = None, **kwargs: Any
    ) -> str: ...
    @overload
    async def enqueue(self, /, *args: Any, delay: Duration, **kwargs: Any) -> str: ...
    @overload
    async def enqueue(self, /, *args: Any, at: datetime, **kwargs: Any) -> str: ...
    async def enqueue(  # type: ignore[misc]  # a parameter of an option's name is refused when the job is made
        self,
        /,
        *args: Any,
        dedupe_key: str | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        **kwargs: Any,
    ) -> str:
        """Have the function called with these arguments, durably; return the job's id.

        It runs now, after `delay`, or at `at`. While a job of this `dedupe_key` is unfinished, its id is returned and
        nothing is enqueued; once that is over, the key is free again. Raises TypeError or InvalidPayload for
        arguments that do not fit, InvalidTime, InvalidName, StoreUnavailable or StoreBroken, nothing being enqueued
        then; and SendFailed where a provider did not take it: enqueue again with the same dedupe_key.
        """
        if delay is not None and at is not None:
            raise InvalidTime(f'{self.name!r}: expected delay= or at=, got both; such as delay="15m"')
        packed = self._parameters.pack(args, kwargs)
        written = Written(self.definition.run.payload.encode(packed))  # checked before a key function sees it
        session, run_id, lane = self._place(packed, dedupe_key)
        draft = self.definition.run.draft(written, run_id)
        engine = await self._ready()
        return await runs.enqueue(
            engine,
            self._key(session),
            replace(draft, lane=lane, key=dedupe_key),
            delay_ms=0 if delay is None else duration_ms(delay),
            at_ms=None if at is None else instant_ms(at),
        )

    async def later(self, delay: Duration, /, *args: P.args, **kwargs: P.kwargs) -> str:
        """Have the function called with these arguments after a delay. As `enqueue`."""
        return await self.enqueue(*args, delay=delay, **kwargs)

    async def at(self, when: datetime, /, *args: P.args, **kwargs: P.kwargs) -> str:
        """Have the function called with these arguments at an instant. As `enqueue`."""
        return await self.enqueue(*args, at=when, **kwargs)

    async def status(self, job_id: str) -> JobStatus[Any] | None:
        """Where a job stands; None where no such job is known, or it was removed after its retention."""
        if not _is_name(job_id):
            return None
        engine = await self._ready()
        look = await runs.look(engine, self._key(_session(job_id)), job_id)
        return None if look is None else self.definition.status(job_id, look)

    async def cancel(self, job_id: str, reason: str = "cancelled") -> bool:
        """Call an unfinished job off. False: too late, it is over, or unknown.

        One that runs is stopped: at once in this process, at its next heartbeat in another one. A plain function
        cannot be stopped in its thread, but whatever it returns is discarded.
        """
        if not _is_name(job_id):
            return False
        engine = await self._ready()
        return await runs.call_off(engine, self.definition, self._key(_session(job_id)), job_id, storable_text(reason))

    async def redrive(self, job_id: str) -> None:
        """Run a job again that was given up, with fresh budgets. Raises NoDeadLetter."""
        await self._session(job_id).redrive(job_id)

    async def resolve(self, job_id: str, reason: str) -> None:
        """Skip a job that was given up: it ends as cancelled, and is removed after `keep`. Raises NoDeadLetter."""
        await self._session(job_id).resolve(job_id, reason)

    def _session(self, job_id: str) -> Session:
        if not _is_name(job_id):
            raise NoDeadLetter(job_id)
        return Session(self._ready, self.definition, _session(job_id))

    def _key(self, session: str) -> SessionKey:
        return SessionKey(self.definition.name, session)

    def _place(self, packed: Any, dedupe_key: str | None) -> tuple[str, str, str]:
        """The session of a new job, its id, and its lane there.

        Jobs of one concurrency key share a session, and so do those of one dedupe key: there they see each other.
        """
        entropy = random_id()
        if dedupe_key is not None:
            check_name("dedupe_key", dedupe_key)
        if (shared := self._shared_key(packed)) is not None:
            kind, key, lane = "key", shared, f"{LANE}-{int(entropy, 16) % self.options.key_concurrency}"
        elif dedupe_key is not None:
            kind, key, lane = "dedupe", dedupe_key, LANE
        else:
            return entropy, entropy, LANE
        session = derive_id("a2:job-session:v1", self.name, kind, key)[-SESSION_CHARS:]
        return session, f"{session}-{entropy}", lane

    def _shared_key(self, packed: Any) -> str | None:
        key = self.options.key
        if key is None:
            return None
        value = getattr(packed, key) if isinstance(key, str) else key(**self._parameters.unpack(packed))
        return check_name(f"key of job {self.name!r}", str(value))


def _session(job_id: str) -> str:
    return job_id[:SESSION_CHARS]


def _is_name(job_id: str) -> bool:
    """Whether any store could keep it: what comes out of a path need not be an id."""
    try:
        check_name("job id", job_id)
    except InvalidName:
        return False
    return True


class JobDecorator:
    """What `a2.job(...)` returns: it makes a job of a function. One with a context takes it as its first parameter."""

    def __init__(self, make: Callable[[Callable[..., Any]], Job[..., Any]]) -> None:
        self._make = make

    @overload
    def __call__(self, function: Callable[Concatenate[JobContext, P], Awaitable[R]]) -> Job[P, Awaitable[R]]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[SyncJobContext, P], R]) -> Job[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R]) -> Job[P, R]: ...
    def __call__(self, function: Callable[..., Any]) -> Job[..., Any]:
        """Make the job. Raises WiringError for a function that cannot be one."""
        return self._make(function)
