"""The Upstash store: the same suite and the same data over HTTP, errors of gateways and databases, the token."""

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response

from a2asgi import ConfigurationError, RedisStore, StoreBroken, StoreUnavailable, UpstashStore
from a2asgi.stores import redis_scripts as scripts
from a2asgi.stores.redis_link import refusal
from a2asgi.testing import check_store
from a2asgi.testing.conformance import CHECKS, DURABLE_CHECKS, StoreClock
from a2asgi.testing.store_bench import Opened
from tests.asgi.stores.calls import KEY, append
from tests.asgi.stores.redis_bridge import TOKEN, Bridge, bridge_process
from tests.asgi.stores.redis_server import RedisServer, needs_redis


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    needs_redis()
    with RedisServer(tmp_path) as own:
        yield own


@pytest.fixture
def bridge(server: RedisServer) -> Iterator[Bridge]:
    with Bridge(server.port) as own:
        yield own


class Moved(UpstashStore):
    """A store whose server's clock a check moves."""

    def __init__(self, clock: StoreClock, url: str, prefix: str) -> None:
        super().__init__(url, TOKEN, prefix=prefix)
        self._test_clock = clock

    def _moved_ms(self) -> int:
        return self.offset_ms + self._test_clock.moved_ms


async def test_the_upstash_store_conforms(server: RedisServer) -> None:
    with bridge_process(server.port) as url:
        passed = await check_store(lambda clock, name: Moved(clock, url, name), durable=True)
    assert [*CHECKS, *DURABLE_CHECKS] == passed


async def test_both_stores_find_the_same_data(server: RedisServer, bridge: Bridge) -> None:
    async with Opened(UpstashStore(bridge.url, TOKEN)) as over_http, Opened(RedisStore(server.url)) as direct:
        assert [1, 2, 3] == [await append(store, f"e{seq}") for seq, store in enumerate((over_http, direct) * 2, 1)][:3]
        assert await direct.read(KEY, 0, 9) == await over_http.read(KEY, 0, 9)


async def test_a_transaction_is_two_requests_once_the_server_knows_the_scripts(bridge: Bridge) -> None:
    async with Opened(UpstashStore(bridge.url, TOKEN)) as store:
        await append(store, "e1")
        bridge.commands.clear()
        await append(store, "e2")
        assert ["EVALSHA"] * 2 == bridge.commands


async def test_a_write_whose_answer_a_gateway_lost_is_written_once(bridge: Bridge) -> None:
    async with Opened(UpstashStore(bridge.url, TOKEN)) as store:
        await append(store, "e1")
        for losing in (1, 2):
            bridge.losing = losing
            await append(store, f"after-{losing}")
        assert ["e1", "after-1", "after-2"] == [entry.id for entry in await store.read(KEY, 0, 9)]
        bridge.losing = 3
        with pytest.raises(StoreUnavailable, match="got status 502"):
            await append(store, "never")
        assert 4 == await append(store, "e4")


def unauthorized() -> Response:
    return JSONResponse({"error": "WRONGPASS invalid or missing auth token"}, 401)


