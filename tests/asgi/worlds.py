"""What the tests of drains, renewal, scheduling and shutdown share: a small shop, and fakes that follow a script."""

from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeAlias

import anyio
from anyio.lowlevel import checkpoint

from a2asgi import (
    A2,
    Clock,
    EmbeddedScheduler,
    EventType,
    MemoryStore,
    Receipt,
    Retry,
    Session,
    SessionKey,
    Store,
    StoreUnavailable,
)
from a2asgi.ports import Answer, Decide, Wakes
from a2asgi.testing import World
from a2asgi.times import Duration
from a2core import (
    Appended,
    Buried,
    Claimed,
    Needs,
    Plan,
    Released,
    Renewed,
    Retrying,
    Roster,
    Scheduled,
    Settled,
    Snapshot,
    Stale,
    Task,
    WentOn,
    WorkItem,
    decide_append,
    decide_claim,
)

Args = ParamSpec("Args")
Handle: TypeAlias = Callable[..., object]

STEADY = Retry(jitter=0)
"""Waits of exactly 1, 2, 4, … seconds."""

NEVER = EmbeddedScheduler(poll="1d")
"""It only looks when it starts, when it is told to, and when the next wake-up is due."""

OFTEN = EmbeddedScheduler(poll="10ms")
"""It hears at once of what another process wrote."""


def within(seconds: float) -> Callable[[Callable[Args, Coroutine[Any, Any, None]]], Callable[Args, Awaitable[None]]]:
    """A test that hangs is a test that fails."""

    def decorate(test: Callable[Args, Coroutine[Any, Any, None]]) -> Callable[Args, Awaitable[None]]:
        @wraps(test)
        async def run(*args: Args.args, **kwargs: Args.kwargs) -> None:
            with anyio.fail_after(seconds):
                await test(*args, **kwargs)

        return run

    return decorate


async def rounds(count: int = 50) -> None:
    """Let every other task have this many turns."""
    for _ in range(count):
        await checkpoint()


def first_letter(text: str) -> str:
    """The lane of an order: `a1` and `a2` are of lane a."""
    return text[0]


class Shop:
    """An A2 with one contract: orders are handled by what it is given, notes only stand in the log."""

    def __init__(
        self, handle: Handle, *, retry: Retry = STEADY, timeout: Duration | None = None, **settings: Any
    ) -> None:
        self.store: Store = settings.setdefault("store", MemoryStore())
        self.a2 = A2(**settings)
        self.orders = self.a2.contract("orders")
        self.order: EventType[str] = self.orders.event("order", str, lane=first_letter)
        self.note: EventType[str] = self.orders.event("note", str)
        self.orders.on(self.order, retry=retry, timeout=timeout)(handle)

    def session(self, session_id: str = "s") -> Session:
        """A session of orders."""
        return self.orders.session(session_id)

    async def append(self, *texts: str, session_id: str = "s", wait: bool = False) -> Receipt:
        """Append orders whose ids are their texts."""
        return await self.session(session_id).append(*(self.order(text, id=text) for text in texts), wait=wait)

    async def dispatch(self, *texts: str, session_id: str = "s") -> Receipt:
        """Leave orders to the scheduler."""
        return await self.session(session_id).dispatch(*(self.order(text, id=text) for text in texts))

    async def log(self, session_id: str = "s") -> list[str]:
        """The payloads of a session's log."""
        return [event.payload for event in await self.session(session_id).read()]


KEY = SessionKey("orders", "s")
"""The session that a test uses if it uses one."""


def heads(store: Store, key: SessionKey = KEY) -> tuple[WorkItem, ...]:
    """The first open work of each lane, as it is stored."""
    return store.transact_blocking(key, Needs(heads=True), _only_heads)


def _only_heads(snapshot: Snapshot, _: int) -> Plan[tuple[WorkItem, ...]]:
    return Plan(snapshot.heads)


