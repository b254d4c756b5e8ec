"""Links that repair what the wire loses, under the rules of order: loss, copies, holes, one-way cuts (rules L1-L4)."""

from __future__ import annotations

import pytest
from zenjun.proto.multicast.records import Joined
from zenjun.proto.multicast.tables import Program

from ..rules import rule
from ..sim.history_asserts import assert_holds
from .multicast import broken
from .multicast.counts import SIZES, Count, count, printed, table
from .multicast.link import LinkEnd
from .multicast.lossy import LossyWorld
from .multicast.net import MS
from .multicast.world import Plan, simulate

SEEDS = 60
VARIANT_SEEDS = 100


def test_seeds_with_loss() -> None:
    """All properties of the abstract links' runs, and of the links: each record once, in order; no removal without a cut."""
    assert_holds(lambda seed: simulate(seed, kind=LossyWorld), range(SEEDS))


@pytest.mark.parametrize("seed", [1803710567, 1803710641, 1803711611])
@rule("L2")
def test_seeds_with_loss_that_once_failed(seed: int) -> None:
    """NAKs counted as answers to POLLs, so data for an address that a hole swallows never went to the group; a station that is
    cut off got a view behind what only it had."""
    assert_holds(lambda seed: simulate(seed, kind=LossyWorld), [seed])


CAUGHT: dict[type[LinkEnd], tuple[str, int]] = {
    broken.NoPoll: ("complete", 1),
    broken.NoFallback: ("link", 0),
    broken.AnswerByAddress: ("link", 0),
    broken.AnyLink: ("link", 0),
    broken.CalledForGood: ("addresses", 0),
    broken.CallersCall: ("addresses", 0),
}
"""Each broken rule with the checker that catches it, and the first seed."""


@pytest.mark.parametrize("defect", CAUGHT, ids=lambda defect: defect.__name__)
@rule("L1", "L2", "L3")
def test_a_broken_rule_of_links_is_caught(defect: type[LinkEnd]) -> None:
    checker, first = CAUGHT[defect]
    seeds = range(first, first + VARIANT_SEEDS)
    assert any(simulate(seed, defect, None, frozenset({checker}), LossyWorld) for seed in seeds)


def three(end: type[LinkEnd], cuts: set[tuple[int, int]], holes: set[tuple[int, int]]) -> LossyWorld:
    """Stations 1, 2, 3 in one group; 1 sends ten messages over links with these cuts and holes, and a second passes."""
    run = LossyWorld(Plan(7, stations=3, groups=("token",), slow=1 * MS, detect=1 * MS, settle=1 * MS))
    run.loss, run.end_class = 0.0, end
    run._cuts, run._holes, run._was_cut = cuts, holes, bool(cuts)
    run.start(dict.fromkeys((1, 2, 3), 1), [Joined(Program(z, 1, 1), 1, "token") for z in (1, 2, 3)])
    for k in range(10):
        run.at(10 * MS + k * 20 * MS, lambda: run.send(1, [1]))
    run.run_until(1_000 * MS)
    return run


def unfinished(run: LossyWorld) -> int:
    machine = run.hosts[1, 1].machine
    assert machine is not None
    return len(machine.unfinished)


@rule("L4")
def test_a_link_that_stands_still_has_the_other_end_removed() -> None:
    run = three(LinkEnd, {(1, 2)}, set())
    assert run.stuck >= 1 and not unfinished(run)
    run = three(broken.NeverStuck, {(1, 2)}, set())
    assert run.stuck == 0 and unfinished(run) == 4, "a full window, for ever"


@rule("L2")
@pytest.mark.parametrize("hole", [(1, 2), (2, 1)])
def test_frames_go_to_the_group_address_where_a_hole_swallows_others(hole: tuple[int, int]) -> None:
    run = three(LinkEnd, set(), {hole})
    assert run.stuck == 0 and not unfinished(run)


# ---- the paper's table


@pytest.mark.parametrize("inside", [False, True])
def test_every_number_of_the_table_is_the_papers(inside: bool) -> None:
    """3N with ABCAST, 2N + n - 2 with tokens; from inside 3N - 3 and 2N + n - 3."""
    for stations in SIZES:
        assert count("abcast", stations, 1, inside).total == printed("abcast", stations, 1, inside)
        for tokens in range(1, stations + 1):
            assert count("token", stations, tokens, inside).total == printed("token", stations, tokens, inside)


@rule("O2")
def test_the_records_of_the_table() -> None:
    assert count("abcast", 5, 1, inside=False) == Count(5, 5, 5)
    assert count("token", 5, 3, inside=False) == Count(5, 2, 4)
    assert count("token", 5, 3, inside=True) == Count(4, 2, 4)
    assert list(table(inside=False))[2] == "| 2 | 6 | 3 | 4 | | | | | | |"
