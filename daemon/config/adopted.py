"""Configurations that a running cluster changes (docs/changing.md): their options as bytes, and what they make of a file's.

The options are those of [cluster] that every engine may have anew. All others say how stations hear each other at all, or were
told to programs and sockets when the daemon started.
"""

from __future__ import annotations

import dataclasses
import json
import zlib
from dataclasses import dataclass
from typing import Any, Final

from ...proto.errors import UsageError
from .option import did_you_mean
from .options import OPTIONS, ClusterOptions, Config
from .reader import parse
from .render import toml_value
from .source import ConfigError

FIXED: Final = {
    "name": "it is in every frame",
    "security": "it says how frames are sealed",
    "medium": "on a bus the order is made in another way",
    "ethertype": "it says which frames are the cluster's",
    "group_address": "it says which frames are the cluster's",
    "message_max": "programs were told it when they connected",
    "confirm": "it says which frames confirm data",
    "own_timeout_ms": "it is of a bus only",
}
"""Options of [cluster] that change with all stations stopped only, and why."""
ROSTER: Final = {"stations": "zenjun cluster add and remove", "vacant_stations": "zenjun cluster add and remove"}
"""Options that a command of their own changes."""
_ROWS: Final = {o.name: o for o in OPTIONS if o.section == "cluster"}
CHANGEABLE: Final = tuple(name for name in _ROWS if name not in FIXED)


def options_of(cluster: ClusterOptions) -> bytes:
    """What others are told: the changeable options that are not at their defaults, and the number of stations."""
    found = {name: getattr(cluster, name) for name in CHANGEABLE}
    told = {name: value for name, value in found.items() if _ROWS[name].required or value != _ROWS[name].default}
    return json.dumps(told, sort_keys=True, separators=(",", ":")).encode()


def with_options(config: Config, options: bytes) -> Config:
    """The file's configuration with these options in place of its changeable ones. Raises UsageError, one line."""
    try:
        given = json.loads(options.decode())
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        given = None
    if not isinstance(given, dict) or "stations" not in given:
        raise UsageError("these are no options of a cluster")
    if wrong := sorted(set(given) - set(CHANGEABLE)):
        raise UsageError(f"this version knows no changeable option {wrong[0]}")
    values = {name: given.get(name, None if row.required else row.default) for name, row in _ROWS.items() if name in CHANGEABLE}
    fixed = {name: getattr(config.cluster, name) for name in FIXED}
    text = "[cluster]\n" + "".join(f"{name} = {toml_value(value)}\n" for name, value in {**fixed, **values}.items())
    try:
        cluster = parse(text + f'[station]\nid = {config.station.id}\ninterface = "eth0"\n').cluster
    except ConfigError as error:
        raise UsageError("; ".join(problem.message.replace("cluster.", "") for problem in error.problems)) from None
    return dataclasses.replace(config, cluster=cluster)


def read_value(name: str, text: str) -> Any:
    """The value of an option from a command line. Raises UsageError."""
    row = _ROWS.get(name)
    if row is None:
        raise UsageError(f"[cluster] has no option {name}{did_you_mean(name, tuple(_ROWS))}")
    if name in FIXED:
        raise UsageError(f"{name} cannot be changed while the cluster runs: {FIXED[name]}. Stop all stations (docs/changing.md)")
    if name in ROSTER:
        raise UsageError(f"{name} is changed by {ROSTER[name]}")
    try:
        value: Any = [int(word) for word in text.replace(",", " ").split()] if row.type is list else int(text)
    except ValueError:
        raise UsageError(f"{name} is {text!r}: expected {row.allowed}") from None
    if problem := row.problem(value):
        raise UsageError(f"{name} {problem}")
    return tuple(value) if isinstance(value, list) else value


def changed(config: Config, options: bytes, **values: Any) -> bytes:
    """Other options. Raises UsageError for what does not go together."""
    cluster = dataclasses.replace(with_options(config, options).cluster, **values)
    told = options_of(cluster)
    with_options(config, told)
    return told


def with_station(config: Config, options: bytes, station: int) -> bytes:
    """One station more. Raises UsageError."""
    cluster = with_options(config, options).cluster
    if station in cluster.roster:
        raise UsageError(f"station {station} is in the roster already")
    return _with_roster(config, options, cluster.roster | {station})


def without_station(config: Config, options: bytes, station: int) -> bytes:
    """One station less. Raises UsageError."""
    cluster = with_options(config, options).cluster
    if station not in cluster.roster:
        raise UsageError(f"station {station} is not in the roster: {', '.join(map(str, sorted(cluster.roster)))}")
    if len(cluster.roster) == 1:
        raise UsageError(f"station {station} is the last one")
    if station in cluster.required_stations:
        raise UsageError(f"station {station} is required: zenjun cluster set required_stations first")
    return _with_roster(config, options, cluster.roster - {station})


def _with_roster(config: Config, options: bytes, roster: frozenset[int]) -> bytes:
    stations = max(roster)
    vacant = tuple(sorted(set(range(1, stations + 1)) - roster))
    return changed(config, options, stations=stations, vacant_stations=vacant)


@dataclass(frozen=True, slots=True)
class Roster:
    """The stations of the engine: those of the configuration and, while it is not decided, of the former one."""

    stations: int
    """Numbers are up to this."""
    vacant: tuple[int, ...]
    outside: bool
    """This station is none of them."""


def roster_of(config: Config, former: Config | None = None) -> Roster:
    """For the station of this configuration."""
    own = config.station.id
    roster = config.cluster.roster | (former.cluster.roster if former is not None else frozenset())
    stations = max(*roster, own)
    return Roster(stations, tuple(sorted(set(range(1, stations + 1)) - roster)), own not in roster)


def fingerprint_of(config: Config, number: int, roster: Roster, key_mark: str) -> int:
    """As ``Config.fingerprint_with``, and different for each number of a configuration, for a roster that is that of two, and
    for each station that is none of it."""
    if not number and not roster.outside:
        return config.fingerprint_with(key_mark)
    about = f"{config.agreed_with(key_mark)} {number} {roster} {config.station.id if roster.outside else ''}"
    return zlib.crc32(about.encode())


def differences(file: Config, adopted: Config) -> dict[str, str]:
    """Changeable options that a station's file has otherwise, in words for people."""
    return {
        name: f"{name} is {shown(getattr(adopted.cluster, name))} and {shown(getattr(file.cluster, name))} in the file"
        for name in CHANGEABLE
        if getattr(file.cluster, name) != getattr(adopted.cluster, name)
    }


def shown(value: object) -> str:
    return toml_value(value)


def toml_of(config: Config) -> str:
    """The section [cluster] of a file that has these options."""
    rows = [o for o in _ROWS.values() if o.required or getattr(config.cluster, o.name) != o.default]
    return "[cluster]\n" + "".join(f"{o.name} = {toml_value(getattr(config.cluster, o.name))}\n" for o in rows)
