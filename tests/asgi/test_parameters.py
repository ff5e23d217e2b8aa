"""Parameters and results of jobs: checked where they are given, and again before the function gets them."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Annotated, Any, Literal, NoReturn, TypedDict
from uuid import UUID

import msgspec
import pytest
from pydantic import BaseModel, Field

from a2asgi import (
    A2,
    Cancel,
    Fail,
    FailedJob,
    InvalidPayload,
    JobContext,
    JobState,
    MemoryStore,
    Progress,
    Snooze,
    SyncJobContext,
)
from tests.asgi.works import Work


class Colour(Enum):
    RED = "red"


class Line(BaseModel):
    sku: str
    quantity: int = Field(gt=0)


@dataclass
class Parcel:
    weight: float
    tags: list[str] = field(default_factory=list)


class Ping(TypedDict):
    host: str
    seen: datetime


class Point(msgspec.Struct):
    x: int
    y: int = 0


NOON = datetime(2026, 1, 2, 12, 0, 0, 5, tzinfo=UTC)

KINDS = [
    pytest.param(str, "tea", id="str"),
    pytest.param(int, 2**60, id="int"),
    pytest.param(float, 1.5, id="float"),
    pytest.param(bool, True, id="bool"),
    pytest.param(None, None, id="none"),
    pytest.param(int | None, None, id="optional"),
    pytest.param(list[int], [1, 2], id="list"),
    pytest.param(tuple[int, str], (1, "a"), id="tuple"),
    pytest.param(set[int], {1, 2}, id="set"),
    pytest.param(dict[str, list[int]], {"a": [1]}, id="dict"),
    pytest.param(datetime, NOON, id="datetime"),
    pytest.param(date, NOON.date(), id="date"),
    pytest.param(timedelta, timedelta(seconds=90), id="timedelta"),
    pytest.param(Decimal, Decimal("1.10"), id="decimal"),
    pytest.param(UUID, UUID(int=7), id="uuid"),
    pytest.param(bytes, b"\x00\xff", id="bytes"),
    pytest.param(Colour, Colour.RED, id="enum"),
    pytest.param(Literal["a", "b"], "b", id="literal"),
    pytest.param(Line, Line(sku="tea", quantity=2), id="pydantic"),
    pytest.param(list[Line], [Line(sku="tea", quantity=2)], id="pydantic-in-a-list"),
    pytest.param(Annotated[int, Field(gt=0)], 2, id="pydantic-field"),
    pytest.param(Annotated[int, {"unit": "g"}], 2, id="annotated"),
    pytest.param(Parcel, Parcel(1.5, ["a"]), id="dataclass"),
    pytest.param(Ping, Ping(host="h", seen=NOON), id="typed-dict"),
    pytest.param(Point, Point(1), id="msgspec"),
    pytest.param(Any, {"a": [1, None, "b"]}, id="any"),
]
"""A type, and a value of it."""


def annotated(function: Callable[..., Any], **annotations: object) -> Callable[..., Any]:
    """The function, as if it had been written with these annotations."""
    function.__annotations__ |= annotations
    return function


# ── arguments ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["async", "plain"])
@pytest.mark.parametrize(("annotation", "value"), KINDS)
async def test_an_argument_arrives_as_it_was_given(annotation: object, value: object, kind: str) -> None:
    """Every type that an event may have, a parameter may have: the function gets an equal value of that type."""
    seen: list[object] = []

    async def take(value: object) -> None:
        seen.append(value)

    def take_plainly(value: object) -> None:
        seen.append(value)

    work = Work(annotated(take if kind == "async" else take_plainly, value=annotation))
    async with work.a2.testing() as world:
        await work.job.enqueue(value)
        await work.job.enqueue(value=value)
        await world.settle()
    assert [(value, type(value))] * 2 == [(one, type(one)) for one in seen]


async def send(to: str, line: Line, *, copies: int = 1, tags: list[str] | None = None) -> None:
    """A job with some of everything."""


LINE = Line(sku="tea", quantity=2)


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        pytest.param((), {}, "missing a required argument: 'to'", id="none"),
        pytest.param(("a",), {}, "missing a required argument: 'line'", id="too-few"),
        pytest.param(("a", LINE, 3), {}, "too many positional arguments", id="too-many"),
        pytest.param(("a", LINE), {"to": "b"}, "multiple values for argument 'to'", id="twice"),
        pytest.param(("a", LINE), {"cc": "b"}, "unexpected keyword argument 'cc'", id="unknown"),
    ],
)
@pytest.mark.parametrize("verb", ["enqueue", "later", "at"])
async def test_a_call_that_the_function_would_refuse_is_refused(
    args: tuple[object, ...], kwargs: dict[str, object], message: str, verb: str
) -> None:
    """A TypeError as Python would raise it, which names the function and its parameters; nothing is enqueued."""
    work = Work(send)
    call: Callable[..., Any] = getattr(work.job, verb)
    when: dict[str, tuple[object, ...]] = {"enqueue": (), "later": ("1m",), "at": (NOON,)}
    async with work.a2.testing() as world:
        with pytest.raises(TypeError, match=message) as caught:
            await call(*when[verb], *args, **kwargs)
        assert str(caught.value).startswith("send(): ")
        assert "expected (to: str, line: tests.asgi.test_parameters.Line, *, copies: int = 1" in str(caught.value)
        assert [] == await world.store.sessions()


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        pytest.param({"to": 5, "line": LINE}, "$.to", id="beside"),
        pytest.param({"to": "a", "line": {"sku": "tea"}}, "$.line.quantity", id="missing"),
        pytest.param({"to": "a", "line": {"sku": "tea", "quantity": 0}}, "$.line.quantity", id="too-small"),
        pytest.param({"to": "a", "line": LINE, "copies": "2"}, "$.copies", id="text-of-a-number"),
        pytest.param({"to": "a", "line": LINE, "tags": ["x", 1]}, "$.tags[1]", id="in-a-list"),
    ],
)
async def test_an_argument_beside_a_model_is_checked_as_strictly(arguments: dict[str, object], path: str) -> None:
    """InvalidPayload at the call says which argument, and where in it; nothing is enqueued or converted."""
    await refused(Work(send), arguments, path)


@pytest.mark.parametrize(
    ("annotation", "value", "path"),
    [
        pytest.param(int, "1", "$.x", id="int"),
        pytest.param(str, "\ud83d", "$.x", id="lone-surrogate"),
        pytest.param(dict[str, int], {"a": "b"}, "$.x[...]", id="dict"),
        pytest.param(Parcel, Parcel("1"), "$.x.weight", id="dataclass"),  # type: ignore[arg-type]
        pytest.param(Ping, {"host": "h"}, "$.x", id="typed-dict"),
        pytest.param(Point, Point("1"), "$.x.x", id="msgspec"),  # type: ignore[arg-type]
        pytest.param(Colour, "blue", "$.x", id="enum"),
        pytest.param(Any, float("nan"), "$.x", id="nan"),
        pytest.param(Any, object(), "$.x", id="no-json"),
        pytest.param(Any, {1: "a"}, "$.x", id="key-of-another-type"),
    ],
)
async def test_an_argument_that_does_not_fit_is_refused_with_its_path(
    annotation: object, value: object, path: str
) -> None:
    """As above, for the types that need no pydantic."""

    async def take(x: object) -> None:
        raise AssertionError(x)

    await refused(Work(annotated(take, x=annotation)), {"x": value}, path)


async def refused(work: Work, arguments: dict[str, object], path: str) -> None:
    """The call is refused at that path, and nothing is enqueued."""
    async with work.a2.testing() as world:
        with pytest.raises(InvalidPayload) as caught:
            await work.job.enqueue(**arguments)
        assert path == caught.value.path
        assert [] == await world.store.sessions()


# ── defaults ─────────────────────────────────────────────────────────────────────────────


async def test_a_default_is_what_the_caller_leaves_out() -> None:
    seen: list[tuple[int, str, Parcel]] = []

    async def pack(x: int, unit: str = "g", *, parcel: Parcel = Parcel(1.0)) -> None:  # noqa: B008 - that is the test
        seen.append((x, unit, parcel))

    work = Work(pack)
    async with work.a2.testing() as world:
        await work.job.enqueue(1)
        await work.job.enqueue(2, "kg", parcel=Parcel(2.0))
        await world.settle()
    assert [(1, "g", Parcel(1.0)), (2, "kg", Parcel(2.0))] == sorted(seen, key=lambda one: one[0])


async def test_a_mutable_default_is_no_ones_but_the_calls() -> None:
    """What one run does to it, the next one does not see."""
    seen: list[list[str]] = []

    def collect(item: str, to: list[str] = []) -> None:  # noqa: B006 - that is the test
        to.append(item)
        seen.append(to)

    work = Work(collect)
    async with work.a2.testing() as world:
        for item in "ab":
            await work.job.enqueue(item)
            await world.settle()
    assert [["a"], ["b"]] == seen


# ── newer code ───────────────────────────────────────────────────────────────────────────


class Deploy:
    """Jobs that an older version of the code enqueued, and a newer one that runs them."""

    def __init__(self, older: Callable[..., Any], newer: Callable[..., Any], **options: Any) -> None:
        self.store = MemoryStore()
        self.older = Work(older, a2=A2(store=self.store, role="web"), name="work")
        self.newer = Work(newer, a2=A2(store=self.store), name="work", **{"backoff": "0s", **options})

    async def run(self, *args: object) -> str:
        """Enqueue by the older one, and have the newer one run it; the job's id."""
        job_id = await self.older.job.enqueue(*args)
        await self.newer.a2.tick()
        return job_id


