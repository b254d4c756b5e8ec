"""Labs as Python objects: what tests, benchmarks and the command line use.

A ``Lab`` talks to its holder over a socket; programs are started in a station by nsenter, as children of the caller, with its
environment, working folder, terminal and file descriptors.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from . import awaiting, files, ipc, namespaces
from .errors import LabError, LabNotFound, LabTimeout, LabUnsupported, checked
from .impair import Impairment
from .status import daemon_status

STATIONS_MAX: Final = 64
RING_MIB: Final = 32
MTU_MIN: Final = 68
MTU_MAX: Final = 65535
TOKEN_VARIABLE: Final = "ZENJUN_LAB_TOKEN"
"""In the environment of every process of a lab: tells a crashed lab's left-overs from everybody else's processes."""
_UP_S: Final = 30.0
_REQUEST_S: Final = 20.0
_GONE_S: Final = 12.0

_numbers = itertools.count(1)


class DaemonProcess:
    """The daemon of a station as seen from the caller; its parent is the station's agent."""

    def __init__(self, station: Station, pid: int) -> None:
        self._station = station
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code (negative: the signal that killed it), or None while it runs."""
        if self.returncode is None:
            state = self._station.request("poll")["daemon"]
            if state is None or state["pid"] != self.pid:
                raise LabError(f"the daemon of station {self._station.id} has been replaced by another process")
            self.returncode = state["returncode"]
        return self.returncode

    def wait(self, timeout_s: float) -> int:
        """Wait for its end; returns the exit code. Raises LabTimeout after *timeout_s* seconds."""
        deadline = time.monotonic() + timeout_s
        while (code := self.poll()) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise LabTimeout(f"the daemon of station {self._station.id} still runs after {timeout_s:g} s")
            _await_exit(self.pid, left)
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal. Raises LabNotFound when it has ended."""
        self._station.request("signal", signal=int(number))


