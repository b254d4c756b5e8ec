"""The branch VFS, typed: two connections of apsw made one branch.

``vfs.h`` describes the functions. An error code of SQLite is raised as apsw's exception for it. Not thread-safe: a branch, both
connections of it, belongs to one thread.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw

from ..errors import NotSupportedError
from . import _vfs
from ._vfs import ffi, lib

__all__ = [
    "NAME",
    "SQLITE_MIN",
    "SUM_BYTES",
    "Begun",
    "Disk",
    "add_sum",
    "begin",
    "bind",
    "block_sums",
    "drop",
    "end",
    "load",
    "read",
    "wal_sum",
    "write_out",
]

NAME: Final = "zenjun-branch"
"""What the writer of a branch is opened with."""
SQLITE_MIN: Final = (3, 54, 0)
"""From this release on a changeset that swaps UNIQUE values applies. What applies is part of every verdict."""
SUM_BYTES: Final = 8
"""Of a block's sum."""
_ENTRY: Final = "sqlite3_zenjunbranch_init"
_FILE: Final = str(Path(_vfs.__file__).resolve())


class Begun(NamedTuple):
    """The snapshot of a branch."""

    frames: int
    """Frames of the WAL that belong to the snapshot."""
    backfilled: int
    """Number of these that are already in the database's file."""
    regions: int
    """Regions of the wal-index that were copied this time."""
    retries: int
    """Attempts in vain, because a commit or a reset of the WAL came between."""
    schema: int
    """SQLite's number of the schema."""
    facts: tuple[int, int] | None
    """What ``bind``'s question asks for; None: it cannot be answered."""


def load() -> None:
    """Register the VFS with the SQLite library in apsw, once in a process. Raises NotSupportedError for a library that is too old
    or lacks sessions."""
    if lib.zb_loaded():
        return
    version = tuple(int(part) for part in apsw.sqlite_lib_version().split("."))
    if version < SQLITE_MIN or not hasattr(apsw, "Session"):
        wanted = ".".join(map(str, SQLITE_MIN))
        raise NotSupportedError(f"SQLite {apsw.sqlite_lib_version()} in apsw: {wanted} or later with sessions is needed")
    connection = apsw.Connection(":memory:")
    try:
        connection.enable_load_extension(True)
        connection.load_extension(_FILE, _ENTRY)
    finally:
        connection.close()


def _pointer(connection: apsw.Connection) -> Any:
    return ffi.cast("void *", connection.sqlite3_pointer())


def _check(code: int) -> None:
    if code:
        raise apsw.exception_for(code)


def bind(writer: apsw.Connection, reader: apsw.Connection, question: str = "") -> None:
    """Make the two connections a branch. question: a SELECT of two numbers, whose answer comes with each ``begin``. The writer is
    closed before the reader. apsw.MismatchError: not connections to the same file. apsw.MisuseError: not opened as ``vfs.h``
    requires, or bound already."""
    _check(lib.zb_bind(_pointer(writer), _pointer(reader), question.encode() if question else ffi.NULL))


def begin(writer: apsw.Connection) -> Begun:
    """Begin the reader's transaction and show its snapshot to the writer. apsw.BusyError: no snapshot within the reader's busy
    time-out."""
    out = ffi.new("struct zb_begun *")
    _check(lib.zb_begin(_pointer(writer), out))
    facts = (out.facts[0], out.facts[1]) if out.has_facts else None
    return Begun(out.frames, out.backfilled, out.regions, out.retries, out.schema, facts)


def drop(writer: apsw.Connection) -> None:
    """Take the snapshot from the writer, before the reader's transaction ends. apsw.MisuseError: it has a transaction, or a
    statement that is not finished."""
    _check(lib.zb_drop(_pointer(writer)))


def end(writer: apsw.Connection) -> None:
    """End the transactions of both, with ``drop`` between. Without transactions nothing happens."""
    _check(lib.zb_end(_pointer(writer)))


def add_sum(connection: apsw.Connection) -> None:
    """Give a connection the aggregate ``zenjun_sum(value, ...)``: bytes that are equal for equal sets of rows, in any order."""
    _check(lib.zb_add_sum(_pointer(connection)))


def read(connection: apsw.Connection, at: int, size: int) -> bytes:
    """Bytes of the database's file as it is, without what is in the WAL; zeros after its end."""
    out = ffi.new("unsigned char[]", size)
    code = lib.zb_read(_pointer(connection), out, size, at)
    if code != apsw.SQLITE_IOERR_SHORT_READ:
        _check(code)
    return bytes(ffi.buffer(out))


def wal_sum(data: bytes | memoryview, sums: tuple[int, int], *, big_endian: bool) -> tuple[int, int]:
    """Continue the checksum of a write-ahead log over bytes whose number is a multiple of 8."""
    pair = ffi.new("uint32_t[2]", sums)
    lib.zb_wal_sum(ffi.from_buffer(data), len(data), big_endian, pair)
    return int(pair[0]), int(pair[1])


def block_sums(data: bytes | memoryview, block_bytes: int, seed: int) -> bytes:
    """``SUM_BYTES`` for each block, the last of which may be shorter. seed: of 64 bits; with another one all sums are others."""
    out = ffi.new("unsigned char[]", SUM_BYTES * -(-len(data) // block_bytes) or 1)
    lib.zb_block_sums(ffi.from_buffer(data), len(data), block_bytes, seed, out)
    return bytes(ffi.buffer(out))[: SUM_BYTES * -(-len(data) // block_bytes)]


def write_out(fd: int, at: int, size: int) -> None:
    """Have the kernel begin to write these bytes to the disk, so that a later sync has less to wait for."""
    lib.zb_write_out(fd, at, size)


class Disk:
    """A thread that brings files to the disk one after another, and runs no Python: a sync waits for no other thread of the
    interpreter, and keeps none. One thread of the program uses this."""

    def __init__(self) -> None:
        """Raises OSError: the process has no descriptor or no thread left."""
        self._disk = lib.zb_disk_open()
        if self._disk == ffi.NULL:
            raise OSError("no thread for syncs: the process has no descriptor, or may have no more threads")
        self.told: int = lib.zb_disk_told(self._disk)
        """A descriptor that can be read when a sync has ended."""

    def sync(self, path: Path) -> None:
        """Begin to sync a file; the one before has ended. Raises OSError: it cannot be opened."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        if code := lib.zb_disk_sync(self._disk, fd):
            os.close(fd)
            raise OSError(code, os.strerror(code))

    def take(self) -> tuple[int, float] | None:
        """errno of the sync that has ended, 0: none, and how many seconds it took. None: none has ended since the last call."""
        error, ns = ffi.new("int *"), ffi.new("int64_t *")
        return (error[0], ns[0] / 1e9) if lib.zb_disk_take(self._disk, error, ns) else None

    def close(self) -> None:
        """Once. A sync that is under way comes to its end."""
        lib.zb_disk_close(self._disk)
