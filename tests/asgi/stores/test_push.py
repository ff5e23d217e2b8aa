"""Push: what another process writes is told at once by Postgres and Redis, and found all the same where it is not."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import anyio
import psycopg
import pytest
from anyio.lowlevel import checkpoint

from a2asgi import (
    A2,
    EmbeddedScheduler,
    Event,
    PostgresStore,
    RedisStore,
    SQLiteStore,
    StoreUnavailable,
    UpstashStore,
    live,
)
from a2asgi.live import KEPT, News
from a2asgi.ports import PushingStore, SessionKey
from a2asgi.postgres import listener
from a2asgi.stores import redis
from a2asgi.testing.postgres_bench import PostgresBench
from a2core import Entry, Needs, Plan, WakeAt
from tests.asgi.stores.calls import KEY, append
from tests.asgi.stores.proxies import pooler, wire
from tests.asgi.stores.redis_bridge import TOKEN, Bridge
from tests.asgi.stores.redis_server import RedisServer, needs_redis

PATIENCE_S = 30


@pytest.fixture(autouse=True)
def _no_safety(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is not told waits for longer than any test."""
    monkeypatch.setattr(live, "SAFETY_S", 3_600.0)


@dataclass
class Place:
    """Where two processes have their stores, and somebody who may cut off those that listen, if any do."""

    make: Callable[[], Any]
    cut_off: Callable[[], int] = int


@contextmanager
def on_postgres(bench: PostgresBench) -> Iterator[Place]:
    url = bench.url("a2_push")

    def cut_off() -> int:
        text = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query ILIKE 'LISTEN%'"
        with psycopg.connect(url, autocommit=True) as console:
            return len(console.execute(text).fetchall())

    yield Place(lambda: PostgresStore(url), cut_off)


@contextmanager
def on_redis(folder: Path) -> Iterator[Place]:
    needs_redis()
    with RedisServer(folder) as server:

        def cut_off() -> int:
            client = server.client()
            killed = client("CLIENT", "KILL", "TYPE", "pubsub")
            client.close()
            return int(killed)

        yield Place(lambda: RedisStore(server.url), cut_off)


@contextmanager
def on_upstash(folder: Path) -> Iterator[Place]:
    needs_redis()
    with RedisServer(folder) as server, Bridge(server.port) as bridge:
        yield Place(lambda: UpstashStore(bridge.url, TOKEN))


