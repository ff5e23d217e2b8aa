"""Redis under the conformance suite: a prefix for each name that a check gives, and the server's clock, moved."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

import anyio

from a2asgi.stores.redis import RedisStore
from a2asgi.stores.redis_scripts import Script
from a2asgi.testing.store_bench import StoreClock

FORGET = Script("""
local cursor = '0'
repeat
  local page = redis.call('SCAN', cursor, 'MATCH', ARGV[1], 'COUNT', 1000)
  cursor = page[1]
  for _, key in ipairs(page[2]) do redis.call('DEL', key) end
until cursor == '0'
return {}
""")
"""Arguments: a pattern. Removes all keys that match it, which only a server that is not of a cluster allows."""


class MovedRedisStore(RedisStore):
    """Tells the time of its server, moved as far as a check has moved the time."""

    def __init__(self, clock: StoreClock, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self._moved = clock

    def _moved_ms(self) -> int:
        return self.offset_ms + self._moved.moved_ms

    def forget_blocking(self) -> None:
        """Remove all keys of its prefix."""
        with ThreadPoolExecutor(1) as thread:  # the caller's may be in an event loop
            thread.submit(anyio.run, self._forget).result()

    async def _forget(self) -> None:
        async with self._connect() as link:
            await link.run(FORGET, [], [f"{{{self._prefix}:*"])


class RedisBench(AbstractContextManager["RedisBench"]):
    """Makes stores on a server that is not of a cluster; on leaving their keys are removed."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._made: dict[str, MovedRedisStore] = {}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for store in self._made.values():
            store.forget_blocking()

    def make_store(self, clock: StoreClock, name: str) -> MovedRedisStore:
        """As MakeStore."""
        store = MovedRedisStore(clock, self._url, prefix=name)
        self._made.setdefault(name, store)
        return store
