"""Whether it is known what of a database's files is on the disk.

Linux reports to one fsync that something could not be written. It then takes the pages for written, and no later fsync tells of
them, in this process or in the next one. So each sync is noted before it begins, in a small file, and the note is taken back when
the sync has succeeded. A process that finds such a note does not trust what the one before it has written. The note need not
outlast a power cut, after which the pages are read from the disk: it counts for the same boot of the machine only.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Final

from ..durable import sync

NAME: Final = "doubt"
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


class Doubt(Enum):
    """What is known of the files."""

    NONE = b"-"
    SYNCING = b"s"
    """A sync is under way, or its process was killed: it may have failed."""
    FAILED = b"f"
    """A sync has failed."""


class Doubts:
    """The note of one database. Any thread may use it."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError."""
        self._path = folder / NAME
        self._boot = _BOOT.read_bytes().strip()
        self._lock = threading.Lock()
        self._syncs = 0
        """Under way."""
        self._has_failed = False
        fresh = not self._path.exists()
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        self.found = self._read()
        """What the process before this one has left."""
        if fresh:
            self._write(Doubt.NONE)  # from here on it is written in place, and needs no room
            sync(folder)

    def _read(self) -> Doubt:
        note, _, boot = os.pread(self._fd, 100, 0).strip().partition(b" ")
        if boot != self._boot:
            return Doubt.NONE
        try:
            return Doubt(note)
        except ValueError:
            return Doubt.SYNCING

    def _write(self, doubt: Doubt) -> None:
        if self._fd >= 0:
            os.pwrite(self._fd, doubt.value + b" " + self._boot + b"\n", 0)

    @contextlib.contextmanager
    def syncing(self) -> Iterator[None]:
        """Around a sync. An exception means that it has failed. Raises OSError if it cannot be noted."""
        self.begin()
        try:
            yield
        except BaseException:
            self.failed()
            raise
        finally:
            self.end()

    def begin(self) -> None:
        """A sync begins, whose ``end`` comes in any case. Raises OSError if it cannot be noted."""
        with self._lock:
            self._syncs += 1
            if self._syncs == 1 and not self._has_failed:
                try:
                    self._write(Doubt.SYNCING)
                except OSError:
                    self._syncs -= 1
                    raise

    def end(self) -> None:
        """It has ended: well, unless ``failed`` was called before."""
        with self._lock:
            self._syncs -= 1
            if not self._syncs and not self._has_failed:
                self._write(Doubt.NONE)

    def failed(self) -> None:
        """What is on the disk is not known, until ``settled``."""
        with self._lock:
            self._has_failed = True
            with contextlib.suppress(OSError):  # then it says SYNCING, which is doubt as well
                self._write(Doubt.FAILED)

    def settled(self) -> None:
        """All that there is has been written again, and synced. Raises OSError."""
        with self._lock:
            self._has_failed = False
            self.found = Doubt.NONE
            self._write(Doubt.NONE if not self._syncs else Doubt.SYNCING)

    @property
    def has_failed(self) -> bool:
        return self._has_failed or self.found is Doubt.FAILED

    def close(self) -> None:
        """The note stays as it is, whatever becomes of a sync that is under way."""
        with self._lock:
            fd, self._fd = self._fd, -1  # another file may get its number
            os.close(fd)
