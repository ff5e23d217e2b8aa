"""Calls that are cancelled at any await leave every other call its own answer, on the stores without a pool of ours."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import anyio
import pytest

from a2asgi import SQLiteStore, UpstashStore
from a2asgi.ports import SessionKey, Store
from a2asgi.testing.store_bench import Opened
from tests.asgi.stores.redis_bridge import TOKEN, bridge_process
from tests.asgi.stores.redis_server import RedisServer, needs_redis
from tests.asgi.stores.test_postgres import append, log_of
from tests.asgi.stores.test_postgres_crowds import AT_ONCE, CANCELLATIONS, SEED, cancelled, some_call
from tests.asgi.worlds import within


@pytest.fixture(params=["sqlite", "upstash"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "sqlite":
        yield SQLiteStore(tmp_path / "a2.db")
        return
    needs_redis()
    with RedisServer(tmp_path) as server, bridge_process(server.port) as url:
        yield UpstashStore(url, TOKEN, timeout="60s")


@within(120)
async def test_calls_that_are_cancelled_at_any_await_never_mix_up_answers(store: Store) -> None:
    random = Random(SEED)  # noqa: S311 - it picks moments, not secrets
    caught: list[bool] = []

    async def kept(event_id: str) -> None:
        key = SessionKey("kept", event_id)
        assert 1 == await append(store, event_id, key)
        assert [event_id] == await log_of(store, key)

    async with Opened(store):
        for first in range(0, CANCELLATIONS, AT_ONCE):
            async with anyio.create_task_group() as tasks:
                for number in range(first, first + AT_ONCE):
                    tasks.start_soon(cancelled, some_call(store, random, f"e{number}"), random, caught)
                tasks.start_soon(kept, f"one-{first}")
        assert CANCELLATIONS == len(caught)
        assert any(caught)
        for info in await store.sessions(limit=1_000):
            log = await store.read(info.key, 0, 1_000)
            assert sorted({entry.seq for entry in log}) == [entry.seq for entry in log]
            assert len({entry.id for entry in log}) == len(log)
