"""The digest of the order: what stations tell each other and show, and what happens when two differ."""

from __future__ import annotations

import pytest
from zenjun.proto.core import Fault

from .membership_rig import Rig


def test_a_divergence_after_a_join_is_noticed_by_the_joiner() -> None:
    """Positions and digests on the wire count from the view event: a joiner can compare them."""
    rig = Rig(3, (0, 1), per_core={1: {"faults": int(Fault.SWAP)}})
    rig.settle()
    rig.carry_out(rig.let_in({2: 50}))
    for number in range(40):
        for k in range(3):
            rig.cores[k].offer(b"%d" % number, group=1, client=1)
            rig.cores[k].heartbeat(rig.now)
        rig.turn()
    fence = rig.cores[2].fence()
    assert fence is not None and fence.station == 1


@pytest.mark.parametrize("before", [0, 5])
def test_who_joins_tells_the_digest_of_the_others(before: int) -> None:
    """The digest that status shows is that of CONFIRMs: what stood before the join is not counted."""
    rig = Rig(3, (0, 1))
    for number in range(before):
        rig.offer(0, b"%d" % number)
        rig.turn()
    rig.settle()
    rig.carry_out(rig.let_in({2: 50}))
    rig.settle()
    for after in range(3):
        assert {core.digest() for core in rig.cores} == {rig.cores[2].digest()}
        counted, position, _ = rig.cores[2].digest()
        assert (counted, position) == (2, after)
        rig.offer(after, b"one more")
        rig.settle()
