"""Crons: a function that runs once for each slot of a schedule, and tasks that only a trigger from outside runs."""

from collections.abc import Callable
from datetime import datetime, tzinfo
from functools import lru_cache, update_wrapper
from typing import Any, Generic, ParamSpec, TypeVar, cast
from zoneinfo import ZoneInfo

from a2asgi import runs
from a2asgi.crontab import Crontab
from a2asgi.errors import WiringError
from a2asgi.parameters import Parameters, shown, type_hints
from a2asgi.ports import SessionKey
from a2asgi.run_contract import JobOptions, JobStatus, RunDefinition
from a2asgi.session import Ready
from a2asgi.times import duration_ms, from_ms, instant_ms
from a2core import CatchUp, Recur, decode_json, encode_json, recur_by, slot_event_id

P = ParamSpec("P")
R = TypeVar("R")

MIN_KEEP = "2h"
"""A slot's record must outlive the hour in which it can be triggered again."""


class CronDefinition(RunDefinition):
    """A contract of runs that recur."""

    @property
    def recur(self) -> Recur:
        """Any version of the code follows the rule that is in force."""
        return recur_by(read_rule, runs.RUN)


def write_rule(crontab: Crontab, catch_up: CatchUp) -> str:
    """A schedule as its recurring timer keeps it."""
    return encode_json({"cron": crontab.expression, "tz": crontab.tz, "catch_up": catch_up.value})


@lru_cache(maxsize=256)
def read_rule(rule: str) -> tuple[Crontab, CatchUp]:
    """The schedule that `write_rule` wrote."""
    value: Any = decode_json(rule)
    return Crontab(value["cron"], value["tz"]), CatchUp(value["catch_up"])


class Cron(Generic[P, R]):
    """A function that runs once for each slot, however many processes, triggers and restarts there are.

    One without a `crontab` only runs when it is triggered, for any whole minute.
    """

    def __init__(
        self,
        ready: Ready,
        now_ms: Callable[[], int],
        function: Callable[P, R],
        options: JobOptions,
        *,
        kind: str,
        crontab: Crontab | None,
        catch_up: str,
    ) -> None:
        if "/" in options.name or options.name in {".", ".."}:
            raise WiringError(
                f"{options.name!r}: expected the name of a {kind} without a slash, and neither '.' nor '..': it is "
                "triggered by its name as one part of a path"
            )
        if duration_ms(options.keep) < duration_ms(MIN_KEEP):
            raise WiringError(
                f"{options.name!r}: expected keep={MIN_KEEP!r} or more, got {options.keep!r}: while a slot can be "
                "triggered again, its record must say that it ran"
            )
        self._ready = ready
        self._now_ms = now_ms
        self._function = function
        self.options: JobOptions = options
        self.crontab: Crontab | None = crontab
        self._tz: tzinfo = ZoneInfo("UTC" if crontab is None else crontab.tz)
        parameters = Parameters(function)
        if len(parameters.names) > 1:
            raise WiringError(
                f"{shown(function)}: expected at most one parameter, the slot's datetime, and a context; "
                f"got {parameters.names}"
            )

        for name, hint in type_hints(function).items():
            if name in parameters.names and isinstance(hint, type) and hint not in (Any, *datetime.__mro__):
                raise WiringError(
                    f"{shown(function)}: its parameter {name!r} gets the slot: expected it to be a datetime, "
                    f"got {hint.__name__}"
                )

        def arguments(slot_ms: int) -> dict[str, Any]:
            return dict.fromkeys(parameters.names, from_ms(slot_ms).astimezone(self._tz))

        self.definition: CronDefinition = CronDefinition(
            f"{kind}:{options.name}",
            function,
            options,
            payload=int,
            arguments=arguments,
            context=parameters.context,
        )
        if crontab is not None:
            self.definition.recurrence = write_rule(crontab, _catch_up(catch_up, options.name)), crontab
        update_wrapper(self, function)

    def __repr__(self) -> str:
        return f"Cron({self.definition.name!r}, {self.crontab!r})"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function here and now, as if it were no cron."""
        return self._function(*args, **kwargs)

    @property
    def name(self) -> str:
        """The cron's name."""
        return self.options.name

    def next(self, count: int = 1, *, after: datetime | None = None) -> list[datetime]:
        """The next slots after an instant, or after now, in the cron's time zone."""
        slots: list[datetime] = []
        at_ms: int | None = self._now_ms() if after is None else instant_ms(after)
        while self.crontab is not None and len(slots) < count and at_ms is not None:
            at_ms = self.crontab.next_ms(at_ms)
            slots += [] if at_ms is None else [from_ms(at_ms).astimezone(self._tz)]
        return slots

    async def status(self, slot: datetime) -> JobStatus[Any] | None:
        """Where a slot's run stands; None where there is none, or it was removed after its retention."""
        engine = await self._ready()
        id_ = slot_event_id(instant_ms(slot))
        look = await runs.look(engine, SessionKey(self.definition.name, runs.SLOTS), id_)
        return None if look is None else self.definition.status(id_, look)

    def is_slot(self, slot_ms: int) -> bool:
        """Whether the schedule has this slot."""
        return self.crontab is None or self.crontab.is_slot(slot_ms)


class CronDecorator:
    """What `a2.cron(...)` and `a2.maintenance(...)` return: it makes a cron of a function."""

    def __init__(self, make: Callable[[Callable[..., Any]], Cron[..., Any]]) -> None:
        self._make = make

    def __call__(self, function: Callable[P, R]) -> Cron[P, R]:
        """Make the cron. Raises WiringError for a function that cannot be one."""
        return cast("Cron[P, R]", self._make(function))


def _catch_up(text: str, name: str) -> CatchUp:
    try:
        return CatchUp(text)
    except ValueError:
        words = [str(one) for one in CatchUp]
        raise WiringError(f"{name!r}: expected catch_up to be one of {words}, got {text!r}") from None
