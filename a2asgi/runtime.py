"""The runtime: what every drain of one process shares, and its way to the store, the scheduler and the timers."""

import logging
import os
import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

import anyio

from a2asgi.activity import Activity
from a2asgi.clock import Clock
from a2asgi.context import TimerReceipt
from a2asgi.contract import Definition
from a2asgi.entropy import random_id
from a2asgi.errors import InvalidTime, StoreBroken, StoreUnavailable, TimerNameTaken
from a2asgi.events import NewEvent
from a2asgi.limits import Limit
from a2asgi.live import News
from a2asgi.ports import Answer, Decide, DeliveringScheduler, Scheduler, SessionKey, Store
from a2asgi.renewal import Renewer
from a2asgi.schedulers.embedded import Place
from a2asgi.telemetry import Hook, Signal, SignalName, emit
from a2asgi.times import Duration, check_instant, duration_ms, from_ms, instant_ms
from a2core import (
    AppendTask,
    Cancelled,
    Delivered,
    DrainTask,
    DrainTimings,
    InvalidName,
    Needs,
    Plan,
    Released,
    ScheduleAnswer,
    Scheduled,
    Snapshot,
    Task,
    TaskEvent,
    Timer,
    TimerConflict,
    check_name,
    decide_cancel,
    decide_hand_over,
    decide_release,
    decide_schedule,
    slot_ms,
    timer_event_id,
    timer_id,
)

log: logging.Logger = logging.getLogger("a2asgi.runtime")

ARM_TIMEOUT_S = 2.0
"""How long an append waits for its watchdog to be accepted (engine.md 3)."""


def make_holder() -> str:
    """A name for this process in the claims that it holds."""
    return f"{socket.gethostname()}:{os.getpid()}:{random_id()[:8]}"


def _unheard(_: int) -> None:
    """No one sleeps until a wake-up."""


def _no_place(_: str) -> None:
    """No one looks after what is due here."""


