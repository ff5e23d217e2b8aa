"""Deliveries over ASGI: what an app with the QStash scheduler does with them, and what the provider then holds."""

import json
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from a2asgi import (
    A2,
    DrainTimings,
    Event,
    MemoryStore,
    NewEvent,
    Retry,
    SessionKey,
    StoreUnavailable,
    WiringError,
)
from a2asgi.ports import Answer, Decide
from a2core import Needs
from tests.asgi.provider import KEYS, PREVIEW, Frozen, Provider, Reply, nothing_else, qstash, served
from tests.asgi.worlds import rounds


class Away(MemoryStore):
    """A store that is away, or cannot purge, while a test says so."""

    away = False
    purges = True

    async def transact(self, key: SessionKey, needs: Needs, decide: Decide[Answer]) -> Answer:
        if self.away:
            raise StoreUnavailable("away")
        return await super().transact(key, needs, decide)

    async def purge(self, limit: int) -> int:
        if not self.purges:
            raise StoreUnavailable("cannot purge")
        return await super().purge(limit)


class App:
    """An app with one contract on a memory store, QStash in memory, and a clock that stands still.

    Each text has a lane of its own. `beside` is another process, which shares the store and the provider.
    """

    def __init__(self, handle: Callable[[Event[str]], Any], *, beside: "App | None" = None, **options: Any) -> None:
        self.clock: Frozen = beside.clock if beside else Frozen()
        self.provider: Provider = beside.provider if beside else Provider()
        self.store: Away = beside.store if beside else Away(clock=self.clock)
        self.a2 = A2(store=self.store, scheduler=qstash(self.provider, self.clock, **options))
        self.orders = self.a2.contract("orders")
        self.note = self.orders.event("note", str, lane=str)
        self.orders.on(self.note, retry=Retry(max_failures=3, base="10s", jitter=0))(handle)
        self.session = self.orders.session("s-1")
        self.asgi = served(self.a2)

    async def texts(self) -> list[str]:
        return [event.payload for event in await self.session.read()]


def fine(_: Event[str]) -> None:
    """Handle it."""


async def test_a_dispatch_is_published_delivered_and_run() -> None:
    """The whole way: durable, on its way at once, run by its delivery, acknowledged."""
    runs: list[str] = []
    app = App(lambda event: runs.append(event.payload))
    await app.session.dispatch(NewEvent("a", id="a", type=app.note))
    assert [] == runs
    answer = await app.provider.deliver(app.asgi, app.provider.take())
    assert (200, "ok", ["a"]) == (answer.status_code, answer.text, runs)
    assert {} == app.provider.held


async def test_two_dispatches_in_one_second_are_two_messages() -> None:
    """A provider folds messages of one name for minutes, so a wake-up is named by what was appended."""
    app = App(fine)
    for text in ("a", "b"):
        await app.session.dispatch(NewEvent(text, id=text, type=app.note))
    assert 2 == len(app.provider.held)
    await app.session.dispatch(NewEvent("b", id="b", type=app.note))
    assert 2 == len(app.provider.held)


async def test_an_append_arms_a_watchdog_beside_the_work() -> None:
    """A process that dies at work is looked after: a drain is due past the claim window, in whole seconds."""
    app = App(fine)
    await app.session.append(app.note("a"))
    [task] = app.provider.tasks
    assert ("drain", "orders", "s-1") == (task["kind"], task["contract"], task["sessionId"])
    assert task["dueAt"] % 1_000 == 0
    assert DrainTimings().window_ms <= task["dueAt"] - app.clock.at_ms


async def test_a_timer_travels_and_appends_once() -> None:
    """It is published whole, appended by its delivery, and a second delivery appends nothing."""
    runs: list[str] = []
    app = App(lambda event: runs.append(event.payload))
    receipt = await app.session.schedule("later", app.note("a"), delay="1h")
    assert "scheduled" == receipt.state
    assert [] == await app.texts()
    body = app.provider.take()
    assert "append" == json.loads(body)["kind"]
    for _ in range(2):
        assert 200 == (await app.provider.deliver(app.asgi, body)).status_code
    assert (["a"], ["a"]) == (runs, await app.texts())


