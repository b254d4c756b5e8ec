"""What a file system is told so that a file, or its name, survives a power cut."""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Bring a file to the disk, or the names in a folder. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
