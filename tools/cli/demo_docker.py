"""``zenjun demo --docker``: the same promise on containers, with faults: loss, and a container that is killed and joins again."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from rich.console import Console
from rich.table import Table

from ..lab import Lab, LabError, LabTimeout, compose
from ..lab.containers import ContainerLab, take_down
from ..lab.files import home

PROJECT: Final = "zenjun-demo"
STATIONS_MAX: Final = 5
_OPEN_S: Final = 60.0
_REMOVED_S: Final = 20.0

Show = Callable[[Console, Lab], bool]


class ShowWords(Protocol):
    """Some stations, or all, broadcast a few words; whether all of them saw the same."""

    def __call__(self, console: Console, lab: Lab, some: Sequence[int] = (), /) -> bool: ...


def show(console: Console, stations: int, loss: float, fail_timeout_ms: int, words: ShowWords, bulk: Show) -> bool:
    """The whole demonstration; returns whether all stations received the same sequence. Raises LabError.

    words, bulk: the exchanges between the stations, passed by ``zenjun demo``; each returns whether all received the same.
    """
    with compose.engine() as engine:
        console.print("Building the image (a minute the first time) …")
        compose.build(engine)
        project = compose.Project(
            engine, PROJECT, STATIONS=str(stations), CLUSTER="demo", COMPOSE_PROFILES="", FAIL_TIMEOUT=str(fail_timeout_ms)
        )
        # What a demonstration that was killed has left.
        take_down(engine, PROJECT, home() / PROJECT, grace_s=0.0)
        try:
            console.print(f"Starting {stations} containers with docker compose …")
            project.up(*(f"station{number}" for number in range(1, stations + 1)))
            lab = ContainerLab.attach(PROJECT, engine=engine)
            try:
                same = _show(console, lab, loss, words, bulk)
            finally:
                lab.close()
        finally:
            with contextlib.suppress(LabError):
                project.down()
            take_down(engine, PROJECT, home() / PROJECT, grace_s=0.0)
        console.print("Containers, network and volumes are gone again.")
    return same


def _show(console: Console, lab: ContainerLab, loss: float, words: ShowWords, bulk: Show) -> bool:
    lab.wait_open(_OPEN_S)
    _show_cluster(console, lab)
    if not words(console, lab):
        return False
    if loss:
        lab.impair(None, loss=loss)
        console.print(f"\nNow every container loses {loss:.0%} of the frames that reach it, on the host's end of its cable.")
    if not bulk(console, lab):
        return False
    victim = max(lab.stations)
    console.print(f"\nKilling the container of station {victim} …")
    lab.station(victim).signal(9)
    started = time.monotonic()
    instance, members = _without(lab, victim)
    console.print(f"After {time.monotonic() - started:.1f} s the others continue without it: instance {instance} of {members}.")
    if not words(console, lab, [number for number in lab.stations if number != victim]):
        return False
    console.print(f"Starting it again, with {loss:.0%} loss on its new cable …" if loss else "Starting it again …")
    lab.station(victim).start_daemon()
    started = time.monotonic()
    instance = lab.wait_open(_OPEN_S)
    members = _words(lab.station(1).status(5.0))
    console.print(f"It has been admitted again after {time.monotonic() - started:.1f} s: instance {instance} of {members}.")
    _show_cluster(console, lab)
    return words(console, lab)


def _without(lab: ContainerLab, victim: int) -> tuple[int, str]:
    """Wait until station 1 is in an instance without a station that was killed. Returns its number and its members."""
    started = time.monotonic()
    while time.monotonic() < started + _REMOVED_S:
        status = lab.station(1).status(5.0)
        if status["state"] == "open" and victim not in _members(status):
            return int(status["instance"]), _words(status)
        time.sleep(0.05)
    raise LabTimeout(f"station {victim} was killed, but is no former member for station 1 within {_REMOVED_S:g} s")


def _members(status: dict[str, Any]) -> list[int]:
    return [int(station) for station, *_ in status["members"]]


def _words(status: dict[str, Any]) -> str:
    return f"stations {', '.join(map(str, _members(status)))}"


def _show_cluster(console: Console, lab: ContainerLab) -> None:
    table = Table()
    for title in ("station", "container", "state", "instance", "order", "digest"):
        table.add_column(title)
    for number, station in lab.stations.items():
        said = station.status(5.0)
        digest = said["digest"]
        table.add_row(
            str(number),
            lab.desks[number].container[:12],
            str(said["state"]),
            str(said["instance"]),
            f"{said['positions']['preack']:,}",
            f"{digest['value']} at {digest['instance']}:{digest['position']:,}",
        )
    console.print(table)
