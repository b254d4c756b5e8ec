"""Messages of state transfer: encoding and decoding.

All integers are unsigned and big-endian. Every message begins with ``MAGIC``, the version and its kind. ``decode`` is total: it
returns None for anything that ``encode`` did not produce, so that the caller can drop and count it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum, IntFlag
from functools import lru_cache
from hashlib import blake2b
from typing import Final, NamedTuple, TypeAlias

from ..errors import UsageError

MAGIC: Final = 0x5A
VERSION: Final = 1
KEY_MAX: Final = 64
"""Bytes of a chunk's key; at least 1."""
CHUNK_MAX: Final = 4 * 1024 * 1024
"""Bytes of a chunk's data."""
PART_MAX: Final = 48 * 1024
"""Bytes of a chunk's data in one message."""
DIGEST_MAX: Final = 64
"""Bytes of a state's digest; 0 bytes: not known."""
CHUNK_DIGEST_SIZE: Final = 16
HAVE_MAX: Final = 1024
"""Maximum size, bytes, of a program's description of its own state for a delta."""
REASON_MAX: Final = 200
DONORS_MAX: Final = 3
MESSAGE_MIN: Final = 4096
"""The smallest ``message_max`` of a cluster that state transfer works with: a LISTING, an ASK and a FETCH fit into it."""
UNKNOWN: Final = -1
"""Number of chunks or bytes that a donor does not know beforehand."""

Place: TypeAlias = tuple[int, int, int]
"""(clock, station, index): position in the total order."""
Who: TypeAlias = tuple[int, int]
"""(station, client): a member."""

NOWHERE: Final[Place] = (0, 0, 0)
"""Before every position."""


class Kind(IntEnum):
    """First field after the version."""

    ROSTER = 1
    HAVE = 2
    ASK = 3
    OFFER = 4
    GONE = 5
    LIST = 6
    FETCH = 7
    END = 8
    ACTIVE = 9
    FAILED = 10
    START = 11
    LISTING = 12
    CHUNK = 13
    PREPARING = 14


class Have(NamedTuple):
    """What a program's own state is: the basis of a delta, and the vote for who starts.

    place:  the state contains the group's messages up to here.
    digest: of the state, at most 64 bytes; empty: not known.
    detail: at most 1 KiB for the donor's ``snapshot``; other members do not read it.
    """

    place: Place
    digest: bytes = b""
    detail: bytes = b""


class Open(NamedTuple):
    """A transfer under way: ``joiner`` reads from ``donors`` until ENDs, a new ASK, ACTIVE, FAILED or a view."""

    joiner: Who
    number: int
    donors: tuple[Who, ...]


class Roster(NamedTuple):
    """Answers a view with newcomers: the active members and the transfers under way at that view."""

    view: Place
    active: tuple[Who, ...]
    transfers: tuple[Open, ...]


class Holding(NamedTuple):
    """HAVE: what the sender's state is, at ``view``, at which no member is active. have None: blank. damaged: the sender's state
    is wrong, and the initial one is lost to it: it can neither start nor count as blank."""

    view: Place
    have: Have | None
    damaged: bool


class Ask(NamedTuple):
    """A joiner wants the state at this message's own position."""

    number: int
    donors: tuple[Who, ...]
    have: Have | None


class OfferMessage(NamedTuple):
    """A donor's snapshot is ready. readable: any chunk can be fetched at any time, and so also those that another donor
    listed."""

    joiner: Who
    number: int
    delta: bool
    readable: bool
    chunks: int
    size: int
    digest: bytes


class Gone(NamedTuple):
    """A donor has no snapshot (any more)."""

    joiner: Who
    number: int
    reason: str


class Preparing(NamedTuple):
    """A donor's snapshot is there, its digest is being computed: the OFFER takes longer."""

    joiner: Who
    number: int


class List(NamedTuple):
    """The joiner asks ``donor`` for up to ``limit`` entries from entry number ``start`` on."""

    number: int
    donor: Who
    start: int
    limit: int


class Fetch(NamedTuple):
    """The joiner asks ``donor`` for parts of chunks: (key, first part, number of parts)."""

    number: int
    donor: Who
    part_size: int
    wanted: tuple[tuple[bytes, int, int], ...]


