"""Durable sessions, timers and jobs for any ASGI app, with no worker process to run."""

from a2asgi.app import A2
from a2asgi.body import read_body
from a2asgi.clock import Clock
from a2asgi.context import Context, JobContext, Progress, SyncContext, SyncJobContext, TimerReceipt
from a2asgi.contract import Reducer
from a2asgi.crons import Cron
from a2asgi.crontab import Crontab
from a2asgi.drain import DrainResult, DrainState
from a2asgi.engine import Receipt
from a2asgi.errors import (
    AttemptEnded,
    BodyTooLarge,
    ClientDisconnected,
    ConfigurationError,
    EventConflict,
    InvalidSchedule,
    InvalidTime,
    NoDeadLetter,
    SendFailed,
    StoreBroken,
    StoreNotConfigured,
    StoreUnavailable,
    TimerNameTaken,
    UnknownEvent,
    WiringError,
)
from a2asgi.events import Event, EventType, NewEvent
from a2asgi.guards import BodyLimitMiddleware, SignatureMiddleware
from a2asgi.jobs import Job
from a2asgi.middleware import A2Middleware
from a2asgi.outcomes import Cancel, Fail, Snooze
from a2asgi.ports import Scheduler, SessionInfo, SessionKey, Store, Wakes
from a2asgi.retries import Exponential, Retry
from a2asgi.run_contract import FailedJob, JobStatus
from a2asgi.schedulers.embedded import EmbeddedScheduler
from a2asgi.schedulers.qstash import QStash
from a2asgi.schedulers.qstash_schedules import SyncReport
from a2asgi.session import Contract, DeadLetter, EventStream, Lane, LaneState, Session
from a2asgi.signatures import QStashVerifier
from a2asgi.stores.memory import MemoryStore
from a2asgi.stores.postgres import PostgresStore
from a2asgi.stores.redis import RedisStore
from a2asgi.stores.sqlite import SQLiteStore
from a2asgi.stores.upstash import UpstashStore
from a2asgi.telemetry import Signal, SignalName
from a2asgi.ticks import Tick
from a2asgi.transactions import Transaction
from a2asgi.verdicts import Refusal, Verdict, Verifier
from a2asgi.webhooks import HmacVerifier, StandardWebhooksVerifier
from a2core import A2Error, CatchUp, DrainTimings, InvalidName, InvalidPayload
from a2core import RunState as JobState

__all__ = [
    "A2",
    "A2Error",
    "A2Middleware",
    "AttemptEnded",
    "BodyLimitMiddleware",
    "BodyTooLarge",
    "Cancel",
    "CatchUp",
    "ClientDisconnected",
    "Clock",
    "ConfigurationError",
    "Context",
    "Contract",
    "Cron",
    "Crontab",
    "DeadLetter",
    "DrainResult",
    "DrainState",
    "DrainTimings",
    "EmbeddedScheduler",
    "Event",
    "EventConflict",
    "EventStream",
    "EventType",
    "Exponential",
    "Fail",
    "FailedJob",
    "HmacVerifier",
    "InvalidName",
    "InvalidPayload",
    "InvalidSchedule",
    "InvalidTime",
    "Job",
    "JobContext",
    "JobState",
    "JobStatus",
    "Lane",
    "LaneState",
    "MemoryStore",
    "NewEvent",
    "NoDeadLetter",
    "PostgresStore",
    "Progress",
    "QStash",
    "QStashVerifier",
    "Receipt",
    "RedisStore",
    "Reducer",
    "Refusal",
    "Retry",
    "SQLiteStore",
    "Scheduler",
    "SendFailed",
    "Session",
    "SessionInfo",
    "SessionKey",
    "Signal",
    "SignalName",
    "SignatureMiddleware",
    "Snooze",
    "StandardWebhooksVerifier",
    "Store",
    "StoreBroken",
    "StoreNotConfigured",
    "StoreUnavailable",
    "SyncContext",
    "SyncJobContext",
    "SyncReport",
    "Tick",
    "TimerNameTaken",
    "TimerReceipt",
    "Transaction",
    "UnknownEvent",
    "UpstashStore",
    "Verdict",
    "Verifier",
    "Wakes",
    "WiringError",
    "read_body",
]
