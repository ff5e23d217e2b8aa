"""Runs: what jobs and crons ask of the engine, each one transaction: enqueue, look, call off, trigger, register."""

import logging
from dataclasses import dataclass
from functools import partial

import anyio

from a2asgi.contract import Definition
from a2asgi.engine import Engine
from a2asgi.groups import ungrouped
from a2asgi.ports import SessionKey
from a2asgi.telemetry import SignalName
from a2core import (
    RECURRENCE_ID,
    CalledOff,
    Draft,
    Enqueued,
    Entry,
    Needs,
    Plan,
    ReadRule,
    Registered,
    Run,
    RunState,
    Snapshot,
    TooLate,
    Triggered,
    decide_call_off,
    decide_enqueue,
    decide_register,
    decide_slot,
    look_at_run,
    produced_event_id,
    slot_event_id,
)

log: logging.Logger = logging.getLogger("a2asgi.runs")

RUN = "run"
"""The type of the event that a job or a slot is."""

SLOTS = "slots"
"""The session of a cron, whose events are its slots."""


@dataclass(frozen=True, slots=True)
class Look:
    """A run as it stands, and the event that its handler produced, if it succeeded."""

    run: Run
    product: Entry | None


async def enqueue(engine: Engine, key: SessionKey, draft: Draft, *, delay_ms: int = 0, at_ms: int | None = None) -> str:
    """Accept a run, durably, and have it started when it is due; its id, or that of an unfinished one of its key.

    Where this process has room for one that is due now, it starts without waiting to be woken.
    Raises SendFailed where a provider did not take the wake-up: it may be accepted all the same.
    """
    place = engine.runtime.reserve(key.contract) if delay_ms == 0 and at_ms is None else None
    wake_after_ms = 0 if place is None else engine.runtime.timings.grace_ms

    def decide(snapshot: Snapshot, now_ms: int) -> Plan[Enqueued]:
        due_at_ms = now_ms + delay_ms if at_ms is None else at_ms
        return decide_enqueue(snapshot, now_ms, draft=draft, due_at_ms=due_at_ms, wake_after_ms=wake_after_ms)

    needs = Needs(keys=() if draft.key is None else (draft.key,))
    if place is not None:
        return (await engine.write_in(place, key, needs, decide)).id
    answer = await engine.runtime.transact(key, needs, decide)
    due_at_ms = answer.due_at_ms
    if not answer.new and engine.runtime.provider is not None:  # its own wake-up may be one that was not taken
        found = await look(engine, key, answer.id)
        waiting = None if found is None else found.run.timer
        due_at_ms = due_at_ms if waiting is None else waiting.due_at_ms
    await engine.hand_on(key, due_at_ms, seq=answer.seq)
    return answer.id


async def look(engine: Engine, key: SessionKey, run_id: str) -> Look | None:
    """Where a run stands; None where it is unknown, or was removed after its retention."""
    product_id = produced_event_id(run_id, 0)

    def decide(snapshot: Snapshot, now_ms: int) -> Plan[Look | None]:
        run = look_at_run(snapshot, now_ms, run_id)
        return Plan(None if run is None else Look(run, snapshot.entries.get(product_id)))

    return await engine.runtime.transact(key, Needs(ids=(run_id, product_id), timers=(run_id,)), decide)


async def call_off(engine: Engine, definition: Definition, key: SessionKey, run_id: str, reason: str) -> bool:
    """Settle an unfinished run as cancelled, and stop its handler; False if it is finished or unknown."""
    decide = partial(decide_call_off, run_id=run_id, reason=reason, roster=definition.roster())
    answer: CalledOff | TooLate = await engine.runtime.transact(key, Needs(ids=(run_id,), timers=(run_id,)), decide)
    if isinstance(answer, TooLate):
        return False
    engine.runtime.signal(SignalName.CANCELLED, key, event=(run_id, RUN), detail=reason)
    engine.call_off(key, answer.seq)
    await engine.runtime.arm(key, engine.runtime.store_now_ms())
    return True


async def register(engine: Engine) -> None:
    """Put the schedule of each cron in force, where the embedded scheduler carries them. Doing it again does nothing.

    Raises StoreUnavailable or StoreBroken.
    """
    if not engine.schedules or engine.runtime.provider is not None:
        return
    for definition in engine.definitions.values():
        if definition.recurrence is None:
            continue
        rule, schedule = definition.recurrence
        decide = partial(decide_register, rule=rule, schedule=schedule, event_type=RUN)
        key = SessionKey(definition.name, SLOTS)
        registered: Registered = await engine.runtime.transact(key, Needs(timers=(RECURRENCE_ID,)), decide)
        if registered.next_ms is None:
            log.warning("%s has no slot any more: %s", definition.name, rule)


async def trigger(
    engine: Engine, definition: Definition, slot_ms: int, read_rule: ReadRule
) -> tuple[RunState | None, RunState | None]:
    """Run a slot because someone outside asks for it: what it was before, None if it is new, and what it is now.

    One that its handler put off is queued: that is no failure. Raises StoreUnavailable or StoreBroken; and SendFailed
    where this process handles nothing, and a provider did not take the wake-up of one that does.
    """
    key, id_ = SessionKey(definition.name, SLOTS), slot_event_id(slot_ms)
    wake_after_ms = engine.runtime.timings.window_ms if engine.handles else 0

    def decide(snapshot: Snapshot, now_ms: int) -> Plan[Triggered]:
        return decide_slot(
            snapshot,
            now_ms,
            slot_ms=slot_ms,
            event_type=RUN,
            read_rule=read_rule,
            roster=definition.roster(),
            wake_by_ms=now_ms + wake_after_ms,
        )

    needs = Needs(ids=(id_,), timers=(RECURRENCE_ID,), heads=True)
    before = (await engine.runtime.transact(key, needs, decide)).before
    goes_on = before not in {RunState.SUCCEEDED, RunState.CANCELLED, RunState.RUNNING}
    if goes_on and engine.handles:
        await _run_now(engine, key)
    found = await look(engine, key, id_)
    if found is None:
        return before, None
    run = found.run
    if goes_on and not engine.handles:  # a new one is named by its event, so that no provider folds it into another
        seq = run.entry.seq if before is None and run.entry is not None else None
        await engine.runtime.send_wake(key, engine.runtime.store_now_ms(), seq=seq)
    put_off = run.state is RunState.RETRYING and run.item is not None and not run.item.failures
    return before, RunState.QUEUED if put_off else run.state


async def _run_now(engine: Engine, key: SessionKey) -> None:
    """Drain, in the server's tasks if there is one. The watchdog is armed beside it: who is killed at it says nothing.

    Raises StoreUnavailable or StoreBroken.
    """
    with ungrouped():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(engine.runtime.arm_watchdog, key)
            engine.start(key)
            await engine.drain(key)