@pytest.fixture(params=["postgres", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    made: AbstractContextManager[Place]
    match request.param:
        case "sqlite":
            made = nullcontext(Place(lambda: SQLiteStore(tmp_path / "a2.db")))
        case "postgres":
            made = on_postgres(request.getfixturevalue("bench"))
        case "redis":
            made = on_redis(tmp_path)
        case _:
            made = on_upstash(tmp_path)
    with made as place:
        yield place


on_every_store = pytest.mark.parametrize("place", ["sqlite", "postgres", "redis", "upstash"], indirect=True)


@dataclass
class Pair:
    """The stores of two processes."""

    here: Any
    there: Any
    heard: list[tuple[SessionKey | None, bool]] = field(default_factory=list)

    def ear(self, key: SessionKey | None, is_due: bool) -> None:  # noqa: FBT001 - the form of an ear
        self.heard.append((key, is_due))


@pytest.fixture
async def pair(place: Place) -> AsyncIterator[Pair]:
    pair = Pair(place.make(), place.make())
    await pair.here.open()
    await pair.there.open()
    yield pair
    await pair.here.close()
    await pair.there.close()


async def until(holds: Callable[[], bool]) -> None:
    with anyio.fail_after(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - it comes to be on another thread
            await anyio.sleep(0.005)


async def wake_at(store: Any, at_ms: int | None, key: SessionKey = KEY) -> None:
    await store.transact(key, Needs(), lambda *_: Plan(None, wake=WakeAt(at_ms)))


async def test_only_what_is_watched_or_due_is_told_and_only_to_others(pair: Pair) -> None:
    other = SessionKey("shop", "s-2")
    assert isinstance(pair.here, PushingStore)
    with pair.here.listening(pair.ear):
        await until(lambda: pair.here.hears)
        assert [(None, True)] == pair.heard
        assert not await pair.here.watch(KEY, 60_000)
        await append(pair.there, "e1")  # nobody watches yet
        assert await pair.here.watch(KEY, 60_000)
        await append(pair.here, "e2")  # our own
        await append(pair.there, "e3")
        await append(pair.there, "e4", other)
        await wake_at(pair.there, 2**45)
        await wake_at(pair.there, None)
        await wake_at(pair.here, 0, other)
        await wake_at(pair.there, 0, other)
        await until(lambda: (other, True) in pair.heard)
        assert [(None, True), (KEY, False), (other, True)] == pair.heard
        assert await pair.here.watch(KEY, 0)  # from now on, nobody
        await append(pair.there, "e5")
        await wake_at(pair.there, 0)
        await until(lambda: (KEY, True) in pair.heard)
        assert [(KEY, True)] == pair.heard[3:]


async def test_a_watched_session_is_told_to_every_process_of_whatever_store(place: Place) -> None:
    """A second reader's process shares the first one's mark, and hears by itself."""
    stores, heard = [place.make() for _ in range(3)], [list[object]() for _ in range(3)]
    for store in stores:
        await store.open()
    await append(stores[2], "e1")
    ears = [lambda *told, n=n: heard[n].append(told) for n in range(2)]
    with stores[0].listening(ears[0]), stores[1].listening(ears[1]):
        await until(lambda: stores[0].hears and stores[1].hears)
        await stores[0].watch(KEY, 60_000)
        await append(stores[2], "e2")
        await until(lambda: all((KEY, False) in each for each in heard[:2]))
    for store in stores:
        await store.close()


class Counted:
    """The news of a process, whose looks at the store are counted, and may be disturbed."""

    def __init__(self, store: Any) -> None:
        self.looks = 0
        self.before: Callable[[], Awaitable[None]] = checkpoint
        self.after: Callable[[], Awaitable[None]] = checkpoint
        self._read = store.read
        store.read = self.read
        self.news = News(store)

    async def read(self, key: SessionKey, after_seq: int, limit: int) -> list[Entry]:
        self.looks += 1
        await self.before()
        found: list[Entry] = await self._read(key, after_seq, limit)
        await self.after()
        return found


async def test_a_reader_looks_only_when_it_is_told(pair: Pair) -> None:
    await append(pair.there, "e0")
    counted = Counted(pair.here)
    stream = counted.news.stream(KEY, 0)
    assert "e0" == (await anext(stream)).id
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            heard: list[str] = []

            async def listen() -> None:
                while len(heard) < 3:
                    heard.append((await anext(stream)).id)

            tasks.start_soon(listen)
            await until(lambda: pair.here.hears)
            for number in range(1, 4):
                with anyio.move_on_after(0.6):  # it would look at least twice meanwhile, were it not told
                    await until(lambda: False)
                before = counted.looks
                with anyio.move_on_after(0.6):
                    await until(lambda: False)
                assert before == counted.looks
                await append(pair.there, f"e{number}")
                await until(lambda number=number: len(heard) == number)  # type: ignore[misc]
    assert ["e1", "e2", "e3"] == heard


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("look", range(1, 7))
@on_every_store
async def test_an_append_at_any_look_is_neither_lost_nor_doubled(pair: Pair, look: int, moment: str) -> None:
    """From history to live, and while the session comes to be watched, by whichever process."""
    await append(pair.there, "e1")
    counted = Counted(pair.here)
    appended = anyio.Event()

    async def another() -> None:
        if not appended.is_set():
            appended.set()
            await append(pair.there, "e2")

    async def at_that_look() -> None:
        if counted.looks == look:
            await another()

    async def at_last() -> None:
        """It may look less often than that, as soon as it is told."""
        with anyio.move_on_after(1):
            await appended.wait()
        await another()

    setattr(counted, moment, at_that_look)
    with anyio.fail_after(PATIENCE_S):
        stream = counted.news.stream(KEY, 0)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(at_last)
            assert [1, 2] == [(await anext(stream)).seq for _ in range(2)]
        await append(pair.there, "e3")
        assert 3 == (await anext(stream)).seq


@on_every_store
async def test_a_session_that_is_not_there_yet_is_looked_for(pair: Pair) -> None:
    stream = News(pair.here).stream(KEY, 0)
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:

            async def begin() -> None:
                if isinstance(pair.here, PushingStore):
                    await until(lambda: pair.here.hears)
                for number in range(3):
                    await append(pair.there, f"e{number}")

            tasks.start_soon(begin)
            assert [1, 2, 3] == [(await anext(stream)).seq for _ in range(3)]


@on_every_store
async def test_a_slow_reader_reads_the_log(pair: Pair) -> None:
    await append(pair.there, "e1")
    slow = News(pair.here).stream(KEY, 0)
    assert 1 == (await anext(slow)).seq
    batch = tuple(Entry(f"x{seq}", "said", "0", None, 0, seq) for seq in range(2, 3 * KEPT))
    await pair.there.transact(KEY, Needs(), lambda *_: Plan(None, entries=batch))
    with anyio.fail_after(PATIENCE_S):
        assert list(range(2, 3 * KEPT)) == [(await anext(slow)).seq for _ in batch]


async def test_who_is_cut_off_looks_again_and_then_hears_again(
    pair: Pair, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    await append(pair.there, "e0")
    with pair.here.listening(pair.ear):
        for number in range(1, 4):
            await until(lambda: pair.here.hears)
            pair.heard.clear()
            assert 1 == place.cut_off()
            await until(lambda: pair.heard[:2] == [(None, True)] * 2)  # told of the end, and of the new beginning
            assert await pair.here.watch(KEY, 60_000)
            await append(pair.there, f"e{number}")
            await until(lambda: (KEY, False) in pair.heard)
    told = [record for record in caplog.records if "cannot hear what others write" in record.message]
    assert 3 == len(told)


async def test_what_is_due_at_once_is_started_by_another_process_however_seldom_it_looks(place: Place) -> None:
    handled: list[str] = []

    def app(store: Any, role: Literal["web", "worker"]) -> tuple[A2, Any, Any]:
        a2 = A2(store=store, scheduler=EmbeddedScheduler(poll="1h"), role=role)
        shop = a2.contract("shop")
        placed = shop.event("placed", str)

        @shop.on(placed)
        async def handle(event: Event[str]) -> None:
            handled.append(event.payload)

        return a2, shop, placed

    here, there = place.make(), place.make()
    (worker, _, _), (web, shop, placed) = app(here, "worker"), app(there, "web")
    async with worker, web:
        await until(lambda: here.hears)
        for number in range(3):
            await shop.session("o").append(placed(f"tea {number}"))
            await until(lambda number=number: len(handled) == number + 1)  # type: ignore[misc]
    assert ["tea 0", "tea 1", "tea 2"] == handled


async def test_a_store_that_was_closed_hears_again_once_it_is_open(pair: Pair) -> None:
    with pair.here.listening(pair.ear):
        await until(lambda: pair.here.hears)
        await pair.here.close()
        await until(lambda: not pair.here.hears)
        await pair.here.open()
        await until(lambda: pair.here.hears)
        await wake_at(pair.there, 0)
        await until(lambda: (KEY, True) in pair.heard)


# ── what stands between ──────────────────────────────────────────────────────────────────


async def test_nothing_is_heard_through_a_pooler_and_readers_look(
    postgres: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pooler(postgres, sessions=3) as between, PostgresBench(between.url) as bench:
        url = bench.url("a2_push")
        here, there = PostgresStore(url, timeout="500ms"), PostgresStore(url)
        await here.open()
        await there.open()
        await append(there, "e0")
        stream = News(here).stream(KEY, 0)
        assert "e0" == (await anext(stream)).id
        with anyio.fail_after(PATIENCE_S), here.listening(lambda *_: None):
            await until(lambda: "no NOTIFY comes back" in caplog.text)
            await append(there, "e1")
            assert "e1" == (await anext(stream)).id
            assert not here.hears
        await here.close()
        await there.close()


async def test_a_wire_that_falls_silent_is_noticed_by_postgres(
    bench: PostgresBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "ECHO_S", 0.1)
    with wire(bench.url("a2_push")) as between:
        store = PostgresStore(between.url, timeout="500ms")
        await store.open()
        heard: list[object] = []
        with store.listening(lambda *told: heard.append(told)):
            await until(lambda: store.hears)
            between.fall_silent()
            await until(lambda: not store.hears)
            between.speak_again()
            await until(lambda: store.hears)
        await store.close()


async def test_a_server_that_falls_silent_is_noticed_by_redis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_redis()
    monkeypatch.setattr(redis, "IDLE_S", 0.1)
    with RedisServer(tmp_path) as server:
        store = RedisStore(server.url, timeout="300ms")
        await store.open()
        with store.listening(lambda *_: None):
            await until(lambda: store.hears)
            server.pause()
            await until(lambda: not store.hears)
            server.resume()
            await until(lambda: store.hears)
        await store.close()


async def test_a_user_of_redis_who_may_not_publish_writes_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    needs_redis()
    caplog.set_level(logging.WARNING)
    with RedisServer(tmp_path) as server:
        client = server.client()
        client("ACL", "SETUSER", "mute", "on", ">pw", "~*", "+@all", "resetchannels")
        client.close()
        store = RedisStore(server.url.replace("redis://", "redis://mute:pw@"))
        await store.open()
        with store.listening(lambda *_: None):
            await append(store, "e1")
            assert await store.watch(KEY, 60_000)
            await append(store, "e2")
            await wake_at(store, 0)
            assert ["e1", "e2"] == [entry.id for entry in await store.read(KEY, 0, 9)]
            await until(lambda: "cannot hear what others write" in caplog.text)
        await store.close()


async def test_a_server_that_is_gone_is_found_again_by_the_reader(tmp_path: Path) -> None:
    needs_redis()
    with RedisServer(tmp_path, "--appendfsync", "always") as server:
        here, there = RedisStore(server.url, timeout="500ms"), RedisStore(server.url, timeout="500ms")
        await here.open()
        await there.open()
        await append(there, "e0")
        stream = News(here).stream(KEY, 0)
        assert "e0" == (await anext(stream)).id
        server.kill()
        with pytest.raises(StoreUnavailable):
            await anext(stream)
        server.start()
        with anyio.fail_after(PATIENCE_S):
            while True:
                try:
                    await append(there, "e1")
                except StoreUnavailable:
                    await checkpoint()
                else:
                    break
            while True:
                try:
                    assert "e1" == (await anext(stream)).id
                except StoreUnavailable:
                    await checkpoint()
                else:
                    break
        await here.close()
        await there.close()
