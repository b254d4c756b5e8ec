"""Attack: the RCV with which a present member has joined, recorded and sent again and again.

It changes nothing in the instance. But a joiner that asks again may lack votes, so every member repeated those of several, at
most fifty times a second each: one frame of 200 bytes brought out several votes from each of n stations, for ever.
"""

from __future__ import annotations

from collections import Counter

import pytest
from zenjun.proto.openpdu import decode_header
from zenjun.proto.wire import Kind

from ..proto.test_membership_numbers import together
from ..rules import rule
from ..virtual.engines import Cluster, Node
from ..virtual.segment import MS

TIMES = 100


def replayed(rules: frozenset[str]) -> Counter[int]:
    """How many frames of each kind came out while the RCV of a member that has long joined was read at all others."""
    cluster = Cluster(4, rules=rules)
    cluster.until(lambda: together(cluster, 1, 2, 3, 4))
    back, recorded, counts = cluster.nodes[3], list[bytes](), Counter[int]()

    def see(source: Node, to: Node, pdu: bytes) -> bool:
        kind = (decode_header(pdu) or {"kind": 0})["kind"]
        if to is cluster.nodes[0 if source is not cluster.nodes[0] else 1]:
            counts[kind] += 1
        if source is back and kind == Kind.RCV:
            recorded.append(pdu)
        return False

    cluster.lost = see
    back.boot(cluster.now)
    cluster.until(lambda: together(cluster, 1, 2, 3, 4), limit_ns=10_000 * MS)
    cluster.run(2_000 * MS)
    instance = back.engine.instance
    counts.clear()
    for _ in range(TIMES):
        for node in cluster.nodes[:3]:
            node.apply(cluster.now, node.engine.on_frames(cluster.now, [(recorded[-1], back.mac)]))
        cluster.run(10 * MS)
    assert together(cluster, 1, 2, 3, 4) and back.engine.instance == instance
    return counts


@rule("M5")
@pytest.mark.parametrize("rules", [frozenset(), frozenset({"heed_old_asking"})], ids=str)
def test_the_asking_of_a_member_that_has_been_heard_costs_nothing(rules: frozenset[str]) -> None:
    votes = replayed(rules)[Kind.RCV_ACK]
    assert votes > TIMES if rules else not votes