class End(NamedTuple):
    """The joiner needs nothing more of these donors."""

    number: int
    donors: tuple[Who, ...]


class Active(NamedTuple):
    """The sender's state is complete from this message's position on. number: of the ASK that it comes from."""

    number: int


class Failed(NamedTuple):
    """The sender's state is wrong from this message's position on."""

    reason: str


class Start(NamedTuple):
    """These members' states are the group's state from here on. Valid at ``view`` only, and if no member is active."""

    view: Place
    who: tuple[Who, ...]


class Entry(NamedTuple):
    """One chunk of a listing."""

    key: bytes
    size: int
    digest: bytes


class Listing(NamedTuple):
    """Answer to LIST. last: the state has no further entries."""

    number: int
    start: int
    last: bool
    entries: tuple[Entry, ...]


class Chunk(NamedTuple):
    """Answer to FETCH: one part."""

    number: int
    key: bytes
    part: int
    data: bytes


Control: TypeAlias = Roster | Holding | Ask | OfferMessage | Gone | List | Fetch | End | Active | Failed | Start | Preparing
"""What travels in the companion group, in the total order."""
Data: TypeAlias = Listing | Chunk
"""What travels to one joiner."""


class _Flag(IntFlag):
    KNOWN = 1  # HAVE, ASK: a Have follows
    DAMAGED = 2  # HAVE
    DELTA = 1  # OFFER
    READABLE = 2  # OFFER
    LAST = 1  # LISTING


_HEAD: Final = struct.Struct(">BBB")
_WHO: Final = struct.Struct(">HH")
_PLACE: Final = struct.Struct(">QHH")
_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_NUMBER: Final = struct.Struct(">Q")
_OFFER: Final = struct.Struct(">Bqq")
_WANTED: Final = struct.Struct(">IH")
_ENTRY: Final = struct.Struct(f">I{CHUNK_DIGEST_SIZE}s")
ENTRY_BYTES_MAX: Final = 1 + KEY_MAX + _ENTRY.size
WANTED_BYTES_MAX: Final = 1 + KEY_MAX + _WANTED.size
LISTING_HEAD: Final = _HEAD.size + _NUMBER.size + _U32.size + 1 + _U16.size


def digest_of(data: bytes) -> bytes:
    """Digest of a chunk's data (BLAKE2b-128)."""
    return blake2b(data, digest_size=CHUNK_DIGEST_SIZE).digest()


@lru_cache(8192)
def companion_of(group: str) -> str:
    """Name of the group that a group's state transfer is agreed on in."""
    return f"zenjun.state.{blake2b(group.encode(), digest_size=6).hexdigest()}"


def mailbox_of(group: str, joiner: Who) -> str:
    """Name of the group that one joiner gets chunks by."""
    return f"{companion_of(group)}.{joiner[0]}.{joiner[1]}"


# ---- encode


def _short(data: bytes) -> bytes:
    return bytes([len(data)]) + data


def _whos(members: Iterable[Who]) -> bytes:
    packed = [_WHO.pack(*who) for who in members]
    return _U16.pack(len(packed)) + b"".join(packed)


def _have(have: Have | None, detail: bool) -> bytes:
    if have is None:
        return b""
    if len(have.digest) > DIGEST_MAX or len(have.detail) > HAVE_MAX:
        raise UsageError(f"a state's digest is at most {DIGEST_MAX} bytes, the detail for a delta at most {HAVE_MAX}")
    extra = have.detail if detail else b""
    return _PLACE.pack(*have.place) + _short(have.digest) + _U16.pack(len(extra)) + extra


def _text(reason: str) -> bytes:
    return _short(reason.encode("utf-8", "replace")[:REASON_MAX].decode("utf-8", "ignore").encode())


def _encode_holding(m: Holding) -> bytes:
    flags = (_Flag.KNOWN if m.have else 0) | (_Flag.DAMAGED if m.damaged else 0)
    return _PLACE.pack(*m.view) + bytes([flags]) + _have(m.have, False)


def _encode_offer(m: OfferMessage) -> bytes:
    flags = (_Flag.DELTA if m.delta else 0) | (_Flag.READABLE if m.readable else 0)
    return _WHO.pack(*m.joiner) + _NUMBER.pack(m.number) + _OFFER.pack(flags, m.chunks, m.size) + _short(m.digest)


