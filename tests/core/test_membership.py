"""Members change while data flows: three or four cores, the agreement done by hand. Each test states the rule it protects
(numbers: dynamic instance groups, docs/protocol.md)."""

from __future__ import annotations

import struct
import zlib

import pytest
from zenjun.proto.core import Commit, Drop, Fault, Stage, Status, add_checksum
from zenjun.proto.errors import InvariantError
from zenjun.proto.wire import CONFIRM, HEADER, VIEW, Flag, Kind, MessageType, Ordering, view_hash

from ..rules import rule
from ..virtual.pdus import peek, poke
from ..virtual.segment import MS, NEVER
from .membership_rig import FRAME_MAX, Rig, proposal

WRAPPED = 2**32 - 3
"""A first number that wraps in these tests."""


def of(kind: Kind, frames: list[bytes]) -> list[bytes]:
    return [pdu for pdu in frames if peek(pdu, "kind") == kind]


def full_order(rig: Rig, stations: tuple[int, ...]) -> list[bytes | int]:
    """All of these show the same; what."""
    first, *others = (rig.shown(k) for k in stations)
    assert all(other == first for other in others)
    return first


# ---- a station is removed


@rule("M1", "M2", "M4")
@pytest.mark.parametrize("first_seq", [0, WRAPPED])
def test_a_removed_station_s_last_messages_are_the_same_everywhere(first_seq: int) -> None:
    """Rules 1, 2 and 4: who has less fetches the rest from any member, at once; the view event stands at one place; data goes on;
    in the end everything has every level, and there is silence."""
    rig = Rig(4, (0, 1, 2, 3), {"first_seq": first_seq})
    for k in range(4):
        rig.offer(k, b"early%d" % k)
    rig.settle()
    for number in range(5):  # of its last PDUs, one station gets the first three, another one, and the third none
        rig.offer(3, b"last%d" % number)
        for pdu in of(Kind.DATA, rig.step(3)):
            for to, most in ((0, 3), (1, 1), (2, 0)):
                if number < most:
                    rig.give(3, to, pdu)
    rig.alive.discard(3)
    rig.offer(1, b"meanwhile")
    rig.turn()
    assert b"meanwhile" not in rig.shown(0), "the silent station holds back what is behind its clock"
    change = rig.stop([3])
    rig.offer(2, b"behind")
    rig.turn()
    rig.carry_out(change)
    assert change.instance == 2
    rig.offer(0, b"new")
    rig.settle()
    order = full_order(rig, (0, 1, 2))
    last = [m for m in order if isinstance(m, bytes) and m.startswith(b"last")]
    assert last == [b"last0", b"last1", b"last2"], "the union, and nothing that nobody has"
    assert order.index(2) > order.index(b"meanwhile") and order.index(b"new") > order.index(2)
    event = next(m for m in rig.got[0] if m.type == MessageType.VIEW)
    assert (event.clock, event.view_src) == change.place
    assert VIEW.struct.unpack_from(event.data) == (2, change.view, 0b111, 0, 0b1000)
    assert struct.unpack_from(">4I", event.data, VIEW.size) == (10, 11, 12, 0)
    assert event.position < rig.levels(0)[0] and event.index == 0xFFFF and event.src == 0
    rig.offer(1, b"wanted", need_ack=True)
    rig.settle()
    assert len({rig.levels(k) for k in (0, 1, 2)}) == 1 and len(set(rig.levels(0))) == 1, "every level, old PDUs included"
    peer = rig.cores[0].peer(3)
    assert not peer.member and not peer.closing and peer.req == peer.ordered == peer.top == peer.base
    rig.no_fence()


@rule("M1")
def test_nothing_at_or_beyond_the_limit_is_accepted() -> None:
    """Rule 1; and broken, it is."""
    for fault, expected in ((0, Drop.REMOVED), (Fault.NO_CLOSE, Drop.NONE)):
        rig = Rig(3, (0, 1, 2), {"faults": int(fault)})
        core = rig.cores[0]
        core.limit(rig.now, 1, core.peer(1).req)
        assert core.peer(1).closing
        rig.offer(1, b"late")
        (pdu,) = of(Kind.DATA, rig.step(1))
        assert rig.give(1, 0, pdu) == expected
        assert core.peer(1).req == (0 if expected else 1)
        assert core.matrix()[1][1] == 1, "its vectors count"


@rule("M1")
def test_a_promise_of_a_station_that_is_being_removed_does_not_count() -> None:
    rig = Rig(3, (0, 1, 2))
    rig.offer(0, b"m")
    (pdu,) = of(Kind.DATA, rig.step(0))
    rig.give(0, 1, pdu)
    rig.give(0, 2, pdu)
    rig.cores[0].limit(rig.now, 2, 0)
    for k in (1, 2):
        for answer in rig.step(k):
            rig.give(k, 0, answer)
    assert rig.take(0) == []
    rig.cores[0].limit(rig.now, 2, None)
    assert not rig.cores[0].peer(2).closing
    rig.cores[2].heartbeat(rig.now)
    for answer in rig.step(2):
        rig.give(2, 0, answer)
    assert [m.data for m in rig.take(0)] == [b"m"]


