"""What the demonstration promises, each as a check of what was seen from outside."""

import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from a2asgi import Event, NewEvent
from examples.orders import Placed, orders, restock, stocktake

TIMER_S = 3.0
LATE_S = 2.0
"""How late a timer may be while the server is up, on however busy a machine."""

LINE = re.compile(r"(\S+) \[([^/]+)/(\S+) (\S+) #(\d+)\] attempt (\d+) (started|done|failed|bay \d+)")

Key: TypeAlias = tuple[str, int]
"""An event, by its order and its seq."""


@dataclass(frozen=True, slots=True)
class Effect:
    """One line of the effects file: what a handler did, whatever the log says."""

    at: float
    order: str
    type: str
    seq: int
    attempt: int
    moment: str
    contract: str = orders.name

    @property
    def key(self) -> Key:
        """The event that is handled."""
        return self.order, self.seq

    @property
    def bay(self) -> int | None:
        """The bay that a stocktake begins to count, if this is what it does."""
        return int(self.moment.removeprefix("bay ")) if self.moment.startswith("bay ") else None


@dataclass(frozen=True, slots=True)
class Told:
    """What the database told of a stocktake: how many bays were counted, of how many."""

    at: float
    done: float
    total: float


@dataclass(slots=True)
class Seen:
    """All that was seen. Times are seconds since the Unix epoch, on the one machine that this runs on.

    Logs and effects are those of orders; `jobs` are the logs of stocktakes, and `slots` is that of the cron.
    """

    began: float = field(default_factory=time.time)
    ended: float = 0.0
    killed_at: float = float("inf")
    acknowledged: list[str] = field(default_factory=list)
    logs: dict[str, list[Event[Any]]] = field(default_factory=dict)
    effects: list[Effect] = field(default_factory=list)
    dead: dict[Key, str] = field(default_factory=dict)
    listed: list[Key] = field(default_factory=list)
    settled_at: float | None = None
    requests_since_kill: int | None = None
    repeated: tuple[bool, int, int] | None = None
    jobs_answered: list[str] = field(default_factory=list)
    jobs: dict[str, list[Event[Any]]] = field(default_factory=dict)
    job_effects: list[Effect] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    job_state: str = "unknown"
    slot_ms: int = 0
    slot_answers: list[str] = field(default_factory=list)
    slots: list[Event[Any]] = field(default_factory=list)
    slot_effects: list[Effect] = field(default_factory=list)
    trouble: str | None = None

    def events(self, *types: str) -> Iterator[tuple[str, Event[Any]]]:
        """Every event of these types, with its order."""
        for order, log in self.logs.items():
            yield from ((order, event) for event in log if event.type in types)

    def work(self) -> dict[Key, Event[Any]]:
        """Every event that has a handler."""
        return {(order, event.seq): event for order, event in self.events(*orders.handlers)}

    def done(self, until: float = float("inf")) -> set[Key]:
        """The events that a handler was through with by then."""
        return {effect.key for effect in self.effects if effect.moment == "done" and effect.at <= until}

    def saw(self, effect: Effect) -> None:
        """Keep an effect with those of its kind. Raises KeyError for one of nothing that was declared."""
        {
            orders.name: self.effects,
            stocktake.definition.name: self.job_effects,
            restock.definition.name: self.slot_effects,
        }[effect.contract].append(effect)

    def running(self) -> dict[Key, Effect]:
        """The handlers that started and did not end: once the server is killed, those that it was killed in."""
        found: dict[Key, Effect] = {}
        for effect in self.effects:
            if effect.at <= self.killed_at:
                found.pop(effect.key, None)
                if effect.moment == "started":
                    found[effect.key] = effect
        return found


@dataclass(frozen=True, slots=True)
class Check:
    """A promise, what was seen of it, and whether it was kept."""

    promise: str
    seen: str
    kept: bool


def effect_of(line: str) -> Effect:
    """One line of the effects file, read."""
    match = LINE.fullmatch(line)
    if match is None:
        raise ValueError(f"expected a line such as '1.5 [orders/o1 placed #1] attempt 1 done', got {line!r}")
    at, contract, session, type_, seq, attempt, moment = match.groups()
    return Effect(float(at), session, type_, int(seq), int(attempt), moment, contract)


def lane_of(event: Event[Any]) -> str:
    """The lane that the contract gives to an event."""
    return orders.draft(NewEvent(event.payload, type=event.type), lambda: event.id).lane


def in_the_log(seen: Seen) -> Check:
    """Compare what the server acknowledged with what the database holds."""
    logged = {event.id for _, event in seen.events("placed")}
    orders_told = set(seen.acknowledged)
    lost = {order for order in orders_told if f"placed-{order}" not in logged}
    text = f"{len(orders_told - lost)} of {len(orders_told)}" + (f"; lost: {sorted(lost)}" if lost else "")
    return Check("an acknowledged order is in the log", text, bool(orders_told) and not lost)


