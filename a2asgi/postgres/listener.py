"""The listener: a thread that hears of NOTIFYs on a connection of its own, and listens again after each failure."""

import time
from contextlib import closing
from math import inf
from selectors import EVENT_READ, DefaultSelector
from socket import socketpair
from threading import Thread
from typing import Any

import psycopg

from a2asgi.errors import StoreBroken, StoreUnavailable
from a2asgi.listening import Ears, echo
from a2asgi.postgres import CHANNEL
from a2asgi.postgres.pools import Server, Talk

TELL = f"SELECT pg_notify('{CHANNEL}', %s)"
ECHO_S = 10.0
"""How often it sends itself a hint: neither a wire that fell silent, nor a pooler, says that nothing comes."""


class Listener:
    """The thread, which ends with `stop`."""

    def __init__(self, server: Server, ears: Ears) -> None:
        self._server = server
        self._ears = ears
        self._stopped = False
        self._waker, self._woken = socketpair()
        Thread(target=self._work, name="a2-postgres-listener", daemon=True).start()

    def stop(self) -> None:
        """Hear nothing more, and disconnect soon."""
        self._stopped = True
        self._waker.close()

    def _work(self) -> None:
        with self._woken:
            while not self._stopped:
                try:
                    with closing(self._server.connect()) as connection:
                        self._listen(connection)
                except (StoreUnavailable, StoreBroken, psycopg.Error, OSError) as error:
                    if not self._stopped:
                        self._wait(self._ears.lost(error))
        self._ears.turn(hears=False)

    def _listen(self, connection: psycopg.Connection[Any]) -> None:
        """Listen until it is stopped, or nothing is heard any more."""
        mine = echo(self._ears.sender)
        connection.execute(f"LISTEN {CHANNEL}")
        echo_at, answer_by = 0.0, inf
        while not self._stopped:
            now = time.monotonic()
            if now >= answer_by:
                raise StoreUnavailable(f"{self._server.where}: no NOTIFY comes back (through a pooler none does)")
            if now >= echo_at:
                self._server.run_blocking(lambda: _notify(mine))
                echo_at, answer_by = now + ECHO_S, min(answer_by, now + self._server.timeout_s)
            for notify in connection.notifies(timeout=0):
                if notify.payload == mine:
                    answer_by = inf
                    self._ears.turn(hears=True)
                else:
                    self._ears.hear(notify.payload)
            self._wait(min(echo_at, answer_by) - now, connection)

    def _wait(self, wait_s: float, *others: psycopg.Connection[Any]) -> None:
        """Wait for so long, or until it is stopped or something comes."""
        with DefaultSelector() as selector:
            for number in (self._woken.fileno(), *(other.fileno() for other in others)):
                selector.register(number, EVENT_READ)
            selector.select(wait_s)


def _notify(text: str) -> Talk[None]:
    yield [(TELL, (text,))]
