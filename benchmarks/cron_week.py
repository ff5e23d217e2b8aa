"""How long does a week of a cron that runs every minute take in the test world?"""

import asyncio
import sys
from collections.abc import Iterator
from datetime import datetime
from time import perf_counter

from a2asgi import A2
from benchmarks.harness import Effort, Row, Spread, at_most, main, stay_on_one_core

MINUTES = 7 * 24 * 60


async def week(minutes: int) -> float:
    """Seconds of real time."""
    a2 = A2()
    slots: list[datetime] = []

    @a2.cron("* * * * *")
    async def every_minute(slot: datetime) -> None:
        slots.append(slot)

    async with a2.testing() as world:
        started = perf_counter()
        await world.advance(f"{minutes}m")
        took = perf_counter() - started
    assert minutes == len(set(slots)) == len(slots), len(slots)
    return took


def rows(effort: Effort) -> Iterator[Row]:
    """A week, each slot through claim, handler and settle."""
    stay_on_one_core()
    minutes = effort.of(MINUTES, 3)
    took = [asyncio.run(week(minutes)) for _ in range(min(effort.rounds, 5))]
    yield Row("a week of a cron each minute, in the test world", f"{minutes:,} slots", Spread.of(took), at_most(1), "s")


if __name__ == "__main__":
    sys.exit(main(rows, __doc__))
