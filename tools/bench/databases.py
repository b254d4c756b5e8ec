"""``zenjun bench database``: one-row updates and reads at three stations, beside other databases in the same lab.

Each system runs the same measurements, one after the other, with the same program at each station. An update of ours with
``majority-disk`` is on the disks of two of three stations when it returns, as etcd's and dqlite's, and PostgreSQL's with
``ANY 1``; MariaDB's is on one disk, and in the memory of all. PostgreSQL takes updates at station 1 only, so its clients at other
stations go there. etcd has keys and values in place of rows: an update does not read what was there, which is less work.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from ..lab import Lab, LabError
from .cell import BenchError, Client, Json
from .db_systems import SYSTEMS, OurDatabase, System
from .measure import Machine, cpu_ns
from .names import fsync_time
from .plan import machine
from .rejoin import rejoin
from .table import markdown, number

LIMIT_S: Final = 60.0
LEAD_NS: Final = 200_000_000
CLIENTS: Final = 64
DYING_S: Final = 8.0
"""Length of the measurement in which a station dies, after a quarter of it."""
PACED_S: Final = 5.0
RATE: Final = 200.0
"""Updates a second where frames are lost, and how many."""
LOSS: Final = 0.01
MB_PER_SECOND: Final = 100.0
"""A measurement while a station comes back takes a second for so many MB of its database, so that starting programs is little."""
LOAD: Final = (sys.executable, "-m", "zenjun.tools.bench.dbload")
Report = Callable[[Json], None]


@dataclass(frozen=True)
class Measurement:
    """One line. threads: programs, divided among the stations 1..stations. dies: the last station is killed meanwhile. Times of
    updates at a rate count from when they are due."""

    what: str
    do: str
    threads: int = 1
    stations: int = 1
    durability: str = "majority-disk"
    local: bool = False
    dies: bool = False
    rate: float = 0.0
    """Updates a second, of all programs; 0: as many as can be done."""
    loss: float = 0.0
    """Of the frames towards each station."""


@dataclass(frozen=True)
class DatabasePlan:
    """Options of one call."""

    stations: int = 3
    seconds: float = 3.0
    repeat: int = 3
    peers: tuple[str, ...] = ()
    dying_s: float = DYING_S
    paced_s: float = PACED_S
    rejoin_mb: int = 0
    """Size of the database with which a station comes back; 0: none does."""

    def measurements(self, system: type[System]) -> list[Measurement]:
        found = []
        for durability in system.durabilities:
            text = f", {durability}" if len(system.durabilities) > 1 and durability != "majority-disk" else ""
            found += [
                Measurement(f"update{text}", "update", durability=durability),
                Measurement(f"update, {CLIENTS} clients{text}", "update", CLIENTS, self.stations, durability),
            ]
        found.append(Measurement("read by key", "read", local=True))
        if system.has_scan:
            found.append(Measurement("scan", "scan", local=True))
        lost = f"update, {RATE:g} per second, {LOSS:.0%} of frames lost"
        found.append(Measurement(lost, "update", CLIENTS, self.stations, rate=RATE, loss=LOSS))
        found.append(Measurement("a station dies", "watched", 4, 2, dies=True))
        return found

    def length_s(self, measurement: Measurement) -> float:
        return self.dying_s if measurement.dies else self.paced_s if measurement.rate else self.seconds

    def lines(self) -> int:
        """How many lines the call will give."""
        all_ = sum(len(self.measurements(each)) for each in (OurDatabase, *(SYSTEMS[peer] for peer in self.peers)))
        return self.repeat * (all_ + 2) + (2 if self.rejoin_mb else 0)


@contextlib.contextmanager
def load(lab: Lab, kind: str, target: Callable[[int], str], stations: Sequence[int]) -> Iterator[list[Client]]:
    """A program at each of these stations."""
    clients: list[Client] = []
    pipe = subprocess.PIPE
    try:
        for station in stations:
            argv = [*LOAD, "--system", kind, "--target", target(station), "--number", str(station)]
            clients.append(Client(station, lab.station(station).spawn(argv, stdin=pipe, stdout=pipe, stderr=pipe)))
        deadline = time.monotonic() + LIMIT_S
        for client in clients:
            client.line("READY", deadline)
        yield clients
    finally:
        for client in clients:
            client.end(2.0)


def measure(system: System, kind: str, target: Callable[[int], str], measurement: Measurement, plan: DatabasePlan) -> Json:
    """The figures of one line; of several programs the rates are added, and the worst latency counts. Raises BenchError."""
    stations = [2] if measurement.local else list(range(1, measurement.stations + 1))
    seconds = plan.length_s(measurement)
    with load(system.lab, kind, target, stations) as clients:
        for i, client in enumerate(clients):
            threads = measurement.threads // len(clients) + (i < measurement.threads % len(clients))
            line = {"do": measurement.do, "threads": threads, "durability": measurement.durability, "seconds": seconds}
            line["rate"] = measurement.rate / len(clients)
            client.say(json.dumps(line))
        deadline = time.monotonic() + LIMIT_S + seconds
        for client in clients:
            client.line("WARM", deadline)
        pids = [pid for station in system.lab.stations for pid in system.pids(station)]
        if measurement.loss:
            system.lab.set_loss(measurement.loss)
        before, cpu, began = Machine.read(), sum(map(cpu_ns, pids)), time.monotonic()
        start_ns = time.monotonic_ns() + LEAD_NS
        for client in clients:
            client.say(json.dumps({"start_ns": start_ns}))
        killing = threading.Timer(seconds / 4, system.kill, [max(system.lab.stations)]) if measurement.dies else None
        if killing is not None:
            killing.start()
        try:
            found = [json.loads(client.line("RESULT", deadline)) for client in clients]
        finally:
            if killing is not None:
                killing.cancel()
                killing.join()
            if measurement.loss:
                system.lab.set_loss(0.0)
        took, cpu = time.monotonic() - began, sum(map(cpu_ns, pids)) - cpu
    count = sum(f["count"] for f in found)
    problems = sorted({problem for f in found for problem in f["problems"]}) + ([] if count else ["nothing was done"])
    total: Json = {"count": count, "per_s": round(sum(f["per_s"] for f in found), 1)}
    for name in ("p50_us", "p99_us", "max_us", "gap_us"):
        total[name] = max((f[name] for f in found if name in f), default=0.0)
    if count and kind == system.kind and system.is_counted and not measurement.dies:
        total["cpu_us"] = round(cpu / 1e3 / count, 1)
    busy = round((Machine.read().busy_s - before.busy_s) / took, 2)
    return {**total, "busy_cores": busy, "load": os.getloadavg()[0], "ok": not problems, "problems": problems}


def run(plan: DatabasePlan, report: Report, starting: Callable[[str], None] = lambda words: None) -> None:
    """Run everything; ``report`` gets one JSON object a line. The lab and every process are gone when it returns or raises.
    Raises LabError when the lab cannot be made."""
    with tempfile.TemporaryDirectory(prefix="zenjun-bench.") as name, Lab(plan.stations) as lab:
        folder = Path(name)
        folder.chmod(0o755)
        fsync_us = fsync_time(folder)
        kinds: list[type[System]] = [OurDatabase, *(SYSTEMS[peer] for peer in plan.peers)]
        for repeat in range(1, plan.repeat + 1):
            first = repeat % len(kinds)
            for kind in kinds[first:] + kinds[:first]:
                system = kind(lab, folder / f"{kind.kind}-{repeat}")
                head = {"bench": "database", "repeat": repeat, "fsync_us": fsync_us, "stations": plan.stations}
                _run_system(plan, system, head, report, starting)


def _run_system(plan: DatabasePlan, system: System, head: Json, report: Report, starting: Callable[[str], None]) -> None:
    head = {**head, "system": system.name, "version": system.version(), "machine": machine(), "seconds": plan.seconds}
    what = "start"
    try:
        starting(f"{system.name}: {what}")
        system.start()
        with load(system.lab, system.kind, system.target, [1]) as clients:
            clients[0].say(json.dumps({"do": "fill"}))
            clients[0].line("RESULT", time.monotonic() + LIMIT_S)
        for measurement in plan.measurements(type(system)):
            what = measurement.what
            starting(f"{system.name}: {what}")
            target = system.local if measurement.local else system.target
            if measurement.dies and plan.rejoin_mb and isinstance(system, OurDatabase) and head["repeat"] == 1:
                what = "a station comes back"
                longer = replace(plan, seconds=max(plan.seconds, plan.rejoin_mb / MB_PER_SECOND))
                for row in rejoin(system, plan.rejoin_mb, partial(_at_others, system, longer), starting):
                    report({**head, **row})
                what = measurement.what
            report({**head, "what": what, **measure(system, system.kind, target, measurement, plan)})
            if measurement.local and isinstance(system, OurDatabase):
                figures = measure(system, "sqlite3", system.file, measurement, plan)
                report({**head, "system": "sqlite3", "what": what, **figures})
    except (BenchError, LabError) as error:
        report({**head, "what": what, "ok": False, "problems": [str(error)]})
    finally:
        system.stop()


def _at_others(system: System, plan: DatabasePlan, threads: int) -> Json:
    """Updates at all stations but the last."""
    others = Measurement("update", "update", threads, len(system.lab.stations) - 1)
    return measure(system, system.kind, system.target, others, plan)


COLUMNS: Final = (
    ("p50", "p50_us"), ("p99", "p99_us"), ("per second", "per_s"), ("longest gap", "gap_us"), ("CPU of the servers", "cpu_us"),
    ("MB per second", "mb_per_s"),
)  # fmt: skip


def render_databases(rows: Sequence[Json]) -> str:
    """The table, in markdown: medians over the repeats."""
    if not rows:
        return "No lines.\n"

    def median(system: str, what: str, name: str) -> float | None:
        found = [float(r[name]) for r in rows if r["system"] == system and r["what"] == what and name in r]
        return statistics.median(found) if found else None

    systems = dict.fromkeys(str(r["system"]) for r in sorted(rows, key=lambda r: not r["system"].startswith("zenjun")))
    lines = []
    for what in dict.fromkeys(str(r["what"]) for r in rows):
        for system in systems:
            values: list[Any] = [median(system, what, name) for _, name in COLUMNS]
            if any(value is not None for value in values):
                lines.append([what, system, *(number(value) for value in values)])
    about = "; ".join(dict.fromkeys(str(r["version"]) for r in rows if r.get("version")))
    loads = [float(r["load"]) for r in rows if "load" in r]
    loaded = f" Load average {min(loads):.1f} to {max(loads):.1f}." if loads else ""
    fsync = statistics.median(float(r["fsync_us"]) for r in rows)
    machines = ", ".join(dict.fromkeys(str(r["machine"]) for r in rows))
    head = ["times in µs, medians", "system", *(name for name, _ in COLUMNS)]
    return (
        f"Machine: {machines}. Versions: {about}. A write and its fsync: {number(fsync)} µs.{loaded}\n\n{markdown(head, lines)}"
    )
