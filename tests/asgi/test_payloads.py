"""Typed payloads: each kind of type comes back as it was, and what does not fit is refused with its path."""

import datetime as dt
import math
import traceback
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, computed_field, field_validator
from pydantic.dataclasses import dataclass as pydantic_dataclass

from a2asgi import A2, InvalidPayload, MemoryStore, NewEvent, Retry, WiringError
from a2asgi.payloads import payload_type
from a2core import Json
from tests.asgi.support import nested

NOON = dt.datetime(2026, 12, 1, 12, 0, 0, 1, tzinfo=dt.UTC)
SECRET = "hunter2"
LONE = "\ud83d"


class Colour(Enum):
    RED = "red"


class Line(BaseModel):
    sku: str
    quantity: int = Field(gt=0)


class Order(BaseModel):
    model_config = ConfigDict(validate_assignment=False)
    order_id: str = Field(alias="orderId")
    lines: list[Line] = []
    placed_at: dt.datetime = NOON
    notes: dict[str, Any] = {}

    @field_validator("order_id")
    @classmethod
    def _upper(cls, value: str) -> str:
        return value.upper()


@pydantic_dataclass
class Parcel:
    weight: float
    sent_on: dt.date
    lines: list[Line] = Field(default_factory=list)


@dataclass
class Refund:
    amount: float = 1.5
    blob: bytes = b""
    colour: Colour = Colour.RED
    reason: str = ""
    parts: list["Refund"] = field(default_factory=list)
    count: int = 0
    anything: Any = None


class Ping(TypedDict):
    host: str
    seen: dt.datetime


class Struct(msgspec.Struct, rename="camel"):
    item_count: int
    price: Decimal
    key: UUID | None = None


class Kindly(msgspec.Struct):
    colour: Colour
    letter: Literal["a"] = "a"


class Renamed(msgspec.Struct, rename="camel"):
    any_thing: Any = None


class Loose(BaseModel):
    x: Any


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")


LINE = {"sku": "a", "quantity": 1}
ORDER = Order(orderId="o1", lines=[Line(sku="té", quantity=2)], notes={"a": [1, None, "b\x00c"]})
KEY = UUID("12345678-1234-5678-1234-567812345678")


# ── what comes back ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("annotation", "payload"),
    [
        pytest.param(Order, ORDER, id="pydantic"),
        pytest.param(Parcel, Parcel(1.5, NOON.date(), [Line(sku="a", quantity=1)]), id="pydantic-dataclass"),
        pytest.param(Refund, Refund(2, b"\xff\x00", parts=[Refund(reason="é")]), id="dataclass"),
        pytest.param(Ping, {"host": "a", "seen": NOON}, id="typeddict"),
        pytest.param(Struct, Struct(2, Decimal("1.10"), KEY), id="struct"),
        pytest.param(dict, {"b": 1, "a": [None, True, 1.5, "é \U0001f378"]}, id="dict"),
        pytest.param(list, [1, [2, {}]], id="list"),
        pytest.param(dict[str, list[int]], {"a": [1, 2]}, id="typed-dict"),
        pytest.param(type(None), None, id="none"),
        pytest.param(str, "text", id="text"),
        pytest.param(dict, {"a\x00": "b\x00"}, id="C2-nul"),
        pytest.param(Refund, Refund(reason="a\x00b"), id="C2-nul-in-dataclass"),
        pytest.param(Loose, Loose(x={"a\x00": "b\x00"}), id="C2-nul-in-pydantic"),
        pytest.param(dict, {"x": -(2**14_000) + 1}, id="huge-integer"),
        pytest.param(Refund, Refund(count=10**4_000), id="huge-integer-in-dataclass"),
        pytest.param(Loose, Loose(x=10**4_000), id="huge-integer-in-pydantic"),
        pytest.param(Refund, Refund(anything=nested(95)), id="deep-in-dataclass"),
        pytest.param(Loose, Loose(x=nested(95)), id="deep-in-pydantic"),
        pytest.param(Open, Open.model_validate({"x": {"y": [1]}}), id="pydantic-extra"),
    ],
)
def test_a_payload_comes_back_as_it_was(annotation: type[object], payload: object) -> None:
    """What was written is read as an equal value of the same type."""
    kind = payload_type(annotation)
    found = kind.decode(kind.encode(payload))
    assert (type(payload), payload) == (type(found), found)


