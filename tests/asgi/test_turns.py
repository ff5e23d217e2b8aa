"""Turns: one after another in the order of asking, also where somebody stops waiting."""

import anyio
from anyio import to_thread, wait_all_tasks_blocked

from a2asgi.turns import Turns


async def test_turns_are_given_in_the_order_of_asking() -> None:
    turns = Turns()
    order: list[int] = []

    async def ask(number: int) -> None:
        await turns.take("pen")
        order.append(number)
        turns.give("pen")

    await turns.take("pen")
    async with anyio.create_task_group() as tasks:
        for number in range(5):
            tasks.start_soon(ask, number)
            await wait_all_tasks_blocked()
        await turns.take("paper")  # another thing, which nobody has
        turns.give("paper")
        assert [] == order
        turns.give("pen")
    assert [0, 1, 2, 3, 4] == order


async def test_who_stops_waiting_is_passed_over_and_loses_no_turn() -> None:
    turns = Turns()
    await turns.take("pen")
    for given_first in (False, True):
        async with anyio.create_task_group() as tasks:
            scope = anyio.CancelScope()

            async def ask(scope: anyio.CancelScope = scope) -> None:
                with scope:
                    await turns.take("pen")
                    turns.give("pen")  # a turn that was called may be taken before the loop hears of the end

            tasks.start_soon(ask)
            await wait_all_tasks_blocked()
            if given_first:
                turns.give("pen")
            scope.cancel()
    await turns.take("pen")
    turns.give("pen")


async def test_each_event_loop_has_turns_of_its_own() -> None:
    turns = Turns()
    await turns.take("pen")

    async def elsewhere() -> bool:
        await turns.take("pen")
        turns.give("pen")
        return True

    assert await to_thread.run_sync(lambda: anyio.run(elsewhere, backend="trio"))
    turns.give("pen")
