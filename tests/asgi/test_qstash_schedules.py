"""QStash's schedules follow an app's crons: a server of our own holds them, over real sockets."""

import logging
import re
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import unquote

import anyio
import httpx
import pytest
from anyio import to_thread
from qstash import AsyncQStash
from qstash import QStash as OfficialQStash

from a2asgi import ConfigurationError, InvalidName, QStash, SendFailed
from a2asgi.development import DEVELOPMENT_KEYS, DEVELOPMENT_TOKEN
from a2asgi.schedulers.qstash_schedules import Schedule, SyncReport
from a2core import Callback, trigger_url
from tests.asgi.provider import URL
from tests.asgi.qstash_server.processes import Command, Hook
from tests.asgi.test_qstash_clients import close

BEARER = {"authorization": f"Bearer {DEVELOPMENT_TOKEN}"}
DAILY = Schedule("daily", "0 9 * * mon-fri", "Europe/Berlin")
HOURLY = Schedule("hourly", "0 * * * *")
TRIGGERS = "https://app.example.com/api/a2/cron"
SECRET_URL = "https://u:hunter1@app.example.com/api/a2/scheduler?bypass=hunter2"
LOOPBACK: dict[str, Any] = {"trust_env": False, "verify": ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)}
"""Options of clients that read neither proxies nor certificates, which takes long."""

SECRETS = ("hunter1", "hunter2", "hunter3", DEVELOPMENT_TOKEN)


@pytest.fixture(scope="module")
def running() -> Iterator[Command]:
    """One server for all tests of this room."""
    with Command("--db", ":memory:", "--time-travel") as command:
        yield command


@pytest.fixture
def server(running: Command) -> Command:
    """The server, without a schedule."""
    for each in listed(running):
        httpx.delete(f"{running.url}/v2/schedules/{each['scheduleId']}", headers=BEARER, **LOOPBACK)
    return running


class Line(httpx.AsyncBaseTransport):
    """The way to the server. It counts what changes something, and answers in the server's place as a test says."""

    def __init__(self, answer: Callable[[httpx.Request], httpx.Response | None] = lambda _: None) -> None:
        self.answer = answer
        self.writes: list[str] = []
        self._inner = httpx.AsyncHTTPTransport(**LOOPBACK)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.method != "GET":
            self.writes.append(request.method)
        return self.answer(request) or await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        await self._inner.aclose()


def scheduler(server: Command, **options: Any) -> QStash:
    keys = {"current_signing_key": DEVELOPMENT_KEYS[0], "next_signing_key": DEVELOPMENT_KEYS[1]}
    return QStash(**{"url": URL, "base_url": server.url, "environment": {}, **keys, **options})


@asynccontextmanager
async def over(line: Line, server: Command, **options: Any) -> AsyncIterator[QStash]:
    """A scheduler whose calls take this line."""
    async with httpx.AsyncClient(transport=line, headers=BEARER) as client:
        yield scheduler(server, client=client, **options)


async def synced(server: Command, *wanted: Schedule, **options: Any) -> SyncReport:
    """What one more call does."""
    async with over(Line(), server, **options) as sender:
        return await sender.sync_schedules(wanted)


def listed(server: Command) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = httpx.get(f"{server.url}/v2/schedules", headers=BEARER, **LOOPBACK).json()
    return found


