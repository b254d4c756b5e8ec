"""What a message costs in processor time, two or more settings in turns: three data paths with their cores on a bridge, in one
process on one processor, without the rest of the daemon.

    python -m tests.link.cost [VARIANT,…] [--size BYTES] [--rounds N]

Ratios are those within one round, so that they can be had on a machine that others keep busy; a message is counted when all three
programs have it. The time includes that of the programs (this process sends and reads without looking) and of the kernel.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import statistics
import time
from typing import Final, NamedTuple

from pyroute2 import IPRoute
from zenjun.daemon.datapath import DataPath, Sealing, Want, now_ns
from zenjun.proto.core import Core
from zenjun.proto.envelope import ENCRYPTED, OVERHEAD, Suite
from zenjun.proto.wire import view_hash

from .net import enter_namespace
from .rig import CLUSTER, ETHERTYPE, GROUP_MAC, frame

N: Final = 3
GROUP: Final = 7
MS: Final = 1_000_000
MTU: Final = 1500
EACH: Final = 1500
"""Messages of a round."""
FRAMING: Final = 32
"""Bytes of a MESSAGE besides its body."""
INCARNATIONS: Final = tuple(range(1, N + 1))


class Variant(NamedTuple):
    suite: int = 0
    ring: int = 8 << 20
    frame_max: int = 9000
    """Bytes that each buffer of the core has; with 9,000 each one begins in pages of its own."""


VARIANTS: Final = {
    "none": Variant(),
    "authenticate": Variant(suite=int(Suite.AES_256_GCM)),
    "encrypt": Variant(suite=Suite.AES_256_GCM + ENCRYPTED),
    "ring-1M": Variant(ring=1 << 20),
    "close": Variant(frame_max=MTU),
}


class Station:
    """A core, its data path, and a program's end of a socket pair."""

    def __init__(self, index: int, interface: str, variant: Variant, backlog: bytes) -> None:
        self.core = Core(
            stations=N, self_index=index, cluster=CLUSTER, window=111, slots=256, frame_max=variant.frame_max,
            message_max=1 << 20, confirm_delay_ns=MS // 5, nak_delay_ns=50 * MS, nak_retry_ns=50 * MS,
            nak_retry_max_ns=500 * MS, poll_delay_ns=100 * MS, poll_delay_max_ns=1000 * MS, retransmit_gap_ns=MS, seed=index,
        )  # fmt: skip
        self.dp = DataPath(
            self.core, station_index=index, ethertype=ETHERTYPE, cluster=CLUSTER, group_mac=GROUP_MAC, rest_ns=0, linger_ns=0,
            message_max=1 << 20, queue_bytes_max=16 << 20, ring_bytes=variant.ring, slice_ns=MS // 5,
            sealing=Sealing(N, variant.suite, bytes(32), 0, 1) if variant.suite else None,
        )  # fmt: skip
        self.dp.link_open(interface)
        theirs, self.program = socket.socketpair()
        self.program.setblocking(False)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            self.program.setsockopt(socket.SOL_SOCKET, option, 1 << 18)
        slot = self.dp.client_add(theirs.detach(), index + 1)
        self.dp.handle(slot, 1, GROUP, may_send=True)
        self.dp.join(slot, 1, GROUP, level=1)
        if variant.suite:
            for station in range(1, N + 1):
                session = bytes([station]) * 32
                if station == index + 1:
                    self.dp.seal_under(session, session)
                else:
                    self.dp.session_read(station, session, session, 1)
        largest = MTU - (OVERHEAD if variant.suite else 0)
        self.core.set_frame_max(largest)
        self.core.open(now_ns(), 1, view_hash(1, INCARNATIONS), INCARNATIONS, largest)
        self.got = 0
        self._backlog = memoryview(backlog)
        self._left = self._backlog
        self._buffer = bytearray(1 << 18)

    def turn(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._left = (self._left or self._backlog)[self.program.send(self._left or self._backlog) :]
        turn = self.dp.turn(now_ns() + 1000 * MS)
        if turn.want & Want.DEADLINE:
            self.core.nak(turn.now)
            self.core.poll(turn.now)
            self.dp.flush()
        with contextlib.suppress(BlockingIOError):
            while (read := self.program.recv_into(self._buffer)) == len(self._buffer):
                self.got += read
            self.got += read


def segment(prefix: str) -> list[str]:
    ip = IPRoute()
    ip.link("add", ifname=f"{prefix}br", kind="bridge")
    bridge = ip.link_lookup(ifname=f"{prefix}br")[0]
    ip.link("set", index=bridge, state="up")
    for i in range(N):
        ip.link("add", ifname=f"{prefix}s{i}", kind="veth", peer={"ifname": f"{prefix}p{i}"})
        ip.link("set", index=ip.link_lookup(ifname=f"{prefix}p{i}")[0], master=bridge, state="up")
        ip.link("set", index=ip.link_lookup(ifname=f"{prefix}s{i}")[0], state="up")
    return [f"{prefix}s{i}" for i in range(N)]


def cost(stations: list[Station], each: int) -> float:
    """µs of this process for a message. each: bytes of one at a program."""
    before = min(s.got for s in stations) // each
    began = time.process_time()
    while (now := min(s.got for s in stations) // each) < before + EACH:
        for s in stations:
            s.turn()
    return (time.process_time() - began) / (now - before) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description="Processor time of a message, in turns.")
    parser.add_argument("variants", nargs="?", default="none,authenticate,encrypt", help=f"of {', '.join(VARIANTS)}")
    parser.add_argument("--size", type=int, default=1300, help="bytes of a message")
    parser.add_argument("--rounds", type=int, default=40)
    arguments = parser.parse_args()
    names = arguments.variants.split(",")
    if unknown := [name for name in names if name not in VARIANTS]:
        parser.error(f"no such variant: {', '.join(unknown)}")
    if not 1 <= arguments.size <= 1 << 16 or arguments.rounds < 1:
        parser.error("a message has 1 to 65536 bytes, and there is at least one round")
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    enter_namespace()
    backlog = b"".join(frame(4, bytes(arguments.size), handle=1, flags=1) for _ in range(max(1, 200_000 // arguments.size)))
    groups = [
        [Station(i, interface, VARIANTS[name], backlog) for i, interface in enumerate(segment(f"v{k}"))]
        for k, name in enumerate(names)
    ]
    found: list[list[float]] = [[] for _ in names]
    for turn in range(arguments.rounds + 1):
        for k in range(len(names)):
            which = (k + turn) % len(names)
            found[which].append(cost(groups[which], arguments.size + FRAMING))
    for name, all_costs in zip(names, found, strict=True):
        costs = all_costs[1:]  # the first round touches the memory
        ratios = sorted(a / b for a, b in zip(costs, found[0][1:], strict=True))
        low, high = ratios[len(ratios) // 4], ratios[3 * len(ratios) // 4]
        print(
            f"{name}: {statistics.median(costs):.1f} µs a message, least {min(costs):.1f}; "
            f"against {names[0]} {statistics.median(ratios):.2f} ({low:.2f} to {high:.2f}), n = {len(costs)}"
        )


if __name__ == "__main__":
    main()
