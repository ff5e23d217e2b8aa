"""Public reports about the provider, one row each by its number: what our server does with the same input."""

import base64
import json
from typing import Any

import anyio
import httpx
import pytest

from a2asgi.errors import ConfigurationError
from a2asgi.qstash_server import Credentials, SigningKeys
from tests.asgi.qstash_server.houses import URL, House

NO_SCHEME = "invalid destination url: endpoint has invalid scheme, add http:// or https://"


async def test_4_a_callback_carries_its_own_forwarded_headers() -> None:
    async with House() as house:
        await house.publish(
            upstash_callback="https://e.com/told", upstash_callback_forward_x_vercel_protection_bypass="SECRET"
        )
        await house.settled()
        assert "SECRET" == house.destinations.at("/told")[0].headers["x-vercel-protection-bypass"]
        assert "x-vercel-protection-bypass" not in house.destinations.at("/hook")[0].headers


async def test_5_a_redirect_is_a_failed_attempt_and_is_not_followed() -> None:
    async with House() as house:
        house.destinations.answer("/hook", 308, location="/hook/")
        await house.publish(upstash_retries="0")
        await house.settled()
        assert ["/hook"] == [httpx.URL(each.url).path for each in house.destinations.seen]
        [letter] = (await house.call("GET", "/v2/dlq"))["messages"]
        assert (308, ["/hook/"]) == (letter["responseStatus"], letter["responseHeader"]["location"])


@pytest.mark.parametrize(
    "path",
    [
        "/v2/publish/example.com",
        "/v2/publish/undefined/x",
        "/v2/publish/",
        "/v2/publish",
        "/v2/publish//x",
        "/v2/enqueue/line/example.com",
        "/v2/schedules",
        "/v2/schedules/example.com",
    ],
)
async def test_14_a_destination_without_a_scheme_has_the_documented_text(path: str) -> None:
    async with House() as house:
        assert {"error": NO_SCHEME} == await house.call(
            "POST", path, 400, {"destination": URL}, upstash_cron="* * * * *"
        )


async def test_15_a_failed_message_still_holds_its_deduplication_id() -> None:
    async with House() as house:
        house.destinations.answer("/hook", 500)
        first = await house.publish(upstash_retries="3", upstash_retry_delay="1000", upstash_deduplication_id="once")
        await house.settled()
        for _ in range(5):
            await house.after("1s")
        assert [0, 1, 2, 3] == [each.retried for each in house.destinations.seen]
        assert 1 == len((await house.call("GET", "/v2/dlq"))["messages"])
        again = await house.publish(status=202, upstash_deduplication_id="once")
        assert (first["messageId"], True) == (again["messageId"], again["deduplicated"])


@pytest.mark.parametrize(
    "headers", [{"upstash_deduplication_id": "once"}, {"upstash_content_based_deduplication": "True"}]
)
async def test_16_deleting_a_schedule_does_not_free_its_deduplication_id(headers: dict[str, Any]) -> None:
    async with House() as house:
        path = f"/v2/schedules/{URL}"
        made = await house.call("POST", path, upstash_cron="0 0 * * *", **headers)
        await house.call("DELETE", f"/v2/schedules/{made['scheduleId']}")
        again = await house.call("POST", path, 202, upstash_cron="0 0 * * *", **headers)
        assert made["scheduleId"] == again["scheduleId"]
        assert [] == await house.call("GET", "/v2/schedules")
        await house.after("11m")
        await house.call("POST", path, upstash_cron="0 0 * * *", **headers)
        assert 1 == len(await house.call("GET", "/v2/schedules"))


async def test_17_a_colon_in_a_deduplication_id_has_the_documented_text() -> None:
    async with House() as house:
        answer = await house.publish(status=400, upstash_deduplication_id="automation:2026-04-20T00")
        assert {"error": "DeduplicationId cannot contain ':'"} == answer
        await house.publish(status=400, upstash_deduplication_id="x" * 10_000)


@pytest.mark.parametrize(("window_ms", "within", "past"), [(600_000, "9m59s", "2s"), (1_000, "999ms", "2ms")])
async def test_19_the_window_ends_when_it_is_over(window_ms: int, within: str, past: str) -> None:
    async with House(deduplication_window_ms=window_ms) as house:
        first = await house.publish(upstash_deduplication_id="once")
        await house.after(within)
        again = await house.publish(status=202, upstash_deduplication_id="once")
        assert first["messageId"] == again["messageId"]
        await house.after(past)
        later = await house.publish(upstash_deduplication_id="once")
        assert first["messageId"] != later["messageId"]
        await house.settled()
        assert 2 == len(house.destinations.seen)


