"""A publish request is one message as a provider takes it, under one size limit, with nothing of it shown."""

import json
from base64 import urlsafe_b64encode
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2core.publish import (
    HOP_MARGIN_MS,
    MAX_SETTING,
    SHORTEST_DELAY_MS,
    InvalidHeaders,
    MessageTooLarge,
    PublishRequest,
    PublishRules,
    check_headers,
    publish_dispatch,
    publish_next_hop,
    publish_outage,
    publish_task,
)
from a2core.tasks import MAX_GENERATION, AppendTask, DrainTask, Hop, Message, Outage, Task, parse_message
from a2core.urls import Callback

URL = "https://app.example.com/api/a2/scheduler"
RULES = PublishRules(Callback(URL))
PREVIEW = PublishRules(Callback(URL, is_preview=True), (("z", "1"),))
NOW_MS = 1_700_000_000_123
DAY_MS = 86_400_000
WEEKLY = replace(RULES, longest_delay_ms=7 * DAY_MS)
TRUSTED = "x-vercel-trusted-oidc-idp-token"


def drain(due_at_ms: float = NOW_MS) -> DrainTask:
    return DrainTask("orders", "sess-1", due_at_ms)


def append(due_at_ms: float = NOW_MS, *, text: str = "x") -> AppendTask:
    return AppendTask("t-1", "orders", "sess-1", due_at_ms, ({"id": "e-1", "type": "tick", "payload": text},))


def token(expiry_s: int) -> str:
    return f"h.{urlsafe_b64encode(json.dumps({'exp': expiry_s}).encode()).decode().rstrip('=')}.s"


def hashed(*parts: object) -> str:
    return "a2_" + sha256(json.dumps(parts, separators=(",", ":")).encode()).hexdigest()


def message_of(request: PublishRequest) -> Message:
    message = parse_message(request.body.encode())
    assert message is not None
    return message


def fields_of(request: PublishRequest) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(request.body)
    return fields


@pytest.mark.parametrize("task", [drain(), append()], ids=["drain", "append"])
def test_what_is_due_is_sent_for_now(task: Task) -> None:
    """A due task carries the second that runs, and is delivered at once."""
    request = publish_task(task, NOW_MS, RULES)
    assert (URL, None, None, (), ()) == (
        request.url,
        request.not_before_s,
        request.retries,
        request.headers,
        request.redact,
    )
    assert Message(replace(task, due_at_ms=1_700_000_000_000)) == message_of(request)


def test_what_is_due_later_is_sent_for_the_next_whole_second() -> None:
    """The message and the provider agree on the second, which is never early."""
    request = publish_task(drain(NOW_MS + 878.5), NOW_MS, RULES)
    assert 1_700_000_002 == request.not_before_s
    assert Message(drain(1_700_000_002_000)) == message_of(request)


def test_a_message_is_named_by_what_it_carries() -> None:
    """A drain is named by session and slot, an append by its own id, a dispatch by what was appended."""
    slot_ms = 1_700_000_000_000
    assert hashed("a2:scheduler-qstash:v1", URL, "orders", "sess-1", slot_ms) == (
        publish_task(drain(), NOW_MS, RULES).deduplication_id
    )
    assert hashed("a2:scheduler-qstash:append:v1", URL, "t-1") == (
        publish_task(append(), NOW_MS, RULES).deduplication_id
    )
    dispatch = publish_dispatch(drain(), 7, NOW_MS, RULES)
    assert hashed("a2:scheduler-qstash:dispatch:v1", URL, "orders", "sess-1", 7) == dispatch.deduplication_id
    assert (None, Message(drain(slot_ms))) == (dispatch.not_before_s, message_of(dispatch))


def test_two_dispatches_of_one_second_are_two_messages() -> None:
    """What was appended after the first one needs a wake-up of its own."""
    ids = {publish_dispatch(drain(), seq, NOW_MS, RULES).deduplication_id for seq in range(5)}
    assert 5 == len(ids)


@given(st.integers(0, 10**13), st.integers(0, 10**13))
def test_no_id_of_a_successor_depends_on_the_clock(one_ms: int, other_ms: int) -> None:
    """Deliveries that race, or come again, publish the same successor once."""
    for task, outage in ((drain(), None), (append(), None), (drain(), Outage(3, 0)), (append(), Outage(3, None))):
        requests = [publish_outage(task, outage, now_ms, RULES) for now_ms in (one_ms, other_ms)]
        assert 1 == len({request.deduplication_id for request in requests})
    hops = [publish_next_hop(append(10**15), Hop(1), now_ms, WEEKLY) for now_ms in (one_ms, other_ms)]
    assert 1 == len({request.deduplication_id for request in hops})


