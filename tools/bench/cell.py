"""One cell of the benchmark: start the clients, command the window, read the counters at its edges, compare the orders."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from .measure import Snapshot, sleep_until

START_S: Final = 25.0
"""Longest wait for all clients to be in the group; the client itself gives up after 20 s."""
LEAD_NS: Final = 50_000_000
"""From the command to the start of sending."""
IDLE_SETTLE_S: Final = 0.5
RATE_TOTAL: Final = 1000.0
"""Messages per second of all senders together in mode ``rate``: the light load of the aims."""
LEVELS: Final = ("ordered", "preack", "ack")

Json = dict[str, Any]


class BenchError(Exception):
    """A cell could not be measured; the text has the reason."""


@dataclass(frozen=True)
class Cell:
    """What is measured. ``mode``: ``throughput`` (all senders as fast as the system takes it), ``closed`` (one message in flight,
    one sender), ``rate`` (1,000 messages per second in all), ``idle`` (no program sends)."""

    stations: int
    senders: int
    size: int
    level: str
    mode: str
    loss: float
    mtu: int
    seconds: float
    warm_s: float
    drain_s: float
    rate: float = RATE_TOTAL
    watch: bool = False
    """The clients report events of the membership at once, and take commands while the window is open (load.h)."""

    @property
    def sending(self) -> int:
        """Stations that send in this mode; they are 1..sending."""
        return {"closed": 1, "idle": 0}.get(self.mode, self.senders)

    @property
    def inflight(self) -> int:
        """Most messages a sender has on the way: 1 MiB, and at most 8192. Enough for any window, and little enough that corosync,
        which melts under a deep queue of large messages, does its best too (tried from 100 KiB to 64 MiB)."""
        return max(4, min(8192, (1 << 20) // self.size))

    def client_arguments(self, station: int) -> list[str]:
        """For the load client (load.h)."""
        values = {
            "id": station,
            "stations": self.stations,
            "senders": self.sending,
            "size": self.size,
            "inflight": self.inflight,
            "level": LEVELS.index(self.level),
            "mode": self.mode,
            "rate": self.rate / max(1, self.sending),
            "watch": int(self.watch),
        }
        return [part for name, value in values.items() for part in (f"--{name}", str(value))]


class Cluster(Protocol):
    """A system under test, running at every station of a lab."""

    interface: str

    def daemon_pids(self) -> list[int]:
        """By station; empty for a program without daemons."""

    def spawn_client(self, station: int, cell: Cell) -> subprocess.Popen[bytes]:
        """Start the client at a station, 1..n, with pipes on its standard input and output and its errors on standard error; the
        process id is the client's own."""

    def counters(self) -> Mapping[str, int]:
        """The system's own counters, summed over the stations; those it does not have are missing. Names in use:
        ``retransmissions``, ``kernel_drops``, ``tx_frames``, ``tx_data``."""


