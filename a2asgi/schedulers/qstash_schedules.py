"""QStash's schedules, kept in step with an app's crons: one call creates, overwrites and removes what differs."""

import json
import logging
import re
import string
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import quote, unquote

from a2asgi.errors import ConfigurationError, SendFailed
from a2asgi.signatures import shown_url
from a2core import InvalidUrl, PublishRules, QStashCall, derive_id, normalise_url, trigger_url

log: logging.Logger = logging.getLogger("a2asgi.schedulers.qstash_schedules")

Ask: TypeAlias = Callable[[QStashCall, str, str], Awaitable[str]]
"""Make a call, told what it is about and for which URL: the body of a reply that grants it. Raises SendFailed."""

PREFIX = "a2-"
MAX_READABLE_CHARS = 40
"""How much of a cron's name its schedule's id shows."""

MAX_HASH_CHARS = 16
_OWN_ID = re.compile(rf"{PREFIX}[0-9A-Za-z._-]+")
_ZONE = re.compile(r"[0-9A-Za-z_+\-/]+")
_FIELDS = re.compile(r"[!-~]+(?:\s+[!-~]+){4}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Schedule:
    """When a cron's trigger is to be called: five fields, read in the IANA time zone `tz`.

    Raises ConfigurationError for what no header could carry; QStash judges the rest.
    """

    name: str
    cron: str
    tz: str = "UTC"

    def __post_init__(self) -> None:
        if _FIELDS.fullmatch(self.cron.strip()) is None:
            raise ConfigurationError(f"cron {self.name!r}: expected five fields such as '0 9 * * *', got {self.cron!r}")
        if _ZONE.fullmatch(self.tz) is None:
            raise ConfigurationError(f"cron {self.name!r}: expected a time zone such as Area/City, got {self.tz!r}")

    @property
    def expression(self) -> str:
        """As QStash writes it, with single blanks."""
        fields = " ".join(self.cron.split())
        return fields if self.tz == "UTC" else f"CRON_TZ={self.tz} {fields}"


@dataclass(frozen=True, slots=True)
class SyncReport:
    """What became of the schedules: names of crons, in the order in which they were asked for.

    `removed` is in the order of ids, and holds the id of a schedule that tells no cron's name.
    """

    created: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()


async def sync_schedules(wanted: Sequence[Schedule], rules: PublishRules, ask: Ask) -> SyncReport:
    """Make the provider's schedules those that are wanted, one call after another, and say what was done.

    Only schedules with an id of ours and a destination beside our callback are touched. Those that are not wanted go
    first, so that a full account has room. It stops at the first failure: a repeated call does the rest.
    Raises ConfigurationError for two crons of one name, InvalidName and SendFailed.
    """
    base = _base(rules)
    triggers = {trigger.schedule_id: trigger for trigger in (_trigger(each, rules, base) for each in wanted)}
    if len(triggers) < len(wanted):
        raise ConfigurationError(f"crons: expected one of each name, got {[each.name for each in wanted]}")
    held = _own(await ask(QStashCall("GET", "/v2/schedules", (), b""), "the request for its schedules", ""), base)
    created: list[str] = []
    updated: list[str] = []
    removed: list[str] = []
    kept: list[str] = []
    try:
        for schedule_id in sorted(held.keys() - triggers.keys()):
            call = QStashCall("DELETE", f"/v2/schedules/{schedule_id}", (), b"")
            await ask(call, f"the removal of schedule {schedule_id}", "")
            removed.append(_name(schedule_id, held[schedule_id], base))
        for schedule_id, trigger in triggers.items():
            listed = held.get(schedule_id)
            if listed is not None and trigger.is_held(listed):
                kept.append(trigger.name)
                continue
            if listed is not None and listed.get("isPaused"):
                log.warning("cron %r: its schedule was paused; with its new definition it may run again", trigger.name)
            about = f"the schedule of cron {trigger.name!r} for {shown_url(trigger.destination)}"
            await ask(trigger.call(rules), about, trigger.destination)
            (created if listed is None else updated).append(trigger.name)
    except SendFailed as error:
        done = f"before that it created {created}, updated {updated} and removed {removed}"
        raise SendFailed(f"{error}; {done}; sync again for the rest", terminal=error.terminal) from error
    return SyncReport(tuple(created), tuple(updated), tuple(removed), tuple(kept))


@dataclass(frozen=True, slots=True)
class _Trigger:
    """A schedule as QStash is to hold it.

    `body` is a hash of what a listing does not tell: the values of redacted headers, and retries that are the
    provider's own. It travels along, and nobody needs to read it.
    """

    schedule_id: str
    name: str
    cron: str
    destination: str = field(repr=False)  # its query may be a secret
    retries: int | None
    body: str

    def is_held(self, listed: Mapping[str, Any]) -> bool:
        """Whether this very schedule is listed, paused or not."""
        told = (listed.get("cron"), _normalised(listed.get("destination")), listed.get("method"), listed.get("body"))
        if (self.cron, self.destination, "POST", self.body) != told:
            return False
        return self.retries is None or self.retries == listed.get("retries")

    def call(self, rules: PublishRules) -> QStashCall:
        """Create it, or overwrite the one of its id.

        It has no deduplication id: with one, a schedule that was deleted could not be made again for a while.
        """
        headers = {
            "content-type": "application/json",
            "upstash-method": "POST",
            "upstash-cron": self.cron,
            "upstash-schedule-id": self.schedule_id,
        }
        if self.retries is not None:
            headers["upstash-retries"] = str(self.retries)
        if rules.headers:
            headers["upstash-redact-fields"] = ",".join(f"header[{name}]" for name, _ in sorted(rules.headers))
        headers |= {f"upstash-forward-{name}": value for name, value in rules.headers}
        return QStashCall("POST", f"/v2/schedules/{self.destination}", tuple(headers.items()), self.body.encode())


def _trigger(schedule: Schedule, rules: PublishRules, base: str) -> _Trigger:
    untold = (part for pair in sorted(rules.headers) for part in pair)
    return _Trigger(
        schedule_id=_schedule_id(base, schedule.name),
        name=schedule.name,
        cron=schedule.expression,
        destination=trigger_url(rules.callback, schedule.name),
        retries=rules.retries,
        body=json.dumps({"definition": derive_id("a2:qstash-schedule:definition:v1", str(rules.retries), *untold)}),
    )


def _schedule_id(base: str, name: str) -> str:
    """The same for as long as app and cron have their names, whatever secrets come and go; no other app's."""
    readable = re.sub("[^0-9A-Za-z._-]+", "-", name)[:MAX_READABLE_CHARS].strip("-")
    digest = derive_id("a2:qstash-schedule:v1", base, name).removeprefix("a2_")[:MAX_HASH_CHARS]
    return PREFIX + "-".join(filter(None, (readable, digest)))


def _base(rules: PublishRules) -> str:
    """What the destinations of all our triggers begin with."""
    return _place(trigger_url(rules.callback, "-")).removesuffix("-")


def _place(url: str) -> str:
    """A URL without what may be secret, and change: its user info and its query."""
    return re.sub(r"(?<=//)[^/]*@", "", url.partition("?")[0], count=1)


def _own(listing: str, base: str) -> dict[str, Mapping[str, Any]]:
    """Of the listed schedules those that are ours, by id."""
    try:
        listed = json.loads(listing)
    except (ValueError, RecursionError):
        listed = None
    if not isinstance(listed, list):
        raise SendFailed("QStash answered the request for its schedules with no list of them", terminal=False)
    return {
        each["scheduleId"]: each
        for each in listed
        if isinstance(each, dict)
        and _OWN_ID.fullmatch(str(each.get("scheduleId")))
        and _place(_normalised(each.get("destination")) or "").startswith(base)
    }


def _normalised(destination: object) -> str | None:
    """A listed destination in our form, should it be shown decoded; None for a URL group's name."""
    try:
        return normalise_url(quote(destination, safe=string.punctuation)) if isinstance(destination, str) else None
    except InvalidUrl:
        return None


def _name(schedule_id: str, listed: Mapping[str, Any], base: str) -> str:
    """The name of the cron that the schedule is for, or its id where it tells none."""
    name = unquote(_place(_normalised(listed["destination"]) or "").removeprefix(base))
    return name if _schedule_id(base, name) == schedule_id else schedule_id
