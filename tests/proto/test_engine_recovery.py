"""Whole engines: loss, smaller interfaces, what one instance hands over to the next. Each test states the rule it protects."""

from __future__ import annotations

import struct

import pytest
from zenjun.proto.core import Fault, Message, Positions, add_checksum
from zenjun.proto.effects import Changed, Closed, Opened
from zenjun.proto.openpdu import decode_header
from zenjun.proto.wire import Kind

from ..rules import rule
from ..virtual.engines import LATENCY, Cluster, Node, opened, settled
from ..virtual.segment import MS


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


@rule("C3", "C4")
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


def test_pdus_that_no_longer_fit_the_interface_do_not_block_for_ever() -> None:
    """MTU changed while running: a PDU that was lost and is so much larger than the MTU is now that it would take more than 16
    pieces can never be repeated. The sender must notice and begin a new life; the others must not wait for it until somebody
    restarts a daemon."""
    cluster = opened(frame_max=16_000)
    first, limit = cluster.nodes[0], {1: 16_000}
    cluster.lost = lambda source, to, pdu: True
    cluster.send(0, b"z" * 15_000)
    cluster.run(MS // 10)
    first.apply(cluster.now, first.engine.set_frame_max(cluster.now, 600))
    limit[1] = 600
    cluster.lost = lambda source, to, pdu: len(pdu) > limit.get(source.config.station, 16_000)
    cluster.until(lambda: all(node.engine.instance > 1 for node in cluster.nodes), limit_ns=6_000 * MS)
    assert "larger than the MTU" in first.reported(Closed)[0].reason
    cluster.send(0, b"y" * 1400)
    cluster.until(lambda: all(node.delivered[-1:] and node.delivered[-1].data == b"y" * 1400 for node in cluster.nodes))
    cluster.run(3_000 * MS)
    assert {node.engine.instance for node in cluster.nodes} == {3}, "without it, and with its new life"
    assert all(not node.blocked() for node in cluster.nodes)


def test_pdus_of_a_link_that_no_longer_fit_do_not_block_for_ever() -> None:
    """The same for a link to one station, whose PDUs the engine does not see."""
    cluster = opened()
    first = cluster.nodes[0]
    first.engine.set_links_too_long(True)
    cluster.until(lambda: bool(first.reported(Closed)), limit_ns=6_000 * MS)
    assert "to one station are larger than the MTU" in first.reported(Closed)[0].reason
    first.engine.set_links_too_long(False)  # with the instance its links are gone
    cluster.until(lambda: all(node.engine.instance > 1 for node in cluster.nodes), limit_ns=6_000 * MS)
    assert not any(node.reported(Closed) for node in cluster.nodes[1:])


def test_a_smaller_mtu_alone_ends_nothing() -> None:
    """The same, but everything gets through in the end, or a station is merely away: the instance goes on."""
    cluster = opened(quorum=3, give_up_timeout_ns=60_000 * MS)
    cluster.nodes[2].paused = True
    cluster.send(0, b"z" * 1400)
    cluster.run(MS)
    cluster.nodes[0].engine.set_frame_max(cluster.now, 1000)
    cluster.run(6_000 * MS)
    cluster.nodes[2].paused = False
    cluster.until(lambda: settled(cluster, 1))
    assert {node.engine.instance for node in cluster.nodes} == {1}


@rule("M8")
def test_places_in_the_order_never_come_again() -> None:
    """Rule 8: clocks jump to at least instance << 32 at each change, so that positions never repeat. An instance that lasts for
    more than 2**32 PDUs has used the numbers after its own."""
    cluster = opened()
    cluster.run(600 * MS)
    last = [f for f in cluster.frames if f[5] == Kind.CONFIRM and f[8] == 2][-1]
    for step in range(1, 4):  # as after 2**33 PDUs and more; no clock is believed that jumps
        ahead = bytearray(last)
        struct.pack_into(">Q", ahead, 24, (1 << 32) + (step << 32) + 5)
        for to in (cluster.nodes[0], cluster.nodes[2]):
            to.apply(cluster.now, to.engine.on_frames(cluster.now, [(add_checksum(bytes(ahead)), cluster.nodes[1].mac)]))
        cluster.run(600 * MS)
    cluster.run(max(node.config.progress_timeout_ns for node in cluster.nodes))  # every station looks once
    cluster.send(0, b"a")
    cluster.until(lambda: settled(cluster, 1))
    cluster.run(600 * MS)
    assert all(node.disk[1] >= 4 for node in cluster.nodes)  # durable before it could be needed
    for node in cluster.nodes:  # nobody remembers but the disks
        node.boot(cluster.now)
    cluster.until(lambda: all(node.engine.instance for node in cluster.nodes))
    cluster.send(0, b"b")
    cluster.until(lambda: settled(cluster, 2))
    for node in cluster.nodes:
        clocks = [m.clock for m in node.delivered]
        assert clocks == sorted(set(clocks))


@pytest.mark.parametrize("flush", [True, False])
def test_what_one_has_released_reaches_all_who_go_on(flush: bool) -> None:
    """Level 2 means that every station has it. Station 1 does not hear station 3, so it can neither put station 2's messages into
    the order nor learn that all have them; station 2 has released them when 3 dies. The next instance begins at 1 only after
    these have come out there, at the same places. Without that (a deliberate defect) they are lost. No quorum without 3 here, so
    that the instance ends."""
    cluster = opened(faults=0 if flush else int(Fault.NO_FLUSH), quorum=3)
    one, two, three = cluster.nodes
    cluster.lost = lambda source, to, pdu: source is three and to is one
    cluster.send(1, b"first", b"x" * 1400, b"last")
    cluster.until(lambda: two.engine.core.positions().preack == 2, step_ns=MS)
    assert len(two.delivered) == 3 and not one.delivered
    cluster.lost = lambda source, to, pdu: source is two and source.engine.instance == 1  # and what nobody else has
    cluster.send(1, b"only here")
    cluster.run(MS)
    three.boot(cluster.now)
    three.delivered.clear()
    cluster.until(lambda: all(node.engine.instance > 1 for node in cluster.nodes))
    assert len({node.engine.instance for node in cluster.nodes}) == 1
    assert [m.data[:5] for m in one.delivered] == ([b"first", b"xxxxx", b"last"] if flush else [])
    assert not flush or one.delivered == two.delivered[:3]
    assert [node.before for node in (one, two)] == ([Positions(2, 2, 2)] * 2 if flush else [None, None])
    assert not three.delivered and not any(node.reported(Opened)[-1].joined for node in cluster.nodes)
    cluster.send(0, b"new")
    cluster.until(lambda: all(node.delivered[-1:] and node.delivered[-1].data == b"new" for node in cluster.nodes))


def test_the_rest_of_an_instance_comes_before_the_next_one_however_slow_the_driver_is() -> None:
    """A driver takes what is left of an instance in portions, and may be woken by anything meanwhile. The new instance begins
    when it has all, and what comes from stations that are faster waits."""
    cluster = opened(quorum=3)
    one, two, three = cluster.nodes
    cluster.lost = lambda source, to, pdu: source is three and to is one
    cluster.send(1, b"a")
    cluster.until(lambda: two.engine.core.positions().preack == 1, step_ns=MS)
    three.boot(cluster.now)
    cluster.lost = lambda source, to, pdu: False
    engine = one.engine
    deliver = engine.core.deliver

    def nothing() -> list[Message]:
        one.paused = engine.core.flushing
        return []

    engine.core.deliver = nothing  # type: ignore[method-assign]
    cluster.until(lambda: two.engine.instance == three.engine.instance > 1)
    second = two.engine.instance
    cluster.run(MS)
    assert engine.instance == 0 and engine.core.flushing and not engine.core.flushed
    assert engine.next_deadline_ns() <= cluster.now, "the driver is to come back at once"
    three.boot(cluster.now)  # and the new instance ends before it has begun here
    cluster.until(lambda: two.engine.instance == 0)
    frames, one.backlog = one.backlog, []
    assert len(frames) > 3 and engine.on_frames(cluster.now, frames) == engine.on_timeout(cluster.now) == []
    engine.core.deliver = deliver  # type: ignore[method-assign]
    one.paused = False
    cluster.until(lambda: all(node.engine.instance > second for node in cluster.nodes))
    assert [m.data for m in one.delivered] == [b"a"]
    assert [e.instance for e in one.reported(Opened)] == [1, second, two.engine.instance]


@pytest.mark.parametrize("room", [True, False])
def test_a_change_that_cannot_be_carried_out_late_leaves_the_views_known_before(room: bool) -> None:
    """Station 1 ends instance 1 with all votes for the removal of 4, which 2 and 3 have carried out; 4 has released a message
    there that 1 has not. At the next opening 1 carries the removal out late, and delivers up to the place in it; or, if its core
    has no room for one more view event, up to the furthest place of a view that it knows: not nothing at all."""
    cluster = opened(4, quorum=3, give_up_timeout_ns=600 * MS)
    one, two, three, four = cluster.nodes
    cluster.lost = lambda source, to, pdu: to is one and source in (three, four)
    cluster.send(1, b"m")
    cluster.until(lambda: four.engine.core.positions().preack == 1, step_ns=MS)
    assert not one.delivered
    four.paused = True
    cluster.lost = lambda source, to, pdu: to is one and pdu[5] != Kind.STOP
    for node in (one, two, three):
        node.apply(cluster.now, node.engine.expel(cluster.now, 4))
    cluster.until(lambda: two.engine.instance == three.engine.instance == 2, step_ns=MS)
    two.boot(cluster.now)
    cluster.until(lambda: not one.engine.instance and not three.engine.instance)
    assert one.engine.core.reached()[1] == 0 and not one.reported(Changed), "it has the votes, not the word that all have them"
    if not room:
        one.engine.core.commit = lambda now, change: False  # type: ignore[method-assign]
    four.backlog.clear()
    four.paused, cluster.lost = False, lambda source, to, pdu: False
    cluster.until(lambda: all(node.engine.instance > 2 for node in cluster.nodes))
    assert [m.data for m in one.delivered] == [b"m"] and len(one.views) == room
