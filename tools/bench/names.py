"""``zenjun bench directory``: names set, looked up and watched, beside etcd in the same lab; and a joiner with many names.

Each system runs the same measurements, one after the other, with one program of ``nameload`` at each station. etcd writes every
put to the disks of a majority, so its puts stand beside our updates with ``wait`` disk; it has no ``memory``. Its serializable
reads stand beside our look-ups (both from the own copy), its linearizable ones beside ``fresh``.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from ...daemon.client.errors import ClientError
from ...daemon.names import connect_directory_sync
from ..lab import Lab, LabError
from ..lab.network import ip_address
from .cell import BenchError, Client, Json
from .measure import Machine
from .nameload import WORK_S
from .plan import machine

KIND: Final = "directory"
PEERS: Final = ("etcd",)
START_S: Final = 30.0
LEAD_NS: Final = 100_000_000
SETTLE_S: Final = 0.5
STOP_S: Final = 10.0
INFLIGHT: Final = 64
"""Calls that each program has under way where the rate is measured."""
WATCH_RATE: Final = 200.0
"""Updates per second where the latency of a watch is measured."""
FSYNCS: Final = 50
LOAD: Final = (sys.executable, "-m", "zenjun.tools.bench.nameload")

Report = Callable[[Json], None]


@dataclass(frozen=True)
class Measurement:
    """One line. what: its name. do: what the programs are told. stations: how many of them at once, 0: all."""

    what: str
    do: Mapping[str, Any]
    stations: int = 1
    watched: bool = False
    """The last station watches meanwhile; the figures are those of its events, from the call of the update on."""


def one_at_a_time(what: str, **do: Any) -> Measurement:
    return Measurement(what, {**do, "inflight": 1})


OURS: Final = (
    one_at_a_time("look-up", do="get"),
    Measurement("look-up, rate", {"do": "get", "inflight": INFLIGHT}),
    one_at_a_time("fresh look-up", do="get", fresh=True),
    Measurement("look-up, kept", {"do": "kept"}),
    Measurement("look-up, mirror", {"do": "mirror"}),
    one_at_a_time("update, memory", do="put", wait="memory"),
    one_at_a_time("update, disk", do="put", wait="disk"),
    Measurement("update, memory, rate", {"do": "put", "wait": "memory", "inflight": INFLIGHT}, stations=0),
    Measurement("update, disk, rate", {"do": "put", "wait": "disk", "inflight": INFLIGHT}, stations=0),
    Measurement("watch", {"do": "put", "wait": "memory", "rate": WATCH_RATE}, watched=True),
    Measurement("program gone", {"do": "gone"}),
)
ETCD: Final = (
    one_at_a_time("look-up", do="get"),
    Measurement("look-up, rate", {"do": "get", "inflight": INFLIGHT}),
    one_at_a_time("fresh look-up", do="get", fresh=True),
    one_at_a_time("update, disk", do="put"),
    Measurement("update, disk, rate", {"do": "put", "inflight": INFLIGHT}, stations=0),
    Measurement("watch", {"do": "put", "rate": WATCH_RATE}, watched=True),
)
GROUP: Final = (one_at_a_time("message, preack", do="put"),)


@dataclass(frozen=True)
class NamesPlan:
    """Options of one call. names: a joiner has to get so many; 0: that is left out."""

    stations: int = 3
    seconds: float = WORK_S
    repeat: int = 3
    peers: tuple[str, ...] = ()
    names: int = 0
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def lines(self) -> int:
        """How many lines the call will give."""
        each = len(OURS) + len(GROUP) + (len(ETCD) if "etcd" in self.peers else 0)
        return self.repeat * each + (1 if self.names else 0)


class Service:
    """A name service at all stations of a lab that is up."""

    name: str
    kind: str
    measurements: tuple[Measurement, ...]

    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    def start(self) -> None:
        """Start it everywhere and return when it takes updates. Raises BenchError."""

    def stop(self) -> None:
        """End its processes; safe at any time."""

    def version(self) -> str:
        return ""

    def target(self, station: int) -> str:
        """What the load is told to connect to."""
        raise NotImplementedError


class OurNames(Service):
    """zenjun-directory and zenjund."""

    name = kind = "zenjun"
    measurements: tuple[Measurement, ...] = OURS

    def __init__(self, lab: Lab) -> None:
        super().__init__(lab)
        self.pids: dict[int, int] = {}

    def start(self) -> None:
        try:
            for station in self.lab.stations.values():
                station.start_daemon()
            self.lab.wait_open(START_S)
            for number in self.lab.stations:
                self.start_one(number)
        except LabError as error:
            raise BenchError(str(error)) from error
        for number in self.lab.stations:
            self.wait_active(number)

    def start_one(self, number: int) -> None:
        self.pids[number] = self.lab.station(number).start_directory()

    def wait_active(self, number: int, limit_s: float = START_S) -> float:
        """Seconds until the station's copy is the group's. Raises BenchError."""
        began = time.monotonic()
        while time.monotonic() - began < limit_s:
            with (
                contextlib.suppress(ClientError, OSError),
                connect_directory_sync(self.target(number), wait=limit_s, timeout=limit_s) as d,
            ):
                while time.monotonic() - began < limit_s:
                    if d.status()["active"]:
                        return time.monotonic() - began
                    time.sleep(0.01)
        raise BenchError(f"zenjun-directory of station {number} is not active after {limit_s:g} s")

    def stop_one(self, number: int) -> None:
        """In order, and wait for its end."""
        pid = self.pids.pop(number, 0)
        if not pid:
            return
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        try:
            signal.pidfd_send_signal(fd, signal.SIGTERM)
            if not select.select([fd], [], [], STOP_S)[0]:
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        except ProcessLookupError:
            pass
        finally:
            os.close(fd)

    def stop(self) -> None:
        for number in list(self.pids):
            self.stop_one(number)
        for station in self.lab.stations.values():
            with contextlib.suppress(LabError):
                station.stop_daemon(5.0)

    def version(self) -> str:
        return _version()

    def target(self, station: int) -> str:
        return str(self.lab.station(station).directory / "directory.sock")


class OurGroup(OurNames):
    """Messages to a group of the same daemons, which ``OurNames`` has started."""

    name = "zenjun, no directory"
    kind = "group"
    measurements = GROUP

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def target(self, station: int) -> str:
        return str(self.lab.station(station).socket_path)


class EtcdNames(Service):
    """etcd with its defaults, a member at each station."""

    name = kind = "etcd"
    measurements = ETCD

    def __init__(self, lab: Lab, folder: Path) -> None:
        super().__init__(lab)
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        members = ",".join(f"n{k}=http://{ip_address(k)}:2380" for k in self.lab.stations)
        for number, station in self.lab.stations.items():
            folder = self._folder / f"etcd-{number}"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            argv = [
                "etcd", "--name", f"n{number}", "--data-dir", str(folder / "data"), "--log-level", "error",
                "--listen-peer-urls", f"http://{ip_address(number)}:2380",
                "--initial-advertise-peer-urls", f"http://{ip_address(number)}:2380",
                "--listen-client-urls", f"http://{self.target(number)}", "--advertise-client-urls", f"http://{self.target(number)}",
                "--initial-cluster", members, "--initial-cluster-state", "new",
            ]  # fmt: skip
            with (folder / "output").open("ab") as output:
                self._processes.append(station.spawn(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output))
        deadline = time.monotonic() + START_S
        while not self._takes_puts():
            if time.monotonic() > deadline:
                raise BenchError(f"etcd takes no put after {START_S:g} s: see {self._folder}/etcd-*/output")
            time.sleep(0.2)

    def _takes_puts(self) -> bool:
        argv = ["etcdctl", "--endpoints", self.target(1), "put", "ready", "1"]
        environment = {"ETCDCTL_API": "3"}
        return self.lab.station(1).run(argv, 10.0, env=environment).returncode == 0

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait(10)
        self._processes = []

    def version(self) -> str:
        done = subprocess.run(["etcd", "--version"], capture_output=True, text=True, timeout=10, check=False)
        return done.stdout.split("\n", 1)[0]

    def target(self, station: int) -> str:
        return f"{ip_address(station)}:2379"

    @staticmethod
    def missing() -> str | None:
        """What this machine lacks to run it, with the remedy; None if nothing."""
        programs = [p for p in ("etcd", "etcdctl") if shutil.which(p) is None]
        return f"not installed: {', '.join(programs)} (Debian: apt-get install etcd-server etcd-client)" if programs else None


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
    before, began = Machine.read(), time.monotonic()
    for client in working:
        client.say(json.dumps(line))
    found = [json.loads(client.line("RESULT", time.monotonic() + limit_s)) for client in working]
    took = time.monotonic() - began
    busy = round((Machine.read().busy_s - before.busy_s) / took, 2)
    if measurement.watched:
        seen = told(clients[-1], {"do": "seen", "seconds": seconds, "settle_s": SETTLE_S}, limit_s)
        found = [{**seen, "sent": found[0]["count"]}]
    total = {**found[0], "per_s": round(sum(f["per_s"] for f in found), 1), "count": sum(f["count"] for f in found)}
    for name in ("p50_us", "p99_us", "max_us"):
        if name in total:
            total[name] = max(f.get(name, 0.0) for f in found)
    problems = [] if total["count"] else ["nothing was done"]
    if total.get("sent", total["count"]) != total["count"]:
        problems.append(f"{total['sent']} updates, {total['count']} events")
    return {**total, "busy_cores": busy, "load": os.getloadavg()[0], "ok": not problems, "problems": problems}


def run(plan: NamesPlan, report: Report, starting: Callable[[str], None] = lambda words: None) -> None:
    """Run everything; ``report`` gets one JSON object a line. The lab and every process are gone when it returns or raises.
    Raises LabError when the lab cannot be made."""
    with tempfile.TemporaryDirectory(prefix="zenjun-bench.") as folder, Lab(plan.stations, options=plan.options) as lab:
        ours = OurNames(lab)
        services: list[tuple[Service, ...]] = [(ours, OurGroup(lab))]
        if "etcd" in plan.peers:
            services.append((EtcdNames(lab, Path(folder)),))
        fsync_us = fsync_time(Path(folder))
        for repeat in range(1, plan.repeat + 1):
            first = repeat % len(services)
            for together in services[first:] + services[:first]:
                _run_service(plan, together, {"repeat": repeat, "fsync_us": fsync_us}, report, starting)
        if plan.names:
            from .joiner import measure_joiner

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
    except (BenchError, LabError) as error:
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


def _version() -> str:
    try:
        return f"zenjun {metadata.version('zenjun')}"
    except metadata.PackageNotFoundError:
        return "zenjun, not installed"


def resident_mb(pid: int) -> float:
    """Memory of a process, 10⁶ bytes."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        return round(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)
    return 0.0
