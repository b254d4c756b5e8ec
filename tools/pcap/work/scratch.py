"""Temporary folders that are removed with the process, wherever Ctrl-C arrives; those of a killed process are removed by the next
one.

The process that makes a folder holds a lock on it (flock(2)), which the kernel releases when the process ends in any way. A
folder without a lock has no owner any more.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PREFIX: Final = "zenjun-temporary-"
_NAME: Final = re.compile(rf"{PREFIX}[a-z]+-[0-9a-f]{{12}}")
AGE_S: Final = 60.0
"""Younger folders are left alone: their makers may not have come to hold them yet."""


def name(what: str) -> Path:
    """Of a new folder among the temporary ones, not made yet (what: lower-case letters). It is removed when the process ends,
    after all threads: between making a folder and remembering it there is always a moment for Ctrl-C."""
    folder = Path(tempfile.gettempdir()) / f"{PREFIX}{what}-{secrets.token_hex(6)}"
    atexit.register(shutil.rmtree, folder, True)
    return folder


def make(folder: Path) -> Path:
    """Make it, readable for this user only, and hold it while this process runs; first remove what killed ones have left. Raises
    OSError."""
    sweep(folder.parent)
    folder.mkdir(mode=0o700)
    _hold(folder)  # never given back: the process' end does that
    return folder


@contextlib.contextmanager
def folder(what: str) -> Iterator[Path]:
    """A folder for the time of the block. Raises OSError."""
    made = name(what)
    try:
        yield make(made)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def sweep(place: Path) -> None:
    """Remove this user's folders in *place* that no process holds any more."""
    for left in place.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # another owner's, held, or gone meanwhile
            if not _NAME.fullmatch(left.name) or left.is_symlink() or time.time() - left.stat().st_mtime < AGE_S:
                continue
            held = _hold(left)
            try:
                shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(held)


def _hold(folder: Path) -> int:
    """A descriptor that holds it. Raises BlockingIOError when another process does, OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
