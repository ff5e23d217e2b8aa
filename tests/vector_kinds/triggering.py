"""Kinds of cases about a slot that is triggered: the lease of its run, and the signed request; they need a2asgi."""

import json
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from a2core import (
    Claim,
    Claimed,
    DeadLetter,
    Draft,
    Entry,
    Failure,
    Needs,
    Plan,
    RetryPolicy,
    Roster,
    RunState,
    Settled,
    Snapshot,
    Stale,
    Triggered,
    WorkItem,
    decide_claim,
    decide_fail,
    decide_settle,
    decide_trigger,
    slot_event_id,
)
from tests.vector_kinds.cases import Case, Kind, Later
from tests.vector_kinds.judging import CAN_RUN, SPACE, header_texts
from tests.vector_kinds.values import whole

if TYPE_CHECKING:
    from a2asgi import A2
    from a2asgi.ports import Decide, SessionKey, Store

CAN_TRIGGER: Final = CAN_RUN and find_spec("cronsim") is not None
ROSTER = Roster({"run": RetryPolicy(max_failures=1, max_lost=100)}, frozenset())
MINUTELY, NIGHTLY = "* * * * *", "0 3 * * *"
CRONS = {"nightly": NIGHTLY, "minutely": MINUTELY, "a b": MINUTELY, "日本": MINUTELY}
PREFIX = "/api/a2"


# ── the lease of a run ───────────────────────────────────────────────────────────────────


class SettableClock:
    """A clock of a machine whose time may be set back."""

    def __init__(self, at_ms: int) -> None:
        self.at_ms = at_ms

    def now_ms(self) -> int:
        return self.at_ms


class Slot:
    """One slot's run in a store: processes trigger it, claim it for a lease, and end what they hold."""

    def __init__(self, case: Case) -> None:
        from a2asgi import MemoryStore, SessionKey  # noqa: PLC0415 - not there under Pyodide

        self._clock = SettableClock(case.input.get("now", 0))
        self._store: Store = MemoryStore(clock=self._clock)  # type: ignore[arg-type]  # nobody sleeps by it
        self._key = SessionKey("cron:vector", "slots")
        self._draft = Draft(slot_event_id(case.input["slot"]), "run", "0", "slot")
        self._lease_ms = case.file["lease_ms"]
        self._held: dict[str, WorkItem] = {}
        self.attempts = 0

    def put(self, row: Mapping[str, Any]) -> None:
        """Leave what an earlier process left."""
        entry = Entry(self._draft.id, "run", "0", None, 0, 1)
        item = WorkItem(entry, "slot", attempt=row["attempts"])
        if row["status"] == "running":
            item = WorkItem(entry, "slot", attempt=row["attempts"], claim=Claim("another", row["locked_until"]))
        elif row["status"] == "failed":
            item = WorkItem(entry, "slot", attempt=row["attempts"], dead=DeadLetter(Failure("Error", ""), 0))
        items = () if row["status"] == "succeeded" else (item,)
        self._decide(Needs(), lambda _seen, _now_ms: Plan(None, entries=(entry,), items=items))

    def start(self, holder: str, now_ms: int) -> str:
        """Trigger it, and claim it if it is free: "started", or how it was found."""
        self._clock.at_ms = now_ms
        before: Triggered = self._decide(
            Needs(ids=(self._draft.id,)),
            lambda seen, now_ms: decide_trigger(seen, now_ms, draft=self._draft, wake_by_ms=now_ms),
        )
        if before.before is RunState.SUCCEEDED:
            return "duplicate"
        claimed: Claimed = self._decide(
            Needs(heads=True),
            lambda seen, now_ms: decide_claim(
                seen, now_ms, holder=holder, limit=1, roster=ROSTER, expires_at_ms=now_ms + self._lease_ms
            ),
        )
        if not claimed.items:
            return "running"
        [self._held[holder]] = claimed.items
        self.attempts = self._held[holder].attempt
        return "started"

    def finish(self, holder: str, *, throws: bool) -> str:
        """End what the holder holds: "succeeded", "failed", or "lost" where it is another's, or was never its own."""
        item = self._held.get(holder)
        if item is None:
            return "lost"

        def decide(seen: Snapshot, now_ms: int) -> Plan[Any]:
            seq, attempt = item.seq, item.attempt
            if throws:
                failure = Failure("Error", "")
                return decide_fail(seen, now_ms, seq=seq, attempt=attempt, roster=ROSTER, failure=failure, delay_ms=0)
            return decide_settle(seen, now_ms, seq=seq, attempt=attempt, drafts=(), roster=ROSTER)

        answer = self._decide(Needs(seqs=(item.seq,)), decide)
        if isinstance(answer, Stale):
            return "lost"
        return "succeeded" if isinstance(answer, Settled) else "failed"

    def _decide(self, needs: Needs, decide: "Decide[Any]") -> Any:
        return self._store.transact_blocking(self._key, needs, decide)