@pytest.mark.parametrize(
    ("annotation", "payload", "text"),
    [
        pytest.param(Line, Line(sku="té", quantity=2), '{"sku":"té","quantity":2}', id="pydantic"),
        pytest.param(
            Order,
            Order(orderId="o1"),
            '{"orderId":"O1","lines":[],"placed_at":"2026-12-01T12:00:00.000001Z","notes":{}}',
            id="pydantic-alias",
        ),
        pytest.param(Struct, Struct(2, Decimal("1.10")), '{"itemCount":2,"price":"1.10","key":null}', id="struct"),
        pytest.param(dict, {"b": 1, "a": 2}, '{"b":1,"a":2}', id="dict-keeps-its-order"),
        pytest.param(type(None), None, "null", id="none"),
    ],
)
def test_a_payload_is_written_under_its_public_names(annotation: type[object], payload: object, text: str) -> None:
    """The stored text is compact, keys in the type's order and under their aliases."""
    assert text == payload_type(annotation).encode(payload)


def test_a_plain_value_becomes_the_type_that_it_fits() -> None:
    """A dict that fits the model is accepted in its place, validated, and read as the model."""
    kind = payload_type(Order)
    assert Order(orderId="O1") == kind.decode(kind.encode({"orderId": "o1"}))


class OneWay(BaseModel):
    """Its name coming in is another than going out."""

    size: int = Field(validation_alias="in", serialization_alias="out")


class Incoming(BaseModel):
    """Only its name coming in is given."""

    size: int = Field(validation_alias="in")


class Computed(BaseModel):
    """It tells more than it takes."""

    model_config = ConfigDict(extra="forbid")
    size: int

    @computed_field
    def double(self) -> int:
        return 2 * self.size


class Wrapped(BaseModel):
    """It takes text and holds what the text says."""

    numbers: pydantic.Json[list[int]]


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(OneWay.model_validate({"in": 1}), id="two-aliases"),
        pytest.param(Incoming.model_validate({"in": 1}), id="alias-coming-in"),
        pytest.param(Computed(size=1), id="computed-field"),
        pytest.param(Wrapped.model_validate({"numbers": "[1,2]"}), id="json-text"),
    ],
)
def test_any_valid_model_comes_back(payload: BaseModel) -> None:
    """A valid instance of a declared model is a valid payload, however its model reads and writes."""
    kind = payload_type(type(payload))
    assert payload == kind.decode(kind.encode(payload))


class Login(BaseModel):
    password: pydantic.SecretStr


def test_a_masked_secret_is_not_stored_in_its_place() -> None:
    """A SecretStr is kept as it is or refused, and never becomes its own mask."""
    kind = payload_type(Login)
    try:
        found = kind.decode(kind.encode(Login(password=pydantic.SecretStr(SECRET))))
    except InvalidPayload:
        return
    assert SECRET == found.password.get_secret_value()


@dataclass
class Shipment:
    line: Line
    others: list[Line] = field(default_factory=list)


@pytest.mark.parametrize(
    ("annotation", "payload"),
    [
        pytest.param(list[Line], [Line(sku="a", quantity=1)], id="list"),
        pytest.param(dict[str, Line], {"a": Line(sku="a", quantity=1)}, id="dict"),
        pytest.param(Shipment, Shipment(Line(sku="a", quantity=1), [Line(sku="b", quantity=2)]), id="dataclass"),
    ],
)
def test_a_type_built_of_models_comes_back(annotation: type[object], payload: object) -> None:
    """A container or dataclass of pydantic models is written and read as one."""
    kind = payload_type(annotation)
    assert payload == kind.decode(kind.encode(payload))


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values: st.SearchStrategy[Json] = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(values)
def test_every_json_value_comes_back(value: Json) -> None:
    """Whatever JSON can hold comes back exactly, through either library, to the order of the keys."""
    loose, plain = payload_type(Loose), payload_type(dict)
    assert repr(value) == repr(loose.decode(loose.encode(Loose(x=value))).x)
    assert repr({"x": value}) == repr(plain.decode(plain.encode({"x": value})))


# ── what is refused ──────────────────────────────────────────────────────────────────────


def refusal_of(annotation: type[object], payload: object) -> InvalidPayload:
    with pytest.raises(InvalidPayload) as refusal:
        payload_type(annotation).encode(payload)
    return refusal.value


