"""Other ways to trigger: Vercel Cron's bearer, a provider's signed messages, and maintenance tasks of no schedule."""

import logging
from typing import Any

import anyio
import pytest

from a2asgi import A2, ConfigurationError, JobContext, MemoryStore, SyncReport
from a2asgi.clock import SystemClock
from a2asgi.testing import World
from a2core import DrainTimings
from tests.asgi.provider import KEYS, URL, Provider, Reply, qstash, served
from tests.asgi.slots import MINUTE_MS, SECRET, Schedules, call, ms, reach, reporting, sign_and_call, signed, utc
from tests.asgi.support import Exchange, Served, http_scope
from tests.asgi.worlds import within

NINE = ms("2026-06-01T09:00")
BEARER = "hunter2-bearer"
SUCCEEDED = (200, {"status": "succeeded"})
DUPLICATE = (200, {"status": "duplicate"})
RUNNING = (202, {"status": "running"})
UNAUTHORIZED = (401, {"error": "invalid schedule signature"})
OUTSIDE = (400, {"error": "invalid cron slot"})
UNKNOWN = (404, {"error": "unknown cron"})

Headers = list[tuple[str, str]]


async def get(a2: A2, path: str = "/cron/report", headers: Headers | None = None) -> tuple[int, dict[str, str]]:
    """As Vercel Cron asks."""
    headers = [("Authorization", f"Bearer {BEARER}")] if headers is None else headers
    response = await call(served(a2), path, "GET", headers)
    return response.status_code, response.json()


def reach_time(world: World, time: str) -> None:
    world.clock.move_to(ms(f"2026-06-01T{time}"))


# ── Vercel Cron ──────────────────────────────────────────────────────────────────────────


@pytest.fixture
def bearer(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("CRON_SECRET", BEARER)
    return BEARER


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ("09:00:00", ["09:00"]),
        ("09:00:01", ["09:00"]),
        ("08:59:55", ["09:00"]),
        ("08:59:54.999", []),
        ("09:29:00", ["09:00"]),
        ("09:59:54", ["09:00"]),
        ("09:59:59", ["09:00"]),
        ("10:00:00", []),
        ("10:59:55", ["11:00"]),
        ("12:00:30", ["12:00"]),
    ],
)
async def test_a_bearer_asks_for_the_last_slot(bearer: str, now: str, expected: list[str]) -> None:
    """Late by up to an hour, or a few seconds early by our clock, as the provider's may be ahead of it."""
    a2, slots = reporting("0 9,11,12 1 6 *")
    async with a2.testing() as world:
        reach_time(world, now)
        answer = await get(a2)
    assert (SUCCEEDED if expected else OUTSIDE) == answer
    assert utc(*(f"06-01T{time}" for time in expected)) == slots


async def test_a_bearer_that_comes_twice_runs_a_slot_once(bearer: str) -> None:
    """Early, and again when it is time; the next slot is its own. The scheduler beside it runs nothing again."""
    a2, slots = reporting("*/10 * * * *")
    async with a2.testing() as world:
        reach_time(world, "08:55:00")
        await world.settle()
        reach_time(world, "08:59:58")
        assert SUCCEEDED == await get(a2)
        await world.advance("5s")
        assert DUPLICATE == await get(a2)
        reach_time(world, "09:10:01")
        await world.settle()
        assert DUPLICATE == await get(a2)
    assert utc("06-01T09:00", "06-01T09:10") == slots


@pytest.mark.parametrize(
    "headers",
    [
        [],
        *([("Authorization", value)] for value in ("", "Bearer", "Bearer ", BEARER, f"bearer {BEARER}", "Bearer x")),
        *([("Authorization", f"Bearer {value}")] for value in ("undefined", "None", "null", f"{BEARER}x", BEARER[:-1])),
        [("Authorization", f"Bearer {BEARER}"), ("Authorization", f"Bearer {BEARER}")],
        [("Authorization", "Bearer x"), ("Authorization", f"Bearer {BEARER}")],
        [("X-Authorization", f"Bearer {BEARER}")],
        [("X-Vercel-Cron", "1"), ("User-Agent", "vercel-cron/1.0")],
    ],
)
async def test_who_bears_anything_else_is_refused(bearer: str, headers: Headers) -> None:
    """An unknown cron in the same words; while the secret is not set, so is everybody."""
    a2, slots = reporting("0 * * * *")
    async with a2.testing() as world:
        reach_time(world, "09:00:01")
        for path in ("/cron/report", "/cron/unknown", "/maintenance/unknown"):
            assert UNAUTHORIZED == await get(a2, path, headers)
    assert [] == slots


