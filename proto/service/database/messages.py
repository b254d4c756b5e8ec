"""The messages of a database's group, and what a transaction consists of.

Binary, numbers in network byte order. ``decode`` takes exactly what ``encode`` makes; anything else is None at all sites alike.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum
from hashlib import blake2b
from typing import Final, NamedTuple, TypeAlias

DIGEST_BYTES: Final = 16
TXID_BYTES: Final = 16
HASH_BYTES: Final = 8
"""Size of the hash of a row or table that was read (``changeset.row_hash``)."""
READS_MAX: Final = 4096
BODY_MAX: Final = 64 << 20
"""Bytes of a transaction: its rows before and after, and its changes of the schema."""
FORMAT: Final = 1


class Txid(NamedTuple):
    """A transaction: the service that sends it, and its number there. Four numbers of 32 bits."""

    station: int
    incarnation: int
    start: int
    """Number of the service's start within the incarnation."""
    number: int

    def encode(self) -> bytes:
        return _TXID.pack(*self)

    @classmethod
    def decode(cls, data: bytes) -> Txid:
        """Raises ValueError."""
        try:
            return cls(*_TXID.unpack(data))
        except struct.error as error:
            raise ValueError("a transaction's id is 16 bytes") from error


_TXID: Final = struct.Struct("!4I")


class Position(NamedTuple):
    """Where a copy is in the history of its database. Compares like that history: epochs first."""

    epoch: int
    """Place's clock of the opening that the last entry belongs to; 0: before the first."""
    version: int
    digest: bytes


class Segment(IntEnum):
    """What a body has one after another."""

    CHANGESET = 1
    SQL = 2
    LEASE = 3
    """Ids for a table: how many, and its name."""
    UNCHECKED = 4
    """The first one, empty: foreign keys neither act nor are looked at in what follows, which changes the schema. All of them
    hold afterwards."""
    NUMBERED = 5
    """A changeset of inserted rows alone, and the body has nothing else: each site gives them other numbers as their keys, those
    above the highest one at its place (rule K8). The history has the changeset that comes of it."""


class Disk(IntEnum):
    """What a site has."""

    BLANK = 0
    COPY = 1
    UNABLE = 2
    """The site does not know what it has acknowledged before."""


class Write(NamedTuple):
    txid: Txid
    epoch: int
    snapshot: int
    """Version that it was made on."""
    reads: tuple[bytes, ...]
    """Hashes of rows and tables; empty without ``serializable``."""
    body: bytes


class Lock(NamedTuple):
    """No other transaction writes, from its turn to its end."""

    txid: Txid
    epoch: int


class Release(NamedTuple):
    txid: Txid


class Stand(NamedTuple):
    """What a site has, in a roll call."""

    roll: int
    """Clock of the place where the roll call began."""
    active: bool
    disk: Disk
    uuid: bytes
    """The database's; a blank site's is a proposal."""
    position: Position
    format: int
    release: int
    """SQLite's version number, such as 3054001."""


class Open(NamedTuple):
    """The database opens with what the present sites have, if they suffice."""

    roll: int


class Force(NamedTuple):
    """An operator opens the database with what the present sites have, whatever may be lost."""

    roll: int


class Active(NamedTuple):
    """The sender has the state at this position, and applies later messages."""

    position: Position
    release: int
    """SQLite's version number there."""


class Leave(NamedTuple):
    """The sender applies no further messages of this epoch."""

    epoch: int


class Synced(NamedTuple):
    """The sender's disk has everything up to this version."""

    epoch: int
    version: int


class Want(NamedTuple):
    """The sender wants the state as of this message's place."""

    position: Position


class Barrier(NamedTuple):
    number: int


class Check(NamedTuple):
    epoch: int


class Answered(NamedTuple):
    """The sender's position at the CHECK."""

    position: Position


class Part(NamedTuple):
    """A part of an encoded ``Write`` that is too long for one message."""

    txid: Txid
    number: int
    """From 0."""
    is_last: bool
    data: bytes


class Scrub(NamedTuple):
    """All active sites sum their rows at this place, and compare the sums."""

    epoch: int
    number: int


class Summed(NamedTuple):
    """The sum of the sender's rows at the SCRUB of this number."""

    number: int
    sums: bytes


class Close(NamedTuple):
    """Mode unanimous: the sender has something to commit, and asks for the lock if its transaction has not got it yet. While the
    transaction is the lock's first, nobody serves reads."""

    txid: Txid
    epoch: int


