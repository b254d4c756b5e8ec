"""The machine whose open era is in C: all properties in many histories, and in each the same as its twin in Python wants."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import replace

import pytest
from zenjun.proto.core._core import lib
from zenjun.proto.multicast.fast import FastStation, stations_of
from zenjun.proto.multicast.main import MainOrder
from zenjun.proto.multicast.records import Broadcast, Closed, Entry, Flush, Joined, Left
from zenjun.proto.multicast.tables import ORDERS, Program, TokenTable

from ..rules import rule
from ..sim.history_asserts import assert_holds, block
from ..sim.violation import Violation
from .multicast.cores import CoreWorld
from .multicast.inc import DEFECTS, Beside, ByTake
from .multicast.world import simulate

SEEDS = 20
CORE_SEEDS = 2
TAKE_SEEDS = 4
VARIANTS_FROM = 1799110036
VARIANT_SEEDS = 60


def run(seed: int) -> Violation | None:
    return simulate(seed, Beside)


def run_on_cores(seed: int) -> Violation | None:
    return simulate(seed, Beside, kind=CoreWorld)


@pytest.mark.parametrize("number", range(2))
def test_seeds(number: int) -> None:
    assert_holds(run, block(number, SEEDS // 2))


def test_seeds_in_which_c_reads_what_cores_have_accepted() -> None:
    assert_holds(lambda seed: simulate(seed, ByTake), block(0, TAKE_SEEDS))


def test_seeds_on_cores() -> None:
    assert_holds(run_on_cores, block(0, CORE_SEEDS))


@pytest.mark.parametrize("seed", [1796082474, 1806006222])
def test_relays_are_apart_from_what_the_next_era_says(seed: int) -> None:
    """The machine in Python said STABLE of the era that it opened before the relay without which its receiver cannot open it; and
    HELD went at once because a relay went, too."""
    assert run_on_cores(seed) is None


@pytest.mark.parametrize("seed", [1799101073, 1799101161])
def test_seeds_that_once_failed(seed: int) -> None:
    """What came back from C was two copies of each message: one was delivered, the other one, not delivered, was given to C."""
    assert run(seed) is None


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.__name__)
@rule("E1", "E5", "E6", "O7")
def test_what_is_lost_between_c_and_python_is_caught(defect: type[Beside]) -> None:
    assert any(simulate(seed, defect) for seed in range(VARIANTS_FROM, VARIANTS_FROM + VARIANT_SEEDS)), "nobody sees it"


@rule("E1")
def test_c_has_the_groups_of_each_era() -> None:
    """It gets what differs from the era before: members that come and go, groups that are left by all, and joined again."""
    r, programs = random.Random(14), [Program(z, 1, client) for z in (1, 2, 3) for client in (1, 2)]
    machine = FastStation(1, MainOrder.begin(1, dict.fromkeys((1, 2, 3), 1)), direct=True)
    machine.begin()
    joined: set[tuple[Program, int]] = set()
    for k in range(300):
        one = (r.choice(programs), r.randint(1, 8))
        entries: deque[Entry] = deque([Left(*one) if one in joined else Joined(*one, ORDERS[one[1] % 2])])
        joined ^= {one}
        while entries:
            for effect in machine.on_entry(0, entries.popleft()):
                if isinstance(effect, Broadcast) and isinstance(effect.entry, Flush | Closed):
                    entries.extend(replace(effect.entry, station=z) for z in (1, 2, 3))
        for group in range(10):
            stations = {p.station for p, g in joined if g == group}
            for order, name in enumerate(ORDERS):
                here = stations if ORDERS[group % 2] == name else set()
                assert stations_of(lib.zj_multi_members(machine._multi, order, group)) == here, (k, group)
                assert machine.era.tables[name].groups.get(group, set()) == here
    table = machine.era.tables["token"]
    assert vars(table)["_own"] == vars(TokenTable(table.groups))["_own"]
