"""What a program and its database process say to each other on the Unix socket (docs/database.md).

Frames are those of ``jsonframes``. The program speaks first: ``hello`` with its version. Requests have an ``id`` and ``do``; the
answer has the same ``id``, and ``ok`` or ``error``. Bytes are base64.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from pathlib import Path
from typing import Final

VERSION: Final = 1
PIECE_BYTES: Final = 1 << 20
"""A transaction with more than that is given to the process in pieces of this size."""
FRAME_MAX: Final = 16 << 20
UNDER_WAY_MAX: Final = 1024
"""Requests of one connection that are not answered yet; more are read when there are fewer."""
SOCKET: Final = "/run/zenjun/db.sock"
SOCKET_ENV: Final = "ZENJUN_DB"
NAME_PATTERN: Final = "[a-z0-9_-]{1,48}"
TIMEOUT_S: Final = 30.0


def beside(daemon_socket: str) -> str:
    """The process's socket for a daemon's: ``zenjund.sock`` → ``db.sock``, ``NAME.sock`` → ``NAME.db.sock``."""
    path = Path(daemon_socket)
    stem = "" if path.stem == "zenjund" else f"{path.stem}."
    return str(path.with_name(f"{stem}db.sock"))


def to_text(data: bytes) -> str:
    """Bytes as a frame has them."""
    return b64encode(data).decode("ascii")


def to_bytes(text: object) -> bytes:
    """The reverse. Raises ValueError."""
    if type(text) is not str:
        raise ValueError("bytes are base64")
    return b64decode(text, validate=True)
