"""Ports: what the engine asks of a store, a scheduler and a clock, as protocols and their values."""

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

from a2core import Entry, Needs, Plan, PublishRequest, PublishRules, Snapshot, Task, WorkItem

Answer = TypeVar("Answer")
Decide: TypeAlias = Callable[[Snapshot, int], Plan[Answer]]
"""A decision of the core with all but the snapshot and the store's `now_ms` filled in."""

DUE_TIMERS = 100
"""How many due timers one snapshot holds at most, so that a transaction stays short."""


@dataclass(frozen=True, slots=True)
class SessionKey:
    """Which session: its contract's name and its id."""

    contract: str
    session_id: str

    def __str__(self) -> str:
        return f"{self.contract}/{self.session_id}"


@dataclass(frozen=True, slots=True)
class Wakes:
    """Sessions whose wake-up is due, each now put off by the lease, and when the next one comes."""

    due: tuple[SessionKey, ...]
    next_in_ms: int | None
    """Milliseconds, by the store's clock, until the earliest wake-up that is left; None if there is none."""


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """One session as an operator sees it in a list."""

    key: SessionKey
    last_seq: int
    wake_at_ms: int | None


class Store(Protocol):
    """Durable memory with transactions. It decides nothing (stores.md 1).

    Every call raises StoreUnavailable where trying again later is right, and StoreBroken where it is not; then
    nothing was written. One store serves any number of event loops, threads and, if durable, processes.
    """

    offset_ms: int
    """How far a test has moved this store's clock; 0 otherwise."""

    async def open(self) -> None:
        """Connect, and create or migrate the schema. Doing it again does nothing."""
        ...

    async def transact(self, key: SessionKey, needs: Needs, decide: Decide[Answer]) -> Answer:
        """Load what is needed, call `decide` with the store's clock, write the plan: one transaction.

        `decide` may be called again on a fresh snapshot, when the store has to start over. What it raises is raised
        here, and nothing is written.
        """
        ...

    def transact_blocking(self, key: SessionKey, needs: Needs, decide: Decide[Answer]) -> Answer:
        """The same on the calling thread, without an event loop, on a connection of its own."""
        ...

    async def read(self, key: SessionKey, after_seq: int, limit: int) -> list[Entry]:
        """Up to `limit` entries of the log with a seq above `after_seq`, in order."""
        ...

    async def claim_wakes(self, contracts: Collection[str], *, limit: int, lease_ms: int, late_ms: int = 0) -> Wakes:
        """Take up to `limit` sessions whose wake-up is due since `late_ms`, and put each off by `lease_ms`.

        Whoever takes a session looks after it; if it dies, the session is due again when the lease ends.
        """
        ...

    async def purge(self, limit: int) -> int:
        """Remove up to `limit` events that have expired, and the sessions that hold nothing more; how many events."""
        ...

    async def dead_letters(
        self, contract: str | None = None, *, after: tuple[SessionKey, int] | None = None, limit: int = 100
    ) -> list[tuple[SessionKey, WorkItem]]:
        """Up to `limit` dead letters after the one of session and seq `after`, by contract, session id and seq."""
        ...

    async def sessions(
        self, contract: str | None = None, *, after: SessionKey | None = None, limit: int = 100
    ) -> list[SessionInfo]:
        """Up to `limit` sessions after `after`, by contract and session id."""
        ...

    async def ping(self) -> None:
        """Return if the store answers."""
        ...

    async def close(self) -> None:
        """Finish what was accepted and disconnect. The store can be opened again."""
        ...


@runtime_checkable
class JoiningStore(Store, Protocol):
    """A store in a database where an app keeps its own rows too, so that both can be written in one transaction."""

    async def begin(self, connection: Any) -> None:
        """Begin a transaction on the caller's connection, unless it is in one."""
        ...

    async def transact_on(self, connection: Any, key: SessionKey, needs: Needs, decide: Decide[Answer]) -> Answer:
        """As `transact`, in the transaction that is open on the caller's connection; nothing is committed here.

        What it raises has written nothing, and leaves the transaction open. Raises ConfigurationError for a
        connection that is not in a transaction, or not to this store's database.
        """
        ...


Ear: TypeAlias = Callable[[SessionKey | None, bool], object]
"""Told, on any thread, that another process has written this session, and whether it is due at once. None stands for
any session: what was written meanwhile may have gone unheard."""


@runtime_checkable
class PushingStore(Store, Protocol):
    """A store that tells what other processes write as they write it. What it tells is a hint, which may be lost."""

    @property
    def hears(self) -> bool:
        """Whether anything would be told now. Ears are told when it changes."""
        ...

    def listening(self, ear: Ear) -> AbstractContextManager[None]:
        """Tell this ear until the context ends: of sessions that are due at once, and of those that are watched."""
        ...

    async def watch(self, key: SessionKey, for_ms: int) -> bool:
        """Have each append to this session told for so long; False if there is no such session yet."""
        ...


@runtime_checkable
class LosingStore(Protocol):
    """A store on a server that may come back without its data, after which it goes on with what is there."""

    losses: int
    """How often that was found out."""


class Scheduler(Protocol):
    """A provider that carries tasks until they are due and then delivers them over HTTP."""

    async def send(self, task: Task, *, seq: int | None = None, now_ms: int | None = None) -> None:
        """Hand a task over; return once the provider has accepted it. Raises SendFailed.

        `seq` is that of the last event that a dispatch appended, by which its message is named (wire.md 3). `now_ms`
        is the time by the clock that the task is due by, where that is not this process's own: by a clock that is
        ahead it would seem due, and come early.
        """
        ...


@runtime_checkable
class DeliveringScheduler(Scheduler, Protocol):
    """A provider whose deliveries come to the callback route, signed."""

    @property
    def rules(self) -> PublishRules:
        """How its messages are published."""
        ...

    async def publish(self, request: PublishRequest) -> None:
        """Have the provider accept a message. Raises SendFailed."""
        ...

    def verify(self, signature: str, body: bytes, region: str | None, *, url: str | None = None) -> bool:
        """Whether the provider signed these bytes for `url`, or else the callback's. Raises nothing; logs why not."""
        ...

    def bind(self, owner: object) -> None:
        """Belong to one A2. Raises WiringError for a second one."""
        ...

    async def close(self) -> None:
        """Close what was opened."""
        ...
