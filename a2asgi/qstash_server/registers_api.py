"""The HTTP API of schedules, queues, dead letters, logs and keys."""

import sqlite3
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from a2asgi.clock import Clock
from a2asgi.qstash_server import filters, orders, records, registers, views
from a2asgi.qstash_server.api import read_ids, read_object
from a2asgi.qstash_server.deliveries import Deliveries
from a2asgi.qstash_server.orders import Options, check_name
from a2asgi.qstash_server.registers import View
from a2asgi.qstash_server.signing import SigningKeys
from a2asgi.qstash_server.store import Store
from a2asgi.qstash_server.values import DeadLetter, Order, Refused

MAX_PARALLELISM = 1_000
MAX_PAGE = 100
MAX_LOG_PAGE = 1_000


class RegistersApi:
    """What shows and changes everything but the messages themselves."""

    def __init__(self, store: Store, clock: Clock, deliveries: Deliveries, keys: SigningKeys) -> None:
        self._store = store
        self._clock = clock
        self._deliveries = deliveries
        self._keys = keys

    def routes(self) -> list[Route]:
        """The paths of this part. Where documents and clients differ in the verb, both are served."""
        either = ["POST", "PATCH"]
        return [
            Route("/v2/schedules", self.schedules, methods=["GET"]),
            Route("/v2/schedules/{id}", self.schedule, methods=["GET"]),
            Route("/v2/schedules/{id}", self.delete_schedule, methods=["DELETE"]),
            Route("/v2/schedules/{id}/pause", self.pause_schedule, methods=either),
            Route("/v2/schedules/{id}/resume", self.resume_schedule, methods=either),
            Route("/v2/queues", self.put_queue, methods=["POST"]),
            Route("/v2/queues", self.queues, methods=["GET"]),
            Route("/v2/queues/{name}", self.queue, methods=["GET"]),
            Route("/v2/queues/{name}", self.delete_queue, methods=["DELETE"]),
            Route("/v2/queues/{name}/pause", self.pause_queue, methods=either),
            Route("/v2/queues/{name}/resume", self.resume_queue, methods=either),
            Route("/v2/dlq", self.dead_letters, methods=["GET"]),
            Route("/v2/dlq", self.delete_dead_letters, methods=["DELETE"]),
            Route("/v2/dlq/retry", self.retry_dead_letters, methods=["POST"]),
            Route("/v2/dlq/retry/{id}", self.retry_dead_letter, methods=["POST"]),
            Route("/v2/dlq/{id}", self.dead_letter, methods=["GET"]),
            Route("/v2/dlq/{id}", self.delete_dead_letter, methods=["DELETE"]),
            Route("/v2/events", self.logs, methods=["GET"]),
            Route("/v2/logs", self.logs, methods=["GET"]),
            Route("/v2/keys", self.keys, methods=["GET"]),
            Route("/v2/keys/rotate", self.rotate_keys, methods=["POST"]),
        ]

    # ── schedules ────────────────────────────────────────────────────────────────────────

    async def schedules(self, _: Request) -> Response:
        """List all schedules."""
        return JSONResponse(await self._store.run(registers.schedule_views))

    async def schedule(self, request: Request) -> Response:
        """Show a schedule."""
        schedule_id = request.path_params["id"]
        [view] = await self._store.run(lambda conn: registers.schedule_views(conn, schedule_id))
        return JSONResponse(view)

    async def delete_schedule(self, request: Request) -> Response:
        """Delete a schedule."""
        schedule_id = request.path_params["id"]
        await self._store.run(lambda conn: registers.delete_schedule(conn, schedule_id))
        return JSONResponse({})

    async def pause_schedule(self, request: Request) -> Response:
        """Pause a schedule."""
        return await self._set_schedule(request, paused=True)

    async def resume_schedule(self, request: Request) -> Response:
        """Let a schedule go on."""
        return await self._set_schedule(request, paused=False)

    async def _set_schedule(self, request: Request, *, paused: bool) -> Response:
        schedule_id, now_ms = request.path_params["id"], self._clock.now_ms()
        await self._store.run(lambda conn: registers.pause_schedule(conn, schedule_id, now_ms, paused=paused))
        self._deliveries.wake()
        return JSONResponse({})

    # ── queues ───────────────────────────────────────────────────────────────────────────

    async def put_queue(self, request: Request) -> Response:
        """Create or change a queue."""
        asked = await read_object(request)
        name = check_name(str(asked.get("queueName", "")), "Queue name")
        parallelism, paused, now_ms = asked.get("parallelism", 1), asked.get("paused", False), self._clock.now_ms()
        if type(parallelism) is not int or parallelism < 1 or type(paused) is not bool:
            raise Refused(400, "invalid queue: expected parallelism as an integer above 0, and paused as a truth value")
        if parallelism > MAX_PARALLELISM:
            raise Refused(412, f"parallelism exceeds the limit of {MAX_PARALLELISM}")
        await self._store.run(lambda conn: registers.put_queue(conn, name, parallelism, now_ms, paused=paused))
        self._deliveries.wake()
        return JSONResponse({})

    async def queues(self, _: Request) -> Response:
        """List all queues."""
        return JSONResponse([views.queue_view(queue) for queue in await self._store.run(registers.queues)])

    async def queue(self, request: Request) -> Response:
        """Show a queue."""
        name = check_name(request.path_params["name"], "Queue name")
        [queue] = await self._store.run(lambda conn: registers.queues(conn, name))
        return JSONResponse(views.queue_view(queue))

    async def delete_queue(self, request: Request) -> Response:
        """Delete a queue and what waits in it."""
        name, now_ms = request.path_params["name"], self._clock.now_ms()

        def delete(conn: sqlite3.Connection) -> None:
            for message_id in registers.delete_queue(conn, name):
                records.cancel(conn, message_id, now_ms)

        await self._store.run(delete)
        self._deliveries.wake()
        return JSONResponse({})

    async def pause_queue(self, request: Request) -> Response:
        """Pause a queue."""
        return await self._set_queue(request, paused=True)

    async def resume_queue(self, request: Request) -> Response:
        """Let a queue go on."""
        return await self._set_queue(request, paused=False)

    async def _set_queue(self, request: Request, *, paused: bool) -> Response:
        name, now_ms = check_name(request.path_params["name"], "Queue name"), self._clock.now_ms()
        await self._store.run(lambda conn: registers.pause_queue(conn, name, now_ms, paused=paused))
        self._deliveries.wake()
        return JSONResponse({})

    # ── dead letters ─────────────────────────────────────────────────────────────────────

    async def dead_letters(self, request: Request) -> Response:
        """List dead letters, the earliest first."""
        found = await self._store.run(lambda conn: _page_of_dead(conn, request))
        return JSONResponse({"messages": found.views} | _cursor(found.cursor))

    async def dead_letter(self, request: Request) -> Response:
        """Show a dead letter."""
        dlq_id = request.path_params["id"]
        letter = await self._store.run(lambda conn: _known(conn, dlq_id))
        return JSONResponse(views.dead_letter_view(letter))

    async def delete_dead_letter(self, request: Request) -> Response:
        """Delete a dead letter."""
        dlq_id = request.path_params["id"]
        if not await self._store.run(lambda conn: registers.delete_dead_letter(conn, dlq_id)):
            raise _unknown(dlq_id)
        return JSONResponse({"deleted": 1})

    async def delete_dead_letters(self, request: Request) -> Response:
        """Delete the dead letters that are named in the query or the body, or that match."""
        body = await read_ids(request, "dlqIds")

        def delete(conn: sqlite3.Connection) -> tuple[int, str | None]:
            ids, cursor = _chosen(conn, request, body)
            return sum(registers.delete_dead_letter(conn, dlq_id) for dlq_id in ids), cursor

        deleted, cursor = await self._store.run(delete)
        return JSONResponse({"deleted": deleted} | _cursor(cursor))

    async def retry_dead_letter(self, request: Request) -> Response:
        """Send a dead letter again."""
        dlq_id, now_ms = request.path_params["id"], self._clock.now_ms()
        message_id = await self._store.run(lambda conn: _retry(conn, dlq_id, request, now_ms))
        self._deliveries.wake()
        return JSONResponse({"messageId": message_id}, 201)

    async def retry_dead_letters(self, request: Request) -> Response:
        """Send the dead letters again that are named in the query or the body, or that match; all or none of them."""
        body, now_ms = await read_ids(request, "dlqIds"), self._clock.now_ms()

        def retry(conn: sqlite3.Connection) -> tuple[list[str], str | None]:
            ids, cursor = _chosen(conn, request, body)
            return [_retry(conn, dlq_id, request, now_ms) for dlq_id in ids], cursor

        message_ids, cursor = await self._store.run(retry)
        self._deliveries.wake()
        responses = [{"messageId": message_id} for message_id in message_ids]
        return JSONResponse({"responses": responses} | _cursor(cursor), 201)

    # ── logs and keys ────────────────────────────────────────────────────────────────────

    async def logs(self, request: Request) -> Response:
        """List what happened, the latest first: as `events` for the clients, and as `logs` as documented."""
        query = request.query_params
        before = filters.number(query, "cursor")
        wanted, count = filters.Filter.of(query), filters.number(query, "count", MAX_LOG_PAGE) or MAX_PAGE
        found = await self._store.run(
            lambda conn: filters.page(registers.log_entries(conn, before), wanted, "time", count)
        )
        return JSONResponse({"events": found.views, "logs": found.views} | _cursor(found.cursor))

    async def keys(self, _: Request) -> Response:
        """Tell the signing keys."""
        keys = await self._store.run(lambda conn: registers.signing_keys(conn, self._keys))
        return JSONResponse({"current": keys.current, "next": keys.next})

    async def rotate_keys(self, _: Request) -> Response:
        """Rotate the signing keys."""
        keys = await self._store.run(lambda conn: registers.rotate_keys(conn, self._keys))
        return JSONResponse({"current": keys.current, "next": keys.next})


