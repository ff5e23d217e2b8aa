"""Durable sessions, timers and jobs for any ASGI app, with no worker process to run."""

from a2asgi.app import A2
from a2asgi.body import read_body
from a2asgi.clock import Clock
from a2asgi.context import Context, SyncContext, TimerReceipt
from a2asgi.contract import Reducer
from a2asgi.drain import DrainResult, DrainState
from a2asgi.engine import Receipt
from a2asgi.errors import (
    BodyTooLarge,
    ClientDisconnected,
    ConfigurationError,
    EventConflict,
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
from a2asgi.middleware import A2Middleware
from a2asgi.outcomes import Cancel, Fail, Snooze
from a2asgi.ports import Scheduler, SessionInfo, SessionKey, Store, Wakes
from a2asgi.retries import Exponential, Retry
from a2asgi.schedulers.embedded import EmbeddedScheduler
from a2asgi.schedulers.qstash import QStash
from a2asgi.session import Contract, DeadLetter, Lane, LaneState, Session
from a2asgi.signatures import QStashVerifier
from a2asgi.stores.memory import MemoryStore
from a2asgi.stores.sqlite import SQLiteStore
from a2asgi.telemetry import Signal, SignalName
from a2asgi.verdicts import Refusal, Verdict, Verifier
from a2asgi.webhooks import HmacVerifier, StandardWebhooksVerifier
from a2core import A2Error, DrainTimings, InvalidName, InvalidPayload

__all__ = [
    "A2",
    "A2Error",
    "A2Middleware",
    "BodyLimitMiddleware",
    "BodyTooLarge",
    "Cancel",
    "ClientDisconnected",
    "Clock",
    "ConfigurationError",
    "Context",
    "Contract",
    "DeadLetter",
    "DrainResult",
    "DrainState",
    "DrainTimings",
    "EmbeddedScheduler",
    "Event",
    "EventConflict",
    "EventType",
    "Exponential",
    "Fail",
    "HmacVerifier",
    "InvalidName",
    "InvalidPayload",
    "InvalidTime",
    "Lane",
    "LaneState",
    "MemoryStore",
    "NewEvent",
    "NoDeadLetter",
    "QStash",
    "QStashVerifier",
    "Receipt",
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
    "TimerNameTaken",
    "TimerReceipt",
    "UnknownEvent",
    "Verdict",
    "Verifier",
    "Wakes",
    "WiringError",
    "read_body",
]
