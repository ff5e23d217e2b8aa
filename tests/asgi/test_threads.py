"""The bridge between threads and a loop: answers arrive, errors too, and who stopped waiting is not waited for."""

import threading
from collections.abc import Callable
from contextvars import ContextVar

import anyio
import pytest

from a2asgi.threads import Loop, Reply, raising, returning, run_in_thread, set_all
from tests.asgi.support import PATIENCE_S, until

tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


async def test_a_reply_wakes_the_loop() -> None:
    """An answer that a thread gives later reaches the task that waits for it."""
    reply: Reply[int] = Reply()
    answer = threading.Thread(target=lambda: reply.set(returning(7)))
    answer.start()
    with anyio.fail_after(PATIENCE_S):
        assert 7 == await reply.wait()
    answer.join()


async def test_a_reply_may_come_before_it_is_asked_for() -> None:
    """An answer that is there already is given to whoever asks, each time."""
    reply: Reply[str] = Reply()
    reply.set(returning("here"))
    assert ["here", "here"] == [await reply.wait(), await reply.wait()]


async def test_a_reply_may_be_an_error() -> None:
    """An error is raised where the answer is awaited, as itself."""
    reply: Reply[int] = Reply()
    error = KeyError("lost")
    reply.set(raising(error))
    with pytest.raises(KeyError) as raised:
        await reply.wait()
    assert error is raised.value


async def test_replies_that_come_together_wake_their_loop_once() -> None:
    """Values and errors, each to its own waiter."""
    replies: list[Reply[int]] = [Reply() for _ in range(3)]
    woken: list[object] = []
    replies[0]._loop.call_soon = woken.append  # type: ignore[assignment,method-assign]  # noqa: SLF001 - the wake-up
    set_all(zip(replies, [returning(1), raising(KeyError("lost")), returning(3)], strict=True))
    [wake] = woken
    assert callable(wake)
    wake()
    assert (1, 3) == (await replies[0].wait(), await replies[2].wait())
    with pytest.raises(KeyError):
        await replies[1].wait()


async def test_many_replies_find_their_own_waiters() -> None:
    """Answers in any order reach those who asked."""
    replies: list[Reply[int]] = [Reply() for _ in range(100)]
    found: dict[int, int] = {}

    async def wait(number: int) -> None:
        found[number] = await replies[number].wait()

    def answer() -> None:
        for number in reversed(range(100)):
            replies[number].set(returning(number))

    async with anyio.create_task_group() as tasks:
        for number in range(100):
            tasks.start_soon(wait, number)
        threading.Thread(target=answer).start()
    assert {number: number for number in range(100)} == found


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_loop_that_has_ended_is_not_spoken_to(backend: str) -> None:
    """A thread that answers too late is not told off: who waited there is gone."""
    called: list[str] = []

    async def make() -> tuple[Loop, Reply[int]]:
        return Loop(), Reply()

    loop, reply = anyio.run(make, backend=backend)
    loop.call_soon(lambda: called.append("called"))
    reply.set(returning(7))
    assert [] == called


async def test_a_plain_function_runs_on_a_thread_of_its_own() -> None:
    """It runs on a named daemon thread that is not the loop's, with the caller's context variables, and returns."""
    tenant.set("acme")

    def look() -> tuple[str, str, bool, bool]:
        thread = threading.current_thread()
        found = tenant.get()
        tenant.set("changed")
        return found, thread.name, thread.daemon, thread is threading.main_thread()

    assert ("acme", "a2-look", True, False) == await run_in_thread(look, "a2-look")
    assert "acme" == tenant.get()


class Abrupt(BaseException):
    """What is no Exception."""


@pytest.mark.parametrize("error", [KeyError("lost"), Abrupt("gone"), SystemExit(3)], ids=repr)
async def test_what_a_plain_function_raises_is_raised(error: BaseException) -> None:
    """Any error comes out where the function is awaited, and ends no thread with a noise."""

    def fail() -> None:
        raise error

    caught: list[BaseException] = []
    try:
        await run_in_thread(fail, "a2-fail")
    except BaseException as raised:  # noqa: BLE001 - the point
        caught.append(raised)
    assert [error] == caught


async def test_threads_run_side_by_side() -> None:
    """As many functions as were started run at once: no pool makes one wait for another."""
    together = threading.Barrier(50, timeout=PATIENCE_S)
    async with anyio.create_task_group() as tasks:
        for _ in range(50):
            tasks.start_soon(run_in_thread, together.wait, "a2-together")
    assert not together.broken


async def test_a_wait_can_be_cancelled() -> None:
    """Who stops waiting goes on at once; the function runs on, and what it returns is nowhere."""
    let_go, started, done = threading.Event(), threading.Event(), threading.Event()

    def hang() -> str:
        started.set()
        let_go.wait(PATIENCE_S)
        done.set()
        return "late"

    answers: list[str] = []

    async def wait(scope: anyio.CancelScope) -> None:
        with scope:
            answers.append(await run_in_thread(hang, "a2-hang"))

    scope = anyio.CancelScope()
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait, scope)
            await until(started)
            scope.cancel()
    assert (False, []) == (done.is_set(), answers)
    let_go.set()
    await until(done)
    await anyio.wait_all_tasks_blocked()
    assert [] == answers


@pytest.mark.parametrize(
    ("outcome", "expected"), [(returning(7), 7), (returning(None), None), (raising(KeyError("lost")), KeyError)]
)
def test_an_outcome_is_what_came_of_it(outcome: Callable[[], object], expected: object) -> None:
    """An outcome returns its value or raises its error, as often as it is called."""
    for _ in range(2):
        try:
            found = outcome()
        except KeyError as error:
            found = type(error)
        assert expected == found
