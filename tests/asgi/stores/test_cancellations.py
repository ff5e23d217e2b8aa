"""Calls that are cancelled at any await leave every other call its own answer, on the stores without a pool of ours."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from a2asgi import RedisStore, SQLiteStore, UpstashStore
from a2asgi.ports import Store
from a2asgi.testing.store_bench import Opened, together
from tests.asgi.stores.calls import CANCELLATIONS, Cancelling, all_is_whole, kept
from tests.asgi.stores.redis_bridge import TOKEN, bridge_process
from tests.asgi.stores.redis_server import RedisServer, needs_redis
from tests.asgi.worlds import within


@pytest.fixture(params=["sqlite", "redis", "upstash"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "sqlite":
        yield SQLiteStore(tmp_path / "a2.db")
        return
    needs_redis()
    with RedisServer(tmp_path) as server:
        if request.param == "redis":
            yield RedisStore(server.url)
            return
        with bridge_process(server.port) as url:
            yield UpstashStore(url, TOKEN, timeout="60s")


@within(120)
async def test_calls_that_are_cancelled_at_any_await_never_mix_up_answers(store: Store) -> None:
    async with Opened(store):
        cancelling = Cancelling(store, at_once=8)
        while cancelling.caught < CANCELLATIONS:
            await together(cancelling.round, partial(kept, store, f"kept-{cancelling.calls}"))
        assert cancelling.caught < cancelling.calls
        await all_is_whole(store)
