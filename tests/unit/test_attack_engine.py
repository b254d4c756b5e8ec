"""Whole engines under what a hostile reviewer thought of. Each test states the rule it protects."""

from __future__ import annotations

import struct

from test_engine import LATENCY, MS, Cluster, Node, opened, settled
from zenjun.proto.openpdu import decode_header
from zenjun.proto.wire import Kind


def test_sixty_four_stations_that_start_together_open() -> None:
    """Opening ends whatever n is: one batch may bring an OPEN of every other station, and none of them may be lost to the
    queue between core and engine, the same ones each time."""
    cluster = Cluster(64, window_frames=8)
    cluster.until(lambda: all(node.engine.instance for node in cluster.nodes), step_ns=50 * MS, limit_ns=3_000 * MS)
    assert len({node.engine.instance for node in cluster.nodes}) == 1
    assert all(node.engine.core.drops().get("control_full", 0) == 0 for node in cluster.nodes)
    cluster.run(100 * MS)
    cluster.frames.clear()
    cluster.send(63, b"x")
    cluster.run(20 * MS)
    assert all([m.data for m in node.delivered] == [b"x"] for node in cluster.nodes)
    assert [h["kind"] for f in cluster.frames if (h := decode_header(f))].count(Kind.DATA) == 1


def test_a_lost_pdu_is_repaired_at_the_first_question() -> None:
    """Recovery: re-ordering is waited for nak_delay, then one NAK brings the PDU. That it was first sent a moment ago is no
    reason not to send it again: only a repetition is."""
    cluster = opened()
    sent = cluster.now
    cluster.lost = lambda source, to, pdu: b"LOST" in pdu and to is cluster.nodes[1] and cluster.now <= sent + LATENCY
    cluster.send(0, b"LOST" + bytes(1400), bytes(1400))
    cluster.until(lambda: settled(cluster, 2), step_ns=MS // 10)
    assert cluster.now - sent < 1 * MS
    assert cluster.nodes[0].engine.core.counters()["tx_retransmit"] == 1


def test_a_poll_is_answered_by_whoever_was_not_heard() -> None:
    """C3, C4: a station polls because somebody's word is missing. If that word was lost, the vectors of the two are equal, and
    only being named tells the other one that it is meant; the heartbeat would be a quarter of a second late."""
    cluster = opened()
    cluster.run(300 * MS)
    sent = cluster.now

    def lost(source: Node, to: Node, pdu: bytes) -> bool:
        knows = pdu[5] == Kind.CONFIRM and struct.unpack_from(">I", pdu, 60)[0] >= 1  # P of station 1's stream
        return source is cluster.nodes[1] and to is cluster.nodes[0] and knows and cluster.now < sent + 5 * MS

    cluster.lost = lost
    cluster.send(0, b"x", need_ack=True)
    cluster.until(lambda: cluster.nodes[0].engine.core.positions().ack == 1, step_ns=MS)
    assert cluster.now - sent < 40 * MS
