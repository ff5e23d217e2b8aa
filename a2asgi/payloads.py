"""Typed payloads: between a user's type and canonical JSON text, both ways validated.

pydantic models, pydantic dataclasses and types built of them go through pydantic, which is optional; dataclasses,
TypedDicts, msgspec structs and plain containers go through msgspec.
"""

import json
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from a2asgi.errors import WiringError
from a2core import InvalidPayload, encode_json

P = TypeVar("P")
P_co = TypeVar("P_co", covariant=True)


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
    if hasattr(annotation, "__pydantic_validator__") or hasattr(annotation, "__pydantic_complete__"):
        return _PydanticType(annotation)
    try:
        return _MsgspecType(annotation)
    except TypeError as error:
        raise WiringError(f"{annotation!r} cannot be a payload type: {error}") from error


class _MsgspecType(Generic[P]):
    def __init__(self, annotation: type[P]) -> None:
        msgspec.json.Decoder(annotation)  # refuses what it could never read
        self._annotation = annotation

    def encode(self, payload: object) -> str:
        try:
            value = msgspec.to_builtins(payload)
        except RecursionError:
            raise _too_deep() from None
        except (TypeError, ValueError) as error:
            raise InvalidPayload("$", str(error)) from error
        text = encode_json(value)
        self.decode(text)  # a dataclass or TypedDict checks nothing when it is made
        return text

    def decode(self, text: str) -> P:
        try:
            return msgspec.convert(json.loads(text), self._annotation)
        except msgspec.ValidationError as error:
            reason, _, path = str(error).partition(" - at `")
            raise InvalidPayload(path.rstrip("`") or "$", reason) from None


class _PydanticType(Generic[P]):
    def __init__(self, annotation: type[P]) -> None:
        import pydantic  # noqa: PLC0415 - optional: only who uses a pydantic type has it

        self._adapter: pydantic.TypeAdapter[P] = pydantic.TypeAdapter(annotation)
        self._invalid: type[Exception] = pydantic.ValidationError

    def encode(self, payload: object) -> str:
        dumped: Any = payload
        try:
            dumped = self._adapter.dump_python(dumped, mode="json", by_alias=True, warnings=False)
        except RecursionError:
            raise _too_deep() from None
        except (TypeError, ValueError, AttributeError) as error:
            raise InvalidPayload("$", str(error)) from error
        text = encode_json(dumped)
        self.decode(text)
        return text

    def decode(self, text: str) -> P:
        try:
            return self._adapter.validate_json(text)
        except self._invalid as error:
            # its own text repeats the input, which may be a secret
            details = error.errors(include_url=False, include_context=False, include_input=False)  # type: ignore[attr-defined]
            steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in details[0]["loc"])
            raise InvalidPayload("$" + "".join(steps), details[0]["msg"]) from None


def _too_deep() -> InvalidPayload:
    return InvalidPayload("$", "the payload is nested too deep to be written")
