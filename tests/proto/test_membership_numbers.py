"""Whole engines under changes of membership: numbers that must not be used up, and stations that hear only some of the others.
Each test states the rule it protects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from zenjun.proto.belief import Belief
from zenjun.proto.core import add_checksum
from zenjun.proto.effects import Changed, Closed, Effect, Opened, Persist
from zenjun.proto.engine import Engine
from zenjun.proto.openpdu import INCARNATION_MAX, INSTANCE_MAX, OpenPdu, OpenProposal, decode_open, encode_open, pack
from zenjun.proto.peerstate import PeerState
from zenjun.proto.votes import ChangeProposal, encode_proposal
from zenjun.proto.wire import CONFIRM, HEADER, VERSION, Flag, Kind, cluster_id, view_hash

from ..rules import rule
from ..virtual.engines import LATENCY, Cluster, Node, opened
from ..virtual.pdus import poke
from ..virtual.segment import MS

CLUSTER = cluster_id("test")
VOTES = (Kind.STOP, Kind.STOP_ACK)


def vote_pdu(
    n: int,
    src: int,
    kind: Kind,
    proposal: ChangeProposal,
    *,
    incarnation: int = 1,
    instance: int = 1,
    seq: int = 0,
    clock: int = 1 << 33,
) -> bytes:
    """A vote as nobody would send it; its own entry of the ack vector fits."""
    body = encode_proposal(proposal, state=0, trans=0)
    acks = b"".join((seq + 1 if station == src else 0).to_bytes(4, "big") for station in range(1, n + 1))
    header = pack(
        HEADER, cluster=CLUSTER, version=VERSION, kind=kind, stations=n, src=src, length=len(body), incarnation=incarnation,
        instance=instance, seq=seq, clock=clock, free_buffers=64 * n, frame_max=1500,
    )  # fmt: skip
    return add_checksum(header + acks + body)


def confirm_pdu(n: int, src: int, incarnation: int, instance: int, view: int) -> bytes:
    header = pack(
        HEADER, cluster=CLUSTER, version=VERSION, kind=Kind.CONFIRM, flags=Flag.PACK, stations=n, src=src, length=CONFIRM.size,
        incarnation=incarnation, instance=instance, frame_max=1500,
    )  # fmt: skip
    return add_checksum(header + bytes(8 * n) + pack(CONFIRM, view=view))


def open_pdu(n: int, src: int, incarnation: int, **changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "frame_max": 1500, "proposal": None, "highest": 0, "fingerprint": 0, "age_ms": 10**6, "boot": 99, "started": False,
        "host": "elsewhere",
    }  # fmt: skip
    pdu = OpenPdu(src=src, incarnation=incarnation, **{**fields, **changes})
    return encode_open(pdu, cluster=CLUSTER, stations=n, checksum=add_checksum)


def give(cluster: Cluster, to: Node, src: int, *pdus: bytes) -> None:
    """One batch, as if station src had sent it."""
    mac = cluster.nodes[src - 1].mac
    to.apply(cluster.now, to.engine.on_frames(cluster.now, [(pdu, mac) for pdu in pdus]))


def give_all(cluster: Cluster, src: int, pdu: bytes) -> None:
    for node in cluster.nodes:
        if node.config.station != src and not node.paused:
            give(cluster, node, src, pdu)


def last_confirm(cluster: Cluster, src: int) -> bytes:
    return [frame for frame in cluster.frames if frame[5] == Kind.CONFIRM and frame[8] == src][-1]


def offer_and_step(cluster: Cluster, i: int, *payloads: bytes) -> None:
    node = cluster.nodes[i]
    for payload in payloads:
        node.engine.offer(cluster.now, 1, 1, 0, payload)
    node.apply(cluster.now, node.engine.on_frames(cluster.now, []))


def together(cluster: Cluster, *numbers: int) -> bool:
    """These, and nobody else, are the members of one instance."""
    engines = [cluster.nodes[k - 1].engine for k in numbers]
    return len({e.instance for e in engines}) == 1 and all(e.instance and e.membership.members == numbers for e in engines)


def wiped_out(cluster: Cluster) -> list[str]:
    """Why anybody's instance ended."""
    return [closed.reason for node in cluster.nodes for closed in node.reported(Closed)]


