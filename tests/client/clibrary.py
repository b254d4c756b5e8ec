"""libzenjun for the tests: built by its Makefile, called through cffi with the declarations of its own header."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cffi import FFI

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "daemon" / "client" / "c"
HEADER = SOURCES / "zenjun.h"
BUILD_S = 120
WAIT_MS = 60_000
"""Longest wait of a call that is to succeed."""


def build(folder: Path, *arguments: str) -> Path:
    """Make the library in a folder, with warnings as errors; the path of the shared one."""
    done = subprocess.run(
        ["make", "-s", "-C", str(SOURCES), f"BUILD={folder}", "CPPFLAGS=-Werror", *arguments],
        capture_output=True, text=True, timeout=BUILD_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder / "libzenjun.so"


def compiled(program: Path, source: Path, folder: Path, *flags: str, compiler: str = "gcc") -> Path:
    """A program on the library in ``folder``, linked statically."""
    command = [compiler, "-g", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{SOURCES}", *flags]
    command += ["-o", str(program), str(source), str(folder / "libzenjun.a")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S, check=False)
    assert done.returncode == 0, done.stderr
    return program


def declarations() -> FFI:
    """What the header declares."""
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)
    text = re.sub(r"#ifdef __cplusplus.*?#endif", "", text, flags=re.DOTALL)
    numbers = re.findall(r"^#define (ZENJUN_\w+) \(?(-?\d+)\)?\s*$", text, re.MULTILINE)
    text = re.sub(r"^#.*$", "", text, flags=re.MULTILINE)
    for name, number in numbers:
        text = re.sub(rf"\b{name}\b(?=\])", number, text)
    ffi = FFI()
    ffi.cdef("struct iovec { void *iov_base; size_t iov_len; };" + text.replace("ZENJUN_PUBLIC", ""))
    ffi.cdef("".join(f"#define {name} {number}\n" for name, number in numbers))
    return ffi


def abi(library: Path) -> list[str]:
    """What programs depend on: exported functions, sizes of structs, places of fields, numbers."""
    ffi = declarations()
    said = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True, timeout=10).stdout
    lines = [f"function {line.split()[-1]}" for line in said.splitlines() if " T " in line]
    for name in ffi.list_types()[1]:
        kind = ffi.typeof(f"struct {name}")
        if name != "iovec" and kind.fields is not None:
            lines.append(f"struct {name} {ffi.sizeof(kind.cname)}")
            lines += [f"  {name}.{field} {at.offset} {at.type.cname}" for field, at in kind.fields]
    constants = ffi.dlopen(None)
    return lines + [f"constant {name} {getattr(constants, name)}" for name in sorted(dir(constants)) if name.isupper()]


class Failed(Exception):
    """A call gave an error; ``name`` is the library's word for it."""

    def __init__(self, name: str, reason: str = "") -> None:
        super().__init__(f"{name}: {reason}" if reason else name)
        self.name = name


class Library:
    """The functions, with errors as exceptions where a call is to succeed."""

    def __init__(self, path: Path) -> None:
        self.ffi = declarations()
        self.lib: Any = self.ffi.dlopen(str(path))

    def text(self, pointer: Any) -> str:
        value: Any = self.ffi.string(pointer)
        return str(value.decode())

    def check(self, result: int) -> int:
        if result < 0:
            raise Failed(self.text(self.lib.zenjun_error_name(result)))
        return result


