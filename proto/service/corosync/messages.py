"""The messages of the stand-ins' group, and what they are about.

Binary, numbers in network byte order. ``decode`` takes exactly what ``encode`` makes; anything else is None at all nodes alike.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from ..base import Place

GROUP: Final = "zenjun.corosync"
"""Only root and the daemon's user may join it: whoever is in it and sends no LIST stops every round."""
NAME_MAX: Final = 128
"""Bytes of the name of a process group."""
FINGERPRINT_BYTES: Final = 16
VERSION: Final = 2
"""Of all that the stand-ins write, in the fingerprint of a LIST: who writes otherwise is not let into the ring. 2: bundles. Rises
with any change that a stand-in of before would not read, or not take in the same way. A LIST keeps its format, and goes alone."""
FORMAT: Final = 1
BUNDLE: Final = b"\x02"
"""Instead of a format: several messages follow, each behind its length in 4 bytes."""
LENGTH_BYTES: Final = 4


class Reason(IntEnum):
    """Why a process is in a list of a change; numbers of libcpg."""

    NONE = 0
    JOIN = 1
    LEAVE = 2
    NODEDOWN = 3
    """Its node has left the ring."""
    NODEUP = 4
    """It was there before the rings met."""
    PROCDOWN = 5
    """Its connection was lost."""


class Part(IntEnum):
    """Which piece of a message of its program an MCAST is; numbers of libcpg."""

    WHOLE = 0
    FIRST = 1
    MIDDLE = 2
    LAST = 3


class Process(NamedTuple):
    """A member of a process group, at a node that is told beside it."""

    group: bytes
    """1 to ``NAME_MAX`` bytes, any."""
    pid: int
    """As its library sends it, 32 bits: programs compare it."""


class Word(NamedTuple):
    """What a node says of quorum when rings meet."""

    votes: int
    """Its own."""
    expected: int
    quorate: bool


class ProcJoin(NamedTuple):
    process: Process


class ProcLeave(NamedTuple):
    process: Process
    reason: Reason
    """LEAVE or PROCDOWN."""


class Mcast(NamedTuple):
    process: Process
    part: Part
    length: int
    """Bytes of the program's whole message."""
    data: bytes


class List(NamedTuple):
    """A node's word in a round, as of the round's place."""

    round: Place
    node: int
    fingerprint: bytes
    """Of the nodelist that the sender has, ``FINGERPRINT_BYTES`` long."""
    rings: int
    """The sender's ``ring.Ring.count``."""
    life: int
    """The sender's."""
    in_ring: bool
    """It is in the ring of this order; False: it is alone, and wants to be let in."""
    word: Word
    processes: tuple[Process, ...]
    """The sender's, sorted."""


class Kill(NamedTuple):
    node: int
    reason: bytes


class Reload(NamedTuple):
    """Read the configuration again."""


class Votes(NamedTuple):
    node: int
    """0: ``number`` is what is expected of all together."""
    number: int


Message: TypeAlias = ProcJoin | ProcLeave | Mcast | List | Kill | Reload | Votes
_KINDS: Final[tuple[type[Message], ...]] = (ProcJoin, ProcLeave, Mcast, List, Kill, Reload, Votes)
_HEAD: Final = struct.Struct("!BB")
_PROCESS: Final = struct.Struct("!IB")
_MCAST: Final = struct.Struct("!BI")
_LIST: Final = struct.Struct(f"!QHHI{FINGERPRINT_BYTES}sQQ?II?I")
_KILL: Final = struct.Struct("!I")
_VOTES: Final = struct.Struct("!II")
_MCAST_HEAD: Final = _HEAD.pack(FORMAT, _KINDS.index(Mcast))
_WHOLE_MIN: Final = _HEAD.size + _PROCESS.size + _MCAST.size


def mcast_head(process: Process) -> bytes:
    """What every MCAST of a process begins with; ``Part`` and length follow, 5 bytes, then the data."""
    return _HEAD.pack(FORMAT, _KINDS.index(Mcast)) + _process(process)


