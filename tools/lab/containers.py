"""Labs of containers: the same commands and faults as for namespaces, on stations that are containers of a Docker Engine.

The stations may have been made by ``zenjun lab up --docker`` or by ``docker compose`` (docker/compose.yml): they are found by
their labels. Faults act on the host's end of a container's cable and, for its own interface, inside its network namespace.
There is no holder process: every caller does the work itself, and what was set is kept in a file of the lab's folder, under a
lock, so that it can be set anew when a container, and with it the cable, has been made anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from . import agent, files, filters, holder, ipc, namespaces, network
from .docker_api import Engine
from .errors import LabError, LabNotFound, LabUnsupported, checked
from .impair import Impairment
from .lab import DaemonProcess, Lab, Station

IMAGE: Final = "zenjun:local"
LAB_LABEL: Final = "zenjun.lab"
STATION_LABEL: Final = "zenjun.station"
COMPOSE_LABEL: Final = "com.docker.compose.project"
_INTERFACE: Final = "eth0"
_INSIDE_S: Final = 20.0
_STATE: Final = "containers.json"
_HOLD_S: Final = 0.5
_SETTLE_S: Final = 1.0


class ContainerHub(network.Hub):
    """The engine's bridge, with the ports that the engine has made; it lives in the namespace of the caller."""

    def __init__(
        self, name: str, stations: Sequence[int], network_id: str, options: Mapping[str, str], *, mtu: int, one_channel: bool
    ) -> None:
        """name: of the lab. network_id, options: of the engine's network."""
        super().__init__(mtu=mtu, snooping=False, one_channel=one_channel)
        self._table = table(name)
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
        # A container that starts gets a cable from the engine a moment before anybody can set its cuts.
        return super()._ruleset(stations, losses, table=self._table, port=self.port_name, only=self._all, **settings)

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
    """What is done inside a container's network namespace; lives in a thread that has moved there."""

    def __init__(self, station: int, description: str, name: str, rate_bit: int) -> None:
        super().__init__(station, description)
        self._port = network.Port(station, name, rate_bit)

    @property
    def port(self) -> network.Port:
        """The container's interface."""
        return self._port

    def peer_index(self) -> int | None:
        """The number of the other end of the cable, in the namespace of the bridge; None when there is no interface."""
        found = self._port.describe()
        if not found["present"]:
            return None
        (link,) = self._port.links(found["index"])
        return int(link.get_attr("IFLA_LINK") or 0) or None


class _Inside:
    """A thread in the network namespace of one container's process, for as long as that lives."""

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
        self.interface = _INTERFACE
        self.rate_bit = 0
        self._engine = engine
        self._lab = lab
        self._inside: _Inside | None = None
        self._last_pid = 0
        self._log = files.station_directory(files.home() / lab, number) / "zenjund.log"

    def look(self) -> dict[str, Any]:
        """The container's state as the engine tells it."""
        state: dict[str, Any] = self._engine.inspect(self.container)["State"]
        pid = int(state["Pid"]) if state["Running"] else 0
        if pid != self.pid:
            self._leave()
            self.pid = pid
            if self._last_pid and pid and pid != self._last_pid:
                self.interface, self.rate_bit = _INTERFACE, 0
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
            return {"interface": interface, "daemon": daemon, "capturing": False}
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
        """Let the thread go; the container goes on."""
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
        self._hub = self._containers
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
        """Look where each container's cable is now; on those that are new, set the faults anew."""
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
            state = json.loads((self._directory / _STATE).read_text())
        except (OSError, ValueError):
            return
        if state.get("network") != self._network["Id"]:
            return  # of containers that are gone
        self._containers.load(state)
        self._unplugged = {int(number): interface for number, interface in state["unplugged"].items()}
        for number, entry in state["desks"].items():
            if int(number) in self.desks:
                self.desks[int(number)].remember(entry)

    def _save(self) -> None:
        state = {
            **self._containers.save(),
            "network": self._network["Id"],
            "unplugged": {str(number): interface for number, interface in self._unplugged.items()},
            "desks": {str(number): desk.known() for number, desk in self.desks.items()},
        }
        temporary = self._directory / f"{_STATE}.new"
        temporary.write_text(json.dumps(state))
        temporary.rename(self._directory / _STATE)

    def do_refresh(self, _request: ipc.Message) -> ipc.Message:
        """What every request does before and after."""
        return {}

    def close(self) -> None:
        """Let go of the containers; they and their faults stay."""
        for desk in self.desks.values():
            desk.quit()
        self._containers.close()


