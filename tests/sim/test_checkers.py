"""Each checker on hand-made histories: silent on a right one, loud on the smallest wrong one."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from zenjun.proto import wire
from zenjun.proto.wire import Flag, Kind

from . import frames
from .checker import Checker, due
from .checkers import (
    AckHonest,
    Causality,
    Digest,
    Fifo,
    Flow,
    Liveness,
    Monotonic,
    NoDuplicate,
    NoInvention,
    OpOrder,
    PlaceInOrder,
    PreackHonest,
    Silence,
    Survivors,
    TotalOrder,
    Views,
)
from .checkers_membership import Blameless, GoingOn, Instances, Quorum
from .facts import ACK, AT_ONCE, ORDERED, PREACK, VIEW, CoreView, Delivery, Facts, Instance, Message, PeerView, Stay
from .frames import Frame
from .violation import Violation

FIRST = 2**32 - 1
"""Streams of these histories start at the last 32-bit number, so that every one wraps."""
BASE = 1 << 32


@dataclass(eq=False)
class Core(CoreView):
    """A core that says what the history wants."""

    peers: list[PeerView]
    drops: int = 0
    memory: int = 1000
    assembling: int = 0
    waits: int = 0
    time: int = BASE
    said: tuple[int, int] = (0, 0)

    def peer(self, station: int) -> PeerView:
        return self.peers[station]

    def window_drops(self) -> int:
        return self.drops

    def memory_bytes(self) -> int:
        return self.memory

    def assembling_bytes(self) -> int:
        return self.assembling

    def starves(self) -> int:
        return self.waits

    def core_clock(self) -> int:
        return self.time

    def claim(self) -> tuple[int, int]:
        return self.said


@dataclass
class History:
    """Stations in instance 1 with window 2, all of incarnation 1, and one checker looking on."""

    checker_of: Callable[[Facts], Checker]
    n: int = 2
    cores: list[Core] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.facts = Facts(self.n, window=2, slots=4, first_seq=FIRST)
        self.instance = self.facts.note_opened(1, (1,) * self.n, 0)
        self.facts.life = [1] * self.n
        self.facts.disk = [(1, 9)] * self.n
        self.cores = [Core([PeerView(FIRST, FIRST, FIRST, FIRST, FIRST, FIRST) for _ in range(self.n)]) for _ in range(self.n)]
        self.stays = [Stay(s, 1, self.instance, self.cores[s]) for s in range(self.n)]
        self.facts.stays = list(self.stays)
        self.checker = self.checker_of(self.facts)

    # ---- what stations do
    def turn(self, frames_sent: int = 0) -> None:
        """Station 0 finishes one."""
        self.checker.turn(self.stays[0], self.cores[0].peers, frames_sent)

    def frame(self, src: int, kind: int, seq: int, clock: int, payload: bytes = b"", instance: int = 1, **more: Any) -> Frame:
        values: dict[str, Any] = {"flags": 0, "ack": (FIRST,) * self.n, "pack": (), "incarnation": 1} | more
        return Frame(
            kind,
            values["flags"],
            src + 1,
            values["incarnation"],
            instance,
            seq & 0xFFFFFFFF,
            clock,
            8,
            tuple(a & 0xFFFFFFFF for a in values["ack"]),
            tuple(p & 0xFFFFFFFF for p in values["pack"]),
            payload,
        )

    def send(self, src: int, data: bytes, clock: int, seq: int, client: int = 1, op: bool = False, instance: int = 1) -> Delivery:
        """A message in a PDU of its own; returns its delivery at a station that was there from the start."""
        m = Message(src, client, 0, 7, 0, False, data, op)
        self.facts.note_taken(m)
        payload = wire.MESSAGE.struct.pack(len(data), 7, client, 0, wire.MessageFlag.OP if op else 0) + data
        at = (instance << 32) + clock
        self.facts.note_frame(self.frame(src, Kind.DATA, seq, at, payload, instance))
        position = [p[:2] for p in self.facts.orders[self.instance.root]].index((at, src))
        return Delivery(src, at, position, 0, 7, client, 0, data if not op else b"", 2 if op else 0)

    def vote(
        self, src: int, clock: int, seq: int, members: tuple[int, ...], *changes: tuple[int, int], stop: bool = True
    ) -> None:
        kind = Kind.STOP if stop else Kind.RCV_ACK
        self.facts.note_frame(self.frame(src, kind, seq, BASE + clock, ballot(members, *changes)))

    def change(self, station: int, incarnations: tuple[int, ...]) -> Instance:
        """The station carries out a proposal."""
        stay = self.stays[station]
        before = stay.instance
        inst = self.facts.note_changed(before, before.number + 1, incarnations, 0)
        inst.hints.append({})
        self.facts.resolve(inst)
        stay.instance = inst
        stay.changes += 1
        self.checker.changed(stay, before)
        return inst

    def view_event(self, inst: Instance, position: int, **wrong: Any) -> Delivery:
        fields: dict[str, Any] = {"joined": inst.joined, "left": inst.left, "incarnations": inst.incarnations} | wrong
        assert inst.place is not None
        members = tuple(s for s, life in enumerate(fields["incarnations"]) if life)
        sets = [sum(1 << s for s in x) for x in (members, fields["joined"], fields["left"])]
        data = wire.VIEW.struct.pack(inst.number, inst.hash, *sets) + struct.pack(f">{self.n}I", *fields["incarnations"])
        clock, src = fields.get("place", inst.place)
        return Delivery(src, clock, position, 0xFFFF, 0, 0, VIEW, data)

    def deliver(self, station: int, record: Delivery) -> None:
        number = None if record.type == VIEW else self.facts.contents.get(record.place)
        stay = self.stays[station]
        self.checker.delivered(stay, record, number)
        stay.records.append(record)
        stay.numbers.append(number)

    def hand(self, station: int, record: Delivery, data: bytes = b"") -> None:
        """An order-preserving message on acceptance."""
        early = replace(record, op=1, data=data)
        number = self.facts.contents.get(record.place)
        self.checker.handed(self.stays[station], early, number)
        assert number is not None
        self.stays[station].handed.setdefault(((record.src, number[0]), record.client), []).append(number[3])

    def release(self, station: int, ordered: int, preack: int, ack: int) -> None:
        stay = self.stays[station]
        old, stay.positions = stay.positions, [ordered, preack, ack]
        for level in (ORDERED, PREACK, ACK):
            if old[level] != stay.positions[level]:
                self.checker.released(stay, level, old[level], stay.positions[level])
        for level in (ORDERED, PREACK, ACK):
            if at := due(stay, level, stay.positions[level]):
                stay.released[level] = at[-1] + 1

    def broadcast(self, station: int, kind: int = Kind.CONFIRM, seq: int = FIRST, **more: Any) -> None:
        fresh = bool(more.pop("fresh", kind == Kind.DATA))
        payload = wire.CONFIRM.struct.pack(0, 0, 0, 0, 1, more.pop("view", self.instance.hash)) if kind == Kind.CONFIRM else b""
        self.checker.sent(station, self.frame(station, kind, seq, BASE, payload, **more), fresh, more.pop("now", 0))


def ballot(members: tuple[int, ...], *changes: tuple[int, int]) -> bytes:
    """Payload of a vote; stations are 0..n-1."""
    payload = wire.PROPOSAL.struct.pack(0, 0, sum(1 << m for m in members), len(changes))
    return payload + b"".join(wire.CHANGE.struct.pack(s + 1, value & 0xFFFFFFFF) for s, value in changes)


def fails(checker: str) -> pytest.RaisesExc[Violation]:
    return pytest.raises(Violation, match=f"^{checker}: ")


# ---- the order
def test_total_order() -> None:
    h = History(TotalOrder)
    a, b = h.send(0, b"a", 1, FIRST), h.send(1, b"b", 2, FIRST)
    for s in range(2):
        h.deliver(s, a)
        h.deliver(s, b if s == 0 else replace(b, data=b"c"))
    h.release(0, 2, 2, 0)
    with fails("total_order"):
        h.release(1, 2, 2, 0)


def test_total_order_at_ordered_is_judged_at_the_end() -> None:
    h = History(TotalOrder)
    a, b = h.send(0, b"a", 1, FIRST), h.send(1, b"b", 2, FIRST)
    h.deliver(0, a)
    h.deliver(0, b)
    h.deliver(1, b)
    with fails("total_order"):
        h.checker.converged()


def test_what_the_expelled_had_at_ordered_does_not_count() -> None:
    h = History(TotalOrder)
    a, b = h.send(0, b"a", 1, FIRST), h.send(1, b"b", 2, FIRST)
    h.deliver(0, a)
    h.deliver(0, b)
    h.deliver(1, b)
    h.facts.stays[1] = None
    h.stays[1].ended = h.stays[1].expelled = True
    h.facts.past.append(h.stays[1])
    h.checker.converged()


@pytest.mark.parametrize("first", [0, 1], ids=["goes past", "went past"])
def test_total_order_needs_all_in_between(first: int) -> None:
    """One of the two has a message that the other has gone past, whoever was first."""
    h = History(TotalOrder)
    a, b = h.send(0, b"a", 1, FIRST), h.send(1, b"b", 2, FIRST)
    c = h.send(1, b"c", 3, FIRST + 1)
    for record in (a, b, c):
        h.deliver(0, record)
    for record in (a, c):
        h.deliver(1, record)
    h.release(first, 3, 3, 0)
    with fails("total_order"):
        h.release(1 - first, 3, 3, 0)


def test_who_comes_late_need_not_have_what_was_before() -> None:
    h = History(TotalOrder, 3)
    a = h.send(0, b"a", 1, FIRST)
    h.vote(0, 2, FIRST + 1, (0, 1, 2), (2, 2), stop=False)
    h.vote(1, 3, FIRST, (0, 1, 2), (2, 2), stop=False)
    h.instance.incarnations = (1, 1, 0)
    inst = h.change(0, (1, 1, 2))
    h.deliver(0, a)
    h.deliver(0, h.view_event(inst, 2))
    b = h.send(0, b"b", 1, FIRST + 2, instance=2)
    h.deliver(0, b)
    h.release(0, 4, 4, 0)
    h.stays[2] = h.facts.stays[2] = Stay(2, 2, inst, h.cores[2], joined=True)
    h.deliver(2, h.view_event(inst, AT_ONCE))
    h.deliver(2, replace(b, position=0))
    h.release(2, 1, 1, 0)


def test_total_order_needs_the_view_event_of_who_is_let_in() -> None:
    h = History(TotalOrder, 3)
    h.vote(0, 2, FIRST, (0, 1, 2), (2, 2), stop=False)
    h.vote(1, 3, FIRST, (0, 1, 2), (2, 2), stop=False)
    h.instance.incarnations = (1, 1, 0)
    inst = h.change(0, (1, 1, 2))
    b = h.send(0, b"b", 1, FIRST + 1, instance=2)
    h.deliver(0, h.view_event(inst, 1))
    h.deliver(0, b)
    h.release(0, 3, 3, 0)
    h.stays[2] = h.facts.stays[2] = Stay(2, 2, inst, h.cores[2], joined=True)
    h.deliver(2, replace(b, position=0))
    with fails("total_order"):
        h.release(2, 1, 1, 0)


def test_total_order_within_one_station() -> None:
    h = History(TotalOrder)
    a, b = h.send(0, b"a", 1, FIRST), h.send(1, b"b", 2, FIRST)
    h.deliver(0, b)
    with fails("total_order"):
        h.deliver(0, a)


def test_total_order_at_a_level_ahead_of_the_order() -> None:
    h = History(TotalOrder)
    h.deliver(0, h.send(0, b"a", 1, FIRST))
    with fails("total_order"):
        h.release(0, 1, 2, 0)


def test_survivors() -> None:
    h = History(Survivors)
    a = h.send(0, b"a", 1, FIRST)
    h.deliver(0, a)
    h.release(0, 1, 1, 0)
    h.facts.stays[0] = None
    with fails("survivors"):
        h.checker.converged()
    h.deliver(1, a)
    h.checker.converged()


def test_place() -> None:
    h = History(PlaceInOrder)
    a, b = h.send(0, b"a", 5, FIRST), h.send(1, b"b", 3, FIRST)
    b = replace(b, position=0)
    h.deliver(0, b)
    with fails("place"):
        h.deliver(0, replace(a, position=0))


def test_place_of_no_pdu() -> None:
    h = History(PlaceInOrder)
    a = h.send(0, b"a", 5, FIRST)
    with fails("place"):
        h.deliver(0, replace(a, clock=a.clock + 1))


def test_place_counts_only_what_the_others_keep() -> None:
    h = History(PlaceInOrder, 3)
    h.send(2, b"lost", 1, FIRST)
    h.vote(0, 2, FIRST, (0, 1), (2, FIRST))
    h.vote(1, 3, FIRST, (0, 1), (2, FIRST))
    inst = h.change(0, (1, 1, 0))
    h.deliver(0, h.view_event(inst, 1))
    assert [p[1] for p in h.facts.orders[1]] == [0, 1]
    with fails("place"):
        h.deliver(1, h.view_event(inst, 2))


def test_no_duplicate() -> None:
    h = History(NoDuplicate)
    a = h.send(0, b"a", 1, FIRST)
    h.deliver(0, a)
    h.deliver(1, a)
    with fails("no_duplicate"):
        h.deliver(1, a)


def test_no_duplicate_on_acceptance() -> None:
    h = History(NoDuplicate)
    a = h.send(0, b"a", 1, FIRST, op=True)
    h.hand(0, a)
    h.deliver(0, a)
    with fails("no_duplicate"):
        h.hand(0, a)


@pytest.mark.parametrize(
    "change", [{"data": b"x"}, {"group": 8}, {"type": 1}, {"client": 2}, {"src": 1}, {"data": b""}, {"op": 2}]
)
def test_no_invention(change: dict[str, object]) -> None:
    h = History(NoInvention)
    a = h.send(0, b"a", 1, FIRST)
    h.deliver(0, a)
    with fails("no_invention"):
        h.deliver(1, replace(a, **change))  # type: ignore[arg-type]


def test_fifo_gap() -> None:
    h = History(Fifo)
    h.send(0, b"a", 1, FIRST)
    b = h.send(0, b"b", 2, FIRST + 1)
    other = h.send(0, b"c", 3, FIRST + 2, client=2)
    h.deliver(0, other)
    with fails("fifo"):
        h.deliver(0, b)


def test_causality() -> None:
    h = History(Causality)
    a = h.send(0, b"a", 3, FIRST)
    h.deliver(1, a)
    b = h.send(1, b"b", 2, FIRST)  # station 2 had delivered a
    with fails("causality"):
        h.deliver(0, b)


def test_causality_needs_what_the_sender_had_at_preack() -> None:
    h = History(Causality)
    a = h.send(0, b"a", 1, FIRST)
    h.deliver(1, a)
    h.release(1, 1, 1, 0)
    b = h.send(1, b"b", 2, FIRST)
    with fails("causality"):
        h.deliver(0, b)
    h.deliver(0, a)
    h.deliver(0, b)


def test_concurrent_messages_may_stand_either_way() -> None:
    h = History(Causality)
    a, b = h.send(0, b"a", 1, FIRST), h.send(1, b"b", 2, FIRST)
    h.deliver(0, b)
    h.deliver(0, a)


def test_op_order_gap() -> None:
    h = History(OpOrder)
    h.send(0, b"a", 1, FIRST, op=True)
    b = h.send(0, b"b", 2, FIRST + 1, op=True)
    with fails("op_order"):
        h.hand(1, b)


def test_op_order_before_its_place() -> None:
    h = History(OpOrder)
    a = h.send(0, b"a", 1, FIRST, op=True)
    with fails("op_order"):
        h.deliver(1, a)
    h.hand(1, a)
    h.deliver(1, a)


def test_op_order_of_a_removed_station() -> None:
    h = History(OpOrder, 3)
    a = h.send(2, b"a", 1, FIRST, op=True)
    h.send(2, b"b", 2, FIRST + 1, op=True)
    h.hand(0, a)
    h.vote(0, 3, FIRST, (0, 1), (2, FIRST + 1))
    h.vote(1, 4, FIRST, (0, 1), (2, FIRST + 1))
    inst = h.change(0, (1, 1, 0))
    h.deliver(0, h.view_event(inst, 2))
    with fails("op_order"):
        h.deliver(1, h.view_event(inst, 2))


# ---- view events
def test_a_starved_station_is_removed_once_at_most_and_no_other_one() -> None:
    h = History(Blameless, 3)
    h.facts.starved = 2
    h.change(0, (1, 1, 0))
    h.change(1, (1, 1, 0))
    h.change(0, (1, 1, 2))
    with fails("blameless"):
        h.change(0, (1, 1, 0))
    h = History(Blameless, 3)
    h.facts.starved = 2
    with fails("blameless"):
        h.change(0, (1, 0, 1))


def removal(checker: Callable[[Facts], Checker]) -> tuple[History, Instance]:
    """Station 3 of three is removed."""
    h = History(checker, 3)
    h.vote(0, 2, FIRST, (0, 1), (2, FIRST))
    h.vote(1, 3, FIRST, (0, 1), (2, FIRST))
    return h, h.change(0, (1, 1, 0))


def test_views() -> None:
    h, inst = removal(Views)
    h.deliver(0, h.view_event(inst, 1))
    with fails("views"):
        h.deliver(0, h.view_event(inst, 1))


@pytest.mark.parametrize("wrong", [{"left": ()}, {"joined": (1,)}, {"incarnations": (1, 2, 0)}, {"place": (BASE + 2, 0)}])
def test_views_say_what_is_so(wrong: dict[str, Any]) -> None:
    h, inst = removal(Views)
    with fails("views"):
        h.deliver(0, h.view_event(inst, 1, **wrong))


def test_views_need_every_vote() -> None:
    h = History(Views, 3)
    h.vote(0, 2, FIRST, (0, 1), (2, FIRST))
    inst = h.change(0, (1, 1, 0))
    inst.place = (BASE + 2, 0)
    event = h.view_event(inst, 1)
    inst.place = None
    with fails("views"):
        h.deliver(0, event)


def test_who_is_let_in_begins_with_the_view_event() -> None:
    h, _ = removal(Views)
    a = h.send(0, b"a", 5, FIRST + 1, instance=1)
    h.stays[1].joined = True
    with fails("views"):
        h.deliver(1, a)


@pytest.mark.parametrize("op", [False, True])
def test_nothing_comes_from_a_later_instance(op: bool) -> None:
    h, inst = removal(Views)
    a = h.send(0, b"a", 1, FIRST + 1, instance=2, op=op)
    deliver = h.hand if op else h.deliver
    with fails("views"):
        deliver(1, a)
    if not op:
        h.deliver(0, h.view_event(inst, 1))
    deliver(0, a)


# ---- levels
def test_preack_honest() -> None:
    h = History(PreackHonest)
    a = h.send(0, b"a", 1, FIRST)
    for core in h.cores:
        core.peers[0] = replace(core.peers[0], req=FIRST + 1)
    h.deliver(0, a)
    h.facts.streams[1, 1].ack_sent[0, 1] = FIRST + 1
    h.release(0, 1, 1, 0)


@pytest.mark.parametrize("missing", ["accepted", "broadcast", "sent"])
def test_preack_dishonest(missing: str) -> None:
    h = History(PreackHonest)
    if missing != "sent":
        h.send(0, b"a", 1, FIRST)
    h.cores[0].peers[0] = replace(h.cores[0].peers[0], req=FIRST + 1)
    if missing != "accepted":
        h.cores[1].peers[0] = replace(h.cores[1].peers[0], req=FIRST + 1)
    if missing != "broadcast":
        h.facts.streams[1, 1].ack_sent[0, 1] = FIRST + 1
    with fails("preack_honest"):
        h.release(0, 1, 1, 0)


@pytest.mark.parametrize(("own", "other"), [(FIRST, FIRST + 1), (FIRST + 1, FIRST)])
def test_ack_dishonest(own: int, other: int) -> None:
    """Own P counts once broadcast, as anyone's."""
    h = History(AckHonest)
    h.send(0, b"a", 1, FIRST)
    for core in h.cores:
        core.peers[0] = replace(core.peers[0], min_al=FIRST + 1)
    h.facts.streams[0, 1].pack_sent[0, 1], h.facts.streams[1, 1].pack_sent[0, 1] = own, other
    with fails("ack_honest"):
        h.release(0, 1, 1, 1)


