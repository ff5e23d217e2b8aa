"""The HTTP API of messages: publish, enqueue, batch, get and cancel."""

import json
import sqlite3
from contextlib import aclosing
from typing import Any
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from a2asgi.clock import Clock
from a2asgi.qstash_server import filters, records, registers, views
from a2asgi.qstash_server.deliveries import Deliveries
from a2asgi.qstash_server.limits import Limits
from a2asgi.qstash_server.orders import Options, check_name, destination_url, parse_order, split_query
from a2asgi.qstash_server.records import Accepted
from a2asgi.qstash_server.registers import View
from a2asgi.qstash_server.rules import next_tick_ms
from a2asgi.qstash_server.store import Store
from a2asgi.qstash_server.values import MAX_BODY_BYTES, Order, Refused, Schedule

MAX_BATCH_BYTES = 16 * MAX_BODY_BYTES
MAX_BATCH = 1_000
"""Messages in a batch, so that one request does not hold the store for long."""


class MessagesApi:
    """What takes orders, and shows or cancels the messages made of them."""

    def __init__(self, store: Store, clock: Clock, deliveries: Deliveries, limits: Limits, window_ms: int) -> None:
        self._store = store
        self._clock = clock
        self._deliveries = deliveries
        self._limits = limits
        self._window_ms = window_ms

    def routes(self) -> list[Route]:
        """The paths of this part."""
        return [
            Route("/v2/publish{destination:path}", self.publish, methods=["POST"]),
            Route("/v2/enqueue/{queue}{destination:path}", self.enqueue, methods=["POST"]),
            Route("/v2/batch", self.batch, methods=["POST"]),
            Route("/v2/messages/{message_id}", self.get, methods=["GET"]),
            Route("/v2/messages/{message_id}", self.cancel, methods=["DELETE"]),
            Route("/v2/messages", self.cancel_many, methods=["DELETE"]),
            Route(
                "/v2/messages/", self.cancel_many, methods=["DELETE"]
            ),  # an empty id cancels all, as the provider has it
            Route("/v2/schedules", self.schedule, methods=["POST"]),
            Route("/v2/schedules/{destination:path}", self.schedule, methods=["POST"]),
        ]

    async def publish(self, request: Request) -> Response:
        """Take one message."""
        destination, options = _destination(request, "/v2/publish/")
        return await self._take(request, parse_order(destination, options, await read_body(request)))

    async def enqueue(self, request: Request) -> Response:
        """Take one message into a queue."""
        queue = check_name(unquote(request.path_params["queue"]), "Queue name")
        destination, options = _destination(request, "/v2/enqueue/", skip=1)
        return await self._take(request, parse_order(destination, options, await read_body(request), queue=queue))

    async def _take(self, request: Request, order: Order) -> Response:
        self._limits.count()
        now_ms, caller = self._clock.now_ms(), caller_ip(request)
        accepted = await self._store.run(lambda c: records.accept(c, order, caller, now_ms, self._window_ms))
        self._deliveries.wake()
        return JSONResponse(_accepted_view(accepted, order), 202 if accepted.deduplicated else 200)

    async def batch(self, request: Request) -> Response:
        """Take several messages; an element that is refused answers with its error, and the others are sent."""
        items = _json(await read_body(request, MAX_BATCH_BYTES))
        if not isinstance(items, list) or len(items) > MAX_BATCH:
            raise Refused(400, f"invalid batch: expected a JSON array of up to {MAX_BATCH} messages")
        orders = [self._batch_order(item) for item in items]
        now_ms, caller = self._clock.now_ms(), caller_ip(request)

        def take(conn: sqlite3.Connection) -> list[View]:
            return [
                {"error": order.text}
                if isinstance(order, Refused)
                else _accepted_view(records.accept(conn, order, caller, now_ms, self._window_ms), order)
                for order in orders
            ]

        taken = await self._store.run(take)
        self._deliveries.wake()
        return JSONResponse(taken)

    def _batch_order(self, item: Any) -> Order | Refused:
        try:
            if not isinstance(item, dict):
                return Refused(400, "invalid batch: expected an object with destination, headers and body")
            if not _is_text(item):
                return Refused(400, "invalid batch: a text holds half a character")
            headers, body, queue = item.get("headers") or {}, item.get("body") or "", item.get("queue")
            if not isinstance(headers, dict) or not isinstance(body, str) or not isinstance(queue, str | None):
                return Refused(400, "invalid batch: expected headers as an object, body and queue as texts")
            url, _, query = str(item.get("destination", "")).partition("?")
            own, ours = split_query(query)
            options = Options([(name, str(value)) for name, value in headers.items()], ours)
            order = parse_order(destination_url(url, own), options, body.encode(), queue=queue or None)
            self._limits.count()
        except Refused as refused:
            return refused
        return order

    async def get(self, request: Request) -> Response:
        """Show a message that waits or is under way."""
        message_id = request.path_params["message_id"]
        message = await self._store.run(lambda conn: records.message(conn, message_id))
        if message is None:
            raise Refused(404, f"message {message_id} not found")
        return JSONResponse(views.message_view(message))

    async def cancel(self, request: Request) -> Response:
        """Cancel one message."""
        message_id, now_ms = request.path_params["message_id"], self._clock.now_ms()
        if not await self._store.run(lambda conn: records.cancel(conn, message_id, now_ms)):
            raise Refused(404, f"message {message_id} not found")
        self._deliveries.wake()
        return JSONResponse({"cancelled": 1})

    async def cancel_many(self, request: Request) -> Response:
        """Cancel the messages that are named in the query or the body, or that match; all where nothing is said."""
        query = request.query_params
        body = await read_ids(request, "messageIds")
        named = None if body is None and "messageIds" not in query else (body or filters.listed(query, "messageIds"))
        wanted, count = filters.Filter.of(query), filters.number(query, "count")
        now_ms = self._clock.now_ms()

        def cancel(conn: sqlite3.Connection) -> tuple[int, bool]:
            if named is not None:
                return sum(records.cancel(conn, message_id, now_ms) for message_id in named), False
            found = [
                message.message_id
                for message in list(records.messages(conn))
                if wanted.matches(views.message_view(message), message.created_at_ms)
            ]
            chosen = found if count is None else found[:count]
            return sum(records.cancel(conn, message_id, now_ms) for message_id in chosen), len(chosen) < len(found)

        cancelled, more = await self._store.run(cancel)
        self._deliveries.wake()
        # What is cancelled is gone, so the next part begins where this one did.
        return JSONResponse({"cancelled": cancelled} | ({"cursor": "0"} if more else {}))

    async def schedule(self, request: Request) -> Response:
        """Create a schedule, or overwrite the one of its id."""
        destination, options = _destination(request, "/v2/schedules/")
        cron = options.get("upstash-cron")
        if cron is None:
            raise Refused(400, "invalid cron: expected the header Upstash-Cron")
        order = parse_order(destination, options, await read_body(request), queue=options.get("upstash-queue-name"))
        now_ms = self._clock.now_ms()
        next_tick_ms(cron, now_ms)  # refuses what is no cron expression
        chosen = options.get("upstash-schedule-id")
        schedule = Schedule(
            schedule_id=records.new_id("scd") if chosen is None else check_name(chosen, "Schedule id"),
            cron=cron,
            order=order,
            created_at_ms=now_ms,
            caller_ip=caller_ip(request),
        )
        schedule_id, repeated = await self._store.run(
            lambda conn: registers.put_schedule(conn, schedule, now_ms, self._window_ms)
        )
        self._deliveries.wake()
        view = {"scheduleId": schedule_id} | ({"deduplicated": True} if repeated else {})
        return JSONResponse(view, 202 if repeated else 200)