@dataclass(eq=False, slots=True)
class Runtime:
    """What every drain of one process shares. `provider` carries wake-ups where that is not the store's own part."""

    store: Store
    clock: Clock
    timings: DrainTimings
    provider: Scheduler | None
    concurrency: int
    dependencies: Any
    hook: Hook | None
    deadline: Callable[[], datetime | None] | None
    renewer: Renewer
    news: News
    activity: Activity = field(default_factory=Activity)
    limits: dict[str, Limit] = field(default_factory=dict)
    holder: str = field(default_factory=make_holder)
    on_wake: Callable[[int], None] = _unheard
    reserve: Callable[[str], Place | None] = _no_place
    counts: Counter[SignalName] = field(default_factory=Counter)
    send_failures: int = 0
    ahead_ms: int = 0
    """How far the store's clock was ahead of ours when it was seen last."""
    stopping: bool = False

    async def transact(self, key: SessionKey, needs: Needs, decide: Decide[Answer]) -> Answer:
        """The store's transaction; whoever sleeps until the next wake-up hears of an earlier one."""
        wakes: list[int] = []
        appends = False

        def deciding(snapshot: Snapshot, now_ms: int) -> Plan[Answer]:
            nonlocal appends
            self.ahead_ms = now_ms - self.clock.now_ms()
            plan = decide(snapshot, now_ms)
            at_ms = None if plan.wake is None else plan.wake.at_ms
            wakes[:] = [] if at_ms is None else [at_ms]
            appends = bool(plan.entries)
            return plan

        answer = await self.store.transact(key, needs, deciding)
        if appends:
            self.news.tell(key)
        for at_ms in wakes:  # how far away it is by now: writing took its time
            self.on_wake(at_ms - self.store_now_ms())
        return answer

    def store_now_ms(self) -> int:
        """The time by the store's clock, which says when all that waits is due: providers are told by no other."""
        return self.clock.now_ms() + self.ahead_ms

    def by_store(self, at_ms: int | None) -> int | None:
        """An instant of our clock, such as when the platform ends this process, as the store's clock will show it."""
        return None if at_ms is None else at_ms + self.ahead_ms

    def limit(self, definition: Definition) -> Limit:
        """The places that this process has for handlers of a contract."""
        return self.limits.setdefault(definition.name, Limit(definition.at_once))

    async def close(self) -> None:
        """Close the provider's connections and the store."""
        if isinstance(self.provider, DeliveringScheduler):
            await self.provider.close()
        await self.store.close()

    async def hand_over(self, key: SessionKey) -> None:
        """Have another process look at this session now: this one stops."""
        try:
            await self.transact(key, Needs(), decide_hand_over)
        except (StoreUnavailable, StoreBroken) as error:
            log.warning("session %s was not handed over, so its wake-up waits for its claims: %s", key, error)

    async def give_back(self, key: SessionKey, held: Mapping[int, int]) -> frozenset[int]:
        """Give claims back, each a seq with its attempt; the seqs of those that were ours. Raises as `transact`."""
        released: Released = await self.transact(key, Needs(seqs=tuple(held)), partial(decide_release, held=held))
        return released.seqs

    def signal(self, name: SignalName, key: SessionKey, *, event: tuple[str, str] = ("", ""), detail: str = "") -> None:
        """Report a moment; `event` is the id and type of the event that it is about."""
        self.counts[name] += 1
        emit(self.hook, Signal(name, key.contract, key.session_id, *event, detail))

    def deadline_ms(self) -> int | None:
        """When the platform ends this process, if it said so."""
        at = None if self.deadline is None else self.deadline()
        return None if at is None else instant_ms(at)

    async def arm(self, key: SessionKey, due_at_ms: int) -> None:
        """Have the provider, if there is one, wake this session; wait at most 2 s for it, and never fail.

        A failure is logged, counted and reported. The sweep looks after a session whose wake-up was not sent.
        """
        if self.provider is None:
            return
        trouble = f"no answer within {ARM_TIMEOUT_S:g} s"
        with anyio.move_on_after(ARM_TIMEOUT_S):
            try:
                await self.provider.send(self.drain_task(key, due_at_ms), now_ms=self.store_now_ms())
            except Exception as error:  # noqa: BLE001 - whatever a scheduler raises, the append has succeeded
                trouble = repr(error)
            else:
                return
        self.send_failures += 1
        log.warning("no wake-up was sent for session %s: %s", key, trouble)
        self.signal(SignalName.SEND_FAILED, key, detail=trouble)

    async def send_wake(self, key: SessionKey, due_at_ms: int, *, seq: int | None) -> None:
        """Have the provider, if there is one, wake this session for what was just written. Raises SendFailed."""
        if self.provider is not None:
            await self.provider.send(self.drain_task(key, due_at_ms), seq=seq, now_ms=self.store_now_ms())

    async def arm_watchdog(self, key: SessionKey) -> None:
        """Arm the look after a claim that is made now."""
        await self.arm(key, self.store_now_ms() + self.timings.window_ms)

    def drain_task(self, key: SessionKey, due_at_ms: int) -> DrainTask:
        """A wake-up at a whole second, so that those of one second are one."""
        return DrainTask(key.contract, key.session_id, slot_ms(self.store_now_ms(), due_at_ms))

    async def schedule(
        self,
        definition: Definition,
        key: SessionKey,
        name: str,
        events: Sequence[object],
        *,
        delay: Duration | None,
        at: datetime | None,
        since_ms: int | None = None,
    ) -> TimerReceipt:
        """Accept a timer; a delay counts from `since_ms`, or from now.

        Raises TimerNameTaken, InvalidTime, SendFailed and what a bad event raises; nothing is scheduled then.
        """
        if (delay is None) == (at is None):
            raise InvalidTime('expected either delay= or at=, such as delay="15m"')
        if not events or any(isinstance(event, NewEvent) and event.id is not None for event in events):
            raise InvalidName(f"timer {name!r}: expected one event or more, without ids: the name gives them theirs")
        id_ = timer_id(key.contract, key.session_id, check_name("timer name", name))
        drafts = tuple(
            definition.draft(event, partial(timer_event_id, id_, index)) for index, event in enumerate(events)
        )
        delay_ms = None if delay is None else duration_ms(delay)
        at_ms = None if at is None else instant_ms(at)

        accepted_ms = 0

        def decide(snapshot: Snapshot, now_ms: int) -> Plan[ScheduleAnswer]:
            nonlocal accepted_ms
            accepted_ms = now_ms
            due_at_ms = at_ms
            if due_at_ms is None:
                due_at_ms = check_instant((now_ms if since_ms is None else since_ms) + (delay_ms or 0))
            timer = Timer(id_, due_at_ms, delay_ms, drafts)
            return decide_schedule(snapshot, now_ms, timer=timer, keep=self.provider is None)

        needs = Needs(ids=tuple(draft.id for draft in drafts), timers=(id_,))
        match await self.transact(key, needs, decide):
            case TimerConflict():
                raise TimerNameTaken(name)
            case Cancelled():
                return TimerReceipt(name, id_, "cancelled", None)
            case Delivered():
                return TimerReceipt(name, id_, "delivered", None)
            case Scheduled(timer):
                await self._send(key, timer, accepted_ms)
                return TimerReceipt(name, id_, "scheduled", from_ms(timer.due_at_ms))

    async def cancel(self, key: SessionKey, name: str) -> bool:
        """Cancel a timer, for good. False: too late, its events are in the log."""
        id_ = timer_id(key.contract, key.session_id, check_name("timer name", name))
        first = timer_event_id(id_, 0)
        answer = await self.transact(
            key, Needs(ids=(first,), timers=(id_,)), partial(decide_cancel, timer_id=id_, first_event_id=first)
        )
        return isinstance(answer, Cancelled)

    async def _send(self, key: SessionKey, timer: Timer, now_ms: int) -> None:
        """Have the provider, if there is one, carry a timer. Its time is the store's, and `now_ms` is too."""
        if self.provider is None:
            return
        events = tuple(TaskEvent(draft.id, draft.type, draft.payload).to_json() for draft in timer.drafts)
        due_at_ms = slot_ms(now_ms, timer.due_at_ms)
        task: Task = AppendTask(timer.id, key.contract, key.session_id, due_at_ms, events)
        await self.provider.send(task, now_ms=now_ms)
