"""The embedded scheduler: the store's own wake-ups, looked after by whatever process runs."""

import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import anyio
from anyio.abc import TaskGroup

from a2asgi.errors import ConfigurationError, StoreBroken, StoreUnavailable
from a2asgi.ports import PushingStore, SessionKey, Store
from a2asgi.threads import Loop
from a2asgi.times import Duration, duration_ms

log: logging.Logger = logging.getLogger("a2asgi.schedulers.embedded")

LookAfter: TypeAlias = Callable[[], Awaitable[object]]

MIN_PAUSE_MS = 250
MAX_PAUSE_MS = 30_000
"""Shortest and longest pause while the store does not answer."""


@dataclass(frozen=True, slots=True)
class EmbeddedScheduler:
    """Wakes sessions from the store itself, without a provider: the default.

    Any number of processes share one store. `poll` is how often each looks for wake-ups that another process wrote;
    its own it knows at once. `concurrency` is how many woken sessions one process drains at a time.
    """

    poll: Duration = "250ms"
    concurrency: int = 64

    def __post_init__(self) -> None:
        if self.poll_ms < 1 or self.concurrency < 1:
            raise ConfigurationError(f"{self}: expected a poll above zero, and a concurrency of 1 or more")

    @property
    def poll_ms(self) -> int:
        """`poll` in milliseconds."""
        return duration_ms(self.poll)


@dataclass(frozen=True, slots=True)
class Share:
    """Contracts whose wake-ups are taken together, `most` of them at one time; None for any number."""

    contracts: tuple[str, ...]
    most: int | None = None


