"""Contracts: what may be declared, how a payload finds its event and its lane, and what every wiring mistake says."""

import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypedDict

import pytest
from pydantic import BaseModel

from a2asgi import (
    A2,
    A2Error,
    Context,
    Contract,
    Event,
    EventType,
    InvalidName,
    InvalidPayload,
    InvalidTime,
    NewEvent,
    Retry,
    SyncContext,
    UnknownEvent,
    WiringError,
)
from a2core import Backoff, Draft, Ending, EndingKind, Entry, RetryPolicy
from tests.asgi.support import Packed, Placed, Shop


@dataclass(frozen=True)
class Express(Placed):
    """An order of a special kind."""

    hours: int = 1


@dataclass(frozen=True)
class Urgent(Express):
    """One more special still."""


class Reading(TypedDict):
    """A payload whose instances are plain dicts."""

    sensor: str
    value: float


class Model(BaseModel):
    """A payload of pydantic's."""

    sku: str


class ModelPlus(Model):
    """The same with one field more."""

    extra: int = 0


def as_given() -> str:
    """The id of whoever brings none."""
    return "made"


def drafted(contract: Contract, event: object) -> Draft:
    return contract.draft(event, as_given)


async def handle(event: Event[Placed], ctx: Context) -> None:
    """A handler."""


# ── wiring mistakes ──────────────────────────────────────────────────────────────────────

MISTAKES: dict[str, tuple[Callable[[Shop], object], str]] = {
    "contract-twice": (
        lambda shop: shop.a2.contract("orders"),
        r"contract 'orders' is declared twice: import the first one, or give this another name",
    ),
    "event-twice": (
        lambda shop: shop.orders.event("placed")(Reading),
        r"contract 'orders' declares event 'placed' twice: give one of them another name",
    ),
    "event-twice-in-another-form": (
        lambda shop: shop.orders.event("placed", dict),
        r"contract 'orders' declares event 'placed' twice",
    ),
    "handler-of-undeclared-class": (
        lambda shop: shop.orders.on(Reading),
        r"contract 'orders' has no event <class '.*Reading'>: declare it first, @orders\.event",
    ),
    "handler-of-another-contract": (
        lambda shop: shop.orders.on(A2().contract("orders").event("placed", dict)),
        r"contract 'orders' has no event .*: declare it first",
    ),
    "handler-of-unknown-name": (lambda shop: shop.orders.on("lost"), r"has no event 'lost': declare it first"),  # type: ignore[arg-type]
    "handler-of-a-payload": (lambda shop: shop.orders.on(Placed()), r"has no event Placed\(.*: declare it first"),  # type: ignore[arg-type]
    "handler-without-event": (lambda shop: shop.orders.on(handle), r"has no event <function handle .*declare it first"),  # type: ignore[arg-type]
    "second-handler": (
        lambda shop: (shop.orders.on(Placed)(handle), shop.orders.on(Placed)(print)),
        r"event 'placed' of contract 'orders' is handled by .*\.handle already: an event has one handler; call the",
    ),
    "no-timeout": (
        lambda shop: shop.orders.on(Placed, timeout="0s"),
        r"handler of 'placed': expected a positive timeout, got '0s'",
    ),
    "text-for-a-type": (
        lambda shop: shop.orders.event("read", "Reading"),  # type: ignore[call-overload]
        r"'Reading' cannot be a payload type",
    ),
}


@pytest.mark.parametrize(("mistake", "sentence"), MISTAKES.values(), ids=MISTAKES)
def test_a_wiring_mistake_says_what_to_write(mistake: Callable[[Shop], object], sentence: str) -> None:
    """A definition that does not fit is refused where it stands, with a sentence that says what to write."""
    with pytest.raises(WiringError, match=sentence) as refusal:
        mistake(Shop())
    assert (True, "WIRING") == (isinstance(refusal.value, A2Error), refusal.value.code)


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda: None, id="none"),
        pytest.param(lambda _, __, more: more, id="three"),
        pytest.param(lambda *, event: event, id="keyword"),
        pytest.param(lambda _, *, ctx: ctx, id="keyword-context"),
        pytest.param(None, id="no-function"),
        pytest.param("handle", id="name"),
        pytest.param(int, id="builtin"),
    ],
)
def test_a_handler_that_could_not_be_called_is_refused(function: Any) -> None:
    """What takes no event, or more than event and context, is refused with what to write, and is no handler."""
    shop = Shop()
    with pytest.raises(WiringError, match=r"cannot be a handler: expected \(event\) or \(event, context\)"):
        shop.orders.on(Placed)(function)
    assert {} == shop.orders.handlers


