"""The QStash scheduler: what it needs, how it publishes, and how a publish fails."""

from typing import Any

import anyio
import httpx
import pytest

from a2asgi import ConfigurationError, QStash, SendFailed
from a2asgi.oidc import request_token
from a2core import DrainTask, InvalidHeaders, InvalidUrl
from tests.asgi.provider import KEYS, PREVIEW, URL, Frozen, Provider, Reply, qstash

TASK = DrainTask("orders", "s-1", 0)
ENVIRONMENT = {
    "QSTASH_TOKEN": "token-0123",
    "QSTASH_CURRENT_SIGNING_KEY": KEYS[0],
    "QSTASH_NEXT_SIGNING_KEY": KEYS[1],
}


def configured(environment: dict[str, str] | None = None, **options: Any) -> QStash:
    """A scheduler of these settings alone."""
    return QStash(**{"url": URL, "environment": ENVIRONMENT if environment is None else environment, **options})


# ── what it needs ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("environment", "options", "error", "says"),
    [
        pytest.param({}, {}, ConfigurationError, "QSTASH_TOKEN", id="no-token"),
        pytest.param({"QSTASH_TOKEN": "t"}, {}, ConfigurationError, "QSTASH_CURRENT_SIGNING_KEY", id="no-keys"),
        pytest.param(
            {**ENVIRONMENT, "QSTASH_NEXT_SIGNING_KEY": ""},
            {},
            ConfigurationError,
            "QSTASH_NEXT_SIGNING_KEY",
            id="one-key",
        ),
        pytest.param(ENVIRONMENT, {"url": "/api"}, InvalidUrl, "expected http", id="relative-url"),
        pytest.param(
            {**ENVIRONMENT, "A2_ENV": "production"}, {"url": None}, InvalidUrl, "production needs", id="no-url"
        ),
        pytest.param(ENVIRONMENT, {"headers": {"Host": "x"}}, InvalidHeaders, "reserved", id="reserved-header"),
        pytest.param(ENVIRONMENT, {"retries": -1}, ValueError, "retries", id="retries"),
        pytest.param(
            ENVIRONMENT, {"client": Provider(), "token": "t"}, ConfigurationError, "both", id="client-and-token"
        ),
        pytest.param(ENVIRONMENT, {"base_url": "qstash.upstash.io"}, ConfigurationError, "QSTASH_URL", id="no-scheme"),
        pytest.param(ENVIRONMENT, {"base_url": "https://a b"}, ConfigurationError, "QSTASH_URL", id="white-space"),
        pytest.param(
            {"A2_ENV": "production", "QSTASH_DEV": "1", "QSTASH_TOKEN": "t"},
            {},
            ConfigurationError,
            "SIGNING_KEY",
            id="development-in-production",
        ),
    ],
)
def test_what_is_missing_is_said_when_it_is_made(
    environment: dict[str, str], options: dict[str, Any], error: type[Exception], says: str
) -> None:
    """A configuration that could never work fails at construction, and names what to set."""
    with pytest.raises(error, match=says):
        configured(environment, **options)


@pytest.mark.parametrize(
    ("environment", "base"),
    [
        pytest.param({}, "https://qstash.upstash.io", id="default"),
        pytest.param({"QSTASH_URL": "https://eu.example.com/"}, "https://eu.example.com", id="slash"),
        pytest.param({"QSTASH_URL": " https://eu.example.com/v2/publish/ "}, "https://eu.example.com", id="C13-path"),
        pytest.param(
            {"QSTASH_REGION": "us-east-1", "US_EAST_1_QSTASH_URL": "https://us.example.com"},
            "https://us.example.com",
            id="region",
        ),
    ],
)
async def test_the_base_url_is_found(environment: dict[str, str], base: str) -> None:
    """However it is written, messages go to its publish route, with the callback behind it."""
    provider = Provider()
    await qstash(provider, environment=environment).send(TASK)
    assert f"{base}/v2/publish/{URL}" == provider.calls[0]["url"]


async def test_development_needs_no_configuration() -> None:
    """On a developer's machine the local server's public credentials serve, and only there."""
    scheduler = QStash(environment={"QSTASH_DEV_PORT": "8181"})
    assert "QStash(url='http://localhost:8000/api/a2/scheduler', base_url='http://127.0.0.1:8181')" == repr(scheduler)


