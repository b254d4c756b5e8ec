"""Frame sizes in virtual time: what passes is found, what does not is found to be so; broken machines are caught.

More seeds: ``python -m tests.model.sizes 1000``."""

from __future__ import annotations

import pytest
from zenjun.proto.pieces import Joiner
from zenjun.proto.sizes import Sizes

from ...rules import rule
from .broken import MACHINES, Impatient, LimitOfUpLinks, PieceUnbounded
from .runs import Run, Violation, alone, steady, unfinished


@rule("J13", "J14", "J15", "J16", "J17")
@pytest.mark.parametrize("seed", range(4))
def test_runs(seed: int) -> None:
    Run(seed).run()


@rule("J13")
def test_the_loss_of_a_link_changes_no_size() -> None:
    steady(Sizes)
    with pytest.raises(Violation, match="steady"):
        steady(LimitOfUpLinks)


@rule("J19")
def test_a_station_that_nobody_answers_is_quiet() -> None:
    alone(Sizes)
    with pytest.raises(Violation, match="quiet"):
        alone(Impatient)


@pytest.mark.parametrize(
    ("check", "machine"), [(c, m) for c, machines in MACHINES.items() for m in machines], ids=lambda x: getattr(x, "__name__", x)
)
def test_a_broken_machine_is_caught(check: str, machine: type[Sizes]) -> None:
    for seed in range(40):
        try:
            Run(seed, machine).run()
        except Violation as violation:
            if str(violation).startswith(check):
                return
    pytest.fail(f"{machine.__name__} is not caught in 40 runs")


@rule("J18")
def test_unfinished_pieces_are_bounded() -> None:
    unfinished(Joiner)
    with pytest.raises(Violation, match="bounded"):
        unfinished(PieceUnbounded)
