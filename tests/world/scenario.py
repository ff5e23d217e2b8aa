"""Scenarios: what kind of world a seed makes, and the smaller worlds beside it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random
from typing import Any, TypeVar

T = TypeVar("T")

INLINE = 0.4
"""How many of the worlds behind a provider are serverless."""
WEB = 0.25
"""How many of the others have processes of role "web"."""
HANGS_UP = 0.2
"""In how many worlds requests are ended before their answer."""

LESS: tuple[dict[str, Any], ...] = (
    {"cron": False},
    {"lively": False},
    {"web": False},
    {"hangs_up": False},
    {"limit_ms": None},
    {"limit_ms": None, "inline": False},
)
"""What a smaller world does without."""


class Fault(StrEnum):
    """What may go wrong in a world."""

    CRASH = "a process dies before or after an effect, or at any time"
    SLOW = "the store and the provider take their time"
    OUTAGE = "the store is away for a while"
    LOST_ANSWER = "a store that wrote says that it is away"
    START_OVER = "a transaction is decided twice"
    PAUSE = "a process stands still"
    SKEW = "processes' clocks are wrong"
    STEP = "processes' clocks jump"
    DEPLOY = "processes of two versions, shut down and started anew"
    REFUSED = "a publish fails, or is taken and answered with an error"
    PROVIDER_OUTAGE = "the provider is away for a while, and hangs"
    LOSS = "wake-ups are lost"
    DUPLICATE = "deliveries come twice at a time"
    DELAY = "deliveries come late, and in another order"
    REPLAY = "deliveries come again after hours"


class Traffic(StrEnum):
    """What is asked of a world."""

    APPEND = "append"
    DISPATCH = "dispatch"
    WAIT = "append and wait"
    AGAIN = "append the same once more, or other content under its id"
    TIMER = "schedule a timer"
    CANCEL = "cancel a timer"
    JOB = "enqueue a job"
    CALL_OFF = "cancel a job"
    MEND = "redrive or resolve a dead letter"


@dataclass(frozen=True, slots=True)
class Scenario:
    """All that makes a world, besides the chances that its seed decides."""

    seed: int
    provider: bool
    inline: bool
    """Whether processes have no server, which needs a provider: drains run in the requests that ask for them."""
    limit_ms: int | None
    """How long a request of a serverless process may take before the platform kills it."""
    web: bool
    """Whether some processes only write down what the others, the workers, handle."""
    hangs_up: bool
    """Whether some who ask do not wait for the answer, so that the server ends their requests."""
    processes: int
    sessions: int
    steps: int
    span_ms: int
    lively: bool
    """Whether handlers do more than to succeed."""
    cron: bool
    faults: tuple[Fault, ...]
    traffic: tuple[Traffic, ...]

    @staticmethod
    def draw(seed: int) -> "Scenario":
        """The scenario of a seed. Each kind of fault is on in some worlds and off in others."""
        chance = Random(f"scenario {seed}")  # noqa: S311 - a world that can be repeated
        faulty = chance.choice([0, 0.15, 0.4, 0.7])
        host = Random(f"host {seed}")  # noqa: S311 - as above
        provider = chance.random() < 0.5
        inline = provider and host.random() < INLINE
        return Scenario(
            seed,
            provider=provider,
            inline=inline,
            web=not inline and host.random() < WEB,
            limit_ms=host.choice([None, 45_000, 300_000]) if inline else None,
            hangs_up=host.random() < HANGS_UP,
            processes=chance.choice([2, 2, 3, 4]),
            sessions=chance.choice([1, 1, 2, 3]),
            steps=chance.choice([4, 8, 12, 16]),
            span_ms=chance.choice([10_000, 60_000, 240_000]),
            lively=chance.random() < 0.85,
            cron=chance.random() < 0.25,
            faults=tuple(fault for fault in Fault if chance.random() < faulty),
            traffic=(Traffic.APPEND, *_some(chance, [one for one in Traffic if one is not Traffic.APPEND])),
        )

    def smaller(self) -> Iterator["Scenario"]:
        """Worlds with a little less in them, the least first."""
        for steps in sorted({1, 2, self.steps // 2, self.steps - 1}):
            if 0 < steps < self.steps:
                yield replace(self, steps=steps)
        for processes in range(1, self.processes):
            yield replace(self, processes=processes)
        for sessions in range(1, self.sessions):
            yield replace(self, sessions=sessions)
        for fault in self.faults:
            yield replace(self, faults=tuple(one for one in self.faults if one is not fault))
        for kind in self.traffic[1:]:
            yield replace(self, traffic=tuple(one for one in self.traffic if one is not kind))
        for less in LESS:
            if (smaller := replace(self, **less)) != self:
                yield smaller

    def __str__(self) -> str:
        carrier = "a provider" if self.provider else "the embedded scheduler"
        host = f"serverless (limit {self.limit_ms} ms) " * self.inline
        host += "web and worker " * self.web
        faults = ", ".join([*(fault.name for fault in self.faults), *["HANG_UP"] * self.hangs_up]) or "none"
        traffic = ", ".join(kind.name for kind in self.traffic)
        return (
            f"{self.processes} {host}processes behind {carrier}, {self.sessions} sessions, {self.steps} steps in "
            f"{self.span_ms} ms, cron={self.cron}, lively={self.lively}; faults: {faults}; traffic: {traffic}"
        )


def _some(chance: Random, all_: list[T]) -> list[T]:
    return [one for one in all_ if chance.random() < 0.6]
