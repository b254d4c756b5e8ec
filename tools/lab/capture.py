"""Record every frame that a station sends or receives, whole, into a pcapng file with nanosecond time stamps.

Run as a program of its own, in the station's network namespace, by the path of this file: it needs nothing but the standard
library and so starts in a few milliseconds. It prints ``ready`` when no frame can be missed any more and, at the end, one
JSON line: frames, bytes, dropped (frames the kernel had no room for). SIGTERM and SIGINT end it after all that has arrived
is in the file.

The socket is bound to no interface: an interface that is taken away and made again continues to be recorded, as a further
interface of the file. The loopback is left out. VLAN tags, which the kernel keeps beside the frame, are put back.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import platform
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import BinaryIO, Final

SNAPLEN: Final = 262_144
"""Longest frame kept, bytes: more than any interface sends."""

_SOL_PACKET = 263
_PACKET_RX_RING, _PACKET_STATISTICS, _PACKET_VERSION = 5, 6, 10
_TPACKET_V3 = 2
_ETH_P_ALL = 3
_LOOPBACK_INDEX = 1  # the loopback is the first interface of every network namespace
# A block is handed over when it is full or its time is up, however little is in it: many small blocks bridge a longer time
# in which this program is not scheduled. One must hold the largest frame with its header.
_BLOCK_BYTES = 1 << 17
_RETIRE_MS = 10
_LAST_S = 5.0
"""For the kernel to hand over what had arrived when the capture was ended: ten milliseconds, unless the machine stands still."""
_STATUS_USER, _STATUS_VLAN, _STATUS_TPID = 1, 1 << 4, 1 << 6

_FRAME = struct.Struct("=IIIIIIHHIIH")  # struct tpacket3_hdr up to the VLAN's protocol
_SENDER = struct.Struct("=iHB")  # struct sockaddr_ll from the interface's index on
_SENDER_OFFSET = 48 + 4
_STATISTICS = struct.Struct("=III")

_SHB, _IDB, _ISB, _EPB = 0x0A0D0D0A, 1, 5, 6
# pcapng direction and reception type, by the kernel's packet type: host, broadcast, multicast, other host, outgoing
_FLAGS: Final = {0: 0b00101, 1: 0b01101, 2: 0b01001, 3: 0b10001, 4: 0b00010}


def _option(code: int, value: bytes) -> bytes:
    return struct.pack("=HH", code, len(value)) + value + bytes(-len(value) % 4)


def _block(kind: int, body: bytes) -> bytes:
    size = len(body) + 12
    return struct.pack("=II", kind, size) + body + struct.pack("=I", size)


class PcapngWriter:
    """Writes a pcapng file: one section, Ethernet interfaces, nanoseconds since 1970, direction in the frames' flags."""

    def __init__(self, file: BinaryIO, application: str) -> None:
        self._file = file
        self._interfaces = 0
        options = (
            _option(3, f"{platform.system()} {platform.release()}".encode()) + _option(4, application.encode()) + _option(0, b"")
        )
        file.write(_block(_SHB, struct.pack("=IHHq", 0x1A2B3C4D, 1, 0, -1) + options))

    def interface(self, name: str, description: str) -> int:
        """Announce an interface; returns its number in the file."""
        options = _option(2, name.encode()) + _option(3, description.encode()) + _option(9, b"\x09") + _option(0, b"")
        self._file.write(_block(_IDB, struct.pack("=HHI", 1, 0, SNAPLEN) + options))
        self._interfaces += 1
        return self._interfaces - 1

    def frame(self, interface: int, time_ns: int, data: bytes, length: int, flags: int) -> None:
        """Add one frame: *data* is what was kept of its *length* bytes."""
        padding = -len(data) % 4
        size = 44 + len(data) + padding
        head = struct.pack("=IIIIIII", _EPB, size, interface, time_ns >> 32, time_ns & 0xFFFFFFFF, len(data), length)
        self._file.write(b"".join((head, data, bytes(padding), struct.pack("=HHIII", 2, 4, flags, 0, size))))

    def statistics(self, interface: int, time_ns: int, received: int, dropped: int) -> None:
        """Add an interface's totals: frames received by the capture and frames it had to leave out."""
        options = _option(4, struct.pack("=Q", received)) + _option(5, struct.pack("=Q", dropped)) + _option(0, b"")
        self._file.write(_block(_ISB, struct.pack("=III", interface, time_ns >> 32, time_ns & 0xFFFFFFFF) + options))