def _accepted_view(accepted: Accepted, order: Order) -> View:
    view: View = {"messageId": accepted.message_id, "url": order.destination}
    return view | ({"deduplicated": True} if accepted.deduplicated else {})


def _destination(request: Request, prefix: str, skip: int = 0) -> tuple[str, Options]:
    """The destination as it came on the wire, and the options: its query holds both its own and ours."""
    raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    rest = raw.decode("latin-1").partition(prefix)[2]
    for _ in range(skip):
        rest = rest.partition("/")[2]
    own, ours = split_query(request.scope["query_string"].decode("latin-1"))
    return destination_url(rest, own), Options(_headers(request), ours)


def _headers(request: Request) -> list[tuple[str, str]]:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers.raw]


def caller_ip(request: Request) -> str:
    """The address that the request came from."""
    return request.client.host if request.client is not None else ""


async def read_body(request: Request, most: int = MAX_BODY_BYTES) -> bytes:
    """The body. Raises Refused as soon as it is larger than `most` bytes."""
    body = bytearray()
    async with aclosing(request.stream()) as chunks:
        async for chunk in chunks:
            body += chunk
            if len(body) > most:
                raise Refused(413, f"message size exceeds the limit of {most} bytes")
    return bytes(body)


async def read_ids(request: Request, name: str) -> list[str] | None:
    """The ids in a JSON body, or None where there is no body. Raises Refused for another body."""
    body = await read_body(request)
    if not body.strip():
        return None
    value = _json(body)
    ids = value.get(name) if isinstance(value, dict) else None
    if not isinstance(ids, list) or not all(isinstance(item, str) for item in ids) or not _is_text(ids):
        raise Refused(400, f'invalid body: expected {{"{name}": [...]}}')
    return ids


async def read_object(request: Request) -> dict[str, Any]:
    """A JSON object from the body. Raises Refused for another body."""
    value = _json(await read_body(request))
    if not isinstance(value, dict):
        raise Refused(400, "invalid body: expected a JSON object")
    return value


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise Refused(400, "invalid body: expected JSON") from None


def _is_text(value: Any) -> bool:
    """Whether all of its texts can be kept and sent: an escape of JSON may stand for half a character."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        return False
    return True
