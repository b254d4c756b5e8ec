"""Whole engines on the virtual segment: opening, order, repair, silence, and which station is blamed for what."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from zenjun.proto.core import Core, Drop, Fault, Status, add_checksum, check
from zenjun.proto.effects import NOTICE_GAP_NS, Blocked, Changed, Closed, Fenced, Notice, Opened, Persist
from zenjun.proto.engine import Engine
from zenjun.proto.engineconfig import slots_for
from zenjun.proto.errors import UsageError
from zenjun.proto.openpdu import decode_header
from zenjun.proto.wire import CONFIRM, HEADER, VIEW, Flag, Kind, cluster_id

from ..rules import rule
from ..virtual.engines import CONFIG, LATENCY, START, Cluster, Node, opened, settled
from ..virtual.segment import MS, NEVER

# ---- opening and order


@rule("M8")
def test_opens_and_delivers_in_one_order() -> None:
    cluster = opened()
    for node in cluster.nodes:
        (effect,) = node.reported(Opened)
        assert effect == Opened(1, (1, 1, 1), 1500)
        assert node.effects.index(Persist(1, 1)) < node.effects.index(effect), "durable before it is entered"
        assert isinstance(node.effects[0], Persist)
    for turn in range(20):
        for i in range(3):
            cluster.send(i, b"%d from %d" % (turn, i), b"another")
    cluster.until(lambda: settled(cluster, 120))
    first, *others = cluster.orders()
    assert all(order == first for order in others)
    assert {node.engine.core.digest() for node in cluster.nodes} == {cluster.nodes[0].engine.core.digest()}
    for node in cluster.nodes:
        assert [m.data for m in node.delivered if m.src == 0 and m.data != b"another"] == [b"%d from 0" % i for i in range(20)]


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 7, 8])
def test_one_message_on_an_idle_cluster_costs_2n_frames_to_ack_and_n_to_preack(n: int) -> None:
    """Rules C1 and C2: one confirmation for all that a station has received (docs/evaluation.md)."""
    for need_ack, allowed in ((False, {n}), (True, {2 * n, 2 * n - 1})):
        cluster = opened(n, heartbeat_ns=10_000 * MS, fail_timeout_ns=60_000 * MS)
        cluster.frames.clear()
        cluster.send(0, b"x", need_ack=need_ack)
        cluster.run(2_000 * MS)
        assert len(cluster.frames) in allowed
        level = 2 if need_ack else 1
        assert [node.engine.core.positions()[level] for node in cluster.nodes] == [1] * n


def test_silence_but_for_heartbeats() -> None:
    cluster = opened(heartbeat_ns=100 * MS)
    cluster.send(0, b"x")
    cluster.run(50 * MS)
    cluster.frames.clear()
    cluster.run(1_000 * MS)
    assert set(cluster.kinds()) == {Kind.CONFIRM}
    assert 27 <= len(cluster.frames) <= 33


def test_heartbeats_wait_while_other_frames_are_sent() -> None:
    cluster = opened(heartbeat_ns=100 * MS)
    for _ in range(20):
        cluster.send(0, b"x")
        cluster.run(50 * MS)
    assert sum(node.engine.core.counters()["tx_heartbeat"] for node in cluster.nodes) <= 3


def test_a_station_alone() -> None:
    cluster = opened(1)
    cluster.send(0, b"a", b"b", need_ack=True)
    cluster.run(100 * MS)
    assert cluster.orders() == [[(0, b"a"), (0, b"b")]]
    assert cluster.nodes[0].engine.core.positions().ack == 1


@pytest.mark.parametrize("first_seq", [0, 2**32 - 5, 2**31 - 3])
def test_sequence_numbers_wrap(first_seq: int) -> None:
    cluster = opened(first_seq=first_seq)
    for turn in range(10):
        for i in range(3):
            cluster.send(i, b"%d" % turn)
    cluster.until(lambda: settled(cluster, 30))
    assert cluster.orders()[0] == cluster.orders()[1] == cluster.orders()[2]


def test_large_messages_go_in_fragments() -> None:
    cluster = opened(window_frames=16)
    large = bytes(random.Random(1).randbytes(300_000))
    cluster.send(0, b"before", large, b"after")
    cluster.send(1, b"meanwhile")
    cluster.until(lambda: settled(cluster, 4))
    assert [m.data for m in cluster.nodes[2].delivered if m.src == 0] == [b"before", large, b"after"]
    assert cluster.orders()[0] == cluster.orders()[2]


# ---- loss


def test_one_lost_frame_is_asked_for_and_repaired() -> None:
    cluster = opened()
    dropped: list[bytes] = []

    def lose_first_data(source: Node, to: Node, pdu: bytes) -> bool:
        if pdu[HEADER.offset("kind")] == Kind.DATA and to is cluster.nodes[2] and not dropped:
            dropped.append(pdu)
            return True
        return False

    cluster.lost = lose_first_data
    cluster.frames.clear()
    cluster.send(0, b"1")
    cluster.run(10 * LATENCY)
    cluster.send(0, b"2")
    cluster.until(lambda: settled(cluster, 2), 200 * MS, MS)
    assert cluster.orders()[2] == [(0, b"1"), (0, b"2")]
    assert Kind.NAK in cluster.kinds()
    assert cluster.frames.count(dropped[0]) >= 2, "repeated byte for byte"
    assert cluster.nodes[2].engine.core.counters()["rx_repaired"] == 1


def test_a_lost_last_frame_is_found_without_any_further_data() -> None:
    cluster = opened()
    first: list[bytes] = []

    def lose_first_data_everywhere(source: Node, to: Node, pdu: bytes) -> bool:
        if pdu[HEADER.offset("kind")] == Kind.DATA and (not first or first[0] == pdu) and len(first) < 3:
            first.append(pdu)
            return True
        return False

    cluster.lost = lose_first_data_everywhere
    cluster.send(0, b"only")
    cluster.until(lambda: settled(cluster, 1), 1_000 * MS)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.02, 0.1, 0.3]))
def test_random_loss_loses_nothing(seed: int, loss: float) -> None:
    rng = random.Random(seed)
    cluster = opened()
    cluster.lost = lambda source, to, pdu: rng.random() < loss
    for turn in range(10):
        for i in range(3):
            cluster.send(i, b"%d" % turn)
        cluster.run(rng.randrange(3) * MS)
    cluster.until(lambda: settled(cluster, 30))
    assert cluster.orders()[0] == cluster.orders()[1] == cluster.orders()[2]
    cluster.lost = lambda source, to, pdu: False
    cluster.run(2_000 * MS)
    cluster.frames.clear()
    cluster.run(500 * MS)
    assert set(cluster.kinds()) == {Kind.CONFIRM}
    assert {node.engine.core.positions().preack for node in cluster.nodes} == {cluster.nodes[0].engine.core.positions().ordered}


# ---- who is waited for


def test_who_is_missing_before_the_first_instance_is_said() -> None:
    cluster = Cluster(quorum=3)
    cluster.lost = lambda source, to, pdu: source is cluster.nodes[2]
    cluster.run(2 * CONFIG.open_window_ns - 100 * MS)
    assert cluster.nodes[0].blocked() == ()
    cluster.run(1_000 * MS)
    assert cluster.nodes[0].blocked() == ((3, "never seen"),)
    cluster.lost = lambda source, to, pdu: False
    cluster.until(lambda: all(node.engine.instance for node in cluster.nodes))
    assert cluster.nodes[0].blocked() == ()


def test_a_majority_opens_without_the_rest_and_lets_it_in() -> None:
    cluster = Cluster()
    late = cluster.nodes[2]
    cluster.lost = lambda source, to, pdu: late in (source, to)
    cluster.until(lambda: all(node.engine.instance for node in cluster.nodes[:2]))
    assert cluster.nodes[0].reported(Opened)[0].incarnations == (1, 1, 0)
    cluster.run(500 * MS)
    cluster.lost = lambda source, to, pdu: False
    cluster.until(lambda: bool(late.engine.instance), 2_000 * MS)
    assert late.reported(Opened)[0].joined and [c.joined for c in cluster.nodes[0].reported(Changed)] == [(3,)]


def test_a_silent_station_is_removed_and_comes_back() -> None:
    cluster = opened()
    quiet = cluster.nodes[1]
    cluster.lost = lambda source, to, pdu: quiet in (source, to)
    cluster.send(0, b"x")
    cluster.run(300 * MS)
    assert cluster.nodes[0].left() == [] and cluster.nodes[0].delivered == []
    cluster.run(150 * MS)
    for node in (cluster.nodes[0], cluster.nodes[2]):
        assert node.left() == [(2,)] and [m.data for m in node.delivered] == [b"x"]
        assert [VIEW.struct.unpack_from(m.data)[2:] for m in node.views] == [(0b101, 0, 0b010)]
        assert [effect.stations for effect in node.reported(Blocked)] == [((2, "silent"),), ()] or node.reported(Blocked) == []
    assert cluster.nodes[0].views[0].clock == cluster.nodes[2].views[0].clock
    assert cluster.nodes[0].engine.instance == 2 and quiet.engine.status()["state"] == "blocked"
    cluster.send(2, b"y")
    cluster.run(10 * MS)
    assert [m.data for m in cluster.nodes[0].delivered] == [b"x", b"y"] and quiet.delivered == []
    cluster.lost = lambda source, to, pdu: False
    cluster.until(lambda: quiet.engine.instance == 3, 1_000 * MS)
    assert [(closed.instance, closed.expelled) for closed in quiet.reported(Closed)] == [(1, True)]
    assert quiet.engine.incarnation == quiet.disk[0] == 2
    cluster.send(0, b"z")
    cluster.run(20 * MS)
    assert [m.data for m in quiet.delivered] == [b"z"] and [m.data for m in cluster.nodes[2].delivered] == [b"x", b"y", b"z"]
    assert quiet.views[-1].clock == cluster.nodes[0].views[-1].clock < quiet.delivered[0].clock


def test_a_silent_station_is_removed_when_nothing_is_pending_too() -> None:
    cluster = opened()
    cluster.lost = lambda source, to, pdu: source is cluster.nodes[1]
    cluster.run(600 * MS)
    assert cluster.nodes[0].left() == [(2,)]


def test_loss_alone_removes_nobody() -> None:
    """An idle cluster on a segment that loses every fourth frame: heartbeats alone would not do, questions do."""
    cluster = opened(3, seed=0)
    rng = random.Random(5)
    cluster.lost = lambda source, to, pdu: rng.random() < 0.25
    cluster.run(20_000 * MS)
    assert all(node.left() == [] for node in cluster.nodes)


def test_a_station_heard_only_through_another_one_stays() -> None:
    """A path that is cut in one direction only: life, acknowledgements and data take the way round. Nobody is removed, no
    delivery waits for long, and the segment stays as quiet as it can."""
    cluster = opened()
    one, two, _ = cluster.nodes
    cluster.lost = lambda source, to, pdu: source is one and to is two
    cluster.run(10_000 * MS)
    for k in range(20):
        cluster.send(k % 3, b"%d" % k)
        cluster.run(300 * MS)
    assert all(not node.reported(Changed) and not node.reported(Closed) for node in cluster.nodes)
    cluster.run(300 * MS)
    assert settled(cluster, 20)
    assert {node.engine.core.positions().preack for node in cluster.nodes} == {20}
    cluster.frames.clear()
    cluster.run(10_000 * MS)
    assert len(cluster.frames) < 1000


def test_nobody_is_deaf_for_lacking_what_its_source_alone_has() -> None:
    """Large PDUs of station 1 vanish on the way, its small ones arrive: it is the one to begin anew, the others are well."""
    cluster = opened()
    cluster.lost = lambda source, to, pdu: source is cluster.nodes[0] and len(pdu) > 600
    cluster.send(0, b"z" * 1400)
    cluster.run(3_200 * MS)
    assert [closed.reason for closed in cluster.nodes[0].reported(Closed)] == ["nobody receives what station 1 sends"]
    assert [node.reported(Closed) for node in cluster.nodes[1:]] == [[], []]
    cluster.run(1_000 * MS)
    assert [(c.left, c.joined) for c in cluster.nodes[1].reported(Changed)] == [((1,), ()), ((), (1,))]


def test_who_can_go_on_alone_removes_those_who_receive_nothing() -> None:
    cluster = opened(2, quorum=1, required=(1,))
    cluster.lost = lambda source, to, pdu: source is cluster.nodes[0] and pdu[HEADER.offset("kind")] == Kind.DATA
    cluster.send(0, b"x")
    cluster.run(3_500 * MS)
    assert cluster.nodes[0].left()[0] == (2,) and not cluster.nodes[0].reported(Closed)
    assert [m.data for m in cluster.nodes[0].delivered] == [b"x"]


def test_a_deaf_station_is_removed_though_it_is_heard() -> None:
    """It sends heartbeats but takes no data in."""
    cluster = opened(3)
    deaf = cluster.nodes[1]
    cluster.lost = lambda source, to, pdu: to is deaf and pdu[HEADER.offset("kind")] == Kind.DATA
    cluster.send(0, b"x")
    cluster.run(1_800 * MS)
    assert cluster.nodes[0].left() == []
    cluster.run(1_500 * MS)
    assert cluster.nodes[0].left()[0] == cluster.nodes[2].left()[0] == (2,)
    assert [m.data for m in cluster.nodes[2].delivered] == [b"x"]


def test_a_station_that_leaves_is_removed_at_once() -> None:
    cluster = opened()
    leaver = cluster.nodes[2]
    leaver.apply(cluster.now, leaver.engine.leave(cluster.now))
    cluster.run(15 * MS)
    assert cluster.nodes[0].left() == cluster.nodes[1].left() == [(3,)]
    cluster.run(100 * MS)
    assert leaver.engine.left
    assert leaver.engine.next_deadline_ns() == NEVER
    assert sum(bool((h := decode_header(f)) and h["flags"] & Flag.BYE) for f in cluster.frames) == 3


def test_an_operator_removes_a_station() -> None:
    cluster = opened()
    one = cluster.nodes[0]
    for station, why in ((1, "is this one"), (4, "is no member"), (0, "is no member")):
        with pytest.raises(UsageError, match=why):
            one.engine.expel(cluster.now, station)
    one.apply(cluster.now, one.engine.expel(cluster.now, 3))
    cluster.until(lambda: bool(one.left()), 350 * MS, MS)  # the other one hears it still, and adopts
    assert one.left()[0] == cluster.nodes[1].left()[0] == (3,)
    cluster.until(lambda: cluster.nodes[2].engine.instance == one.engine.instance == 3, 2_000 * MS)
    cluster.nodes[2].paused = True
    cluster.run(600 * MS)
    with pytest.raises(UsageError, match="no quorum"):
        one.engine.expel(cluster.now, 2)


def test_without_quorum_a_station_blocks_says_so_and_gives_up() -> None:
    cluster = opened()
    one = cluster.nodes[0]
    cluster.lost = lambda source, to, pdu: True
    cluster.run(500 * MS)
    assert one.reported(Blocked)[-1] == Blocked(((2, "silent"), (3, "silent")), False)
    assert one.engine.status()["state"] == "blocked" and not one.engine.offer(cluster.now, 1, 1, 0, b"x")
    cluster.run(2_000 * MS)
    assert [closed.expelled for closed in one.reported(Closed)] == [False]
    cluster.lost = lambda source, to, pdu: False
    cluster.until(lambda: all(node.engine.instance for node in cluster.nodes), 5_000 * MS)
    assert {node.engine.instance for node in cluster.nodes} == {one.engine.instance}


def test_a_heartbeat_does_not_put_off_the_look_after_a_change() -> None:
    """Else programs are told that there is no quorum while their messages are sent (simulation, seed 1795978791)."""
    cluster = opened()
    engine = cluster.nodes[0].engine
    engine.watch.postpone(cluster.now)
    assert engine.own_deadline_ns() > cluster.now
    engine.watch.hurry(cluster.now)
    engine.watch.postpone(cluster.now)
    assert engine.own_deadline_ns() == cluster.now
    engine.on_timeout(cluster.now)
    assert engine.own_deadline_ns() > cluster.now


def test_without_quorum_for_a_moment_nothing_happens() -> None:
    cluster = opened()
    cluster.lost = lambda source, to, pdu: True
    cluster.run(600 * MS)
    assert all(node.engine.status()["state"] == "blocked" for node in cluster.nodes)
    cluster.lost = lambda source, to, pdu: False
    cluster.run(500 * MS)
    assert all(node.engine.instance == 1 and node.reported(Blocked)[-1] == Blocked(()) for node in cluster.nodes)
    cluster.send(0, b"x")
    cluster.run(20 * MS)
    assert settled(cluster, 1)


def test_two_stations_with_a_casting_vote() -> None:
    cluster = opened(2, quorum=1, required=(1,))
    cluster.lost = lambda source, to, pdu: True
    cluster.run(1_000 * MS)
    one, two = cluster.nodes
    assert one.left() == [(2,)] and two.left() == [] and two.engine.status()["state"] == "blocked"
    cluster.lost = lambda source, to, pdu: False
    cluster.until(lambda: two.engine.instance == one.engine.instance == 3, 3_000 * MS)


def test_leaving_before_anything_is_open() -> None:
    node = Node(CONFIG)
    node.boot(START)
    assert node.engine.leave(START) == []
    assert node.engine.left
    assert node.engine.next_deadline_ns() == NEVER


def test_after_an_own_pause_one_is_expelled_and_suspects_nobody() -> None:
    """cases.md 9: a daemon that was not scheduled reads what has come before it judges its timers."""
    cluster = opened()
    sleeper = cluster.nodes[0]
    sleeper.paused = True
    cluster.run(5_000 * MS)
    assert cluster.nodes[1].left() == [(1,)]
    sleeper.paused, batch, sleeper.backlog = False, sleeper.backlog, []
    sleeper.apply(cluster.now, sleeper.engine.on_frames(cluster.now, batch[:1]))
    sleeper.apply(cluster.now, sleeper.engine.on_timeout(cluster.now))
    assert sleeper.blocked() == ()
    sleeper.apply(cluster.now, sleeper.engine.on_frames(cluster.now, batch[1:]))
    assert [closed.expelled for closed in sleeper.reported(Closed)] == [True]
    cluster.run(1_000 * MS)
    assert sleeper.reported(Opened)[-1].joined and sleeper.engine.instance == cluster.nodes[1].engine.instance


def test_after_an_own_pause_a_dead_station_is_suspected_after_one_time_out() -> None:
    cluster = opened(quorum=3)
    sleeper, dead = cluster.nodes[0], cluster.nodes[1]
    sleeper.paused = True
    dead.paused = True
    cluster.run(1_500 * MS)
    sleeper.paused = False
    woke = cluster.now
    cluster.run(350 * MS)
    assert sleeper.blocked() == ()
    cluster.until(lambda: sleeper.blocked() == ((2, "silent"),), step_ns=MS)
    assert cluster.now - woke >= 400 * MS


def test_time_that_runs_backwards_is_ignored() -> None:
    cluster = opened()
    node = cluster.nodes[0]
    assert node.engine.on_timeout(0) == []
    cluster.run(100 * MS)
    assert node.blocked() == ()


# ---- restarts


def test_a_restarted_member_is_replaced_by_its_new_life() -> None:
    cluster = opened()
    cluster.send(0, b"old")
    cluster.until(lambda: settled(cluster, 1))
    cluster.nodes[1].boot(cluster.now)
    cluster.nodes[1].delivered.clear()
    cluster.until(lambda: all(node.engine.instance == 3 for node in cluster.nodes), 5_000 * MS)
    for node in (cluster.nodes[0], cluster.nodes[2]):
        assert not node.reported(Closed)
        assert [(c.left, c.joined) for c in node.reported(Changed)] == [((2,), ()), ((), (2,))]
        assert node.engine.incarnation == node.disk[0] == 1 and node.disk[1] >= 3
    cluster.send(2, b"new")
    cluster.run(100 * MS)
    assert [m.data for m in cluster.nodes[0].delivered] == [b"old", b"new"]
    assert [m.data for m in cluster.nodes[1].delivered] == [b"new"]
    old, new = (m.clock for m in cluster.nodes[0].delivered)
    assert new >> 32 > old >> 32, "places in the order never repeat"


@rule("M7")
def test_a_new_life_proves_that_the_former_one_has_stopped() -> None:
    """Rule 7: whoever restarts faster than the time-out is not waited for."""
    cluster = opened(fail_timeout_ns=5_000 * MS, open_window_ns=100 * MS)
    cluster.nodes[1].boot(cluster.now)
    cluster.until(lambda: all(node.engine.instance == 3 for node in cluster.nodes), 1_000 * MS)


def test_a_stop_with_data_under_way_delivers_the_same_everywhere() -> None:
    """What one survivor has of the dead one's stream, all get: the removal waits for it."""
    cluster = opened(5)
    dead = cluster.nodes[4]
    cluster.lost = lambda source, to, pdu: source is dead and to is not cluster.nodes[1]
    cluster.send(4, b"only station 2 has this")
    cluster.run(MS)
    dead.paused = True
    cluster.lost = lambda source, to, pdu: False
    cluster.run(1_000 * MS)
    for node in cluster.nodes[:4]:
        assert node.left() == [(5,)]
        assert [m.data for m in node.delivered] == [b"only station 2 has this"]
        assert node.delivered[0].clock < node.views[0].clock


