"""Groups that overlap on whole engines in virtual time: latency in hops, and what a death outside costs them."""

from __future__ import annotations

import pytest

from ..rules import rule
from ..virtual.overlap import CASES, Case, Overlapping, hops, pause
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


@rule("S3")
@pytest.mark.parametrize("groups", [2, 3, 7])
def test_a_stream_to_several_groups_does_not_wait_to_settle(groups: int) -> None:
    """At level ordered each link owes a part of the originator's window only: half of a window was never owed on one, and the
    originator waited twice 20 ms for each window."""
    count = 1024
    net = Overlapping(1 + 2 * groups, {f"g{k}": ("token", (2 + 2 * k, 3 + 2 * k)) for k in range(groups)})
    for k in range(groups):
        net.say(1, [f"g{k}"], b"first %d" % k, order="token")
    net.run(200 * MS)
    for k in range(count):
        net.say(1, [f"g{k % groups}"], b"%d" % k, order="token")
    net.run(20 * MS)
    assert sum(len(net.at(z).got) for z in range(2, 2 + 2 * groups)) == 2 * (count + groups)