@pytest.mark.parametrize("timeout", ["-1s", "soon", 5], ids=ascii)
def test_a_timeout_that_is_no_duration_is_refused(timeout: Any) -> None:
    """A handler's timeout is a duration as any other."""
    with pytest.raises(InvalidTime):
        Shop().orders.on(Placed, timeout=timeout)


@pytest.mark.parametrize(
    "retry",
    [
        Retry(max_failures=0),
        Retry(max_lost=0),
        Retry(base="10m", cap="5m"),
        Retry(factor=0),
        Retry(jitter=1.5),
        Retry(jitter=-0.1),
        Retry(base="soon"),
    ],
    ids=["failures", "lost", "cap-below-base", "factor", "jitter", "negative-jitter", "no-duration"],
)
def test_a_retry_that_makes_no_sense_is_refused(retry: Retry) -> None:
    """Budgets and waits are checked when the handler is declared, and the text says what was expected."""
    with pytest.raises(ValueError, match="expected"):
        Shop().orders.on(Placed, retry=retry)


@pytest.mark.parametrize("name", ["", "a" * 1_025, "a\x00", "\ud83d", 7, None], ids=ascii)
def test_a_name_that_no_store_could_keep_is_refused(name: Any) -> None:
    """Contracts, events, lanes and sessions have names that every store and wire can carry."""
    shop = Shop()
    with pytest.raises(InvalidName, match=r"^contract name: "):
        shop.a2.contract(name)
    with pytest.raises(InvalidName, match=r"^event type: "):
        shop.orders.event(name, dict)
    with pytest.raises(InvalidName, match=r"^lane: "):
        shop.orders.event("read", dict, lane=name)
    with pytest.raises(InvalidName, match=r"^session id: "):
        shop.orders.session(name)


def test_a_refused_declaration_leaves_nothing_behind() -> None:
    """After a mistake the name is still free, and the first declaration still stands."""
    shop = Shop()
    shop.orders.on(Placed)(handle)
    with pytest.raises(InvalidName):
        shop.orders.event("read", dict, lane="")
    with pytest.raises(WiringError):
        shop.orders.on(Placed)(print)
    shop.orders.event("read", dict)
    assert handle is shop.orders.handlers["placed"].function


def test_two_apps_do_not_know_each_other() -> None:
    """There is no global register: another A2 has its own contract of the same name and class."""
    one, other = Shop(), Shop()
    one.orders.on(Placed)(handle)
    assert {} == other.orders.handlers


# ── handlers ─────────────────────────────────────────────────────────────────────────────


class Handlers:
    """Handlers that are no plain functions."""

    async def __call__(self, event: Event[Placed], ctx: Context) -> None: ...

    async def method(self, event: Event[Placed]) -> None: ...

    def plain(self, event: Event[Placed], ctx: SyncContext) -> None: ...


def plain(event: Event[Placed]) -> None: ...


async def prefixed(prefix: str, event: Event[Placed]) -> None: ...


@functools.wraps(plain)
async def async_around_plain(event: Event[Placed]) -> None:
    plain(event)


@functools.wraps(handle)
def plain_around_async(event: Event[Placed], ctx: Context) -> Awaitable[None]:
    return handle(event, ctx)


@pytest.mark.parametrize(
    ("function", "is_async", "takes_context"),
    [
        pytest.param(handle, True, True, id="async"),
        pytest.param(plain, False, False, id="plain"),
        pytest.param(lambda _, ctx: ctx, False, True, id="lambda"),
        pytest.param(lambda *both: both, False, True, id="star"),
        pytest.param(Handlers(), True, True, id="object"),
        pytest.param(Handlers().method, True, False, id="async-method"),
        pytest.param(Handlers().plain, False, True, id="plain-method"),
        pytest.param(functools.partial(prefixed, "a"), True, False, id="partial"),
        pytest.param(plain_around_async, True, True, id="plain-decorator-of-async"),
        pytest.param(async_around_plain, True, False, id="async-decorator-of-plain"),
    ],
)
def test_a_handler_is_recognised(function: Any, is_async: bool, takes_context: bool) -> None:  # noqa: FBT001 - a row
    """How a handler is run is read off what is called: an async one on the loop, another on a thread."""
    shop = Shop()
    assert function is shop.orders.on(Placed)(function)
    handler = shop.orders.handlers["placed"]
    assert (is_async, takes_context) == (handler.is_async, handler.make_context is not None)
    assert handler.name


