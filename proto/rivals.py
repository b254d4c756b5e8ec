"""Rivals: stations of this cluster's name that are configured with another number of stations or with other cluster options
(fingerprint).

Quorum is counted per configuration, so two halves of one segment with different configurations could both open and both confirm.
Therefore (rule M9 of docs/membership.md):

- no station opens an instance while it hears a *running* one of another configuration: a PDU with an instance number, or an OPEN
  whose sender is in an instance;
- while all are opening, the smaller party waits for the larger one. If both are equally large, both wait until a file is
  corrected. A majority is held back only by a majority of another roster that is as large, so one station with a wrong file
  never stops the others;
- an instance that was opened less than ``recent_ns`` ago ends when it hears a running one: the two were opened at the same time.
  An older one stays, whatever it hears; otherwise one frame would be enough to end it.

What was heard counts for ``recent_ns``: a forged frame delays an opening for that long, and while it is repeated. It does
nothing to an instance that is open. Sans-I/O.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Final

from .openpdu import mac_text

RIVALS_MAX: Final = 256
"""Stations remembered; of more, those heard longest ago are forgotten."""


@dataclass(frozen=True, slots=True)
class Rival:
    """A station with another configuration, as it was heard last."""

    station: int
    stations: int
    """n of its schema."""
    fingerprint: int | None
    """None: its PDU does not contain it."""
    host: str
    mac: bytes
    living: bool
    """It is in an instance."""
    at_ns: int

    def differs(self, stations: int, fingerprint: int) -> str:
        """From this configuration, for people."""
        if self.stations != stations:
            return f"stations is {self.stations} there and {stations} here"
        return f"other cluster options: fingerprint {self.fingerprint or 0:08x} there and {fingerprint:08x} here"

    def text(self) -> str:
        """Its name for messages."""
        where = f"{self.host}, {mac_text(self.mac)}" if self.host else mac_text(self.mac)
        return f"station {self.station} ({where})"


class Rivals:
    """Those heard lately at one station."""

    def __init__(self, recent_ns: int) -> None:
        """recent_ns: time for which a received PDU counts."""
        self.recent_ns = recent_ns
        self._heard: dict[tuple[int, int, bytes], Rival] = {}  # oldest first

    def note(self, rival: Rival) -> None:
        """Heard now. A PDU without a fingerprint keeps the one that the station sent before."""
        key = (rival.station, rival.stations, rival.mac)
        before = self._heard.pop(key, None)
        if before is not None and rival.fingerprint is None:
            rival = Rival(rival.station, rival.stations, before.fingerprint, before.host, rival.mac, rival.living, rival.at_ns)
        self._heard[key] = rival
        if len(self._heard) > RIVALS_MAX:
            del self._heard[next(iter(self._heard))]

    def recent(self, now: int) -> list[Rival]:
        """Those heard lately, by station."""
        self._heard = {key: rival for key, rival in self._heard.items() if now - rival.at_ns < self.recent_ns}
        return sorted(self._heard.values(), key=lambda rival: (rival.station, rival.stations, rival.mac))

    def living(self, now: int) -> Rival | None:
        """One that is in an instance."""
        return next((rival for rival in self.recent(now) if rival.living), None) if self._heard else None

    def hold_back(self, now: int, own: int, stations: int) -> Rival | None:
        """One for whose sake ``own`` of ``stations`` must not open: rule 9."""
        if not self._heard:
            return None
        if (alive := self.living(now)) is not None:
            return alive
        parties: defaultdict[tuple[int, int | None], dict[int, Rival]] = defaultdict(dict)
        for rival in self.recent(now):
            parties[rival.stations, rival.fingerprint][rival.station] = rival
        for (n, _), party in sorted(parties.items(), key=lambda item: -len(item[1])):
            if len(party) >= own and (len(party) > n // 2 or own <= stations // 2):
                return next(iter(party.values()))
        return None

    def status(self, now: int) -> list[dict[str, Any]]:
        """For ``zenjun status``."""
        return [
            {
                "station": rival.station,
                "stations": rival.stations,
                "fingerprint": rival.fingerprint,
                "host": rival.host or None,
                "mac": mac_text(rival.mac),
                "living": rival.living,
                "heard_ms": (now - rival.at_ns) // 1_000_000,
            }
            for rival in self.recent(now)
        ]