def test_an_outage_names_its_successors_by_their_generation() -> None:
    """A successor is the same task, later, and its lineage comes last in the body."""
    prefix = "a2:scheduler-qstash:store-outage"
    request = publish_outage(drain(1_700_000_000_123), Outage(1, 1_699_999_000_000), NOW_MS, RULES)
    assert hashed(f"{prefix}:drain:v1", URL, "orders", "sess-1", 1_699_999_000_000, 2) == request.deduplication_id
    assert Message(drain(1_700_000_481_000), Outage(2, 1_699_999_000_000)) == message_of(request)
    assert 1_700_000_481 == request.not_before_s
    assert request.body.endswith(',"_a2QStash":{"version":1,"generation":2,"rootDueAt":1699999000000}}')
    request = publish_outage(append(), None, NOW_MS, RULES)
    assert hashed(f"{prefix}:append:v1", URL, "orders", "sess-1", "t-1", 0) == request.deduplication_id
    assert Message(append(1_700_000_031_000), Outage(0, None)) == message_of(request)


def test_an_append_due_beyond_reach_travels_in_hops() -> None:
    """Each hop carries the true due time, and ends a margin before the provider's longest delay does."""
    due_at_ms = 1_702_000_000_000
    task, now_ms, legs = append(due_at_ms), NOW_MS, []
    request = publish_task(task, now_ms, WEEKLY)
    while isinstance(message_of(request).private, Hop):
        hop = message_of(request).private
        assert isinstance(hop, Hop)
        assert request.not_before_s is not None
        assert hashed("a2:scheduler-qstash:hop:append:v1", URL, "orders", "sess-1", "t-1", hop.number) == (
            request.deduplication_id
        )
        assert request.body.endswith(f',"_a2Hop":{{"version":1,"hop":{hop.number}}}}}')
        assert now_ms < request.not_before_s * 1_000 <= now_ms + 7 * DAY_MS - HOP_MARGIN_MS
        legs.append(hop.number)
        now_ms = request.not_before_s * 1_000 + 250
        request = publish_next_hop(task, hop, now_ms, WEEKLY)
    assert [0, 1, 2] == legs
    assert (due_at_ms // 1_000, Message(task)) == (request.not_before_s, message_of(request))
    assert hashed("a2:scheduler-qstash:append:v1", URL, "t-1") == request.deduplication_id


@given(st.integers(0, 10**13), st.integers(-(10**9), 10**11), st.integers(SHORTEST_DELAY_MS, 10**10))
def test_nothing_is_asked_of_a_provider_beyond_its_longest_delay(now_ms: int, wait_ms: int, longest_ms: int) -> None:
    """Neither a task nor a successor is due later than the provider takes, and a hop moves on by a second."""
    rules = replace(RULES, longest_delay_ms=longest_ms)
    due_at_ms = now_ms + wait_ms
    for request in (
        publish_task(drain(due_at_ms), now_ms, rules),
        publish_task(append(due_at_ms), now_ms, rules),
        publish_next_hop(append(due_at_ms), Hop(0), now_ms, rules),
        publish_outage(drain(due_at_ms), Outage(MAX_GENERATION, 0), now_ms, rules),
    ):
        not_before_ms = 0 if request.not_before_s is None else request.not_before_s * 1_000
        assert not_before_ms <= now_ms + longest_ms
        message = message_of(request)
        if isinstance(message.private, Hop):
            assert now_ms < not_before_ms < due_at_ms <= message.task.due_at_ms


def test_a_drain_due_beyond_reach_wakes_early() -> None:
    """A drain carries no events: one that comes too early looks, and waits again."""
    request = publish_task(drain(1_702_000_000_000), NOW_MS, WEEKLY)
    leg_ends_ms = (NOW_MS + 7 * DAY_MS - HOP_MARGIN_MS) // 1_000 * 1_000
    assert Message(drain(leg_ends_ms)) == message_of(request)
    assert leg_ends_ms // 1_000 == request.not_before_s


def test_configured_headers_ride_along_and_are_never_shown() -> None:
    """Headers are sorted by name, and every name is redacted."""
    rules = PublishRules(Callback(URL), check_headers([("X-B", " 2 "), ("a", "")]), retries=0)
    request = publish_task(drain(), NOW_MS, rules)
    assert (0, (("a", ""), ("x-b", "2")), ("a", "x-b")) == (request.retries, request.headers, request.redact)


@pytest.mark.parametrize(
    ("expiry_s", "due_at_ms", "is_forwarded"),
    [
        (1_700_000_061, NOW_MS, True),
        (1_700_000_060, NOW_MS, False),
        (1_700_000_065, NOW_MS + 4_000, True),
        (1_700_000_064, NOW_MS + 4_000, False),
    ],
)
def test_a_preview_forwards_a_token_that_lives_long_enough(
    expiry_s: int,
    due_at_ms: int,
    is_forwarded: bool,  # noqa: FBT001 - an expected answer
) -> None:
    """A token is forwarded, and redacted, where it outlives the first delivery by a minute."""
    request = publish_task(drain(due_at_ms), NOW_MS, PREVIEW, f" {token(expiry_s)}\n")
    expected = ((TRUSTED, token(expiry_s)), ("z", "1")) if is_forwarded else (("z", "1"),)
    assert expected == request.headers
    assert tuple(name for name, _ in expected) == request.redact


@pytest.mark.parametrize(
    ("rules", "oidc_token"),
    [(RULES, token(10**10)), (PREVIEW, None), (PREVIEW, ""), (PREVIEW, "x"), (PREVIEW, f"a\nb{token(10**10)}")],
    ids=["no-preview", "none", "empty", "no-token", "no-header"],
)
def test_without_a_token_the_publish_goes_on(rules: PublishRules, oidc_token: str | None) -> None:
    """A token that may not, or cannot, be forwarded stays behind, and never stops a message."""
    assert rules.headers == publish_task(drain(), NOW_MS, rules, oidc_token).headers


def test_a_hops_token_outlives_the_hop() -> None:
    """A hop is first delivered at the end of its leg, not at the task's due time."""
    rules = replace(PREVIEW, longest_delay_ms=SHORTEST_DELAY_MS)
    request = publish_task(append(NOW_MS + 10**9), NOW_MS, rules, token(1_700_000_061))
    assert TRUSTED in dict(request.headers)


def reserve(task: Task, now_ms: int) -> int:
    """How many bytes a first publish must leave room for: its message with the largest lineage."""
    fields = fields_of(publish_task(task, now_ms, RULES))
    lineage: dict[str, int] = {"version": 1, "generation": 2**53 - 1}
    if isinstance(task, DrainTask):
        lineage["rootDueAt"] = fields["dueAt"]
    return len(json.dumps({**fields, "_a2QStash": lineage}, ensure_ascii=False, separators=(",", ":")).encode())


TEXTS = st.text(min_size=1, max_size=8)
CLOCKS = st.integers(10**12, 10**13 - 10**9)
"""Clocks of thirteen digits, from 2001 to 2286: a due time's text does not grow in between."""

TASKS = st.builds(DrainTask, TEXTS, TEXTS, CLOCKS) | st.builds(
    AppendTask, TEXTS, TEXTS, TEXTS, CLOCKS, st.tuples(st.recursive(TEXTS | st.floats(0, 1), st.lists, max_leaves=4))
)


@given(TASKS, CLOCKS, st.lists(CLOCKS, max_size=4), st.integers(0, MAX_GENERATION), st.integers(0, 10**6))
def test_what_is_accepted_can_carry_every_later_lineage(
    task: Task, now_ms: int, clocks: list[int], generation: int, hop: int
) -> None:
    """The limit holds to the byte: what fits at first fits with any lineage or hop, and one byte less refuses it."""
    limit = reserve(task, now_ms)
    rules = replace(RULES, max_body_bytes=limit, longest_delay_ms=SHORTEST_DELAY_MS)
    accepted = message_of(publish_task(task, now_ms, replace(rules, longest_delay_ms=None))).task
    for later_ms in (now_ms, *clocks):
        first = message_of(publish_outage(accepted, None, later_ms, rules))
        assert isinstance(first.private, Outage)
        publish_outage(first.task, replace(first.private, generation=generation), later_ms, rules)
        if isinstance(accepted, AppendTask):
            publish_next_hop(accepted, Hop(hop), later_ms, rules)
    with pytest.raises(MessageTooLarge) as refusal:
        publish_task(task, now_ms, replace(rules, max_body_bytes=limit - 1, longest_delay_ms=None))
    assert f"needs {limit} bytes of at most {limit - 1}: " in str(refusal.value)


def test_a_dispatch_leaves_room_for_its_lineage_too() -> None:
    """A dispatch is a first publish: the store may be away when it arrives."""
    limit = reserve(drain(), NOW_MS)
    publish_dispatch(drain(), 7, NOW_MS, replace(RULES, max_body_bytes=limit))
    with pytest.raises(MessageTooLarge):
        publish_dispatch(drain(), 7, NOW_MS, replace(RULES, max_body_bytes=limit - 1))


def test_a_size_is_counted_in_bytes_as_they_are_sent() -> None:
    """A lone surrogate is sent as its escape, anything else as UTF-8."""
    plain = reserve(append(text="......"), NOW_MS)
    assert plain == reserve(append(text="é🎉"), NOW_MS) == reserve(append(text="日本"), NOW_MS)
    request = publish_task(append(text="\ud800"), NOW_MS, replace(RULES, max_body_bytes=plain))
    assert "\\ud800" in request.body
    with pytest.raises(MessageTooLarge):
        publish_task(append(text="\ud800"), NOW_MS, replace(RULES, max_body_bytes=plain - 1))


def test_a_request_prints_no_secret() -> None:
    """Neither a body nor a query nor a header's value is in the text of a request, its rules or its refusal."""
    rules = PublishRules(Callback(f"{URL}?bypass=secret", is_preview=True), (("x", "secret"),))
    request = publish_task(append(text="secret"), NOW_MS, rules, token(10**10) + "secret")
    assert "secret" not in repr((request, rules))
    with pytest.raises(MessageTooLarge) as refusal:
        publish_task(append(text="secret"), NOW_MS, replace(rules, max_body_bytes=1))
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("x", 5, "expected text, got int"),
        ("x", None, "expected text, got NoneType"),
        ("bad name", "v", "expected a token"),
        ("x\n", "v", "expected a token"),
        ("", "v", "expected a token"),
        ("é", "v", "expected a token"),
        ("\u212a", "v", "expected a token"),
        (":authority", "v", "expected a token"),
        ("x", "a\nb", "expected a token with a Latin-1 value"),
        ("x", "a\x00b", "expected a token with a Latin-1 value"),
        ("x", "日本", "expected a token with a Latin-1 value"),
        ("X-A", "2", "given twice"),
        ("Upstash-Forward-X", "v", "reserved"),
        ("CONTENT-TYPEX", "v", "reserved"),
        ("Host", "v", "reserved"),
        ("te", "v", "reserved"),
        ("X-Vercel-OIDC-Token", "v", "reserved"),
        (TRUSTED, "v", "reserved"),
    ],
    ids=ascii,
)
def test_a_header_that_is_not_the_callers_is_refused(name: str, value: object, complaint: str) -> None:
    """What HTTP cannot carry, or the provider sets, is refused by its name, and its value is not shown."""
    with pytest.raises(InvalidHeaders, match=complaint) as refusal:
        check_headers([("x-a", "1"), (name, value)])  # type: ignore[list-item]
    assert repr(name) in str(refusal.value)
    assert "INVALID_HEADERS" == refusal.value.code


