"""The check against the oracle: random decisions of the core, on the store under test and on a memory store."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from a2asgi.ports import Decide, SessionInfo, SessionKey
from a2asgi.stores.memory import MemoryStore
from a2asgi.testing.store_bench import HOUR_MS, Bench, expect, expect_near
from a2asgi.testing.world import ManualClock
from a2core import (
    RECURRENCE_ID,
    Backoff,
    CatchUp,
    Claimed,
    Draft,
    Ending,
    EndingKind,
    Failure,
    Needs,
    Plan,
    RetryPolicy,
    Roster,
    Snapshot,
    Timer,
    WorkItem,
    decide_append,
    decide_call_off,
    decide_cancel,
    decide_claim,
    decide_enqueue,
    decide_fail,
    decide_give_up,
    decide_note,
    decide_redrive,
    decide_register,
    decide_release,
    decide_renew,
    decide_resolve,
    decide_schedule,
    decide_settle,
    decide_slot,
    decide_snooze,
    recur_by,
    slot_event_id,
)

SEEDS = 5
STEPS = 200
KEYS = (SessionKey("shop", "s-1"), SessionKey("shop", "s-2"), SessionKey("bank", "s-1"))
POLICY = RetryPolicy(max_failures=2, max_lost=2, backoff=Backoff(base_ms=HOUR_MS, cap_ms=HOUR_MS, jitter_percent=0))
RUN_POLICY = replace(POLICY, aside=True, on_dead="told", keep_ms=3 * HOUR_MS)
BOOM = Failure("ValueError", "boom")
IDS = tuple(f"e{number}" for number in range(14))
TYPES = ("order", "run", "note", "novel")
TIMERS = tuple(f"t{number}" for number in range(6))
RUN_IDS = tuple(f"r{number}" for number in range(12))
RUN_KEYS = ("k", "l")
RULES = ("1 latest", "1 all", "2 none")
ALL = 1_000
"""More events than there are."""

EVERYTHING = Needs((*IDS, *RUN_IDS), tuple(range(1, ALL)), (*TIMERS, *RUN_IDS, RECURRENCE_ID), RUN_KEYS, heads=True)


@dataclass(frozen=True, slots=True)
class _Hourly:
    """A slot every so many hours from the epoch on."""

    hours: int

    def next_ms(self, after_ms: int) -> int:
        step_ms = self.hours * HOUR_MS
        return (after_ms // step_ms + 1) * step_ms

    def slots_ms(self, after_ms: int, until_ms: int, limit: int) -> list[int]:
        return list(range(self.next_ms(after_ms), until_ms + 1, self.hours * HOUR_MS))[:limit]

    def latest_ms(self, after_ms: int, until_ms: int) -> int | None:
        latest_ms = self.next_ms(until_ms) - self.hours * HOUR_MS
        return latest_ms if latest_ms > after_ms else None


def _read_rule(text: str) -> tuple[_Hourly, CatchUp]:
    hours, catch_up = text.split()
    return _Hourly(int(hours)), CatchUp(catch_up)


ROSTER = Roster(
    {"order": POLICY, "run": RUN_POLICY, "told": RetryPolicy(keep_ms=HOUR_MS)},
    frozenset({"note"}),
    recur_by(_read_rule, "run"),
)


async def check_decisions_go_as_in_memory(bench: Bench) -> None:
    """Whatever is decided on it, a store answers as the memory store does, and holds the same rows."""
    for seed in range(SEEDS):
        pair = _Pair(bench, seed)
        for step in range(STEPS):
            try:
                await pair.step()
            except AssertionError as error:
                raise AssertionError(f"seed {seed}, step {step}, {pair.last}: {error}") from error


class _Pair:
    """The store under test and its oracle, in which the same happens. The store tells the oracle the time."""

    def __init__(self, bench: Bench, seed: int) -> None:
        self.last = "nothing yet"
        self._bench = bench
        self._random = Random(seed)  # noqa: S311 - the same every time
        self._keys = tuple(replace(key, contract=f"{key.contract}-{seed}") for key in KEYS)
        self._contracts = sorted({key.contract for key in self._keys})
        self._clock = ManualClock(0)
        self._oracle = MemoryStore(clock=self._clock)
        self._held: list[tuple[SessionKey, WorkItem]] = []

    async def step(self) -> None:
        """Do one random thing to both, then compare all that they hold."""
        actions: tuple[tuple[int, Callable[[SessionKey], Awaitable[None]]], ...] = (
            (4, self._append),
            (6, self._claim),
            (8, self._end),
            (2, self._time),
            (2, self._letter),
            (2, self._move),
            (1, self._wakes),
            (3, self._run),
            (2, self._cron),
            (1, self._purge),
        )
        [(_, action)] = self._random.choices(actions, [weight for weight, _ in actions])
        await action(self._random.choice(self._keys))
        for key in self._keys:
            await self._both(f"{self.last}, then a look at {key}", key, EVERYTHING, lambda seen, _: Plan(seen))
            expected = await self._oracle.read(key, 0, 99)
            expect(expected, await self._bench.store.read(key, 0, 99), f"the log of {key}")
        for contract in self._contracts:
            letters = await self._oracle.dead_letters(contract)
            expect(letters, await self._bench.store.dead_letters(contract), f"the dead letters of {contract}")
            _expect_infos(await self._oracle.sessions(contract), await self._bench.store.sessions(contract))

    async def _both(self, what: str, key: SessionKey, needs: Needs, decide: Decide[Any]) -> Any:
        self.last = what

        def timed(snapshot: Snapshot, now_ms: int) -> Plan[Any]:
            self._clock.move_to(now_ms)
            return decide(_ordered(snapshot), now_ms)

        answer = await self._bench.store.transact(key, needs, timed)
        expected = await self._oracle.transact(key, needs, lambda seen, now_ms: decide(_ordered(seen), now_ms))
        expect(expected, answer, "the answer")
        return answer

    def _drafts(self) -> tuple[Draft, ...]:
        numbers = self._random.sample(range(len(IDS)), self._random.choice((1, 1, 2, 3)))
        payload = self._random.choice(("{}", "{}", "{}", "0"))
        return tuple(Draft(IDS[number], TYPES[number % 4], payload, ("a", "b", "c")[number % 3]) for number in numbers)

    async def _append(self, key: SessionKey) -> None:
        drafts = self._drafts()
        await self._both(
            f"append {drafts}",
            key,
            Needs(ids=tuple(draft.id for draft in drafts)),
            lambda seen, now_ms: decide_append(seen, now_ms, drafts=drafts, roster=ROSTER, wake_by_ms=now_ms + HOUR_MS),
        )

    async def _claim(self, key: SessionKey) -> None:
        limit = self._random.randint(1, 3)
        claimed: Claimed = await self._both(
            f"claim {limit}",
            key,
            Needs(heads=True),
            lambda seen, now_ms: decide_claim(
                seen, now_ms, holder="h", limit=limit, roster=ROSTER, expires_at_ms=now_ms + 2 * HOUR_MS
            ),
        )
        self._held += [(key, item) for item in claimed.items]

    async def _end(self, _: SessionKey) -> None:
        if not self._held:
            return
        key, item = self._random.choice(self._held)
        seq, attempt, held = item.seq, item.attempt, {item.seq: item.attempt}
        drafts = self._drafts() if self._random.random() < 1 / 2 else ()
        ending = self._random.choice((None, Ending(EndingKind.CANCELLED, "moot")))
        endings: dict[str, Decide[Any]] = {
            "settle": lambda seen, now_ms: decide_settle(
                seen, now_ms, seq=seq, attempt=attempt, drafts=drafts, roster=ROSTER, ending=ending
            ),
            "fail": lambda seen, now_ms: decide_fail(
                seen, now_ms, seq=seq, attempt=attempt, roster=ROSTER, failure=BOOM, delay_ms=HOUR_MS
            ),
            "snooze": lambda seen, now_ms: decide_snooze(seen, now_ms, seq=seq, attempt=attempt, delay_ms=HOUR_MS),
            "give up": lambda seen, now_ms: decide_give_up(
                seen, now_ms, seq=seq, attempt=attempt, roster=ROSTER, failure=BOOM
            ),
            "release": lambda seen, now_ms: decide_release(seen, now_ms, held=held),
            "renew": lambda seen, now_ms: decide_renew(seen, now_ms, held=held, expires_at_ms=now_ms + 3 * HOUR_MS),
            "note": lambda seen, now_ms: decide_note(seen, now_ms, seq=seq, attempt=attempt, progress=f"[{now_ms}]"),
        }
        [name] = self._random.choices(list(endings), (6, 3, 1, 1, 1, 1, 2))
        needs = Needs(tuple(draft.id for draft in drafts), (seq,), heads=name == "renew")
        await self._both(f"{name} {item.entry.id} with {drafts}", key, needs, endings[name])

    async def _time(self, key: SessionKey) -> None:
        name, drafts, delay_ms = self._random.choice(TIMERS), self._drafts(), self._random.randint(0, 2) * HOUR_MS
        needs = Needs(tuple(draft.id for draft in drafts), timers=(name,))
        if self._random.random() < 1 / 4:
            first = drafts[0].id
            await self._both(
                f"cancel {name}",
                key,
                needs,
                lambda seen, now_ms: decide_cancel(seen, now_ms, timer_id=name, first_event_id=first),
            )
            return
        await self._both(
            f"schedule {name} with {drafts}",
            key,
            needs,
            lambda seen, now_ms: decide_schedule(
                seen, now_ms, timer=Timer(name, now_ms + delay_ms, delay_ms, drafts), keep=True
            ),
        )

    async def _letter(self, key: SessionKey) -> None:
        letters = [(key, item) for key, item in self._oracle.all_dead_letters()]
        event_id = self._random.choice(IDS)
        if letters:
            key, item = self._random.choice(letters)
            event_id = item.entry.id
        needs = Needs(ids=(event_id,))
        # one with a key stays dead: alive, it might be a second one that the key stands for
        if event_id not in RUN_IDS and self._random.random() < 1 / 2:
            await self._both(
                f"redrive {event_id}",
                key,
                needs,
                lambda seen, now_ms: decide_redrive(seen, now_ms, event_id=event_id),
            )
            return
        await self._both(
            f"resolve {event_id}",
            key,
            needs,
            lambda seen, now_ms: decide_resolve(seen, now_ms, event_id=event_id, reason="moot", roster=ROSTER),
        )

    async def _run(self, _: SessionKey) -> None:
        number, run_key = self._random.randrange(len(RUN_IDS)), self._random.choice(RUN_KEYS)
        delay_ms = self._random.randint(0, 2) * HOUR_MS
        key, id_ = self._keys[number % 3], RUN_IDS[number]
        draft = Draft(id_, "run", "{}", "abc"[number % 3], run_key)
        runs: dict[str, Decide[Any]] = {
            "enqueue": lambda seen, now_ms: decide_enqueue(seen, now_ms, draft=draft, due_at_ms=now_ms + delay_ms),
            "call off": lambda seen, now_ms: decide_call_off(seen, now_ms, run_id=id_, reason="moot", roster=ROSTER),
        }
        [name] = self._random.choices(list(runs), (2, 1))
        needs = Needs(ids=(id_,), timers=(id_,), keys=(run_key,))

        def once(seen: Snapshot, now_ms: int) -> Plan[Any]:
            known = name == "enqueue" and (id_ in seen.entries or id_ in seen.timers)
            return Plan("known") if known else runs[name](seen, now_ms)

        await self._both(f"{name} {id_} of {run_key}", key, needs, once)

    async def _cron(self, key: SessionKey) -> None:
        rule, ahead_ms = self._random.choice(RULES), self._random.randint(0, 1) * HOUR_MS
        if self._random.random() < 1 / 4:
            await self._both(
                f"register {rule}",
                key,
                Needs(timers=(RECURRENCE_ID,)),
                lambda seen, now_ms: decide_register(
                    seen, now_ms, rule=rule, schedule=_read_rule(rule)[0], event_type="run"
                ),
            )
            return
        slot_ms = self._clock.now_ms() // HOUR_MS * HOUR_MS + ahead_ms
        await self._both(
            f"trigger {slot_ms}",
            key,
            Needs(ids=(slot_event_id(slot_ms),), timers=(RECURRENCE_ID,), heads=True),
            lambda seen, now_ms: decide_slot(
                seen,
                now_ms,
                slot_ms=slot_ms,
                event_type="run",
                read_rule=_read_rule,
                roster=ROSTER,
                wake_by_ms=now_ms + HOUR_MS,
            ),
        )

    async def _purge(self, _: SessionKey) -> None:
        self.last = "purge"
        await self._bench.store.purge(ALL)  # which may also remove what earlier seeds left
        await self._oracle.purge(ALL)

    async def _move(self, _: SessionKey) -> None:
        self.last = "an hour passes"
        self._bench.clock.move(HOUR_MS)

    async def _wakes(self, _: SessionKey) -> None:
        self.last = "claim wakes"
        wakes = await self._bench.store.claim_wakes(self._contracts, limit=9, lease_ms=HOUR_MS)
        expected = await self._oracle.claim_wakes(self._contracts, limit=9, lease_ms=HOUR_MS)
        expect(set(expected.due), set(wakes.due), "the sessions that are due")


def _ordered(snapshot: Snapshot) -> Snapshot:
    """The same with its rows in one order, and its maps as plain dicts."""
    return replace(
        snapshot,
        entries=dict(snapshot.entries),
        items=dict(snapshot.items),
        timers=dict(snapshot.timers),
        keyed=dict(snapshot.keyed),
        heads=tuple(sorted(snapshot.heads, key=lambda item: item.seq)),
        due_timers=tuple(sorted(snapshot.due_timers, key=lambda timer: timer.id)),
    )


def _expect_infos(expected: list[SessionInfo], actual: list[SessionInfo]) -> None:
    rows = [(info.key, info.last_seq, info.wake_at_ms is None) for info in expected]
    expect(rows, [(info.key, info.last_seq, info.wake_at_ms is None) for info in actual], "the sessions")
    for one, other in zip(expected, actual, strict=True):
        if one.wake_at_ms is not None:
            expect_near(one.wake_at_ms, other.wake_at_ms, f"wake_at_ms of {one.key}")
