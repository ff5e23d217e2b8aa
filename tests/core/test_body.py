"""A body is bounded before anything is known of its sender."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2core.body import BoundedBody, TooLarge, declared_too_large


@pytest.mark.parametrize(
    ("content_length", "expected"),
    [
        (None, False),
        ("0", False),
        ("10", False),
        ("00010", False),
        ("11", True),
        ("0011", True),
        ("9" * 10_000, True),
        ("0" * 10_000, False),
        ("", False),
        ("+11", False),
        ("-11", False),
        ("11.0", False),
        ("1e9", False),
        ("11, 11", False),
        ("11\n", False),
        ("\u0661\u0661", False),
        ("\u00b2\u00b2", False),
    ],
    ids=lambda part: ascii(part)[:12],
)
def test_only_plain_digits_are_believed(content_length: str | None, expected: bool) -> None:  # noqa: FBT001 - an answer
    """A declared length above the limit refuses the body unread; what is no plain number tells nothing."""
    assert expected is declared_too_large(content_length, 10)


def test_a_body_is_what_was_fed() -> None:
    """Chunks are joined as they came, empty ones too."""
    body = BoundedBody(6)
    assert b"" == body.read()
    for chunk in (b"", b"ab", b"", b"cdef"):
        body.feed(chunk)
    assert b"abcdef" == body.read()
    assert 6 == body.size


@given(st.lists(st.binary(max_size=8), max_size=8), st.integers(0, 20))
def test_a_body_stops_at_the_first_chunk_above_its_limit(chunks: list[bytes], max_bytes: int) -> None:
    """Every chunk up to the limit is kept; the first beyond it is refused, and nothing stays in memory."""
    body, fed = BoundedBody(max_bytes), b""
    for chunk in chunks:
        fed += chunk
        if len(fed) > max_bytes:
            with pytest.raises(TooLarge):
                body.feed(chunk)
            assert b"" == body.read()
            return
        body.feed(chunk)
    assert fed == body.read()


def test_a_body_is_never_printed() -> None:
    """What a body holds is its sender's."""
    body = BoundedBody(10)
    body.feed(b"secret")
    assert "BoundedBody(max_bytes=10, size=6)" == repr(body)


@pytest.mark.parametrize("size", [1, 2, 16])
def test_a_body_of_crumbs_needs_no_more_than_its_bytes(size: int) -> None:
    """A chunk that is kept costs more than a byte of it does, and its sender chooses how small they are."""
    body = BoundedBody(2**18)
    tracemalloc.start()
    for _ in range(2**18 // size):
        body.feed(b"x" * size)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20
