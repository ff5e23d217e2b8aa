"""Listening: who in this process has an ear for what other processes write, and the hints that travel between them."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from secrets import token_hex
from threading import Lock

from a2asgi.ports import Ear, SessionKey

log: logging.Logger = logging.getLogger("a2asgi.listening")

MIN_PAUSE_S = 0.25
MAX_PAUSE_S = 30.0
"""Shortest and longest pause before a listener tries again."""


class Ears:
    """The ears of one store. Its listener passes hints to them, on a thread of its own.

    A hint only saves a wait: it may be lost, so whoever has an ear looks from time to time all the same.
    """

    def __init__(self) -> None:
        self.sender: str = token_hex(6)
        """Who wrote a hint, so that nobody hears his own."""
        self.hears: bool = False
        self._lock = Lock()
        self._ears: list[Ear] = []
        self._pause_s = 0.0

    def __bool__(self) -> bool:
        return bool(self._ears)

    @contextmanager
    def listening(self, ear: Ear) -> Iterator[None]:
        """Have an ear until the end of this context."""
        with self._lock:
            self._ears.append(ear)
        try:
            yield
        finally:
            with self._lock:
                self._ears.remove(ear)

    def hear(self, hint: str) -> None:
        """Pass a hint on, unless it is one of our own, or somebody else's who sends on the same channel."""
        match _parsed(hint):
            case [str(sender), str(contract), str(session_id), int(is_due)] if sender != self.sender:
                self._tell(SessionKey(contract, session_id), is_due=bool(is_due))
            case _:
                pass

    def turn(self, *, hears: bool) -> None:
        """From now on hints are heard, or none are: either way some may have been missed."""
        if self.hears != hears:
            self.hears = hears
            self._tell(None, is_due=True)

    def lost(self, error: Exception) -> float:
        """From now on nothing is heard, for this reason; how many seconds to wait before listening again."""
        self._pause_s = MIN_PAUSE_S if self.hears else min(max(2 * self._pause_s, MIN_PAUSE_S), MAX_PAUSE_S)
        if self._pause_s == MIN_PAUSE_S:  # told once, not again and again
            log.warning("cannot hear what others write, and looks for it instead: %s", error)
        self.turn(hears=False)
        return self._pause_s

    def _tell(self, key: SessionKey | None, *, is_due: bool) -> None:
        with self._lock:
            ears = list(self._ears)
        for ear in ears:
            ear(key, is_due)


def hint(sender: str, key: SessionKey, *, is_due: bool) -> str:
    """What is sent of a session that was written: to whoever watches it, and to all if it is due at once."""
    return json.dumps([sender, key.contract, key.session_id, int(is_due)])


def echo(sender: str) -> str:
    """What a listener sends itself, to know whether it hears."""
    return json.dumps([sender])


def _parsed(hint: str) -> object:
    try:
        return json.loads(hint)
    except (ValueError, RecursionError):
        return None
