"""A write-ahead log as a file, and what its index says of it: written over itself after a sync that may have failed.

https://www.sqlite.org/fileformat2.html#walformat and https://www.sqlite.org/walformat.html describe both files. After a sync that
failed Linux takes the pages for written. It may forget them at any time and read the old ones from the disk. What the log has is
therefore believed up to the first frame whose checksum is wrong.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from . import vfs

_HEADER: Final = struct.Struct(">IIIIII")
"""Magic number, version, page size, number of restarts, two salts; the checksum comes after them."""
_FRAME: Final = struct.Struct(">IIIIII")
"""Page, size of the database after a commit, two salts, checksum."""
_PAIR: Final = struct.Struct(">II")
_MAGIC: Final = 0x377F0682
"""The lowest bit: the checksum is of words in big-endian order."""
_INDEX: Final = struct.Struct("=IIIBBHIIII8sII")
"""Version, 0, changes, is valid, endianness, page size, last frame, pages, checksum of that frame, salts, checksum."""
_INDEX_VERSION: Final = 3_007_000
_INFO: Final = struct.Struct("=I")
"""Frames that a checkpoint has brought into the database file."""

COPY_BYTES: Final = 1 << 20


class ContentLost(Exception):
    """The log does not have what its index says: what was committed cannot be read any more."""


class _Index(NamedTuple):
    frames: int
    pages: int
    salts: bytes
    backfilled: int


class _Frame(NamedTuple):
    at: int
    """Where its page begins in the log."""
    page: int
    """Counted from 1."""


def write_again(path: Path) -> None:
    """Bring the log of a database, and what checkpoints have taken from it, to the disk once more. No connection of this process
    may have the database open, because closing a file drops the locks that SQLite has on it.

    The log is written over itself, as far as it is valid. A checkpoint that readers hold up syncs the log and writes pages to the
    database file without a sync of that. While programs have the index mapped, it counts these frames as done, also for the next
    process. So they are written to the database file again. Raises OSError; ContentLost: the log lacks frames of its index.
    """
    wal = path.with_name(path.name + "-wal")
    index = _index_of(path.with_name(path.name + "-shm"))
    fd = os.open(wal, os.O_RDWR | os.O_CLOEXEC)
    try:
        page_bytes, salts, frames = _valid(fd)
        if index is not None and index.frames and (index.frames > len(frames) or index.salts != salts):
            raise ContentLost(f"{wal}: {len(frames)} frames can be read, and {index.frames} were committed")
        if frames:
            _copy(fd, frames[-1].at + page_bytes)
            os.fdatasync(fd)
        if index is not None and index.backfilled:
            latest = {frame.page: frame.at for frame in frames[: index.frames] if frame.page <= index.pages}
            last = frames[index.backfilled - 1].at  # a page with a later frame is still to be brought into the file
            _backfill(path, fd, page_bytes, {page: at for page, at in latest.items() if at <= last})
    finally:
        os.close(fd)


def _copy(fd: int, size: int) -> None:
    for at in range(0, size, COPY_BYTES):
        os.pwrite(fd, os.pread(fd, min(COPY_BYTES, size - at), at), at)


def _backfill(path: Path, wal: int, page_bytes: int, places: dict[int, int]) -> None:
    """places: where in the log each page is."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        for page, at in sorted(places.items()):
            os.pwrite(fd, os.pread(wal, page_bytes, at), (page - 1) * page_bytes)
        os.fdatasync(fd)
    finally:
        os.close(fd)


def _valid(fd: int) -> tuple[int, bytes, list[_Frame]]:
    """Size of a page, salts, and the frames up to the first one that is not valid."""
    head = os.pread(fd, _HEADER.size + _PAIR.size, 0)
    if len(head) < _HEADER.size + _PAIR.size:
        return 0, b"", []
    magic, _, page_bytes, _, *_ = _HEADER.unpack_from(head)
    is_big = bool(magic & 1)
    sums = vfs.wal_sum(head[: _HEADER.size], (0, 0), big_endian=is_big)
    if magic & ~1 != _MAGIC or not 512 <= page_bytes <= 65536 or sums != _PAIR.unpack_from(head, _HEADER.size):
        return 0, b"", []
    salts = head[16:24]
    frames: list[_Frame] = []
    for at, frame in _frames(fd, len(head), _FRAME.size + page_bytes):
        page = int.from_bytes(frame[:4], "big")
        sums = vfs.wal_sum(frame[:8], sums, big_endian=is_big)
        sums = vfs.wal_sum(memoryview(frame)[_FRAME.size :], sums, big_endian=is_big)
        if not page or frame[8:16] != salts or sums != _PAIR.unpack_from(frame, 16):
            break
        frames.append(_Frame(at + _FRAME.size, page))
    return page_bytes, salts, frames


def _frames(fd: int, at: int, size: int) -> Iterator[tuple[int, bytes]]:
    while len(frame := os.pread(fd, size, at)) == size:
        yield at, frame
        at += size


def _index_of(shm: Path) -> _Index | None:
    """None: there is no index, or it is being made; the next connection makes one from the log."""
    try:
        with shm.open("rb") as file:
            data = file.read(2 * _INDEX.size + _INFO.size)
    except FileNotFoundError:
        return None
    if len(data) < 2 * _INDEX.size + _INFO.size or data[: _INDEX.size] != data[_INDEX.size : 2 * _INDEX.size]:
        return None
    version, _, _, is_valid, _, _, frames, pages, _, _, salts, *sums = _INDEX.unpack_from(data)
    found = _native_sum(data[: _INDEX.size - 8])
    if version != _INDEX_VERSION or not is_valid or tuple(sums) != found:
        return None
    return _Index(frames, pages, salts, *_INFO.unpack_from(data, 2 * _INDEX.size))


def _native_sum(data: bytes) -> tuple[int, int]:
    return vfs.wal_sum(data, (0, 0), big_endian=sys.byteorder == "big")