@pytest.mark.parametrize("value", ["Bearer undefined", "Bearer ", "Bearer None", "Bearer null", "Bearer", "", BEARER])
@pytest.mark.parametrize("unset", [None, ""])
async def test_while_the_secret_is_not_set_nobody_may(
    monkeypatch: pytest.MonkeyPatch, value: str, unset: str | None
) -> None:
    if unset is not None:
        monkeypatch.setenv("CRON_SECRET", unset)
    a2, slots = reporting("0 * * * *", A2(cron_secret=BEARER))
    async with a2.testing() as world:
        reach_time(world, "09:00:01")
        assert UNAUTHORIZED == await get(a2, headers=[("Authorization", value)])
        assert UNAUTHORIZED == await get(a2)
    assert [] == slots


async def test_each_secret_opens_its_own_door(bearer: str) -> None:
    """The bearer's secret signs nothing, a signature is no bearer, and a bearer does not post."""
    a2, slots = reporting("0 * * * *", A2(cron_secret=SECRET))
    headers = [("Authorization", f"Bearer {BEARER}")]
    async with a2.testing() as world:
        reach_time(world, "09:00:01")
        for method, wrong in [
            ("POST", headers),
            ("POST", list(signed("cron:report", NINE, BEARER).items())),
            ("GET", list(signed("cron:report", NINE).items())),
            ("GET", [("Authorization", f"Bearer {SECRET}")]),
        ]:
            response = await call(served(a2), "/cron/report", method, wrong)
            assert UNAUTHORIZED == (response.status_code, response.json())
        assert UNKNOWN == await get(a2, "/cron/unknown")
        assert SUCCEEDED == await get(a2, headers=[*headers, *signed("cron:report", 7).items()])
    assert utc("06-01T09:00") == slots


async def test_a_bearer_is_told_in_no_log(bearer: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    a2, _ = reporting("0 * * * *")
    async with a2.testing() as world:
        reach_time(world, "09:00:01")
        answers = [await get(a2), await get(a2, headers=[("Authorization", "Bearer hunter2-guess")])]
    assert "hunter2" not in f"{answers} {a2!r} {caplog.text}"


# ── maintenance ──────────────────────────────────────────────────────────────────────────


async def test_a_maintenance_task_is_run_for_any_minute_that_is_asked_for(bearer: str) -> None:
    """Once for each; nothing but a trigger runs it."""
    a2 = A2(cron_secret=SECRET)
    slots: list[str] = []

    @a2.maintenance()
    async def sweep(slot: Any, ctx: JobContext) -> None:
        slots.append(slot.isoformat())

    async with a2.testing() as world:
        reach_time(world, "09:00:10")
        await world.advance("10m")
        assert [] == slots
        for slot, expected in [
            ("09:07", SUCCEEDED),
            ("09:07", DUPLICATE),
            ("08:10:00", OUTSIDE),
            ("09:11:00", SUCCEEDED),
            ("09:12:00", OUTSIDE),
            ("09:08:30", OUTSIDE),
        ]:
            assert expected == await sign_and_call(served(a2), "/maintenance/sweep", ms(f"2026-06-01T{slot}"))
        assert (404, {"error": "unknown maintenance task"}) == await sign_and_call(served(a2), "/maintenance/no", NINE)
        assert UNKNOWN == await sign_and_call(served(a2), "/cron/sweep", NINE)
        assert [SUCCEEDED, DUPLICATE] == [await get(a2, "/maintenance/sweep") for _ in range(2)]
        await world.advance("2d")
    assert utc("06-01T09:07", "06-01T09:11", "06-01T09:10") == slots


async def test_a_maintenance_task_that_fails_says_so_and_may_be_asked_again() -> None:
    a2 = A2(cron_secret=SECRET)
    attempts: list[int] = []

    @a2.maintenance(retries=0, timeout="1m", on_failed=lambda job: attempts.append(-job.attempts))
    async def sweep(ctx: JobContext) -> None:
        attempts.append(ctx.attempt)
        if ctx.attempt == 1:
            raise ValueError("no")

    async with a2.testing() as world:
        reach_time(world, "09:00:10")
        failed = await sign_and_call(served(a2), "/maintenance/sweep", NINE)
        assert (500, {"error": "maintenance handler failed"}) == failed
        assert SUCCEEDED == await sign_and_call(served(a2), "/maintenance/sweep", NINE)
    assert [1, -1, 2] == attempts


# ── a provider's schedules ───────────────────────────────────────────────────────────────


TRIGGER_URL = "https://app.example.com/api/a2/cron"


class App:
    """An app whose schedules a QStash in memory carries, in real time."""

    def __init__(self, expression: str = "* * * * *", role: str | None = None, **options: Any) -> None:
        self.provider = Provider()
        self.store = MemoryStore()
        a2 = A2(store=self.store, scheduler=qstash(self.provider), role=role, cron_secret=SECRET)
        self.a2, self.slots = reporting(expression, a2, **options)
        self.asgi = served(self.a2)

    async def fire(self, name: str = "report", body: bytes = b'{"definition":"d"}', **headers: str) -> tuple[int, Any]:
        """As QStash calls a schedule's destination."""
        signature = self.provider.sign(body, sub=f"{TRIGGER_URL}/{name}")
        sent = {"upstash-signature": signature} | {key.replace("_", "-"): value for key, value in headers.items()}
        response = await call(self.asgi, f"/cron/{name}", headers=sent, content=body)
        return response.status_code, response.json()


@pytest.mark.parametrize("key", KEYS)
async def test_a_providers_signature_triggers_the_last_slot(key: str) -> None:
    """By either of its keys; a redelivery is a duplicate."""
    app = App("0 * * * *", name="täglich, 9")
    app.provider.key = key
    body, path = b'{"definition":"d"}', "/cron/t%C3%A4glich%2C%209"
    headers = {"upstash-signature": app.provider.sign(body, sub=f"https://app.example.com/api/a2{path}")}
    async with app.a2.testing() as world:
        reach_time(world, "09:00:30")
        for expected in (SUCCEEDED, DUPLICATE):
            response = await call(app.asgi, path, headers=headers, content=body)
            assert expected == (response.status_code, response.json())
    assert utc("06-01T09:00") == app.slots


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"sub": f"{TRIGGER_URL}/other"}, id="another-cron"),
        pytest.param({"sub": URL}, id="the-callback"),
        pytest.param({"sub": f"{TRIGGER_URL}/report/"}, id="a-slash-more"),
        pytest.param({"sub": "https://evil.example.com/api/a2/cron/report"}, id="another-app"),
        pytest.param({"exp": 1_700_000_000}, id="expired"),
        pytest.param({"iss": "Someone"}, id="another-issuer"),
    ],
)
async def test_a_providers_signature_for_anything_else_is_refused(change: dict[str, Any]) -> None:
    app = App()
    body = b"{}"
    headers = {"upstash-signature": app.provider.sign(body, **{"sub": f"{TRIGGER_URL}/report", **change})}
    response = await call(app.asgi, "/cron/report", headers=headers, content=body)
    assert UNAUTHORIZED == (response.status_code, response.json())
    assert [] == app.slots