async def test_a_parameter_that_is_new_has_its_default() -> None:
    """Jobs that wait through a deployment run with the new parameter's default, of which each has its own."""
    seen: list[tuple[str, list[str]]] = []

    async def older(to: str) -> None:
        raise AssertionError(to)

    async def newer(to: str, tags: list[str] = []) -> None:  # noqa: B006 - that is the test
        tags.append(to)
        seen.append((to, tags))

    deploy = Deploy(older, newer)
    for to in "ab":
        assert JobState.SUCCEEDED == await deploy.newer.state(await deploy.run(to))
    assert [("a", ["a"]), ("b", ["b"])] == seen


async def test_a_parameter_that_is_gone_is_ignored() -> None:
    seen: list[str] = []

    async def older(to: str, tags: list[str]) -> None:
        raise AssertionError(to, tags)

    async def newer(to: str) -> None:
        seen.append(to)

    deploy = Deploy(older, newer)
    assert JobState.SUCCEEDED == await deploy.newer.state(await deploy.run("a", []))
    assert ["a"] == seen


async def old_send(to: str) -> None:
    """What the older code enqueued."""


async def new_send_of_ids(to: int) -> None:
    """Its parameter has another type now."""
    raise AssertionError(to)


async def new_send_of_lines(to: str, line: Line) -> None:
    """It has one more parameter, without a default."""
    raise AssertionError(to, line)


