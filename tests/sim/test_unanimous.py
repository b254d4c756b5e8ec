"""Databases in mode unanimous: every property in many histories, every broken rule caught, and every situation met."""

from __future__ import annotations

from collections import Counter

import pytest

from ..rules import rule
from . import broken_unanimous as broken
from .database_plan import Plan
from .history_asserts import assert_holds, assert_same_again, block, caught
from .test_database import JOINS, PARTS, POWER, honest, stage
from .unanimous import CHECKERS, World, simulate

SEEDS = 16
VARIANT_SEEDS = 200
"""Seeds until a broken rule must have been caught."""


@pytest.mark.parametrize("number", range(2))
def test_seeds(number: int) -> None:
    """Crashes, power cuts, expulsions, new disks, disks that fail: all properties hold, and it comes to rest."""
    assert_holds(simulate, block(number, SEEDS // 2))


CAUGHT_BY: dict[str, set[str]] = {
    "LowerFirst": {"verdict", "rest", "closed"},
    "GrantsOpen": {"closed"},
    "SilenceGrants": {"closed"},
    "ReleasesEarly": {"disks"},
    "LockSurvives": {"rest"},
    "UnlocksByTime": {"disks", "shared"},
    "ShowsWhatIsLeft": {"old", "gate"},
    "ShowsEarly": {"durable"},
}
"""Broken rule to the checkers that may catch it first."""


@rule("N1", "N2", "N3", "N5", "N6", "N7", "N8")
@pytest.mark.parametrize("name", CAUGHT_BY)
def test_a_broken_rule_is_caught(name: str) -> None:
    def plan(seed: int) -> Plan:
        return (POWER if name == "ShowsEarly" else honest)(Plan.draw(seed))

    parts = broken.PARTS[name]
    checker, seed = caught(lambda k: simulate(k, plan(k), **parts), lambda k: simulate(k, plan(k)), VARIANT_SEEDS)
    assert checker in CAUGHT_BY[name], f"{checker or 'nothing'} at seed {seed}"


def test_every_broken_rule_is_tried() -> None:
    assert set(broken.PARTS) == set(CAUGHT_BY)
    assert {c for checkers in CAUGHT_BY.values() for c in checkers} <= CHECKERS


def test_the_situations_are_met() -> None:
    """Programs that read and that wait, transactions that are rejected, sent again, sent in parts, locks alone, faults."""
    met: Counter[str] = Counter()
    locked = stage(stations=3, steps=150, locks=0.05, faults=0.03)
    for seed in range(4):
        for make in (honest, POWER, JOINS, PARTS, locked):
            world = World(make(Plan.draw(seed)))
            world.run()
            met += world.met
    wanted = "looks waits done conflict granted undecided again log transfer failed power-all"
    for situation in (*wanted.split(), "reads first"):
        assert met[situation], met


def test_a_run_is_the_same_again() -> None:
    assert_same_again(lambda: World(Plan.draw(11)))
