"""What must be true after a run, judged by the logs, by what clients were answered, and by the marks of handlers."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

from a2asgi.ports import SessionKey
from a2core import Entry, WorkItem
from tests.crash.load import Ledger

CONTRACT = "crash"
JOBS = "job:count"
APPENDED = {"step", "task", "poison"}
HANDLED = {"step", "task", "rang", "run"}
PRODUCED = {"done", "succeeded"}
LANES = {"step": "a", "task": "b", "rang": "timers"}


@dataclass(frozen=True)
class Mark:
    """What a handler noted of an event: begin, fail or end, in which process, and when."""

    what: str
    event: str
    attempt: int
    at_ns: int
    by: str


@dataclass(frozen=True)
class Evidence:
    """All that is known once a run has ended."""

    ledger: Ledger
    logs: Mapping[SessionKey, Sequence[Entry]]
    open: Mapping[SessionKey, Mapping[int, WorkItem]]
    heads: Mapping[SessionKey, frozenset[int]]
    """By seq, what the store holds to be the first open work of each lane."""
    letters: frozenset[tuple[SessionKey, int]]
    """The dead letters that an operator is shown."""
    marks: Sequence[Mark]
    died_ns: Mapping[str, int]
    """When each killed process was surely dead."""
    server_kills: int
    """How often the store's own server was killed: an answer may get lost then, and the work is done again."""

    @cached_property
    def marked(self) -> Mapping[str, Sequence[Mark]]:
        """The marks of each event, in the order of time."""
        found: defaultdict[str, list[Mark]] = defaultdict(list)
        for mark in sorted(self.marks, key=lambda mark: mark.at_ns):
            found[mark.event].append(mark)
        return found

    @cached_property
    def entries(self) -> Mapping[str, Entry]:
        """Each event of the logs, by id; ids are unique in all of them."""
        return {entry.id: entry for log in self.logs.values() for entry in log}

    def first(self, what: str, event_id: str) -> Mark | None:
        """The first such mark of an event."""
        return next((mark for mark in self.marked.get(event_id, ()) if mark.what == what), None)


@dataclass
class Verdict:
    """What was counted, and what was not as it must be."""

    counts: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


def judge(evidence: Evidence) -> Verdict:
    """Go through all laws."""
    verdict = Verdict()
    for law in (_logs, _acknowledged, _batches, _heads, _handled, _settled_once, _lanes, _marked, _timers, _jobs):
        verdict.faults += law(evidence)
    twice, unexplained = _repetitions(evidence)
    if not evidence.server_kills:
        verdict.faults += [f"{event_id} was handled again although nobody had died" for event_id in unexplained]
    ledger = evidence.ledger
    types = Counter(entry.type for log in evidence.logs.values() for entry in log)
    verdict.counts = {
        "events appended": sum(types[type_] for type_ in APPENDED),
        "acknowledged": len(ledger.acknowledged),
        "answers": sum(len(answers) for answers in ledger.acknowledged.values()),
        "requests sent again": ledger.repeated,
        "sessions": sum(key.contract == CONTRACT for key in evidence.logs),
        "jobs": types["run"],
        "timers": types["rang"],
        "events handled": sum(types[type_] for type_ in PRODUCED),
        "handled again after a kill": len(twice) - len(unexplained),
        "handled again without one": len(unexplained),
        "dead letters": len(evidence.letters),
    }
    return verdict


def _logs(evidence: Evidence) -> Iterator[str]:
    """Seqs count from 1, and no id is there twice."""
    ids = Counter(entry.id for log in evidence.logs.values() for entry in log)
    yield from (f"{id_} is in the logs {count} times" for id_, count in ids.items() if count > 1)
    for key, log in evidence.logs.items():
        if [entry.seq for entry in log] != list(range(1, len(log) + 1)):
            yield f"the seqs of {key} have gaps: {[entry.seq for entry in log]}"


def _acknowledged(evidence: Evidence) -> Iterator[str]:
    """What was acknowledged is in the log as it was sent, where every answer said, and was new once at most."""
    ledger = evidence.ledger
    where = {entry.id: key for key, log in evidence.logs.items() for entry in log}
    for id_, answers in ledger.acknowledged.items():
        sent, entry = ledger.sent[id_], evidence.entries.get(id_)
        if entry is None:
            yield f"{id_} was acknowledged, and is not in the log of {sent.session}"
            continue
        found = (where[id_].session_id, entry.type, json.loads(entry.payload), entry.seq)
        for seq, _ in answers:
            if (sent.session, sent.type, {"number": sent.number}, seq) != found:
                yield f"{id_} was acknowledged as {sent} with seq {seq}, and is {found} in the log"
        if sum(new for _, new in answers) > 1:
            yield f"{id_} was new more than once: {answers}"


def _batches(evidence: Evidence) -> Iterator[str]:
    """A batch is there as a whole, one event after the other, or not at all; and nothing is there that was not sent."""
    for batch in {sent.batch for sent in evidence.ledger.sent.values()}:
        seqs = [evidence.entries[id_].seq if id_ in evidence.entries else None for id_ in batch]
        first = seqs[0]
        if seqs != ([None] * len(seqs) if first is None else list(range(first, first + len(seqs)))):
            yield f"the batch {batch} is in the log as {seqs}"
    for entry in evidence.entries.values():
        if entry.type in APPENDED and entry.id not in evidence.ledger.sent:
            yield f"{entry.id} is in the log, and was never sent"


