"""Thin typed face of the C module: a capture file as a stream of bytes that C walks, and the position in it.

Nothing here makes a Python object per frame. ``Reader`` feeds the walker (``capture.h``); what goes over the frames (decoder,
observer) is a C function called in a loop around ``Reader.fill``.
"""

from __future__ import annotations

import io
import os
import sys
import zlib
from typing import Any, Final, Protocol

from ._pcap import ffi, lib

CHUNK_BYTES: Final = 4 << 20
"""Bytes read at a time; a longer record makes the buffer grow to its size."""
RECORD_BYTES_MAX: Final = int(lib.ZP_RECORD_MAX) + 64
_STATE_HEAD: Final = int(ffi.offsetof("struct zp_state", "interface"))
_INTERFACE_BYTES: Final = int(ffi.sizeof("struct zp_interface"))

_ERRORS: Final[dict[int, str]] = {
    lib.ZP_E_VERSION: "version {} of its format, which is not known",
    lib.ZP_E_RECORD: "damaged: a record of {} bytes",
    lib.ZP_E_ORDER: "damaged: byte-order magic {:08x} in a section header",
    lib.ZP_E_BLOCK: "damaged: a block of {} bytes",
    lib.ZP_E_TRAILER: "damaged: a block that ends with another length, {}",
    lib.ZP_E_INTERFACE: "damaged: a frame of interface {}, which is not described",
    lib.ZP_E_CAPTURED: "damaged: {} bytes of a frame in a smaller block",
    lib.ZP_E_INTERFACES: "more than {} interfaces in one section",
}
_MAGICS: Final[tuple[tuple[bytes, str], ...]] = (
    (b"\xfd7zXZ\0", "compressed by xz; unpack it (xz -d)"),
    (b"BZh", "compressed by bzip2; unpack it (bunzip2)"),
    (b"\x04\x22\x4d\x18", "compressed by lz4; unpack it (lz4 -d)"),
    (b"PK\x03\x04", "a zip archive; unpack it"),
    (b"\xa1\xb2\xcd\x34", "pcap as modified by Kuznetsov; convert it (editcap -F pcapng)"),
    (b"\x34\xcd\xb2\xa1", "pcap as modified by Kuznetsov; convert it (editcap -F pcapng)"),
    (b"snoop\0", "a snoop capture; convert it (editcap -F pcapng)"),
    (b"btsnoop\0", "a Bluetooth snoop capture, which has no Ethernet frames"),
    (b"RTSS", "a Network Monitor 1 capture; convert it (editcap -F pcapng)"),
    (b"GMBU", "a Network Monitor 2 capture; convert it (editcap -F pcapng)"),
    (b"XCP\0", "a NetXRay capture; convert it (editcap -F pcapng)"),
    (b"TRSNIFF data", "a Sniffer capture; convert it (editcap -F pcapng)"),
    (b"iptrace ", "an iptrace capture; convert it (editcap -F pcapng)"),
    (b"PAR1", "a Parquet file"),
    (b"\x7fELF", "a program"),
    (b"<", "markup, perhaps an error page saved in place of a download"),
)
"""First bytes of files that are mistaken for captures, and the messages about them."""
_NAMED_BY: Final = max(len(magic) for magic, _ in _MAGICS)


class CaptureDamage(Exception):
    """A file is no capture or damaged at one place, after which nothing can be found. The text is one human-readable line."""

    def __init__(self, path: str, offset: int, reason: str) -> None:
        super().__init__(f"{path}: offset {offset}: {reason}")
        self.path, self.offset, self.reason = path, offset, reason

    def __reduce__(self) -> tuple[Any, ...]:
        return CaptureDamage, (self.path, self.offset, self.reason)


class _Source(Protocol):
    def readinto(self, buffer: Any, /) -> int | None: ...

    def close(self) -> None: ...


