"""The simulation in the test run: a few worlds, those that once failed, determinism, and whether mutants are caught."""

import os
import subprocess
import sys

import pytest

from tests.world.explore import explore, shrink
from tests.world.kept import KEPT
from tests.world.laws import Law
from tests.world.mutants import MUTANTS, Mutant, hunt
from tests.world.scenario import Scenario
from tests.world.world import run_world

WORLDS = 60
TRACE = """
from tests.world.scenario import Scenario
from tests.world.world import run_world
for seed in range(3, 9):
    print("\\n".join(run_world(Scenario.draw(seed)).lines()))
"""


def test_the_laws_hold_in_a_few_worlds() -> None:
    explored = explore(1, lambda worlds: worlds < WORLDS)
    assert (WORLDS, None) == (explored.worlds, explored.found and explored.found.breach)


@pytest.mark.parametrize(("seed", "found"), KEPT.items())
def test_what_was_found_once_is_not_found_again(seed: int, found: str) -> None:
    assert None is run_world(Scenario.draw(seed)).breach


def test_a_seed_is_one_world_whatever_the_process() -> None:
    """The same trace twice, also where hashes and addresses are others."""
    traces = [
        subprocess.run(
            [sys.executable, "-c", TRACE],
            env={**os.environ, "PYTHONHASHSEED": salt},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for salt in ("1", "2")
    ]
    assert 100 < traces[0].count("\n")
    assert traces[0] == traces[1]


def test_a_seed_is_one_world_within_a_process() -> None:
    seeds = range(10, 30)
    first = [run_world(Scenario.draw(seed)).lines() for seed in seeds]
    assert first == [run_world(Scenario.draw(seed)).lines() for seed in seeds]


def test_a_failing_world_has_a_smaller_one_that_fails_the_same_way() -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == "an append has no wake-up")
    with mutant.loose():
        found = explore(1, lambda worlds: worlds < 10).found
        assert found is not None
        smallest = shrink(found)
    assert (1, Law.WAKE) == (smallest.scenario.steps, smallest.breach and smallest.breach.law)


@pytest.mark.parametrize("mutant", MUTANTS[::4], ids=lambda mutant: mutant.name)
def test_a_broken_rule_is_caught(mutant: Mutant) -> None:
    assert None is not hunt(mutant, 1, budget=500).law
