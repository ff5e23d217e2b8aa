"""The core's parsers, whatever the bytes are: a value that is what it seems, or the documented refusal."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from a2core import (
    AppendTask,
    InvalidHeaders,
    InvalidName,
    InvalidPayload,
    InvalidUrl,
    Message,
    ScheduleRefusal,
    callback,
    check_headers,
    check_name,
    check_schedule_request,
    encode_json,
    encode_message,
    normalise_url,
    parse_events,
    parse_message,
    sign_schedule,
    trigger_url,
    verify_schedule,
)
from a2core.body import BoundedBody, TooLarge, declared_too_large
from a2core.jsontext import MAX_WIRE_DEPTH, NotJson, dump_json, parse_json, parse_json_text
from a2core.oidc import may_forward, token_expiry_ms
from a2core.urls import Callback
from tests.asgi.tokens import base64url
from tests.fuzz.hostile import DEEP, LENGTHS, ODD, TOKENS, as_json, bodies, damaged, objects, texts, values

EXAMPLES = settings(max_examples=300)
numbers = st.sampled_from([0, 1, 1.0, 1_000, -1, 2**53, 1e300, 10**400, True]) | st.integers()
events = st.lists(objects(id=texts, type=texts, payload=values), max_size=3)
private = objects(version=st.just(1), generation=numbers, rootDueAt=numbers, hop=numbers)
messages = objects(
    version=st.sampled_from([1, 1.0]),
    kind=st.sampled_from(["drain", "append"]),
    id=texts,
    contract=texts,
    sessionId=texts,
    dueAt=numbers,
    events=events,
    _a2QStash=private,
    _a2Hop=private,
)


@EXAMPLES
@given(damaged(as_json(messages)) | bodies)
def test_a_message_is_malformed_or_reads_back_as_itself(body: bytes) -> None:
    message = parse_message(body)
    if message is not None:
        again = encode_message(message)
        assert message == parse_message(again.encode())
        if isinstance(message.task, AppendTask):
            found = parse_events(message.task)
            assert found is None or len(message.task.events) == len(found)


@pytest.mark.parametrize("body", [*DEEP, *ODD], ids=range(len(DEEP) + len(ODD)))
def test_no_odd_body_is_a_message(body: bytes) -> None:
    assert parse_message(body) is None
    assert parse_message(b'{"version":1,"kind":"drain","contract":"c","sessionId":"s","dueAt":0,"x":' + body) is None


@EXAMPLES
@given(damaged(as_json(values)) | bodies)
def test_json_from_the_wire_is_refused_or_can_be_written_again(body: bytes) -> None:
    with suppress(NotJson):
        value = parse_json(body)
        assert value == parse_json(dump_json(value).encode())
        assert value == json.loads(body)


@EXAMPLES
@given(values | st.floats() | st.binary() | st.dictionaries(st.integers(), texts, min_size=1))
def test_a_payload_is_refused_or_comes_back(value: Any) -> None:
    with suppress(InvalidPayload):
        assert value == json.loads(encode_json(value))


@given(st.integers(0, 3 * MAX_WIRE_DEPTH), st.sampled_from([("[", "]"), ('{"a":', "}"), ('[{"]":', "}]")]))
def test_depth_is_told_exactly(levels: int, brackets: tuple[str, str]) -> None:
    """Whatever the brackets are, and whatever stands in texts between them."""
    opened, closed = brackets
    text = f"{opened * levels}0{closed * levels}"
    depth = levels * (len(closed))
    if depth <= MAX_WIRE_DEPTH:
        assert json.loads(text) == parse_json_text(text, MAX_WIRE_DEPTH)
    else:
        with pytest.raises(NotJson):
            parse_json_text(text, MAX_WIRE_DEPTH)


url_parts = st.sampled_from(["http://", "HTTPS:", "//", "a.example", "[::1]", "[", "]", "@", ":", "/", "..", "%2e", "%",
                             "?", "#", "\\", "xn--", "0x7f", "1.2.3", ":99999", "\u00e9", " ", "\x00"])  # fmt: skip
urls = st.lists(url_parts | texts, max_size=8).map("".join)


@EXAMPLES
@given(urls)
def test_a_url_is_refused_or_is_its_own_normal_form(url: str) -> None:
    with suppress(InvalidUrl):
        normal = normalise_url(url)
        assert normal == normalise_url(normal)
        assert normal.isascii()
        assert normal.startswith(("http://", "https://"))


@given(
    st.dictionaries(
        st.sampled_from(
            ["VERCEL", "VERCEL_ENV", "VERCEL_BRANCH_URL", "VERCEL_PROJECT_PRODUCTION_URL", "A2_ENV", "PORT"]
        ),
        st.sampled_from(["1", "preview", "production", "a.example", "65536", "8000"]) | texts,
    )
)
def test_an_environment_gives_a_callback_or_is_refused(environment: dict[str, str]) -> None:
    with suppress(InvalidUrl):
        found = callback(None, environment)
        assert found.url == normalise_url(found.url)
        assert found.is_development == found.url.startswith("http://localhost")


@given(texts)
def test_a_name_is_one_part_of_a_url_or_refused(name: str) -> None:
    where = Callback("https://a.example/api/a2/scheduler?x=1")
    with suppress(InvalidName):
        url = trigger_url(where, name)
        assert (url, 6) == (normalise_url(url), url.count("/"))
        assert name == check_name("cron", name)


slots = st.integers(-5, 10**17).map(str) | st.sampled_from(["", " 1", "1\n", "\u0661", "9" * 5_000, "1_0"]) | texts


@given(st.none() | slots, st.none() | texts | st.sampled_from(["sha256=" + "0" * 64, "sha256=" + "G" * 64]), texts)
def test_nobody_signs_a_schedule_without_the_secret(slot: str | None, signature: str | None, task_id: str) -> None:
    assert ScheduleRefusal.UNAUTHORIZED is check_schedule_request("the secret", task_id, slot, signature)


@given(texts, texts, st.integers(0, 10**16 - 1))
def test_what_is_signed_is_that_slot_of_that_task_alone(secret: str, task_id: str, slot_ms: int) -> None:
    signature = sign_schedule(secret, task_id, slot_ms)
    request = check_schedule_request(secret, task_id, str(slot_ms), signature)
    assert not isinstance(request, ScheduleRefusal)
    assert (task_id, slot_ms) == (request.task_id, request.slot_ms)
    assert not verify_schedule(secret, task_id + "x", slot_ms, signature)
    assert not verify_schedule(secret, task_id, slot_ms + 1, signature)


@given(st.lists(st.tuples(st.sampled_from(["A", "a", "upstash-x", "host", "Content-Type"]) | texts, texts), max_size=4))
def test_headers_of_a_publish_are_refused_or_can_be_sent(pairs: list[tuple[str, str]]) -> None:
    with suppress(InvalidHeaders):
        for name, value in check_headers(pairs):
            assert name == name.lower().encode("ascii").decode()
            assert not {"\r", "\n", "\x00"} & set(value)
            value.encode("latin-1")


claims = st.builds(base64url, as_json(objects(exp=numbers)) | bodies)


@EXAMPLES
@given(
    st.builds(lambda head, claims, mac: f"{head}.{claims}.{mac}", texts, claims, texts)
    | st.sampled_from(TOKENS).map(lambda token: token.decode("latin-1"))
    | texts,
    st.integers(0, 2**53),
)
def test_a_platform_token_is_forwarded_only_while_it_lives(token: str, at_ms: int) -> None:
    expiry_ms = token_expiry_ms(token)
    if may_forward(token, at_ms):
        assert expiry_ms is not None
        assert expiry_ms > at_ms
        token.encode("latin-1")


@given(
    st.sampled_from(LENGTHS).map(lambda value: value.decode("latin-1")) | st.integers(0, 2_000).map(str),
    st.integers(1, 999),
)
def test_a_declared_length_is_believed_only_as_plain_digits(text: str, max_bytes: int) -> None:
    expected = text.isascii() and text.isdigit() and (len(text) > 4 or int(text) > max_bytes)
    assert expected == declared_too_large(text, max_bytes)


@given(st.lists(st.binary(max_size=9), max_size=9), st.integers(0, 40))
def test_a_bounded_body_is_all_of_it_or_too_large(chunks: list[bytes], max_bytes: int) -> None:
    body = BoundedBody(max_bytes)
    whole = b"".join(chunks)
    if len(whole) <= max_bytes:
        for chunk in chunks:
            body.feed(chunk)
        assert whole == body.read()
    else:
        fed = iter(chunks)
        with pytest.raises(TooLarge):
            all(body.feed(chunk) is None for chunk in fed)  # type: ignore[func-returns-value]
        assert b"" == body.read()


def test_a_message_has_no_second_meaning() -> None:
    """What a signature vouches for is the text; a second key of the same name is what every JSON reader takes."""
    twice = b'{"version":1,"kind":"drain","contract":"a","contract":"b","sessionId":"s","dueAt":0}'
    message = parse_message(twice)
    assert isinstance(message, Message)
    assert "b" == message.task.contract
