"""Ids and jitter are hashes of what they name, so racing duplicates compute the same."""

import json
from collections import Counter
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2core import derive_id, produced_event_id, timer_event_id, timer_id
from a2core.ids import make_encoder, spread

URL = "https://app.example.com/api/a2/scheduler"


def hashed(text: str) -> str:
    return "a2_" + sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    ("session_id", "expected"),
    [
        ("sess-1", "a2_ac63e1c1d3a93afa5d3fc16ca2238a72883347ccb809d9ff081d759173f3c0a1"),
        ("\x00", "a2_219cfb85cadd081802258a46c90696f42f229b8db57310708e3c06dfc4dbb751"),
        ("\b\t\n\f\r", "a2_efd6c06747d5ee694addf68ff84695152421f234eeb114a8a9c6b310ef40d07a"),
        ("\v\x1b", "a2_0c1e4285295a3545d3c7e26fb5fbe3223afec4dac6575d3f096310cd90f0cabe"),
        ("\x7f\x80\x9f", "a2_13c1f0805c86f17258177eb0d3bec910b1781975c759bc2895e3ce862c518c8e"),
        ("\\u0041", "a2_44260158c5b7d9f5db3dc44b19fa3b7bc78ce0c2216cbdaee66541705f9def5e"),
        ("\U0001f600", "a2_c9d9cc0bd7eef4f799feb66895ee23e3710f116f74dbc943f33a9848cd8fb5f0"),
        pytest.param("\ud800", "a2_fe5e71d959109183d45527b7d61f21ff14a9d5bec19f4afde4d8d94f2000cae6", id="C3-high"),
        pytest.param(
            "\udc00\ud800",
            "a2_dee475e20e304f3c577afa03653376001be29f5fb615064f0fe89ecb2109184c",
            id="C3-swapped",
        ),
    ],
    ids=ascii,
)
def test_an_id_is_the_same_in_every_language(session_id: str, expected: str) -> None:
    """The id of a drain message is the one that the reference computes, whatever characters it names."""
    assert expected == derive_id("a2:scheduler-qstash:v1", URL, "orders", session_id, 1_700_000_000_000)


def test_an_id_names_its_parts() -> None:
    """An id is the hash of its parts as a compact JSON array, so neither their bounds nor types can blur."""
    assert hashed('["ab","c",1]') == derive_id("ab", "c", 1)
    others: list[tuple[str | int, ...]] = [
        ("ab", "c", "1"),
        ("a", "bc", 1),
        ("c", "ab", 1),
        ("ab", "c"),
        ("ab", "c", 1, ""),
        ('ab","c', 1),
    ]
    assert 1 + len(others) == len({derive_id("ab", "c", 1), *(derive_id(*parts) for parts in others)})


def test_derived_ids_have_their_own_namespaces() -> None:
    """A timer, its events and a handler's events are named by what they come from, never by the same id."""
    timer = timer_id("orders", "s-1", "remind")
    assert hashed('["a2:timer:v1","orders","s-1","remind"]') == timer
    assert hashed(f'["a2:timer-event:v1","{timer}",0]') == timer_event_id(timer, 0)
    assert hashed(f'["a2:timer-event:v1","{timer}",1]') == timer_event_id(timer, 1)
    assert hashed('["a2:produced-event:v1","e1",0]') == produced_event_id("e1", 0)
    assert hashed('["a2:produced-event:v1","e1",2]') == produced_event_id("e1", 2)


def test_a_spread_is_pinned() -> None:
    """A spread is the first eight bytes of a hash of key and salt, so all processes and versions agree."""
    expected = int.from_bytes(sha256(b"e1\n2").digest()[:8], "big") % 401
    assert expected == spread("e1", 2, 400)


@given(st.text(), st.integers(0, 1_000), st.integers(0, 10**9))
def test_a_spread_stays_within_its_width(key: str, salt: int, width: int) -> None:
    """A spread lies from 0 to its width, both included, and is the same each time."""
    value = spread(key, salt, width)
    assert 0 <= value <= width
    assert value == spread(key, salt, width)


@pytest.mark.parametrize("vary", ["key", "salt"])
def test_a_spread_is_even(vary: str) -> None:
    """Over keys as over salts, each of ten values comes about as often: a crowd of retries is thinned out."""
    counts = Counter(spread(f"e{turn}", 1, 9) if vary == "key" else spread("e", turn, 9) for turn in range(2_000))
    assert set(range(10)) == set(counts)
    assert 150 < min(counts.values())
    assert max(counts.values()) < 250


def test_a_spread_of_no_width_is_zero() -> None:
    """Without jitter there is nothing to add."""
    assert 0 == spread("e1", 1, 0)


# ── ids of messages ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        (("\u2028\u007f\u0080", 0), '["\u2028\u007f\u0080",0]'),
        (("\ud800\u00e9", -1), '["\\ud800\u00e9",-1]'),
        (("/</script>'", 10**30), f'["/</script>\'",{10**30}]'),
        ((), "[]"),
    ],
    ids=ascii,
)
def test_an_id_is_the_hash_of_compact_json(parts: tuple[str | int, ...], text: str) -> None:
    """Everything above U+001F is literal but quote, backslash and lone surrogates; integers are exact."""
    assert hashed(text) == derive_id(*parts)


@given(st.lists(st.text() | st.integers(), max_size=4), st.lists(st.text() | st.integers(), max_size=4))
def test_only_equal_parts_share_an_id(one: list[str | int], other: list[str | int]) -> None:
    """Two messages have one id only if they are named by the same parts."""
    assert (one == other) == (derive_id(*one) == derive_id(*other))


@given(st.lists(st.text() | st.integers()))
def test_an_interpreter_without_the_accelerator_writes_the_same(parts: list[str | int]) -> None:
    """As PyPy, where the JSON of an id's parts is written by the library's own Python."""
    with pytest.MonkeyPatch.context() as patch:
        fast = make_encoder()
        patch.setattr(json.encoder, "c_make_encoder", None)
        slow = make_encoder()
    assert (json.dumps(parts, ensure_ascii=False, separators=(",", ":")),) == tuple(slow(tuple(parts), 0))
    assert "".join(slow(tuple(parts), 0)) == "".join(fast(tuple(parts), 0))
