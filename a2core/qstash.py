"""QStash's HTTP API: the request that publishes a message, and what the status of its reply means (wire.md 6)."""

from dataclasses import dataclass, field

from a2core.failures import SendFailure, failure_of_status
from a2core.publish import Headers, PublishRequest


@dataclass(frozen=True, slots=True)
class QStashCall:
    """One HTTP request to QStash: `target` follows its base URL, and the caller adds its own authorization."""

    method: str
    target: str = field(repr=False)  # the callback's query may be a secret
    headers: Headers = field(repr=False)
    body: bytes = field(repr=False)


def qstash_call(request: PublishRequest) -> QStashCall:
    """The call that publishes the message, and has QStash deliver it with the request's headers, unprefixed."""
    headers = {
        "content-type": "application/json",
        "upstash-method": "POST",
        "upstash-deduplication-id": request.deduplication_id,
    }
    if request.not_before_s is not None:
        headers["upstash-not-before"] = str(request.not_before_s)
    if request.retries is not None:
        headers["upstash-retries"] = str(request.retries)
    if request.redact:
        headers["upstash-redact-fields"] = ",".join(f"header[{name}]" for name in request.redact)
    headers |= {f"upstash-forward-{name}": value for name, value in request.headers}
    return QStashCall("POST", f"/v2/publish/{request.url}", tuple(headers.items()), request.body.encode())


def reply_failure(status: int) -> SendFailure | None:
    """None where QStash has the message: any 2xx, whatever its body holds or lacks (wire.md 11.7)."""
    return None if 200 <= status < 300 else failure_of_status(status)  # noqa: PLR2004 - HTTP's 2xx
