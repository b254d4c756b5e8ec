"""Labs by what they are made of: namespaces (lab.py), or containers of a Docker Engine (containers.py), which is only imported
and asked where it can matter.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from . import files
from .errors import LabNotFound
from .lab import UP_S, Lab
from .takedown import all_labs, take_down

if TYPE_CHECKING:
    from .docker_api import Engine


class Listed(NamedTuple):
    """A lab of this user, as far as it is known without attaching to it."""

    name: str
    state: str
    stations: int | None
    """None: it has crashed and left no note."""
    process: int | None
    """Of the holder; None: none is known, or the stations are containers."""
    folder: Path


def make(stations: int, image: str | None = None, **settings: Any) -> Lab:
    """A lab that is not up yet: of containers of *image*; None: of namespaces. settings: ``Lab``'s. ValueError, LabError."""
    if image is None:
        return Lab(stations, **settings)
    from .containers import ContainerLab

    return ContainerLab(stations, image=image, **settings)


def attach(name: str) -> Lab:
    """The lab of this name: of namespaces, else of containers. Raises LabNotFound, LabError."""
    try:
        return Lab.attach(name)
    except LabNotFound:
        from .containers import ContainerLab

        engine = _engine()
        with contextlib.suppress(LabNotFound):
            if engine is not None:
                return ContainerLab.attach(name, engine=engine)
        raise


def listed() -> list[Listed]:
    """All labs of this user. Compose projects with stations are among them. Raises LabError."""
    from . import container_names

    rows = []
    for name in all_labs():
        folder = files.home() / name
        note = files.read_note(folder) or {}
        rows.append(Listed(name, _state(folder, bool(note)), note.get("stations"), note.get("pid"), folder))
    if (engine := _engine()) is not None:
        for name, (stations, running) in container_names.names(engine).items():
            rows = [row for row in rows if row.name != name]
            rows.append(Listed(name, f"{running} containers up", stations, None, files.home() / name))
    return rows


def _state(folder: Path, noted: bool) -> str:
    """Of a lab of namespaces. Whoever makes it writes the note when the network stands."""
    if noted:
        return "up" if files.in_use(folder) else "crashed"
    with contextlib.suppress(OSError):
        if files.in_use(folder) or time.time() - folder.stat().st_mtime < UP_S:
            return "coming up"
    return "crashed"


def owned() -> list[str]:
    """Names of all labs of this user but compose projects, whose makers may not think of them as labs. Raises LabError."""
    from . import container_names

    engine = _engine()
    return sorted({*all_labs(), *(container_names.labs(engine) if engine is not None else [])})


def end(name: str, grace_s: float) -> bool:
    """End the lab of this name, in whatever state it is; returns whether there was anything to end. Raises LabError."""
    from . import containers

    folder = files.home() / files.check_name(name)
    engine = _engine()
    found = engine is not None and containers.take_down(engine, name, folder, grace_s=grace_s)
    return take_down(folder, grace_s=grace_s) or found


def _engine() -> Engine | None:
    """None: there is no Docker Engine to be asked."""
    from .docker_api import Engine, NoEngine

    with contextlib.suppress(NoEngine):
        return Engine.find()
    return None
