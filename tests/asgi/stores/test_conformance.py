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
from a2core import (
    Entry,
    Needs,
    Plan,
    Snapshot,
    Timer,
    TimerRecord,
    Tombstone,
    WakeAt,
    WakeBy,
    WorkItem,
)


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
        expires=plan.expires,
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


# ── stores that break a law of jobs and crons ────────────────────────────────────────────


class LosesKeys(Tampering):
    def written(self, key: SessionKey, plan: Plan[Answer]) -> Plan[Answer]:
        return replace(plan, items=tuple(replace(item, key=None) for item in plan.items))


class LosesProgress(Tampering):
    def written(self, key: SessionKey, plan: Plan[Answer]) -> Plan[Answer]:
        return replace(plan, items=tuple(replace(item, progress=None) for item in plan.items))


class LosesProgressWhenItIsTriedAgain(Tampering):
    def written(self, key: SessionKey, plan: Plan[Answer]) -> Plan[Answer]:
        items = (replace(item, progress=None) if item.claim and item.attempt > 1 else item for item in plan.items)
        return replace(plan, items=tuple(items))


class LosesRules(Tampering):
    def written(self, key: SessionKey, plan: Plan[Answer]) -> Plan[Answer]:
        timers = (replace(timer, rule=None) if isinstance(timer, Timer) else timer for timer in plan.timers)
        return replace(plan, timers=tuple(timers))


class LosesTheKeysOfDrafts(Tampering):
    def written(self, key: SessionKey, plan: Plan[Answer]) -> Plan[Answer]:
        return replace(plan, timers=tuple(map(without_keys, plan.timers)))


def without_keys(timer: TimerRecord) -> TimerRecord:
    if isinstance(timer, Tombstone):
        return timer
    return replace(timer, drafts=tuple(replace(draft, key=None) for draft in timer.drafts))


class FindsDeadWorkByItsKey(Tampering):
    def seen(self, key: SessionKey, snapshot: Snapshot) -> Snapshot:
        dead = [(item.key, item.entry.id) for of, item in self.all_dead_letters_unlocked() if of == key]
        return replace(snapshot, keyed={**snapshot.keyed, **{name: id_ for name, id_ in dead if name is not None}})

    def all_dead_letters_unlocked(self) -> list[tuple[SessionKey, WorkItem]]:
        return [
            (key, item)
            for key, session in self._sessions.items()
            for item in session.work.values()
            if item.dead is not None
        ]


class FindsTheKeysOfOtherSessions(MemoryStore):
    def transact_blocking(self, key: SessionKey, needs: Needs, decide: Decide[Answer]) -> Answer:
        found: dict[str, str] = {}
        for session in self._sessions.values():
            found |= session.keyed(needs.keys)
        return super().transact_blocking(
            key, needs, lambda seen, now_ms: decide(replace(seen, keyed=found | dict(seen.keyed)), now_ms)
        )


class FindsNoTimerByItsKey(Tampering):
    def seen(self, key: SessionKey, snapshot: Snapshot) -> Snapshot:
        timers = self._sessions[key].timers if key in self._sessions else {}
        return replace(snapshot, keyed={name: id_ for name, id_ in snapshot.keyed.items() if id_ not in timers})


class LooksForKeysBeforeItLeaps(MemoryStore):
    """Finds what has a key in a transaction of its own, before the one that writes."""

    async def transact(self, key: SessionKey, needs: Needs, decide: Decide[Answer]) -> Answer:
        keyed = await super().transact(key, Needs(keys=needs.keys), lambda seen, _: Plan(seen.keyed))
        await checkpoint()
        return await super().transact(key, needs, lambda seen, now_ms: decide(replace(seen, keyed=keyed), now_ms))


class KeepsItemsInTheirLanes(Tampering):
    def written(self, key: SessionKey, plan: Plan[Answer]) -> Plan[Answer]:
        work = self._sessions[key].work if key in self._sessions else {}
        moved = (replace(item, lane=work[item.seq].lane) if item.seq in work else item for item in plan.items)
        return replace(plan, items=tuple(moved))


