"""What went wrong with a send tells whether another one can help."""

from collections.abc import Callable

import pytest

from a2core import InvalidName, InvalidPayload
from a2core.failures import SendFailure, failure_of_status, send_failure, status_of
from a2core.publish import MessageTooLarge
from a2core.tasks import InvalidTask

RETRYABLE_4XX = {408, 409, 425, 429}


class ClientError(Exception):
    """An error of some HTTP client's, with the properties that it was made with."""

    def __init__(self, **properties: object) -> None:
        super().__init__("publish failed")
        self.__dict__.update(properties)
        self.properties = properties

    def __repr__(self) -> str:
        return ascii(self.properties)[:40]


class Sealed(Exception):
    """An error that does not like to be asked."""

    status = 404

    @property
    def response(self) -> object:
        raise RuntimeError("not read yet")


@pytest.mark.parametrize("status", range(100, 600))
def test_a_status_is_told_in_every_clients_way(status: int) -> None:
    """Terminal are the 4xx but four; the status may stand on the error or its response, under any client's name."""
    is_terminal = 400 <= status < 500 and status not in RETRYABLE_4XX
    expected = SendFailure.TERMINAL if is_terminal else SendFailure.RETRYABLE
    assert expected is failure_of_status(status)
    told: list[object] = [
        ClientError(status=status),
        ClientError(statusCode=status),
        ClientError(status_code=status),
        ClientError(response=ClientError(status_code=status)),
        ClientError(response={"status": float(status)}),
        {"status": status},
        {"response": {"statusCode": status}, "status": status},
    ]
    for error in told:
        assert status == status_of(error)
        assert expected is send_failure(error)


@pytest.mark.parametrize(
    "error",
    [
        None,
        404,
        "404",
        OSError("connection refused"),
        ClientError(status="404"),
        ClientError(status=True),
        ClientError(status=None),
        ClientError(status=99),
        ClientError(status=600),
        ClientError(status=404.5),
        ClientError(status=float("nan")),
        ClientError(status=float("inf")),
        ClientError(status=10**400),
        ClientError(status=[404]),
        ClientError(code=404),
        ClientError(cause={"status": 404}),
        ClientError(response={"response": {"status": 404}}),
        ClientError(status=404, statusCode=400),
        ClientError(status=404, response={"status": 500}),
        {},
        Sealed(),
    ],
    ids=repr,
)
def test_an_error_that_tells_nothing_clear_is_retryable(error: object) -> None:
    """No status, an impossible one, or a contradiction: the message may have been accepted, or may be next time."""
    assert None is status_of(error)
    assert SendFailure.RETRYABLE is send_failure(error)
    assert SendFailure.RETRYABLE is failure_of_status(None)


def test_an_impossible_status_beside_a_real_one_does_not_count() -> None:
    """Only statuses disagree: other values under those names are ignored."""
    assert 404 == status_of(ClientError(status=404, statusCode="500", response={"status": 700}))


@pytest.mark.parametrize(
    "error",
    [
        lambda: InvalidTask("no events"),
        lambda: MessageTooLarge("too large"),
        lambda: InvalidPayload("$", "nan"),
        lambda: InvalidName("empty"),
    ],
    ids=["task", "size", "payload", "name"],
)
def test_what_was_refused_here_is_terminal(error: Callable[[], Exception]) -> None:
    """A message that this package would not send cannot be sent by trying again."""
    assert SendFailure.TERMINAL is send_failure(error())