# ---- nothing that comes raises, or leaves a station where it cannot get out


NONSENSE = {
    "no voter": (ChangeProposal(False, (1, 4), ((1, 1), (4, 9))), 1, 5, (1, 0, 0, 9)),
    "a voter without a life": (ChangeProposal(False, (1, 4), ((1, 1),)), 0, 5, (1, 0, 0, 0)),
    "before the first instance": (ChangeProposal(False, (1, 4), ((1, 1),)), 7, 0, (1, 0, 0, 7)),
    "a joiner without a life": (ChangeProposal(False, (1, 3, 4), ((1, 1), (3, 0))), 7, 5, (1, 0, 0, 7)),
}


@pytest.mark.parametrize("what", NONSENSE)
def test_votes_for_what_cannot_be_let_nobody_in(what: str) -> None:
    """Nothing a peer sends raises: a vote and a CONFIRM that fit together, but describe an instance that cannot be."""
    proposal, life, instance, lives = NONSENSE[what]
    cluster = Cluster(4)
    cluster.lost = lambda source, to, pdu: True
    cluster.run(700 * MS)
    one = cluster.nodes[0]
    vote = vote_pdu(4, 4, Kind.RCV_ACK, proposal, incarnation=life, instance=instance)
    give(cluster, one, 4, vote, confirm_pdu(4, 4, lives[3], instance + 1, view_hash(instance + 1, lives)))
    assert not one.engine.instance and not one.reported(Opened)


def test_who_is_let_in_can_leave_again() -> None:
    """A station that listens (new, or told of a later life) asks for nothing. If the votes for its last life are enough just
    then, it must not be in an instance that it can never get out of."""
    cluster = Cluster(4)
    cluster.lost = lambda source, to, pdu: True
    cluster.run(100 * MS)
    one = cluster.nodes[0]
    vote = vote_pdu(4, 2, Kind.RCV_ACK, ChangeProposal(False, (1, 2), ((1, 1),)), incarnation=7, instance=5)
    give(cluster, one, 2, vote, confirm_pdu(4, 2, 7, 6, view_hash(6, (1, 7, 0, 0))))
    cluster.run(10_000 * MS)  # nobody is there: without quorum it gives up
    assert not one.engine.instance
    cluster.lost = lambda source, to, pdu: False
    cluster.until(lambda: together(cluster, 1, 2, 3, 4))


@pytest.mark.parametrize("n", [3, 5])
def test_one_station_alone_removes_nobody(n: int) -> None:
    """Quorum: a STOP whose only voter is its sender is complete at once. It must not expel all the others."""
    cluster = opened(n)
    others = tuple(k for k in range(1, n + 1) if k != 2)
    vote = vote_pdu(n, 2, Kind.STOP, ChangeProposal(True, (2,), tuple((k, 0) for k in others)))
    give_all(cluster, 2, vote)
    assert not wiped_out(cluster)


def test_one_clock_does_not_use_up_all_clocks() -> None:
    """Clocks of a station can be ahead of the others' by what is under way and a change of instance. One CONFIRM with the last
    clock there is must not silence everybody, for good: numbers that it uses up are made durable."""
    cluster = opened()
    cluster.run(600 * MS)
    give_all(cluster, 2, poke(last_confirm(cluster, 2), "clock", 2**62 - 1))
    cluster.run(600 * MS)
    assert max(node.disk[1] for node in cluster.nodes) < 100
    cluster.send(0, b"x")
    cluster.until(lambda: all(node.delivered for node in cluster.nodes), limit_ns=3_000 * MS)


