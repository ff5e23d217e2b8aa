"""Durable sessions, timers and jobs for any ASGI app, with no worker process to run."""

from a2asgi.app import A2
from a2asgi.context import Context, SyncContext, TimerReceipt
from a2asgi.contract import Reducer, Retry
from a2asgi.drain import DrainResult, DrainState
from a2asgi.engine import Receipt
from a2asgi.errors import (
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
from a2asgi.middleware import A2Middleware
from a2asgi.outcomes import Cancel, Fail, Snooze
from a2asgi.ports import Clock, Scheduler, SessionInfo, SessionKey, Store, Wakes
from a2asgi.schedulers.embedded import EmbeddedScheduler
from a2asgi.session import Contract, DeadLetter, Lane, LaneState, Session
from a2asgi.stores.memory import MemoryStore
from a2asgi.stores.sqlite import SQLiteStore
from a2asgi.telemetry import Signal, SignalName
from a2core import A2Error, DrainTimings, InvalidName, InvalidPayload

__all__ = [
    "A2",
    "A2Error",
    "A2Middleware",
    "Cancel",
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
    "Fail",
    "InvalidName",
    "InvalidPayload",
    "InvalidTime",
    "Lane",
    "LaneState",
    "MemoryStore",
    "NewEvent",
    "NoDeadLetter",
    "Receipt",
    "Reducer",
    "Retry",
    "SQLiteStore",
    "Scheduler",
    "SendFailed",
    "Session",
    "SessionInfo",
    "SessionKey",
    "Signal",
    "SignalName",
    "Snooze",
    "Store",
    "StoreBroken",
    "StoreNotConfigured",
    "StoreUnavailable",
    "SyncContext",
    "TimerNameTaken",
    "TimerReceipt",
    "UnknownEvent",
    "Wakes",
    "WiringError",
]
