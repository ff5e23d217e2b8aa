"""Every way that a delivery ends has exactly one answer."""

from a2core.reasons import ANSWERS, NONRETRYABLE_STATUS, Reason


def test_every_reason_has_its_answer() -> None:
    """The table is complete: no reason is without an answer, and no answer without a reason."""
    assert set(Reason) == set(ANSWERS)


def test_the_statuses_are_those_of_the_wire() -> None:
    """2xx acknowledges, 401 hides why, 489 stops the provider, 5xx brings the message back."""
    assert {
        Reason.OK: 200,
        Reason.WRONG_METHOD: 405,
        Reason.UNSIGNED: 401,
        Reason.FORGED: 401,
        Reason.TOO_LARGE: 489,
        Reason.MALFORMED: 489,
        Reason.UNKNOWN_CONTRACT: 500,
        Reason.FAILED: 500,
        Reason.NOT_PUBLISHED: 503,
    } == {reason: answer.status for reason, answer in ANSWERS.items()}


def test_only_489_forbids_another_try() -> None:
    """The provider gives up for what no other try could change, and for nothing else."""
    for answer in ANSWERS.values():
        assert answer.nonretryable is (answer.status == NONRETRYABLE_STATUS)


def test_a_forged_request_learns_nothing() -> None:
    """An unsigned request and a forged one get the very same answer."""
    assert ANSWERS[Reason.UNSIGNED] == ANSWERS[Reason.FORGED]


def test_another_method_is_told_which_one_is_allowed() -> None:
    """A 405 names POST."""
    assert (("allow", "POST"),) == ANSWERS[Reason.WRONG_METHOD].headers