class _Pipe:
    """A stream that cannot seek, whose first bytes have been looked at."""

    def __init__(self, raw: io.FileIO) -> None:
        self._raw = raw
        self.first = b""
        while len(self.first) < 4 and (more := raw.read(4 - len(self.first))):
            self.first += more

    def readinto(self, buffer: memoryview) -> int:
        if not self.first:
            return self._raw.readinto(buffer) or 0
        n = min(len(self.first), len(buffer))
        buffer[:n], self.first = self.first[:n], self.first[n:]
        return n

    def read(self, size: int) -> bytes:
        if not self.first:
            return self._raw.read(size) or b""
        piece, self.first = self.first[:size], self.first[size:]
        return piece

    @property
    def closed(self) -> bool:
        return self._raw.closed

    def close(self) -> None:
        self._raw.close()


class _Gzip:
    """A gzip stream (of several members, too) that gives everything before the place where it is cut or damaged."""

    def __init__(self, raw: io.FileIO | _Pipe) -> None:
        self._raw = raw
        self._engine = zlib.decompressobj(31)
        self._waiting = b""
        self.cut = ""

    def readinto(self, buffer: memoryview) -> int:
        """Bytes put into ``buffer``, 0 at the end; then ``cut`` has the reason, if it is not the stream's proper end."""
        while True:
            if self._engine.eof:
                rest = (self._engine.unused_data or self._raw.read(1 << 16) or b"").lstrip(b"\0")  # tapes pad with zeros
                if not rest:
                    return 0
                self._engine, self._waiting = zlib.decompressobj(31), rest
            data = self._waiting or self._raw.read(1 << 18) or b""
            if not data and not self.cut:
                self.cut = "the gzip stream ends too early"
            if self.cut:
                return 0
            try:
                out = self._engine.decompress(data, len(buffer))
            except zlib.error as error:
                self.cut = f"the gzip stream is damaged ({error})"
                return 0
            self._waiting = self._engine.unconsumed_tail
            if out:
                buffer[: len(out)] = out
                return len(out)

    def close(self) -> None:
        self._raw.close()


