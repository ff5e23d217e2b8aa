"""Calls as the tests of stores make them: an append, the log, one that fails, one held open, many cancelled."""

from collections.abc import Awaitable, Callable
from random import Random
from threading import Event

import anyio
import pytest
from anyio import to_thread

from a2asgi.ports import SessionKey, Store
from a2asgi.testing.store_bench import appending_as
from a2core import Entry, Needs, Plan, Snapshot, WakeAt
from tests.asgi.stores.servers import operator

KEY = SessionKey("shop", "s-1")
OTHER = SessionKey("shop", "s-2")
KEYS = [SessionKey("shop", f"s-{number}") for number in range(7)]
PATIENCE_S = 20
CANCELLATIONS = 500
BUSY_TURNS = 100
TURN_S = 0.000_1


async def append(store: Store, event_id: str, key: SessionKey = KEY) -> int:
    """Append an event with open work, and answer its seq."""
    return await store.transact(key, Needs(ids=(event_id,)), appending_as(event_id))


async def log_of(store: Store, key: SessionKey = KEY) -> list[str]:
    """The ids in a session's log, whose seqs are found to count from 1."""
    log = await store.read(key, 0, 100_000)
    assert list(range(1, len(log) + 1)) == [entry.seq for entry in log]
    return [entry.id for entry in log]


async def failing_with(kind: type[Exception], awaitable: Awaitable[object]) -> str:
    """The text of the error that this ends in."""
    with pytest.raises(kind) as caught:
        await awaitable
    return str(caught.value)


class Gate:
    """A transaction that appends an event once the gate is opened."""

    def __init__(self, event_id: str = "gate") -> None:
        self._event_id = event_id
        self._reached = Event()
        self._open = Event()

    def __call__(self, snapshot: Snapshot, now_ms: int) -> Plan[int]:
        self._reached.set()
        assert self._open.wait(PATIENCE_S)
        return appending_as(self._event_id)(snapshot, now_ms)

    async def reached(self) -> None:
        """Return once the transaction is under way."""
        assert await to_thread.run_sync(self._reached.wait, PATIENCE_S)

    def open(self) -> None:
        """Let it go on."""
        self._open.set()


async def hold(store: Store, key: SessionKey, gate: Gate) -> None:
    """Be in the middle of a transaction, on a thread, until the gate is opened."""
    await to_thread.run_sync(lambda: store.transact_blocking(key, Needs(), gate))


async def waiting_for_a_lock(url: str, count: int) -> None:
    """Return once so many sessions of the server wait for somebody's lock."""
    text = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'a2'"
    with anyio.fail_after(PATIENCE_S), operator(url) as console:
        while console.execute(text).fetchall() != [(count,)]:
            await anyio.lowlevel.checkpoint()


class Cancelling:
    """Makes calls of every kind and cancels each after some turns of the loop, or after some milliseconds.

    How many adapts to the machine, so that at most awaits of a call some are cancelled, and some calls come through.
    """

    def __init__(self, store: Store, *, at_once: int) -> None:
        self.caught = 0
        self.calls = 0
        self._store = store
        self._at_once = at_once
        self._random = Random(20_260_514)  # noqa: S311 - it picks moments, not secrets
        self._reach = 1.0

    async def round(self) -> None:
        """So many calls at once."""
        async with anyio.create_task_group() as tasks:
            for _ in range(self._at_once):
                self.calls += 1
                tasks.start_soon(self._one, self._some_call(f"e{self.calls}"))

    async def _one(self, call: Callable[[], Awaitable[object]]) -> None:
        moment = self._random.random() * self._reach
        async with anyio.create_task_group() as tasks:
            with anyio.CancelScope() as scope:
                if self._random.random() < 0.5:
                    tasks.start_soon(cancel_after, scope, int(moment * 20))
                else:
                    scope.deadline = anyio.current_time() + moment / 500
                await call()
        self.caught += scope.cancelled_caught
        self._reach *= 1.1 if scope.cancelled_caught else 0.8

    def _some_call(self, event_id: str) -> Callable[[], Awaitable[object]]:
        store, key = self._store, self._random.choice(KEYS)
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: append(store, event_id, key),
            lambda: append_expired(store, SessionKey("old", key.session_id), event_id),
            lambda: store.read(key, 0, 1_000),
            lambda: store.claim_wakes(["old"], limit=3, lease_ms=1),
            lambda: store.purge(3),
            store.sessions,
            store.dead_letters,
        ]
        return self._random.choice(calls)


async def cancel_after(scope: anyio.CancelScope, turns: int) -> None:
    """Cancel after so many turns of the loop; where they are many, the rest passes as time.

    A loop that never rests leaves a store's thread the interpreter every 5 ms, for each of its steps.
    """
    for _ in range(min(turns, BUSY_TURNS)):
        await anyio.lowlevel.checkpoint()
    if turns > BUSY_TURNS:
        await anyio.sleep((turns - BUSY_TURNS) * TURN_S)
    scope.cancel()


async def append_expired(store: Store, key: SessionKey, event_id: str) -> None:
    """Append what the next purge removes, and wake the session."""

    def decide(snapshot: Snapshot, now_ms: int) -> Plan[None]:
        entry = Entry(event_id, "order", "{}", None, now_ms, snapshot.last_seq + 1)
        return Plan(None, entries=(entry,), expires={entry.seq: 0}, wake=WakeAt(now_ms))

    await store.transact(key, Needs(ids=(event_id,)), decide)


async def kept(store: Store, event_id: str) -> None:
    """A call that nobody cancels has its own answer: it appends to a session of its own and reads that."""
    key = SessionKey("kept", event_id)
    assert 1 == await append(store, event_id, key)
    assert [event_id] == await log_of(store, key)


async def all_is_whole(store: Store) -> None:
    """Each event that calls have appended is in its log once, and its work is open, but for what was to be purged."""
    for info in await store.sessions(limit=1_000):
        entries = await store.read(info.key, 0, 1_000)
        assert sorted({entry.seq for entry in entries}) == [entry.seq for entry in entries]
        assert len({entry.id for entry in entries}) == len(entries)
    for key in KEYS:
        log = await log_of(store, key)
        assert len(set(log)) == len(log)
        found = await store.transact(key, Needs(seqs=tuple(range(1, len(log) + 1))), lambda seen, _: Plan(seen))
        assert (len(log), len(log)) == (found.last_seq, len(found.items))