def test_ack_of_what_somebody_has_not_preacknowledged() -> None:
    h = History(AckHonest)
    h.send(0, b"a", 1, FIRST)
    h.cores[0].peers[0] = replace(h.cores[0].peers[0], min_al=FIRST + 1)
    h.facts.streams[0, 1].pack_sent[0, 1] = h.facts.streams[1, 1].pack_sent[0, 1] = FIRST + 1
    with fails("ack_honest"):
        h.release(0, 1, 1, 1)


# ---- instances
def test_instances_need_one_set_of_members() -> None:
    h = History(Instances)
    assert isinstance(h.checker, Instances)
    h.checker.members(h.instance, 0, (1, 1))
    with fails("instances"):
        h.checker.members(h.instance, 1, (1, 2))


def test_instances_need_one_end_of_each_stream() -> None:
    h, inst = removal(Instances)
    assert isinstance(h.checker, Instances)
    inst.hints[0] = {2: FIRST}
    h.checker.ends(inst, 1, {2: FIRST})
    with fails("instances"):
        h.checker.ends(inst, 1, {2: 0})


def test_instances_need_one_view_hash_on_the_wire() -> None:
    h = History(Instances)
    h.broadcast(0)
    with fails("instances"):
        h.broadcast(0, view=h.instance.hash ^ 1)


