"""Every conversation that a delivery can have, whole and broken off, keeps the laws of the wire."""

import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import product
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2core.delivery import (
    Append,
    Busy,
    DeliveryRules,
    Drain,
    DrainAnswer,
    Ended,
    Head,
    JoinArm,
    Publish,
    ReadBody,
    Respond,
    Stalled,
    Step,
    Verify,
    begin_delivery,
    drive,
    successor_due_at_ms,
)
from a2core.publish import PublishRequest, PublishRules
from a2core.reasons import ANSWERS, Reason
from a2core.slots import DrainTimings
from a2core.tasks import (
    MAX_GENERATION,
    AppendTask,
    DrainTask,
    Hop,
    Message,
    Outage,
    Task,
    encode_message,
    parse_message,
)
from a2core.urls import Callback

NOW_MS = 1_700_000_031_234
DUE_MS = 1_700_000_030_000
WEEK_MS = 7 * 86_400_000
SECRET = "s3cret"
PUBLISHING = PublishRules(
    Callback("https://app.example.com/api/a2/scheduler"), (("x-bypass", SECRET),), longest_delay_ms=WEEK_MS
)
ROOMY = DeliveryRules(PUBLISHING, frozenset({"orders"}))
CRAMPED = DeliveryRules(PublishRules(PUBLISHING.callback, max_body_bytes=1), frozenset({"orders"}))
GENUINE = Head("POST", SECRET, oidc_token=SECRET)


def drain(contract: str = "orders", due_at_ms: float = DUE_MS) -> DrainTask:
    return DrainTask(contract, "s-1", due_at_ms)


def append(contract: str = "orders", due_at_ms: float = DUE_MS) -> AppendTask:
    return AppendTask("t-1", contract, "s-1", due_at_ms, ({"id": "e-1", "type": "order", "payload": SECRET},))


MESSAGES = {
    "drain": Message(drain()),
    "drain of an outage": Message(drain(), Outage(3, 1_699_999_000_000)),
    "drain at its last": Message(drain(), Outage(MAX_GENERATION, 0)),
    "drain between seconds": Message(drain(due_at_ms=DUE_MS + 0.5)),
    "append": Message(append()),
    "append of an outage": Message(append(), Outage(3, None)),
    "last hop": Message(append(due_at_ms=NOW_MS + 60_000), Hop(4)),
    "early hop": Message(append(due_at_ms=NOW_MS + 3 * WEEK_MS), Hop(4)),
    "foreign drain": Message(drain("billing")),
    "foreign append": Message(append("billing")),
    "foreign hop": Message(append("billing"), Hop(4)),
}
BODIES = {"malformed": b'{"version":1,"secret":"s3cret"', "empty": b""} | {
    name: encode_message(message).encode() for name, message in MESSAGES.items()
}
HEADS = [
    Head(method, signature, content_length=length)
    for method, signature, length in product(("POST", "GET"), (None, "", SECRET), (None, "99999999"))
]

Answer: TypeAlias = "bytes | bool | DrainAnswer | None"


@dataclass(frozen=True)
class Conversation:
    """One way that a delivery can go: the head, each question with its answer, and the end."""

    rules: DeliveryRules
    head: Head
    turns: tuple[tuple[Step, Answer], ...]
    end: Respond

    @property
    def status(self) -> int:
        return ANSWERS[self.end.reason].status

    def answers_of(self, *kinds: type) -> list[Answer]:
        return [answer for step, answer in self.turns if isinstance(step, kinds)]

    @property
    def last(self) -> tuple[type, Answer]:
        step, answer = self.turns[-1]
        return type(step), answer


def answers(step: Step) -> tuple[Answer, ...]:
    """Every answer to a step's question."""
    match step:
        case ReadBody():
            return (None, *BODIES.values())
        case Append():
            return tuple(Ended)
        case Drain():
            retries = (None, 0, NOW_MS, NOW_MS + 5_000, NOW_MS + 3 * WEEK_MS)
            return (*Ended, Busy(arming=True), *[kind(retry_at_ms=at) for kind in (Busy, Stalled) for at in retries])
        case Verify() | Publish() | JoinArm():
            return (True, False)
        case Respond():
            return ()


def answered(step: Step, answer: Any, now_ms: int) -> Step:
    """The step that follows an answer."""
    match step:
        case ReadBody():
            return step.received(answer)
        case Verify():
            return step.answered(answer, now_ms)
        case Append() | Drain():
            return step.ended(answer, now_ms)
        case Publish() | JoinArm():
            return step.confirmed(answer)
        case Respond():
            raise AssertionError("a response asks nothing")