@pytest.mark.parametrize(
    "case", ["body-changed", "garbled", "twice", "with-a-secrets-signature", "on-get", "maintenance"]
)
async def test_a_providers_signature_is_of_one_request(case: str) -> None:
    app = App()
    app.a2.maintenance(name="report")(lambda: None)
    body, method, path = b"{}", "POST", "/cron/report"
    headers = [("upstash-signature", app.provider.sign(body, sub=f"{TRIGGER_URL}/report"))]
    match case:
        case "body-changed":
            body = b"{} "
        case "garbled":
            headers = [("upstash-signature", "a.b.c")]
        case "twice":
            headers *= 2
        case "with-a-secrets-signature":  # the provider's is judged, and no other
            headers = [("upstash-signature", ""), *signed("cron:report", NINE).items()]
        case "on-get":
            method = "GET"
        case _:
            path = "/maintenance/report"
    response = await call(app.asgi, path, method, headers, content=body)
    assert UNAUTHORIZED == (response.status_code, response.json())
    assert [] == app.slots


async def test_a_providers_message_is_read_up_to_a_limit() -> None:
    """What is longer cannot be one of ours, whatever its signature says."""
    app = App()
    body = b" " * ((1 << 20) + 1)
    scope = http_scope("/api/a2/cron/report", "POST")
    scope["headers"] = [(b"upstash-signature", app.provider.sign(body, sub=f"{TRIGGER_URL}/report").encode())]
    exchange = Exchange([body[: 1 << 19], body[1 << 19 : 1 << 20], body[1 << 20 :], b"never read"])
    await app.asgi(scope, exchange.receive, exchange.send)
    assert (401, [b"never read"], []) == (exchange.answer.status, exchange.chunks, app.slots)


async def test_an_unknown_cron_is_told_to_the_provider() -> None:
    """A schedule that is no longer in step: it is refused, and nothing runs."""
    assert UNKNOWN == await App().fire("gone")


async def test_a_schedule_that_is_called_when_nothing_was_due_is_refused() -> None:
    app = App("0 * * * *")
    async with app.a2.testing() as world:
        reach_time(world, "08:59:54")
        app.a2.cron("0 9 * * *", name="daily")(lambda: None)
        assert OUTSIDE == await app.fire("daily")


