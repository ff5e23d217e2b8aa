"""QStash's signatures: every refusal has its true cause, nothing raises, and no key is ever shown.

V numbers are public bug reports around signed callbacks; each is a row here or in test_guards.
"""

import itertools
import json
import logging
import pickle
import sys
from base64 import urlsafe_b64encode
from dataclasses import FrozenInstanceError
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from qstash import Receiver
from qstash.errors import SignatureError

from a2asgi import ConfigurationError, QStashVerifier, Refusal, Verdict
from a2asgi.clock import SystemClock
from a2asgi.development import DEVELOPMENT_KEYS
from a2asgi.tokens import MAX_TOKEN_CHARS
from a2core import InvalidUrl
from tests.asgi.tokens import (
    ABSENT,
    BODY,
    CURRENT,
    NEXT,
    NOW_S,
    PLAIN,
    URL,
    at,
    base64url,
    claims,
    signed,
    token,
)

SECRET_QUERY = "x-vercel-protection-bypass"
EU = ("sig_eu_current", "sig_eu_next")
VECTORS = json.loads(Path("tests/vectors/signature.json").read_text())["cases"]
OFFICIAL = [
    case
    for case in VECTORS
    if (case["recommended"], case["py_result"]["result"]) == ("accept", "accept")
    and case.get("signature")
    and "body" in case
    and not case["clock_tolerance"]
    and case["current_signing_key"]
]
US = ("sig_us_current", "sig_us_next")


def verifier(now_s: float = NOW_S, **options: Any) -> QStashVerifier:
    return QStashVerifier(CURRENT, NEXT, clock=at(now_s), **options)


def refused(verdict: Verdict) -> tuple[Refusal | None, str]:
    return verdict.refusal, verdict.cause


# ── what is accepted, and the true cause of what is not ──────────────────────────────────


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(token(), id="current-key"),
        pytest.param(token(key=NEXT), id="V27-next-key"),
        pytest.param(token(iat=NOW_S + 1), id="V26-iat-1s-ahead"),
        pytest.param(token(iat=NOW_S + 30), id="V26-iat-30s-ahead"),
        pytest.param(token(iat=ABSENT), id="no-iat"),
        pytest.param(token(nbf=NOW_S), id="V26-nbf-now"),
        pytest.param(token(exp=NOW_S + 1), id="one-second-left"),
        pytest.param(token(jti=7), id="jti-number"),
        pytest.param(token(body=urlsafe_b64encode(sha256(BODY).digest()).decode()), id="padded-hash"),
        pytest.param(signed(PLAIN, f" {json.dumps(claims())}\n".encode()), id="white-space-around"),
        pytest.param(signed(PLAIN, f"{json.dumps(claims())}\t".encode()), id="white-space-behind"),
        pytest.param(signed(b'{"alg":"HS256","kid":"unknown"}', str(claims()).replace("'", '"').encode()), id="D5-kid"),
    ],
)
def test_it_is_accepted(text: str) -> None:
    verdict = verifier().verify(text, BODY, URL)
    assert (True, None, "") == (verdict.accepted, *refused(verdict))


