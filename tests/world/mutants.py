"""Mutants: rules broken on purpose, one at a time, each of which the simulation has to catch."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from a2asgi import attempt as attempt_room
from a2asgi import deliveries, engine, passes, runs
from a2asgi.renewal import Renewer
from a2asgi.runtime import Runtime
from a2asgi.schedulers.embedded import WakeLoop
from a2asgi.stores import memory
from a2core import (
    AppendTask,
    Ended,
    Plan,
    Reason,
    Respond,
    Roster,
    Settled,
    TaskEvent,
    Timer,
    claims,
    crons,
    dead_letters,
    delivery,
    events,
    outcomes,
    slot_ms,
)
from a2core import decide_append as append_anything
from a2core.records import WorkItem
from tests.world.explore import explore
from tests.world.laws import Law

BUDGET = 2_000
"""How many worlds a mutant may survive."""

Remake: TypeAlias = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Swap:
    """A name that is made anew from what it stood for."""

    owner: Any
    name: str
    remake: Remake


@dataclass(frozen=True, slots=True)
class Mutant:
    """A rule, and how it is broken."""

    name: str
    swaps: tuple[Swap, ...]

    @contextmanager
    def loose(self) -> Iterator[None]:
        """Within it the rule is broken."""
        with ExitStack() as stack:
            for swap in self.swaps:
                stack.enter_context(_swapped(swap))
            yield


@contextmanager
def _swapped(swap: Swap) -> Iterator[None]:
    original = swap.owner.__dict__[swap.name]
    setattr(swap.owner, swap.name, swap.remake(original))
    try:
        yield
    finally:
        setattr(swap.owner, swap.name, original)


def _mutant(name: str, *swaps: tuple[Any, str, Remake]) -> Mutant:
    return Mutant(name, tuple(Swap(*swap) for swap in swaps))


def _always(value: Any) -> Remake:
    """A function that answers the same to everything."""
    return lambda _: lambda *_args, **_options: value


def _told(**options: Any) -> Remake:
    """The same function, with some of its arguments settled."""
    return lambda original: lambda *given, **named: original(*given, **{**named, **options})


def _plan(change: Callable[[Any], Any]) -> Remake:
    """A decision whose plans are changed."""
    return lambda original: lambda *given, **named: change(original(*given, **named))


def _quiet(_: Any) -> Any:
    """An async function that does nothing."""

    async def nothing(*_args: Any, **_options: Any) -> None:
        return None

    return nothing


def _no_fence(_: Any) -> Any:
    def held(snapshot: Any, seq: int, attempt: int) -> Any:
        del attempt
        return snapshot.items.get(seq)

    return held


def _stale_appends(original: Any) -> Any:
    def decide(snapshot: Any, now_ms: int, *, drafts: Sequence[Any], roster: Roster, **named: Any) -> Plan[Any]:
        plan: Plan[Any] = original(snapshot, now_ms, drafts=drafts, roster=roster, **named)
        if isinstance(plan.answer, Settled) or not drafts:
            return plan
        late = append_anything(snapshot, now_ms, drafts=drafts, roster=roster, wake_by_ms=now_ms)
        return replace(late, answer=plan.answer)

    return decide


def _every_item_a_head(original: Any) -> Any:
    def snapshot(self: Any, needs: Any, now_ms: int) -> Any:
        found = original(self, needs, now_ms)
        return replace(found, heads=tuple(self.work.values())) if needs.heads else found

    return snapshot


def _dead_letters_step_aside(original: Any) -> Any:
    def snapshot(self: Any, needs: Any, now_ms: int) -> Any:
        found = original(self, needs, now_ms)
        lanes = ([self.work[seq] for seq in lane] for lane in self.lanes.values())
        alive = ([item for item in lane if item.dead is None] for lane in lanes)
        return replace(found, heads=tuple(lane[0] for lane in alive if lane)) if needs.heads else found

    return snapshot


def _early(original: Any) -> Any:
    def snapshot(self: Any, needs: Any, now_ms: int) -> Any:
        return original(self, needs, now_ms + 1_500)

    return snapshot


def _snooze_fails(original: Any) -> Any:
    def decide(snapshot: Any, now_ms: int, **named: Any) -> Any:
        plan = original(snapshot, now_ms, **named)
        return replace(plan, items=tuple(replace(item, failures=item.failures + 1) for item in plan.items))

    return decide


def _snooze_settles(original: Any) -> Any:
    def decide(snapshot: Any, now_ms: int, **named: Any) -> Any:
        plan = original(snapshot, now_ms, **named)
        return replace(plan, items=(), settled=tuple(item.seq for item in plan.items))

    return decide


def _own_clock(_: Any) -> Any:
    async def send(self: Any, key: Any, timer: Timer, now_ms: int) -> None:
        del now_ms
        if self.provider is not None:
            due_at_ms = slot_ms(self.clock.now_ms(), timer.due_at_ms)
            told = tuple(TaskEvent(one.id, one.type, one.payload).to_json() for one in timer.drafts)
            await self.provider.send(AppendTask(timer.id, key.contract, key.session_id, due_at_ms, told))

    return send


def _no_tombstone(_: Any) -> Any:
    def decide(snapshot: Any, now_ms: int, *, timer_id: str, **named: Any) -> Any:
        del timer_id
        return append_anything(snapshot, now_ms, **named)

    return decide


def _acknowledged(original: Any) -> Any:
    def ended(self: Any, answer: Any, now_ms: int) -> Any:
        return Respond(Reason.OK) if answer is Ended.UNAVAILABLE else original(self, answer, now_ms)

    return ended


def _no_sweep(original: Any) -> Any:
    async def take(self: Any) -> None:
        if not self._late_ms:
            await original(self)

    return take


def _always_done(original: Any) -> Any:
    async def asked(*given: Any, **named: Any) -> Any:
        answer = await original(*given, **named)
        return answer if answer is Ended.UNAVAILABLE else Ended.DONE

    return asked


def _no_lease(original: Any) -> Any:
    def take(self: Any, contracts: Any, *, limit: int, lease_ms: int, late_ms: int = 0) -> Any:
        return original(self, contracts, limit=limit, lease_ms=0 * lease_ms, late_ms=late_ms)

    return take


def _no_keys(original: Any) -> Any:
    def decide(snapshot: Any, now_ms: int, **named: Any) -> Any:
        return original(replace(snapshot, keyed={}), now_ms, **named)

    return decide


def _nothing_known(original: Any) -> Any:
    def write(known: Any, *given: Any, **named: Any) -> Any:
        del known
        return original({}, *given, **named)

    return write


def _timers_vanish(original: Any) -> Any:
    def deliver(snapshot: Any, now_ms: int, roster: Roster) -> Any:
        _, _, following = original(snapshot, now_ms, roster)
        return (), (), following

    return deliver


def _budget(**budgets: Any) -> Remake:
    """The policies of a decision's roster, with other budgets."""

    def remake(original: Any) -> Any:
        def decide(*given: Any, roster: Roster, **named: Any) -> Any:
            handled = {name: replace(policy, **budgets) for name, policy in roster.handled.items()}
            return original(*given, roster=replace(roster, handled=handled), **named)

        return decide

    return remake


