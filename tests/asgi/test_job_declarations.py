"""Declarations of jobs: what makes no sense is refused when the job is declared, and the error says what to write."""

import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from a2asgi import (
    A2,
    Context,
    Exponential,
    InvalidName,
    JobContext,
    MemoryStore,
    SyncJobContext,
    WiringError,
)
from tests.asgi.works import Work


async def send(to: str, copies: int = 1) -> None:
    """A job."""


async def wait_for(failures: int) -> str:
    """A backoff that would have to be awaited."""
    return f"{failures}s"


def report_nothing() -> None:
    """It does not take what it is told."""


async def report_slowly(failed: object) -> AsyncIterator[object]:
    """It yields."""
    yield failed


BAD: list[tuple[dict[str, Any], str]] = [
    ({"retries": -1}, "'send': expected retries to be a whole number, 0 or more, got -1"),
    ({"retries": 1.5}, "'send': expected retries to be a whole number, 0 or more, got 1.5"),
    ({"retries": "3"}, "'send': expected retries to be a whole number, 0 or more, got '3'"),
    ({"retries": None}, "'send': expected retries to be a whole number, 0 or more, got None"),
    ({"concurrency": 0}, "'send': expected concurrency to be a whole number, 1 or more, got 0"),
    ({"key": "to", "key_concurrency": 0}, "'send': expected key_concurrency to be a whole number, 1 or more, got 0"),
    ({"key_concurrency": 2}, "'send': key_concurrency needs a key, such as key=\"customer\""),
    ({"priority": "high"}, "'send': expected priority to be a whole number, got 'high'"),
    ({"timeout": "0s"}, "'send': expected a positive timeout, such as timeout=\"5m\", got '0s'"),
    (
        {"timeout": timedelta(0)},
        "'send': expected a positive timeout, such as timeout=\"5m\", got datetime.timedelta(0)",
    ),
    ({"timeout": "soon"}, "'send': timeout: expected a duration such as \"15m\" or timedelta(minutes=15), got 'soon'"),
    ({"timeout": timedelta(-1)}, "'send': timeout: expected a duration from zero to thousands of years, got "),
    ({"keep": "long"}, "'send': keep: expected a duration such as \"15m\" or timedelta(minutes=15), got 'long'"),
    ({"keep": "59s"}, "'send': expected keep='1m' or more, got '59s'"),
    ({"backoff": 5}, "'send': backoff: expected a duration such as \"15m\" or timedelta(minutes=15), got 5"),
    ({"backoff": wait_for}, "'send': backoff: expected a plain function, got the async <function wait_for"),
    ({"backoff": Exponential(base="x")}, "'send': backoff: expected a duration such as"),
    ({"backoff": Exponential(factor=0)}, "'send': backoff: expected a factor of 1 or more, got 0"),
    ({"backoff": Exponential(factor=1.5)}, "'send': backoff: expected factor to be a whole number, got 1.5"),  # type: ignore[arg-type]
    ({"backoff": Exponential("10s", cap="5s")}, "'send': backoff: expected 0 <= base <= cap, got base 10000 ms, cap"),
    ({"backoff": Exponential(jitter=2)}, "'send': backoff: expected a jitter of 0 to 100 percent, got 200"),
    ({"key": "from"}, "'send': key='from' is no parameter: expected one of ['to', 'copies'], or a function of the"),
    (
        {"key": lambda to: to},
        "'send': its key function is called with the arguments by name: expected it to take ['to', ",
    ),
    (
        {"key": lambda: "a"},
        "'send': its key function is called with the arguments by name: expected it to take ['to', ",
    ),
    ({"on_failed": "log"}, "'send': expected on_failed to take one FailedJob, got 'log'"),
    ({"on_failed": report_nothing}, "'send': expected on_failed to take one FailedJob, got <function report_nothing"),
    ({"on_failed": report_slowly}, "<function report_slowly"),
]


