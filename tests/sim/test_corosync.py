"""Corosync's stand-in: every property in many histories, every broken rule caught, and every situation met."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from ..amounts import amount
from ..rules import rule
from . import broken_corosync as broken
from .corosync import World, simulate
from .corosync_checks import CHECKERS
from .corosync_plan import Plan
from .history_asserts import assert_holds, assert_same_again, assert_same_for_every_hash, block, caught

SEEDS = amount(80, 160)
VARIANT_SEEDS = 300
"""Seeds until a broken rule must have been caught."""


@pytest.mark.parametrize("number", range(4))
def test_seeds(number: int) -> None:
    """Stand-ins and daemons die, stations are cut off, instances end: all properties hold, and it comes to rest."""
    assert_holds(simulate, block(number, SEEDS // 4))


CUTS: dict[str, Any] = {
    "stations": 3,
    "steps": 300,
    "faults": 0.2,
    "kinds": ("cut", "cut", "pause"),
    "back": 0.3,
    "lag": 0.8,
    "dies": 0,
    "alone_after": 0,
}
CALM: dict[str, Any] = {"faults": 0, "steps": 300, "parts": 0.4, "dies": 0}
VOTES: dict[str, Any] = {"stations": 3, "steps": 300, "faults": 0.08, "votes": 0.5}

ALIKE: dict[str, Any] = {"faults": 0, "steps": 300, "lag": 0.8, "dies": 0, "pids": 1}

STAGES: dict[str, dict[str, Any]] = {"OneLife": CUTS, "PassesParts": CALM, "ForgetsVotes": VOTES, "AnyEnd": ALIKE}
"""Plans in which the broken rule matters often."""

CAUGHT_AT: dict[str, int] = {
    "NoLives": 60,
    "PassesParts": 13,
    "WaitsOnce": 35,
}
"""The seed that showed it last, where that is not one of the first few. After a change another one may be the first."""

CAUGHT_BY: dict[str, set[str]] = {
    "LetsAnybodyIn": {"nodelist"},
    "Forgets": {"rise"},
    "BeyondReserve": {"rise", "same", "agree"},
    "NoLives": {"same", "agree"},
    "OneLife": {"same", "agree"},
    "ViewsOnly": {"alone"},
    "StaysConnected": {"rest", "apart"},
    "DropsOwn": {"self"},
    "LeavesAtOnce": {"first"},
    "GroupsFirst": {"first"},
    "KeepsLists": {"apart", "virtual", "rest"},
    "BehindTheList": {"rest", "virtual"},
    "DoesNotWait": {"virtual", "rest"},
    "CountsAnew": {"virtual", "rest", "lists"},
    "NodeUpAsJoin": {"reason"},
    "OwnNodeDown": {"own"},
    "OnlyChanged": {"services"},
    "SamePid": {"self"},
    "AnyEnd": {"self"},
    "DropsOverload": {"self"},
    "DeafLeaver": {"self"},
    "PassesParts": {"torn"},
    "QuorumFirst": {"services"},
    "CountsSeen": {"quorum", "agree"},
    "OwnExpected": {"agree"},
    "ForgetsVotes": {"agree"},
    "NeverWaits": {"waits"},
    "WaitsOnce": {"waits", "agree"},
    "AnyHalf": {"quorum"},
}
"""Broken rule to the checkers that may catch it first."""


@rule("Y2", "Y3", "Y4", "Y5", "Y6", "Y7", "Y8", "Y9", "Y10", "Y11", "Y12")
@pytest.mark.parametrize("name", CAUGHT_BY)
def test_a_broken_rule_is_caught(name: str) -> None:
    def plan(seed: int) -> Plan:
        return replace(Plan.draw(seed), **STAGES.get(name, {}))

    parts = dict(broken.PARTS[name])
    checker, seed = caught(
        lambda k: simulate(k, plan(k), **parts), lambda k: simulate(k, plan(k)), VARIANT_SEEDS, CAUGHT_AT.get(name, 0)
    )
    assert checker in CAUGHT_BY[name], f"{checker or 'nothing'} at seed {seed}"


def test_every_broken_rule_is_tried() -> None:
    assert set(broken.PARTS) == set(CAUGHT_BY)
    assert {c for checkers in CAUGHT_BY.values() for c in checkers} <= CHECKERS


def test_the_situations_are_met() -> None:
    """All faults, stand-ins that die between two effects, nodes left apart, groups that are full, messages cut short."""
    met: Counter[str] = Counter()
    for seed in range(24):
        for changes in ({}, CUTS, CALM, VOTES):
            world = World(replace(Plan.draw(seed), **changes))
            world.run()
            met += world.met
    wanted = (
        "kill daemon cut reopen pause stop odd died apart instance parts OK EXIST TRY_AGAIN NO_RESOURCES INTERRUPT INVALID_PARAM"
    )
    for situation in wanted.split():
        assert met[situation], met


def test_a_run_is_the_same_again() -> None:
    assert_same_again(lambda: World(Plan.draw(11)))


_RINGS = """
from tests.sim.corosync import World
from tests.sim.corosync_plan import Plan
for seed in range(5):
    world = World(Plan.draw(seed))
    world.run()
    print(len(world.log), sorted(world.checks.rings.items()))
"""


def test_nothing_depends_on_the_order_of_a_hash() -> None:
    """Interpreters whose text hashes differ, and with them the order of sets, come to the same histories."""
    assert_same_for_every_hash(_RINGS, 5, ("1", "2"))
