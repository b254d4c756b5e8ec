"""A second reader of capture files, in Python, which the walker in C is compared with: pcap (micro- and nanoseconds, either byte
order) and pcapng, in one pass and bounded memory.

A file that ends within a record gives all whole records and then sets ``CaptureFile.truncated``: a capture that is still being
written, or whose writer was killed, is normal. Formats: pcap, https://datatracker.ietf.org/doc/draft-ietf-opsawg-pcap;
pcapng, https://datatracker.ietf.org/doc/draft-ietf-opsawg-pcapng.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, Final

from zenjun.tools.pcap.frames.pdu import Record

LINK_ETHERNET: Final = 1
LINK_LINUX_SLL: Final = 113

RECORD_BYTES_MAX: Final = 1 << 24
"""Larger records are taken for damage (the largest frame is far below)."""

_PCAP_MAGIC: Final = {
    b"\xa1\xb2\xc3\xd4": (">", 1000),
    b"\xd4\xc3\xb2\xa1": ("<", 1000),
    b"\xa1\xb2\x3c\x4d": (">", 1),
    b"\x4d\x3c\xb2\xa1": ("<", 1),
}
"""Magic number → byte order, nanoseconds per unit of the fraction."""
_PCAPNG_MAGIC: Final = b"\x0a\x0d\x0d\x0a"
_SECTION, _INTERFACE, _PACKET_OLD, _SIMPLE, _ENHANCED = 0x0A0D0D0A, 1, 2, 3, 6
_OPT_END, _OPT_NAME, _OPT_TSRESOL, _OPT_TSOFFSET = 0, 2, 9, 14


class CaptureError(Exception):
    """The file is no capture, or damaged so that no further record can be found; the text is for people."""


@dataclass(slots=True)
class _Interface:
    link_type: int
    snap_length: int
    name: str = ""
    ticks_per_second: int = 1_000_000
    offset_s: int = 0

    def time_ns(self, ticks: int) -> int:
        return self.offset_s * 1_000_000_000 + ticks * 1_000_000_000 // self.ticks_per_second


@dataclass
class CaptureFile:
    """Records of one open binary stream (no seeking: a pipe will do). Iterate once.

    Raises CaptureError from the iteration, never from construction.
    """

    stream: BinaryIO
    truncated: bool = field(default=False, init=False)
    """True once the iteration has found that the last record is cut."""

    def __iter__(self) -> Iterator[Record]:
        magic = self._read(4)
        if magic in _PCAP_MAGIC:
            yield from self._pcap(*_PCAP_MAGIC[magic])
        elif magic == _PCAPNG_MAGIC:
            yield from self._pcapng()
        elif magic[:2] == b"\x1f\x8b":
            raise CaptureError("compressed by gzip: unpack it first (zcat FILE | zenjun sniff -)")
        elif not magic:
            raise CaptureError("the file is empty")
        elif not self.truncated:
            raise CaptureError(f"neither pcap nor pcapng (begins with {magic.hex()}); editcap -F pcapng converts other formats")

    def _read(self, size: int) -> bytes:
        """``size`` bytes, or fewer at the end of the file, when ``truncated`` is set unless none was left."""
        parts: list[bytes] = []
        left = size
        while left and (part := self.stream.read(left)):
            parts.append(part)
            left -= len(part)
        data = b"".join(parts)
        self.truncated = 0 < len(data) < size
        return data

    def _rest(self, size: int) -> bytes | None:
        """Like ``_read`` within a record, where the end of the file is a cut; ``None`` then."""
        data = self._read(size)
        self.truncated = len(data) < size
        return None if self.truncated else data

    def _pcap(self, order: str, unit_ns: int) -> Iterator[Record]:
        head = self._rest(20)
        if head is None:
            return
        link_type = struct.unpack(order + "I", head[16:20])[0] & 0x0FFFFFFF  # the top bits tell about a frame check sequence
        record = struct.Struct(order + "IIII")
        while len(raw := self._read(record.size)) == record.size:
            seconds, fraction, captured, length = record.unpack(raw)
            if captured > RECORD_BYTES_MAX:
                raise CaptureError(f"damaged: a record of {captured} bytes")
            data = self._rest(captured)
            if data is None:
                return
            yield Record(seconds * 1_000_000_000 + fraction * unit_ns, link_type, data, length)

    def _pcapng(self) -> Iterator[Record]:
        order = self._section()
        interfaces: list[_Interface] = []
        while order is not None and len(raw := self._read(4)) == 4:
            if raw == _PCAPNG_MAGIC:  # a new section: its own byte order and interfaces
                order, interfaces = self._section(), []
                continue
            kind = struct.unpack(order + "I", raw)[0]
            body = self._block(order)
            if body is None:
                return
            try:
                if kind == _INTERFACE:
                    interfaces.append(_interface(order, body))
                elif record := _packet(order, kind, body, interfaces):
                    yield record
            except (struct.error, IndexError):
                raise CaptureError(f"damaged: a block of type {kind} that is too short or names an unknown interface") from None

    def _section(self) -> str | None:
        """Byte order of the section whose type has just been read; ``None`` if the file ends within its header."""
        head = self._rest(8)
        if head is None:
            return None
        order = {b"\x1a\x2b\x3c\x4d": ">", b"\x4d\x3c\x2b\x1a": "<"}.get(head[4:8])
        if order is None:
            raise CaptureError(f"damaged: byte-order magic {head[4:8].hex()} in a pcapng section header")
        size = struct.unpack(order + "I", head[:4])[0]
        if size < 28 or size % 4 or size > RECORD_BYTES_MAX:
            raise CaptureError(f"damaged: a section header of {size} bytes")
        return order if self._rest(size - 12) is not None else None

    def _block(self, order: str) -> bytes | None:
        """Body of the block whose type has just been read; ``None`` if the file ends within it."""
        raw = self._rest(4)
        if raw is None:
            return None
        size = struct.unpack(order + "I", raw)[0]
        if size < 12 or size % 4 or size > RECORD_BYTES_MAX:
            raise CaptureError(f"damaged: a block of {size} bytes")
        rest = self._rest(size - 8)
        return None if rest is None else rest[:-4]


def _interface(order: str, body: bytes) -> _Interface:
    link_type, _, snap_length = struct.unpack_from(order + "HHI", body)
    found = _Interface(link_type, snap_length)
    at = 8
    while at + 4 <= len(body):  # each option takes at least four bytes
        code, size = struct.unpack_from(order + "HH", body, at)
        value = body[at + 4 : at + 4 + size]
        if code == _OPT_END:
            break
        if code == _OPT_NAME:
            found.name = value.rstrip(b"\0").decode(errors="replace")
        elif code == _OPT_TSRESOL and value:
            found.ticks_per_second = 1 << (value[0] & 0x7F) if value[0] & 0x80 else 10 ** value[0]
        elif code == _OPT_TSOFFSET and size == 8:
            found.offset_s = struct.unpack(order + "q", value)[0]
        at += 4 + (size + 3 & ~3)
    return found


def _packet(order: str, kind: int, body: bytes, interfaces: list[_Interface]) -> Record | None:
    if kind == _ENHANCED:
        number, high, low, captured, length = struct.unpack_from(order + "IIIII", body)
        at, ticks = 20, high << 32 | low
    elif kind == _PACKET_OLD:
        number, _, high, low, captured, length = struct.unpack_from(order + "HHIIII", body)
        at, ticks = 20, high << 32 | low
    elif kind == _SIMPLE:
        (length,) = struct.unpack_from(order + "I", body)
        number, at, ticks = 0, 4, 0
        captured = min(length, len(body) - 4, interfaces[0].snap_length or length)
    else:
        return None
    interface = interfaces[number]
    if at + captured > len(body):
        raise CaptureError(f"damaged: a record of {captured} bytes in a block of {len(body)}")
    time_ns = 0 if kind == _SIMPLE else interface.time_ns(ticks)
    return Record(time_ns, interface.link_type, body[at : at + captured], length, interface.name)
