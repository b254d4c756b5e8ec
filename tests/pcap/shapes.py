"""Capture files of all shapes, made of bytes, and the walker's frames as tuples."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from zenjun.tools.pcap.native import Reader, ffi, lib

NS = 1_700_000_000_123_456_789
ETHERNET, RAW_IP, SLL, SLL2 = 1, 101, 113, 276


class Frame(NamedTuple):
    """What the walker said of one frame."""

    time_ns: int | None
    data: bytes
    wire: int
    link: int = ETHERNET
    direction: int = 0
    interface: int = 0


def frames(count: int = 3, size: int = 60) -> list[tuple[int, bytes]]:
    """(time in ns, bytes), no two alike, of odd lengths too."""
    return [
        (NS + 1_000_001 * k, bytes([k]) * 12 + b"\x88\xb5" + bytes((k + i) & 255 for i in range(size - 14 + k)))
        for k in range(count)
    ]


def pcap(
    records: Iterable[tuple[int, bytes]],
    order: str = "<",
    nano: bool = True,
    link: int = ETHERNET,
    cut: int = 1 << 18,
    snaplen: int = 1 << 18,
) -> bytes:
    magic = 0xA1B23C4D if nano else 0xA1B2C3D4
    out = [struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, snaplen, link)]
    for time, data in records:
        fraction = time % 10**9 if nano else time % 10**9 // 1000
        kept = data[:cut]
        out.append(struct.pack(order + "IIII", time // 10**9, fraction, len(kept), len(data)) + kept)
    return b"".join(out)


def option(order: str, code: int, value: bytes) -> bytes:
    return struct.pack(order + "HH", code, len(value)) + value + bytes(-len(value) % 4)


def block(order: str, kind: int, body: bytes) -> bytes:
    body += bytes(-len(body) % 4)
    return struct.pack(order + "II", kind, len(body) + 12) + body + struct.pack(order + "I", len(body) + 12)


def section(order: str = "<", options: bytes = b"") -> bytes:
    return block(order, 0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1) + options)


def interface(
    order: str = "<", link: int = ETHERNET, resolution: int | None = 9, offset: int | None = None, snaplen: int = 0
) -> bytes:
    options = option(order, 2, b"eth0")
    if resolution is not None:
        options += option(order, 9, bytes([resolution]))
    if offset is not None:
        options += option(order, 14, struct.pack(order + "q", offset))
    return block(order, 1, struct.pack(order + "HHI", link, 0, snaplen) + options + option(order, 0, b""))


def enhanced(ticks: int, data: bytes, order: str = "<", number: int = 0, wire: int = 0, flags: int | None = None) -> bytes:
    body = struct.pack(order + "IIIII", number, ticks >> 32, ticks & 0xFFFFFFFF, len(data), wire or len(data))
    body += data + bytes(-len(data) % 4)
    if flags is not None:
        body += option(order, 1, b"a comment") + option(order, 2, struct.pack(order + "I", flags)) + option(order, 0, b"")
    return block(order, 6, body)


def simple(data: bytes, order: str = "<", wire: int = 0) -> bytes:
    return block(order, 3, struct.pack(order + "I", wire or len(data)) + data)


def obsolete(ticks: int, data: bytes, order: str = "<", number: int = 0) -> bytes:
    body = struct.pack(order + "HHIIII", number, 0, ticks >> 32, ticks & 0xFFFFFFFF, len(data), len(data))
    return block(order, 2, body + data)


def pcapng(records: Sequence[tuple[int, bytes]], order: str = "<") -> bytes:
    return section(order) + interface(order) + b"".join(enhanced(time, data, order) for time, data in records)


def walk(path: Path | str, **options: Any) -> tuple[list[Frame], Reader, str | None]:
    """(frames, reader at its end, damage)."""
    found: list[Frame] = []
    frame = ffi.new("struct zp_frame *")
    damage = None
    with Reader(path, **options) as reader:
        while True:
            result = lib.zp_next(reader.walk, frame)
            if result == lib.ZP_FRAME:
                data = bytes(ffi.buffer(frame.data, frame.captured))
                time = int(frame.time_ns) if frame.has_time else None
                found.append(Frame(time, data, frame.wire, frame.link, frame.direction, frame.interface))
                assert frame.index == len(found) - 1 or options.get("state")
            elif result < 0:
                damage = str(reader.fail(result))
                break
            elif not reader.fill():
                break
    return found, reader, damage