def test_one_frame_does_not_use_up_instance_numbers() -> None:
    """Whatever number an OPEN claims to have seen, a cluster that is stopped and started opens again."""
    cluster = opened()
    give_all(cluster, 2, open_pdu(3, 2, 1, highest=INSTANCE_MAX))
    cluster.run(1_000 * MS)
    for node in cluster.nodes:
        node.boot(cluster.now)
    cluster.until(lambda: together(cluster, 1, 2, 3), limit_ns=6_000 * MS)


def test_one_frame_does_not_use_up_a_station_s_lives() -> None:
    """The same for incarnations: an RCV in an absent station's name does not lock it out for ever."""
    cluster = opened(4)
    cluster.nodes[3].paused = True
    cluster.until(lambda: together(cluster, 1, 2, 3))
    give_all(cluster, 4, open_pdu(4, 4, INCARNATION_MAX, recovering=True))
    cluster.run(2_000 * MS)
    four = cluster.nodes[3]
    four.paused = False
    four.backlog.clear()
    four.boot(cluster.now)
    cluster.until(lambda: together(cluster, 1, 2, 3, 4), limit_ns=10_000 * MS)


def test_one_frame_does_not_keep_a_daemon_from_ever_starting() -> None:
    """The same, told to the station itself: the number it takes must be one it can start with."""
    cluster = opened()
    outdated = OpenProposal(1, ((1, 1), (3, INCARNATION_MAX)))
    give(cluster, cluster.nodes[2], 1, open_pdu(3, 1, 1, outdated=True, proposal=outdated, highest=1))
    cluster.run(2_000 * MS)
    incarnation, instance = cluster.nodes[2].disk
    Engine(cluster.nodes[2].config, incarnation=incarnation + 1, instance=instance)
    cluster.until(lambda: together(cluster, 1, 2, 3), limit_ns=10_000 * MS)


def test_lives_that_follow_each_other_fast_do_not_make_instances_as_fast() -> None:
    """A flood of RCVs, each of a newer life: a change of instance costs everybody an fsync."""
    cluster = opened(4)
    cluster.nodes[3].paused = True
    cluster.until(lambda: together(cluster, 1, 2, 3))
    before = cluster.nodes[0].engine.instance
    for life in range(10, 310):
        give_all(cluster, 4, open_pdu(4, 4, life, recovering=True))
        cluster.run(MS)
    assert cluster.nodes[0].engine.instance - before <= 30


# ---- a quorum that hears each other goes on


def test_two_that_do_not_hear_each_other_do_not_end_the_instance() -> None:
    """1 and 2 suspect each other at the same time; 3 hears both and is told of both. It must side with one of them, not with
    neither: two of three are a quorum. (The other one comes back with the help of 3.)"""
    cluster = opened()
    cluster.run(1_000 * MS)
    cluster.lost = lambda source, to, pdu: {source.config.station, to.config.station} == {1, 2}
    cluster.run(1_500 * MS)
    assert together(cluster, 1, 3) or together(cluster, 2, 3) or together(cluster, 1, 2, 3)


@pytest.mark.parametrize("restarted", [0, 1, 2])
@pytest.mark.parametrize("ways", [{(1, 2)}, {(1, 2), (2, 1)}])
@pytest.mark.parametrize("n", [3, 4, 6])
def test_who_does_not_hear_one_of_the_members_gets_in_by_the_others(n: int, ways: set[tuple[int, int]], restarted: int) -> None:
    """What 1 sends does not reach 2 (nor what 2 sends, 1), from now on, and one of them restarts meanwhile. Before the members
    repeated each other's votes for a joiner it was let in, did not learn of it, was removed, and so on for ever."""
    cluster = opened(n)
    cluster.lost = lambda source, to, pdu: (source.config.station, to.config.station) in ways
    if restarted:
        cluster.nodes[restarted - 1].paused = True
        cluster.run(1_500 * MS)
        cluster.nodes[restarted - 1].paused = False
    cluster.until(lambda: together(cluster, *range(1, n + 1)), limit_ns=6_000 * MS)
    cluster.run(5_000 * MS)
    assert together(cluster, *range(1, n + 1)) and cluster.nodes[-1].engine.instance <= 9
    instance = cluster.nodes[-1].engine.instance
    cluster.run(5_000 * MS)
    assert cluster.nodes[-1].engine.instance == instance, "and then it is calm"