async def test_20_a_timeout_is_of_one_attempt_and_retries_go_on() -> None:
    async with House() as house:
        house.destinations.held["/hook"] = anyio.Event()
        await house.publish(upstash_timeout="1s", upstash_retry_delay="60000")
        await house.arrivals(1)
        await house.after("1s")
        house.destinations.held["/hook"].set()
        await house.after("60s")
        assert [0, 1] == [each.retried for each in house.destinations.seen]
        assert 1 == len(await house.events(state="DELIVERED"))


@pytest.mark.parametrize(
    ("limit", "prefix", "other"),
    [("daily_limit", "ratelimit", "burst-ratelimit"), ("burst_limit", "burst-ratelimit", "ratelimit")],
)
async def test_23_each_limit_is_told_by_its_own_headers(limit: str, prefix: str, other: str) -> None:
    async with House(**{limit: 1}) as house:
        await house.publish()
        answer = await house.client.post(f"/v2/publish/{URL}")
        assert 429 == answer.status_code
        assert ("1", "0") == (answer.headers[f"{prefix}-limit"], answer.headers[f"{prefix}-remaining"])
        assert int(answer.headers[f"{prefix}-reset"]) * 1_000 > house.clock.now_ms()
        assert f"{other}-limit" not in answer.headers
        await house.after("1d")
        await house.publish()


async def test_29_attempts_callbacks_ticks_and_dead_letter_retries_are_all_signed_anew() -> None:
    async with House() as house:
        house.destinations.answer("/hook", 500)
        reports: dict[str, Any] = {
            "upstash_retries": "1",
            "upstash_retry_delay": "1",
            "upstash_callback": "https://e.com/told",
            "upstash_failure_callback": "https://e.com/failed",
        }
        await house.publish(**reports)
        await house.call("POST", f"/v2/schedules/{URL}", upstash_cron="* * * * *", **reports)
        await house.settled()
        await house.after("1ms")
        await house.after("1m")
        await house.after("1ms")
        await house.call("POST", "/v2/dlq/retry", 201)
        await house.settled()
        counts = [len(house.destinations.at(path)) for path in ("/hook", "/told", "/failed")]
        assert [6, 6, 2] == counts, "two attempts each, and one of each dead letter"
        assert all(each.genuine for each in house.destinations.seen)
        tokens = [each.headers["upstash-signature"] for each in house.destinations.seen]
        assert len(tokens) == len(set(tokens))


@pytest.mark.parametrize("body", ["chinese华语".encode(), b"\xff\x00\xfe"])
async def test_33_a_callback_holds_the_bytes_of_the_answer(body: bytes) -> None:
    async with House() as house:
        house.destinations.answers["/hook"] = lambda _: httpx.Response(200, content=body)
        await house.publish(upstash_callback="https://e.com/told")
        await house.settled()
        told = house.destinations.at("/told")[0].json()
        assert body == base64.b64decode(told["body"])
        assert "Y2hpbmVzZeWNjuivrQ==" == base64.b64encode("chinese华语".encode()).decode()


@pytest.mark.parametrize(
    ("host", "fits"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False), ("qstash", False)],  # noqa: S104 - refused
)
def test_35_public_credentials_serve_loopback_only(host: str, *, fits: bool) -> None:
    own = Credentials("token-of-our-own", SigningKeys("sig_" + "a" * 28, "sig_" + "b" * 28))
    own.check_bind(host)
    half = Credentials("token-of-our-own", Credentials().keys)
    for public in (Credentials(), half):
        if fits:
            public.check_bind(host)
        else:
            with pytest.raises(ConfigurationError, match="QSTASH_TOKEN"):
                public.check_bind(host)


async def test_35_a_health_check_needs_no_token() -> None:
    async with House() as house:
        del house.client.headers["authorization"]
        assert {"status": "ok"} == await house.call("GET", "/health")
        assert json.loads('{"error": "invalid token"}') == await house.call("GET", "/v2/keys", 401)