@rule("M1")
def test_what_stood_beyond_a_limit_comes_in_when_it_is_raised_or_withdrawn() -> None:
    """Equalisation raises limits; without quorum a removal is withdrawn. What is held, and what others have, is not forgotten."""
    rig = Rig(3, (0, 1, 2))
    core = rig.cores[0]
    pdus = []
    for number in range(4):
        rig.offer(2, b"%d" % number)
        pdus += of(Kind.DATA, rig.step(2))
    rig.give(2, 0, pdus[0])
    rig.give(2, 0, pdus[2])  # held: 1 is missing
    assert core.peer(2).top == 3 and core.peer(2).gaps == 1
    core.limit(rig.now, 2, 1)
    assert core.peer(2).top == 1 and core.peer(2).gaps == 0 and core.nak_due_ns() == NEVER
    core.limit(rig.now, 2, 3)
    assert core.peer(2).gaps == 1 and core.nak_due_ns() < NEVER
    core.limit(rig.now, 2, 0)
    assert core.peer(2).limit == core.peer(2).top == 1 and core.nak_due_ns() == NEVER, (
        "who had more is removed too: but what is in, is in"
    )
    core.limit(rig.now, 2, 3)
    for pdu in pdus:
        rig.give(2, 1, pdu)
    for pdu in rig.step(1):
        rig.give(1, 0, pdu)
    assert core.peer(2).top == 3, "what others have beyond is not asked for"
    rig.now += 2 * MS
    (nak,) = of(Kind.NAK, rig.step(0))
    assert peek(nak, "target") == 2, "a holder is asked at once, not the station that is being removed"
    core.limit(rig.now, 2, None)
    assert core.peer(2).top == 4
    rig.settle()
    assert [m.data for m in rig.got[0]] == [b"0", b"1", b"2", b"3"]


@rule("M4a")
def test_a_removed_station_hears_no_more_of_it_and_is_told_of_its_end() -> None:
    """Who is no member is a stranger; the removed one sees a later instance, whose PDUs it keeps without delivering (rule 4a)."""
    rig = Rig(3, (0, 1, 2))
    rig.settle()
    rig.alive.discard(2)
    rig.carry_out(rig.stop([2]))
    rig.settle()
    outside = rig.cores[2]
    outside.heartbeat(rig.now)
    (confirm,) = rig.step(2)
    assert rig.give(2, 0, confirm) == Drop.MEMBER
    assert [c.drop for c in rig.cores[0].control()] == [Drop.MEMBER]
    rig.offer(0, b"inside")
    rig.cores[0].heartbeat(rig.now)
    for pdu in rig.step(0):
        assert rig.give(0, 2, pdu) == Drop.NONE
    assert rig.take(2) == []
    (told,) = outside.control()
    assert peek(told.pdu, "kind") == Kind.CONFIRM and told.drop == Drop.INSTANCE
    assert outside.peer(0).instance == 2 and outside.peer(0).view == view_hash(2, rig.incarnations)


# ---- a station is let in


@rule("M5")
@pytest.mark.parametrize("first_seq", [0, WRAPPED])
@pytest.mark.parametrize("lost", [False, True])
def test_a_joiner_delivers_what_stands_behind_its_view(first_seq: int, lost: bool) -> None:
    """Rule 5: first the view event, then the same messages as the others, whatever was under way, and lost."""
    rig = Rig(4, (0, 1, 2), {"first_seq": first_seq})
    for number in range(6):
        rig.offer(number % 3, b"old%d" % number)
        rig.turn()
    rig.settle()
    for k in range(3):
        rig.offer(k, b"before%d" % k)
    change = rig.let_in({3: 50})
    for k in range(3):
        rig.offer(k, b"between%d" % k)
    rig.turn()
    assert not any(b"between" in m for m in rig.shown(0) if isinstance(m, bytes)), "the joiner is in the wait set"
    rig.carry_out(change)
    rig.offer(0, b"first")
    rig.offer(3, b"hello")
    if lost:
        rig.turn(lambda source, to, pdu: False)
    for number in range(20):
        rig.offer(number % 4, b"%d" % number)
        rig.turn(lambda source, to, pdu: not lost or zlib.crc32(pdu + bytes([source, to])) % 3 > 0)
    rig.settle()
    order = full_order(rig, (0, 1, 2))
    at = order.index(2)
    assert rig.shown(3) == order[at:]
    assert {b"old5", b"before0", b"before1", b"before2"} <= set(order[:at])
    assert {b"between0", b"between1", b"between2", b"first", b"hello"} <= set(order[at:])
    event = rig.got[3][0]
    assert event.type == MessageType.VIEW and event.position == NEVER and (event.clock, event.view_src) == change.place
    assert VIEW.struct.unpack_from(event.data) == (2, change.view, 0b1111, 0b1000, 0)
    view, count = rig.cores[3].reached()
    assert (view, count) == rig.cores[0].reached() and view == change.view and count == rig.levels(3)[1]
    assert rig.cores[3].counters()["digests_compared"] > 0
    rig.no_fence()


