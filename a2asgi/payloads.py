"""Typed payloads: between a user's type and canonical JSON text, both ways validated.

pydantic's types, and whatever is built of them, go through pydantic, which is optional; dataclasses, TypedDicts,
msgspec structs and plain containers go through msgspec.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import NoneType
from typing import Generic, Protocol, TypeVar

import msgspec

from a2asgi.errors import WiringError
from a2core import InvalidPayload, encode_json, path_step

P = TypeVar("P")
P_co = TypeVar("P_co", covariant=True)

_SCALARS = frozenset({str, int, float, bool, NoneType})


class PayloadType(Protocol[P_co]):
    """How payloads of one type are written and read. Both raise InvalidPayload with the path of the wrong value."""

    def encode(self, payload: object) -> str:
        """Canonical JSON text of a payload that fits the type."""
        ...

    def decode(self, text: str) -> P_co:
        """The payload that the text holds."""
        ...


def payload_type(annotation: type[P]) -> PayloadType[P]:
    """The way to write and read `annotation`. Raises WiringError for a type that neither library understands."""
    try:
        if hasattr(annotation, "__pydantic_core_schema__") or _is_foreign(annotation):
            return _PydanticType(annotation)
        return _MsgspecType(annotation)
    except ImportError as error:
        raise WiringError(f"{annotation!r} cannot be a payload type without pydantic: install a2[pydantic]") from error
    except Exception as error:  # both libraries have their own errors for a type that they do not understand
        raise WiringError(f"{annotation!r} cannot be a payload type: {error}") from error


class _MsgspecType(Generic[P]):
    def __init__(self, annotation: type[P]) -> None:
        self._annotation = annotation

    def encode(self, payload: object) -> str:
        with _writing(payload):
            value = msgspec.to_builtins(payload, enc_hook=_null)
        text = encode_json(value)
        _check_same(payload, self.decode(text))
        return text

    def decode(self, text: str) -> P:
        try:
            return msgspec.convert(json.loads(text), self._annotation)
        except msgspec.ValidationError as error:
            # "Expected `int`, got `str` - at `$.q`", or "... - at `key` in `$.q`"
            reason, _, place = str(error).partition(" - at ")
            reason = reason.partition(" value '")[0]  # "Invalid enum value 'x'" repeats the input
            raise InvalidPayload("$" + place.rpartition("`$")[2].rstrip("`"), reason) from None
        except UnicodeEncodeError:  # a timer's text comes over the wire, which can hold an escaped half of a character
            raise InvalidPayload("$", "a text holds a lone surrogate, which is not Unicode text") from None


class _PydanticType(Generic[P]):
    def __init__(self, annotation: type[P]) -> None:
        import pydantic  # noqa: PLC0415 - optional: only who uses a pydantic type has it

        self._adapter: pydantic.TypeAdapter[P] = pydantic.TypeAdapter(annotation)
        self._invalid: type[Exception] = pydantic.ValidationError

    def encode(self, payload: object) -> str:
        with self._explained():
            valid = self._adapter.validate_python(payload)
        try:
            return self._encode(valid, by_alias=True)
        except InvalidPayload as error:
            try:  # a model may write by other aliases than it reads: then its own names are stored
                return self._encode(valid, by_alias=False)
            except InvalidPayload:
                raise error from None

    def decode(self, text: str) -> P:
        with self._explained():
            return self._adapter.validate_json(text, by_alias=True, by_name=True)

    def _encode(self, payload: P, *, by_alias: bool) -> str:
        with _writing(payload):
            value = self._adapter.dump_python(
                payload, mode="json", by_alias=by_alias, round_trip=True, warnings=False, fallback=_null
            )
        text = encode_json(value)
        _check_same(payload, self.decode(text))
        return text

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Say where and why, without pydantic's own text: it repeats the input, which may be a secret."""
        try:
            yield
        except self._invalid as error:
            [first, *_] = error.errors(include_url=False, include_input=False)  # type: ignore[attr-defined]
            path = "".join(map(path_step, first["loc"]))
            expected_tags = first.get("ctx", {}).get("expected_tags")
            reason = first["msg"] if expected_tags is None else f"expected one of the tags {expected_tags}"
            raise InvalidPayload(f"${path}", reason) from None


