"""A site in trouble costs the others little: at most twice the p99 that their commits have without it."""

from __future__ import annotations

from functools import cache

import pytest
from zenjun.proto.service.database.machine import Durability, Machine

from ..rules import rule
from . import broken_database as broken
from .database_pace import TROUBLES, Pace, p99

MAJORITY, ALL = Durability.MAJORITY, Durability.ALL
CASES = [(trouble, MAJORITY) for trouble in TROUBLES[1:]] + [("full", ALL), ("rebuilding", ALL)]
"""Who commits on all disks waits for the slow one, and has asked for that."""


def ratio(trouble: str, durability: Durability, machine: type[Machine] = Machine, *, donor_waits: bool = False) -> float:
    """Of the p99 with the trouble to the one without it."""
    troubled = Pace(trouble, durability, machine, donor_waits=donor_waits)
    during = troubled.run()
    assert len(during) > 300 and not troubled.rejected
    assert trouble != "rebuilding" or troubled.transfers == 1
    if trouble == "full" and machine is Machine:
        assert max(client for _, client in troubled.sites) > 3, "it has tried several times"
    return p99(during) / calm(durability)


@cache
def calm(durability: Durability) -> int:
    """The p99 without trouble."""
    run = Pace("none", durability)
    latencies = run.run()
    assert len(latencies) > 300 and not run.rejected
    return p99(latencies)


@rule("D6")
@pytest.mark.parametrize(("trouble", "durability"), CASES)
def test_a_site_in_trouble_costs_the_others_little(trouble: str, durability: Durability) -> None:
    assert ratio(trouble, durability) <= 2


@rule("D6")
@pytest.mark.parametrize(
    ("trouble", "durability", "machine", "donor_waits"),
    [
        ("slow", MAJORITY, broken.WaitsForAll, False),
        ("full", ALL, broken.StaysActive, False),
        ("rebuilding", MAJORITY, Machine, True),
    ],
)
def test_a_broken_rule_is_seen(trouble: str, durability: Durability, machine: type[Machine], donor_waits: bool) -> None:
    assert ratio(trouble, durability, machine, donor_waits=donor_waits) > 4
