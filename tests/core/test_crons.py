"""Crons: which slots become runs, each once, whoever asks first, and how a schedule goes on or is replaced."""

from dataclasses import dataclass, replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from a2core import (
    RECURRENCE_ID,
    CatchUp,
    Entry,
    Registered,
    RetryPolicy,
    Roster,
    RunState,
    Schedule,
    Timer,
    Tombstone,
    Triggered,
    WakeBy,
    WorkItem,
    caught_up,
    recur_by,
    slot_event_id,
)
from tests.core.helpers import STEADY, TTL_MS, WINDOW_MS, Session, draft

MINUTE = 60_000
HOUR = 60 * MINUTE
NOON = 1_000_000 * HOUR
"""A slot of every schedule here."""


@dataclass(frozen=True, slots=True)
class Every:
    """A slot every so many minutes from the epoch on, for as long as it lasts."""

    minutes: int
    last_ms: int = 2 * NOON

    def next_ms(self, after_ms: int) -> int | None:
        step = self.minutes * MINUTE
        slot = (after_ms // step + 1) * step
        return slot if slot <= self.last_ms else None

    def slots_ms(self, after_ms: int, until_ms: int, limit: int) -> list[int]:
        step = self.minutes * MINUTE
        first = (after_ms // step + 1) * step
        return list(range(first, min(until_ms, self.last_ms) + 1, step))[:limit]

    def latest_ms(self, after_ms: int, until_ms: int) -> int | None:
        return max(self.slots_ms(after_ms, until_ms, 10**9), default=None)


def read_rule(text: str) -> tuple[Schedule, CatchUp]:
    """A rule such as `5 latest`, or `5 all 720000` for one that ends."""
    minutes, catch_up, *last = text.split()
    return Every(int(minutes), *map(int, last)), CatchUp(catch_up)


POLICY = RetryPolicy(max_failures=2, max_lost=2, backoff=STEADY, aside=True, keep_ms=24 * HOUR)
ROSTER = Roster({"order": POLICY}, frozenset(), recur_by(read_rule, "order"))


def cron(rule: str, *, now_ms: int = NOON) -> Session:
    """A session in which a schedule was just put in force."""
    session = Session(roster=ROSTER)
    session.register(rule, read_rule, now_ms=now_ms)
    return session


def slots(session: Session) -> list[int]:
    """The slots that became runs, in the order of their seqs, in minutes from noon."""
    return [(int(kept.payload) - NOON) // MINUTE for kept in session.entries.values()]


def due(session: Session) -> int | None:
    """When the schedule goes on, in minutes from noon."""
    timer = session.timers.get(RECURRENCE_ID)
    return (timer.due_at_ms - NOON) // MINUTE if isinstance(timer, Timer) else None


def at(minutes: float) -> int:
    return NOON + int(minutes * MINUTE)


# ── which slots are caught up ────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("catch_up", "first", "now", "expected"),
    [
        pytest.param("latest", 5, 5, [5], id="latest-at-its-slot"),
        pytest.param("latest", 5, 9.99, [5], id="latest-before-the-next"),
        pytest.param("latest", 5, 5_000, [5_000], id="latest-after-days"),
        pytest.param("latest", 5, 5_004, [5_000], id="latest-between-two"),
        pytest.param("all", 5, 5, [5], id="all-at-its-slot"),
        pytest.param("all", 5, 14.99, [5, 10], id="all-before-the-next"),
        pytest.param("all", 5, 65, [*range(5, 70, 5)], id="all-of-an-hour"),
        pytest.param("all", 5, 65 + 1 / MINUTE, [*range(10, 70, 5)], id="all-but-what-is-an-hour-old"),
        pytest.param("all", 5, 5_000, [*range(4_940, 5_005, 5)], id="all-after-days"),
        pytest.param("all", 65, 66, [65], id="all-a-minute-later"),
        pytest.param("none", 5, 5, [5], id="none-at-its-slot"),
        pytest.param("none", 5, 6 - 1 / MINUTE, [5], id="none-within-its-minute"),
        pytest.param("none", 5, 6, [], id="none-after-its-minute"),
        pytest.param("none", 5, 10.5, [10], id="none-of-the-one-before"),
        pytest.param("none", 5, 5_000.5, [5_000], id="none-after-days-within-a-minute"),
    ],
)
def test_what_passed_is_caught_up(catch_up: str, first: int, now: float, expected: list[int]) -> None:
    """Of a slot every five minutes: the last one, those of the last hour, or the one whose minute it is."""
    found = caught_up(Every(5), CatchUp(catch_up), at(first), at(now))
    assert [at(minutes) for minutes in expected] == found


@given(st.integers(1, 70), st.integers(0, 5), st.integers(0, 5 * HOUR))
def test_catching_up_is_counted_on_the_clock(minutes: int, slot: int, passed_ms: int) -> None:
    """For any schedule and any time since a slot: what a walk over the minutes finds."""
    first_ms = (NOON // (minutes * MINUTE) + slot) * minutes * MINUTE
    now_ms = first_ms + passed_ms
    passed = [at_ms for at_ms in range(first_ms, now_ms + 1, MINUTE) if at_ms % (minutes * MINUTE) == 0]
    schedule = Every(minutes)
    assert passed[-1:] == caught_up(schedule, CatchUp.LATEST, first_ms, now_ms)
    assert [at_ms for at_ms in passed if at_ms >= now_ms - HOUR] == caught_up(schedule, CatchUp.ALL, first_ms, now_ms)
    assert [at_ms for at_ms in passed if at_ms > now_ms - MINUTE] == caught_up(schedule, CatchUp.NONE, first_ms, now_ms)


def test_an_hour_has_as_many_slots_as_it_has_minutes_and_one() -> None:
    """A schedule of every minute is caught up whole, both ends of the hour included."""
    assert [*range(at(940), at(1_001), MINUTE)] == caught_up(Every(1), CatchUp.ALL, at(1), at(1_000))


def test_the_stored_words_of_catching_up_are_stable() -> None:
    """A rule that is stored names them."""
    assert ["latest", "all", "none"] == [*CatchUp]


# ── registering ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("catch_up", CatchUp)
@pytest.mark.parametrize(("now", "following"), [(-0.01, 0), (0, 5), (0.01, 5), (4.99, 5)])
def test_a_new_schedule_begins_with_its_next_slot(catch_up: CatchUp, now: float, following: int) -> None:
    """A slot that is now, or a moment ago, is not backfilled; the session is looked at when the next one comes."""
    session = Session(roster=ROSTER)
    assert Registered(at(following)) == session.register(f"5 {catch_up}", read_rule, now_ms=at(now))
    assert (following, at(following)) == (due(session), session.wake_at_ms)
    session.claim(now_ms=at(following) - 1)
    assert [] == slots(session)
    session.claim(now_ms=at(following))
    assert [following] == slots(session)


@pytest.mark.parametrize("now", [0, 5, 500])
def test_a_schedule_that_is_in_force_goes_on(now: int) -> None:
    """A process that starts changes nothing about it, so what was missed while none ran is caught up."""
    session = cron("5 all")
    before = session.copy()
    assert Registered(at(5)) == session.register("5 all", read_rule, now_ms=at(now))
    assert not session.plan.writes
    assert before == session


@pytest.mark.parametrize("rule", ["3 all", "5 latest"], ids=["slots", "catch-up"])
def test_a_schedule_that_changed_does_not_backfill(rule: str) -> None:
    """Another rule begins with its own next slot, and what the old one missed is gone with it."""
    session = cron("5 all")
    following = 102 if rule == "3 all" else 105
    assert Registered(at(following)) == session.register(rule, read_rule, now_ms=at(100))
    assert WakeBy(at(following)) == session.plan.wake
    session.claim(now_ms=at(100))
    assert [] == slots(session)
    session.claim(now_ms=at(following))
    assert [following] == slots(session)


@pytest.mark.parametrize("known", ["none", "another", "cancelled"])
def test_a_schedule_that_is_over_is_not_kept(known: str) -> None:
    """A rule that has no slot any more leaves no timer, whatever was there before."""
    session = Session() if known == "none" else cron("5 all")
    if known == "cancelled":
        session.timers[RECURRENCE_ID] = Tombstone(RECURRENCE_ID)
    assert Registered(None) == session.register(f"5 all {at(3)}", read_rule, now_ms=at(1))
    assert {} == session.timers
    assert (known != "none") is session.plan.writes


# ── recurring ────────────────────────────────────────────────────────────────────────────


def test_a_slot_is_a_run_of_its_own_lane() -> None:
    """Its event has its id, its payload is the slot, and a slow run does not hold up the next one."""
    session = cron("5 latest")
    [first] = session.claim(now_ms=at(5), ttl_ms=HOUR).items
    assert Entry(slot_event_id(at(5)), "order", str(at(5)), None, at(5), 1) == first.entry
    [second] = session.claim(now_ms=at(10), ttl_ms=HOUR).items
    assert Entry(slot_event_id(at(10)), "order", str(at(10)), None, at(10), 2) == second.entry
    assert first.lane != second.lane


def test_a_schedule_recurs_until_it_is_over() -> None:
    """Each pass brings the slot that has come and the time of the next; after the last one the timer is gone."""
    session = cron(f"5 latest {at(15)}")
    for minutes, following in ((5, 10), (12, 15), (14.9, 15), (15, None)):
        session.claim(now_ms=at(minutes), ttl_ms=24 * HOUR)
        assert following == due(session)
        assert session.wake_at_ms == at(24 * 60 + 5 if following is None else following)
    assert [5, 10, 15] == slots(session)


def test_a_pass_between_two_slots_brings_none() -> None:
    """A wake-up that comes too early, or for something else, makes no run and moves no slot."""
    session = cron("5 all")
    session.append(draft("e"), now_ms=at(1))
    session.claim(now_ms=at(1))
    session.claim(now_ms=at(5) - 1)
    assert (["e"], 5) == (list(session.entries), due(session))


@pytest.mark.parametrize(
    ("catch_up", "expected"), [("latest", [200]), ("all", [*range(145, 205, 5)]), ("none", [200])], ids=str
)
def test_a_pass_after_hours_catches_up(catch_up: str, expected: list[int]) -> None:
    """What passed while nothing ran becomes runs as its rule says, in order, and the schedule goes on from now."""
    session = cron(f"5 {catch_up}")
    session.claim(now_ms=at(200.5))
    assert (expected, 205) == (slots(session), due(session))


def test_a_rule_that_this_code_cannot_read_delivers_its_next_slot() -> None:
    """Code without a reader of rules takes the timer as a plain one: it brings the slot that it carries."""
    session = cron("5 all")
    session.roster = replace(ROSTER, recur=None)
    session.claim(now_ms=at(20))
    assert ([5], None) == (slots(session), due(session))


def test_slots_and_other_timers_come_in_the_order_of_their_times() -> None:
    """A timer beside the schedule is delivered in its turn."""
    session = cron("5 latest")
    for minutes in (4, 6):
        session.schedule(Timer(f"t{minutes}", at(minutes), None, (draft(f"e{minutes}"),)), now_ms=NOON)
    session.due_limit = 3
    session.claim(now_ms=at(7))
    assert ["e4", slot_event_id(at(5)), "e6"] == list(session.entries)


# ── triggers ─────────────────────────────────────────────────────────────────────────────


def test_a_trigger_makes_a_slot_without_a_schedule() -> None:
    """Where a provider keeps the schedule, its calls alone make the runs, each once."""
    session = Session(roster=ROSTER)
    assert Triggered(None) == session.slot(at(5), read_rule, now_ms=at(5))
    kept = Entry(slot_event_id(at(5)), "order", str(at(5)), None, at(5), 1)
    assert {1: WorkItem(kept, "slot-" + str(at(5)), ready_at_ms=at(5))} == session.items
    assert at(5) + WINDOW_MS == session.wake_at_ms
    assert Triggered(RunState.QUEUED) == session.slot(at(5), read_rule, now_ms=at(6))
    session.settle(session.claim_one(now_ms=at(6)), now_ms=at(6))
    before = session.copy()
    assert Triggered(RunState.SUCCEEDED) == session.slot(at(5), read_rule, now_ms=at(7))
    assert before == session
    assert {} == session.timers


@pytest.mark.parametrize("catch_up", CatchUp)
@pytest.mark.parametrize("now", [4, 4.5, 5, 5.5])
def test_a_trigger_and_the_schedule_make_one_run(catch_up: CatchUp, now: float) -> None:
    """A call up to a minute ahead of the slot, or after it, and the timer that then finds it due, make it once."""
    session = cron(f"5 {catch_up}")
    assert Triggered(None) == session.slot(at(5), read_rule, now_ms=at(now))
    assert ([5], 10) == (slots(session), due(session))
    session.claim(now_ms=max(at(5), at(now)))
    assert [5] == slots(session)
    session.claim(now_ms=at(10))
    assert [5, 10] == slots(session)


@pytest.mark.parametrize("catch_up", CatchUp)
def test_the_schedule_and_a_trigger_make_one_run(catch_up: CatchUp) -> None:
    """A call for a slot that the timer has brought finds it as it stands, and the schedule goes on where it is."""
    session = cron(f"5 {catch_up}")
    session.claim(now_ms=at(5))
    before = session.copy()
    assert Triggered(RunState.RUNNING) == session.slot(at(5), read_rule, now_ms=at(5))
    assert before == session


def test_an_early_trigger_loses_no_slot_before_it() -> None:
    """A call for the next minute comes before the timer's own look at this one, and both are run."""
    for catch_up in CatchUp:
        session = cron(f"1 {catch_up}")
        session.slot(at(2), read_rule, now_ms=at(1))
        session.claim(now_ms=at(1) + 250)
        assert ([1, 2], 3) == (sorted(slots(session)), due(session))


def test_a_trigger_does_not_bring_back_what_is_over_an_hour_old() -> None:
    """What is caught up before an old slot is counted from now, not from that slot."""
    session = cron("5 all")
    session.slot(at(100), read_rule, now_ms=at(155))
    assert [95, 100] == sorted(slots(session))
    session.claim(now_ms=at(155))
    assert [*range(95, 160, 5)] == sorted(slots(session))


@pytest.mark.parametrize("now", [3.5, 4, 5, 60])
def test_a_trigger_of_a_passed_slot_leaves_the_schedule(now: float) -> None:
    """A slot before the next one of the schedule is made by the call alone."""
    session = cron("5 all", now_ms=at(3))
    assert Triggered(None) == session.slot(at(0), read_rule, now_ms=at(now))
    assert ([0], 5) == (slots(session), due(session))


@pytest.mark.parametrize("minute", [2, 7])
def test_a_trigger_between_the_slots_is_a_run_too(minute: int) -> None:
    """A version of the code with another schedule calls for its own slot, and the one in force goes on after it."""
    session = cron("5 latest")
    assert Triggered(None) == session.slot(at(minute), read_rule, now_ms=at(minute))
    session.claim(now_ms=at(10))
    expected = [minute, 10] if minute < 5 else [minute, 5, 10]
    assert expected == slots(session)


def test_a_trigger_of_the_last_slot_ends_the_schedule() -> None:
    """Where nothing follows, the timer is gone."""
    session = cron(f"5 all {at(5)}")
    session.slot(at(5), read_rule, now_ms=at(5))
    assert ([5], {}) == (slots(session), session.timers)


def test_a_cancelled_schedule_is_none() -> None:
    """A tombstone in its place catches up nothing, and does not stand in a trigger's way."""
    session = Session(roster=ROSTER)
    session.timers[RECURRENCE_ID] = Tombstone(RECURRENCE_ID)
    assert Triggered(None) == session.slot(at(5), read_rule, now_ms=at(6))
    assert {RECURRENCE_ID: Tombstone(RECURRENCE_ID)} == session.timers


@pytest.mark.parametrize("way", ["timer", "trigger"])
def test_a_new_schedule_finds_the_slot_that_was_triggered_early(way: str) -> None:
    """Where another rule is registered within the minute for which a call was early, that slot is still one run."""
    session = cron("5 all")
    session.slot(at(10), read_rule, now_ms=at(9.5))
    session.register("2 all", read_rule, now_ms=at(9.6))
    assert 10 == due(session)
    if way == "timer":
        session.claim(now_ms=at(12))
    else:
        assert Triggered(None) == session.slot(at(12), read_rule, now_ms=at(12))
    assert ([5, 10, 12], 14) == (sorted(slots(session)), due(session))


def test_a_new_schedule_does_not_put_off_a_retry_that_is_called_for() -> None:
    """A slot that is there is tried now, also where the schedule has still to come to it."""
    session = cron("5 all")
    session.slot(at(10), read_rule, now_ms=at(9.5))
    session.register("2 all", read_rule, now_ms=at(9.6))
    for item in session.claim(now_ms=at(9.6)).items:
        session.fail(item, now_ms=at(10) - 1)
    assert Triggered(RunState.RETRYING) == session.slot(at(10), read_rule, now_ms=at(10))
    assert {at(10)} == {item.ready_at_ms for item in session.items.values() if item.entry.payload == str(at(10))}
    assert 10 == due(session)


@pytest.mark.parametrize("way", ["timer", "trigger"])
def test_other_events_under_the_ids_of_slots_stop_no_schedule(way: str) -> None:
    """What an older version stored in another way under a slot's id stays, and the schedule goes on past it."""
    session = cron("5 all")
    session.append(draft(slot_event_id(at(5)), payload="0"), now_ms=NOON)
    if way == "timer":
        session.claim(now_ms=at(11))
    else:
        session.slot(at(10), read_rule, now_ms=at(11))
    assert 15 == due(session)
    session.claim(now_ms=at(15))
    assert 15 in slots(session)


def test_a_dead_slot_is_tried_again_when_it_is_called_for() -> None:
    """A provider's own retry of a slot that failed for good gives it fresh budgets; a failed attempt is not put off."""
    session = cron("5 latest")
    session.fail(session.claim_one(now_ms=at(5)), now_ms=at(5))
    assert Triggered(RunState.RETRYING) == session.slot(at(5), read_rule, now_ms=at(5))
    session.fail(session.claim_one(now_ms=at(5)), now_ms=at(5))
    assert Triggered(RunState.FAILED) == session.slot(at(5), read_rule, now_ms=at(6))
    assert 0 == session.claim_one(now_ms=at(6)).failures
    assert [5] == slots(session)


# ── any order of all of it ───────────────────────────────────────────────────────────────

rules = st.builds("{} {}".format, st.sampled_from([1, 2, 5, 60]), st.sampled_from([*CatchUp]))


def timer_first(session: Session, slot_ms: int, now_ms: int) -> None:
    session.claim(now_ms=now_ms)
    session.slot(slot_ms, read_rule, now_ms=now_ms)


def trigger_first(session: Session, slot_ms: int, now_ms: int) -> None:
    session.slot(slot_ms, read_rule, now_ms=now_ms)
    session.claim(now_ms=now_ms)


@given(rules, st.integers(0, 3 * HOUR), st.integers(-60, 1))
@example("5 all", 155 * MINUTE, -55)
@example("1 latest", MINUTE, 1)
@example("1 none", MINUTE, 1)
def test_it_does_not_matter_who_comes_first(rule: str, passed_ms: int, ahead: int) -> None:
    """The timer and a call that come at one instant make the same runs in either order, and leave the same schedule."""
    now_ms = NOON + passed_ms
    slot_ms = (now_ms // MINUTE + ahead) * MINUTE
    made: list[object] = []
    for order in (timer_first, trigger_first):
        session = cron(rule)
        order(session, slot_ms, now_ms)
        made.append((sorted(slots(session)), due(session)))
    assert made[0] == made[1]


class Slots(RuleBasedStateMachine):
    """Processes that start with one rule or another, look at the time, and are called from outside for slots."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = NOON
        self.session = Session(roster=ROSTER)
        self.triggered: set[int] = set()
        self.rule_of: dict[int, str] = {}  # slot to the rule in force when the schedule made it
        self.since_ms = 0
        self.rule = ""

    @rule(ms=st.sampled_from([1, 250, 20_000, MINUTE - 1, MINUTE, 7 * MINUTE, HOUR - 1, HOUR, HOUR + 1, 3 * HOUR]))
    def wait(self, ms: int) -> None:
        self.now_ms += ms

    @rule()
    def wait_for_the_minute(self) -> None:
        self.now_ms += -self.now_ms % MINUTE

    @rule(new=rules)
    def register(self, new: str) -> None:
        known, old = due(self.session), self.rule
        answer = self.session.register(new, read_rule, now_ms=self.now_ms)
        if new != old:
            self.rule, self.since_ms = new, self.now_ms
            assert Every(int(new.split(maxsplit=1)[0])).next_ms(self.now_ms) == answer.next_ms
        else:
            assert known == due(self.session)

    @rule(ahead=st.integers(-60, 1) | st.integers(-2, 1))
    def trigger(self, ahead: int) -> None:
        slot_ms = (self.now_ms // MINUTE + ahead) * MINUTE
        if slot_ms < self.now_ms - HOUR:
            return
        before = {kept.id for kept in self.session.entries.values()}
        answer = self.session.slot(slot_ms, read_rule, now_ms=self.now_ms)
        assert (slot_event_id(slot_ms) in before) is (answer.before is not None)
        if answer.before is None:
            self.triggered.add(slot_ms)

    @rule(settle=st.booleans())
    def look(self, *, settle: bool) -> None:
        for item in self.session.claim(now_ms=self.now_ms, limit=100, ttl_ms=TTL_MS).items:
            if settle:
                self.session.settle(item, now_ms=self.now_ms)
        self.nothing_is_missing()

    def nothing_is_missing(self) -> None:
        """After a look, the slots that the rule in force promises since it is in force are runs."""
        if not self.rule:
            return
        schedule, catch_up = read_rule(self.rule)
        passed = schedule.slots_ms(self.since_ms, self.now_ms, 10**9)
        match catch_up:
            case CatchUp.ALL:
                promised = {slot for slot in passed if slot >= self.now_ms - HOUR}
            case CatchUp.LATEST:
                promised = {*passed[-1:]}
            case CatchUp.NONE:
                promised = {slot for slot in passed if slot > self.now_ms - MINUTE}
        assert promised <= {int(kept.payload) for kept in self.session.entries.values()}

    @invariant()
    def nothing_is_there_that_should_not_be(self) -> None:
        """What nobody called for was a slot of the rule that made it, after that was in force, and caught up by it."""
        for kept in self.session.entries.values():
            slot, made_ms = int(kept.payload), kept.created_at_ms
            if slot in self.triggered or slot in self.rule_of:
                continue
            self.rule_of[slot] = self.rule
            schedule, catch_up = read_rule(self.rule)
            assert [slot] == schedule.slots_ms(slot - 1, slot, 1)
            assert self.since_ms < slot <= made_ms
            match catch_up:
                case CatchUp.ALL:
                    assert slot >= made_ms - HOUR
                case CatchUp.LATEST:
                    assert [] == schedule.slots_ms(slot, made_ms, 1)
                case CatchUp.NONE:
                    assert made_ms < slot + MINUTE

    @invariant()
    def a_slot_is_one_run(self) -> None:
        made = [int(kept.payload) for kept in self.session.entries.values()]
        assert len({*made}) == len(made)
        assert self.triggered <= {*made}

    @invariant()
    def the_schedule_goes_on(self) -> None:
        """Once one is in force its next slot is on its way, and the session is woken for it."""
        if self.rule:
            timer = self.session.timers[RECURRENCE_ID]
            assert isinstance(timer, Timer)
            assert self.rule == timer.rule
            assert self.session.wake_at_ms is not None
            assert self.session.wake_at_ms <= max(self.now_ms, timer.due_at_ms)


def test_a_slot_is_one_run_in_any_conversation() -> None:
    """Whatever the order of looks, calls, starts and time, each slot runs once, and those that are promised do run."""
    run_state_machine_as_test(Slots, settings=settings(max_examples=300, stateful_step_count=30))
