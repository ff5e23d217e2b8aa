"""Publishing and delivering: what reaches a destination, when, how often, and what is told of it."""

import base64
import json
from typing import Any

import anyio
import httpx
import pytest

from a2asgi.qstash_server.rules import default_delay_ms
from tests.asgi.qstash_server.houses import START_MS, URL, House


async def test_a_published_message_arrives_signed_and_is_told() -> None:
    async with House() as house:
        answer = await house.publish(body='{"a": 1}', content_type="application/json", upstash_forward_x_shop="7")
        await house.settled()
        [delivery] = house.destinations.seen
        assert (URL, "POST", b'{"a": 1}') == (delivery.url, delivery.method, delivery.body)
        assert delivery.genuine
        told = {name: delivery.headers[name] for name in ("content-type", "x-shop", "user-agent", "upstash-message-id")}
        assert told == {
            "content-type": "application/json",
            "x-shop": "7",
            "user-agent": "Upstash-QStash",
            "upstash-message-id": answer["messageId"],
        }
        assert "0" == delivery.headers["upstash-retried"]
        assert "authorization" not in delivery.headers
        assert ["CREATED", "ACTIVE", "DELIVERED"] == await house.states(answer["messageId"])
        await house.call("GET", f"/v2/messages/{answer['messageId']}", 404)


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"upstash_delay": "1d10h30m"}, 124_200_000),
        ({"upstash_delay": "1.6s"}, 1_600),
        ({"upstash_not_before": str(START_MS // 1_000 + 60)}, 60_000),
        ({"upstash_not_before": str(START_MS // 1_000 + 60), "upstash_delay": "1h"}, 60_000),
        ({"upstash_not_before": "1"}, 0),
    ],
)
async def test_a_message_waits_for_its_time(headers: dict[str, Any], wait: int) -> None:
    async with House() as house:
        await house.publish(**headers)
        await house.settled()
        if wait:
            await house.after(f"{wait - 1}ms")
            assert [] == house.destinations.seen
            await house.after("1ms")
        assert 1 == len(house.destinations.seen)


async def test_three_retries_are_four_deliveries_each_with_a_fresh_token() -> None:
    async with House() as house:
        house.destinations.answer("/hook", 500, "no")
        answer = await house.publish(upstash_retries="3")
        for retry in range(1, 4):
            await house.settled()
            assert retry == len(house.destinations.seen)
            await house.after(f"{default_delay_ms(retry) - 1}ms")
            assert retry == len(house.destinations.seen)
            await house.after("1ms")
        await house.after("30d")
        assert [0, 1, 2, 3] == [delivery.retried for delivery in house.destinations.seen]
        assert all(delivery.genuine for delivery in house.destinations.seen)
        assert 4 == len({delivery.headers["upstash-signature"] for delivery in house.destinations.seen})
        assert {answer["messageId"]} == {each.headers["upstash-message-id"] for each in house.destinations.seen}


@pytest.mark.parametrize(
    ("status", "headers", "wait"),
    [
        (429, {"retry_after": "10"}, 10_000),
        (503, {"retry_after": "0"}, 0),
        (500, {"retry_after": "6m5s"}, 365_000),
        (500, {"retry_after": "Fri, 15 Jan 2027 08:01:00 GMT"}, 60_000),
        (500, {"x_ratelimit_reset": "7"}, 7_000),
        (500, {"retry_after": "2d"}, 12_183),
        (500, {"retry_after": "soon"}, 12_183),
        (308, {"location": "/hook/"}, 12_183),
        (489, {}, 12_183),
        (400, {"upstash_nonretryable_error": "true"}, 12_183),
    ],
)
async def test_the_destination_may_say_when_to_come_again(status: int, headers: dict[str, Any], wait: int) -> None:
    async with House() as house:
        house.destinations.answer("/hook", status, **headers)
        await house.publish(upstash_retries="1")
        await house.settled()
        if wait:
            await house.after(f"{wait - 1}ms")
            assert 1 == len(house.destinations.seen)
            await house.after("1ms")
        assert 2 == len(house.destinations.seen)


@pytest.mark.parametrize(
    ("expression", "waits"),
    [
        ("1000", [1_000, 1_000]),
        ("1000 * (1 + retried)", [1_000, 2_000]),
        ("max(10, pow(2, retried) * 1000)", [1_000, 2_000]),
        ("pow(10, 400)", [86_400_000, 86_400_000]),
        ("1 / 0", [12_183, 148_414]),
    ],
)
async def test_a_publisher_may_set_the_pauses(expression: str, waits: list[int]) -> None:
    async with House() as house:
        house.destinations.answer("/hook", 500)
        await house.publish(upstash_retries="2", upstash_retry_delay=expression)
        await house.settled()
        for sent, wait in enumerate(waits, 1):
            await house.after(f"{wait - 1}ms")
            assert sent == len(house.destinations.seen)
            await house.after("1ms")
        assert 3 == len(house.destinations.seen)


async def test_489_with_its_header_ends_a_message_at_once() -> None:
    async with House() as house:
        house.destinations.answer("/hook", 489, "never", upstash_nonretryable_error="true")
        answer = await house.publish()
        await house.settled()
        await house.after("2d")
        assert 1 == len(house.destinations.seen)
        assert ["CREATED", "ACTIVE", "ERROR", "FAILED"] == await house.states(answer["messageId"])


async def test_a_destination_that_cannot_be_reached_is_tried_again() -> None:
    def down(_: object) -> httpx.Response:
        raise httpx.ConnectError("refused")

    async with House() as house:
        house.destinations.answers["/hook"] = down
        answer = await house.publish(upstash_retries="1", upstash_retry_delay="1")
        await house.settled()
        await house.after("1ms")
        assert 2 == len(house.destinations.seen)
        [failed] = await house.events(messageId=answer["messageId"], state="FAILED")
        assert (0, "no answer: ConnectError") == (failed["responseStatus"], failed["error"])


async def test_callbacks_report_each_attempt_and_the_failure_callback_the_last() -> None:
    async with House() as house:
        house.destinations.answer("/hook", 500, "broken", x_why="rain")
        answer = await house.publish(
            body="order",
            upstash_retries="1",
            upstash_retry_delay="1000",
            upstash_callback="https://shop.example.com/told",
            upstash_failure_callback="https://shop.example.com/failed",
            upstash_callback_forward_x_key="k",
            upstash_callback_method="PUT",
        )
        await house.settled()
        await house.after("1s")
        first, second = house.destinations.at("/told")
        [failed] = house.destinations.at("/failed")
        assert all(each.genuine for each in (first, second, failed))
        assert ("PUT", "k", "application/json") == (
            first.method,
            first.headers["x-key"],
            first.headers["content-type"],
        )
        assert "dlqId" not in second.json()
        told = failed.json()
        expected: dict[str, Any] = {
            "status": 500,
            "body": base64.b64encode(b"broken").decode(),
            "retried": 1,
            "maxRetries": 1,
            "sourceMessageId": answer["messageId"],
            "url": URL,
            "sourceBody": base64.b64encode(b"order").decode(),
        }
        assert expected == {name: told[name] for name in expected}
        assert ["rain"] == told["header"]["x-why"]
        assert (await house.call("GET", f"/v2/dlq/{told['dlqId']}"))["messageId"] == answer["messageId"]


async def test_a_queue_delivers_one_after_the_other_retries_and_callbacks_included() -> None:
    async with House() as house:
        house.destinations.answer("/a", 500)
        for path in ("a", "b", "c"):
            await house.call(
                "POST",
                f"/v2/enqueue/line/https://e.com/{path}",
                body="x",
                upstash_retries="1",
                upstash_retry_delay="60000",
                upstash_callback="https://e.com/told",
            )
        await house.settled()
        assert ["/a", "/told"] == [httpx.URL(each.url).path for each in house.destinations.seen]
        assert 3 == (await house.call("GET", "/v2/queues/line"))["lag"]
        await house.after("60s")
        paths = [httpx.URL(each.url).path for each in house.destinations.seen]
        assert ["/a", "/told", "/a", "/told", "/b", "/told", "/c", "/told"] == paths


async def test_a_queue_runs_as_many_as_its_parallelism_and_none_while_paused() -> None:
    async with House() as house:
        await house.call("POST", "/v2/queues", body={"queueName": "line", "parallelism": 2, "paused": True})
        house.destinations.held = {"/0": anyio.Event(), "/1": anyio.Event()}
        for number in range(3):
            await house.call("POST", f"/v2/enqueue/line/https://e.com/{number}")
        await house.settled()
        assert [] == house.destinations.seen
        await house.call("POST", "/v2/queues/line/resume")
        await house.arrivals(2)
        assert {"https://e.com/0", "https://e.com/1"} == {each.url for each in house.destinations.seen}
        house.destinations.held["/1"].set()
        await house.arrivals(3)
        house.destinations.held["/0"].set()
        await house.settled()
        assert 0 == (await house.call("GET", "/v2/queues/line"))["lag"]


async def test_a_schedule_sends_at_its_ticks_until_it_is_paused_or_deleted() -> None:
    async with House() as house:
        made = await house.call("POST", f"/v2/schedules/{URL}", body="tick", upstash_cron="*/5 * * * *")
        path = f"/v2/schedules/{made['scheduleId']}"
        await house.after("5m")
        await house.after("5m")
        assert [b"tick"] * 2 == [each.body for each in house.destinations.seen]
        assert {made["scheduleId"]} == {each.headers["upstash-schedule-id"] for each in house.destinations.seen}
        assert all(each.genuine for each in house.destinations.seen)
        for verb in ("POST", "PATCH"):
            await house.call(verb, f"{path}/pause")
            assert (await house.call("GET", path))["isPaused"]
            await house.after("1h")
            await house.call(verb, f"{path}/resume")
            await house.settled()
            assert 2 == len(house.destinations.seen)
        await house.after("1h")
        assert 3 == len(house.destinations.seen), "missed ticks are one"
        shown = await house.call("GET", path)
        assert ["SUCCESS"] == list(shown["lastScheduleStates"].values())
        await house.call("DELETE", path)
        await house.after("1h")
        assert 3 == len(house.destinations.seen)
        assert [] == await house.call("GET", "/v2/schedules")


async def test_a_schedule_of_the_same_id_is_overwritten_and_keeps_its_zone() -> None:
    async with House() as house:
        for cron in ("0 0 * * *", "CRON_TZ=America/New_York 30 9 * * *"):
            await house.call("POST", f"/v2/schedules/{URL}", upstash_cron=cron, upstash_schedule_id="daily")
        [shown] = await house.call("GET", "/v2/schedules")
        assert ("daily", "CRON_TZ=America/New_York 30 9 * * *") == (shown["scheduleId"], shown["cron"])
        assert 14 * 3_600_000 + 30 * 60_000 == shown["nextScheduleTime"] % 86_400_000


async def test_cancelling_ends_what_waits_at_once_and_what_is_under_way_with_its_attempt() -> None:
    async with House() as house:
        waiting = await house.publish(upstash_delay="1h")
        assert {"cancelled": 1} == await house.call("DELETE", f"/v2/messages/{waiting['messageId']}")
        await house.call("DELETE", f"/v2/messages/{waiting['messageId']}", 404)
        assert ["CREATED", "CANCEL_REQUESTED", "CANCELED"] == await house.states(waiting["messageId"])
        house.destinations.held["/slow"] = anyio.Event()
        house.destinations.answer("/slow", 500)
        running = await house.publish("https://e.com/slow")
        await house.arrivals(1)
        await house.call("DELETE", f"/v2/messages/{running['messageId']}")
        house.destinations.held["/slow"].set()
        await house.after("30d")
        assert 1 == len(house.destinations.seen)
        assert "CANCELED" == (await house.states(running["messageId"]))[-1]
        [event] = await house.events(state="CANCELLED", messageId=running["messageId"])
        assert "CANCELED" == event["state"], "the documents' spelling finds the clients'"


async def test_many_are_cancelled_by_id_by_filter_or_all() -> None:
    async with House() as house:
        ids = [(await house.publish(f"https://e.com/{n}", upstash_delay="1h"))["messageId"] for n in range(6)]
        assert 1 == (await house.call("DELETE", f"/v2/messages?messageIds={ids[0]}"))["cancelled"]
        assert 1 == (await house.call("DELETE", "/v2/messages", body={"messageIds": [ids[1], "msg_no"]}))["cancelled"]
        assert 0 == (await house.call("DELETE", "/v2/messages", body={"messageIds": []}))["cancelled"]
        assert 1 == (await house.call("DELETE", "/v2/messages?url=https://e.com/2"))["cancelled"]
        assert {"cancelled": 1, "cursor": "0"} == await house.call("DELETE", "/v2/messages?count=1")
        assert {"cancelled": 2} == await house.call("DELETE", "/v2/messages/")


async def test_a_batch_sends_the_others_where_one_is_refused() -> None:
    async with House() as house:
        batch = [
            {"destination": "https://e.com/0?x=1", "headers": {"Upstash-Delay": "1s", "Upstash-Forward-A": "b"}},
            {"destination": "nowhere", "headers": {}, "body": "x"},
            {"destination": "https://e.com/2", "headers": {}, "body": "é", "queue": "line"},
            "no",
        ]
        answers = await house.call("POST", "/v2/batch", body=batch)
        assert [True, False, True, False] == ["messageId" in answer for answer in answers]
        assert "invalid scheme" in answers[1]["error"]
        await house.settled()
        await house.after("1s")
        assert ["https://e.com/2", "https://e.com/0?x=1"] == [each.url for each in house.destinations.seen]
        assert "é".encode() == house.destinations.seen[0].body
        assert "b" == house.destinations.seen[1].headers["a"]


async def test_dead_letters_are_listed_retried_with_new_options_and_deleted() -> None:
    async with House() as house:
        house.destinations.answer("/hook", 500, "bad")
        for number in range(4):
            await house.publish(body=str(number), upstash_retries="0", upstash_label=f"l{number},all")
            await house.settled()
        listed = await house.call("GET", "/v2/dlq?count=3")
        assert 3 == len(listed["messages"])
        rest = await house.call("GET", f"/v2/dlq?cursor={listed['cursor']}")
        letters = listed["messages"] + rest["messages"]
        assert ["0", "1", "2", "3"] == [letter["body"] for letter in letters]
        assert [500] * 4 == [letter["responseStatus"] for letter in letters]
        assert 1 == len((await house.call("GET", "/v2/dlq?label=l2&responseStatus=500"))["messages"])
        ids = [letter["dlqId"] for letter in letters]
        house.destinations.answer("/hook", 200)
        again = await house.call("POST", f"/v2/dlq/retry?dlqIds={ids[0]}", 201, upstash_forward_x_again="yes")
        await house.call("POST", f"/v2/dlq/retry/{ids[1]}", 201, upstash_delay="1h")
        await house.call("POST", f"/v2/dlq/retry/{ids[1]}", 404)
        await house.settled()
        last = house.destinations.seen[-1]
        assert (b"0", "yes", True) == (last.body, last.headers["x-again"], last.genuine)
        assert again["responses"][0]["messageId"] == last.headers["upstash-message-id"]
        await house.after("1h")
        assert b"1" == house.destinations.seen[-1].body
        assert {"deleted": 1} == await house.call("DELETE", "/v2/dlq", body={"dlqIds": [ids[2]]})
        assert {"deleted": 1} == await house.call("DELETE", f"/v2/dlq/{ids[3]}")
        await house.call("DELETE", f"/v2/dlq/{ids[3]}", 404)
        assert {"messages": []} == await house.call("GET", "/v2/dlq")


async def test_no_view_shows_what_is_redacted_and_deliveries_and_retries_have_it() -> None:
    secret, key = "s3cret-body", "s3cret-key"
    async with House() as house:
        house.destinations.answer("/hook", 500)
        answer = await house.publish(
            body=secret,
            upstash_forward_authorization=key,
            upstash_redact_fields="body, header[authorization]",
            upstash_retries="0",
            upstash_delay="1s",
            upstash_callback="https://e.com/told",
            upstash_callback_delay="",
        )
        await house.call(
            "POST", f"/v2/schedules/{URL}", body=secret, upstash_cron="0 0 1 1 *", upstash_redact_fields="body"
        )
        views = [await house.call("GET", f"/v2/messages/{answer['messageId']}")]
        house.destinations.held["/told"] = anyio.Event()
        house.clock.move_to(house.clock.now_ms() + 1_000)
        house.server.deliveries.wake()
        await house.arrivals(2)
        report = house.destinations.at("/told")[0].headers["upstash-message-id"]
        paths = ["/v2/events", "/v2/logs", "/v2/dlq", "/v2/schedules", f"/v2/messages/{report}"]
        views += [await house.call("GET", path) for path in paths]
        house.destinations.held["/told"].set()
        await house.settled()
        text = json.dumps(views)
        for hidden in (secret, key):
            assert hidden not in text
            assert base64.b64encode(hidden.encode()).decode() not in text
            assert base64.b64encode(hidden.encode()).decode().rstrip("=") not in text
        assert views[0]["body"].startswith("REDACTED:")
        assert views[0]["header"]["Authorization"][0].startswith("REDACTED:")
        house.destinations.answer("/hook", 200)
        await house.call("POST", "/v2/dlq/retry", 201)
        await house.settled()
        for delivery in house.destinations.at("/hook"):
            assert (secret.encode(), key) == (delivery.body, delivery.headers["authorization"])


async def test_rotated_keys_sign_what_was_published_before() -> None:
    async with House() as house:
        await house.publish(upstash_delay="1h")
        keys = await house.call("GET", "/v2/keys")
        rotated = await house.call("POST", "/v2/keys/rotate")
        assert rotated["current"] == keys["next"]
        assert rotated == await house.call("GET", "/v2/keys")
        await house.after("1h")
        assert house.destinations.seen[0].genuine, "signed with what was the next key"


async def test_logs_page_from_the_latest_under_both_names() -> None:
    async with House() as house:
        for number in range(3):
            await house.publish(f"https://e.com/{number}", upstash_label="x")
            await house.settled()
        first = await house.call("GET", "/v2/logs?count=5&label=x")
        second = await house.call("GET", f"/v2/logs?count=5&label=x&cursor={first['cursor']}")
        assert first["events"] == first["logs"]
        assert ["DELIVERED", "ACTIVE", "CREATED"] * 3 == [each["state"] for each in first["logs"] + second["logs"]]
        assert "cursor" not in second
        late = await house.publish(upstash_delay="30d")
        await house.after("8d")
        assert [] == await house.events()
        await house.after("22d")
        assert [URL] * 2 == [event["url"] for event in await house.events(messageId=late["messageId"])]
