"""Zones with holders of their own (``placement = "zoned"``, rules Z1 to Z3): which zone a name is in, and which stations keep it.

The zone of a name follows from the name: ``db.north`` and ``north`` are in the zone ``north`` if it has holders of its own, all
other names in ``default``. So no station has to know what another zone contains to decide where a name belongs, and a name cannot
be in two of them. Each of these zones is a directory by itself: rows, order of changes, file, and state transfer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from .entries import DEFAULT_ZONE
from .names import is_zone_name

PARTS_MAX: Final = 16
"""Zones with holders of their own: each one takes a group, a file and a connection at its holders."""
NOT_ZONES: Final = (DEFAULT_ZONE, "station")
"""What cannot be one: ``default`` has the option ``holders``, and ``sk.station`` exists of itself."""


class Parts:
    """The zones with holders of their own, and ``default``.

    stations: number of configured stations. holders: those that keep ``default``; (): all. zones: holders by zone.
    """

    def __init__(self, stations: int, holders: Iterable[int] = (), zones: Mapping[str, Iterable[int]] | None = None) -> None:
        self.stations = stations
        default = tuple(sorted(set(holders))) or tuple(range(1, stations + 1))
        self.holders: dict[str, tuple[int, ...]] = {DEFAULT_ZONE: default}
        self.holders.update({zone: tuple(sorted(set(found))) for zone, found in sorted((zones or {}).items())})

    @property
    def full(self) -> bool:
        """Every station keeps everything."""
        return len(self.holders) == 1 and len(self.holders[DEFAULT_ZONE]) == self.stations

    def of(self, name: str) -> str:
        """The zone of a name."""
        last = name[name.rfind(".") + 1 :]
        return last if last in self.holders else DEFAULT_ZONE

    def kept_at(self, station: int) -> list[str]:
        """The zones that a station keeps; none: it is a terminal."""
        return [zone for zone, holders in self.holders.items() if station in holders]

    def beneath(self, prefix: str) -> list[str]:
        """The zones that have names which begin with ``prefix``: all, for the zone is at the end of a name. A whole name: its
        own."""
        return list(self.holders) if not prefix or prefix.endswith(".") else [self.of(prefix)]

    def text(self) -> str:
        """One line, equal at all stations that are configured alike."""
        return " ".join(f"{zone}={','.join(map(str, holders))}" for zone, holders in self.holders.items())


def parse_zone(text: str) -> tuple[str, tuple[int, ...]]:
    """``north=1,2,3``: a zone and its holders. Raises ValueError."""
    zone, equals, rest = text.partition("=")
    if not equals or not is_zone_name(zone) or zone in NOT_ZONES:
        raise ValueError(f"{text!r}: expected NAME=STATION,STATION,...; NAME a-z 0-9 - _, and not {' or '.join(NOT_ZONES)}")
    try:
        stations = [int(word) for word in rest.split(",")]
    except ValueError:
        raise ValueError(f"{text!r}: stations are numbers with commas between them") from None
    if len(set(stations)) < len(stations):
        raise ValueError(f"{text!r}: a station is named twice")
    return zone, tuple(sorted(stations))
