"""What a core confirms, and when: the levels it reports, and the confirmations it owes. Each test states the rule it protects."""

from __future__ import annotations

import struct
from typing import Any

from zenjun.proto.core import Core, add_checksum
from zenjun.proto.wire import Kind

from ..rules import rule
from ..virtual.cores import Cores
from ..virtual.pdus import kind, peek
from ..virtual.segment import MS, US


class Ring(Cores):
    """Some cores on a medium without loss: what one sends in a turn the others receive in the next."""

    def __init__(self, n: int, **options: Any) -> None:
        super().__init__(n, view=7, incarnations=range(1, n + 1), message_max=100_000, **options)

    def turn(self, sends: bool = False) -> None:
        """All stations step and send, then all receive and deliver."""
        self.now += 10 * US
        for k in range(self.n) if sends else ():
            self.cores[k].offer(b"m", group=1, client=1)
        self.carry([(self.stations[k], pdu) for k in range(self.n) for pdu in self.step(k, 0)])
        for station in self.stations:
            assert not any(station.drops)
        for k in range(self.n):
            self.got[k] += self.cores[k].deliver()

    def known_to_all(self, i: int) -> int:
        """Length of the prefix of i's order of which everybody has told i, in P, that everybody has it."""
        acked = [self.cores[i].peer(h).acked for h in range(len(self.cores))]
        seen = [0] * len(self.cores)
        for message in self.got[i]:  # one message per PDU
            if seen[message.src] >= acked[message.src]:
                return message.position
            seen[message.src] += 1
        return len(self.got[i])


def test_level_ack_is_never_reported_before_everybody_has_said_it() -> None:
    """Level 3: p.seq < min over j of pack_j[p.src]. Stations that send without pause need no CONFIRM, so no P vector goes out
    unless somebody asks for it; the order's log fills all the same, and what leaves it must really have reached the level."""
    ring = Ring(3)
    for _ in range(600):  # 1,800 PDUs, three and a half logs
        ring.turn(sends=True)
        for i, core in enumerate(ring.cores):
            assert core.positions().ack <= ring.known_to_all(i)
    assert min(core.positions().ack for core in ring.cores) > 1_000  # and it does move


def confirm_of(core: Core, now: int, *, free: int | None = None) -> bytes:
    """A CONFIRM as that station would send it now, perhaps with another number of free buffers."""
    core.heartbeat(now)
    pdu = bytearray(core.tx(now)[-1])
    if free is not None:
        struct.pack_into(">I", pdu, 32, free)
    return add_checksum(bytes(pdu))


def test_a_late_copy_does_not_close_the_window_again() -> None:
    """Flow: the window follows what a station said last. Copies of older PDUs (repaired, relayed, re-ordered) bear old numbers
    of free buffers; nobody would say the newer one again."""
    ring = Ring(2)
    sender, receiver = ring.cores
    early, late = confirm_of(receiver, ring.now, free=6), confirm_of(receiver, ring.now)
    sender.rx(ring.now, late, bytes(6))
    sender.rx(ring.now, early, bytes(6))
    assert sender.peer(1).free_buffers == 2 * 128
    ring.turn(sends=True)
    for _ in range(4):
        ring.turn()
    sender.rx(ring.now, confirm_of(receiver, ring.now, free=8), bytes(6))
    assert sender.peer(1).free_buffers == 2 * 127  # equal vectors: buffers only become free
    ring.cores[1].offer(b"m", group=1, client=1)
    ring.cores[1].step(ring.now, True)
    data = bytearray(ring.cores[1].tx()[0])
    struct.pack_into(">I", data, 32, 10)
    sender.rx(ring.now, add_checksum(bytes(data)), bytes(6))
    assert sender.peer(1).free_buffers == 10  # news: believed
    sender.rx(ring.now, late, bytes(6))
    assert sender.peer(1).free_buffers == 10  # older: not


@rule("C1")
def test_a_confirmation_that_finds_the_queue_full_stays_owed() -> None:
    """C1: a station owes a CONFIRM until it has broadcast it, not until it would have liked to."""
    ring = Ring(2, retransmit_gap_ns=1)
    busy, asker = ring.cores
    for _ in range(64):
        busy.offer(b"x" * 1400, group=1, client=1)
    busy.step(ring.now, True)
    first = busy.tx()
    asker.rx(ring.now, first[-1], bytes(6))
    assert asker.nak(ring.now + 100 * MS) == 1
    nak = next(pdu for pdu in asker.tx() if pdu[5] == Kind.NAK)
    for k in range(80):  # 63 PDUs each time: more than the queue holds
        busy.rx(ring.now + k * MS, nak, bytes(6))
    assert busy.counters()["retransmits_suppressed"] > 0
    asker.offer(b"news", group=1, client=1)
    asker.step(ring.now, True)
    for pdu in asker.tx():
        busy.rx(ring.now + 100 * MS, pdu, bytes(6))
    busy.step(ring.now + 100 * MS, True)
    assert busy.confirm_due_ns() < 2**63
    busy.tx()
    busy.step(busy.confirm_due_ns(), True)
    assert [pdu[5] for pdu in busy.tx()] == [Kind.CONFIRM]


@rule("C5")
def test_a_station_that_closed_the_window_reports_that_it_is_open_again() -> None:
    """C5: its program reads nothing for a while, so that its CONFIRMs report fewer free buffers than the window. Nobody would
    ask for the newer number: all vectors are equal."""
    ring = Ring(2, window=4, slots=16)
    sender, receiver = ring.cores
    while sender.offer(b"m", group=1, client=1):
        ring.now += MS
        for k in (0, 1):
            ring.carry([(ring.stations[k], pdu) for pdu in ring.step(k, 0)])
        sender.deliver()
    assert sender.peer(1).free_buffers < 2 * 4
    assert len(receiver.deliver()) > 4
    (confirm,) = [*ring.step(1, 0), *ring.step(1, 2 * MS)]
    assert kind(confirm) == Kind.CONFIRM and peek(confirm, "free_buffers") >= 2 * 4