def test_instances_grow() -> None:
    h = History(Instances)
    h.checker.opened(h.stays[0])
    with fails("instances"):
        h.checker.opened(h.stays[0])


def test_instances_come_one_after_the_other() -> None:
    h = History(Instances)
    before = h.instance
    h.stays[0].instance = Instance(3, (1, 1), before)
    with fails("instances"):
        h.checker.changed(h.stays[0], before)


@pytest.mark.parametrize("sent", [False, True])
def test_a_life_has_one_stream(sent: bool) -> None:
    h = History(Instances)
    if sent:
        h.send(0, b"a", 1, FIRST)
    stay = Stay(0, 1, h.facts.note_opened(5, (1, 2), 0), h.cores[0])
    h.facts.note_entered(0, stay.instance)
    if not sent:
        h.checker.opened(stay)
        return
    with fails("instances"):
        h.checker.opened(stay)


def test_incarnations_never_come_again() -> None:
    h = History(Instances)
    assert isinstance(h.checker, Instances)
    h.checker.started(0, 1)
    with fails("instances"):
        h.checker.started(0, 1)


@pytest.mark.parametrize("disk", [(1, 0), (0, 1)])
def test_nothing_is_said_before_it_is_durable(disk: tuple[int, int]) -> None:
    h = History(Instances)
    h.broadcast(0)
    h.facts.disk[0] = disk
    with fails("instances"):
        h.broadcast(0)