def steal(
    store: Store, key: SessionKey = KEY, *, later_ms: int, ttl_ms: int = 30_000, limit: int = 100
) -> tuple[WorkItem, ...]:
    """Claim as another process would `later_ms` from now, with orders as its only handled type."""

    def decide(snapshot: Snapshot, now_ms: int) -> Plan[Claimed]:
        now_ms += later_ms
        roster = Roster({"order": STEADY.policy()}, frozenset({"note"}))
        return decide_claim(snapshot, now_ms, holder="thief", limit=limit, roster=roster, expires_at_ms=now_ms + ttl_ms)

    return store.transact_blocking(key, Needs(heads=True), decide).items


def leave(shop: Shop, *texts: str, session_id: str = "s", wake_after_ms: int = 0) -> None:
    """Append orders as a process would that dies right after it."""
    drafts = tuple(shop.orders.draft(shop.order(text, id=text), str) for text in texts)
    roster = shop.orders.roster()

    def decide(snapshot: Snapshot, now_ms: int) -> Plan[object]:
        return decide_append(snapshot, now_ms, drafts=drafts, roster=roster, wake_by_ms=now_ms + wake_after_ms)

    shop.store.transact_blocking(SessionKey("orders", session_id), Needs(ids=texts), decide)


class Gate:
    """A place where someone waits until the test opens it."""

    def __init__(self) -> None:
        self.reached = anyio.Event()
        self._opened = anyio.Event()

    def open(self) -> None:
        """Let pass."""
        self._opened.set()

    async def wait(self) -> None:
        """Say that one is there, and wait."""
        self.reached.set()
        await self._opened.wait()


@dataclass(slots=True)
class _Script:
    step: str
    gate: Gate | None = None
    after: bool = False


class ScriptedStore(MemoryStore):
    """A memory store that counts what it is asked, fails when it is told to, and stops where a test wants to look.

    Steps are named by what a transaction comes to: append, claim, look (a claim pass that finds nothing), settle,
    fail (and snooze), release, schedule, stale, wakes, renew.
    """

    def __init__(self, *, clock: Clock | None = None) -> None:
        super().__init__(clock=clock)
        self.calls: Counter[str] = Counter()
        self.claimed: list[WorkItem] = []
        self.journal: list[tuple[str, str]] = []
        self.down: set[str] = set()
        self.before_step: Callable[[str], object] = _nothing
        self._scripts: list[_Script] = []

    def fail_next(self, step: str, times: int = 1) -> None:
        """Be unavailable the next time, or times, that it comes to this step; nothing is written then."""
        self._scripts += [_Script(step) for _ in range(times)]

    def stop_before(self, step: str) -> Gate:
        """Wait at a gate the next time that it comes to this step, with nothing written yet."""
        gate = Gate()
        self._scripts.append(_Script(step, gate))
        return gate

    def stop_after(self, step: str) -> Gate:
        """Wait at a gate once this step is written, before the caller hears of it."""
        gate = Gate()
        self._scripts.append(_Script(step, gate, after=True))
        return gate

    async def transact(self, key: SessionKey, needs: Needs, decide: Decide[Answer]) -> Answer:
        """As Store.transact."""
        await checkpoint()
        steps = MemoryStore.transact_blocking(self, key, needs, lambda *seen: Plan(_steps(decide(*seen))))
        for step in steps:
            await self._meet(step)

        def deciding(snapshot: Snapshot, now_ms: int) -> Plan[Answer]:
            plan = decide(snapshot, now_ms)
            self._note(_steps(plan), snapshot, plan)
            return plan

        answer = MemoryStore.transact_blocking(self, key, needs, deciding)
        for step in steps:
            await self._pause(step, after=True)
        return answer

    def transact_blocking(self, key: SessionKey, needs: Needs, decide: Decide[Answer]) -> Answer:
        """As Store.transact_blocking."""
        for step in super().transact_blocking(key, needs, lambda *seen: Plan(_steps(decide(*seen)))):
            self.calls[step] += 1
            self._refuse(step)
        return super().transact_blocking(key, needs, decide)

    async def claim_wakes(self, *args: Any, **kwargs: Any) -> Wakes:
        """As Store.claim_wakes."""
        await self._meet("wakes")
        wakes = await super().claim_wakes(*args, **kwargs)
        await self._pause("wakes", after=True)
        return wakes

    def settled(self) -> list[str]:
        """The ids of settled events, in the order in which they were settled."""
        return [event_id for step, event_id in self.journal if step == "settle"]

    async def _meet(self, step: str) -> None:
        self.calls[step] += 1
        self.before_step(step)
        self._refuse(step)
        await self._pause(step, after=False)

    def _refuse(self, step: str) -> None:
        script = next((script for script in self._scripts if script.step == step and script.gate is None), None)
        if script is not None:
            self._scripts.remove(script)
        if script is not None or step in self.down or "all" in self.down:
            raise StoreUnavailable(f"the script says: not at this {step}")

    async def _pause(self, step: str, *, after: bool) -> None:
        for script in self._scripts:
            if script.step == step and script.gate is not None and script.after == after:
                self._scripts.remove(script)
                await script.gate.wait()
                return

    def _note(self, steps: Sequence[str], snapshot: Snapshot, plan: Plan[object]) -> None:
        self.journal += [("append", entry.id) for entry in plan.entries]
        self.journal += [("settle", snapshot.items[seq].entry.id) for seq in plan.settled]
        claimed = [one for one in _answers(plan) if isinstance(one, Claimed)]
        items = [item for one in claimed for item in (*one.items, *one.buried)]
        self.claimed += [item for one in claimed for item in one.items]
        for step in steps:
            changed = items if step == "claim" else [item for item in plan.items if item not in items]
            if step in {"claim", "fail", "release"}:
                self.journal += [(step, item.entry.id) for item in changed]


