"""A file that comes from another site, of which only the blocks come that are not here already.

The donor sends a sum of each block of 4096 bytes, a page of SQLite, range by range. The site that gets the file looks for these
blocks at the same places of the files that it has: its former copy, a damaged one, what came of a transfer that broke off. It
answers with the blocks that it lacks. While these come, the sums of the next range are on their way, so that neither end waits
for the other. At the end a digest of the whole file is compared, so that an error in this costs a transfer and nothing else.
"""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from . import vfs
from .files import Files
from .vfs import SUM_BYTES

if TYPE_CHECKING:
    import hashlib

BLOCK_BYTES: Final = 4096
RANGE_BLOCKS: Final = 2048
"""Blocks whose sums are in one message: 8 MiB of the file."""
RANGES_MAX: Final = 2
"""Ranges under way, which is what both ends have in memory."""
_HEAD: Final = struct.Struct("!QQQ")

Hash: TypeAlias = "hashlib._Hash"
Read: TypeAlias = Callable[[int, int], bytes]
"""Reads (offset, size) of a file that is here; fewer bytes at its end."""


class Offer(NamedTuple):
    """Sums of the blocks of a range."""

    size: int
    """Of the file, in bytes."""
    first: int
    """Number of the first block, from 0."""
    seed: int
    """Of the sums."""
    sums: bytes
    """``SUM_BYTES`` for each block."""

    @property
    def blocks(self) -> int:
        """How many there are."""
        return len(self.sums) // SUM_BYTES

    def encode(self) -> bytes:
        return _HEAD.pack(self.size, self.first, self.seed) + self.sums

    @classmethod
    def decode(cls, data: bytes) -> Offer:
        """Raises ValueError."""
        if len(data) < _HEAD.size or (len(data) - _HEAD.size) % SUM_BYTES:
            raise ValueError("sums of pages are cut")
        size, first, seed = _HEAD.unpack_from(data)
        offer = cls(size, first, seed, data[_HEAD.size :])
        if offer.blocks > RANGE_BLOCKS or (offer.first + offer.blocks) * BLOCK_BYTES >= offer.size + BLOCK_BYTES:
            raise ValueError("sums of pages that the file does not have")
        return offer


def sums_of(data: bytes, seed: int) -> bytes:
    """Of all blocks, one after another."""
    return vfs.block_sums(data, BLOCK_BYTES, seed)


def is_wanted(answer: bytes, number: int) -> bool:
    """Whether the answer to an offer has the bit of this block of the range; one that is too short wants the rest."""
    return number // 8 >= len(answer) or bool(answer[number // 8] >> (number % 8) & 1)


def wanted_of(answer: bytes, data: bytes) -> bytes:
    """The blocks of a range that the answer wants, one after another."""
    view = memoryview(data)
    starts = range(0, len(data), BLOCK_BYTES)
    return b"".join([view[at : at + BLOCK_BYTES] for number, at in enumerate(starts) if is_wanted(answer, number)])


