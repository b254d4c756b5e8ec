"""The directory: every property in many histories, every broken rule caught, and every situation met."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ..amounts import amount
from . import broken_directory as broken
from .directory import World, simulate
from .directory_checks import CHECKERS
from .directory_plan import Plan
from .history_asserts import assert_holds, assert_same_again, assert_same_for_every_hash, block, caught

SEEDS = amount(60, 120)
VARIANT_SEEDS = 300
"""Seeds until a broken rule must have been caught."""


@pytest.mark.parametrize("number", range(4))
def test_seeds(number: int) -> None:
    """Crashes, expulsions, pauses, power cuts, wrong clocks, what is no message: all properties hold, and it comes to rest."""
    assert_holds(simulate, block(number, SEEDS // 4))


def stage(**changes: Any) -> Callable[[Plan], Plan]:
    return lambda plan: replace(plan, **changes)


def honest(plan: Plan) -> Plan:
    return plan


CLOCKS = stage(
    stations=3,
    steps=250,
    names=("a", "b"),
    operations=("Set", "SetSchedule", "Switch"),
    updates=0.3,
    registers=0,
    wrong_clock=3600,
)
LEASES = stage(stations=3, steps=250, names=("web",), operations=("Out", "In"), updates=0.02, registers=0.3, faults=0.1)
MOVES = stage(
    stations=3, steps=250, names=("a", "b"), operations=("Set", "Move", "SetZone"), updates=0.3, registers=0, faults=0.02, asks=6
)
ZONES_DOWN = stage(
    stations=5, steps=250, names=("a", "b"), operations=("Set", "Move", "SetZone"), updates=0.3, registers=0, faults=0.1, asks=6
)

STAGES: dict[str, Callable[[Plan], Plan]] = {
    "AnyClock": CLOCKS,
    "CountsLeft": CLOCKS,
    "NeverBack": CLOCKS,
    "ViewMovesNothing": CLOCKS,
    "NextOfAnyVersion": CLOCKS,
    "NextAgain": stage(
        stations=3,
        steps=250,
        names=("a",),
        operations=("Set", "SetSchedule"),
        updates=0.2,
        registers=0,
        faults=0,
        wrong_clock=-3600,
        wrong_station=1,
    ),
    "Forgives": stage(kinds=("bad",), faults=0.3),
    "ByStation": LEASES,
    "ForgetsWaiting": LEASES,
    "QueueByArrival": LEASES,
    "LeasesSurvive": lambda plan: replace(LEASES(plan), kinds=("cut", "save")),
    "NoFullTtl": LEASES,
    "AskBlind": MOVES,
    "FixedManager": ZONES_DOWN,
    "KeepsForAll": MOVES,
    "CheckAtSend": stage(stations=3, steps=250, names=("a", "b", "c"), operations=("Alias",), updates=0.4, registers=0),
}
"""Plans in which the broken rule matters often."""

CAUGHT_AT: dict[str, int] = {
    "AskBlind": 24,
    "FixedManager": 20,
    "ForgetsRemovals": 13,
    "QueueByArrival": 37,
    "ViewMovesNothing": 10,
}
"""The seed that showed it last, where that is not one of the first few. After a change another one may be the first."""

CAUGHT_BY: dict[str, set[str]] = {
    "ReadsClock": {"reference", "equal"},
    "CountsLeft": {"reference", "equal"},
    "AnyClock": {"reference", "early"},
    "NeverBack": {"reference"},
    "ViewMovesNothing": {"reference"},
    "NextOfAnyVersion": {"reference", "slot"},
    "NextAgain": {"reference", "slot"},
    "NoOutcomes": {"once", "outcome"},
    "ByStation": {"reference", "lease-gone"},
    "ForgetsWaiting": {"reference", "lease-gone"},
    "QueueByArrival": {"reference"},
    "PartOfAll": {"outcome"},
    "DeadStay": {"reference"},
    "TakesStrangers": {"outcome"},
    "ForgetsRemovals": {"copy"},
    "LeasesSurvive": {"reference", "lease-gone"},
    "Forgives": {"malformed"},
    "CheckAtSend": {"circle", "outcome"},
    "NoFullTtl": {"lease-kept"},
    "Unmarked": {"watch"},
    "DropsLatest": {"watch"},
    "AskBlind": {"hops", "back"},
    "FixedManager": {"zone-down"},
    "KeepsForAll": {"back"},
    "OwnSuspicion": {"equal", "answer", "reference"},
    "AnswersEarly": {"exclusive"},
    "PlaceIgnored": {"back"},
    "AtOrdered": {"answer"},
}
"""Broken rule to the checkers that may catch it first."""


@pytest.mark.parametrize("name", CAUGHT_BY)
def test_a_broken_rule_is_caught(name: str) -> None:
    def plan(seed: int) -> Plan:
        return STAGES.get(name, honest)(Plan.draw(seed))

    parts = dict(broken.PARTS[name])
    checker, seed = caught(
        lambda k: simulate(k, plan(k), **parts), lambda k: simulate(k, plan(k)), VARIANT_SEEDS, CAUGHT_AT.get(name, 0)
    )
    assert checker in CAUGHT_BY[name], f"{checker or 'nothing'} at seed {seed}"


def test_every_broken_rule_is_tried() -> None:
    assert set(broken.PARTS) == set(CAUGHT_BY)
    assert {c for checkers in CAUGHT_BY.values() for c in checkers} <= CHECKERS


def test_the_situations_are_met() -> None:
    """Deltas, full copies, cold starts, gaps, look-ups that are forwarded and bounce, and timers that take effect."""
    met: Counter[str] = Counter()
    for seed in range(12):
        for make in (honest, CLOCKS, MOVES):
            world = World(make(Plan.draw(seed)))
            world.run()
            met += world.met + Counter(
                forwarded=world.asking.forwarded, answered=world.asking.answered, bounced=world.asking.bounced,
                kept=world.asking.kept, down=world.asking.down,
            )  # fmt: skip
            met["fired"] += len(world.oracle.fired)
    for situation in ("delta", "full", "start", "gap", "forwarded", "answered", "bounced", "kept", "down", "fired"):
        assert met[situation], met


def test_a_run_is_the_same_again() -> None:
    assert_same_again(lambda: World(Plan.draw(11)))


_SUMS = """
from tests.sim.directory import World
from tests.sim.directory_plan import Plan
for seed in range(6):
    world = World(Plan.draw(seed))
    world.run()
    print(len(world.trace), [(p.state.main, p.state.rest) for p in world.live()])
"""


def test_nothing_depends_on_the_order_of_a_hash() -> None:
    """Interpreters whose text hashes differ, and with them the order of sets, come to the same sums."""
    assert_same_for_every_hash(_SUMS, 6, ("1", "2", "3"))
