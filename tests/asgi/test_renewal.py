"""Renewal: a live claim is kept however long its handler takes, and a lost one ends its handler and fences it off."""

import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

from a2asgi import (
    Context,
    DrainState,
    DrainTimings,
    Event,
    MemoryStore,
    SessionKey,
    Signal,
    SignalName,
    SQLiteStore,
    StoreUnavailable,
    SyncContext,
)
from a2asgi.clock import SystemClock
from a2asgi.ports import Answer, Decide
from a2asgi.testing import ManualClock
from a2core import Needs
from tests.asgi.worlds import KEY, Provider, ScriptedStore, Shop, Tally, heads, rounds, scripted, steal, within

QUICK = DrainTimings(ttl_ms=60_000, heartbeat_ms=20, grace_ms=0)
"""Real heartbeats that come at once, and claims that no slow machine loses."""


def renews() -> bool:
    """Whether this is the thread of a renewer."""
    return threading.current_thread().name == "a2-renewal"


# ── claims that are renewed ──────────────────────────────────────────────────────────────


@within(5)
@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_b3_a_handler_of_35_minutes_runs_once(*, plain: bool) -> None:
    """With a lease of 30 s that is renewed every 10 s an hour goes by without a second run."""
    runs: list[int] = []

    async def handle(_: Event[str], ctx: Context) -> None:
        runs.append(ctx.attempt)
        await world.sleep("35m")

    def handle_plainly(_: Event[str], ctx: SyncContext) -> None:
        runs.append(ctx.attempt)
        ctx.run(world.sleep, "35m")

    shop = Shop(handle_plainly if plain else handle)
    world, store = scripted(shop.a2)
    async with world:
        await shop.append("a1")
        await world.advance("34m")
        assert DrainState.BUSY == (await Shop(handle, store=store).session().drain()).state
        await world.advance("1h")
    assert [1] == runs
    assert ["a1"] == store.settled()


@within(5)
async def test_b3_the_claims_of_one_session_are_renewed_together() -> None:
    """Sixteen lanes that run for 35 minutes are kept by one transaction a heartbeat, and each runs once."""
    runs: list[str] = []

    async def handle(event: Event[str]) -> None:
        runs.append(event.payload)
        await world.sleep("35m")

    shop = Shop(handle)
    world, store = scripted(shop.a2)
    lanes = "abcdefghijklmnop"
    async with world:
        await shop.append(*lanes)
        await world.advance("1h")
    assert sorted(lanes) == sorted(runs) == sorted(store.settled())
    assert 35 * 6 - 1 <= store.calls["renew"] <= 35 * 6 + 1


@within(5)
async def test_b3_claims_that_began_at_different_times_are_each_kept_to_their_end() -> None:
    """A short handler that ends, and a lane that starts later, change nothing for the long one beside them."""
    runs: list[tuple[str, int]] = []

    async def handle(event: Event[str], ctx: Context) -> None:
        runs.append((event.payload, ctx.attempt))
        await world.sleep({"a": "40m", "b": "7s", "c": "25s"}[event.payload[0]])

    shop = Shop(handle)
    world, store = scripted(shop.a2)
    async with world:
        await shop.append("a1", "b1", "b2")
        await world.advance("17s")
        await shop.append("c1", "c2", "c3")
        await world.advance("1h")
    assert [(text, 1) for text in ("a1", "b1", "b2", "c1", "c2", "c3")] == sorted(runs)
    assert "a1" == store.settled()[-1]


@within(5)
@pytest.mark.parametrize("misses", [1, 2])
async def test_b3_renewals_that_fail_now_and_then_lose_nothing(misses: int) -> None:
    """A store that cannot renew for one beat of three, or two, is asked again before the lease ends."""
    runs: list[int] = []

    async def handle(_: Event[str], ctx: Context) -> None:
        runs.append(ctx.attempt)
        await world.sleep("35m")

    shop = Shop(handle)
    world, store = scripted(shop.a2)
    async with world:
        await shop.append("a1")
        for _ in range(10):
            await world.advance("30s")
            store.fail_next("renew", misses)
        await world.advance("1h")
    assert [1] == runs