def test_an_event_is_handled_by_name_class_or_type() -> None:
    """`on` takes the payload's class, or what `event` returned."""
    shop = Shop()
    shop.orders.on(Placed)(handle)
    shop.orders.on(shop.orders.event("read", Reading))(print)
    assert ["placed", "read"] == list(shop.orders.handlers)


def test_the_roster_tells_the_core_what_this_code_knows() -> None:
    """Types with a handler have its policy; the others settle when they are appended."""
    shop = Shop()
    shop.orders.on(Placed, retry=Retry(max_failures=3, max_lost=2, base="2s", cap="1m", factor=3, jitter=0.05))(handle)
    shop.orders.on(Packed)(print)
    roster = shop.orders.roster()
    policy = RetryPolicy(3, 2, Backoff(2_000, 3, 60_000, 5))
    assert {"placed": policy, "packed": RetryPolicy()} == roster.handled
    assert frozenset({"noted"}) == roster.unhandled


# ── payloads find their event ────────────────────────────────────────────────────────────


def test_a_payload_is_an_event_by_its_class() -> None:
    """An instance of a declared class needs nothing else; an id is made where none was given."""
    assert Draft("made", "placed", '{"sku":"tea"}', "main") == drafted(Shop().orders, Placed())


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        pytest.param(NewEvent(Placed("a"), id="e1"), ("e1", "placed"), id="id"),
        pytest.param(NewEvent(Placed("a")), ("made", "placed"), id="nothing"),
        pytest.param(NewEvent({"sku": "a"}, type="placed"), ("made", "placed"), id="dict-by-name"),
        pytest.param(NewEvent({"sku": "a"}, type=Placed), ("made", "placed"), id="dict-by-class"),
    ],
)
def test_a_new_event_says_what_cannot_be_read_off(event: NewEvent[Any], expected: tuple[str, str]) -> None:
    """NewEvent gives the id, the type, or both; what it does not give is found as ever."""
    draft = drafted(Shop().orders, event)
    assert (expected, '{"sku":"a"}') == ((draft.id, draft.type), draft.payload)


def test_a_typed_dict_is_an_event_by_its_type() -> None:
    """A TypedDict's instances are dicts, so the type is named: by class, by EventType, or by calling it."""
    orders = Shop().orders
    read = orders.event("read", Reading)
    orders.event("heard")(Reading)
    reading: Reading = {"sensor": "a", "value": 1.5}
    types = [drafted(orders, NewEvent(reading, type=kind)).type for kind in (read, "read", Reading, "heard")]
    assert ["read", "read", "heard", "heard"] == types
    assert Draft("r1", "read", '{"sensor":"a","value":1.5}', "main") == drafted(orders, read(reading, id="r1"))


def test_an_event_without_payload_is_made_by_its_type() -> None:
    """An event type of None takes None, and is written as null."""
    orders = Shop().orders
    pinged: EventType[None] = orders.event("pinged", None)
    assert Draft("made", "pinged", "null", "main") == drafted(orders, pinged(None))
    with pytest.raises(InvalidPayload):
        drafted(orders, NewEvent({}, type="pinged"))


def test_a_subclass_is_an_event_of_its_nearest_declared_class() -> None:
    """A payload of an undeclared subclass is its parent's event, until the subclass is declared itself."""
    orders = Shop().orders
    assert "placed" == drafted(orders, Urgent()).type
    orders.event("express")(Express)
    assert ["placed", "express", "express"] == [drafted(orders, one()).type for one in (Placed, Express, Urgent)]


def test_a_subclass_of_a_model_is_read_as_its_parent() -> None:
    """What comes back is the declared class, which is all that a reader knows."""
    orders = Shop().orders
    orders.event("modelled")(Model)
    draft = drafted(orders, ModelPlus(sku="tea", extra=1))
    event = orders.event_of(Entry(draft.id, draft.type, draft.payload, None, 0, 1))
    assert (Model(sku="tea"), Model) == (event.payload, type(event.payload))


@pytest.mark.parametrize(
    "event",
    [
        pytest.param({"sku": "a"}, id="dict"),
        pytest.param(None, id="none"),
        pytest.param("placed", id="text"),
        pytest.param(Placed, id="class"),
        pytest.param(Model(sku="a"), id="undeclared"),
        pytest.param(NewEvent(Model(sku="a"), id="e1"), id="undeclared-with-id"),
        pytest.param(NewEvent({}, type="lost"), id="unknown-name"),
        pytest.param(NewEvent(Placed(), type=Model), id="unknown-class"),
        pytest.param(A2().contract("orders").event("placed", dict)({"sku": "a"}), id="another-contract"),
        pytest.param(NewEvent(NewEvent(Placed())), id="nested"),
    ],
)
def test_an_unknown_event_is_refused(event: object) -> None:
    """What the contract does not declare is refused with what it does declare, and with how to name a plain value."""
    with pytest.raises(UnknownEvent, match=r"expected one of \['noted', 'packed', 'placed'\].*NewEvent\(value, type="):
        drafted(Shop().orders, event)