@within(10)
async def test_a_provider_that_hangs_up_is_not_answered() -> None:
    app = App()
    scope = http_scope("/api/a2/cron/report", "POST")
    signature = app.provider.sign(b"{}", sub=f"{TRIGGER_URL}/report")
    scope["headers"] = [(b"upstash-signature", signature.encode())]
    exchange = Exchange([])
    await app.asgi(scope, exchange.receive, exchange.send)
    assert ([], []) == (exchange.sent, app.slots)


async def test_behind_a_provider_a_triggered_slot_has_a_watchdog_and_its_retry() -> None:
    """It may be killed at its work, with no server to look after it; and a retry needs a wake-up that is sent."""
    app = App()

    @app.a2.cron("* * * * *", retries=1, backoff="10m")
    async def fails() -> None:
        raise ValueError("no")

    now_ms = SystemClock().now_ms()
    assert (500, {"error": "cron handler failed"}) == await app.fire("fails")
    tasks = app.provider.tasks
    assert {("drain", "cron:fails", "slots")} == {(task["kind"], task["contract"], task["sessionId"]) for task in tasks}
    watchdog, retry = sorted(task["dueAt"] - now_ms for task in tasks)
    assert DrainTimings().window_ms <= watchdog < DrainTimings().window_ms + MINUTE_MS
    assert 10 * MINUTE_MS <= retry < 11 * MINUTE_MS


async def test_a_provider_that_takes_no_watchdog_holds_no_slot_up() -> None:
    app = App()
    app.provider.replies = [Reply(500, "down")] * 3
    assert SUCCEEDED == await app.fire()


@pytest.mark.parametrize("scheduled", ["the-provider", "someone-else"])
async def test_behind_a_provider_a_web_process_has_it_wake_who_handles(scheduled: str) -> None:
    """Named by the slot's event, so that the wake-ups of two slots are never one message; a failure is told."""
    app = App(role="web")
    slot_ms = SystemClock().now_ms() // MINUTE_MS * MINUTE_MS

    async def ask(number: int) -> tuple[int, Any]:
        if scheduled == "the-provider" and number == 0:
            return await app.fire()
        return await sign_and_call(app.asgi, "/cron/report", slot_ms - number * MINUTE_MS)

    assert [RUNNING, RUNNING] == [await ask(0), await ask(1)]
    assert 2 == len(app.provider.held)
    assert {"drain"} == {task["kind"] for task in app.provider.tasks}
    app.provider.replies = [Reply(500, "down")]
    assert (503, {"error": "unavailable"}) == await ask(2)
    assert RUNNING == await ask(2)
    assert [] == app.slots


@within(10)
async def test_a_server_behind_a_provider_keeps_no_schedule_of_its_own() -> None:
    """The provider has it: nothing is put in force in the store."""
    app = App()
    async with Served(app.asgi):
        await anyio.wait_all_tasks_blocked()
        assert [] == await app.store.sessions()
        assert SUCCEEDED == await app.fire()
    assert 1 == len(app.slots)


# ── schedules in step ────────────────────────────────────────────────────────────────────


async def test_the_providers_schedules_are_those_of_the_crons() -> None:
    """And of nothing that has no schedule; a second call finds them as they are to be."""
    provider = Schedules()
    a2, _ = reporting("0 9 * * mon-fri", A2(store=MemoryStore(), scheduler=qstash(provider)), tz="Europe/Berlin")
    a2.cron("*/5 * * * *", name="other")(lambda: None)
    a2.maintenance(name="sweep")(lambda: None)
    a2.job(name="job")(lambda: None)
    assert SyncReport(created=("report", "other")) == await a2.sync_schedules()
    assert SyncReport(kept=("report", "other")) == await a2.sync_schedules()
    assert {
        ("CRON_TZ=Europe/Berlin 0 9 * * mon-fri", f"{TRIGGER_URL}/report"),
        ("*/5 * * * *", f"{TRIGGER_URL}/other"),
    } == {(listed["cron"], listed["destination"]) for listed in provider.listing.values()}
    await a2.close()


@pytest.mark.parametrize("scheduler", [None, "embedded"])
async def test_without_a_provider_there_is_nothing_to_keep_in_step(scheduler: str | None) -> None:
    a2 = A2(store=MemoryStore()) if scheduler else A2(store=MemoryStore(), scheduler=None)
    with pytest.raises(ConfigurationError, match=r"expected A2\(scheduler=QStash\(\.\.\.\)\), got"):
        await a2.sync_schedules()


async def test_a_slot_of_an_hour_ago_is_reached_by_a_world_that_advanced(bearer: str) -> None:
    """What the world has run by itself is a duplicate to whoever asks for it."""
    a2, slots = reporting("0 * * * *")
    async with a2.testing() as world:
        await reach(world, "2026-01-01T02:30")
        assert DUPLICATE == await get(a2)
    assert utc("01-01T01:00", "01-01T02:00") == slots
