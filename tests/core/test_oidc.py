"""A platform's token is forwarded while it lives long enough, and is looked at no further."""

from base64 import urlsafe_b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2core.oidc import MAX_CLAIMS_DEPTH, MAX_EXPIRY_S, is_header_value, may_forward, token_expiry_ms


def token(claims: str | bytes, header: str = "h", signature: str = "s") -> str:
    data = claims.encode() if isinstance(claims, str) else claims
    return f"{header}.{urlsafe_b64encode(data).decode().rstrip('=')}.{signature}"


@pytest.mark.parametrize(
    ("claims", "expiry_ms"),
    [
        ('{"exp":1}', 1_000),
        ('{"exp":1700000000.0}', 1_700_000_000_000),
        ('{"exp":17e8}', 1_700_000_000_000),
        (f'{{"exp":{MAX_EXPIRY_S}}}', MAX_EXPIRY_S * 1_000),
        ('{"exp":1,"exp":2}', 2_000),
        ('{"exp":1,"nbf":9999999999}', 1_000),
        (b'\xef\xbb\xbf{"exp":1}', 1_000),
        (b'{"s":"\xff","exp":1}', 1_000),
        ('{"exp":1,"a":' + "[" * (MAX_CLAIMS_DEPTH - 1) + "]" * (MAX_CLAIMS_DEPTH - 1) + "}", 1_000),
    ],
    ids=lambda part: ascii(part)[:30],
)
def test_a_token_says_when_it_expires(claims: str | bytes, expiry_ms: int) -> None:
    """`exp` is a positive integer in seconds, however its number is written."""
    assert expiry_ms == token_expiry_ms(token(claims))


@pytest.mark.parametrize(
    "claims",
    [
        "{}",
        '{"exp":0}',
        '{"exp":-1}',
        '{"exp":1.5}',
        '{"exp":true}',
        '{"exp":"1"}',
        '{"exp":null}',
        '{"exp":[1]}',
        f'{{"exp":{MAX_EXPIRY_S + 1}}}',
        '{"exp":1e400}',
        '{"exp":NaN}',
        '{"exp":1}x',
        '[{"exp":1}]',
        '"exp"',
        "",
        b'\xef\xbb\xbf\xef\xbb\xbf{"exp":1}',
        b'\xff{"exp":1}',
        '{"exp":1,"a":' + "[" * MAX_CLAIMS_DEPTH + "]" * MAX_CLAIMS_DEPTH + "}",
        "[" * 100_000,
        '{"exp":' + "1" * 5_000 + "}",
    ],
    ids=lambda claims: ascii(claims)[:30],
)
def test_claims_without_an_expiry_have_none(claims: str | bytes) -> None:
    """What is no JSON object with an integer `exp` in range never expires, so it is not forwarded."""
    assert None is token_expiry_ms(token(claims))


@pytest.mark.parametrize(
    "text",
    ["", ".", "..", "...", "a.b", "a.b.c.d", "h.e30=.s", "h.e3 0.s", "h.e30\n.s", "h.e+0.s", "h.A.s", "h.\uff450.s"],
    ids=ascii,
)
def test_what_is_no_token_has_no_expiry(text: str) -> None:
    """A token is three parts, the middle one base64url without padding."""
    assert None is token_expiry_ms(text)


def test_neither_header_nor_signature_is_looked_at() -> None:
    """The token is passed on, not verified."""
    assert 1_000 == token_expiry_ms(token('{"exp":1}', "", "")) == token_expiry_ms(token('{"exp":1}', "日本", "\x00"))


@given(st.binary(max_size=40) | st.text(max_size=40))
def test_no_token_raises(claims: bytes | str) -> None:
    """Whatever comes as a token, it has an expiry or none."""
    token_expiry_ms(token(claims) if isinstance(claims, bytes) else claims)


def test_a_token_lives_a_minute_past_the_first_delivery() -> None:
    """Exactly a minute is enough; a millisecond less is not."""
    assert may_forward(token('{"exp":100}'), 40_000)
    assert not may_forward(token('{"exp":100}'), 40_001)
    assert not may_forward("no token", 0)


@pytest.mark.parametrize("part", ["a\nb", "a\rb", "a\x00b", "日本"], ids=ascii)
def test_a_token_that_is_no_header_value_stays(part: str) -> None:
    """A token that HTTP could not carry is not forwarded, however long it lives."""
    assert not is_header_value(part)
    assert not may_forward(token('{"exp":100}', part), 0)
    assert not may_forward(token('{"exp":100}', "h", part), 0)


def test_latin_1_is_a_header_value() -> None:
    """HTTP carries every character up to U+00FF but NUL, CR and LF."""
    allowed = "".join(map(chr, range(0x100))).translate({0: None, 10: None, 13: None})
    assert is_header_value(allowed)
    assert is_header_value("")
    assert not is_header_value("\u0100")