class Link:
    """One connection."""

    def __init__(self, library: Library, path: str, name: str = "c", patience_ms: int = 0, timeout_ms: int = WAIT_MS) -> None:
        self.library, self.ffi, self.lib = library, library.ffi, library.lib
        place = self.ffi.new("struct zenjun **")
        library.check(self.lib.zenjun_connect(path.encode(), name.encode(), patience_ms, timeout_ms, place))
        self.z = place[0]

    def join(self, group: str, level: int = -1, order: int = 0, flags: int = 0, context: Any = None) -> int:
        handle = self.ffi.new("uint32_t *")
        known = self.ffi.NULL if context is None else context
        self.library.check(self.lib.zenjun_join(self.z, group.encode(), level, order, flags, known, handle))
        return int(handle[0])

    def joined(self, group: str, level: int = -1, order: int = 0, flags: int = 0) -> int:
        handle = self.join(group, level, order, flags)
        self.library.check(self.lib.zenjun_wait_joined(self.z, handle, WAIT_MS))
        return handle

    def send(self, handle: int, *parts: bytes, level: int = 1) -> int:
        number = self.ffi.new("uint64_t *")
        kept = [self.ffi.from_buffer(p) for p in parts]
        vector = self.ffi.new("struct iovec[]", [(p, len(p)) for p in kept])
        self.library.check(self.lib.zenjun_send(self.z, handle, vector, len(parts), level, number))
        return int(number[0])

    def send_to(self, handles: Sequence[int], *parts: bytes, level: int = 1) -> int:
        number = self.ffi.new("uint64_t *")
        kept = [self.ffi.from_buffer(p) for p in parts]
        vector = self.ffi.new("struct iovec[]", [(p, len(p)) for p in kept])
        listed = self.ffi.new("uint32_t[]", list(handles))
        self.library.check(self.lib.zenjun_send_to(self.z, listed, len(handles), vector, len(parts), level, number))
        return int(number[0])

    def wait_sent(self, number: int, level: int = 1, ms: int = WAIT_MS) -> None:
        self.library.check(self.lib.zenjun_wait_sent(self.z, number, level, ms))

    def ask(self, call: str, *arguments: Any) -> int:
        number = self.ffi.new("uint32_t *")
        self.library.check(getattr(self.lib, f"zenjun_{call}")(self.z, *arguments, number))
        return int(number[0])

    def recv(self, ms: int = WAIT_MS) -> Any:
        """The next item; its memory is the library's."""
        place = self.ffi.new("const struct zenjun_item **")
        self.library.check(self.lib.zenjun_recv(self.z, place, ms))
        return place[0]

    def next(self) -> Any:
        """The next item that is here, or None."""
        place = self.ffi.new("const struct zenjun_item **")
        return place[0] if self.library.check(self.lib.zenjun_next(self.z, place)) else None

    def step(self) -> None:
        self.library.check(self.lib.zenjun_step(self.z))

    def until(self, kind: str, test: Callable[[Any], object] = lambda item: True, ms: int = WAIT_MS) -> Any:
        """The first item of this kind for which the test holds; those before it are dropped. kind: as in the header."""
        wanted = getattr(self.lib, f"ZENJUN_{kind}")
        end = time.monotonic() + ms / 1000
        while True:
            item = self.recv(max(0, int((end - time.monotonic()) * 1000)))
            if item.kind == wanted and test(item):
                return item

    def data(self, item: Any) -> bytes:
        return bytes(self.ffi.buffer(item.data, item.length))

    def message(self, ms: int = WAIT_MS) -> bytes:
        return self.data(self.until("MESSAGE", ms=ms))

    @property
    def facts(self) -> Any:
        return self.lib.zenjun_facts(self.z)

    @property
    def welcome(self) -> Any:
        return self.lib.zenjun_welcome(self.z)

    @property
    def reason(self) -> str:
        return self.library.text(self.lib.zenjun_reason(self.z))

    def close(self, ms: int = 5000) -> int:
        z, self.z = self.z, self.ffi.NULL
        return int(self.lib.zenjun_close(z, ms))

    def members(self, listed: Any, count: int) -> list[tuple[int, int, str]]:
        return [(m.station, m.client, self.library.text(m.name)) for m in (listed[i] for i in range(count))]


@contextmanager
def link(library: Library, path: object, name: str = "c", **options: int) -> Iterator[Link]:
    """A connection, closed in the end."""
    made = Link(library, os.fspath(path) if isinstance(path, os.PathLike) else str(path), name, **options)
    try:
        yield made
    finally:
        made.close(0)