@pytest.mark.parametrize(("options", "message"), BAD, ids=[str(options) for options, _ in BAD])
def test_an_option_that_makes_no_sense_is_refused(options: dict[str, Any], message: str) -> None:
    """The error names the job and the option, and says what was expected; the name stays free."""
    a2 = A2(store=MemoryStore())
    with pytest.raises(WiringError) as caught:
        a2.job(**options)(send)
    assert message == str(caught.value)[: len(message)]
    a2.job()(send)


@pytest.mark.parametrize(
    "options",
    [
        {"retries": 0, "timeout": "1ms", "keep": "1m", "priority": -5, "concurrency": 1},
        {"backoff": "0s"},
        {"backoff": timedelta(hours=2)},
        {"backoff": Exponential("1h")},
        {"backoff": Exponential("1s", factor=1, cap="1s", jitter=1.0)},
        {"backoff": lambda failures: f"{failures}s"},
        {"key": "to", "key_concurrency": 3},
        {"key": lambda to, **_: to},
        {"key": lambda **arguments: arguments["to"]},
        {"on_failed": print},
        {"on_failed": max},
        {"on_failed": lambda failed, *, loud=True: None},  # noqa: ARG005 - that it may be left out is the test
    ],
    ids=str,
)
def test_an_option_at_its_edge_is_taken(options: dict[str, Any]) -> None:
    assert "send" == A2(store=MemoryStore()).job(**options)(send).name


# ── names ────────────────────────────────────────────────────────────────────────────────


def test_a_job_is_named_after_its_function_or_as_it_says() -> None:
    a2 = A2(store=MemoryStore())
    assert ["send", "send-again"] == [a2.job()(send).name, a2.job(name="send-again")(send).name]


def test_two_jobs_of_one_name_are_refused() -> None:
    a2 = A2(store=MemoryStore())
    a2.job()(send)
    with pytest.raises(
        WiringError, match=r"^'job:send' is declared twice: give one of them another name, name=\"...\""
    ):
        a2.job()(send)


@dataclass
class Nameless:
    """It can be called, and has no name."""

    to: str = ""

    def __call__(self) -> None:
        """As a function."""


@pytest.mark.parametrize("function", [lambda: None, Nameless()], ids=["lambda", "object"])
def test_a_function_without_a_name_needs_one(function: Callable[[], None]) -> None:
    """By its name a job is found after a restart."""
    a2 = A2(store=MemoryStore())
    with pytest.raises(WiringError, match=r'write name="\.\.\."'):
        a2.job()(function)
    assert "found" == a2.job(name="found")(function).name


def test_a_name_that_no_store_could_keep_is_refused() -> None:
    with pytest.raises(InvalidName, match="NUL"):
        A2(store=MemoryStore()).job(name="a\x00b")(send)


@pytest.mark.parametrize("name", ["job:x", "cron:x", "maintenance:x"])
def test_a_contract_may_not_take_the_name_of_a_job(name: str) -> None:
    with pytest.raises(WiringError, match=f"^contract '{name}': names that begin with .* are those of jobs and crons"):
        A2(store=MemoryStore()).contract(name)


def test_a_contract_and_a_job_may_share_a_name() -> None:
    a2 = A2(store=MemoryStore())
    a2.contract("send")
    assert "send" == a2.job()(send).name


# ── functions that cannot be jobs ────────────────────────────────────────────────────────


def yields(x: int) -> Any:
    """It is a generator function."""
    yield x


async def yields_too(x: int) -> Any:
    """It is one too."""
    yield x


def many(*to: str) -> None:
    """Its parameter has no name for one argument."""


def named(**to: str) -> None:
    """Its parameters are not known."""


def by_place(x: int, /) -> None:
    """Its parameter cannot be given by its name."""


def context_by_place(ctx: SyncJobContext, /) -> None:
    """Nor can its context."""


def two_contexts(one: SyncJobContext, other: SyncJobContext) -> None:
    """One too many."""


