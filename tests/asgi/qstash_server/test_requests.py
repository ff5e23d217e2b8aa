"""What the server takes and refuses: forms of options and destinations, who may ask, limits of size."""

import json
from typing import Any

import pytest

from a2asgi.development import DEVELOPMENT_TOKEN
from a2asgi.errors import ConfigurationError
from a2asgi.qstash_server import Credentials, SigningKeys
from a2asgi.qstash_server.expressions import evaluate, is_expression
from a2asgi.qstash_server.orders import Options, destination_url, parse_order
from a2asgi.qstash_server.rules import default_delay_ms, next_tick_ms, parse_duration
from a2asgi.qstash_server.values import Redact, Refused
from a2asgi.qstash_server.views import redacted
from tests.asgi.qstash_server.houses import URL, House


@pytest.mark.parametrize(
    ("given", "arrives"),
    [
        ("https://e.com/cb?a=1&b=2", "https://e.com/cb?a=1&b=2"),
        ("https://e.com/cb?a=1&upstash-retries=1&b=2&qstash_token=no", "https://e.com/cb?a=1&b=2"),
        ("https://e.com", "https://e.com"),
        ("https://e.com/b/c//d", "https://e.com/b/c//d"),
        ("https://b%C3%BCcher.example/p%C3%A4th", "https://xn--bcher-kva.example/p%C3%A4th"),
        ("https://e.com/a%20b%2fc+d", "https://e.com/a%20b%2fc+d"),
        ("https%3A%2F%2Fe.com%2Fx", "https://e.com/x"),
        ("http://localhost:3000/x", "http://localhost:3000/x"),
    ],
)
async def test_a_destination_arrives_as_it_was_written(given: str, arrives: str) -> None:
    async with House() as house:
        answer = await house.publish(given)
        assert arrives == answer["url"]
        await house.settled()
        assert house.destinations.seen[0].genuine or arrives == "https://e.com"


@pytest.mark.parametrize(
    "headers",
    [
        {"upstash_delay": "soon"},
        {"upstash_delay": "NaNs"},
        {"upstash_delay": "99999999d"},
        {"upstash_delay": "-5s"},
        {"upstash_not_before": "2026-01-01"},
        {"upstash_retries": "-1"},
        {"upstash_retries": "1e3"},
        {"upstash_retry_delay": "__import__('os')"},
        {"upstash_timeout": "Trues"},
        {"upstash_method": "TRACE"},
        {"upstash_callback": "/relative"},
        {"upstash_callback": "https://e.com", "upstash_callback_delay": "1s"},
        {"upstash_failure_callback": "undefined"},
        {"upstash_flow_control_key": "k"},
        {"upstash_flow_control_key": "k", "upstash_flow_control_value": "speed=3"},
        {"upstash_redact_fields": "everything"},
        {"upstash_label": ",".join("x" * 40)},
        {"upstash_forward_x": "a\x01b"},
    ],
    ids=str,
)
async def test_what_cannot_be_meant_is_refused(headers: dict[str, Any]) -> None:
    async with House() as house:
        answer = await house.publish(status=400, **headers)
        assert ["error"] == list(answer)
        await house.settled()
        assert [] == house.destinations.seen


@pytest.mark.parametrize("url", ["https://", "https://e.com:port/", "https://[x/", "https://e.com/a b"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(Refused, match="invalid destination url"):
        destination_url(url)


@pytest.mark.parametrize(
    ("text", "redact"),
    [
        ("body", Redact(body=True)),
        ("header", Redact(all_headers=True)),
        ("Headers, BODY", Redact(body=True, all_headers=True)),
        ("header[Authorization],headers[X-Key]", Redact(header_names=("authorization", "x-key"))),
        ("header[a]]", Redact(header_names=("a]",))),
        ("", Redact()),
    ],
)
def test_redaction_is_written_in_several_ways(text: str, redact: Redact) -> None:
    assert redact == parse_order(URL, Options([("Upstash-Redact-Fields", text)]), b"").redact


def test_a_redacted_value_is_its_hash() -> None:
    assert "REDACTED:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" == redacted(b"")


async def test_options_may_stand_in_the_query_and_all_headers_may_be_forwarded() -> None:
    async with House() as house:
        await house.publish(f"{URL}?upstash-retries=7&Upstash-Delay=1h&x=1", upstash_header_forward="true", x_own="me")
        [event] = await house.events(state="CREATED")
        assert (7, f"{URL}?x=1") == (event["maxRetries"], event["url"])
        await house.after("1h")
        headers = house.destinations.seen[0].headers
        assert "me" == headers["x-own"]
        assert DEVELOPMENT_TOKEN not in str(headers)


async def test_the_same_content_is_a_duplicate_and_other_content_is_not() -> None:
    async with House() as house:

        async def publish(**options: Any) -> bool:
            url = options.pop("url", URL)
            answer = await house.client.post(
                f"/v2/publish/{url}",
                content=options.pop("body", b"x"),
                headers={"Upstash-Content-Based-Deduplication": "true", **options},
            )
            return 202 == answer.status_code

        assert not await publish()
        assert await publish()
        assert await publish(**{"Upstash-Telemetry-Sdk": "upstash-qstash-js@2.12.0"})
        assert not await publish(body=b"y")
        assert not await publish(url=f"{URL}/other")
        assert not await publish(**{"Content-Type": "text/plain"})
        assert not await publish(**{"Upstash-Forward-A": "b"})
        assert not await publish(**{"Upstash-Content-Based-Deduplication": "False"})


async def test_a_message_of_one_mebibyte_is_taken_and_a_larger_one_refused_in_a_batch() -> None:
    async with House() as house:
        await house.publish(body=b"x" * 1_048_576)
        batch = [{"destination": URL, "body": "x" * 1_048_577}, {"destination": URL}]
        answers = await house.call("POST", "/v2/batch", body=json.dumps(batch))
        assert [False, True] == ["messageId" in each for each in answers]


@pytest.mark.parametrize("body", ["", "{", "{}", "[" * 100_000, '"x"'])
async def test_a_batch_that_is_none_is_refused(body: str) -> None:
    async with House() as house:
        assert ["error"] == list(await house.call("POST", "/v2/batch", 400, body))


async def test_the_token_may_come_in_the_query_and_another_is_refused() -> None:
    async with House() as house:
        del house.client.headers["authorization"]
        await house.call("GET", f"/v2/keys?qstash_token={DEVELOPMENT_TOKEN}")
        await house.call("GET", "/v2/keys?qstash_token=other", 401)
        await house.call("GET", "/v2/keys", 401, authorization="Basic x")
        await house.call("GET", "/v2/keys", 401, authorization="Bearer other")
        await house.call("GET", "/v2/nowhere", 401)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "localhost:8080"}, 200),
        ({"host": "[::1]:8080"}, 200),
        ({"host": "rebound.example.com"}, 403),
        ({"origin": "https://evil.example.com"}, 403),
        ({"origin": "null"}, 403),
        ({"host": "[::1"}, 403),
        ({"origin": "http://[localhost"}, 403),
        ({"origin": "http://localhost:3000"}, 200),
    ],
)
async def test_with_the_public_token_only_this_machine_may_ask(headers: dict[str, Any], status: int) -> None:
    async with House() as house:
        await house.call("GET", "/v2/keys", status, **headers)