@rule("M7")
@pytest.mark.parametrize("fault", ["", "forget_heard"])
def test_who_starts_late_knows_who_has_restarted_since(fault: str) -> None:
    """Station 1 has read that 3 lives anew before it is told that the instance with its former life has started. It must not say
    that this life is in operation, and 3 asks again only after a while (a checker objected to 25 ms of that, seed 9502275)."""
    cluster = Cluster(rules=frozenset({fault} - {""}))
    one, _, three = cluster.nodes

    def proposes(pdu: bytes) -> bool:
        found = decode_open(pdu, 3) if pdu[5] == Kind.OPEN else None
        return found is not None and found.proposal is not None

    cluster.lost = lambda source, to, pdu: to is one and proposes(pdu)
    cluster.until(lambda: together(cluster, 1, 2, 3) or all(node.engine.instance for node in cluster.nodes[1:]))
    assert not one.engine.instance and one.engine.opening.issued
    started = [p for p in cluster.frames if p[5] == Kind.OPEN and p[8] == 2 and proposes(p)][-1]
    three.paused = True
    give(cluster, one, 3, open_pdu(3, 3, 2, recovering=True))
    give(cluster, one, 2, started)
    says_alive = bool(one.engine.instance) and one.engine.membership.peer_states[3] is PeerState.A
    assert one.reported(Opened) and says_alive is bool(
        fault
    )  # honest it gives the instance up: it has issued a later number (rule 8)


def test_two_that_expel_each_other() -> None:
    """The same by two operators: one of them wins, and nobody's instance ends for want of agreement."""
    cluster = opened()
    cluster.run(1_000 * MS)
    for i, station in ((0, 2), (1, 1)):
        node = cluster.nodes[i]
        node.apply(cluster.now, node.engine.expel(cluster.now, station))
    cluster.run(4_000 * MS)
    assert not any("no agreement" in reason or "no quorum" in reason for reason in wiped_out(cluster))


def test_a_pause_of_everybody_in_the_middle_of_an_agreement() -> None:
    """A machine with all stations is suspended while a stop is being agreed. Whoever wakes up first must give the others time,
    for the agreement as well as for signs of life."""
    cluster = opened()
    cluster.run(1_000 * MS)
    cluster.nodes[2].paused = True
    voted: list[int] = []

    def lost(source: Node, to: Node, pdu: bytes) -> bool:
        if pdu[5] in VOTES and not voted:
            voted.append(source.config.station)
            for node in cluster.nodes:
                node.paused = True
        return bool(voted)

    cluster.lost = lost
    cluster.run(600 * MS)
    assert voted
    for node in cluster.nodes:
        node.sent.clear()
    cluster.lost = lambda source, to, pdu: False
    cluster.now += 3_000 * MS
    cluster.nodes[0].paused = False
    cluster.run(5 * MS)
    cluster.nodes[1].paused = False
    cluster.run(500 * MS)
    assert not wiped_out(cluster) and together(cluster, 1, 2)