@pytest.mark.parametrize("event_id", ["", "a" * 1_025, "a\x00", "\ud83d", 7], ids=ascii)
def test_an_event_id_that_no_store_could_keep_is_refused(event_id: Any) -> None:
    """Event ids are names as any other."""
    with pytest.raises(InvalidName, match=r"^event id: "):
        drafted(Shop().orders, NewEvent(Placed(), id=event_id))


def test_an_entry_of_the_log_becomes_an_event() -> None:
    """Reading gives the payload its type, and the instant its zone."""
    ending = Ending(EndingKind.SKIPPED, "old")
    event = Shop().orders.event_of(Entry("e1", "placed", '{"sku":"tea"}', "e0", 1_796_083_200_000, 7, ending))
    assert Placed("tea") == event.payload
    assert ("e1", "placed", "e0", 7, ending) == (event.id, event.type, event.cause, event.seq, event.ending)
    assert "2026-12-01T00:00:00+00:00" == event.created_at.isoformat()


def test_an_entry_of_an_unknown_type_is_plain_json() -> None:
    """B11: what a newer version appended is read as plain JSON, and is no error."""
    assert {"a": [1]} == Shop().orders.event_of(Entry("e1", "later", '{"a":[1]}', None, 0, 1)).payload


# ── lanes ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("lane", "expected"),
    [
        pytest.param("payments", "payments", id="name"),
        pytest.param(lambda reading: reading["sensor"], "a1", id="function"),
        pytest.param(lambda reading: f"{reading['value']:.0f}", "2", id="of-the-validated-payload"),
    ],
)
def test_a_lane_is_named_or_derived(lane: str | Callable[[Any], str], expected: str) -> None:
    """A lane is a name, or a function of the payload as its handler will see it."""
    orders = Shop().orders
    read = orders.event("read", Reading, lane=lane)
    assert expected == drafted(orders, read({"sensor": "a1", "value": 2})).lane


@pytest.mark.parametrize("lane", [None, 7, "", "a" * 1_025, "\x00", "\ud83d"], ids=ascii)
def test_a_lane_function_that_returns_garbage_is_refused_at_append(lane: Any) -> None:
    """Whatever is no name is refused when the event is made, before anything is written."""
    orders = Shop().orders
    read = orders.event("read", dict, lane=lambda _: lane)
    with pytest.raises(InvalidName, match=r"^lane: "):
        drafted(orders, read({}))


def test_a_lane_function_that_raises_is_heard() -> None:
    """What a lane function raises is the caller's own error, and is raised to the caller."""
    orders = Shop().orders
    read = orders.event("read", dict, lane=lambda reading: str(reading["sensor"]))
    with pytest.raises(KeyError, match="sensor"):
        drafted(orders, read({}))


# ── reducers ─────────────────────────────────────────────────────────────────────────────


def event_of(seq: int, payload: object) -> Event[Any]:
    return Shop().orders.event_of(Entry(f"e{seq}", "noted", f'{{"text":"{payload}"}}', None, 0, seq))


def test_a_reducer_folds_a_history() -> None:
    """The state is the initial one, then what each event makes of it, in order."""
    texts = Shop().orders.reduce("", lambda state, event: state + event.payload.text)
    assert "" == texts.fold([])
    assert "ab" == texts.fold([event_of(1, "a"), event_of(2, "b")])
    assert "abc" == texts.fold([event_of(3, "c")], "ab")


def test_a_reducer_keeps_its_initial_state() -> None:
    """A step that changes its state in place does not change the one that the next history starts from."""

    def step(state: list[str], event: Event[Any]) -> list[str]:
        state.append(event.payload.text)
        return state

    texts = Shop().orders.reduce(list[str](), step)
    assert [["a"], ["a"]] == [texts.fold([event_of(1, "a")]) for _ in range(2)]


@pytest.mark.parametrize("state", [0, "", False], ids=ascii)
def test_a_state_that_is_falsy_is_a_state(state: object) -> None:
    """Going on from an empty state does not start over."""
    kept = Shop().orders.reduce("initial", lambda state, _: state)
    assert state == kept.fold([event_of(1, "a")], state)  # type: ignore[arg-type]