def _heads(evidence: Evidence) -> Iterator[str]:
    """What the store finds first in each lane is the first open work of it."""
    for key, work in evidence.open.items():
        first = {item.lane: seq for seq, item in sorted(work.items(), reverse=True)}
        if set(first.values()) != evidence.heads[key]:
            yield f"the heads of {key} are {set(evidence.heads[key])}, and its first open work is {first}"


def _handled(evidence: Evidence) -> Iterator[str]:
    """What has a handler was handled to its end and is settled, is a dead letter that is shown, or waits behind one."""
    for key, log in evidence.logs.items():
        work = evidence.open[key]
        for entry in log:
            item = work.get(entry.seq)
            dead = item is not None and item.dead is not None
            if dead != ((key, entry.seq) in evidence.letters):
                yield f"{entry.id} is {item}, and the list of dead letters says otherwise"
            if item is not None and not dead:
                blocked = any(o.dead and o.lane == item.lane and o.seq < item.seq for o in work.values())
                if not blocked or item.attempt:
                    yield f"{entry.id} is still open: {item}"
            elif item is None and entry.type in HANDLED and evidence.first("end", entry.id) is None:
                yield f"{entry.id} is settled, and was never handled to its end"
            elif item is None and entry.type == "poison":
                yield f"{entry.id} is settled, though its handler gave it up"
            elif item is not None and entry.type != "poison":
                yield f"{entry.id} is a dead letter: {item.dead}"


def _settled_once(evidence: Evidence) -> Iterator[str]:
    """Each settled event has one product, of an attempt that was handled to its end."""
    products: defaultdict[str | None, list[Entry]] = defaultdict(list)
    for entry in evidence.entries.values():
        if entry.type in PRODUCED:
            products[entry.cause].append(entry)
    for key, log in evidence.logs.items():
        for entry in log:
            made = products[entry.id]
            if entry.type in HANDLED and len(made) != (entry.seq not in evidence.open[key]):
                yield f"{entry.id} was settled {len(made)} times: {made}"
            for product in made:
                told: dict[str, Any] = json.loads(product.payload)
                if not any(
                    mark.what == "end" and mark.attempt == told["attempt"] and mark.by == told.get("by", mark.by)
                    for mark in evidence.marked.get(entry.id, ())
                ):
                    yield f"{entry.id} was settled by {told}, which never came to its end"


def _lanes(evidence: Evidence) -> Iterator[str]:
    """Nothing begins before what is ahead of it in its lane has come to its end."""
    for key, log in evidence.logs.items():
        ahead: dict[str, tuple[Entry, Mark]] = {}
        for entry in log:
            lane = LANES.get(entry.type)
            begun, ended = evidence.first("begin", entry.id), evidence.first("end", entry.id)
            if lane is None or begun is None or ended is None:
                continue
            before = ahead.get(lane)
            if before is not None and before[1].at_ns > begun.at_ns:
                yield f"lane {lane} of {key}: {entry.id} begun before {before[0].id} had ended"
            ahead[lane] = (entry, ended)


def _marked(evidence: Evidence) -> Iterator[str]:
    """Nothing was handled that is not in a log."""
    yield from (f"{id_} was handled, and is in no log" for id_ in evidence.marked if id_ not in evidence.entries)


def _timers(evidence: Evidence) -> Iterator[str]:
    """A timer's event is there once and not early, or, where the timer was cancelled in time, not at all."""
    found: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in evidence.entries.values():
        if entry.type == "rang":
            found[json.loads(entry.payload)["name"]].append(entry)
    for name, timer in evidence.ledger.timers.items():
        rang = found.pop(name, [])
        if len(rang) != (not timer.cancelled):
            yield f"{timer} rang {len(rang)} times"
        if any(entry.created_at_ms < timer.at_ms for entry in rang):
            yield f"{timer} rang early: {rang}"
    yield from (f"{name} rang, and was never asked for" for name in found)


def _jobs(evidence: Evidence) -> Iterator[str]:
    """An accepted job is in the log; of one key, the next one begins where the last one has succeeded."""
    yield from (
        f"job {id_} was accepted, and is in no log" for id_ in evidence.ledger.jobs if id_ not in evidence.entries
    )
    for key, log in evidence.logs.items():
        types = [entry.type for entry in log if entry.seq not in evidence.open[key]]
        if key.contract == JOBS and types != ["run", "succeeded"] * (len(types) // 2):
            yield f"the jobs of {key} did not take turns: {types}"


def _repetitions(evidence: Evidence) -> tuple[set[str], set[str]]:
    """The events that were begun again without having failed, and those of them whose earlier attempt had not died."""
    twice: set[str] = set()
    unexplained: set[str] = set()
    for id_, marks in evidence.marked.items():
        failed = {mark.attempt for mark in marks if mark.what == "fail"}
        begun = [mark for mark in marks if mark.what == "begin"]
        for before, after in pairwise(begun):
            if before.attempt in failed:
                continue
            twice.add(id_)
            if evidence.died_ns.get(before.by, after.at_ns) >= after.at_ns:
                unexplained.add(id_)
    return twice, unexplained
