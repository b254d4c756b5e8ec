"""A file that comes from another site, of which only the blocks come that are not here already.

The donor sends a sum of each block of 4096 bytes, a page of SQLite, range by range. The site that gets the file looks for these
blocks at the same places of the files that it has: its former copy, a damaged one, what came of a transfer that broke off. It
answers with the blocks that it lacks. At the end a digest of the whole file is compared, so that an error in this costs a
transfer and nothing else.
"""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from ...proto.service.database.messages import DIGEST_BYTES
from .files import Files

BLOCK_BYTES: Final = 4096
RANGE_BLOCKS: Final = 2048
"""Blocks whose sums are in one message: 8 MiB of the file, which is what both ends have in memory."""
SUM_BYTES: Final = 8
_HEAD: Final = struct.Struct("!QQ")

Read: TypeAlias = Callable[[int, int], bytes]
"""Reads (offset, size) of a file that is here; fewer bytes at its end."""


class Offer(NamedTuple):
    """Sums of the blocks of a range."""

    size: int
    """Of the file, in bytes."""
    first: int
    """Number of the first block, from 0."""
    sums: tuple[bytes, ...]

    def encode(self) -> bytes:
        return _HEAD.pack(self.size, self.first) + b"".join(self.sums)

    @classmethod
    def decode(cls, data: bytes) -> Offer:
        """Raises ValueError."""
        if len(data) < _HEAD.size or (len(data) - _HEAD.size) % SUM_BYTES:
            raise ValueError("sums of pages are cut")
        size, first = _HEAD.unpack_from(data)
        sums = tuple(data[at : at + SUM_BYTES] for at in range(_HEAD.size, len(data), SUM_BYTES))
        if len(sums) > RANGE_BLOCKS or (first + len(sums)) * BLOCK_BYTES >= size + BLOCK_BYTES:
            raise ValueError("sums of pages that the file does not have")
        return cls(size, first, sums)


def block_sum(block: bytes | memoryview) -> bytes:
    return blake2b(block, digest_size=SUM_BYTES).digest()


def blocks_of(data: bytes) -> list[memoryview]:
    view = memoryview(data)
    return [view[at : at + BLOCK_BYTES] for at in range(0, len(data), BLOCK_BYTES)]


def is_wanted(answer: bytes, number: int) -> bool:
    """Whether the answer to an offer has the bit of this block of the range; one that is too short wants the rest."""
    return number // 8 >= len(answer) or bool(answer[number // 8] >> (number % 8) & 1)


def ranges(path: Path, message_max: int, hashed: blake2b) -> Iterator[tuple[Offer, list[memoryview]]]:
    """The ranges of a file, with their blocks. message_max: bytes of an encoded offer. hashed: gets all of the file."""
    number = max(1, min(RANGE_BLOCKS, (message_max - _HEAD.size) // SUM_BYTES))
    size = path.stat().st_size
    with path.open("rb") as file:
        for first in range(0, -(-size // BLOCK_BYTES), number):
            data = file.read(number * BLOCK_BYTES)
            hashed.update(data)
            blocks = blocks_of(data)
            yield Offer(size, first, tuple(map(block_sum, blocks))), blocks


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
        self._size = 0
        self._wanted: deque[int] = deque()
        self._data = bytearray()

    def offer(self, offer: Offer) -> bytes:
        """Take the blocks of a range that are here; the answer wants the others. Raises OSError, ValueError."""
        if self._wanted or self._data:
            raise ValueError("pages are missing")
        self._size = offer.size
        at, size = offer.first * BLOCK_BYTES, len(offer.sums) * BLOCK_BYTES
        here = [blocks_of(read(at, size)) for read in self._bases]
        answer = bytearray(-(-len(offer.sums) // 8))
        run: list[memoryview] = []
        for number, wanted in enumerate(offer.sums):
            block = next((b[number] for b in here if number < len(b) and block_sum(b[number]) == wanted), None)
            if block is not None:
                run.append(block)
                continue
            answer[number // 8] |= 1 << (number % 8)
            self._wanted.append(at + number * BLOCK_BYTES)
            self._put(run, at + (number - len(run)) * BLOCK_BYTES)
        self._put(run, at + (len(offer.sums) - len(run)) * BLOCK_BYTES)
        return bytes(answer)

    def _put(self, run: list[memoryview], place: int) -> None:
        """Blocks that are here, one after another."""
        if run:
            self.same_bytes += os.pwrite(self._fd, b"".join(run), place)
            run.clear()

    def add(self, data: bytes) -> None:
        """Blocks that were wanted, one after another, cut anywhere. Raises OSError, ValueError."""
        self._data += data
        at = 0
        while self._wanted and len(self._data) - at >= (size := min(BLOCK_BYTES, self._size - self._wanted[0])):
            os.pwrite(self._fd, self._data[at : at + size], self._wanted.popleft())
            at += size
        del self._data[:at]
        if not self._wanted and self._data:
            raise ValueError("pages that nobody wants")

    def finish(self, digest: bytes) -> Path:
        """Compare the whole file with its digest. Raises OSError, ValueError."""
        if self._wanted or self._data:
            raise ValueError("pages are missing")
        os.truncate(self._fd, self._size)
        hashed = blake2b(digest_size=DIGEST_BYTES)
        for at in range(0, self._size, RANGE_BLOCKS * BLOCK_BYTES):
            hashed.update(os.pread(self._fd, RANGE_BLOCKS * BLOCK_BYTES, at))
        if hashed.digest() != digest:
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