class Client:
    """A running client and its output lines."""

    def __init__(self, station: int, process: subprocess.Popen[bytes]) -> None:
        self.station = station
        self.process = process
        self.buffer = b""
        self.errors = b""
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                os.set_blocking(stream.fileno(), False)

    def line(self, prefix: str, deadline: float) -> str:
        """The next line that starts with the prefix, without it. Raises BenchError at the deadline (time.monotonic) or when the
        client ends."""
        assert self.process.stdout is not None and self.process.stderr is not None
        while True:
            while b"\n" in self.buffer:
                line, self.buffer = self.buffer.split(b"\n", 1)
                if line.startswith(prefix.encode()):
                    return line[len(prefix) :].decode().strip()
            left = deadline - time.monotonic()
            if left <= 0:
                raise BenchError(f"client {self.station}: no {prefix} in time{self._why()}")
            ready, _, _ = select.select([self.process.stdout, self.process.stderr], [], [], left)
            if self.process.stderr in ready:
                self._read_errors()
            if self.process.stdout in ready:
                data = os.read(self.process.stdout.fileno(), 65536)
                if not data:
                    self._read_errors()
                    raise BenchError(f"client {self.station} ended before {prefix}{self._why()}")
                self.buffer += data
            elif self.process.poll() is not None and self.process.stderr in ready:
                time.sleep(0.001)  # end of the errors; the end of the output follows at once

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        try:
            self.errors = (self.errors + os.read(self.process.stderr.fileno(), 65536))[-4096:]
        except BlockingIOError:
            return

    def _why(self) -> str:
        return f": {self.errors.decode(errors='replace').strip()}" if self.errors.strip() else ""

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise BenchError(f"client {self.station} has ended{self._why()}") from None

    def end(self, grace_s: float) -> None:
        """Let it go: end of its input, then, if it does not follow within the grace, kill."""
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        try:
            self.process.wait(timeout=grace_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@dataclass(frozen=True)
class Window:
    """What one run gave: the clients' reports by station, what the kernel counted at both edges of the window, and the system's
    own counters before and after the whole run (warm-up and drain included)."""

    results: list[Json]
    before: Snapshot
    after: Snapshot
    counters_before: Mapping[str, int]
    counters_after: Mapping[str, int]

    @property
    def seconds(self) -> float:
        return (self.after.at_ns - self.before.at_ns) / 1e9

    def counted(self, name: str) -> int | None:
        """A counter of the system's own over the whole run; None if it has none of that name."""
        if name not in self.counters_after:
            return None
        return self.counters_after[name] - self.counters_before.get(name, 0)


def run_window(cluster: Cluster, cell: Cell) -> Window:
    """Run the clients once. Takes at most START_S + warm_s + seconds + drain_s + a few seconds. Raises BenchError."""
    clients: list[Client] = []
    grace_s = 0.0  # a client that has not reported yet has nothing to report
    try:
        for station in range(1, cell.stations + 1):
            clients.append(Client(station, cluster.spawn_client(station, cell)))
        deadline = time.monotonic() + START_S
        for client in clients:
            client.line("READY", deadline)
        daemons = cluster.daemon_pids()
        pids = [c.process.pid for c in clients]
        # Asked for outside the load: answering is work, and an answer may be slow in coming under it.
        counters_before = cluster.counters()
        settle = IDLE_SETTLE_S if cell.mode == "idle" else 0.0
        t0 = time.monotonic_ns() + LEAD_NS
        w0 = t0 + int((cell.warm_s + settle) * 1e9)
        w1 = w0 + int(cell.seconds * 1e9)
        end = w1 + int(cell.drain_s * 1e9)
        for client in clients:
            client.say(f"GO {t0} {w0} {w1} {end}")
        sleep_until(w0)
        before = Snapshot.take(daemons, pids, cluster.interface)
        sleep_until(w1)
        after = Snapshot.take(daemons, pids, cluster.interface)
        deadline = time.monotonic() + cell.drain_s + 5
        results = [json.loads(client.line("RESULT", deadline)) for client in clients]
        counters_after = cluster.counters()
        grace_s = 2.0
        return Window(results, before, after, counters_before, counters_after)
    finally:
        for client in clients:
            client.end(grace_s)


def run_phases(
    cluster: Cluster, cell: Cell, acts: Sequence[Callable[[], None]], phase_s: float, *, realtime: bool = False
) -> tuple[list[Json], list[float]]:
    """Run the clients once (``cell.watch``): warm-up, a phase in which nothing happens, and one for each act, which begins
    with it and goes on for ``phase_s`` when it has been done; ``cell.seconds`` is the longest time for all.

    Returns the clients' reports by station, each with ``fewer``: how many views of fewer members it was told of; and the longest
    time without a delivery at any station, ms, by phase. realtime: the clients wait for no program without real-time priority.
    Raises BenchError, and what an act raises.
    """
    clients: list[Client] = []
    grace_s = 0.0
    try:
        for station in range(1, cell.stations + 1):
            clients.append(Client(station, cluster.spawn_client(station, cell)))
        deadline = time.monotonic() + START_S
        for client in clients:
            client.line("READY", deadline)
            if realtime:
                os.sched_setscheduler(client.process.pid, os.SCHED_RR, os.sched_param(1))
        t0 = time.monotonic_ns() + LEAD_NS
        w0 = t0 + int(cell.warm_s * 1e9)
        w1 = w0 + int(cell.seconds * 1e9)
        for client in clients:
            client.say(f"GO {t0} {w0} {w1} {w1 + int(cell.drain_s * 1e9)}")
        sleep_until(w0)
        time.sleep(phase_s)
        for act in acts:
            for client in clients:
                client.say("MARK")
            act()
            time.sleep(phase_s)
        for client in clients:
            client.say("STOP")
        deadline = time.monotonic() + cell.drain_s + 5
        results = [_report(client, cell.stations, deadline) for client in clients]
        grace_s = 2.0
    finally:
        for client in clients:
            client.end(grace_s)
    return results, [max(phase) for phase in zip(*(r["gap_max_ms_by_phase"] for r in results), strict=True)]


def _report(client: Client, stations: int, deadline: float) -> Json:
    fewer = 0
    while not (line := client.line("", deadline)).startswith("RESULT"):
        fewer += line.startswith("GROUP") and int(line.split()[2]) < stations
    return {**json.loads(line[len("RESULT") :]), "fewer": fewer}


def problems(cell: Cell, results: Sequence[Json], *, ordered: bool = True) -> list[str]:
    """What a run of the load clients did wrong, one sentence each; empty: every station delivered the same messages, in the same
    order if they are ordered, each sender's complete and in its order."""
    found = []
    for r in results:
        if r["broken"]:
            found.append(f"station {r['id']}: the connection broke: {'; '.join(r['events']) or 'no reason given'}")
        bad = {name: count for name, count in r["bad"].items() if count}
        if bad:
            found.append(f"station {r['id']}: wrong messages: {bad}")
    if any(r["ends"] < cell.sending for r in results):
        found.append(f"not all messages had arrived {cell.drain_s:g} s after the window")
    elif len({(r["digest"] if ordered else 0, r["delivered"]) for r in results}) != 1:
        orders = ", ".join(f"{r['id']}: {r['delivered']} messages, {r['digest']}" for r in results)
        found.append(f"the sequences differ ({orders})")
    elif results[0]["delivered"] != sum(r["sent"] for r in results):
        found.append("not every message sent was delivered")
    return found


def worst(results: Sequence[Json], name: str) -> Json | None:
    """A latency histogram's figures at the station where each is highest, µs; None if no station has any."""
    having = [r[name] for r in results if r[name]]
    if not having:
        return None
    return {k: max(h[k] for h in having) for k in ("p50_us", "p99_us", "p999_us", "max_us")}


def summary(cell: Cell, window: Window, *, ordered: bool = True) -> Json:
    """The figures of a cell, as they go into its JSON line (docs/performance.md has the table of members)."""
    results, seconds = window.results, window.seconds
    rates = [r["window_messages"] / cell.seconds for r in results]
    slowest = min(rates)
    before, after = window.before, window.after
    daemons_cores = sum(b - a for a, b in zip(before.daemons_ns, after.daemons_ns, strict=True)) / 1e9 / seconds
    clients_cores = sum(b - a for a, b in zip(before.clients_ns, after.clients_ns, strict=True)) / 1e9 / seconds
    tx_per_s = sum(b.tx_frames - a.tx_frames for a, b in zip(before.interfaces, after.interfaces, strict=True)) / seconds
    found = problems(cell, results, ordered=ordered)
    frames, data = window.counted("tx_frames"), window.counted("tx_data")

    def per_million(cores: float) -> float | None:
        return round(cores / slowest * 1e6, 2) if slowest else None

    own = worst(results, "self")
    return {
        "messages_per_s": round(slowest, 1),
        "messages_per_s_by_station": [round(r, 1) for r in rates],
        "megabytes_per_s": round(slowest * cell.size / 1e6, 3),
        "latency": worst(results, "others"),
        "latency_own": own,
        "latency_from_due": worst(results, "due"),
        "round_trip_p50_us": own["p50_us"] if own and cell.mode == "closed" else None,
        "gap_max_ms": max(r["gap_max_ms"] for r in results),
        "cpu": {
            "daemons_s_per_million": per_million(daemons_cores),
            "clients_s_per_million": per_million(clients_cores),
            "daemons_cores": round(daemons_cores, 4),
            "clients_cores": round(clients_cores, 4),
            **machine_cpu(window, daemons_cores + clients_cores),
        },
        "frames": {
            "per_s": round(tx_per_s, 1),
            "per_message": round(tx_per_s / slowest, 3) if slowest else None,
            # the share is of the whole run, the rate of the window
            "data_per_s": round(tx_per_s * data / frames, 1) if data is not None and frames else None,
        },
        "retransmissions": window.counted("retransmissions"),
        "drops": {
            "kernel": window.counted("kernel_drops"),
            "interface": sum(b.rx_dropped - a.rx_dropped for a, b in zip(before.interfaces, after.interfaces, strict=True)),
        },
        "refused_sends": sum(r["refused"] for r in results),
        "events": sorted({e for r in results for e in r["events"]}),
        "ok": not found,
        "problems": found,
    }


def machine_cpu(window: Window, ours_cores: float) -> Json:
    """Of the machine: cores busy; of these, those that kernel threads kept busy, and those that other programs did (foreign)."""
    a, b, seconds = window.before.machine, window.after.machine, window.seconds
    busy = (b.busy_s - a.busy_s) / seconds
    kernel = (window.after.kernel_ns - window.before.kernel_ns) / 1e9 / seconds
    return {
        "machine_cores": os.cpu_count(),
        "busy_cores": round(busy, 3),
        "kernel_cores": round(kernel, 3),
        "foreign_cores": round(max(0.0, busy - ours_cores - kernel), 3),
        "softirq_cores": round((b.softirq_s - a.softirq_s) / seconds, 3),
        "steal_cores": round((b.steal_s - a.steal_s) / seconds, 3),
    }


def raw_summary(cell: Cell, window: Window) -> Json:
    """Of the bare program: frames per second of all senders together, as the slowest station received them plus its own."""
    results, seconds = window.results, window.seconds
    sent = (
        sum(b.tx_frames - a.tx_frames for a, b in zip(window.before.interfaces, window.after.interfaces, strict=True)) / seconds
    )
    received = [r["window_frames"] / cell.seconds for r in results]
    # A station does not hear itself: with s senders each receives (s - 1)/s of the frames, a listener all.
    share = [(cell.senders - 1) / cell.senders if r["id"] <= cell.senders else 1.0 for r in results]
    rates = [fps / part for fps, part in zip(received, share, strict=True) if part]
    cores = sum(b - a for a, b in zip(window.before.clients_ns, window.after.clients_ns, strict=True)) / 1e9 / seconds
    lost = sum(r["lost"] for r in results)
    per_s = sum(received) / (cell.stations - 1)
    broken = [f"station {r['id']}: the program failed" for r in results if r["broken"]]
    return {
        "frames_per_s": round(per_s, 1),
        "frames_per_s_slowest": round(min(rates), 1),
        "gigabit_per_s": round(per_s * cell.size * 8 / 1e9, 3),
        "lost": lost,
        "credit_frames": sum(r["credits"] for r in results),
        "frames": {"per_s": round(sent, 1), "per_message": None, "data_per_s": round(per_s, 1)},
        "cpu": {
            "clients_cores": round(cores, 4),
            "clients_s_per_million": round(cores / per_s * 1e6, 2) if per_s else None,
            **machine_cpu(window, cores),
        },
        "ok": not broken,
        "problems": broken,
    }
