"""Captures with a fault planted: a pcapng file of the lab is rewritten, PDU by PDU, with correct checksums."""

from __future__ import annotations

import functools
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zenjun.proto import wire
from zenjun.proto.envelope import Envelope, Suite, What
from zenjun.proto.pieces import cut
from zenjun.tools.pcap.native import ffi, lib

_EPB, _ISB = 6, 5
_HEAD = wire.ETHERNET_HEADER
OUT, IN = 2, 1


@dataclass
class Pdu:
    """One PDU in a capture; ``bytes`` is its header, vectors and payload, to be changed in place."""

    bytes: bytearray
    direction: int

    def __getitem__(self, name: str) -> int:
        return int(_field(name)[1].unpack_from(self.bytes, _field(name)[0])[0])

    def __setitem__(self, name: str, value: int) -> None:
        at, form = _field(name)
        form.pack_into(self.bytes, at, value)

    @property
    def key(self) -> tuple[int, int, int]:
        """Source, incarnation, number."""
        return self["src"], self["incarnation"], self["seq"]

    @property
    def sequenced(self) -> bool:
        """Whether it is in its source's stream."""
        return wire.Kind(self["kind"]) in wire.SEQUENCED

    @property
    def payload_at(self) -> int:
        """Where the payload begins."""
        return wire.HEADER.size + 4 * self["stations"] * (2 if self["flags"] & wire.Flag.PACK else 1)

    def ack(self, station: int) -> int:
        """Entry of the ack vector."""
        return int(struct.unpack_from(">I", self.bytes, wire.HEADER.size + 4 * (station - 1))[0])

    def seal(self) -> None:
        """Compute the checksums anew."""
        at, end = wire.HEADER.offset("check"), self.payload_at
        head = _crc(bytes(self.bytes[:at]) + bytes(self.bytes[wire.HEADER.size : end]))
        self["check"] = head << 32 | _crc(bytes(self.bytes[end:]))

    def copy(self) -> Pdu:
        """Another one with the same bytes."""
        return Pdu(bytearray(self.bytes), self.direction)


_FORMS = {1: struct.Struct(">B"), 2: struct.Struct(">H"), 4: struct.Struct(">I"), 8: struct.Struct(">Q")}


@functools.cache
def _field(name: str) -> tuple[int, struct.Struct]:
    field = next(f for f in wire.HEADER.fields if f.name == name)
    return wire.HEADER.offset(name), _FORMS[field.width]


def _crc(data: bytes) -> int:
    return int(lib.zp_crc32c(0, ffi.from_buffer(data), len(data)))


def confirm(name: str) -> tuple[int, struct.Struct]:
    """Offset in a CONFIRM's payload, and form, of a field."""
    field = next(f for f in wire.CONFIRM.fields if f.name == name)
    return wire.CONFIRM.offset(name), _FORMS[field.width]


