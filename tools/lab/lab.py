"""Labs as Python objects: what tests, benchmarks and the command line use.

A ``Lab`` talks to its holder over a socket; what belongs to one station is in station.py, the end of labs in takedown.py.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import secrets
import select
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from . import awaiting, files, forking, ipc
from .errors import LabError, LabNotFound, LabTimeout, checked
from .impair import Impairment
from .network import LINKS_MAX
from .station import Station
from .takedown import GONE_S, TOKEN_VARIABLE, answers, connect, take_down

STATIONS_MAX: Final = 64
RING_MIB: Final = 32
MTU_MIN: Final = 68
MTU_MAX: Final = 65535
UP_S: Final = 30.0
_REQUEST_S: Final = 20.0

_numbers = itertools.count(1)


class Lab:
    """A test network: stations, each a network namespace with interface eth0, on one bridge.

    A lab made with ``detached=False`` ends with the process that made it, however that ends; a detached one stays until
    ``down``. Use as a context manager, or call ``up`` and ``down``.
    """

    captures_outlive = True
    """Whether a capture continues when the process that started it has ended."""

    def __init__(
        self,
        stations: int,
        *,
        name: str | None = None,
        mtu: int = 1500,
        medium: str = "switched",
        links: int = 1,
        snooping: bool = False,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        directory: Path | None = None,
        detached: bool = False,
        **impairments: Any,
    ) -> None:
        """Describe a lab; nothing happens before ``up``.

        stations: 1 to 64. name: of the lab (default: one that no other lab has). mtu: bytes. medium: ``switched``, ``bus``
        for ports that return the sender's own frames and forward serially, or ``hairpin``: they return them, but forward on
        whatever processor, so that it looks like a bus and is none. links: 1 to 4
        segments, each a bridge with an interface at every station. snooping: the bridges' multicast snooping. options: added
        to each daemon's configuration, table → name → value. directory: for the lab's files, kept at the end; by default a
        folder that is removed. impairments: of all stations, as in ``Impairment`` (``loss=0.05``). Raises LabError, ValueError.
        """
        if not 1 <= stations <= STATIONS_MAX:
            raise ValueError(f"a lab has 1 to {STATIONS_MAX} stations, not {stations}")
        if not MTU_MIN <= mtu <= MTU_MAX:
            raise ValueError(f"the MTU must be between {MTU_MIN} and {MTU_MAX} bytes, not {mtu}")
        if medium not in ("switched", "bus", "hairpin"):
            raise ValueError(f"the medium is switched, bus or hairpin, not {medium!r}")
        if not 1 <= links <= LINKS_MAX:
            raise ValueError(f"a lab has 1 to {LINKS_MAX} links, not {links}")
        if links > 1 and medium != "switched":
            raise ValueError("only a switched medium has more than one link")
        self.size = stations
        self.links = links
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
        """The daemons' medium unless an option sets another one."""
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
            if answers(self.directory) or not note:
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
            "links": self.links,
            "impairment": self._impairment.to_json(),
            "remove": self._own_directory,
            "fork": forking.is_wanted(),
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
            if not select.select([stdout], [], [], UP_S)[0]:
                raise LabTimeout(f"lab {self.name} does not stand after {UP_S:g} s; see {self.directory}/holder.log")
            line = stdout.readline()
        if not line:
            tail = awaiting.tail(self.directory / "holder.log")
            raise LabError(f"the lab's process ended while making the network: {tail}")
        checked(json.loads(line))

    def detach(self) -> None:
        """Let the lab run on after this process has ended, until ``down`` is called."""
        self.request("detach")

    @classmethod
    def attach(cls, name: str, directory: Path | None = None) -> Lab:
        """The lab of this name that some other process has made. Raises LabNotFound, LabError."""
        folder = (directory or files.home() / files.check_name(name)).absolute()
        note = files.read_note(folder)
        if note is None or not files.in_use(folder):
            raise LabNotFound(
                f"there is no lab {name!r}: start one with zenjun lab up" + ("" if note is None else " (it crashed)")
            )
        lab = cls(int(note["stations"]), name=str(note["name"]), directory=folder)
        lab._attach()
        return lab

    def _attach(self) -> None:
        self._socket = connect(self.directory)
        info = self.request("info")
        self.token = info["token"]
        self._mtu = int(info["mtu"])
        self.links = int(info.get("links", 1))
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
                    self._holder.wait(GONE_S)
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
                self._socket = connect(self.directory)
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

    def impair(self, stations: Iterable[int] | None = None, *, link: int | None = None, **changes: Any) -> None:
        """Change impairments (names and units of ``Impairment``) of some or all stations, all or none of them. link: on this
        one alone.

        Raises LabUnsupported naming what the kernel lacks, LabError for values out of range.
        """
        self.request("impair", stations=[s.id for s in self._chosen(stations)], changes=changes, **_on(link))

    def set_loss(self, fraction: float, station: int | None = None, *, link: int | None = None) -> None:
        """Drop this fraction (0..1) of the frames towards a station, or towards each of them independently."""
        self.impair(None if station is None else [station], link=link, loss=fraction)

    def partition(self, groups: Iterable[Iterable[int]], *, link: int | None = None) -> None:
        """Let only stations of the same group hear each other; stations not named form one more group. Replaces all cuts, of all
        links or of one."""
        sets = [set(group) for group in groups]
        named = [number for group in sets for number in group]
        if len(named) != len(set(named)):
            raise LabError("a station can be in one group only")
        for number in named:
            self.station(number)
        sets.append(set(self.stations) - set(named))
        home = {number: index for index, group in enumerate(sets) for number in group}
        pairs = [(a, b) for a in home for b in home if home[a] != home[b]]
        self.request("cuts", how="set", pairs=pairs, **_on(link))

    def cut(self, a: int, b: int, *, link: int | None = None) -> None:
        """Drop what station *a* sends to station *b*, on all links or on one; the other direction stays. LabError if they are
        one."""
        if a == b:
            raise LabError(f"station {a} has no link to itself that could be cut: name two stations")
        self.request("cuts", how="add", pairs=[(a, b)], **_on(link))

    def cut_link(self, link: int) -> None:
        """Drop all frames on a link, as when its switch dies and the interfaces stay up."""
        self.partition([[number] for number in self.stations], link=link)

    def join_switches(self, *, are_joined: bool = True) -> None:
        """Connect the bridges of links 1 and 2 by a cable, or take it away: then their frames come on both. LabError if there
        is one link."""
        self.request("join", joined=are_joined)

    def heal(self, *, link: int | None = None) -> None:
        """End all partitions and cuts (not losses), of all links or of one."""
        self.request("cuts", how="set", pairs=[], **_on(link))

    def counters(self, *, link: int | None = None) -> dict[int, dict[str, int]]:
        """Frames at each station's ports since they were plugged in, of all links together or of one.

        sent: by the station. received: handed to it. lost: dropped by ``loss``. cut: dropped by partitions and cuts.
        queue_drops: dropped because a queue (rate) was full.
        """
        return {int(number): values for number, values in self.request("counters", **_on(link))["counters"]}

    def describe(self) -> dict[str, Any]:
        """Everything the lab knows: stations (interface, daemon, impairment, counters), cuts, netem."""
        return self.request("status")

    # Captures

    def start_capture(
        self, directory: Path, stations: Iterable[int] | None = None, count: int = 0, ring_mib: int = RING_MIB
    ) -> dict[int, Path]:
        """Record every frame at the stations from now on; returns the pcapng files by station.

        count: end by itself after this number of frames at a station, 0 for never. ring_mib: memory between kernel and file, for
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


def _on(link: int | None) -> dict[str, int]:
    """The part of a request that names a link."""
    return {} if link is None else {"link": link}
