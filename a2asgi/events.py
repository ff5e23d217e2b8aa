"""Events as users see them: to be appended, and as the log holds them."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from a2asgi.payloads import PayloadType
from a2core import Draft, Ending, check_name

P = TypeVar("P")
P_co = TypeVar("P_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Event(Generic[P_co]):
    """One event of a session's log.

    `seq` counts from 1; `cause` is the id of the event whose handler produced this one; `ending` says why it was
    settled where that was not its handler's success.
    """

    id: str
    type: str
    payload: P_co
    cause: str | None
    created_at: datetime
    seq: int
    ending: Ending | None = None


@dataclass(frozen=True, slots=True)
class NewEvent(Generic[P_co]):
    """A payload with what cannot be read off it: an id that makes a retry append nothing, and the event's type.

    `type` is the name, class or EventType; it is only needed where the payload's class does not tell, as for a dict.
    """

    payload: P_co
    id: str | None = None
    type: "str | type[P_co] | EventType[P_co] | None" = None


@dataclass(frozen=True, slots=True)
class Written:
    """A payload that its type's `encode` has written, and so checked, already."""

    text: str


@dataclass(frozen=True, slots=True)
class EventType(Generic[P]):
    """One declared type of event. Calling it makes an event: `noted({"text": "hi"}, id="n1")`."""

    name: str
    contract: str
    payload: PayloadType[P]
    lane: str | Callable[[P], str]

    def __call__(self, payload: P, *, id: str | None = None) -> NewEvent[P]:  # noqa: A002 - the field's word
        """An event of this type, to be appended."""
        return NewEvent(payload, id=id, type=self)

    def draft(self, payload: Any, event_id: str) -> Draft:
        """The event as the core takes it. Raises InvalidPayload, and InvalidName for a bad id or lane."""
        text = payload.text if isinstance(payload, Written) else self.payload.encode(payload)
        return Draft(check_name("event id", event_id), self.name, text, self.lane_of(text))

    def lane_of(self, text: str) -> str:
        """The lane of a payload that is written already. Raises InvalidName for a bad one."""
        return check_name("lane", self.lane(self.payload.decode(text))) if callable(self.lane) else self.lane
