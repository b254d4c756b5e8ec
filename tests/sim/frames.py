"""The simulator's own reading of frames: plain Python from the wire table, so that the oracle does not believe the C codec."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from zenjun.proto import wire
from zenjun.proto.wire import Flag, Kind, MessageFlag, OpenFlag

_HEADER: Final = wire.HEADER.struct
_HEADER_SIZE: Final = wire.HEADER.size
_CHECK_AT: Final = wire.HEADER.offset("check")
_PACK: Final = int(Flag.PACK)
_FLAG_NAMES: Final = tuple((int(f), f.name) for f in Flag)
_KIND_NAMES: Final = {int(kind): kind.name for kind in Kind}
_FRAGMENT, _LAST, _OP = int(MessageFlag.FRAGMENT), int(MessageFlag.LAST), int(MessageFlag.OP)
_STARTED: Final = int(OpenFlag.STARTED)
_OFLAGS_AT: Final = wire.OPEN.offset("oflags")
_MESSAGE: Final = wire.MESSAGE.struct
_MESSAGE_SIZE: Final = wire.MESSAGE.size
_FRAGMENT_SIZE: Final = wire.FRAGMENT.size
_OPEN: Final = wire.OPEN.struct
_VECTORS: Final = {n: struct.Struct(f">{n}I") for n in range(1, wire.STATIONS_MAX + 1)}


@dataclass(slots=True, init=False)  # with its own __init__, and not frozen: the generated ones take several times as long
class Frame:
    """Header and vectors of one PDU; ``src`` and ``target`` are numbers 1..n as on the wire, sequence numbers have 32 bits. Not
    to be changed."""

    kind: int
    flags: int
    src: int
    incarnation: int
    instance: int
    seq: int
    clock: int
    free_buffers: int
    ack: tuple[int, ...]
    pack: tuple[int, ...]
    payload: bytes

    def __init__(
        self,
        kind: int,
        flags: int,
        src: int,
        incarnation: int,
        instance: int,
        seq: int,
        clock: int,
        free_buffers: int,
        ack: tuple[int, ...],
        pack: tuple[int, ...],
        payload: bytes,
    ) -> None:
        self.kind = kind
        self.flags = flags
        self.src = src
        self.incarnation = incarnation
        self.instance = instance
        self.seq = seq
        self.clock = clock
        self.free_buffers = free_buffers
        self.ack = ack
        self.pack = pack
        self.payload = payload


def parse(pdu: bytes) -> Frame:
    """Read a PDU that a station has just sent. Raises ``ValueError`` if it is not well-formed: stations send nothing else."""
    if len(pdu) < _HEADER_SIZE:
        raise ValueError(f"{len(pdu)} bytes are less than a header")
    (_, version, kind, flags, n, src, _, length, incarnation, instance, seq, clock, free, _, _, _) = _HEADER.unpack_from(pdu)
    if version != wire.VERSION or not 1 <= n <= wire.STATIONS_MAX:
        raise ValueError(f"version {version}, {n} stations")
    vector = _VECTORS[n]
    at = _HEADER_SIZE + vector.size * (2 if flags & _PACK else 1)
    if len(pdu) < at + length:
        raise ValueError(f"length field {length} goes beyond the frame")
    ack = vector.unpack_from(pdu, _HEADER_SIZE)
    pack = vector.unpack_from(pdu, _HEADER_SIZE + vector.size) if flags & _PACK else ()
    return Frame(kind, flags, src, incarnation, instance, seq, clock, free, ack, pack, pdu[at : at + length])


def name(kind: int) -> str:
    """Name of a PDU kind for people."""
    return _KIND_NAMES.get(kind) or f"kind{kind}"


@lru_cache(1024)
def _label(kind: int, flags: int) -> str:
    return name(kind) + "".join(f" {label}" for bit, label in _FLAG_NAMES if flags & bit)


def text(f: Frame) -> str:
    """One line for traces and scenarios."""
    pack = f" pack={list(f.pack)}" if f.pack else ""
    return f"{_label(f.kind, f.flags)} seq={f.seq} clock={f.clock & 0xFFFFFFFF} ack={list(f.ack)}{pack}"


def ranges(f: Frame) -> tuple[int, list[tuple[int, int]]]:
    """(stream 1..n, [(first missing seq, how many)]) of a NAK."""
    stream, count, _, _ = wire.NAK.struct.unpack_from(f.payload)
    return stream, [wire.RANGE.struct.unpack_from(f.payload, wire.NAK.size + k * wire.RANGE.size) for k in range(count)]


@dataclass(frozen=True, slots=True)
class Piece:
    """One message header in a DATA PDU: ``whole`` if its message is complete with it."""

    index: int
    client: int
    op: bool
    whole: bool


def messages(f: Frame) -> list[Piece]:
    """The messages, and pieces of such, in a DATA PDU. Raises ``ValueError`` if they do not fit."""
    out: list[Piece] = []
    at = 0
    while at < len(f.payload):
        if at + _MESSAGE_SIZE > len(f.payload):
            raise ValueError("a message header goes beyond the payload")
        size, _, client, _, mflags = _MESSAGE.unpack_from(f.payload, at)
        fragment = mflags & _FRAGMENT
        at += _MESSAGE_SIZE + (_FRAGMENT_SIZE if fragment else 0) + size
        if at > len(f.payload):
            raise ValueError("a message goes beyond the payload")
        whole = not fragment or bool(mflags & _LAST)
        out.append(Piece(len(out), client, bool(mflags & _OP), whole))
    return out


@dataclass(frozen=True, slots=True)
class Proposal:
    """A vote's payload without the bitmaps; stations are 0..n-1."""

    stop: bool
    members: tuple[int, ...]
    changes: tuple[tuple[int, int], ...]
    """(station, next seq accepted from it), or (station, its incarnation)."""

    def leads_to(self, incarnations: tuple[int, ...]) -> tuple[int, ...]:
        """Incarnations of the instance proposed by a station whose own has these."""
        lives = list(incarnations)
        for station, value in self.changes:
            lives[station] = 0 if self.stop else value
        return tuple(life if s in self.members else 0 for s, life in enumerate(lives))