def handled(seen: Seen) -> Check:
    """Compare the log with the effects."""
    work, done = seen.work().keys(), seen.done()
    missing = work - done - seen.dead.keys()
    unknown = {effect.key for effect in seen.effects} - work
    text = f"{len(work)} events: {len(work & done)} handled, {len(seen.dead)} dead" + _but(
        missing=missing, unknown=unknown
    )
    return Check("every event is handled, or is a dead letter", text, bool(work) and not missing and not unknown)


def in_order(seen: Seen) -> Check:
    """Go through the effects: a handler starts when all that comes before in its lane is done, and not later again."""
    lanes = {key: (key[0], lane_of(event)) for key, event in seen.work().items()}
    done: set[Key] = set()
    last: dict[tuple[str, str], int] = {}
    wrong: set[Key] = set()
    for effect in (effect for effect in seen.effects if effect.key in lanes):
        lane = lanes[effect.key]
        if effect.moment == "done":
            done.add(effect.key)
        elif effect.moment == "started":
            before = {key for key in lanes if lanes[key] == lane and key < effect.key}
            if before - done or effect.seq < last.get(lane, 0):
                wrong.add(effect.key)
            last[lane] = effect.seq
    text = f"{len(last)} lanes, {len(wrong)} events out of order" + _but(wrong=wrong)
    return Check("a lane's events are handled in order, one at a time", text, bool(last) and not wrong)


def given_up(seen: Seen) -> Check:
    """Look at the payment whose bank never answers."""
    budget = orders.handlers["payment_due"].policy.max_failures
    failed = [effect for effect in seen.effects if effect.moment == "failed"]
    tries = [effect for effect in seen.effects if effect.key in seen.dead and effect.moment == "started"]
    gaps = ", ".join(f"{after.at - end.at:.2f} s" for end, after in zip(failed, tries[1:], strict=False))
    end = ", ".join(seen.dead.values()) or "nothing"
    text = f"{len(tries)} attempts after waits of {gaps or '0 s'}, dead letter: {end}"
    given = len(seen.dead) == 1 and list(seen.dead) == seen.listed and not seen.dead.keys() & seen.done()
    kept = given and budget == len(tries) == len(failed)
    return Check("a handler that fails is tried again, then given up", text, kept)


def timer_fired(seen: Seen) -> Check:
    """Compare when the unpaid orders were placed with when they expired, by the log's own times."""
    placed = {order: event.created_at for order, event in seen.events("placed") if event.payload.card is None}
    fired = {order: event.created_at for order, event in seen.events("expired")}
    waits = {order: (fired[order] - placed[order]).total_seconds() for order in placed.keys() & fired.keys()}
    late = [order for order in waits if fired[order].timestamp() < seen.killed_at and waits[order] > TIMER_S + LATE_S]
    early = [order for order in waits if waits[order] < TIMER_S]
    text = ", ".join(f"{order} after {wait:.2f} s" for order, wait in sorted(waits.items())) or "it did not fire"
    kept = bool(placed) and placed.keys() == fired.keys() and not early and not late
    return Check("the 3-second timer fires, and not early", text, kept)


def timer_cancelled(seen: Seen) -> Check:
    """Watch the paid orders for longer than their timers would have taken."""
    paid = {order for order, _ in seen.events("paid")}
    expired = paid & {order for order, _ in seen.events("expired")}
    last = max((event.created_at.timestamp() for order, event in seen.events("placed") if order in paid), default=None)
    watched = 0.0 if last is None else seen.ended - last
    text = f"{len(paid)} paid, {len(expired)} of them expired, {watched:.1f} s after the last was placed"
    return Check("a cancelled timer does not fire", text, bool(paid) and not expired and watched > TIMER_S)


def killed_at_work(seen: Seen) -> Check:
    """Look for handlers that started and never ended."""
    cut = [f"#{effect.seq} of {effect.order}" for effect in seen.running().values()]
    kept = bool(cut) and seen.killed_at < seen.ended
    return Check("the server is killed while handlers run", f"at work on {', '.join(cut) or 'nothing'}", kept)


def went_on(seen: Seen) -> Check:
    """Look at what was in the log and not handled when the server was killed."""
    before = seen.done(seen.killed_at) | seen.dead.keys()
    cut = seen.running().keys()
    old = {key for key, event in seen.work().items() if event.created_at.timestamp() <= seen.killed_at}
    left = (old - before) | cut
    again = {effect.key for effect in seen.effects if effect.moment == "done" and effect.at > seen.killed_at}
    took = "never" if seen.settled_at is None else f"{seen.settled_at - seen.killed_at:.1f} s after the kill"
    text = f"{len(left & again)} of {len(left)} events, all settled {took}, {seen.requests_since_kill} requests"
    kept = bool(left) and left <= again and seen.settled_at is not None and seen.requests_since_kill == 0
    return Check("what was cut off goes on, without any request", text, kept)


