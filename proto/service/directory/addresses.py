"""Addresses (rule E3): URIs, compared byte for byte."""

from __future__ import annotations

import re
from typing import Final

from .names import STATIONS_MAX

ADDRESS_MAX: Final = 512
"""Bytes of an address."""

_URI: Final = re.compile(r"([a-z][a-z0-9+.-]*):[!-~]+", re.ASCII)
_MAC: Final = re.compile(r"mac:[0-9a-f]{2}(?::[0-9a-f]{2}){5}", re.ASCII)
_STATION: Final = re.compile(r"station:([1-9][0-9]?)(?:/[!-~]+)?", re.ASCII)
_WHILE: Final = re.compile(r"station:[1-9][0-9]?", re.ASCII)


def station_of_address(address: str) -> int:
    """k for ``station:k`` and for ``station:k/program``; 0 for every other address, and for a station that cannot be."""
    match = _STATION.fullmatch(address)
    station = int(match[1]) if match else 0
    return station if station <= STATIONS_MAX else 0


def is_address(address: object) -> bool:
    """A URI in at most ``ADDRESS_MAX`` printable ASCII characters without spaces; ``mac:`` and ``station:`` in their one
    spelling."""
    if type(address) is not str or len(address) > ADDRESS_MAX:
        return False
    match = _URI.fullmatch(address)
    if match is None:
        return False
    if match[1] == "mac":
        return _MAC.fullmatch(address) is not None
    return match[1] != "station" or station_of_address(address) > 0


def is_station(text: object) -> bool:
    """``station:k``, as a target's *while* and as what can be taken out of use."""
    return type(text) is str and _WHILE.fullmatch(text) is not None and int(text[8:]) <= STATIONS_MAX
