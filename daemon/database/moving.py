"""A copy goes from one site to another, in pieces, in a group of order op beside the database's own group.

The donor has frozen its copy at the place of the other site's WANT. It sends the state that belongs to the rows, then the rows,
as entries of the log or as pages that the other site lacks (``pages``), then the end. At most ``WINDOW`` pieces are under way,
and fewer where they take long; the other site acknowledges each.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
import time
from collections.abc import Callable, Iterator
from enum import IntEnum
from hashlib import sha256
from typing import Final, NamedTuple

import apsw

from ...proto.service.base import Place, Source
from ...proto.service.database.given import decode_given
from ...proto.service.database.machine import Given
from ...proto.service.database.messages import next_digest
from ...proto.service.database.rows import RowsDamaged, RowsFailed, Verdict
from .copy import CHUNK_BYTES, SPARE_BYTES, Entries, FileRows, Frozen, bases, install
from .pages import Incoming, Offer, ranges, wanted_of

WINDOW: Final = 8
WINDOW_MIN: Final = 2
LATE_S: Final = 0.02
"""A piece that is acknowledged later has waited behind others: fewer are under way then. What programs commit takes the same way,
and waits behind all of them."""
ACK_S: Final = 20.0
"""A site that acknowledges nothing for that long is gone."""
_HEAD: Final = struct.Struct("!BIIQIII")


class Kind(IntEnum):
    STATE = 1
    ENTRIES = 2
    PAGES = 3
    END = 4
    ACK = 5
    SUMS = 6
    """Of pages; its acknowledgement has the answer, which of them are wanted."""


class Piece(NamedTuple):
    """A message of the group of order op."""

    kind: Kind
    to: Source
    place: Place
    """Of the WANT that it answers."""
    number: int
    """From 0; of an acknowledgement, the piece's."""
    data: bytes = b""

    def encode(self) -> bytes:
        return _HEAD.pack(self.kind, *self.to, *self.place, self.number) + self.data

    @classmethod
    def decode(cls, data: bytes) -> Piece | None:
        """None: no piece."""
        try:
            kind, station, client, clock, source, index, number = _HEAD.unpack_from(data)
            return cls(Kind(kind), (station, client), (clock, source, index), number, data[_HEAD.size :])
        except (struct.error, ValueError):
            return None


class Step(NamedTuple):
    """What a donor does next: send a piece, and then wait."""

    piece: Piece | None
    """None: only wait."""
    until: int
    """The number of the piece that has to be acknowledged before the step after this one."""


def steps_of(frozen: Frozen, to: Source, place: Place, message_max: int) -> Iterator[Step]:
    """All of them, one after another, with messages of at most *message_max* bytes. ``frozen.answers`` has to have the answers of
    the acknowledgements that are waited for. Reads the disk."""
    size = min(CHUNK_BYTES, message_max - _HEAD.size)
    numbers = itertools.count()
    hashed = sha256()

    def step(kind: Kind, data: bytes = b"", until: int = -1) -> Step:
        number = next(numbers)
        return Step(Piece(kind, to, place, number, data), max(until, number - WINDOW + 1))

    for data in _cut(frozen.state, size):
        yield step(Kind.STATE, data)
    if frozen.goes_on:
        for piece in frozen.entries():
            hashed.update(piece)
            for data in _cut(piece, size):
                yield step(Kind.ENTRIES, data)
    else:
        for _ in frozen.copying(SPARE_BYTES):
            yield step(Kind.STATE)  # it still comes
        # The other site looks at a range while its next one is read here.
        offered, before = -1, b""
        for offer, data in ranges(frozen.copied, size, hashed):
            one = step(Kind.SUMS, offer.encode(), offered)
            yield one
            for cut in _cut(_wanted(frozen, offered, before), size):
                yield step(Kind.PAGES, cut)
            assert one.piece is not None
            offered, before = one.piece.number, data
        yield Step(None, offered)
        for cut in _cut(_wanted(frozen, offered, before), size):
            yield step(Kind.PAGES, cut)
    yield step(Kind.END, hashed.digest())


def _wanted(frozen: Frozen, offered: int, data: bytes) -> bytes:
    """Of a range, whose sums were in the piece of this number, what the other site has asked for."""
    return wanted_of(frozen.answers.pop(offered, b""), data)


def _cut(data: bytes, size: int) -> Iterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