def test_what_was_in_order_before_the_end_is_delivered() -> None:
    """The word that this station is out comes in one batch with the last confirmation that a message waited for."""
    cluster = opened()
    node = cluster.nodes[0]
    cluster.lost = lambda source, to, pdu: to is node and source is not node
    cluster.send(2, b"last")
    cluster.run(5 * MS)
    held = [
        p for p in cluster.frames[-20:] if (h := decode_header(p)) and h["src"] != 1 and h["kind"] in (Kind.DATA, Kind.CONFIRM)
    ]
    node.paused = True
    cluster.frames.clear()
    cluster.run(600 * MS)
    assert cluster.nodes[1].left() == [(1,)] and node.delivered == []
    beats = [p for p in cluster.frames if (h := decode_header(p)) and h["kind"] == Kind.CONFIRM and h["instance"] == 2]
    batch = [(p, cluster.nodes[(decode_header(p) or {})["src"] - 1].mac) for p in (*held, beats[-1])]
    node.apply(cluster.now, node.engine.on_frames(cluster.now, batch))
    assert node.reported(Closed)
    assert [m.data for m in node.delivered] == [b"last"]


def test_offers_before_the_first_instance_are_not_taken() -> None:
    node = Node(CONFIG)
    node.boot(START)
    assert not node.engine.offer(START, 1, 1, 0, b"x")


