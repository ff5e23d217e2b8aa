# ruff: noqa: ARG002 - a broken store heeds less than it is told
"""The conformance suite: our stores pass it, and a store that breaks a law is found by the check that states it."""

import json
import subprocess
import sys
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

import pytest
from anyio.lowlevel import checkpoint

from a2asgi import MemoryStore, SQLiteStore
from a2asgi.ports import Answer, Decide, SessionInfo, SessionKey, Wakes
from a2asgi.testing import StoreCheckFailed, check_store
from a2asgi.testing.conformance import CHECKS, DURABLE_CHECKS, StoreClock, main, report
from a2core import Entry, Needs, Plan, Snapshot, Timer, WakeAt, WakeBy, WorkItem


async def test_the_memory_store_conforms() -> None:
    passed = await check_store(lambda clock, _: MemoryStore(clock=clock), durable=False)
    assert list(CHECKS) == passed


async def test_the_sqlite_store_conforms(tmp_path: Path) -> None:
    passed = await check_store(
        lambda clock, name: SQLiteStore(tmp_path / name, synchronous="NORMAL", clock=clock), durable=True
    )
    assert [*CHECKS, *DURABLE_CHECKS] == passed


# ── stores that break a law ──────────────────────────────────────────────────────────────


class Tampering(MemoryStore):
    """A memory store in which what is loaded and what is written may be changed on the way."""

    def transact_blocking(self, key: SessionKey, needs: Needs, decide: Decide[Answer]) -> Answer:
        return super().transact_blocking(
            key, needs, lambda seen, now_ms: self.written(key, decide(self.seen(key, seen), now_ms))
        )

    def seen(self, key: SessionKey, snapshot: Snapshot) -> Snapshot:
        return snapshot

    def written(self, key: SessionKey, plan: Plan[Answer]) -> Plan[Answer]:
        return plan


class CountsFromZero(Tampering):
    def seen(self, key: SessionKey, snapshot: Snapshot) -> Snapshot:
        return replace(snapshot, last_seq=max(0, snapshot.last_seq - 1))


class PromotesNoHead(Tampering):
    """Only the first item of a lane that was empty when it came is ever its head."""

    def __init__(self, *, clock: StoreClock) -> None:
        super().__init__(clock=clock)
        self._firsts: set[tuple[SessionKey, int]] = set()

    def seen(self, key: SessionKey, snapshot: Snapshot) -> Snapshot:
        return replace(snapshot, heads=tuple(head for head in snapshot.heads if (key, head.seq) in self._firsts))

    def written(self, key: SessionKey, plan: Plan[Answer]) -> Plan[Answer]:
        lanes = set(self._sessions[key].lanes) if key in self._sessions else set()
        for item in plan.items:
            if item.lane not in lanes:
                lanes.add(item.lane)
                self._firsts.add((key, item.seq))
        return plan


class TakesSecondItemsForHeads(Tampering):
    def seen(self, key: SessionKey, snapshot: Snapshot) -> Snapshot:
        if not snapshot.heads:
            return snapshot
        return replace(snapshot, heads=tuple(self._sessions[key].work.values()))


class WritesHalfAPlan(Tampering):
    def written(self, key: SessionKey, plan: Plan[Answer]) -> Plan[Answer]:
        return replace(plan, endings={}, timers=())


class KeepsNoTombstone(Tampering):
    def written(self, key: SessionKey, plan: Plan[Answer]) -> Plan[Answer]:
        return replace(plan, timers=tuple(timer for timer in plan.timers if isinstance(timer, Timer)))


class WritesWhenADecisionRaises(Tampering):
    def transact_blocking(self, key: SessionKey, needs: Needs, decide: Decide[Answer]) -> Answer:
        try:
            return super().transact_blocking(key, needs, decide)
        except LookupError:
            super().transact_blocking(key, Needs(), lambda _snapshot, now_ms: Plan(None, wake=WakeAt(now_ms)))
            raise