def test_no_secret_is_shown() -> None:
    """Neither token nor keys nor headers nor the url's query are in what it prints."""
    url, base_url = "https://app.example.com/?bypass=hunter2", "https://me:hunter2@qstash.example.com"
    text = repr(configured(url=url, base_url=base_url, headers={"x-bypass": "hunter2"}))
    for secret in ("token-0123", *KEYS, "hunter2"):
        assert secret not in text


# ── how it publishes ─────────────────────────────────────────────────────────────────────


async def test_a_message_has_its_token_its_name_and_its_headers() -> None:
    """The request is QStash's: bearer token, deduplication id, forwarded and redacted headers, retries."""
    calls: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        calls.append(request)
        return httpx.Response(201, json={"messageId": "m"})

    scheduler = configured(headers={"X-Bypass": "hunter2"}, retries=2)
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        scheduler._client, scheduler._client_loop = client, anyio.lowlevel.current_token().native_token  # noqa: SLF001
        await scheduler.send(TASK)
    [call] = calls
    assert f"https://qstash.upstash.io/v2/publish/{URL}" == str(call.url)
    assert "Bearer token-0123" == call.headers["authorization"]
    assert ("hunter2", "header[x-bypass]", "2") == (
        call.headers["upstash-forward-x-bypass"],
        call.headers["upstash-redact-fields"],
        call.headers["upstash-retries"],
    )
    assert call.headers["upstash-deduplication-id"].startswith("a2_")


async def test_the_platforms_token_is_forwarded_for_a_preview_alone() -> None:
    """The request's own token rides along where the callback was inferred for a preview."""
    token = "eyJhbGciOiJSUzI1NiJ9.eyJleHAiOjQxMDI0NDQ4MDB9.c2ln"
    for environment, url, forwarded in ((PREVIEW, None, True), (PREVIEW, URL, False), ({}, URL, False)):
        provider = Provider()
        reset = request_token.set(token)
        await qstash(provider, environment=environment, url=url).send(TASK)
        request_token.reset(reset)
        assert forwarded == ("upstash-forward-x-vercel-trusted-oidc-idp-token" in provider.calls[0])


# ── how a publish fails ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("reply", "terminal"),
    [
        pytest.param(Reply(400, "invalid destination"), True, id="bad-request"),
        pytest.param(Reply(401, "unauthorized"), True, id="unauthorized"),
        pytest.param(Reply(429, "slow down"), False, id="limit"),
        pytest.param(Reply(500, "oops"), False, id="trouble"),
        pytest.param(httpx.ConnectError("refused"), False, id="network"),
        pytest.param(ValueError("what a client may raise"), False, id="client"),
    ],
)
async def test_a_failure_says_whether_trying_again_can_help(reply: Reply | Exception, terminal: bool) -> None:  # noqa: FBT001 - a row
    provider = Provider([reply])
    with pytest.raises(SendFailed) as failure:
        await qstash(provider).send(TASK)
    assert terminal is failure.value.terminal
    assert not isinstance(reply, Reply) or f"{reply.status_code}" in str(failure.value)


@pytest.mark.parametrize("reply", [Reply(204, ""), Reply(200, "no json"), Reply(201)], ids=["empty", "text", "json"])
async def test_any_2xx_is_success(reply: Reply) -> None:
    """QStash has the message, whatever the reply's body holds."""
    await qstash(Provider([reply])).send(TASK)


async def test_a_message_that_is_too_large_is_never_sent() -> None:
    provider = Provider()
    with pytest.raises(SendFailed, match="bytes of at most 100") as failure:
        await qstash(provider, max_body_bytes=100).send(TASK)
    assert (True, []) == (failure.value.terminal, provider.calls)


async def test_it_is_never_slower_to_fail_than_its_time_out() -> None:
    """A client that hangs is left alone, and the caller hears of it in time."""

    class Hanging:
        async def request(self, *_: object, **__: object) -> None:
            await anyio.sleep_forever()

    with anyio.fail_after(2), pytest.raises(SendFailed, match=r"within 0\.05 s") as failure:
        await configured(client=Hanging(), timeout="50ms").send(TASK)
    assert failure.value.terminal is False


async def test_a_drain_of_one_second_is_one_message() -> None:
    """Its name comes from where and when, not from the clock's milliseconds."""
    provider, clock = Provider(), Frozen()
    clock.at_ms = clock.at_ms // 1_000 * 1_000
    for _ in range(3):
        await qstash(provider, clock).send(DrainTask("orders", "s-1", clock.at_ms + 10_400))
        clock.at_ms += 200
    assert (3, 1) == (len(provider.calls), len(provider.held))