def _encode_roster(m: Roster) -> bytes:
    transfers = [_WHO.pack(*t.joiner) + _NUMBER.pack(t.number) + _whos(t.donors) for t in m.transfers]
    return _PLACE.pack(*m.view) + _whos(m.active) + _U16.pack(len(transfers)) + b"".join(transfers)


def _encode_fetch(m: Fetch) -> bytes:
    wanted = [_short(key) + _WANTED.pack(first, count) for key, first, count in m.wanted]
    return _NUMBER.pack(m.number) + _WHO.pack(*m.donor) + _U32.pack(m.part_size) + _U16.pack(len(wanted)) + b"".join(wanted)


def _encode_listing(m: Listing) -> bytes:
    entries = [_short(e.key) + _ENTRY.pack(e.size, e.digest) for e in m.entries]
    head = _NUMBER.pack(m.number) + _U32.pack(m.start) + bytes([_Flag.LAST if m.last else 0])
    return head + _U16.pack(len(entries)) + b"".join(entries)


def encode(m: Control | Data) -> bytes:
    """The message as bytes. Raises UsageError if a digest or a detail is too long."""
    kind, body = _encode(m)
    return _HEAD.pack(MAGIC, VERSION, kind) + body


def _encode(m: Control | Data) -> tuple[Kind, bytes]:
    match m:
        case Chunk():
            return Kind.CHUNK, _NUMBER.pack(m.number) + _short(m.key) + _U32.pack(m.part) + m.data
        case Listing():
            return Kind.LISTING, _encode_listing(m)
        case Fetch():
            return Kind.FETCH, _encode_fetch(m)
        case List():
            return Kind.LIST, _NUMBER.pack(m.number) + _WHO.pack(*m.donor) + _U32.pack(m.start) + _U16.pack(m.limit)
        case Roster():
            return Kind.ROSTER, _encode_roster(m)
        case Holding():
            return Kind.HAVE, _encode_holding(m)
        case Ask():
            flags = bytes([_Flag.KNOWN if m.have else 0])
            return Kind.ASK, _NUMBER.pack(m.number) + _whos(m.donors) + flags + _have(m.have, True)
        case OfferMessage():
            return Kind.OFFER, _encode_offer(m)
        case Gone():
            return Kind.GONE, _WHO.pack(*m.joiner) + _NUMBER.pack(m.number) + _text(m.reason)
        case Preparing():
            return Kind.PREPARING, _WHO.pack(*m.joiner) + _NUMBER.pack(m.number)
        case End():
            return Kind.END, _NUMBER.pack(m.number) + _whos(m.donors)
        case Active():
            return Kind.ACTIVE, _NUMBER.pack(m.number)
        case Failed():
            return Kind.FAILED, _text(m.reason)
        case Start():
            return Kind.START, _PLACE.pack(*m.view) + _whos(m.who)


# ---- decode


class _Malformed(Exception):
    """The bytes are no message of this protocol."""


