"""Signed webhooks of other senders: plain HMAC headers, and the Standard Webhooks form."""

import hmac
import sys
from base64 import b64encode
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook

from a2asgi import ConfigurationError, HmacVerifier, Refusal, StandardWebhooksVerifier, Verdict, Verifier
from tests.asgi.tokens import BODY, NOW_S, at

SECRET = "It's a Secret to Everybody"
HASH = hmac.digest(SECRET.encode(), BODY, "sha256")
GITHUB = b"X-Hub-Signature-256"
SHOPIFY = HmacVerifier(SECRET, header="X-Shopify-Hmac-Sha256", prefix="", encoding="base64")
WEBHOOK_SECRET = "whsec_" + b64encode(b"a secret of the tests").decode()
OLD_SECRET = "whsec_" + b64encode(b"the secret before it").decode()
JUDGE = StandardWebhooksVerifier(WEBHOOK_SECRET, clock=at())


def judged(verifier: Verifier, *headers: tuple[bytes, bytes], body: bytes = BODY) -> Refusal | None:
    return verifier.verify_request(headers, body, "https://example.com/hook").refusal


@pytest.mark.parametrize(
    ("text", "body", "expected"),
    [
        (b"sha256=" + HASH.hex().encode(), BODY, None),
        (b" sha256=" + HASH.hex().upper().encode(), BODY, None),
        (b"sha256=" + HASH.hex().encode(), BODY.strip(), Refusal.UNKNOWN_KEY),
        (b"sha256=" + b"0" * 64, BODY, Refusal.UNKNOWN_KEY),
        (HASH.hex().encode(), BODY, Refusal.MALFORMED),
        (b"sha1=" + HASH.hex().encode(), BODY, Refusal.MALFORMED),
        (b"sha256=" + HASH.hex().encode()[:-1], BODY, Refusal.MALFORMED),
        (b"sha256=" + b64encode(HASH), BODY, Refusal.MALFORMED),
        (b"sha256=\xff", BODY, Refusal.MALFORMED),
        (b"", BODY, Refusal.MALFORMED),
    ],
)
def test_an_hmac_header(text: bytes, body: bytes, expected: Refusal | None) -> None:
    """D1: over the exact bytes; as GitHub sends it."""
    assert expected is judged(HmacVerifier(SECRET), (GITHUB, text), body=body)


def test_an_hmac_header_of_another_sender() -> None:
    name = b"x-shopify-hmac-sha256"
    assert None is judged(SHOPIFY, (name, b64encode(HASH)))
    assert Refusal.MALFORMED is judged(SHOPIFY, (name, b64encode(HASH)[:-1]))
    assert Refusal.MALFORMED is judged(SHOPIFY, (name, HASH.hex().encode()))
    assert Refusal.UNSIGNED is judged(SHOPIFY, (GITHUB, b64encode(HASH)))
    assert Refusal.MALFORMED is judged(SHOPIFY, *[(name, b64encode(HASH))] * 2)


@given(st.binary(), st.binary(), st.sampled_from(["hex", "base64"]))
def test_whatever_an_hmac_header_holds_the_outcome_is_a_verdict(text: bytes, body: bytes, encoding: Any) -> None:
    assert judged(HmacVerifier(SECRET, encoding=encoding, prefix=""), (GITHUB, text), body=body)


def signed(secret: str = WEBHOOK_SECRET, *, age_s: int = 0, body: bytes = BODY) -> dict[bytes, bytes]:
    """The headers that the official package makes."""
    sent = datetime.fromtimestamp(NOW_S - age_s, UTC)
    signature = Webhook(secret).sign("msg_1", sent, body.decode())
    stamp = str(NOW_S - age_s).encode()
    return {b"Webhook-Id": b"msg_1", b"Webhook-Timestamp": stamp, b"Webhook-Signature": signature.encode()}


