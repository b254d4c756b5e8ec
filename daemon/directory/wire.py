"""The protocol between a program and its directory process on the Unix socket (docs/directory-service.md).

A frame is its length, four bytes, big-endian, and that number of bytes of a JSON object in UTF-8. The program sends first:
``hello`` with its version. Requests have an ``id``, a number of the program's, and ``do``; the answer has the same ``id``, and
``ok`` or
``error``. Frames without an ``id`` are news: of a watch, of a lease.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

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

Frame: TypeAlias = dict[str, Any]
_LENGTH: Final = struct.Struct(">I")


def beside(daemon_socket: str) -> str:
    """The process's socket for a daemon's: ``zenjund.sock`` → ``directory.sock``, ``NAME.sock`` → ``NAME.directory.sock``."""
    path = Path(daemon_socket)
    stem = "" if path.stem == "zenjund" else f"{path.stem}."
    return str(path.with_name(f"{stem}directory.sock"))


class FrameError(Exception):
    """Bytes that are no frame; the connection has to be closed."""


def pack(frame: Frame) -> bytes:
    data = json.dumps(frame, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
    return _LENGTH.pack(len(data)) + data


class Frames:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are whole now. Raises FrameError."""
        self._rest += data
        at = 0
        try:
            while len(self._rest) - at >= _LENGTH.size:
                (size,) = _LENGTH.unpack_from(self._rest, at)
                if size > FRAME_MAX:
                    raise FrameError(f"a frame of {size} bytes; at most {FRAME_MAX} are allowed")
                end = at + _LENGTH.size + size
                if len(self._rest) < end:
                    break
                body = bytes(self._rest[at + _LENGTH.size : end])
                at = end
                yield _object(body)
        finally:
            del self._rest[:at]


def _object(body: bytes) -> Frame:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"a frame that is no JSON: {error}") from None
    if type(value) is not dict:
        raise FrameError("a frame that is no JSON object")
    return value