def counted_once(seen: Seen) -> Check:
    """Count what each handled event led to, however often its handler ran."""
    twice = {
        effect.key for effect in seen.effects if effect.moment == "started" and effect.attempt > 1
    } - seen.dead.keys()
    wrong: set[Key] = set()
    for (order, seq), event in seen.work().items():
        outcomes = sum(other.cause == event.id for other in seen.logs[order])
        if (order, seq) not in seen.dead and outcomes != _outcomes(event):
            wrong.add((order, seq))
    text = f"{len(twice)} handlers ran twice, {len(wrong)} outcomes missing or double" + _but(wrong=wrong)
    return Check("a handler that runs twice counts once", text, bool(twice) and not wrong)


def appended_nothing(seen: Seen) -> Check:
    """Compare a log before and after its order was placed again."""
    if seen.repeated is None:
        return Check("a repeated request appends nothing", "it was not sent", kept=False)
    new, before, after = seen.repeated
    text = f"new: {str(new).lower()}, {before} events before, {after} after"
    return Check("a repeated request appends nothing", text, not new and before == after)


def job_went_on(seen: Seen) -> Check:
    """Compare the progress that was kept when the server was killed with the bays that were counted after it."""
    kept = max((told.done for told in seen.told if told.at <= seen.killed_at), default=0)
    total = max((told.total for told in seen.told), default=0)
    after = [effect.bay for effect in seen.job_effects if effect.at > seen.killed_at and effect.bay is not None]
    ends = [effect.moment for effect in seen.job_effects].count("done")
    text = (
        f"{len(seen.jobs_answered)} requests, {len(seen.jobs)} job: {kept:g} of {total:g} bays before the kill, "
        f"{len(after)} after it, {seen.job_state}"
    )
    one = len(seen.jobs_answered) > 1 and len(set(seen.jobs_answered)) == 1 == len(seen.jobs)
    steps = [told.done for told in seen.told]
    rose = 0 < kept < total and steps == sorted(steps) and steps[-1] == total
    went_on = after == list(range(int(kept) + 1, int(total) + 1)) and ends == 1 and seen.job_state == "succeeded"
    promise = "a job tells its progress, and finishes though its server was killed"
    return Check(promise, text, one and rose and went_on)


def slot_ran_once(seen: Seen) -> Check:
    """Compare what the triggers were answered with what the cron's handler did."""
    runs = [event.seq for event in seen.slots if event.type in restock.definition.handlers]
    asked = [event.seq for event in seen.slots if event.seq in runs and event.payload == seen.slot_ms]
    ended = [effect.seq for effect in seen.slot_effects if effect.moment == "done" and effect.seq in asked]
    unknown = {effect.key for effect in seen.slot_effects if effect.seq not in runs}
    text = f"answers: {', '.join(seen.slot_answers) or 'none'}; runs: {len(ended)}" + _but(unknown=unknown)
    first, *others = seen.slot_answers or [""]
    answered = first == "succeeded" and set(others) == {"duplicate"}
    kept = answered and len(asked) == 1 == len(ended) and not unknown
    return Check("a cron's slot runs once, however often it is triggered", text, kept)


def ran_through(seen: Seen) -> Check:
    """Report whatever kept the demonstration from its end."""
    text = seen.trouble or f"after {seen.ended - seen.began:.1f} s"
    return Check("the demonstration comes to its end", text, seen.trouble is None)


CHECKS: tuple[Callable[[Seen], Check], ...] = (
    in_the_log,
    handled,
    in_order,
    given_up,
    timer_fired,
    timer_cancelled,
    killed_at_work,
    went_on,
    counted_once,
    appended_nothing,
    job_went_on,
    slot_ran_once,
    ran_through,
)


def table(checks: Iterable[Check]) -> str:
    """The promises and what was seen of them, for a person."""
    rows = [("kept", "promised", "seen"), *(("yes" if one.kept else "NO", one.promise, one.seen) for one in checks)]
    width = max(len(promise) for _, promise, _ in rows)
    return "\n".join(f"{kept:<4}  {promise:<{width}}  {text}" for kept, promise, text in rows)


def exit_code(checks: Iterable[Check]) -> int:
    """0 if every promise was kept, else 1."""
    return 0 if all(check.kept for check in checks) else 1


def report(seen: Seen, log: str) -> int:
    """Print the table, and the end of the server's log if a promise was not kept. Return the exit code."""
    checks = [check(seen) for check in CHECKS]
    print(f"\n{table(checks)}")
    code = exit_code(checks)
    if code:
        print("\nthe end of the server's log:\n" + "\n".join(log.splitlines()[-30:]))
    return code


def _outcomes(event: Event[Any]) -> int:
    """How many events the handler of this one appends."""
    if isinstance(event.payload, Placed):
        return len(event.payload.skus) + (event.payload.card is not None)
    return 0 if event.type == "expired" or event.ending is not None else 1


def _but(**troubles: Iterable[Key]) -> str:
    """Name what is wrong, if anything is."""
    return "".join(f"; {name}: {sorted(keys)}" for name, keys in troubles.items() if keys)
