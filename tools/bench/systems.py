"""The systems that can be measured: zenjun itself, corosync in two configurations, and the bare AF_PACKET programs."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from ...daemon.key import LONG_KEY_BYTES, new_text
from ...daemon.key import write as write_key
from ..lab import Lab, LabError, LabTimeout
from ..lab.network import ip_address
from .cell import BenchError, Cell

HERE: Final = Path(__file__).resolve().parent
OPEN_S: Final = 20.0
"""Longest wait for a cluster of ours to open."""
COMMAND_S: Final = 15.0
STOP_S: Final = 5.0
COROSYNC_KEY_BYTES: Final = 256


class System:
    """A system under test at all stations of one lab: started, measured cell by cell, stopped. Stopping is always safe."""

    name: str
    ordered = True
    """All stations deliver the same sequence."""

    def __init__(self, lab: Lab) -> None:
        """lab: up, with nothing of this system running yet."""
        self.lab = lab
        self.interface = str(lab.station(1).interface["name"])

    def start(self) -> None:
        """Start it at every station and return when it is ready for clients. Raises BenchError."""

    def stop(self) -> None:
        """End its processes."""

    def daemon_pids(self) -> list[int]:
        return []

    def kill(self, station: int) -> None:
        """End a station's daemon by SIGKILL, at once. Raises BenchError when it does not run."""
        try:
            os.kill(self.daemon_pids()[station - 1], signal.SIGKILL)
        except (IndexError, ProcessLookupError):
            raise BenchError(f"{self.name}: no daemon is running at station {station}") from None

    def restart(self, station: int) -> None:
        """Start the daemon of a station where it was killed; does not wait until it is ready. Raises BenchError."""
        raise NotImplementedError

    def settings(self) -> Mapping[str, Mapping[str, Any]]:
        """Options that differ from those of the lab."""
        return {}

    def counters(self) -> Mapping[str, int]:
        return {}

    def version(self) -> str:
        """Of the software, for the record."""
        return ""

    def level(self, cell: Cell) -> str | None:
        """Level of delivery as this system calls it; None if it has none."""
        return None

    def client_argv(self, station: int, cell: Cell) -> list[str]:
        raise NotImplementedError

    def spawn_client(self, station: int, cell: Cell) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        return self.lab.station(station).spawn(self.client_argv(station, cell), stdin=pipe, stdout=pipe, stderr=pipe)