def _cursor(cursor: str | None) -> View:
    return {} if cursor is None else {"cursor": cursor}


def _unknown(dlq_id: str) -> Refused:
    return Refused(404, f"dlq message {dlq_id} not found")


def _known(conn: sqlite3.Connection, dlq_id: str) -> DeadLetter:
    letter = registers.dead_letter(conn, dlq_id)
    if letter is None:
        raise _unknown(dlq_id)
    return letter


def _page_of_dead(conn: sqlite3.Connection, request: Request) -> filters.Page:
    query = request.query_params
    rows = (
        (seq, {**views.dead_letter_view(letter), "failedAt": letter.failed_at_ms})
        for seq, letter in registers.dead_letters(conn, filters.number(query, "cursor") or 0)
    )
    count = filters.number(query, "count", MAX_PAGE) or MAX_PAGE
    return filters.page(rows, filters.Filter.of(query), "failedAt", count)


def _chosen(conn: sqlite3.Connection, request: Request, body: list[str] | None) -> tuple[list[str], str | None]:
    """The ids that a bulk request is about: the named ones, be they none, else a page of those that match."""
    if body is not None:
        return list(dict.fromkeys(body)), None
    if "dlqIds" in request.query_params:
        return sorted(filters.listed(request.query_params, "dlqIds")), None
    found = _page_of_dead(conn, request)
    return [view["dlqId"] for view in found.views], found.cursor


