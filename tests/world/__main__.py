"""Runs worlds: `python -m tests.world --for 60s`, `--runs M`, `--seed N` for one again, or `--mutants`."""

import argparse
import sys
import time
from secrets import randbelow

from a2asgi.times import duration_ms
from tests.world.explore import Exploration, described, explore, shrink
from tests.world.mutants import MUTANTS, table
from tests.world.scenario import Scenario
from tests.world.world import run_world

SEEDS = 10**9


def main(arguments: list[str]) -> int:
    """Run what is asked for; 1 if a law was broken, or a mutant survived."""
    parser = argparse.ArgumentParser(prog="python -m tests.world", description=__doc__)
    parser.add_argument("--seed", type=int, help="one world, with its trace")
    parser.add_argument("--runs", type=int, help="so many worlds")
    parser.add_argument("--for", dest="span", help='worlds for so long, such as "60s"')
    parser.add_argument("--base", type=int, help="the first seed of --runs, --for and --mutants; random unless given")
    parser.add_argument("--mutants", action="store_true", help="break each rule in turn, and see it caught")
    asked = parser.parse_args(arguments)
    base = randbelow(SEEDS) if asked.base is None else asked.base
    if asked.seed is not None:
        return _replay(asked.seed)
    failed = False
    if asked.span is not None or asked.runs is not None:
        print(f"worlds from seed {base} on")
        ends_at = time.monotonic() + (duration_ms(asked.span) / 1_000 if asked.span is not None else 10**9)
        most = asked.runs if asked.runs is not None else SEEDS
        failed = _explored(explore(base, lambda worlds: worlds < most and time.monotonic() < ends_at))
    if asked.mutants:
        print(f"{len(MUTANTS)} mutants, in worlds from seed {base} on")
        failed |= not table(base)
    return int(failed)


def _replay(seed: int) -> int:
    report = run_world(Scenario.draw(seed))
    print("\n".join(report.lines()))
    print("\n".join(described(report)))
    return int(report.breach is not None)


def _explored(exploration: Exploration) -> bool:
    print(
        f"{exploration.worlds} worlds, {exploration.events} events, {exploration.seconds:.1f} s: "
        f"{exploration.per_minute:.0f} worlds a minute"
    )
    found = exploration.found
    if found is None:
        return False
    print("\n".join(described(found)))
    smallest = shrink(found)
    if smallest is not found:
        print("a smaller world in which the same law is broken:")
        print("\n".join(described(smallest)))
    print(f"again: python -m tests.world --seed {found.scenario.seed}")
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
