"""The memory store: plain dicts under one lock, for tests, and the oracle of the conformance suite."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from threading import Lock

from anyio.lowlevel import checkpoint

from a2asgi.clock import Clock, SystemClock
from a2asgi.ports import Answer, Decide, SessionInfo, SessionKey, Wakes
from a2core import Entry, Needs, Plan, Snapshot, Timer, TimerRecord, WorkItem, moved_wake

DUE_TIMERS = 100
"""How many due timers one snapshot holds at most, so that a transaction stays short."""


@dataclass(slots=True)
class _Session:
    log: list[Entry] = field(default_factory=list)
    seqs: dict[str, int] = field(default_factory=dict)
    work: dict[int, WorkItem] = field(default_factory=dict)
    lanes: dict[str, dict[int, None]] = field(default_factory=dict)
    timers: dict[str, TimerRecord] = field(default_factory=dict)
    wake_at_ms: int | None = None

    def snapshot(self, needs: Needs, now_ms: int) -> Snapshot:
        due: list[Timer] = []
        later: list[Timer] = []
        if needs.heads:
            waiting = sorted((t for t in self.timers.values() if isinstance(t, Timer)), key=lambda t: t.due_at_ms)
            due = [timer for timer in waiting if timer.due_at_ms <= now_ms][:DUE_TIMERS]
            later = waiting[len(due) :]
        ids = [*needs.ids, *(draft.id for timer in due for draft in timer.drafts)]
        entries = {id_: self.log[self.seqs[id_] - 1] for id_ in ids if id_ in self.seqs}
        seqs = (*needs.seqs, *(entry.seq for entry in entries.values()))
        return Snapshot(
            last_seq=len(self.log),
            entries=entries,
            items={seq: self.work[seq] for seq in seqs if seq in self.work},
            timers={id_: self.timers[id_] for id_ in needs.timers if id_ in self.timers},
            heads=tuple(self.work[next(iter(lane))] for lane in self.lanes.values()) if needs.heads else (),
            due_timers=tuple(due),
            next_timer_at_ms=later[0].due_at_ms if later else None,
        )

    def write(self, plan: Plan[object]) -> None:
        for entry in plan.entries:
            self.log.append(entry)
            self.seqs[entry.id] = entry.seq
        for seq in plan.settled:
            lane = self.work.pop(seq).lane
            del self.lanes[lane][seq]
            if not self.lanes[lane]:
                del self.lanes[lane]
        for item in plan.items:
            self.work[item.seq] = item
            self.lanes.setdefault(item.lane, {}).setdefault(item.seq)
        for seq, ending in plan.endings.items():
            self.log[seq - 1] = replace(self.log[seq - 1], ending=ending)
        for timer in plan.timers:
            self.timers[timer.id] = timer
        for timer_id in plan.delivered:
            del self.timers[timer_id]
        self.wake_at_ms = moved_wake(self.wake_at_ms, plan.wake)


class MemoryStore:
    """Keeps everything in this process and loses it with the process."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
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
            now_ms = self._clock.now_ms()
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
            return session.log[after_seq : after_seq + limit] if session is not None else []

    async def claim_wakes(self, contracts: Collection[str], *, limit: int, lease_ms: int, late_ms: int = 0) -> Wakes:
        """As Store.claim_wakes."""
        await checkpoint()
        with self._lock:
            now_ms = self._clock.now_ms()
            waiting = sorted(
                (session.wake_at_ms + late_ms, key.contract, key.session_id)
                for key, session in self._sessions.items()
                if session.wake_at_ms is not None and key.contract in contracts
            )
            due = [SessionKey(contract, id_) for at, contract, id_ in waiting if at <= now_ms][:limit]
            for key in due:
                self._sessions[key].wake_at_ms = now_ms + lease_ms
            left = [at for at, _, _ in waiting[len(due) :]] + [now_ms + lease_ms + late_ms] * bool(due)
            return Wakes(tuple(due), min(left) - now_ms if left else None)

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
                SessionInfo(key, len(session.log), session.wake_at_ms)
                for key, session in self._sessions.items()
                if contract in {None, key.contract} and (key.contract, key.session_id) > start
            ]
        return sorted(found, key=lambda info: (info.key.contract, info.key.session_id))[:limit]