@within(5)
async def test_b3_the_trouble_of_one_session_does_not_cost_another_its_claim() -> None:
    """Where one session's renewal fails for good, the other sessions' claims are renewed all the same."""
    runs: list[tuple[str, int]] = []

    async def handle(_: Event[str], ctx: Context) -> None:
        runs.append((ctx.session, ctx.attempt))
        if ctx.attempt == 1:
            await world.sleep("5m")

    class OneSick(ScriptedStore):
        """A store that cannot renew the session `sick`, for whatever reason."""

        def transact_blocking(self, key: SessionKey, needs: Needs, decide: Decide[Answer]) -> Answer:
            if key.session_id == "sick":
                raise RuntimeError("a bug in the store")
            return super().transact_blocking(key, needs, decide)

    shop = Shop(handle)
    world = shop.a2.testing()
    world.store = store = OneSick(clock=world.clock)
    async with world:
        for session_id in ("p", "sick", "z"):
            await shop.append("a1", session_id=session_id)
        await world.advance("1h")
    assert [("p", 1), ("sick", 1), ("sick", 2), ("z", 1)] == sorted(runs)
    assert 3 == len(store.settled())


# ── claims that are lost ─────────────────────────────────────────────────────────────────


@within(5)
async def test_b3_without_renewal_the_second_run_starts_in_time_and_the_first_is_cancelled() -> None:
    """Once renewal is broken the event runs again within lease and grace, and the first run ends and is fenced off."""
    steps: list[tuple[str, timedelta]] = []

    async def handle(_: Event[str], ctx: Context) -> object:
        steps.append((f"{ctx.attempt} starts", world.now - start))
        if ctx.attempt == 1:
            try:
                await world.sleep("35m")
            finally:
                steps.append(("1 ends", world.now - start))
        return shop.note(f"by {ctx.attempt}")

    signals: list[Signal] = []
    shop = Shop(handle, telemetry=signals.append)
    world, store = scripted(shop.a2)
    async with world:
        start = world.now
        store.down.add("renew")
        await shop.append("a1")
        await world.settle()
        await world.advance("35s")
        assert ["1 starts", "2 starts"] == [step for step, _ in steps if "starts" in step]
        assert timedelta(seconds=30) <= steps[1][1] <= timedelta(seconds=35)
        await world.advance("1h")
        [(step, at)] = steps[2:]
        assert "1 ends" == step
        assert timedelta(seconds=30) <= at <= timedelta(seconds=40)  # at the latest a heartbeat after the lease
        assert ["a1", "by 2"] == await shop.log()
    assert ["a1"] == store.settled()
    assert [SignalName.LOST, SignalName.SETTLED] == sorted(signal.name for signal in signals)


@within(5)
async def test_b3_a_claim_that_another_process_took_cancels_its_handler_and_no_other() -> None:
    """The holder is told at its next heartbeat: that handler's scope is cancelled, and its siblings run on."""
    ends: list[str] = []

    async def handle(event: Event[str]) -> None:
        try:
            await world.sleep("1m")
        except BaseException:
            ends.append(f"{event.payload} cancelled")
            raise
        ends.append(f"{event.payload} finished")

    signals: list[Signal] = []
    shop = Shop(handle, telemetry=signals.append)
    world, store = scripted(shop.a2)
    async with world:
        await shop.append("a1", "b1", "c1")
        await world.settle()
        assert ["a1"] == [item.entry.id for item in steal(store, later_ms=30_000, ttl_ms=3_600_000, limit=1)]
        await world.advance("10s")
        assert ["a1 cancelled"] == ends
        assert [(SignalName.LOST, "a1")] == [(signal.name, signal.event_id) for signal in signals]
        await world.advance("1m")
        assert ["a1 cancelled", "b1 finished", "c1 finished"] == sorted(ends)
        assert ["b1", "c1"] == sorted(store.settled())