def test_nothing_is_proposed_before_it_is_durable() -> None:
    h = History(Instances)
    h.facts.disk[0] = (1, 1)
    h.broadcast(0, Kind.DATA)
    with fails("instances"):
        h.broadcast(0, Kind.STOP, fresh=True)


# ---- quorum
def test_no_instance_without_a_quorum() -> None:
    h = History(Quorum, 3)
    h.checker.opened(Stay(0, 1, Instance(2, (1, 1, 0)), h.cores[0]))
    with fails("quorum"):
        h.checker.opened(Stay(0, 1, Instance(2, (1, 0, 0)), h.cores[0]))


def test_no_instance_without_a_required_station() -> None:
    h = History(Quorum, 3)
    h.facts.required = frozenset({2})
    with fails("quorum"):
        h.checker.opened(Stay(0, 1, Instance(2, (1, 1, 0)), h.cores[0]))


def test_two_instances_never_have_a_quorum_at_once() -> None:
    h = History(Quorum, 3)
    h.facts.needed = 1
    with fails("quorum"):
        h.checker.opened(Stay(2, 2, Instance(2, (0, 0, 2)), h.cores[2]))


def test_without_quorum_no_data() -> None:
    h = History(Quorum)
    h.facts.blocked_since[0] = 5
    h.broadcast(0, Kind.DATA, now=5, fresh=True)
    with fails("quorum"):
        h.checker.sent(0, h.frame(0, Kind.DATA, FIRST, BASE), True, 6)


