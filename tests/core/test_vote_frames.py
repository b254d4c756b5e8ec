"""Votes and view events on the wire: what the core's check of a frame lets through (docs/protocol.md)."""

from __future__ import annotations

import struct

from zenjun.proto.core import Drop, add_checksum, check
from zenjun.proto.wire import HEADER, Flag, Kind, MessageType

from .membership_rig import proposal


def vote_pdu(payload: bytes, kind: Kind = Kind.STOP, stations: int = 3, **values: int) -> bytes:
    fields = {"cluster": 1, "version": 1, "kind": kind, "stations": stations, "src": 1, "length": len(payload), **values}
    return add_checksum(HEADER.struct.pack(*(fields.get(f.name, 0) for f in HEADER.fields)) + bytes(4 * stations) + payload)


def test_votes_are_checked() -> None:
    good = proposal((0, 1), [(2, 7)])
    assert all(check(vote_pdu(good, kind), 1, 3) == Drop.NONE for kind in (Kind.STOP, Kind.STOP_ACK, Kind.RCV_ACK))
    assert check(vote_pdu(proposal((0,), [(1, 7), (2, 7)])), 1, 3) == Drop.NONE
    wrong = [
        b"", good[:-1], good + b"\0", proposal((0, 1), []), proposal((0, 1), [(2, 7), (1, 7)]),
        proposal((0, 1), [(2, 7), (2, 7)]),
        proposal((0, 1), [(3, 7)]), proposal((0, 1), [(-1, 7)]), proposal((0, 3), [(2, 7)]),
    ]  # fmt: skip
    assert [check(vote_pdu(payload), 1, 3) for payload in wrong] == [Drop.PAYLOAD] * len(wrong)
    assert check(vote_pdu(proposal((63,), [(63, 7)]), stations=64), 1, 64) == Drop.NONE
    assert check(vote_pdu(good, Kind.SERVICE), 1, 3) == Drop.KIND


def test_message_flags_are_checked() -> None:
    """An order-preserving message without the header's flag would never be delivered on acceptance."""
    message = struct.pack(">IIHBB", 1, 2, 3, MessageType.USER, 4) + b"m"
    assert check(vote_pdu(message, Kind.DATA, flags=Flag.OP), 1, 3) == Drop.NONE
    assert check(vote_pdu(message, Kind.DATA), 1, 3) == Drop.PAYLOAD
    view = struct.pack(">IIHBB", 1, 2, 3, MessageType.VIEW, 0) + b"m"
    assert check(vote_pdu(view, Kind.DATA), 1, 3) == Drop.PAYLOAD
