"""The pure core of a2: every rule of sessions, work and timers as functions over values.

No I/O, clock, entropy, environment, threads or async: `now_ms` (milliseconds since the Unix epoch), ids and limits
come in as arguments. A decision reads a Snapshot and returns a Plan; a store loads the one and writes the other in a
single transaction, and decides nothing.
"""

from a2core.backoff import Backoff, RetryPolicy
from a2core.claims import (
    PARK_MS,
    Claimed,
    Released,
    Renewed,
    decide_claim,
    decide_hand_over,
    decide_release,
    decide_renew,
)
from a2core.dead_letters import NotDead, Redriven, Resolved, decide_redrive, decide_resolve
from a2core.errors import A2Error, InvalidName, InvalidPayload, check_name, storable_text
from a2core.events import Appended, Conflict, decide_append
from a2core.ids import derive_id, produced_event_id, timer_event_id, timer_id
from a2core.jsontext import Json, decode_json, encode_json, path_step, same_json
from a2core.outcomes import (
    Buried,
    Retrying,
    Settled,
    Stale,
    decide_fail,
    decide_give_up,
    decide_settle,
    decide_snooze,
)
from a2core.plan import Needs, Plan, Snapshot, Wake, WakeAt, WakeBy, moved_wake
from a2core.records import (
    Claim,
    DeadLetter,
    Draft,
    Ending,
    EndingKind,
    Entry,
    Failure,
    Roster,
    Timer,
    TimerRecord,
    Tombstone,
    WorkItem,
)
from a2core.slots import DrainTimings, slot_ms
from a2core.tasks import AppendTask, DrainTask, Task, TaskEvent
from a2core.timers import (
    Cancelled,
    Delivered,
    ScheduleAnswer,
    Scheduled,
    TimerConflict,
    decide_cancel,
    decide_delivery,
    decide_schedule,
)

__all__ = [
    "PARK_MS",
    "A2Error",
    "AppendTask",
    "Appended",
    "Backoff",
    "Buried",
    "Cancelled",
    "Claim",
    "Claimed",
    "Conflict",
    "DeadLetter",
    "Delivered",
    "Draft",
    "DrainTask",
    "DrainTimings",
    "Ending",
    "EndingKind",
    "Entry",
    "Failure",
    "InvalidName",
    "InvalidPayload",
    "Json",
    "Needs",
    "NotDead",
    "Plan",
    "Redriven",
    "Released",
    "Renewed",
    "Resolved",
    "RetryPolicy",
    "Retrying",
    "Roster",
    "ScheduleAnswer",
    "Scheduled",
    "Settled",
    "Snapshot",
    "Stale",
    "Task",
    "TaskEvent",
    "Timer",
    "TimerConflict",
    "TimerRecord",
    "Tombstone",
    "Wake",
    "WakeAt",
    "WakeBy",
    "WorkItem",
    "check_name",
    "decide_append",
    "decide_cancel",
    "decide_claim",
    "decide_delivery",
    "decide_fail",
    "decide_give_up",
    "decide_hand_over",
    "decide_redrive",
    "decide_release",
    "decide_renew",
    "decide_resolve",
    "decide_schedule",
    "decide_settle",
    "decide_snooze",
    "decode_json",
    "derive_id",
    "encode_json",
    "moved_wake",
    "path_step",
    "produced_event_id",
    "same_json",
    "slot_ms",
    "storable_text",
    "timer_event_id",
    "timer_id",
]