class Grant(NamedTuple):
    """Mode unanimous: the sender serves no reads while this transaction has the lock. position: of its copy."""

    txid: Txid
    position: Position


Message: TypeAlias = (
    Write
    | Lock
    | Release
    | Stand
    | Open
    | Active
    | Leave
    | Synced
    | Want
    | Barrier
    | Check
    | Answered
    | Part
    | Scrub
    | Summed
    | Force
    | Close
    | Grant
)
_KINDS: Final[tuple[type[Message], ...]] = (
    Write,
    Lock,
    Release,
    Stand,
    Open,
    Active,
    Leave,
    Synced,
    Want,
    Barrier,
    Check,
    Answered,
    Part,
    Scrub,
    Summed,
    Force,
    Close,
    Grant,
)
"""A message's kind is its number here, from 1."""
_COMMON: Final = frozenset(bytes([_KINDS.index(kind) + 1]) for kind in (Write, Synced))
_WRITE: Final = struct.Struct("!16sQQH")
_WRITE_FIELDS: Final = struct.Struct("!4IQQH")
_WRITE_KIND: Final = bytes([_KINDS.index(Write) + 1])
_PART: Final = struct.Struct("!16sIB")
PART_HEAD_BYTES: Final = 1 + _PART.size
"""Of a ``Part``, besides its data."""
_POSITION: Final = struct.Struct("!QQ16s")
_STAND: Final = struct.Struct("!QBB16sQQ16sHI")
_ACTIVE: Final = struct.Struct("!QQ16sI")
_PLAIN: Final[dict[type[Message], str]] = {
    Open: "!Q",
    Force: "!Q",
    Leave: "!Q",
    Synced: "!QQ",
    Barrier: "!Q",
    Check: "!Q",
    Scrub: "!QQ",
    Summed: "!Q16s",
}


def encode(message: Message) -> bytes:
    kind = bytes([_KINDS.index(type(message)) + 1])
    if isinstance(message, Write):
        return pack_write(message.txid.encode(), message.epoch, message.snapshot, b"".join(message.reads), message.body)
    if isinstance(message, Part):
        return kind + _PART.pack(message.txid.encode(), message.number, message.is_last) + message.data
    if isinstance(message, Stand):
        p = message.position
        known = (message.roll, message.active, message.disk, message.uuid, *p, message.format, message.release)
        return kind + _STAND.pack(*known)
    if isinstance(message, Active):
        return kind + _ACTIVE.pack(*message.position, message.release)
    if isinstance(message, Want | Answered):
        return kind + _POSITION.pack(*message.position)
    if isinstance(message, Grant):
        return kind + message.txid.encode() + _POSITION.pack(*message.position)
    if isinstance(message, Lock | Close):
        return kind + message.txid.encode() + struct.pack("!Q", message.epoch)
    if isinstance(message, Release):
        return kind + message.txid.encode()
    return kind + struct.pack(_PLAIN[type(message)], *message)


def decode(data: bytes) -> Message | None:
    """The message of these bytes; None: they are no message."""
    if data[:1] == _WRITE_KIND:
        return _decode_write(data)
    if not data or not 1 <= data[0] <= len(_KINDS):
        return None
    kind, rest = _KINDS[data[0] - 1], data[1:]
    try:
        if kind is Part:
            txid, number, is_last = _PART.unpack_from(rest)
            return Part(Txid.decode(txid), number, bool(is_last), rest[_PART.size :]) if is_last <= 1 else None
        if kind is Stand:
            roll, active, disk, uuid, epoch, version, digest, format_, release = _STAND.unpack(rest)
            if active > 1:
                return None
            return Stand(roll, bool(active), Disk(disk), uuid, Position(epoch, version, digest), format_, release)
        if kind is Active:
            *position, release = _ACTIVE.unpack(rest)
            return Active(Position(*position), release)
        if kind in (Want, Answered):
            return kind(Position(*_POSITION.unpack(rest)))
        if kind in (Lock, Close):
            *txid, epoch = struct.unpack("!4IQ", rest)
            return kind(Txid(*txid), epoch)
        if kind is Grant:
            return Grant(Txid.decode(rest[: _TXID.size]), Position(*_POSITION.unpack(rest[_TXID.size :])))
        if kind is Release:
            return Release(Txid(*_TXID.unpack(rest)))
        return kind(*struct.unpack(_PLAIN[kind], rest))
    except (struct.error, ValueError):
        return None