def rejoined(per_core: dict[int, dict[str, int]] | None = None, first_seq: int = 0) -> tuple[Rig, bytes]:
    """Station 2 has sent much, is removed and let in again. The rig, and a vote of station 1 for that."""
    rig = Rig(3, (0, 1, 2), {"first_seq": first_seq}, per_core or {})
    for number in range(8):
        rig.offer(2, b"life1-%d" % number)
        rig.turn()
    rig.settle()
    rig.alive.discard(2)
    rig.carry_out(rig.stop([2]))
    rig.settle()
    change = rig.let_in({2: 77})
    rig.carry_out(change)
    return rig, change.votes[1].pdu


@rule("M5a")
@pytest.mark.parametrize("first_seq", [0, WRAPPED])
def test_acks_of_a_former_life_do_not_count(first_seq: int) -> None:
    """Rule 5a: a vote sent just before the join still bears the former life's high number. (A joiner that believed it
    would deliver its own messages alone.) Nor does a P of then."""
    rig, vote = rejoined(first_seq=first_seq)
    others = struct.unpack_from(">3I", vote, HEADER.size)
    assert (others[2] - first_seq) & 0xFFFFFFFF >= 8
    confirm = bytearray(vote)  # as a CONFIRM sent just before the join
    for k in (0, 2):
        before = rig.cores[k].matrix()[2]
        old = poke(rig_confirm(rig, 1, instance=2, acks=others), "clock", peek(bytes(confirm), "clock"))
        assert rig.give(1, k, old) == Drop.NONE
        assert rig.cores[k].matrix()[2] == before
    rig.offer(2, b"life2")
    for pdu in rig.step(2):
        rig.give(2, 0, pdu)
    assert rig.cores[2].peer(2).min_al == rig.cores[2].peer(2).base, "nobody has it but itself"
    rig.settle()
    assert rig.shown(2) == [3, b"life2"]
    assert full_order(rig, (0, 1))[-2:] == [3, b"life2"]
    assert rig.levels(2)[1] == rig.levels(2)[0]
    rig.no_fence()


def rig_confirm(rig: Rig, k: int, *, instance: int, acks: tuple[int, ...]) -> bytes:
    """A CONFIRM of station k in that instance with these acks as A and P."""
    rig.cores[k].heartbeat(rig.now)
    pdu = bytearray(of(Kind.CONFIRM, rig.cores[k].tx())[-1])
    vectors = struct.pack(f">{rig.n}I", *acks)
    pdu[HEADER.size : HEADER.size + 8 * rig.n] = vectors + vectors
    return poke(bytes(pdu), "instance", instance)


@rule("M5a")
def test_broken_rule_5a_believes_them() -> None:
    rig, vote = rejoined({0: {"faults": int(Fault.OLD_ACKS)}})
    before = rig.cores[0].matrix()[2]
    rig.give(1, 0, rig_confirm(rig, 1, instance=2, acks=struct.unpack_from(">3I", vote, HEADER.size)))
    assert rig.cores[0].matrix()[2] != before


def test_a_second_life_is_let_in_when_the_first_is_all_delivered() -> None:
    """Its buffers are the same ones."""
    rig = Rig(3, (0, 1, 2))
    rig.settle()
    rig.offer(2, b"x")
    for pdu in rig.step(2):
        for to in (0, 1):
            rig.give(2, to, pdu)
    rig.alive.discard(2)
    rig.mute.add(0)
    change = rig.stop([2])
    for k in (0, 1):
        assert rig.commit(k, change)
    rig.instance, rig.incarnations = change.instance, change.incarnations
    core = rig.cores[0]
    assert core.peer(2).ordered < core.peer(2).req
    seq, clock, _ = core.propose(rig.now, Kind.RCV_ACK, proposal((0, 1, 2), [(2, 50)])) or (0, 0, b"")
    entry = Commit(3, view_hash(3, (10, 11, 50)), 7, 4, clock, 0, (10, 11, 50), {0: seq, 1: core.peer(1).req})
    assert not core.commit(rig.now, entry)
    assert core.peer(2).incarnation == 12 and not core.peer(2).member
    rig.mute.clear()
    rig.take(0)
    assert b"x" in rig.shown(0)
    assert core.commit(rig.now, entry)
    assert core.peer(2).incarnation == 50 and core.peer(2).member


@rule("M5")
def test_broken_a_joiner_is_not_waited_for() -> None:
    """Rule 5: what is behind the own vote must not be delivered before the joiner's clock is known."""
    for fault, delivered in ((0, False), (Fault.NO_WAIT_JOINER, True)):
        rig = Rig(3, (0, 1), {"faults": int(fault)})
        rig.settle()
        rig.let_in({2: 50})
        rig.offer(0, b"behind")
        for _ in range(4):
            rig.turn()
        assert (b"behind" in rig.shown(1)) == delivered


