"""Each checker on hand-made histories: silent on a right one, loud on the smallest wrong one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from zenjun.proto.wire import Flag, Kind

from .checkers import (
    AckHonest,
    Bounded,
    Causality,
    Checker,
    Digest,
    Fifo,
    Flow,
    Instances,
    Liveness,
    Monotonic,
    NoDuplicate,
    NoInvention,
    Place,
    PreackHonest,
    Silence,
    TotalOrder,
    Violation,
    note_message,
)
from .facts import ACK, ORDERED, PREACK, Delivery, Facts, Instance, Message, PeerView, View
from .frames import Frame

FIRST = 2**32 - 1
"""Streams of these histories start at the last 32-bit number, so that every one wraps."""
BASE = 1 << 32


@dataclass(eq=False)
class Core:
    """A core that says what the history wants."""

    peers: list[PeerView] = field(default_factory=lambda: [PeerView(FIRST, FIRST, FIRST, FIRST, FIRST, FIRST) for _ in range(2)])
    drops: int = 0
    memory: int = 1000
    time: int = BASE

    def peer(self, station: int) -> PeerView:
        return self.peers[station]

    def window_drops(self) -> int:
        return self.drops

    def memory_bytes(self) -> int:
        return self.memory

    def core_clock(self) -> int:
        return self.time


class History:
    """Two stations in instance 1 with window 2, and one checker looking on."""

    def __init__(self, checker: Callable[[Facts], Checker]) -> None:
        self.facts = Facts(2, window=2, slots=4, first_seq=FIRST)
        self.instance = Instance(1, (1, 1), FIRST)
        self.facts.instances[1] = self.instance
        self.facts.life = [1, 1]
        self.facts.disk = [(1, 1), (1, 1)]
        self.cores = [Core(), Core()]
        self.views = [View(s, 1, self.instance, self.cores[s]) for s in range(2)]
        self.facts.views = list(self.views)
        self.checker = checker(self.facts)

    def send(self, src: int, data: bytes, clock: int, seq: int, client: int = 1) -> Delivery:
        """A message in a PDU of its own; returns its delivery."""
        m = Message(src, 1, client, seq - FIRST, 7, 0, False, data)
        note_message(self.facts, m)
        self.instance.add_pdu(BASE + clock, src, seq)
        self.instance.top[src] = seq + 1
        position = [p[:2] for p in self.instance.pdus].index((BASE + clock, src))
        return Delivery(src, BASE + clock, position, 0, 7, client, 0, data)

    def deliver(self, station: int, record: Delivery) -> None:
        self.checker.delivered(self.views[station], record)
        self.views[station].records.append(record)

    def release(self, station: int, ordered: int, preack: int, ack: int) -> None:
        view = self.views[station]
        old, view.positions = view.positions, [ordered, preack, ack]
        for level in (ORDERED, PREACK, ACK):
            if old[level] != view.positions[level]:
                self.checker.released(view, level, old[level], view.positions[level])
                view.released[level] = sum(r.position < view.positions[level] for r in view.records)

    def broadcast(
        self, station: int, kind: int = Kind.CONFIRM, seq: int = FIRST, ack: tuple[int, ...] = (FIRST, FIRST), flags: int = 0
    ) -> None:
        frame = Frame(kind, flags, station + 1, 1, 1, seq & 0xFFFFFFFF, BASE, 8, tuple(a & 0xFFFFFFFF for a in ack), (), b"")
        self.checker.sent(station, frame, 0)


def fails(checker: str) -> pytest.RaisesExc[Violation]:
    return pytest.raises(Violation, match=f"^{checker}: ")


def test_total_order() -> None:
    h = History(TotalOrder)
    a, b = h.send(0, b"a", 1, FIRST), h.send(1, b"b", 2, FIRST)
    h.deliver(0, a)
    h.deliver(0, b)
    h.deliver(1, a)
    h.release(0, 2, 1, 0)
    with fails("total_order"):
        h.deliver(1, replace(b, data=b"c"))


def test_total_order_of_two_stations_that_never_meet() -> None:
    h = History(TotalOrder)
    a, b = h.send(0, b"a", 1, FIRST), h.send(1, b"b", 2, FIRST)
    h.deliver(0, a)
    with fails("total_order"):
        h.deliver(1, b)


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


def test_place() -> None:
    h = History(Place)
    a, b = h.send(0, b"a", 5, FIRST), h.send(1, b"b", 3, FIRST)
    b = replace(b, position=0)
    h.deliver(0, b)
    with fails("place"):
        h.deliver(0, replace(a, position=0))


def test_no_duplicate() -> None:
    h = History(NoDuplicate)
    a = h.send(0, b"a", 1, FIRST)
    h.deliver(0, a)
    h.deliver(1, a)
    with fails("no_duplicate"):
        h.deliver(1, a)


@pytest.mark.parametrize("change", [{"data": b"x"}, {"group": 8}, {"type": 1}, {"client": 2}, {"src": 1}, {"data": b""}])
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
    a = h.send(0, b"a", 1, FIRST)
    h.deliver(1, a)
    b = h.send(1, b"b", 2, FIRST)  # station 2 had delivered a
    with fails("causality"):
        h.deliver(0, b)


def test_concurrent_messages_may_stand_either_way() -> None:
    h = History(Causality)
    a, b = h.send(0, b"a", 1, FIRST), h.send(1, b"b", 2, FIRST)
    h.deliver(0, b)
    h.deliver(0, a)


def test_preack_honest() -> None:
    h = History(PreackHonest)
    a = h.send(0, b"a", 1, FIRST)
    for core in h.cores:
        core.peers[0] = replace(core.peers[0], req=FIRST + 1)
    h.deliver(0, a)
    h.instance.ack_sent[1][0] = FIRST + 1
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
        h.instance.ack_sent[1][0] = FIRST + 1
    with fails("preack_honest"):
        h.release(0, 1, 1, 0)


@pytest.mark.parametrize(("own", "other"), [(FIRST, FIRST + 1), (FIRST + 1, FIRST)])
def test_ack_dishonest(own: int, other: int) -> None:
    """Own P counts once broadcast, as anyone's."""
    h = History(AckHonest)
    h.send(0, b"a", 1, FIRST)
    for core in h.cores:
        core.peers[0] = replace(core.peers[0], min_al=FIRST + 1)
    h.instance.pack_sent[0][0], h.instance.pack_sent[1][0] = own, other
    with fails("ack_honest"):
        h.release(0, 1, 1, 1)