def named_and_typed(job: SyncJobContext, ctx: int) -> None:
    """One is found by its type, and one by its name."""


def async_context(ctx: JobContext) -> None:
    """It cannot await anything."""


async def plain_context(job: SyncJobContext) -> None:
    """It would block its loop."""


async def handlers_context(ctx: Context) -> None:
    """That is what handlers of events get."""


def unknown(x: "Unknown") -> None:  # type: ignore[name-defined]  # noqa: F821 - that is the test
    """It names what is not there."""


def not_there(x: "msgspec.Unknown") -> None:  # type: ignore[name-defined]
    """It names what is not there either."""


def no_type(x: "not a type(") -> None:  # type: ignore[valid-type]  # noqa: F722 - that is the test
    """Its annotation is no expression."""


def takes_lock(x: threading.Thread) -> None:
    """It cannot be written down."""


def gives_lock() -> threading.Thread:
    """Nor can this."""
    return threading.current_thread()


UNFIT: list[tuple[Callable[..., Any], str]] = [
    (yields, r"yields\(\): it yields; expected a function that returns its result"),
    (yields_too, r"yields_too\(\): it yields; expected a function that returns its result"),
    (many, r"many\(\): parameter \*to: str cannot be given by its name: name each one, without \*, \*\* or /"),
    (named, r"named\(\): parameter \*\*to: str cannot be given by its name"),
    (by_place, r"by_place\(\): parameter x: int cannot be given by its name"),
    (context_by_place, r"context_by_place\(\): parameter ctx: .*SyncJobContext cannot be given by its name"),
    (two_contexts, r"two_contexts\(\): asks for two contexts, \['one', 'other'\]; one is enough"),
    (named_and_typed, r"named_and_typed\(\): asks for two contexts, \['job', 'ctx'\]; one is enough"),
    (async_context, r"async_context\(\): expected its context 'ctx' to be a SyncJobContext"),
    (plain_context, r"plain_context\(\): expected its context 'job' to be a JobContext"),
    (handlers_context, r"handlers_context\(\): expected its context 'ctx' to be a JobContext"),
    (unknown, r"unknown\(\): cannot read its annotations: name 'Unknown' is not defined; what they name must be"),
    (not_there, r"not_there\(\): cannot read its annotations: module 'msgspec' has no attribute 'Unknown'"),
    (no_type, r"no_type\(\): cannot read its annotations: Forward reference must be an expression"),
    (takes_lock, r"takes_lock\(\): its parameters cannot be stored: "),
    (gives_lock, r"gives_lock\(\): its result cannot be stored: "),
    (Nameless, r"expected a function, got <class '.*Nameless'>"),
]


@pytest.mark.parametrize(("function", "message"), UNFIT, ids=[function.__name__ for function, _ in UNFIT])
def test_a_function_that_cannot_be_a_job_is_refused_when_it_is_declared(
    function: Callable[..., Any], message: str
) -> None:
    """The error names the function, and says what was expected; the name stays free."""
    a2 = A2(store=MemoryStore())
    with pytest.raises(WiringError, match=f"^{message}"):
        a2.job(name="work")(function)
    a2.job(name="work")(send)


@pytest.mark.parametrize("name", ["dedupe_key", "delay", "at"])
def test_a_parameter_that_is_named_as_an_option_is_refused(name: str) -> None:
    """`enqueue` could not tell which one is meant."""
    namespace: dict[str, Any] = {}
    exec(f"def work({name}: int) -> None: ...", namespace)  # noqa: S102 - the three names are ours
    with pytest.raises(WiringError, match=rf"^work\(\): parameter '{name}' is an option of enqueue; rename it"):
        Work(namespace["work"])


def test_a_decorator_without_its_parentheses_says_so() -> None:
    a2 = A2(store=MemoryStore())
    for bare, written in ((a2.job, r"@a2\.job\(\)"), (a2.maintenance, r"@a2\.maintenance\(\)")):
        with pytest.raises(WiringError, match=written):
            bare(send)
