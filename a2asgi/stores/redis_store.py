"""What the Redis stores share: a store whose transactions are a compare-and-set of finished plans."""

import re
from collections.abc import Awaitable, Callable, Collection
from secrets import token_hex
from threading import Lock
from typing import TypeVar

from a2asgi.errors import ConfigurationError, StoreUnavailable
from a2asgi.listening import Ears, hint
from a2asgi.loop_thread import LoopThread
from a2asgi.ports import Answer, Decide, SessionInfo, SessionKey, Wakes
from a2asgi.stores import redis_indexes as indexes
from a2asgi.stores import redis_records as records
from a2asgi.stores.redis_link import MAX_SHARDS, Data, Home, Link, OpenLink, StateLost, find_home, log, pause
from a2asgi.stores.redis_scripts import READ, TOKEN_CHARS, WRITE
from a2asgi.turns import Turns
from a2core import Entry, Needs, WorkItem

MAX_STARTS = 200
"""How often a transaction starts over because another process wrote the session first."""

PREFIX = re.compile(r"[A-Za-z0-9_.-]{1,64}")
T = TypeVar("T")


class ScriptStore:
    """A store that runs its scripts through a link, on a thread with an event loop of its own."""

    def __init__(self, where: str, open_link: OpenLink, *, prefix: str, shards: int | None, default: int) -> None:
        if not PREFIX.fullmatch(prefix):
            raise ConfigurationError(f"prefix: expected 1 to 64 of A-Z a-z 0-9 _ . -, got {prefix!r}")
        if shards is not None and not 1 <= shards <= MAX_SHARDS:
            raise ConfigurationError(f"shards: expected 1 to {MAX_SHARDS}, got {shards}")
        self.offset_ms: int = 0
        self.losses: int = 0
        """How often the server was found without the data that it had before."""
        self._where = where
        self._open_link = open_link
        self._prefix = prefix
        self._shards = shards
        self._default = default
        self._lock = Lock()
        self._thread: LoopThread[Link] | None = None
        self._is_open = False
        self._home: Home | None = None
        self._last_home: Home | None = None
        self._turns = Turns()
        self._ears = Ears()

    async def open(self) -> None:
        """As Store.open. Raises StoreBroken for data of another layout, or of a later version."""
        self._is_open = True
        await self._on_thread().run(self._data)

    async def close(self) -> None:
        """As Store.close."""
        with self._lock:
            thread, self._thread, self._is_open = self._thread, None, False
        if thread is not None:
            await thread.stop().wait()
        self._home = None

    async def ping(self) -> None:
        """As Store.ping."""
        await self._run(lambda data: data.ask(READ, 0, [data.layout.name(0, "none")], [0, 0]))

    async def transact(self, key: SessionKey, needs: Needs, decide: Decide[Answer]) -> Answer:
        """As Store.transact."""
        return await self._on_thread().run(lambda link: self._with_data(link, self._transaction(key, needs, decide)))

    def transact_blocking(self, key: SessionKey, needs: Needs, decide: Decide[Answer]) -> Answer:
        """As Store.transact_blocking."""
        job = self._transaction(key, needs, decide)
        return self._on_thread().run_blocking(lambda link: self._with_data(link, job))

    async def read(self, key: SessionKey, after_seq: int, limit: int) -> list[Entry]:
        """As Store.read."""

        async def job(data: Data) -> list[Entry]:
            names = data.layout.names(key, "log")
            [rows] = await data.ask(READ, data.layout.shard_of(key), names, [after_seq, limit])
            return records.log_of(rows)

        return await self._run(job)

    async def claim_wakes(self, contracts: Collection[str], *, limit: int, lease_ms: int, late_ms: int = 0) -> Wakes:
        """As Store.claim_wakes. While nothing is due it only reads."""
        names = list(contracts)
        return await self._run(lambda data: indexes.claim_wakes(data, names, limit, lease_ms, late_ms))

    async def purge(self, limit: int) -> int:
        """As Store.purge."""
        return await self._run(lambda data: indexes.purge(data, limit))

    async def dead_letters(
        self, contract: str | None = None, *, after: tuple[SessionKey, int] | None = None, limit: int = 100
    ) -> list[tuple[SessionKey, WorkItem]]:
        """As Store.dead_letters."""
        return await self._run(lambda data: indexes.dead_letters(data, contract, after, limit))

    async def sessions(
        self, contract: str | None = None, *, after: SessionKey | None = None, limit: int = 100
    ) -> list[SessionInfo]:
        """As Store.sessions."""
        return await self._run(lambda data: indexes.sessions(data, contract, after, limit))

    def _moved_ms(self) -> int:
        """How far the server's clock is moved."""
        return self.offset_ms

    async def _run(self, job: Callable[[Data], Awaitable[T]]) -> T:
        return await self._on_thread().run(lambda link: self._with_data(link, job))

    def _on_thread(self) -> LoopThread[Link]:
        with self._lock:
            if not self._is_open:
                raise StoreUnavailable(f"{self!r} is not open: await store.open() first, or use it through A2")
            if self._thread is None or self._thread.has_ended:
                self._thread = self._new_thread()
            return self._thread

    def _new_thread(self) -> LoopThread[Link]:
        return LoopThread("a2-redis", self._open_link)

    # ── what follows runs on that thread ─────────────────────────────────────────────────

    async def _with_data(self, link: Link, job: Callable[[Data], Awaitable[T]]) -> T:
        data = await self._data(link)
        try:
            return await job(data)
        except StateLost as error:
            if self._home is data.home:
                self._home = None
                await self._data(link)  # it is told at once, whoever asks next
            raise StoreUnavailable(f"{self._where}: {error}") from error

    async def _data(self, link: Link) -> Data:
        if self._home is None:
            home = await find_home(link, self._where, self._prefix, self._shards, self._default)
            if self._last_home not in {None, home}:
                self.losses += 1
                log.error(
                    "%s lost its state: what was written before is gone, or other data has taken its place; "
                    "it goes on with what is there",
                    self._where,
                )
            self._home = self._last_home = home
        return Data(link, self._home, self._moved_ms())

    def _transaction(
        self, key: SessionKey, needs: Needs, decide: Decide[Answer]
    ) -> Callable[[Data], Awaitable[Answer]]:
        async def transact(data: Data) -> Answer:
            shard, member = data.layout.shard_of(key), records.member_of(key)
            names = data.layout.names(key, *records.PARTS, "wakes", *records.INDEXES)
            async with self._turns.of(key):  # so that those of one process never start over for each other
                for started in range(MAX_STARTS):
                    now_ms, seen, snapshot = await indexes.load(data, key, needs)
                    plan = decide(snapshot, now_ms)
                    if not plan.writes:
                        return plan.answer
                    token = token_hex(TOKEN_CHARS // 2)
                    is_due = plan.is_due(now_ms)
                    told = hint(self._ears.sender, key, is_due=is_due)
                    rows = [*records.plan_rows(plan), data.layout.channel, told, int(is_due), now_ms]
                    said = await data.ask(WRITE, shard, names, [seen, token, member, *rows])
                    if said != ["conflict"]:
                        return plan.answer
                    await pause(started)
            raise StoreUnavailable(f"{self._where}: others wrote session {key} first, {MAX_STARTS} times; try again")

        return transact
