"""Live reads: history and then news, without a gap or a repeat, for any number of readers, slow ones too."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import sleep
from anyio.lowlevel import checkpoint

from a2asgi import A2, MemoryStore, SessionKey, SQLiteStore, StoreUnavailable, live
from a2asgi.live import KEPT, News
from a2asgi.ports import Ear
from a2core import Entry, Needs, Plan, Snapshot

KEY = SessionKey("chat", "s")


def append(store: MemoryStore, count: int = 1, *, key: SessionKey = KEY) -> None:
    """Append events behind everyone's back, as another process does."""

    def decide(snapshot: Snapshot, now_ms: int) -> Plan[None]:
        first = snapshot.last_seq + 1
        return Plan(
            None, entries=tuple(Entry(f"e{seq}", "said", "0", None, now_ms, seq) for seq in range(first, first + count))
        )

    store.transact_blocking(key, Needs(), decide)


class Watched(MemoryStore):
    """Counts its reads; `before` and `after` are called at each."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.before: Callable[[], object] = lambda: None
        self.after: Callable[[], object] = lambda: None

    async def read(self, key: SessionKey, after_seq: int, limit: int) -> list[Entry]:
        self.reads += 1
        self.before()
        found = await super().read(key, after_seq, limit)
        self.after()
        await checkpoint()
        return found


async def take(news: News, count: int, after: int = 0) -> list[int]:
    """The seqs of the next entries."""
    stream = news.stream(KEY, after)
    return [(await anext(stream)).seq for _ in range(count)]


@pytest.mark.parametrize("told", [True, False], ids=["told", "found"])
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("read", range(1, 9))
async def test_an_append_between_history_and_live_is_neither_lost_nor_doubled(
    read: int, moment: str, *, told: bool
) -> None:
    """Whenever it comes, as the reader goes from the log to what is new, it is next, and it is once."""
    store = Watched()
    news = News(store)
    append(store, 2)

    def at_each_read() -> None:
        if store.reads == read:
            append(store)
            if told:
                news.tell(KEY)

    setattr(store, moment, at_each_read)
    with anyio.fail_after(5):
        assert [1, 2, 3] == await take(news, 3)
        append(store)
        assert [3, 4] == await take(news, 2, after=2)


async def test_many_readers_share_one_look() -> None:
    """A hundred readers of a quiet session cost what one does, and each hears of what comes."""
    store = Watched()
    news = News(store)
    heard: list[list[int]] = []

    async def listen() -> None:
        heard.append(await take(news, 3))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for _ in range(100):
                tasks.start_soon(listen)
            await anyio.wait_all_tasks_blocked()
            before = store.reads
            append(store, 2)
            news.tell(KEY)
            await anyio.wait_all_tasks_blocked()
            assert store.reads - before <= 4
            append(store)
            news.tell(KEY)
    assert [[1, 2, 3]] * 100 == heard


async def test_a_reader_that_leaves_hands_its_look_on() -> None:
    """Whoever looks for all may be cancelled at any time: another one of them looks on."""
    store = Watched()
    news = News(store)
    heard: list[int] = []

    async def listen() -> None:
        heard.extend(await take(news, 1))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            with anyio.CancelScope() as first:
                tasks.start_soon(listen)
                tasks.start_soon(listen)
                async with anyio.create_task_group() as leaving:
                    leaving.start_soon(take, news, 1)
                    await anyio.wait_all_tasks_blocked()
                    leaving.cancel_scope.cancel()
            assert not first.cancelled_caught
            append(store)
    assert [1, 1] == heard


async def test_a_slow_reader_reads_the_log() -> None:
    """While one reader sleeps over its first event, thousands come; it hears all of them, in order."""
    store = Watched()
    news = News(store)
    append(store)
    slow = news.stream(KEY, 0)
    assert 1 == (await anext(slow)).seq
    with anyio.fail_after(20):
        for _ in range(12):
            append(store, KEPT)
            assert KEPT == len(await take(news, KEPT, after=(await last(store)) - KEPT))
        assert list(range(2, 12 * KEPT + 2)) == [(await anext(slow)).seq for _ in range(12 * KEPT)]


async def last(store: MemoryStore) -> int:
    [info] = await store.sessions()
    return info.last_seq


async def test_a_store_that_fails_fails_the_readers_and_they_go_on() -> None:
    """The error is each reader's own; asked again, a reader goes on where it was."""
    store = Watched()
    news = News(store)
    append(store)
    stream = news.stream(KEY, 0)

    def refuse() -> None:
        store.before = lambda: None
        raise StoreUnavailable("down")

    store.before = refuse
    with pytest.raises(StoreUnavailable, match="down"):
        await anext(stream)
    assert 1 == (await anext(stream)).seq


