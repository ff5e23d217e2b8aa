"""Tasks are values: what a scheduler carries compares and hashes by content, and cannot change on the way."""

import json
import re
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2core import AppendTask, DrainTask, Json, Task, TaskEvent
from a2core.tasks import (
    MAX_GENERATION,
    Hop,
    InvalidTask,
    Message,
    Outage,
    encode_message,
    message_object,
    parse_events,
    parse_message,
    read_task,
)

EVENT = TaskEvent("e1", "order", '{"n":1}')


def drain(due_at_ms: int = 5_000) -> Task:
    return DrainTask("orders", "s-1", due_at_ms)


def append(*events: TaskEvent) -> Task:
    return AppendTask("t-1", "orders", "s-1", 5_000, tuple(event.to_json() for event in events))


@pytest.mark.parametrize(
    ("one", "other"), [(drain(), drain()), (append(EVENT), append(EVENT))], ids=["drain", "append"]
)
def test_tasks_of_the_same_content_are_the_same(one: Task, other: Task) -> None:
    """A redelivered task equals the one before it, so a set of them holds each once."""
    assert one == other
    assert 1 == len({one, other})


def test_tasks_of_other_content_differ() -> None:
    """Kind, due time, and the events with their order all count."""
    second = replace(EVENT, id="e2")
    assert 5 == len({drain(), drain(5_001), append(EVENT), append(EVENT, second), append(second, EVENT)})


@pytest.mark.parametrize("task", [drain(), append(EVENT)], ids=["drain", "append"])
def test_a_task_is_moved_by_making_another(task: Task) -> None:
    """A task cannot change under the scheduler that carries it; another due time is another task."""
    with pytest.raises(FrozenInstanceError):
        task.due_at_ms = 6_000  # type: ignore[misc]
    assert (5_000, 6_000) == (task.due_at_ms, replace(task, due_at_ms=6_000).due_at_ms)


# ── messages on the wire ─────────────────────────────────────────────────────────────────


DUE_MS = 1_700_000_030_000
HEAD = '{"version":1,"kind":"drain","contract":"orders","sessionId":"s-1","dueAt":1700000030000'
APPENDED = (
    '{"version":1,"kind":"append","id":"t-1","contract":"orders","sessionId":"s-1","dueAt":1700000030000,"events":[1]'
)

names = st.text(min_size=1, max_size=8) | st.sampled_from(["\ud800", "a\udfff", "日本", "\x00", '"\\'])
due_times = st.integers(-(10**300), 10**300) | st.floats(allow_nan=False, allow_infinity=False)
values: st.SearchStrategy[Json] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)
drains = st.builds(DrainTask, names, names, due_times)
appends = st.builds(AppendTask, names, names, names, due_times, st.lists(values, min_size=1, max_size=3).map(tuple))
generations = st.integers(0, MAX_GENERATION)
messages = st.one_of(
    st.builds(Message, drains | appends),
    st.builds(Message, drains, st.builds(Outage, generations, st.integers(-(10**15), 10**15).map(lambda s: s * 1_000))),
    st.builds(Message, appends, st.builds(Outage, generations, st.none()) | st.builds(Hop, st.integers(0, 10**9))),
)


