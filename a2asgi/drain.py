"""One drain: claim what a session has to do, run it lane by lane, until nothing is left to do now."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint_if_cancelled

from a2asgi.activity import Mailbox
from a2asgi.attempt import Attempt
from a2asgi.contract import Definition
from a2asgi.errors import StoreBroken, StoreUnavailable
from a2asgi.groups import Shield, ungrouped
from a2asgi.ports import SessionKey
from a2asgi.renewal import capped
from a2asgi.runtime import Runtime
from a2asgi.telemetry import SignalName
from a2core import Claimed, Needs, Plan, Snapshot, decide_claim, decide_release

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
    """The end of a drain; `retry_at_ms` is the earliest instant at which waiting work is worth another look."""

    state: DrainState
    retry_at_ms: int | None = None


class Drain:
    """One pass over a session. It counts as awake from its creation on, except while it waits for its handlers.

    `on_end` is called when it has decided to look no more, before anything else can run.
    """

    def __init__(
        self, runtime: Runtime, definition: Definition, key: SessionKey, *, on_end: "Callable[[Drain], None]"
    ) -> None:
        self.key = key
        self.finished: anyio.Event = anyio.Event()
        self.result: DrainResult | None = None
        self._runtime = runtime
        self._definition = definition
        self._running: set[Attempt] = set()
        self._trouble: StoreUnavailable | StoreBroken | None = None
        self._ending = False
        self._let_go = False
        self._shield = Shield()
        self._arm_again = False
        self._mail = Mailbox(runtime.activity)
        self._limit = runtime.limit(definition)
        self._on_end = on_end
        runtime.activity.enter()

    async def run(self) -> DrainResult:
        """Run to the end. Raises StoreUnavailable or StoreBroken, after the running handlers have ended."""
        try:
            with ungrouped():
                async with anyio.create_task_group() as tasks:
                    result = await self._run(tasks)
        finally:
            self._on_end(self)
            self.finished.set()
            self._runtime.activity.leave()
        self.result = result
        return result

    def poke(self) -> None:
        """Tell it that there may be more to claim."""
        self._mail.ring()

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
            claimed = await self._claim_within_limit(tasks)
            if claimed is None:
                await self._mail.wait()
                continue
            if not self._running and not claimed.more and not self._mail.rung:
                if self._runtime.stopping and self._trouble is None:
                    await self._shield.run(partial(self._runtime.hand_over, self.key))
                self._on_end(self)  # in the same breath: a poke from now on is for the next drain
                if self._trouble is not None:
                    raise self._trouble
                return _result(claimed) if self._may_claim() else DrainResult(DrainState.STALLED)
            if not claimed.more or len(self._running) >= self._runtime.concurrency:
                await self._mail.wait()

    async def _claim_within_limit(self, tasks: TaskGroup) -> Claimed | None:
        """One claim pass; None while other sessions of the contract hold all the places of this process."""
        free = self._runtime.concurrency - len(self._running)
        if not free or not self._may_claim():
            return Claimed()
        places = self._limit.take(free)
        if not places:
            self._limit.when_free(self._mail.ring)
            return Claimed() if self._running else None
        started = 0
        try:
            claimed = await self._claim(tasks, places)
            started = len(claimed.items)
        finally:
            self._limit.give_back(places - started)
        return claimed

    async def _claim(self, tasks: TaskGroup, free: int) -> Claimed:
        """Claim up to `free` items, which start at once."""
        until_ms = self._runtime.deadline_ms()

        def decide(snapshot: Snapshot, now_ms: int) -> Plan[Claimed]:
            return decide_claim(
                snapshot,
                now_ms,
                holder=self._runtime.holder,
                limit=free,
                roster=self._definition.roster(),
                expires_at_ms=capped(now_ms + self._runtime.timings.ttl_ms, until_ms),
            )

        await checkpoint_if_cancelled()
        transact = partial(self._runtime.transact, self.key, Needs(heads=True), decide)
        try:
            # shielded: a claim that nobody knows of would have to expire
            claimed = await self._shield.run(transact) or Claimed()
            if self._let_go:
                await self._give_back(claimed)
                return Claimed()
        except (StoreUnavailable, StoreBroken) as error:
            self._trouble = error
            return Claimed()
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
                until_ms=until_ms,
                shield=self._shield,
                on_beat=self._beat,
            )
            self._running.add(attempt)
            tasks.start_soon(self._attend, attempt)
        return claimed

    async def _give_back(self, claimed: Claimed) -> None:
        """The shutdown came between the claim and its handlers: they do not start."""
        held = {item.seq: item.attempt for item in claimed.items}
        release = partial(decide_release, held=held)
        await self._shield.run(partial(self._runtime.transact, self.key, Needs(seqs=tuple(held)), release))

    def _may_claim(self) -> bool:
        """Whether a claim made now could come to an end: not at a shutdown, nor once the platform's time is up."""
        until_ms = self._runtime.deadline_ms()
        in_time = until_ms is None or until_ms > self._runtime.clock.now_ms()
        return in_time and not self._ending and not self._runtime.stopping and self._trouble is None

    async def _attend(self, attempt: Attempt) -> None:
        try:
            await attempt.run()
        except (StoreUnavailable, StoreBroken) as error:
            self._trouble = error
        except BaseException:
            self._ending = True
            raise
        finally:
            self._running.discard(attempt)
            self._limit.give_back(1)
            self._mail.ring()

    def _beat(self) -> None:
        """Its claims were renewed: so must be the provider's wake-up, if there is a provider."""
        if self._runtime.provider is not None:
            self._arm_again = True
            self._mail.ring()


def _result(claimed: Claimed) -> DrainResult:
    if claimed.busy:
        return DrainResult(DrainState.BUSY, claimed.retry_at_ms)
    if claimed.retry_at_ms is not None:
        return DrainResult(DrainState.STALLED, claimed.retry_at_ms)
    return DrainResult(DrainState.SETTLED)
