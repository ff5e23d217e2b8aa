"""The memory store: plain dicts under one lock, for tests, and the oracle of the conformance suite."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from threading import Lock

from anyio.lowlevel import checkpoint

from a2asgi.clock import Clock, SystemClock
from a2asgi.ports import DUE_TIMERS, Answer, Decide, SessionInfo, SessionKey, Wakes
from a2core import Entry, Needs, Plan, Snapshot, Timer, TimerRecord, WorkItem, moved_wake


@dataclass(slots=True)
class _Session:
    last_seq: int = 0
    log: dict[int, Entry] = field(default_factory=dict)
    seqs: dict[str, int] = field(default_factory=dict)
    expires: dict[int, int] = field(default_factory=dict)
    work: dict[int, WorkItem] = field(default_factory=dict)
    lanes: dict[str, dict[int, None]] = field(default_factory=dict)
    timers: dict[str, TimerRecord] = field(default_factory=dict)
    wake_at_ms: int | None = None

    @property
    def is_empty(self) -> bool:
        return not (self.log or self.work or self.timers)

    def snapshot(self, needs: Needs, now_ms: int) -> Snapshot:
        due: list[Timer] = []
        later: list[Timer] = []
        if needs.heads and self.timers:
            waiting = sorted((t for t in self.timers.values() if isinstance(t, Timer)), key=lambda t: t.due_at_ms)
            due = [timer for timer in waiting if timer.due_at_ms <= now_ms][:DUE_TIMERS]
            later = waiting[len(due) :]
        ids = [*needs.ids, *(draft.id for timer in due for draft in timer.drafts)]
        entries = {id_: self.log[self.seqs[id_]] for id_ in ids if id_ in self.seqs}
        seqs = (*needs.seqs, *(entry.seq for entry in entries.values()))
        return Snapshot(
            last_seq=self.last_seq,
            entries=entries,
            items={seq: self.work[seq] for seq in seqs if seq in self.work},
            timers={id_: self.timers[id_] for id_ in needs.timers if id_ in self.timers},
            keyed=self.keyed(needs.keys) if needs.keys else {},
            heads=tuple(self.work[next(iter(lane))] for lane in self.lanes.values()) if needs.heads else (),
            due_timers=tuple(due),
            next_timer_at_ms=later[0].due_at_ms if later else None,
            behind=None if needs.behind is None else self._behind(needs.behind),
        )

    def keyed(self, keys: Collection[str]) -> dict[str, str]:
        work = {item.key: item.entry.id for item in self.work.values() if item.key in keys and item.dead is None}
        waiting = {t.key: t.id for t in self.timers.values() if isinstance(t, Timer) and t.key in keys}
        return {key: id_ for key, id_ in (work | waiting).items() if key is not None}

    def write(self, plan: Plan[object]) -> None:
        for entry in plan.entries:
            self.log[entry.seq] = entry
            self.seqs[entry.id] = self.last_seq = entry.seq
        for seq in plan.settled:
            self._leave_lane(self.work.pop(seq))
        for item in plan.items:
            before = self.work.get(item.seq)
            if before is not None and before.lane != item.lane:
                self._leave_lane(before)
            self.work[item.seq] = item
            lane = self.lanes.setdefault(item.lane, {})
            if item.seq not in lane:
                lane[item.seq] = None
                if before is not None:  # it came from another lane, perhaps as the first of this one
                    self.lanes[item.lane] = dict.fromkeys(sorted(lane))
        for seq, ending in plan.endings.items():
            self.log[seq] = replace(self.log[seq], ending=ending)
        self.expires.update(plan.expires)
        for timer in plan.timers:
            self.timers[timer.id] = timer
        for timer_id in plan.delivered:
            del self.timers[timer_id]
        self.wake_at_ms = moved_wake(self.wake_at_ms, plan.wake)

    def purge(self, seq: int) -> None:
        del self.expires[seq]
        del self.seqs[self.log.pop(seq).id]

    def _behind(self, seq: int) -> WorkItem | None:
        item = self.work.get(seq)
        lane = () if item is None else self.lanes[item.lane]
        return next((self.work[other] for other in lane if other > seq), None)

    def _leave_lane(self, item: WorkItem) -> None:
        lane = self.lanes[item.lane]
        del lane[item.seq]
        if not lane:
            del self.lanes[item.lane]


class MemoryStore:
    """Keeps everything in this process and loses it with the process."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self.offset_ms: int = 0
        self._lock = Lock()
        self._sessions: dict[SessionKey, _Session] = {}

    def __repr__(self) -> str:
        return f"MemoryStore({len(self._sessions)} sessions)"

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to close: what it holds stays."""

    async def ping(self) -> None:
        """It always answers."""

    async def transact(self, key: SessionKey, needs: Needs, decide: Decide[Answer]) -> Answer:
        """As Store.transact."""
        await checkpoint()
        return self.transact_blocking(key, needs, decide)

    def transact_blocking(self, key: SessionKey, needs: Needs, decide: Decide[Answer]) -> Answer:
        """As Store.transact_blocking."""
        with self._lock:
            now_ms = self._now_ms()
            session = self._sessions.get(key) or _Session()
            plan = decide(session.snapshot(needs, now_ms), now_ms)
            if plan.writes:
                self._sessions[key] = session
                session.write(plan)
            return plan.answer

    async def read(self, key: SessionKey, after_seq: int, limit: int) -> list[Entry]:
        """As Store.read."""
        await checkpoint()
        with self._lock:
            session = self._sessions.get(key)
            if session is None:
                return []
            return [entry for seq, entry in session.log.items() if seq > after_seq][:limit]

    async def claim_wakes(self, contracts: Collection[str], *, limit: int, lease_ms: int, late_ms: int = 0) -> Wakes:
        """As Store.claim_wakes."""
        await checkpoint()
        return self.take_wakes(contracts, limit=limit, lease_ms=lease_ms, late_ms=late_ms)

    def take_wakes(self, contracts: Collection[str], *, limit: int, lease_ms: int, late_ms: int = 0) -> Wakes:
        """The same at once, for who moves this store's clock."""
        with self._lock:
            now_ms = self._now_ms()
            waiting = sorted(
                (session.wake_at_ms + late_ms, key.contract, key.session_id)
                for key, session in self._sessions.items()
                if session.wake_at_ms is not None and key.contract in contracts
            )
            due = [SessionKey(contract, id_) for at, contract, id_ in waiting[:limit] if at <= now_ms]
            for key in due:
                self._sessions[key].wake_at_ms = now_ms + lease_ms
            left = [at for at, _, _ in waiting[len(due) : len(due) + 1]] + [now_ms + lease_ms + late_ms] * bool(due)
            return Wakes(tuple(due), min(left) - now_ms if left else None)

    async def purge(self, limit: int) -> int:
        """As Store.purge."""
        await checkpoint()
        with self._lock:
            now_ms = self._now_ms()
            expired = sorted(
                (at_ms, key.contract, key.session_id, seq)
                for key, session in self._sessions.items()
                for seq, at_ms in session.expires.items()
                if at_ms <= now_ms
            )[:limit]
            for _, contract, session_id, seq in expired:
                key = SessionKey(contract, session_id)
                self._sessions[key].purge(seq)
                if self._sessions[key].is_empty:
                    del self._sessions[key]
            return len(expired)

    def _now_ms(self) -> int:
        return self._clock.now_ms() + self.offset_ms

    async def dead_letters(
        self, contract: str | None = None, *, after: tuple[SessionKey, int] | None = None, limit: int = 100
    ) -> list[tuple[SessionKey, WorkItem]]:
        """As Store.dead_letters."""
        await checkpoint()
        start = ("", "", 0) if after is None else (after[0].contract, after[0].session_id, after[1])
        return [
            (key, item)
            for key, item in self.all_dead_letters()
            if (key.contract, key.session_id, item.seq) > start and contract in {None, key.contract}
        ][:limit]

    def all_dead_letters(self) -> list[tuple[SessionKey, WorkItem]]:
        """Every dead letter, by contract, session id and seq."""
        with self._lock:
            found = [
                (key, item)
                for key, session in self._sessions.items()
                for item in session.work.values()
                if item.dead is not None
            ]
        return sorted(found, key=lambda one: (one[0].contract, one[0].session_id, one[1].seq))

    async def sessions(
        self, contract: str | None = None, *, after: SessionKey | None = None, limit: int = 100
    ) -> list[SessionInfo]:
        """As Store.sessions."""
        await checkpoint()
        start = ("", "") if after is None else (after.contract, after.session_id)
        with self._lock:
            found = [
                SessionInfo(key, session.last_seq, session.wake_at_ms)
                for key, session in self._sessions.items()
                if contract in {None, key.contract} and (key.contract, key.session_id) > start
            ]
        return sorted(found, key=lambda info: (info.key.contract, info.key.session_id))[:limit]
