"""Deliveries: what a provider's messages ask of the engine, and the look for those that it lost."""

import logging

from a2asgi.drain import DrainState
from a2asgi.engine import Engine
from a2asgi.errors import StoreBroken, StoreUnavailable
from a2asgi.ports import SessionKey
from a2core import (
    Appended,
    AppendTask,
    Busy,
    Cancelled,
    Conflict,
    DrainAnswer,
    DrainTask,
    Ended,
    InvalidName,
    Needs,
    Plan,
    Snapshot,
    Stalled,
    check_name,
    decide_delivery,
    parse_events,
)

log: logging.Logger = logging.getLogger("a2asgi.deliveries")

PURGE_LIMIT = 100
"""How many expired events a sweep removes."""


async def append(engine: Engine, task: AppendTask) -> Ended:
    """Append a timer that a provider carried, unless it was cancelled or came before, and run what is pending."""
    key = SessionKey(task.contract, task.session_id)
    definition = engine.definitions[task.contract]
    events = parse_events(task)
    if events is None:
        log.error("timer %r of session %s holds no events that this code can read", task.id, key)
        return Ended.FAILED
    names = [name for event in events for name in (event.id, event.type)]
    if not _can_be(task.session_id, task.id, *names):
        return Ended.FAILED
    drafts = [definition.task_draft(event) for event in events]
    wake_after_ms = engine.runtime.timings.window_ms

    def decide(snapshot: Snapshot, now_ms: int) -> Plan[Appended | Conflict | Cancelled]:
        wake_by_ms = now_ms + wake_after_ms
        roster = definition.roster()
        return decide_delivery(snapshot, now_ms, timer_id=task.id, drafts=drafts, roster=roster, wake_by_ms=wake_by_ms)

    needs = Needs(ids=tuple(draft.id for draft in drafts), timers=(task.id,))
    try:
        answer = await engine.runtime.transact(key, needs, decide)
    except StoreUnavailable as error:
        log.warning("timer %r of session %s waits for the store: %s", task.id, key, error)
        return Ended.UNAVAILABLE
    except StoreBroken:
        log.exception("timer %r of session %s was not appended", task.id, key)
        return Ended.FAILED
    if isinstance(answer, Conflict):
        log.error("timer %r of session %s: event %r is in the log with other content", task.id, key, answer.event_id)
        return Ended.FAILED
    if isinstance(answer, Appended) and answer.pending:
        await engine.wake(key)
    return Ended.DONE


async def drain(engine: Engine, task: DrainTask) -> DrainAnswer:
    """Drain a session whose wake-up a provider carried, and say what that delivery is to do next."""
    if not _can_be(task.session_id):
        return Ended.FAILED
    key = SessionKey(task.contract, task.session_id)
    try:
        result = await engine.drain(key, arms=False)
    except StoreUnavailable as error:
        log.warning("the drain of session %s waits for the store: %s", key, error)
        return Ended.UNAVAILABLE
    except StoreBroken:
        log.exception("the drain of session %s failed", key)
        return Ended.FAILED
    # the timer is one that is further off than the provider carries a wake-up in one go
    look_at_ms = min((at for at in (result.retry_at_ms, result.next_timer_at_ms) if at is not None), default=None)
    match result.state:
        case DrainState.SETTLED if look_at_ms is None:
            return Ended.DONE
        case DrainState.BUSY:
            return Busy(retry_at_ms=look_at_ms)
        case DrainState.SETTLED | DrainState.STALLED:
            return Stalled(look_at_ms)


async def sweep(engine: Engine, limit: int) -> None:
    """Arm sessions again whose wake-up the provider lost: late ones, a few at a time (engine.md 3).

    Then remove a few events that have expired: behind a provider there may be no server that sees to it.
    """
    window_ms = engine.runtime.timings.window_ms
    try:
        wakes = await engine.runtime.store.claim_wakes(
            engine.contracts, limit=limit, lease_ms=window_ms, late_ms=window_ms
        )
    except (StoreUnavailable, StoreBroken) as error:
        log.warning("cannot look for lost wake-ups, the next delivery does: %s", error)
        return
    for key in wakes.due:
        await engine.runtime.arm_watchdog(key)
    await engine.tidy(PURGE_LIMIT)


def _can_be(*names: str) -> bool:
    """Whether a store can keep these: the wire has texts, such as half a character, that no id of ours is."""
    try:
        for name in names:
            check_name("id", name)
    except InvalidName as error:
        log.warning("a delivery is about what cannot be here: %s", error)
        return False
    return True
