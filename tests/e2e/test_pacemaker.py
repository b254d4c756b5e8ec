"""Debian's Pacemaker, unchanged, on three nodes with stand-ins: a node that is cut off, and one that dies."""

from __future__ import annotations

import pytest

from .pacemaker_common import available, failover_s, pacemakers, wait_for

pytestmark = [pytest.mark.lab, pytest.mark.slow]


def test_a_resource_leaves_a_node_that_is_cut_off_and_one_that_dies() -> None:
    """Times are measured by hand (``python -m tests.e2e.pacemaker_bench``), not here."""
    available()
    with pacemakers(3, options={"fail_timeout_ms": 2000}) as up:
        first = up.until_holder()
        others = [node for node in (1, 2, 3) if node != first]
        up.lab.partition([[first], others])
        wait_for(lambda: not up.holds(first), "without quorum the node stops its Dummy")
        second = up.until_holder(others)
        up.lab.heal()
        up.until_online(1, 2, 3)
        assert up.until_holder() == second, "there is one, and it stays where it is"
        failover_s(up, second)
        left = [node for node in (1, 2, 3) if node != second]
        assert up.until_holder() in left
        up.until_online(*left)
        assert "with quorum" in up.monitor(left[0])
