"""Frames between a program and a process beside the daemon.

A frame is its length, four bytes, big-endian, and that many bytes of a JSON object in UTF-8. A process may have frames of another
form besides, which begin with the byte 1.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

Frame: TypeAlias = dict[str, Any]
BINARY: Final = 1
"""The first byte of a frame that is no JSON."""
_BINARY: Final = bytes([BINARY])
_LENGTH: Final = struct.Struct(">I")
_text: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
_value: Final = json.JSONDecoder().decode


class FrameError(Exception):
    """Bytes that are no frame; the connection has to be closed."""


def pack(frame: Frame) -> bytes:
    """The frame's bytes."""
    return pack_binary(_text(frame).encode("utf-8", "surrogatepass"))


def pack_binary(data: bytes) -> bytes:
    """The bytes of a frame with this content."""
    return _LENGTH.pack(len(data)) + data


class Frames:
    """Cuts a stream of bytes into frames."""

    def __init__(self, frame_max: int, binary: Callable[[bytes], Frame | None] | None = None) -> None:
        """frame_max: bytes of a frame at most, besides its length. binary: is given the content of a frame that is no JSON; the
        frame that it stands for, None: it has been dealt with. It may raise FrameError."""
        self._frame_max = frame_max
        self._binary = binary
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are complete now. Raises FrameError."""
        self._rest += data
        at = 0
        try:
            while len(self._rest) - at >= _LENGTH.size:
                (size,) = _LENGTH.unpack_from(self._rest, at)
                if size > self._frame_max:
                    raise FrameError(f"a frame of {size} bytes; at most {self._frame_max} are allowed")
                end = at + _LENGTH.size + size
                if len(self._rest) < end:
                    break
                body = bytes(self._rest[at + _LENGTH.size : end])
                at = end
                if self._binary is None or body[:1] != _BINARY:
                    yield _object(body)
                elif (frame := self._binary(body)) is not None:
                    yield frame
        finally:
            del self._rest[:at]


def _object(body: bytes) -> Frame:
    try:
        value = _value(body.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise FrameError(f"a frame that is no JSON: {error}") from None
    if type(value) is not dict:
        raise FrameError("a frame that is no JSON object")
    return value