def test_a_joiner_with_a_smaller_mtu_ends_nothing() -> None:
    """Its RCV says what it takes. What is sent between the votes and its first CONFIRM is for it as well: if that is larger, it
    can never be repeated for it, and its senders would leave the instance in order to get rid of it."""
    cluster = opened(window_frames=64)
    cluster.run(500 * MS)
    three = cluster.nodes[2]
    cluster.lost = lambda source, to, pdu: len(pdu) > 600 and three in (source, to)
    three.boot(cluster.now)
    three.apply(cluster.now, three.engine.set_frame_max(cluster.now, 600))
    end = cluster.now + 5_000 * MS
    while cluster.now < end:
        for i in (0, 1):
            offer_and_step(cluster, i, *[b"z" * 1300] * 40)
        cluster.run(MS)
    assert not wiped_out(cluster) and together(cluster, 1, 2, 3)


# ---- stations that are half there


def deaf(station: int) -> Callable[[Node, Node, bytes], bool]:
    return lambda source, to, pdu: to.config.station == station


def test_a_deaf_station_does_not_throw_newcomers_out() -> None:
    """5 sends and hears nothing. Its last life has been let in and removed, and it goes on asking with it. 4, let in later, does
    not know that, and must not promise what the others will refuse."""
    cluster = opened(5)
    cluster.lost = deaf(5)
    cluster.run(8_000 * MS)
    assert together(cluster, 1, 2, 3, 4)
    four = cluster.nodes[3]
    four.effects.clear()
    four.boot(cluster.now)
    cluster.run(12_000 * MS)
    assert not four.reported(Closed) and together(cluster, 1, 2, 3, 4)


def test_a_deaf_station_does_not_keep_the_others_from_opening() -> None:
    """Two of three hear each other: they open, although a third one can be heard that never agrees."""
    cluster = Cluster(3)
    cluster.lost = deaf(3)
    cluster.until(lambda: cluster.nodes[0].engine.instance > 0 and cluster.nodes[1].engine.instance > 0, limit_ns=10_000 * MS)


def test_a_station_that_one_member_does_not_hear_is_not_let_in_again_and_again() -> None:
    """One direction of one link is broken. While 3 is let in and removed in turns, somebody always waits for it: it must get its
    turn ever more seldom."""
    cluster = opened()
    cluster.run(500 * MS)
    cluster.lost = lambda source, to, pdu: source.config.station == 3 and to.config.station == 1
    cluster.run(20_000 * MS)
    assert cluster.nodes[0].engine.instance <= 15


class SlowDisk:
    """Node i takes so long for every Persist; nothing behind it leaves before, and what arrives meanwhile waits."""

    def __init__(self, cluster: Cluster, i: int, takes_ns: int) -> None:
        self.cluster, self.node, self.takes_ns = cluster, cluster.nodes[i], takes_ns
        self.held: list[list[Effect]] = []
        self.until_ns = 0
        self.plain = self.node.apply
        self.node.apply = self.apply  # type: ignore[method-assign]

    def apply(self, now: int, effects: list[Effect]) -> None:
        if any(isinstance(effect, Persist) for effect in effects):
            self.node.paused = True
            self.until_ns = self.cluster.now + self.takes_ns
            self.held.append(effects)
        else:
            self.plain(now, effects)

    def run(self, duration_ns: int) -> None:
        cluster, node = self.cluster, self.node
        end = cluster.now + duration_ns
        while cluster.now < end:
            cluster.run(5 * MS)
            if node.paused and cluster.now >= self.until_ns:
                node.paused = False
                held, self.held = self.held, []
                for effects in held:
                    self.plain(cluster.now, effects)
                backlog, node.backlog = node.backlog, []
                self.apply(cluster.now, node.engine.on_frames(cluster.now, backlog))


@pytest.mark.parametrize("takes_ms", [300, 1_000])
def test_a_station_with_a_slow_disk_gets_in(takes_ms: int) -> None:
    """Making a number durable may take longer than fail_timeout. The number of the instance that a station is about to be let
    into is known before: nobody should have to wait for its disk after having let it in."""
    cluster = opened()
    cluster.run(500 * MS)
    disk = SlowDisk(cluster, 2, takes_ms * MS)
    cluster.nodes[2].boot(cluster.now)
    disk.run(20_000 * MS)
    assert together(cluster, 1, 2, 3)
    assert cluster.nodes[0].engine.instance <= 9


