"""Records as messages of a link, and the group messages FLUSH, CLOSED and STATE, as bytes.

A record is one message of a link's core: its message type says which record it is; of DATA and RELAY the message header names the
first group and the program. Decoding is total: what does not fit is None.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import pairwise
from typing import Final, NamedTuple

from ..wire import STATIONS_MAX, Field, Layout, MessageType
from .records import Closed, Data, Decide, Flush, Held, Id, Listed, Record, Relay, Report, Stable, State
from .tables import ORDERS, EraNumber, Program

GROUPS_MAX: Final = 16
"""Groups that one message may be sent to."""
ERA_BYTES: Final = 8
TIME_LIMIT: Final = 2**63
"""Above all times and clocks: what says otherwise is no record, and drives no clock to where it cannot go on."""

DATA: Final = Layout(
    "multicast_data",
    (
        Field("era", 8, "in which it was sent: instance << 32 | change"),
        Field("number", 4, "of the originator's messages"),
        Field("finished", 4, "all of the originator's messages up to this number are finished"),
        Field("seen", 8, "the originator's clock"),
        Field("order", 1, "0 abcast, 1 token"),
        Field("dflags", 1, "1 SAFE: a program waits for level preack"),
        Field("more", 1, "groups besides that of the message header"),
        Field("pad", 1, "0"),
    ),
    "Before the bytes of a program's message on a link; the ids of `more` groups (4 bytes each) follow.",
)
RELAY: Final = Layout(
    "multicast_relay",
    (Field("origin", 1, "originator"), Field("pad", 3, "0"), Field("incarnation", 4, "of the originator")),
    "Before *multicast_data* in a RELAY.",
)
TIMED: Final = Layout(
    "multicast_timed",
    (
        Field("era", 8, "of the messages"),
        Field("origin", 1, "of the messages"),
        Field("order", 1, "0 abcast, 1 token"),
        Field("count", 2, "consecutive messages that have this time"),
        Field("number", 4, "of the first one"),
        Field("time", 8, "reported, or decided"),
    ),
    "REPORT and DECIDE.",
)
COUNTED: Final = Layout(
    "multicast_counted",
    (
        Field("era", 8, "in which is counted"),
        Field("order", 1, "0 abcast, 1 token"),
        Field("what", 1, "STABLE: 0 messages of DECIDEs of this link, 1 of DATA of this link; HELD: 0"),
        Field("pad", 2, "0"),
        Field("k", 4, "how many"),
    ),
    "HELD and STABLE.",
)
_DATA: Final = struct.Struct(">QIIQBBBx")
_RELAY: Final = struct.Struct(">B3xI")
_TIMED: Final = struct.Struct(">QBBHIQ")
_COUNTED: Final = struct.Struct(">QBBxxI")
_SAFE: Final = 1
_KIND: Final[dict[type[object], MessageType]] = {
    Report: MessageType.REPORT,
    Decide: MessageType.DECIDE,
    Held: MessageType.HELD,
    Stable: MessageType.STABLE,
}


class Encoded(NamedTuple):
    """A message of a link."""

    type: int
    group: int
    client: int
    data: bytes


def era_bytes(era: EraNumber) -> int:
    """An era's number as one integer of ERA_BYTES."""
    return era.instance << 32 | era.change


def era_number(value: int) -> EraNumber:
    return EraNumber(value >> 32, value & 0xFFFFFFFF)


def encode(record: Record) -> Encoded:
    """A record as a message of a link."""
    if isinstance(record, Data):
        return _encode_data(record, MessageType.USER, b"")
    if isinstance(record, Relay):
        program = record.data.program
        return _encode_data(record.data, MessageType.RELAY, _RELAY.pack(record.data.id.origin, program.incarnation))
    era, order = era_bytes(record.era), ORDERS.index(record.order)
    if isinstance(record, Report | Decide):
        data = _TIMED.pack(era, record.origin, order, record.count, record.number, record.time)
    else:
        data = _COUNTED.pack(era, order, isinstance(record, Stable) and record.sent, record.k & 0xFFFFFFFF)
    return Encoded(_KIND[type(record)], 0, 0, data)


def _encode_data(data: Data, kind: MessageType, head: bytes) -> Encoded:
    first, *more = data.groups
    fixed = _DATA.pack(
        era_bytes(data.id.era),
        data.id.number,
        data.finished,
        data.seen,
        ORDERS.index(data.order),
        _SAFE if data.safe else 0,
        len(more),
    )
    return Encoded(kind, first, data.program.client, b"".join((head, fixed, struct.pack(f">{len(more)}I", *more), data.content)))


def decode(message: Encoded, source: int, incarnation: int) -> Record | None:
    """The inverse, of a message that the given incarnation of a station has sent on its link. None: it makes no sense."""
    kind, data = message.type, message.data
    try:
        if kind == MessageType.USER:
            return _decode_data(message, 0, source, incarnation)
        if kind == MessageType.RELAY:
            origin, life = _RELAY.unpack_from(data)
            relayed = _decode_data(message, _RELAY.size, origin, life)
            return Relay(relayed) if relayed is not None and 1 <= origin <= STATIONS_MAX else None
        if kind in (MessageType.REPORT, MessageType.DECIDE):
            era, origin, order, count, number, time = _TIMED.unpack(data)
            timed = Report if kind == MessageType.REPORT else Decide
            fits = count and time < TIME_LIMIT
            return timed(era_number(era), ORDERS[order], origin, number, count, time) if fits else None
        if kind in (MessageType.HELD, MessageType.STABLE):
            era, order, what, k = _COUNTED.unpack(data)
            if kind == MessageType.HELD:
                return Held(era_number(era), ORDERS[order], k) if not what else None
            return Stable(era_number(era), ORDERS[order], k, bool(what)) if what <= 1 else None
    except (struct.error, IndexError):
        return None
    return None