def add(server: Command, schedule_id: str, destination: str, body: str = "", **headers: str) -> None:
    """A schedule that someone else made."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    named = BEARER | {"upstash-schedule-id": schedule_id, "upstash-cron": "0 0 1 1 *"} | named
    answer = httpx.post(f"{server.url}/v2/schedules/{destination}", content=body, headers=named, **LOOPBACK)
    assert 200 == answer.status_code


# ── in step ──────────────────────────────────────────────────────────────────────────────


async def test_schedules_are_created_as_a_message_would_be_published(server: Command) -> None:
    """Destination, method, retries, zone and hidden headers are those of the scheduler; the id is stable."""
    report = await synced(server, DAILY, Schedule("täglich, 9", " 0  9 * * * "), retries=2, headers={"X-Bypass": "b"})
    assert SyncReport(created=("daily", "täglich, 9")) == report
    berlin, utc = listed(server)
    assert ("a2-daily-057779a713d36fe7", "CRON_TZ=Europe/Berlin 0 9 * * mon-fri", "POST", 2, False) == (
        berlin["scheduleId"],
        berlin["cron"],
        berlin["method"],
        berlin["retries"],
        berlin["isPaused"],
    )
    assert (f"{TRIGGERS}/daily", f"{TRIGGERS}/t%C3%A4glich%2C%209", "0 9 * * *") == (
        berlin["destination"],
        utc["destination"],
        utc["cron"],
    )
    assert re.fullmatch("a2-t-glich-9-[0-9a-f]{16}", utc["scheduleId"])
    assert ["application/json"] == berlin["header"]["Content-Type"]
    assert berlin["header"]["X-Bypass"][0].startswith("REDACTED:")


async def test_a_second_call_writes_nothing(server: Command) -> None:
    line = Line()
    async with over(line, server, url=SECRET_URL, headers={"x-bypass": "b"}) as sender:
        assert SyncReport(created=("daily", "hourly")) == await sender.sync_schedules([DAILY, HOURLY])
        assert SyncReport(kept=("hourly", "daily")) == await sender.sync_schedules([HOURLY, DAILY])
    assert ["POST", "POST"] == line.writes


@pytest.mark.parametrize(
    ("changed", "options"),
    [
        pytest.param(Schedule("daily", "30 9 * * mon-fri", "Europe/Berlin"), {}, id="expression"),
        pytest.param(Schedule("daily", "0 9 * * mon-fri", "Asia/Tokyo"), {}, id="zone"),
        pytest.param(Schedule("daily", "0 9 * * mon-fri"), {}, id="utc"),
        pytest.param(DAILY, {"retries": 5}, id="retries"),
        pytest.param(DAILY, {"retries": None}, id="the-providers-retries"),
        pytest.param(DAILY, {"headers": {"x-bypass": "another"}}, id="header"),
        pytest.param(DAILY, {"headers": ()}, id="no-header"),
        pytest.param(DAILY, {"url": f"{URL}?bypass=another"}, id="query"),
        pytest.param(DAILY, {"url": URL.replace("//", "//user:pass@")}, id="user"),
    ],
)
async def test_what_changed_is_overwritten(server: Command, changed: Schedule, options: dict[str, Any]) -> None:
    """One schedule stays one, be it a secret alone that changed; the next call finds it as it is to be."""
    first = {"retries": 2, "headers": {"x-bypass": "b"}, "url": f"{URL}?bypass=b"}
    await synced(server, DAILY, **first)
    [before] = listed(server)
    assert SyncReport(updated=("daily",)) == await synced(server, changed, **first | options)
    [after] = listed(server)
    assert before["scheduleId"] == after["scheduleId"]
    assert changed.expression == after["cron"]
    assert SyncReport(kept=("daily",)) == await synced(server, changed, **first | options)


@pytest.mark.parametrize(
    "edit",
    [
        pytest.param({"upstash_cron": "0 0 * * *"}, id="expression"),
        pytest.param({"upstash_method": "GET"}, id="method"),
        pytest.param({"upstash_retries": "9"}, id="retries"),
        pytest.param({"destination": f"{TRIGGERS}/daily"}, id="destination"),
        pytest.param({"body": "another"}, id="body"),
    ],
)
async def test_what_others_changed_is_put_right(server: Command, edit: dict[str, str]) -> None:
    """A schedule that was edited by hand is as defined after the next call."""
    await synced(server, HOURLY, retries=2)
    [before] = listed(server)
    as_it_was = {"upstash_cron": before["cron"], "upstash_retries": "2"}
    as_it_was |= {"destination": before["destination"], "body": before["body"]}
    add(server, before["scheduleId"], **as_it_was)
    assert SyncReport(kept=("hourly",)) == await synced(server, HOURLY, retries=2)
    add(server, before["scheduleId"], **as_it_was | edit)
    assert SyncReport(updated=("hourly",)) == await synced(server, HOURLY, retries=2)
    [after] = listed(server)
    for name in ("destination", "cron", "method", "retries", "body"):
        assert before[name] == after[name]


async def test_what_is_not_wanted_any_more_is_removed_first(server: Command) -> None:
    """So a full account has room for what is new."""
    await synced(server, DAILY, HOURLY)
    line = Line()
    async with over(line, server) as sender:
        report = await sender.sync_schedules([Schedule("weekly", "0 9 * * 1"), HOURLY])
    assert SyncReport(created=("weekly",), removed=("daily",), kept=("hourly",)) == report
    assert ["DELETE", "POST"] == line.writes
    assert SyncReport(removed=("hourly", "weekly")) == await synced(server)
    assert [] == listed(server)


async def test_what_someone_else_removed_meanwhile_is_removed(server: Command) -> None:
    """Two processes may start at once."""
    await synced(server, DAILY)

    def faster(request: httpx.Request) -> None:
        if request.method == "DELETE":
            httpx.delete(str(request.url), headers=BEARER, **LOOPBACK)

    async with over(Line(faster), server) as sender:
        assert SyncReport(removed=("daily",)) == await sender.sync_schedules([])


async def test_a_paused_schedule_stays_paused_until_its_definition_changes(
    server: Command, caplog: pytest.LogCaptureFixture
) -> None:
    await synced(server, DAILY)
    [before] = listed(server)
    assert 200 == server.post(f"/v2/schedules/{before['scheduleId']}/pause").status_code
    assert SyncReport(kept=("daily",)) == await synced(server, DAILY)
    assert [True] == [each["isPaused"] for each in listed(server)]
    with caplog.at_level(logging.WARNING, "a2asgi"):
        assert SyncReport(updated=("daily",)) == await synced(server, Schedule("daily", "1 1 * * *"))
        assert SyncReport(updated=("daily",)) == await synced(server, Schedule("daily", "2 2 * * *"))
    assert [False] == [each["isPaused"] for each in listed(server)]
    assert ["cron 'daily': its schedule was paused; with its new definition it may run again"] == caplog.messages


async def test_a_delivery_is_signed_for_its_trigger(server: Command) -> None:
    """The tick arrives at the trigger's URL, with the headers, and is verified for that URL alone."""
    with Hook() as hook:
        url = f"{hook.origin}/api/a2/scheduler?bypass=b"
        async with over(Line(), server, url=url, headers={"x-door": "open"}) as sender:
            await sender.sync_schedules([Schedule("every minute", "* * * * *")])
            server.travel("1m")
            path, headers, body = await to_thread.run_sync(hook.next)
            trigger = trigger_url(Callback(url), "every minute")
            assert ("/api/a2/cron/every%20minute?bypass=b", "open") == (path, headers["x-door"])
            signed = (headers["upstash-signature"], body, headers.get("upstash-region"))
            assert sender.verify(*signed, url=trigger)
            assert not sender.verify(*signed)
            assert not sender.verify(*signed, url=trigger_url(Callback(url), "another"))
            await sender.sync_schedules([])