@pytest.mark.parametrize(
    ("text", "refusal", "cause"),
    [
        (None, Refusal.UNSIGNED, "no token"),
        ("", Refusal.UNSIGNED, "no token"),
        (" ", Refusal.MALFORMED, "three parts"),
        ("a.b", Refusal.MALFORMED, "three parts"),
        (f"{token()}, {token()}", Refusal.MALFORMED, "three parts"),
        (f"Bearer {token()}", Refusal.MALFORMED, "three parts"),
        (f"{token()}=", Refusal.MALFORMED, "without padding"),
        (f"{token()}\n", Refusal.MALFORMED, "three parts"),
        ("é.é.é", Refusal.MALFORMED, "three parts"),
        ("\ud800.a.a", Refusal.MALFORMED, "three parts"),
        ("a.b.c", Refusal.MALFORMED, "no base64url"),
        ("..", Refusal.MALFORMED, "header is no flat JSON object"),
        ("W10.e30.", Refusal.MALFORMED, "header is no flat JSON object"),
        ("." * 2**20, Refusal.MALFORMED, f"a token of 1048576 characters, more than {MAX_TOKEN_CHARS}"),
        (signed(PLAIN, f"{json.dumps(claims())}x".encode()), Refusal.MALFORMED, "claims is no flat JSON object"),
        (signed(b'{"alg":"none"}', b"{}"), Refusal.WRONG_ALGORITHM, "expected 'HS256', got 'none'"),
        (signed(b'{"alg":"HS512"}', b"{}", digest="sha512"), Refusal.WRONG_ALGORITHM, "got 'HS512'"),
        (signed(b'{"alg":"hs256"}', b"{}"), Refusal.WRONG_ALGORITHM, "got 'hs256'"),
        (signed(b"{}", b"{}"), Refusal.WRONG_ALGORITHM, "got None"),
        (signed(b'{"alg":"HS256","crit":["b64"]}', b"{}"), Refusal.MALFORMED, "critical extensions ['b64']"),
        (token(key="sig_forged"), Refusal.UNKNOWN_KEY, "no configured key"),
        (token(key="sig_forged", exp=0), Refusal.UNKNOWN_KEY, "no configured key"),
        (token()[:-4], Refusal.UNKNOWN_KEY, "no configured key"),
        (signed(PLAIN, b"[]"), Refusal.MALFORMED, "claims is no flat JSON object"),
        (signed(PLAIN, b"[" * 6_000), Refusal.MALFORMED, "claims is no flat JSON object"),
        (signed(PLAIN, b'{"exp":NaN}'), Refusal.MALFORMED, "claims is no flat JSON object"),
        (signed(PLAIN, b'\xef\xbb\xbf{"iss":"Upstash"}'), Refusal.MALFORMED, "claims is no flat JSON object"),
        (token(iss="Upstash "), Refusal.WRONG_ISSUER, "expected 'Upstash', got 'Upstash '"),
        (token(exp=NOW_S), Refusal.EXPIRED, "expired 0 s ago"),
        (token(exp=NOW_S - 60), Refusal.EXPIRED, "expired 60 s ago"),
        (token(exp=ABSENT), Refusal.MALFORMED, "claim exp: expected a number of seconds, got None"),
        (token(exp=True), Refusal.MALFORMED, "claim exp: expected a number of seconds, got True"),
        (token(exp=float("1e400")), Refusal.MALFORMED, "claims is no flat JSON object"),
        (signed(PLAIN, b'{"iss":"Upstash","exp":1e400}'), Refusal.MALFORMED, "got inf"),
        (token(exp=10**400), Refusal.MALFORMED, "claim exp: expected a number of seconds, got 1000"),
        (token(nbf=ABSENT), Refusal.MALFORMED, "claim nbf"),
        (token(nbf=NOW_S + 9), Refusal.NOT_YET_VALID, "valid in 9 s"),
        (token(iat="now"), Refusal.MALFORMED, "claim iat"),
        (token(sub=ABSENT), Refusal.MALFORMED, "claim sub"),
        (token(sub=""), Refusal.WRONG_SUBJECT, "signed for ''"),
        (token(b"another"), Refusal.WRONG_BODY, "parsed and written anew"),
        (token(body=ABSENT), Refusal.MALFORMED, "claim body"),
        (token(body=""), Refusal.WRONG_BODY, ""),
        (token(body="\ud800é"), Refusal.WRONG_BODY, ""),
    ],
    ids=itertools.count(),
)
def test_it_is_refused_for_its_true_cause(text: str | None, refusal: Refusal, cause: str) -> None:
    """V7, V21, V28, D5: never an exception, never the second key's error in place of the first."""
    verdict = verifier().verify(text, BODY, URL)
    assert (False, refusal) == (verdict.accepted, verdict.refusal)
    assert cause in verdict.cause