# ---- alarms


def test_a_diverging_order_fences() -> None:
    """Station 1 has a deliberate defect: it swaps two neighbours once. The digests tell."""
    cluster = opened()
    faulty = cluster.nodes[0]
    faulty.config = replace(faulty.config, faults=int(Fault.SWAP))
    faulty.boot(cluster.now)
    cluster.until(lambda: all(node.engine.instance > 1 for node in cluster.nodes), 5_000 * MS)
    for turn in range(100):
        for node in cluster.nodes:  # who is fenced takes nothing any more
            node.engine.offer(cluster.now, 1, 1, 0, b"%d" % turn)
            node.apply(cluster.now, node.engine.on_frames(cluster.now, []))
        cluster.run(MS)
    cluster.run(1_000 * MS)
    fenced = [node for node in cluster.nodes if node.reported(Fenced)]
    assert fenced
    for node in fenced:
        (effect,) = node.reported(Fenced)
        assert effect.own != effect.theirs and 1 <= effect.station <= 3
        assert node.engine.status()["state"] == "fenced"
        assert node.engine.status()["fence"]["station"] == effect.station
        count = len(node.delivered)
        cluster.run(100 * MS)
        assert len(node.delivered) == count


def test_another_number_of_stations_is_noticed() -> None:
    cluster = opened()
    node = cluster.nodes[0]
    values = {
        "cluster": cluster_id("test"), "version": 1, "kind": Kind.CONFIRM, "flags": Flag.PACK, "stations": 4, "src": 4,
        "length": CONFIRM.size, "incarnation": 1, "instance": 1,
    }  # fmt: skip
    pdu = add_checksum(HEADER.struct.pack(*(values.get(f.name, 0) for f in HEADER.fields)) + bytes(8 * 4 + CONFIRM.size))
    cluster.run(5_000 * MS)
    for _ in range(3):
        node.apply(cluster.now, node.engine.on_frames(cluster.now, [(pdu, bytes([2, 0, 0, 0, 0, 9]))]))
        cluster.run(1_000 * MS)
    (notice,) = node.reported(Notice)
    assert notice.kind == "stations"
    assert (
        "station 4 (02:00:00:00:00:09) of this cluster is configured with another number of stations: 4 there, 3"
        in notice.message
    )
    assert node.engine.core.drops()["stations"] == 3


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_any_frames_never_raise(data: st.DataObject) -> None:
    """Damaged frames, with the checksum made right again for half of them."""
    cluster = opened()
    cluster.send(0, b"x" * 100)
    cluster.run(100 * MS)
    node = cluster.nodes[2]
    frames = [f for f in cluster.frames if (h := decode_header(f)) and h["src"] != 3]
    for _ in range(20):
        frame = bytearray(data.draw(st.sampled_from(frames)))
        for _ in range(data.draw(st.integers(1, 3))):
            frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
        cut = bytes(frame[: data.draw(st.integers(0, len(frame)))])
        pdu = (
            add_checksum(bytes(frame))
            if data.draw(st.booleans()) and check(bytes(frame), cluster_id("test"), 3) == Drop.CHECK
            else cut
        )
        node.apply(cluster.now, node.engine.on_frames(cluster.now, [(pdu, cluster.nodes[0].mac)]))
        node.apply(cluster.now, node.engine.on_timeout(cluster.now))
    json.dumps(node.engine.status())


