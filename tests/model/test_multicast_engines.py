"""Groups that overlap on whole engines in virtual time: latency in hops, and what a death outside costs them."""

from __future__ import annotations

import pytest

from ..rules import rule
from ..virtual.overlap import CASES, Case, hops, pause
from ..virtual.segment import MS, US


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.text)
@rule("O2", "O4", "O7")
def test_a_lone_message_takes_as_many_hops_as_the_rules_say(case: Case) -> None:
    ordered, preack = hops(case, lone=2)
    assert max(ordered) == case.ordered and max(preack, default=0) == case.preack


@rule("E2")
def test_a_death_outside_stops_a_group_for_a_round_of_flush() -> None:
    """A frame takes 50 us, and the station is silent for fail_timeout before it is removed."""
    found = pause("token", 500 * US)
    assert found.before <= MS and max(found.ordered, found.preack) <= 2 * MS
