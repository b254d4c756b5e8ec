"""A station of a lab that is up, and its daemon.

Programs are started in a station by nsenter, as children of the caller, with its environment, working folder, terminal and file
descriptors; all else is done by the station's agent, which the lab passes requests on to.
"""

from __future__ import annotations

import base64
import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import files, namespaces
from .errors import LabError, LabNotFound, LabTimeout, LabUnsupported
from .status import daemon_status
from .takedown import TOKEN_VARIABLE

if TYPE_CHECKING:
    from .lab import Lab


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
        """A process in the station's namespaces while the lab is up (for nsenter and setns)."""
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
        described = self.request("describe")
        interface = described["interface"]["name"]
        tables: dict[str, dict[str, Any]] = {
            "cluster": {"name": f"lab-{self._lab.name}", "stations": self._lab.size, "medium": self._lab.daemon_medium},
            "station": {"id": self.id, "interface": interface, "socket": self.socket_path, "state_dir": self.state_directory},
            "log": {"level": "info", "format": "text"},
        }
        more = [{"number": each["link"], "interface": each["name"]} for each in described["links"] if each["link"] > 1]
        if more:
            tables["links"] = {"count": self._lab.links}
        for overlay in (self._lab.options, options or {}):
            for name, table in overlay.items():
                tables.setdefault(name, {}).update(table)
        self.state_directory.mkdir(parents=True, exist_ok=True)
        self.config_path.write_text(files.to_toml(tables, {"link": more}))
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

    def start_directory(self) -> int:
        """Start ``zenjun-directory`` here, which waits for the daemon; its output goes to ``directory.log``. Returns the process
        id. Raises LabError."""
        return self._start_beside("zenjun.daemon.directory", "directory.log")

    def start_database(self) -> int:
        """Start ``zenjun-db`` here, likewise; its output goes to ``db.log``. Returns the process id. Raises LabError."""
        return self._start_beside("zenjun.daemon.database", "db.log")

    def _start_beside(self, module: str, log_name: str) -> int:
        if not self.config_path.exists():
            self.write_config()
        argv = [sys.executable, "-m", module, "--config", str(self.config_path)]
        log = str(self.directory / log_name)
        return int(self.request("beside", argv=argv, env=self.environment(), cwd=str(Path.cwd()), log=log)["pid"])

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
        """The daemon's status over the client protocol. Raises LabError, LabTimeout."""
        return daemon_status(self.socket_path, timeout_s)

    # Programs

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """The caller's environment, with the variables for the station."""
        here = {
            "ZENJUN_LAB": self._lab.name,
            files.HOME_VARIABLE: str(self._lab.directory.parent),
            "ZENJUN_STATION": str(self.id),
            "ZENJUN_SOCKET": str(self.socket_path),
            "ZENJUN_CONFIG": str(self.config_path),
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

    def inject(self, *frames: bytes, link: int = 1) -> None:
        """Send raw Ethernet frames as if this station had: to all others on a segment. Raises LabError."""
        self.request("inject", link=link, frames=_encoded(frames))

    def deliver(self, *frames: bytes) -> None:
        """Hand raw Ethernet frames to this station alone, past losses and cuts. Raises LabError."""
        self._lab.request("deliver", station=self.id, frames=_encoded(frames))

    # The interface

    @property
    def interface(self) -> dict[str, Any]:
        """The station's interface on the first link: name, present, index, up, mtu (bytes), mac."""
        return self.interface_of(1)

    def interface_of(self, link: int) -> dict[str, Any]:
        """The same on another link."""
        result: dict[str, Any] = self.request("describe", link=link)["interface"]
        return result

    def link_down(self, link: int = 1) -> None:
        """Set the station's interface down."""
        self.request("link", set={"state": "down"}, link=link)

    def link_up(self, link: int = 1) -> None:
        """Set the station's interface up."""
        self.request("link", set={"state": "up"}, link=link)

    def cable_out(self, link: int = 1) -> None:
        """Set the hub's end down: the station's interface stays up but loses its carrier."""
        self._lab.request("port", station=self.id, up=False, link=link)

    def cable_in(self, link: int = 1) -> None:
        """Set the hub's end up again."""
        self._lab.request("port", station=self.id, up=True, link=link)

    def cross_cables(self, *, are_crossed: bool = True) -> None:
        """Plug the cables of the first two links into each other's switch, or back. LabError if there is one link."""
        self._lab.request("cross", station=self.id, crossed=are_crossed)

    def delete_interface(self, link: int = 1) -> None:
        """Remove the station's interface, as when a card is pulled out."""
        self._lab.request("unplug", station=self.id, link=link)

    def create_interface(self, link: int = 1) -> None:
        """Make the interface again under the same name, MAC address and MTU, with another index; it is set up."""
        self._lab.request("plug", station=self.id, link=link)

    def rename_interface(self, name: str, link: int = 1) -> None:
        """Give the interface another name."""
        self.request("rename", name=name, link=link)

    def set_mtu(self, mtu: int, port_mtu: int | None = None, link: int = 1) -> None:
        """Change the MTU of the interface and of the hub's end (the same by default), bytes."""
        # The hub's end first when growing, last when shrinking, so that no frame of the smaller size is ever refused.
        port_first = mtu > int(self.interface_of(link)["mtu"])
        if port_first:
            self._lab.request("port", station=self.id, mtu=port_mtu or mtu, link=link)
        self.request("link", set={"mtu": mtu}, link=link)
        if not port_first:
            self._lab.request("port", station=self.id, mtu=port_mtu or mtu, link=link)

    def set_mac(self, mac: str, link: int = 1) -> None:
        """Change the MAC address (``02:…``); the interface stays up."""
        self.request("link", set={"address": mac}, link=link)


def _encoded(frames: Iterable[bytes]) -> list[str]:
    return [base64.b64encode(frame).decode() for frame in frames]
