"""Votes of all nodes together."""

from __future__ import annotations

from zenjun.proto.service.corosync.messages import Votes
from zenjun.proto.service.corosync.results import Code
from zenjun.proto.service.corosync.votequorum import VOTES_MAX
from zenjun.proto.wire import STATIONS_MAX

from ..rules import rule
from .test_corosync import cluster, code


@rule("Y11")
def test_votes_of_all_have_room_in_32_bits() -> None:
    """All stand-ins of a ring would end at the first one that tells the sum, or its own word in a round."""
    c = cluster(3)
    n = c.nodes[1]
    for votes in (VOTES_MAX + 1, 0x7FFFFFFF, 0xFFFFFFFF):
        assert code(c, 1, n.set_votes(9, 0, votes)) is Code.INVALID_PARAM
        c.do(1, n.ring.submit(Votes(2, votes)))  # as a stand-in of before would
        c.run()
    assert [v.votequorum.total for v in c.nodes.values()] == [3, 3, 3]
    for node in c.nodes:
        c.do(1, n.set_votes(9, node, VOTES_MAX))
        c.run()
    assert {v.votequorum.total for v in c.nodes.values()} == {3 * VOTES_MAX} and STATIONS_MAX * VOTES_MAX <= 0xFFFFFFFF
    c.lose(2, 3)
    c.join(2, 3)
    assert {v.votequorum.total for v in c.nodes.values()} == {3 * VOTES_MAX}, "also as told in a round"
