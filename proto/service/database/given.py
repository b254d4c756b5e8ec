"""The state that a site gives besides the rows (``machine.Given``), as bytes.

Numbers in network byte order, counts before what they count. ``decode_given`` believes nothing: ValueError for anything that
``encode_given`` does not make.
"""

from __future__ import annotations

import struct
from typing import Final, TypeVar

from ..base import Source
from .agreement import Agreement
from .certify import Shared
from .machine import Given
from .messages import DIGEST_BYTES, HASH_BYTES, TXID_BYTES, Lock, Position, Txid, Write, decode, encode
from .scrub import Scrubbing
from .window import Window

_MessageT = TypeVar("_MessageT", Lock, Write)
_HEAD: Final = struct.Struct("!QIIQQI")
"""Place, epoch, version of the last change of the schema, SQLite's release."""
_SOURCE: Final = struct.Struct("!II")
_POSITION: Final = struct.Struct(f"!QQ{DIGEST_BYTES}s")
_WINDOW: Final = struct.Struct("!QIII")
_VERSION: Final = struct.Struct("!QI")
_WRITTEN: Final = struct.Struct("!Q")


def encode_given(given: Given) -> bytes:
    shared = given.shared
    out = [_HEAD.pack(*given.place, shared.epoch, shared.schema, shared.release)]
    out.append(_count(len(shared.active)))
    out += [_SOURCE.pack(*source) for source in sorted(shared.active)]
    out.append(_count(len(shared.synced)))
    out += [_SOURCE.pack(*source) + struct.pack("!Q", version) for source, version in sorted(shared.synced.items())]
    out.append(_positions(shared.check))
    out.append(struct.pack("!QI", shared.scrub.number, len(shared.scrub.sums)))
    for source, sums in sorted(shared.scrub.sums.items()):
        out.append(_SOURCE.pack(*source) + (b"\0" if sums is None else b"\1" + sums))
    for messages in (shared.locks, shared.waiting):
        out.append(_count(len(messages)))
        for source, message in messages:
            data = encode(message)
            out.append(_SOURCE.pack(*source) + _count(len(data)) + data)
    window = shared.window
    entries = window.entries()
    out.append(_WINDOW.pack(window.horizon, window.versions_max, window.keys_max, len(entries)))
    out += [_VERSION.pack(version, len(keys)) + b"".join(keys) for version, keys in entries]
    out.append(_agreement(shared.agreement))
    return b"".join(out)


def _agreement(agreement: Agreement) -> bytes:
    """Of mode unanimous; otherwise there is nothing in it."""
    out = [_WRITTEN.pack(agreement.written), _count(len(agreement.closing))]
    out += [txid.encode() for txid in sorted(agreement.closing)]
    out.append(_count(len(agreement.leaving)))
    out += [_SOURCE.pack(*source) for source in sorted(agreement.leaving)]
    out.append(_positions(agreement.grants))
    return b"".join(out)


def _positions(positions: dict[Source, Position | None]) -> bytes:
    out = [_count(len(positions))]
    for source, position in sorted(positions.items()):
        out.append(_SOURCE.pack(*source) + (b"\0" if position is None else b"\1" + _POSITION.pack(*position)))
    return b"".join(out)


def _count(number: int) -> bytes:
    return struct.pack("!I", number)


class _Reader:
    """A cursor in the bytes; every read is checked."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            raise ValueError("the state is cut")
        self.at += size
        return self.data[self.at - size : self.at]

    def unpack(self, layout: struct.Struct) -> tuple[int, ...]:
        return layout.unpack(self.take(layout.size))

    def count(self) -> int:
        return int.from_bytes(self.take(4), "big")

    def source(self) -> Source:
        station, client = self.unpack(_SOURCE)
        return station, client

    def position(self) -> Position | None:
        if not self.take(1)[0]:
            return None
        epoch, version, digest = _POSITION.unpack(self.take(_POSITION.size))
        return Position(epoch, version, digest)

    def positions(self) -> dict[Source, Position | None]:
        return {self.source(): self.position() for _ in range(self.count())}

    def agreement(self) -> Agreement:
        (written,) = self.unpack(_WRITTEN)
        closing = {Txid.decode(self.take(TXID_BYTES)) for _ in range(self.count())}
        leaving = {self.source() for _ in range(self.count())}
        return Agreement(written, closing, self.positions(), leaving)

    def messages(self, kind: type[_MessageT]) -> list[tuple[Source, _MessageT]]:
        found: list[tuple[Source, _MessageT]] = []
        for _ in range(self.count()):
            source, message = self.source(), decode(self.take(self.count()))
            if not isinstance(message, kind):
                raise ValueError("the state has another message")
            found.append((source, message))
        return found

    def window(self) -> Window:
        horizon, versions_max, keys_max, count = self.unpack(_WINDOW)
        window = Window(horizon, versions_max, keys_max)
        for _ in range(count):
            version, keys = self.unpack(_VERSION)
            data = self.take(keys * HASH_BYTES)
            window.add(version, [data[i : i + HASH_BYTES] for i in range(0, len(data), HASH_BYTES)])
        return window


def decode_given(data: bytes) -> Given:
    """Raises ValueError."""
    reader = _Reader(data)
    clock, station, index, epoch, schema, release = reader.unpack(_HEAD)
    active = {reader.source() for _ in range(reader.count())}
    synced = {reader.source(): int.from_bytes(reader.take(8), "big") for _ in range(reader.count())}
    check = reader.positions()
    scrub = Scrubbing(int.from_bytes(reader.take(8), "big"))
    scrub.sums = {reader.source(): reader.take(DIGEST_BYTES) if reader.take(1)[0] else None for _ in range(reader.count())}
    locks, waiting = reader.messages(Lock), reader.messages(Write)
    shared = Shared(epoch, active, reader.window(), schema, release, locks, waiting, synced, check, scrub)
    shared.agreement = reader.agreement()
    if reader.at != len(data):
        raise ValueError("the state has more bytes than it may")
    return Given((clock, station, index), shared)