def test_who_is_left_behind_takes_no_more() -> None:
    h, _ = removal(Quorum)
    assert isinstance(h.checker, Quorum)
    h.checker.patience_ns = 100
    m = Message(2, 1, 0, 7, 0, False, b"")
    h.checker.taken(h.stays[2], m, 100)
    h.checker.taken(h.stays[1], m, 50)
    with fails("quorum"):
        h.checker.taken(h.stays[2], m, 101)


# ---- from one lineage to the next
def goes_on(h: History, station: int, number: int = 5) -> None:
    """The station's process starts in the next lineage."""
    left = h.stays[station]
    left.ended = True
    h.checker.closed(left)
    h.facts.instances.setdefault(number, Instance(number, (2,) * h.n))
    h.checker.opened(Stay(station, 2, h.facts.instances[number], h.cores[station]))


def test_going_on() -> None:
    h = History(GoingOn)
    a = h.send(0, b"a", 1, FIRST)
    for s in range(2):
        h.deliver(s, a)
        h.release(s, 1, 1, 1)
        goes_on(h, s)


@pytest.mark.parametrize("levels", [(1, 0, 0), (1, 1, 0)])
def test_going_on_with_less_than_another(levels: tuple[int, int, int]) -> None:
    h = History(GoingOn)
    a = h.send(0, b"a", 1, FIRST)
    for s in range(2):
        h.deliver(s, a)
    h.release(0, 1, 1, 1)
    goes_on(h, 0)
    h.release(1, *levels)
    with fails("going_on"):
        goes_on(h, 1)