class RewritesPayloads(Tampering):
    def written(self, key: SessionKey, plan: Plan[Answer]) -> Plan[Answer]:
        return replace(plan, entries=tuple(replace(entry, payload=rewritten(entry.payload)) for entry in plan.entries))


def rewritten(payload: str) -> str:
    return payload if len(payload) > 4_000 else json.dumps(json.loads(payload), separators=(",", ":"))


class FoldsCase(Tampering):
    def transact_blocking(self, key: SessionKey, needs: Needs, decide: Decide[Answer]) -> Answer:
        return super().transact_blocking(replace(key, session_id=key.session_id.casefold()), needs, decide)


class LosesTheClaim(Tampering):
    def written(self, key: SessionKey, plan: Plan[Answer]) -> Plan[Answer]:
        return replace(plan, items=tuple(replace(item, claim=None) for item in plan.items))


class LoadsEveryDueTimer(Tampering):
    def seen(self, key: SessionKey, snapshot: Snapshot) -> Snapshot:
        if not snapshot.due_timers:
            return snapshot
        timers = [timer for timer in self._sessions[key].timers.values() if isinstance(timer, Timer)]
        due = tuple(timer for timer in timers if timer.due_at_ms <= self._clock.now_ms())
        return replace(snapshot, due_timers=due)


class HidesThatTimersAreLeft(Tampering):
    def seen(self, key: SessionKey, snapshot: Snapshot) -> Snapshot:
        return replace(snapshot, next_timer_at_ms=None) if len(snapshot.due_timers) > 1 else snapshot


class LosesWakeBy(Tampering):
    def written(self, key: SessionKey, plan: Plan[Answer]) -> Plan[Answer]:
        return replace(plan, wake=None) if isinstance(plan.wake, WakeBy) else plan


class RaisesByWakeBy(Tampering):
    def written(self, key: SessionKey, plan: Plan[Answer]) -> Plan[Answer]:
        return replace(plan, wake=WakeAt(plan.wake.at_ms)) if isinstance(plan.wake, WakeBy) else plan


class NeverClears(Tampering):
    def written(self, key: SessionKey, plan: Plan[Answer]) -> Plan[Answer]:
        return replace(plan, wake=None) if plan.wake == WakeAt(None) else plan


class ForgetsTheLease(MemoryStore):
    async def claim_wakes(self, contracts: Collection[str], *, limit: int, lease_ms: int, late_ms: int = 0) -> Wakes:
        return await super().claim_wakes(contracts, limit=limit, lease_ms=0, late_ms=late_ms)


class LosesWhatIsClaimed(MemoryStore):
    async def claim_wakes(self, contracts: Collection[str], *, limit: int, lease_ms: int, late_ms: int = 0) -> Wakes:
        wakes = await super().claim_wakes(contracts, limit=limit, lease_ms=lease_ms, late_ms=late_ms)
        for key in wakes.due:
            self._sessions[key].wake_at_ms = None
        return wakes


class ClaimsWhatOthersClaim(MemoryStore):
    async def claim_wakes(self, contracts: Collection[str], *, limit: int, lease_ms: int, late_ms: int = 0) -> Wakes:
        seen = [
            key
            for key, session in self._sessions.items()
            if key.contract in contracts and (session.wake_at_ms or 2**60) + late_ms <= self._clock.now_ms()
        ]
        wakes = await super().claim_wakes(contracts, limit=limit, lease_ms=lease_ms, late_ms=late_ms)
        return replace(wakes, due=tuple(seen[:limit]))


class IgnoresTheLimit(MemoryStore):
    async def claim_wakes(self, contracts: Collection[str], *, limit: int, lease_ms: int, late_ms: int = 0) -> Wakes:
        return await super().claim_wakes(contracts, limit=limit + 5, lease_ms=lease_ms, late_ms=late_ms)


class IgnoresLateMs(MemoryStore):
    async def claim_wakes(self, contracts: Collection[str], *, limit: int, lease_ms: int, late_ms: int = 0) -> Wakes:
        return await super().claim_wakes(contracts, limit=limit, lease_ms=lease_ms)