class TellsWhoIsNextInAnyLane(Tampering):
    def seen(self, key: SessionKey, snapshot: Snapshot) -> Snapshot:
        if snapshot.behind is None:
            return snapshot
        return replace(snapshot, behind=self._sessions[key].work.get(snapshot.behind.seq - 1))


class QueuesMovedItemsLast(MemoryStore):
    """An item that changes its lane comes behind all that is open there."""

    def transact_blocking(self, key: SessionKey, needs: Needs, decide: Decide[Answer]) -> Answer:
        session = self._sessions.get(key)
        before = {} if session is None else {seq: item.lane for seq, item in session.work.items()}
        answer = super().transact_blocking(key, needs, decide)
        if session is not None:
            for seq, item in session.work.items():
                if before.get(seq, item.lane) != item.lane:
                    session.lanes[item.lane][seq] = session.lanes[item.lane].pop(seq)
        return answer


class LeavesTheOldHeadBesideTheNew(Tampering):
    """Where an item moves before the head of a lane, the two of them are its heads."""

    def __init__(self, *, clock: StoreClock) -> None:
        super().__init__(clock=clock)
        self._heads: dict[SessionKey, set[int]] = {}

    def seen(self, key: SessionKey, snapshot: Snapshot) -> Snapshot:
        session = self._sessions.get(key)
        if session is None:
            return snapshot
        stale = [session.work[seq] for seq in self._heads.setdefault(key, set()) if seq in session.work]
        self._heads[key] |= {next(iter(lane)) for lane in session.lanes.values()}
        return replace(snapshot, heads=tuple({item.seq: item for item in (*snapshot.heads, *stale)}.values()))


class LosesExpiry(Tampering):
    def written(self, key: SessionKey, plan: Plan[Answer]) -> Plan[Answer]:
        return replace(plan, expires={})


class KeepsTheFirstExpiry(Tampering):
    def written(self, key: SessionKey, plan: Plan[Answer]) -> Plan[Answer]:
        known = self._sessions[key].expires if key in self._sessions else {}
        return replace(plan, expires={seq: at_ms for seq, at_ms in plan.expires.items() if seq not in known})


class PurgesEverything(MemoryStore):
    async def purge(self, limit: int) -> int:
        return await super().purge(1_000_000)


class PurgesAheadOfTime(MemoryStore):
    async def purge(self, limit: int) -> int:
        self.offset_ms += 3_600_000
        purged = await super().purge(limit)
        self.offset_ms -= 3_600_000
        return purged


class PurgesTheNewestFirst(MemoryStore):
    async def purge(self, limit: int) -> int:
        for session in self._sessions.values():
            session.expires = {seq: 2 * self._now_ms() - at_ms for seq, at_ms in session.expires.items()}
        self.offset_ms += 1_000_000_000
        purged = await super().purge(limit)
        self.offset_ms -= 1_000_000_000
        for session in self._sessions.values():
            session.expires = {seq: 2 * self._now_ms() - at_ms for seq, at_ms in session.expires.items()}
        return purged


class PurgesSessionBySession(MemoryStore):
    """The oldest of the session that was made first, before what is older in others."""

    async def purge(self, limit: int) -> int:
        purged = 0
        sessions = self._sessions
        for key, session in list(sessions.items()):
            self._sessions = {key: session}
            purged += await super().purge(limit - purged)
            if not self._sessions:
                del sessions[key]
        self._sessions = sessions
        return purged


class CountsTheLogAnew(Tampering):
    """Takes the length of the log for the last seq, once events are purged."""

    def seen(self, key: SessionKey, snapshot: Snapshot) -> Snapshot:
        session = self._sessions.get(key)
        return snapshot if session is None or not session.log else replace(snapshot, last_seq=len(session.log))


class ReadsOnlyWithoutGaps(MemoryStore):
    """Reads as many seqs as the limit says, whether or not there is an event of each."""

    async def read(self, key: SessionKey, after_seq: int, limit: int) -> list[Entry]:
        return [entry for entry in await super().read(key, after_seq, limit) if entry.seq <= after_seq + limit]