def _blocks(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        size = struct.unpack_from("<I", data, at + 4)[0]
        yield data[at : at + size]
        at += size


def _split(block: bytes) -> tuple[Pdu, int, bytes] | None:
    """(PDU, captured bytes, options) of an enhanced packet block with one of ours in it."""
    if struct.unpack_from("<I", block)[0] != _EPB:
        return None
    captured = struct.unpack_from("<I", block, 20)[0]
    frame = block[28 : 28 + captured]
    if frame[12:14] != wire.ETHERTYPE.to_bytes(2, "big"):
        return None
    options = block[28 + captured + (-captured % 4) : -4]
    flags = struct.unpack_from("<HHI", options)[2]
    body = bytearray(frame[_HEAD:])
    pdu = Pdu(body, OUT if flags & 3 == 2 else IN)
    del body[pdu.payload_at + pdu["length"] :]
    return pdu, captured, options


def _join(block: bytes, pdu: Pdu, options: bytes) -> bytes:
    frame = (block[28 : 28 + _HEAD] + bytes(pdu.bytes)).ljust(60, b"\0")
    size = 32 + len(frame) + -len(frame) % 4 + len(options)
    head = struct.pack("<II", _EPB, size) + block[8:20] + struct.pack("<II", len(frame), len(frame))
    return head + frame + bytes(-len(frame) % 4) + options + struct.pack("<I", size)


def pdus(path: Path) -> Iterator[Pdu]:
    """All PDUs of a capture."""
    for block in _blocks(path.read_bytes()):
        if (found := _split(block)) is not None:
            yield found[0]


def rewrite(source: Path, target: Path, change: Callable[[Pdu], list[Pdu] | None]) -> int:
    """Copy a capture; *change* gives what is to stand in a PDU's place (sealed anew), None: the PDU as it is. Returns how many
    frames were changed."""
    changed = frames = 0
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as out:
        for block in _blocks(source.read_bytes()):
            found = _split(block)
            put = None if found is None else change(found[0])
            if found is None or put is None:
                frames += struct.unpack_from("<I", block)[0] == _EPB
                out.write(_received(block, frames))
                continue
            changed += 1
            frames += len(put)
            for pdu in put:
                pdu.seal()
                out.write(_join(block, pdu, found[2]))
    return changed


def in_pieces(source: Path, target: Path, room: int, rng: random.Random) -> int:
    """Copy a capture; every sequenced PDU of more than ``room`` bytes stands there as the PIECEs that it may be sent in, out of
    their order and some of them twice. Returns how many PDUs that are."""
    count = numbers = 0
    with target.open("wb") as out:
        for block in _blocks(source.read_bytes()):
            if struct.unpack_from("<I", block)[0] != _EPB:
                out.write(b"" if struct.unpack_from("<I", block)[0] == _ISB else block)
                continue
            kept = struct.unpack_from("<I", block, 20)[0]
            frame, rest = block[28 : 28 + kept], block[28 + (kept + 3) // 4 * 4 : -4]
            found = _split(block)
            bodies = cut(frame[14:], room) if found is not None and found[0].sequenced else []
            if len(bodies) < 2:
                out.write(block)
                continue
            count += 1
            made = []
            for place, body in enumerate(bodies):
                numbers += 1
                head = Envelope(
                    int.from_bytes(frame[14:18], "big"), What.PIECE, found[0]["src"] if found else 0, Suite.NONE, len(body),
                    b"abcd", numbers, piece=place << 8 | len(bodies),
                )  # fmt: skip
                made.append(frame[:14] + head.packed() + body + bytes(4))
            made += rng.sample(made, rng.randrange(2))
            rng.shuffle(made)
            for data in made:
                padded = data + bytes(-len(data) % 4)
                size = 28 + len(padded) + len(rest) + 4
                words = struct.pack("<II", _EPB, size) + block[8:20] + struct.pack("<II", len(data), len(data))
                out.write(words + padded + rest + struct.pack("<I", size))
    return count


def _received(block: bytes, frames: int) -> bytes:
    """Interface statistics of the lab, with the frames that are in the file."""
    if struct.unpack_from("<I", block)[0] != _ISB or struct.unpack_from("<HH", block, 20) != (4, 8):
        return block
    return block[:24] + struct.pack("<Q", frames) + block[32:]


def with_clock(key: tuple[int, int, int], clock: int) -> Callable[[Pdu], list[Pdu] | None]:
    """The PDU of this name gets another clock, wherever it stands."""

    def change(pdu: Pdu) -> list[Pdu] | None:
        if not pdu.sequenced or pdu.key != key:
            return None
        pdu["clock"] = clock
        return [pdu]

    return change


def rows(folder: Path, table: str, station: int) -> list[dict[str, Any]]:
    """A table of a station, as dictionaries."""
    import pyarrow.parquet as pq

    return [
        r for p in sorted((folder / table / f"station={station}").glob("*.parquet")) for r in pq.ParquetFile(p).read().to_pylist()
    ]