# ── what is not ours ─────────────────────────────────────────────────────────────────────


async def test_schedules_of_others_are_never_touched(server: Command) -> None:
    """Whether by its id or by its destination, what may be another's is left alone."""
    await synced(server, DAILY)
    foreign = {
        "a2-other-host": "https://other.example.com/api/a2/cron/daily",
        "a2-other-port": "https://app.example.com:8443/api/a2/cron/daily",
        "a2-other-scheme": "http://app.example.com/api/a2/cron/daily",
        "a2-user-as-host": "https://app.example.com@other.example.com/api/a2/cron/daily",
        "a2-longer-host": "https://app.example.com.other.example.com/api/a2/cron/daily",
        "a2-other-prefix": "https://app.example.com/other/cron/daily",
        "a2-beside": "https://app.example.com/api/a2/maintenance/daily",
        "a2-in-query": f"https://other.example.com/?{TRIGGERS}/daily",
        "a2-callback": URL,
        "scd_7YoFnM": f"{TRIGGERS}/daily",
        "my-a2-daily": f"{TRIGGERS}/daily",
        "A2-daily": f"{TRIGGERS}/daily",
    }
    for schedule_id, destination in foreign.items():
        add(server, schedule_id, destination)
    before = listed(server)
    strange = [
        {"scheduleId": "a2-group", "destination": "a-url-group"},
        {"scheduleId": "a2-no-url", "destination": "https://app_[example.com"},
        {"scheduleId": "a2-above", "destination": f"{TRIGGERS}/../daily"},
        {"scheduleId": "a2-/../a2-daily", "destination": f"{TRIGGERS}/daily"},
        {"scheduleId": "a2-nowhere"},
        {"scheduleId": None},
        None,
        "a2-text",
    ]

    def with_strange(request: httpx.Request) -> httpx.Response | None:
        return httpx.Response(200, json=[*before, *strange]) if request.method == "GET" else None

    async with over(Line(with_strange), server) as sender:
        assert SyncReport(kept=("daily",)) == await sender.sync_schedules([DAILY])
        assert before == listed(server)
        assert SyncReport(removed=("daily",)) == await sender.sync_schedules([])
    assert before[1:] == listed(server)


