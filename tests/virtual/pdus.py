"""Reads and changes single fields of a PDU, by the wire table."""

from __future__ import annotations

import struct
from typing import Final

from zenjun.proto.core import add_checksum
from zenjun.proto.wire import HEADER, Flag, Kind

_FIELDS: Final = {f.name: (HEADER.offset(f.name), f.width) for f in HEADER.fields}
"""Name → offset and width, in bytes."""


def peek(pdu: bytes, name: str) -> int:
    """A header field."""
    at, width = _FIELDS[name]
    return int.from_bytes(pdu[at : at + width], "big")


def poke(pdu: bytes, name: str, value: int) -> bytes:
    """The same PDU with another value of a header field, and a right checksum."""
    at, width = _FIELDS[name]
    return add_checksum(pdu[:at] + value.to_bytes(width, "big") + pdu[at + width :])


def kind(pdu: bytes) -> Kind:
    return Kind(peek(pdu, "kind"))


def ack(pdu: bytes) -> list[int]:
    """The ack vector."""
    return list(struct.unpack_from(f">{peek(pdu, 'stations')}I", pdu, HEADER.size))


def pack(pdu: bytes) -> list[int]:
    """The P vector, which the PDU must have."""
    assert peek(pdu, "flags") & Flag.PACK
    n = peek(pdu, "stations")
    return list(struct.unpack_from(f">{n}I", pdu, HEADER.size + 4 * n))
