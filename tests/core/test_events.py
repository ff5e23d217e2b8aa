"""Append rules: seqs, what waits for a handler, and what makes two events the same one."""

from dataclasses import replace

import pytest

from a2core import Appended, Conflict, Draft, Entry, Plan, Snapshot, WakeBy, WorkItem, decide_append
from a2core.events import write_batch
from tests.core.helpers import ROSTER, WINDOW_MS, Session, draft, entry


def logged(session: Session) -> list[tuple[int, str]]:
    return [(kept.seq, kept.id) for kept in session.entries.values()]


def test_an_append_gives_seqs_and_work() -> None:
    """Each new event gets the next seq, and waits from now on in its lane, to be looked at within the window."""
    plan = decide_append(
        Snapshot(last_seq=4),
        70,
        drafts=[draft("a", lane="x", payload="[1]"), draft("b", lane="y")],
        roster=ROSTER,
        wake_by_ms=90,
    )
    first = Entry("a", "order", "[1]", None, 70, 5)
    second = Entry("b", "order", "{}", None, 70, 6)
    assert (
        Plan(
            Appended((first, second), (first, second), pending=True),
            entries=(first, second),
            items=(WorkItem(first, "x", ready_at_ms=70), WorkItem(second, "y", ready_at_ms=70)),
            wake=WakeBy(90),
        )
        == plan
    )


def test_an_event_without_a_handler_settles_at_append() -> None:
    """A type that is declared without a handler enters the log, makes no work and wakes nobody."""
    session = Session()
    answer = session.append(draft("a", event_type="note"), now_ms=0)
    kept = entry("a", event_type="note")
    assert Appended((kept,), (kept,), pending=False) == answer
    assert Session(entries={"a": kept}) == session


def test_an_event_of_an_unknown_type_is_work() -> None:
    """B11: a type that only a newer version knows waits for it, behind and before the types that are known."""
    session = Session()
    session.append(
        draft("a", event_type="note"),
        draft("b", event_type="newer"),
        draft("c"),
        draft("d", event_type="note"),
        now_ms=0,
    )
    assert [(1, "a"), (2, "b"), (3, "c"), (4, "d")] == logged(session)
    assert [2, 3] == list(session.items)
    assert WINDOW_MS == session.wake_at_ms


def test_an_append_never_puts_off_a_wake() -> None:
    """The session is looked at by the earliest of what its appends asked for."""
    session = Session()
    session.append(draft("a"), now_ms=100)
    session.append(draft("b"), now_ms=200)
    assert 100 + WINDOW_MS == session.wake_at_ms


def test_an_empty_batch_writes_nothing() -> None:
    """Appending no events is allowed, and does nothing."""
    assert Plan(Appended((), (), pending=False)) == decide_append(Snapshot(), 0, drafts=[], roster=ROSTER, wake_by_ms=1)


@pytest.mark.parametrize(
    "again",
    [
        draft("a", payload='{"x":1,"y":2}'),
        draft("a", payload='{"y":2,"x":1}'),
        draft("a", payload='{"x":1,"y":2}', lane="other"),
    ],
    ids=["same", "keys-in-another-order", "another-lane"],
)
def test_an_event_that_is_in_the_log_is_returned(again: Draft) -> None:
    """The same id, type and payload are the same event: it is returned as it is, and not written again."""
    session = Session()
    session.append(draft("a", payload='{"x":1,"y":2}'), now_ms=0)
    before = session.copy()
    kept = session.entries["a"]
    assert Appended((kept,), (), pending=True) == session.append(again, now_ms=50)
    assert before == session


@pytest.mark.parametrize("state", ["waiting", "claimed", "dead", "settled"])
def test_a_repeated_append_is_pending_while_its_event_is_open(state: str) -> None:
    """A caller that repeats an append has work to wait for, unless it is settled or a dead letter.

    When it is looked at next stands as it was: the provider folds a repeated wake-up away, and one that only the store
    knew of would look lost.
    """
    session = Session()
    session.append(draft("a"), now_ms=0)
    if state != "waiting":
        item = session.claim_one(now_ms=0)
        if state == "dead":
            session.give_up(item, now_ms=0)
        elif state == "settled":
            session.settle(item, now_ms=0)
    stands = session.wake_at_ms
    pending = state in {"waiting", "claimed"}
    assert Appended((entry("a"),), (), pending) == session.append(draft("a"), now_ms=70)
    assert not session.plan.writes
    assert stands == session.wake_at_ms


def test_one_open_event_makes_a_repeated_batch_pending() -> None:
    """Of a batch that is repeated, one event that still waits is enough, wherever it stands."""
    session = Session()
    session.append(draft("a"), draft("b"), draft("c", event_type="note"), now_ms=0)
    session.settle(session.claim_one(now_ms=0), now_ms=0)
    answer = session.append(draft("a"), draft("b"), draft("c", event_type="note"), now_ms=0)
    assert Appended((entry("a"), entry("b", 2), entry("c", 3, event_type="note")), (), pending=True) == answer
    answer = session.append(draft("a"), draft("c", event_type="note"), now_ms=0)
    assert Appended((entry("a"), entry("c", 3, event_type="note")), (), pending=False) == answer


