"""The order shop in a world of its own: over HTTP, in milliseconds, on both loops."""

import logging
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import anyio
import httpx
import pytest

from a2asgi import SessionKey
from a2asgi.cron_auth import CronSecrets
from a2asgi.testing import World
from a2asgi.testing.world import START
from a2core import SIGNATURE_HEADER, SLOT_HEADER, sign_schedule
from examples.orders import Shop, a2, app, restock

TEA_AND_CUP = {"skus": ["tea", "cup"], "card": "4242"}
UNPAID = {"skus": ["tea"]}
UNREACHABLE = {"skus": ["tea"], "card": "unreachable"}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with a2.testing(dependencies=Shop(second=0)) as world:
        yield world


@pytest.fixture
async def client(world: World) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
        yield client


async def seen(client: httpx.AsyncClient, order: str) -> dict[str, Any]:
    answer: dict[str, Any] = (await client.get(f"/orders/{order}")).raise_for_status().json()
    return answer


async def status(client: httpx.AsyncClient, order: str) -> object:
    return (await seen(client, order))["state"]["status"]


async def types(client: httpx.AsyncClient, order: str) -> list[str]:
    return [event["type"] for event in (await seen(client, order))["log"]]


async def test_a_paid_order_is_reserved_then_charged_then_shipped(world: World, client: httpx.AsyncClient) -> None:
    answer = await client.post("/orders/o1", json=TEA_AND_CUP)
    assert {"new": True, "seq": 1} == answer.json()
    await world.settle()
    assert {"status": "shipped", "reserved": ["tea", "cup"]} == (await seen(client, "o1"))["state"]
    reserved_then_shipped = ["reserved", "reserved", "paid", "shipped"]
    assert ["placed", "wanted", "wanted", "payment_due", *reserved_then_shipped] == await types(client, "o1")


async def test_the_log_tells_what_led_to_what(world: World, client: httpx.AsyncClient) -> None:
    await client.post("/orders/o1", json=TEA_AND_CUP)
    await world.settle()
    log = (await seen(client, "o1"))["log"]
    type_of = {event["id"]: event["type"] for event in log}
    led_to = {
        "wanted": "placed",
        "payment_due": "placed",
        "reserved": "wanted",
        "paid": "payment_due",
        "shipped": "paid",
    }
    assert {"placed": None, **led_to} == {event["type"]: type_of.get(event["cause"]) for event in log}


async def test_an_order_placed_again_is_the_same_order(world: World, client: httpx.AsyncClient) -> None:
    await client.post("/orders/o1", json=TEA_AND_CUP)
    await world.settle()
    before = await seen(client, "o1")
    again = await client.post("/orders/o1", json=TEA_AND_CUP)
    await world.advance("1h")
    assert {"new": False, "seq": 1} == again.json()
    assert before == await seen(client, "o1")


async def test_of_many_at_once_one_is_new(world: World, client: httpx.AsyncClient) -> None:
    answers: list[bool] = []

    async def place() -> None:
        answers.append((await client.post("/orders/o1", json=TEA_AND_CUP)).json()["new"])

    async with anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(place)
    await world.settle()
    assert {True: 1, False: 9} == Counter(answers)
    assert 1 == (await types(client, "o1")).count("shipped")


async def test_an_order_of_other_content_is_a_conflict(world: World, client: httpx.AsyncClient) -> None:
    await client.post("/orders/o1", json=TEA_AND_CUP)
    answer = await client.post("/orders/o1", json=UNPAID)
    assert (409, {"detail": "order 'o1' was placed with other content"}) == (answer.status_code, answer.json())


@pytest.mark.parametrize(
    ("path", "body"), [("o1", {"skus": []}), ("o1", {"skus": "tea"}), ("o%20", UNPAID), ("o" * 65, UNPAID)]
)
async def test_a_bad_request_appends_nothing(world: World, client: httpx.AsyncClient, path: str, body: object) -> None:
    assert 422 == (await client.post(f"/orders/{path}", json=body)).status_code
    assert [] == await world.store.sessions()


async def test_an_order_that_was_never_placed_has_no_log(world: World, client: httpx.AsyncClient) -> None:
    empty = {"state": {"status": "unknown", "reserved": []}, "log": [], "dead_letters": []}
    assert empty == await seen(client, "o1")


async def test_an_unpaid_order_expires_after_three_seconds_and_not_before(
    world: World, client: httpx.AsyncClient
) -> None:
    await client.post("/orders/o1", json=UNPAID)
    await world.advance("2999ms")
    assert "placed" == await status(client, "o1")
    await world.advance("1ms")
    assert "expired" == await status(client, "o1")


async def test_a_paid_order_never_expires(world: World, client: httpx.AsyncClient) -> None:
    await client.post("/orders/o1", json=TEA_AND_CUP)
    await world.advance("1d")
    assert "expired" not in await types(client, "o1")


async def test_a_bank_that_never_answers_is_asked_three_times(
    world: World, client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="a2asgi.handler")
    await client.post("/orders/o1", json=UNREACHABLE)
    await world.advance("1s")
    asked = [message for message in caplog.messages if "payment_due #3]" in message]
    tries = [f"[orders/o1 payment_due #3] attempt {n} {moment}" for n in (1, 2, 3) for moment in ("started", "failed")]
    assert tries == asked
    [letter] = (await client.get("/dead-letters")).json()["dead_letters"]
    assert ("o1", 3, "payment_due", "ConnectionError", "the bank does not answer") == (
        letter["session"],
        letter["seq"],
        letter["event_type"],
        letter["error"],
        letter["message"],
    )
    assert [letter] == (await seen(client, "o1"))["dead_letters"]


