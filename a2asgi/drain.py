"""One drain: claim what a session has to do, run it lane by lane, until nothing is left to do now."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from itertools import count
from typing import Any

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint_if_cancelled

from a2asgi.activity import Latch, Mailbox
from a2asgi.attempt import Attempt
from a2asgi.contract import Definition
from a2asgi.errors import StoreBroken, StoreUnavailable
from a2asgi.groups import Shield, ungrouped
from a2asgi.passes import Opening, Pass
from a2asgi.ports import Answer, Decide, SessionKey
from a2asgi.runtime import Runtime
from a2asgi.telemetry import SignalName
from a2asgi.threads import raising, returning
from a2core import Claimed, Needs, WentOn, decide_go_on

log: logging.Logger = logging.getLogger("a2asgi.drain")


class DrainState(StrEnum):
    """How a drain found the session in the end."""

    SETTLED = "settled"
    """Nothing is left to do; dead letters may remain, which no wake-up can help."""
    BUSY = "busy"
    """Others hold live claims."""
    STALLED = "stalled"
    """Work waits for a later instant."""


@dataclass(frozen=True, slots=True)
class DrainResult:
    """The end of a drain; `retry_at_ms` is the earliest instant at which waiting work is worth another look.

    `next_timer_at_ms` is when the next of the session's timers is due, which the store looks after itself.
    """

    state: DrainState
    retry_at_ms: int | None = None
    next_timer_at_ms: int | None = field(default=None, compare=False)


class Drain:
    """One pass over a session. It counts as awake from its creation on, except while it waits for its handlers.

    `on_end` is called when it has decided to look no more, before anything else can run. `opening` is written first,
    in the transaction of the first claim.
    """

    def __init__(
        self,
        runtime: Runtime,
        definition: Definition,
        key: SessionKey,
        *,
        on_end: "Callable[[Drain], None]",
        opening: Opening[Any] | None = None,
    ) -> None:
        self.key = key
        self.finished: Latch = Latch()
        self.looked: Latch = Latch()
        """Set once it has seen what there is to claim for the first time."""
        self.result: DrainResult | None = None
        self.patient: bool = True
        """Whether it waits for a place to run in; not where a handler waits for it, who may be in that place."""
        self.turned_away: bool = False
        """Whether it did not wait, and left work that it could have claimed."""
        self._runtime = runtime
        self._definition = definition
        self._running: set[Attempt] = set()
        self._fresh: list[Attempt] = []
        self._look_again = True
        self._picture = Claimed()
        self._order = 0  # of the picture
        self._orders = count(1)
        self._passed_on: set[Attempt] = set()
        self._tasks: TaskGroup | None = None
        self._alone: Attempt | None = None
        self._assisted = False
        self._trouble: StoreUnavailable | StoreBroken | None = None
        self._ending = False
        self._let_go = False
        self._shield = Shield()
        self._arm_again = False
        self._retry_armed_ms: int | None = None
        self._mail = Mailbox(runtime.activity)
        self._limit = runtime.limit(definition)
        self._on_end = on_end
        self._opening = opening
        runtime.activity.enter()

    async def run(self) -> DrainResult:
        """Run to the end. Raises StoreUnavailable or StoreBroken, after the running handlers have ended."""
        try:
            if self._opening is None:
                await self._look()
            else:
                await self._open(self._opening)
            self.looked.set()
            if self._fresh or self._look_again:
                with ungrouped():
                    async with anyio.create_task_group() as tasks:
                        self._tasks = tasks
                        result = await self._run(tasks)
            else:  # most wake-ups find nothing to run, and a group takes longer to enter and leave than the look
                result = await self._conclude()
        finally:
            await self._abandon()
            self._on_end(self)
            self.looked.set()
            self.finished.set()
            self._runtime.activity.leave()
        self.result = result
        return result

    def poke(self) -> None:
        """Tell it that there may be more to claim. Call it from a task."""
        self._look_again = True
        self._mail.ring()
        if self._alone is not None and not self._assisted and self._tasks is not None:
            self._assisted = True
            self._runtime.activity.enter()
            self._tasks.start_soon(self._assist, self._tasks)

    def call_off(self, seq: int) -> None:
        """Stop the handler that is at this event, which was settled as cancelled."""
        for attempt in self._running:
            attempt.call_off(seq)

    def release(self) -> None:
        """Stop the handlers and give their claims back."""
        self._let_go = True
        self._shield.hurry()
        for attempt in self._running:
            attempt.release()

    async def _run(self, tasks: TaskGroup) -> DrainResult:
        while True:
            self._mail.clear()
            if self._arm_again:
                self._arm_again = False
                tasks.start_soon(self._runtime.arm_watchdog, self.key)
            if self._fresh:
                await self._start(tasks)
            elif self._look_again:
                if not await self._look():
                    await self._mail.wait()
            elif self._running or self._assisted:
                self._arm_retry(tasks)
                await self._mail.wait()
            else:
                return await self._conclude()

    async def _conclude(self) -> DrainResult:
        """Nothing is left to do now."""
        if self._runtime.stopping and self._trouble is None:
            await self._shield.run(partial(self._runtime.hand_over, self.key))
        self._on_end(self)  # in the same breath: a poke from now on is for the next drain
        if self._trouble is not None:
            raise self._trouble
        return _result(self._picture) if self._may_claim() else DrainResult(DrainState.STALLED)

    def _arm_retry(self, tasks: TaskGroup) -> None:
        """Behind a provider, which alone wakes it, a lane's retry must not wait for the handlers of other lanes."""
        at_ms = self._picture.retry_at_ms
        if self._runtime.provider is not None and at_ms is not None and at_ms != self._retry_armed_ms:
            self._retry_armed_ms = at_ms
            tasks.start_soon(self._runtime.arm, self.key, at_ms)

    async def _start(self, tasks: TaskGroup) -> None:
        """Run what was claimed; a lone handler in this very task, which is cheaper, but not behind a provider.

        There the watchdog needs this task. While the handler runs, a poke has an assistant look in its stead.
        """
        if len(self._running) > 1 or self._look_again or self._runtime.provider is not None:
            self._spawn(tasks)
            return
        [self._alone] = self._fresh
        self._fresh.clear()
        self._runtime.activity.leave()
        try:
            await self._attend(self._alone, tasks)
        finally:
            self._alone = None
            self._runtime.activity.enter()

    async def _abandon(self) -> None:
        """What was claimed and never started, because an end came between, is given back."""
        while self._fresh:
            attempt = self._fresh.pop()
            self._running.discard(attempt)
            self._limit.give_back(1)
            await attempt.abandon()

    def _spawn(self, tasks: TaskGroup) -> None:
        for attempt in self._fresh:
            tasks.start_soon(self._attend, attempt, tasks)
        self._fresh.clear()

    async def _assist(self, tasks: TaskGroup) -> None:
        try:
            while self._alone is not None and self._look_again and await self._look():
                self._spawn(tasks)
        finally:
            self._assisted = False
            self._mail.ring()
            self._runtime.activity.leave()

    async def _look(self) -> bool:
        """One claim pass; False while other sessions of the contract hold all the places of this process."""
        self._look_again = False
        free = self._runtime.concurrency - len(self._running)
        if not self._may_claim():
            self._picture = Claimed()
            return True
        places = self._limit.take(free)
        if free and not places:
            if not self.patient:
                self.turned_away = True
                self._picture = Claimed(busy=True)
                return True
            self._look_again = True
            self._limit.when_free(self._mail.ring)
            return False
        claimed = Claimed()
        try:
            if places:
                await checkpoint_if_cancelled()
                # shielded: a claim that nobody knows of would have to expire
                until_ms = self._runtime.deadline_ms()
                claim = self._claim(places, until_ms)
                transact = partial(self._runtime.transact, self.key, Needs(heads=True), claim)
                claimed = await self._take(await self._shield.run(transact) or Claimed(), claim)
        except (StoreUnavailable, StoreBroken) as error:
            self._trouble = error
        finally:
            self._limit.give_back(places - len(claimed.items))
        return True

    async def _open(self, opening: Opening[Any]) -> None:
        """Write what opens this drain, and claim in the same transaction. Where that fails, its asker alone is told."""
        self._look_again = False
        places = self._limit.take(self._runtime.concurrency) if self._may_claim() else 0
        claim = self._claim(places, self._runtime.deadline_ms())
        decide = partial(decide_go_on, end=opening.decide, claim=claim)
        transact = partial(self._runtime.transact, self.key, replace(opening.needs, heads=True), decide)
        claimed = Claimed()
        try:
            await checkpoint_if_cancelled()
            went_on = await self._shield.run(transact)  # shielded as any claim
            if went_on is not None:
                opening.keep(returning(went_on.ended))
                claimed = await self._take(went_on.claimed, claim)
        except Exception as error:
            if opening.is_kept:
                raise
            opening.keep(raising(error))
        finally:
            self._limit.give_back(places - len(claimed.items))
            if not opening.is_kept:
                opening.keep(raising(StoreUnavailable("the process stops, and the store has not answered yet")))

    async def _end(self, attempt: Attempt, needs: Needs, decide: Decide[Answer]) -> Answer:
        """Write the end of an attempt, and claim what comes next in the same transaction.

        The attempt's place goes to the first of it, unless other sessions wait for one.
        """
        if not self._may_claim():
            return await self._runtime.transact(self.key, needs, decide)
        own = int(attempt not in self._passed_on and not self._limit.is_contended)
        taken = self._limit.take(self._runtime.concurrency - len(self._running))
        claim = self._claim(taken + own, self._runtime.deadline_ms())
        claimed = Claimed()
        try:
            went_on: WentOn[Answer] = await self._runtime.transact(
                self.key,
                replace(needs, heads=True, behind=attempt.seq),
                partial(decide_go_on, end=decide, claim=claim),
            )
            claimed = await self._take(went_on.claimed, claim)
        finally:
            passed_on = min(own, len(claimed.items))
            self._limit.give_back(taken + passed_on - len(claimed.items))
        if passed_on:
            self._passed_on.add(attempt)
        attempt.went_on = True
        return went_on.ended

    def _claim(self, limit: int, until_ms: int | None) -> Pass:
        """A claim pass for up to `limit` items, whose handlers have until then."""
        return Pass(self._runtime, self._definition, self._orders, limit, until_ms)

    async def _take(self, claimed: Claimed, by: Pass) -> Claimed:
        """Take note of a pass: what it claimed is to be started, unless the shutdown came between."""
        if self._let_go:
            await self._give_back(claimed)
            return Claimed()
        if by.order > self._order:  # answers may come in another order than the store gave them
            self._order, self._picture = by.order, claimed
        self._look_again |= claimed.more
        for item in claimed.buried:
            self._runtime.signal(
                SignalName.DEAD_LETTER, self.key, event=(item.entry.id, item.entry.type), detail="lost"
            )
        for event_type in claimed.parked:
            log.warning("session %s has events of type %r, unknown to this code: parked", self.key, event_type)
            self._runtime.signal(SignalName.PARKED, self.key, detail=f"no handler for event type {event_type!r}")
        for item in claimed.items:
            attempt = Attempt(
                self._runtime,
                self._definition,
                self.key,
                item,
                until_ms=by.until_ms,
                shield=self._shield,
                on_beat=self._beat,
                end=self._end,
            )
            self._running.add(attempt)
            self._fresh.append(attempt)
        return claimed

    async def _give_back(self, claimed: Claimed) -> None:
        """The shutdown came between the claim and its handlers: they do not start."""
        held = {item.seq: item.attempt for item in claimed.items}
        await self._shield.run(partial(self._runtime.give_back, self.key, held))

    def _may_claim(self) -> bool:
        """Whether a claim made now could come to an end: not at a shutdown, nor once the platform's time is up."""
        until_ms = self._runtime.deadline_ms()
        in_time = until_ms is None or until_ms > self._runtime.clock.now_ms()
        return in_time and not self._ending and not self._runtime.stopping and self._trouble is None

    async def _attend(self, attempt: Attempt, tasks: TaskGroup) -> None:
        try:
            await attempt.run()
        except (StoreUnavailable, StoreBroken) as error:
            self._trouble = error
        except BaseException:
            self._ending = True
            raise
        finally:
            self._running.discard(attempt)
            self._limit.give_back(int(attempt not in self._passed_on))
            self._passed_on.discard(attempt)
            self._look_again |= not attempt.went_on
            self._mail.ring()
        if self._alone is not None and self._alone is not attempt:
            self._spawn(tasks)

    def _beat(self) -> None:
        """Its claims were renewed: so must be the provider's wake-up, if there is a provider."""
        if self._runtime.provider is not None:
            self._arm_again = True
            self._mail.ring()


def _result(claimed: Claimed) -> DrainResult:
    state = DrainState.SETTLED if claimed.retry_at_ms is None else DrainState.STALLED
    return DrainResult(DrainState.BUSY if claimed.busy else state, claimed.retry_at_ms, claimed.next_timer_at_ms)
