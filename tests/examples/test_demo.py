"""The demonstration's checks on a made-up story: kept as told, and broken by each change to it."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from a2asgi import Event
from examples import _promises, demo
from examples._promises import CHECKS, Check, Effect, Seen, Told, effect_of, exit_code, lane_of, report, table
from examples.demo import Server
from examples.orders import Placed, restock, stocktake

START = datetime(2026, 1, 1, tzinfo=UTC)
T0 = START.timestamp()

Row = tuple[float, str, Any, int | None]
"""A log entry: when, its type, its payload, and the seq of what led to it."""

PAID: list[Row] = [
    (0.0, "placed", Placed(skus=["tea"], card="4242"), None),
    (0.1, "wanted", "tea", 1),
    (0.1, "payment_due", "4242", 1),
    (0.3, "reserved", "tea", 2),
    (0.4, "paid", "receipt", 3),
    (6.0, "shipped", "parcel", 5),
]
UNPAID: list[Row] = [
    (0.0, "placed", Placed(skus=["tea"]), None),
    (0.1, "wanted", "tea", 1),
    (0.3, "reserved", "tea", 2),
    (3.0, "expired", None, None),
]
STUCK: list[Row] = [
    (0.0, "placed", Placed(skus=["tea"], card="unreachable"), None),
    (0.1, "wanted", "tea", 1),
    (0.1, "payment_due", "unreachable", 1),
    (0.3, "reserved", "tea", 2),
]
SLOT_MS = int(T0) * 1_000
COUNTED: list[Row] = [(3.0, "run", None, None), (6.8, "succeeded", None, 1)]
SLOTS: list[Row] = [(0.2, "run", SLOT_MS, None), (0.3, "succeeded", None, 1), (5.0, "run", SLOT_MS + 60_000, None)]
JOB = stocktake.definition.name
CRON = restock.definition.name


def event(order: str, seq: int, row: Row) -> Event[Any]:
    at, type_, payload, led_by = row
    cause = None if led_by is None else event_id(order, led_by)
    return Event(event_id(order, seq), type_, payload, cause, START + timedelta(seconds=at), seq)


def event_id(order: str, seq: int) -> str:
    return f"placed-{order}" if seq == 1 else f"{order}-{seq}"


def log(order: str, rows: Iterable[Row]) -> list[Event[Any]]:
    return [event(order, seq, row) for seq, row in enumerate(rows, 1)]


def ran(order: str, seq: int, type_: str, *, at: float, attempt: int = 1, moment: str = "done") -> list[Effect]:
    """An attempt of a tenth of a second; it never ends where `moment` is empty."""
    ends = [Effect(T0 + at + 0.1, order, type_, seq, attempt, moment)] if moment else []
    return [Effect(T0 + at, order, type_, seq, attempt, "started"), *ends]


def bay(number: int, *, at: float, attempt: int = 1) -> Effect:
    return Effect(T0 + at, "count", "run", 1, attempt, f"bay {number}", JOB)


def slot(seq: int, *, at: float) -> list[Effect]:
    return [Effect(T0 + at, "slots", "run", seq, 1, moment, CRON) for moment in ("started", "done")]


def story() -> Seen:
    """A paid order, whose packing the kill at 4.0 s cuts off; an unpaid one; and one whose bank never answers.

    Beside them a stocktake of three bays, cut off in the second one, and a cron whose slot is triggered twice.
    """
    effects = [
        *(effect for order in ("paid", "unpaid", "stuck") for effect in ran(order, 1, "placed", at=0.0)),
        *(effect for order in ("paid", "unpaid", "stuck") for effect in ran(order, 2, "wanted", at=0.2)),
        *ran("paid", 3, "payment_due", at=0.3),
        *(effect for n in (1, 2, 3) for effect in ran("stuck", 3, "payment_due", at=n, attempt=n, moment="failed")),
        *ran("unpaid", 4, "expired", at=3.0),
        *ran("paid", 5, "paid", at=3.5, moment=""),
        *ran("paid", 5, "paid", at=5.9, attempt=2),
    ]
    return Seen(
        began=T0,
        ended=T0 + 8,
        killed_at=T0 + 4,
        acknowledged=["paid", "unpaid", "stuck", "paid"],
        logs={"paid": log("paid", PAID), "unpaid": log("unpaid", UNPAID), "stuck": log("stuck", STUCK)},
        effects=effects,
        dead={("stuck", 3): "ConnectionError"},
        listed=[("stuck", 3)],
        settled_at=T0 + 7,
        requests_since_kill=0,
        repeated=(False, 6, 6),
        jobs_answered=["count-1", "count-1"],
        jobs={"count": log("count", COUNTED)},
        job_effects=[
            Effect(T0 + 3.0, "count", "run", 1, 1, "started", JOB),
            *(bay(number, at=at) for number, at in ((1, 3.0), (2, 3.5))),
            Effect(T0 + 5.8, "count", "run", 1, 2, "started", JOB),
            *(bay(number, at=at, attempt=2) for number, at in ((2, 5.8), (3, 6.3))),
            Effect(T0 + 6.8, "count", "run", 1, 2, "done", JOB),
        ],
        told=[Told(T0 + at, done, 3) for done, at in ((1, 3.5), (2, 6.3), (3, 6.8))],
        job_state="succeeded",
        slot_ms=SLOT_MS,
        slot_answers=["succeeded", "duplicate"],
        slots=log("slots", SLOTS),
        slot_effects=[*slot(1, at=0.2), *slot(3, at=5.0)],
    )


def without(seen: Seen, *, moment: str, type_: str) -> None:
    seen.effects = [effect for effect in seen.effects if (effect.moment, effect.type) != (moment, type_)]


def relogged(seen: Seen, order: str, seq: int, row: Row) -> None:
    """Let the log hold this at that seq; one past the end adds it."""
    seen.logs[order][seq - 1 : seq] = [event(order, seq, row)]


def late(seen: Seen) -> None:
    """Let the timer fire two and a half seconds late, with nothing killed that could excuse it."""
    relogged(seen, "unpaid", 4, (5.5, "expired", None, None))
    seen.killed_at = T0 + 6


def seen_of(check: Callable[[Seen], Check]) -> str:
    return check(story()).seen


def test_the_story_as_it_is_told_keeps_every_promise() -> None:
    assert [] == [check(story()) for check in CHECKS if not check(story()).kept]
    assert 0 == exit_code(check(story()) for check in CHECKS)


BROKEN: list[tuple[Callable[[Seen], Check], str, Callable[[Seen], object]]] = [
    (_promises.in_the_log, "an order is lost", lambda seen: seen.acknowledged.append("lost")),
    (_promises.in_the_log, "no order was placed", lambda seen: seen.acknowledged.clear()),
    (_promises.handled, "a handler never ends", lambda seen: without(seen, moment="done", type_="expired")),
    (_promises.handled, "a failing event is no dead letter", lambda seen: seen.dead.clear()),
    (
        _promises.handled,
        "what is not logged is handled",
        lambda seen: seen.effects.extend(ran("paid", 9, "paid", at=7)),
    ),
    (_promises.handled, "the log is empty", lambda seen: seen.logs.clear()),
    (
        _promises.in_order,
        "a later one starts first",
        lambda seen: seen.effects.insert(0, ran("paid", 2, "wanted", at=0)[0]),
    ),
    (
        _promises.in_order,
        "an earlier one starts again",
        lambda seen: seen.effects.extend(ran("paid", 2, "wanted", at=7)),
    ),
    (_promises.in_order, "two at once", lambda seen: without(seen, moment="done", type_="wanted")),
    (_promises.in_order, "nothing was handled", lambda seen: seen.effects.clear()),
    (_promises.given_up, "it succeeds", lambda seen: seen.effects.extend(ran("stuck", 3, "payment_due", at=7))),
    (_promises.given_up, "it is not tried again", lambda seen: without(seen, moment="failed", type_="payment_due")),
    (_promises.given_up, "it is not given up", lambda seen: seen.dead.clear()),
    (_promises.given_up, "the server does not list it", lambda seen: seen.listed.clear()),
    (_promises.given_up, "another is given up too", lambda seen: seen.dead.update({("paid", 5): "Lost"})),
    (_promises.timer_fired, "it is early", lambda seen: relogged(seen, "unpaid", 4, (2.999, "expired", None, None))),
    (_promises.timer_fired, "it is late", late),
    (_promises.timer_fired, "it does not fire", lambda seen: seen.logs["unpaid"].pop()),
    (_promises.timer_fired, "another fires", lambda seen: relogged(seen, "stuck", 5, (3.0, "expired", None, None))),
    (_promises.timer_cancelled, "it fires", lambda seen: relogged(seen, "paid", 7, (7.0, "expired", None, None))),
    (_promises.timer_cancelled, "nobody looked for long enough", lambda seen: setattr(seen, "ended", T0 + 2.9)),
    (_promises.timer_cancelled, "no order was paid", lambda seen: seen.logs.pop("paid")),
    (_promises.killed_at_work, "all had ended", lambda seen: seen.effects.extend(ran("paid", 5, "paid", at=3.8))),
    (_promises.killed_at_work, "it was not killed", lambda seen: setattr(seen, "killed_at", float("inf"))),
    (_promises.went_on, "it did not go on", lambda seen: setattr(seen, "effects", seen.effects[:-2])),
    (_promises.went_on, "not all settled", lambda seen: setattr(seen, "settled_at", None)),
    (_promises.went_on, "a request came", lambda seen: setattr(seen, "requests_since_kill", 1)),
    (_promises.went_on, "nothing was left", lambda seen: setattr(seen, "killed_at", T0 - 1)),
    (_promises.counted_once, "two parcels", lambda seen: relogged(seen, "paid", 7, (6.1, "shipped", "parcel", 5))),
    (_promises.counted_once, "no parcel", lambda seen: seen.logs["paid"].pop()),
    (_promises.counted_once, "nothing ran twice", lambda seen: setattr(seen, "effects", seen.effects[:-2])),
    (_promises.appended_nothing, "it is new", lambda seen: setattr(seen, "repeated", (True, 6, 6))),
    (_promises.appended_nothing, "the log grew", lambda seen: setattr(seen, "repeated", (False, 6, 7))),
    (_promises.appended_nothing, "it was not sent", lambda seen: setattr(seen, "repeated", None)),
    (_promises.job_went_on, "two jobs for one", lambda seen: seen.jobs_answered.append("count-2")),
    (_promises.job_went_on, "it was asked for once", lambda seen: seen.jobs_answered.pop()),
    (_promises.job_went_on, "a job that nobody was told of", lambda seen: seen.jobs.update({"other": []})),
    (_promises.job_went_on, "no progress before the kill", lambda seen: seen.told.pop(0)),
    (_promises.job_went_on, "no progress at all", lambda seen: seen.told.clear()),
    (_promises.job_went_on, "its progress falls", lambda seen: seen.told.insert(1, Told(T0 + 5.8, 0, 3))),
    (_promises.job_went_on, "its progress does not reach the end", lambda seen: seen.told.pop()),
    (_promises.job_went_on, "over before the kill", lambda seen: seen.told.insert(1, Told(T0 + 3.9, 3, 3))),
    (_promises.job_went_on, "it begins anew", lambda seen: seen.job_effects.insert(4, bay(1, at=5.8, attempt=2))),
    (_promises.job_went_on, "it leaves a bay out", lambda seen: seen.job_effects.pop(4)),
    (_promises.job_went_on, "it ends twice", lambda seen: seen.job_effects.append(seen.job_effects[-1])),
    (_promises.job_went_on, "it does not end", lambda seen: seen.job_effects.pop()),
    (_promises.job_went_on, "it was given up", lambda seen: setattr(seen, "job_state", "failed")),
    (_promises.slot_ran_once, "it ran twice", lambda seen: seen.slot_effects.extend(slot(1, at=0.4))),
    (_promises.slot_ran_once, "it did not run", lambda seen: seen.slot_effects.__delitem__(slice(2))),
    (_promises.slot_ran_once, "it is logged twice", lambda seen: seen.slots.append(event("slots", 4, SLOTS[0]))),
    (_promises.slot_ran_once, "it is not logged", lambda seen: setattr(seen, "slot_ms", SLOT_MS - 60_000)),
    (_promises.slot_ran_once, "what is not logged ran", lambda seen: seen.slot_effects.extend(slot(9, at=7))),
    (_promises.slot_ran_once, "it was not triggered", lambda seen: seen.slot_answers.clear()),
    (_promises.slot_ran_once, "it was triggered once", lambda seen: seen.slot_answers.pop()),
    (_promises.slot_ran_once, "it failed", lambda seen: seen.slot_answers.insert(0, "running")),
    (_promises.slot_ran_once, "it is new again", lambda seen: seen.slot_answers.append("succeeded")),
    (_promises.ran_through, "it did not", lambda seen: setattr(seen, "trouble", "TimeoutError: waited")),
]


@pytest.mark.parametrize(
    ("check", "change"),
    [pytest.param(check, change, id=f"{check.__name__}: {what}") for check, what, change in BROKEN],
)
def test_a_broken_promise_gives_exit_code_1(check: Callable[[Seen], Check], change: Callable[[Seen], object]) -> None:
    seen = story()
    change(seen)
    assert not check(seen).kept
    assert 1 == exit_code(one(seen) for one in CHECKS)


def test_every_check_is_shown_to_fail() -> None:
    assert set(CHECKS) == {check for check, _, _ in BROKEN}


def test_what_is_seen_tells_enough_to_judge_it() -> None:
    assert "10 events: 9 handled, 1 dead" == seen_of(_promises.handled)
    assert "unpaid after 3.00 s" == seen_of(_promises.timer_fired)
    assert "at work on #5 of paid" == seen_of(_promises.killed_at_work)
    assert "1 of 1 events, all settled 3.0 s after the kill, 0 requests" == seen_of(_promises.went_on)
    gaps = "3 attempts after waits of 0.90 s, 0.90 s, dead letter: ConnectionError"
    assert gaps == seen_of(_promises.given_up)
    counted = "2 requests, 1 job: 1 of 3 bays before the kill, 2 after it, succeeded"
    assert counted == seen_of(_promises.job_went_on)
    assert "answers: succeeded, duplicate; runs: 1" == seen_of(_promises.slot_ran_once)


def test_before_the_kill_a_failed_handler_does_not_count_as_running() -> None:
    seen = story()
    seen.killed_at = T0 + 1.5
    assert {} == seen.running()


def test_the_lane_is_what_the_contract_says() -> None:
    lanes = {entry.type: lane_of(entry) for entry in [*log("paid", PAID), *log("unpaid", UNPAID)]}
    assert ("main", "main", "shipping", "expiry") == tuple(
        lanes[type_] for type_ in ("wanted", "payment_due", "paid", "expired")
    )


def test_a_line_of_the_effects_file_is_read() -> None:
    effect = Effect(1.5, "o-1", "payment_due", 3, 2, "failed")
    assert effect == effect_of("1.5 [orders/o-1 payment_due #3] attempt 2 failed")
    counting = effect_of("1.5 [job:stocktake/0a1b run #1] attempt 2 bay 12")
    assert (Effect(1.5, "0a1b", "run", 1, 2, "bay 12", JOB), 12, None) == (counting, counting.bay, effect.bay)


def test_effects_are_kept_apart_by_what_had_them() -> None:
    seen = Seen()
    effects = [*ran("o-1", 1, "placed", at=0), bay(1, at=0), *slot(1, at=0)]
    for effect in effects:
        seen.saw(effect)
    assert (effects[:2], effects[2:3], effects[3:]) == (seen.effects, seen.job_effects, seen.slot_effects)
    with pytest.raises(KeyError, match="job:other"):
        seen.saw(effect_of("1.5 [job:other/0a1b run #1] attempt 1 done"))


@pytest.mark.parametrize(
    "line", ["", "1.5 [orders/o1 placed #1] attempt 1", "1.5 [orders/o1 placed #1] attempt 1 doneX"]
)
def test_a_torn_line_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="expected a line such as"):
        effect_of(line)


def test_the_table_says_what_was_not_kept() -> None:
    lines = table([Check("one", "all of it", kept=True), Check("another", "nothing", kept=False)]).splitlines()
    assert ["kept  promised  seen", "yes   one       all of it", "NO    another   nothing"] == lines


def test_a_report_of_kept_promises_is_the_table_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == report(story(), "started\nstopped")
    assert "stopped" not in capsys.readouterr().out


def test_a_report_of_a_broken_promise_ends_with_the_servers_log(capsys: pytest.CaptureFixture[str]) -> None:
    assert 1 == report(Seen(), "\n".join(f"line {n}" for n in range(100)))
    assert capsys.readouterr().out.endswith("line 98\nline 99\n")


@pytest.mark.parametrize("error", [ChildProcessError("it ended"), ExceptionGroup("", [ChildProcessError("it ended")])])
def test_a_demonstration_that_breaks_off_exits_with_1_and_says_why(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run(server: Server, seen: Seen) -> None:
        raise error

    monkeypatch.setattr(demo, "run", run)
    assert 1 == demo.main()
    [line] = [line for line in capsys.readouterr().out.splitlines() if "comes to its end" in line]
    assert line.startswith("NO ")
    assert line.endswith("ChildProcessError: it ended")
