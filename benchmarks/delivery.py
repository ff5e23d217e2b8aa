"""What does a signed delivery cost: its signature, its refusal, the whole of it, and its machine?"""

import hmac
import json
import sys
from asyncio import Runner
from base64 import urlsafe_b64encode
from collections.abc import Collection, Iterable, Iterator
from functools import partial
from hashlib import sha256
from time import perf_counter, time
from typing import Any, cast

from a2asgi import A2, A2Middleware, MemoryStore, QStash, QStashVerifier
from a2asgi.driver import drive
from a2asgi.ports import Answer, Decide, SessionKey, Wakes
from a2core import (
    Append,
    Callback,
    DeliveryRules,
    Drain,
    DrainAnswer,
    DrainTask,
    Ended,
    Head,
    Message,
    Needs,
    PublishRequest,
    PublishRules,
    Reason,
    Snapshot,
    Verify,
    begin_delivery,
    encode_message,
    parse_message,
)
from benchmarks.harness import (
    NOT_INSTALLED,
    Effort,
    Goal,
    Row,
    Sample,
    at_least,
    at_most,
    difference,
    effort_of,
    interleave,
    parser,
    per_await,
    per_call,
    ratio,
    show,
    span,
    stay_on_one_core,
)

try:
    from qstash import Receiver
    from qstash.errors import SignatureError
except ModuleNotFoundError:
    Receiver = None  # type: ignore[misc,assignment]

URL = "https://example.com/api/a2/scheduler"
CURRENT = "sig_7kYjw48mhY7kAjqNGcy6cr29RJ6r"
NEXT = "sig_5ZB6DVzB1wjE8S6rZ7eenA8Pdnhs"
FLOOR = "one HMAC + one SHA-256"
OFFICIAL = "official receiver (qstash)"
BODY_GOALS = {200: at_most(3.5), 65_536: at_most(1.2)}


def provider() -> QStash:
    """The scheduler that calls back with such signatures."""
    return QStash(url=URL, token="t", current_signing_key=CURRENT, next_signing_key=NEXT, environment={})


def token(body: bytes, key: str = CURRENT) -> str:
    """A signature as QStash makes it, with the claims that it sends."""
    digest = urlsafe_b64encode(sha256(body).digest()).decode()
    now_s = int(time())
    claims = {"iss": "Upstash", "sub": URL, "exp": now_s + 86_400, "nbf": 0, "iat": now_s, "jti": "jwt_67kxXD6UBAk7D"}
    parts = [
        json.dumps(part, separators=(",", ":")) for part in ({"alg": "HS256", "typ": "JWT"}, claims | {"body": digest})
    ]
    signed = b".".join(urlsafe_b64encode(part.encode()).rstrip(b"=") for part in parts)
    mac = hmac.digest(key.encode(), signed, "sha256")
    return (signed + b"." + urlsafe_b64encode(mac).rstrip(b"=")).decode()


