"""Do appends and drains cost more in a long session, behind a backlog, or among many sessions?"""

import sys
from asyncio import Runner
from collections.abc import Iterator
from functools import partial
from itertools import count
from time import perf_counter
from typing import Any

from a2asgi import A2, Event, EventType, Fail, Retry, SQLiteStore
from benchmarks.harness import Effort, Row, Sample, at_most, interleave, main, ratio, span
from benchmarks.seeds import copy_event, copy_session
from benchmarks.servers import NewPlace, sqlite_places

FLAT = at_most(1.3)
LENGTHS = (10, 1_000, 100_000)
SESSIONS = (10, 100_000)
LONG = 50
"""How many sessions of each length there are at most, so that what is measured does not lengthen them much."""


class Shop:
    """An A2 on a file, with events of one type that nobody handles, of one that is, and of one that always fails."""

    def __init__(self, runner: Runner, path: str) -> None:
        self.path = path
        self._runner = runner
        self._a2 = A2(store=SQLiteStore(path, synchronous="NORMAL"))
        self._orders = self._a2.contract("orders")
        self.noted: EventType[Any] = self._orders.event("noted", dict[str, str])
        self.placed: EventType[Any] = self._orders.event("placed", dict[str, str])
        self.spoilt: EventType[Any] = self._orders.event("spoilt", dict[str, str], lane="spoilt")
        self._sessions = count(1)

        @self._orders.on(self.placed)
        async def handle(event: Event[Any]) -> None:
            del event

        @self._orders.on(self.spoilt, retry=Retry(max_failures=1))
        async def give_up(event: Event[Any]) -> Fail:
            return Fail(event.type)

    def append(self, kind: EventType[Any], session: str) -> None:
        """Append one, and have it handled."""
        self._runner.run(self._orders.session(session).append(kind({"note": "green"}), wait=True))

    def sample(self, kind: EventType[Any], appends: int, sessions: int) -> float:
        """Seconds of one of them, in one session, each time in another one of so many."""
        session = self._orders.session(f"{next(self._sessions) % sessions + 1:07d}")

        async def append() -> None:
            for _ in range(appends):
                await session.append(kind({"note": "green"}), wait=True)

        started = perf_counter()
        self._runner.run(append())
        return (perf_counter() - started) / appends

    def close(self) -> None:
        """Disconnect."""
        self._runner.run(self._a2.close())


def measured(effort: Effort, what: str, shops: dict[str, tuple[Shop, int]]) -> Iterator[Row]:
    """Each larger one beside the smallest."""
    appends = effort.of(20)
    smallest = next(iter(shops))
    for action in ("append", "append and drain"):
        variants: dict[str, Sample] = {}
        for name, (shop, sessions) in shops.items():
            kind = shop.noted if action == "append" else shop.placed
            variants[name] = partial(shop.sample, kind, appends, sessions)
        found = interleave(variants, effort.rounds)
        for name in list(shops)[1:]:
            detail = f"{span(found[name])} / {span(found[smallest])}"
            path = f"{action}, {name} {what}"
            yield Row(path, f"{smallest} {what}", ratio(found[name], found[smallest]), FLAT, detail=detail)


def in_long_sessions(effort: Effort, runner: Runner, new_place: NewPlace) -> Iterator[Row]:
    """Logs of settled events."""
    shops: dict[str, tuple[Shop, int]] = {}
    for length in (effort.of(length, 10 + index) for index, length in enumerate(LENGTHS)):
        shop = Shop(runner, new_place())
        shop.append(shop.noted, "long")
        copy_event(shop.path, "long", length - 1)
        sessions = max(2, min(LONG, 200_000 // length))
        copy_session(shop.path, "long", sessions)
        shops[f"{length:,}"] = shop, sessions
    yield from measured(effort, "events in the session", shops)
    for shop, _ in shops.values():
        shop.close()


def behind_backlogs(effort: Effort, runner: Runner, new_place: NewPlace) -> Iterator[Row]:
    """Open work that waits behind a dead letter in another lane."""
    shops: dict[str, tuple[Shop, int]] = {}
    for length in (effort.of(LENGTHS[0], 10), effort.of(LENGTHS[-1], 11)):
        shop = Shop(runner, new_place())
        shop.append(shop.spoilt, "0000001")
        shop.append(shop.spoilt, "0000001")
        copy_event(shop.path, "0000001", length)
        shops[f"{length:,}"] = shop, 1
    yield from measured(effort, "events waiting in another lane", shops)
    for shop, _ in shops.values():
        shop.close()


def among_many(effort: Effort, runner: Runner, new_place: NewPlace) -> Iterator[Row]:
    """Sessions of one event."""
    shops: dict[str, tuple[Shop, int]] = {}
    for sessions in (effort.of(SESSIONS[0], 10), effort.of(SESSIONS[1], 11)):
        shop = Shop(runner, new_place())
        shop.append(shop.noted, "one")
        copy_session(shop.path, "one", sessions)
        shops[f"{sessions:,}"] = shop, sessions
    yield from measured(effort, "sessions", shops)
    for shop, _ in shops.values():
        shop.close()


def rows(effort: Effort) -> Iterator[Row]:
    """All three; SQLite NORMAL, so that no disk hides the difference."""
    with sqlite_places() as new_place, Runner() as runner:
        yield from in_long_sessions(effort, runner, new_place)
        yield from behind_backlogs(effort, runner, new_place)
        yield from among_many(effort, runner, new_place)


if __name__ == "__main__":
    sys.exit(main(rows, __doc__))