@pytest.mark.parametrize(
    ("annotation", "payload", "path"),
    [
        pytest.param(Order, {"orderId": "o", "lines": [LINE, {"sku": "b"}]}, "$.lines[1].quantity", id="missing"),
        pytest.param(Order, {"orderId": "o", "lines": [LINE | {"quantity": 0}]}, "$.lines[0].quantity", id="bound"),
        pytest.param(Order, {"order_id": "o1"}, "$.orderId", id="pydantic-name-for-alias"),
        pytest.param(Order, {"orderId": "o1", "placed_at": "noon"}, "$.placed_at", id="pydantic-datetime"),
        pytest.param(Order, Order.model_construct(order_id=1), "$.orderId", id="pydantic-never-checked"),
        pytest.param(Order, 7, "$", id="pydantic-number"),
        pytest.param(Order, None, "$", id="pydantic-none"),
        pytest.param(Order, Refund(), "$", id="pydantic-another-class"),
        pytest.param(Parcel, {"weight": "heavy", "sent_on": "2026-12-01"}, "$.weight", id="pydantic-dataclass"),
        pytest.param(Refund, Refund(amount="much"), "$.amount", id="dataclass"),  # type: ignore[arg-type]
        pytest.param(Refund, Refund(parts=[Refund(), Refund(count="1")]), "$.parts[1].count", id="dataclass-nested"),  # type: ignore[arg-type]
        pytest.param(Refund, [], "$", id="dataclass-list"),
        pytest.param(Ping, {"host": "a"}, "$", id="typeddict-missing"),
        pytest.param(Ping, {"host": 1, "seen": NOON}, "$.host", id="typeddict-number"),
        pytest.param(Struct, Struct("2", Decimal(1)), "$.itemCount", id="struct"),  # type: ignore[arg-type]
        pytest.param(dict, [], "$", id="dict-list"),
        pytest.param(list, {}, "$", id="list-dict"),
        pytest.param(type(None), 0, "$", id="none-zero"),
        pytest.param(type(None), {}, "$", id="none-dict"),
    ],
)  # fmt: skip
def test_a_payload_that_does_not_fit_is_refused(annotation: type[object], payload: object, path: str) -> None:
    """A payload of another shape than its type's is refused with the path of the wrong value."""
    assert path == refusal_of(annotation, payload).path


class Shelves(BaseModel):
    lines: dict[str, Line]


@pytest.mark.parametrize(
    ("annotation", "payload", "path"),
    [
        pytest.param(Shelves, {"lines": {"a b": {"sku": "a"}}}, '$.lines["a b"].quantity', id="pydantic-spaced-key"),
        pytest.param(Shelves, {"lines": {"": {"sku": "a"}}}, '$.lines[""].quantity', id="pydantic-empty-key"),
        pytest.param(dict[dt.date, int], {"a": 1}, "$", id="msgspec-key"),
        pytest.param(dict[str, dict[Literal["a"], int]], {"x": {"b": 1}}, "$[...]", id="msgspec-literal-key"),
    ],
)
def test_a_path_is_written_in_one_way(annotation: type[object], payload: object, path: str) -> None:
    """A path starts at `$`, quotes a key that is no identifier, and leads to the object of a key that does not fit."""
    assert path == refusal_of(annotation, payload).path


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=["nan", "inf", "minus-inf"])
@pytest.mark.parametrize(
    ("annotation", "build", "path"),
    [
        pytest.param(dict, lambda x: {"x": x}, "$.x", id="C1-dict"),
        pytest.param(list, lambda x: [1, [x]], "$[1][0]", id="C1-list"),
        pytest.param(Refund, lambda x: Refund(amount=x), "$.amount", id="C1-dataclass"),
        pytest.param(Refund, lambda x: Refund(anything={"x": x}), "$.anything.x", id="C1-dataclass-any"),
        pytest.param(Parcel, lambda x: Parcel(x, NOON.date()), "$.weight", id="C1-pydantic"),
        pytest.param(Order, lambda x: Order(orderId="o", notes={"x": [x]}), "$.notes.x[0]", id="C1-pydantic-dict"),
        pytest.param(Loose, lambda x: Loose(x=x), "$.x", id="C1-pydantic-any"),
        pytest.param(Open, lambda x: Open.model_validate({"x": x}), "$.x", id="C1-pydantic-extra"),
    ],
)
def test_no_number_that_is_none_is_stored(annotation: type[object], build: Any, path: str, value: float) -> None:
    """C1: NaN and the infinities are refused at their path, and never become null, in whatever type they hide."""
    assert path == refusal_of(annotation, build(value)).path


