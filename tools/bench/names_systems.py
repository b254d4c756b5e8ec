"""The name services that ``zenjun bench directory`` measures, and what is measured of each."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from ...daemon.client.errors import ClientError
from ...daemon.names import connect_directory_sync
from ..lab import Lab, LabError
from ..lab.network import ip_address
from .cell import BenchError

PEERS: Final = ("etcd",)
START_S: Final = 30.0
STOP_S: Final = 10.0
INFLIGHT: Final = 64
"""Calls that each program has under way where the rate is measured."""
WATCH_RATE: Final = 200.0
"""Updates per second where the latency of a watch is measured."""


@dataclass(frozen=True)
class Measurement:
    """One line. what: its name. do: the command for the programs. stations: number of them at once, 0: all."""

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
SEVEN: Final = tuple(m for m in OURS if m.what not in ("look-up, kept", "look-up, mirror"))
"""Programs keep no answers in this mode, and a mirror is the same."""
ETCD: Final = (
    one_at_a_time("look-up", do="get"),
    Measurement("look-up, rate", {"do": "get", "inflight": INFLIGHT}),
    one_at_a_time("fresh look-up", do="get", fresh=True),
    one_at_a_time("update, disk", do="put"),
    Measurement("update, disk, rate", {"do": "put", "inflight": INFLIGHT}, stations=0),
    Measurement("watch", {"do": "put", "rate": WATCH_RATE}, watched=True),
)
GROUP: Final = (one_at_a_time("message, preack", do="put"),)


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

    def daemon_pids(self) -> list[int]:
        """Its processes at all stations."""
        return []

    def target(self, station: int) -> str:
        """The address that the load connects to."""
        raise NotImplementedError


class OurNames(Service):
    """zenjun-directory and zenjund."""

    name = kind = "zenjun"
    measurements: tuple[Measurement, ...] = OURS
    configured: Mapping[str, Mapping[str, Any]] = {}
    """Options beside the lab's."""

    def __init__(self, lab: Lab) -> None:
        super().__init__(lab)
        self.pids: dict[int, int] = {}

    def start(self) -> None:
        """From nothing: with what the other mode has left, a station would be behind in this one."""
        try:
            for station in self.lab.stations.values():
                for old in station.state_directory.glob("directory.*"):
                    old.unlink()
                station.start_daemon(self.configured)
            self.lab.wait_open(START_S)
            for number in self.lab.stations:
                self.start_one(number)
        except LabError as error:
            raise BenchError(str(error)) from error
        for number in self.lab.stations:
            self.wait_active(number)

    def start_one(self, number: int) -> None:
        self.pids[number] = self.lab.station(number).start_directory()

    def wait_active(self, number: int, limit_s: float = START_S) -> tuple[float, float]:
        """Seconds until the process answers, which it does when its file is checked, and until the station's copy is the group's.
        Raises BenchError."""
        began = time.monotonic()
        while time.monotonic() - began < limit_s:
            with (
                contextlib.suppress(ClientError, OSError),
                connect_directory_sync(self.target(number), wait=limit_s, timeout=limit_s) as d,
            ):
                answers_s = time.monotonic() - began
                while time.monotonic() - began < limit_s:
                    if d.status()["active"]:
                        return answers_s, time.monotonic() - began
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

    def daemon_pids(self) -> list[int]:
        return [*self.pids.values(), *(s.daemon.pid for s in self.lab.stations.values() if s.daemon is not None)]

    def target(self, station: int) -> str:
        return str(self.lab.station(station).directory / "directory.sock")


class SevenNames(OurNames):
    """The same under ``update = "seven"``."""

    name = "zenjun, seven"
    measurements = SEVEN
    configured: Mapping[str, Mapping[str, Any]] = {"directory": {"update": "seven"}}


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
        for number, station in self.lab.stations.items():
            folder = self._folder / f"etcd-{number}"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            argv = etcd_argv(number, list(self.lab.stations), folder / "data")
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

    def daemon_pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def version(self) -> str:
        return etcd_version()

    def target(self, station: int) -> str:
        return f"{ip_address(station)}:2379"

    @staticmethod
    def missing() -> str | None:
        """What this machine lacks to run it, with the remedy; None if nothing."""
        return etcd_missing()


def etcd_argv(number: int, stations: Sequence[int], folder: Path) -> list[str]:
    """The command of a station's member, with etcd's defaults. folder: of its data."""
    peer, client = f"http://{ip_address(number)}:2380", f"http://{ip_address(number)}:2379"
    members = ",".join(f"n{k}=http://{ip_address(k)}:2380" for k in stations)
    return [
        "etcd", "--name", f"n{number}", "--data-dir", str(folder), "--log-level", "error", "--listen-peer-urls", peer,
        "--initial-advertise-peer-urls", peer, "--listen-client-urls", client, "--advertise-client-urls", client,
        "--initial-cluster", members, "--initial-cluster-state", "new",
    ]  # fmt: skip


def etcd_missing() -> str | None:
    """What this machine lacks to run etcd, with the remedy; None if nothing."""
    programs = [p for p in ("etcd", "etcdctl") if shutil.which(p) is None]
    return f"not installed: {', '.join(programs)} (Debian: apt-get install etcd-server etcd-client)" if programs else None


def etcd_version() -> str:
    done = subprocess.run(["etcd", "--version"], capture_output=True, text=True, timeout=10, check=False)
    return done.stdout.split("\n", 1)[0]


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
