"""Crons triggered by signed requests: who may, which slots, what it answers, and that each slot is run once."""

import logging
from datetime import datetime
from typing import Any

import anyio
import pytest

from a2asgi import (
    A2,
    EmbeddedScheduler,
    JobContext,
    MemoryStore,
    Snooze,
    SQLiteStore,
    Store,
    StoreBroken,
    StoreUnavailable,
)
from a2asgi.clock import SystemClock
from a2asgi.testing import World
from tests.asgi.provider import served
from tests.asgi.slots import MINUTE_MS, SECRET, at, call, ms, reach, reporting, sign_and_call, signed, utc
from tests.asgi.support import Served
from tests.asgi.worlds import Gate, ScriptedStore, rounds, within

NINE = ms("2026-06-01T09:00")
SUCCEEDED = (200, {"status": "succeeded"})
DUPLICATE = (200, {"status": "duplicate"})
RUNNING = (202, {"status": "running"})
FAILED = (500, {"error": "cron handler failed"})
UNAUTHORIZED = (401, {"error": "invalid schedule signature"})
OUTSIDE = (400, {"error": "invalid cron slot"})
UNKNOWN = (404, {"error": "unknown cron"})
NOT_FOUND = (404, {"error": "not found"})
UNAVAILABLE = (503, {"error": "unavailable"})


def app(expression: str = "0 * * * *", *, a2: A2 | None = None, **options: Any) -> tuple[A2, list[str]]:
    """An app with the cron `report`, whose secret is set."""
    return reporting(expression, A2(cron_secret=SECRET) if a2 is None else a2, **options)


def on(store: Store, **options: Any) -> A2:
    """An app on this store, in real time."""
    return A2(cron_secret=SECRET, store=store, **options)


def minute() -> int:
    """The minute that it is."""
    return SystemClock().now_ms() // MINUTE_MS * MINUTE_MS


async def trigger(
    a2: A2, slot_ms: int = NINE, path: str = "/cron/report", **options: Any
) -> tuple[int, dict[str, str]]:
    return await sign_and_call(served(a2), path, slot_ms, **options)


def nine(world: World) -> None:
    """It is a few seconds past nine."""
    world.clock.move_to(NINE + 10_000)


# ── what comes of it ─────────────────────────────────────────────────────────────────────


async def test_a_slot_is_run_and_then_a_duplicate() -> None:
    """Before it is answered; in the cron's zone; with its record."""
    a2, slots = app(tz="Europe/Berlin")
    async with a2.testing() as world:
        nine(world)
        assert SUCCEEDED == await trigger(a2)
        assert ["2026-06-01T11:00:00+02:00"] == slots
        assert DUPLICATE == await trigger(a2)
        await world.advance("50m")
        assert DUPLICATE == await trigger(a2)
    assert 1 == len(slots)


@within(10)
async def test_a_slot_that_another_process_is_at_is_running() -> None:
    """Its claim is alive: this one answers at once, runs nothing, and hears in the end that it was done."""
    store, slot_ms = MemoryStore(), minute()
    gate = Gate()
    ran: list[str] = []

    async def report(slot: datetime) -> None:
        ran.append(slot.isoformat())
        await gate.wait()

    apps = [on(store), on(store)]
    for a2 in apps:
        a2.cron("* * * * *")(report)
    answers: list[object] = []

    async def first() -> None:
        answers.append(await trigger(apps[0], slot_ms))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(first)
        await gate.reached.wait()
        assert [RUNNING] * 2 == [await trigger(a2, slot_ms) for a2 in apps]
        gate.open()
    assert [SUCCEEDED] == answers
    assert [DUPLICATE] * 2 == [await trigger(a2, slot_ms) for a2 in apps]
    assert 1 == len(ran)


async def test_a_slot_that_failed_is_run_again_by_the_next_trigger() -> None:
    """Not only after its backoff; and with fresh budgets once it was given up."""
    a2 = A2(cron_secret=SECRET)
    attempts: list[int] = []

    @a2.cron("0 * * * *", retries=1, backoff="30m")
    async def report(ctx: JobContext) -> None:
        attempts.append(ctx.attempt)
        if ctx.attempt < 4:
            raise ValueError("secret detail")

    async with a2.testing() as world:
        nine(world)
        assert [FAILED, FAILED] == [await trigger(a2), await trigger(a2)]
        [letter] = world.dead_letters
        assert f"slot-{NINE}" == letter.event_id
        assert [FAILED, SUCCEEDED, DUPLICATE] == [await trigger(a2) for _ in range(3)]
        assert [1, 2, 3, 4] == attempts
        assert [] == world.dead_letters


