"""The rules of time, as pure functions: durations, back-off, steering by the destination, cron."""

import math
import re
from datetime import UTC
from email.utils import parsedate_to_datetime

from a2asgi.crontab import Crontab
from a2asgi.errors import InvalidSchedule
from a2asgi.qstash_server.expressions import evaluate
from a2asgi.qstash_server.values import Refused, Response

DAY_MS = 86_400_000
MAX_RETRY_DELAY_MS = DAY_MS
"""The longest pause between two attempts (features/retry)."""

MAX_DELAY_MS = 3_660 * DAY_MS
"""Ten years: the provider's largest plan has no limit, but a calendar has one."""

DEDUPLICATION_WINDOW_MS = 600_000
"""Ten minutes (features/deduplication)."""

NON_RETRYABLE_STATUS = 489
_STEERING = ("retry-after", "x-ratelimit-reset", "x-ratelimit-reset-requests", "x-ratelimit-reset-tokens")
_UNITS_MS = {
    "ns": 1e-6, "us": 1e-3, "µs": 1e-3, "μs": 1e-3, "ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": DAY_MS,
}  # fmt: skip
_PART = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)(ns|us|µs|μs|ms|s|m|h|d)")
_SECONDS = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,9})?", re.ASCII)
_MAX_TEXT = 64
"""Characters of a duration: more is no duration that a person would write."""


def parse_duration(text: str) -> int | None:
    """Milliseconds of a text such as `1d10h30m` or `1.6s`, rounded up; None for anything else."""
    text = text.strip()
    if not text or len(text) > _MAX_TEXT:
        return None
    at, total = 0, 0.0
    while at < len(text):
        part = _PART.match(text, at)
        if part is None:
            return None
        total += float(part[1]) * _UNITS_MS[part[2]]
        at = part.end()
    return math.ceil(total)


def is_success(response: Response) -> bool:
    """Whether the attempt delivered. A redirect did not: the signature names one URL, and no other."""
    return 200 <= response.status < 300  # noqa: PLR2004 - HTTP's own numbers


def is_final(response: Response) -> bool:
    """Whether the destination says that no further attempt can help: 489 *and* its header."""
    return response.status == NON_RETRYABLE_STATUS and any(
        value.strip().lower() == "true" for value in response.values("upstash-nonretryable-error")
    )


def retry_delay_ms(retried: int, expression: str | None, response: Response, now_ms: int) -> int:
    """Milliseconds until the next attempt, after one that was itself retry number `retried` (0 for the first).

    The destination's own wish counts first, up to a day; then the publisher's expression; then the back-off.
    """
    wish = steered_ms(response, now_ms)
    if wish is not None and wish <= MAX_RETRY_DELAY_MS:
        return wish
    if expression is not None and (delay := evaluate(expression, retried)) is not None:
        return math.ceil(min(max(delay, 0), MAX_RETRY_DELAY_MS))
    return default_delay_ms(retried + 1)


def default_delay_ms(retry: int) -> int:
    """The documented back-off before retry number `retry`: e^(2.5 n) seconds, and a day at most."""
    return math.ceil(min(MAX_RETRY_DELAY_MS, math.exp(min(2.5 * retry, 50)) * 1_000))


def steered_ms(response: Response, now_ms: int) -> int | None:
    """Milliseconds that the destination asks to wait: seconds, an HTTP date or a duration such as `6m5s`."""
    for name in _STEERING:
        for value in response.values(name):
            if (wish := _steering_value(value.strip(), now_ms)) is not None:
                return wish
    return None


def _steering_value(text: str, now_ms: int) -> int | None:
    if _SECONDS.fullmatch(text):
        return math.ceil(float(text) * 1_000)
    if (duration := parse_duration(text)) is not None:
        return duration
    try:
        date = parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(0, math.ceil((date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() * 1_000) - now_ms)


def next_tick_ms(cron: str, after_ms: int) -> int:
    """When `cron` (five fields, UTC unless `CRON_TZ=Area/City` leads) comes next after that instant.

    Raises Refused for a text that is no cron expression, or that never comes.
    """
    zone, fields = "UTC", cron.strip()
    if fields.startswith("CRON_TZ="):
        zone, _, fields = fields.removeprefix("CRON_TZ=").partition(" ")
    try:
        tick_ms = Crontab(fields, zone).next_ms(after_ms)
    except InvalidSchedule as error:
        raise Refused(400, f"invalid cron: {error}") from None
    if tick_ms is None:
        raise Refused(400, "invalid cron: it never comes")
    return tick_ms
