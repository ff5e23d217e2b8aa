"""What the demonstration sees from outside: the database, by a store of its own, and the file of effects."""

import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from a2asgi import Event, Progress, SessionInfo, SessionKey, SQLiteStore
from a2asgi.context import read_progress
from a2asgi.contract import Definition
from a2core import Needs, Plan, Run, Snapshot, look_at_run
from examples._promises import Effect, Seen, Told, effect_of, lane_of
from examples.orders import orders, restock, stocktake

HOLD_S = 0.1  # how long a line waits to be printed, for what happened before it and is seen after it


class Watcher:
    """Sees the database and the effects file from outside, and prints what is new.

    It reads by a store of its own, and a read wakes nothing: no server hears of it, and this process runs no A2, so
    it handles nothing itself. What goes on after the kill goes on without anyone's asking.
    """

    def __init__(self, database: Path, effects: Path, seen: Seen) -> None:
        self.idle = False
        self.store = SQLiteStore(database, busy_timeout="2s")
        self._seen = seen
        self._effects = effects
        self._effects_read = 0
        self._held: list[tuple[float, str]] = []

    async def until(self, what: str, condition: Callable[[], object], *, within: float) -> None:
        """Look and print until it is so. Raises TimeoutError."""
        give_up_at = time.monotonic() + within
        while time.monotonic() < give_up_at:
            await self.look()
            if condition():
                return
            await anyio.sleep(0.02)
        raise TimeoutError(f"waited {within:g} s for {what}")

    async def look(self) -> None:
        """Take in what is new, and print what is old enough to be in order."""
        placed = await self._look_at_orders()
        counted = await self._look_at_jobs()
        await self._look_at_slots()
        self._look_at_effects()
        # a session without work that could ever go on, and without a timer, has no next wake-up; a cron always has one
        self.idle = bool(placed) and all(session.wake_at_ms is None for session in [*placed, *counted])
        self.print(until=time.time() - HOLD_S)

    def title(self, text: str) -> None:
        """Say what the demonstration does itself."""
        now = time.time()
        self._held.append((now, f"\n{_styled('1', f'{now - self._seen.began:6.2f} s  {text}')}"))
        self.print(until=now)

    def print(self, *, until: float) -> None:
        """Print what happened until then."""
        self._held.sort(key=lambda held: held[0])
        while self._held and self._held[0][0] <= until:
            print(self._held.pop(0)[1], flush=True)

    async def _look_at_orders(self) -> list[SessionInfo]:
        sessions = await self.store.sessions(orders.name)
        for session in sessions:
            order = session.key.session_id
            for event in await self._new(orders, session.key, self._seen.logs.setdefault(order, [])):
                lane = f"lane {lane_of(event)}" if event.type in orders.handlers else ""
                self._say_logged(order, event, f"{lane:<14} {event.payload or ''}")
        for key, item in await self.store.dead_letters(orders.name):
            if item.dead is not None and (key.session_id, item.seq) not in self._seen.dead:
                self._seen.dead[key.session_id, item.seq] = item.dead.failure.type
                text = f"! #{item.seq} {item.entry.type}"
                self._say(item.dead.at_ms / 1_000, key.session_id, text, f"dead letter: {item.dead.failure.message}")
        return sessions

    async def _look_at_jobs(self) -> list[SessionInfo]:
        sessions = await self.store.sessions(stocktake.definition.name)
        for session in sessions:
            log = self._seen.jobs.setdefault(session.key.session_id, [])
            for event in await self._new(stocktake.definition, session.key, log):
                if event.type == "run":
                    self._say_logged(stocktake.name, event, f"of the {event.payload.room}")
                else:
                    self._note(event.created_at.timestamp(), event.payload.progress)
                    self._say_logged(stocktake.name, event, event.payload.result)
            if log and log[-1].type == "run":
                look = partial(_look_at_run, run_id=log[-1].id)
                run = await self.store.transact(session.key, Needs(ids=(log[-1].id,)), look)
                if run is not None and run.item is not None and run.item.progress is not None:
                    self._note(time.time(), read_progress(run.item.progress))
        return sessions

    def _note(self, at: float, progress: Progress) -> None:
        """Take in how far a job is, if that is news."""
        told, total = self._seen.told, progress.total or 0
        if not told or told[-1].done != progress.done:
            told.append(Told(at, progress.done, total))
            bar = "█" * int(progress.done) + "░" * int(total - progress.done)
            self._say(at, stocktake.name, "  progress", f"{bar} {progress.note}")

    async def _look_at_slots(self) -> None:
        for session in await self.store.sessions(restock.definition.name):
            for event in await self._new(restock.definition, session.key, self._seen.slots):
                if event.type == "run":
                    slot = datetime.fromtimestamp(event.payload / 1_000, UTC)
                    self._say_logged(restock.name, event, f"slot {slot:%H:%M} UTC")
                else:
                    self._say_logged(restock.name, event, event.payload.result)

    def _look_at_effects(self) -> None:
        if not self._effects.exists():
            return
        with self._effects.open("rb") as file:
            file.seek(self._effects_read)
            written = file.read()
        whole = written[: written.rfind(b"\n") + 1]
        self._effects_read += len(whole)
        for effect in map(effect_of, whole.decode().splitlines()):
            self._seen.saw(effect)
            if effect.bay is None:  # its progress is shown
                self._say_effect(effect)

    async def _new(self, definition: Definition, key: SessionKey, log: list[Event[Any]]) -> list[Event[Any]]:
        """What a session's log holds beyond this, which is added to it."""
        new = [definition.event_of(entry) for entry in await self.store.read(key, len(log), 100)]
        log += new
        return new

    def _say_logged(self, who: str, event: Event[Any], detail: str) -> None:
        at = event.created_at.timestamp() + 0.0009  # its millisecond's end, after the handler that led to it
        self._say(at, who, f"+ #{event.seq} {event.type}", detail)

    def _say_effect(self, effect: Effect) -> None:
        _, _, name = effect.contract.partition(":")
        text = f"attempt {effect.attempt} {effect.moment}"
        self._say(effect.at, name or effect.order, f"  #{effect.seq} {effect.type}", text)

    def _say(self, at: float, who: str, what: str, detail: str) -> None:
        name = _styled(str(31 + sum(who.encode()) % 6), f"{who:<9}")
        self._held.append((at, f"{at - self._seen.began:6.2f} s  {name} {what:<17} {detail}".rstrip()))


def _look_at_run(snapshot: Snapshot, now_ms: int, *, run_id: str) -> Plan[Run | None]:
    """Where a run stands, which writes nothing."""
    return Plan(look_at_run(snapshot, now_ms, run_id))


def _styled(style: str, text: str) -> str:
    return f"\x1b[{style}m{text}\x1b[0m" if sys.stdout.isatty() else text
