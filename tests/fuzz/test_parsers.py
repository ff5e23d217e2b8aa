"""The parsers of a2asgi, whatever the texts are: a verdict, a value, or the documented error, and nothing else."""

from contextlib import suppress
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from a2asgi import (
    Crontab,
    HmacVerifier,
    InvalidPayload,
    InvalidSchedule,
    InvalidTime,
    QStashVerifier,
    Refusal,
    StandardWebhooksVerifier,
)
from a2asgi.cron_auth import CronSecrets
from a2asgi.guards import request_url
from a2asgi.payloads import payload_type
from a2asgi.times import MAX_MS, duration_ms
from tests.asgi.support import Placed
from tests.asgi.tokens import BODY, CURRENT, NEXT, PLAIN, URL, at, claims, signed
from tests.fuzz.hostile import as_json, bodies, damaged, header_values, headers, objects, scope_of, texts, values

EXAMPLES = settings(max_examples=300)
QSTASH = QStashVerifier(CURRENT, NEXT, clock=at(), production=False)
HMAC = HmacVerifier("the secret", "x-hub-signature-256")
BASE64 = HmacVerifier("the secret", "x-hub-signature-256", "", "base64")
STANDARD = StandardWebhooksVerifier("whsec_c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0", clock=at())
SECRETS = CronSecrets("the secret", "the bearer's secret")

some_claims = objects(**{name: st.just(value) for name, value in claims().items()})
JSON_PAYLOAD = payload_type(dict[str, int])
PLACED = payload_type(Placed)


@EXAMPLES
@given(headers, bodies, texts)
def test_nobody_forges_a_request(items: list[tuple[bytes, bytes]], body: bytes, url: str) -> None:
    for verifier in (QSTASH, HMAC, BASE64, STANDARD):
        verdict = verifier.verify_request(items, body, url)
        assert not verdict.accepted
        assert verdict.cause.isprintable()
        assert len(verdict.cause) < 1_500


@EXAMPLES
@given(st.none() | texts | header_values.map(lambda value: value.decode("latin-1")), bodies, st.none() | texts)
def test_nobody_forges_a_token(token: str | None, body: bytes, region: str | None) -> None:
    assert not QSTASH.verify(token, body, URL, region).accepted


@EXAMPLES
@given(damaged(st.just(PLAIN)) | as_json(objects(alg=st.just("HS256"), crit=values)), as_json(some_claims) | bodies)
def test_what_a_key_signed_is_judged_by_its_claims(header: bytes, payload: bytes) -> None:
    """Also the one who has the key gets a verdict, whatever the token holds."""
    verdict = QSTASH.verify(signed(header, payload), BODY, URL)
    assert verdict.accepted or verdict.refusal in set(Refusal)


@given(
    st.binary(max_size=40), st.binary(max_size=40) | st.sampled_from([b"0", b"1700000000", b"9" * 11]), header_values
)
def test_nobody_forges_a_standard_webhook(message_id: bytes, timestamp: bytes, signatures: bytes) -> None:
    items = [(b"webhook-id", message_id), (b"webhook-timestamp", timestamp), (b"webhook-signature", signatures)]
    assert not STANDARD.verify_request(items, BODY, URL).accepted


@given(st.none() | texts, st.none() | texts, st.none() | st.binary(), texts)
def test_nobody_triggers_a_cron(slot: str | None, signature: str | None, bearer: bytes | None, task_id: str) -> None:
    assert SECRETS.signed(task_id, slot, signature) is None
    assert not SECRETS.bears(bearer)
    assert not SECRETS.bears(b"Bearer ")


@given(st.from_regex(r"\A[0-9]{0,12}(ms|s|m|h|d|w|)\Z") | texts)
def test_a_duration_is_refused_or_of_this_calendar(text: str) -> None:
    with suppress(InvalidTime):
        assert 0 <= duration_ms(text) <= MAX_MS


FIELDS = [
    "*",
    "*/5",
    "0",
    "59",
    "1-5",
    "5-1",
    "0-59/7",
    "mon",
    "sun-sat",
    "31",
    "2",
    "1,2,3",
    "L",
    "#",
    "?",
    "*/0",
    "7-7",
    "-",
]
fields = st.lists(st.sampled_from(FIELDS) | st.text("0123456789*/,-LW# ", max_size=6), min_size=4, max_size=6)
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Africa/Casablanca", "../etc/passwd", "/etc/passwd", "posix/UTC"]


@EXAMPLES
@given(fields.map(" ".join) | texts, st.sampled_from(ZONES) | texts, st.integers(0, 4_102_444_800_000))
def test_a_cron_expression_is_refused_or_has_slots(expression: str, tz: str, after_ms: int) -> None:
    with suppress(InvalidSchedule):
        crontab = Crontab(expression, tz)
        slot_ms = crontab.next_ms(after_ms)
        if slot_ms is not None:
            assert slot_ms > after_ms
            assert crontab.is_slot(slot_ms)
            assert slot_ms == crontab.latest_ms(after_ms, slot_ms)


@EXAMPLES
@given(as_json(objects(sku=texts)) | bodies.map(lambda body: b'{"sku":"' + body.hex().encode() + b'"}'))
def test_a_stored_payload_is_its_type_or_is_refused(text: bytes) -> None:
    for kind in (PLACED, JSON_PAYLOAD):
        with suppress(InvalidPayload):
            payload: Any = kind.decode(text.decode())
            assert payload == kind.decode(kind.encode(payload))


@given(texts, st.none() | st.binary(max_size=40), st.binary(max_size=40), texts, headers)
def test_a_url_is_made_of_any_request(
    path: str, raw_path: bytes | None, query: bytes, root_path: str, items: list[tuple[bytes, bytes]]
) -> None:
    printable = "".join(character for character in path + root_path if not 0xD800 <= ord(character) < 0xE000)
    scope = scope_of(printable, "POST", items, raw_path=raw_path, query_string=query, root_path=printable)
    assert request_url(scope).startswith("http://")
    assert request_url(scope, "https://a.example").startswith("https://a.example")