@within(5)
@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
@pytest.mark.parametrize("mode", ["inline", "server"])
async def test_b3_the_loss_of_a_claim_reaches_the_handler_from_the_renewal_thread(mode: str, *, plain: bool) -> None:
    """For real: the thread that renews tells the loop, the drain goes on, and nothing of the lost run is written."""
    started = threading.Event()
    let_go = threading.Event()
    ends: list[str] = []

    async def handle(_: Event[str]) -> object:
        started.set()
        try:
            await anyio.sleep_forever()
        finally:
            ends.append("cancelled")
        return shop.note("stale")

    def handle_plainly(_: Event[str]) -> object:
        started.set()
        let_go.wait(5)
        ends.append("ran on")
        return shop.note("stale")

    lost = Tally()
    store = MemoryStore(clock=ManualClock(0))
    settings: dict[str, Any] = {"store": store, "timings": QUICK, "telemetry": lambda signal: lost.add(signal.name)}
    shop = Shop(handle_plainly if plain else handle, **settings)

    async def lose() -> None:
        await to_thread.run_sync(started.wait, 5)
        assert 1 == len(steal(store, later_ms=60_000))
        await lost.until(1)

    async with anyio.create_task_group() as tasks:
        if mode == "server":
            async with shop.a2:
                await shop.append("a1")
                await lose()
        else:
            tasks.start_soon(shop.append, "a1")
            await lose()
    let_go.set()
    assert [SignalName.LOST] == lost.seen
    assert ["a1"] == await shop.log()
    assert plain or ["cancelled"] == ends
    [item] = heads(store)
    assert item.claim is not None
    assert ("thief", 2) == (item.claim.holder, item.attempt)


# ── at exactly the end of the lease ──────────────────────────────────────────────────────

END_MS = 30_000
"""When a lease that is not renewed ends."""


@within(5)
@pytest.mark.parametrize("twice", [False, True], ids=["one-delivery", "two-deliveries"])
@pytest.mark.parametrize("takes_ms", [END_MS - 1, END_MS, END_MS + 1])
async def test_b2_a_handler_that_ends_with_its_lease_is_settled_by_one_attempt(takes_ms: int, *, twice: bool) -> None:
    """Whichever attempt it is, the event is settled once and only that attempt's events are in the log."""

    async def handle(_: Event[str], ctx: Context) -> object:
        await world.sleep(timedelta(milliseconds=takes_ms if ctx.attempt == 1 else 1))
        return [shop.note(f"by {ctx.attempt}"), shop.note(f"by {ctx.attempt} too")]

    shop = Shop(handle)
    world, store = scripted(shop.a2)
    async with world:
        store.down.add("renew")
        await shop.append("a1")
        await world.settle()
        if twice:
            world.duplicate_next_delivery()
        await world.advance("1h")
        winner = 2 if takes_ms > END_MS else 1
        assert ["a1", f"by {winner}", f"by {winner} too"] == await shop.log()
    assert ["a1"] == store.settled()
    assert winner == len(store.claimed)


@within(5)
@pytest.mark.parametrize(("early_ms", "winner"), [(1, "holder"), (0, "thief"), (-1, "thief")])
@pytest.mark.parametrize("answer", ["events", "error"])
async def test_b2_a_claim_can_be_taken_over_from_the_instant_at_which_it_ends(
    answer: str, early_ms: int, winner: str
) -> None:
    """One ms before, it is held and the holder's answer counts; from the end on, the newer token fences the older."""

    async def handle(_: Event[str]) -> object:
        await world.sleep(timedelta(milliseconds=END_MS - early_ms))
        stolen.extend(item.entry.id for item in steal(store, later_ms=0))
        if answer == "error":
            raise ValueError("boom")
        return shop.note("by the holder")

    stolen: list[str] = []
    shop = Shop(handle, scheduler=None)  # so that no wake-up of the world takes the claim over first
    world, store = scripted(shop.a2)
    async with world:
        store.down.add("renew")
        await shop.append("a1")
        await world.advance("31s")
        [*left] = heads(store)
        if winner == "thief":
            assert ["a1"] == stolen
            assert [(2, 0)] == [(item.attempt, item.failures) for item in left]
            assert ["a1"] == await shop.log()
        elif answer == "events":
            assert ([], []) == (stolen, left)
            assert ["a1", "by the holder"] == await shop.log()
        else:
            assert ([], [(1, 1)]) == (stolen, [(item.attempt, item.failures) for item in left])


