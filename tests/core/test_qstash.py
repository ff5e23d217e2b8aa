"""A publish request becomes one HTTP call, and a reply's status says whether the message was taken."""

import pytest

from a2core.failures import SendFailure
from a2core.publish import PublishRequest
from a2core.qstash import QStashCall, qstash_call, reply_failure

URL = "https://app.example.com/api/a2/scheduler?x=%20"


def test_the_least_call() -> None:
    """Without options, a call names the destination, the message's id and its JSON."""
    call = qstash_call(PublishRequest(URL, '{"é":1}', "a2_0"))
    assert (
        QStashCall(
            "POST",
            f"/v2/publish/{URL}",
            (
                ("content-type", "application/json"),
                ("upstash-method", "POST"),
                ("upstash-deduplication-id", "a2_0"),
            ),
            b'{"\xc3\xa9":1}',
        )
        == call
    )


def test_the_fullest_call() -> None:
    """Options become headers: seconds, retries, forwarded headers, and the names that are never shown."""
    headers = (("a", "1"), ("x-bypass", "s"))
    call = qstash_call(PublishRequest(URL, "{}", "a2_0", 1_700_000_001, 0, headers, ("a", "x-bypass")))
    assert {
        "content-type": "application/json",
        "upstash-method": "POST",
        "upstash-deduplication-id": "a2_0",
        "upstash-not-before": "1700000001",
        "upstash-retries": "0",
        "upstash-redact-fields": "header[a],header[x-bypass]",
        "upstash-forward-a": "1",
        "upstash-forward-x-bypass": "s",
    } == dict(call.headers)


def test_a_call_prints_no_secret() -> None:
    """Neither a body nor a query nor a header's value is in a call's text."""
    call = qstash_call(
        PublishRequest(f"{URL}?bypass=secret", '"secret"', "a2_0", headers=(("x", "secret"),), redact=("x",))
    )
    assert "secret" not in repr(call)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (200, None),
        (202, None),
        (204, None),
        (299, None),
        (0, SendFailure.RETRYABLE),
        (199, SendFailure.RETRYABLE),
        (304, SendFailure.RETRYABLE),
        (400, SendFailure.TERMINAL),
        (413, SendFailure.TERMINAL),
        (429, SendFailure.RETRYABLE),
        (502, SendFailure.RETRYABLE),
    ],
)
def test_a_reply_is_judged_by_its_status(status: int, expected: SendFailure | None) -> None:
    """Any 2xx is success, whatever its body is; the rest is judged as errors are."""
    assert expected is reply_failure(status)