async def test_what_is_ours_and_tells_no_cron_is_removed_by_its_id(server: Command) -> None:
    """Such as one that an earlier version named otherwise: two schedules would trigger one cron."""
    for schedule_id, name in (("a2-old-daily", "daily"), ("a2-deep", "a/b"), ("a2-empty", "")):
        add(server, schedule_id, f"{TRIGGERS}/{name}?old-secret")
    report = await synced(server, DAILY)
    assert SyncReport(created=("daily",), removed=("a2-deep", "a2-empty", "a2-old-daily")) == report


async def test_two_apps_share_an_account(server: Command) -> None:
    """Crons of one name in two apps are two schedules, and neither app sees the other's."""
    other = "https://staging.example.com/api/a2/scheduler"
    assert SyncReport(created=("daily",)) == await synced(server, DAILY)
    assert SyncReport(created=("daily",)) == await synced(server, DAILY, url=other)
    assert 2 == len({each["scheduleId"] for each in listed(server)})
    assert SyncReport(removed=("daily",)) == await synced(server)
    assert ["https://staging.example.com/api/a2/cron/daily"] == [each["destination"] for each in listed(server)]


async def test_a_destination_may_be_shown_decoded(server: Command) -> None:
    """How the provider spells what it was given does not make it another schedule."""
    spaced = Schedule("täglich um 9", "0 9 * * *")
    await synced(server, spaced)
    shown = [each | {"destination": unquote(each["destination"])} for each in listed(server)]

    def decoded(request: httpx.Request) -> httpx.Response | None:
        return httpx.Response(200, json=shown) if request.method == "GET" else None

    line = Line(decoded)
    async with over(line, server) as sender:
        assert SyncReport(kept=("täglich um 9",)) == await sender.sync_schedules([spaced])
        assert [] == line.writes
        assert SyncReport(removed=("täglich um 9",)) == await sender.sync_schedules([])


# ── what goes wrong ──────────────────────────────────────────────────────────────────────


def refuse(status: int) -> Callable[[httpx.Request], httpx.Response | None]:
    """A provider that refuses what changes something, and quotes where it should have gone."""

    def answer(request: httpx.Request) -> httpx.Response | None:
        destination = str(request.url).partition("/v2/schedules/")[2]
        return httpx.Response(status, text=f"{destination}: no") if request.method == "POST" else None

    return answer


