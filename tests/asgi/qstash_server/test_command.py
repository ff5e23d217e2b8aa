"""The command: what it refuses, what it prints, and that a killed server loses nothing."""

import base64
import signal
import sqlite3
import sys
from pathlib import Path

import anyio
import httpx
import pytest

from a2asgi.__main__ import main as a2
from a2asgi.development import DEVELOPMENT_TOKEN
from a2asgi.errors import StoreBroken, StoreUnavailable
from a2asgi.qstash_server.__main__ import main, parser, settings_of
from a2asgi.qstash_server.store import Store
from tests.asgi.qstash_server.houses import House
from tests.asgi.qstash_server.processes import Command, Hook

OWN = {
    "QSTASH_TOKEN": "token-of-our-own",
    "QSTASH_CURRENT_SIGNING_KEY": "sig_" + "a" * 28,
    "QSTASH_NEXT_SIGNING_KEY": "sig_" + "b" * 28,
}


def test_a_killed_server_loses_nothing(tmp_path: Path) -> None:
    options = ("--db", str(tmp_path / "deep" / "q.sqlite3"), "--time-travel")
    with Hook() as hook:
        with Command(*options) as server:
            late = server.post(f"/v2/publish/{hook.origin}/late", upstash_delay="1h").json()["messageId"]
            hook.status = 500
            dead = server.post(f"/v2/publish/{hook.origin}/dead", upstash_retries="0", upstash_delay="1ms")
            server.post(f"/v2/schedules/{hook.origin}/tick", upstash_cron="0 0 1 1 *", upstash_schedule_id="s")
            server.post(f"/v2/enqueue/line/{hook.origin}/queued", upstash_delay="1h")
            assert "/dead" == hook.next()[0]
            again = server.post(f"/v2/publish/{hook.origin}/once", upstash_deduplication_id="once", upstash_delay="1h")
            server.stop(signal.SIGKILL)
        hook.status = 200
        with Command(*options) as server:
            bearer = {"authorization": f"Bearer {DEVELOPMENT_TOKEN}"}
            shown = httpx.get(f"{server.url}/v2/messages/{late}", headers=bearer, trust_env=False).json()
            assert late == shown["messageId"]
            assert (
                "s" == httpx.get(f"{server.url}/v2/schedules/s", headers=bearer, trust_env=False).json()["scheduleId"]
            )
            repeated = server.post(f"/v2/publish/{hook.origin}/once", upstash_deduplication_id="once")
            assert (202, again.json()["messageId"]) == (repeated.status_code, repeated.json()["messageId"])
            # The kill came before or after the outcome of /dead was written: then it is dead, or it is tried again.
            letters = httpx.get(f"{server.url}/v2/dlq", headers=bearer, trust_env=False).json()["messages"]
            if [dead.json()["messageId"]] != [letter["messageId"] for letter in letters]:
                assert "/dead" == hook.next()[0]
            server.travel("1h")
            assert {"/late", "/queued", "/once"} == {hook.next()[0] for _ in range(3)}


async def test_an_attempt_that_a_killed_server_had_under_way_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "q.sqlite3"
    async with House(path=path) as house:
        house.destinations.held["/hook"] = anyio.Event()
        house.destinations.held["/gone"] = anyio.Event()
        kept = await house.publish()
        gone = await house.publish("https://e.com/gone")
        await house.arrivals(2)
        await house.call("DELETE", f"/v2/messages/{gone['messageId']}")
    async with House(path=path) as house:
        await house.settled()
        [delivery] = house.destinations.seen
        assert (kept["messageId"], 0) == (delivery.headers["upstash-message-id"], delivery.retried)
        assert "CANCELED" == (await house.states(gone["messageId"]))[-1]


async def test_rotated_keys_outlive_a_restart(tmp_path: Path) -> None:
    async with House(path=tmp_path / "q.sqlite3") as house:
        rotated = await house.call("POST", "/v2/keys/rotate")
    async with House(path=tmp_path / "q.sqlite3") as house:
        assert rotated == await house.call("GET", "/v2/keys")


async def test_a_file_serves_one_server_and_only_its_own_schema(tmp_path: Path) -> None:
    path = tmp_path / "q.sqlite3"
    first, second = Store(path), Store(path)
    await first.open()
    with pytest.raises(StoreUnavailable, match="another process"):
        await second.open()
    await second.close()
    await first.close()
    with pytest.raises(StoreUnavailable, match="not open"):
        await first.run(lambda _: None)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    for broken in (path, tmp_path / "q.sqlite3" / "below", tmp_path):
        store = Store(broken)
        with pytest.raises((StoreBroken, StoreUnavailable)):
            await store.open()
        await store.close()


def test_the_banner_tells_public_credentials_and_keeps_others(tmp_path: Path) -> None:
    with Command("--db", ":memory:") as server:
        assert "QStash-compatible server is running at http://127.0.0.1:" in server.banner
        assert "Time travel" not in server.banner
        assert server.process.stdout is not None
        assert f"QSTASH_TOKEN={DEVELOPMENT_TOKEN}\n" == server.process.stdout.readline()
        assert 404 == server.post("/time-travel", {"by": "1h"}).status_code
        written = server.stop()
        assert DEVELOPMENT_TOKEN not in written
    with Command("--db", str(tmp_path / "own.sqlite3"), "--host", "0.0.0.0", environ=OWN) as server:  # noqa: S104 - the point
        assert server.process.stdout is not None
        rest = server.process.stdout.readline()
        assert not any(secret in server.banner + rest for secret in OWN.values())


@pytest.mark.parametrize(
    ("arguments", "environ", "text"),
    [
        (["--host", "0.0.0.0"], {}, "loopback only"),  # noqa: S104 - refused
        ([], {"QSTASH_TOKEN": "alone"}, "all of"),
        ([], {**OWN, "QSTASH_NEXT_SIGNING_KEY": "short"}, "at least 32 bytes"),
        (["--retention", "soon"], {}, "expected a duration"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    arguments: list[str],
    environ: dict[str, str],
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in OWN:
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert 2 == main(arguments)
    assert text in capsys.readouterr().err


def test_the_public_credentials_are_the_documented_ones() -> None:
    settings = settings_of(parser().parse_args([]), {})
    assert b'{"UserID":"defaultUser","Password":"defaultPassword"}' == base64.b64decode(settings.credentials.token)
    assert settings.credentials.are_public


def test_a2_runs_its_command_or_tells_what_there_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in OWN:
        monkeypatch.delenv(name, raising=False)
    assert (0, 2, 2) == (a2(["--help"]), a2([]), a2(["other"]))
    assert 2 == a2(["qstash", "--host", "0.0.0.0"])  # noqa: S104 - refused
    assert "loopback only" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "a2asgi.qstash_server.__main__", None)
    assert 2 == a2(["qstash"])
    assert "pip install 'a2[qstash-server]'" in capsys.readouterr().err