def test_going_on_is_not_for_whom_the_others_had_removed() -> None:
    h, inst = removal(GoingOn)
    h.stays[1].instance = inst
    for s in range(2):
        h.deliver(s, h.view_event(inst, 1))
        h.release(s, 2, 2, 2)
        goes_on(h, s)
    goes_on(h, 2)  # its end is another one
    h.stays[1].records.clear()  # and this one lacks the view event, though it is in it
    h.stays[1].released = [0, 0, 0]
    with fails("going_on"):
        goes_on(h, 1)


# ---- flow, memory, knowledge
def test_flow_window() -> None:
    h = History(Flow)
    h.broadcast(0, Kind.DATA, FIRST)
    h.broadcast(0, Kind.DATA, FIRST + 1)
    h.broadcast(0, Kind.DATA, FIRST + 2)
    with fails("flow"):
        h.broadcast(0, Kind.DATA, FIRST + 3)


def test_flow_lets_a_vote_follow_what_had_to_be_sealed_for_it() -> None:
    h = History(Flow)
    h.broadcast(0, Kind.DATA, FIRST + 2)
    h.broadcast(0, Kind.STOP, FIRST + 3, fresh=True)
    h.broadcast(0, Kind.DATA, FIRST + 4)
    with fails("flow"):
        h.broadcast(0, Kind.DATA, FIRST + 5)