@pytest.mark.parametrize(
    ("sub", "url", "said"),
    [
        ("https://example.com/foo", "http://example.com/foo", "http://example.com/foo"),  # V1, V2
        ("https://backend.example.com/w", "http://internal:3000/w", "http://internal:3000/w"),  # V2
        (f"{URL}?job=a", URL, f"'{URL}?job=***'"),  # V2
        (f"{URL}?{SECRET_QUERY}=hunter2", URL, f"{SECRET_QUERY}=***"),  # V4
        ("https://e.com/x", "https://e.com/x/", "https://e.com/x/"),  # V5
        (URL, URL.upper(), "HTTPS://EXAMPLE.COM"),  # D2
        (URL, "https://example.com:443/api/a2/scheduler", ":443"),
        ("https://u:hunter2@example.com/", "https://example.com/", "https://***@example.com/"),
        (f"{URL}?a=hunter2", f"{URL}?a=2", "what is not shown"),
    ],
)
def test_a_wrong_subject_names_both_urls_and_no_secret(sub: str, url: str, said: str) -> None:
    verdict = verifier().verify(token(sub=sub), BODY, url)
    assert Refusal.WRONG_SUBJECT is verdict.refusal
    assert said in verdict.cause
    assert "signed for" in verdict.cause
    assert "delivered to" in verdict.cause
    assert "hunter2" not in verdict.cause


def test_a_configured_url_is_what_counts() -> None:
    """V1, D2: the public URL is told, not guessed."""
    public = verifier(url=URL)
    assert public.verify(token(), BODY, "http://10.0.0.3:8000/wake").accepted
    assert (
        Refusal.WRONG_SUBJECT
        is public.verify(token(sub="http://10.0.0.3:8000/"), BODY, "http://10.0.0.3:8000/").refusal
    )
    assert verifier().verify(token(), BODY, None).accepted


@pytest.mark.parametrize(
    ("sent", "came"),
    [
        (b'{"a": 1}', b'{"a":1}'),
        (b'{"x":1.0}', b'{"x":1}'),
        (rb'{"k":"\u00e9"}', '{"k":"é"}'.encode()),
        (b'{"a":1,"a":2}', b'{"a":2}'),
        (b'{"a":1}\n', b'{"a":1}'),
        (b"\xef\xbb\xbf{}", b"{}"),
        (b"\xff", b"\xef\xbf\xbd"),
        (b"\x1f\x8b\x08", b""),
    ],
)
def test_the_exact_bytes_are_what_is_signed(sent: bytes, came: bytes) -> None:
    """V8, V9, D1: what was parsed and written anew is another body; a byte order mark or gzip is as it came."""
    text = token(sent)
    assert verifier().verify(text, sent, URL).accepted
    assert Refusal.WRONG_BODY is verifier().verify(text, came, URL).refusal


@pytest.mark.parametrize("form", [bytes, bytearray, memoryview])
def test_any_form_of_bytes_is_a_body(form: Any) -> None:
    """V6: and text, whose bytes nobody knows any more, is refused as that."""
    assert verifier().verify(token(), form(BODY), URL).accepted
    text: Any = BODY.decode()
    assert (Refusal.WRONG_BODY, "expected the body's raw bytes, got str") == refused(
        verifier().verify(token(), text, URL)
    )


@pytest.mark.parametrize(
    ("now_s", "leeway_s", "expected"),
    [
        (NOW_S, 60, None),
        (NOW_S + 299.999, 0, None),
        (NOW_S + 300, 0, Refusal.EXPIRED),
        (NOW_S + 309, 10, None),
        (NOW_S + 310, 10, Refusal.EXPIRED),
        (NOW_S - 50, 0, None),
        (NOW_S - 51, 0, Refusal.NOT_YET_VALID),
        (NOW_S - 60, 10, None),
        (NOW_S - 61, 10, Refusal.NOT_YET_VALID),
    ],
)
def test_leeway_widens_both_ends(now_s: float, leeway_s: float, expected: Refusal | None) -> None:
    """V25."""
    text = token(nbf=NOW_S - 50)
    assert expected is verifier(now_s, leeway_s=leeway_s).verify(text, BODY, URL).refusal