# ---- driving


def test_early_and_repeated_calls_are_harmless() -> None:
    cluster = opened()
    node = cluster.nodes[0]
    for _ in range(50):
        before = node.engine.next_deadline_ns()
        assert node.engine.next_deadline_ns() == before, "a pure read"
        assert node.engine.on_timeout(cluster.now) == []
        assert node.engine.poll(cluster.now, 0) == []
        assert node.engine.poll(cluster.now, int(Status.CONTROL)) == []
        assert node.engine.core.tx() == []
        assert node.engine.next_deadline_ns() == before


def test_a_smaller_mtu_is_used_at_once() -> None:
    cluster = opened()
    before = cluster.nodes[0].engine.core.payload_max
    assert cluster.nodes[0].engine.set_frame_max(cluster.now, 600) == []
    assert cluster.nodes[0].engine.core.payload_max < 600 < before
    cluster.frames.clear()
    cluster.send(0, b"x" * 5000)
    cluster.until(lambda: settled(cluster, 1))
    assert max(len(f) for f in cluster.frames) <= 600
    cluster.run(600 * MS)
    assert cluster.nodes[1].engine.core.payload_max < 600, "the others keep to what all take"
    cluster.nodes[0].engine.set_frame_max(cluster.now, 9000)
    assert cluster.nodes[0].engine.core.payload_max == before
    with pytest.raises(UsageError):
        cluster.nodes[0].engine.set_frame_max(cluster.now, 500)