def test_an_event_that_was_settled_is_not_work_again() -> None:
    """An append that is repeated after its event was handled returns the event, and starts nothing."""
    session = Session()
    session.append(draft("a"), now_ms=0)
    session.settle(session.claim_one(now_ms=0), now_ms=1)
    session.append(draft("a"), draft("b"), now_ms=2)
    assert [(1, "a"), (2, "b")] == logged(session)
    assert [2] == list(session.items)


def test_a_batch_may_mix_new_and_known_events() -> None:
    """The answer has every event of the batch in its order; only the new ones are written, with the next seqs."""
    session = Session()
    session.append(draft("b"), now_ms=0)
    answer = session.append(draft("a"), draft("b"), draft("c"), now_ms=9)
    first, known, second = (
        Entry("a", "order", "{}", None, 9, 2),
        entry("b"),
        Entry("c", "order", "{}", None, 9, 3),
    )
    assert Appended((first, known, second), (first, second), pending=True) == answer


def test_a_duplicate_inside_a_batch_is_one_event() -> None:
    """The same event twice in one batch is written once and returned twice."""
    session = Session()
    answer = session.append(draft("a"), draft("a"), draft("b"), now_ms=0)
    first, second = entry("a"), entry("b", 2)
    assert Appended((first, first, second), (first, second), pending=True) == answer
    assert [1, 2] == list(session.items)


@pytest.mark.parametrize(
    "other",
    [draft("a", payload='{"x":2}'), draft("a", payload='{"x":1}', event_type="note")],
    ids=["payload", "type"],
)
@pytest.mark.parametrize("where", ["in-the-log", "in-the-batch"])
def test_another_event_under_a_known_id_is_a_conflict(other: Draft, where: str) -> None:
    """The same id with another type or payload is a conflict, and nothing of the batch is written."""
    session = Session()
    known = draft("a", payload='{"x":1}')
    batch = [draft("before"), other, draft("after")]
    if where == "in-the-log":
        session.append(known, now_ms=0)
    else:
        batch.insert(0, known)
    before = session.copy()
    assert Conflict("a") == session.append(*batch, now_ms=1)
    assert not session.plan.writes
    assert before == session


def test_a_conflict_names_the_first_id() -> None:
    """Of several conflicting ids the caller learns the first in the batch."""
    session = Session()
    session.append(draft("a"), draft("b"), now_ms=0)
    assert Conflict("b") == session.append(draft("b", payload="1"), draft("a", payload="1"), now_ms=1)


def test_a_batch_says_what_caused_it() -> None:
    """Every new entry of a batch carries the cause; an entry that was there keeps its own."""
    known = {"b": entry("b", 1)}
    written = write_batch(known, 1, 5, [draft("a"), draft("b")], ROSTER, cause="e0")
    assert not isinstance(written, Conflict)
    entries, new, items = written
    caused = Entry("a", "order", "{}", "e0", 5, 2)
    assert (caused, entry("b", 1)) == entries
    assert (caused,) == new
    assert (WorkItem(caused, "main", ready_at_ms=5),) == items
    assert {"b": entry("b", 1)} == known


def test_an_entry_keeps_its_ending_when_it_is_appended_again() -> None:
    """A repeated append shows how the handling of its event ended."""
    session = Session()
    session.append(draft("a"), now_ms=0)
    session.give_up(session.claim_one(now_ms=0), now_ms=1)
    session.resolve("a", "obsolete", now_ms=2)
    kept = session.entries["a"]
    assert kept.ending is not None
    assert Appended((kept,), (), pending=False) == session.append(draft("a"), now_ms=3)
    assert entry("a") == replace(kept, ending=None)


def test_an_event_brings_its_key_to_its_work() -> None:
    """What is appended with a key is found by it while it is open, and its log entry is as any other."""
    session = Session()
    answer = session.append(draft("a", key="k"), draft("b"), draft("n", event_type="note", key="k"), now_ms=0)
    kept = (entry("a"), entry("b", 2), entry("n", 3, event_type="note"))
    assert Appended(kept, kept, pending=True) == answer
    assert ["k", None] == [item.key for item in session.items.values()]
    assert ["a"] == session.unfinished("k")
    session.settle(session.claim_one(now_ms=0), now_ms=0)
    assert [] == session.unfinished("k")


def test_a_key_is_no_part_of_an_event() -> None:
    """The same id, type and payload under another key are the same event, and its work keeps the key that it has."""
    session = Session()
    session.append(draft("a", key="k"), now_ms=0)
    assert Appended((entry("a"),), (), pending=True) == session.append(draft("a", key="l"), now_ms=0)
    assert "k" == session.items[1].key
