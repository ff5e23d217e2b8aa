"""The laws of a world, watched at the store: an observer that keeps its own books and asks no production code."""

import asyncio
from collections.abc import Awaitable, Collection
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from types import TracebackType
from typing import Any, Protocol

from a2asgi.context import TimerReceipt
from a2asgi.ports import SessionKey
from a2core import (
    CalledOff,
    DrainTimings,
    Entry,
    Plan,
    Redriven,
    Resolved,
    RetryPolicy,
    Timer,
    Tombstone,
    Triggered,
    WakeAt,
    WorkItem,
    timer_event_id,
    timer_id,
)

PARK_MS = 300_000
"""How long work of an unknown type waits (engine.md 2)."""


class Law(StrEnum):
    """What must hold."""

    LOG = "seqs are counted, and each event id is in the log once"
    ACKNOWLEDGED = "what was acknowledged is in the log"
    CONFLICT = "an id with other content is refused"
    SETTLE = "at most one settle, by who handled the event"
    FENCE = "only the holder of the live claim writes"
    HELD = "a living holder keeps its claim"
    CAUSE = "what a handler returned comes when its event is settled, and only then"
    OPEN = "an event that has a handler is open work"
    LANE = "a lane's events are handled one at a time, in order"
    OUTCOME = "what a handler answered is what becomes of its event"
    BUDGET = "failures and lost claims are counted, and only they bury"
    KEY = "of a key there is one unfinished run"
    DUE = "nothing is handled before it is due"
    KNOWN = "an unknown type is parked"
    EARLY = "a timer is never early"
    TIMER = "an accepted timer's events appear, unless it was cancelled"
    WAKE = "nothing open is without a wake-up"
    LEASE = "a wake-up that was taken is put off by its lease"
    ANSWER = "a delivery is acknowledged once its successor is on its way"
    LOST = "the sweep finds nothing where nothing is lost"
    SETTLED = "after the storm every event is settled, or a visible dead letter"
    CRON = "a schedule goes on"
    BUG = "nothing unexpected is raised, and nothing goes round in circles"


@dataclass(frozen=True, slots=True)
class Breach:
    """A law that was broken, how, and when in virtual milliseconds."""

    law: Law
    text: str
    at_ms: int


class Outcome(StrEnum):
    """How a handler ended."""

    UNFINISHED = "unfinished"
    DONE = "done"
    CALLED_OFF = "called off"
    SNOOZED = "snoozed"
    FAILED = "failed"
    GIVEN_UP = "given up"
    CUT = "cancelled"


class Actor(Protocol):
    """The process that writes."""

    name: str
    stopping: bool
    snooze_ms: int
    timings: DrainTimings

    def policy(self, contract: str, event_type: str) -> RetryPolicy | None: ...
    def is_handled(self, contract: str, event_type: str) -> bool: ...
    def should_hold(self, holder: str) -> bool: ...