class _Zstd:
    """A zstd stream; gives everything before the place where it is cut or damaged, but for the rest of one block."""

    def __init__(self, raw: io.FileIO | _Pipe) -> None:
        import pyarrow as pa

        self._error: type[Exception] = pa.ArrowException
        self._stream = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd")
        self.cut = ""

    def readinto(self, buffer: memoryview) -> int:
        # In small pieces: what a piece has before the damage is lost with it.
        if self.cut:
            return 0
        try:
            piece = self._stream.read(min(len(buffer), 1 << 17))
        except (OSError, self._error) as error:
            self.cut = f"the zstd stream is cut or damaged ({error})"
            return 0
        buffer[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        self._stream.close()


def compression_of(head: bytes) -> str:
    """``gzip``, ``zstd`` or nothing, by a file's first bytes."""
    if head[:2] == b"\x1f\x8b":
        return "gzip"
    if head[:4] == b"\x28\xb5\x2f\xfd":
        return "zstd"
    # pzstd, and other programs that make such files readable in parts, put a skippable frame first (RFC 8878, 3.1.2).
    return "zstd" if head[1:4] == b"\x2a\x4d\x18" and head[0] & 0xF0 == 0x50 else ""


class Reader:
    """One capture file, or one range of it between record borders, fed to the C walker piece by piece.

    ``walk`` is the ``struct zp_walk *`` for the C functions. When one returns ZP_MORE, call ``fill``; negative results go to
    ``fail``. Memory: one chunk, or one record if that is longer. Offsets are those of the unpacked file.
    """

    def __init__(
        self, path: str | os.PathLike[str], start: int = 0, end: int | None = None, state: bytes = b"", *, own_mac: int = 0
    ) -> None:
        """path: "-" is standard input; a pipe will do. start, end, state: a range as ``files.Split`` has it; the whole file
        without them. own_mac: see ``zp_state``. Raises OSError."""
        self.path = os.fspath(path)
        self.end = end
        self.walk: Any = ffi.new("struct zp_walk *")
        self.state_set(state)
        if own_mac:
            self.walk.state.own_mac = own_mac
        self._buffer = bytearray(CHUNK_BYTES)
        self._map: Any = ffi.from_buffer(self._buffer)
        self._size = 0
        self.walk.data = ffi.cast("uint8_t *", self._map)
        self.walk.base = start
        self.tail_bytes = 0
        """After the last fill: bytes of a record that is cut."""
        self.cut = ""
        """After the last fill: why the stream ended too early, for compressed files."""
        raw = io.FileIO(sys.stdin.fileno(), closefd=False) if self.path == "-" else io.FileIO(self.path)
        try:
            pipe = None if raw.seekable() else _Pipe(raw)
            self.compression = compression_of(os.pread(raw.fileno(), 4, 0) if pipe is None else pipe.first)
            self._source: _Source = self._open(pipe or raw)
            if start:
                self._skip(start)
        except BaseException:
            raw.close()
            raise

    def _open(self, raw: io.FileIO | _Pipe) -> _Source:
        if self.compression == "gzip":
            return _Gzip(raw)
        return _Zstd(raw) if self.compression == "zstd" else raw

    def _skip(self, start: int) -> None:
        if isinstance(self._source, io.FileIO):
            self._source.seek(start)
            return
        view = memoryview(self._buffer)
        while start and (n := self._source.readinto(view[: min(start, len(view))])):
            start -= n

    def state(self) -> bytes:
        """What a reader of the rest of the file must know, at the present record border."""
        size = _STATE_HEAD + _INTERFACE_BYTES * self.walk.state.interfaces
        return bytes(ffi.buffer(ffi.addressof(self.walk.state), size))

    def state_set(self, state: bytes) -> None:
        if len(state) > ffi.sizeof("struct zp_state"):
            raise ValueError(f"a state of {len(state)} bytes")
        ffi.memmove(ffi.addressof(self.walk.state), state, len(state))

    @property
    def offset(self) -> int:
        """File offset of the next record."""
        return int(self.walk.base + self.walk.at)

    def fill(self) -> bool:
        """Read more after what is left; False if the file or range has ended. What a C function took from before (pointers into
        the buffer) is gone afterwards. Raises OSError."""
        walk = self.walk
        at, size = int(walk.at), self._size
        left = size - at
        need = max(int(walk.need), left + 1)
        if need > len(self._buffer):
            # A longer record than ever: the walker has refused what cannot be, so this is bounded.
            grown = bytearray(max(need, 2 * len(self._buffer)))
            grown[:left] = memoryview(self._buffer)[at:size]
            self._buffer = grown
            self._map = ffi.from_buffer(self._buffer)
            walk.data = ffi.cast("uint8_t *", self._map)
        elif at:
            ffi.memmove(walk.data, walk.data + at, left)
        walk.base += at
        walk.at = 0
        with memoryview(self._buffer) as view:
            while left < need:
                room = len(view) - left
                if self.end is not None:
                    room = min(room, self.end - int(walk.base) - left)
                n = self._source.readinto(view[left : left + room]) if room > 0 else 0
                if not n:
                    break
                left += n
        grew = left >= need
        walk.size = self._size = left
        if not grew:
            self.tail_bytes = left
            self.cut = getattr(self._source, "cut", "")
        return grew

    def head(self) -> bytes:
        """The first bytes in the buffer."""
        return bytes(memoryview(self._buffer)[: min(self._size, _NAMED_BY)])

    def fail(self, result: int) -> CaptureDamage:
        """The error for a negative result of a C function."""
        where = int(self.walk.error_at)
        if result == lib.ZP_E_MAGIC:
            self.walk.need = _NAMED_BY
            self.fill()
            return CaptureDamage(self.path, where, unknown_format(self.head()))
        detail = int(self.walk.detail)
        text = _ERRORS[result].format(detail)
        if result == lib.ZP_E_BLOCK:
            text += _why_not(detail)
        return CaptureDamage(self.path, where, text)

    def close(self) -> None:
        self._source.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _why_not(size: int) -> str:
    """Why no pcapng block has this length."""
    if size % 4:
        return ", which is no multiple of 4"
    return ", more than any has" if size > lib.ZP_RECORD_MAX else ", too few for its type"


def unknown_format(head: bytes) -> str:
    """The message about a file that begins with these bytes and is no capture."""
    for magic, text in _MAGICS:
        if head.startswith(magic):
            return f"no pcap or pcapng file but {text}"
    return f"neither pcap nor pcapng (begins with {head[:4].hex()}); editcap -F pcapng converts other formats"