def verifying(effort: Effort, body_bytes: int) -> Iterator[Row]:
    """A signature that holds, over a body of this length."""
    body = b"x" * body_bytes
    signature = token(body)
    signed, _, _ = signature.encode().rpartition(b".")
    key = CURRENT.encode()
    verifier = QStashVerifier(CURRENT, NEXT)

    def floor() -> None:
        hmac.digest(key, signed, "sha256")
        sha256(body).digest()

    def ours() -> None:
        assert verifier.verify(signature, body, URL).refusal is None

    calls = effort.of(max(100, 4_000_000 // (1_000 + body_bytes)))
    variants: dict[str, Sample] = {"floor": per_call(floor, calls), "ours": per_call(ours, calls)}
    if Receiver is not None:
        receiver, text = Receiver(CURRENT, NEXT), body.decode()
        official = partial(receiver.verify, body=text, signature=signature, url=URL)
        variants["official"] = per_call(official, calls)
    found = interleave(variants, effort.rounds)
    size = f"{body_bytes} B" if body_bytes < 1_024 else f"{body_bytes / 1_024:g} KiB"
    path = f"verify a QStash signature, {size}"
    yield Row(
        path, FLOOR, ratio(found["ours"], found["floor"]), BODY_GOALS.get(body_bytes), detail=_pair(found, "floor")
    )
    yield _faster(path, found, at_least(4.5) if body_bytes == 200 else None)


def refusing(effort: Effort) -> Iterator[Row]:
    """A signature of somebody else's key."""
    body = b"x" * 200
    forged = token(body, "sig_of_somebody_who_has_no_key")
    verifier = QStashVerifier(CURRENT, NEXT)

    def ours() -> None:
        assert verifier.verify(forged, body, URL).refusal is not None

    variants: dict[str, Sample] = {"ours": per_call(ours, effort.of(3_000))}
    if Receiver is not None:
        receiver, text = Receiver(CURRENT, NEXT), body.decode()

        def official() -> None:
            try:
                receiver.verify(body=text, signature=forged, url=URL)
            except SignatureError:
                return
            raise AssertionError("a forged token was accepted")

        variants["official"] = per_call(official, effort.of(3_000))
    yield _faster("refuse a forged signature", interleave(variants, effort.rounds), at_least(10))


def _faster(path: str, found: dict[str, list[float]], goal: Goal | None) -> Row:
    if "official" not in found:
        return Row(path, OFFICIAL, None, goal, detail=NOT_INSTALLED)
    return Row(path, OFFICIAL, ratio(found["official"], found["ours"]), goal, detail=_pair(found, "official"))


def _pair(found: dict[str, list[float]], other: str) -> str:
    return f"{span(found['ours'])} / {span(found[other])}"


class StubStore(MemoryStore):
    """A store without sessions, which loads and writes nothing: what is left is what is not a store."""

    async def transact(self, key: SessionKey, needs: Needs, decide: Decide[Answer]) -> Answer:
        """As Store.transact."""
        del key, needs
        return decide(Snapshot(), self._clock.now_ms()).answer

    async def claim_wakes(self, contracts: Collection[str], *, limit: int, lease_ms: int, late_ms: int = 0) -> Wakes:
        """As Store.claim_wakes."""
        del contracts, limit, lease_ms, late_ms
        return Wakes((), None)

    async def purge(self, limit: int) -> int:
        """As Store.purge."""
        del limit
        return 0


DRAIN = encode_message(Message(DrainTask("orders", "order-1001", 1_700_000_000_000))).encode()


def whole(effort: Effort) -> Iterator[Row]:
    """A delivery from the ASGI call to its answer: bounded read, verify, parse, drain of a settled session."""
    a2 = A2(store=StubStore(), scheduler=provider())
    a2.contract("orders")
    app = A2Middleware(_bare, a2)
    signature = token(DRAIN)
    headers = [(b"content-type", b"application/json"), (b"upstash-signature", signature.encode())]
    scope = {"type": "http", "method": "POST", "path": "/api/a2/scheduler", "headers": headers}
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": DRAIN, "more_body": False}

    async def send(message: Any) -> None:
        if "status" in message:
            statuses.append(message["status"])

    async def deliver(calls: int) -> float:
        started = perf_counter()
        for _ in range(calls):
            await app(scope, receive, send)
        return (perf_counter() - started) / calls

    calls = effort.of(2_000)
    with Runner() as runner:
        variants: dict[str, Sample] = {"ours": lambda: runner.run(deliver(calls))}
        if Receiver is not None:
            official = partial(Receiver(CURRENT, NEXT).verify, body=DRAIN.decode(), signature=signature, url=URL)
            variants["official"] = per_call(official, calls)
        found = interleave(variants, effort.rounds)
    assert {200} == set(statuses)
    path, against, goal = "a whole delivery in process", f"its signature check alone, {OFFICIAL}", at_most(1)
    if "official" not in found:
        yield Row(path, against, None, goal, detail=NOT_INSTALLED)
        return
    yield Row(path, against, ratio(found["ours"], found["official"]), goal, detail=_pair(found, "official"))


async def _bare(scope: Any, receive: Any, send: Any) -> None:
    """No delivery is the app's."""


class NoPorts:
    """A world that answers at once: what is left is the machine."""

    def now_ms(self) -> int:
        """As Ports."""
        return 1_700_000_001_000

    async def read_body(self, max_bytes: int) -> bytes | None:
        """As Ports."""
        del max_bytes
        return DRAIN

    async def verify(self, step: Verify | None) -> bool:
        """As Ports."""
        del step
        return True

    async def append(self, step: Append) -> Ended:
        """As Ports."""
        raise AssertionError(step)

    async def drain(self, step: Drain | None) -> DrainAnswer:
        """As Ports."""
        del step
        return Ended.DONE

    async def publish(self, request: PublishRequest) -> bool:
        """As Ports."""
        raise AssertionError(request)

    async def join_arm(self) -> bool:
        """As Ports."""
        raise AssertionError


RULES = DeliveryRules(PublishRules(Callback(URL, is_development=False)), frozenset({"orders"}))
HEAD = Head("POST", "e30.e30.e30", content_length=str(len(DRAIN)))


async def by_machine() -> None:
    """One delivery, by the steps of the core."""
    end = await drive(begin_delivery(RULES, HEAD), NoPorts())
    assert end.reason is Reason.OK


async def by_hand() -> None:
    """The same questions to the same world and the same parsing, called one after another."""
    ports = NoPorts()
    body = await ports.read_body(RULES.publish.max_body_bytes)
    assert body is not None
    assert await ports.verify(None)
    ports.now_ms()
    message = parse_message(body)
    assert message is not None
    assert message.task.contract in RULES.contracts
    answer = await ports.drain(None)
    ports.now_ms()
    assert answer is Ended.DONE


def machine(effort: Effort) -> Iterator[Row]:
    """What the steps cost beside direct calls."""
    calls = effort.of(20_000)
    variants = {"machine": per_await(by_machine, calls), "hand": per_await(by_hand, calls)}
    found = interleave(variants, effort.rounds)
    more = difference([one * 1e6 for one in found["machine"]], [one * 1e6 for one in found["hand"]])
    detail = f"{span(found['machine'])} / {span(found['hand'])}"
    yield Row("the delivery machine", "direct calls", more, at_most(3), "µs", detail)


def rows(effort: Effort, body_sizes: Iterable[int] = tuple(BODY_GOALS)) -> Iterator[Row]:
    """All of it."""
    stay_on_one_core()
    for size in body_sizes:
        yield from verifying(effort, size)
    yield from refusing(effort)
    yield from whole(effort)
    yield from machine(effort)


if __name__ == "__main__":
    options_parser = parser(__doc__)
    options_parser.add_argument("--body", type=int, action="append", help="bytes of the signed body (200 and 65536)")
    options = options_parser.parse_args()
    sizes = cast("list[int]", options.body) or list(BODY_GOALS)
    sys.exit(show(partial(rows, body_sizes=sizes), effort_of(options), as_json=options.json))