def test_rotation() -> None:
    """V27, D5: either key, in either place; and neither once both were replaced."""
    swapped = QStashVerifier(NEXT, CURRENT, clock=at())
    assert all(
        one.verify(token(key=key), BODY, URL).accepted for one in (verifier(), swapped) for key in (CURRENT, NEXT)
    )
    replaced = QStashVerifier("sig_3", "sig_4", clock=at())
    assert Refusal.UNKNOWN_KEY is replaced.verify(token(), BODY, URL).refusal


def test_the_same_token_is_accepted_twice_and_named() -> None:
    """D5: a replay is for the app to notice, by the id that the signature vouches for."""
    assert [Verdict(message_id="jwt_1")] * 2 == [verifier().verify(token(), BODY, URL) for _ in range(2)]
    assert None is verifier().verify(token(jti=ABSENT), BODY, URL).message_id


@pytest.mark.parametrize(
    ("key", "region", "accepted"),
    [
        (US[0], "US-EAST-1", True),
        (US[1], "us_east_1", True),
        (CURRENT, "us-east-1", False),
        (US[0], "eu-central-1", False),
        (US[0], None, False),
        (CURRENT, "", True),
        (CURRENT, "mars", True),
    ],
)
def test_a_region_has_its_own_keys(key: str, region: str | None, *, accepted: bool) -> None:
    regional = verifier(regions={"us-east-1": US, "EU_CENTRAL_1": EU})
    verdict = regional.verify(token(key=key), BODY, URL, region)
    assert accepted is verdict.accepted
    assert accepted or Refusal.UNKNOWN_KEY is verdict.refusal


def test_headers_are_read_as_http_has_them() -> None:
    """V7: any case, white space around, missing, empty, twice; and a signature among 1 MiB of header."""
    name, url = b"Upstash-Signature", URL
    one = (name, f" {token()}\t".encode())
    judge = verifier(regions={"us-east-1": US})
    assert judge.verify_request([(b"host", b"x"), one], BODY, url).accepted
    regional = [(name, token(key=US[0]).encode()), (b"Upstash-Region", b"US-EAST-1")]
    assert judge.verify_request(regional, BODY, url).accepted
    for headers, refusal in (
        ([], Refusal.UNSIGNED),
        ([(name, b"")], Refusal.UNSIGNED),
        ([one, one], Refusal.MALFORMED),
        ([(name, b"\xff" * 2**20)], Refusal.MALFORMED),
    ):
        assert refusal is judge.verify_request(headers, BODY, url).refusal


# ── nothing raises, nothing is told ──────────────────────────────────────────────────────

TEXTS = st.text() | st.text("ey.J0-_=") | st.builds("{}.{}.{}".format, st.text(), st.text(), st.text())
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda inner: st.lists(inner, max_size=3)
)


@given(TEXTS, st.binary(max_size=20), st.none() | st.text(), st.none() | st.text())
def test_whatever_comes_the_outcome_is_a_verdict(
    signature: str, body: bytes, url: str | None, region: str | None
) -> None:
    assert not verifier(regions={"US": US}).verify(signature, body, url, region).accepted


@given(st.binary(max_size=60), st.binary(max_size=60), st.binary(max_size=20))
def test_whatever_is_signed_the_outcome_is_a_verdict(header: bytes, payload: bytes, body: bytes) -> None:
    assert not verifier().verify(signed(header, payload), body, URL).accepted


@given(st.sampled_from(["iss", "sub", "exp", "nbf", "iat", "jti", "body"]), JSON_VALUES)
def test_whatever_is_claimed_the_outcome_is_a_verdict(name: str, value: Any) -> None:
    verdict = verifier().verify(token(**{name: value}), BODY, URL)
    assert verdict.accepted or verdict.cause