def test_a_joiner_starts_as_soon_as_it_may() -> None:
    """From the moment the members carry a join out they wait for the joiner's word. The CONFIRM that lets it start must reach its
    engine even right after another one."""
    cluster = opened()
    cluster.run(1_000 * MS)
    one, _, three = cluster.nodes
    three.boot(cluster.now)
    cluster.until(lambda: any(changed.joined for changed in one.reported(Changed)), step_ns=LATENCY)
    agreed = cluster.now
    cluster.until(lambda: three.engine.instance > 0, step_ns=LATENCY)
    assert cluster.now - agreed < 5 * MS


# ---- nothing confirmed is lost


def test_what_an_expelled_station_has_released_is_not_lost() -> None:
    """Level preack: a message is delivered by all who go on. 5 sends, has everybody's word, and its program is told so; 1, 2 and
    3 do not know it yet. They vote 4 and 5 out, which 4 and 5 see, but 1 dies before that is decided: nobody ever is in the
    instance without 4 and 5. When 2 and 3 open again with them, what 5 has released must come out at preack there too."""
    cluster = opened(5)
    cluster.run(1_000 * MS)
    one, two, three, four, five = cluster.nodes
    sent, stay, votes = cluster.now, (one, two, three), []

    def lost(source: Node, to: Node, pdu: bytes) -> bool:
        if source in (four, five) and to in stay:
            return pdu[5] != Kind.DATA or cluster.now > sent + LATENCY
        if pdu[5] in VOTES:
            votes.append(pdu)
        return bool(votes) and source in stay and to in stay

    cluster.lost = lost
    offer_and_step(cluster, 3, b"from 4")
    offer_and_step(cluster, 4, b"from 5")
    cluster.run(200 * MS)
    assert five.engine.core.positions().preack == 2 and two.engine.core.positions().preack == 0
    cluster.until(lambda: bool(four.reported(Closed) and five.reported(Closed)), step_ns=MS)
    one.paused = True
    assert {node.engine.instance for node in stay} == {1}
    cluster.lost = lambda source, to, pdu: False
    cluster.until(lambda: together(cluster, 2, 3, 4, 5))
    assert [node.before and node.before.preack for node in (two, three)] == [2, 2]


# ---- numbers that are told


def restarts(cluster: Cluster) -> None:
    """All daemons are stopped and started, and open again."""
    for node in cluster.nodes:
        node.boot(cluster.now)
    cluster.until(lambda: together(cluster, *range(1, len(cluster.nodes) + 1)), limit_ns=6_000 * MS)


@rule("M8")
def test_one_confirm_of_a_far_instance_does_not_use_up_instance_numbers() -> None:
    """Its number would be durable, and with some more in advance be larger than any that a daemon starts with."""
    cluster = opened()
    give_all(cluster, 2, confirm_pdu(3, 2, 1, INSTANCE_MAX, 7))
    cluster.run(1_000 * MS)
    assert max(node.disk[1] for node in cluster.nodes) < 10**6
    restarts(cluster)


@pytest.mark.parametrize("attack", ["confirm", "open"])
def test_without_the_rule_one_frame_uses_them_up(monkeypatch: pytest.MonkeyPatch, attack: str) -> None:
    """Broken variant ``jump_numbers``: what is heard is believed at once, and becomes durable, near the end of all numbers."""
    monkeypatch.setattr(Belief, "within", lambda _self, _now, known, reported: max(known, reported))
    cluster = opened()
    if attack == "open":
        cluster.nodes[0].boot(cluster.now)
        give(cluster, cluster.nodes[0], 2, open_pdu(3, 2, 1, highest=INSTANCE_MAX - 1))
    else:
        give_all(cluster, 2, confirm_pdu(3, 2, 1, INSTANCE_MAX - 1, 7))
    cluster.run(1_000 * MS)
    assert max(node.disk[1] for node in cluster.nodes) > 10**6