def whole_head(data: bytes) -> bytes:
    """The beginning of a message that is an MCAST, WHOLE and as long as it says; empty for any other message."""
    if len(data) < _WHOLE_MIN or not data.startswith(_MCAST_HEAD):
        return b""
    end = _WHOLE_MIN - _MCAST.size + data[_WHOLE_MIN - _MCAST.size - 1]
    is_whole = len(data) >= end + _MCAST.size and _MCAST.unpack_from(data, end) == (0, len(data) - end - _MCAST.size)
    return data[:end] if is_whole else b""


def bundle(messages: Iterable[bytes]) -> bytes:
    """Several messages as one of the group: they have one place, and keep their order."""
    return BUNDLE + b"".join(len(message).to_bytes(LENGTH_BYTES, "big") + message for message in messages)


def bundled(data: bytes, at: int) -> bytes | None:
    """The message of a bundle that begins there, with its length. None: there is none, and nothing behind it can be read."""
    begin = at + LENGTH_BYTES
    end = begin + int.from_bytes(data[at:begin], "big")
    return data[begin:end] if begin <= len(data) and end <= len(data) else None


def encode(message: Message) -> bytes:
    """Bytes of a message whose fields are within their bounds."""
    head = _HEAD.pack(FORMAT, _KINDS.index(type(message)))
    match message:
        case ProcJoin(process):
            return head + _process(process)
        case ProcLeave(process, reason):
            return head + _process(process) + bytes([reason])
        case Mcast(process, part, length, data):
            return head + _process(process) + _MCAST.pack(part, length) + data
        case List():
            fixed = _LIST.pack(
                *(message.round[0], message.round[1], message.round[2]),
                *(message.node, message.fingerprint, message.rings, message.life, message.in_ring),
                *(message.word.votes, message.word.expected, message.word.quorate, len(message.processes)),
            )
            return head + fixed + b"".join(_process(p) for p in message.processes)
        case Kill(node, reason):
            return head + _KILL.pack(node) + reason
        case Votes(node, number):
            return head + _VOTES.pack(node, number)
    return head


def decode(data: bytes) -> Message | None:
    """The inverse of ``encode``, total: None for anything else."""
    try:
        version, kind = _HEAD.unpack_from(data)
        if version != FORMAT:
            return None
        message = _decode(_KINDS[kind], data[_HEAD.size :])
    except (struct.error, ValueError, IndexError):
        return None
    return message if message is not None and encode(message) == data else None


def _decode(kind: type[Message], body: bytes) -> Message | None:
    if kind is List:
        return _decode_list(body)
    if kind is Kill:
        (node,) = _KILL.unpack_from(body)
        return Kill(node, body[_KILL.size :])
    if kind is Reload:
        return Reload()
    if kind is Votes:
        return Votes(*_VOTES.unpack_from(body))
    process, at = _process_at(body, 0)
    if kind is ProcJoin:
        return ProcJoin(process)
    if kind is ProcLeave:
        reason = Reason(body[at])
        return ProcLeave(process, reason) if reason in (Reason.LEAVE, Reason.PROCDOWN) else None
    part, length = _MCAST.unpack_from(body, at)
    return Mcast(process, Part(part), length, body[at + _MCAST.size :])


def _decode_list(body: bytes) -> List:
    clock, station, index, node, fingerprint, *numbers, in_ring, votes, expected, quorate, length = _LIST.unpack_from(body)
    at = _LIST.size
    processes = []
    for _ in range(length):  # a length beyond the body ends with struct.error
        process, at = _process_at(body, at)
        processes.append(process)
    word = Word(votes, expected, quorate)
    rings, life = numbers
    return List((clock, station, index), node, fingerprint, rings, life, in_ring, word, tuple(processes))


def _process(process: Process) -> bytes:
    return _PROCESS.pack(process.pid, len(process.group)) + process.group


def _process_at(body: bytes, at: int) -> tuple[Process, int]:
    """The process that begins there, and where it ends. ValueError for a name out of bounds."""
    pid, length = _PROCESS.unpack_from(body, at)
    at += _PROCESS.size
    group = body[at : at + length]
    if not 1 <= length <= NAME_MAX or len(group) != length:
        raise ValueError("name of a process group")
    return Process(group, pid), at + length