async def test_what_is_purged_is_passed_over() -> None:
    """A reader whose next events are gone hears of the next that is there."""
    store = Watched()
    news = News(store)
    append(store, 3)
    store.transact_blocking(KEY, Needs(), lambda _seen, now_ms: Plan(None, expires={1: now_ms, 2: now_ms}))
    assert 2 == await store.purge(10)
    assert [3] == await take(news, 1)


async def test_a_session_streams_typed_events(tmp_path: Path) -> None:
    """What one process appends, another one's stream yields, on one SQLite file, and a handler's events too."""

    def process() -> tuple[A2, Any, Any]:
        a2 = A2(store=SQLiteStore(tmp_path / "a2.db"))
        chat = a2.contract("chat")
        said, answered = chat.event("said", str), chat.event("answered", str)

        @chat.on(said)
        async def answer(event: Any) -> Any:
            return answered(event.payload.upper())

        return a2, chat, said

    (one, chat, said), (other, chat_there, _) = process(), process()
    with anyio.fail_after(10):
        async with one, other:
            await chat.session("s").append(said("hi"))
            heard: list[tuple[int, str, str]] = []
            async for event in chat_there.session("s").stream():
                heard.append((event.seq, event.type, event.payload))
                if len(heard) == 2:
                    await chat.session("s").append(said("ho"))
                if len(heard) == 4:
                    break
    assert [(1, "said", "hi"), (2, "answered", "HI"), (3, "said", "ho"), (4, "answered", "HO")] == heard


async def test_a_stream_starts_where_it_is_told() -> None:
    a2 = A2(store=MemoryStore())
    chat = a2.contract("chat")
    said = chat.event("said", str)
    async with a2.testing():
        await chat.session("s").append(said("a"), said("b"), said("c"))
        assert "c" == (await anext(chat.session("s").stream(after=2))).payload
        with pytest.raises(ValueError, match="after >= 0"):
            chat.session("s").stream(after=-1)


class Pushing(Watched):
    """A store that tells what others append, while it hears; it notes how long it is asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.hears = True
        self.ears: list[Ear] = []
        self.watches: list[int] = []

    @contextmanager
    def listening(self, ear: Ear) -> Iterator[None]:
        self.ears.append(ear)
        yield
        self.ears.remove(ear)

    async def watch(self, key: SessionKey, for_ms: int) -> bool:
        await checkpoint()
        self.watches.append(for_ms)
        return bool(await super().read(key, 0, 1))

    def tell(self, key: SessionKey | None) -> None:
        for ear in self.ears:
            ear(key, False)  # noqa: FBT003 - the form of an ear


async def looks(store: Watched, for_s: float) -> int:
    """How many looks there are in a while."""
    before = store.reads
    await sleep(for_s)
    return store.reads - before


async def test_a_session_is_looked_at_seldom_while_others_appends_are_told() -> None:
    store = Pushing()
    news = News(store)
    append(store)
    heard: list[int] = []

    async def listen() -> None:
        heard.extend(await take(news, 4))

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listen)
            while await looks(store, 0.2) or not store.watches:
                pass
            assert ([60_000], 0) == (store.watches, await looks(store, 0.5))
            append(store)
            store.tell(SessionKey("chat", "another"))
            assert 0 == await looks(store, 0.1)
            store.tell(KEY)
            while await looks(store, 0.2):
                pass
            append(store)
            store.hears = False  # from now on it is looked for
            store.tell(None)
            await looks(store, 0.3)
            append(store)
    assert ([1, 2, 3, 4], [60_000], 1) == (heard, store.watches, len(store.ears))


async def test_a_session_is_watched_anew_and_looked_at_for_safety(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hint may be lost, and so may a mark: neither costs more than the time for which they are trusted."""
    for name, value, at_least in (("WATCH_MS", 100, 2), ("SAFETY_S", 0.05, 1)):
        monkeypatch.setattr(live, name, value)
        store = Pushing()
        news = News(store)
        append(store)
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(take, news, 2)
                while store.reads < 8:  # noqa: ASYNC110 - a look is no event
                    await sleep(0.01)
                append(store)
        assert at_least <= len(store.watches)


async def test_a_session_that_is_not_there_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "SAFETY_S", 60)
    store = Pushing()
    news = News(store)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take, news, 1)
            while store.reads < 8:  # noqa: ASYNC110 - a look is no event
                await sleep(0.01)
            append(store)


async def test_an_append_as_a_session_comes_to_be_watched_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that came before the mark is told to nobody: it is found by a look that comes after."""
    monkeypatch.setattr(live, "SAFETY_S", 60)

    class Late(Pushing):
        async def watch(self, key: SessionKey, for_ms: int) -> bool:
            if not self.watches:
                append(self)
            return await super().watch(key, for_ms)

    store = Late()
    append(store)
    with anyio.fail_after(20):
        assert [1, 2] == await take(News(store), 2)