@pytest.mark.parametrize(
    ("newer", "path"),
    [pytest.param(new_send_of_ids, "$.to", id="type"), pytest.param(new_send_of_lines, "$.line", id="missing")],
)
async def test_a_stored_call_that_no_longer_fits_never_reaches_the_function(
    newer: Callable[..., Any], path: str
) -> None:
    """It is retried, since a deployment may repair it, and then a dead letter, told with its arguments as stored."""
    failed: list[FailedJob] = []
    deploy = Deploy(old_send, newer, retries=2, on_failed=failed.append)
    job_id = await deploy.run("a")
    status = await deploy.newer.status(job_id)
    assert (JobState.FAILED, 3) == (status.state, status.attempt)
    assert str(status.error).startswith(f"InvalidPayload: {path}: ")
    assert [({"to": "a"}, "InvalidPayload", 3)] == [(one.arguments, one.error, one.attempts) for one in failed]


# ── the context ──────────────────────────────────────────────────────────────────────────


Told = list[str | int]
"""The class of the context that a function got, and its argument."""


async def first(job: JobContext, x: int) -> Told:
    return [type(job).__name__, x]


async def last(x: int, job: JobContext) -> Told:
    return [type(job).__name__, x]


async def between(x: int, job: JobContext, y: int = 0) -> Told:
    return [type(job).__name__, x + y]


async def by_keyword(x: int, *, job: JobContext) -> Told:
    return [type(job).__name__, x]


async def by_name(ctx, x: int) -> Told:  # type: ignore[no-untyped-def]  # noqa: ANN001 - that is the test
    return [type(ctx).__name__, x]


async def by_name_last(x: int, ctx=None) -> Told:  # type: ignore[no-untyped-def]  # noqa: ANN001 - that is the test
    return [type(ctx).__name__, x]


async def by_text(x: int, job: "JobContext") -> Told:
    return [type(job).__name__, x]


def plain_first(job: SyncJobContext, x: int) -> Told:
    return [type(job).__name__, x]


def plain_last(x: int, job: SyncJobContext) -> Told:
    return [type(job).__name__, x]


def plain_by_name(x: int, ctx) -> Told:  # type: ignore[no-untyped-def]  # noqa: ANN001 - that is the test
    return [type(ctx).__name__, x]


@pytest.mark.parametrize(
    "function",
    [
        *(first, last, between, by_keyword, by_name, by_name_last, by_text),
        *(plain_first, plain_last, plain_by_name),
    ],
)
async def test_a_function_may_ask_for_a_context(function: Callable[..., Any]) -> None:
    """By its annotation, or by the name ctx, wherever it stands; it is no argument of the call."""
    work = Work(function)
    async with work.a2.testing() as world:
        by_place, by_its_name = await work.job.enqueue(1), await work.job.enqueue(x=1)
        with pytest.raises(TypeError, match="unexpected keyword argument"):
            await work.job.enqueue(1, ctx=None, job=None)
        await world.settle()
        name = "SyncJobContext" if function.__name__.startswith("plain") else "JobContext"
        for job_id in (by_place, by_its_name):
            assert [name, 1] == (await work.status(job_id)).result