def _check_same(given: object, back: object) -> None:
    """Refuse what JSON would change without a word: NaN in an untyped field, bytes, a masked secret, a key of 1.

    It also finds a dataclass that was made with values of other types than it declares.
    """
    path = _difference(given, back)
    if path is not None:
        raise InvalidPayload(f"${path}", "the value would come back as another one; declare its type, or send text")


def _difference(given: object, back: object) -> str | None:
    """The path to the first value that is not the same, None if there is none."""
    kind = type(back)
    if kind in _SCALARS and type(given) is kind:  # most values
        return None if given == back else ""
    fields = _fields(back)
    parts: list[tuple[str | int, object, object]]
    if fields and isinstance(given, dict):
        parts = [(key, given[key], getattr(back, name)) for name, key in fields.items() if key in given]
    elif fields and isinstance(given, type(back)):
        parts = [(name, getattr(given, name, None), getattr(back, name)) for name in fields]
    elif isinstance(given, dict) and isinstance(back, dict) and [*map(_typed, given)] == [*map(_typed, back)]:
        parts = [(key, given[key], back[key]) for key in given]
    elif isinstance(given, list | tuple) and isinstance(back, list | tuple) and len(given) == len(back):
        parts = [(index, *pair) for index, pair in enumerate(zip(given, back, strict=True))]
    else:
        is_number = isinstance(given, int | float) and isinstance(back, float)
        same = given == back and (is_number or isinstance(given, type(back)))
        return None if same else ""
    for step, one, other in parts:
        if (rest := _difference(one, other)) is not None:
            return path_step(step) + rest
    return None


def _typed(key: object) -> tuple[type, object]:
    return (str if isinstance(key, str) else type(key)), key


def _fields(value: object) -> dict[str, str]:
    """The fields of a struct, dataclass or model, and the key under which a dict would hold each."""
    cls = type(value)
    if cls is dict or cls is list:
        return {}
    if isinstance(value, msgspec.Struct):
        return dict(zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True))
    names = [*getattr(cls, "__dataclass_fields__", ()), *getattr(cls, "__pydantic_fields__", ())]
    names += getattr(value, "__pydantic_extra__", None) or ()
    return dict(zip(names, names, strict=True))


def _null(_: object) -> None:
    """What is written for a value that neither library knows; it does not come back, and so is refused at its path."""


@contextmanager
def _writing(payload: object) -> Iterator[None]:
    """Turn what the libraries raise while they write into a refusal."""
    try:
        yield
    except RecursionError:
        raise InvalidPayload("$", "the payload is nested too deep to be written") from None
    except UnicodeEncodeError:
        plain = json.dumps(payload, default=lambda value: getattr(value, "__dict__", None))
        encode_json(json.loads(plain))  # which says where the half of a character is
        raise InvalidPayload("$", "the payload holds a lone surrogate, which is not Unicode text") from None
    except (TypeError, ValueError, AttributeError) as error:
        reason = f"the payload cannot be written as JSON ({type(error).__name__}): declare its types"
        raise InvalidPayload("$", reason) from None


def _is_foreign(annotation: object) -> bool:
    """Whether msgspec knows nothing of some part of the type."""
    seen: set[int] = set()
    parts: list[object] = [msgspec.inspect.type_info(annotation)]
    while parts:
        part = parts.pop()
        if isinstance(part, msgspec.inspect.CustomType):
            return True
        if id(part) not in seen:
            seen.add(id(part))  # a type may contain itself
            if isinstance(part, msgspec.inspect.Type | msgspec.inspect.Field):
                parts += (getattr(part, name) for name in part.__struct_fields__)
            elif isinstance(part, tuple):
                parts += part
    return False