async def test_a_slot_that_was_put_off_has_not_failed() -> None:
    """Nor is it run before its time by a caller that takes a failure for a reason to call again."""
    a2 = A2(cron_secret=SECRET)
    attempts: list[int] = []

    @a2.cron("0 * * * *")
    async def report(ctx: JobContext) -> object:
        attempts.append(ctx.attempt)
        return Snooze("5m") if ctx.attempt == 1 else None

    async with a2.testing() as world:
        nine(world)
        assert RUNNING == await trigger(a2)
        await world.advance("10m")
        assert DUPLICATE == await trigger(a2)
    assert [1, 2] == attempts


@within(10)
async def test_triggers_at_the_same_moment_run_a_slot_once() -> None:
    a2, slots = app()
    answers: list[object] = []

    async def ask() -> None:
        answers.append(await trigger(a2))

    async with a2.testing() as world:
        nine(world)
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(ask)
    assert utc("06-01T09:00") == slots
    assert 20 == len(answers)
    assert SUCCEEDED in answers
    assert all(answer in (SUCCEEDED, RUNNING, DUPLICATE) for answer in answers)


# ── beside the embedded scheduler ────────────────────────────────────────────────────────


@within(10)
@pytest.mark.parametrize("seconds", [-60, -3, 0, 20])
async def test_a_slot_that_both_the_scheduler_and_a_trigger_have_is_run_once(seconds: int) -> None:
    """Whichever comes first, up to a minute ahead; the schedule goes on after it."""
    a2, slots = app()
    async with a2.testing() as world:
        world.clock.move_to(NINE - 50 * MINUTE_MS)
        await world.settle()
        world.clock.move_to(NINE + seconds * 1_000)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(world.settle)
            assert (await trigger(a2))[0] in {200, 202}
        await reach(world, "2026-06-01T10:00")
    assert utc("06-01T09:00", "06-01T10:00") == slots


@pytest.mark.parametrize(
    ("catch_up", "expected"),
    [("latest", ["08:50"]), ("all", ["08:00", "08:10", "08:20", "08:30", "08:40", "08:50"]), ("none", ["08:50"])],
)
async def test_a_trigger_catches_up_as_the_scheduler_would(catch_up: str, expected: list[str]) -> None:
    """Nothing ran for two hours, and then a trigger came first: nothing that was missed is lost by it, or run twice."""
    a2, slots = app("*/10 * * * *", catch_up=catch_up)
    async with a2.testing() as world:
        world.clock.move_to(NINE - 125 * MINUTE_MS)
        await world.settle()
        world.clock.move_to(NINE - 1)
        assert SUCCEEDED == await trigger(a2, NINE - 10 * MINUTE_MS)
        await world.settle()
        assert utc(*(f"06-01T{time}" for time in expected)) == sorted(slots)
        await reach(world, "2026-06-01T09:00")
        assert utc("06-01T09:00")[0] == slots[-1]


async def test_a_slot_before_those_that_were_run_may_still_be_asked_for() -> None:
    """It was missed, or was before the cron was new: who asks for it by its name gets it."""
    a2, slots = app("*/10 * * * *")
    async with a2.testing() as world:
        nine(world)
        await world.settle()
        assert SUCCEEDED == await trigger(a2, NINE - 60 * MINUTE_MS + 10 * MINUTE_MS)
        await world.advance("10m")
    assert utc("06-01T08:10", "06-01T09:10") == slots


# ── who may, and for which slot ──────────────────────────────────────────────────────────