def test_ack_of_what_somebody_has_not_preacknowledged() -> None:
    h = History(AckHonest)
    h.send(0, b"a", 1, FIRST)
    h.cores[0].peers[0] = replace(h.cores[0].peers[0], min_al=FIRST + 1)
    h.instance.pack_sent[0][0] = h.instance.pack_sent[1][0] = FIRST + 1
    with fails("ack_honest"):
        h.release(0, 1, 1, 1)


def test_instances_need_one_set_of_members() -> None:
    h = History(Instances)
    assert isinstance(h.checker, Instances)
    h.checker.members(h.instance, 0, (1, 1))
    with fails("instances"):
        h.checker.members(h.instance, 1, (1, 2))


def test_instances_grow() -> None:
    h = History(Instances)
    h.checker.opened(h.views[0])
    with fails("instances"):
        h.checker.opened(h.views[0])


def test_two_instances_never_live_at_once() -> None:
    h = History(Instances)
    h.checker.opened(h.views[0])
    with fails("instances"):
        h.checker.opened(View(1, 1, Instance(2, (1, 1), FIRST), h.cores[1]))


def test_incarnations_never_come_again() -> None:
    h = History(Instances)
    assert isinstance(h.checker, Instances)
    h.checker.started(0, 1)
    with fails("instances"):
        h.checker.started(0, 1)


def test_nothing_is_said_before_it_is_durable() -> None:
    h = History(Instances)
    h.broadcast(0)
    h.facts.disk[0] = (1, 0)
    with fails("instances"):
        h.broadcast(0)


def test_flow_window() -> None:
    h = History(Flow)
    h.broadcast(0, Kind.DATA, FIRST)
    h.broadcast(0, Kind.DATA, FIRST + 1)
    with fails("flow"):
        h.broadcast(0, Kind.DATA, FIRST + 2)


def test_flow_window_moves_with_acks() -> None:
    h = History(Flow)
    h.instance.ack_sent[1][0] = FIRST + 1
    h.broadcast(0, Kind.DATA, FIRST + 2)
    h.broadcast(0, Kind.CONFIRM, FIRST + 9)  # confirmations are exempt


def test_flow_overflow() -> None:
    h = History(Flow)
    h.checker.turn(h.views[0], 0)
    h.cores[0].drops = 1
    with fails("flow"):
        h.checker.turn(h.views[0], 0)


def test_flow_slots() -> None:
    h = History(Flow)
    h.cores[0].peers[1] = replace(h.cores[0].peers[1], req=FIRST + 5)
    with fails("flow"):
        h.checker.turn(h.views[0], 0)


@pytest.mark.parametrize("name", ["req", "top", "ordered"])
def test_monotonic_numbers(name: str) -> None:
    h = History(Monotonic)
    up = {"req": FIRST + 1, "top": FIRST + 1, "ordered": FIRST + 1}
    h.cores[0].peers[1] = replace(h.cores[0].peers[1], **up)
    h.checker.turn(h.views[0], 0)
    h.cores[0].peers[1] = replace(h.cores[0].peers[1], **{name: FIRST})
    with fails("monotonic"):
        h.checker.turn(h.views[0], 0)


def test_monotonic_keeps_what_somebody_lacks() -> None:
    h = History(Monotonic)
    h.cores[0].peers[1] = replace(h.cores[0].peers[1], base=FIRST + 1, req=FIRST + 1, top=FIRST + 1)
    with fails("monotonic"):
        h.checker.turn(h.views[0], 0)


def test_monotonic_clock() -> None:
    h = History(Monotonic)
    h.cores[0].time = BASE + 5
    h.checker.turn(h.views[0], 0)
    h.cores[0].time = BASE + 4
    with fails("monotonic"):
        h.checker.turn(h.views[0], 0)


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


def test_bounded_memory() -> None:
    h = History(Bounded)
    h.checker.turn(h.views[0], 0)
    h.cores[0].memory += 1
    with fails("bounded"):
        h.checker.turn(h.views[0], 0)


def test_bounded_turn() -> None:
    h = History(Bounded)
    with fails("bounded"):
        h.checker.turn(h.views[0], 1000)


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
    for station, frames in ((0, 6), (1, count)):
        for _ in range(frames):
            h.broadcast(station)
    with fails("silence"):
        h.checker.judge(6)


def test_liveness() -> None:
    h = History(Liveness)
    assert isinstance(h.checker, Liveness)
    a = h.send(0, b"a", 1, FIRST)
    assert "has delivered 0 of 1" in h.checker.missing()
    h.deliver(0, a)
    h.deliver(1, a)
    assert "ordered 0 of 1" in h.checker.missing()
    h.release(0, 1, 1, 0)
    h.release(1, 1, 1, 0)
    assert h.checker.missing() == ""
    h.instance.wanted.add((0, 1, b"a"))
    assert "at ack" in h.checker.missing()
    h.facts.views[1] = None
    assert "in no instance: s2" in h.checker.missing()
    with fails("liveness"):
        h.checker.judge(h.checker.missing(), 1)