class WakeLoop:
    """Sleeps until the next wake-up of the store, takes what is due, and hands each session to `deliver`.

    It counts its waits by the event loop's clock: the time of day may be set back, by hours, at any moment.

    `shares` says which contracts, the most urgent first. `late_ms` lets a wake-up pass for that long before it counts:
    a sweep behind a provider only takes what it lost.
    """

    def __init__(
        self,
        store: Store,
        deliver: Callable[[SessionKey], Awaitable[object]],
        *,
        shares: Callable[[], Sequence[Share]],
        poll_ms: int,
        lease_ms: int,
        concurrency: int,
        late_ms: int = 0,
    ) -> None:
        self._store = store
        self._deliver = deliver
        self._shares = shares
        self._poll_ms = poll_ms
        self._lease_ms = lease_ms
        self._late_ms = late_ms
        self._free = concurrency
        self._taken: Counter[Share] = Counter()
        self._full: set[Share] = set()
        self._tasks: TaskGroup | None = None
        self._bell = anyio.Event()
        self._look_by_s = 0.0
        self._stopped = False
        self._looked = False
        self._first: set[SessionKey] = set()
        self._first_begun = anyio.Event()
        self._ended = anyio.Event()

    async def first_round(self) -> None:
        """Wait until somebody looks after what was due at the start, as far as there was room for it."""
        await self._first_begun.wait()

    async def ended(self) -> None:
        """Wait until nothing is taken any more, and all that was taken has been looked after or handed on."""
        await self._ended.wait()

    def stop(self) -> None:
        """Take nothing more; what was taken is delivered to its end."""
        self._stopped = True
        self._look_now()

    def wake_in(self, duration_ms: int) -> None:
        """A wake-up was written that is due so much later: by the time it counts, look again."""
        look_by_s = _in_ms(duration_ms + self._late_ms)
        if look_by_s < self._look_by_s:
            self._look_by_s = look_by_s
            self._bell.set()

    def _look_now(self) -> None:
        """Look again at once. It may be called by the loop itself, where no task asks what time it is."""
        self._look_by_s = -math.inf
        self._bell.set()

    def reserve(self, contract: str) -> "Place | None":
        """A place for a session that is about to be due; None where there is no room, and it has to wait its turn.

        While there is room nothing that is due waits, so whoever has a place overtakes no one.
        """
        if self._tasks is None or self._stopped or self._late_ms:
            return None
        share = next(share for share in self._shares() if contract in share.contracts)
        if self._room(share) <= 0:
            return None
        return self._place(share)

    async def run(self) -> None:
        """Run until `stop`. While the store does not answer it tries again, ever more slowly."""
        try:
            with self._listening():
                async with anyio.create_task_group() as self._tasks:
                    await self._look_on()
        finally:
            self._tasks = None
            self._first_begun.set()
            self._ended.set()

    def _listening(self) -> AbstractContextManager[None]:
        """Hear at once of what others write that is due, where the store tells it; a sweep has the time to find it."""
        if self._late_ms or not isinstance(self._store, PushingStore):
            return nullcontext()
        loop = Loop()

        def look(contract: str | None) -> None:
            if contract is None or any(contract in share.contracts for share in self._shares()):
                self._look_now()

        def hear(key: SessionKey | None, is_due: bool) -> None:  # noqa: FBT001 - the form of an ear
            if is_due:
                loop.call_soon(partial(look, None if key is None else key.contract))

        return self._store.listening(hear)

    async def _look_on(self) -> None:
        pause_ms = 0
        while not self._stopped:
            # set before looking: a wake-up that is written meanwhile may be one that the look does not see
            self._look_by_s = _in_ms(self._poll_ms)
            try:
                await self._take()
            except (StoreUnavailable, StoreBroken) as error:
                pause_ms = min(max(2 * pause_ms, MIN_PAUSE_MS), MAX_PAUSE_MS)
                log.warning("cannot look for wake-ups, next try in %d ms: %s", pause_ms, error)
                await anyio.sleep(pause_ms / 1_000)
            else:
                pause_ms = 0
                self._looked = True
                self._begin_first()
                await self._sleep()

    async def _take(self) -> None:
        """Take what is due, as far as there is room for it, and learn when the next one is."""
        for share in self._shares():
            limit = self._room(share)
            if limit <= 0:
                self._full.add(share)
                continue
            wakes = await self._store.claim_wakes(
                share.contracts, limit=limit, lease_ms=self._lease_ms, late_ms=self._late_ms
            )
            if not self._looked:
                self._first.update(wakes.due)
            for key in wakes.due:
                self._place(share).start(key, partial(self._deliver, key))
            if self._room(share) <= 0:
                self._full.add(share)
            elif wakes.next_in_ms is not None:
                self._look_by_s = min(self._look_by_s, _in_ms(wakes.next_in_ms))

    def _room(self, share: Share) -> int:
        return self._free if share.most is None else min(self._free, share.most - self._taken[share])

    async def _sleep(self) -> None:
        """Until the next look is due, which may come to be earlier meanwhile."""
        while (left_s := self._look_by_s - anyio.current_time()) > 0:
            self._bell = anyio.Event()
            with anyio.move_on_after(left_s):
                await self._bell.wait()

    def _place(self, share: Share) -> "Place":
        """Take one of the places of a share."""
        self._free -= 1
        self._taken[share] += 1
        return Place(partial(self._start, share), partial(self._give_back, share))

    def _start(self, share: Share, key: SessionKey, look_after: LookAfter) -> None:
        """Have a session looked after in a place; once `run` has ended, nobody does: it waits for its wake-up."""
        if self._tasks is None:
            self._give_back(share)
        else:
            self._tasks.start_soon(self._attend, share, key, look_after)

    async def _attend(self, share: Share, key: SessionKey, look_after: LookAfter) -> None:
        self._first.discard(key)
        self._begin_first()
        try:
            await look_after()
        finally:
            self._give_back(share)

    def _begin_first(self) -> None:
        if self._looked and not self._first:
            self._first_begun.set()

    def _give_back(self, share: Share) -> None:
        self._free += 1
        self._taken[share] -= 1
        if self._full:  # there may be more of what was left for want of room
            self._full.clear()
            self._look_now()


@dataclass(frozen=True, slots=True)
class Place:
    """One of the places of a WakeLoop, taken: `start` has a session looked after in it, or else `give_back`."""

    start: Callable[[SessionKey, LookAfter], None]
    give_back: Callable[[], None]


def _in_ms(duration_ms: int) -> float:
    """An instant of the event loop's clock, in seconds."""
    return anyio.current_time() + duration_ms / 1_000