RIGHT = signed("cron:report", NINE)
SLOT, SIGNATURE = RIGHT.items()


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param([], id="no-headers"),
        pytest.param([SLOT], id="no-signature"),
        pytest.param([SIGNATURE], id="no-slot"),
        pytest.param([SLOT, SLOT, SIGNATURE], id="slot-twice"),
        pytest.param([SLOT, SIGNATURE, SIGNATURE], id="signature-twice"),
        pytest.param([(SLOT[0], "soon"), SIGNATURE], id="no-number"),
        pytest.param([(SLOT[0], f"{NINE}.0"), SIGNATURE], id="fraction"),
        pytest.param([(SLOT[0], str(NINE + MINUTE_MS)), SIGNATURE], id="another-slot"),
        pytest.param([SLOT, (SIGNATURE[0], "sha256=00")], id="garbled"),
        pytest.param([SLOT, (SIGNATURE[0], SIGNATURE[1].upper())], id="upper-case"),
        pytest.param([*signed("cron:report", NINE, "").items()], id="empty-secret"),
        pytest.param([*signed("cron:report", NINE, "guess").items()], id="another-secret"),
        pytest.param([*signed("cron:other", NINE).items()], id="another-cron"),
        pytest.param([*signed("maintenance:report", NINE).items()], id="another-kind"),
        pytest.param([SLOT, SIGNATURE, ("Upstash-Signature", "x.y.z")], id="a-provider-that-is-not-there"),
        pytest.param([("Authorization", f"Bearer {SECRET}")], id="the-secret-itself"),
    ],
)
async def test_who_has_not_signed_this_very_request_is_refused(headers: list[tuple[str, str]]) -> None:
    """An unknown cron is refused in the same words: only after a valid signature is told what there is."""
    a2, slots = app()
    async with a2.testing() as world:
        nine(world)
        for path in ("/cron/report", "/cron/unknown", "/maintenance/unknown"):
            response = await call(served(a2), path, headers=headers)
            assert UNAUTHORIZED == (response.status_code, response.json())
    assert [] == slots


@pytest.mark.parametrize("secret", ["", "None", "undefined"])
async def test_without_a_secret_nothing_is_triggered(secret: str) -> None:
    a2, slots = reporting("0 * * * *")
    async with a2.testing() as world:
        nine(world)
        response = await call(served(a2), "/cron/report", headers=signed("cron:report", NINE, secret))
        assert UNAUTHORIZED == (response.status_code, response.json())
    assert [] == slots


async def test_an_unknown_cron_is_told_to_who_has_signed() -> None:
    """Its slot is not looked at. A maintenance task is not a cron, nor the other way round."""
    a2, slots = app()
    a2.maintenance(name="sweep")(lambda: None)
    async with a2.testing() as world:
        nine(world)
        assert UNKNOWN == await trigger(a2, path="/cron/unknown")
        assert UNKNOWN == await trigger(a2, path="/cron/sweep")
        assert UNKNOWN == await trigger(a2, 7, path="/cron/unknown")
        assert (404, {"error": "unknown maintenance task"}) == await trigger(a2, path="/maintenance/report")
    assert [] == slots


@pytest.mark.parametrize(
    ("slot", "now", "expected"),
    [
        ("09:00", "10:00:00", SUCCEEDED),
        ("09:00", "10:00:00.001", OUTSIDE),
        ("09:00", "08:59:00", SUCCEEDED),
        ("09:00", "08:58:59.999", OUTSIDE),
        ("09:01", "09:01:10", OUTSIDE),
        ("09:00:30", "09:01:10", OUTSIDE),
        ("09:00:00.001", "09:01:10", OUTSIDE),
        ("09:30", "09:30:01", OUTSIDE),
    ],
)
async def test_a_slot_is_a_whole_minute_of_the_schedule_an_hour_old_at_most(
    slot: str, now: str, expected: object
) -> None:
    """And at most a minute ahead: what no clock is slow or fast by, and what no schedule has, is refused."""
    a2, slots = app()
    async with a2.testing() as world:
        world.clock.move_to(ms(f"2026-06-01T{now}"))
        assert expected == await trigger(a2, ms(f"2026-06-01T{slot}"))
        assert len(slots) == (expected == SUCCEEDED)


async def test_a_slot_of_a_day_on_which_clocks_change_is_judged_in_the_crons_zone() -> None:
    """02:30 comes twice in Berlin, and is due once; in the gap of spring it is due at three."""
    a2, slots = app("30 2 * * *", tz="Europe/Berlin")
    async with a2.testing() as world:
        for text, expected in [
            ("2026-03-29T01:00", SUCCEEDED),
            ("2026-03-29T00:30", OUTSIDE),
            ("2026-10-25T00:30", SUCCEEDED),
            ("2026-10-25T01:30", OUTSIDE),
        ]:
            world.clock.move_to(ms(text))
            assert expected == await trigger(a2, ms(text))
    assert ["2026-03-29T03:00:00+02:00", "2026-10-25T02:30:00+02:00"] == slots


