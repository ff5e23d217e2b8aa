"""Ticks: one cycle of all that is due, run by hand, and the upkeep that a server does once a minute."""

import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio

from a2asgi import runs
from a2asgi.engine import Engine
from a2asgi.errors import StoreBroken, StoreUnavailable
from a2asgi.ports import LosingStore, SessionKey, Store
from a2asgi.telemetry import SignalName
from a2core import Needs, Plan, Snapshot

log: logging.Logger = logging.getLogger("a2asgi.ticks")

BATCH = 64
"""How many sessions a tick drains side by side."""

PURGE_BATCH = 500
"""How many expired events one transaction removes."""

UPKEEP_MS = 60_000
UPKEEP_RETRY_MS = 1_000
"""How soon a start tries again to put its crons in force, while the store does not answer."""


class Moves:
    """Moves of a store's clock, several at one time: the last one to begin holds; after all, its own time is back."""

    def __init__(self) -> None:
        self._offsets: list[int] = []
        self._ahead_ms = 0

    @asynccontextmanager
    async def to(self, engine: Engine, now_ms: int) -> AsyncIterator[None]:
        """Have the store's clock, whichever that is, show an instant now. Raises StoreUnavailable or StoreBroken."""
        store, clock = engine.runtime.store, engine.runtime.clock
        shown_ms = 0
        if not self._offsets:
            shown_ms = await engine.runtime.transact(SessionKey("a2", "clock"), Needs(), _now)
        if not self._offsets:  # no other tick was faster
            self._ahead_ms = shown_ms - store.offset_ms - clock.now_ms()
            self._offsets.append(store.offset_ms)
        offset_ms = now_ms - clock.now_ms() - self._ahead_ms
        self._offsets.append(offset_ms)
        store.offset_ms = offset_ms
        try:
            yield
        finally:
            self._offsets.remove(offset_ms)
            store.offset_ms = self._offsets[-1]
            if len(self._offsets) == 1:
                self._offsets.clear()


def _now(_: Snapshot, now_ms: int) -> Plan[int]:
    return Plan(now_ms)


@dataclass(frozen=True, slots=True)
class Tick:
    """What one cycle did: the sessions that were due, how their attempts ended, and how many events were removed."""

    sessions: int
    settled: int
    retrying: int
    dead_letters: int
    purged: int


async def tick(engine: Engine) -> Tick:
    """Put the crons in force, drain what is due until nothing is, and purge. Raises StoreUnavailable or StoreBroken."""
    await runs.register(engine)
    before = Counter(engine.runtime.counts)
    sessions = 0
    while due := await _due(engine):
        sessions += len(due)
        async with anyio.create_task_group() as tasks:
            for key in due:
                tasks.start_soon(engine.deliver, key)
    counts = engine.runtime.counts - before
    purged = await purge(engine)
    settled = counts[SignalName.SETTLED] + counts[SignalName.CANCELLED]
    retrying = counts[SignalName.RETRYING] + counts[SignalName.SNOOZED]
    return Tick(sessions, settled, retrying, counts[SignalName.DEAD_LETTER], purged)


async def purge(engine: Engine) -> int:
    """Remove all that has expired, a batch at a time; how many events. Raises StoreUnavailable or StoreBroken."""
    purged = 0
    while batch := await engine.runtime.store.purge(PURGE_BATCH):
        purged += batch
    return purged


async def keep_up(engine: Engine, tried: anyio.Event) -> None:
    """Put the crons in force, also after the store has lost them, then purge once a minute, until it is cancelled.

    `tried` is set once it has been through all of this for the first time.
    """
    in_force_since: int | None = None
    while True:
        losses = _losses(engine.runtime.store)
        try:
            if in_force_since != losses:
                await runs.register(engine)
                in_force_since = losses
            await purge(engine)
        except (StoreUnavailable, StoreBroken) as error:
            log.warning("the upkeep waits for the store: %s", error)
        tried.set()
        in_force = in_force_since == _losses(engine.runtime.store)
        await engine.runtime.clock.sleep_ms(UPKEEP_MS if in_force else UPKEEP_RETRY_MS)


def _losses(store: Store) -> int:
    return store.losses if isinstance(store, LosingStore) else 0


async def _due(engine: Engine) -> list[SessionKey]:
    """Sessions that are due, all of the highest priority that has any: on trio, tasks start in any order."""
    lease_ms = engine.runtime.timings.window_ms
    for level in engine.levels():
        due: list[SessionKey] = []
        for share in level:
            limit = BATCH - len(due) if share.most is None else min(share.most, BATCH - len(due))
            wakes = await engine.runtime.store.claim_wakes(share.contracts, limit=limit, lease_ms=lease_ms)
            due += wakes.due
        if due:
            return due
    return []
