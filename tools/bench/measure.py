"""What the kernel counts about processes, machine and interfaces, read from /proc at the edges of a window."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


def cpu_ns(pid: int) -> int:
    """CPU time of all threads of a process so far, ns; 0 if it is gone. ``schedstat`` is exact where ``stat`` counts 10 ms ticks.
    Work the kernel does in the process's system calls, packet forwarding included, is in it."""
    total = 0
    try:
        threads = list((PROC / str(pid) / "task").iterdir())
    except OSError:
        return 0
    for thread in threads:
        try:
            total += int((thread / "schedstat").read_text().split()[0])
        except (OSError, IndexError, ValueError):
            continue  # ended meanwhile
    return total


def kernel_threads_ns() -> int:
    """CPU time of all kernel threads so far, ns: packets are also carried there (ksoftirqd). 0 in a process namespace that does
    not show them."""
    total = 0
    for process in PROC.iterdir():
        if not process.name.isdigit():
            continue
        try:
            # The parent is the second field after the name, which ends at the last parenthesis.
            if (process / "stat").read_text().rpartition(")")[2].split()[1] == "2":
                total += int((process / "schedstat").read_text().split()[0])
        except (OSError, IndexError, ValueError):
            continue
    return total


@dataclass(frozen=True)
class Machine:
    """CPU seconds of the whole machine since it started, by /proc/stat (10 ms ticks)."""

    busy_s: float
    softirq_s: float
    steal_s: float

    @classmethod
    def read(cls) -> Machine:
        fields = [int(x) / TICKS_PER_S for x in (PROC / "stat").read_text().split("\n", 1)[0].split()[1:9]]
        user, nice, system, _idle, _iowait, irq, softirq, steal = fields
        return cls(user + nice + system + irq + softirq, softirq, steal)


@dataclass(frozen=True)
class Interface:
    """Frame counters of one interface since it was made."""

    tx_frames: int
    tx_bytes: int
    rx_frames: int
    rx_dropped: int

    @classmethod
    def read(cls, pid: int, name: str) -> Interface:
        """In the network namespace of a process. Raises OSError if either is gone."""
        for line in (PROC / str(pid) / "net" / "dev").read_text().splitlines():
            head, _, rest = line.partition(":")
            if head.strip() == name:
                f = [int(x) for x in rest.split()]
                return cls(tx_frames=f[9], tx_bytes=f[8], rx_frames=f[1], rx_dropped=f[3])
        raise OSError(f"no interface {name} in the namespace of process {pid}")


@dataclass(frozen=True)
class Snapshot:
    """Everything at one moment."""

    at_ns: int
    daemons_ns: tuple[int, ...]
    clients_ns: tuple[int, ...]
    kernel_ns: int
    machine: Machine
    interfaces: tuple[Interface, ...]

    @classmethod
    def take(cls, daemons: list[int], clients: list[int], interface: str) -> Snapshot:
        """daemons, clients: process ids, by station; clients are always there, a bare program has no daemons."""
        return cls(
            at_ns=time.monotonic_ns(),
            daemons_ns=tuple(cpu_ns(p) for p in daemons),
            clients_ns=tuple(cpu_ns(p) for p in clients),
            kernel_ns=kernel_threads_ns(),
            machine=Machine.read(),
            interfaces=tuple(Interface.read(p, interface) for p in clients),
        )


def sleep_until(at_ns: int) -> None:
    """Sleep to an absolute time of the monotonic clock."""
    while (left := at_ns - time.monotonic_ns()) > 0:
        time.sleep(left / 1e9)