@rule("M5")
def test_what_a_joiner_will_need_is_kept() -> None:
    """From the vote on nothing is freed until the joiner's acks count; votes find room although data has filled the rest."""
    for fault in (0, Fault.NO_PIN):
        rig = Rig(3, (0, 1), {"slots": 16, "window": 8, "faults": int(fault) | Fault.NO_WAIT_JOINER})
        rig.settle()
        change = rig.let_in({2: 50})
        for number in range(40):
            if rig.cores[0].offer(b"%d" % number, group=1, client=1):
                rig.turn()
        needed = change.votes[0].seq + 1
        assert (rig.cores[1].peer(0).base <= needed) == (not fault)
        if fault:
            continue
        assert rig.cores[0].peer(0).req < needed + 16, "held back"
        again = rig.cast((0, 1), Kind.RCV_ACK, (0, 1, 2), [(2, 51)])  # another life of it asks
        rig.agree(again)


def test_what_follows_a_vote_of_the_next_instance_is_kept_over_the_change_to_it() -> None:
    """Station 1 is in instance 2 already and votes for a joiner there; station 0 gets the vote first and changes after it."""
    rig = Rig(3, (0, 1, 2))
    rig.settle()
    rig.alive.discard(2)
    change = rig.stop([2])
    assert rig.commit(1, change)
    vote = rig.cast((1,), Kind.RCV_ACK, (0, 1, 2), [(2, 50)])[1]
    rig.offer(1, b"needed")
    for pdu in rig.step(1):
        rig.give(1, 0, pdu)
    assert rig.commit(0, change)
    rig.instance, rig.incarnations = change.instance, change.incarnations
    for _ in range(4):
        rig.turn()
    peer = rig.cores[0].peer(1)
    assert peer.min_al == peer.ordered == peer.req > vote.seq + 1 == peer.base


def test_level_ack_behind_a_join_needs_what_everybody_says_of_all() -> None:
    """What a member said of "everybody" before the join did not mean the joiner: it has to say it again."""
    rig = Rig(3, (0, 1))
    rig.settle()
    change = rig.let_in({2: 50})
    rig.offer(0, b"behind", need_ack=True)
    for _ in range(4):
        rig.turn()
    seq = rig.cores[0].peer(0).req - 1
    assert rig.cores[0].peer(0).acked > seq, "of two"
    rig.carry_out(change)
    assert rig.cores[0].peer(0).acked <= seq and rig.cores[0].peer(0).min_al <= seq
    for _ in range(10):
        rig.turn(lambda source, to, pdu: source != 1)
    assert rig.cores[0].peer(0).min_al > seq, "the joiner has fetched it"
    assert rig.cores[0].peer(0).acked <= seq, "station 1 has not said that it knows"
    rig.settle()
    assert {rig.levels(k)[2] for k in (0, 1)} == {rig.levels(0)[0]}
    assert rig.levels(2)[2] == rig.levels(2)[0] > 0


def test_after_the_join_data_flows_again() -> None:
    rig = Rig(3, (0, 1), {"slots": 16, "window": 8})
    rig.settle()
    change = rig.let_in({2: 50})
    sent = 0
    for _ in range(30):
        sent += rig.cores[0].offer(b"%d" % sent + bytes(400), group=1, client=1)
        rig.turn()
    assert 4 < sent < 30
    rig.carry_out(change)
    for number in range(sent, 60):
        for _ in range(10):
            if rig.cores[0].offer(b"%d" % number + bytes(400), group=1, client=1):
                break
            rig.turn()
        else:
            raise AssertionError("the window does not open")
        rig.turn()
    rig.settle()
    assert rig.shown(2) == [2, *(b"%d" % number + bytes(400) for number in range(60))]
    rig.no_fence()


def test_a_message_under_way_is_sent_anew_for_the_joiner() -> None:
    """A fragmented message of which a part stands before the vote: its place is where it ends, behind the view, so the joiner
    delivers it and must get its beginning."""
    rig = Rig(3, (0, 1), {"slots": 16, "window": 4})
    rig.settle()
    data = bytes(range(256)) * 20
    assert not rig.cores[0].offer(data, group=1, client=1)
    rig.turn()
    change = rig.let_in({2: 50})
    for _ in range(3):
        rig.turn()
    rig.carry_out(change)
    for _ in range(60):
        if rig.cores[0].offer(data, group=1, client=1):
            break
        rig.turn()
    rig.settle()
    assert rig.shown(2) == [2, data]
    assert full_order(rig, (0, 1)) == [2, data], "once"
    rig.no_fence()


@rule("M5")
def test_two_are_let_in_at_once() -> None:
    rig = Rig(4, (0, 1))
    rig.settle()
    rig.carry_out(rig.let_in({2: 50, 3: 51}))
    for k in range(4):
        rig.offer(k, b"%d" % k)
    rig.settle()
    assert full_order(rig, (0, 1, 2, 3))[0] == 2 and len(rig.shown(3)) == 5
    rig.no_fence()