MUTANTS: tuple[Mutant, ...] = (
    _mutant("the fence is not checked", (outcomes, "held_item", _no_fence), (claims, "held_item", _no_fence)),
    _mutant("a stale holder's events are appended", (attempt_room, "decide_settle", _stale_appends)),
    _mutant("lane order is ignored", (memory._Session, "snapshot", _every_item_a_head)),  # noqa: SLF001
    _mutant("a dead letter blocks no lane", (memory._Session, "snapshot", _dead_letters_step_aside)),  # noqa: SLF001
    _mutant("settle drops the returned events", (attempt_room, "decide_settle", _told(drafts=()))),
    _mutant("ids are not looked up", (events, "write_batch", _nothing_known)),
    _mutant("any content fits an id", (events, "same_json", _always(value=True))),
    _mutant("keys are not looked up", (runs, "decide_enqueue", _no_keys)),
    _mutant(
        "an expired claim is never claimable",
        (WorkItem, "is_claimed", lambda _: lambda self, _: self.claim is not None),
    ),
    _mutant("a live claim is claimable", (WorkItem, "is_claimed", _always(value=False))),
    _mutant("renewal is forgotten", (Renewer, "beat", _always(None))),
    _mutant("a lost claim is not counted", (claims, "_lost", lambda _: lambda item: item.lost)),
    _mutant("lost claims never bury", (passes, "decide_claim", _budget(max_lost=10**9))),
    _mutant("failures never bury", (attempt_room, "decide_fail", _budget(max_failures=10**9))),
    _mutant("the first failure buries", (attempt_room, "decide_fail", _budget(max_failures=1))),
    _mutant("failures are tried again at once", (attempt_room, "decide_fail", _told(delay_ms=0))),
    _mutant(
        "waiting work is claimed",
        (claims, "_turn", lambda original: lambda item, roster, now_ms: original(item, roster, now_ms + 1_000)),
    ),
    _mutant("a snooze is a failure", (attempt_room, "decide_snooze", _snooze_fails)),
    _mutant("a snooze settles", (attempt_room, "decide_snooze", _snooze_settles)),
    _mutant(
        "a redrive keeps the budgets",
        (dead_letters, "redriven", lambda _: lambda item, now_ms: replace(item, ready_at_ms=now_ms, dead=None)),
    ),
    _mutant(
        "an unknown type settles", (Roster, "settles_at_append", lambda _: lambda self, name: name not in self.handled)
    ),
    _mutant("parked work is looked at again at once", (claims, "PARK_MS", lambda _: 0)),
    _mutant("an append has no wake-up", (engine, "decide_append", _plan(lambda plan: replace(plan, wake=None)))),
    _mutant("a mended dead letter has no wake-up", (dead_letters, "WakeBy", _always(None))),
    _mutant("a wake-up's lease is forgotten", (memory.MemoryStore, "take_wakes", _no_lease)),
    _mutant(
        "a claim's wake-up waits for its retry",
        (
            claims,
            "_next_wake",
            lambda original: lambda heads, timer: original([h for h in heads if h.claim is None], timer),
        ),
    ),
    _mutant("the watchdog is not armed", (Runtime, "arm_watchdog", _quiet)),
    _mutant("lost wake-ups are not looked for", (WakeLoop, "_take", _no_sweep), (deliveries, "sweep", _quiet)),
    _mutant(
        "a delivery is acknowledged before its successor",
        (delivery.Publish, "confirmed", _always(Respond(Reason.OK))),
    ),
    _mutant("a timer that finds no store has no successor", (delivery.Append, "ended", _acknowledged)),
    _mutant("a stalled delivery has no successor", (deliveries, "drain", _always_done)),
    _mutant("a timer fires early", (memory._Session, "snapshot", _early)),  # noqa: SLF001
    _mutant("a timer's time is that of the process", (Runtime, "_send", _own_clock)),
    _mutant("a deadline is one of the process's clock", (Runtime, "by_store", lambda _: lambda _self, at_ms: at_ms)),
    _mutant("a timer's events vanish", (claims, "_deliver_timers", _timers_vanish)),
    _mutant("a tombstone is ignored", (deliveries, "decide_delivery", _no_tombstone)),
    _mutant("a schedule ends", (crons, "_following", _always(None))),
)


