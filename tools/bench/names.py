"""``zenjun bench directory``: names set, looked up and watched, beside etcd in the same lab; and a joiner with many names.

Each system runs the same measurements, one after the other, with one program of ``nameload`` at each station. etcd writes every
put to the disks of a majority, so its puts stand beside our updates with ``wait`` disk; it has no ``memory``. Its serializable
reads stand beside our look-ups (both from the own copy), its linearizable ones beside ``fresh``.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ...daemon.client.errors import ClientError
from ..lab import Lab, LabError
from .cell import BenchError, Client, Json
from .gonestation import measure_gone_station
from .joiner import measure_joiner
from .measure import Machine, cpu_ns
from .nameload import WORK_S
from .names_systems import (
    ETCD,
    GROUP,
    OURS,
    SEVEN,
    START_S,
    EtcdNames,
    Measurement,
    OurGroup,
    OurNames,
    Service,
    SevenNames,
)
from .plan import machine

KIND: Final = "directory"
LEAD_NS: Final = 100_000_000
MODES: Final = ("ordered", "seven")
GONE_STATION: Final = "station gone"
SETTLE_S: Final = 0.5
FSYNCS: Final = 50
LOAD: Final = (sys.executable, "-m", "zenjun.tools.bench.nameload")

Report = Callable[[Json], None]


@dataclass(frozen=True)
class NamesPlan:
    """Options of one call. modes: of our directory, measured in turns. names: number of names that a joiner has to get; 0: that
    part is left out."""

    stations: int = 3
    seconds: float = WORK_S
    repeat: int = 3
    peers: tuple[str, ...] = ()
    names: int = 0
    modes: tuple[str, ...] = MODES
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def lines(self) -> int:
        """How many lines the call will give."""
        each = len(ETCD) if "etcd" in self.peers else 0
        each += len(OURS) + len(GROUP) + 1 if "ordered" in self.modes else 0
        each += len(SEVEN) + 1 if "seven" in self.modes else 0
        return self.repeat * each + (1 if self.names else 0)


@contextlib.contextmanager
def load(service: Service, stations: int) -> Iterator[list[Client]]:
    """Programs at the stations 1..stations."""
    clients: list[Client] = []
    try:
        for number in range(1, stations + 1):
            argv = [*LOAD, "--system", service.kind, "--target", service.target(number)]
            pipe = subprocess.PIPE
            process = service.lab.station(number).spawn(argv, stdin=pipe, stdout=pipe, stderr=pipe)
            clients.append(Client(number, process))
        deadline = time.monotonic() + START_S
        for client in clients:
            client.line("READY", deadline)
        yield clients
    finally:
        for client in clients:
            client.end(2.0)


def told(client: Client, line: Mapping[str, Any], limit_s: float) -> Json:
    """Have a program do something; its answer."""
    client.say(json.dumps(line))
    return dict(json.loads(client.line("RESULT", time.monotonic() + limit_s)))


def measure(service: Service, clients: list[Client], measurement: Measurement, seconds: float) -> Json:
    """The figures of one line; of several programs the rates are added, and the worst latency counts. Raises BenchError."""
    limit_s = seconds + START_S
    working = clients[: measurement.stations or len(clients)]
    if measurement.watched:
        told(clients[-1], {"do": "watch"}, limit_s)
    line = {**measurement.do, "start_ns": time.monotonic_ns() + LEAD_NS, "seconds": seconds}
    pids = service.daemon_pids()
    before, cpu, began = Machine.read(), sum(map(cpu_ns, pids)), time.monotonic()
    for client in working:
        client.say(json.dumps(line))
    found = [json.loads(client.line("RESULT", time.monotonic() + limit_s)) for client in working]
    took, cpu = time.monotonic() - began, sum(map(cpu_ns, pids)) - cpu
    calls = sum(f.get("calls", f["count"]) for f in found)
    busy = round((Machine.read().busy_s - before.busy_s) / took, 2)
    if measurement.watched:
        seen = told(clients[-1], {"do": "seen", "seconds": seconds, "settle_s": SETTLE_S}, limit_s)
        found = [{**seen, "sent": found[0]["count"]}]
    total = {**found[0], "per_s": round(sum(f["per_s"] for f in found), 1), "count": sum(f["count"] for f in found)}
    for name in ("p50_us", "p99_us", "max_us"):
        if name in total:
            total[name] = max(f.get(name, 0.0) for f in found)
    if calls and measurement.do["do"] in ("get", "put"):
        total["cpu_us"] = round(cpu / 1e3 / calls, 1)
    problems = [] if total["count"] else ["nothing was done"]
    if total.get("sent", total["count"]) != total["count"]:
        problems.append(f"{total['sent']} updates, {total['count']} events")
    return {**total, "busy_cores": busy, "load": os.getloadavg()[0], "ok": not problems, "problems": problems}


def run(plan: NamesPlan, report: Report, starting: Callable[[str], None] = lambda words: None) -> None:
    """Run everything; ``report`` gets one JSON object a line. The lab and every process are gone when it returns or raises.
    Raises LabError when the lab cannot be made."""
    with tempfile.TemporaryDirectory(prefix="zenjun-bench.") as folder, Lab(plan.stations, options=plan.options) as lab:
        ours = OurNames(lab)
        services: list[tuple[Service, ...]] = [(ours, OurGroup(lab))] if "ordered" in plan.modes else []
        if "seven" in plan.modes:
            services.append((SevenNames(lab),))
        if "etcd" in plan.peers:
            services.append((EtcdNames(lab, Path(folder)),))
        fsync_us = fsync_time(Path(folder))
        for repeat in range(1, plan.repeat + 1):
            first = repeat % max(1, len(services))
            for together in services[first:] + services[:first]:
                _run_service(plan, together, {"repeat": repeat, "fsync_us": fsync_us}, report, starting)
        if plan.names:
            starting(f"zenjun: a joiner with {plan.names:,} names")
            head = _head(plan, ours, "joiner", {"repeat": 1, "fsync_us": fsync_us, "names": plan.names})
            try:
                figures = measure_joiner(ours, plan.names)
            except (BenchError, LabError, ClientError) as error:
                figures = {"ok": False, "problems": [str(error)]}
            finally:
                ours.stop()
            report({**head, **figures})


def _run_service(
    plan: NamesPlan, together: tuple[Service, ...], head: Json, report: Report, starting: Callable[[str], None]
) -> None:
    try:
        together[0].start()
        for service in together:
            with load(service, plan.stations) as clients:
                if service.kind != "group":
                    told(clients[0], {"do": "fill"}, START_S)
                for measurement in service.measurements:
                    starting(f"{service.name}: {measurement.what}")
                    figures = measure(service, clients, measurement, plan.seconds)
                    report({**_head(plan, service, measurement.what, head), **figures})
        ours = together[0]
        if isinstance(ours, OurNames):
            starting(f"{ours.name}: {GONE_STATION}")
            report({**_head(plan, ours, GONE_STATION, head), **measure_gone_station(ours)})
    except (BenchError, LabError, ClientError) as error:
        report({**_head(plan, together[0], "all", head), "ok": False, "problems": [str(error)]})
    finally:
        together[0].stop()


def fsync_time(folder: Path) -> float:
    """What a write of 4 KiB and its fsync cost in this folder, µs; the median."""
    times = []
    with (folder / "fsync").open("wb") as file:
        for _ in range(FSYNCS):
            file.write(bytes(4096))
            file.flush()
            began = time.perf_counter()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - began)
    return round(sorted(times)[FSYNCS // 2] * 1e6, 1)


def _head(plan: NamesPlan, service: Service, what: str, more: Mapping[str, Any]) -> Json:
    return {
        "bench": KIND,
        "system": service.name,
        "version": service.version(),
        "what": what,
        "stations": plan.stations,
        "window_s": plan.seconds,
        **more,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine(),
    }
