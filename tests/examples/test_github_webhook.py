"""The webhook example hears what GitHub signed, and nothing else."""

import hmac

import httpx
import pytest

from a2asgi import ConfigurationError, HmacVerifier
from examples import github_webhook

SECRET = "It's a Secret to Everybody"
EVENT = b'{"action":"opened","repository":{"full_name":"octo/tea"}}'


def signature(body: bytes, secret: str = SECRET) -> dict[str, str]:
    return {"X-Hub-Signature-256": "sha256=" + hmac.digest(secret.encode(), body, "sha256").hex()}


@pytest.fixture
def client() -> httpx.AsyncClient:
    transport = httpx.ASGITransport(github_webhook.guarded(SECRET))
    return httpx.AsyncClient(transport=transport, base_url="http://test")


def test_githubs_own_example_is_signed_alike() -> None:
    """The secret, body and signature that GitHub's documentation shows."""
    shown = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    assert {"X-Hub-Signature-256": shown} == signature(b"Hello, World!")


async def test_a_signed_event_arrives(client: httpx.AsyncClient) -> None:
    async with client:
        answer = await client.post("/github", content=EVENT, headers=signature(EVENT))
    assert (200, {"repository": "octo/tea", "action": "opened"}) == (answer.status_code, answer.json())


@pytest.mark.parametrize(
    "headers",
    [{}, signature(EVENT, "guess"), signature(EVENT + b"\n"), {"X-Hub-Signature-256": "sha256="}],
    ids=["unsigned", "another-secret", "another-body", "empty"],
)
async def test_what_github_did_not_sign_is_refused(client: httpx.AsyncClient, headers: dict[str, str]) -> None:
    async with client:
        answer = await client.post("/github", content=EVENT, headers=headers)
    assert (401, {"error": "unauthorized"}) == (answer.status_code, answer.json())


async def test_the_rest_of_the_app_is_open(client: httpx.AsyncClient) -> None:
    async with client:
        assert "hello" == (await client.get("/")).text


def test_it_does_not_start_without_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_WEBHOOK_SECRET", raising=False)
    with pytest.raises(ConfigurationError, match="non-empty"):
        github_webhook.make_app()
    monkeypatch.setenv("GITHUB_WEBHOOK_SECRET", SECRET)
    assert HmacVerifier(SECRET) == github_webhook.make_app().verifier
