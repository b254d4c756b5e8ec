"""Temporary folders that go with the process, wherever Ctrl-C comes."""

from __future__ import annotations

import atexit
import secrets
import shutil
import tempfile
from pathlib import Path


def name(prefix: str) -> Path:
    """Of a new folder among the temporary ones, not made yet. It is removed when the process ends, after all threads: between
    making a folder and remembering it there is always a moment for Ctrl-C."""
    folder = Path(tempfile.gettempdir()) / f"{prefix}{secrets.token_hex(6)}"
    atexit.register(shutil.rmtree, folder, True)
    return folder


def make(folder: Path) -> Path:
    """Make it, for nobody else to look into. Raises OSError."""
    folder.mkdir(mode=0o700)
    return folder