class ContainerStation(Station):
    """One container."""

    def locate(self, pid: int) -> None:
        """Say in which process the station lives now; 0: it does not run."""
        self.netns_pid = pid
        self.socket_path = Path(f"/proc/{pid}/root/run/zenjun/zenjund.sock")

    @property
    def daemon(self) -> DaemonProcess | None:
        """The container's process, also when somebody else has started it again."""
        state = self.request("poll")["daemon"]
        if state is None:
            return None
        if self._daemon is None or self._daemon.pid != state["pid"]:
            self._daemon = DaemonProcess(self, state["pid"])
            self._daemon.returncode = state["returncode"]
        return self._daemon

    def start_daemon(self, options: Mapping[str, Mapping[str, Any]] | None = None, *, argv: Sequence[str] | None = None) -> Any:
        """Start the container; what it runs was said when it was made. Raises LabError."""
        if options is not None or argv is not None:
            raise LabUnsupported("what a container runs, and how, is said when it is made")
        self._daemon = DaemonProcess(self, self.request("start")["daemon"]["pid"])
        return self._daemon

    def status(self, timeout_s: float = 1.0) -> dict[str, Any]:
        """What the daemon says about itself. Raises LabError, LabTimeout."""
        self.request("poll")
        return super().status(timeout_s)

    def command(self, argv: Sequence[str | os.PathLike[str]], cwd: str | os.PathLike[str] | None = None) -> list[str]:
        """The command line that runs *argv* in the container's network, with the files of this machine.

        Raises LabUnsupported when nsenter is missing, LabNotFound when the container does not run.
        """
        self.request("poll")
        if not self.netns_pid:
            raise LabNotFound(f"the container of station {self.id} does not run")
        program = shutil.which("nsenter", path=f"{os.environ.get('PATH', os.defpath)}:/usr/bin:/bin")
        if program is None:
            raise LabUnsupported("running programs in a station needs nsenter: install the package util-linux")
        change = ["/bin/sh", "-c", 'cd -- "$1" && shift && exec "$@"', "sh", os.fspath(cwd or Path.cwd())]
        return [program, "-t", str(self.netns_pid), "-n", "--", *change, *(os.fspath(word) for word in argv)]