@given(messages)
def test_what_is_encoded_is_read_back(message: Message) -> None:
    """Every valid message has a text that UTF-8 carries, and reading it gives the same message."""
    text = encode_message(message)
    assert message == parse_message(text.encode())
    assert list(json.loads(text)) == list(message_object(message))


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (Message(DrainTask("orders", "s-1", DUE_MS)), HEAD + "}"),
        (
            Message(DrainTask("orders", "s-1", DUE_MS), Outage(2, 1_700_000_000_000)),
            HEAD + ',"_a2QStash":{"version":1,"generation":2,"rootDueAt":1700000000000}}',
        ),
        (Message(AppendTask("t-1", "orders", "s-1", DUE_MS, (1,))), APPENDED + "}"),
        (
            Message(AppendTask("t-1", "orders", "s-1", DUE_MS, (1,)), Outage(0, None)),
            APPENDED + ',"_a2QStash":{"version":1,"generation":0}}',
        ),
        (
            Message(AppendTask("t-1", "orders", "s-1", DUE_MS, (1,)), Hop(3)),
            APPENDED + ',"_a2Hop":{"version":1,"hop":3}}',
        ),
    ],
    ids=["drain", "drain-outage", "append", "append-outage", "append-hop"],
)
def test_a_message_has_one_text(message: Message, text: str) -> None:
    """Keys come in the order of the wire, the private one last, without spaces."""
    assert text == encode_message(message)
    assert message == parse_message(text.encode())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD.replace(":1,", ":1.0,", 1) + ',"extra":{"a":[1e400]}}', Message(DrainTask("orders", "s-1", DUE_MS))),
        (HEAD + ',"dueAt":-0}', Message(DrainTask("orders", "s-1", 0))),
        (HEAD + ',"dueAt":1e3}', Message(DrainTask("orders", "s-1", 1_000))),
        (HEAD + ',"dueAt":0.5}', Message(DrainTask("orders", "s-1", 0.5))),
        (HEAD + ',"dueAt":1e300}', Message(DrainTask("orders", "s-1", int(1e300)))),
        (HEAD + ',"dueAt":9007199254740993}', Message(DrainTask("orders", "s-1", 2**53 + 1))),
        (" \r\n\t" + HEAD + "} ", Message(DrainTask("orders", "s-1", DUE_MS))),
        (
            HEAD + ',"_a2QStash":{"version":1e0,"generation":10e-1,"rootDueAt":1e21,"x":1}}',
            Message(DrainTask("orders", "s-1", DUE_MS), Outage(1, 10**21)),
        ),
    ],
    ids=lambda part: part[-40:] if isinstance(part, str) else "",
)
def test_a_message_is_read_by_value(text: str, message: Message) -> None:
    """Numbers count as what they are, later keys win, unknown keys are ignored."""
    assert message == parse_message(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "null",
        "[]",
        HEAD,
        HEAD + "}}",
        "\ufeff" + HEAD + "}",
        HEAD.replace(":1,", ":2,", 1) + "}",
        HEAD.replace(":1,", ":true,", 1) + "}",
        HEAD.replace('"version":1,', "") + "}",
        HEAD + ',"kind":"Drain"}',
        HEAD + ',"kind":["drain"]}',
        HEAD + ',"contract":""}',
        HEAD + ',"contract":5}',
        HEAD + ',"sessionId":null}',
        HEAD + ',"dueAt":"0"}',
        HEAD + ',"dueAt":true}',
        HEAD + ',"dueAt":NaN}',
        HEAD + ',"dueAt":1e400}',
        HEAD + ',"dueAt":1' + "0" * 400 + "}",
        HEAD + ',"dueAt":1' + "0" * 5_000 + "}",
        HEAD + ',"kind":"append"}',
        APPENDED + ',"id":""}',
        APPENDED + ',"events":[]}',
        APPENDED + ',"events":{"0":1}}',
        APPENDED + ',"events":[1e400]}',
        APPENDED + ',"events":[' + "[" * 99 + "]" * 99 + "]}",
        HEAD + ',"_a2QStash":null}',
        HEAD + ',"_a2QStash":{"version":2,"generation":0,"rootDueAt":0}}',
        HEAD + ',"_a2QStash":{"version":1,"generation":-1,"rootDueAt":0}}',
        HEAD + ',"_a2QStash":{"version":1,"generation":0.5,"rootDueAt":0}}',
        HEAD + ',"_a2QStash":{"version":1,"generation":9007199254740991,"rootDueAt":0}}',
        HEAD + ',"_a2QStash":{"version":1,"generation":0}}',
        HEAD + ',"_a2QStash":{"version":1,"generation":0,"rootDueAt":1}}',
        APPENDED + ',"_a2QStash":{"version":1,"generation":0,"rootDueAt":null}}',
        HEAD + ',"_a2Hop":{"version":1,"hop":0}}',
        APPENDED + ',"_a2Hop":1}',
        APPENDED + ',"_a2Hop":{"version":2,"hop":0}}',
        APPENDED + ',"_a2Hop":{"version":1,"hop":-1}}',
        APPENDED + ',"_a2Hop":{"version":1,"hop":"0"}}',
        APPENDED + ',"_a2Hop":{"version":1,"hop":0},"_a2QStash":{"version":1,"generation":0}}',
    ],
    ids=lambda text: f"{len(text)}{ascii(text)[-40:]}",
)
def test_anything_else_is_malformed(text: str) -> None:
    """What is no message of this version is None, and nothing raises."""
    assert None is parse_message(text.encode())


