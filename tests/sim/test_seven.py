"""The seven steps: every property in many histories, every broken rule caught, and every situation met."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from ..rules import rule
from . import broken_seven as broken
from .history_asserts import assert_holds, assert_same_again, block, caught
from .seven import Plan, World, simulate
from .seven_checks import CHECKERS

SEEDS = 160
VARIANT_SEEDS = 400
"""Seeds until a broken rule must have been caught."""


@pytest.mark.parametrize("number", range(4))
def test_seeds(number: int) -> None:
    """Crashes, power cuts, expulsions, ends of the instance: all properties hold, and it comes to rest."""
    assert_holds(simulate, block(number, SEEDS // 4))


CRASHES: dict[str, Any] = {
    "stations": 4,
    "steps": 500,
    "updates": 0.3,
    "faults": 0.03,
    "kinds": ("crash", "restart"),
    "durable": 0.0,
}
DARK: dict[str, Any] = {"stations": 3, "steps": 500, "updates": 0.3, "faults": 0.02, "kinds": ("dark", "restart"), "durable": 1.0}
ENDS: dict[str, Any] = {"stations": 4, "steps": 500, "updates": 0.3, "faults": 0.03, "kinds": ("end", "restart"), "slow": 0.01}
BUSY: dict[str, Any] = {"stations": 5, "steps": 1000, "updates": 0.5, "faults": 0.0, "slow": 0.01}

STAGES: dict[str, dict[str, Any]] = {
    "BlindToOthers": {**CRASHES, "unicast": True},
    "DropsKept": CRASHES,
    "ViewsOvertake": CRASHES,
    "NotAgain": {**CRASHES, "stations": 3, "steps": 600, "kinds": ("crash", "restart", "restart")},
    "DoneBeforeDisk": DARK,
    "StartForgets": ENDS,
    "NumberStays": BUSY,
    "KeepsLocks": CRASHES,
}
"""Plans in which the broken rule matters often."""

APART = {"wrong", "served", "content", "copy", "kept", "one", "start", "fair"}
"""Two attempts at once, or copies that differ; which of these checkers sees it first is chance."""
CAUGHT_BY: dict[str, set[str]] = {
    "Restores": APART,
    "SilenceConsents": APART,
    "FixedNumbers": {"fair"},
    "FailedList": APART,
    "ViewEnds": {"stuck", *APART},
    "BlindToOthers": APART,
    "HoldsNothing": {"stuck"},
    "NumberStays": APART,
    "AnyLife": {"stuck", *APART},
    "NeverYields": {"stuck"},
    "NotAgain": {"stuck"},
    "MostGrant": APART,
    "DoneBeforeDisk": {"kept"},
    "DropsKept": APART,
    "OwnerStays": {"locked"},
    "NotStruck": {"stuck", *APART},
    "KeepsLock": {"stuck", "locked"},
    "StartForgets": APART,
    "NeverClosed": {"served"},
    "CopiesEarly": APART,
    "KeepsLocks": APART,
    "ViewsOvertake": {"stuck", *APART},
    "ForgetsKept": {"kept"},
}
"""Broken rule to the checkers that may catch it first."""

CAUGHT_AT = {"DropsKept": 362, "KeepsLocks": 338, "NumberStays": 90}
"""The first seed that showed it, where the seeds before it took most of the time of these tests."""


@rule("U1", "U2", "U3", "U4", "U5", "U6", "U7", "U8", "U9", "U10", "F1", "F2", "F3", "F4", "F5", "F6")
@pytest.mark.parametrize("name", CAUGHT_BY)
def test_a_broken_rule_is_caught(name: str) -> None:
    def plan(seed: int) -> Plan:
        return replace(Plan.draw(seed), **STAGES.get(name, {}))

    parts = dict(broken.PARTS[name])
    known = CAUGHT_AT.get(name, 0)
    checker, seed = caught(lambda k: simulate(k, plan(k), **parts), lambda k: simulate(k, plan(k)), VARIANT_SEEDS, known)
    assert checker in CAUGHT_BY[name], f"{checker or 'nothing'} at seed {seed}"


def test_every_broken_rule_is_tried() -> None:
    assert set(broken.PARTS) == set(CAUGHT_BY)
    assert {c for checkers in CAUGHT_BY.values() for c in checkers} <= CHECKERS


def test_the_situations_are_met() -> None:
    """Copies, cold starts with data that was kept, attempts that a crash or the end of the instance has cut, callers answered."""
    met: Counter[str] = Counter()
    for seed in range(20):
        for changes in ({}, CRASHES, ENDS):
            world = World(replace(Plan.draw(seed), **changes))
            world.run()
            met += world.met + Counter(durable=len(world.checks.durable), told=len(world.checks.told))
    for situation in ("copy", "start", "kept counts", "end", "lost", "crash", "finished", "durable", "told"):
        assert met[situation], met


def test_a_run_is_the_same_again() -> None:
    assert_same_again(lambda: World(Plan.draw(11)))