@dataclass(frozen=True, slots=True)
class Hunt:
    """How a mutant fared: the law that caught it, in which world, and after how many."""

    mutant: Mutant
    law: Law | None
    seed: int | None
    worlds: int


def hunt(mutant: Mutant, base: int, budget: int = BUDGET) -> Hunt:
    """Run worlds with this rule broken until a law is."""
    with mutant.loose():
        explored = explore(base, lambda worlds: worlds < budget)
    found = explored.found
    if found is None or found.breach is None:
        return Hunt(mutant, None, None, explored.worlds)
    return Hunt(mutant, found.breach.law, found.scenario.seed, explored.worlds)


def table(base: int) -> bool:
    """Hunt them all, and print how each fared; whether all were caught."""
    width = max(len(mutant.name) for mutant in MUTANTS)
    print(f"{'mutant':{width}}  {'caught by':13} {'seed':>10} {'worlds':>7}")
    survivors = []
    for mutant in MUTANTS:
        fared = hunt(mutant, base)
        law = "SURVIVED" if fared.law is None else fared.law.name
        print(
            f"{mutant.name:{width}}  {law:13} {fared.seed if fared.seed is not None else '-':>10} {fared.worlds:7}",
            flush=True,
        )
        survivors += [mutant.name] * (fared.law is None)
    if survivors:
        print(f"!!! {len(survivors)} of {len(MUTANTS)} MUTANTS SURVIVED: {'; '.join(survivors)} !!!")
    return not survivors