def test_headers_are_lower_case_and_trimmed() -> None:
    """Names are folded, outer white space of values goes, everything else stays."""
    assert (("x-a", "a\x01b"), ("upstash", ""), ("!#$%&'*+-.^_`|~0", "\xa0é")) == check_headers(
        [("X-A", "\r\n a\x01b\t"), ("Upstash", " "), ("!#$%&'*+-.^_`|~0", "\xa0é")]
    )


@pytest.mark.parametrize("retries", [-1, True, 1.5, "3", float("nan"), MAX_SETTING + 1], ids=repr)
def test_retries_are_a_count(retries: Any) -> None:
    """Retries are an integer of zero or more."""
    with pytest.raises(ValueError, match="retries: expected an integer of 0 or more"):
        PublishRules(Callback(URL), retries=retries)


@pytest.mark.parametrize("most", [0, -1, True, 1.5, None, float("inf"), MAX_SETTING + 1], ids=repr)
def test_a_limit_is_a_count_of_bytes(most: Any) -> None:
    """The size limit is an integer of one or more."""
    with pytest.raises(ValueError, match="max_body_bytes: expected an integer of 1 or more"):
        PublishRules(Callback(URL), max_body_bytes=most)


@pytest.mark.parametrize("longest_ms", [0, SHORTEST_DELAY_MS - 1, True, 1e9], ids=repr)
def test_the_longest_delay_is_long_enough_for_a_hop(longest_ms: Any) -> None:
    """Below a margin and a second, a hop would come back at once, for ever."""
    with pytest.raises(ValueError, match=f"longest_delay_ms: expected {SHORTEST_DELAY_MS} or more"):
        PublishRules(Callback(URL), longest_delay_ms=longest_ms)


def test_the_largest_settings_are_valid() -> None:
    """Any integer that every JSON reader holds is a setting."""
    rules = PublishRules(Callback(URL), retries=MAX_SETTING, max_body_bytes=MAX_SETTING, longest_delay_ms=MAX_SETTING)
    assert MAX_SETTING == publish_task(drain(), NOW_MS, rules).retries
