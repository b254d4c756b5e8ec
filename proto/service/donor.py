"""One transfer at a donor: rules X4 and X6 of state transfer. It answers LIST and FETCH and sends nothing by itself."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from ..errors import UsageError
from ..timers import NEVER
from .stateapi import Snapshot
from .transferwire import (
    CHUNK_MAX,
    DIGEST_MAX,
    ENTRY_BYTES_MAX,
    KEY_MAX,
    LISTING_HEAD,
    Chunk,
    Entry,
    Fetch,
    Have,
    List,
    Listing,
    Place,
    Who,
    digest_of,
)

LISTED_BYTES: Final = 1024 * 1024
"""A LISTING stops when its chunks hold this number of bytes: they are digested in the program's own thread, a millisecond each
MiB."""
HELD_BYTES: Final = 2 * CHUNK_MAX
"""Chunks kept in memory for each transfer."""
PARTS_MAX: Final = 32
"""Parts that one FETCH may ask for."""


class Donation:
    """A snapshot being read by one joiner.

    place: the snapshot contains the group's messages up to here: the position of the joiner's ASK.
    """

    def __init__(self, joiner: Who, number: int, place: Place, have: Have | None, now: int) -> None:
        self.joiner = joiner
        self.number = number
        self.place = place
        self.have = have
        self.read_at = now
        """When the joiner last asked for something; monotonic nanoseconds."""
        self.snapshot: Snapshot | None = None
        self.digest: bytes | None = None
        """The snapshot's, once it is known."""
        self.sign_at = NEVER
        """When PREPARING is due, while the digest is computed."""
        self._chunks: Iterator[tuple[bytes, bytes]] = iter(())
        self._held: OrderedDict[bytes, bytes] = OrderedDict()
        self._held_bytes = 0
        self._listing: Listing | None = None
        self._next = 0

    def open(self, snapshot: Snapshot) -> None:
        """The program has given its snapshot; ``complete`` follows when its digest is known."""
        self.snapshot = snapshot
        self._chunks = iter(snapshot.chunks)

    def complete(self, digest: bytes | None) -> None:
        """The snapshot's digest is known. Raises UsageError if it cannot be used."""
        if digest is not None and not 1 <= len(digest) <= DIGEST_MAX:
            raise UsageError(f"the digest of a snapshot is 1 to {DIGEST_MAX} bytes, not {len(digest)}")
        self.digest = digest
        self.sign_at = NEVER

    @property
    def held_bytes(self) -> int:
        """Bytes of chunks kept in memory."""
        return self._held_bytes

    @property
    def readable(self) -> bool:
        return self.snapshot is not None and self.snapshot.read is not None

    def close(self) -> None:
        """The snapshot is not needed any more. Calling it twice is harmless."""
        snapshot, self.snapshot = self.snapshot, None
        self.sign_at = NEVER
        self._chunks = iter(())
        self._held.clear()
        self._held_bytes = 0
        if snapshot is not None and snapshot.close is not None:
            snapshot.close()

    def answer(self, m: List, message_max: int) -> Listing | None:
        """The answer to a LIST: the next entries, or again the present ones. None: it is neither.

        Raises whatever the program's chunks raise, and UsageError for a chunk out of bounds.
        """
        if self._listing is not None and m.start == self._listing.start:
            return self._listing
        if m.start != self._next:
            return None
        if not self.readable:
            self._held.clear()
            self._held_bytes = 0
        count_max = min(m.limit, (message_max - LISTING_HEAD) // ENTRY_BYTES_MAX)
        entries: list[Entry] = []
        size, last = 0, False
        while len(entries) < count_max and size < LISTED_BYTES:
            item = next(self._chunks, None)
            if item is None:
                last = True
                break
            key, data = _checked(*item)
            entries.append(Entry(key, len(data), digest_of(data)))
            size += len(data)
            self._hold(key, data)
        self._listing = Listing(self.number, m.start, last, tuple(entries))
        self._next = m.start + len(entries)
        return self._listing

    def fetch(self, m: Fetch) -> list[Chunk] | None:
        """The answers to a FETCH. None: a part of it does not exist. Raises whatever the program's ``read`` raises."""
        if sum(count for _, _, count in m.wanted) > PARTS_MAX:
            return None
        out: list[Chunk] = []
        for key, first, count in m.wanted:
            data = self._data(key)
            if data is None:
                return None
            parts = max(1, -(-len(data) // m.part_size))
            if not 1 <= count <= parts - first:
                return None
            out += [
                Chunk(self.number, key, part, data[part * m.part_size : (part + 1) * m.part_size])
                for part in range(first, first + count)
            ]
        return out

    def _data(self, key: bytes) -> bytes | None:
        data = self._held.get(key)
        if data is None and self.snapshot is not None and self.snapshot.read is not None:
            try:
                data = _checked(key, self.snapshot.read(key))[1]
            except KeyError:
                return None
            self._hold(key, data)
        return data

    def _hold(self, key: bytes, data: bytes) -> None:
        self._held_bytes += len(data) - len(self._held.pop(key, b""))
        self._held[key] = data
        # With ``read`` anything can be had again; without, a listing's chunks are kept until the next one.
        while self.readable and self._held_bytes > HELD_BYTES:
            self._held_bytes -= len(self._held.popitem(last=False)[1])


def _checked(key: bytes, data: bytes) -> tuple[bytes, bytes]:
    if not 1 <= len(key) <= KEY_MAX:
        raise UsageError(f"the key of a chunk is 1 to {KEY_MAX} bytes, not {len(key)}")
    if len(data) > CHUNK_MAX:
        raise UsageError(f"chunk {key!r} has {len(data)} bytes, more than {CHUNK_MAX}")
    return bytes(key), bytes(data)
