"""The server as an application: unknown things, its lifespan, its bounds, and a store that does not answer."""

from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from a2asgi.errors import ConfigurationError, StoreBroken, StoreUnavailable
from a2asgi.qstash_server import Credentials, QStashServer, Settings
from a2asgi.qstash_server.credentials import DEV_KEYS
from tests.asgi.qstash_server.houses import PATIENCE_S, URL, House


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v2/messages/msg_no"),
        ("DELETE", "/v2/messages/msg_no"),
        ("GET", "/v2/schedules/no"),
        ("DELETE", "/v2/schedules/no"),
        ("PATCH", "/v2/schedules/no/pause"),
        ("POST", "/v2/schedules/no/resume"),
        ("GET", "/v2/queues/no"),
        ("GET", "/v2/dlq/1-0"),
        ("DELETE", "/v2/dlq/1-0"),
        ("POST", "/v2/dlq/retry/1-0"),
        ("POST", "/v2/dlq/retry?dlqIds=1-0"),
        ("GET", "/v2/nothing"),
    ],
)
async def test_what_is_unknown_is_not_found(method: str, path: str) -> None:
    async with House() as house:
        assert ["error"] == list(await house.call(method, path, 404))


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v2/queues", {"queueName": "a b", "parallelism": 1}, 400),
        ("POST", "/v2/queues", {"queueName": "q", "parallelism": 0}, 400),
        ("POST", "/v2/queues", {"queueName": "q", "parallelism": True}, 400),
        ("POST", "/v2/queues", {"queueName": "q", "parallelism": 1, "paused": "yes"}, 400),
        ("POST", "/v2/queues", {"queueName": "q", "parallelism": 10_000}, 412),
        ("POST", "/v2/queues", [], 400),
        ("GET", "/v2/queues/a%20b", None, 400),
        ("POST", "/v2/enqueue/a%20b/https://e.com", None, 400),
        ("DELETE", "/v2/messages", {"ids": []}, 400),
        ("DELETE", "/v2/dlq", "x", 400),
        ("GET", "/v2/logs?fromDate=today", None, 400),
        ("GET", "/v2/dlq?cursor=-1", None, 400),
        ("POST", f"/v2/schedules/{URL}", None, 400),
        ("PUT", "/v2/keys", None, 405),
        ("POST", "/v2/batch", [{"destination": URL, "headers": [1]}], 200),
        ("POST", "/v2/batch", '[{"destination": "https://e.com", "body": "\\ud800"}]', 200),
        ("POST", "/v2/batch", '[{"destination": "https://e.com/\\ud800"}]', 200),
        ("POST", "/v2/batch", '[{"destination": "https://e.com", "headers": {"Upstash-Label": "\\ud800"}}]', 200),
        ("POST", "/v2/batch", [{"destination": URL, "headers": {"upstash-header-forward": "true", "a\nb": "c"}}], 200),
        ("DELETE", "/v2/messages", '{"messageIds": ["\\ud800"]}', 400),
        ("DELETE", "/v2/dlq", '{"dlqIds": ["\\ud800"]}', 400),
    ],
    ids=str,
)
async def test_what_cannot_be_meant_is_answered_with_an_error(method: str, path: str, body: Any, status: int) -> None:
    async with House() as house:
        answer = await house.call(method, path, status, body)
        assert ["error"] == list(answer[0] if isinstance(answer, list) else answer)


async def test_a_deleted_queue_takes_its_messages_along_and_its_callbacks_go_on_alone() -> None:
    async with House() as house:
        house.destinations.held["/a"] = anyio.Event()
        for path in ("a", "b"):
            await house.call("POST", f"/v2/enqueue/q/https://e.com/{path}", upstash_callback="https://e.com/told")
        await house.arrivals(1)
        await house.call("DELETE", "/v2/queues/q")
        house.destinations.held["/a"].set()
        await house.settled()
        assert ["/a", "/told"] == [httpx.URL(each.url).path for each in house.destinations.seen]
        assert [] == await house.call("GET", "/v2/queues")


async def test_a_paused_queue_waits_and_an_unknown_one_may_be_paused_beforehand() -> None:
    async with House() as house:
        await house.call("POST", "/v2/queues/q/pause")
        await house.call("POST", f"/v2/enqueue/q/{URL}")
        await house.after("1h")
        assert [] == house.destinations.seen
        await house.call("POST", "/v2/queues/q/resume")
        await house.settled()
        assert 1 == len(house.destinations.seen)


