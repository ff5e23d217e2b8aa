"""Declarations: what an A2 is made of, before it runs: its contracts, jobs, crons and maintenance tasks."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from a2asgi.contract import Definition
from a2asgi.crons import Cron, CronDecorator
from a2asgi.crontab import Crontab
from a2asgi.engine import Engine
from a2asgi.errors import WiringError
from a2asgi.jobs import Job, JobDecorator
from a2asgi.retries import BackoffOption, Exponential
from a2asgi.run_contract import FailedJob, JobOptions
from a2asgi.session import Contract
from a2asgi.times import Duration
from a2core import check_name

RESERVED_PREFIXES = ("job:", "cron:", "maintenance:")


class Declarations(ABC):
    """The words with which an app declares its work. What is declared only needs to run what `ready` gives."""

    def __init__(self) -> None:
        self._contracts: dict[str, Definition] = {}
        self.crons: dict[str, Cron[..., Any]] = {}

    @abstractmethod
    async def ready(self) -> Engine:
        """The engine in charge."""

    @abstractmethod
    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch, by the clock in charge."""

    def contract(self, name: str) -> Contract:
        """Declare a contract. Raises WiringError for a name that is taken."""
        if check_name("contract name", name).startswith(RESERVED_PREFIXES):
            raise WiringError(
                f"contract {name!r}: names that begin with {RESERVED_PREFIXES} are those of jobs and crons"
            )
        if name in self._contracts:
            raise WiringError(f"contract {name!r} is declared twice: import the first one, or give this another name")
        contract = self._contracts[name] = Contract(self.ready, name)
        return contract

    def job(
        self,
        bare: object = None,
        /,
        *,
        name: str | None = None,
        retries: int = 3,
        backoff: BackoffOption = Exponential(),  # noqa: B008 - frozen
        timeout: Duration | None = None,
        concurrency: int | None = None,
        key: str | Callable[..., str] | None = None,
        key_concurrency: int = 1,
        priority: int = 0,
        on_failed: Callable[[FailedJob], object] | None = None,
        keep: Duration = "24h",
    ) -> JobDecorator:
        """Declare a job, as a decorator: a function, async or not, whose calls can be enqueued.

        `retries` after the first attempt, each after `backoff`: a Duration, `Exponential(...)`, or a function of the
        number of failures. `timeout` cancels an attempt. `concurrency`: how many run at a time in one process.
        `key`: a parameter's name, or a function of the arguments; jobs of one key run in order, `key_concurrency` at a
        time anywhere. Of due jobs those of a higher `priority` start first. `on_failed` is called once, with a
        FailedJob, when the job is given up. `keep`: how long the record of a job that succeeded stays; one that failed
        stays for good. Raises WiringError.
        """
        if bare is not None:
            raise WiringError(f"@a2.job of {bare!r}: write it with parentheses, @a2.job()")

        def make(function: Callable[..., Any]) -> Job[..., Any]:
            options = JobOptions(
                name=_name(name, function),
                retries=retries,
                backoff=backoff,
                timeout=timeout,
                concurrency=concurrency,
                key=key,
                key_concurrency=key_concurrency,
                priority=priority,
                on_failed=on_failed,
                keep=keep,
            )
            job: Job[..., Any] = Job(self.ready, function, options)
            self._declare(job.definition)
            return job

        return JobDecorator(make)

    def cron(
        self,
        expression: str,
        *,
        tz: str = "UTC",
        catch_up: str = "latest",
        name: str | None = None,
        retries: int = 3,
        backoff: BackoffOption = Exponential(),  # noqa: B008 - frozen
        timeout: Duration | None = None,
        priority: int = 0,
        on_failed: Callable[[FailedJob], object] | None = None,
        keep: Duration = "24h",
    ) -> CronDecorator:
        """Declare a cron, as a decorator: a function that runs once for each slot, which it may take as its argument.

        `expression` has five fields, as cron reads them in the time zone `tz`. `catch_up`: of the slots that passed
        while nothing ran, "latest" runs the last one, "all" each of the last hour, "none" none. The rest is as for a
        job. Raises WiringError, and InvalidSchedule for the expression or the time zone.
        """
        options = JobOptions(
            name=name or "",
            retries=retries,
            backoff=backoff,
            timeout=timeout,
            priority=priority,
            on_failed=on_failed,
            keep=keep,
        )
        return self._recurring("cron", Crontab(expression, tz), catch_up, options)

    def maintenance(
        self,
        bare: object = None,
        /,
        *,
        name: str | None = None,
        retries: int = 3,
        backoff: BackoffOption = Exponential(),  # noqa: B008 - frozen
        timeout: Duration | None = None,
        on_failed: Callable[[FailedJob], object] | None = None,
        keep: Duration = "24h",
    ) -> CronDecorator:
        """Declare a maintenance task, as a decorator: it runs when a signed request to `/maintenance/{name}` says so.

        Once for each minute that is asked for; otherwise it is a cron without a schedule. Raises WiringError.
        """
        if bare is not None:
            raise WiringError(f"@a2.maintenance of {bare!r}: write it with parentheses, @a2.maintenance()")
        options = JobOptions(
            name=name or "", retries=retries, backoff=backoff, timeout=timeout, on_failed=on_failed, keep=keep
        )
        return self._recurring("maintenance", None, "latest", options)

    def _recurring(self, kind: str, crontab: Crontab | None, catch_up: str, options: JobOptions) -> CronDecorator:
        def make(function: Callable[..., Any]) -> Cron[..., Any]:
            named = replace(options, name=options.name or _name(None, function))
            cron: Cron[..., Any] = Cron(
                self.ready, self.now_ms, function, named, kind=kind, crontab=crontab, catch_up=catch_up
            )
            self._declare(cron.definition)
            self.crons[cron.definition.name] = cron
            return cron

        return CronDecorator(make)

    def _declare(self, definition: Definition) -> None:
        if definition.name in self._contracts:
            raise WiringError(f'{definition.name!r} is declared twice: give one of them another name, name="..."')
        self._contracts[definition.name] = definition


def _name(name: str | None, function: Callable[..., Any]) -> str:
    found = str(name or getattr(function, "__name__", ""))
    if not found.strip("_-"):
        raise WiringError(f'{function!r} has no name of its own: write name="..."')
    return found