def test_many_changes_in_a_row() -> None:
    """Somebody is removed and let in again, over and over, while all send: same order, same levels, no fence."""
    rig = Rig(4, (0, 1, 2, 3))
    for number in range(1, 21):
        victim, life = number % 3 + 1, 100 + number
        for k in sorted(rig.alive):
            rig.cores[k].offer(b"%d-%d" % (k, number), group=1, client=1, need_ack=number % 2 == 0)
        rig.turn()
        rig.alive.discard(victim)
        rig.carry_out(rig.stop([victim]))
        rig.turn()
        rig.cores[victim].close()
        for _ in range(10):
            if rig.cores[0].peer(victim).ordered == rig.cores[0].peer(victim).req:
                break
            rig.turn()
        rig.turn()
        rig.carry_out(rig.let_in({victim: life}))
        rig.turn()
    rig.settle()
    order = rig.shown(0)
    assert [m for m in order if isinstance(m, int)] == list(range(2, 42))
    for k in (1, 2, 3):
        mine = rig.shown(k)
        assert mine and mine == order[-len(mine) :]
    rig.no_fence()
    assert rig.levels(0)[0] == rig.levels(0)[1]


# ---- places


@rule("M4a")
def test_a_pdu_of_a_later_instance_waits_for_it() -> None:
    """Rule 4a; broken, it is delivered at the wrong side of the view."""
    for fault, early in ((0, False), (Fault.FUTURE, True)):
        rig = Rig(3, (0, 1, 2), {"faults": int(fault)})
        rig.settle()
        change = rig.stop([2])  # which hears all of it, and is as good as its members in everything but this
        assert rig.commit(1, change)
        rig.offer(1, b"new")
        for _ in range(3):
            rig.turn()
        assert (b"new" in rig.shown(2)) == early
        assert rig.cores[2].peer(1).req == rig.cores[0].peer(1).req
        rig.alive.discard(2)
        assert rig.commit(0, change)
        rig.instance, rig.incarnations = change.instance, change.incarnations
        rig.settle()
        assert full_order(rig, (0, 1)) == [2, b"new"]


@rule("M4")
def test_a_view_event_has_one_place() -> None:
    """Rule 4: right behind the last vote, on both sides the same messages; broken, one station shows it at once."""
    for fault in (0, Fault.EAGER_VIEW):
        rig = Rig(3, (0, 1, 2), per_core={0: {"faults": int(fault)}})
        rig.settle()
        rig.alive.discard(2)
        rig.offer(1, b"before")
        change = rig.stop([2])
        rig.carry_out(change)
        if fault:
            rig.take(0)
        rig.settle()
        assert rig.shown(1) == [b"before", 2]
        assert rig.shown(0) == ([2, b"before"] if fault else [b"before", 2])


def test_while_a_vote_waits_nothing_is_delivered() -> None:
    """It may say where this station's instance ends: the engine sees it first."""
    rig = Rig(2, (0, 1))
    rig.settle()
    rig.offer(1, b"m")
    rig.cast((1,), Kind.STOP, (1,), [(0, 0)])
    for pdu in rig.step(1):
        rig.give(1, 0, pdu)
    status = rig.cores[0].step(rig.now, True)
    assert status & Status.CONTROL and not status & Status.DELIVER
    assert rig.cores[0].deliver() == []
    (vote,) = rig.cores[0].proposals()
    assert (vote.src, vote.kind, vote.instance) == (1, Kind.STOP, 1) and peek(vote.pdu, "seq") == vote.seq
    assert [m.data for m in rig.cores[0].deliver()] == [b"m"]


def test_more_votes_than_the_queue_holds_are_not_lost() -> None:
    """The stream does not accept further until the engine has taken some."""
    rig = Rig(2, (0, 1), {"slots": 512, "window": 256})
    payload = proposal((1,), [(0, 0)])
    sent = []
    for _ in range(200):
        own = rig.cores[1].propose(rig.now, Kind.STOP, payload)
        assert own is not None
        sent.append(own[0])
    for pdu in rig.step(1):
        rig.give(1, 0, pdu)
    core = rig.cores[0]
    assert core.peer(1).req == 128
    got = [vote.seq for vote in core.proposals()]
    core.step(rig.now, True)
    got += [vote.seq for vote in core.proposals()]
    assert got == sent and core.peer(1).req == 200


def test_a_vote_bypasses_the_window_and_needs_a_buffer() -> None:
    rig = Rig(2, (0, 1), {"slots": 8, "window": 2})
    while rig.cores[0].offer(b"x" * 300, group=1, client=1):
        rig.cores[0].step(rig.now, True)
    payload, seqs = proposal((0,), [(1, 0)]), []
    while own := rig.cores[0].propose(rig.now, Kind.STOP, payload):
        seqs.append(own[0])
    assert seqs == [3, 4, 5, 6, 7], "what was being built goes first"
    data = of(Kind.DATA, rig.step(0))
    assert len(data) == 3
    assert rig.cores[0].peer(0).req == 8


def test_messages_leave_room_for_votes() -> None:
    """The order waits for PDUs of station 1 that station 0 cannot get, while the acknowledgements of its own come, so that the
    window stays open: its messages must not take the buffers of the vote that will end this."""
    rig = Rig(3, (0, 1, 2), {"slots": 16, "window": 8})

    def passes(source: int, to: int, pdu: bytes) -> bool:
        return to != 0 or peek(pdu, "src") != 2 or peek(pdu, "kind") != Kind.DATA

    rig.offer(1, b"out of reach")
    for _ in range(100):
        while rig.cores[0].offer(b"x" * 300, group=1, client=1):
            rig.cores[0].step(rig.now, True)
        rig.turn(passes)
    own = rig.cores[0].peer(0)
    assert own.min_al == own.req == 12 and own.base == 0 and rig.shown(0) == []
    votes = [rig.cores[0].propose(rig.now, Kind.STOP, proposal((0, 2), [(1, k)])) for k in range(4)]
    assert [vote is not None for vote in votes] == [True, True, True, False], "and what was being built"


