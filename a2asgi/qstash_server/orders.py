"""From a request to an order: the destination, and the options in headers or in the query."""

import hashlib
import re
from collections.abc import Iterable
from urllib.parse import parse_qsl, unquote, unquote_to_bytes, urlsplit

from a2asgi.qstash_server.expressions import is_expression
from a2asgi.qstash_server.rules import MAX_DELAY_MS, parse_duration
from a2asgi.qstash_server.values import MAX_BODY_BYTES, Callback, Flow, Headers, Order, Redact, Refused

MAX_RETRIES = 1_000
MAX_LABELS = 32
MAX_NAME = 256
"""Characters of a queue's name, a schedule's id and a label."""

MAX_DEDUPLICATION_ID = 1_024
METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE"})
NO_SCHEME = "invalid destination url: endpoint has invalid scheme, add http:// or https://"
_CONFIG_QUERY = re.compile(r"upstash-|qstash_token=", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z0-9._-]{1,256}", re.ASCII)
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+", re.ASCII)
_REDACT = re.compile(r"(?P<body>body)|headers?(?:\[(?P<name>.*)\])?", re.IGNORECASE | re.DOTALL)
_NOT_FORWARDED = frozenset(
    {
        "accept-encoding",
        "authorization",  # of the publisher towards this server; a forwarded one comes with its prefix
        "connection",
        "content-length",
        "host",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""What `Upstash-Header-Forward: true` leaves out: it speaks of this connection, not of the message."""


class Options:
    """The options of one request by lower-case name; a header wins over a query parameter of its name."""

    def __init__(self, headers: Iterable[tuple[str, str]], query: str = "") -> None:
        pairs = [(name.lower(), value) for name, value in headers]
        named = {name for name, _ in pairs}
        asked = parse_qsl(query, keep_blank_values=True)
        pairs += [(name.lower(), value) for name, value in asked if name.lower() not in named]
        self.pairs = pairs

    def get(self, name: str) -> str | None:
        """The option's last value without its surrounding space; None where it is missing or empty."""
        values = [value.strip() for key, value in self.pairs if key == name]
        return values[-1] if values and values[-1] else None

    def flag(self, name: str) -> bool:
        """Whether the option says true, in any case of letters: the clients differ in it."""
        return (self.get(name) or "").lower() == "true"

    def forwarded(self, prefix: str) -> Headers:
        """The headers behind this prefix, without it."""
        return tuple(
            (canonical(key.removeprefix(prefix)), value)
            for key, value in self.pairs
            if key.startswith(prefix) and _TOKEN.fullmatch(key.removeprefix(prefix))
        )


def canonical(name: str) -> str:
    """A header's name as it is usually written: Content-Type."""
    return "-".join(part.capitalize() for part in name.split("-"))


def split_query(query: str) -> tuple[str, str]:
    """The destination's own query, byte for byte, and the part of it that is meant for this server."""
    parts = query.split("&") if query else []
    own = [part for part in parts if not _CONFIG_QUERY.match(part)]
    ours = [part for part in parts if _CONFIG_QUERY.match(part)]
    return "&".join(own), "&".join(ours)


def destination_url(raw: str, query: str = "") -> str:
    """The URL to deliver to. Raises Refused for what is none.

    The clients put it unescaped into the path, with a host outside ASCII percent-encoded; some others encode all.
    """
    if re.match(r"https?%3a", raw, re.IGNORECASE):
        raw = unquote(raw)
    if re.match(r"https?://", raw, re.IGNORECASE) is None:
        raise Refused(400, NO_SCHEME)
    url = f"{raw}?{query}" if query else raw
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        _ = parts.port  # raises for a port that is none
        if "%" in host or not host.isascii():
            name = unquote_to_bytes(host).decode("utf-8").encode("idna").decode("ascii")
            port = "" if parts.port is None else f":{parts.port}"
            url = parts._replace(netloc=f"{name}{port}").geturl()
    except (ValueError, UnicodeError):
        raise Refused(400, "invalid destination url: it cannot be parsed") from None
    if not host or any(character <= " " or character == "\x7f" for character in url):
        raise Refused(400, "invalid destination url: endpoint has no host, or a space")
    return url.partition("#")[0]


def check_name(text: str, what: str) -> str:
    """A queue's name or a schedule's id. Raises Refused for characters outside the documented ones."""
    if _NAME.fullmatch(text) is None:
        raise Refused(
            400, f"{what} is invalid. It can only contain alphanumeric characters, hyphens, periods, and underscores."
        )
    return text


def parse_order(destination: str, options: Options, body: bytes, *, queue: str | None = None) -> Order:
    """The order that these options ask for. Raises Refused with the documented text for what cannot be."""
    if len(body) > MAX_BODY_BYTES:
        raise Refused(413, f"message size exceeds the limit of {MAX_BODY_BYTES} bytes")
    headers = _headers(options)
    not_before = _integer(options, "upstash-not-before", MAX_DELAY_MS)
    retries = _integer(options, "upstash-retries", MAX_RETRIES)
    order = Order(
        destination=destination,
        method=_method(options, "upstash-method"),
        headers=headers,
        body=body,
        retries=3 if retries is None else retries,
        retry_delay=_expression(options, "upstash-retry-delay"),
        timeout_ms=_duration(options, "upstash-timeout"),
        delay_ms=_duration(options, "upstash-delay") or 0,
        not_before_ms=None if not_before is None else not_before * 1_000,
        callback=_callback(options, "upstash-callback"),
        failure_callback=_callback(options, "upstash-failure-callback"),
        queue=None if queue is None else check_name(queue, "Queue name"),
        labels=_labels(options),
        flow=_flow(options),
        redact=_redact(options.get("upstash-redact-fields") or ""),
        deduplication=_deduplication(options, destination, headers, body),
    )
    _refuse_unsendable_headers(order)
    return order


def _headers(options: Options) -> Headers:
    named = dict.fromkeys(name.lower() for name, _ in options.forwarded("upstash-forward-"))
    plain: Headers = ()
    for name, value in options.pairs:
        wanted = name == "content-type" or (
            options.flag("upstash-header-forward") and not name.startswith("upstash-") and name not in _NOT_FORWARDED
        )
        if wanted and name not in named and name != "qstash_token":
            plain += ((canonical(name), value),)
    return plain + options.forwarded("upstash-forward-")


def _integer(options: Options, name: str, most: int) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if re.fullmatch(r"[0-9]{1,15}", text, re.ASCII) is None or int(text) > most:
        raise Refused(400, f"invalid {canonical(name)}: expected an integer from 0 to {most}")
    return int(text)


def _duration(options: Options, name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    duration = parse_duration(text)
    if duration is None or duration > MAX_DELAY_MS:
        raise Refused(400, f"invalid {canonical(name)}: expected a duration such as 1d10h30m, up to ten years")
    return duration


def _expression(options: Options, name: str) -> str | None:
    text = options.get(name)
    if text is not None and not is_expression(text):
        raise Refused(400, f"invalid {canonical(name)}: expected arithmetic over `retried`, in milliseconds")
    return text


def _method(options: Options, name: str) -> str:
    method = (options.get(name) or "POST").upper()
    if method not in METHODS:
        raise Refused(400, f"invalid {canonical(name)}: expected one of {', '.join(sorted(METHODS))}")
    return method


def _callback(options: Options, name: str) -> Callback | None:
    url = options.get(name)
    if url is None:
        return None
    if options.get(f"{name}-delay") is not None:  # refused at insert since March 2025, as the changelog says
        raise Refused(400, f"invalid {canonical(name)}-Delay: a callback cannot be delayed")
    try:
        url = destination_url(url)
    except Refused as refused:
        raise Refused(400, f"invalid {canonical(name)}: {refused.text}") from None
    return Callback(
        url=url,
        method=_method(options, f"{name}-method"),
        retries=_integer(options, f"{name}-retries", MAX_RETRIES),
        retry_delay=_expression(options, f"{name}-retry-delay"),
        timeout_ms=_duration(options, f"{name}-timeout"),
        headers=options.forwarded(f"{name}-forward-"),
    )


def _labels(options: Options) -> tuple[str, ...]:
    labels = tuple(text.strip() for text in (options.get("upstash-label") or "").split(",") if text.strip())
    if len(labels) > MAX_LABELS or any(len(label) > MAX_NAME for label in labels):
        raise Refused(400, f"invalid Upstash-Label: expected up to {MAX_LABELS} labels of up to {MAX_NAME} characters")
    return labels


def _flow(options: Options) -> Flow | None:
    key = options.get("upstash-flow-control-key")
    if key is None:
        return None
    values: dict[str, int] = {}
    for part in (options.get("upstash-flow-control-value") or "").split(","):
        name, _, text = (piece.strip() for piece in part.partition("="))
        number = parse_duration(text) if name.lower() == "period" and not text.isdecimal() else None
        if number is None and not re.fullmatch(r"[0-9]{1,9}", text, re.ASCII):
            raise Refused(400, "invalid Upstash-Flow-Control-Value: expected parallelism=N, rate=N, period=D")
        values[name.lower()] = int(text) if number is None else number // 1_000
    if not values or values.keys() - {"parallelism", "rate", "period"}:
        raise Refused(400, "invalid Upstash-Flow-Control-Value: expected parallelism=N, rate=N, period=D")
    return Flow(key, values.get("parallelism"), values.get("rate"), values.get("period"))


def _redact(text: str) -> Redact:
    body, all_headers = False, False
    names: list[str] = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        match = _REDACT.fullmatch(part)
        if match is None:
            raise Refused(400, "invalid Upstash-Redact-Fields: expected body, header or header[name]")
        if match["body"]:
            body = True
        elif match["name"] is None:
            all_headers = True
        else:
            names.append(match["name"].strip().lower())
    return Redact(body, all_headers, tuple(names))


def _deduplication(options: Options, destination: str, headers: Headers, body: bytes) -> str | None:
    chosen = options.get("upstash-deduplication-id")
    if chosen is not None:
        if ":" in chosen:
            raise Refused(400, "DeduplicationId cannot contain ':'")
        if len(chosen) > MAX_DEDUPLICATION_ID:
            raise Refused(400, f"DeduplicationId cannot be longer than {MAX_DEDUPLICATION_ID} characters")
        return f"id:{chosen}"
    if not options.flag("upstash-content-based-deduplication"):
        return None
    content = hashlib.sha256()
    for part in (destination.encode(), body, *(f"{name}:{value}".encode() for name, value in sorted(headers))):
        content.update(len(part).to_bytes(8, "big"))
        content.update(part)
    return f"content:{content.hexdigest()}"


def _refuse_unsendable_headers(order: Order) -> None:
    """A header that HTTP cannot carry would fail at each attempt; it is refused now."""
    callbacks = [callback for callback in (order.callback, order.failure_callback) if callback is not None]
    for name, value in (pair for headers in (order.headers, *(c.headers for c in callbacks)) for pair in headers):
        if _TOKEN.fullmatch(name) is None:
            raise Refused(400, f"invalid header {ascii(name)[:100]}: it is no name of a header")
        if re.search(r"[\x00-\x08\x0a-\x1f\x7f]", value) or any(ord(character) > 0xFF for character in value):  # noqa: PLR2004 - Latin-1
            raise Refused(400, f"invalid header {name}: its value cannot be sent over HTTP")
