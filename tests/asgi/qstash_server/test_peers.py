"""The official clients and receivers, Python and JavaScript, over real loopback sockets."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from qstash import AsyncQStash, QStash
from qstash.errors import DailyMessageLimitExceededError, QStashError, RateLimitExceededError
from qstash.log import LogState
from qstash.message import BatchResponse, EnqueueResponse, Message, PublishResponse

from a2asgi.development import DEVELOPMENT_TOKEN
from tests.asgi.qstash_server.processes import Command, Hook, run

ROOT = Path(__file__).parents[3]
JAVASCRIPT = Path(__file__).parent / "javascript"
MODULES = ROOT / "build" / "peers"
"""Where npm installs the JavaScript client: a folder that git ignores and `make clean` removes."""

STEPS = ["publish", "delay", "dedup", "batch", "queue", "dlq", "schedules", "cancel", "logs", "errors"]


@contextmanager
def python_client(server: Command) -> Iterator[QStash]:
    """The official client, which itself has no way to close."""
    client = QStash(DEVELOPMENT_TOKEN, base_url=server.url, retry=False)
    with client.http._client:  # noqa: SLF001 - see above
        yield client


def test_the_python_client_publishes_delays_repeats_and_cancels() -> None:
    with Command("--db", ":memory:", "--time-travel") as server, Hook() as hook, python_client(server) as client:
        now = client.message.publish_json(url=f"{hook.origin}/now", body={"é": 1}, headers={"X-A": "b"}, retries=1)
        assert isinstance(now, PublishResponse)
        path, headers, body = hook.next()
        assert ("/now", b'{"\\u00e9": 1}') == (path, body)
        named = (headers["upstash-message-id"], headers["x-a"], headers["content-type"])
        assert (now.message_id, "b", "application/json") == named

        late = client.message.publish(url=f"{hook.origin}/late", body="x", delay="1h", deduplication_id="once")
        again = client.message.publish(url=f"{hook.origin}/late", body="x", delay="1h", deduplication_id="once")
        assert isinstance(late, PublishResponse)
        assert isinstance(again, PublishResponse)
        assert (late.message_id, True) == (again.message_id, again.deduplicated)
        shown = client.message.get(late.message_id)
        assert isinstance(shown, Message)
        assert 3_600_000 == shown.not_before - shown.created_at
        server.travel("1h")
        assert "/late" == hook.next()[0]

        ids = [client.message.publish(url=hook.origin, delay="1d") for _ in range(4)]
        first, second, third, _ = [each.message_id for each in ids if isinstance(each, PublishResponse)]
        client.message.cancel(first)
        assert 2 == client.message.cancel_many([second, third, "msg_unknown"])
        assert 1 == client.message.cancel_all()
        with pytest.raises(QStashError, match="404"):
            client.message.get(first)


def test_the_python_client_batches_queues_schedules_and_reads_logs() -> None:
    with Command("--db", ":memory:", "--time-travel") as server, Hook() as hook, python_client(server) as client:
        batch = client.message.batch_json(
            [
                {
                    "url": f"{hook.origin}/b",
                    "body": 1,
                    "redact": {"body": True, "header": ["X-A"]},
                    "headers": {"X-A": "b"},
                },
                {"url": f"{hook.origin}/b", "body": 2, "queue": "line"},
            ]
        )
        assert [BatchResponse] * 2 == [type(each) for each in batch]
        assert {b"1", b"2"} == {hook.next()[2] for _ in range(2)}

        client.queue.upsert("line", parallelism=1, paused=True)
        made = client.message.enqueue_json(queue="line", url=f"{hook.origin}/q", body=3)
        assert isinstance(made, EnqueueResponse)
        assert (1, True) == ((queue := client.queue.get("line")).lag, queue.paused)
        client.queue.resume("line")
        assert "/q" == hook.next()[0]
        assert ["line"] == [each.name for each in client.queue.list()]
        client.queue.delete("line")

        schedule = client.schedule.create(destination=f"{hook.origin}/tick", cron="* * * * *", body="t", retries=2)
        client.schedule.pause(schedule)
        assert client.schedule.get(schedule).paused
        client.schedule.resume(schedule)
        server.travel("1m")
        assert schedule == hook.next()[1]["upstash-schedule-id"]
        assert [schedule] == [each.schedule_id for each in client.schedule.list()]
        client.schedule.delete(schedule)

        keys = client.signing_key.get()
        assert keys.next == client.signing_key.rotate().current
        created = client.log.list(filter={"message_id": made.message_id, "state": LogState.CREATED}).logs
        assert [made.message_id] == [entry.message_id for entry in created]


def test_the_python_client_handles_dead_letters_and_limits() -> None:
    with Command("--db", ":memory:", "--time-travel") as server, Hook() as hook, python_client(server) as client:
        hook.status = 500
        for number in range(2):
            client.message.publish(url=f"{hook.origin}/dead", body=str(number), retries=0, label="peer")
            hook.next()
        client.message.publish(url=f"{hook.origin}/dead", retries=1, retry_delay="3600000")
        assert "0" == hook.next()[1]["upstash-retried"]
        server.travel("1h")
        assert "1" == hook.next()[1]["upstash-retried"]
        letters = client.dlq.list(filter={"label": "peer"}).messages
        for _ in range(1_000):  # an outcome is written a moment after the destination answered
            if len(letters) == 2:
                break
            letters = client.dlq.list(filter={"label": "peer"}).messages
        assert [500, 500] == [letter.response_status for letter in letters]
        assert "0" == client.dlq.get(letters[0].dlq_id).body
        client.dlq.delete(letters[0].dlq_id)
        assert 1 == client.dlq.delete_many([letters[1].dlq_id, "unknown"])
        for url, text in (("example.com", "invalid scheme, add http:// or https://"), ("undefined", "invalid scheme")):
            with pytest.raises(QStashError, match=text):
                client.message.publish(url=url)
        with pytest.raises(QStashError, match="cannot contain ':'"):
            client.message.publish(url=hook.origin, deduplication_id="a:b")
        with pytest.raises(QStashError, match="413"):
            client.message.publish(url=hook.origin, body=b"x" * 1_048_577)
        with pytest.raises(QStashError, match="401"):
            client.http.request(path="/v2/keys", method="GET", token="Bearer other")


@pytest.mark.parametrize(
    ("limit", "error"),
    [("--daily-limit", DailyMessageLimitExceededError), ("--burst-limit", RateLimitExceededError)],
)
def test_23_the_python_client_tells_the_limits_apart(limit: str, error: type[Exception]) -> None:
    with Command("--db", ":memory:", limit, "0") as server, python_client(server) as client, pytest.raises(error):
        client.message.publish(url="http://127.0.0.1:1")


async def test_the_asynchronous_python_client_is_served_as_well() -> None:
    with Command("--db", ":memory:", "--time-travel") as server, Hook() as hook:
        client = AsyncQStash(DEVELOPMENT_TOKEN, base_url=server.url, retry=False)
        answer = await client.message.publish_json(url=f"{hook.origin}/now", body=[1])
        assert isinstance(answer, PublishResponse)
        assert b"[1]" == hook.next()[2]
        late = await client.message.publish(url=hook.origin, delay=60)
        assert isinstance(late, PublishResponse)
        assert 60_000 == (shown := await client.message.get(late.message_id)).not_before - shown.created_at
        assert 1 == await client.message.cancel_all()
        schedule = await client.schedule.create(destination=hook.origin, cron="0 0 * * *")
        assert [schedule] == [each.schedule_id for each in await client.schedule.list()]
        assert [] == (await client.dlq.list()).messages
        with pytest.raises(QStashError, match="404"):
            await client.dlq.get("0-0")
        await client.http._client.aclose()  # noqa: SLF001 - the client itself has no way to close


if shutil.which("node") and shutil.which("npm"):  # conftest.py says so where they are not

    def test_the_javascript_client_finds_the_server_and_is_served() -> None:
        MODULES.mkdir(parents=True, exist_ok=True)
        shutil.copy(JAVASCRIPT / "package.json", MODULES)
        if not (MODULES / "node_modules" / "@upstash" / "qstash" / "package.json").exists():
            installed = run(["npm", "install", "--no-audit", "--no-fund", "--prefix", MODULES])
            assert 0 == installed.returncode, installed.stderr
        with Command("--db", ":memory:", "--time-travel") as server:
            peer = run(
                ["node", JAVASCRIPT / "peer.mjs"],
                QSTASH_DEV_PORT=str(server.port),
                PEER_MODULES=str(MODULES),
                PEER_TOKEN=DEVELOPMENT_TOKEN,
                NODE_ENV="test",
            )
            assert STEPS == peer.stdout.split("\n")[-len(STEPS) - 1 : -1], peer.stdout + peer.stderr
            assert 0 == peer.returncode, peer.stderr