def walk(step: Step, turns: tuple[tuple[Step, Answer], ...], now_ms: int) -> Iterator[tuple[Any, Respond]]:
    """Every way on from a step."""
    if isinstance(step, Respond):
        yield turns, step
    for answer in answers(step):
        yield from walk(answered(step, answer, now_ms), (*turns, (step, answer)), now_ms + 100)


@cache
def conversations() -> tuple[Conversation, ...]:
    return tuple(told for rules, head in product((ROOMY, CRAMPED), HEADS) for told in conversations_of(rules, head))


def conversations_of(rules: DeliveryRules, head: Head) -> Iterator[Conversation]:
    for turns, end in walk(begin_delivery(rules, head), (), NOW_MS):
        yield Conversation(rules, head, turns, end)


def cause(told: Conversation) -> Reason:
    """Why a conversation ends as it does, told from its questions and answers alone."""
    head, [body] = told.head, told.answers_of(ReadBody) or [b""]
    contract = next((MESSAGES[name].task.contract for name in MESSAGES if BODIES[name] == body), None)
    is_hop = isinstance(body, bytes) and b"_a2Hop" in body
    checks = (
        (head.method != "POST", Reason.WRONG_METHOD),
        (not head.signature, Reason.UNSIGNED),
        (head.content_length is not None or body is None, Reason.TOO_LARGE),
        (told.answers_of(Verify) == [False], Reason.FORGED),
        (contract is None, Reason.MALFORMED),
        (contract == "billing" and not is_hop, Reason.UNKNOWN_CONTRACT),
        (Ended.FAILED in told.answers_of(Append, Drain), Reason.FAILED),
        (told.answers_of(Append, Drain) == [Ended.DONE], Reason.OK),
        (told.answers_of(Publish, JoinArm) == [True], Reason.OK),
    )
    return next((reason for holds, reason in checks if holds), Reason.NOT_PUBLISHED)


def test_there_are_only_so_many_conversations() -> None:
    """The machine is finite, and every step, answer and reason is met."""
    print(f"{len(conversations())} conversations")  # noqa: T201 - how many there are
    assert 245 == len(conversations())
    assert set(Reason) == {told.end.reason for told in conversations()}
    steps = {type(step) for told in conversations() for step, _ in told.turns}
    assert {ReadBody, Verify, Append, Drain, Publish, JoinArm} == steps


def test_every_end_has_one_cause_and_one_status() -> None:
    """The same cause always ends the same way: a refusal has exactly one status."""
    for told in conversations():
        assert cause(told) is told.end.reason
    ends = {(told.end.reason, told.status) for told in conversations()}
    assert len(Reason) == len(ends)


def test_nothing_is_read_without_a_signature() -> None:
    """Without a signature header, or with a length above the limit, the body is not asked for."""
    for told in conversations():
        is_read = bool(told.answers_of(ReadBody))
        assert is_read == (
            told.head.method == "POST" and told.head.signature == SECRET and not told.head.content_length
        )


def test_nothing_is_parsed_before_the_signature_holds() -> None:
    """No task is in any step before a verification that held, and a body that is forged ends alike whatever it is."""
    for told in conversations():
        for index, (step, _) in enumerate(told.turns):
            if isinstance(step, Append | Drain | Publish | JoinArm):
                assert [True] == [answer for earlier, answer in told.turns[:index] if isinstance(earlier, Verify)]
        if told.answers_of(Verify) == [False]:
            assert (Verify, False) == told.last
            assert Reason.FORGED is told.end.reason


def test_a_successor_is_published_before_the_acknowledgement() -> None:
    """A 2xx comes straight after the work was done, or after its successor was accepted."""
    for told in conversations():
        if told.status < 300:
            assert told.last in {(Append, Ended.DONE), (Drain, Ended.DONE), (Publish, True), (JoinArm, True)}


def test_work_is_never_acknowledged_without_a_successor() -> None:
    """Unsettled work, and a hop, are acknowledged only once a message that carries them on is accepted."""
    for told in conversations():
        worked = told.answers_of(Append, Drain)
        is_settled = worked == [Ended.DONE]
        is_carried_on = told.answers_of(Publish, JoinArm) == [True]
        assert (told.status < 300) == (is_settled or is_carried_on)
        assert not (is_settled and told.answers_of(Publish, JoinArm))


def test_a_failed_publish_is_never_acknowledged() -> None:
    """The provider keeps what it delivered, and tries again."""
    refused = [told for told in conversations() if told.answers_of(Publish, JoinArm) == [False]]
    assert {(503, False)} == {(told.status, ANSWERS[told.end.reason].nonretryable) for told in refused}


