"""Zones: which stations have a database, and which of them a station without a copy uses (rules Z1 to Z3 of docs/database.md)."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Final

from ..directory.names import is_zone_name

ZONES_MAX: Final = 64
COPIES: Final = 1
"""Stations of each zone that have a database, unless it is created with more."""


class Zones:
    """The zones of a cluster, in the order in which they are configured. A station that is in none of them is a zone of its own,
    whose name is its number; so without any every station has every database."""

    def __init__(self, stations: int, zones: Mapping[str, Iterable[int]] | None = None) -> None:
        """stations: number of configured stations. zones: stations by zone, the first one first."""
        self.zones: dict[str, tuple[int, ...]] = {zone: tuple(found) for zone, found in (zones or {}).items()}
        named = {station for found in self.zones.values() for station in found}
        self.zones.update({str(station): (station,) for station in range(1, stations + 1) if station not in named})

    def of(self, station: int) -> str:
        """The zone of a station."""
        return next(zone for zone, found in self.zones.items() if station in found)

    def sites(self, copies: int = COPIES, zones: Iterable[str] = ()) -> tuple[int, ...]:
        """The stations that have a database: the first ones of each of these zones; without any, of all. Raises KeyError."""
        return tuple(sorted({station for zone in (*zones,) or self.zones for station in self.zones[zone][:copies]}))

    def primary(self, zone: str, sites: Container[int], active: Container[int]) -> int | None:
        """The first station of the zone's list that has the database and is active."""
        return next((station for station in self.zones[zone] if station in sites and station in active), None)

    def nearest(self, station: int, sites: Container[int], active: Container[int]) -> int | None:
        """The primary that a station without an active copy uses: its own zone's, else that of the next zone that has one."""
        names = list(self.zones)
        at = names.index(self.of(station))
        found = (self.primary(zone, sites, active) for zone in (*names[at:], *names[:at]))
        return next((primary for primary in found if primary is not None), None)

    def text(self) -> str:
        """One line, equal at all stations that are configured alike."""
        return " ".join(f"{zone}={','.join(map(str, found))}" for zone, found in self.zones.items())


def parse_zone(text: str) -> tuple[str, tuple[int, ...]]:
    """``north=2,1,3``: a zone and its stations, the first one first. Raises ValueError."""
    zone, equals, rest = text.partition("=")
    if not equals or not is_zone_name(zone) or zone.isdigit():
        raise ValueError(f"{text!r}: expected NAME=STATION,STATION,...; NAME a-z 0-9 - _, and no number")
    try:
        stations = tuple(int(word) for word in rest.split(","))
    except ValueError:
        raise ValueError(f"{text!r}: stations are numbers with commas between them") from None
    if len(set(stations)) < len(stations):
        raise ValueError(f"{text!r}: a station is named twice")
    return zone, stations
