"""What groups of orders ``token`` and ``abcast`` cost beside ``total``, in one lab of eight stations.

Lone messages, in a lab with slow timers: frames received by all stations together for one message, and how long its sender waits,
for groups of one station to all. Then with the default timers, and with the load program of ``zenjun bench``, which is in C, for
all orders alike: time to delivery with one message under way; a steady stream to a group of three, and what a station outside has
of it; disjoint pairs at full speed; a group of three at full speed; a kill outside the group.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, NamedTuple

from ..lab import Lab, LabError
from .cell import BenchError, Cell, Client, Json, problems, worst
from .measure import Interface, cpu_ns, sleep_until
from .plan import machine
from .systems import Zenjun, worker
from .table import markdown, number

KIND: Final = "groups"
ORDERS: Final = ("total", "abcast", "token")
ORDER_NUMBERS: Final = {"total": 0, "abcast": 2, "token": 3}
"""``enum zenjun_order``."""
WHAT: Final = ("lone", "latency", "steady", "pairs", "full", "kill")
QUIET: Final[Mapping[str, Mapping[str, Any]]] = {
    "cluster": {
        "poll_delay_ms": 1000,
        "poll_delay_max_ms": 1000,
        "heartbeat_ms": 10_000,
        "fail_timeout_ms": 60_000,
        "progress_timeout_ms": 60_000,
        "own_timeout_ms": 5000,
    }
}
"""Timers so slow that what is counted is that of the messages alone."""
LONE_PAUSE_S: Final = 0.08
"""Between two lone messages: what follows a message is over by then."""
READY_S: Final = 60.0
LEAD_NS: Final = 100_000_000
WARM_S: Final = 0.5
DRAIN_S: Final = 10.0
GROUP: Final = 3
"""Stations of the group, where only one size is measured."""
RATE: Final = 1000.0
SIZE: Final = 100
PAIR_SIZE: Final = 1300
"""Bytes of a message."""

Report = Callable[[Json], None]


class Line(NamedTuple):
    """What one line measures."""

    what: str
    order: str
    group: int
    """Stations of the group."""
    level: str
    hosts: int = 1
    """Stations of the group that have a token: each but the first is in a group of its own as well. Of order ``token``."""

    @property
    def name(self) -> str:
        """Of the order, for tables."""
        return self.order if self.hosts == 1 else f"{self.order}, {self.hosts} hosts"


@dataclass(frozen=True)
class GroupsPlan:
    """Options of one call."""

    stations: int = 8
    what: tuple[str, ...] = WHAT
    orders: tuple[str, ...] = ORDERS
    count: int = 20
    """Lone messages in each cell."""
    seconds: float = 3.0
    """Of each window."""
    repeat: int = 1
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def cells(self) -> list[Line]:
        """The lines of one round."""
        out = []
        if "lone" in self.what:
            sizes = range(1, self.stations + 1)
            out += [Line("lone", order, n, level) for level in ("ordered", "preack") for n in sizes for order in self.orders]
        for what in self.what:
            if what == "latency":
                for level in ("ordered", "preack"):
                    for order in self.orders:
                        out += [Line(what, order, GROUP, level, h) for h in range(1, GROUP + 1 if order == "token" else 2)]
            elif what != "lone":
                orders = (*(("idle",) if what == "steady" else ()), *self.orders)
                out += [Line(what, order, 2 if what == "pairs" else GROUP, "preack") for order in orders]
        return out

    def runs(self) -> int:
        """How many lines the call will give."""
        return self.repeat * len(self.cells())


def run(plan: GroupsPlan, report: Report, starting: Callable[[str], None] = lambda what: None) -> None:
    """Run everything; ``report`` gets one JSON object a line. Raises LabError when the lab cannot be made."""
    cells = plan.cells()
    for lone in (True, False):
        some = [cell for cell in cells if (cell.what == "lone") is lone]
        if not some:
            continue
        with _cluster(plan, QUIET if lone else {}) as (lab, system):
            for repeat in range(1, plan.repeat + 1):
                for line in some:
                    starting(f"{line.what} {line.name} {line.group}")
                    head = {"bench": KIND, "system": "zenjun", "stations": plan.stations, **line._asdict(), "repeat": repeat}
                    head |= {"machine": machine(), "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
                    try:
                        figures = (_Lone if lone else _Loaded)(plan, lab, system, line).measure()
                    except (BenchError, LabError) as error:
                        figures = {"ok": False, "problems": [str(error)]}
                    report({**head, **figures})


@contextlib.contextmanager
def _cluster(plan: GroupsPlan, options: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[Lab, Zenjun]]:
    merged = {table: dict(values) for table, values in options.items()}
    for table, values in plan.options.items():
        merged.setdefault(table, {}).update(values)
    with Lab(plan.stations, options=merged) as lab:
        system = Zenjun(lab)
        system.start()
        try:
            yield lab, system
        finally:
            system.stop()


@dataclass
class _Measured:
    """One line."""

    plan: GroupsPlan
    lab: Lab
    system: Zenjun
    line: Line

    def _spawn(self, station: int, argv: list[str]) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        return self.lab.station(station).spawn(argv, stdin=pipe, stdout=pipe, stderr=pipe)

    def _socket(self, station: int) -> str:
        return str(self.lab.station(station).socket_path)


# ---- lone messages


@dataclass
class _Lone(_Measured):
    """One message at a time, of a program that waits for it (groupload.py)."""

    def measure(self) -> Json:
        """The figures. Raises BenchError, LabError."""
        clients: list[Client] = []
        grace_s = 0.0
        try:
            for station in [*range(2, self.line.group + 1), 1]:
                clients.append(Client(station, self._spawn(station, self._words(station))))
                clients[-1].line("READY", time.monotonic() + READY_S)  # a message to a group without members goes to nobody
            time.sleep(WARM_S)
            before = self._edge()
            seconds = self.plan.count * (LONE_PAUSE_S + 0.1)
            start = time.monotonic_ns() + LEAD_NS
            for client in clients:
                client.say(f"GO {start} {seconds}")
            deadline = time.monotonic() + seconds + READY_S
            results = [json.loads(c.line("RESULT", deadline)) for c in clients]
            time.sleep(4 * LONE_PAUSE_S)
            after = self._edge()
            grace_s = 2.0
        finally:
            for client in clients:
                client.end(grace_s)
        return self._figures(results, [b - a for a, b in zip(before, after, strict=True)])

    def _words(self, station: int) -> list[str]:
        n, order, level = self.line.group, self.line.order, self.line.level
        words = [sys.executable, "-m", "zenjun.tools.bench.groupload", "--target", self._socket(station)]
        words += ["--group", f"lone{order}{n}{level}", "--order", order, "--level", level, "--size", str(SIZE)]
        words += ["--mode", "closed" if station == 1 else "listen", "--count", str(self.plan.count)]
        return [*words, "--pause", str(LONE_PAUSE_S)]

    def _edge(self) -> list[int]:
        """Frames that all stations have received, and the processor time of all daemons, ns."""
        told = [station.status(15.0) for station in self.lab.stations.values()]
        frames = sum(int(t["counters"]["datapath"]["rx_frames"]) for t in told)
        return [frames, sum(cpu_ns(pid) for pid in self.system.daemon_pids())]

    def _figures(self, results: Sequence[Json], spent: Sequence[int]) -> Json:
        out: Json = {"problems": []}
        out["frames"] = spent[0] / self.plan.count
        out["cpu_us"] = spent[1] / 1e3 / self.plan.count
        out["done_us"] = statistics.median([t for r in results for t in r["done_us"]])
        latencies = [statistics.median(r["latency_us"]) for r in results if r["latency_us"] and not r["done_us"]]
        out["latency_us"] = max(latencies, default=None)  # at the slowest of the others
        least = min(int(r["delivered"]) for r in results)
        if least < self.plan.count:
            out["problems"].append(f"{least} of {self.plan.count} messages were delivered at some member")
        out["ok"] = not out["problems"]
        return out


# ---- everything else


class _Group(NamedTuple):
    """Load programs that form a group."""

    name: str
    order: str
    stations: tuple[int, ...]
    """In the order of their numbers in the load program: those that send come first."""
    cell: Cell


@dataclass
class _Edge:
    """At one moment, of all stations in their order: frames that their interfaces have received, processor time of their daemons;
    and that of all load programs."""

    at_ns: int
    rx: list[int]
    cpu: list[int]
    programs: int

    @classmethod
    def take(cls, system: Zenjun, programs: Sequence[int]) -> _Edge:
        pids = system.daemon_pids()
        try:
            rx = [Interface.read(pid, system.interface).rx_frames for pid in pids]
        except OSError as error:
            raise BenchError(str(error)) from error
        return cls(time.monotonic_ns(), rx, [cpu_ns(pid) for pid in pids], sum(map(cpu_ns, programs)))


_serial = count(1)
"""Each line has groups of its own."""


@dataclass
class _Loaded(_Measured):
    """Load programs in C, one or more groups of them."""

    def measure(self) -> Json:
        """The figures. Raises BenchError, LabError."""
        groups = self._groups()
        clients: list[list[Client]] = []
        grace_s = 0.0
        killed = False
        try:
            for group in groups:
                clients.append([])
                for number, station in enumerate(group.stations, 1):
                    clients[-1].append(Client(station, self._spawn(station, self._words(group, number, station))))
            everyone = [client for some in clients for client in some]
            for client in everyone:
                client.line("READY", time.monotonic() + READY_S)
            time.sleep(WARM_S)
            pids = [client.process.pid for client in everyone]
            t0 = time.monotonic_ns() + LEAD_NS
            w0 = t0 + int(WARM_S * 1e9)
            w1 = w0 + int(self.plan.seconds * 1e9)
            for client in everyone:
                client.say(f"GO {t0} {w0} {w1} {w1 + int(DRAIN_S * 1e9)}")
            sleep_until(w0)
            before = _Edge.take(self.system, pids)
            if self.line.what == "kill":
                sleep_until(w0 + int(self.plan.seconds / 3 * 1e9))
                for client in everyone:
                    client.say("MARK")
                self.system.kill(self.plan.stations)
                killed = True
            sleep_until(w1)
            after = before if killed else _Edge.take(self.system, pids)
            deadline = time.monotonic() + DRAIN_S + READY_S
            results = [[json.loads(client.line("RESULT", deadline)) for client in some] for some in clients]
            grace_s = 0.0 if killed else 2.0
        finally:
            for client in [client for some in clients for client in some]:
                client.end(grace_s)
            if killed:  # the next cell wants all stations, whatever became of this one
                self.system.restart(self.plan.stations)
                self.lab.wait_open(READY_S)
        return self._figures(list(zip(groups, results, strict=True)), before, after)

    def _groups(self) -> list[_Group]:
        what, order, n, level, hosts = self.line
        if order == "idle":
            return []
        name = f"{what}{next(_serial)}"

        def cell(mode: str, stations: int = n, senders: int = 1, size: int = SIZE) -> Cell:
            rate = RATE if mode == "rate" else 0.0
            seconds = self.plan.seconds
            return Cell(stations, senders, size, level, mode, 0.0, 1500, seconds, WARM_S, DRAIN_S, rate, watch=what == "kill")

        members = tuple(range(1, n + 1))
        if what == "pairs":
            firsts = range(1, self.plan.stations, 2)
            return [_Group(f"{name}-{k}", order, (k, k + 1), cell("throughput", size=PAIR_SIZE)) for k in firsts]
        if what == "full":
            return [_Group(name, order, members, cell("throughput", senders=n))]
        own = [_Group(f"{name}-{k}", order, (k,), cell("idle", stations=1)) for k in range(1, hosts + 1) if hosts > 1]
        return [_Group(name, order, members, cell("closed" if what == "latency" else "rate")), *own]

    def _words(self, group: _Group, number: int, station: int) -> list[str]:
        words = [*worker("load"), *group.cell.client_arguments(number), "--target", self._socket(station)]
        return [*words, "--group", group.name, "--order", str(ORDER_NUMBERS[group.order])]

    def _figures(self, groups: Sequence[tuple[_Group, Sequence[Json]]], before: _Edge, after: _Edge) -> Json:
        """From what the programs say, and from the counters."""
        out: Json = {"problems": [text for group, results in groups for text in problems(group.cell, results)]}
        span_s = (after.at_ns - before.at_ns) / 1e9
        inside = self.line.group
        rx = [b - a for a, b in zip(before.rx, after.rx, strict=True)]
        cpu = [(b - a) / 1e9 for a, b in zip(before.cpu, after.cpu, strict=True)]
        if span_s:
            out["rx_per_s"] = {"outside": max(rx[inside:] or [0]) / span_s, "inside": sum(rx[:inside]) / inside / span_s}
            out["cores"] = {
                "outside": max(cpu[inside:] or [0.0]) / span_s,
                "inside": sum(cpu[:inside]) / inside / span_s,
                "all": sum(cpu) / span_s,
                "programs": (after.programs - before.programs) / 1e9 / span_s,
            }
        some = [(group, results) for group, results in groups if group.cell.mode != "idle"]
        if some:
            delivered = sum(min(r["window_messages"] for r in results) for _, results in some)
            out["messages_per_s"] = delivered / self.plan.seconds
            out["latency_us"] = self._latency(some, "others")
            out["own_us"] = self._latency(some, "self")
            out["gap_ms"] = max(r["gap_max_ms_by_phase"][-1] for _, results in some for r in results)
            out["gap_before_ms"] = max(r["gap_max_ms_by_phase"][0] for _, results in some for r in results)
            if delivered and span_s:
                out["cpu_us"] = sum(cpu) * 1e6 / delivered
                out["programs_us"] = (after.programs - before.programs) / 1e3 / delivered
            if not delivered:
                out["problems"].append("nothing was delivered")
        out["ok"] = not out["problems"]
        return out

    @staticmethod
    def _latency(groups: Sequence[tuple[_Group, Sequence[Json]]], who: str) -> float | None:
        """Of the station where the median is highest, the median over the groups; µs."""
        found = [figures["p50_us"] for _, results in groups if (figures := worst(results, who)) is not None]
        return statistics.median(found) if found else None


# ---- tables


def render(rows: Sequence[Json]) -> str:
    """Tables (markdown): lone messages by the size of the group; the others."""
    out = []
    for level in ("ordered", "preack"):
        lone = [r for r in rows if r["what"] == "lone" and r["level"] == level and r["ok"]]
        if lone:
            orders = [order for order in ORDERS if any(r["order"] == order for r in lone)]
            heads = ["N", *(f"{order}, {what}" for what in ("frames", "µs", "CPU µs") for order in orders)]
            lines = []
            for size in sorted({r["group"] for r in lone}):
                cells = [_median(lone, key, order, size) for key in ("frames", "done_us", "cpu_us") for order in orders]
                lines.append([str(size), *cells])
            out.append(f"Lone messages at {level}\n\n{markdown(heads, lines)}\n\n{cheaper(lone)}")
    for (what, level), (title, keys) in TABLES.items():
        some = [r for r in rows if r["what"] == what and r["level"] == level and r["ok"]]
        if some:
            names = dict.fromkeys((r["order"], r.get("hosts", 1)) for r in some)
            lines = []
            for order, hosts in names:
                those = [r for r in some if r.get("hosts", 1) == hosts]
                lines.append([Line(what, order, 0, level, hosts).name, *(_median(those, key, order) for key in keys)])
            out.append(f"{title}\n\n{markdown(['order', *(HEADS[key] for key in keys)], lines)}")
    return "\n\n".join(out) + "\n"


TABLES: Final = {
    ("latency", "ordered"): ("One message under way, group of three, ordered", ("latency_us", "own_us", "messages_per_s")),
    ("latency", "preack"): ("One message under way, group of three, preack", ("latency_us", "own_us", "messages_per_s")),
    ("steady", "preack"): (
        "1,000 messages/s to a group of three",
        ("rx_per_s.inside", "rx_per_s.outside", "cores.inside", "cores.outside", "latency_us", "messages_per_s"),
    ),
    ("pairs", "preack"): (
        "Disjoint pairs at full speed, 1300 B",
        ("messages_per_s", "latency_us", "cpu_us", "programs_us", "cores.all", "cores.programs"),
    ),
    ("full", "preack"): (
        "Three senders at full speed in a group of three, 100 B",
        ("messages_per_s", "latency_us", "cpu_us", "programs_us", "cores.all", "cores.programs"),
    ),
    ("kill", "preack"): (
        "A station outside is killed, 1,000 messages/s in a group of three",
        ("gap_ms", "gap_before_ms", "messages_per_s"),
    ),
}
HEADS: Final = {
    "rx_per_s.inside": "frames/s at a member's station",
    "rx_per_s.outside": "frames/s at a station outside, at most",
    "cores.inside": "cores of a member's daemon",
    "cores.outside": "cores of a daemon outside, at most",
    "cores.all": "cores of all daemons",
    "cores.programs": "cores of the programs",
    "latency_us": "µs to delivery, median at the slowest station",
    "own_us": "µs to own delivery, median",
    "messages_per_s": "messages/s",
    "cpu_us": "µs of all daemons for a message",
    "programs_us": "µs of the programs for a message",
    "gap_ms": "longest pause, ms",
    "gap_before_ms": "before the kill, ms",
}


def _value(row: Json, key: str) -> float | None:
    for part in key.split("."):
        if row.get(part) is None:
            return None
        row = row[part]
    return float(row)  # type: ignore[arg-type]


def _median(rows: Sequence[Json], key: str, order: str, size: int | None = None) -> str:
    found = [v for r in rows if r["order"] == order and size in (None, r["group"]) and (v := _value(r, key)) is not None]
    return number(statistics.median(found)) if found else "–"


def cheaper(lone: Sequence[Json]) -> str:
    """From which size of the group on ``total`` is cheaper, by frames, time and processor time."""
    sizes = sorted({r["group"] for r in lone})
    out = []
    for order in ("token", "abcast"):
        for key, what in (("frames", "frames received"), ("done_us", "time until done"), ("cpu_us", "processor time")):
            by: dict[str, dict[int, list[float]]] = {}
            for r in lone:
                if r["order"] in (order, "total"):
                    by.setdefault(r["order"], {}).setdefault(r["group"], []).append(float(r[key]))
            if len(by) < 2:
                continue
            mid = {name: {n: statistics.median(values) for n, values in measured.items()} for name, measured in by.items()}
            both = [n for n in sizes if all(n in measured for measured in mid.values())]
            first = next((n for n in both if all(mid["total"][m] <= mid[order][m] for m in both if m >= n)), None)
            out.append(f"{order}, {what}: {'never' if first is None else f'from N = {first} on'}")
    return f"`total` is cheaper than … {'; '.join(out)}." if out else ""
