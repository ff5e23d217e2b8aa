"""Live reads: a session's events as they are appended, for any number of readers, from one look at the store."""

from collections import deque
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from itertools import takewhile

import anyio

from a2asgi.ports import PushingStore, SessionKey, Store
from a2asgi.threads import Loop
from a2core import Entry

ACTIVE_S = 0.025
QUIET_S = 0.25
"""How often a session is looked at while events come, and once none have come for a while (stores.md 3)."""

SAFETY_S = 10.0
"""How often it is looked at while a store tells of what others append: what it tells may be lost."""

WATCH_MS = 60_000
"""For how long a session is watched by one call, which comes again after half of that."""

KEPT = 256
"""How many of the last events its readers share; who is further behind reads the log by itself, as many at a time."""


class News:
    """What the readers of one process wait for. Who appends here tells it; for the appends of others it looks.

    A store that pushes tells it of those too; then it looks but rarely.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pushing = store if isinstance(store, PushingStore) else None
        self._channels: dict[SessionKey, _Channel] = {}
        self._listening: AbstractContextManager[None] | None = None
        self._watched_until: dict[SessionKey, float] = {}  # the one that ends first is the first

    def tell(self, key: SessionKey) -> None:
        """Something was appended to this session."""
        if (channel := self._channels.get(key)) is not None:
            channel.tell()

    def hear(self, key: SessionKey | None, _is_due: bool) -> None:  # noqa: FBT001 - the form of an ear
        """Something was appended elsewhere; called on any thread."""
        if key is None:  # whatever was watched may be forgotten
            self._watched_until = {}
        for channel in tuple(self._channels.values()) if key is None else (self._channels.get(key),):
            if channel is not None:
                channel.hear()

    async def watch(self, key: SessionKey) -> float | None:
        """For how many seconds others' appends to it are told: 0 if only from now on, None if they are not."""
        pushing, now = self._pushing, anyio.current_time()
        if pushing is None or not pushing.hears:
            return None
        if (left_s := self._watched_until.get(key, now) - now) > 0:
            return left_s
        watched = self._watched_until
        if not await pushing.watch(key, WATCH_MS):
            return None
        for other in [*takewhile(lambda other: watched[other] <= now, watched)]:
            del watched[other]
        watched[key] = now + WATCH_MS / 2_000
        return 0.0

    def stream(self, key: SessionKey, after_seq: int) -> "EntryStream":
        """The session's entries after a seq: what is in the log, then each as it is appended."""
        return EntryStream(self, key, after_seq)

    async def read(self, key: SessionKey, after_seq: int) -> list[Entry]:
        """A page of the log."""
        return await self._store.read(key, after_seq, KEPT)

    async def wait(self, key: SessionKey, after_seq: int) -> list[Entry] | None:
        """What comes after the end of the log, at `after_seq`; None where too much has come since for it to be kept."""
        channel = self._channels.get(key)
        if channel is None:
            if self._pushing is not None and self._listening is None:
                self._listening = self._pushing.listening(self.hear)
                self._listening.__enter__()  # for good: what is told between two waits must be heard too
            channel = self._channels[key] = _Channel(self, key, after_seq)
        channel.readers += 1
        try:
            return await channel.wait(after_seq)
        finally:
            channel.readers -= 1
            if not channel.readers:
                del self._channels[key]


class EntryStream(AsyncIterator[Entry]):
    """One reader's place in a session. It holds a page at most, however slow the reader is.

    What it raises, StoreUnavailable or StoreBroken, leaves it where it was: it can be asked again.
    """

    def __init__(self, news: News, key: SessionKey, after_seq: int) -> None:
        self._news = news
        self._key = key
        self._after_seq = after_seq
        self._page: deque[Entry] = deque()
        self._is_live = False

    async def __anext__(self) -> Entry:
        """The next entry; it waits until there is one."""
        while not self._page:
            if not self._is_live:
                self._page.extend(await self._news.read(self._key, self._after_seq))
                self._is_live = not self._page
            else:
                found = await self._news.wait(self._key, self._after_seq)
                self._is_live = found is not None
                self._page.extend(found or ())
        entry = self._page.popleft()
        self._after_seq = entry.seq
        return entry


class _Channel:
    """The readers at the end of one session's log: one of them looks at the store, for all that wait."""

    def __init__(self, news: News, key: SessionKey, after_seq: int) -> None:
        self.readers = 0
        self._news = news
        self._key = key
        self._kept: deque[Entry] = deque(maxlen=KEPT)
        self._floor = after_seq  # all that came after it, and none before it, is kept
        self._last = after_seq
        self._told = 0
        self._bell = anyio.Event()
        self._has_looker = False
        self._pause_s = ACTIVE_S
        self._loop = Loop()

    def tell(self) -> None:
        """There is something to look for now."""
        self._told += 1
        self._ring()

    def hear(self) -> None:
        """The same, called on any thread."""
        self._loop.call_soon(self.tell)

    async def wait(self, after_seq: int) -> list[Entry] | None:
        """What comes after `after_seq`; None for a reader that is too far behind for what is kept."""
        while after_seq >= self._floor or not self._kept:
            if found := [entry for entry in self._kept if entry.seq > after_seq]:
                return found
            if self._has_looker:
                await self._bell.wait()
                continue
            self._has_looker = True
            try:
                await self._look()
            finally:
                self._has_looker = False
                self._ring()  # if this one was cancelled, or failed, another looks on
        return None

    async def _look(self) -> None:
        told = self._told
        found = await self._news.read(self._key, self._last)
        for entry in found:
            if len(self._kept) == KEPT:
                self._floor = self._kept[0].seq
            self._kept.append(entry)
            self._last = entry.seq
        if found:
            self._pause_s = ACTIVE_S
        elif told == self._told:
            told_s = await self._news.watch(self._key)
            pause_s = self._pause_s if told_s is None else min(told_s, SAFETY_S)
            if pause_s and told == self._told:
                with anyio.move_on_after(pause_s):
                    await self._bell.wait()
            self._pause_s = ACTIVE_S if told != self._told else min(2 * self._pause_s, QUIET_S)

    def _ring(self) -> None:
        self._bell.set()
        self._bell = anyio.Event()