# ---- FIFO order


def test_op_messages_come_on_acceptance_and_again_at_their_place() -> None:
    """Delivered in their source's order as soon as they are accepted, large ones as well; the second time without data, for the
    levels."""
    rig = Rig(3, (0, 1, 2))
    large = bytes(range(200)) * 10
    rig.offer(0, b"quick", ordering=Ordering.FIFO)
    rig.offer(0, b"ordered")
    rig.offer(0, large, ordering=Ordering.FIFO)
    frames = of(Kind.DATA, rig.step(0))
    assert all(peek(pdu, "flags") & Flag.OP for pdu in frames)
    for pdu in frames:
        rig.give(0, 1, pdu)
    assert rig.cores[1].step(rig.now, True) & Status.DELIVER
    got = rig.cores[1].deliver()
    assert [(m.stage, m.data) for m in got] == [(Stage.ACCEPTED, b"quick"), (Stage.ACCEPTED, large)], (
        "station 2 has not been heard"
    )
    assert [(m.stage, m.data) for m in rig.cores[0].deliver()] == [(Stage.ACCEPTED, b"quick"), (Stage.ACCEPTED, large)], (
        "the own ones too"
    )
    for pdu in frames:
        rig.give(0, 2, pdu)
    rig.settle()
    for k in (1, 2):
        placed = [m for m in rig.got[k] if m.stage != Stage.ACCEPTED]
        assert [(m.stage, m.data) for m in placed] == [(Stage.PLACED, b""), (Stage.DELIVERED, b"ordered"), (Stage.PLACED, b"")]
        assert placed[0].position == placed[1].position < placed[2].position
    accepted = [m for m in rig.got[2] if m.stage == Stage.ACCEPTED]
    assert [(m.clock, m.src, m.index) for m in accepted] == [
        (m.clock, m.src, m.index) for m in rig.got[2] if m.stage == Stage.PLACED
    ]
    assert rig.cores[1].peer(0).base == rig.cores[1].peer(0).req, "nothing stays behind"


@rule("M4a")
def test_an_op_message_of_a_later_instance_waits_for_it() -> None:
    """Rule 4a; and nobody else's order-preserving messages wait behind it."""
    rig = Rig(3, (0, 1, 2))
    rig.settle()
    rig.alive.discard(2)
    change = rig.stop([2])
    assert rig.commit(1, change)
    rig.offer(1, b"new", ordering=Ordering.FIFO)
    for pdu in rig.step(1):
        rig.give(1, 0, pdu)
    rig.offer(0, b"own", ordering=Ordering.FIFO)
    rig.step(0)
    assert [m.data for m in rig.take(0) if m.stage == Stage.ACCEPTED] == [b"own"]
    assert rig.commit(0, change)
    assert [m.data for m in rig.take(0) if m.stage == Stage.ACCEPTED] == [b"new"]
    rig.settle()
    assert [m.stage for m in rig.got[0]].count(Stage.PLACED) == 2


def test_a_joiner_gets_op_messages_behind_its_view_only() -> None:
    rig = Rig(3, (0, 1))
    rig.settle()
    rig.offer(0, b"old", ordering=Ordering.FIFO)
    change = rig.let_in({2: 50})
    rig.carry_out(change)
    rig.offer(0, b"new", ordering=Ordering.FIFO)
    rig.settle()
    assert [(m.type, m.stage, m.data) for m in rig.got[2][1:]] == [(0, Stage.ACCEPTED, b"new"), (0, Stage.PLACED, b"")]
    assert rig.got[2][0].type == MessageType.VIEW
    assert [m.data for m in rig.got[1] if m.stage == Stage.ACCEPTED] == [b"old", b"new"]


def test_a_removed_station_s_op_messages_are_delivered_before_its_next_life() -> None:
    rig = Rig(3, (0, 1, 2))
    rig.settle()
    rig.offer(2, b"last", ordering=Ordering.FIFO)
    for pdu in rig.step(2):
        for to in (0, 1):
            rig.give(2, to, pdu)
    rig.alive.discard(2)
    rig.carry_out(rig.stop([2]))
    rig.settle()
    rig.carry_out(rig.let_in({2: 60}))
    rig.offer(2, b"next", ordering=Ordering.FIFO)
    rig.settle()
    assert [m.data for m in rig.got[0] if m.stage == Stage.ACCEPTED] == [b"last", b"next"]
    assert full_order(rig, (0, 1)) == [2, 3]


# ---- the rest of an instance that has ended