class ContainerLab(Lab):
    """A lab whose stations are containers. It stays until ``down``, also when the process that made it ends."""

    captures_outlive = False

    def __init__(self, stations: int, *, engine: Engine | None = None, image: str = IMAGE, **settings: Any) -> None:
        """As ``Lab``; image: what the containers run. Raises LabUnsupported when no engine answers."""
        super().__init__(stations, **settings)
        self.image = image
        self.engine = engine or Engine.find()
        self._desk: ContainerHolder | None = None

    def __enter__(self) -> ContainerLab:
        self.up()
        return self

    def up(self) -> None:
        """Make network and containers; ``start_daemons`` starts them. Raises LabError."""
        if find(self.engine, self.name):
            raise LabError(f"lab {self.name} is up already: zenjun lab down ends it, --name makes another")
        if not self.engine.has_image(self.image):
            raise LabUnsupported(f"the engine has no image {self.image}: docker/build makes it")
        files.make_home()
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        labels = {LAB_LABEL: self.name}
        try:
            net = self.engine.create_network(f"zenjun-{self.name}", labels, self._mtu)
            for number in range(1, self.size + 1):
                files.station_directory(self.directory, number).mkdir(mode=0o700, parents=True, exist_ok=True)
                self.engine.create(f"zenjun-{self.name}-{number}", self._settings(number, net))
            self._hold()
            if self._impairment != Impairment():
                self.impair(None, **self._impairment.to_json())
        except BaseException:
            self.down()
            raise

    def _settings(self, number: int, net: str) -> dict[str, Any]:
        tables: dict[str, dict[str, Any]] = {
            "cluster": {"name": f"lab-{self.name}", "stations": self.size, "medium": self.medium},
            "station": {"id": number, "interface": _INTERFACE},
            "log": {"level": "info"},
        }
        for name, table in self.options.items():
            tables.setdefault(name, {}).update(table)
        return {
            "Image": self.image,
            "Env": [f"ZENJUND_TOML={files.to_toml(tables)}"],
            "Labels": {LAB_LABEL: self.name, STATION_LABEL: str(number)},
            "HostConfig": {"NetworkMode": net, "CapDrop": ["ALL"], "CapAdd": ["NET_RAW"], "ReadonlyRootfs": True},
        }

    def _hold(self) -> None:
        self._desk = ContainerHolder(self.name, self.directory, self.engine, one_channel=self.medium == "bus")
        self._mtu = self._desk.mtu
        self.stations = {number: ContainerStation(self, number, 0) for number in self._desk.desks}
        checked(self._desk.answer({"op": "refresh"}))
        self._locate()

    def _locate(self) -> None:
        assert self._desk is not None
        for number, station in self.stations.items():
            assert isinstance(station, ContainerStation)
            station.locate(self._desk.desks[number].pid)

    @classmethod
    def attach(cls, name: str, directory: Path | None = None, *, engine: Engine | None = None) -> ContainerLab:
        """The lab of this name, made by another process or by compose. Raises LabNotFound, LabUnsupported."""
        engine = engine or Engine.find()
        found = find(engine, files.check_name(name))
        if not found:
            raise LabNotFound(f"there is no lab {name}: start one with zenjun lab up")
        files.make_home()
        lab = cls(max(found), name=name, engine=engine, directory=directory)
        lab._hold()
        return lab

    def request(self, op: str, **arguments: Any) -> dict[str, Any]:
        """Do something; see holder.py. Raises LabError."""
        if self._desk is None:
            raise LabNotFound(f"lab {self.name} is not up")
        try:
            return checked(self._desk.answer({"op": op, **arguments}))
        finally:
            self._locate()

    def refresh(self) -> None:
        """Set faults anew on containers that have been started since."""
        self.request("refresh")

    @property
    def desks(self) -> dict[int, ContainerDesk]:
        """The containers, by station."""
        return {} if self._desk is None else self._desk.desks

    def close(self) -> None:
        """Let go of the lab; it stays as it is."""
        if self._desk is not None:
            self._desk.close()
            self._desk = None
        self.stations = {}

    def detach(self) -> None:
        """Nothing to do: it stays anyway."""

    def refresh_log(self, number: int, follow: bool = False) -> None:
        """Fetch what a container has written into its station's ``log_path``. Raises LabUnsupported when asked to follow."""
        if follow:
            raise LabUnsupported("the engine keeps the log of a container: docker logs -f CONTAINER follows it")
        assert self._desk is not None
        self._desk.desks[self.station(number).id].write_log()

    def down(self, grace_s: float = 2.0) -> None:
        """Remove the containers and all that belongs to them; does nothing when there are none."""
        self.close()
        take_down(self.engine, self.name, self.directory, grace_s=grace_s)


def table(name: str) -> str:
    """The nftables table, of the bridge family, with the rules of a lab."""
    return f"zenjun-{name}"


def find(engine: Engine, name: str) -> dict[int, str]:
    """The containers of a lab, or of a compose project, of this name: station → id, by station."""
    for label in (LAB_LABEL, COMPOSE_LABEL):
        found = {}
        for container in engine.containers([f"{label}={name}", STATION_LABEL]):
            with contextlib.suppress(ValueError):
                found[int(container["Labels"][STATION_LABEL])] = str(container["Id"])
        if found:
            return dict(sorted(found.items()))
    return {}


