"""Which labs of containers there are: containers and networks are found by their labels."""

from __future__ import annotations

import contextlib
from typing import Final

from .docker_api import Engine

LAB_LABEL: Final = "zenjun.lab"
STATION_LABEL: Final = "zenjun.station"
COMPOSE_LABEL: Final = "com.docker.compose.project"


def table_name(name: str) -> str:
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