# ── paths and methods ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
async def test_other_methods_are_not_allowed(method: str) -> None:
    """Whether the cron is there or not, and whoever asks."""
    a2, slots = app()
    async with a2.testing() as world:
        nine(world)
        for path in ("/cron/report", "/cron/unknown", "/maintenance/unknown"):
            response = await call(served(a2), path, method, RIGHT)
            assert (405, "GET, POST") == (response.status_code, response.headers["allow"])
    assert [] == slots


@pytest.mark.parametrize(
    "path",
    [
        *("/cron", "/cron/", "/cron/report/", "/cron/report/x", "/cron//report", "/crons/report", "/Cron/report"),
        *("/maintenance", "/maintenance/", "/maintenance/a/b", "/cron/a%2Fb", "/maintain/report"),
    ],
)
async def test_what_names_no_cron_is_not_found(path: str) -> None:
    a2, slots = app()
    async with a2.testing() as world:
        nine(world)
        for method in ("GET", "POST"):
            response = await call(served(a2), path, method, RIGHT)
            assert NOT_FOUND == (response.status_code, response.json())
    assert [] == slots


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("täglich, 9 Uhr", "/cron/t%C3%A4glich%2C%209%20Uhr"),
        ("日報", "/cron/%E6%97%A5%E5%A0%B1"),
        ("a%2Fb", "/cron/a%252Fb"),
        ("50% + 1?", "/cron/50%25%20+%201%3F"),
        ("report-2.0_x~", "/cron/report-2.0_x~"),
        ("cron", "/cron/cron"),
        ("🍸", "/cron/%F0%9F%8D%B8"),
    ],
)
async def test_a_name_may_be_any_text_without_a_slash(name: str, path: str) -> None:
    """Percent-encoded in the path, and signed as the text that it is."""
    a2, slots = app(name=name)
    async with a2.testing() as world:
        nine(world)
        response = await call(served(a2), path, headers=signed(f"cron:{name}", NINE))
        assert SUCCEEDED == (response.status_code, response.json())
    assert 1 == len(slots)


async def test_a_host_may_mount_the_app_below_a_root_path() -> None:
    """Whether it repeats that in the path or not."""
    a2, slots = app()
    async with a2.testing() as world:
        nine(world)
        assert SUCCEEDED == await trigger(a2, root_path="/v1")
        assert DUPLICATE == await trigger(a2, root_path="/v1", prefix="/v1/api/a2")
        response = await call(served(a2), "/cron/report", headers=signed("cron:report", NINE), prefix="/v1/api/a2")
        assert (404, b"") == (response.status_code, response.content)  # the app's own answer
    assert 1 == len(slots)


async def test_answers_are_json_and_tell_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    """Nor do logs: not the secret, no signature, and of a failure only that there was one."""
    caplog.set_level(logging.DEBUG)
    a2, _ = app()

    @a2.cron("0 * * * *", retries=0)
    async def broken() -> None:
        raise ValueError("detail of mine")

    shown = ""
    async with a2.testing() as world:
        nine(world)
        for path in ("/cron/report", "/cron/broken", "/cron/unknown"):
            for secret in (SECRET, "guess"):
                headers = signed(f"cron:{path[6:]}", NINE, secret)
                response = await call(served(a2), path, headers=headers)
                assert "application/json" == response.headers["content-type"]
                assert str(len(response.content)) == response.headers["content-length"]
                assert "mine" not in response.text
                shown += f"{response.text} {response.headers} "
    shown += f"{caplog.text} {a2!r}"
    assert "hunter2" not in shown
    assert "sha256=" not in shown


# ── where it runs ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("scheduler", [None, EmbeddedScheduler()], ids=["no-scheduler", "embedded"])
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_triggers_work_where_a_host_has_no_lifespan(scheduler: Any, kind: str, tmp_path: Any) -> None:
    """A serverless host: the store is opened by the first request, and the slot is run before the answer."""
    store = MemoryStore() if kind == "memory" else SQLiteStore(tmp_path / "a2.db", synchronous="NORMAL")
    a2, slots = app("* * * * *", a2=on(store, scheduler=scheduler))
    slot_ms = minute()
    assert [SUCCEEDED, DUPLICATE] == [await trigger(a2, slot_ms), await trigger(a2, slot_ms)]
    assert 1 == len(slots)
    await a2.close()


