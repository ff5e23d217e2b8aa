"""The conformance suite: every check of a store, each on a store of its own."""

from collections.abc import Awaitable, Callable, Mapping
from secrets import token_hex
from typing import TypeAlias

import anyio

from a2asgi.testing import store_checks, store_model, store_run_checks, store_traffic_checks, store_wake_checks
from a2asgi.testing.store_bench import Bench, MakeStore, Opened, StoreClock

Check: TypeAlias = Callable[[Bench], Awaitable[None]]

TIMEOUT_S = 180
"""A check that takes longer hangs."""

CHECKS: Mapping[str, Check] = {
    check.__name__: check
    for check in (
        store_checks.check_seqs_count_from_1,
        store_checks.check_a_plan_is_written_whole,
        store_checks.check_a_decision_that_raises_writes_nothing,
        store_checks.check_a_plan_without_rows_leaves_no_trace,
        store_checks.check_lookups,
        store_checks.check_names_are_exact,
        store_checks.check_payloads_come_back_byte_for_byte,
        store_checks.check_endings_are_noted,
        store_checks.check_work_comes_back_as_it_was,
        store_checks.check_heads_are_the_first_of_each_lane,
        store_checks.check_heads_are_promoted,
        store_checks.check_timers_come_back_as_they_were,
        store_checks.check_due_timers,
        store_checks.check_due_timers_are_bounded,
        store_checks.check_decisions_get_the_time_of_the_store,
        store_wake_checks.check_wake_by_only_lowers,
        store_wake_checks.check_wake_at_sets_or_clears,
        store_wake_checks.check_a_wake_is_due_from_its_instant,
        store_wake_checks.check_a_claimed_wake_is_put_off,
        store_wake_checks.check_each_wake_is_claimed_once,
        store_wake_checks.check_wakes_are_limited,
        store_wake_checks.check_late_wakes,
        store_wake_checks.check_wakes_of_contracts,
        store_wake_checks.check_a_claimed_wake_keeps_its_work,
        store_wake_checks.check_pages_of_a_log,
        store_wake_checks.check_pages_of_dead_letters,
        store_wake_checks.check_pages_of_sessions,
        store_run_checks.check_open_work_is_found_by_its_key,
        store_run_checks.check_waiting_timers_are_found_by_their_key,
        store_run_checks.check_an_item_changes_its_lane,
        store_run_checks.check_who_is_behind,
        store_run_checks.check_what_expired_is_purged,
        store_run_checks.check_the_last_expiry_counts,
        store_run_checks.check_a_purged_log_goes_on,
        store_run_checks.check_each_event_is_purged_once,
        store_run_checks.check_a_session_goes_with_its_last_event,
        store_run_checks.check_a_tests_clock_moves_the_stores,
        store_traffic_checks.check_many_tasks_append,
        store_traffic_checks.check_many_sessions_at_once,
        store_traffic_checks.check_nobody_sees_part_of_a_plan,
        store_traffic_checks.check_threads_beside_tasks,
        store_traffic_checks.check_another_event_loop,
        store_traffic_checks.check_a_cancelled_transaction_is_whole_or_absent,
        store_traffic_checks.check_a_store_is_opened_again,
        store_run_checks.check_one_key_has_one_run,
        store_model.check_decisions_go_as_in_memory,
    )
}
"""What holds for every store, by name."""

DURABLE_CHECKS: Mapping[str, Check] = {
    check.__name__: check
    for check in (
        store_traffic_checks.check_closing_keeps_what_was_answered,
        store_traffic_checks.check_data_outlives_its_store,
        store_traffic_checks.check_two_stores_share_the_data,
        store_wake_checks.check_two_stores_share_the_wakes,
        store_run_checks.check_runs_outlive_their_store,
    )
}
"""What holds for every store whose data is not in its own process, by name."""


class StoreCheckFailed(AssertionError):
    """A store broke a law. `check` is the name of the check that found it, `law` what it states, `fault` what came."""

    def __init__(self, check: str, law: str, fault: str) -> None:
        super().__init__(f"{check}: {fault}\n(the law: {law})")
        self.check = check
        self.law = law
        self.fault = fault


async def check_store(make_store: MakeStore, *, durable: bool) -> list[str]:
    """Run every check on the stores that `make_store(clock, name)` makes, and return the names of the checks.

    A new name must stand for an empty store. `durable` says that stores made with one name, one after another or at
    the same time, hold the same data; without it nothing of the kind is checked. Such a test is all that a store needs:

        async def test_my_store_is_a_store(tmp_path: Path) -> None:
            await check_store(lambda clock, name: MyStore(tmp_path / name, clock=clock), durable=True)

    Raises StoreCheckFailed for the first check that fails. Run it on each event loop that the store is for.
    """
    checks = {**CHECKS, **(DURABLE_CHECKS if durable else {})}
    for check in checks.values():
        await run_check(check, make_store)
    return list(checks)


async def run_check(check: Check, make_store: MakeStore) -> None:
    """Run one check on a fresh store. Raises StoreCheckFailed."""
    clock = StoreClock()
    name = f"a2_{token_hex(8)}"
    try:
        bench = Bench(clock, lambda: make_store(clock, name))
        with anyio.fail_after(TIMEOUT_S):
            async with Opened(bench.store):
                await check(bench)
    except AssertionError as error:
        raise _failed(check, str(error)) from error
    except TimeoutError as error:
        raise _failed(check, f"expected an end within {TIMEOUT_S} s, got none, or {error!r}") from error
    except Exception as error:
        raise _failed(check, f"expected no error, got {error!r}") from error


def _failed(check: Check, fault: str) -> StoreCheckFailed:
    law = " ".join((check.__doc__ or "").split())
    return StoreCheckFailed(check.__name__, law, fault)
