"""The process that holds one lab: bridge, stations, and a Unix socket over which other processes ask for changes.

Started with one JSON object on standard input (see ``Settings``); answers with one JSON line on standard output when the lab is
up or cannot be made. Until it gets ``detach`` it belongs to the process that started it and takes the lab down when that process
ends, in whatever way. Nothing of a lab survives its holder and its agents: the namespaces have no names.

The lock file in the lab's folder stays locked while the holder or one of its agents runs: a process that gets the lock knows that
nothing of the lab is left.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

from . import agent, forking, ipc, namespaces, network
from .errors import LabError, LabNotFound, LabTimeout, checked
from .impair import Impairment

AGENT_START_S: Final = 10.0
AGENT_REPLY_S: Final = 15.0
AGENT_END_S: Final = 6.0
CLIENT_S: Final = 10.0
SOCKET_NAME: Final = "holder.sock"
LOCK_NAME: Final = "lock"
INFO_NAME: Final = "lab.json"


@dataclass(frozen=True)
class Settings:
    """What a lab is made of. directory: its folder, which exists; remove: whether to delete the folder at the end; fork:
    whether daemons are forks (forking.py)."""

    name: str
    stations: int
    directory: str
    token: str
    owner: int
    mtu: int
    snooping: bool
    one_channel: bool
    impairment: dict[str, Any]
    remove: bool
    hairpin: bool = False
    links: int = 1
    fork: bool = False


class Station:
    """The holder's end of one agent."""

    def __init__(self, number: int, pid: int, sock: socket.socket) -> None:
        self.number = number
        self.pid = pid
        self._socket = sock

    def fileno(self) -> int:
        """For poll(); readable between requests only when the agent has ended."""
        return self._socket.fileno()

    def reply(self, timeout_s: float = AGENT_REPLY_S) -> ipc.Message:
        """The next reply. Raises what the agent reports, LabNotFound when it has ended."""
        try:
            message = ipc.receive(self._socket, timeout_s)
        except LabTimeout:
            # A late reply would be taken for the next one: without its socket the agent cleans up and ends.
            self._socket.close()
            raise LabNotFound(f"station {self.number} has not answered within {timeout_s:g} s and was given up") from None
        if message is None:
            raise LabNotFound(f"station {self.number} is gone: its process has ended")
        return message

    def ask(self, op: str, **request: Any) -> ipc.Message:
        """Send a request and return the reply, which may be a failure."""
        return self.forward({"op": op, **request})

    def forward(self, request: ipc.Message) -> ipc.Message:
        """Send a request made elsewhere and return the reply."""
        try:
            ipc.send(self._socket, request)
        except OSError:
            raise LabNotFound(f"station {self.number} is gone: its process has ended") from None
        return self.reply()

    def close_inherited(self) -> None:
        """In a fork for another agent: let go of this one's socket without a word."""
        self._socket.close()

    def quit(self) -> None:
        """Ask the agent to end."""
        with contextlib.suppress(OSError):
            ipc.send(self._socket, {"op": "quit"})
        self._socket.close()