OLD = signed(OLD_SECRET)[b"Webhook-Signature"]
NEW = signed()[b"Webhook-Signature"]


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (signed(), None),
        (signed() | {b"Webhook-Signature": OLD + b" v1a,x " + NEW}, None),
        (signed(age_s=300), None),
        (signed(age_s=-300), None),
        (signed(age_s=301), Refusal.EXPIRED),
        (signed(age_s=-301), Refusal.NOT_YET_VALID),
        (signed(OLD_SECRET), Refusal.UNKNOWN_KEY),
        (signed(OLD_SECRET, age_s=999), Refusal.UNKNOWN_KEY),
        (signed() | {b"Webhook-Id": b"msg_2"}, Refusal.UNKNOWN_KEY),
        (signed() | {b"Webhook-Timestamp": str(NOW_S - 1).encode()}, Refusal.UNKNOWN_KEY),
        (signed() | {b"Webhook-Timestamp": b"nan"}, Refusal.MALFORMED),
        (signed() | {b"Webhook-Timestamp": b"9" * 999}, Refusal.MALFORMED),
        (signed() | {b"Webhook-Id": b""}, Refusal.MALFORMED),
        (signed() | {b"Webhook-Signature": b"\xff , v1"}, Refusal.UNKNOWN_KEY),
        ({b"Webhook-Signature": NEW}, Refusal.UNSIGNED),
        ({}, Refusal.UNSIGNED),
    ],
)
def test_a_standard_webhook(headers: dict[bytes, bytes], expected: Refusal | None) -> None:
    """D5: the window on both sides, and two signatures of which one is genuine."""
    assert expected is judged(JUDGE, *headers.items())


def test_a_standard_webhook_is_over_the_exact_bytes_and_named() -> None:
    headers = signed().items()
    assert Verdict(message_id="msg_1") == JUDGE.verify_request(headers, BODY, "")
    assert Refusal.UNKNOWN_KEY is judged(JUDGE, *headers, body=BODY.strip())
    assert Refusal.MALFORMED is judged(JUDGE, *headers, body=b"\xff")
    assert Refusal.MALFORMED is judged(JUDGE, *headers, *headers)


@given(st.binary(), st.binary(), st.binary() | st.just(b"1700000000"), st.binary())
def test_whatever_a_webhook_holds_the_outcome_is_a_verdict(one: bytes, id_: bytes, stamp: bytes, body: bytes) -> None:
    headers = {b"webhook-signature": one, b"webhook-id": id_, b"webhook-timestamp": stamp}
    assert judged(JUDGE, *headers.items(), body=body)


@pytest.mark.parametrize("make", [HmacVerifier, StandardWebhooksVerifier])
def test_an_empty_secret_is_refused(make: Any) -> None:
    for secret in ("", None, b"", "\ud800", "secret\n"):
        with pytest.raises(ConfigurationError, match="non-empty, printable text"):
            make(secret)


@pytest.mark.parametrize("secret", ["whsec_", "whsec_hunter2!é", "whsec_a"])
def test_a_secret_that_is_none_is_refused_and_not_shown(secret: str) -> None:
    with pytest.raises(ConfigurationError, match="secret: expected") as caught:
        StandardWebhooksVerifier(secret)
    assert ("hunter2" in str(caught.value), caught.value.__cause__) == (False, None)


def test_an_unknown_encoding_is_refused() -> None:
    encoding: Any = "base32"
    with pytest.raises(ConfigurationError, match="got 'base32'"):
        HmacVerifier(SECRET, encoding=encoding)


@pytest.mark.parametrize("tolerance_s", [-1, float("nan"), True])
def test_a_bad_tolerance_is_refused(tolerance_s: Any) -> None:
    with pytest.raises(ConfigurationError, match="tolerance_s: expected whole seconds"):
        StandardWebhooksVerifier(WEBHOOK_SECRET, tolerance_s=tolerance_s)


def test_no_secret_is_shown() -> None:
    assert "HmacVerifier(header='x-hub-signature-256', prefix='sha256=', encoding='hex')" == repr(HmacVerifier(SECRET))
    assert "StandardWebhooksVerifier(tolerance_s=300)" == repr(JUDGE)


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "standardwebhooks", None)
    with pytest.raises(ConfigurationError, match=r"a2\[webhooks\]"):
        StandardWebhooksVerifier(WEBHOOK_SECRET)