async def test_a_dead_letter_is_shown_with_its_order_only(world: World, client: httpx.AsyncClient) -> None:
    await client.post("/orders/o1", json=UNREACHABLE)
    await client.post("/orders/o2", json=TEA_AND_CUP)
    await world.advance("1s")
    assert [] == (await seen(client, "o2"))["dead_letters"]
    assert "shipped" == await status(client, "o2")


async def test_an_order_whose_timer_came_first_is_not_charged(world: World, client: httpx.AsyncClient) -> None:
    """The process dies as it starts on the order; when the claim has run out, the three seconds are over too."""
    world.crash_after("claim")
    await client.post("/orders/o1", json=TEA_AND_CUP)
    await world.advance("10s")
    log = (await seen(client, "o1"))["log"]
    assert {"kind": "cancelled", "reason": "expired before it was paid"} == log[3]["ending"]
    assert ("expired", True) == (await status(client, "o1"), "paid" not in await types(client, "o1"))


@pytest.mark.parametrize("effect", ["claim", "settle", "schedule"])
@pytest.mark.parametrize("crashes", [1, 2, 3, 4])
async def test_an_order_ends_once_whenever_its_process_dies(
    world: World, client: httpx.AsyncClient, effect: str, crashes: int
) -> None:
    for _ in range(crashes):
        world.crash_after(effect)
    await client.post("/orders/o1", json=TEA_AND_CUP)
    await world.advance("1m")
    counts = Counter(await types(client, "o1"))
    assert 1 == counts["shipped"] + counts["expired"]
    assert {"placed": 1, "wanted": 2, "reserved": 2, "payment_due": 1} == {
        type_: count for type_, count in counts.items() if type_ not in {"paid", "shipped", "expired"}
    }
    assert [] == world.dead_letters


async def job(client: httpx.AsyncClient, job_id: str) -> dict[str, Any]:
    answer: dict[str, Any] = (await client.get(f"/jobs/{job_id}")).raise_for_status().json()["job"]
    return answer


async def count(client: httpx.AsyncClient, room: str = "cellar") -> str:
    answer: str = (await client.post(f"/stocktakes/{room}")).raise_for_status().json()["job"]
    return answer


async def test_a_stocktake_asked_for_twice_is_one_job(world: World, client: httpx.AsyncClient) -> None:
    first = await count(client)
    assert {first} == {await count(client) for _ in range(10)}
    assert first != await count(client, "attic")
    await world.settle()
    told = await job(client, first)
    assert ("succeeded", "5 bays of the cellar counted") == (told["state"], told["result"])
    assert {"done": 5, "total": 5, "note": "bay 5 of the cellar"} == told["progress"]
    assert first != await count(client)


class SlowShop(Shop):
    """A shop whose work takes its time on the world's clock."""

    world: World

    async def work(self, seconds: float) -> None:
        await self.world.sleep(timedelta(seconds=seconds))


async def test_a_stocktake_goes_on_in_the_bay_where_its_server_died(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="a2asgi.handler")
    async with (
        a2.testing(dependencies=SlowShop()) as SlowShop.world,
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client,
    ):
        asked = await count(client)
        await SlowShop.world.advance("1s")
        assert ("running", 2) == ((told := await job(client, asked))["state"], told["progress"]["done"])
        SlowShop.world.crash_after("claim")
        await count(client, "attic")
        await SlowShop.world.advance("10s")
        assert "succeeded" == (await job(client, asked))["state"]
    where = f"[job:stocktake/{asked[:32]} run #1] "
    seen = [message.removeprefix(where) for message in caplog.messages if message.startswith(where)]
    first = ["attempt 1 started", *(f"attempt 1 bay {bay}" for bay in (1, 2, 3))]
    second = ["attempt 2 started", *(f"attempt 2 bay {bay}" for bay in (3, 4, 5)), "attempt 2 done"]
    assert [*first, *second] == [message for message in seen if message != "attempt 1 failed"]


async def test_an_unknown_job_is_not_found(client: httpx.AsyncClient) -> None:
    answer = await client.get("/jobs/unknown")
    assert (404, {"detail": "no job 'unknown'"}) == (answer.status_code, answer.json())


async def test_the_shelves_are_looked_over_once_a_minute_whoever_asks(
    world: World, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(a2, "cron_secrets", CronSecrets("s3cret", None))
    await world.advance("3m")
    slot_ms = world.clock.now_ms() + 60_000
    headers = {SLOT_HEADER: str(slot_ms), SIGNATURE_HEADER: sign_schedule("s3cret", restock.definition.name, slot_ms)}
    answers = [(await client.post("/api/a2/cron/restock", headers=headers)).json() for _ in range(2)]
    await world.advance("2m")
    assert [{"status": "succeeded"}, {"status": "duplicate"}] == answers
    minutes = range(1, 6)
    assert [f"shelves looked over at 00:0{minute}" for minute in minutes] == [
        None if (run := await restock.status(START + timedelta(minutes=minute))) is None else run.result
        for minute in minutes
    ]
    log = await world.store.read(SessionKey(restock.definition.name, "slots"), 0, 100)
    assert {"run": 5, "succeeded": 5} == Counter(entry.type for entry in log)
