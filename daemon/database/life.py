"""A sign of life of the database process, which programs read without asking it.

In mode unanimous a program reads the copy's file, which says whether it is shown. A process that is stopped cannot change that
any more; so the copy is shown only while its process has given a sign within ``LIFE_S`` (rule N7).
"""

from __future__ import annotations

import math
import mmap
import os
import struct
import time
from pathlib import Path
from typing import Final

BEAT_S: Final = 0.1
LIFE_S: Final = 1.0
"""Without a sign for that long the process counts as stopped; longer than a busy machine lets it wait."""
_FILE: Final = "alive"
_TIME: Final = struct.Struct("=Q")
"""CLOCK_MONOTONIC, nanoseconds: the same for all processes of the machine."""


def sign_of(root: Path) -> Path:
    """Where it is, beside the databases."""
    return root / _FILE


class Life:
    """The process's side."""

    def __init__(self, root: Path) -> None:
        """Raises OSError."""
        descriptor = os.open(sign_of(root), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            os.fchmod(descriptor, 0o640)  # whatever the umask, as for the databases
            os.ftruncate(descriptor, _TIME.size)
            self._map = mmap.mmap(descriptor, _TIME.size)
        finally:
            os.close(descriptor)

    def beat(self) -> None:
        """It is alive now."""
        _TIME.pack_into(self._map, 0, time.monotonic_ns())


def is_alive(root: Path) -> bool:
    """A program's side: whether there has been a sign within ``LIFE_S``."""
    return age_s(root) <= LIFE_S


def age_s(root: Path) -> float:
    """Seconds since the last sign; infinite if there is none."""
    try:
        descriptor = os.open(sign_of(root), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return math.inf
    try:
        data = os.read(descriptor, _TIME.size)
    except OSError:
        return math.inf
    finally:
        os.close(descriptor)
    return (time.monotonic_ns() - _TIME.unpack(data)[0]) / 1e9 if len(data) == _TIME.size else math.inf