def bitmap(value: int) -> tuple[int, ...]:
    """Stations 0..63 whose bit is set."""
    return tuple(s for s in range(64) if value >> s & 1)


def proposal(f: Frame) -> Proposal:
    """Read the payload of a STOP, STOP_ACK or RCV_ACK. Raises ``ValueError`` if it does not fit."""
    if len(f.payload) < wire.PROPOSAL.size:
        raise ValueError("a vote without a proposal")
    _, _, members, count = wire.PROPOSAL.struct.unpack_from(f.payload)
    if len(f.payload) != wire.PROPOSAL.size + count * wire.CHANGE.size:
        raise ValueError(f"{len(f.payload)} bytes are no proposal of {count} changes")
    changes = (wire.CHANGE.struct.unpack_from(f.payload, wire.PROPOSAL.size + k * wire.CHANGE.size) for k in range(count))
    return Proposal(f.kind != Kind.RCV_ACK, bitmap(members), tuple((station - 1, value) for station, value in changes))


def bitmaps(f: Frame) -> tuple[int, int]:
    """(STATE, TRANS) of a CONFIRM or a vote."""
    state, trans = struct.unpack_from(">QQ", f.payload)
    return state, trans


def confirmed_view(f: Frame) -> int:
    """View hash in a CONFIRM."""
    (value,) = struct.unpack_from(">I", f.payload, wire.CONFIRM.offset("view"))
    return int(value)


def has_started(f: Frame) -> bool:
    """Does the sender of this OPEN say that it is in an instance?"""
    return bool(f.payload[_OFLAGS_AT] & _STARTED)


def age_ms(f: Frame) -> int:
    """How long the sender of this OPEN or RCV has been running."""
    return int(_OPEN.unpack_from(f.payload)[3])


@dataclass(frozen=True, slots=True)
class ViewEvent:
    """What a core hands out as a message of type VIEW; stations are 0..n-1."""

    instance: int
    hash: int
    members: tuple[int, ...]
    joined: tuple[int, ...]
    left: tuple[int, ...]
    incarnations: tuple[int, ...]


def view(data: bytes) -> ViewEvent:
    """Read a view event. Raises ``ValueError`` if it does not fit."""
    if len(data) < wire.VIEW.size or (len(data) - wire.VIEW.size) % 4:
        raise ValueError(f"{len(data)} bytes are no view event")
    instance, digest, members, joined, left = wire.VIEW.struct.unpack_from(data)
    lives = struct.unpack_from(f">{(len(data) - wire.VIEW.size) // 4}I", data, wire.VIEW.size)
    return ViewEvent(instance, digest, bitmap(members), bitmap(joined), bitmap(left), lives)


def _crc32c_table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return tuple(table)


_CRC: Final = _crc32c_table()


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli), bit by the book: slow, and written apart from the core's on purpose."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def add_checksum(pdu: bytes) -> bytes:
    """The PDU with its checksums made right, whatever else is wrong with it."""
    if len(pdu) < _HEADER_SIZE:
        return pdu
    fields = _HEADER.unpack_from(pdu)
    n, flags, length = fields[4], fields[3], fields[7]
    at = min(_HEADER_SIZE + 4 * n * (2 if flags & _PACK else 1), len(pdu))
    head = crc32c(pdu[:_CHECK_AT] + pdu[_HEADER_SIZE:at])
    return pdu[:_CHECK_AT] + struct.pack(">II", head, crc32c(pdu[at : at + length])) + pdu[_HEADER_SIZE:]


@lru_cache(8)
def _cluster_id(cluster: str) -> int:
    return wire.cluster_id(cluster)


def is_of(pdu: bytes, cluster: str, stations: int) -> bool:
    """Whether its header, as far as that is there, is of this cluster, protocol version and number of stations."""
    if len(pdu) < _HEADER_SIZE:
        return False
    fields = _HEADER.unpack_from(pdu)
    return (fields[0], fields[1], fields[4]) == (_cluster_id(cluster), wire.VERSION, stations)


@lru_cache(4096)
def checked(pdu: bytes) -> Frame | None:
    """What a PDU from the wire says if it can be read and its checksums are right, else None. Each of its copies is judged once:
    the frame is shared."""
    try:
        f = parse(pdu)
    except ValueError:
        return None
    return f if add_checksum(pdu) == pdu else None


def patch(pdu: bytes, name: str, value: int) -> bytes:
    """The PDU with one header field replaced; checksums are left as they were."""
    field = next(f for f in wire.HEADER.fields if f.name == name)
    at = wire.HEADER.offset(name)
    return pdu[:at] + value.to_bytes(field.width, "big") + pdu[at + field.width :]
