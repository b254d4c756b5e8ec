"""The protocol between a program and its directory process on the Unix socket (docs/directory-service.md).

Frames are those of ``jsonframes``. The program sends first: ``hello`` with its version. Requests have an ``id``, a number of
the program's, and ``do``; the answer has the same ``id``, and ``ok`` or ``error``. Frames without an ``id`` are news: of a watch,
of a lease.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ..jsonframes import Frame, FrameError, Frames, pack

VERSION: Final = 1
FRAME_MAX: Final = 1 << 20
"""Bytes of a frame besides its length."""
UNDER_WAY_MAX: Final = 1024
"""Requests of one connection that are not answered yet; more are read when there are fewer."""
LIST_MAX: Final = 1000
"""Entries in one answer to ``list``."""
SOCKET: Final = "/run/zenjun/directory.sock"
SOCKET_ENV: Final = "ZENJUN_DIRECTORY"
WAITS: Final = ("memory", "disk", "everywhere")
"""When an update counts as done (rule W4)."""


def beside(daemon_socket: str) -> str:
    """The process's socket for a daemon's: ``zenjund.sock`` → ``directory.sock``, ``NAME.sock`` → ``NAME.directory.sock``."""
    path = Path(daemon_socket)
    stem = "" if path.stem == "zenjund" else f"{path.stem}."
    return str(path.with_name(f"{stem}directory.sock"))


__all__ = [
    "FRAME_MAX",
    "LIST_MAX",
    "SOCKET",
    "SOCKET_ENV",
    "UNDER_WAY_MAX",
    "VERSION",
    "WAITS",
    "Frame",
    "FrameError",
    "Frames",
    "beside",
    "pack",
]