async def test_a_context_tells_of_its_attempt() -> None:
    """Which job it is, which attempt, and what A2 was given for it."""
    seen: list[tuple[str, int, str, datetime | None]] = []

    async def work_on(ctx: JobContext) -> None:
        seen.append((ctx.job_id, ctx.attempt, ctx.dependencies, ctx.deadline))
        if ctx.attempt == 1:
            raise ValueError("once")

    work = Work(work_on, timeout="1m")
    async with work.a2.testing(dependencies="fakes") as world:
        began = world.now
        job_id = await work.job.enqueue()
        await world.advance("1h")
    minute = timedelta(minutes=1)
    assert [
        (job_id, 1, "fakes", began + minute),
        (job_id, 2, "fakes", began + minute + timedelta(seconds=1)),
    ] == seen


# ── the call itself ──────────────────────────────────────────────────────────────────────


async def test_calling_a_job_is_calling_its_function() -> None:
    """Here and now, unchecked and unstored: what the function returns comes back, and what it raises."""

    async def double(x: int) -> int:
        """Twice as much."""
        return 2 * x

    def halve(x: int) -> float:
        return x / 2

    a2 = A2(store=MemoryStore())
    doubled, halved = a2.job()(double), a2.job()(halve)
    async with a2.testing() as world:
        assert (4, 1.5) == (await doubled(2), halved(3))
        with pytest.raises(TypeError):
            halved("no number")
        assert [] == await world.store.sessions()
    assert ("double", "Twice as much.", double) == (doubled.__name__, doubled.__doc__, doubled.__wrapped__)  # type: ignore[attr-defined]
    assert "Job('double')" == repr(doubled)


async def test_a_function_with_a_context_is_called_with_one() -> None:
    seen: list[object] = []

    async def work_on(ctx: JobContext, x: int) -> None:
        seen.append((ctx, x))

    job = A2(store=MemoryStore()).job()(work_on)
    await job("a stand-in", 1)
    assert [("a stand-in", 1)] == seen


async def test_a_plain_function_runs_in_a_thread() -> None:
    """It may block: the loop goes on."""
    seen: list[bool] = []

    def work_on() -> None:
        seen.append(threading.current_thread() is threading.main_thread())

    work = Work(work_on)
    async with work.a2.testing() as world:
        await work.job.enqueue()
        await world.settle()
    assert [False] == seen


class Doubler:
    """A callable object."""

    async def __call__(self, x: int) -> int:
        return 2 * x


async def multiply(x: int, by: int = 1) -> int:
    """For a partial."""
    return x * by


def calls_late(x: int):  # type: ignore[no-untyped-def]  # noqa: ANN201 - as of a lambda, what it gives is not told
    """A plain function that gives something to await."""
    return multiply(x, 2)


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(Doubler(), id="object"),
        pytest.param(partial(multiply, by=2), id="partial"),
        pytest.param(calls_late, id="plain-over-async"),
    ],
)
async def test_whatever_can_be_called_can_be_a_job(function: Callable[..., Any]) -> None:
    """Its annotations count, and what it gives to await is awaited."""
    work = Work(function, name="double")
    async with work.a2.testing() as world:
        with pytest.raises(InvalidPayload, match=r"^\$\.x"):
            await work.job.enqueue("2")
        job_id = await work.job.enqueue(2)
        await world.settle()
        assert 4 == (await work.status(job_id)).result


async def test_other_words_of_the_interface_are_free() -> None:
    """A parameter may be called as those of `later`, `at`, `status` and `cancel` are."""
    seen: list[tuple[object, ...]] = []

    async def work_on(*, when: int, reason: str, job_id: str, name: str, key: str, self: int) -> None:
        seen.append((when, reason, job_id, name, key, self))

    work = Work(work_on)
    arguments: dict[str, Any] = {"when": 1, "reason": "a", "job_id": "b", "name": "c", "key": "d", "self": 2}
    async with work.a2.testing() as world:
        await work.job.enqueue(**arguments)
        await work.job.later("1s", **arguments)
        await work.job.at(world.now, **arguments)
        await work.job(**arguments)
        await world.advance("1m")
    assert [(1, "a", "b", "c", "d", 2)] * 4 == seen


