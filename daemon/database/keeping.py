"""What a site keeps while another site's copy comes, and until it has caught up: in memory at first, then in a file without a
name in the database's folder. So a copy that takes an hour need not begin anew because much is committed meanwhile."""

from __future__ import annotations

import contextlib
import os
import struct
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ...proto.service.base import Effect, Source
from ...proto.service.database.keeping import Item, Kept
from ...proto.service.database.machine import Machine
from ...proto.service.database.messages import decode, encode
from .copy import FileRows

if TYPE_CHECKING:
    from .site import Site

STEP: Final = 256
"""Messages that are followed at once."""
MEMORY_BYTES_MAX: Final = 16 << 20
"""Of messages in memory; what follows is in the file."""
CHUNK_BYTES: Final = 1 << 20
"""Written and read at once."""
_HEAD: Final = struct.Struct("!QIIIIII")
"""Place, sender, number of the members' set, bytes of the message."""
_VIEW: Final = (1 << 32) - 1
"""In place of the bytes, where there is no message."""


class FileKept(Kept):
    """Grows as long as the disk has room."""

    def __init__(self, folder: Path, spare: int, memory_max: int = MEMORY_BYTES_MAX) -> None:
        """spare: bytes that the disk keeps, or an eighth of a small one."""
        super().__init__()
        self._folder, self._spare, self._memory_max = folder, spare, memory_max
        self._fd = -1
        self._begin = self._end = 0
        """Of what is in the file."""
        self._unwritten = bytearray()
        self._read = bytearray()
        """Of the file, not yet taken."""
        self._members: list[frozenset[Source]] = []
        """Sets that items have; there is a new one with each view."""

    def add(self, item: Item, size: int) -> None:
        is_filed = self._fd >= 0 and (self._begin < self._end or self._unwritten or self._read)
        if self.is_whole and not is_filed and self.bytes + size <= self._memory_max:
            super().add(item, size)
        elif self.is_whole:
            try:
                self._write(item)
                self.bytes += size
            except OSError:
                self.is_whole = False

    def _write(self, item: Item) -> None:
        """Raises OSError: there is no room."""
        place, source, message, members = item
        if not self._members or self._members[-1] != members:
            self._members.append(members)
        data = b"" if message is None else encode(message)
        size = _VIEW if message is None else len(data)
        self._unwritten += _HEAD.pack(*place, *source, len(self._members) - 1, size) + data
        if self._fd < 0:
            self._fd, name = tempfile.mkstemp(dir=self._folder, prefix="kept-")
            Path(name).unlink()
            weakref.finalize(self, os.close, self._fd)
        if len(self._unwritten) >= CHUNK_BYTES:
            self._flush()

    def _flush(self) -> None:
        disk = os.fstatvfs(self._fd)
        if disk.f_bavail * disk.f_frsize < len(self._unwritten) + min(self._spare, disk.f_blocks * disk.f_frsize // 8):
            raise OSError("no room")
        while self._unwritten:
            written = os.pwrite(self._fd, self._unwritten, self._end)
            del self._unwritten[:written]
            self._end += written

    def take(self) -> Item | None:
        if (item := super().take()) is not None:
            return item
        if not self._has(_HEAD.size):
            return None
        clock, station, index, *source, number, size = _HEAD.unpack_from(self._read)
        length = 0 if size == _VIEW else size
        if not self._has(_HEAD.size + length):
            return None
        data = bytes(self._read[_HEAD.size : _HEAD.size + length])
        del self._read[: _HEAD.size + length]
        self.bytes -= length
        message = None if size == _VIEW else decode(data)
        return (clock, station, index), (source[0], source[1]), message, self._members[number]

    def _has(self, size: int) -> bool:
        """So many bytes are to be read; False: there are not."""
        while len(self._read) < size and self._begin < self._end:
            data = b""
            with contextlib.suppress(OSError):
                data = os.pread(self._fd, min(CHUNK_BYTES, self._end - self._begin), self._begin)
            if not data:
                self.is_whole = False
                return False
            self._begin += len(data)
            self._read += data
        if len(self._read) < size:
            self._read += self._unwritten
            self._unwritten.clear()
        if self._begin == self._end and self._end:
            os.ftruncate(self._fd, 0)
            self._begin = self._end = 0
        return len(self._read) >= size

    @property
    def is_empty(self) -> bool:
        return super().is_empty and self._begin == self._end and not self._unwritten and not self._read


class CatchingUp:
    """Has a site's machine follow what was kept, step by step: what comes meanwhile is kept between two of them."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.runs = False
        """In the middle of a step the machine has the state, which is not yet the last."""

    def look(self) -> None:
        """Begin, if there is something to do."""
        if not self.runs and self._is_wanted():
            self.runs = True
            self._site.soon(self._run())

    def _is_wanted(self) -> bool:
        return self._site.machine is not None and self._site.machine.is_catching_up

    async def _run(self) -> None:
        try:
            while self._is_wanted():
                await self._site.act(self._site.batched, _step)
        finally:
            self.runs = False


def _step(machine: Machine, rows: FileRows, effects: list[Effect]) -> None:
    effects += machine.catch_up()


__all__ = ["STEP", "CatchingUp", "FileKept"]