def names(engine: Engine) -> dict[str, tuple[int, int]]:
    """All labs of containers, and compose projects with stations: name → stations, and how many of them run."""
    result: dict[str, tuple[int, int]] = {}
    for container in engine.containers([STATION_LABEL]):
        labels = container["Labels"]
        name = labels.get(LAB_LABEL) or labels.get(COMPOSE_LABEL)
        if name:
            stations, running = result.get(name, (0, 0))
            result[name] = (stations + 1, running + (container["State"] == "running"))
    return result


def labs(engine: Engine) -> list[str]:
    """Names of all labs of containers but compose projects, also of those of which only the network is left."""
    made = [container["Labels"] for container in engine.containers([LAB_LABEL])]
    made += [net["Labels"] for net in engine.networks(LAB_LABEL)]
    return sorted({str(labels[LAB_LABEL]) for labels in made})


def hold(name: str, impairments: Mapping[str, Any], say: Callable[[str], None]) -> None:
    """Impair the stations of a lab, also those that are started later, until KeyboardInterrupt; then end their faults.

    Raises LabError, but for a lab that is not there yet or not any more.
    """
    engine = Engine.find()
    lab: ContainerLab | None = None
    try:
        while True:
            try:
                if lab is None:
                    lab = ContainerLab.attach(name, engine=engine)
                    lab.impair(None, **impairments)
                    say(f"lab {name}: {len(lab.stations)} stations; {Impairment(**impairments).describe() or 'no impairment'}")
                elif set(find(engine, name).values()) != {desk.container for desk in lab.desks.values()}:
                    lab.close()
                    lab = None
                    continue
                lab.refresh()
            except LabNotFound:
                lab = None
            time.sleep(_HOLD_S)
    finally:
        if lab is not None:
            with contextlib.suppress(LabError):
                lab.impair(None, **Impairment().to_json())
                lab.heal()
            lab.close()
        filters.remove(table(name))


def _remove_all(engine: Engine, label: str, containers: list[dict[str, Any]]) -> None:
    """Remove these containers, and what the engine is making at this moment for somebody who has been killed."""
    end = time.monotonic() + _SETTLE_S
    making = any(container["State"] == "created" for container in containers)
    while True:
        for container in containers:
            engine.remove(str(container["Id"]))
        if not making or time.monotonic() > end:
            return
        time.sleep(0.05)
        containers = engine.containers([label])


def take_down(engine: Engine, name: str, directory: Path, *, grace_s: float) -> bool:
    """End a lab of containers in whatever state it is; returns whether there was anything to end.

    The daemons get SIGTERM and *grace_s* seconds. Removes containers, network, volumes, rules and the lab's folder. A compose
    project counts as a lab when there are stations in it.
    """
    label = f"{COMPOSE_LABEL if not engine.containers([f'{LAB_LABEL}={name}']) and find(engine, name) else LAB_LABEL}={name}"
    containers = engine.containers([label])
    running = {str(c["Id"]): c["State"] for c in containers if c["State"] in ("running", "paused")}
    for number, state in running.items():
        with contextlib.suppress(LabError):  # it may have ended meanwhile
            if state == "paused":
                engine.act(number, "unpause")
            if grace_s > 0:
                engine.act(number, "kill", signal="SIGTERM")
    end = time.monotonic() + grace_s
    while time.monotonic() < end and any(c["Id"] in running and c["State"] == "running" for c in engine.containers([label])):
        time.sleep(0.02)
    _remove_all(engine, label, containers)
    networks = engine.networks(label)
    for net in networks:
        engine.remove_network(str(net["Id"]))
    if containers:
        engine.remove_volumes(label)
    # Rules are all that can outlive the containers, when somebody else has removed those.
    faults = (directory / _STATE).exists()
    if faults:
        filters.remove(table(name))
    if faults or containers:
        shutil.rmtree(directory, ignore_errors=True)
    return bool(containers or networks or faults)