def test_one_confirm_of_a_far_instance_while_nobody_is_in_one() -> None:
    cluster = Cluster(3)
    cluster.nodes[0].boot(cluster.now)
    cluster.run(MS)
    give(cluster, cluster.nodes[0], 2, confirm_pdu(3, 2, 1, INSTANCE_MAX - 3, 7))
    cluster.run(50 * MS)
    assert cluster.nodes[0].disk[1] < 10**6
    restarts(cluster)


@pytest.mark.parametrize("started", [False, True])
def test_a_flood_of_opens_does_not_use_up_instance_numbers(started: bool) -> None:
    """2,000 OPENs in one go, each with the largest number; to who is in no instance, too, where they may be adopted."""
    cluster = opened()
    if not started:
        for node in cluster.nodes:
            node.boot(cluster.now)
    for k in range(2_000):
        give(cluster, cluster.nodes[0], 2, open_pdu(3, 2, 1 + k % 2, highest=INSTANCE_MAX))
        members = OpenProposal(INSTANCE_MAX, tuple((s, node.disk[0]) for s, node in enumerate(cluster.nodes, 1)))
        give(cluster, cluster.nodes[0], 2, open_pdu(3, 2, cluster.nodes[1].disk[0], highest=INSTANCE_MAX, proposal=members))
    cluster.run(3_000 * MS)
    assert max(node.disk[1] for node in cluster.nodes) < 10**6
    restarts(cluster)


def test_a_flood_of_lives_does_not_use_them_up() -> None:
    """An absent station's lives, told by OPENs that say that a later one has been a member, and by RCVs in its name."""
    cluster = opened(4)
    cluster.nodes[3].paused = True
    cluster.until(lambda: together(cluster, 1, 2, 3))
    life = INCARNATION_MAX // 8 * 7
    for k in range(1, 600):
        life = min(life + (1 << 20), INCARNATION_MAX)
        used = OpenProposal(1, ((1, 1), (4, life)))
        for to in (cluster.nodes[1], cluster.nodes[2]):
            give(cluster, to, 1, open_pdu(4, 1, 1, outdated=True, proposal=used, highest=1))
        give_all(cluster, 4, open_pdu(4, 4, life, recovering=True))
        if k % 50 == 0:
            cluster.run(20 * MS)
    cluster.run(2_000 * MS)
    four = cluster.nodes[3]
    four.paused = False
    four.backlog.clear()
    four.boot(cluster.now)
    cluster.until(lambda: together(cluster, 1, 2, 3, 4), limit_ns=10_000 * MS)
    assert four.disk[0] < INCARNATION_MAX - (1 << 20)


def test_a_station_that_has_lost_its_state_catches_up_with_large_numbers() -> None:
    """What is told is believed by and by: 65,536 numbers a second."""
    cluster = opened()
    for node in cluster.nodes:
        node.disk = (node.disk[0], 200_000)
        node.boot(cluster.now)
    cluster.until(lambda: together(cluster, 1, 2, 3), limit_ns=6_000 * MS)
    assert cluster.nodes[0].engine.instance > 200_000
    lost = cluster.nodes[2]
    lost.disk = (lost.disk[0], 0)
    lost.boot(cluster.now)
    cluster.until(lambda: together(cluster, 1, 2, 3), limit_ns=10_000 * MS)
    assert lost.disk[1] > 200_000


def test_numbers_on_disk_are_cut_to_what_an_engine_takes() -> None:
    """A state file of a daemon that had believed too much: it starts, and says that the numbers are used up."""
    cluster = opened()
    cluster.nodes[0].disk = (cluster.nodes[0].disk[0], INSTANCE_MAX)
    cluster.nodes[0].boot(cluster.now)
    cluster.run(1_000 * MS)
    assert cluster.nodes[0].disk[1] <= INSTANCE_MAX
