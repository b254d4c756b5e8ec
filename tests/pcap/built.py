"""Frames of all kinds and capture files made of bytes, for the tests of the tools that need neither a lab nor Spark."""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from scapy.packet import Packet
from zenjun.proto import wire
from zenjun.tools.dissect import (
    Ether,
    Zenjun,
    ZenjunChange,
    ZenjunConfiguration,
    ZenjunConfirm,
    ZenjunData,
    ZenjunMember,
    ZenjunMessage,
    ZenjunNak,
    ZenjunOpen,
    ZenjunRange,
    ZenjunReset,
    ZenjunVote,
)

CLUSTER = wire.cluster_id("built")
HEADER: dict[str, Any] = {
    "cluster": CLUSTER, "src": 2, "incarnation": 7, "instance": 3, "seq": 0xFFFFFFFF, "clock": (3 << 32) + 5,
    "free_buffers": 2**32 - 1, "frame_max": 1500,
}  # fmt: skip
VECTORS: dict[str, Any] = {"ack": [1, 0xFFFFFFFF, 3], "pack": [1, 2, 2], "flags": "PACK"}
ACK: dict[str, Any] = {"ack": [1, 2, 3]}


def message(data: bytes, **fields: Any) -> ZenjunMessage:
    return ZenjunMessage(data=data, group=wire.group_id("g"), client=5, **fields)


def vote(kind: str) -> Packet:
    changes = [ZenjunChange(changed=1, value=9), ZenjunChange(changed=3, value=0xFFFFFFFF)]
    return Zenjun(**HEADER, **ACK, kind=kind) / ZenjunVote(
        state=0xFFFFFFFF00000001, trans=1 << 63, members=5, changed_stations=changes
    )


def opening(kind: str) -> Packet:
    members = [ZenjunMember(station=k, member_incarnation=k * 11, past=2, reached=2**63 + k) for k in (1, 2, 3)]
    return Zenjun(**HEADER, ack=[0, 0, 0], kind=kind) / ZenjunOpen(
        proposal=4, highest=4, fingerprint=0xABCDEF01, age_ms=77, boot=2**64 - 1, oflags="STARTED", proposed=members, host="büro"
    )


PDUS: dict[str, Packet] = {
    "empty": Zenjun(**HEADER, **VECTORS),
    "one": Zenjun(**HEADER, **ACK) / ZenjunData(messages=[message(b"hello")]),
    "empty message": Zenjun(**HEADER, **ACK) / ZenjunData(messages=[message(b"")]),
    "packed": Zenjun(**HEADER, **VECTORS) / ZenjunData(messages=[message(bytes([k]) * k, type="GROUP") for k in range(40)]),
    "fragment": Zenjun(**HEADER, **ACK)
    / ZenjunData(messages=[message(b"a"), message(b"bcd", mflags="FRAGMENT", total=10, offset=4), message(b"e")]),
    "last fragment": Zenjun(**{**HEADER, "flags": "OP+NEED_ACK"}, **ACK)
    / ZenjunData(messages=[message(b"bcd", mflags="FRAGMENT+LAST+OP", total=10, offset=7)]),
    "confirm": Zenjun(**{**HEADER, "flags": "PACK+POLL+FENCED"}, ack=[1, 2, 3], pack=[1, 2, 2], target=3)
    / ZenjunConfirm(state=4, trans=2**63, position=2**63, digest=0xFEDCBA9876543210, counted=2, view=0x12345678),
    "farewell": Zenjun(**{**HEADER, "flags": "PACK+BYE+RELAYED"}, ack=[1, 2, 3], pack=[1, 2, 2]) / ZenjunConfirm(),
    "nak": Zenjun(**HEADER, **VECTORS, target=1)
    / ZenjunNak(stream=1, stream_incarnation=4, ranges=[ZenjunRange(first=5), ZenjunRange(first=0xFFFFFFFE, span=4)]),
    "open": opening("OPEN"),
    "open, nothing proposed": Zenjun(**HEADER, ack=[0, 0, 0]) / ZenjunOpen(),
    "open, changed": Zenjun(**HEADER, ack=[0, 0, 0])
    / ZenjunOpen(
        oflags="CONFIGURED",
        host="alpha",
        configuration=[
            ZenjunConfiguration(number=2, kept=7, ballot=2**40, options=b'{"stations": 3}', proposed_options=b'{"window": 9}')
        ],
    ),
    "rcv": opening("RCV"),
    "stop": vote("STOP"),
    "stop_ack": vote("STOP_ACK"),
    "rcv_ack": vote("RCV_ACK"),
    "rst": Zenjun(**HEADER, **ACK, kind="RST") / ZenjunReset(epoch=3, reset_view=0xCAFEBABE),
    "rstc": Zenjun(**HEADER, **ACK, kind="RSTC") / ZenjunReset(epoch=2**32 - 1, reset_view=1),
    "service": Zenjun(**HEADER, **ACK, kind="SERVICE") / b"whatever",
    "64 stations": Zenjun(**{**HEADER, "src": 64, "flags": "PACK"}, ack=list(range(64)), pack=list(range(64))) / ZenjunConfirm(),
}
"""One or more of every kind."""


def mac(station: int) -> str:
    return f"02:00:00:00:00:{station:02x}"


@functools.cache
def _header(station: int) -> bytes:
    return bytes(Ether(src=mac(station), dst=wire.GROUP_MAC, type=wire.ETHERTYPE))


def frame(pdu: Packet | bytes, station: int = 2) -> bytes:
    """The PDU in an Ethernet frame, padded to the shortest there is."""
    return (_header(station) + bytes(pdu)).ljust(60, b"\0")


class Rec(NamedTuple):
    """A frame of a capture: wire is its length there, 0: that of data; direction 0 unknown, 1 in, 2 out."""

    time_ns: int
    data: bytes
    direction: int = 0
    wire: int = 0


def pcap(records: Iterable[Rec], link_type: int = 1) -> bytes:
    """A pcap file, nanoseconds, little-endian; no directions."""
    out = [struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 65535, link_type)]
    for r in records:
        out.append(struct.pack("<IIII", *divmod(r.time_ns, 10**9), len(r.data), r.wire or len(r.data)) + r.data)
    return b"".join(out)


def block(kind: int, body: bytes) -> bytes:
    body += bytes(-len(body) % 4)
    size = struct.pack("<I", len(body) + 12)
    return struct.pack("<I", kind) + size + body + size


def pcapng(records: Iterable[Rec], link_type: int = 1) -> bytes:
    """A pcapng file, nanoseconds, with directions, as the lab writes it."""
    out = [block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))]
    out.append(block(1, struct.pack("<HHI", link_type, 0, 0) + struct.pack("<HHB3xHH", 9, 1, 9, 0, 0)))
    for r in records:
        head = struct.pack("<IIIII", 0, r.time_ns >> 32, r.time_ns & 0xFFFFFFFF, len(r.data), r.wire or len(r.data))
        options = struct.pack("<HHIHH", 2, 4, r.direction, 0, 0) if r.direction else b""
        out.append(block(6, head + r.data + bytes(-len(r.data) % 4) + options))
    return b"".join(out)


def write(path: Path, records: Iterable[Rec]) -> Path:
    """A pcapng file at the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pcapng(records))
    return path