async def test_credentials_of_ones_own_serve_any_name() -> None:
    own = Credentials("token-of-our-own", SigningKeys("sig_" + "a" * 28, "sig_" + "b" * 28))
    async with House(credentials=own) as house:
        await house.call("GET", "/v2/keys", authorization="Bearer token-of-our-own", host="qstash:8080")
        await house.call("GET", "/v2/keys", 401)
    assert "token-of-our-own" not in repr(own)
    assert "aaaa" not in repr(own)
    with pytest.raises(ConfigurationError):
        SigningKeys("short", "sig_" + "b" * 28)


async def test_time_travel_is_off_unless_asked_for() -> None:
    async with House() as house:
        await house.call("POST", "/time-travel", 404, {"by": "1h"})
    async with House(time_travel=True) as house:
        await house.publish(upstash_delay="1h")
        before = house.clock.now_ms()
        assert {"now": before + 3_600_000} == await house.call("POST", "/time-travel", body={"by": "1h"})
        await house.settled()
        assert [True] == [each.genuine for each in house.destinations.seen], "signed by the world's time"
        for by in ("-1h", "99999d", 5, None):
            await house.call("POST", "/time-travel", 400, {"by": by})


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("1d10h30m", 124_200_000), ("1.6s", 1_600), ("1ns", 1), ("5µs", 1), ("", None), ("5", None), ("5x", None)],
)
def test_a_duration_is_read_or_not(text: str, milliseconds: int | None) -> None:
    assert milliseconds == parse_duration(text)


def test_the_back_off_is_the_documented_table() -> None:
    seconds = [default_delay_ms(retry) // 1_000 for retry in range(1, 7)]
    assert [12, 148, 1_808, 22_026, 86_400, 86_400] == seconds
    assert 86_400_000 == default_delay_ms(10_000)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1000", 1_000),
        ("pow(2, retried) * 1000", 4_000),
        ("min(5, retried) + max(1, 2, 3) - -1", 6),
        ("round(2.5) + floor(2.9) + ceil(2.1) + abs(-1) + sqrt(9)", 12),
        ("exp(0) / 2 % 1", 0.5),
    ],
)
def test_an_expression_has_a_value(text: str, value: float) -> None:
    assert is_expression(text)
    assert value == evaluate(text, 2)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "retried.real",
        "2 ** 9",
        "pow(1)",
        "max()",
        "open('x')",
        "True",
        "'a'",
        "1 if 2 else 3",
        "1" * 300,
        "(" * 99,
    ],
)
def test_what_is_no_arithmetic_is_none(text: str) -> None:
    assert not is_expression(text)


@pytest.mark.parametrize(
    "cron",
    ["", "* * * *", "61 * * * *", "0 0 31 2 *", "CRON_TZ=Mars/Base * * * * *", "CRON_TZ=../x * * * * *", "@daily"],
)
def test_what_is_no_cron_is_refused(cron: str) -> None:
    with pytest.raises(Refused, match="invalid cron"):
        next_tick_ms(cron, 0)


def test_a_cron_whose_time_is_over_is_refused() -> None:
    with pytest.raises(Refused, match="invalid cron: it never comes"):
        next_tick_ms("0 0 * * *", 253_402_300_799_999)