class IgnoresContracts(MemoryStore):
    async def claim_wakes(self, contracts: Collection[str], *, limit: int, lease_ms: int, late_ms: int = 0) -> Wakes:
        every = {key.contract for key in self._sessions}
        return await super().claim_wakes(every, limit=limit, lease_ms=lease_ms, late_ms=late_ms)


class ReadsToTheEnd(MemoryStore):
    async def read(self, key: SessionKey, after_seq: int, limit: int) -> list[Entry]:
        return await super().read(key, after_seq, 1_000_000)


class ListsEveryDeadLetter(MemoryStore):
    async def dead_letters(
        self, contract: str | None = None, *, after: tuple[SessionKey, int] | None = None, limit: int = 100
    ) -> list[tuple[SessionKey, WorkItem]]:
        return await super().dead_letters(after=after, limit=limit)


class ListsTheLastSessionTwice(MemoryStore):
    async def sessions(
        self, contract: str | None = None, *, after: SessionKey | None = None, limit: int = 100
    ) -> list[SessionInfo]:
        page = await super().sessions(contract, limit=1_000_000)
        start = [info.key for info in page].index(after) if after is not None else 0
        return page[start : start + limit]


class LooksBeforeItLeaps(MemoryStore):
    """Loads in one transaction and writes in another."""

    async def transact(self, key: SessionKey, needs: Needs, decide: Decide[Answer]) -> Answer:
        plan = await super().transact(key, needs, lambda snapshot, now_ms: Plan(decide(snapshot, now_ms)))
        await checkpoint()
        return await super().transact(key, needs, lambda _snapshot, _now_ms: plan)


class WritesPieceByPiece(MemoryStore):
    """Writes the timers of a plan a moment after the rest."""

    async def transact(self, key: SessionKey, needs: Needs, decide: Decide[Answer]) -> Answer:
        plan = await super().transact(key, needs, lambda snapshot, now_ms: whole_in(decide(snapshot, now_ms)))
        if plan.timers:
            await super().transact(key, needs, lambda _snapshot, _now_ms: Plan(None, timers=plan.timers))
        return plan.answer


def whole_in(plan: Plan[Answer]) -> Plan[Plan[Answer]]:
    """The plan without its timers, and all of it as the answer."""
    return Plan(
        plan,
        entries=plan.entries,
        items=plan.items,
        settled=plan.settled,
        endings=plan.endings,
        delivered=plan.delivered,
        wake=plan.wake,
    )


class OpensOnce(MemoryStore):
    _closed = False

    async def open(self) -> None:
        if self._closed:
            raise RuntimeError("closed for good")

    async def close(self) -> None:
        self._closed = True


class CountsAttemptsFromTheLastRedrive(Tampering):
    """With its budgets, a redriven event gets a fresh attempt too, so that an old holder passes for the new one."""

    def written(self, key: SessionKey, plan: Plan[Answer]) -> Plan[Answer]:
        return replace(plan, items=tuple(without_attempt(item) for item in plan.items))


