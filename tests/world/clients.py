"""The clients of a world: they ask processes for things, again and again until they are answered."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from a2asgi import EventConflict, NewEvent, NoDeadLetter, SendFailed, StoreUnavailable
from a2asgi.ports import SessionKey
from a2core import Entry, Needs, Plan, Snapshot
from tests.world.app import LANES, Step
from tests.world.laws import Law
from tests.world.process import Process
from tests.world.scenario import Fault, Traffic

if TYPE_CHECKING:
    from tests.world.world import World

MOST_TRIES = 40
WORDS = (
    *("ok", "ok", "ok", "emit:a", "emit:b", "fail", "fail", "snooze", "slow", "slow"),
    *("cancel", "give_up", "long:a", "long", "crash", "stubborn:b", "timer:a", "timer:c"),
)
JOB_WORDS = ("ok", "ok", "fail", "slow", "snooze", "cancel", "give_up", "long", "crash")


@dataclass(eq=False, slots=True)
class Request:
    """What a client wants, and how often it has asked."""

    what: str
    perform: Callable[[Process], Awaitable[object]]
    newer: bool = False
    waits: bool = False
    tries: int = 0

    def can_be_asked(self, process: Process) -> bool:
        """Whether this process knows what it is about; to wait for it takes one that handles events."""
        return (process.app.newer or not self.newer) and (process.works or not self.waits)


@dataclass(frozen=True, slots=True)
class Batch:
    """Events that were acknowledged."""

    key: SessionKey
    events: tuple[NewEvent[Step], ...]
    newer: bool


@dataclass(frozen=True, slots=True)
class Called:
    """A job that was accepted, not to run before a time."""

    key: SessionKey
    job: str
    id: str
    floor_ms: int


class Clients:
    """All who ask."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self._open: dict[Request, None] = {}
        self._count = 0
        self._batches: list[Batch] = []
        self._timers: list[tuple[SessionKey, str]] = []
        self._jobs: list[Called] = []

    def step(self) -> None:
        """Something is asked."""
        kind = self.world.chance.choice(self.world.scenario.traffic)
        self._count += 1
        if (request := self._request(kind)) is not None:
            self._open[request] = None
            self._ask(request)

    def are_done(self) -> bool:
        """Whether everyone is answered."""
        return not self._open

    def after_the_storm(self) -> None:
        """Look for what was acknowledged in the store itself."""
        laws, store = self.world.laws, self.world.store
        for batch in self._batches:
            ids = tuple(str(event.id) for event in batch.events)
            entries = store.transact_blocking(batch.key, Needs(ids=ids), _entries)
            if len(entries) != len(ids):
                laws.broken(Law.ACKNOWLEDGED, f"of {ids} of {batch.key} the store has {entries}")
        for called in self._jobs:
            book = laws.book(called.key)
            entry = book.log.get(book.seqs.get(called.id, 0))
            if entry is None:
                laws.broken(Law.ACKNOWLEDGED, f"job {called} was acknowledged, and is nowhere")
            elif entry.created_at_ms < called.floor_ms and (called.key, called.id) not in laws.called_off:
                laws.broken(Law.EARLY, f"job {called} came at {entry.created_at_ms}")

    # ── asking ──

    def _ask(self, request: Request) -> None:
        world = self.world
        if request.tries >= MOST_TRIES:
            self._open.pop(request)
            return
        process = world.some_process()
        if process is None or not request.can_be_asked(process):
            request.tries += process is not None
            world.loop.call_later(2, self._ask, request)
            return
        request.tries += 1
        world.note("client", "asks", process, request.what)
        process.request(partial(self._perform, process, request))

    async def _perform(self, process: Process, request: Request) -> None:
        done = False
        trouble = ""
        try:
            await request.perform(process)
            process.check()
            done = True
        except (StoreUnavailable, SendFailed) as error:
            trouble = repr(error)
        except Exception as error:  # noqa: BLE001 - whatever else it is, production should not have raised it
            self.world.laws.broken(Law.BUG, f"{request.what}: {error!r}")
        finally:
            self.world.note("client", "is told" if done else "is not told", request.what, trouble)
            if done:
                self._open.pop(request, None)
            else:
                self.world.loop.call_later(self.world.chance.randint(1, 10), self._ask, request)

    # ── what is asked ──

    def _request(self, kind: Traffic) -> Request | None:
        match kind:
            case Traffic.APPEND | Traffic.DISPATCH | Traffic.WAIT:
                return self._append(kind)
            case Traffic.AGAIN:
                return self._again()
            case Traffic.TIMER:
                return self._timer()
            case Traffic.CANCEL:
                return self._cancel()
            case Traffic.JOB:
                return self._job()
            case Traffic.CALL_OFF:
                return self._call_off()
            case Traffic.MEND:
                return Request(f"{self._count} mend", self._mend)

    def _session(self) -> str:
        return f"s{self.world.chance.randrange(self.world.scenario.sessions)}"

    def _step(self) -> Step:
        return {"lane": self.world.chance.choice(LANES), "does": self._script(WORDS)}

    def _script(self, words: tuple[str, ...]) -> list[str]:
        chance = self.world.chance
        if not self.world.scenario.lively:
            return ["ok"]
        return [
            *(chance.choice(words) for _ in range(chance.choice([0, 1, 1, 2]))),
            chance.choice(["ok", "ok", *(one for one in words if one != "snooze")]),
        ]

    def _is_newer(self) -> bool:
        """Whether this is of a kind that only the newer version knows."""
        return Fault.DEPLOY in self.world.scenario.faults and self.world.chance.random() < 0.3

    def _append(self, kind: Traffic) -> Request:
        chance = self.world.chance
        newer = self._is_newer()
        contract = "extras" if newer and chance.random() < 0.5 else "orders"
        types = ["step", "step", "step", "brief", "note", *["novel"] * (3 * newer)]
        events = tuple(
            NewEvent(self._step(), type=chance.choice(types), id=f"e{self._count}-{index}")
            for index in range(chance.choice([1, 1, 2, 3]))
        )
        key = SessionKey(contract, self._session())
        batch = Batch(key, events, newer)

        async def perform(process: Process) -> None:
            session = _contract(process, key).session(key.session_id)
            if kind is Traffic.DISPATCH:
                receipt = await session.dispatch(*events)
            else:
                receipt = await session.append(*events, wait=kind is Traffic.WAIT)
            process.check()
            self.world.laws.was_appended(key, [event.id for event in receipt.events])
            if [event.id for event in events] != [event.id for event in receipt.events]:
                self.world.laws.broken(Law.ACKNOWLEDGED, f"{events} became {receipt}")
            self._batches.append(batch)

        told = [
            f"{event.type}:{event.id}:{event.payload['lane']}:{'/'.join(event.payload['does'])}" for event in events
        ]
        return Request(f"{self._count} {kind.name} {key} {' '.join(told)}", perform, newer, kind is Traffic.WAIT)

    def _again(self) -> Request | None:
        if not self._batches:
            return None
        chance = self.world.chance
        batch = chance.choice(self._batches)
        changed = chance.random() < 0.5

        async def perform(process: Process) -> None:
            laws = self.world.laws
            session = _contract(process, batch.key).session(batch.key.session_id)
            events = batch.events
            if changed:
                other: NewEvent[Step] = NewEvent(
                    {"lane": LANES[0], "does": ["other"]}, type=events[-1].type, id=events[-1].id
                )
                events = (*events[:-1], other)
            try:
                receipt = await session.append(*events)
            except EventConflict as conflict:
                if not changed:
                    laws.broken(Law.CONFLICT, f"{events} is what the log has, and was refused: {conflict}")
                return
            process.check()
            if changed or receipt.new:
                laws.broken(Law.CONFLICT, f"{events} of {batch.key} was taken: {receipt}")

        ids = [event.id for event in batch.events]
        return Request(f"{self._count} again {batch.key} {ids} changed={changed}", perform, batch.newer)

    def _timer(self) -> Request:
        chance, laws = self.world.chance, self.world.laws
        key = SessionKey("orders", self._session())
        name = f"t{self._count}"
        newer = self._is_newer()
        event = NewEvent(self._step(), type="novel" if newer else chance.choice(["step", "note"]))
        delay_ms = chance.choice([400, 3_000, 30_000, 200_000])
        at_ms = self.world.now_ms() + delay_ms if chance.random() < 0.4 else None

        async def perform(process: Process) -> None:
            laws.may_come(key, name, self.world.now_ms() + delay_ms if at_ms is None else at_ms)
            session = process.app.orders.session(key.session_id)
            if at_ms is None:
                receipt = session.schedule(name, event, delay=timedelta(milliseconds=delay_ms))
            else:
                at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at_ms)
                receipt = session.schedule(name, event, at=at)
            await laws.scheduling(receipt, key, name)

        self._timers.append((key, name))
        return Request(f"{self._count} timer {name} of {key} in {delay_ms} at {at_ms}", perform, newer)

    def _cancel(self) -> Request | None:
        if not self._timers:
            return None
        key, name = self.world.chance.choice(self._timers)
        laws = self.world.laws

        async def perform(process: Process) -> None:
            event_id = laws.cancelling(key, name)
            cancelled = await process.app.orders.session(key.session_id).cancel(name)
            process.check()
            if cancelled:
                laws.was_cancelled(key, event_id)
            elif event_id not in laws.book(key).seqs:
                laws.broken(Law.TIMER, f"it was too late to cancel {name} of {key}, which never came")

        return Request(f"{self._count} cancel {name} of {key}", perform)

    def _job(self) -> Request:
        chance, world = self.world.chance, self.world
        name = chance.choice(["work", "solo"])
        does = self._script(JOB_WORDS)
        options: dict[str, Any] = {}
        delay_ms = 0
        if chance.random() < 0.4:
            delay_ms = chance.choice([2_000, 60_000])
            options["delay"] = timedelta(milliseconds=delay_ms)
        if chance.random() < 0.4:
            options["dedupe_key"] = chance.choice("xy")
        customer = chance.choice("AB")

        async def perform(process: Process) -> None:
            floor_ms = world.now_ms() + delay_ms
            if name == "work":
                id_ = await process.app.work.enqueue(customer, does, **options)
            else:
                id_ = await process.app.solo.enqueue(does, **options)
            process.check()
            key = SessionKey(f"job:{name}", id_[:32])
            new = all(one.id != id_ for one in self._jobs) and "dedupe_key" not in options
            self._jobs.append(Called(key, name, id_, floor_ms if new else 0))

        return Request(f"{self._count} job {name} {customer} {does} {options}", perform)

    def _call_off(self) -> Request | None:
        if not self._jobs:
            return None
        called = self.world.chance.choice(self._jobs)
        laws = self.world.laws

        async def perform(process: Process) -> None:
            job = process.app.work if called.job == "work" else process.app.solo
            gone = await job.cancel(called.id)
            process.check()
            book = laws.book(called.key)
            if gone and book.seqs.get(called.id, 0) in {0, *book.work}:
                laws.broken(Law.OUTCOME, f"{called} was called off, and is open")

        return Request(f"{self._count} call off {called}", perform)

    async def _mend(self, process: Process) -> None:
        chance = self.world.chance
        letters = [one for one in await process.app.dead_letters() if one.contract in {"orders", "job:work"}]
        if not letters:
            return
        letter = chance.choice(letters)
        redrive = chance.random() < 0.5
        try:
            if letter.contract == "orders":
                session = process.app.orders.session(letter.session)
                await (session.redrive(letter.event_id) if redrive else session.resolve(letter.event_id, "no use"))
            elif redrive:
                await process.app.work.redrive(letter.event_id)
            else:
                await process.app.work.resolve(letter.event_id, "no use")
        except NoDeadLetter:
            return


def _contract(process: Process, key: SessionKey) -> Any:
    return process.app.orders if key.contract == "orders" else process.app.extras


def _entries(snapshot: Snapshot, now_ms: int) -> Plan[dict[str, Entry]]:
    del now_ms
    return Plan(dict(snapshot.entries))