def test_flow_window_moves_with_acks() -> None:
    h = History(Flow)
    h.facts.streams[1, 1].ack_sent[0, 1] = FIRST + 1
    h.broadcast(0, Kind.DATA, FIRST + 2)
    h.broadcast(0, Kind.CONFIRM, FIRST + 9)  # confirmations are exempt


def test_flow_counts_members_only() -> None:
    h, _ = removal(Flow)
    h.facts.streams[1, 1].ack_sent[0, 1] = FIRST + 3
    h.checker.sent(0, h.frame(0, Kind.DATA, FIRST + 4, BASE, instance=2), True, 0)
    h.checker.sent(0, h.frame(0, Kind.DATA, FIRST + 5, BASE, instance=2), True, 0)
    with fails("flow"):
        h.checker.sent(0, h.frame(0, Kind.DATA, FIRST + 6, BASE, instance=2), True, 0)


def test_flow_overflow() -> None:
    h = History(Flow)
    h.turn()
    h.cores[0].drops = 1
    with fails("flow"):
        h.turn()


def test_flow_slots() -> None:
    h = History(Flow)
    h.cores[0].peers[1] = replace(h.cores[0].peers[1], req=FIRST + 5)
    with fails("flow"):
        h.turn()


@pytest.mark.parametrize("name", ["req", "top", "ordered", "min_al"])
def test_monotonic_numbers(name: str) -> None:
    h = History(Monotonic)
    up: dict[str, Any] = dict.fromkeys(("req", "top", "ordered", "min_al"), FIRST + 1)
    down: dict[str, Any] = {name: FIRST}
    h.cores[0].peers[1] = replace(h.cores[0].peers[1], **up)
    h.turn()
    h.cores[0].peers[1] = replace(h.cores[0].peers[1], **down)
    with fails("monotonic"):
        h.turn()