def test_a_successor_that_does_not_fit_is_one_that_was_not_published() -> None:
    """Under a limit that nothing fits, no message is asked of the provider, and none is acknowledged unsettled."""
    cramped = [told for told in conversations() if told.rules is CRAMPED]
    assert [] == [told for told in cramped if told.answers_of(Publish)]
    assert Reason.NOT_PUBLISHED in {told.end.reason for told in cramped}


def test_a_successor_is_later_than_what_it_succeeds() -> None:
    """A provider folds equal ids: a successor has another name, and a drain's is due a second later at least."""
    for told in conversations():
        for step, _ in told.turns:
            if not isinstance(step, Publish):
                continue
            work = next((step for step, _ in told.turns if isinstance(step, Append | Drain)), None)
            message = parse_message(step.request.body.encode())
            assert message is not None
            if isinstance(work, Drain):
                assert isinstance(message.task, DrainTask)
                assert message.task.due_at_ms >= work.task.due_at_ms // 1_000 * 1_000 + 1_000
            elif work is None:
                assert message.private in {None, Hop(5)}


@dataclass
class Replay:
    """A host that answers as a conversation went."""

    told: Conversation
    turn: int = 0

    def now_ms(self) -> int:
        return NOW_MS + 100 * (self.turn - 1)

    def _next(self, question: object) -> Any:
        step, answer = self.told.turns[self.turn]
        assert question == step
        self.turn += 1
        return answer

    def read_body(self, max_bytes: int) -> bytes | None:
        step, _ = self.told.turns[self.turn]
        assert isinstance(step, ReadBody)
        assert max_bytes == step.max_bytes == self.told.rules.publish.max_body_bytes
        answer: bytes | None = self._next(step)
        return answer

    def verify(self, step: Verify) -> bool:
        assert SECRET == step.signature
        return bool(self._next(step))

    def append(self, step: Append) -> Ended:
        return Ended(self._next(step))

    def drain(self, step: Drain) -> DrainAnswer:
        answer: DrainAnswer = self._next(step)
        return answer

    def publish(self, request: PublishRequest) -> bool:
        return bool(self._next(Publish(request)))

    def join_arm(self) -> bool:
        return bool(self._next(JoinArm()))


def test_a_driver_has_every_conversation() -> None:
    """The synchronous driver asks the same questions, in the same order, and ends the same way."""
    for told in conversations():
        replay = Replay(told)
        assert told.end == drive(begin_delivery(told.rules, told.head), replay)
        assert len(told.turns) == replay.turn


class Killed(Exception):
    """The process ends here."""


@dataclass
class World:
    """What outlives a process: whether the work is done, and what the provider holds, each id once."""

    told: Conversation
    message: Message
    is_settled: bool = False
    held: dict[str, Task] = field(default_factory=dict)
    touched: int = 0
    now_ms_: int = NOW_MS
    effects: int = 0
    dies_before: int = -1

    def _effect(self) -> None:
        if self.effects == self.dies_before:
            raise Killed
        self.effects += 1

    def _answer(self, kind: type) -> Any:
        [answer] = self.told.answers_of(kind)
        return answer

    def now_ms(self) -> int:
        return self.now_ms_

    def read_body(self, max_bytes: int) -> bytes | None:  # noqa: ARG002 - it answers as it was told
        answer: bytes | None = self._answer(ReadBody)
        return answer

    def verify(self, step: Verify) -> bool:  # noqa: ARG002 - as above
        self._effect()
        return bool(self._answer(Verify))

    def _work(self, answer: Any) -> Any:
        self._effect()
        self.touched += 1
        if answer is Ended.DONE:
            self.is_settled = True
        return answer

    def append(self, step: Append) -> Ended:  # noqa: ARG002 - as above
        return Ended(self._work(self._answer(Append)))

    def drain(self, step: Drain) -> DrainAnswer:  # noqa: ARG002 - as above
        answer: DrainAnswer = self._work(self._answer(Drain))
        return answer

    def publish(self, request: PublishRequest) -> bool:
        self._effect()
        if not self._answer(Publish):
            return False
        message = parse_message(request.body.encode())
        assert message is not None
        self.held.setdefault(request.deduplication_id, message.task)
        return True

    def join_arm(self) -> bool:
        self._effect()
        if self._answer(JoinArm):
            self.held["the drain's own"] = self.message.task
        return bool(self._answer(JoinArm))

    def deliver(self, dies_before: int) -> int | None:
        """The status; None where the process died on the way, or before its answer left."""
        self.effects, self.dies_before = 0, dies_before
        try:
            end = drive(begin_delivery(self.told.rules, self.told.head), self)
            self._effect()
        except Killed:
            return None
        return ANSWERS[end.reason].status


