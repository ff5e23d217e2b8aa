"""Activity: who is awake, when nobody is, and a bell whose waiter counts from the ring on."""

import anyio
import pytest

from a2asgi.activity import Activity, Mailbox
from tests.asgi.support import PATIENCE_S


class Watch:
    """A task that notes when nothing is awake."""

    def __init__(self, activity: Activity) -> None:
        self.activity = activity
        self.notes: list[str] = []

    async def run(self) -> None:
        """Wait, and note."""
        await self.activity.quiet()
        self.notes.append("quiet")


@pytest.mark.parametrize("rounds", [0, 1, 3])
async def test_nothing_awake_is_quiet_at_once(rounds: int) -> None:
    """Before the first task and after the last one nobody has to wait."""
    activity = Activity()
    for _ in range(rounds):
        activity.enter()
        activity.leave()
    with anyio.fail_after(PATIENCE_S):
        await activity.quiet()


async def test_it_is_quiet_when_the_last_one_sleeps() -> None:
    """Everyone who waits is told once, when the last task that was awake leaves, and not before."""
    activity = Activity()
    watches = [Watch(activity), Watch(activity)]
    activity.enter()
    activity.enter()
    async with anyio.create_task_group() as tasks:
        for watch in watches:
            tasks.start_soon(watch.run)
        await anyio.wait_all_tasks_blocked()
        activity.leave()
        await anyio.wait_all_tasks_blocked()
        assert [[], []] == [watch.notes for watch in watches]
        activity.leave()
    assert [["quiet"], ["quiet"]] == [watch.notes for watch in watches]


async def test_a_quiet_moment_that_has_passed_does_not_count() -> None:
    """Who is told that all is quiet looks again: another task may have woken in the same breath."""
    activity = Activity()
    watch = Watch(activity)
    activity.enter()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch.run)
        await anyio.wait_all_tasks_blocked()
        activity.leave()
        activity.enter()
        await anyio.wait_all_tasks_blocked()
        assert [] == watch.notes
        activity.leave()
    assert ["quiet"] == watch.notes


class Reader:
    """A task that is awake, and asleep only while it waits at its mailbox."""

    def __init__(self) -> None:
        self.activity = Activity()
        self.mail = Mailbox(self.activity)
        self.scope = anyio.CancelScope()
        self.notes: list[str] = []

    async def run(self) -> None:
        """Wait for one ring."""
        self.activity.enter()
        try:
            with self.scope:
                await self.mail.wait()
                self.notes.append("rung")
        finally:
            self.activity.leave()


async def test_a_waiter_is_asleep_until_it_is_rung_for() -> None:
    """It counts as awake from the ring on, before it has run at all."""
    reader = Reader()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reader.run)
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(PATIENCE_S):
            await reader.activity.quiet()
        reader.mail.ring()
        assert (True, []) == (reader.mail.rung, reader.notes)
        await reader.activity.quiet()
        assert ["rung"] == reader.notes


async def test_a_ring_before_the_wait_is_kept() -> None:
    """A bell that rang since it was cleared lets the next wait pass, however often it rang."""
    reader = Reader()
    reader.mail.ring()
    reader.mail.ring()
    with anyio.fail_after(PATIENCE_S):
        await reader.run()
    assert ["rung"] == reader.notes


async def test_a_cleared_ring_is_forgotten() -> None:
    """What rang before the last `clear` was looked at, and wakes nobody."""
    reader = Reader()
    reader.mail.ring()
    reader.mail.clear()
    assert False is reader.mail.rung
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reader.run)
        await anyio.wait_all_tasks_blocked()
        assert [] == reader.notes
        reader.mail.ring()
    assert ["rung"] == reader.notes


async def test_many_rings_wake_once() -> None:
    """However often it rings, its waiter is counted awake once."""
    reader = Reader()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reader.run)
        await anyio.wait_all_tasks_blocked()
        for _ in range(3):
            reader.mail.ring()
    with anyio.fail_after(PATIENCE_S):
        await reader.activity.quiet()


@pytest.mark.parametrize("rung", [False, True], ids=["unrung", "rung-as-well"])
async def test_a_cancelled_wait_leaves_the_count_right(rung: bool) -> None:  # noqa: FBT001 - a row
    """A waiter that is cancelled is awake for its clean-up, and gone after it, whether or not the bell rang too."""
    reader = Reader()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reader.run)
        await anyio.wait_all_tasks_blocked()
        if rung:
            reader.mail.ring()
        reader.scope.cancel()
    with anyio.fail_after(PATIENCE_S):
        await reader.activity.quiet()
    reader.activity.enter()
    watch = Watch(reader.activity)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch.run)
        await anyio.wait_all_tasks_blocked()
        assert [] == watch.notes
        reader.activity.leave()
    assert ["quiet"] == watch.notes
