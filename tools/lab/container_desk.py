"""A lab of containers from the inside: the engine's bridge, what is done in a container's network, and the execution of requests.

There is no holder process: every caller does the work itself, and what was set is kept in a file of the lab's folder, under a
lock, so that it can be set again when a container, and with it the cable, has been made again.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from . import agent, files, holder, ipc, namespaces, network
from .container_names import find, table_name
from .docker_api import Engine
from .errors import LabError, LabNotFound, LabUnsupported, checked
from .impair import Impairment

INTERFACE: Final = "eth0"
STATE: Final = "containers.json"
"""In the lab's folder: what has been set."""
_INSIDE_S: Final = 20.0


class ContainerHub(network.Hub):
    """The engine's bridge, with the ports that the engine has made; it is in the namespace of the caller."""

    def __init__(
        self, name: str, stations: Sequence[int], network_id: str, options: Mapping[str, str], *, mtu: int, one_channel: bool
    ) -> None:
        """name: of the lab. network_id, options: of the engine's network."""
        super().__init__(mtu=mtu, snooping=False, one_channel=one_channel)
        self._table = table_name(name)
        self._name = options.get("com.docker.network.bridge.name") or f"br-{network_id[:12]}"
        self._lab = zlib.crc32(name.encode())
        self._all = tuple(stations)
        self._ports: dict[int, str] = {}

    def open(self) -> None:
        """Find the bridge. Raises LabUnsupported when the engine's networks are not this machine's."""
        self._ipr = IPRoute()
        found = self._ipr.link_lookup(ifname=self._name)
        if not found:
            raise LabUnsupported(
                f"the engine's bridge {self._name} is no interface of this network namespace: faults work only where the engine "
                "runs on this machine itself, not in a virtual machine (as Docker Desktop does) or in a namespace of its own"
            )
        self._bridge = int(found[0])

    def port_name(self, station: int) -> str:
        """The host's end of the container's cable; without a cable, the name that the next one will have."""
        return self._ports.get(station, f"zj{self._lab:08x}.{station}")

    def find_port(self, index: int) -> str | None:
        """The name of the interface of this index, if it is a port of this bridge."""
        try:
            links = self._ipr.get_links(index)
        except NetlinkError:
            return None
        return str(links[0].get_attr("IFLA_IFNAME")) if links and links[0].get_attr("IFLA_MASTER") == self._bridge else None

    def set_port_of(self, station: int, port: str | None) -> None:
        """Say which port a station has now. On one that is new there are no queues yet."""
        if self._ports.get(station) == port:
            return
        self._queues.pop(station, None)
        self._drops_before.pop(station, None)
        if port is None:
            self._ports.pop(station, None)
        else:
            self._ports[station] = port

    def set_anew(self) -> None:
        """Set all faults on the ports as they are now."""
        if self._filtered:
            self._filter("the faults set before")
        for station, port in self._ports.items():
            self._shape(station)
            if self._one_channel:
                self._serialize(port, self._index(port))

    def _ruleset(self, stations: Sequence[int], losses: Mapping[int, Impairment], **settings: Any) -> str:
        # A container that starts gets a cable from the engine a moment before its cuts can be set.
        return super()._ruleset(stations, losses, only=self._all, **settings)

    def _shape(self, station: int) -> None:
        if station in self._ports:
            super()._shape(station)

    def save(self) -> dict[str, Any]:
        """What ``load`` needs in another process."""
        stations = sorted({*self._impairments, *self._ports})
        return {
            "cuts": sorted(self._cuts),
            "filtered": self._filtered,
            "stations": {
                str(s): {
                    "impairment": self.impairment(s).to_json(),
                    "port": self._ports.get(s),
                    "queue": self._queues.get(s),
                    "drops": self._drops_before.get(s, (0, 0)),
                }
                for s in stations
            },
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from what another process has saved."""
        self._cuts = {(int(a), int(b)) for a, b in state["cuts"]}
        self._filtered = bool(state["filtered"])
        for known in (self._impairments, self._ports, self._queues, self._drops_before):
            known.clear()
        for number, entry in state["stations"].items():
            station = int(number)
            self._impairments[station] = Impairment.from_json(entry["impairment"])
            if entry["port"] is not None:
                self._ports[station] = str(entry["port"])
                if entry["queue"] is not None:
                    self._queues[station] = tuple(entry["queue"])
                self._drops_before[station] = (int(entry["drops"][0]), int(entry["drops"][1]))

    def close(self) -> None:
        """Let go of the kernel's interface; all faults stay."""
        self._ipr.close()


class ContainerAgent(agent.Agent):
    """What is done inside a container's network namespace, in a thread that has moved there."""

    def __init__(self, station: int, description: str, name: str, rate_bit: int) -> None:
        super().__init__(station, description)
        self._ports = {1: network.Port(station, name, rate_bit)}

    @property
    def port(self) -> network.Port:
        """The container's interface."""
        return self._ports[1]

    def peer_index(self) -> int | None:
        """The number of the other end of the cable, in the namespace of the bridge; None when there is no interface."""
        found = self.port.describe()
        if not found["present"]:
            return None
        (link,) = self.port.links(found["index"])
        return int(link.get_attr("IFLA_LINK") or 0) or None


class _Inside:
    """A thread in the network namespace of one container's process, while that runs."""

    def __init__(self, station: int, description: str, pid: int, name: str, rate_bit: int) -> None:
        """Raises LabUnsupported when the thread may not move there."""
        self.pid = pid
        self._thread = ThreadPoolExecutor(1, f"station-{station}")
        try:
            self.run(lambda: namespaces.enter_network(pid))
        except OSError as error:
            self.close()
            raise LabUnsupported(
                f"the network of station {station} cannot be entered ({error.strerror}): "
                "that takes root, and an engine that runs on this machine itself"
            ) from error
        self.agent: ContainerAgent = self.run(lambda: ContainerAgent(station, description, name, rate_bit))

    def run(self, work: Callable[[], Any]) -> Any:
        """Do something there; what it raises is raised here."""
        return self._thread.submit(work).result(_INSIDE_S)

    def close(self) -> None:
        """End the thread when it has nothing to do."""
        self._thread.shutdown(wait=False)


class ContainerDesk(holder.Station):
    """The holder's end of one container: answers in this process what an agent answers for a namespace."""

    def __init__(self, number: int, engine: Engine, container: str, lab: str) -> None:
        self.number = number
        self.pid = 0
        self.container = container
        self.interface = INTERFACE
        self.rate_bit = 0
        self._engine = engine
        self._lab = lab
        self._inside: _Inside | None = None
        self._last_pid = 0
        self._log = files.station_directory(files.home() / lab, number) / "zenjund.log"

    def look(self) -> dict[str, Any]:
        """The container's state as the engine reports it."""
        state: dict[str, Any] = self._engine.inspect(self.container)["State"]
        pid = int(state["Pid"]) if state["Running"] else 0
        if pid != self.pid:
            self._leave()
            self.pid = pid
            if self._last_pid and pid and pid != self._last_pid:
                self.interface, self.rate_bit = INTERFACE, 0
            self._last_pid = pid or self._last_pid
        return state

    def remember(self, entry: Mapping[str, Any]) -> None:
        """What another process knew of this container: its process then, the interface's name, the rate set inside."""
        if self.pid not in (0, int(entry["pid"])):
            return
        self._last_pid = int(entry["pid"])
        self.interface, self.rate_bit = str(entry["interface"]), int(entry["rate_bit"])
        if self._inside is not None:
            self._inside.agent.port.name, self._inside.agent.port.rate_bit = self.interface, self.rate_bit

    def known(self) -> dict[str, Any]:
        """For ``remember``."""
        if self._inside is not None:
            self.interface, self.rate_bit = self._inside.agent.port.name, self._inside.agent.port.rate_bit
        return {"pid": self._last_pid, "interface": self.interface, "rate_bit": self.rate_bit}

    def _leave(self) -> None:
        if self._inside is not None:
            self._inside.close()
            self._inside = None

    def inside(self) -> _Inside:
        """The thread in its namespace. Raises LabNotFound when the container does not run."""
        if not self.pid:
            raise LabNotFound(f"the container of station {self.number} does not run")
        if self._inside is None:
            self._inside = _Inside(self.number, f"lab {self._lab}", self.pid, self.interface, self.rate_bit)
        return self._inside

    def peer_index(self) -> int | None:
        """Number of the bridge's port that its cable leads to, or None."""
        if not self.pid:
            return None
        inside = self.inside()
        found: int | None = inside.run(inside.agent.peer_index)
        return found

    def forward(self, request: ipc.Message) -> ipc.Message:
        """Do what is asked for, here or in the container's namespace."""
        own = getattr(self, f"do_{request['op']}", None)
        if own is not None:
            return agent.answer(self, request)
        if request["op"] == "rate" and not self.pid:
            return {"ok": True}  # set when it starts
        inside = self.inside()
        reply: ipc.Message = inside.run(lambda: agent.answer(inside.agent, request))
        return reply

    def do_describe(self, _request: ipc.Message) -> ipc.Message:
        daemon = self._daemon()
        if not self.pid:
            interface = {"name": self.interface, "present": False, "up": False, "mtu": 0, "mac": ""}
            return {"interface": interface, "links": [], "daemon": daemon, "capturing": False}
        inside = self.inside()
        return {**inside.run(lambda: inside.agent.do_describe({})), "daemon": daemon}

    def do_poll(self, _request: ipc.Message) -> ipc.Message:
        return {"daemon": self._daemon()}

    def _daemon(self) -> dict[str, Any] | None:
        state = self.look()
        if state["Status"] == "created":
            return None
        if state["Running"]:
            return {"pid": self.pid, "returncode": None}
        code = int(state["ExitCode"])
        self.write_log()
        return {"pid": self._last_pid, "returncode": 128 - code if code > 128 else code}

    def do_start(self, _request: ipc.Message) -> ipc.Message:
        if self.look()["Running"]:
            raise LabError(f"the container of station {self.number} is running already (process {self.pid})")
        self._engine.act(self.container, "start")
        return {"daemon": self._daemon()}

    def do_signal(self, request: ipc.Message) -> ipc.Message:
        state = self.look()
        number = signal.Signals(int(request["signal"]))
        if not state["Running"]:
            raise LabNotFound(f"the container of station {self.number} does not run")
        if number == signal.SIGSTOP:
            if not state["Paused"]:
                self._engine.act(self.container, "pause")
        elif number == signal.SIGCONT:
            if state["Paused"]:
                self._engine.act(self.container, "unpause")
        else:
            if state["Paused"] and number == signal.SIGKILL:
                # A frozen process does not even die.
                self._engine.act(self.container, "unpause")
            self._engine.act(self.container, "kill", signal=number.name)
        return {}

    def write_log(self) -> None:
        """Put what the container has written where people and ``wait_open`` look for it."""
        with contextlib.suppress(OSError, LabError):
            self._log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._log.write_bytes(self._engine.log(self.container))

    def close_inherited(self) -> None:
        """Nothing is inherited: nobody forks."""

    def quit(self) -> None:
        """End the thread; the container continues."""
        self._leave()


class ContainerHolder(holder.Holder):
    """Carries out requests of this process, each under the lab's lock and with the ports as they are at that moment."""

    def __init__(self, name: str, directory: Path, engine: Engine, *, one_channel: bool) -> None:
        """name: of the lab, whose containers exist. Raises LabNotFound when there are none."""
        found = find(engine, name)
        if not found:
            raise LabNotFound(f"no containers of a lab {name}")
        mode = str(engine.inspect(next(iter(found.values())))["HostConfig"]["NetworkMode"])
        if mode in ("host", "none") or mode.startswith("container:"):
            raise LabUnsupported(f"the containers of lab {name} are in no network of their own (network mode {mode})")
        self._network = engine.network(mode)
        mtu = int(self._network["Options"].get("com.docker.network.driver.mtu", 1500))
        settings = holder.Settings(
            name=name,
            stations=len(found),
            directory=str(directory),
            token="",
            owner=os.getpid(),
            mtu=mtu,
            snooping=False,
            one_channel=one_channel,
            impairment={},
            remove=True,
        )
        super().__init__(settings, own_user=False)
        self.engine = engine
        self.mtu = mtu
        self._containers = ContainerHub(
            name, list(found), self._network["Id"], self._network["Options"], mtu=mtu, one_channel=one_channel
        )
        self._containers.open()
        self._hubs = {1: self._containers}
        self.desks = {number: ContainerDesk(number, engine, container, name) for number, container in found.items()}
        self._stations = dict(self.desks)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(self._directory / "lock.containers", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def answer(self, request: ipc.Message) -> ipc.Message:
        """Carry out one request; what goes wrong is in the reply."""
        if request["op"] == "station" and request["request"]["op"] == "poll":
            return agent.answer(self, request)  # asked for often, changes nothing
        try:
            with self._alone():
                self._load()
                self.refresh()
                try:
                    return agent.answer(self, request)
                finally:
                    self.refresh()
                    self._save()
        except (LabError, OSError) as error:
            return {"ok": False, "kind": getattr(error, "kind", "failed"), "error": str(error)}

    def refresh(self) -> None:
        """Look where each container's cable is now; on new ones, set the faults again."""
        before = dict(self._containers.save()["stations"])
        for number, desk in self.desks.items():
            desk.look()
            index = desk.peer_index()
            self._containers.set_port_of(number, None if index is None else self._containers.find_port(index))
            wanted = self._containers.impairment(number).rate_bit
            if desk.pid and index is not None and desk.known()["rate_bit"] != wanted:
                checked(desk.ask("rate", rate_bit=wanted))
        after = self._containers.save()["stations"]
        if any(entry["port"] != before.get(number, {}).get("port") for number, entry in after.items()):
            self._containers.set_anew()

    def _load(self) -> None:
        try:
            state = json.loads((self._directory / STATE).read_text())
        except (OSError, ValueError):
            return
        if state.get("network") != self._network["Id"]:
            return  # of containers that are gone
        self._containers.load(state)
        self._unplugged = {(1, int(number)): interface for number, interface in state["unplugged"].items()}
        for number, entry in state["desks"].items():
            if int(number) in self.desks:
                self.desks[int(number)].remember(entry)

    def _save(self) -> None:
        state = {
            **self._containers.save(),
            "network": self._network["Id"],
            "unplugged": {str(number): interface for (_, number), interface in self._unplugged.items()},
            "desks": {str(number): desk.known() for number, desk in self.desks.items()},
        }
        temporary = self._directory / f"{STATE}.new"
        temporary.write_text(json.dumps(state))
        temporary.rename(self._directory / STATE)

    def do_refresh(self, _request: ipc.Message) -> ipc.Message:
        """What every request does before and after."""
        return {}

    def close(self) -> None:
        """Let go of the containers; they and their faults stay."""
        for desk in self.desks.values():
            desk.quit()
        self._containers.close()
