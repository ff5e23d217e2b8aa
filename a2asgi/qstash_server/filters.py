"""The filters and pages of list requests: repeated or comma-separated values, any of which may match."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import QueryParams

from a2asgi.qstash_server.values import Refused

_LISTS = {
    "url": "url",
    "topicName": "topicName",
    "scheduleId": "scheduleId",
    "queueName": "queueName",
    "responseStatus": "responseStatus",
    "callerIp": "callerIP",
    "callerIP": "callerIP",
    "flowControlKey": "flowControlKey",
    "messageId": "messageId",
    "messageIds": "messageId",
    "dlqIds": "dlqId",
}
"""A query parameter, and the field of a view that it filters."""

_STATES = {"CANCELLED": ("CANCELED",), "IN_PROGRESS": ("ACTIVE", "RETRY", "ERROR")}
"""States that a filter may name otherwise than an entry does."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Which views a request is about. All of its conditions hold; each is met by any of its values."""

    fields: dict[str, frozenset[str]]
    labels: frozenset[str]
    states: frozenset[str]
    from_ms: int | None
    to_ms: int | None

    @classmethod
    def of(cls, query: QueryParams) -> "Filter":
        """The filter of a query. Raises Refused for dates that are no numbers."""
        fields: dict[str, frozenset[str]] = {}
        for parameter, field in _LISTS.items():
            if values := listed(query, parameter):
                fields[field] = fields.get(field, frozenset()) | values
        states = frozenset(
            state for text in listed(query, "state") for state in _STATES.get(text.upper(), (text.upper(),))
        )
        labels = listed(query, "label") | listed(query, "labels")
        return cls(fields, labels, states, number(query, "fromDate"), number(query, "toDate"))

    def __bool__(self) -> bool:
        return bool(self.fields or self.labels or self.states or self.from_ms is not None or self.to_ms is not None)

    def matches(self, view: dict[str, Any], at_ms: int) -> bool:
        """Whether a view of that time is meant."""
        return (
            all(str(view.get(field, "")) in values for field, values in self.fields.items())
            and (not self.labels or not self.labels.isdisjoint(view.get("labels", ())))
            and (not self.states or view.get("state") in self.states)
            and (self.from_ms is None or at_ms >= self.from_ms)
            and (self.to_ms is None or at_ms <= self.to_ms)
        )


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list, and where the next part begins; None at the end."""

    views: list[dict[str, Any]]
    cursor: str | None


def page(rows: Iterable[tuple[int, dict[str, Any]]], wanted: Filter, time_field: str, count: int | None) -> Page:
    """Up to `count` of the rows that match; all where it is None."""
    found: list[dict[str, Any]] = []
    last = 0
    for seq, view in rows:
        if wanted.matches(view, int(view.get(time_field, 0))):
            if count is not None and len(found) == count:
                return Page(found, str(last))
            found.append(view)
            last = seq
    return Page(found, None)


def listed(query: QueryParams, name: str) -> frozenset[str]:
    """The values of a parameter that may be repeated, or hold several between commas."""
    values = query.getlist(name)
    parts = [part for value in values for part in (value.split(",") if name != "url" else [value])]
    return frozenset(part.strip() for part in parts if part.strip())


def number(query: QueryParams, name: str, most: int | None = None) -> int | None:
    """An integer parameter, cut to `most`. Raises Refused for what is none."""
    text = query.get(name)
    if text is None or text == "":
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 15:  # noqa: PLR2004 - milliseconds until the year 9999
        raise Refused(400, f"invalid {name}: expected an integer")
    return int(text) if most is None else min(int(text), most)