def test_monotonic_minima_start_anew_with_a_joiner() -> None:
    h = History(Monotonic)
    h.cores[0].peers[1] = replace(h.cores[0].peers[1], min_al=FIRST + 1, top=FIRST + 1)
    h.turn()
    h.cores[0].peers[1] = replace(h.cores[0].peers[1], min_al=FIRST)
    h.stays[0].changes += 1
    h.turn()


def test_monotonic_keeps_what_somebody_lacks() -> None:
    h = History(Monotonic)
    h.cores[0].peers[1] = replace(h.cores[0].peers[1], base=FIRST + 1, req=FIRST + 1, top=FIRST + 1)
    with fails("monotonic"):
        h.turn()


def test_monotonic_clock() -> None:
    h = History(Monotonic)
    h.cores[0].time = BASE + 5
    h.turn()
    h.cores[0].time = BASE + 4
    with fails("monotonic"):
        h.turn()


def test_monotonic_positions() -> None:
    h = History(Monotonic)
    h.release(0, 2, 1, 0)
    with fails("monotonic"):
        h.release(0, 2, 0, 0)


def test_monotonic_levels_are_nested() -> None:
    h = History(Monotonic)
    with fails("monotonic"):
        h.release(0, 2, 1, 2)


def test_monotonic_vectors_on_the_wire() -> None:
    h = History(Monotonic)
    h.broadcast(0, ack=(FIRST, FIRST + 1))
    with fails("monotonic"):
        h.broadcast(0, ack=(FIRST, FIRST))


def test_digest() -> None:
    h = History(Digest)
    with fails("digest"):
        h.checker.fenced(0, 3)


@pytest.mark.parametrize(("kind", "flags"), [(Kind.DATA, 0), (Kind.NAK, 0), (Kind.OPEN, 0), (Kind.CONFIRM, int(Flag.POLL))])
def test_silence_is_heartbeats_only(kind: Kind, flags: int) -> None:
    h = History(Silence)
    assert isinstance(h.checker, Silence)
    h.broadcast(0, kind, flags=flags)
    h.checker.watching = True
    h.broadcast(0, Kind.CONFIRM)
    with fails("silence"):
        h.broadcast(0, kind, flags=flags)


@pytest.mark.parametrize("count", [0, 9])
def test_silence_has_as_many_heartbeats_as_it_should(count: int) -> None:
    h = History(Silence)
    assert isinstance(h.checker, Silence)
    h.checker.watching = True
    for station, beats in ((0, 6), (1, count)):
        for _ in range(beats):
            h.broadcast(station)
    with fails("silence"):
        h.checker.judge(6)


def test_liveness() -> None:
    h = History(Liveness)
    assert isinstance(h.checker, Liveness)
    a = h.send(0, b"a", 1, FIRST)
    assert "ordered 0 of 1" in h.checker.missing()
    for s in range(2):
        h.deliver(s, a)
        h.release(s, 1, 1, 0)
    assert h.checker.missing() == ""
    h.facts.wanted.add((0, (1, 1, False, 0)))
    assert "at ack" in h.checker.missing()
    h.facts.wanted.clear()
    b = h.send(1, b"b", 2, FIRST, op=True)
    for s in range(2):
        h.deliver(s, b)
        h.release(s, 2, 2, 0)
    assert "has not handed out" in h.checker.missing()
    h.facts.stays[1] = None
    assert "in no instance: s2" in h.checker.missing()
    h.facts.absent.add(1)
    assert "of [1, 2], up are [1]" in h.checker.missing()
    with fails("liveness"):
        h.checker.judge(h.checker.missing(), 1)


def test_liveness_wants_the_view_event() -> None:
    h, _ = removal(Liveness)
    assert isinstance(h.checker, Liveness)
    h.stays[1].instance = h.stays[0].instance
    h.facts.absent.add(2)
    assert "has not delivered the view event of instance 2" in h.checker.missing()


def test_frames_read_what_the_wire_says() -> None:
    """The oracle's own reading of votes and view events."""
    h, inst = removal(Views)
    event = frames.view(h.view_event(inst, 1).data)
    assert (event.instance, event.members, event.left, event.incarnations) == (2, (0, 1), (2,), (1, 1, 0))
    assert h.facts.streams[0, 1].votes[0].proposal == frames.Proposal(True, (0, 1), ((2, FIRST),))
    assert inst.place == (BASE + 3, 1)
    assert h.facts.streams[2, 1].cut == FIRST
