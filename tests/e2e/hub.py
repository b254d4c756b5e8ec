"""A hub in user space: what this kernel's queues cannot do to frames (delay, reordering, duplicates, bit errors, padding).

It takes the ports off the lab's bridge and carries the frames itself, between packet sockets, in a process of its own inside the
hub's namespace. Every decision comes from a seed. ``UserHub`` is the test's end; run as a program, this file is the process.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import json
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any

ETH_P_ALL = 3
SOL_PACKET = 263
PACKET_IGNORE_OUTGOING = 23
SO_RCVBUFFORCE = 33
SIOCGIFMTU = 0x8921
READY_S = 10.0
COUNTED = ("received", "sent", "lost", "duplicated", "corrupted", "overtaken", "refused")
BATCH = 64
"""Frames read from one port before the others get their turn."""


class UserHub:
    """``with UserHub(lab, seed=1, delay_ms=25, jitter_ms=10): …``; afterwards the bridge carries the frames again.

    delay_ms, jitter_ms: each copy waits delay ± jitter (uniform), so that copies overtake each other. loss, duplicate, corrupt:
    probabilities for each copy; corrupt flips one bit anywhere in the frame. pad_to, pad_byte, trailer: short frames are filled
    up, and so many bytes are put after every frame that leaves room for them. tci: every frame gets an 802.1Q tag with this
    priority and VLAN number (16 bits).
    """

    def __init__(self, lab: Any, *, seed: int, **settings: float) -> None:
        self._lab = lab
        self._settings = {"ports": len(lab.stations), "seed": seed, **settings}
        self._process: subprocess.Popen[str] | None = None
        self.counters: dict[str, int] = {}
        """What was done, once the block is over: received, sent, lost, duplicated, corrupted, overtaken, refused."""

    def __enter__(self) -> UserHub:
        pid = self._lab.request("info")["pid"]
        enter = ["nsenter", "-t", str(pid), "-n"]
        if Path(f"/proc/{pid}/ns/user").readlink() != Path("/proc/self/ns/user").readlink():
            enter += ["-U", "--preserve-credentials"]
        argv = [*enter, "--", sys.executable, __file__, json.dumps(self._settings)]
        environment = {**os.environ, "ZENJUN_LAB_TOKEN": self._lab.token}  # so that it goes down with the lab at the latest
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], READY_S)
        line = self._process.stdout.readline() if ready else ""
        if line.strip() != "ready":
            self._process.kill()
            self._process.wait()
            raise RuntimeError(f"the hub did not start: {line!r}")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        process, self._process = self._process, None
        assert process is not None
        out = ""
        try:
            process.send_signal(signal.SIGTERM)
            out = process.communicate(timeout=60)[0]
        finally:
            process.kill()
            process.wait()
        if kind is None:
            self.counters = json.loads(out)
        elif error is not None:
            error.add_note(f"hub: {out}")


class Hub:
    """The process's work."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._rng = random.Random(settings["seed"])
        self._delay_s = settings.get("delay_ms", 0.0) / 1000
        self._jitter_s = settings.get("jitter_ms", 0.0) / 1000
        self._loss = settings.get("loss", 0.0)
        self._duplicate = settings.get("duplicate", 0.0)
        self._corrupt = settings.get("corrupt", 0.0)
        self._pad_to = int(settings.get("pad_to", 0))
        self._pad = bytes([int(settings.get("pad_byte", 0))])
        self._trailer = int(settings.get("trailer", 0))
        tci = settings.get("tci")
        self._tag = b"" if tci is None else struct.pack(">HH", 0x8100, int(tci))
        self._ports = [f"s{number}" for number in range(1, settings["ports"] + 1)]
        self._sockets: list[socket.socket] = []
        self._limits: list[int] = []
        self._heap: list[tuple[float, int, int, bytes]] = []
        self._number = 0
        self._last_sent: dict[int, int] = {}
        self.counters: Counter[str] = Counter(dict.fromkeys(COUNTED, 0))

    def open(self) -> None:
        """Sockets on all ports first, so that hardly a frame is lost when the bridge lets go of them."""
        for name in self._ports:
            sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            sock.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
            with contextlib.suppress(OSError):  # refused in a user namespace: then the default has to do
                sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 16 << 20)
            sock.setblocking(False)
            self._sockets.append(sock)
            self._limits.append(self._mtu(name) + 14)
        self.attach(False)
        for name, sock in zip(self._ports, self._sockets, strict=True):
            sock.bind((name, ETH_P_ALL))

    def _mtu(self, name: str) -> int:
        request = struct.pack("16sI", name.encode(), 0)
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as sock:
            return int(struct.unpack("16sI", fcntl.ioctl(sock, SIOCGIFMTU, request))[1])

    def attach(self, to_bridge: bool) -> None:
        """Put the ports on the bridge, or take them off."""
        from pyroute2 import IPRoute

        with IPRoute() as ipr:
            master = ipr.link_lookup(ifname="br0")[0] if to_bridge else 0
            for name in self._ports:
                for index in ipr.link_lookup(ifname=name):
                    ipr.link("set", index=index, master=master)

    def run(self, stopped: list[int]) -> None:
        poll = select.poll()
        for sock in self._sockets:
            poll.register(sock, select.POLLIN)
        by_fd = {sock.fileno(): at for at, sock in enumerate(self._sockets)}
        while not stopped:
            wait_ms = None if not self._heap else max(0.0, (self._heap[0][0] - time.monotonic()) * 1000)
            # Whole milliseconds, rounded down: the last one is spent in a short loop rather than late.
            for fd, _ in poll.poll(50 if wait_ms is None else min(50, int(wait_ms))):
                self._receive(by_fd[fd])
            self._flush()

    def _receive(self, source: int) -> None:
        for _ in range(BATCH):
            try:
                frame = self._sockets[source].recv(65536)
            except (BlockingIOError, OSError):
                return
            self.counters["received"] += 1
            for target in range(len(self._sockets)):
                if target != source:
                    self._take(target, frame)

    def _take(self, target: int, frame: bytes) -> None:
        rng = self._rng
        copies = 1
        if rng.random() < self._loss:
            self.counters["lost"] += 1
            copies = 0
        elif rng.random() < self._duplicate:
            self.counters["duplicated"] += 1
            copies = 2
        now = time.monotonic()
        for _ in range(copies):
            data = frame
            if rng.random() < self._corrupt:
                self.counters["corrupted"] += 1
                bit = rng.randrange(8 * len(data))
                changed = bytearray(data)
                changed[bit // 8] ^= 1 << bit % 8
                data = bytes(changed)
            data += self._pad * max(0, self._pad_to - len(data))
            if len(data) + self._trailer <= self._limits[target]:
                data += b"\x5a" * self._trailer
            if self._tag:
                data = data[:12] + self._tag + data[12:]
            due = now + max(0.0, self._delay_s + rng.uniform(-self._jitter_s, self._jitter_s))
            self._number += 1
            heapq.heappush(self._heap, (due, self._number, target, data))

    def _flush(self) -> None:
        now = time.monotonic()
        while self._heap and self._heap[0][0] <= now:
            _, number, target, data = heapq.heappop(self._heap)
            try:
                self._sockets[target].send(data)
            except OSError:
                self.counters["refused"] += 1
                continue
            self.counters["sent"] += 1
            last = self._last_sent.get(target, 0)
            if number < last:
                self.counters["overtaken"] += 1
            self._last_sent[target] = max(last, number)


def main() -> None:
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stopped.append(number))
    hub = Hub(json.loads(sys.argv[1]))
    hub.open()
    print("ready", flush=True)
    try:
        hub.run(stopped)
    finally:
        with contextlib.suppress(Exception):
            hub.attach(True)
    print(json.dumps(hub.counters), flush=True)


if __name__ == "__main__":
    main()