class Sending:
    """One copy on its way to another site."""

    def __init__(self, frozen: Frozen, to: Source, place: Place, message_max: int, send: Callable[[bytes], None]) -> None:
        self.frozen, self.to, self.place, self.message_max = frozen, to, place, message_max
        self.sent_bytes = 0
        self._send = send
        self._acknowledged = -1
        self._heard = asyncio.Event()
        self.window = WINDOW_MIN
        """Pieces under way, from ``WINDOW_MIN`` to ``WINDOW``."""
        self._given: dict[int, float] = {}
        """When those with rows were given to zenjund, which are not acknowledged; time.monotonic."""
        self._reduced = -1
        """The last piece that was under way when the window was made smaller: it says nothing of the smaller one."""

    def on_ack(self, number: int, answer: bytes = b"") -> None:
        if answer:
            self.frozen.answers[number] = answer
        if (given := self._given.pop(number, None)) is not None:
            self._adapt(number, time.monotonic() - given)
        self._acknowledged = max(self._acknowledged, number)
        self._heard.set()

    def _adapt(self, number: int, took_s: float) -> None:
        if took_s <= LATE_S:
            self.window = min(WINDOW, self.window + 1)
        elif number > self._reduced:
            self.window = max(WINDOW_MIN, self.window // 2)
            self._reduced = max(self._given, default=number)

    async def run(self) -> bool:
        """Send everything; whether the other site has acknowledged it all. Raises what SQLite and the disk raise."""
        steps = steps_of(self.frozen, self.to, self.place, self.message_max)
        last = -1
        try:
            while (step := await asyncio.to_thread(next, steps, None)) is not None:
                if step.piece is not None:
                    last = step.piece.number
                    if step.piece.kind in (Kind.ENTRIES, Kind.PAGES):  # the others take work at the other site
                        self._given[last] = time.monotonic()
                    self._send(step.piece.encode())
                    self.sent_bytes += len(step.piece.data)
                if not await self._until(max(step.until, last - self.window + 1)):
                    return False
            return await self._until(last)
        finally:
            await asyncio.to_thread(self.frozen.close)

    async def _until(self, number: int) -> bool:
        while self._acknowledged < number:
            self._heard.clear()
            try:
                await asyncio.wait_for(self._heard.wait(), ACK_S)
            except TimeoutError:
                return False
        return True


class Receiving:
    """One copy that comes, as of the place of a WANT. Used in the thread of the applier."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.came_bytes = 0
        self.answer = b""
        """To the last piece, besides that it has come."""
        self._next = 0
        self._state = b""
        self._entries = Entries()
        self._incoming: Incoming | None = None

    def take(self, piece: Piece, rows: FileRows) -> tuple[FileRows, Given] | None:
        """One piece. At the end the copy, which is a new one if pages came, and what belongs to it. Raises RowsFailed: the disk
        has failed, or what came is not right."""
        if piece.number != self._next:
            raise RowsFailed(f"piece {piece.number} of the copy came in place of {self._next}")
        self._next += 1
        self.answer = b""
        self.came_bytes += len(piece.data)
        try:
            if piece.kind is Kind.STATE:
                self._state += piece.data
            elif piece.kind is Kind.ENTRIES:
                self._apply(piece.data, rows)
            elif piece.kind is Kind.SUMS:
                self._incoming = self._incoming or Incoming(rows.files, bases(rows))
                self.answer = self._incoming.offer(Offer.decode(piece.data))
            elif piece.kind is Kind.PAGES and self._incoming is not None:
                self._incoming.add(piece.data)
            elif piece.kind is Kind.END:
                given = decode_given(self._state)
                if self._entries.is_cut:
                    raise ValueError("the last entry is cut")
                if self._incoming is None:
                    rows.files.keep_rest().unlink(missing_ok=True)
                else:
                    rows = install(rows.files, self._incoming.finish(piece.data), rows.uuid(), type(rows))
                return rows, given
        except OSError as error:
            if self._incoming is not None:
                self._incoming.drop()
            raise RowsFailed(f"the copy that came cannot be used: {error}") from error
        except (ValueError, apsw.Error) as error:
            raise RowsFailed(f"the copy that came cannot be used: {error}") from error
        return None

    def _apply(self, data: bytes, rows: FileRows) -> None:
        for entry in self._entries.feed(data):
            last = rows.position()
            expected = next_digest(last.digest, last.version + 1, entry.txid, entry.body)
            if entry.position.version != last.version + 1 or entry.position.digest != expected:
                raise RowsFailed("the entries that came do not go on from the copy here")
            if rows.write(entry) is not Verdict.DONE:
                raise RowsDamaged(f"version {entry.position.version} does not apply to the copy here")

    @property
    def same_bytes(self) -> int:
        """Of pages that were here."""
        return self._incoming.same_bytes if self._incoming is not None else 0

    def abort(self) -> None:
        """What has come of pages stays for the next one."""
        if self._incoming is not None:
            self._incoming.close()