@pytest.mark.parametrize("late_ms", [0, 1, 12_345, 3_600_000])
def test_a_delivery_that_is_killed_anywhere_comes_again(late_ms: int) -> None:
    """Before each effect in turn the process ends, the message comes again, and the same laws hold."""
    killed = 0
    for told in conversations():
        [body] = told.answers_of(ReadBody) or [None]
        message = parse_message(body) if isinstance(body, bytes) else None
        for dies_before in range(len(told.turns) + 1):
            world = World(told, message or Message(drain()))
            if world.deliver(dies_before) is not None:
                continue
            killed += 1
            world.now_ms_ += late_ms
            status = world.deliver(-1)
            assert status is not None
            assert status == told.status
            if status < 300:
                assert world.is_settled or world.held
            if told.answers_of(Verify) != [True]:
                assert (0, {}) == (world.touched, world.held)
            assert_converged(world, told)
    assert 758 == killed


def assert_converged(world: World, told: Conversation) -> None:
    """Twice delivered, an outage's successor and a hop are held once, and every wake-up is on the message's series."""
    work = told.answers_of(Append, Drain)
    if work in ([Ended.UNAVAILABLE], []):
        assert len(world.held) <= 1
    for task in world.held.values():
        assert (task.contract, task.session_id) == (world.message.task.contract, world.message.task.session_id)
        if work == [Busy()] and world.message.task.due_at_ms == DUE_MS:
            assert 0 == (task.due_at_ms - DUE_MS) % 10_000
        if isinstance(task, DrainTask) and told.answers_of(Publish):
            assert task.due_at_ms >= DUE_MS + 1_000


def test_no_step_prints_a_secret() -> None:
    """Neither the signature, a token, a body, nor a header's value is in the text of any step."""
    place = Callback("https://b.example.com/", is_preview=True)
    preview = DeliveryRules(PublishRules(place, (("x", SECRET),)), frozenset({"orders"}))
    token = f"{SECRET}.eyJleHAiOjE4MDAwMDAwMDB9.{SECRET}"
    previewed = list(conversations_of(preview, Head("POST", SECRET, oidc_token=token)))
    published = [step for told in previewed for step, _ in told.turns if isinstance(step, Publish)]
    assert all("x-vercel-trusted-oidc-idp-token" in step.request.redact for step in published)
    for told in (*conversations(), *previewed):
        assert SECRET not in repr([step for step, _ in told.turns])


def test_every_step_is_a_value() -> None:
    """A step compares by what it holds, and can be written down and read back in another process."""
    for told in conversations():
        for step in (*(step for step, _ in told.turns), told.end):
            copy = pickle.loads(pickle.dumps(step))  # noqa: S301 - our own
            assert step == copy
            assert step is not copy


def publish_of(step: Step) -> PublishRequest:
    assert isinstance(step, Publish)
    return step.request


def drain_step(due_at_ms: float = DUE_MS, outage: Outage | None = None) -> Drain:
    begun = begin_delivery(ROOMY, GENUINE)
    assert isinstance(begun, ReadBody)
    step = begun.context.begin_task(Message(drain(due_at_ms=due_at_ms), outage), NOW_MS)
    assert isinstance(step, Drain)
    return step


@pytest.mark.parametrize(
    ("answer", "due_at_ms"),
    [
        pytest.param(Busy(), 1_700_000_070_000, id="busy"),
        pytest.param(Busy(retry_at_ms=NOW_MS + 5_000), 1_700_000_037_000, id="busy-retry-ahead"),
        pytest.param(Busy(retry_at_ms=0), 1_700_000_031_000, id="busy-retry-long-due"),
        pytest.param(Busy(retry_at_ms=NOW_MS + 50_000), 1_700_000_070_000, id="busy-retry-past-the-claims"),
        pytest.param(Stalled(), 1_700_000_070_000, id="stalled"),
        pytest.param(Stalled(NOW_MS + 5_000), 1_700_000_037_000, id="retry-ahead"),
        pytest.param(Stalled(NOW_MS - 5_000), 1_700_000_031_000, id="retry-due"),
        pytest.param(Stalled(0), 1_700_000_031_000, id="retry-long-due"),
        pytest.param(Stalled(NOW_MS + WEEK_MS - 500), 1_700_604_831_000, id="retry-in-reach"),
        pytest.param(Stalled(NOW_MS + WEEK_MS + 1_000), 1_700_604_771_000, id="retry-beyond-reach"),
    ],
)
def test_an_unsettled_drain_is_tried_again(answer: DrainAnswer, due_at_ms: int) -> None:
    """A stalled drain looks again when its work may run, a busy one past the claims; each a second later at least.

    Work that may run before those claims end does not wait for them.
    """
    message = parse_message(publish_of(drain_step().ended(answer, NOW_MS)).body.encode())
    assert Message(drain(due_at_ms=due_at_ms)) == message


