"""The QStash scheduler: publishes tasks over HTTP, and says how their deliveries are verified."""

import logging
import os
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from inspect import isawaitable
from typing import Any

import anyio
from anyio.lowlevel import current_token

from a2asgi.clock import Clock, SystemClock
from a2asgi.development import DEVELOPMENT_TOKEN
from a2asgi.errors import ConfigurationError, SendFailed, WiringError
from a2asgi.oidc import request_token
from a2asgi.schedulers.qstash_schedules import Schedule, SyncReport, sync_schedules
from a2asgi.signatures import QStashVerifier, is_production, shown_url
from a2asgi.threads import run_in_thread
from a2asgi.times import Duration, duration_ms
from a2core import (
    DEFAULT_MAX_BODY_BYTES,
    Callback,
    DrainTask,
    MessageTooLarge,
    PublishRequest,
    PublishRules,
    QStashCall,
    SendFailure,
    Task,
    callback,
    check_headers,
    publish_dispatch,
    publish_task,
    qstash_call,
    reply_failure,
    send_failure,
)

log: logging.Logger = logging.getLogger("a2asgi.schedulers.qstash")

DEFAULT_URL = "https://qstash.upstash.io"
DEVELOPMENT_PORT = 8080
CURRENT_KEY = "QSTASH_CURRENT_SIGNING_KEY"
NEXT_KEY = "QSTASH_NEXT_SIGNING_KEY"
MAX_REPLY_CHARS = 500
"""How much of an error reply is shown."""

OFFICIAL_REFUSAL = re.compile(r"Request failed with status: (?P<status>\d{3}), body: (?P<text>.*)", re.DOTALL)


