"""The data path below the protocol: a core that the tests steer, clients on socket pairs, interfaces in namespaces."""

from __future__ import annotations

import json
import select
import socket
import struct
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from zenjun.daemon.datapath import DataPath, Take, Turn, now_ns

CLUSTER = 0x5A4A0001
ETHERTYPE = 0x88B5
GROUP_MAC = bytes.fromhex("035a4a000001")
WAIT_S = 60.0
"""Longest wait for anything; a condition that holds is seen at once."""


class Double:
    """The C double of the core, its fields by name in ``c``."""

    def __init__(self, ffi: Any, lib: Any, self_index: int) -> None:
        self.ffi, self.lib = ffi, lib
        self.c = lib.double_create(self_index)

    @property
    def api_pointer(self) -> int:
        return int(self.ffi.cast("uintptr_t", self.lib.double_api()))

    @property
    def handle_pointer(self) -> int:
        return int(self.ffi.cast("uintptr_t", self.c))

    def deliver(
        self, group: int, data: bytes, *, client: int = 0, src: int = 1, type: int = 0, stage: int = 0, clock: int = 0
    ) -> None:
        """clock 0: one above the last one's."""
        self.lib.double_deliver(self.c, group, client, src, type, stage, clock, data, len(data))

    def positions(self, ordered: int, preack: int, ack: int) -> None:
        self.c.positions[0], self.c.positions[1], self.c.positions[2] = ordered, preack, ack

    def taken(self) -> list[tuple[int, int, bytes, bool]]:
        """Messages taken whole: (client, group, data, need_ack)."""
        out = []
        for i in range(self.c.log_count):
            m = self.c.log[i]
            out.append((m.client, m.group, bytes(self.ffi.buffer(m.data, m.size)), bool(m.need_ack)))
        return out


class Frame(NamedTuple):
    type: int
    flags: int
    handle: int
    body: bytes


def frame(type: int, body: bytes = b"", *, flags: int = 0, handle: int = 0) -> bytes:
    return struct.pack("<IBBH", len(body), type, flags, handle) + body


class Program:
    """The client's end of a connection."""

    def __init__(self, sock: socket.socket, slot: int) -> None:
        self.sock, self.slot = sock, slot
        self.buffer = bytearray()
        self.closed = False
        sock.setblocking(False)

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def read(self, limit: int = 1 << 30) -> int:
        """Read what is there; returns how many bytes."""
        count = 0
        while count < limit and not self.closed:
            try:
                data = self.sock.recv(min(1 << 20, limit - count))
            except BlockingIOError:
                break
            except ConnectionError:
                self.closed = True
                break
            if not data:
                self.closed = True
                break
            self.buffer += data
            count += len(data)
        return count

    def frames(self) -> list[Frame]:
        """Whole frames read so far, taken off."""
        out = []
        at = 0
        while len(self.buffer) - at >= 8:
            size, type_, flags, handle = struct.unpack_from("<IBBH", self.buffer, at)
            if len(self.buffer) - at - 8 < size:
                break
            out.append(Frame(type_, flags, handle, bytes(self.buffer[at + 8 : at + 8 + size])))
            at += 8 + size
        del self.buffer[:at]
        return out

    def receive(self) -> list[Frame]:
        self.read()
        return self.frames()

    def close(self) -> None:
        self.sock.close()


class Bench:
    """A data path on the double, with clients on socket pairs."""

    def __init__(self, core: Double, dp: DataPath) -> None:
        self.core, self.dp = core, dp
        self.programs: list[Program] = []

    def client(self, number: int) -> Program:
        theirs, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        program = Program(theirs, self.dp.client_add(ours.detach(), number))
        self.programs.append(program)
        return program

    def member(self, number: int, group: int = 7, *, handle: int = 1, level: int = 0, no_self: bool = False) -> Program:
        program = self.client(number)
        self.dp.handle(program.slot, handle, group, may_send=True)
        self.dp.join(program.slot, handle, group, level, no_self)
        return program

    def turn(self) -> Turn:
        return self.dp.turn(now_ns() + 60_000_000_000)

    def until(self, condition: Callable[[], object], *, want: int = 0, what: str = "") -> None:
        """Turn whenever there is work until the condition holds (or the turn wants ``want``)."""
        end = time.monotonic() + WAIT_S
        while True:
            turn = self.turn()
            if condition() or (want and turn.want & want):
                return
            left = end - time.monotonic()
            assert left > 0, f"not within {WAIT_S} s: {what or condition}; counters {self.dp.counters()}"
            select.select([self.dp.fileno()], [], [], min(left, 0.01))

    def close(self) -> None:
        for program in self.programs:
            program.close()
        self.dp.close()
        self.core.lib.double_destroy(self.core.c)


# ---- what was read

MESSAGE, DONE, ERROR = 66, 69, 70


T = TypeVar("T")


def grown(got: list[T], more: Iterable[T]) -> int:
    """Add what has come, and count: for conditions that are waited for."""
    got.extend(more)
    return len(got)


def messages(frames: list[Frame]) -> list[bytes]:
    return [f.body[16:] for f in frames if f.type == MESSAGE]


def done(frames: list[Frame]) -> list[tuple[int, int, int]]:
    return [struct.unpack("<QQQ", f.body) for f in frames if f.type == DONE]


def errors(frames: list[Frame]) -> list[dict[str, object]]:
    return [json.loads(f.body) for f in frames if f.type == ERROR]


def takes(bench: Bench) -> list[Take]:
    out = []
    while (t := bench.dp.take()) is not None:
        out.append(t)
    return out