class Holder:
    """One lab. All methods named ``do_*`` execute a request of a client."""

    def __init__(self, settings: Settings, own_user: bool) -> None:
        self._settings = settings
        self._own_user = own_user
        self._directory = Path(settings.directory)
        self._hubs = {
            link: network.Hub(
                mtu=settings.mtu,
                snooping=settings.snooping,
                one_channel=settings.one_channel,
                hairpin=settings.hairpin,
                link=link,
            )
            for link in range(1, settings.links + 1)
        }
        self._stations: dict[int, Station] = {}
        self._unplugged: dict[tuple[int, int], dict[str, Any]] = {}
        self._listener: socket.socket | None = None
        self._attached = True
        self._ending = False
        self._grace_s = 0.0

    # Setting up

    def fork_agents(self) -> None:
        """Fork all agents; must come before anything that the children should not inherit."""
        holder = os.getpid()
        for number in range(1, self._settings.stations + 1):
            ours, theirs = socket.socketpair()
            pid = os.fork()
            if pid == 0:
                # Ends of earlier agents' sockets kept open here would hide the holder's end from them.
                ours.close()
                for station in self._stations.values():
                    station.close_inherited()
                agent.run(number, f"lab {self._settings.name}", theirs, holder, self._settings.links)
            theirs.close()
            self._stations[number] = Station(number, pid, ours)

    def build(self) -> None:
        """Make the network. Raises LabError."""
        for station in self._stations.values():
            checked(station.reply(AGENT_START_S))
        for link, hub in self._hubs.items():
            hub.open()
            for number, station in self._stations.items():
                mac = network.mac_address(number, link)
                hub.plug(number, station.pid, network.interface_name(link), self._settings.mtu, mac)
                checked(station.ask("configure", link=link))
        wanted = Impairment.from_json(self._settings.impairment)
        if wanted != Impairment():
            for link in self._hubs:
                self._impair(link, list(self._stations), wanted.to_json())

    def listen(self) -> None:
        """Open the control socket and leave a note for other processes in the lab's folder."""
        path = self._directory / SOCKET_NAME
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(16)
        note = {"name": self._settings.name, "pid": os.getpid(), "token": self._settings.token, "stations": len(self._stations)}
        temporary = self._directory / f"{INFO_NAME}.new"
        temporary.write_text(json.dumps(note))
        temporary.rename(self._directory / INFO_NAME)

    # Serving

    def serve(self, wakeup: int) -> None:
        """Answer requests until asked to end, or until the owner is gone."""
        assert self._listener is not None
        owner = -1
        with contextlib.suppress(ProcessLookupError):
            owner = os.pidfd_open(self._settings.owner)
        if owner < 0:
            return
        poller = select.poll()
        for fd in (self._listener.fileno(), owner, wakeup):
            poller.register(fd, select.POLLIN)
        clients: dict[int, socket.socket] = {}
        while not self._ending:
            for fd, _ in poller.poll():
                if fd == wakeup:
                    return
                if fd == owner:
                    poller.unregister(owner)
                    os.close(owner)
                    owner = -1  # its number will be some client's
                    if self._attached:
                        return
                elif fd == self._listener.fileno():
                    client, _address = self._listener.accept()
                    clients[client.fileno()] = client
                    poller.register(client, select.POLLIN)
                elif not self._serve_client(clients[fd]):
                    poller.unregister(fd)
                    clients.pop(fd).close()
        # A client that asked for the end sees it when its connection closes, with the process.

    def _serve_client(self, client: socket.socket) -> bool:
        try:
            request = ipc.receive(client, CLIENT_S)
            if request is None:
                return False
            ipc.send(client, agent.answer(self, request))
        except (LabError, OSError, ValueError):
            return False
        return True

    def _station(self, request: ipc.Message) -> Station:
        number = int(request["station"])
        if number not in self._stations:
            raise LabNotFound(f"lab {self._settings.name} has no station {number} (it has 1 to {len(self._stations)})")
        return self._stations[number]

    def _links(self, request: ipc.Message) -> list[int]:
        """The link that a request names, all of them if it names none."""
        return [self._link(request)] if request.get("link") else list(self._hubs)

    def _link(self, request: ipc.Message) -> int:
        """The link that a request names, the first if it names none."""
        link = int(request.get("link") or 1)
        if link not in self._hubs:
            raise LabNotFound(f"lab {self._settings.name} has no link {link} (it has 1 to {len(self._hubs)})")
        return link

    # Requests

    def do_info(self, _request: ipc.Message) -> ipc.Message:
        stations = [{"station": s.number, "pid": s.pid, "mac": network.mac_address(s.number)} for s in self._stations.values()]
        return {
            "name": self._settings.name,
            "pid": os.getpid(),
            "token": self._settings.token,
            "mtu": self._settings.mtu,
            "links": len(self._hubs),
            "own_user": self._own_user,
            "attached": self._attached,
            "stations": stations,
        }

    def do_detach(self, _request: ipc.Message) -> ipc.Message:
        self._attached = False
        return {}

    def do_down(self, request: ipc.Message) -> ipc.Message:
        self._grace_s = float(request["grace_s"])
        self._ending = True
        return {}

    def do_station(self, request: ipc.Message) -> ipc.Message:
        station = self._station(request)
        return checked(station.forward(request["request"]))

    def do_status(self, _request: ipc.Message) -> ipc.Message:
        """Everything known about every station, for people."""
        counters = self._counters(list(self._hubs))
        hub = self._hubs[1]
        result = []
        for number, station in self._stations.items():
            entry: dict[str, Any] = {
                "station": number,
                "impairment": hub.impairment(number).to_json(),
                "counters": counters[number],
            }
            try:
                reply = checked(station.ask("describe"))
                entry |= {key: reply[key] for key in ("interface", "daemon", "capturing")}
                if reply["links"]:
                    more = {link: self._hubs[link].impairment(number).to_json() for link in self._hubs}
                    entry["links"] = [each | {"impairment": more[each["link"]]} for each in reply["links"]]
            except LabError as error:
                entry["error"] = str(error)
            result.append(entry)
        links = [{"link": link, "cuts": sorted(hub.cuts)} for link, hub in self._hubs.items()]
        return {"stations": result, "cuts": sorted(hub.cuts), "netem": hub.has_netem(), "links": links}

    def _impair(self, link: int, numbers: list[int], changes: dict[str, Any]) -> None:
        hub = self._hubs[link]
        before: dict[int, Impairment] = {}
        try:
            for number in numbers:
                previous = hub.impairment(number)
                wanted = previous.changed(changes)
                hub.impair(number, wanted)
                before[number] = previous
                if wanted.rate_bit != previous.rate_bit:
                    checked(self._stations[number].ask("rate", rate_bit=wanted.rate_bit, link=link))
        except (LabError, ValueError):
            for number, previous in before.items():
                with contextlib.suppress(LabError):
                    hub.impair(number, previous)
                    self._stations[number].ask("rate", rate_bit=previous.rate_bit, link=link)
            raise

    def do_impair(self, request: ipc.Message) -> ipc.Message:
        numbers = [int(s) for s in request["stations"]]
        for number in numbers:
            self._station({"station": number})
        try:
            for link in self._links(request):
                self._impair(link, numbers, request["changes"])
        except ValueError as error:
            raise LabError(str(error)) from error
        return {}

    def do_cuts(self, request: ipc.Message) -> ipc.Message:
        """Replace (``set``) or extend (``add``) the cuts; pairs [from, to]."""
        pairs = {(int(a), int(b)) for a, b in request["pairs"]}
        for number in {n for pair in pairs for n in pair}:
            self._station({"station": number})
        for link in self._links(request):
            self._hubs[link].set_cuts(pairs if request["how"] == "set" else self._hubs[link].cuts | pairs)
        return {}

    def _counters(self, links: list[int]) -> dict[int, dict[str, int]]:
        """Of all these links together."""
        each = [self._hubs[link].counters(list(self._stations)) for link in links]
        return {n: {name: sum(c[n][name] for c in each) for name in each[0][n]} for n in self._stations}

    def do_counters(self, request: ipc.Message) -> ipc.Message:
        return {"counters": [[number, values] for number, values in self._counters(self._links(request)).items()]}

    def do_port(self, request: ipc.Message) -> ipc.Message:
        hub = self._hubs[self._link(request)]
        hub.set_port(self._station(request).number, mtu=request.get("mtu"), up=request.get("up"))
        return {}

    def _first_two(self) -> tuple[network.Hub, network.Hub]:
        if len(self._hubs) < 2:
            raise LabError(f"lab {self._settings.name} has one link: zenjun lab up --links 2 makes two")
        return self._hubs[1], self._hubs[2]

    def do_join(self, request: ipc.Message) -> ipc.Message:
        one, other = self._first_two()
        one.join(other, are_joined=bool(request["joined"]))
        return {}

    def do_cross(self, request: ipc.Message) -> ipc.Message:
        """Exchange the bridges of a station's first two cables, or put them back."""
        one, other = self._first_two()
        station = self._station(request).number
        for hub, to in ((one, other), (other, one)):
            hub.move_port(station, to if request["crossed"] else hub)
        return {}

    def do_deliver(self, request: ipc.Message) -> ipc.Message:
        hub = self._hubs[self._link(request)]
        hub.deliver(self._station(request).number, [base64.b64decode(f) for f in request["frames"]])
        return {}

    def do_unplug(self, request: ipc.Message) -> ipc.Message:
        station, link = self._station(request), self._link(request)
        interface = checked(station.ask("describe", link=link))["interface"]
        self._hubs[link].unplug(station.number)
        self._unplugged[link, station.number] = interface
        return {}

    def do_plug(self, request: ipc.Message) -> ipc.Message:
        station, link = self._station(request), self._link(request)
        name = checked(station.ask("describe", link=link))["interface"]["name"]
        before = self._unplugged.get((link, station.number), {})
        mtu = int(before.get("mtu") or self._settings.mtu)
        mac = str(before.get("mac") or network.mac_address(station.number, link))
        self._hubs[link].plug(station.number, station.pid, name, mtu, mac)
        checked(station.ask("configure", link=link))
        return {}

    # Taking down

    def close(self) -> None:
        """End everything: daemons by SIGTERM and, after the grace period, all that is left by SIGKILL."""
        if self._grace_s > 0:
            self._stop_daemons(time.monotonic() + self._grace_s)
        for station in self._stations.values():
            station.quit()
        end = time.monotonic() + AGENT_END_S
        for station in self._stations.values():
            self._reap(station.pid, end)
        if self._listener is not None:
            self._listener.close()
        if self._settings.remove:
            shutil.rmtree(self._directory, ignore_errors=True)
        else:
            for name in (SOCKET_NAME, INFO_NAME):
                with contextlib.suppress(OSError):
                    (self._directory / name).unlink()

    def _stop_daemons(self, end: float) -> None:
        waiting = set()
        for station in self._stations.values():
            with contextlib.suppress(LabError):
                if station.ask("signal", signal=int(signal.SIGTERM)).get("ok"):
                    station.ask("signal", signal=int(signal.SIGCONT))  # a stopped process takes no other signal
                    waiting.add(station)
        while waiting and time.monotonic() < end:
            for station in list(waiting):
                try:
                    running = checked(station.ask("poll"))["daemon"]["returncode"] is None
                except LabError:
                    running = False
                if not running:
                    waiting.discard(station)
            time.sleep(0.005)

    @staticmethod
    def _reap(pid: int, end: float) -> None:
        while True:
            try:
                if os.waitpid(pid, os.WNOHANG)[0]:
                    return
            except ChildProcessError:
                return
            if time.monotonic() > end:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                end = time.monotonic() + 1.0
            time.sleep(0.002)


def _lock(directory: Path) -> None:
    # Never closed: the agents inherit it, and it is released when the last of them has ended.
    fd = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise LabError(f"another lab is using {directory}") from None


def main() -> int:
    """Read the settings, build, report, serve, clean up."""
    read_end, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(write_end)

    def wake(_number: int, _frame: FrameType | None) -> None:
        """The wake-up descriptor does the work."""

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, wake)
    settings = Settings(**json.load(sys.stdin))
    holder: Holder | None = None
    try:
        _lock(Path(settings.directory))
        holder = Holder(settings, namespaces.enter_lab())
        os.chdir("/")
        if settings.fork:
            forking.load()
        holder.fork_agents()
        holder.build()
        holder.listen()
        report: ipc.Message = {"ok": True}
    except LabError as error:
        report = {"ok": False, "kind": error.kind, "error": str(error)}
    except Exception as error:
        report = {"ok": False, "kind": "failed", "error": f"the lab could not be made: {error!r}"}
    # The reader may have given up meanwhile; the owner's end is noticed below.
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(report).encode() + b"\n")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    if holder is not None:
        try:
            if report["ok"]:
                holder.serve(read_end)
        finally:
            holder.close()
    return 0 if report["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