@within(5)
@pytest.mark.parametrize("takes_ms", [END_MS - 1, END_MS, END_MS + 1])
async def test_b2_a_failure_at_the_end_of_the_lease_is_counted_once(takes_ms: int) -> None:
    """A failure that meets the redelivery is one failure or one lost claim, never both, and then the event runs."""

    async def handle(_: Event[str], ctx: Context) -> object:
        await world.sleep(timedelta(milliseconds=takes_ms if ctx.attempt == 1 else 1))
        if ctx.attempt == 1:
            raise ValueError("boom")
        spent.extend((item.failures, item.lost) for item in heads(store))
        return shop.note(f"by {ctx.attempt}")

    spent: list[tuple[int, int]] = []
    shop = Shop(handle)
    world, store = scripted(shop.a2)
    async with world:
        store.down.add("renew")
        await shop.append("a1")
        await world.settle()
        world.duplicate_next_delivery()
        await world.advance("1h")
        assert [(0, 1) if takes_ms > END_MS else (1, 0)] == spent
        assert ["a1", "by 2"] == await shop.log()


# ── threads ──────────────────────────────────────────────────────────────────────────────


def same(handle: Any) -> Any:
    """A handler as it is."""
    return handle


def decorated(handle: Any) -> Any:
    """A handler behind a decorator, as users have them."""

    @wraps(handle)
    async def wrapped(event: Event[str]) -> None:
        await handle(event)

    return wrapped


def block(seconds: float) -> None:
    """What blocks is a function deeper down, as it always is."""
    time.sleep(seconds)


BRIEF = DrainTimings(ttl_ms=400, heartbeat_ms=80, grace_ms=0)
"""Leases that a handler can outlive in a test, with beats enough for a slow machine."""


class Thief(threading.Thread):
    """Another A2 on the same file, in a thread and loop of its own, that takes over whatever it can."""

    def __init__(
        self, path: Path, backend: str, begin: threading.Event, over: threading.Event, *session_ids: str
    ) -> None:
        super().__init__(daemon=True)
        self.found: set[DrainState] = set()
        self.stolen: list[str] = []
        self._path = path
        self._backend = backend
        self._begin = begin
        self._over = over
        self._session_ids = session_ids
        self.start()

    def run(self) -> None:
        """As Thread.run."""
        if self._begin.wait(10):
            anyio.run(self._steal, backend=self._backend)

    async def _steal(self) -> None:
        async def handle(event: Event[str]) -> None:
            self.stolen.append(event.payload)

        shop = Shop(handle, store=SQLiteStore(self._path), timings=BRIEF, scheduler=None)
        async with shop.a2:
            while not self._over.is_set():
                for session_id in self._session_ids:
                    self.found.add((await shop.session(session_id).drain()).state)
                await anyio.sleep(0.01)


@within(20)
@pytest.mark.parametrize("decorate", [same, decorated])
async def test_b4_a_handler_that_blocks_the_loop_keeps_every_claim_of_its_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, anyio_backend_name: str, decorate: Callable[[Any], Any]
) -> None:
    """For real: a blocked loop for three leases, and a thief on the same file gets neither it nor its sibling."""
    blocked, over = threading.Event(), threading.Event()
    runs: list[str] = []

    async def blocks_the_loop(event: Event[str]) -> None:
        runs.append(event.payload)
        if event.payload == "beside":
            beside.set()
            await anyio.sleep_forever()
        blocked.set()
        block(3 * BRIEF.ttl_ms / 1_000)

    beside = anyio.Event()
    shop = Shop(
        decorate(blocks_the_loop), store=SQLiteStore(tmp_path / "a2.db"), timings=BRIEF, scheduler=None, grace="0s"
    )
    thief = Thief(tmp_path / "a2.db", anyio_backend_name, blocked, over, "s", "t")
    try:
        async with shop.a2:
            await shop.append("beside", session_id="t")
            await beside.wait()
            await shop.append("a1", wait=True)
            assert () == heads(shop.store)
            over.set()
            await to_thread.run_sync(thief.join)
    finally:
        over.set()
    assert ["beside", "a1"] == runs
    assert [] == thief.stolen
    assert DrainState.BUSY in thief.found
    warnings = [record.getMessage() for record in caplog.records if record.name == "a2asgi.renewal"]
    assert any("blocks_the_loop has blocked the event loop" in text for text in warnings)