class Ring:
    """A packet socket for all frames of this network namespace, with a memory-mapped ring (TPACKET_V3)."""

    def __init__(self, size_bytes: int) -> None:
        """size_bytes: of the ring, rounded down to whole blocks of 128 KiB, at least one. Raises OSError."""
        self._blocks = max(1, size_bytes // _BLOCK_BYTES)
        self._next = 0
        self._put = self._dropped = 0
        self.taken = 0
        """Frames that ``frames`` has given."""
        # Protocol 0: nothing arrives before the ring is there.
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self._socket.setsockopt(_SOL_PACKET, _PACKET_VERSION, _TPACKET_V3)
        frames = self._blocks * (_BLOCK_BYTES // 2048)
        request = struct.pack("=IIIIIII", _BLOCK_BYTES, self._blocks, 2048, frames, _RETIRE_MS, 0, 0)
        self._socket.setsockopt(_SOL_PACKET, _PACKET_RX_RING, request)
        self._map = mmap.mmap(self._socket.fileno(), self._blocks * _BLOCK_BYTES)
        # bind() in Python wants the name of an interface that exists; the bare call takes index 0, all of them.
        address = struct.pack("=HHiHBB8s", socket.AF_PACKET, socket.htons(_ETH_P_ALL), 0, 0, 0, 0, b"")
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.bind(self._socket.fileno(), address, len(address)) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def fileno(self) -> int:
        """For poll()."""
        return self._socket.fileno()

    def frames(self) -> Iterator[tuple[int, int, bytes, int, int]]:
        """(interface index, time in ns, kept bytes, length, packet type) of all frames in blocks that are ready."""
        ring = self._map
        while True:
            base = self._next * _BLOCK_BYTES
            status, count, first = struct.unpack_from("=III", ring, base + 8)
            if not status & _STATUS_USER:
                return
            at = base + first
            for _ in range(count):
                step, sec, nsec, kept, length, flags, mac, _net, _hash, tci, tpid = _FRAME.unpack_from(ring, at)
                index, _hardware, kind = _SENDER.unpack_from(ring, at + _SENDER_OFFSET)
                data = ring[at + mac : at + mac + kept]
                if flags & _STATUS_VLAN:
                    tag = struct.pack("!HH", tpid if flags & _STATUS_TPID else 0x8100, tci)
                    data, length = data[:12] + tag + data[12:], length + 4
                self.taken += 1
                yield index, sec * 1_000_000_000 + nsec, data, length, kind
                at += step
            struct.pack_into("=I", ring, base + 8, 0)
            self._next = (self._next + 1) % self._blocks

    def counted(self) -> tuple[int, int]:
        """(frames put into the ring, frames dropped for want of room) up to now."""
        raw = self._socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, _STATISTICS.size)
        arrived, dropped, _ = _STATISTICS.unpack(raw)  # since it was last asked
        self._put += arrived - dropped
        self._dropped += dropped
        return self._put, self._dropped


class Capture:
    """One running capture."""

    def __init__(self, path: Path, description: str, ring_bytes: int, count_max: int) -> None:
        self._description = description
        self._count_max = count_max
        self._ring = Ring(ring_bytes)
        self._file = path.open("wb")
        self._writer = PcapngWriter(self._file, "zenjun lab")
        self._interfaces: dict[int, int] = {}
        self._last_ns = 0
        self.frames = 0
        self.bytes = 0

    def _interface(self, index: int) -> int:
        number = self._interfaces.get(index)
        if number is None:
            try:
                name = socket.if_indextoname(index)
            except OSError:
                name = f"if{index}"  # it has gone already
            number = self._interfaces[index] = self._writer.interface(name, self._description)
        return number

    def _drain(self) -> None:
        for index, time_ns, data, length, kind in self._ring.frames():
            if index == _LOOPBACK_INDEX or self.full:
                continue
            self._writer.frame(self._interface(index), time_ns, data, length, _FLAGS.get(kind, 0))
            self.frames += 1
            self.bytes += len(data)
            self._last_ns = time_ns
        self._file.flush()

    @property
    def full(self) -> bool:
        """Whether the requested number of frames has been reached."""
        return bool(self._count_max) and self.frames >= self._count_max

    def run(self, stop_fd: int) -> int:
        """Record until *stop_fd* is readable or the count is reached; returns the number of dropped frames."""
        poller = select.poll()
        poller.register(self._ring, select.POLLIN)
        poller.register(stop_fd, select.POLLIN)
        while not self.full:
            ready = {fd for fd, _ in poller.poll(1000)}
            self._drain()
            if stop_fd in ready:
                # What has arrived by now may sit in a block that the kernel hands over when its time is up.
                arrived, _ = self._ring.counted()
                end = time.monotonic() + _LAST_S
                while self._ring.taken < arrived and (left := end - time.monotonic()) > 0 and not self.full:
                    select.select([self._ring], [], [], left)
                    self._drain()
                break
        _, dropped = self._ring.counted()
        if not self._interfaces:
            self._interface(2)
        for number in self._interfaces.values():
            self._writer.statistics(number, self._last_ns or time.time_ns(), self.frames, dropped)
        self._file.close()
        return dropped


def main() -> int:
    """Parse the arguments, record, report."""
    parser = argparse.ArgumentParser(description="record all frames of this network namespace into a pcapng file")
    parser.add_argument("file", type=Path)
    parser.add_argument("--description", default="")
    parser.add_argument("--ring-mib", type=int, default=32)
    parser.add_argument("--count", type=int, default=0)
    arguments = parser.parse_args()
    read_end, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(write_end)

    def wake(_number: int, _frame: FrameType | None) -> None:
        """The wake-up descriptor does the work."""

    signal.signal(signal.SIGTERM, wake)
    signal.signal(signal.SIGINT, wake)
    try:
        capture = Capture(arguments.file, arguments.description, arguments.ring_mib << 20, arguments.count)
    except OSError as error:
        print(f"{arguments.file}: {error.strerror}", flush=True)
        return 1
    print("ready", flush=True)
    dropped = capture.run(read_end)
    print(json.dumps({"frames": capture.frames, "bytes": capture.bytes, "dropped": dropped}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
