"""Listening: hints of other processes reach every ear, and nothing else does."""

import json

import pytest

from a2asgi.listening import Ears, echo, hint
from a2asgi.ports import SessionKey

KEY = SessionKey("shop", 's-"1"\u20ac')


def test_what_others_write_is_heard_by_every_ear_until_it_is_taken_away() -> None:
    ears, other, first, second = Ears(), Ears(), list[object](), list[object]()
    assert not ears
    with ears.listening(lambda *heard: first.append(heard)):
        with ears.listening(lambda *heard: second.append(heard)):
            assert ears
            ears.hear(hint(other.sender, KEY, is_due=True))
        ears.hear(hint(other.sender, KEY, is_due=False))
    ears.hear(hint(other.sender, KEY, is_due=True))
    assert ([(KEY, True), (KEY, False)], [(KEY, True)]) == (first, second)


@pytest.mark.parametrize(
    "text", ["", "{", "null", "17", '"four"', "[]", "[1]", '["s", "shop", "s-1"]', '{"a": 1}', "[" * 5_000, "\ud800"]
)
def test_what_is_no_hint_is_passed_over(text: str) -> None:
    ears, heard = Ears(), list[object]()
    with ears.listening(lambda *told: heard.append(told)):
        ears.hear(text)
    assert [] == heard


def test_nobody_hears_himself() -> None:
    ears, heard = Ears(), list[object]()
    with ears.listening(lambda *told: heard.append(told)):
        ears.hear(hint(ears.sender, KEY, is_due=True))
        ears.hear(echo(ears.sender))
    assert [] == heard


def test_ears_are_told_when_they_begin_to_hear_and_when_they_end() -> None:
    ears, heard = Ears(), list[object]()
    with ears.listening(lambda *told: heard.append((*told, ears.hears))):
        for hears in (True, True, False, False, True):
            ears.turn(hears=hears)
    assert [(None, True, True), (None, True, False), (None, True, True)] == heard


def test_the_longest_names_fit_into_a_notify() -> None:
    """Postgres takes 7,999 bytes, and names are of 256 characters at most."""
    key = SessionKey("\U0001f375" * 256, "\U0001f375" * 256)
    assert len(hint(Ears().sender, key, is_due=True)) < 8_000
    assert json.loads(hint("x", key, is_due=True))[1:3] == [key.contract, key.session_id]


def test_who_hears_nothing_is_told_once_and_tries_again_ever_more_slowly(caplog: pytest.LogCaptureFixture) -> None:
    ears, heard = Ears(), list[object]()
    with ears.listening(lambda *told: heard.append(told)):
        assert [0.25, 0.5, 1, 2, 4, 8, 16, 30, 30] == [ears.lost(OSError("away")) for _ in range(9)]
        assert ([], 1) == (heard, len(caplog.records))
        ears.turn(hears=True)
        assert [0.25, 0.5] == [ears.lost(OSError("away")) for _ in range(2)]
    assert ([(None, True)] * 2, 2) == (heard, len(caplog.records))
    assert "cannot hear what others write, and looks for it instead: away" == caplog.records[-1].getMessage()