class _Reader:
    """A position in the bytes of a message; every read is checked against what is left."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        if len(self._data) - self._at < size:
            raise _Malformed
        self._at += size
        return self._data[self._at - size : self._at]

    def rest(self) -> bytes:
        return self.take(len(self._data) - self._at)

    def end(self) -> None:
        if self._at != len(self._data):
            raise _Malformed

    def u8(self, limit: int = 255) -> int:
        value = self.take(1)[0]
        if value > limit:
            raise _Malformed
        return value

    def u16(self) -> int:
        return int(_U16.unpack(self.take(2))[0])

    def u32(self) -> int:
        return int(_U32.unpack(self.take(4))[0])

    def number(self) -> int:
        return int(_NUMBER.unpack(self.take(8))[0])

    def who(self) -> Who:
        station, client = _WHO.unpack(self.take(_WHO.size))
        return station, client

    def place(self) -> Place:
        clock, station, index = _PLACE.unpack(self.take(_PLACE.size))
        return clock, station, index

    def short(self, limit: int) -> bytes:
        return self.take(self.u8(limit))

    def key(self) -> bytes:
        key = self.short(KEY_MAX)
        if not key:
            raise _Malformed
        return key

    def whos(self) -> tuple[Who, ...]:
        members = tuple(self.who() for _ in range(self.u16()))
        if len(set(members)) != len(members):
            raise _Malformed
        return members

    def text(self) -> str:
        try:
            return self.short(REASON_MAX).decode()
        except UnicodeDecodeError:
            raise _Malformed from None

    def have(self, known: int) -> Have | None:
        if not known:
            return None
        place, digest = self.place(), self.short(DIGEST_MAX)
        size = self.u16()
        if size > HAVE_MAX:
            raise _Malformed
        return Have(place, digest, self.take(size))


def decode(data: bytes) -> Control | Data | None:
    """The message in ``data``; None for anything else, another version included."""
    reader = _Reader(data)
    try:
        magic, version, kind = _HEAD.unpack(reader.take(_HEAD.size))
        if magic != MAGIC or version != VERSION:
            return None
        message = _decode(kind, reader)
        reader.end()
    except _Malformed:
        return None
    return message


def _decode(kind: int, r: _Reader) -> Control | Data:
    match kind:
        case Kind.CHUNK:
            return Chunk(r.number(), r.key(), r.u32(), _bounded(r.rest(), PART_MAX))
        case Kind.LISTING:
            return _decode_listing(r)
        case Kind.FETCH:
            return _decode_fetch(r)
        case Kind.PREPARING:
            return Preparing(r.who(), r.number())
        case Kind.LIST:
            return List(r.number(), r.who(), r.u32(), r.u16())
        case Kind.ROSTER:
            return _decode_roster(r)
        case Kind.HAVE:
            view, flags = r.place(), r.u8(3)
            have = r.have(flags & _Flag.KNOWN)
            return Holding(view, have, bool(flags & _Flag.DAMAGED))
        case Kind.ASK:
            number, donors = r.number(), r.whos()
            if not 1 <= len(donors) <= DONORS_MAX:
                raise _Malformed
            return Ask(number, donors, r.have(r.u8(1)))
        case Kind.OFFER:
            return _decode_offer(r)
        case Kind.GONE:
            return Gone(r.who(), r.number(), r.text())
        case Kind.END:
            return End(r.number(), r.whos())
        case Kind.ACTIVE:
            return Active(r.number())
        case Kind.FAILED:
            return Failed(r.text())
        case Kind.START:
            return Start(r.place(), r.whos())
    raise _Malformed


def _bounded(data: bytes, limit: int) -> bytes:
    if len(data) > limit:
        raise _Malformed
    return data


def _decode_roster(r: _Reader) -> Roster:
    view, active = r.place(), r.whos()
    transfers = tuple(Open(r.who(), r.number(), r.whos()) for _ in range(r.u16()))
    return Roster(view, active, transfers)


def _decode_offer(r: _Reader) -> OfferMessage:
    joiner, number = r.who(), r.number()
    flags, chunks, size = _OFFER.unpack(r.take(_OFFER.size))
    if flags > 3 or chunks < UNKNOWN or size < UNKNOWN:
        raise _Malformed
    return OfferMessage(
        joiner, number, bool(flags & _Flag.DELTA), bool(flags & _Flag.READABLE), chunks, size, r.short(DIGEST_MAX)
    )


def _decode_fetch(r: _Reader) -> Fetch:
    number, donor, part_size = r.number(), r.who(), r.u32()
    wanted = []
    for _ in range(r.u16()):
        key = r.key()
        first, count = _WANTED.unpack(r.take(_WANTED.size))
        wanted.append((key, first, count))
    if not 1 <= part_size <= PART_MAX:
        raise _Malformed
    return Fetch(number, donor, part_size, tuple(wanted))


def _decode_listing(r: _Reader) -> Listing:
    number, start, last = r.number(), r.u32(), r.u8(1)
    entries = []
    for _ in range(r.u16()):
        key = r.key()
        size, digest = _ENTRY.unpack(r.take(_ENTRY.size))
        if size > CHUNK_MAX:
            raise _Malformed
        entries.append(Entry(key, size, digest))
    return Listing(number, start, bool(last), tuple(entries))