async def test_a_timer_is_not_early_where_the_clock_of_who_schedules_it_is_ahead() -> None:
    """Its time is the store's: by this process's clock it would be due already, and be delivered at once."""
    app = App(fine)
    app.store.offset_ms = -45_000
    await app.session.schedule("later", app.note("a"), delay="3s")
    [call] = app.provider.held.values()
    due_at_ms = app.clock.at_ms - 45_000 + 3_000
    assert -(-due_at_ms // 1_000) == int(call["upstash-not-before"])


async def test_a_retry_is_due_by_the_clock_of_the_store() -> None:
    """Named by a second that is yet to come, a wake-up would be folded into one that has been delivered already."""

    async def fail(_: Event[str]) -> None:
        raise ValueError("no")

    app = App(fail)
    app.store.offset_ms = -45_000
    await app.session.append(app.note("a"))
    watchdog, retry = sorted(app.provider.held.values(), key=lambda call: -int(call["upstash-not-before"]))
    assert app.clock.at_ms - 45_000 + 10_000 <= int(retry["upstash-not-before"]) * 1_000 < app.clock.at_ms - 34_000
    assert int(watchdog["upstash-not-before"]) * 1_000 < app.clock.at_ms


async def test_a_timer_beyond_the_longest_delay_travels_in_hops() -> None:
    """A week's limit and a timer of three: each leg is published by the delivery of the one before."""
    app = App(fine, longest_delay="7d")
    await app.session.schedule("later", app.note("a"), delay="21d")
    [first] = app.provider.tasks
    assert {"version": 1, "hop": 0} == first["_a2Hop"]
    assert 200 == (await app.provider.deliver(app.asgi, app.provider.take())).status_code
    [second] = app.provider.tasks
    assert ({"version": 1, "hop": 1}, first["dueAt"]) == (second["_a2Hop"], second["dueAt"])
    assert [] == await app.texts()


async def test_a_cancelled_timer_appends_nothing_when_it_comes() -> None:
    app = App(fine)
    await app.session.schedule("later", app.note("a"), delay="1h")
    assert await app.session.cancel("later")
    answer = await app.provider.deliver(app.asgi, app.provider.take())
    assert (200, []) == (answer.status_code, await app.texts())


async def test_a_stalled_drain_has_its_next_delivery_at_the_retry() -> None:
    """A failing handler waits 10 s: the successor is due then, and it is published before the 200."""

    def fail(_: Event[str]) -> None:
        raise ValueError("no")

    app = App(fail)
    await app.session.dispatch(app.note("a"))
    answer = await app.provider.deliver(app.asgi, app.provider.take())
    [task] = app.provider.tasks
    assert 200 == answer.status_code
    assert -(-(app.clock.at_ms + 10_000) // 1_000) * 1_000 == task["dueAt"]


@pytest.mark.parametrize("begins", ["delivery", "append"])
async def test_a_retry_does_not_wait_for_another_process_at_work_in_another_lane(*, begins: str) -> None:
    """The session is busy, and its next wake-up is the retry's all the same, not only the look after those claims."""
    hold = anyio.Event()

    async def work(_: Event[str]) -> None:
        await hold.wait()

    def fail(_: Event[str]) -> None:
        raise ValueError("no")

    other = App(work)
    app = App(fail, beside=other)
    async with anyio.create_task_group() as tasks:
        await other.session.dispatch(other.note("long"))
        tasks.start_soon(other.provider.deliver, other.asgi, other.provider.take())
        await rounds()
        if begins == "delivery":
            await app.session.dispatch(app.note("a"))
            assert 200 == (await app.provider.deliver(app.asgi, app.provider.take())).status_code
        else:
            await app.session.append(app.note("a"))
        due = [task["dueAt"] for task in app.provider.tasks]
        assert -(-(app.clock.at_ms + 10_000) // 1_000) * 1_000 in due
        hold.set()


async def test_a_store_that_is_away_makes_a_lineage_of_successors() -> None:
    """Each delivery that finds it away publishes the next generation; once it is back, the work is done."""
    runs: list[str] = []
    app = App(lambda event: runs.append(event.payload))
    await app.session.dispatch(app.note("a"))
    body = app.provider.take()
    app.store.away = True
    for generation in range(3):
        assert 200 == (await app.provider.deliver(app.asgi, body)).status_code
        body = app.provider.take()
        assert generation == json.loads(body)["_a2QStash"]["generation"]
    app.store.away = False
    assert 200 == (await app.provider.deliver(app.asgi, body)).status_code
    assert (["a"], {}) == (runs, app.provider.held)


async def test_a_successor_that_is_not_taken_is_no_acknowledgement() -> None:
    """The provider is away too: the delivery is not acknowledged, so it comes again."""
    app = App(fine)
    await app.session.dispatch(app.note("a"))
    body = app.provider.take()
    app.store.away = True
    app.provider.replies.append(Reply(503, "busy"))
    assert 503 == (await app.provider.deliver(app.asgi, body)).status_code


@pytest.mark.parametrize(
    ("body", "headers", "status", "text"),
    [
        pytest.param(b"{}", {"upstash_signature": ""}, 401, "unauthorized", id="unsigned"),
        pytest.param(b"{}", {"upstash_signature": "a.b.c"}, 401, "unauthorized", id="forged"),
        pytest.param(b"{}", {}, 489, "invalid a2 scheduler message", id="malformed"),
        pytest.param(b"x" * 1_048_577, {}, 489, "a2 scheduler message is too large", id="too-large"),
        pytest.param(
            b'{"version":1,"kind":"drain","contract":"lost","sessionId":"s","dueAt":0}',
            {},
            500,
            "unknown contract",
            id="unknown-contract",
        ),
        pytest.param(
            b'{"version":1,"kind":"drain","contract":"orders","sessionId":"\\ud800","dueAt":0}',
            {},
            500,
            "delivery failed",
            id="half-a-character",
        ),
        pytest.param(
            b'{"version":1,"kind":"append","id":"t","contract":"orders","sessionId":"s","dueAt":0,'
            b'"events":[{"id":"\\u0000","type":"note","payload":"a"}]}',
            {},
            500,
            "delivery failed",
            id="an-id-that-cannot-be-kept",
        ),
    ],
)
async def test_what_is_no_delivery_is_refused(body: bytes, headers: dict[str, str], status: int, text: str) -> None:
    """Each refusal has its status, and its text tells nothing."""
    app = App(fine)
    answer = await app.provider.deliver(app.asgi, body, **headers)
    assert (status, text) == (answer.status_code, answer.text)
    assert (status == 489) == (answer.headers.get("upstash-nonretryable-error") == "true")


async def test_the_next_signing_key_is_accepted_too() -> None:
    """Keys rotate while messages are on their way."""
    app = App(fine)
    await app.session.dispatch(app.note("a"))
    app.provider.key = KEYS[1]
    assert 200 == (await app.provider.deliver(app.asgi, app.provider.take())).status_code


@pytest.mark.parametrize("purges", [True, False], ids=["purges", "cannot-purge"])
async def test_a_lost_wake_up_is_sent_again_by_another_delivery(*, purges: bool) -> None:
    """The watchdog of one session was never accepted: whoever is delivered next looks after it."""
    app = App(fine)
    app.store.purges = purges
    app.provider.replies.append(Reply(500, "lost"))
    with pytest.raises(Exception, match="500"):
        await app.orders.session("lost").dispatch(app.note("a"))
    await app.session.dispatch(app.note("b"))
    body = app.provider.take()
    app.clock.at_ms += 2 * DrainTimings().window_ms
    assert 200 == (await app.provider.deliver(app.asgi, body)).status_code
    assert ["lost"] == [task["sessionId"] for task in app.provider.tasks]


async def test_a_scheduler_serves_one_a2() -> None:
    """Two callback routes on one scheduler would take each other's deliveries."""
    scheduler = qstash(Provider())
    A2(scheduler=scheduler)
    with pytest.raises(WiringError, match="give each its own"):
        A2(scheduler=scheduler)


async def test_the_callback_is_no_route_without_a_provider() -> None:
    """The embedded scheduler takes no deliveries."""
    provider = Provider()
    answer = await provider.deliver(served(A2(store=MemoryStore())), b"{}")
    assert 404 == answer.status_code


@pytest.mark.parametrize("tokens", [300])
async def test_requests_never_see_each_others_token(tokens: int) -> None:
    """Hundreds of interleaved requests each see their own OIDC token, and none outside of them."""
    from a2asgi.oidc import request_token  # noqa: PLC0415 - the room under test

    seen: dict[str, str | None] = {}
    gate = anyio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        before = request_token.get()
        await gate.wait()
        seen[scope["path"]] = request_token.get() if before == request_token.get() else "another"
        await nothing_else(scope, receive, send)

    from a2asgi import A2Middleware  # noqa: PLC0415 - beside its room

    asgi = A2Middleware(app, A2(store=MemoryStore(), scheduler=qstash(Provider(), url=None, environment=PREVIEW)))

    async def request(number: int) -> None:
        headers = [(b"x-vercel-oidc-token", f"token-{number}".encode())] if number % 3 else []
        scope = {"type": "http", "method": "GET", "path": f"/{number}", "headers": headers}

        async def receive() -> Any:
            return {"type": "http.disconnect"}

        async def send(_: Any) -> None: ...

        await asgi(scope, receive, send)

    async with anyio.create_task_group() as tasks:
        for number in range(tokens):
            tasks.start_soon(request, number)
        await anyio.wait_all_tasks_blocked()
        gate.set()
    assert {f"/{number}": f"token-{number}" if number % 3 else None for number in range(tokens)} == seen
    assert request_token.get() is None


async def test_a_request_without_a_token_has_none_within_one_that_has() -> None:
    """As where an app calls itself: the token is the outer request's alone, and is there again after the inner one."""
    from a2asgi import A2Middleware  # noqa: PLC0415 - beside its room
    from a2asgi.oidc import request_token  # noqa: PLC0415 - the room under test

    seen: list[tuple[str, str | None]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope["path"], request_token.get()))
        if scope["path"] == "/outer":
            await asgi({**scope, "path": "/inner", "headers": []}, receive, send)
            seen.append(("/outer", request_token.get()))

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def send(_: Any) -> None: ...

    asgi = A2Middleware(app, A2(store=MemoryStore(), scheduler=qstash(Provider(), url=None, environment=PREVIEW)))
    scope = {"type": "http", "method": "GET", "path": "/outer", "headers": [(b"x-vercel-oidc-token", b"own")]}
    await asgi(scope, receive, send)
    assert [("/outer", "own"), ("/inner", None), ("/outer", "own")] == seen
    assert request_token.get() is None