def _await_exit(pid: int, timeout_s: float) -> None:
    """Return when the process has ended (it may wait to be reaped) or the time is over."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        select.select([fd], [], [], timeout_s)
    finally:
        os.close(fd)


class Station:
    """One station of a lab that is up."""

    def __init__(self, lab: Lab, number: int, pid: int) -> None:
        self._lab = lab
        self.id = number
        self.netns_pid = pid
        """A process that lives in the station's namespaces as long as the lab is up (for nsenter and setns)."""
        self.directory = files.station_directory(lab.directory, number)
        self.socket_path = self.directory / "zenjund.sock"
        self.config_path = self.directory / "zenjund.toml"
        self.log_path = self.directory / "zenjund.log"
        self.state_directory = self.directory / "state"
        self._daemon: DaemonProcess | None = None

    def request(self, op: str, **arguments: Any) -> dict[str, Any]:
        """Have the station's agent do something; see agent.py. Raises LabError."""
        return self._lab.request("station", station=self.id, request={"op": op, **arguments})

    # The daemon

    @property
    def daemon(self) -> DaemonProcess | None:
        """The daemon last started here, by whomever, or None."""
        if self._daemon is None or self._daemon.returncode is not None:
            state = self.request("poll")["daemon"]
            if state is not None and (self._daemon is None or self._daemon.pid != state["pid"]):
                self._daemon = DaemonProcess(self, state["pid"])
                self._daemon.returncode = state["returncode"]
        return self._daemon

    def write_config(self, options: Mapping[str, Mapping[str, Any]] | None = None) -> Path:
        """Write the daemon's configuration: the lab's, overlaid with *options* (table → name → value)."""
        interface = self.request("describe")["interface"]["name"]
        tables: dict[str, dict[str, Any]] = {
            "cluster": {"name": f"lab-{self._lab.name}", "stations": self._lab.size, "medium": self._lab.daemon_medium},
            "station": {"id": self.id, "interface": interface, "socket": self.socket_path, "state_dir": self.state_directory},
            "log": {"level": "info", "format": "text"},
        }
        for overlay in (self._lab.options, options or {}):
            for name, table in overlay.items():
                tables.setdefault(name, {}).update(table)
        self.state_directory.mkdir(parents=True, exist_ok=True)
        self.config_path.write_text(files.to_toml(tables))
        return self.config_path

    def start_daemon(
        self, options: Mapping[str, Mapping[str, Any]] | None = None, *, argv: Sequence[str] | None = None
    ) -> DaemonProcess:
        """Start ``zenjund`` here; its output goes to ``log_path``. *argv* starts another program in its place.

        An existing configuration is kept unless *options* are given. Raises LabError.
        """
        if options is not None or not self.config_path.exists():
            self.write_config(options)
        if argv is None:
            argv = [sys.executable, "-m", "zenjun.daemon", "--config", str(self.config_path)]
        state = self.request("start", argv=list(argv), env=self.environment(), cwd=str(Path.cwd()), log=str(self.log_path))
        self._daemon = DaemonProcess(self, state["daemon"]["pid"])
        return self._daemon

    def stop_daemon(self, timeout_s: float = 5.0) -> int:
        """End the daemon by SIGTERM; returns its exit code. Raises LabTimeout, LabNotFound when none was started."""
        daemon = self._running()
        with contextlib.suppress(LabNotFound):
            daemon.send_signal(signal.SIGTERM)
        return daemon.wait(timeout_s)

    def signal(self, number: int) -> None:
        """Send the daemon a signal. Raises LabNotFound when it does not run."""
        self._running().send_signal(number)

    def _running(self) -> DaemonProcess:
        if self.daemon is None:
            raise LabNotFound(f"no daemon was started at station {self.id}")
        return self.daemon

    def status(self, timeout_s: float = 1.0) -> dict[str, Any]:
        """What the daemon says about itself over the client protocol. Raises LabError, LabTimeout."""
        return daemon_status(self.socket_path, timeout_s)

    # Programs

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """The caller's environment with what tells programs where they are."""
        here = {
            "ZENJUN_LAB": self._lab.name,
            files.HOME_VARIABLE: str(self._lab.directory.parent),
            "ZENJUN_STATION": str(self.id),
            "ZENJUN_SOCKET": str(self.socket_path),
            TOKEN_VARIABLE: self._lab.token,
        }
        return {**os.environ, **here, **(extra or {})}

    def command(self, argv: Sequence[str | os.PathLike[str]], cwd: str | os.PathLike[str] | None = None) -> list[str]:
        """The command line that runs *argv* in the station, in folder *cwd* (the caller's by default).

        nsenter and sh replace themselves: the process that runs it becomes the program. To be run with ``environment()``.
        Raises LabUnsupported when nsenter is missing.
        """
        program = shutil.which("nsenter", path=f"{os.environ.get('PATH', os.defpath)}:/usr/bin:/bin")
        if program is None:
            raise LabUnsupported("running programs in a station needs nsenter: install the package util-linux")
        # Joining a mount namespace moves the process to that one's root: -r brings it back to ours if we live in a chroot.
        join = ["-n", "-m", "-r"]
        if not namespaces.same_namespace(self.netns_pid, "user"):
            join += ["-U", "--preserve-credentials"]
        change = ["/bin/sh", "-c", 'cd -- "$1" && shift && exec "$@"', "sh", os.fspath(cwd or Path.cwd())]
        return [program, "-t", str(self.netns_pid), *join, "--", *change, *(os.fspath(word) for word in argv)]

    def spawn(
        self,
        argv: Sequence[str | os.PathLike[str]],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> subprocess.Popen[Any]:
        """Start a program in the station as a child of the caller; the process id is the program's own.

        env: added to the caller's environment. Other options are those of subprocess.Popen. The program is killed when the
        lab goes down. Raises LabUnsupported.
        """
        return subprocess.Popen(self.command(argv, cwd), env=self.environment(env), **options)

    def run(
        self,
        argv: Sequence[str | os.PathLike[str]],
        timeout_s: float = 30.0,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> subprocess.CompletedProcess[Any]:
        """Run a program in the station to its end; its output is captured as text unless the options of subprocess.run say
        otherwise. Raises subprocess.TimeoutExpired (the program is killed) and, with check=True, CalledProcessError.
        """
        if not {"stdout", "stderr", "capture_output"} & options.keys():
            options["capture_output"] = True
        if not {"text", "encoding", "errors", "universal_newlines"} & options.keys():
            options["text"] = True
        return subprocess.run(self.command(argv, cwd), env=self.environment(env), timeout=timeout_s, **options)

    # Frames

    def inject(self, *frames: bytes) -> None:
        """Send raw Ethernet frames as if this station had: to everybody else on the segment. Raises LabError."""
        self.request("inject", frames=_encoded(frames))

    def deliver(self, *frames: bytes) -> None:
        """Hand raw Ethernet frames to this station alone, past losses and cuts. Raises LabError."""
        self._lab.request("deliver", station=self.id, frames=_encoded(frames))

    # The interface

    @property
    def interface(self) -> dict[str, Any]:
        """The station's interface: name, present, index, up, mtu (bytes), mac."""
        result: dict[str, Any] = self.request("describe")["interface"]
        return result

    def link_down(self) -> None:
        """Set the station's interface down."""
        self.request("link", set={"state": "down"})

    def link_up(self) -> None:
        """Set the station's interface up."""
        self.request("link", set={"state": "up"})

    def cable_out(self) -> None:
        """Set the hub's end down: the station's interface stays up but loses its carrier."""
        self._lab.request("port", station=self.id, up=False)

    def cable_in(self) -> None:
        """Set the hub's end up again."""
        self._lab.request("port", station=self.id, up=True)

    def delete_interface(self) -> None:
        """Remove the station's interface, as when a card is pulled out."""
        self._lab.request("unplug", station=self.id)

    def create_interface(self) -> None:
        """Make the interface anew under the same name, MAC address and MTU, with another index; it is set up."""
        self._lab.request("plug", station=self.id)

    def rename_interface(self, name: str) -> None:
        """Give the interface another name."""
        self.request("rename", name=name)

    def set_mtu(self, mtu: int, port_mtu: int | None = None) -> None:
        """Change the MTU of the interface and of the hub's end (the same by default), bytes."""
        # The hub's end first when growing, last when shrinking, so that no frame of the smaller size is ever refused.
        port_first = mtu > int(self.interface["mtu"])
        if port_first:
            self._lab.request("port", station=self.id, mtu=port_mtu or mtu)
        self.request("link", set={"mtu": mtu})
        if not port_first:
            self._lab.request("port", station=self.id, mtu=port_mtu or mtu)

    def set_mac(self, mac: str) -> None:
        """Change the MAC address (``02:…``); the interface stays up."""
        self.request("link", set={"address": mac})


def _encoded(frames: Iterable[bytes]) -> list[str]:
    return [base64.b64encode(frame).decode() for frame in frames]


class Lab:
    """A test network: stations, each a network namespace with interface eth0, on one bridge.

    A lab made with ``detached=False`` ends with the process that made it, however that ends; a detached one stays until
    ``down``. Use as a context manager, or call ``up`` and ``down``.
    """

    captures_outlive = True
    """Whether a capture goes on when the process that started it has ended."""

    def __init__(
        self,
        stations: int,
        *,
        name: str | None = None,
        mtu: int = 1500,
        medium: str = "switched",
        snooping: bool = False,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        directory: Path | None = None,
        detached: bool = False,
        **impairments: Any,
    ) -> None:
        """Describe a lab; nothing happens before ``up``.

        stations: 1 to 64. name: of the lab (default: one that no other lab has). mtu: bytes. medium: ``switched``, ``bus``
        for ports that return the sender's own frames and forward serially, or ``hairpin``: they return them, but forward on
        whatever processor, so that it looks like a bus and is none. snooping: the bridge's multicast snooping. options: added
        to each daemon's configuration, table → name → value. directory: for the lab's files, kept at the end; by default a
        folder that is removed. impairments: of all stations, as in ``Impairment`` (``loss=0.05``). Raises LabError, ValueError.
        """
        if not 1 <= stations <= STATIONS_MAX:
            raise ValueError(f"a lab has 1 to {STATIONS_MAX} stations, not {stations}")
        if not MTU_MIN <= mtu <= MTU_MAX:
            raise ValueError(f"the MTU must be between {MTU_MIN} and {MTU_MAX} bytes, not {mtu}")
        if medium not in ("switched", "bus", "hairpin"):
            raise ValueError(f"the medium is switched, bus or hairpin, not {medium!r}")
        self.size = stations
        self.name = files.check_name(name or f"p{os.getpid()}-{next(_numbers)}")
        self.medium = medium
        self.options = {table: dict(values) for table, values in (options or {}).items()}
        self.directory = (directory or files.home() / self.name).absolute()
        self.stations: dict[int, Station] = {}
        self.token = secrets.token_hex(16)
        self._own_directory = directory is None
        self._detached = detached
        self._mtu = mtu
        self._snooping = snooping
        self._impairment = Impairment(**{name: value for name, value in impairments.items() if value is not None})
        self._holder: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        files.check_paths(self.directory, stations)

    # Life

    def __enter__(self) -> Lab:
        self.up()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.down()

    @property
    def daemon_medium(self) -> str:
        """What the daemons are told of the medium unless an option says otherwise."""
        return "switched" if self.medium == "switched" else "bus"

    def up(self) -> None:
        """Make the network (no daemons yet). What a crashed lab of this name left behind is removed first.

        Raises LabError (a lab of this name is up), LabUnsupported (rights, kernel features or programs are missing).
        """
        if self._own_directory:
            files.make_home()
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if files.in_use(self.directory):
            note = files.read_note(self.directory) or {}
            if _answers(self.directory) or not note:
                pid = note.get("pid", "unknown")
                raise LabError(f"lab {self.name} is up already (process {pid}): zenjun lab down ends it, --name makes another")
            # A holder that died a moment ago: its agents may still be cleaning up.
            take_down(self.directory, grace_s=0.0)
        elif files.read_note(self.directory) is not None:
            take_down(self.directory, grace_s=0.0)
        for number in range(1, self.size + 1):
            files.station_directory(self.directory, number).mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            self._start_holder()
            self._attach()
            if self._detached:
                self.detach()
        except BaseException:
            self.down(grace_s=0.0)
            raise

    def _start_holder(self) -> None:
        settings = {
            "name": self.name,
            "stations": self.size,
            "directory": str(self.directory),
            "token": self.token,
            "owner": os.getpid(),
            "mtu": self._mtu,
            "snooping": self._snooping,
            "one_channel": self.medium == "bus",
            "hairpin": self.medium == "hairpin",
            "impairment": self._impairment.to_json(),
            "remove": self._own_directory,
        }
        with (self.directory / "holder.log").open("ab") as log:
            self._holder = subprocess.Popen(
                [sys.executable, "-m", f"{__package__}.holder"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, TOKEN_VARIABLE: self.token},
                start_new_session=True,  # Ctrl-C at the terminal is for the caller to handle
            )
        assert self._holder.stdin is not None and self._holder.stdout is not None
        with self._holder.stdin as stdin, contextlib.suppress(BrokenPipeError):
            stdin.write(json.dumps(settings).encode())
        with self._holder.stdout as stdout:
            if not select.select([stdout], [], [], _UP_S)[0]:
                raise LabTimeout(f"lab {self.name} does not stand after {_UP_S:g} s; see {self.directory}/holder.log")
            line = stdout.readline()
        if not line:
            tail = awaiting.tail(self.directory / "holder.log")
            raise LabError(f"the lab's process ended while making the network: {tail}")
        checked(json.loads(line))

    def detach(self) -> None:
        """Let the lab go on after this process has ended, until somebody calls ``down``."""
        self.request("detach")

    @classmethod
    def attach(cls, name: str, directory: Path | None = None) -> Lab:
        """The lab of this name that some other process has made. Raises LabNotFound, LabError."""
        folder = (directory or files.home() / files.check_name(name)).absolute()
        note = files.read_note(folder)
        if note is None or not files.in_use(folder):
            raise LabNotFound(f"there is no lab {name}: start one with zenjun lab up" + ("" if note is None else " (it crashed)"))
        lab = cls(int(note["stations"]), name=str(note["name"]), directory=folder)
        lab._attach()
        return lab

    def _attach(self) -> None:
        self._socket = _connect(self.directory)
        info = self.request("info")
        self.token = info["token"]
        self._mtu = int(info["mtu"])
        self.stations = {s["station"]: Station(self, s["station"], s["pid"]) for s in info["stations"]}

    def down(self, grace_s: float = 2.0) -> None:
        """End the lab; does nothing when it is down. Daemons get SIGTERM and *grace_s* seconds, then everything is killed."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self.stations = {}
        try:
            take_down(self.directory, grace_s=grace_s, token=self.token, keep=not self._own_directory, holder=self._holder)
        finally:
            if self._holder is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._holder.wait(_GONE_S)
                self._holder = None

    def refresh_log(self, number: int, follow: bool = False) -> None:
        """Bring a station's ``log_path`` up to date: it always is."""

    def request(self, op: str, **arguments: Any) -> dict[str, Any]:
        """Have the holder do something; see holder.py. Raises LabError."""
        if self._socket is None:
            raise LabNotFound(f"lab {self.name} is not up")
        try:
            ipc.send(self._socket, {"op": op, **arguments})
            reply = ipc.receive(self._socket, _REQUEST_S)
        except (OSError, LabTimeout) as error:
            self._socket.close()
            self._socket = None
            raise LabNotFound(f"lab {self.name} does not answer any more: {error}") from error
        except BaseException:
            # Ctrl-C between question and answer: who cleans up would take what is still to come for the answer to its own.
            self._socket.close()
            self._socket = None
            with contextlib.suppress(LabNotFound):
                self._socket = _connect(self.directory)
            raise
        if reply is None:
            raise LabNotFound(f"lab {self.name} has ended")
        return checked(reply)

    def _chosen(self, stations: Iterable[int] | None) -> list[Station]:
        numbers = list(self.stations) if stations is None else list(stations)
        return [self.station(number) for number in numbers]

    def station(self, number: int) -> Station:
        """The station of this number. Raises LabNotFound."""
        if number not in self.stations:
            raise LabNotFound(f"lab {self.name} has no station {number} (it has 1 to {self.size})")
        return self.stations[number]

    # Daemons

    def start_daemons(self, ids: Iterable[int] | None = None) -> None:
        """Start the daemons of all stations, or of those named."""
        for station in self._chosen(ids):
            station.start_daemon()

    def wait_open(self, timeout_s: float = 20.0, ids: Iterable[int] | None = None) -> int:
        """Wait until the daemons of all stations (or those named) are in the same instance; returns its number.

        Raises LabTimeout with a line for each station that says what it waits for, and LabError soon when a daemon has ended.
        """
        return awaiting.wait_open(self._chosen(ids), timeout_s)

    # The network

    def impair(self, stations: Iterable[int] | None = None, **changes: Any) -> None:
        """Change impairments (names and units of ``Impairment``) of some or all stations, all or none of them.

        Raises LabUnsupported naming what the kernel lacks, LabError for values out of range.
        """
        self.request("impair", stations=[s.id for s in self._chosen(stations)], changes=changes)

    def set_loss(self, fraction: float, station: int | None = None) -> None:
        """Drop this fraction (0..1) of the frames towards a station, or towards each of them independently."""
        self.impair(None if station is None else [station], loss=fraction)

    def partition(self, groups: Iterable[Iterable[int]]) -> None:
        """Let only stations of the same group hear each other; stations not named form one more group. Replaces all cuts."""
        sets = [set(group) for group in groups]
        named = [number for group in sets for number in group]
        if len(named) != len(set(named)):
            raise LabError("a station can be in one group only")
        for number in named:
            self.station(number)
        sets.append(set(self.stations) - set(named))
        home = {number: index for index, group in enumerate(sets) for number in group}
        pairs = [(a, b) for a in home for b in home if home[a] != home[b]]
        self.request("cuts", how="set", pairs=pairs)

    def cut(self, a: int, b: int) -> None:
        """Drop what station *a* sends to station *b*; the other direction stays. LabError if they are one."""
        if a == b:
            raise LabError(f"station {a} has no link to itself that could be cut: name two stations")
        self.request("cuts", how="add", pairs=[(a, b)])

    def heal(self) -> None:
        """End all partitions and cuts (not losses)."""
        self.request("cuts", how="set", pairs=[])

    def counters(self) -> dict[int, dict[str, int]]:
        """Frames at each station's port since it was plugged in.

        sent: by the station. received: handed to it. lost: dropped by ``loss``. cut: dropped by partitions and cuts.
        queue_drops: dropped because a queue (rate) was full.
        """
        return {int(number): values for number, values in self.request("counters")["counters"]}

    def describe(self) -> dict[str, Any]:
        """Everything the lab knows: stations (interface, daemon, impairment, counters), cuts, netem."""
        return self.request("status")

    # Captures

    def start_capture(
        self, directory: Path, stations: Iterable[int] | None = None, count: int = 0, ring_mib: int = RING_MIB
    ) -> dict[int, Path]:
        """Record every frame at the stations from now on; returns the pcapng files by station.

        count: end by itself after so many frames at a station, 0 for never. ring_mib: memory between kernel and file, for
        each station. Raises LabError.
        """
        directory = Path(directory).absolute()
        directory.mkdir(parents=True, exist_ok=True)
        paths: dict[int, Path] = {}
        try:
            for station in self._chosen(stations):
                path = directory / f"station-{station.id}.pcapng"
                station.request("capture_start", path=str(path), count=count, ring_mib=ring_mib)
                paths[station.id] = path
        except LabError:
            self.stop_capture(paths)
            raise
        return paths

    def capturing(self) -> list[int]:
        """Stations being recorded at the moment."""
        return [s.id for s in self.stations.values() if s.request("describe")["capturing"]]

    def stop_capture(self, stations: Iterable[int] | None = None) -> dict[int, dict[str, int]]:
        """End captures; returns for each station frames, bytes and dropped (frames missing from the file).

        A station that is not being recorded is left out. Raises LabError when a file may be incomplete.
        """
        results: dict[int, dict[str, int]] = {}
        for station in self._chosen(stations):
            with contextlib.suppress(LabNotFound):
                results[station.id] = station.request("capture_stop")["capture"]
        return results

    @contextlib.contextmanager
    def capture(
        self, directory: Path, stations: Iterable[int] | None = None, *, ring_mib: int = RING_MIB, allow_missing: bool = False
    ) -> Iterator[dict[int, Path]]:
        """Record while the block runs; gives the pcapng files by station, complete after the block.

        Raises LabError after the block when the kernel had no room for some frame, unless *allow_missing*: conclusions from a
        capture that lacks frames are wrong.
        """
        paths = self.start_capture(directory, stations, ring_mib=ring_mib)
        try:
            yield paths
        except BaseException:
            with contextlib.suppress(LabError):
                self.stop_capture(paths)
            raise
        missing = {number: result["dropped"] for number, result in self.stop_capture(paths).items() if result["dropped"]}
        if missing and not allow_missing:
            listing = ", ".join(f"{frames} at station {number}" for number, frames in missing.items())
            raise LabError(f"frames are missing from the captures: {listing}; record fewer stations or give a larger ring_mib")


def _connect(directory: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(5.0)
        sock.connect(str(directory / "holder.sock"))
    except OSError as error:
        sock.close()
        raise LabNotFound(f"the lab in {directory} does not answer: {error.strerror}") from error
    return sock


def _answers(directory: Path) -> bool:
    try:
        _connect(directory).close()
    except LabNotFound:
        return False
    return True


def take_down(
    directory: Path,
    *,
    grace_s: float,
    token: str | None = None,
    keep: bool = False,
    holder: subprocess.Popen[bytes] | None = None,
) -> bool:
    """End the lab whose files are in *directory*, in whatever state it is; returns whether there was anything to end.

    Asks the holder; if that does not answer, or has crashed, kills what is left of the lab. The folder is removed unless
    *keep*. holder: its process, when it is the caller's child. Raises LabTimeout when something refuses to die.
    """
    note = files.read_note(directory)
    token = token or (str(note["token"]) if note else None)
    found = note is not None or files.in_use(directory)
    if found and _ask_down(directory, grace_s):
        _await_unlocked(directory, grace_s + _GONE_S)
    elif holder is not None:
        # It may still be making the network: it takes that down by itself.
        with contextlib.suppress(ProcessLookupError):
            holder.terminate()
        _await_unlocked(directory, _GONE_S)
    if token:
        deadline = time.monotonic() + _GONE_S
        while kill_by_token(token):
            found = True
            if holder is not None:
                holder.poll()  # a child that nobody reaps looks alive
            if time.monotonic() > deadline:
                raise LabTimeout(f"processes of the lab in {directory} do not die")
            time.sleep(0.005)
    if not keep:
        shutil.rmtree(directory, ignore_errors=True)
    else:
        for name in ("holder.sock", "lab.json"):
            (directory / name).unlink(missing_ok=True)
    return found


def _ask_down(directory: Path, grace_s: float) -> bool:
    """Tell the holder to end and wait until it has closed the connection; False when it does not answer."""
    try:
        with _connect(directory) as sock:
            ipc.send(sock, {"op": "down", "grace_s": grace_s})
            while ipc.receive(sock, grace_s + _GONE_S) is not None:
                pass
    except (LabError, OSError):
        return False
    return True


def _await_unlocked(directory: Path, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while files.in_use(directory) and time.monotonic() < deadline:
        time.sleep(0.002)


def kill_by_token(token: str) -> int:
    """Kill all processes whose environment carries the lab's token, but not the caller and its parents; returns how many."""
    mark = f"{TOKEN_VARIABLE}={token}".encode()
    spared = {os.getpid()}
    pid = os.getpid()
    while pid > 1:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            break
        spared.add(pid)
    killed = 0
    for process in namespaces.processes():
        if process in spared:
            continue
        try:
            # A zombie's environment is empty, so one that waits to be reaped is not counted.
            if mark in Path(f"/proc/{process}/environ").read_bytes().split(b"\0"):
                os.kill(process, signal.SIGKILL)
                killed += 1
        except OSError:
            continue
    return killed


def all_labs() -> list[str]:
    """Names of all labs of this user that have a folder, running or crashed."""
    try:
        return sorted(entry.name for entry in files.home().iterdir() if entry.is_dir())
    except OSError:
        return []
