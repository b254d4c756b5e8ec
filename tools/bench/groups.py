"""What groups of orders ``token`` and ``abcast`` cost beside ``total``, in one lab of eight stations.

Lone messages, in a lab with slow timers: frames received by all stations together for one message, and how long its sender waits,
for groups of one station to all. Then with the default timers: a steady stream to a group of three, and what a station outside
has of it; four disjoint pairs at full speed; a group of three at full speed; a kill outside the group.
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
from typing import Any, Final

from ..lab import Lab, LabError
from .cell import BenchError, Client, Json
from .measure import cpu_ns
from .plan import machine
from .systems import Zenjun
from .table import markdown, number

KIND: Final = "groups"
ORDERS: Final = ("total", "abcast", "token")
WHAT: Final = ("lone", "steady", "pairs", "full", "kill")
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
GROUP: Final = 3
"""Stations of the group, where only one size is measured."""
RATE: Final = 1000.0

Report = Callable[[Json], None]


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

    def cells(self) -> list[tuple[str, str, int, str]]:
        """(what, order, size of the group, level) of each line of one round."""
        out = []
        if "lone" in self.what:
            sizes = range(1, self.stations + 1)
            out += [("lone", order, n, level) for level in ("ordered", "preack") for n in sizes for order in self.orders]
        for what in self.what:
            if what != "lone":
                orders = (*(("idle",) if what == "steady" else ()), *self.orders)
                out += [(what, order, 2 if what == "pairs" else GROUP, "preack") for order in orders]
        return out

    def runs(self) -> int:
        """How many lines the call will give."""
        return self.repeat * len(self.cells())


def run(plan: GroupsPlan, report: Report, starting: Callable[[str], None] = lambda what: None) -> None:
    """Run everything; ``report`` gets one JSON object a line. Raises LabError when the lab cannot be made."""
    cells = plan.cells()
    for lone in (True, False):
        some = [cell for cell in cells if (cell[0] == "lone") is lone]
        if not some:
            continue
        with _cluster(plan, QUIET if lone else {}) as (lab, system):
            for repeat in range(1, plan.repeat + 1):
                for what, order, size, level in some:
                    starting(f"{what} {order} {size}")
                    head = {"bench": KIND, "system": "zenjun", "stations": plan.stations, "what": what, "order": order}
                    head |= {"group": size, "level": level, "repeat": repeat, "machine": machine()}
                    head["started"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                    try:
                        figures = _Cell(plan, lab, system, what, order, size, level).measure()
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
class _Edge:
    """Counters of all stations at one moment, in their order."""

    at_ns: int
    rx: list[int]
    cpu: list[int]

    @classmethod
    def take(cls, lab: Lab) -> _Edge:
        told = [station.status(15.0) for station in lab.stations.values()]
        pids = [station.daemon.pid if station.daemon is not None else 0 for station in lab.stations.values()]
        rx = [int(t["counters"]["datapath"]["rx_frames"]) for t in told]
        return cls(time.monotonic_ns(), rx, [cpu_ns(pid) for pid in pids])


@dataclass
class _Cell:
    """One line."""

    plan: GroupsPlan
    lab: Lab
    system: Zenjun
    what: str
    order: str
    size: int
    level: str

    def measure(self) -> Json:
        """The figures. Raises BenchError, LabError."""
        clients: list[Client] = []
        grace_s = 0.0
        killed = False
        try:
            for station, words in self._programs():
                clients.append(Client(station, self._spawn(station, words)))
                clients[-1].line("READY", time.monotonic() + READY_S)  # a message to a group without members goes to nobody
            time.sleep(WARM_S)
            before = _Edge.take(self.lab)
            seconds = self.plan.count * (LONE_PAUSE_S + 0.1) if self.what == "lone" else self.plan.seconds
            start = time.monotonic_ns() + LEAD_NS
            for client in clients:
                client.say(f"GO {start} {seconds}")
            if self.what == "kill":
                time.sleep(LEAD_NS / 1e9 + self.plan.seconds / 3)
                self.system.kill(self.plan.stations)
                killed = True
            elif self.order == "idle":
                time.sleep(LEAD_NS / 1e9 + seconds)
            deadline = time.monotonic() + seconds + READY_S
            results = [(c.station, json.loads(c.line("RESULT", deadline))) for c in clients]
            if self.what == "lone":
                time.sleep(4 * LONE_PAUSE_S)
            after = before if killed else _Edge.take(self.lab)
            grace_s = 0.0 if killed else 2.0
        finally:
            for client in clients:
                client.end(grace_s)
            if killed:  # the next cell wants all stations, whatever became of this one
                self.system.restart(self.plan.stations)
                self.lab.wait_open(READY_S)
        return self._figures(results, before, after)

    def _programs(self) -> list[tuple[int, list[str]]]:
        """(station, words) of each program; a sender is the last one of its group."""
        n, order = self.size, self.order
        if order == "idle":
            return []
        if self.what == "pairs":
            out = []
            for first in range(1, self.plan.stations, 2):
                name = f"pair{order}{first}"
                out += [(first + 1, self._words(name, "listen", 1300)), (first, self._words(name, "full", 1300))]
            return out
        name = f"{self.what}{order}{n}{self.level}"
        if self.what == "full":
            return [(station, self._words(name, "full")) for station in range(1, n + 1)]
        mode = "closed" if self.what == "lone" else "rate"
        listeners = [(station, self._words(name, "listen")) for station in range(2, n + 1)]
        return [*listeners, (1, self._words(name, mode))]

    def _words(self, group: str, mode: str, size: int = 100) -> list[str]:
        words = ["--group", group, "--order", self.order, "--level", self.level, "--mode", mode, "--size", str(size)]
        words += ["--rate", str(RATE), "--count", str(self.plan.count), "--pause", str(LONE_PAUSE_S)]
        return words

    def _spawn(self, station: int, words: list[str]) -> subprocess.Popen[bytes]:
        at = self.lab.station(station)
        argv = [sys.executable, "-m", "zenjun.tools.bench.groupload", "--target", str(at.socket_path), *words]
        pipe = subprocess.PIPE
        return at.spawn(argv, stdin=pipe, stdout=pipe, stderr=pipe)

    def _figures(self, results: Sequence[tuple[int, Json]], before: _Edge, after: _Edge) -> Json:
        """From what the programs say, and from the counters."""
        members = [r for _, r in results]
        out: Json = {"ok": True, "problems": []}
        span_s = (after.at_ns - before.at_ns) / 1e9
        rx = [b - a for a, b in zip(before.rx, after.rx, strict=True)]
        cpu = [(b - a) / 1e9 for a, b in zip(before.cpu, after.cpu, strict=True)]
        if span_s:
            outside = rx[self.size :] or [0]
            out["rx_per_s"] = {"outside": max(outside) / span_s, "inside": sum(rx[: self.size]) / self.size / span_s}
            out["cores"] = {
                "outside": max(cpu[self.size :] or [0.0]) / span_s,
                "inside": sum(cpu[: self.size]) / self.size / span_s,
                "all": sum(cpu) / span_s,
            }
        if not members:
            return out
        sent = sum(int(r["sent"]) for r in members)
        delivered = [int(r["delivered"]) for r in members]
        if self.what == "lone":
            times = [t for r in members for t in r["done_us"]]
            out["frames"] = sum(rx) / self.plan.count
            out["cpu_us"] = sum(cpu) * 1e6 / self.plan.count
            out["done_us"] = statistics.median(times)
            if min(delivered) < self.plan.count:
                out["problems"].append(f"{min(delivered)} of {self.plan.count} messages were delivered at some member")
        else:
            latencies = [t for r in members for t in r["latency_us"]]
            slowest = min(delivered) if self.what != "pairs" else sum(delivered) // 2
            out["messages_per_s"] = slowest / self.plan.seconds
            out["latency_us"] = statistics.median(latencies) if latencies else 0
            out["gap_ms"] = max(float(r["gap_ms"]) for r in members)
            if slowest:
                out["cpu_us"] = sum(cpu) * 1e6 / slowest
        if not sent or not min(delivered):
            out["problems"].append("nothing was delivered")
        out["ok"] = not out["problems"]
        return out


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
    titles = {
        "steady": (
            "1,000 messages/s to a group of three",
            ("rx_per_s.inside", "rx_per_s.outside", "cores.inside", "cores.outside", "latency_us"),
        ),
        "pairs": ("Four pairs at full speed, 1300 B", ("messages_per_s", "latency_us", "cpu_us")),
        "full": ("Three senders at full speed in a group of three, 100 B", ("messages_per_s", "latency_us", "cpu_us")),
        "kill": ("A station outside is killed, 1,000 messages/s in a group of three", ("gap_ms", "messages_per_s")),
    }
    for what, (title, keys) in titles.items():
        some = [r for r in rows if r["what"] == what and r["ok"]]
        if some:
            lines = [[order, *(_median(some, key, order) for key in keys)] for order in dict.fromkeys(r["order"] for r in some)]
            out.append(f"{title}\n\n{markdown(['order', *(HEADS[key] for key in keys)], lines)}")
    return "\n\n".join(out) + "\n"


HEADS: Final = {
    "rx_per_s.inside": "frames/s at a member's station",
    "rx_per_s.outside": "frames/s at a station outside, at most",
    "cores.inside": "cores of a member's daemon",
    "cores.outside": "cores of a daemon outside, at most",
    "latency_us": "µs to delivery, median",
    "messages_per_s": "messages/s",
    "cpu_us": "µs of all daemons for a message",
    "gap_ms": "longest pause, ms",
}


def _value(row: Json, key: str) -> float | None:
    for part in key.split("."):
        if part not in row:
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
            by: dict[str, dict[int, float]] = {}
            for r in lone:
                if r["order"] in (order, "total"):
                    by.setdefault(r["order"], {}).setdefault(r["group"], float(r[key]))
            if len(by) < 2:
                continue
            both = [n for n in sizes if all(n in measured for measured in by.values())]
            first = next((n for n in both if all(by["total"][m] <= by[order][m] for m in both if m >= n)), None)
            out.append(f"{order}, {what}: {'never' if first is None else f'from N = {first} on'}")
    return f"`total` is cheaper than … {'; '.join(out)}." if out else ""