@given(
    st.text(max_size=40),
    st.sampled_from([CURRENT, NEXT, CURRENT[::-1]]),
    st.integers(0, 290) | st.integers(310, 999),
    st.sampled_from([URL, f"{URL}/"]),
)
def test_the_official_receiver_agrees(body: str, key: str, age_s: int, sub: str) -> None:
    """What QStash sends is judged alike, on real time: the official receiver has no other."""
    sent_s = SystemClock().now_ms() // 1_000 - age_s
    text = token(body.encode(), key, sub=sub, iat=sent_s, exp=sent_s + 300)
    try:
        Receiver(CURRENT, NEXT).verify(signature=text, body=body, url=URL)
    except SignatureError:
        accepted = False
    else:
        accepted = True
    assert accepted is QStashVerifier(CURRENT, NEXT, url=URL).verify(text, body.encode(), None).accepted


@pytest.mark.parametrize("case", OFFICIAL, ids=lambda case: case["name"])
def test_the_official_receiver_accepted_what_we_accept(case: dict[str, Any]) -> None:
    """Of the vectors that both accept, ours is asked as the official one was."""
    judge = QStashVerifier(case["current_signing_key"], case["next_signing_key"], clock=at(case["clock"]))
    verdict = judge.verify(case["signature"], case["body"].encode(), case["url"])
    assert (True, None, "") == (verdict.accepted, *refused(verdict))


def test_no_key_is_shown() -> None:
    judge = verifier(url=f"{URL}?k=hunter2", regions={"us-east-1": US})
    shown = repr(judge) + str(judge) + repr(judge.verify(token(key="sig_x"), BODY, URL))
    assert (
        "QStashVerifier(url='https://example.com/api/a2/scheduler?k=***', regions=['US_EAST_1'], leeway_s=0)" in shown
    )
    assert not [secret for secret in (CURRENT, NEXT, *US, "hunter2") if secret in shown]


def test_it_is_a_value() -> None:
    judge = verifier()
    with pytest.raises(FrozenInstanceError):
        judge.leeway_s = 60  # type: ignore[misc]
    assert judge == verifier() == pickle.loads(pickle.dumps(judge))  # noqa: S301 - our own
    assert pickle.loads(pickle.dumps(judge)).verify(token(), BODY, URL).accepted  # noqa: S301 - our own