def test_bad_utf_8_is_malformed() -> None:
    """No byte is replaced."""
    assert None is parse_message((HEAD + "}").encode().replace(b"s-1", b"\xff"))


@given(st.binary(max_size=64) | st.text(alphabet='{}[]",:\\0123.eE-+truefalsn', max_size=64).map(str.encode))
def test_no_body_raises(body: bytes) -> None:
    """Whatever the bytes are, they are a message or malformed."""
    parse_message(body)


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ({}, 'expected the kind "drain" or "append", got None'),
        ({"kind": "other"}, "got 'other'"),
        ({"kind": "x" * 41}, "got a value of type str"),
        ({"kind": "drain"}, "expected contract to be a non-empty string, got None"),
        ({"kind": "drain", "contract": "c", "sessionId": ""}, "expected sessionId to be a non-empty string, got ''"),
        ({"kind": "drain", "contract": "c", "sessionId": "s", "dueAt": float("nan")}, "got nan"),
        ({"kind": "drain", "contract": "c", "sessionId": "s", "dueAt": [0]}, "got a value of type list"),
        ({"kind": "drain", "contract": "c", "sessionId": "s", "dueAt": 10**400}, "got a value of type int"),
        ({"kind": "append", "events": {}}, "expected a list of events, got a value of type dict"),
    ],
    ids=["none", "kind", "long", "contract", "session", "nan", "list", "huge", "events"],
)
def test_an_invalid_task_says_what_came(value: dict[str, Json], complaint: str) -> None:
    """A refusal names what was expected and what came, and repeats nothing long."""
    with pytest.raises(InvalidTask, match=re.escape(complaint)) as refusal:
        read_task(value)
    assert "INVALID_TASK" == refusal.value.code
    assert len(str(refusal.value)) < 120


@pytest.mark.parametrize(
    ("events", "complaint"),
    [
        ((), "got none"),
        ([1], "got a value of type list"),
        (None, "got None"),
        ((float("nan"),), "expected events that JSON can hold"),
        ((object(),), "expected events that JSON can hold"),
        ((10**5_000,), "expected events that JSON can hold"),
    ],
    ids=["none", "list", "null", "nan", "object", "digits"],
)
def test_an_append_that_could_not_be_read_back_is_refused(events: Any, complaint: str) -> None:
    """An append task that exists can be written, and what is written can be read."""
    with pytest.raises(InvalidTask, match=complaint):
        AppendTask("t-1", "orders", "s-1", DUE_MS, events)


def test_a_payload_of_97_levels_travels() -> None:
    """The deepest payload that an append takes is the deepest that a message carries."""
    payload: Json = []
    for _ in range(96):
        payload = [payload]
    task = AppendTask("t-1", "orders", "s-1", DUE_MS, ({"id": "e", "type": "t", "payload": payload},))
    assert Message(task) == parse_message(encode_message(Message(task)).encode())
    with pytest.raises(InvalidTask, match="nested deeper than 99 levels"):
        replace(task, events=({"id": "e", "type": "t", "payload": [payload]},))


def test_a_task_never_prints_its_events() -> None:
    """What users write stays out of logs."""
    assert "secret" not in repr(AppendTask("t-1", "orders", "s-1", DUE_MS, ("secret",)))


def test_events_are_read_when_they_are_appended() -> None:
    """An event is an object of a text id, a text type and any payload, which becomes canonical text."""
    task = append(EVENT, replace(EVENT, id="e2", payload="null"))
    assert isinstance(task, AppendTask)
    assert (EVENT, TaskEvent("e2", "order", "null")) == parse_events(task)
    lone = AppendTask("t-1", "orders", "s-1", DUE_MS, ({"id": "e", "type": "t", "payload": "\ud800", "x": 1},))
    assert (TaskEvent("e", "t", '"\\ud800"'),) == parse_events(lone)


@pytest.mark.parametrize(
    "event",
    [
        1,
        None,
        [],
        {},
        {"id": "e", "type": "t"},
        {"id": "", "type": "t", "payload": 1},
        {"id": "e", "type": "", "payload": 1},
        {"id": 1, "type": "t", "payload": 1},
        {"id": "e", "type": None, "payload": 1},
    ],
    ids=repr,
)
def test_events_of_another_form_are_none(event: Json) -> None:
    """One event that cannot be appended makes the task one that nothing is appended of."""
    assert None is parse_events(AppendTask("t-1", "orders", "s-1", DUE_MS, (EVENT.to_json(), event)))
