"""All frames of a capture as Python objects, of any sender: for tools that read few frames, or every one.

The walker in C reads the file, so what is a capture, what is damaged and what is packed is the same everywhere. For a large file
``lookup`` (matching zenjun frames) and ``decode`` (columns) are much faster.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..native import CaptureDamage, Reader, ffi, lib
from .pdu import Record


@dataclass
class Records:
    """Iterate once. Raises CaptureDamage, and OSError, from the iteration; the frames before the damage have been given."""

    path: str | os.PathLike[str]
    """"-" is standard input."""
    waiting: Callable[[], None] | None = None
    """Called before more is read, which may take long from a pipe."""
    count: int = field(default=0, init=False)
    """Frames so far."""
    cut: str = field(default="", init=False)
    """After the iteration: why the end is missing, where it is; a file that is still being written, or whose writer was killed,
    is normal."""

    def __iter__(self) -> Iterator[Record]:
        frame = ffi.new("struct zp_frame *")
        with Reader(self.path) as reader:
            while True:
                result = lib.zp_next(reader.walk, frame)
                if result == lib.ZP_FRAME:
                    self.count += 1
                    yield _record(reader, frame)
                    continue
                if result < 0:
                    raise reader.fail(result)
                if self.waiting is not None:
                    self.waiting()
                if not reader.fill():
                    break
            self.cut = reader.cut or ("the last record is cut" if reader.tail_bytes else "")
            if reader.walk.state.format == lib.ZP_UNKNOWN:
                what = "too short for a capture" if reader.tail_bytes else "the file is empty"
                raise CaptureDamage(reader.path, 0, reader.cut or what)


def _record(reader: Reader, f: Any) -> Record:
    name = ffi.string(reader.walk.name[f.interface]).decode(errors="replace")
    return Record(int(f.time_ns), int(f.link), bytes(ffi.buffer(f.data, f.captured)), int(f.wire), name)