def test_the_same_seed_gives_the_same_frames() -> None:
    runs = []
    for _ in range(2):
        rng = random.Random(3)
        cluster = opened()
        cluster.lost = lambda source, to, pdu, rng=rng: rng.random() < 0.2  # type: ignore[misc]
        for i in range(3):
            cluster.send(i, b"%d" % i)
        cluster.run(500 * MS)
        runs.append(cluster.frames)
    assert runs[0] == runs[1]


def test_status_is_json_and_has_what_the_document_promises() -> None:
    cluster = opened()
    cluster.send(0, b"x")
    cluster.run(50 * MS)
    status = json.loads(json.dumps(cluster.nodes[0].engine.status(cluster.now)))
    assert status["state"] == "open" and status["instance"] == 1 and status["incarnation"] == 1
    assert status["positions"]["preack"] == 1
    assert status["window"] == {"frames": 128, "in_flight": 0, "room": 128}
    assert [p["state"] for p in status["peers"]] == ["self", "up", "up"]
    assert [p["host"] for p in status["peers"]] == ["host1", "host2", "host3"]
    assert status["peers"][1]["mac"] == "02:00:00:00:00:02"
    assert 0 <= status["peers"][1]["heard_ms"] <= 250
    assert status["matrix"][0] == [1, 1, 1]
    assert status["counters"]["core"]["tx_data"] == 1
    assert Engine(CONFIG, incarnation=1, instance=0).status()["state"] == "opening"
    assert status["members"] == [[1, 1], [2, 1], [3, 1]]
    assert status["quorum"] == {"needed": 2, "required": [], "have": True}
    row = {"1": "A", "2": "A", "3": "A"}
    assert status["membership"]["letters"] == {"1": row, "2": row, "3": row}
    cluster.nodes[1].paused = True
    cluster.run(600 * MS)
    status = cluster.nodes[0].engine.status(cluster.now)
    assert status["state"] == "open" and status["members"] == [[1, 1], [3, 1]] and status["instance"] == 2
    assert [p["state"] for p in status["peers"]] == ["self", "out", "up"]
    row["2"] = "S"
    assert status["membership"]["letters"] == {"1": row, "2": None, "3": row} and status["membership"]["changes"] == 1
    cluster.nodes[2].paused = True
    cluster.run(600 * MS)
    status = json.loads(json.dumps(cluster.nodes[0].engine.status(cluster.now)))
    assert status["state"] == "blocked" and not status["quorum"]["have"]
    assert status["blocked"][0]["station"] == 3 and status["blocked"][0]["since_ms"] >= 150
    (waiting,) = status["membership"]["waiting"]
    assert (waiting["station"], waiting["for"], waiting["reason"]) == (1, 3, "silent")
    assert status["membership"]["letters"]["1"]["3"] == "AS" and status["peers"][2]["state"] == "silent"