def _retry(conn: sqlite3.Connection, dlq_id: str, request: Request, now_ms: int) -> str:
    letter = _known(conn, dlq_id)
    return records.retry_dead(conn, letter, _overridden(letter.message.order, request), now_ms)


def _overridden(order: Order, request: Request) -> Order:
    """The order with the options that the retry request gives anew. Its old delay is over."""
    order = replace(order, delay_ms=0, not_before_ms=None, deduplication=None)
    pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers.raw]
    options = Options([pair for pair in pairs if pair[0].startswith("upstash-")])
    asked = orders.parse_order(order.destination, options, order.body, queue=order.queue)
    plain = {
        "upstash-method": "method",
        "upstash-retries": "retries",
        "upstash-retry-delay": "retry_delay",
        "upstash-timeout": "timeout_ms",
        "upstash-delay": "delay_ms",
        "upstash-not-before": "not_before_ms",
        "upstash-callback": "callback",
        "upstash-failure-callback": "failure_callback",
        "upstash-label": "labels",
        "upstash-redact-fields": "redact",
    }
    given = {field: getattr(asked, field) for name, field in plain.items() if options.get(name) is not None}
    renewed = {name.lower() for name, _ in asked.headers}
    kept = tuple(pair for pair in order.headers if pair[0].lower() not in renewed)
    return replace(order, **given, headers=kept + asked.headers)