# ── configuration ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"current_key": None, "next_key": None}, "current_key: expected a signing key"),
        ({"current_key": ""}, "current_key: expected a signing key"),
        ({"next_key": ""}, "next_key: expected a signing key"),
        ({"next_key": None}, "next_key: expected a signing key"),
        ({"next_key": " sig_x\n"}, "next_key: expected a signing key"),
        ({"next_key": '{"kty":"oct","k":"c2VjcmV0"}'}, "next_key: expected QStash's signing key, got what is none"),
        ({"next_key": "\ud800"}, "next_key: expected QStash's signing key, got what is none"),
        ({"regions": {"us-east-1": (US[0], "")}}, "next_key of US_EAST_1: expected a signing key"),
        ({"leeway_s": -1}, "leeway_s: expected seconds from 0"),
        ({"leeway_s": float("nan")}, "leeway_s"),
        ({"leeway_s": 10**400}, "leeway_s"),
        ({"leeway_s": "10s"}, "leeway_s"),
        ({"leeway_s": True}, "leeway_s"),
        ({"next_key": DEVELOPMENT_KEYS[0], "production": True}, "next_key: this is the development server's key"),
    ],
)
def test_a_bad_configuration_is_refused_when_it_is_made(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        QStashVerifier(**{"current_key": CURRENT, "next_key": NEXT, **options})
    assert said in str(caught.value)
    assert not {CURRENT, "c2VjcmV0", DEVELOPMENT_KEYS[0]} & {*str(caught.value).split()}
    assert caught.value.__cause__ is None


def test_a_url_that_could_never_verify_is_refused() -> None:
    with pytest.raises(InvalidUrl):
        QStashVerifier(CURRENT, NEXT, url=f"{URL}#top")


@pytest.mark.parametrize("variable", [("A2_ENV", "production"), ("VERCEL", "1")])
def test_published_keys_are_refused_in_production(monkeypatch: pytest.MonkeyPatch, variable: tuple[str, str]) -> None:
    """V31: whatever development variable was left set."""
    assert QStashVerifier(*DEVELOPMENT_KEYS).production is None
    with pytest.raises(ConfigurationError, match="QSTASH_CURRENT_SIGNING_KEY"):
        QStashVerifier.from_environment({"QSTASH_DEV": "true", **dict([variable])})
    monkeypatch.setenv(*variable)
    with pytest.raises(ConfigurationError, match="which anyone can sign with"):
        QStashVerifier(*DEVELOPMENT_KEYS)


PAIR = {"QSTASH_CURRENT_SIGNING_KEY": CURRENT, "QSTASH_NEXT_SIGNING_KEY": NEXT}
US_PAIR = {"US_EAST_1_QSTASH_CURRENT_SIGNING_KEY": US[0], "US_EAST_1_QSTASH_NEXT_SIGNING_KEY": US[1]}
EU_HALF = {"EU_CENTRAL_1_QSTASH_CURRENT_SIGNING_KEY": EU[0]}


@pytest.mark.parametrize(
    ("environment", "key", "region", "accepted"),
    [
        (PAIR, CURRENT, None, True),
        (PAIR, NEXT, "US-EAST-1", True),
        (PAIR | US_PAIR, US[0], "US-EAST-1", False),
        (PAIR | US_PAIR | {"QSTASH_REGION": "mars"}, US[0], "US-EAST-1", False),
        (PAIR | US_PAIR | {"QSTASH_REGION": "eu-central-1"}, US[0], "US-EAST-1", True),
        (US_PAIR | {"QSTASH_REGION": "US_EAST_1"}, US[1], "US-EAST-1", True),
        (US_PAIR | {"QSTASH_REGION": "US_EAST_1"}, US[1], None, False),
        (PAIR | EU_HALF | {"QSTASH_REGION": "US_EAST_1"}, CURRENT, "EU-CENTRAL-1", True),
        ({"QSTASH_DEV": "1"}, DEVELOPMENT_KEYS[1], None, True),
        (PAIR | {"QSTASH_DEV": "1"}, DEVELOPMENT_KEYS[0], None, False),
    ],
)
def test_the_environment_names_the_keys(
    environment: dict[str, str], key: str, region: str | None, *, accepted: bool
) -> None:
    judge = QStashVerifier.from_environment(environment, url=URL, leeway_s=1, clock=at())
    assert accepted is judge.verify(token(key=key), BODY, None, region).accepted


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"QSTASH_CURRENT_SIGNING_KEY": CURRENT},
        {"QSTASH_CURRENT_SIGNING_KEY": CURRENT, "QSTASH_NEXT_SIGNING_KEY": ""},
        {"QSTASH_CURRENT_SIGNING_KEY": CURRENT, "QSTASH_DEV": "1"},
        {"QSTASH_DEV": "0"},
        {"QSTASH_DEV": "yes"},
        US_PAIR,
    ],
)
def test_a_missing_key_is_named(environment: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="QSTASH_"):
        QStashVerifier.from_environment(environment)


def test_half_a_regional_pair_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    QStashVerifier.from_environment(PAIR | EU_HALF | {"QSTASH_REGION": "US_EAST_1"})
    assert ["EU_CENTRAL_1_QSTASH_..._SIGNING_KEY: one key of two is set, so neither is used"] == caplog.messages


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jwt.algorithms", None)
    with pytest.raises(ConfigurationError, match=r"a2\[qstash\]"):
        verifier()


def test_claims_may_hold_numbers_of_any_length() -> None:
    text = b'{"x":' + b"9" * 5_000 + b"," + str(claims()).replace("'", '"').encode()[1:]
    assert verifier().verify(signed(PLAIN, text), BODY, URL).accepted
    assert base64url(b"\xff") == "_w"