@pytest.mark.parametrize(
    ("annotation", "payload", "path"),
    [
        pytest.param(dict, {"x": LONE}, "$.x", id="C3-dict-value"),
        pytest.param(dict, {"x": {LONE: 1}}, "$.x", id="C3-dict-key"),
        pytest.param(Refund, Refund(reason=LONE), "$.reason", id="C3-dataclass"),
        pytest.param(Refund, Refund(anything={LONE: 1}), "$.anything", id="C3-dataclass-key"),
        pytest.param(Line, Line.model_construct(sku=LONE, quantity=1), "$.sku", id="C3-pydantic"),
        pytest.param(Loose, Loose(x=[LONE]), "$.x[0]", id="C3-pydantic-any"),
        pytest.param(Loose, Loose(x={LONE: 1}), "$.x", id="C3-pydantic-any-key"),
        pytest.param(Order, Order.model_construct(order_id="O", notes={LONE: 1}), "$.notes", id="C3-pydantic-key"),
    ],
)
def test_half_a_character_is_refused(annotation: type[object], payload: object, path: str) -> None:
    """C3: a lone surrogate is refused at its path, as a value and as a key, and never replaced."""
    assert path == refusal_of(annotation, payload).path


@pytest.mark.parametrize("levels", [98, 1_000, 100_000])
@pytest.mark.parametrize(
    ("annotation", "build"),
    [
        pytest.param(list, lambda value: value, id="list"),
        pytest.param(dict, lambda value: {"x": value}, id="dict"),
        pytest.param(Refund, lambda value: Refund(anything=value), id="dataclass"),
        pytest.param(Loose, lambda value: Loose.model_construct(x=value), id="pydantic"),
    ],
)
def test_a_bottomless_payload_is_refused(annotation: type[object], build: Any, levels: int) -> None:
    """Nesting beyond the wire's bound is refused, however deep it goes: no stack is exhausted."""
    assert refusal_of(annotation, build(nested(levels))).path.startswith("$")


def test_a_payload_that_holds_itself_is_refused() -> None:
    """A cycle is refused by either library's way."""
    loop: list[object] = []
    loop.append(loop)
    assert refusal_of(list, loop).path.startswith("$")
    assert refusal_of(Loose, Loose.model_construct(x=loop)).path.startswith("$")


@pytest.mark.parametrize(
    ("annotation", "payload", "path"),
    [
        pytest.param(dict, {"x": 2**14_000}, "$.x", id="dict"),
        pytest.param(Refund, Refund(count=-(2**14_000)), "$.count", id="dataclass"),
        pytest.param(Loose, Loose(x=2**14_000), "$.x", id="pydantic"),
    ],
)
def test_an_endless_integer_is_refused(annotation: type[object], payload: object, path: str) -> None:
    """An integer that Python itself would not read back is refused at its path."""
    assert path == refusal_of(annotation, payload).path


@pytest.mark.parametrize("key", [1, None, True], ids=["int", "none", "bool"])
@pytest.mark.parametrize(
    ("annotation", "build", "path"),
    [
        pytest.param(dict, lambda key: {"x": {key: 1}}, "$.x", id="dict"),
        pytest.param(Refund, lambda key: Refund(anything={key: 1}), "$.anything", id="dataclass"),
        pytest.param(Loose, lambda key: Loose(x={key: 1}), "$.x", id="pydantic"),
    ],
)
def test_a_key_that_is_no_text_is_refused(annotation: type[object], build: Any, path: str, key: object) -> None:
    """A key that would come back as text is refused where no type says how to read it."""
    assert path == refusal_of(annotation, build(key)).path


@pytest.mark.parametrize(
    "value", [b"text", {1, 2}, NOON, Decimal("1.1"), object()], ids=["bytes", "set", "datetime", "decimal", "object"]
)
@pytest.mark.parametrize(
    ("annotation", "build"),
    [
        pytest.param(dict, lambda value: {"x": value}, id="dict"),
        pytest.param(Refund, lambda value: Refund(anything={"x": value}), id="dataclass"),
        pytest.param(Renamed, lambda value: {"anyThing": {"x": value}}, id="struct-as-dict"),
        pytest.param(Loose, lambda value: Loose(x=value), id="pydantic"),
        pytest.param(Open, lambda value: Open.model_validate({"x": value}), id="pydantic-extra"),
    ],
)
def test_what_json_cannot_hold_is_refused(annotation: type[object], build: Any, value: object) -> None:
    """A value that no type declares, and that would come back as another one, is refused at its path."""
    assert refusal_of(annotation, build(value)).path in {"$.x", "$.anything.x", "$.anyThing.x", "$.any_thing.x"}


class Plain:
    """A class of the user's, with nothing that says how to write it."""