@within(20)
async def test_b4_claims_of_one_pass_are_kept_though_the_first_handler_blocks_before_the_others_start(
    tmp_path: Path, anyio_backend_name: str
) -> None:
    """A claim is renewed from the moment at which it is made, not from the moment at which its handler gets a turn."""
    blocked, over = threading.Event(), threading.Event()
    runs: list[str] = []

    async def handle(event: Event[str]) -> None:
        runs.append(event.payload)
        if event.payload == "a1":
            blocked.set()
            block(3 * BRIEF.ttl_ms / 1_000)

    shop = Shop(handle, store=SQLiteStore(tmp_path / "a2.db"), timings=BRIEF, scheduler=None)
    thief = Thief(tmp_path / "a2.db", anyio_backend_name, blocked, over, "s")
    try:
        async with shop.a2:
            await shop.append("a1", "b1", "c1", "d1", "e1", "f1", wait=True)
    finally:
        over.set()
        await to_thread.run_sync(thief.join)
    assert [] == thief.stolen
    assert ["a1", "b1", "c1", "d1", "e1", "f1"] == sorted(runs)


@within(10)
async def test_b4_a_plain_function_that_blocks_its_thread_is_no_reason_to_warn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A handler that runs on a thread may block for many heartbeats: its claim is renewed and nobody is warned."""
    store = RenewalsCounted()

    def handle(_: Event[str]) -> None:
        assert store.renewed.acquire(timeout=5)
        assert store.renewed.acquire(timeout=5)
        assert store.renewed.acquire(timeout=5)

    shop = Shop(handle, store=store, timings=QUICK, scheduler=None)
    await shop.append("a1")
    assert () == heads(store)
    assert [] == [record.getMessage() for record in caplog.records if record.name == "a2asgi.renewal"]


class RenewalsCounted(ScriptedStore):
    """A store that tells a thread of each renewal, and can keep the renewal thread from hearing of one."""

    def __init__(self) -> None:
        super().__init__()
        self.renewed = threading.Semaphore(0)
        self.go_on = threading.Event()
        self.go_on.set()

    def transact_blocking(self, key: SessionKey, needs: Needs, decide: Decide[Answer]) -> Answer:
        """As Store.transact_blocking."""
        answer = super().transact_blocking(key, needs, decide)
        if renews():
            self.renewed.release()
            self.go_on.wait(5)
        return answer


def renewal_threads() -> set[threading.Thread]:
    """The threads that renew, of whatever A2: those of earlier tests may sleep for a heartbeat of theirs."""
    return {thread for thread in threading.enumerate() if thread.name == "a2-renewal"}


@within(5)
async def test_b3_the_renewal_thread_lives_while_something_is_held() -> None:
    """It ends a heartbeat after the last claim, and a later claim has one again."""
    store = RenewalsCounted()

    async def handle(_: Event[str]) -> None:
        await to_thread.run_sync(store.renewed.acquire, True, 5)  # noqa: FBT003 - the lock's own signature

    shop = Shop(handle, store=store, timings=QUICK, scheduler=None)
    others = renewal_threads()
    for text in ("a1", "a2"):
        await shop.append(text)
        for thread in renewal_threads() - others:
            await to_thread.run_sync(thread.join, 5)
        assert renewal_threads() <= others
    assert ["a1", "a2"] == store.settled()


@within(5)
@pytest.mark.parametrize("mode", ["inline", "server"])
async def test_b3_a_renewal_that_comes_back_after_the_drain_disturbs_nothing(mode: str) -> None:
    """The renewal thread may hear of a beat only once its handler, drain and append are through."""
    store = RenewalsCounted()

    async def handle(_: Event[str]) -> None:
        store.go_on.clear()
        await to_thread.run_sync(store.renewed.acquire, True, 5)  # noqa: FBT003 - the lock's own signature

    shop = Shop(handle, store=store, timings=QUICK, scheduler=Provider())

    async def conversation() -> None:
        others = renewal_threads()
        await shop.append("a1", wait=True)
        threads = renewal_threads() - others
        store.go_on.set()
        for thread in threads:
            await to_thread.run_sync(thread.join, 5)
        await rounds()
        assert ["a1"] == store.settled()

    if mode == "server":
        async with shop.a2:
            await conversation()
    else:
        await conversation()


@within(5)
async def test_a_heartbeat_arms_the_next_watchdog_once_for_a_session() -> None:
    """While three lanes of a session run, each beat sends one wake-up a window ahead, not one for each lane."""
    store = RenewalsCounted()
    provider = Provider()
    beats = anyio.Event()

    async def handle(event: Event[str]) -> None:
        if event.payload == "a1":
            for _ in range(5):
                await to_thread.run_sync(store.renewed.acquire, True, 5)  # noqa: FBT003 - the lock's own signature
            beats.set()
        await beats.wait()

    shop = Shop(handle, store=store, timings=QUICK, scheduler=provider)
    await shop.append("a1", "b1", "c1")
    assert 4 <= len(provider.sent) <= store.calls["renew"] + 1
    for task in provider.sent:
        assert KEY == SessionKey(task.contract, task.session_id)


@within(5)
async def test_b3_a_clock_that_is_set_forward_does_not_make_one_failed_renewal_look_like_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the time of day the claim would be over: its handler would be stopped, though nobody else may have it."""
    ends: list[str] = []

    class Away(MemoryStore):
        failed = threading.Semaphore(0)

        def transact_blocking(self, key: SessionKey, needs: Needs, decide: Decide[Answer]) -> Answer:
            if renews():
                self.failed.release()
                raise StoreUnavailable("away")
            return super().transact_blocking(key, needs, decide)

    async def handle(event: Event[str]) -> None:
        right = SystemClock().now_ms
        monkeypatch.setattr(SystemClock, "now_ms", lambda _: right() + 3_600_000)
        for _ in range(3):
            await to_thread.run_sync(store.failed.acquire, True, 5)  # noqa: FBT003 - the lock's own signature
        await rounds()
        ends.append(event.payload)

    store = Away(clock=ManualClock(0))
    await Shop(handle, store=store, timings=QUICK, scheduler=None).append("a1")
    assert ["a1"] == ends