def lease(case: Case) -> dict[str, object]:
    """How each call ends, how often the handler ran, and which attempt it was."""
    if case.input["kind"] == "sequence":
        slot = Slot(case)
        return {"steps": [step(slot, one) for one in case.input["steps"]]}
    if not is_a_slot(case.input["schedule"], case.input["slot"]):
        return {"status": "no slot", "ran": 0}
    slot = Slot(case)
    if case.input["row"] is not None:
        slot.put(case.input["row"])
    status = slot.start("we", case.input["now"])
    if status != "started":
        return {"status": status, "ran": 0}
    return {"status": slot.finish("we", throws="throws" in case.input["handler"]), "ran": 1, "attempts": slot.attempts}


def step(slot: Slot, one: Mapping[str, Any]) -> str:
    if "start" in one:
        return slot.start(one["start"], one["now"])
    return slot.finish(one["finish"], throws="throws" in one)


def is_a_slot(expression: str, slot: Any) -> bool:
    from a2asgi.crontab import Crontab  # noqa: PLC0415 - not there under Pyodide
    from a2asgi.errors import InvalidSchedule  # noqa: PLC0415 - not there under Pyodide

    try:
        return isinstance(whole(slot), int) and Crontab(expression).is_slot(whole(slot))
    except InvalidSchedule:
        return False


def lease_wanted(case: Case) -> dict[str, object]:
    if case.input["kind"] == "sequence":
        return {"steps": [ending(one) for one in case.output["steps"]]}
    if case.output["ran"]:
        return {"status": ending(case.output), "ran": 1, "attempts": case.output["row"]["attempts"]}
    return {"status": ending(case.output), "ran": 0}


def ending(output: Mapping[str, Any]) -> str:
    if "handler" in output:
        return str(output["handler"])
    if "throws" in output:
        return "failed" if output.get("ran", 1) else "no slot"
    return str(output["result"]["status"])


# ── the signed request ───────────────────────────────────────────────────────────────────


def router(case: Case) -> dict[str, object]:
    """The answer of the middleware to the request, and how often the handler ran."""
    import anyio  # noqa: PLC0415 - not there under Pyodide

    from a2asgi import A2  # noqa: PLC0415 - not there under Pyodide

    ran: list[object] = []

    def handle(slot: object) -> None:
        ran.append(slot)
        if "throws" in case.input["handler"]:
            raise RuntimeError(case.input["handler"]["throws"]["message"])

    async def handler(slot: object) -> None:
        handle(slot)

    a2 = A2(cron_secret=case.file["secret"])
    for name, expression in CRONS.items():
        a2.cron(expression, name=name, retries=0)(handler)
    a2.maintenance(name="storage-sweep", retries=0)(handler)
    status, body = anyio.run(ask, a2, case)
    return {"status": status, "body": body, "ran": len(ran)}


async def ask(a2: "A2", case: Case) -> tuple[int, object]:
    """Send the request to an A2 in a world at that time, where the rows of earlier runs are."""
    from a2asgi import A2Middleware, SessionKey  # noqa: PLC0415 - not there under Pyodide

    path, _, query = case.input["path"].partition("?")
    names = ("x-a2-cron-slot", "x-a2-cron-signature")
    texts = [(name, text) for name, text in zip(names, header_texts(case), strict=True) if text is not None]
    scope = {
        "type": "http",
        "method": case.input["method"],
        "path": PREFIX + unquote(path),
        "query_string": query.encode(),
        "headers": [(name.encode(), text.strip(SPACE).encode("utf-8", "surrogatepass")) for name, text in texts],
    }
    sent: list[Mapping[str, Any]] = []

    async def receive() -> Mapping[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Mapping[str, Any]) -> None:
        sent.append(message)

    async def app(*_: object) -> None:
        raise AssertionError("the request is a2's own")

    async with a2.testing() as world:
        world.clock.move_to(case.input["now"])
        for row in case.input.get("rows", ()):
            put(world.store, SessionKey(row["task_id"], "slots"), row)
        await A2Middleware(app, a2, prefix=PREFIX)(scope, receive, send)  # type: ignore[arg-type]
    return sent[0]["status"], json.loads(sent[1]["body"])


def put(store: "Store", key: "SessionKey", row: Mapping[str, Any]) -> None:
    """Leave what an earlier run left."""
    entry = Entry(slot_event_id(row["scheduled_at"]), "run", str(row["scheduled_at"]), None, 0, 1)
    claim = Claim("another", row["locked_until"]) if row["status"] == "running" else None
    dead = DeadLetter(Failure("Error", "x"), 0) if row["status"] == "failed" else None
    item = WorkItem(entry, f"slot-{row['scheduled_at']}", attempt=1, claim=claim, dead=dead)
    items = () if row["status"] == "succeeded" else (item,)
    store.transact_blocking(key, Needs(), lambda _seen, _now_ms: Plan(None, entries=(entry,), items=items))


def router_wanted(case: Case) -> dict[str, object]:
    return {name: case.output[name] for name in ("status", "body", "ran")}


TRIGGERING: Final[dict[str, Kind]] = {"lease": Kind(lease, lease_wanted)} | (
    {"cron_router": Kind(router, router_wanted)} if CAN_TRIGGER else {}
)
TRIGGERING_LATER: Final = () if CAN_TRIGGER else (Later("lease", ("lease",)),)