def cut_off(late: bool) -> Rig:
    """Stations 0 and 1 remove station 2; 0 has everything of 1, but its instance ends before it delivers any of it. late: even
    before the commit, which it carries out for the flush alone."""
    rig = Rig(3, (0, 1, 2))
    rig.settle()
    rig.alive.discard(2)
    rig.offer(1, b"before")
    change = rig.stop([2])
    assert rig.commit(1, change)
    if not late:
        assert rig.commit(0, change)
    rig.offer(1, b"after1" + bytes(500))
    rig.offer(1, b"after2" + bytes(500))
    rig.offer(1, b"after3" + bytes(500))
    for pdu in rig.step(1):
        if peek(pdu, "kind") == Kind.DATA:
            assert rig.give(1, 0, pdu) == Drop.NONE
    rig.cores[0].close()
    assert rig.take(0) == []
    if late:
        assert rig.commit(0, change)
    return rig


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("count", [0, 1, 2, 9])
def test_flush_goes_over_a_view_event(late: bool, count: int) -> None:
    """After the end a station delivers up to what some other has released: over the event of a change, not beyond the count."""
    rig = cut_off(late)
    core, view = rig.cores[0], view_hash(2, (10, 11, 0))
    assert core.reached()[0] == view_hash(1, (10, 11, 12))
    core.flush(view, count)
    assert not core.flushed
    rig.take(0)
    shown = [m if isinstance(m, int) else m[:6] for m in rig.shown(0)]
    assert shown == [b"before", 2, b"after1", b"after2", b"after3"][: 2 + count]
    assert core.flushed and len(set(core.positions())) == 1
    assert core.reached() == (view, min(count, 3))


def test_flush_up_to_a_place_before_a_view_event_does_not_show_it() -> None:
    rig = cut_off(False)
    core, first = rig.cores[0], view_hash(1, (10, 11, 12))
    core.flush(first, 2)  # one vote, and the message
    rig.take(0)
    assert rig.shown(0) == [b"before"] and core.positions() == (2, 2, 2) and core.flushed
    core.flush(first, 3)  # both votes: the event stands right behind
    rig.take(0)
    assert rig.shown(0) == [b"before"] and core.positions() == (3, 3, 3) and core.reached() == (first, 3)


def test_flush_of_an_unknown_view_gives_nothing() -> None:
    rig = cut_off(False)
    core = rig.cores[0]
    core.flush(99, 5)
    assert core.deliver() == [] and core.flushed and core.flushing and core.positions() == (0, 0, 0)
    core.open(rig.now, 3, 33, (1, 1, 1), FRAME_MAX)
    assert not core.flushing and core.deliver() == []


def test_flush_to_a_view_that_is_behind_releases_up_to_it() -> None:
    """Others are further than that anyway; positions never go back."""
    rig = Rig(3, (0, 1))
    rig.offer(0, b"a")
    rig.settle()
    rig.carry_out(rig.let_in({2: 50}))
    rig.offer(0, b"b")
    for pdu in rig.step(0):
        rig.give(0, 1, pdu)
    before = rig.levels(0)
    rig.cores[0].close()
    rig.cores[0].flush(view_hash(1, (10, 11, 0)), 1)
    assert rig.cores[0].deliver() == [] and rig.levels(0) == before


def test_a_joiner_that_never_got_to_its_view_flushes_to_it() -> None:
    rig = Rig(3, (0, 1))
    rig.settle()
    rig.offer(0, b"before")
    change = rig.let_in({2: 50})
    rig.carry_out(change)
    joiner = rig.cores[2]
    assert joiner.reached() == (0, 0) and rig.take(2) == []
    joiner.close()
    assert joiner.deliver() == []
    joiner.flush(change.view, 0)
    rig.take(2)
    assert rig.shown(2) == [2] and joiner.reached() == (change.view, 0) and joiner.flushed


# ---- what the engine is told, and tells


def test_a_joiner_lives_on_everything_it_is_told() -> None:
    """A closed core: each RCV_ACK is passed on once, and a CONFIRM although other PDUs of the station were just seen."""
    rig = Rig(3, (0, 1))
    rig.offer(0, b"data")
    rig.cast((0,), Kind.RCV_ACK, (0, 1, 2), [(2, 50)])
    rig.cast((0,), Kind.RCV_ACK, (0, 1, 2), [(2, 51)])
    rig.cores[0].heartbeat(rig.now)
    frames = rig.step(0)
    assert all(rig.give(0, 2, pdu) == Drop.CLOSED for pdu in frames)
    for pdu in frames:
        assert rig.give(0, 2, pdu) == (Drop.REPEATED if peek(pdu, "kind") == Kind.RCV_ACK else Drop.CLOSED)
    kinds = [peek(c.pdu, "kind") for c in rig.cores[2].control()]
    assert sorted(kinds) == sorted([Kind.DATA, Kind.CONFIRM, *[Kind.RCV_ACK] * 2])


def test_a_later_confirm_is_told_seldom_and_not_believed() -> None:
    rig = Rig(2, (0, 1))
    rig.settle()
    core = rig.cores[0]
    before = core.matrix(), core.clock, core.peer(1).clock
    later = poke(poke(rig_confirm(rig, 1, instance=2, acks=(1, 9)), "clock", (2 << 32) + 77), "target", 1)
    for _ in range(3):
        assert rig.give(1, 0, later) == Drop.NONE
    assert [c.drop for c in core.control()] == [Drop.INSTANCE]
    assert (core.matrix(), core.clock, core.peer(1).clock) == before
    assert (core.peer(1).instance, core.peer(1).heard_ns) == (2, rig.now)