@dataclass(slots=True)
class Act:
    """One run of a handler. As a context it notes how the handler ended."""

    key: SessionKey
    event_id: str
    attempt: int
    outcome: Outcome = Outcome.UNFINISHED
    products: list[str] = field(default_factory=list)
    ended: bool = False

    def __enter__(self) -> None:
        """The handler's own work begins."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.outcome = Outcome.FAILED if isinstance(error, Exception) else Outcome.CUT
        elif self.outcome is Outcome.UNFINISHED:
            self.outcome = Outcome.DONE


@dataclass(frozen=True, slots=True)
class Change:
    """What a plan makes of one piece of work."""

    actor: Actor
    key: SessionKey
    old: WorkItem
    new: WorkItem
    now_ms: int
    answer: object

    def __str__(self) -> str:
        return f"{self.actor.name} at {self.now_ms} made {self.new} of {self.old} in {self.key}: {self.answer}"

    @property
    def is_claim(self) -> bool:
        """Whether it is claimed by this."""
        return self.new.claim is not None and self.new.attempt == self.old.attempt + 1

    @property
    def was_held(self) -> bool:
        """Whether someone held it."""
        return self.old.claim is not None and self.old.claim.expires_at_ms > self.now_ms


@dataclass(slots=True)
class Book:
    """What the observer knows of one session."""

    log: dict[int, Entry] = field(default_factory=dict)
    seqs: dict[str, int] = field(default_factory=dict)
    work: dict[int, WorkItem] = field(default_factory=dict)
    timers: dict[str, Timer] = field(default_factory=dict)
    cancelled: set[str] = field(default_factory=set)
    wake_at_ms: int | None = None
    stirred_ms: int = 0
    """When it was given something to do last, by anyone but a drain."""

    def heads(self) -> dict[str, WorkItem]:
        """The first open work of each lane."""
        heads: dict[str, WorkItem] = {}
        for item in self.work.values():
            head = heads.get(item.lane)
            if head is None or item.seq < head.seq:
                heads[item.lane] = item
        return heads

    def due_at_ms(self) -> int | None:
        """The first instant at which someone must look."""
        dues = [timer.due_at_ms for timer in self.timers.values()]
        dues += [due for item in self.heads().values() if (due := item.due_at_ms) is not None]
        return min(dues, default=None)


class Laws:
    """Watches every plan, and remembers the first breach."""

    def __init__(self, started_ms: int) -> None:
        self.started_ms = started_ms
        self.books: dict[SessionKey, Book] = {}
        self.breach: Breach | None = None
        self.now_ms = 0
        self.floors: dict[tuple[SessionKey, str], int] = {}
        self.accepted: dict[tuple[SessionKey, str], None] = {}
        self.forgone: set[tuple[SessionKey, str]] = set()
        self.cancelled: set[tuple[SessionKey, str]] = set()
        self.called_off: set[tuple[SessionKey, str]] = set()
        self.plans = 0
        self._acts: dict[Any, Act] = {}

    def broken(self, law: Law, text: str) -> None:
        """A law is broken."""
        if self.breach is None:
            self.breach = Breach(law, text, self.now_ms - self.started_ms)

    @staticmethod
    def ms_of(at: datetime) -> int:
        """Milliseconds since the Unix epoch."""
        return round(at.timestamp() * 1_000)

    # ── what handlers and clients tell ──

    def begin(self, key: SessionKey, event_id: str, attempt: int) -> Act:
        """A handler starts."""
        act = self._acts[asyncio.current_task()] = Act(key, event_id, attempt)
        return act

    def may_come(self, key: SessionKey, name: str, floor_ms: int) -> None:
        """A timer of one event is about to be scheduled; it may come from then on."""
        id_ = timer_event_id(timer_id(key.contract, key.session_id, name), 0)
        self.floors.setdefault((key, id_), floor_ms)

    async def scheduling(self, receipt: Awaitable[TimerReceipt], key: SessionKey, name: str) -> TimerReceipt:
        """Schedule, and note that it was accepted."""
        told = await receipt
        if told.state != "cancelled":
            self.accepted[key, timer_event_id(told.id, 0)] = None
        elif (key, told.id) not in self.forgone:
            self.broken(Law.TIMER, f"timer {name!r} of {key} is cancelled, and nobody did it")
        return told

    def cancelling(self, key: SessionKey, name: str) -> str:
        """A timer is about to be cancelled: from now on it may stay away. Its event's id."""
        id_ = timer_id(key.contract, key.session_id, name)
        event_id = timer_event_id(id_, 0)
        self.forgone |= {(key, id_), (key, event_id)}
        return event_id

    def was_cancelled(self, key: SessionKey, event_id: str) -> None:
        """The caller was told that it will not come."""
        if event_id in self.book(key).seqs:
            self.broken(Law.TIMER, f"{event_id} of {key} was cancelled, and is in the log")
        self.cancelled.add((key, event_id))

    def was_appended(self, key: SessionKey, ids: Collection[str]) -> None:
        """The caller was told that these are in the log."""
        missing = [id_ for id_ in ids if id_ not in self.book(key).seqs]
        if missing:
            self.broken(Law.ACKNOWLEDGED, f"{missing} of {key} were acknowledged, and are not in the log")

    def book(self, key: SessionKey) -> Book:
        """What is known of a session."""
        return self.books.setdefault(key, Book())

    # ── what the store is told ──

    def took(self, actor: Actor, keys: Collection[SessionKey], lease_ms: int, late_ms: int) -> None:
        """Wake-ups were handed out."""
        for key in keys:
            book = self.book(key)
            if book.wake_at_ms is None or book.wake_at_ms + late_ms > self.now_ms:
                self.broken(Law.LEASE, f"{actor.name} was handed {key}, whose wake-up is at {book.wake_at_ms}")
            book.wake_at_ms = self.now_ms + lease_ms

    def judge(self, actor: Actor, key: SessionKey, now_ms: int, plan: Plan[Any]) -> None:
        """A plan that is about to be written."""
        self.plans += 1
        act = self._acts.get(asyncio.current_task())
        if act is not None and not act.ended and act.outcome is not Outcome.UNFINISHED and act.key == key:
            act.ended = True
            self._ended(actor, act, now_ms, plan)
        else:
            act = None
        if not plan.writes:
            return
        book = self.book(key)
        if plan.entries or plan.timers or isinstance(plan.answer, Redriven | Resolved | CalledOff | Triggered):
            book.stirred_ms = now_ms
        self._logged(actor, key, book, now_ms, plan)
        self._settled(key, book, act, plan)
        self._written(actor, key, book, now_ms, plan)
        self._timed(key, book, plan)
        self._woken(actor, key, book, now_ms, plan)

    def _opened(self, actor: Actor, key: SessionKey, book: Book, entry: Entry, plan: Plan[Any]) -> None:
        """An event is open work if any version handles it, and one with a cause comes as that is settled, or dead."""
        is_open = any(item.seq == entry.seq for item in plan.items)
        if not is_open and entry.seq not in plan.endings and actor.is_handled(key.contract, entry.type):
            self.broken(Law.OPEN, f"{entry} of {key} is settled as it is appended")
        cause = None if entry.cause is None else book.seqs.get(entry.cause)
        if entry.cause is None or cause in plan.settled:
            return
        if not any(item.seq == cause and item.dead is not None for item in plan.items):
            self.broken(Law.CAUSE, f"{entry} of {key} came, and its cause is not settled")

    def _logged(self, actor: Actor, key: SessionKey, book: Book, now_ms: int, plan: Plan[Any]) -> None:
        last = len(book.log)
        for entry in plan.entries:
            last += 1
            if entry.seq != last or entry.id in book.seqs or entry.created_at_ms != now_ms:
                self.broken(Law.LOG, f"{entry} in {key}, after seq {last - 1}; known: {entry.id in book.seqs}")
            floor_ms = self.floors.get((key, entry.id), 0)
            if entry.id.startswith("slot-"):
                floor_ms = int(entry.id.removeprefix("slot-"))
            if now_ms < floor_ms and entry.seq not in plan.endings:
                self.broken(Law.EARLY, f"{entry.id} of {key} came {floor_ms - now_ms} ms early")
            if (key, entry.id) in self.cancelled:
                self.broken(Law.TIMER, f"{entry.id} of {key} was cancelled, and came")
            self._opened(actor, key, book, entry, plan)
            if entry.seq in plan.endings:
                self.called_off.add((key, entry.id))
            book.log[entry.seq] = entry
            book.seqs[entry.id] = entry.seq

    def _settled(self, key: SessionKey, book: Book, act: Act | None, plan: Plan[Any]) -> None:
        for seq in plan.settled:
            item = book.work.pop(seq, None)
            if item is None:
                self.broken(Law.SETTLE, f"seq {seq} of {key} was settled again")
                continue
            if isinstance(plan.answer, CalledOff):
                continue
            if isinstance(plan.answer, Resolved):
                if item.dead is None:
                    self.broken(Law.SETTLE, f"seq {seq} of {key} was skipped, and was no dead letter")
                continue
            if (act is None or act.event_id != item.entry.id) and item.entry.type != "failed":
                self.broken(Law.SETTLE, f"seq {seq} of {key} was settled, and nobody had handled it")
            before = [one.seq for one in book.work.values() if one.lane == item.lane and one.seq < seq]
            if before:
                self.broken(Law.LANE, f"seq {seq} of {key} was settled before {before} in lane {item.lane!r}")

    def _ended(self, actor: Actor, act: Act, now_ms: int, plan: Plan[Any]) -> None:
        """The first plan after a handler's end: what became of its event."""
        book = self.book(act.key)
        seq = book.seqs.get(act.event_id, 0)
        old = book.work.get(seq)
        new = next((item for item in plan.items if item.seq == seq), None)
        settled = seq in plan.settled
        if old is None or old.attempt != act.attempt or old.claim is None:
            failed = old is not None and new is not None and new.failures != old.failures
            if settled or failed or any(entry.id in act.products for entry in plan.entries):
                self.broken(Law.FENCE, f"{actor.name} ended attempt {act.attempt} of {act.event_id}, which was {old}")
            return
        released = new is not None and new.claim is None and new.failures == old.failures and new.dead is None
        match act.outcome:
            case Outcome.DONE:
                known = {*book.seqs, *(entry.id for entry in plan.entries)}
                fits = settled and known.issuperset(act.products)
            case Outcome.CALLED_OFF:
                fits = settled and seq in plan.endings
            case Outcome.SNOOZED:
                fits = released and new is not None and new.ready_at_ms == now_ms + actor.snooze_ms
            case Outcome.GIVEN_UP:
                fits = new is not None and new.dead is not None
            case _:
                fits = new is not None and new.claim is None and new.failures == old.failures + 1
                fits = fits and new is not None and (new.dead is not None or new.ready_at_ms > now_ms)
        if not fits and not (released and (actor.stopping or act.outcome is Outcome.CUT)):
            self.broken(Law.OUTCOME, f"{act} of {old} became {'settled' if settled else new}: {plan.answer}")

    def _written(self, actor: Actor, key: SessionKey, book: Book, now_ms: int, plan: Plan[Any]) -> None:
        new_seqs = {entry.seq for entry in plan.entries}
        for new in plan.items:
            old = book.work.get(new.seq)
            book.work[new.seq] = new
            if old is None:
                if new.seq not in new_seqs:
                    self.broken(Law.SETTLE, f"seq {new.seq} of {key} is open again after it was settled")
                old = WorkItem(new.entry, new.lane, ready_at_ms=now_ms)
            change = Change(actor, key, old, new, now_ms, plan.answer)
            if new.key is not None and any(one.key == new.key and one is not new for one in book.work.values()):
                self.broken(Law.KEY, f"another one has its key: {change}")
            if change.is_claim:
                self._claimed(book, change)
            elif new.attempt != old.attempt:
                self.broken(Law.FENCE, f"the attempt jumped: {change}")
            elif change.was_held and old.claim is not None and old.claim.holder != actor.name:
                self.broken(Law.FENCE, f"another holds it: {change}")
            elif new.claim is not None and (old.claim is None or new.claim.expires_at_ms < old.claim.expires_at_ms):
                self.broken(Law.FENCE, f"a claim came back or shrank: {change}")
            self._counted(change)

    def _counted(self, change: Change) -> None:
        old, new = change.old, change.new
        policy = change.actor.policy(change.key.contract, new.entry.type)
        if new.dead is not None and old.dead is None:
            spent = policy is not None and (new.failures >= policy.max_failures or new.lost >= policy.max_lost)
            if not spent and new.dead.failure.type != "Fail":
                self.broken(Law.BUDGET, f"buried before its time: {change}")
        elif old.dead is not None and new.dead is None:
            if not isinstance(change.answer, Redriven | Triggered) or new.failures or new.lost:
                self.broken(Law.BUDGET, f"a dead letter came back, or with spent budgets: {change}")
        elif policy is not None and new.failures >= policy.max_failures:
            self.broken(Law.BUDGET, f"its failures are spent: {change}")
        elif new.parked_until_ms not in {None, old.parked_until_ms, change.now_ms + PARK_MS}:
            self.broken(Law.KNOWN, f"parked for another time than five minutes: {change}")
        elif new.failures not in {old.failures, old.failures + 1} or new.lost < old.lost:
            self.broken(Law.BUDGET, f"counted wrong: {change}")

    def _claimed(self, book: Book, change: Change) -> None:
        actor, old, new, now_ms = change.actor, change.old, change.new, change.now_ms
        if new.claim is None or new.claim.holder != actor.name or old.dead is not None:
            self.broken(Law.FENCE, f"claimed for another, or a dead letter: {change}")
        elif not now_ms < new.claim.expires_at_ms <= now_ms + actor.timings.ttl_ms:
            self.broken(Law.FENCE, f"claimed for too long, or no time: {change}")
        if change.was_held:
            self.broken(Law.FENCE, f"claimed while it is held: {change}")
        elif old.claim is not None and actor.should_hold(old.claim.holder):
            self.broken(Law.HELD, f"its holder is well, and lost it: {change}")
        if old.ready_at_ms > now_ms:
            self.broken(Law.DUE, f"{old.ready_at_ms - now_ms} ms early: {change}")
        if actor.policy(change.key.contract, new.entry.type) is None:
            self.broken(Law.KNOWN, f"claimed, and the type is unknown: {change}")
        if new.lost != old.lost + (old.claim is not None) or new.failures != old.failures:
            self.broken(Law.BUDGET, f"a lost claim is not counted: {change}")
        before = [one.seq for one in book.work.values() if one.lane == new.lane and one.seq < new.seq]
        if before:
            self.broken(Law.LANE, f"before {before} of its lane: {change}")

    def _timed(self, key: SessionKey, book: Book, plan: Plan[Any]) -> None:
        for record in plan.timers:
            if isinstance(record, Tombstone):
                book.timers.pop(record.id, None)
                book.cancelled.add(record.id)
            elif record.id in book.cancelled:
                self.broken(Law.TIMER, f"{record} of {key} was cancelled, and is back")
            else:
                book.timers[record.id] = record
        for id_ in plan.delivered:
            timer = book.timers.pop(id_, None)
            if timer is None or (timer.rule is None and any(draft.id not in book.seqs for draft in timer.drafts)):
                self.broken(Law.TIMER, f"timer {id_} of {key} is gone, and its events did not come: {timer}")

    def _woken(self, actor: Actor, key: SessionKey, book: Book, now_ms: int, plan: Plan[Any]) -> None:
        wake = plan.wake
        if isinstance(wake, WakeAt) or (wake is not None and book.wake_at_ms is None):
            book.wake_at_ms = wake.at_ms
        elif wake is not None and book.wake_at_ms is not None:
            book.wake_at_ms = min(book.wake_at_ms, wake.at_ms)
        due_at_ms = book.due_at_ms()
        if due_at_ms is None:
            return
        latest_ms = max(now_ms, due_at_ms) + actor.timings.window_ms
        if book.wake_at_ms is None or book.wake_at_ms > latest_ms:
            self.broken(Law.WAKE, f"{key} is due at {due_at_ms}, and woken at {book.wake_at_ms}, after {plan.answer}")

    # ── after the storm ──

    def is_calm(self) -> bool:
        """Whether nothing is left that goes on by itself."""
        return not any(self._unfinished(book) for book in self.books.values())

    def _unfinished(self, book: Book) -> bool:
        waits = any(timer.rule is None for timer in book.timers.values())
        return waits or any(item.dead is None for item in book.heads().values())

    def after_the_storm(self) -> None:
        """All that has to be true in the end."""
        for key, book in self.books.items():
            if self._unfinished(book):
                left = [item for item in book.heads().values() if item.dead is None]
                self.broken(Law.SETTLED, f"{key} still has {left} and {book.timers}, woken at {book.wake_at_ms}")
        for key, event_id in self.accepted:
            if event_id not in self.book(key).seqs and (key, event_id) not in self.forgone:
                self.broken(Law.TIMER, f"{event_id} of {key} was accepted, and never came")

    def cron_goes_on(self, key: SessionKey, since_ms: int, period_ms: int) -> None:
        """Every slot of the calm became a run, and the next one is waiting."""
        book = self.book(key)
        first = -(-(self.started_ms + since_ms) // period_ms) * period_ms
        missing = [slot for slot in range(first, self.now_ms - period_ms, period_ms) if f"slot-{slot}" not in book.seqs]
        if missing or not any(timer.rule is not None for timer in book.timers.values()):
            self.broken(Law.CRON, f"slots {missing} of {key} never came; timers: {book.timers}")

    def is_answerable(self, key: SessionKey, since_ms: int) -> bool:
        """Whether a session has work or timers, and nobody has stirred it since."""
        book = self.book(key)
        return self._unfinished(book) and book.stirred_ms < since_ms