_STEPS: dict[type, str] = {
    Appended: "append",
    Settled: "settle",
    Retrying: "fail",
    Buried: "fail",
    Released: "release",
    Renewed: "renew",
    Scheduled: "schedule",
    Stale: "stale",
}


def _answers(plan: Plan[object]) -> list[object]:
    """What a transaction was for: one thing, or the end of an attempt and the claim after it."""
    return [plan.answer.ended, plan.answer.claimed] if isinstance(plan.answer, WentOn) else [plan.answer]


def _steps(plan: Plan[object]) -> list[str]:
    first, *then = _answers(plan)
    return [_step(first), *(_step(one) for one in then if _step(one) == "claim")]


def _step(answer: object) -> str:
    if isinstance(answer, Claimed):
        return "claim" if answer.items or answer.buried else "look"
    return _STEPS.get(type(answer), "other")


def scripted(a2: A2) -> tuple[World, ScriptedStore]:
    """A world that is still to be entered, and the scripted store in it."""
    world = a2.testing()
    store = ScriptedStore(clock=world.clock)
    world.store = store
    return world, store


class Provider:
    """A scheduler that remembers what it was sent; `on_send` may hang or raise first."""

    def __init__(self, on_send: Callable[[Task], Awaitable[object]] | None = None) -> None:
        self.sent: list[Task] = []
        self.on_send = on_send

    async def send(self, task: Task, *, seq: int | None = None, now_ms: int | None = None) -> None:
        """As Scheduler.send."""
        del seq, now_ms
        await checkpoint()
        if self.on_send is not None:
            await self.on_send(task)
        self.sent.append(task)


class Tally:
    """What happened, and a way to wait until enough has."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self._news = anyio.Event()

    def add(self, what: str) -> None:
        """One more."""
        self.seen.append(what)
        self._news.set()
        self._news = anyio.Event()

    async def until(self, count: int) -> None:
        """Wait until this many have happened."""
        while len(self.seen) < count:
            await self._news.wait()


def _nothing(_: object) -> None:
    """Nothing more to do."""
