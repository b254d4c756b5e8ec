"""The machine whose open era is in C: all properties in many histories, and in each the same as its twin in Python wants."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import replace

import pytest
from zenjun.proto.core._core import lib
from zenjun.proto.multicast.fast import FastStation, stations_of
from zenjun.proto.multicast.main import MainOrder
from zenjun.proto.multicast.records import Broadcast, Closed, Data, Deliver, Entry, Flush, Id, Joined, Left, Report
from zenjun.proto.multicast.tables import ORDERS, Program, TokenTable

from ..rules import rule
from ..sim.history_asserts import assert_holds, block
from ..sim.violation import Violation
from .multicast.cores import CoreWorld
from .multicast.inc import DEFECTS, Beside, ByTake, NoisyWorld
from .multicast.world import simulate

SEEDS = 20
CORE_SEEDS = 2
TAKE_SEEDS = 4
NOISE_SEEDS = 40
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


def run_with_noise(seed: int) -> Violation | None:
    return simulate(seed, Beside, only=frozenset(), kind=NoisyWorld)


@rule("E7", "O4", "O7", "S1")
def test_records_that_no_station_should_send() -> None:
    """Repeated, to a stranger, with another number, time, count: C drops what its twin drops, and goes on as that does."""
    assert_holds(run_with_noise, block(0, NOISE_SEEDS))


def member(stations: tuple[int, ...], window: int) -> tuple[Beside, Callable[..., list[int]]]:
    """Station 2 of three, in a group of order token with these, and what it delivers when messages of 1 come."""
    machine = Beside(2, MainOrder.begin(1, dict.fromkeys((1, 2, 3), 1)), window)
    machine.begin()
    for z in stations:
        for effect in machine.on_entry(0, Joined(Program(z, 1, 1), 1, "token")):
            if isinstance(effect, Broadcast) and isinstance(effect.entry, Flush):
                for station in (1, 2, 3):
                    machine.on_entry(0, replace(effect.entry, station=station))
                for station in (1, 2, 3):
                    machine.on_entry(0, Closed(effect.entry.opens, station, ()))

    def come(*numbers: int) -> list[int]:
        era = machine.era.number
        data = [Data(Id(era, 1, n), Program(1, 1, 1), "token", (1,), 0, b"%d" % n) for n in numbers]
        return [e.id.number for d in data for e in machine.on_pdus(0, [(1, [d])]) if isinstance(e, Deliver)]

    return machine, come


@rule("S4")
def test_numbers_that_are_finished() -> None:
    """Of the last two windows each is known, below that all are."""
    machine, come = member((2,), window=2)
    assert come(1, 2, 3, 4, 7) == [1, 2, 3, 4, 7]
    assert come(7, 4, 6) == [6] and machine.n_dropped == 2
    machine, come = member((2,), window=2)
    assert come(1, 9, 4, 9, 8) == [1, 9, 8] and machine.n_dropped == 2


@rule("O4")
def test_what_comes_too_late_or_too_often_is_dropped() -> None:
    """A number below the program's last one; reports of messages that have not come, beyond what can be right."""
    machine, come = member((2, 3), window=1)
    assert come(5, 4) == [5] and machine.n_dropped == 1
    reports = [Report(machine.era.number, "token", 1, 10 + k, 1, 1) for k in range(9)]
    machine.on_pdus(0, [(3, reports)])
    assert machine.n_reports == 2 * 1 * 3 and machine.n_dropped == 5, "one of these is its own, of what has come"
