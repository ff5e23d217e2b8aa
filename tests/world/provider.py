"""The provider of a world: it takes messages, and delivers each at least once, whatever else it does."""

from collections.abc import MutableMapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from a2asgi.ports import SessionKey
from a2core import AppendTask, DrainTask, Task, encode_message, parse_message
from a2core import Message as Carried
from tests.world.laws import Law
from tests.world.process import Process
from tests.world.scenario import Fault

if TYPE_CHECKING:
    from tests.world.world import World

DEDUPLICATION_MS = 600_000
RETRIES = 5


@dataclass(frozen=True, slots=True)
class Reply:
    """What the provider answers."""

    status_code: int
    text: str = ""


@dataclass(eq=False, slots=True)
class Message:
    """One message that was taken."""

    number: int
    body: str
    task: Task
    tries: int = 0
    duplicate: bool = False


class Provider:
    """Carries messages until they are due, on the time of the world."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.waiting: dict[Message, None] = {}
        self.taken_for: dict[SessionKey, int] = {}
        self._seen: dict[str, tuple[int, Message]] = {}
        self._lost: set[Message] = set()
        self._taken = 0

    def carrier(self, process: Process) -> "Carrier":
        """A process's way to this provider."""
        return Carrier(self, process)

    def take(self, body: str, deduplication_id: str, not_before_ms: int) -> None:
        """Accept a message, once for each deduplication id for a while."""
        world = self.world
        since_ms, known = self._seen.get(deduplication_id, (0, None))
        if known is not None and world.now_ms() - since_ms < DEDUPLICATION_MS:
            self._taken += 1
            if known in self.waiting or known in self._lost:  # else it was delivered: this one is folded for nothing
                self.taken_for[SessionKey(known.task.contract, known.task.session_id)] = self._taken
            return
        message = parse_message(body.encode())
        if message is None:
            world.laws.broken(Law.BUG, f"nobody could read {body}")
            return
        self._taken += 1
        taken = Message(self._taken, body, message.task)
        self._seen[deduplication_id] = world.now_ms(), taken
        world.note("provider", "takes", taken.number, body)
        self.taken_for[SessionKey(taken.task.contract, taken.task.session_id)] = taken.number
        if isinstance(taken.task, DrainTask) and world.strikes(Fault.LOSS, 0.2):
            world.note("provider", "loses", taken.number)
            self._lost.add(taken)
            return
        self._later(taken, max(0, not_before_ms - world.now_ms()))

    def visit(self) -> None:
        """Take a wake-up of a session in which nothing is to be done."""
        task = DrainTask("orders", "visitor", self.world.now_ms())
        self.take(encode_message(Carried(task)), f"visit {task.due_at_ms}", 0)

    def _later(self, message: Message, in_ms: int) -> None:
        self.waiting[message] = None
        if self.world.strikes(Fault.DELAY, 0.3):
            in_ms += self.world.chance.randint(1, 120_000)
        self.world.loop.call_later(in_ms / 1_000, self._deliver, message)

    def _deliver(self, message: Message) -> None:
        process = self.world.some_process()
        message.tries += 1
        if process is None or self.world.provider_is_away():
            self._again(message)
            return
        self.world.note("provider", "delivers", message.number, "to", process)
        process.request(partial(self._call, process, message))
        if not message.duplicate and self.world.strikes(Fault.DUPLICATE, 0.15):
            self._copy(message, self.world.chance.randint(0, 2_000))

    def _copy(self, message: Message, in_ms: int) -> None:
        copy = Message(message.number, message.body, message.task, duplicate=True)
        self.waiting[copy] = None
        self.world.loop.call_later(in_ms / 1_000, self._deliver, copy)

    async def _call(self, process: Process, message: Message) -> None:
        """Call a process back, as over HTTP."""
        status = 0
        begun = self._taken, self.world.now_ms()
        body = message.body.encode()

        async def receive() -> MutableMapping[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(event: MutableMapping[str, Any]) -> None:
            nonlocal status
            if event["type"] == "http.response.start":
                process.check()
                status = event["status"]
                self._answered(process, message, status, *begun)

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/api/a2/scheduler",
            "headers": [(b"upstash-signature", b"genuine"), (b"content-length", str(len(body)).encode())],
        }
        try:
            await self.world.middleware(process)(scope, receive, send)
        finally:
            if not status:
                self._again(message)

    def _answered(self, process: Process, message: Message, status: int, taken: int, begun_ms: int) -> None:
        world = self.world
        world.note("provider", "is answered", message.number, status)
        if status >= 300:
            self._again(message)
            return
        self.waiting.pop(message, None)
        if isinstance(message.task, AppendTask):
            self._check_carried(process, message.task)
        else:
            self._check_succeeded(process, message, taken, begun_ms)
        if not message.duplicate and world.strikes(Fault.REPLAY, 0.1):
            self._copy(message, world.chance.randint(3_600_000, 14_400_000))

    def _check_carried(self, process: Process, task: AppendTask) -> None:
        laws = self.world.laws
        key = SessionKey(task.contract, task.session_id)
        ids = [event["id"] for event in task.events if isinstance(event, dict)]
        goes_on = any(isinstance(one.task, AppendTask) and one.task.id == task.id for one in self.waiting)
        if not goes_on and any(id_ not in laws.book(key).seqs and (key, id_) not in laws.forgone for id_ in ids):
            laws.broken(Law.ANSWER, f"{process} acknowledged timer {task.id} of {key}, which is nowhere")

    def _check_succeeded(self, process: Process, message: Message, taken: int, begun_ms: int) -> None:
        """A wake-up is acknowledged only once nothing is left to do, or the next one is on its way.

        It would be, if what came of an earlier delivery of this message is what the provider lost.
        """
        key = SessionKey(message.task.contract, message.task.session_id)
        onward = [*self.waiting, *(one for one in self._lost if one.number > message.number)]
        goes_on = self.taken_for.get(key, 0) > taken or any(
            isinstance(one.task, DrainTask) and SessionKey(one.task.contract, one.task.session_id) == key
            for one in onward
        )
        if not goes_on and self.world.laws.is_answerable(key, begun_ms):
            self.world.laws.broken(Law.ANSWER, f"{process} acknowledged a wake-up of {key}, and no other is on its way")

    def _again(self, message: Message) -> None:
        """It was not acknowledged: deliver it again, a little later each time."""
        if message.tries > RETRIES and isinstance(message.task, DrainTask) and self.world.has(Fault.LOSS):
            self.waiting.pop(message, None)
            self._lost.add(message)
            return
        self.waiting[message] = None
        self.world.loop.call_later(min(60, 2**message.tries), self._deliver, message)


class Carrier:
    """One process's way to the provider, along which anything may happen."""

    def __init__(self, provider: Provider, process: Process) -> None:
        self._provider = provider
        self._process = process

    async def post(self, body: bytes, headers: dict[str, str]) -> Reply:
        """Publish a message."""
        process, world = self._process, self._provider.world
        await process.reach(400)
        if world.provider_is_away():
            if world.chance.random() < 0.5:
                await process.pause(10_000)
            return Reply(503)
        if process.has(Fault.REFUSED, 0.1):
            return Reply(500)
        not_before_ms = int(headers.get("upstash-not-before", "0")) * 1_000
        self._provider.take(body.decode(), headers["upstash-deduplication-id"], not_before_ms)
        await process.returned(400)
        if process.has(Fault.REFUSED, 0.1):
            return Reply(502)
        return Reply(201)
