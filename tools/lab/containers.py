"""Labs of containers: the same commands and faults as for namespaces, on stations that are containers of a Docker Engine.

The stations may have been made by ``zenjun lab up --docker`` or by ``docker compose`` (docker/compose.yml): they are found by
their labels. Faults act on the host's end of a container's cable and, for its own interface, inside its network namespace.
container_desk.py executes their requests.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from . import files, filters
from .container_desk import INTERFACE, STATE, ContainerDesk, ContainerHolder
from .container_names import COMPOSE_LABEL, LAB_LABEL, STATION_LABEL, find, table_name
from .docker_api import Engine
from .errors import LabError, LabNotFound, LabUnsupported, checked
from .impair import Impairment
from .lab import Lab
from .station import DaemonProcess, Station

IMAGE: Final = "zenjun:local"
_HOLD_S: Final = 0.5
_SETTLE_S: Final = 1.0


class ContainerStation(Station):
    """One container."""

    def locate(self, pid: int) -> None:
        """Set the process of the station; 0: it does not run."""
        self.netns_pid = pid
        self.socket_path = Path(f"/proc/{pid}/root/run/zenjun/zenjund.sock")

    @property
    def daemon(self) -> DaemonProcess | None:
        """The container's process, also when another program has started it again."""
        state = self.request("poll")["daemon"]
        if state is None:
            return None
        if self._daemon is None or self._daemon.pid != state["pid"]:
            self._daemon = DaemonProcess(self, state["pid"])
            self._daemon.returncode = state["returncode"]
        return self._daemon

    def start_daemon(self, options: Mapping[str, Mapping[str, Any]] | None = None, *, argv: Sequence[str] | None = None) -> Any:
        """Start the container; its program was given when it was made. Raises LabError."""
        if options is not None or argv is not None:
            raise LabUnsupported("what a container runs, and how, is said when it is made")
        self._daemon = DaemonProcess(self, self.request("start")["daemon"]["pid"])
        return self._daemon

    def status(self, timeout_s: float = 1.0) -> dict[str, Any]:
        """The daemon's status. Raises LabError, LabTimeout."""
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
        if self.links > 1:
            raise ValueError("a lab of containers has one link: the engine's network")
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
            "station": {"id": number, "interface": INTERFACE},
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
            raise LabNotFound(f"there is no lab {name!r}: start one with zenjun lab up")
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
        """Set faults again on containers that have been started since."""
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
        filters.remove(table_name(name))


def _remove_all(engine: Engine, label: str, containers: list[dict[str, Any]]) -> None:
    """Remove these containers, and what the engine is making at this moment for a caller that has been killed."""
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
    # Only rules can outlive the containers, when another program has removed those.
    faults = (directory / STATE).exists()
    if faults:
        filters.remove(table_name(name))
    if faults or containers:
        shutil.rmtree(directory, ignore_errors=True)
    return bool(containers or networks or faults)