@pytest.mark.parametrize(
    ("reply", "kind", "says"),
    [
        (lambda: JSONResponse({"error": "ERR max requests limit exceeded. Limit: 1"}, 400), StoreUnavailable, "limit"),
        (lambda: JSONResponse({"error": "OOM command not allowed"}, 400), StoreUnavailable, "OOM"),
        (lambda: JSONResponse({"error": "ERR user_script:1: oops"}, 400), StoreBroken, "oops"),
        (lambda: Response("slow down", 429), StoreUnavailable, "status 429"),
        (lambda: Response("bad gateway", 502), StoreUnavailable, "status 502"),
        (lambda: Response("<html>", 200), StoreBroken, "status 200"),
        (lambda: Response("gone", 404), StoreBroken, "status 404"),
        (lambda: JSONResponse([], 203), StoreBroken, "status 203"),
        (lambda: Response("", 307, {"location": "http://elsewhere"}), StoreBroken, "status 307"),
        (unauthorized, StoreBroken, "check the token"),
    ],
)
async def test_what_is_no_answer_is_unavailable_or_broken(
    bridge: Bridge, reply: Any, kind: type[Exception], says: str
) -> None:
    async with Opened(UpstashStore(bridge.url, TOKEN)) as store:
        bridge.instead = reply
        with pytest.raises(kind, match=says):
            await append(store, "e1")
        bridge.instead = None
        assert 1 == await append(store, "e2")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("LOADING Redis is loading the dataset in memory", StoreUnavailable),
        ("READONLY You can't write against a read only replica.", StoreUnavailable),
        ("Error running script (call to f_1): @user_script:1: @user_script: 1: -OOM command not", StoreUnavailable),
        ("CLUSTERDOWN The cluster is down", StoreUnavailable),
        ("TRYAGAIN Multiple keys request during rehashing of slot", StoreUnavailable),
        ("MASTERDOWN Link with MASTER is down", StoreUnavailable),
        ("BUSY Redis is busy running a script.", StoreUnavailable),
        ("MISCONF Redis is configured to save RDB snapshots", StoreUnavailable),
        ("NOREPLICAS Not enough good replicas to write.", StoreUnavailable),
        ("ERR max number of clients reached", StoreUnavailable),
        ("NOAUTH Authentication required.", StoreBroken),
        ("WRONGPASS invalid username-password pair", StoreBroken),
        ("NOPERM this user has no permissions", StoreBroken),
        ("MOVED 3999 127.0.0.1:6381", StoreBroken),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", StoreBroken),
        ("ERR unknown command", StoreBroken),
    ],
)
def test_what_an_error_of_the_server_means(text: str, kind: type[Exception]) -> None:
    assert kind is type(refusal("redis://here", text))


async def test_the_token_is_never_shown(bridge: Bridge, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secret = "hunter2-is-secret"
    store = UpstashStore(bridge.url, secret)
    with pytest.raises(StoreBroken) as caught:
        await store.open()
    await store.close()
    gone = UpstashStore("http://127.0.0.1:1", secret)
    with pytest.raises(StoreUnavailable) as lost:
        await gone.open()
    await gone.close()
    for text in (repr(store), repr(caught.value), repr(lost.value), repr(caught.value.__cause__), caplog.text):
        assert secret not in text


@pytest.mark.parametrize(
    ("url", "token", "says"),
    [
        ("redis://host", TOKEN, "expected an http"),
        ("https://", TOKEN, "expected an http"),
        ("https://user:secret@host", TOKEN, "expected a URL without a user"),
        ("https://host", "", "expected the REST token"),
        ("https://host", "a\nb", "expected the REST token"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(url: str, token: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        UpstashStore(url, token)


async def test_without_httpx_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    store = UpstashStore("http://127.0.0.1:1", TOKEN)
    with pytest.raises(ConfigurationError, match=r'install "a2\[upstash\]"'):
        await store.open()
    await store.close()


async def test_text_that_is_not_unicode_is_refused(bridge: Bridge) -> None:
    async with Opened(UpstashStore(bridge.url, TOKEN)) as store:
        with pytest.raises(StoreBroken, match="surrogate"):
            await append(store, "\ud83d")
        assert [] == await store.read(KEY, 0, 9)


async def test_a_database_that_is_gone_is_unavailable_and_used_when_it_is_back(
    server: RedisServer, bridge: Bridge
) -> None:
    async with Opened(UpstashStore(bridge.url, TOKEN)) as store:
        await append(store, "e1")
        server.kill()
        with pytest.raises(StoreUnavailable, match="status 500"):
            await append(store, "e2")
        server.start()
        assert 2 == await append(store, "e3")


def test_a_script_is_named_as_redis_names_it(server: RedisServer) -> None:
    client = server.client()
    every = [script for script in vars(scripts).values() if isinstance(script, scripts.Script)]
    assert [script.sha.encode() for script in every] == [client("SCRIPT", "LOAD", script.text) for script in every]
    client.close()