class QStash:
    """Publishes wake-ups and timers to QStash, or to any server that speaks its protocol.

    `url` is where QStash calls this app back, `https://host/api/a2/scheduler`; on Vercel and in development it is
    inferred. `token` and the signing keys come from QSTASH_TOKEN, QSTASH_CURRENT_SIGNING_KEY and
    QSTASH_NEXT_SIGNING_KEY, `base_url` from QSTASH_URL, each with its regional form where QSTASH_REGION is set.
    In development without a token, the development server on this machine is used with its public credentials.
    `headers` ride along to the callback, and are redacted. `retries` is QStash's own default unless given.
    `longest_delay` is what the plan accepts; a later timer travels in hops. `timeout` bounds each publish. `client`:
    an httpx.AsyncClient, or QStash's own client object, to publish through.

    Raises ConfigurationError for what is missing, InvalidUrl and InvalidHeaders, all at construction; nothing
    connects before the first publish.
    """

    def __init__(
        self,
        *,
        url: str | None = None,
        token: str | None = None,
        current_signing_key: str | None = None,
        next_signing_key: str | None = None,
        retries: int | None = None,
        max_body_bytes: int = DEFAULT_MAX_BODY_BYTES,
        headers: Mapping[str, str] | Iterable[tuple[str, str]] = (),
        longest_delay: Duration = "7d",
        timeout: Duration = "5s",
        base_url: str | None = None,
        client: Any = None,
        clock: Clock | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        settings = _Settings(os.environ if environment is None else environment)
        where = callback(url, settings.environment)
        pairs = headers.items() if isinstance(headers, Mapping) else headers
        self.rules: PublishRules = PublishRules(
            where, check_headers(pairs), retries, max_body_bytes, duration_ms(longest_delay)
        )
        develops = settings.develops(where)
        self._clock: Clock = clock or SystemClock()
        self._timeout_s = duration_ms(timeout) / 1_000
        self._token = token or settings.get("QSTASH_TOKEN") or (DEVELOPMENT_TOKEN if develops else None)
        if client is not None and token is not None:
            raise ConfigurationError("QStash: expected a client or a token, got both; the client has its own")
        if client is None and self._token is None:
            raise ConfigurationError("QStash: expected token=..., or QSTASH_TOKEN in the environment, got neither")
        base = base_url or settings.get("QSTASH_URL")
        if base is None:
            at_home = develops and self._token == DEVELOPMENT_TOKEN
            base = f"http://127.0.0.1:{settings.development_port()}" if at_home else DEFAULT_URL
        self._base_url = _checked_base_url(base)
        self._given_client = client
        self._client: Any = None
        self._client_loop: object = None
        self._owner: object = None
        self._verifier = settings.verifier(current_signing_key, next_signing_key, self._clock, develops=develops)

    def __repr__(self) -> str:
        return f"QStash(url={shown_url(self.rules.callback.url)!r}, base_url={shown_url(self._base_url)!r})"

    def bind(self, owner: object) -> None:
        """Belong to one A2: two callback routes on one scheduler would take each other's deliveries."""
        if self._owner not in {None, owner}:
            raise WiringError("this scheduler belongs to another A2 already: give each its own, with its own url")
        self._owner = owner

    async def send(self, task: Task, *, seq: int | None = None, now_ms: int | None = None) -> None:
        """Publish a task. `seq` names a dispatch by what it appended. Raises SendFailed."""
        if now_ms is None:
            now_ms = self._clock.now_ms()
        try:
            if isinstance(task, DrainTask) and seq is not None:
                request = publish_dispatch(task, seq, now_ms, self.rules, request_token.get())
            else:
                request = publish_task(task, now_ms, self.rules, request_token.get())
        except MessageTooLarge as error:
            raise SendFailed(str(error), terminal=True) from error
        await self.publish(request)

    async def publish(self, request: PublishRequest) -> None:
        """Have QStash accept a message, within the time-out. Raises SendFailed, terminal where it is pointless."""
        await self._answer(partial(self._post, request), f"a message for {shown_url(request.url)}", request.url)

    async def sync_schedules(self, wanted: Sequence[Schedule]) -> SyncReport:
        """Have QStash call the trigger of each of these crons when it is due, and no other trigger beside our callback.

        Calling it again changes nothing. A paused schedule stays paused until its definition changes. Two apps can
        share an account; two that are given the same callback URL cannot. A platform's token is not forwarded, since
        it would expire: a preview's protection has to be passed by `headers`, or by the query of `url`.
        Each call is bounded by the time-out. Raises ConfigurationError, InvalidName, and SendFailed, which tells what
        was done: another sync does the rest.
        """
        client = self._given_client
        if hasattr(client, "message") and not hasattr(getattr(client, "http", None), "request"):
            raise ConfigurationError(
                "QStash: schedules need a client that makes any request: expected an httpx.AsyncClient or QStash's own "
                f"client object, got {type(client).__name__}"
            )
        return await sync_schedules(wanted, self.rules, self._ask)

    def verify(self, signature: str, body: bytes, region: str | None, *, url: str | None = None) -> bool:
        """Whether QStash signed these very bytes for `url`, by default our callback's. A refusal's cause is logged."""
        verdict = self._verifier.verify(signature, body, self.rules.callback.url if url is None else url, region)
        if not verdict.accepted:
            log.warning("a delivery was refused: %s", verdict.cause)
        return verdict.accepted

    async def close(self) -> None:
        """Close the connections that were opened here."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _answer(self, ask: Callable[[], Awaitable[tuple[int, str]]], about: str, url: str) -> str:
        """What QStash granted `about` with, within the time-out. Raises SendFailed, terminal where it is pointless."""
        try:
            with anyio.fail_after(self._timeout_s):
                status, text = await ask()
        except TimeoutError as error:
            trouble = f"QStash did not answer to {about} within {self._timeout_s:g} s"
            raise SendFailed(trouble, terminal=False) from error
        except Exception as error:
            terminal = send_failure(error) is SendFailure.TERMINAL
            raise SendFailed(f"QStash did not take {about}: {type(error).__name__}", terminal=terminal) from error
        failure = reply_failure(status)
        if failure is not None:
            told = text.replace(url, shown_url(url)) if url else text  # it may quote what it was sent
            trouble = f"QStash answered {status} to {about}: {told[:MAX_REPLY_CHARS]}"
            raise SendFailed(trouble, terminal=failure is SendFailure.TERMINAL)
        return text

    async def _ask(self, call: QStashCall, about: str, url: str) -> str:
        async def ask() -> tuple[int, str]:
            status, text = await self._request(call)
            gone = call.method == "DELETE" and status == HTTPStatus.NOT_FOUND  # by someone who was faster
            return (HTTPStatus.OK, text) if gone else (status, text)

        return await self._answer(ask, about, url)

    async def _post(self, request: PublishRequest) -> tuple[int, str]:
        if hasattr(self._given_client, "message"):
            return await _publish_through(self._given_client, request)
        return await self._request(qstash_call(request))

    async def _request(self, call: QStashCall) -> tuple[int, str]:
        client = self._given_client or self._own_client()
        if hasattr(client, "message"):
            return await _request_through(client, call)
        headers = dict(call.headers)
        if self._token is not None:
            headers["authorization"] = f"Bearer {self._token}"
        response = await client.request(
            call.method, f"{self._base_url}{call.target}", content=call.body, headers=headers
        )
        return response.status_code, response.text

    def _own_client(self) -> Any:
        """One client for each event loop: connections belong to the loop that opened them."""
        import httpx  # noqa: PLC0415 - only who publishes needs it

        loop = current_token().native_token
        if self._client is None or self._client_loop is not loop:
            self._client = httpx.AsyncClient(timeout=self._timeout_s, follow_redirects=False)
            self._client_loop = loop
        return self._client


class _Settings:
    """QStash's own environment names, the regional ones first."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = environment
        self._region = environment.get("QSTASH_REGION", "").upper().replace("-", "_")

    def get(self, name: str) -> str | None:
        """The setting's value; an empty one is none."""
        return (self._region and self.environment.get(f"{self._region}_{name}")) or self.environment.get(name) or None

    def develops(self, where: Callback) -> bool:
        """Whether this is a development process, in which alone the public credentials may serve."""
        asked = self.environment.get("QSTASH_DEV", "").lower() in {"1", "true"}
        return not is_production(self.environment) and (where.is_development or asked)

    def development_port(self) -> int:
        """The development server's port."""
        text = self.environment.get("QSTASH_DEV_PORT", "")
        return int(text) if text.isascii() and text.isdigit() and 0 < int(text[:6]) < 65_536 else DEVELOPMENT_PORT  # noqa: PLR2004 - ports

    def verifier(self, current: str | None, following: str | None, clock: Clock, *, develops: bool) -> QStashVerifier:
        """With the keys given, else the environment's, else the public ones of a development process."""
        given = {CURRENT_KEY: current, NEXT_KEY: following, "QSTASH_DEV": "1" if develops else None}
        environment = {**self.environment, **{name: value for name, value in given.items() if value is not None}}
        return QStashVerifier.from_environment(environment, clock=clock)


def _checked_base_url(text: str) -> str:
    base = text.strip().rstrip("/").removesuffix("/v2/publish").rstrip("/")
    scheme, _, host = base.partition("://")
    if scheme not in {"http", "https"} or not host or any(char.isspace() for char in host):
        raise ConfigurationError(f"QSTASH_URL: expected such as {DEFAULT_URL}, got {shown_url(text)!r}")
    return base


async def _publish_through(client: Any, request: PublishRequest) -> tuple[int, str]:
    publish = partial(
        client.message.publish,
        url=request.url,
        body=request.body,
        content_type="application/json",
        method="POST",
        headers=dict(request.headers) or None,
        retries=request.retries,
        not_before=request.not_before_s,
        deduplication_id=request.deduplication_id,
        redact={"header": list(request.redact)} if request.redact else None,
    )
    return await _through(publish)


async def _request_through(client: Any, call: QStashCall) -> tuple[int, str]:
    """Make the call as it is: what the client reads from a listing, it may refuse to read."""
    return await _through(
        partial(
            client.http.request,
            path=call.target,
            method=call.method,
            headers=dict(call.headers),
            body=call.body,
            parse_response=False,
        )
    )


async def _through(function: Callable[[], Any]) -> tuple[int, str]:
    """Call QStash's own Python client, async or not. Only the text of its errors tells a refusal's status."""
    try:
        answer = await run_in_thread(function, "a2-qstash-client")
        if isawaitable(answer):
            answer = await answer
    except Exception as error:
        told = OFFICIAL_REFUSAL.fullmatch(str(error))
        if told is None:
            raise
        return int(told["status"]), told["text"]
    return HTTPStatus.OK, answer if isinstance(answer, str) else ""
