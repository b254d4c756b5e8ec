"""Where labs keep their files, and the configuration of a station's daemon.

Every lab has a folder: ``holder.sock`` (requests), ``holder.log``, ``lock``, ``lab.json``, and for each station ``sN/`` with
``zenjund.toml``, ``zenjund.sock``, ``zenjund.log`` and ``state/``.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from . import ipc
from .errors import LabError

HOME_VARIABLE: Final = "ZENJUN_LAB_HOME"
"""Environment variable naming the folder of all labs; set for programs inside a lab, where the user's id differs."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def home() -> Path:
    """The folder of this user's labs, which may not exist yet."""
    if given := os.environ.get(HOME_VARIABLE):
        return Path(given)
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "zenjun-lab"
    return Path(f"/tmp/zenjun-lab-{os.getuid()}")


def make_home() -> Path:
    """Create the folder of this user's labs. Raises LabError when another user could have put it there."""
    folder = home()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise LabError(f"the labs' folder {folder} cannot be made: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise LabError(f"{folder} does not belong to this user: set {HOME_VARIABLE} to another folder")
    return folder


def check_name(name: str) -> str:
    """The name itself. Raises LabError when it cannot name a lab."""
    if not _NAME.fullmatch(name):
        raise LabError(f"{name!r} is no name for a lab: up to 32 letters, digits, dots, dashes and underscores")
    return name


def station_directory(lab: Path, station: int) -> Path:
    """The folder of one station."""
    return lab / f"s{station}"


def check_paths(lab: Path, stations: int) -> None:
    """Raise LabError when a socket below *lab* would have a path longer than Unix sockets allow."""
    longest = station_directory(lab, stations) / "zenjund.sock"
    if (size := len(os.fsencode(longest))) > ipc.PATH_MAX:
        raise LabError(f"{longest} is {size} bytes long; Unix sockets allow {ipc.PATH_MAX}: choose a folder with a shorter path")


def in_use(lab: Path) -> bool:
    """Whether any process of the lab in this folder is alive, told by its lock."""
    try:
        fd = os.open(lab / "lock", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def read_note(lab: Path) -> dict[str, Any] | None:
    """What the holder wrote about itself (name, pid, token, stations), or None."""
    try:
        note = json.loads((lab / "lab.json").read_text())
    except (OSError, ValueError):
        return None
    return note if isinstance(note, dict) else None


def to_toml(tables: Mapping[str, Mapping[str, Any]], lists: Mapping[str, Iterable[Mapping[str, Any]]] | None = None) -> str:
    """A TOML document of tables of plain values: text, numbers, booleans, paths and lists of these. lists: of tables, after
    them."""
    lines = []
    for name, table in tables.items():
        lines.append(f"[{_key(name)}]")
        lines += [f"{_key(key)} = {_value(value)}" for key, value in table.items()]
        lines.append("")
    for name, each in (lists or {}).items():
        for table in each:
            lines += [f"[[{_key(name)}]]", *(f"{_key(key)} = {_value(value)}" for key, value in table.items()), ""]
    return "\n".join(lines)


def _key(text: str) -> str:
    return text if _BARE_KEY.fullmatch(text) else json.dumps(text)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str | Path):
        # JSON's escapes are TOML's, but for the one character that JSON leaves as it is.
        return json.dumps(str(value)).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(v) for v in value)}]"
    raise TypeError(f"no TOML value: {value!r}")