@within(5)
async def test_b3_a_claim_that_only_seemed_lost_is_given_back() -> None:
    """Its renewals were written and their answers lost: who stops there has the next attempt begin, not wait."""

    class Unheard(MemoryStore):
        def transact_blocking(self, key: SessionKey, needs: Needs, decide: Decide[Answer]) -> Answer:
            answer = super().transact_blocking(key, needs, decide)
            if renews():
                raise StoreUnavailable("the answer is lost")
            return answer

    async def handle(_: Event[str], ctx: Context) -> None:
        if ctx.attempt == 1:
            await anyio.sleep_forever()

    signals: list[SignalName] = []
    timings = DrainTimings(ttl_ms=500, heartbeat_ms=50, grace_ms=0)
    shop = Shop(handle, store=Unheard(), timings=timings, telemetry=lambda signal: signals.append(signal.name))
    await shop.append("a1")
    assert [SignalName.RELEASED, SignalName.SETTLED] == signals


@within(5)
async def test_b3_the_log_tells_of_renewals_that_failed(caplog: pytest.LogCaptureFixture) -> None:
    """An operator reads which session was not renewed and why, once for each beat that failed."""

    async def handle(_: Event[str]) -> None:
        await world.sleep("25s")

    shop = Shop(handle)
    world, store = scripted(shop.a2)
    async with world:
        store.down.add("renew")
        await shop.append("a1")
        with caplog.at_level(logging.WARNING, logger="a2asgi.renewal"):
            await world.advance("25s")
    warnings = [record.getMessage() for record in caplog.records if record.name == "a2asgi.renewal"]
    assert 2 == len(warnings)
    assert all("orders" in text and "not at this renew" in text for text in warnings)
