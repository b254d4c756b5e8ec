"""What the stand-in keeps over restarts: the number of the last ring, in a file that is replaced in one step."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Final

from ..durable import sync

FOLDER: Final = "corosync"
NAME: Final = "ring"
_FORMAT: Final = b"zenjun-corosync 1\n"
_BYTES_MAX: Final = 4096


class PastError(Exception):
    """The file cannot be used; one line for the operator."""


class Past:
    """One file in the folder ``corosync`` of the station's state."""

    def __init__(self, state_dir: Path) -> None:
        """Raises PastError if the folder cannot be made."""
        self.path = state_dir / FOLDER / NAME
        try:
            self.path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        except OSError as error:
            raise PastError(f"{self.path.parent}: {error.strerror}") from None

    def read(self) -> bytes:
        """Empty: there is none yet. Raises PastError for a damaged one: without it an id of a ring could come twice."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise PastError(f"{self.path}: {error.strerror}") from None
        kept = data[len(_FORMAT) : -4]
        if len(data) > _BYTES_MAX or not data.startswith(_FORMAT) or data[-4:] != _sum(kept):
            raise PastError(f"{self.path} is damaged: take it from a copy, or remove it while no other node runs")
        return kept

    def write(self, kept: bytes) -> None:
        """Durable when it returns. OSError: it is not."""
        temporary = self.path.with_suffix(".new")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
        try:
            os.write(descriptor, _FORMAT + kept + _sum(kept))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.replace(self.path)
        sync(self.path.parent)


def _sum(kept: bytes) -> bytes:
    return zlib.crc32(kept).to_bytes(4, "big")
