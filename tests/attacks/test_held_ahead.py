"""Attack: a PDU recorded 2**32 PDUs ago comes again. Its number is that of one which has not come: it is held for its place.

Nothing else tells it from the real one: station, incarnation and checksum are right. Its clock is not above that of the last PDU
accepted, and clocks of a stream only grow.
"""

from __future__ import annotations

import struct

import pytest
from zenjun.proto.core import Core, Fault, add_checksum
from zenjun.proto.wire import HEADER

from ..virtual.cores import Cores
from ..virtual.pdus import peek, poke
from ..virtual.segment import MS

MAC = bytes([2, 0, 0, 0, 0, 1])


def pair(faults: int = 0) -> list[Core]:
    return Cores(2, incarnations=(1, 2), view=7, faults=faults).cores


def stream(sender: Core, count: int) -> list[bytes]:
    """So many PDUs of one message each."""
    out: list[bytes] = []
    for k in range(count):
        assert sender.offer(b"%d" % k, group=1, client=1)
        sender.step(2 * MS, True)
        out += sender.tx()
    return out


def numbered(pdu: bytes, seq: int) -> bytes:
    """The same PDU under another number; what its source acknowledges of itself goes with it."""
    at = HEADER.size
    return add_checksum(poke(pdu, "seq", seq)[:at] + struct.pack(">I", seq + 1) + poke(pdu, "seq", seq)[at + 4 :])


@pytest.mark.parametrize("ahead", [1, 5, 60])
def test_an_old_pdu_that_is_held_fences_nobody(ahead: int) -> None:
    """Old: its clock is that of a PDU which was accepted long ago."""
    sender, receiver = pair()
    pdus = stream(sender, 64)
    for pdu in pdus[:3]:
        assert receiver.rx(2 * MS, pdu, MAC) == 0
    if 3 + ahead < 64:
        receiver.rx(2 * MS, numbered(pdus[0], 3 + ahead), MAC)
    for pdu in pdus[3:]:
        receiver.rx(2 * MS, pdu, MAC)
    receiver.step(3 * MS, True)
    assert receiver.fence() is None, "its order has not diverged from anybody's"
    assert receiver.drops()["clock"] == 1, "dropped when it came, and counted"
    assert receiver.peer(0).req == 64, "the real one is accepted in its place"


@pytest.mark.parametrize("faults", [Fault(0), Fault.OLD_CLOCK], ids=["", "OLD_CLOCK"])
def test_what_is_delivered_is_what_was_sent(faults: Fault) -> None:
    """In the broken variant the old PDU takes the place of the real one: one message comes twice, another one never."""
    sender, receiver = pair(int(faults))
    pdus = stream(sender, 16)
    for pdu in [*pdus[:3], numbered(pdus[0], 8), *pdus[3:]]:
        receiver.rx(2 * MS, pdu, MAC)
    for now in range(3 * MS, 30 * MS, MS):
        for core, other in ((receiver, sender), (sender, receiver)):
            core.step(now, True)
            core.poll(now)
            for pdu in core.tx():
                other.rx(now, pdu, bytes([2, 0, 0, 0, 0, 1 + (core is receiver)]))
    sent = [b"%d" % k for k in range(16)]
    assert [m.data for m in receiver.deliver()] == ([*sent[:8], sent[0], *sent[9:]] if faults else sent)


def test_one_that_turns_out_too_old_at_its_place_is_asked_for_again() -> None:
    """Its clock was above the last accepted one's when it came, and is not any more when its turn has come: no station sends such
    a stream. It is dropped then, and the real one takes its place."""
    sender, receiver = pair()
    pdus = stream(sender, 8)
    for pdu in pdus[:2]:
        receiver.rx(2 * MS, pdu, MAC)
    receiver.rx(2 * MS, poke(pdus[6], "clock", peek(pdus[2], "clock")), MAC)
    for pdu in pdus[2:6]:
        receiver.rx(2 * MS, pdu, MAC)
    receiver.step(3 * MS, True)
    assert receiver.fence() is None
    assert receiver.drops()["clock"] == 1
    assert receiver.peer(0).req == 6
    assert receiver.nak_due_ns() <= 3 * MS + MS, "and it is asked for"
    assert receiver.nak(receiver.nak_due_ns()) == 1
    for pdu in pdus[6:]:
        receiver.rx(3 * MS, pdu, MAC)
    receiver.step(4 * MS, True)
    assert receiver.peer(0).req == 8
    assert receiver.fence() is None