def test_two_instances_of_one_number_do_not_mix() -> None:
    rig = Rig(2, (0, 1))
    rig.cores[1].heartbeat(rig.now)
    (pdu,) = rig.cores[1].tx()
    at = HEADER.size + 16 + CONFIRM.offset("view")
    other = add_checksum(pdu[:at] + bytes(4) + pdu[at + 4 :])
    assert rig.give(1, 0, other) == Drop.INSTANCE
    assert rig.cores[0].peer(1).instance == 0 and len(rig.cores[0].control()) == 1
    assert rig.give(1, 0, pdu) == Drop.NONE
    assert rig.cores[0].peer(1).view == view_hash(1, (10, 11))


def test_confirms_carry_the_state_of_members() -> None:
    rig = Rig(3, (0, 1, 2))
    rig.cores[0].set_state(0b110, 0b010)
    rig.cores[0].heartbeat(rig.now)
    (pdu,) = rig.cores[0].tx()
    rig.give(0, 1, pdu)
    peer = rig.cores[1].peer(0)
    assert (peer.state, peer.trans, peer.instance, peer.view) == (0b110, 0b010, 1, view_hash(1, (10, 11, 12)))


@rule("M3")
def test_without_quorum_no_data_is_sent() -> None:
    rig = Rig(2, (0, 1))
    core = rig.cores[0]
    rig.offer(0, b"begun")
    core.block(True)
    assert not core.offer(b"m", group=1, client=1)
    assert not core.step(rig.now, True) & Status.ROOM
    assert of(Kind.DATA, core.tx()) == []
    core.heartbeat(rig.now)
    assert len(of(Kind.CONFIRM, core.tx())) == 1
    core.block(False)
    assert core.step(rig.now, True) & Status.ROOM
    assert len(of(Kind.DATA, core.tx())) == 1


def test_a_probe_is_answered_whatever_there_is_to_say() -> None:
    rig = Rig(3, (0, 1, 2))
    rig.settle()
    rig.cores[0].probe(rig.now, 1)
    (pdu,) = rig.step(0)
    for to in (1, 2):
        rig.give(0, to, pdu)
    rig.now += 2 * MS
    assert len(of(Kind.CONFIRM, rig.step(1))) == 1
    assert rig.step(2) == []
    asked = set()
    for _ in range(40):  # one CONFIRM carries one question: of two, either gets through
        rig.cores[0].probe(rig.now, 1)
        rig.cores[0].probe(rig.now, 2)
        asked |= {peek(pdu, "target") for pdu in rig.cores[0].tx()}
    assert asked == {2, 3}


def test_what_is_watched_is_reported_until_it_has_been_asked_for() -> None:
    rig = Rig(2, (0, 1))
    rig.settle()
    core = rig.cores[0]
    core.report_progress(True)
    core.proposals()
    assert not core.step(rig.now, True) & Status.CONTROL
    rig.offer(1, b"m")
    for pdu in rig.step(1):
        rig.give(1, 0, pdu)
    assert core.step(rig.now, True) & Status.CONTROL
    assert core.step(rig.now, True) & Status.CONTROL, "the driver may have put it off"
    core.proposals()
    core.report_progress(False)
    core.step(rig.now, True)
    rig.offer(1, b"m")
    for pdu in rig.step(1):
        rig.give(1, 0, pdu)
    assert not core.step(rig.now, True) & Status.CONTROL


def test_life_is_seen_through_others() -> None:
    rig = Rig(3, (0, 1, 2))
    rig.settle()
    before = rig.cores[0].peer(2).heard_ns
    rig.now += 50 * MS
    rig.offer(2, b"m")
    for pdu in rig.step(2):
        rig.give(2, 1, pdu)
    for pdu in rig.step(1):
        rig.give(1, 0, pdu)
    assert before < rig.now == rig.cores[0].peer(2).heard_ns


def test_what_does_not_follow_is_refused() -> None:
    rig = Rig(3, (0, 1))
    good = Commit(2, 5, 0b111, 0b100, 1 << 33, 0, (10, 11, 50), {0: 0, 1: 0})
    wrong = [
        good._replace(instance=3), good._replace(view=0), good._replace(members=0b1111), good._replace(joined=0b1000),
        good._replace(joined=0b110), good._replace(members=0b110), good._replace(place_src=3), good._replace(joined=0),
    ]  # fmt: skip
    for change in wrong:
        with pytest.raises(InvariantError):
            rig.cores[0].commit(rig.now, change)
    assert rig.cores[0].propose(rig.now, Kind.DATA, b"") is None
    assert rig.cores[2].propose(rig.now, Kind.STOP, proposal((0,), [(1, 0)])) is None
    assert rig.cores[0].commit(rig.now, good)
    rig.cores[0].limit(rig.now, 0, 0)
    assert not rig.cores[0].peer(0).closing, "not oneself"