# ---- configuration


@pytest.mark.parametrize(
    "wrong",
    [
        {"stations": 0}, {"stations": 65}, {"station": 0}, {"station": 4}, {"window_frames": 0}, {"window_frames": 32769},
        {"slots": 100}, {"slots": 128, "window_frames": 65}, {"frame_max": 511}, {"frame_max": 65536}, {"message_max": 0},
        {"boot": 2**64}, {"seed": -1}, {"fingerprint": 2**32}, {"heartbeat_ns": 0}, {"heartbeat_ns": 1_000 * MS},
    ],
)  # fmt: skip
def test_a_configuration_that_cannot_be_is_a_usage_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        Engine(replace(CONFIG, **wrong), incarnation=1, instance=0)


def test_numbers_from_the_disk_are_checked() -> None:
    with pytest.raises(UsageError, match="incarnation"):
        Engine(CONFIG, incarnation=0, instance=0)
    with pytest.raises(UsageError, match="instance"):
        Engine(CONFIG, incarnation=1, instance=2**32)


@pytest.mark.parametrize(("window", "slots"), [(1, 64), (32, 64), (33, 128), (128, 256), (32768, 65536)])
def test_slots_hold_two_windows(window: int, slots: int) -> None:
    assert slots_for(replace(CONFIG, window_frames=window)) == slots


def test_too_large_a_message_is_a_usage_error() -> None:
    cluster = opened(message_max=1000)
    with pytest.raises(UsageError):
        cluster.nodes[0].engine.offer(cluster.now, 1, 1, 0, b"x" * 1001)


def test_memory_that_is_short_is_noticed_and_not_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order waits for memory: said once, and again no sooner than NOTICE_GAP_NS later, if it has happened again."""
    refused = [0]
    monkeypatch.setattr(Core, "memory_refused", property(lambda core: refused[0]))
    cluster = opened()
    one = cluster.nodes[0]

    def notices() -> list[str]:
        return [notice.message for notice in one.reported(Notice) if notice.kind == "memory"]

    cluster.run(3_000 * MS)
    assert not notices()
    refused[0] = 1
    cluster.run(3_000 * MS)
    refused[0] = 2
    cluster.run(3_000 * MS)
    assert len(notices()) == 1 and "no memory for a large message" in notices()[0]
    cluster.run(NOTICE_GAP_NS)
    assert len(notices()) == 2
    cluster.run(2 * NOTICE_GAP_NS)
    assert len(notices()) == 2, "nothing has happened since"
