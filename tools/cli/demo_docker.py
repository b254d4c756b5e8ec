"""``zenjun demo --docker``: the same promise on containers, with faults: loss, and a container killed that comes back."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from ..lab import Lab, LabError, LabTimeout, compose
from ..lab.containers import ContainerLab, take_down
from ..lab.files import home

PROJECT: Final = "zenjun-demo"
STATIONS_MAX: Final = 5
_OPEN_S: Final = 60.0
_NOTICED_S: Final = 20.0

Show = Callable[[Console, Lab], bool]


def show(console: Console, stations: int, loss: float, words: Show, bulk: Show) -> bool:
    """The whole demonstration; returns whether all stations saw the same. Raises LabError.

    words, bulk: what the stations say to each other, given by ``zenjun demo``; each says whether all saw the same.
    """
    with compose.engine() as engine:
        console.print("Building the image (a minute the first time) …")
        compose.build(engine)
        project = compose.Project(engine, PROJECT, STATIONS=str(stations), CLUSTER="demo", COMPOSE_PROFILES="")
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


def _show(console: Console, lab: ContainerLab, loss: float, words: Show, bulk: Show) -> bool:
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
    said = _noticed(lab, victim)
    console.print(f"Station 1 after {said['after_s']:.1f} s: {said['text']}")
    console.print(f"Starting it again, with {loss:.0%} loss on its new cable …" if loss else "Starting it again …")
    lab.station(victim).start_daemon()
    started = time.monotonic()
    instance = lab.wait_open(_OPEN_S)
    console.print(f"It is back after {time.monotonic() - started:.1f} s: instance {instance}.")
    _show_cluster(console, lab)
    return words(console, lab)


def _noticed(lab: ContainerLab, victim: int) -> dict[str, Any]:
    """Wait until station 1 no longer counts a station that was killed as up."""
    started = time.monotonic()
    while time.monotonic() < started + _NOTICED_S:
        status = lab.station(1).status(5.0)
        peer = next((p for p in status["peers"] if p["station"] == victim), None)
        state = "gone" if peer is None else str(peer["state"])
        if state != "up":
            text = f"station {victim} is {state}, the cluster is {status['state']}"
            return {"after_s": time.monotonic() - started, "text": text}
        time.sleep(0.05)
    raise LabTimeout(f"station 1 has not noticed within {_NOTICED_S:g} s that station {victim} was killed")


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
            f"{digest['value']} at {digest['position']:,}",
        )
    console.print(table)