def without_attempt(item: WorkItem) -> WorkItem:
    redriven = item.claim is None and item.dead is None and not item.failures and not item.lost
    return replace(item, attempt=0) if redriven and item.attempt in {1, 2} else item


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (CountsFromZero, "check_seqs_count_from_1"),
        (WritesHalfAPlan, "check_a_plan_is_written_whole"),
        (KeepsNoTombstone, "check_a_plan_is_written_whole"),
        (WritesWhenADecisionRaises, "check_a_decision_that_raises_writes_nothing"),
        (FoldsCase, "check_names_are_exact"),
        (RewritesPayloads, "check_payloads_come_back_byte_for_byte"),
        (LosesTheClaim, "check_names_are_exact"),
        (TakesSecondItemsForHeads, "check_heads_are_the_first_of_each_lane"),
        (PromotesNoHead, "check_heads_are_promoted"),
        (LoadsEveryDueTimer, "check_due_timers_are_bounded"),
        (HidesThatTimersAreLeft, "check_due_timers_are_bounded"),
        (LosesWakeBy, "check_wake_by_only_lowers"),
        (RaisesByWakeBy, "check_wake_by_only_lowers"),
        (NeverClears, "check_wake_at_sets_or_clears"),
        (ForgetsTheLease, "check_a_wake_is_due_from_its_instant"),
        (LosesWhatIsClaimed, "check_a_claimed_wake_is_put_off"),
        (ClaimsWhatOthersClaim, "check_each_wake_is_claimed_once"),
        (IgnoresTheLimit, "check_wakes_are_limited"),
        (IgnoresLateMs, "check_late_wakes"),
        (IgnoresContracts, "check_wakes_of_contracts"),
        (ReadsToTheEnd, "check_pages_of_a_log"),
        (ListsEveryDeadLetter, "check_pages_of_dead_letters"),
        (ListsTheLastSessionTwice, "check_pages_of_sessions"),
        (LooksBeforeItLeaps, "check_many_tasks_append"),
        (WritesPieceByPiece, "check_nobody_sees_part_of_a_plan"),
        (OpensOnce, "check_a_store_is_opened_again"),
        (CountsAttemptsFromTheLastRedrive, "check_decisions_go_as_in_memory"),
    ],
)
async def test_a_store_that_breaks_a_law_is_found(broken: Callable[..., MemoryStore], check: str) -> None:
    with pytest.raises(StoreCheckFailed) as caught:
        await check_store(lambda clock, _: broken(clock=clock), durable=False)
    assert check == caught.value.check
    assert str(caught.value).startswith(f"{check}: ")
    assert "expected" in caught.value.fault


async def test_a_store_with_a_clock_of_its_own_is_found() -> None:
    with pytest.raises(StoreCheckFailed, match=r"^check_due_timers: .*clock"):
        await check_store(lambda _clock, _name: MemoryStore(), durable=False)


async def test_a_store_that_is_not_as_durable_as_it_says_is_found() -> None:
    with pytest.raises(StoreCheckFailed, match=r"^check_data_outlives_its_store: "):
        await check_store(lambda clock, _: MemoryStore(clock=clock), durable=True)


# ── the command ──────────────────────────────────────────────────────────────────────────


def test_the_command_runs_every_check_on_both_loops() -> None:
    command = [sys.executable, "-W", "error", "-m", "a2asgi.testing.conformance", "--store", "memory"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    expected = [f"{backend:8}ok      {name}" for backend in ("asyncio", "trio") for name in CHECKS]
    assert [*expected, f"{2 * len(CHECKS)} passed, 0 failed"] == ran.stdout.splitlines()
    assert "" == ran.stderr


def test_the_command_makes_its_files_where_it_is_told_and_removes_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["check_seqs_count_from_1", "check_data_outlives_its_store"]
    status = main(["--store", "sqlite", "--path", str(tmp_path / "new" / "a2.db"), "--check", *names])
    assert (0, "4 passed, 0 failed") == (status, capsys.readouterr().out.splitlines()[-1])
    assert [] == list((tmp_path / "new").iterdir())


def test_the_command_tells_what_failed(capsys: pytest.CaptureFixture[str]) -> None:
    checks = [CHECKS["check_lookups"], CHECKS["check_heads_are_promoted"]]
    status = report(lambda clock, _: PromotesNoHead(clock=clock), checks)
    lines = capsys.readouterr().out.splitlines()
    assert (1, "2 passed, 2 failed") == (status, lines[-1])
    fault = (
        "check_heads_are_promoted: the heads once (1,) are settled and () are appended: expected [2, 3, 5], got [2, 5]"
    )
    assert [f"{backend:8}FAILED  {fault}" for backend in ("asyncio", "trio")] == [
        line for line in lines if "FAILED" in line
    ]