@pytest.mark.parametrize(
    "annotation", [Plain, list[Plain], A2, open, 7, "Order"], ids=["class", "list", "a2", "function", "number", "name"]
)
def test_a_type_that_cannot_be_read_is_refused_when_it_is_declared(annotation: Any) -> None:
    """What neither library understands is a wiring error at its declaration, not an error at every append."""
    with pytest.raises(WiringError, match="cannot be a payload type"):
        A2().contract("orders").event("plain", annotation)


# ── secrets ──────────────────────────────────────────────────────────────────────────────


class Card(BaseModel):
    kind: Literal["card"]


class Cash(BaseModel):
    kind: Literal["cash"]


class Payment(BaseModel):
    pin: int = 0
    at: dt.datetime | None = None
    colour: Colour = Colour.RED
    letter: Literal["a"] = "a"
    code: str = Field(default="", pattern="^[0-9]*$", max_length=4)
    by: Annotated[Card | Cash, Field(discriminator="kind")] | None = None


@pytest.mark.parametrize(
    ("annotation", "payload"),
    [
        pytest.param(Payment, SECRET, id="whole"),
        pytest.param(Payment, {"pin": SECRET}, id="int"),
        pytest.param(Payment, {"at": SECRET}, id="datetime"),
        pytest.param(Payment, {"colour": SECRET}, id="enum"),
        pytest.param(Payment, {"letter": SECRET}, id="literal"),
        pytest.param(Payment, {"code": SECRET}, id="pattern"),
        pytest.param(Payment, {"by": SECRET}, id="union"),
        pytest.param(Payment, {"by": {"kind": SECRET}}, id="tag"),
        pytest.param(Payment, Payment.model_construct(pin=SECRET), id="model"),
        pytest.param(Kindly, {"colour": SECRET}, id="msgspec-enum"),
        pytest.param(Kindly, {"colour": "red", "letter": SECRET}, id="msgspec-literal"),
        pytest.param(Refund, {"amount": SECRET}, id="msgspec-float"),
    ],
)
def test_a_refusal_does_not_repeat_what_came(annotation: type[object], payload: object) -> None:
    """The error's text, and the traceback that a log would show, say what was expected and not what came."""
    error = refusal_of(annotation, payload)
    assert SECRET not in str(error)
    assert SECRET not in "".join(traceback.format_exception(error))


# ── what is in the log already ───────────────────────────────────────────────────────────


@pytest.mark.parametrize("newer", [Line, Struct, list], ids=["pydantic", "struct", "list"])
async def test_a_stored_payload_that_no_longer_fits_is_named_on_read(newer: type[object]) -> None:
    """A log entry of an older shape is refused on read with its path, its id and its type; those before it are read."""
    store = MemoryStore()
    older = A2(store=store, scheduler=None).contract("orders")
    older.event("placed", dict)
    await older.session("o1").append(NewEvent({"sku": SECRET}, id="e1", type="placed"))
    newest = A2(store=store, scheduler=None).contract("orders")
    newest.event("placed", newer)
    with pytest.raises(InvalidPayload, match=r"^\$.*event 'e1' of type 'placed'") as refusal:
        await newest.session("o1").read()
    assert SECRET not in str(refusal.value)
    assert [] == await newest.session("o1").read(after=1)


@pytest.mark.parametrize("annotation", [dict[str, int], Login], ids=["msgspec", "pydantic"])
def test_half_a_character_of_the_wire_is_refused_on_read(annotation: type[object]) -> None:
    """A timer's payload comes from a provider, as JSON that may escape what is no text."""
    with pytest.raises(InvalidPayload):
        payload_type(annotation).decode('{"password": "\\ud800"}')


async def test_a_stored_payload_that_no_longer_fits_fails_its_handler() -> None:
    """An event that cannot be given to its handler is a failure as any other, and its dead letter says why."""
    store = MemoryStore()
    older = A2(store=store).contract("orders")
    older.on(older.event("placed", dict))(print)
    await older.session("o1").dispatch(NewEvent({"sku": SECRET}, id="e1", type="placed"))
    a2 = A2(store=store)
    newer = a2.contract("orders")
    ran: list[object] = []
    newer.on(newer.event("placed", Line), retry=Retry(max_failures=1))(ran.append)
    await newer.session("o1").drain()
    [dead] = await a2.dead_letters()
    assert ([], "e1", "InvalidPayload") == (ran, dead.event_id, dead.error)
    assert dead.message.startswith("$.quantity: ")