def unreachable(_: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError(SECRET_URL)


@pytest.mark.parametrize(
    ("answer", "terminal", "says"),
    [
        pytest.param(refuse(400), True, r"answered 400 to the schedule of cron 'daily' for .*\?bypass=\*", id="400"),
        pytest.param(refuse(412), True, "answered 412", id="full-account"),
        pytest.param(refuse(429), False, "answered 429", id="limit"),
        pytest.param(refuse(500), False, "answered 500", id="trouble"),
        pytest.param(lambda _: httpx.Response(401, text="no"), True, "401 to the request for its schedules", id="401"),
        pytest.param(lambda _: httpx.Response(503, text="no"), False, "answered 503", id="listing"),
        pytest.param(lambda _: httpx.Response(200, text="no"), False, "no list", id="no-json"),
        pytest.param(lambda _: httpx.Response(200, json={}), False, "no list", id="no-list"),
        pytest.param(lambda _: httpx.Response(200, text="[" * 200_000), False, "no list", id="nested"),
        pytest.param(unreachable, False, "ConnectError", id="network"),
    ],
)
async def test_a_failure_says_what_failed_and_no_secret(
    server: Command,
    answer: Callable[[httpx.Request], httpx.Response | None],
    terminal: bool,  # noqa: FBT001 - a row
    says: str,
) -> None:
    async with over(Line(answer), server, url=SECRET_URL, headers={"x-bypass": "hunter3"}) as sender:
        with pytest.raises(SendFailed, match=says) as failure:
            await sender.sync_schedules([DAILY])
    assert terminal is failure.value.terminal
    assert not any(secret in str(failure.value) for secret in SECRETS)


async def test_a_wrong_token_is_refused_for_good(server: Command) -> None:
    sender = scheduler(server, url=SECRET_URL, token="hunter3")
    with pytest.raises(SendFailed, match="401") as failure:
        await sender.sync_schedules([DAILY])
    await sender.close()
    assert failure.value.terminal
    assert not any(secret in str(failure.value) for secret in SECRETS)


async def test_each_call_is_bounded(server: Command) -> None:
    """A provider that hangs is left alone in time."""

    class Hanging:
        async def request(self, *_: object, **__: object) -> None:
            await anyio.sleep_forever()

    with anyio.fail_after(2), pytest.raises(SendFailed, match=r"request for its schedules within 0\.05 s") as failure:
        await scheduler(server, client=Hanging(), timeout="50ms").sync_schedules([DAILY])
    assert not failure.value.terminal


async def test_it_stops_at_the_first_failure_and_another_call_does_the_rest(server: Command) -> None:
    """What was done is told, and not done again."""
    await synced(server, Schedule("old", "0 0 * * *"), DAILY)
    wanted = [Schedule("daily", "1 1 * * *"), HOURLY, Schedule("weekly", "0 9 * * 1"), Schedule("yearly", "0 0 1 1 *")]
    line = Line(lambda request: refuse(500)(request) if "/weekly" in str(request.url) else None)
    async with over(line, server) as sender:
        with pytest.raises(SendFailed) as failure:
            await sender.sync_schedules(wanted)
        assert [line.writes, False] == [["DELETE", "POST", "POST", "POST"], failure.value.terminal]
        says = "created ['hourly'], updated ['daily'] and removed ['old']; sync again for the rest"
        assert says in str(failure.value)
        line.answer = lambda _: None
        report = await sender.sync_schedules(wanted)
    assert SyncReport(created=("weekly", "yearly"), kept=("daily", "hourly")) == report


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        pytest.param(lambda: [HOURLY, HOURLY], ConfigurationError, "one of each name", id="twice"),
        pytest.param(lambda: [Schedule("..", "* * * * *")], InvalidName, "part of a URL", id="dots"),
        pytest.param(lambda: [Schedule("", "* * * * *")], InvalidName, "non-empty", id="empty"),
        pytest.param(lambda: [Schedule("a", "* * * *")], ConfigurationError, "five fields", id="four-fields"),
        pytest.param(lambda: [Schedule("a", "* * * * * *")], ConfigurationError, "five fields", id="six-fields"),
        pytest.param(lambda: [Schedule("a", "* * * * sün")], ConfigurationError, "five fields", id="no-ascii"),
        pytest.param(lambda: [Schedule("a", "* * * * *", "")], ConfigurationError, "Area/City", id="no-zone"),
        pytest.param(lambda: [Schedule("a", "* * * * *", "A B")], ConfigurationError, "Area/City", id="two-zones"),
    ],
)
async def test_what_could_never_be_a_schedule_is_refused_before_any_call(
    server: Command, make: Callable[[], list[Schedule]], error: type[Exception], says: str
) -> None:
    line = Line(unreachable)
    async with over(line, server) as sender:
        with pytest.raises(error, match=says):
            await sender.sync_schedules(make())
    assert [] == line.writes


# ── through which client ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "make_client",
    [
        pytest.param(lambda _: None, id="own"),
        pytest.param(lambda _: httpx.AsyncClient(headers=BEARER), id="httpx"),
        pytest.param(lambda url: AsyncQStash(DEVELOPMENT_TOKEN, base_url=url, retry=False), id="official-async"),
        pytest.param(lambda url: OfficialQStash(DEVELOPMENT_TOKEN, base_url=url, retry=False), id="official"),
    ],
)
async def test_any_client_will_do(server: Command, make_client: Callable[[str], Any]) -> None:
    client = make_client(server.url)
    token = DEVELOPMENT_TOKEN if client is None else None
    sender = scheduler(server, client=client, token=token, headers={"x-bypass": "b"}, retries=1)
    assert SyncReport(created=("daily", "hourly")) == await sender.sync_schedules([DAILY, HOURLY])
    assert SyncReport(removed=("hourly",), kept=("daily",)) == await sender.sync_schedules([DAILY])
    with pytest.raises(SendFailed, match=r"answered 400 .*field minute") as failure:
        await sender.sync_schedules([Schedule("daily", "61 * * * *")])
    assert failure.value.terminal
    await sender.close()
    if client is not None:
        await close(client)


async def test_a_client_that_only_publishes_is_named_with_what_to_pass(server: Command) -> None:
    class Publisher:
        message = None

    with pytest.raises(ConfigurationError, match=r"httpx\.AsyncClient.*got Publisher"):
        await scheduler(server, client=Publisher()).sync_schedules([])