@pytest.mark.parametrize("answer", [Busy(), Stalled(), Stalled(0)], ids=["busy", "stalled", "retry"])
def test_a_due_time_at_the_end_of_all_numbers_is_not_lost(answer: DrainAnswer) -> None:
    """A successor that no number can name is one that was not published; nothing raises."""
    step = drain_step(2**1024 - 2**970 - 1)
    assert Respond(Reason.NOT_PUBLISHED) == step.ended(answer, NOW_MS)


def test_a_drain_that_is_tried_at_once_has_another_name() -> None:
    """A retry that is due in the second of the delivered message is a later message, or the provider folds it away."""
    step = drain_step(1_700_000_031_000)
    message = parse_message(publish_of(step.ended(Stalled(0), 1_700_000_031_999)).body.encode())
    assert Message(drain(due_at_ms=1_700_000_032_000)) == message


def test_a_long_drain_publishes_by_the_later_clock() -> None:
    """The watchdog is set before the drain, and published after it: once it is past, it goes out at once."""
    step = drain_step()
    assert 1_700_000_070_000 == step.watchdog_due_at_ms
    request = publish_of(step.ended(Stalled(), 1_700_000_099_999))
    assert (None, Message(drain(due_at_ms=1_700_000_099_000))) == (
        request.not_before_s,
        parse_message(request.body.encode()),
    )


def test_a_lineage_goes_on_only_while_the_store_is_away() -> None:
    """A drain of an outage that only stalls is succeeded by a plain one."""
    step = drain_step(outage=Outage(2, 0))
    for answer, private in ((Stalled(), None), (Ended.UNAVAILABLE, Outage(3, 0))):
        message = parse_message(publish_of(step.ended(answer, NOW_MS)).body.encode())
        assert message is not None
        assert private == message.private


TIMINGS = st.builds(
    lambda beat, spare, grace: DrainTimings(2 * beat + spare, beat, grace),
    st.integers(1, 60_000),
    st.integers(0, 60_000),
    st.integers(0, 60_000),
)


@given(TIMINGS, st.integers(-(10**13), 10**13), st.integers(-(10**8), 10**8))
def test_a_successor_stays_on_its_messages_series(timings: DrainTimings, due_at_ms: int, late_ms: int) -> None:
    """A watchdog is the first heartbeat of its message's own series past the claim window, or the very next one."""
    now_ms = due_at_ms + late_ms
    successor = successor_due_at_ms(drain(due_at_ms=due_at_ms), now_ms, timings)
    beats, rest = divmod(successor - due_at_ms, timings.heartbeat_ms)
    assert 0 == rest
    assert 1 <= beats
    assert successor >= now_ms + timings.window_ms
    assert 1 == beats or successor - timings.heartbeat_ms < now_ms + timings.window_ms


@given(st.integers(0, 10**13), st.floats(0, 10**13), st.integers(0, 10**8))
def test_busy_deliveries_never_start_a_second_stream(due_at_ms: int, fraction: float, late_ms: int) -> None:
    """Each successor of a successor is on the series of the first message, however late each delivery was."""
    task, now_ms = drain(due_at_ms=due_at_ms // 1_000 * 1_000), due_at_ms + int(fraction) % 10**6
    for _ in range(5):
        due = successor_due_at_ms(task, now_ms, DrainTimings())
        assert 0 == (due - due_at_ms // 1_000 * 1_000) % 10_000
        task, now_ms = drain(due_at_ms=due), int(due) + late_ms


@given(st.binary(max_size=200) | st.sampled_from(list(BODIES.values())).map(partial(bytes.replace, *(b'"', b"'"))))
def test_no_body_raises(body: bytes) -> None:
    """Whatever a genuine body is, it begins a task or is refused."""
    begun = begin_delivery(ROOMY, GENUINE)
    assert isinstance(begun, ReadBody)
    step = begun.received(body)
    assert isinstance(step, Verify)
    assert isinstance(step.answered(genuine=True, now_ms=NOW_MS), Append | Drain | Publish | Respond)