async def test_no_more_attempts_are_under_way_than_set() -> None:
    async with House(concurrency=2) as house:
        house.destinations.held["/hook"] = anyio.Event()
        for _ in range(5):
            await house.publish()
        await house.arrivals(2)
        assert 2 == len(await house.events(state="ACTIVE"))
        house.destinations.held["/hook"].set()
        await house.settled()
        assert 5 == len(house.destinations.seen)


async def test_what_a_destination_answers_is_cut_at_one_mebibyte() -> None:
    async with House() as house:
        house.destinations.answer("/hook", 500, "x" * 2_000_000)
        await house.publish(upstash_retries="0")
        await house.settled()
        [letter] = (await house.call("GET", "/v2/dlq"))["messages"]
        assert 1_048_576 == len(letter["responseBody"])


async def test_a_body_that_is_no_text_is_shown_as_base64_and_delivered_as_it_is() -> None:
    async with House() as house:
        answer = await house.publish(body=b"\xff\x00", upstash_delay="1s", upstash_method="put")
        shown = await house.call("GET", f"/v2/messages/{answer['messageId']}")
        assert ("/wA=", "PUT") == (shown["bodyBase64"], shown["method"])
        assert "body" not in shown


async def test_flow_control_is_shown_as_it_was_asked_for() -> None:
    async with House() as house:
        answer = await house.publish(
            upstash_delay="1s",
            upstash_flow_control_key="k",
            upstash_flow_control_value="parallelism=2, rate=3,period=1m",
        )
        shown = await house.call("GET", f"/v2/messages/{answer['messageId']}")
        assert ("k", 2, 3, 60) == tuple(shown[name] for name in ("flowControlKey", "parallelism", "rate", "period"))


async def test_a_store_that_does_not_answer_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with House() as house:
        await house.publish(upstash_delay="1s")
        await house.settled()
        run, broken = house.server._store.run, [True]  # noqa: SLF001 - where the world breaks

        async def failing(job: Any) -> Any:
            if broken:
                raise StoreUnavailable("disk full")
            return await run(job)

        monkeypatch.setattr(house.server._store, "run", failing)  # noqa: SLF001 - where the world breaks
        assert ["error"] == list(await house.call("GET", "/health", 503))
        house.clock.move_to(house.clock.now_ms() + 1_000)
        house.server.deliveries.wake()
        await anyio.wait_all_tasks_blocked()
        broken.clear()
        await house.after("1s")
        assert 1 == len(house.destinations.seen)


async def lived(server: QStashServer) -> list[MutableMapping[str, Any]]:
    """What a server tells its host from start to end."""
    told: list[MutableMapping[str, Any]] = []
    asked = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

    async def receive() -> MutableMapping[str, Any]:
        return next(asked)

    async def send(message: MutableMapping[str, Any]) -> None:
        told.append(message)

    with anyio.fail_after(PATIENCE_S):
        await server({"type": "lifespan"}, receive, send)
    return told


async def test_its_lifespan_opens_and_closes_it(tmp_path: Path) -> None:
    for _ in range(2):
        told = await lived(QStashServer(Settings(path=tmp_path / "q.sqlite3")))
        assert ["lifespan.startup.complete", "lifespan.shutdown.complete"] == [each["type"] for each in told]
    [failed] = await lived(QStashServer(Settings(path=tmp_path)))
    assert ("lifespan.startup.failed", True) == (failed["type"], str(tmp_path) in failed["message"])


def test_settings_that_do_not_fit_are_refused() -> None:
    wrongs: list[dict[str, Any]] = [{"concurrency": 0}, {"retention_ms": 0}, {"deduplication_window_ms": -1}]
    for wrong in wrongs:
        with pytest.raises(ConfigurationError):
            Settings(**wrong)
    with pytest.raises(ConfigurationError):
        Credentials("", DEV_KEYS)


async def test_a_bug_in_a_job_undoes_it_and_spoils_no_other() -> None:
    async with House() as house:
        store = house.server._store  # noqa: SLF001 - the seam under test

        def bug(conn: Any) -> None:
            conn.execute("INSERT INTO queues VALUES ('half', 1, 0, 0, 0)")
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await store.run(bug)
        with pytest.raises(StoreBroken):
            await store.run(lambda conn: conn.execute("SELECT nonsense"))
        assert [] == await house.call("GET", "/v2/queues")