@within(10)
@pytest.mark.parametrize("scheduler", [None, EmbeddedScheduler(poll="10ms")], ids=["no-scheduler", "embedded"])
async def test_triggers_work_inside_a_running_server(scheduler: Any) -> None:
    """With the lifespan around it. A slot of just now, which an embedded scheduler that is new has not had."""
    a2, slots = app("* * * * *", a2=on(MemoryStore(), scheduler=scheduler))
    asgi, slot_ms = served(a2), minute()
    async with Served(asgi):
        assert SUCCEEDED == await sign_and_call(asgi, "/cron/report", slot_ms)
        assert DUPLICATE == await sign_and_call(asgi, "/cron/report", slot_ms)
    assert 1 == [ms(slot) for slot in slots].count(slot_ms)


@within(10)
async def test_a_web_process_leaves_a_triggered_slot_to_the_worker() -> None:
    """It is written down, and run by whoever handles; then it is a duplicate here too."""
    store, slot_ms = MemoryStore(), minute()
    web, web_slots = app("* * * * *", a2=on(store, role="web"))
    worker, slots = app("* * * * *", a2=on(store, role="worker"))
    asgi = served(web)
    async with Served(asgi):
        assert [RUNNING, RUNNING] == [await sign_and_call(asgi, "/cron/report", slot_ms) for _ in range(2)]
        assert (await worker.tick()).settled
        assert DUPLICATE == await sign_and_call(asgi, "/cron/report", slot_ms)
    assert ([], 1) == (web_slots, [ms(slot) for slot in slots].count(slot_ms))


@within(10)
async def test_a_client_that_hangs_up_does_not_stop_the_slot() -> None:
    """A server with tasks of its own goes on with it."""
    gate, done = Gate(), anyio.Event()
    a2 = on(MemoryStore())

    @a2.cron("* * * * *")
    async def report() -> None:
        await gate.wait()
        done.set()

    asgi, slot_ms = served(a2), minute()
    async with Served(asgi):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sign_and_call, asgi, "/cron/report", slot_ms)
            await gate.reached.wait()
            tasks.cancel_scope.cancel()
        gate.open()
        await done.wait()
        await rounds()
        assert DUPLICATE == await sign_and_call(asgi, "/cron/report", slot_ms)


# ── the store ────────────────────────────────────────────────────────────────────────────


class Trouble(ScriptedStore):
    """A store that cannot purge while a test says so."""

    error: Exception | None = None

    async def purge(self, limit: int) -> int:
        if self.error is not None:
            raise self.error
        return await super().purge(limit)


async def test_while_the_store_does_not_answer_a_trigger_is_to_come_again() -> None:
    store, slot_ms = ScriptedStore(), minute()
    a2, slots = app("* * * * *", a2=on(store))
    store.down.add("all")
    assert UNAVAILABLE == await trigger(a2, slot_ms)
    store.down.clear()
    assert SUCCEEDED == await trigger(a2, slot_ms)
    assert 1 == len(slots)


@pytest.mark.parametrize("step", ["claim", "settle"])
async def test_a_store_that_fails_on_the_way_is_no_failure_of_the_handler(step: str) -> None:
    """What was written stays; the slot goes on with the next trigger, or once its claim has run out."""
    store, slot_ms = ScriptedStore(), minute()
    a2, slots = app("* * * * *", a2=on(store))
    store.fail_next(step)
    assert UNAVAILABLE == await trigger(a2, slot_ms)
    assert (SUCCEEDED if step == "claim" else RUNNING) == await trigger(a2, slot_ms)
    assert 1 == len(slots)


async def test_a_trigger_removes_the_records_of_old_slots() -> None:
    """There may be no server that does."""
    store = MemoryStore()
    a2, slots = app("* * * * *", a2=on(store, scheduler=None))
    slot_ms = minute()
    assert SUCCEEDED == await trigger(a2, slot_ms)
    report, slot = a2.crons["cron:report"], at(slots[0])
    assert await report.status(slot) is not None
    store.offset_ms = 25 * 60 * MINUTE_MS
    assert SUCCEEDED == await trigger(a2, slot_ms - MINUTE_MS)
    assert None is await report.status(slot)


@pytest.mark.parametrize("error", [StoreUnavailable("away"), StoreBroken("broken")])
async def test_a_purge_that_fails_changes_no_answer(error: Exception) -> None:
    """The slot has run, and says so."""
    store, slot_ms = Trouble(), minute()
    a2, _ = app("* * * * *", a2=on(store))
    store.error = error
    assert SUCCEEDED == await trigger(a2, slot_ms)