# ── results ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["async", "plain"])
@pytest.mark.parametrize(("annotation", "value"), KINDS)
async def test_a_result_comes_back_as_it_was_returned(annotation: object, value: object, kind: str) -> None:
    """`-> result` is its type, as of a parameter: `status` gives an equal value of that type."""

    async def give() -> object:
        return value

    def give_plainly() -> object:
        return value

    work = Work(annotated(give if kind == "async" else give_plainly, **{"return": annotation}), name="give")
    async with work.a2.testing() as world:
        job_id = await work.job.enqueue()
        await world.settle()
        status = await work.status(job_id)
    assert (JobState.SUCCEEDED, value, type(value), None) == (
        status.state,
        status.result,
        type(status.result),
        status.error,
    )


@pytest.mark.parametrize(
    ("annotation", "value", "path"),
    [
        pytest.param(Any, object(), "$.result", id="no-json"),
        pytest.param(Any, float("inf"), "$.result", id="infinite"),
        pytest.param(int, "5", "$.result", id="other-type"),
        pytest.param(int, None, "$.result", id="nothing"),
        pytest.param(None, 5, "$.result", id="something"),
        pytest.param(Line, {"sku": "tea"}, "$.result.quantity", id="pydantic"),
        pytest.param(list[Point], [Point(1), Point("2")], "$.result[1].x", id="msgspec"),  # type: ignore[arg-type]
    ],
)
@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_result_that_cannot_be_stored_is_a_dead_letter_at_once(
    annotation: object, value: object, path: str, kind: str
) -> None:
    """The work is done, so it is not done again: the error says that the function has run, and what is wrong."""
    runs: list[int] = []

    async def give() -> object:
        runs.append(1)
        return value

    def give_plainly() -> object:
        runs.append(1)
        return value

    work = Work(annotated(give if kind == "async" else give_plainly, **{"return": annotation}), name="give")
    async with work.a2.testing() as world:
        job_id = await work.job.enqueue()
        await world.advance("1d")
        status = await work.status(job_id)
        assert [1] == runs
        assert (JobState.FAILED, 1, None) == (status.state, status.attempt, status.result)
        assert f"Fail: the function has run, but its result cannot be stored: {path}: " in str(status.error)
        assert [job_id] == [letter.event_id for letter in world.dead_letters]


async def sends_or_fails(x: int) -> int | Fail:
    """It returns a result, or an outcome."""
    return Fail("too much") if x > 2 else x


async def snoozes(x: int) -> Snooze | None:
    """It returns an outcome, or nothing."""
    return Snooze("1m") if x > 2 else None


async def fits_or_not(x: int) -> Line | Fail | Cancel | Snooze:
    """It returns a model, or any outcome."""
    return Line(sku="tea", quantity=x)


async def only_fails(x: int) -> Fail:
    """It always returns an outcome."""
    return Fail(str(x))


async def only_raises(x: int) -> NoReturn:
    """It never returns."""
    raise ValueError(x)


@pytest.mark.parametrize(
    ("function", "state", "result"),
    [
        (sends_or_fails, JobState.SUCCEEDED, 1),
        (snoozes, JobState.SUCCEEDED, None),
        (fits_or_not, JobState.SUCCEEDED, Line(sku="tea", quantity=1)),
        (only_fails, JobState.FAILED, None),
        (only_raises, JobState.FAILED, None),
    ],
)
async def test_the_outcomes_in_a_result_type_are_no_results(
    function: Callable[..., Any], state: JobState, result: object
) -> None:
    """A function that says it may answer Snooze, Cancel or Fail is typed for a checker, and stores what is left."""
    work = Work(function, retries=0)
    async with work.a2.testing() as world:
        job_id = await work.job.enqueue(1)
        await world.settle()
        status = await work.status(job_id)
        assert (state, result) == (status.state, status.result)


async def test_a_stored_result_that_no_longer_fits_is_told_as_it_is_stored() -> None:
    """Newer code that returns another type still tells that the job succeeded, and what it gave."""

    async def older(ctx: JobContext) -> Line:
        await ctx.progress(1, 2)
        return LINE

    async def newer() -> int:
        raise AssertionError

    store = MemoryStore()
    before = Work(older, a2=A2(store=store), name="work")
    job_id = await before.job.enqueue()
    status = await Work(newer, a2=A2(store=store), name="work").status(job_id)
    assert (JobState.SUCCEEDED, {"sku": "tea", "quantity": 2}, Progress(1, 2), 1) == (
        status.state,
        status.result,
        status.progress,
        status.attempt,
    )
    assert status == replace(await before.status(job_id), result=status.result)