class Zenjun(System):
    """The daemon of this package, with the lab's configuration and ``options`` on top of it."""

    def __init__(self, lab: Lab, *, name: str = "zenjun", options: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        super().__init__(lab)
        self.name = name
        self.options = options or {}

    def start(self) -> None:
        try:
            for station in self.lab.stations.values():
                station.start_daemon(self.options)  # the configuration may be another such system's
            self.lab.wait_open(OPEN_S)
        except LabError as error:
            raise BenchError(str(error)) from error

    def stop(self) -> None:
        for station in self.lab.stations.values():
            if station.daemon is None or station.daemon.poll() is not None:
                continue
            try:
                station.stop_daemon(STOP_S)
            except LabTimeout:
                station.signal(signal.SIGKILL)

    def restart(self, station: int) -> None:
        try:
            self.lab.station(station).start_daemon()
        except LabError as error:
            raise BenchError(str(error)) from error

    def settings(self) -> Mapping[str, Mapping[str, Any]]:
        return self.options

    def daemon_pids(self) -> list[int]:
        return [s.daemon.pid for s in self.lab.stations.values() if s.daemon is not None]

    def version(self) -> str:
        try:
            return f"zenjun {metadata.version('zenjun')}"
        except metadata.PackageNotFoundError:
            return "zenjun, not installed"

    def level(self, cell: Cell) -> str | None:
        return cell.level

    def client_argv(self, station: int, cell: Cell) -> list[str]:
        return [*worker("load"), *cell.client_arguments(station), "--target", str(self.lab.station(station).socket_path)]

    def counters(self) -> Mapping[str, int]:
        total = dict.fromkeys(("retransmissions", "kernel_drops", "tx_frames", "tx_data"), 0)
        for station in self.lab.stations.values():
            try:
                status = station.status(COMMAND_S)
            except LabError as error:
                raise BenchError(f"station {station.id}: {error}") from error
            core, datapath = status["counters"]["core"], status["counters"]["datapath"]
            total["retransmissions"] += core["tx_retransmit"] + core["tx_relay"]
            total["kernel_drops"] += status["kernel"]["drops"]
            total["tx_frames"] += datapath["tx_frames"]
            total["tx_data"] += core["tx_data"]
        return total


class Keyed(Zenjun):
    """Ours with a key of 32 bytes, and a state folder of its own: who was in a cluster with a key does not start without one."""

    def __init__(self, lab: Lab, security: str, folder: Path) -> None:
        """security: as ``cluster.security``; folder: for the key."""
        self.key_file = path = folder / "bench.key"
        write_key(path, new_text(LONG_KEY_BYTES))
        super().__init__(
            lab, name=f"zenjun-{security}", options={"cluster": {"security": security}, "station": {"key_file": str(path)}}
        )

    def start(self) -> None:
        try:
            for station in self.lab.stations.values():
                own = {"state_dir": str(station.directory / "keyed")}
                station.start_daemon({**self.options, "station": {**self.options["station"], **own}})
            self.lab.wait_open(OPEN_S)
        except LabError as error:
            raise BenchError(str(error)) from error


class Raw(System):
    """No protocol at all: what the kernel's packet path gives on this machine."""

    name = "raw"

    def client_argv(self, station: int, cell: Cell) -> list[str]:
        values = {
            "id": station,
            "stations": cell.stations,
            "senders": cell.senders,
            "length": cell.size,
            "interface": self.interface,
        }
        return [*worker("raw"), *(part for name, value in values.items() for part in (f"--{name}", str(value)))]


class Floor(System):
    """Bare stations that pass on the frames and deliveries of a light load, without a protocol: what these cost here."""

    name = "floor"
    ordered = False

    def __init__(self, lab: Lab, folder: Path) -> None:
        """folder: for the sockets of the programs."""
        super().__init__(lab)
        self.folder = folder
        self.running: list[subprocess.Popen[bytes]] = []

    def _socket(self, station: int) -> str:
        return str(self.folder / f"floor-{station}")

    def spawn_client(self, station: int, cell: Cell) -> subprocess.Popen[bytes]:
        """With the station: a bare one has one program, and ends with it."""
        values = {"id": station, "stations": cell.stations, "interface": self.interface, "target": self._socket(station)}
        argv = [*worker("floor"), *(part for name, value in values.items() for part in (f"--{name}", str(value)))]
        if station == 1:
            self.stop()
        self.running.append(self.lab.station(station).spawn(argv, stdin=subprocess.DEVNULL))
        return super().spawn_client(station, cell)

    def stop(self) -> None:
        for process in self.running:
            _end(process)
        self.running = []

    def daemon_pids(self) -> list[int]:
        return [process.pid for process in self.running]

    def client_argv(self, station: int, cell: Cell) -> list[str]:
        return [*worker("bare"), *cell.client_arguments(station), "--target", self._socket(station)]


def worker(program: str) -> list[str]:
    """Start of the command line of a client in C out of this package's own module."""
    return [sys.executable, "-m", "zenjun.tools.bench.worker", program]


class Corosync(System):
    """corosync with knet, its default transport, and libcpg clients. ``sched_rr`` is its switch for real-time scheduling: yes is
    its default, no is faster where there are fewer cores than busy daemons."""

    def __init__(
        self, lab: Lab, *, real_time: bool, client: Path, folder: Path, crypto: bool = False, link_mode: str = "passive"
    ) -> None:
        """client: what ``build_client`` made. folder: for configurations and logs, of this system alone if the lab has others.
        crypto: AES-256 and HMAC-SHA-256, with a new key. link_mode: of knet, which takes all links of the lab."""
        super().__init__(lab)
        self.real_time = real_time
        self.crypto = crypto
        self.link_mode = link_mode
        self.links = lab.links
        self.name = "corosync" + ("" if real_time else "-no-rr") + ("-crypto" if crypto else "")
        self.client = client
        self.folder = folder
        self.daemons: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        for station in self.lab.stations:
            self.daemons.append(self._start(station))

    def _start(self, station: int) -> subprocess.Popen[bytes]:
        folder = self.folder / f"{self.name}-{station}"
        (folder / "state").mkdir(parents=True, exist_ok=True)
        (folder / "corosync.conf").write_text(self._configuration(folder))
        # Several daemons on one machine: /run (its lock file) must be each one's own; so must /dev/shm, because a daemon that is
        # killed leaves megabytes there, which go with its mounts.
        script = 'mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /dev/shm && exec corosync -f -c "$0"'
        argv = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, str(folder / "corosync.conf")]
        with (folder / "output").open("ab") as output:
            daemon = self.lab.station(station).spawn(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        _wait_for_mounts(daemon)
        return daemon

    def restart(self, station: int) -> None:
        _end(self.daemons[station - 1])
        self.daemons[station - 1] = self._start(station)

    def stop(self) -> None:
        for daemon in self.daemons:
            _end(daemon)
        self.daemons = []

    def _configuration(self, folder: Path) -> str:
        nodes = "".join(
            "  node {\n"
            + "".join(f"    ring{link - 1}_addr: {ip_address(k, link)}\n" for link in range(1, self.links + 1))
            + f"    name: node{k}\n    nodeid: {k}\n  }}\n"
            for k in self.lab.stations
        )
        crypto = "crypto_cipher: none\n  crypto_hash: none"
        if self.crypto:
            crypto = f"crypto_cipher: aes256\n  crypto_hash: sha256\n  keyfile: {self._key()}"
        schedule = "sched_rr: yes" if self.real_time else "sched_rr: no\n  priority: 0"
        return f"""totem {{
  version: 2
  cluster_name: bench
  transport: knet
  ip_version: ipv4
  link_mode: {self.link_mode}
  {crypto}
}}
nodelist {{
{nodes}}}
logging {{
  to_stderr: no
  to_syslog: no
  to_logfile: yes
  logfile: {folder}/log
  debug: off
}}
system {{
  {schedule}
  move_to_root_cgroup: no
  state_dir: {folder}/state
}}
"""

    def _key(self) -> Path:
        """The file of the key that all stations have."""
        path = self.folder / f"{self.name}.key"
        if not path.exists():
            path.touch(0o400)
            path.write_bytes(os.urandom(COROSYNC_KEY_BYTES))
        return path

    def _inside(self, station: int) -> list[str]:
        """Prefix that puts a command into the daemon's mount namespace, where its sockets are."""
        return ["nsenter", "--target", str(self.daemons[station - 1].pid), "--mount", "--"]

    def daemon_pids(self) -> list[int]:
        return [d.pid for d in self.daemons]

    def level(self, cell: Cell) -> str | None:
        return "agreed"

    def client_argv(self, station: int, cell: Cell) -> list[str]:
        return [*self._inside(station), str(self.client), *cell.client_arguments(station)]

    def counters(self) -> Mapping[str, int]:
        total = {"retransmissions": 0}
        argv = ["corosync-cmapctl", "-m", "stats", "-g", "stats.srp.mcast_retx"]
        for number, station in self.lab.stations.items():
            try:
                done = station.run([*self._inside(number), *argv], COMMAND_S)
                total["retransmissions"] += int(done.stdout.rsplit("=", 1)[1])
            except (subprocess.TimeoutExpired, IndexError, ValueError):
                return {}  # too busy to answer, or a release without this key
        return total

    def version(self) -> str:
        done = subprocess.run(["corosync", "-v"], capture_output=True, text=True, timeout=COMMAND_S, check=False)
        return done.stdout.split("\n", 1)[0]

    @staticmethod
    def missing() -> str | None:
        """What this machine lacks to run it, with the remedy; None if nothing."""
        programs = [p for p in ("corosync", "corosync-cmapctl", "nsenter", "unshare") if shutil.which(p) is None]
        if programs:
            return f"not installed: {', '.join(programs)} (Debian: apt-get install corosync libcpg-dev)"
        if compiler() is None:
            return "no C compiler (Debian: apt-get install gcc libc6-dev libcpg-dev)"
        return None

    @staticmethod
    def build_client(folder: Path) -> Path:
        """Compile the load client for libcpg; its path. Raises BenchError with the compiler's words."""
        target = folder / "load-cpg"
        argv = [
            compiler() or "cc",
            "-std=c11",
            "-O2",
            "-o",
            str(target),
            str(HERE / "load_core.c"),
            str(HERE / "load_cpg.c"),
            "-lcpg",
        ]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            raise BenchError(f"the corosync client does not compile (Debian: apt-get install libcpg-dev):\n{done.stderr.strip()}")
        return target


def _wait_for_mounts(daemon: subprocess.Popen[bytes]) -> None:
    """Until it is corosync that runs, with its mounts: who enters before looks for its memory among the machine's."""
    end = time.monotonic() + OPEN_S
    while daemon.poll() is None and time.monotonic() < end:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{daemon.pid}/exe").readlink().name == "corosync":
                return
        time.sleep(0.005)


def _end(daemon: subprocess.Popen[bytes]) -> None:
    """Kill a process that may have ended already."""
    if daemon.poll() is None:
        daemon.send_signal(signal.SIGKILL)
    daemon.wait(STOP_S)


def compiler() -> str | None:
    """The C compiler: $CC, cc, gcc or clang."""
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        if name and (path := shutil.which(name)):
            return path
    return None