def _decode_data(message: Encoded, at: int, origin: int, incarnation: int) -> Data | None:
    era, number, finished, seen, order, flags, more = _DATA.unpack_from(message.data, at)
    at += _DATA.size
    ids = struct.unpack_from(f">{more}I", message.data, at)
    groups = (message.group, *ids)
    if flags & ~_SAFE or more >= GROUPS_MAX or any(a >= b for a, b in pairwise(groups)) or not number or seen >= TIME_LIMIT:
        return None
    return Data(
        Id(era_number(era), origin, number),
        Program(origin, incarnation, message.client),
        ORDERS[order],
        groups,
        seen,
        message.data[at + 4 * more :],
        bool(flags & _SAFE),
        finished,
    )


# ---- in the main order

FLUSH, CLOSED, STATE = 4, 5, 6
"""Operations of group messages, after those of ``service/groups.py``."""
OPERATIONS: Final = frozenset((FLUSH, CLOSED, STATE))
PART_BYTES: Final = 1000
"""Size of one message; what is longer is sent in parts. Smaller than the smallest message_max that can be configured."""
_LAST: Final = 8
_HEAD: Final = struct.Struct(">BBHQQ")
_LISTED: Final = struct.Struct(">QBBBBHxxIIQQ")
_HELD, _TIME = 1, 2
_DIGEST: Final = struct.Struct(">QIQ")
_LIFE: Final = struct.Struct(">BxxxI")


class Part(NamedTuple):
    """One message of a FLUSH, CLOSED or STATE."""

    operation: int
    last: bool
    opens: EraNumber
    clock: int
    body: bytes


def encode_flush(flush: Flush) -> list[bytes]:
    return _parts(FLUSH, flush.opens, flush.clock, (_encode_listed(m) for m in flush.listed))


def encode_closed(closed: Closed) -> list[bytes]:
    return _parts(CLOSED, closed.opens, 0, (_DIGEST.pack(era_bytes(era), group, d) for era, group, d in closed.digests))


def encode_state(state: State) -> list[bytes]:
    return _parts(STATE, state.era, state.clock, (_LIFE.pack(*life) for life in state.part))


def _parts(operation: int, era: EraNumber, clock: int, entries: Iterable[bytes]) -> list[bytes]:
    parts: list[list[bytes]] = [[]]
    size = _HEAD.size
    for entry in entries:
        if parts[-1] and size + len(entry) > PART_BYTES:
            parts.append([])
            size = _HEAD.size
        parts[-1].append(entry)
        size += len(entry)
    heads = [_HEAD.pack(operation, 0, len(part), era_bytes(era), clock) for part in parts[:-1]]
    heads.append(_HEAD.pack(operation, _LAST, len(parts[-1]), era_bytes(era), clock))
    return [head + b"".join(part) for head, part in zip(heads, parts, strict=True)]


def _encode_listed(m: Listed) -> bytes:
    flags = (_HELD if m.held else 0) | (_TIME if m.time is not None else 0)
    bits = sum(1 << z - 1 for z in m.destinations)
    head = _LISTED.pack(
        era_bytes(m.id.era),
        m.id.origin,
        flags,
        ORDERS.index(m.order),
        len(m.groups),
        m.program.client,
        m.program.incarnation,
        m.id.number,
        m.time or 0,
        bits,
    )
    return head + struct.pack(f">{len(m.groups)}I", *m.groups)


def decode_part(data: bytes) -> Part | None:
    """The head of a group message of these operations; None: it is none."""
    if len(data) < _HEAD.size or data[0] not in OPERATIONS:
        return None
    operation, flags, _, era, clock = _HEAD.unpack_from(data)
    if flags & ~_LAST or clock >= TIME_LIMIT:
        return None
    return Part(operation, bool(flags & _LAST), era_number(era), clock, data[_HEAD.size :])


def decode_listed(body: bytes) -> tuple[Listed, ...] | None:
    """The entries of a FLUSH, of all its parts."""
    out: list[Listed] = []
    at = 0
    try:
        while at < len(body):
            era, origin, flags, order, count, client, life, number, time, bits = _LISTED.unpack_from(body, at)
            at += _LISTED.size
            groups = struct.unpack_from(f">{count}I", body, at)
            at += 4 * count
            if time >= TIME_LIMIT:
                return None
            name = Id(era_number(era), origin, number)
            known = time if flags & _TIME else None
            destinations = frozenset(z for z in range(1, STATIONS_MAX + 1) if bits >> z - 1 & 1)
            program = Program(origin, life, client)
            out.append(Listed(name, program, ORDERS[order], groups, destinations, bool(flags & _HELD), known))
    except (struct.error, IndexError):
        return None
    return tuple(out)


def decode_digests(body: bytes) -> tuple[tuple[EraNumber, int, int], ...] | None:
    """The entries of a CLOSED, of all its parts."""
    if len(body) % _DIGEST.size:
        return None
    return tuple((era_number(era), group, digest) for era, group, digest in _DIGEST.iter_unpack(body))


def decode_lives(body: bytes) -> tuple[tuple[int, int], ...] | None:
    """The stations of a STATE, each with its incarnation."""
    if len(body) % _LIFE.size:
        return None
    return tuple((station, life) for station, life in _LIFE.iter_unpack(body))
