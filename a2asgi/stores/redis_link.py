"""How the scripts of the Redis stores reach their server, which data is found there, and what its errors mean."""

import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from random import uniform
from secrets import token_hex
from typing import Any, Protocol, TypeAlias, TypeVar

import anyio

from a2asgi.errors import StoreBroken, StoreUnavailable
from a2asgi.stores.redis_records import Layout
from a2asgi.stores.redis_scripts import OPEN, Script

log: logging.Logger = logging.getLogger("a2asgi.stores.redis")

SCHEMA_VERSION = 1
TRIES = 3
"""How often a script is sent whose answer was lost with its connection, before the store is said to be unavailable."""

MAX_PAUSE_S = 0.05
MAX_SHARDS = 1_024

_PASSING = re.compile(
    r"\b(BUSY|CLUSTERDOWN|LOADING|MASTERDOWN|MISCONF|NOREPLICAS|OOM|READONLY|TRYAGAIN|UNBLOCKED|UNKILLABLE)\b"
    r"|max(imum)? number of clients|limit exceeded"
)


class AnswerLost(StoreUnavailable):
    """A script was sent, and no answer came: it may have run, or not."""


class Link(Protocol):
    """A way to the server, on one event loop."""

    async def run(self, script: Script, keys: Sequence[str], arguments: Sequence[str | int]) -> Any:
        """Run a script, and answer lists, texts and integers. Raises AnswerLost, StoreUnavailable or StoreBroken."""
        ...


T = TypeVar("T")
OpenLink: TypeAlias = Callable[[], AbstractAsyncContextManager[Link]]


def refusal(where: str, text: str) -> StoreUnavailable | StoreBroken:
    """What an error that the server answered means: whether trying again later is right."""
    if _PASSING.search(text):
        return StoreUnavailable(f"{where}: {text}")
    if re.match(r"(MOVED|ASK|CROSSSLOT)\b", text):
        return StoreBroken(f"{where}: this server is one of a cluster ({text}); write RedisStore(url, cluster=True)")
    if re.match(r"(NOAUTH|WRONGPASS|NOPERM)\b", text):
        return StoreBroken(f"{where}: {text}; check the user, the password and what they may do")
    return StoreBroken(f"{where}: {text}")


async def ask(link: Link, script: Script, keys: Sequence[str], arguments: Sequence[str | int]) -> Any:
    """Run a script that may run twice: where its answer is lost, ask again, a few times."""
    for tried in range(1, TRIES):
        try:
            return await link.run(script, keys, arguments)
        except AnswerLost:
            await pause(tried)
    return await link.run(script, keys, arguments)


async def pause(tried: int) -> None:
    """Wait a moment, longer after more tries, and not as long as others do who wait for the same."""
    await anyio.sleep(uniform(0, min(MAX_PAUSE_S, 2**tried / 1_000)))  # noqa: S311 - it spreads, it hides nothing


async def together(functions: Iterable[Callable[[], Awaitable[T]]]) -> list[T]:
    """Run all side by side and return their answers in order; the first error of one is raised as itself."""
    todo = list(functions)
    if len(todo) == 1:
        return [await todo[0]()]
    answers: dict[int, T] = {}

    async def run(index: int, function: Callable[[], Awaitable[T]]) -> None:
        answers[index] = await function()

    try:
        async with anyio.create_task_group() as tasks:
            for index, function in enumerate(todo):
                tasks.start_soon(run, index, function)
    except ExceptionGroup as group:
        error: Exception = group
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        raise error from None
    return [answers[index] for index in range(len(todo))]


@dataclass(frozen=True, slots=True)
class Home:
    """The data that was found: its layout, and the mark of each shard."""

    layout: Layout
    marks: tuple[str, ...]


class StateLost(StoreUnavailable):
    """The server holds other data than was found there before, or none."""


@dataclass(frozen=True, slots=True)
class Data:
    """The data that was found, through a link."""

    link: Link
    home: Home
    offset_ms: int

    @property
    def layout(self) -> Layout:
        """Where things are."""
        return self.home.layout

    @property
    def shards(self) -> range:
        """The shards by number."""
        return range(self.layout.shards)

    async def ask(
        self,
        script: Script,
        shard: int,
        keys: Sequence[str],
        arguments: Sequence[str | int],
        *,
        once: bool = False,
    ) -> list[Any]:
        """Run a script on one shard; `once` if it must not run twice. Answers what follows its ok, or what it says.

        Raises StateLost, AnswerLost, StoreUnavailable or StoreBroken.
        """
        run = self.link.run if once else partial(ask, self.link)
        names = [self.layout.name(shard, "mark"), *keys]
        answer: list[Any] = await run(script, names, [self.home.marks[shard], *arguments])
        if answer[0] == "lost":
            raise StateLost("the store lost its state: other data is there now, or none")
        return answer[1:] if answer[0] == "ok" else answer


async def find_home(link: Link, where: str, prefix: str, shards: int | None, default: int) -> Home:
    """Find the data of this prefix, or begin it. Raises StoreBroken if it has another layout than is asked for."""
    first = Layout(prefix, 1).name(0, "mark")
    proposed = f"{SCHEMA_VERSION} {shards or default} {token_hex(8)}"
    known = await ask(link, OPEN, [first], [""])
    mark = known or await ask(link, OPEN, [first], [proposed])
    schema, there = _read(where, mark)
    if schema > SCHEMA_VERSION:
        raise StoreBroken(
            f"{where}: the store has schema {schema}, this version of a2 knows up to {SCHEMA_VERSION}: upgrade a2"
        )
    if shards not in {None, there}:
        raise StoreBroken(f"{where}: the data of prefix {prefix!r} is in {there} shards, not in {shards}: ask for none")
    layout, marks = Layout(prefix, there), [mark]
    for shard in range(1, there):
        name = layout.name(shard, "mark")
        found = await ask(link, OPEN, [name], [""])
        if known and not found:
            log.error("%s: shard %d of %d is empty: its node lost its state, or never had any", where, shard, there)
        marks.append(found or await ask(link, OPEN, [name], [mark]))
    return Home(layout, tuple(marks))


def _read(where: str, mark: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,4}) (\d{1,4}) [0-9a-f]{16}", mark)
    if found is None:
        raise StoreBroken(f"{where}: the mark of this prefix is not one of a2: {mark[:40]!r}; use another prefix")
    return int(found[1]), int(found[2])