def ranges(path: Path, message_max: int, hashed: Hash) -> Iterator[tuple[Offer, bytes]]:
    """The ranges of a file, with what they have. message_max: bytes of an encoded offer. hashed: gets all of the file."""
    number = max(1, min(RANGE_BLOCKS, (message_max - _HEAD.size) // SUM_BYTES))
    size, seed = path.stat().st_size, int.from_bytes(os.urandom(8), "big")
    with path.open("rb") as file:
        for first in range(0, -(-size // BLOCK_BYTES), number):
            data = file.read(number * BLOCK_BYTES)
            hashed.update(data)
            yield Offer(size, first, seed, sums_of(data, seed)), data


class _Range:
    """A range that has been offered, until all of it is here."""

    def __init__(self, at: int, size: int) -> None:
        self.at, self.size = at, size
        self.wanted: deque[int] = deque()
        """Offsets of the blocks that are still to come."""


class Incoming:
    """The file as it comes."""

    def __init__(self, files: Files, bases: Sequence[Read]) -> None:
        """bases: files whose blocks may be used. Raises OSError."""
        self.same_bytes = 0
        """Of blocks that were here."""
        self._files = files
        self._bases = [*bases]
        self._rest = files.keep_rest()
        """What came of a transfer that broke off."""
        self._rest_fd = -1
        if self._rest.exists():
            self._rest_fd = os.open(self._rest, os.O_RDONLY | os.O_CLOEXEC)
            self._bases.append(lambda at, size: os.pread(self._rest_fd, size, at))
        self._fd = os.open(files.part, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
        self._size = self._end = 0
        """Of the file, and of what has been offered of it."""
        self._ranges: deque[_Range] = deque()
        self._data = bytearray()
        self._hashed = sha256()

    def offer(self, offer: Offer) -> bytes:
        """Take the blocks of a range that are here; the answer wants the others. Raises OSError, ValueError."""
        if len(self._ranges) >= RANGES_MAX:
            raise ValueError("pages are missing")
        at = offer.first * BLOCK_BYTES
        if at != self._end:
            raise ValueError("sums of pages that do not go on from the last ones")
        self._size = offer.size
        size = min(offer.blocks * BLOCK_BYTES, offer.size - at)
        self._end = at + size
        made = _Range(at, size)
        here = [(data, sums_of(data, offer.seed)) for data in (read(at, size) for read in self._bases)]
        answer = self._take(offer, made, here)
        self._ranges.append(made)
        self._look()
        return answer

    def _take(self, offer: Offer, made: _Range, here: Sequence[tuple[bytes, bytes]]) -> bytes:
        answer = bytearray(-(-offer.blocks // 8))
        for data, sums in here:
            if sums == offer.sums:
                self._put(data, made.at)
                return bytes(answer)
        run: list[bytes] = []
        for number in range(offer.blocks):
            place = slice(number * SUM_BYTES, (number + 1) * SUM_BYTES)
            wanted, start = offer.sums[place], number * BLOCK_BYTES
            found = next((data for data, sums in here if sums[place] == wanted), None)
            if found is not None:
                run.append(found[start : start + BLOCK_BYTES])
                continue
            answer[number // 8] |= 1 << (number % 8)
            made.wanted.append(made.at + start)
            self._put(b"".join(run), made.at + start - len(run) * BLOCK_BYTES)
            run.clear()
        self._put(b"".join(run), made.at + (offer.blocks - len(run)) * BLOCK_BYTES)
        return bytes(answer)

    def _put(self, data: bytes, at: int) -> None:
        """Blocks that are here, one after another."""
        if data:
            self.same_bytes += os.pwrite(self._fd, data, at)

    def add(self, data: bytes) -> None:
        """Blocks that were wanted, one after another, cut anywhere. Raises OSError, ValueError."""
        self._data += data
        taken = 0
        for each in self._ranges:
            while each.wanted and len(self._data) - taken >= (size := min(BLOCK_BYTES, self._size - each.wanted[0])):
                os.pwrite(self._fd, self._data[taken : taken + size], each.wanted.popleft())
                taken += size
            if each.wanted:
                break
        del self._data[:taken]
        self._look()
        if not self._ranges and self._data:
            raise ValueError("pages that nobody wants")

    def _look(self) -> None:
        """Ranges that are whole are read again for the digest, and the disk begins with them: at the end all of it would take
        long, and others that wait for the disk as well."""
        while self._ranges and not self._ranges[0].wanted:
            each = self._ranges.popleft()
            self._hashed.update(os.pread(self._fd, each.size, each.at))
            vfs.write_out(self._fd, each.at, each.size)

    def finish(self, digest: bytes) -> Path:
        """Compare the whole file with its digest. Raises OSError, ValueError."""
        if self._ranges or self._data or self._end != self._size:
            raise ValueError("pages are missing")
        os.truncate(self._fd, self._size)
        if self._hashed.digest() != digest:
            self._files.part.unlink()  # nothing of it is of use
            raise ValueError("the pages that came are not those that were sent")
        self.close()
        self._rest.unlink(missing_ok=True)
        return self._files.part

    def drop(self) -> None:
        """The disk has failed or is full: what has come is no use, and the next transfer needs the room. Raises OSError."""
        self.close()
        self._files.part.unlink(missing_ok=True)
        self._rest.unlink(missing_ok=True)

    def close(self) -> None:
        """What has come stays for the next transfer. Again: nothing happens."""
        for fd in {self._fd, self._rest_fd} - {-1}:
            os.close(fd)
        self._fd = self._rest_fd = -1