def pack_write(txid: bytes, epoch: int, snapshot: int, reads: bytes, body: bytes) -> bytes:
    """A ``Write``, encoded. reads: the hashes one after another. Raises ValueError."""
    if len(reads) > READS_MAX * HASH_BYTES:
        raise ValueError(f"more than {READS_MAX} rows and tables read")
    return _WRITE_KIND + _WRITE.pack(txid, epoch, snapshot, len(reads) // HASH_BYTES) + reads + body


def is_write(data: bytes) -> bool:
    """Whether ``decode`` makes a ``Write`` of it."""
    if data[:1] != _WRITE_KIND or len(data) < 1 + _WRITE.size:
        return False
    count = int.from_bytes(data[_WRITE.size - 1 : _WRITE.size + 1], "big")
    return count <= READS_MAX and 1 + _WRITE.size + count * HASH_BYTES <= len(data)


def txid_of(data: bytes) -> Txid:
    """Of an encoded ``Write``."""
    return Txid._make(_TXID.unpack_from(data, 1))


def is_common(data: bytes) -> bool:
    """What most messages are: a WRITE or a SYNCED."""
    return data[:1] in _COMMON


def _decode_write(data: bytes) -> Write | None:
    if not is_write(data):
        return None
    *txid, epoch, snapshot, count = _WRITE_FIELDS.unpack_from(data, 1)
    first = 1 + _WRITE.size
    end = first + count * HASH_BYTES
    reads = tuple([data[at : at + HASH_BYTES] for at in range(first, end, HASH_BYTES)]) if count else ()
    return Write(Txid._make(txid), epoch, snapshot, reads, data[end:])


# ---- bodies

_SEGMENTS: Final = {int(segment): segment for segment in Segment}
_CHANGESET: Final = bytes([Segment.CHANGESET])
_NUMBERED: Final = bytes([Segment.NUMBERED])
_UNCHECKED: Final = bytes([Segment.UNCHECKED, 0, 0, 0, 0])
SEGMENT_HEAD_BYTES: Final = 5
"""Before the data of a segment: its kind, and how many they are."""


def encode_body(segments: Iterable[tuple[Segment, bytes]]) -> bytes:
    return b"".join(struct.pack("!BI", kind, len(data)) + data for kind, data in segments)


def decode_body(body: bytes) -> list[tuple[Segment, bytes]]:
    """Raises ValueError for what is no sequence of segments."""
    found = []
    at = 0
    while at < len(body):
        if at + 5 > len(body):
            raise ValueError("body is cut")
        kind, size = struct.unpack_from("!BI", body, at)
        if size > len(body) - at - 5:
            raise ValueError("body is cut")
        found.append((_SEGMENTS.get(kind) or Segment(kind), body[at + 5 : at + 5 + size]))
        at += 5 + size
    return found


def is_unchecked(body: bytes) -> bool:
    """It begins with UNCHECKED."""
    return body.startswith(_UNCHECKED)


def is_one_changeset(body: bytes) -> bool:
    """It is a changeset and nothing else."""
    return body[:1] == _CHANGESET and _is_one(body)


def is_numbered(body: bytes) -> bool:
    """It is a NUMBERED and nothing else."""
    return body[:1] == _NUMBERED and _is_one(body)


def _is_one(body: bytes) -> bool:
    return len(body) == SEGMENT_HEAD_BYTES + int.from_bytes(body[1:SEGMENT_HEAD_BYTES], "big")


# ---- the digest of a history


def first_digest(uuid: bytes) -> bytes:
    """The digest of version 0."""
    return blake2b(uuid, digest_size=DIGEST_BYTES).digest()


def next_digest(digest: bytes, version: int, txid: Txid, body: bytes) -> bytes:
    """The digest of this version, computed from that of the version before."""
    content = blake2b(body, digest_size=DIGEST_BYTES).digest()
    return blake2b(digest + version.to_bytes(8, "big") + txid.encode() + content, digest_size=DIGEST_BYTES).digest()


def epoch_txid(epoch: int) -> Txid:
    """The id of the entry with which an epoch begins; no service has station 0."""
    return Txid(0, 0, epoch >> 32, epoch & 0xFFFFFFFF)