class KeepsTheIdsOfThePurged(Tampering):
    def __init__(self, *, clock: StoreClock) -> None:
        super().__init__(clock=clock)
        self._ids: dict[SessionKey, dict[str, Entry]] = {}

    def seen(self, key: SessionKey, snapshot: Snapshot) -> Snapshot:
        return replace(snapshot, entries={**snapshot.entries, **self._ids.get(key, {})})

    async def purge(self, limit: int) -> int:
        before = {key: dict(session.log) for key, session in self._sessions.items()}
        purged = await super().purge(limit)
        for key, log in before.items():
            left = self._sessions[key].log if key in self._sessions else {}
            self._ids.setdefault(key, {}).update({log[seq].id: log[seq] for seq in log.keys() - left.keys()})
        return purged


class CountsWhatOthersPurge(MemoryStore):
    async def purge(self, limit: int) -> int:
        now_ms = self._now_ms()
        expired = [at for session in self._sessions.values() for at in session.expires.values() if at <= now_ms]
        await checkpoint()
        await super().purge(limit)
        return min(len(expired), limit)


class KeepsEmptySessions(MemoryStore):
    async def purge(self, limit: int) -> int:
        before = dict(self._sessions)
        purged = await super().purge(limit)
        self._sessions = before | self._sessions
        return purged


class RemovesSessionsWithTimers(MemoryStore):
    async def purge(self, limit: int) -> int:
        purged = await super().purge(limit)
        for key, session in list(self._sessions.items()):
            if purged and not session.log and not any(isinstance(timer, Timer) for timer in session.timers.values()):
                del self._sessions[key]
        return purged


class NeverMovesItsClock(MemoryStore):
    def _now_ms(self) -> int:
        return self._clock.now_ms()


class JudgesWakesByAnotherClock(MemoryStore):
    async def claim_wakes(self, contracts: Collection[str], *, limit: int, lease_ms: int, late_ms: int = 0) -> Wakes:
        offset_ms, self.offset_ms = self.offset_ms, 0
        wakes = await super().claim_wakes(contracts, limit=limit, lease_ms=lease_ms, late_ms=late_ms)
        self.offset_ms = offset_ms
        return wakes


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
        (LosesProgressWhenItIsTriedAgain, "check_decisions_go_as_in_memory"),
        (LosesKeys, "check_work_comes_back_as_it_was"),
        (LosesProgress, "check_work_comes_back_as_it_was"),
        (LosesRules, "check_timers_come_back_as_they_were"),
        (LosesTheKeysOfDrafts, "check_timers_come_back_as_they_were"),
        (FindsDeadWorkByItsKey, "check_open_work_is_found_by_its_key"),
        (FindsTheKeysOfOtherSessions, "check_open_work_is_found_by_its_key"),
        (FindsNoTimerByItsKey, "check_waiting_timers_are_found_by_their_key"),
        (LooksForKeysBeforeItLeaps, "check_one_key_has_one_run"),
        (KeepsItemsInTheirLanes, "check_an_item_changes_its_lane"),
        (QueuesMovedItemsLast, "check_an_item_changes_its_lane"),
        (TellsWhoIsNextInAnyLane, "check_who_is_behind"),
        (LeavesTheOldHeadBesideTheNew, "check_an_item_changes_its_lane"),
        (LosesExpiry, "check_what_expired_is_purged"),
        (PurgesEverything, "check_what_expired_is_purged"),
        (PurgesAheadOfTime, "check_what_expired_is_purged"),
        (PurgesTheNewestFirst, "check_what_expired_is_purged"),
        (PurgesSessionBySession, "check_what_expired_is_purged"),
        (KeepsTheFirstExpiry, "check_the_last_expiry_counts"),
        (CountsTheLogAnew, "check_a_purged_log_goes_on"),
        (ReadsOnlyWithoutGaps, "check_a_purged_log_goes_on"),
        (KeepsTheIdsOfThePurged, "check_a_purged_log_goes_on"),
        (CountsWhatOthersPurge, "check_each_event_is_purged_once"),
        (KeepsEmptySessions, "check_a_session_goes_with_its_last_event"),
        (RemovesSessionsWithTimers, "check_a_session_goes_with_its_last_event"),
        (NeverMovesItsClock, "check_a_tests_clock_moves_the_stores"),
        (JudgesWakesByAnotherClock, "check_a_tests_clock_moves_the_stores"),
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
