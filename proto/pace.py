"""How an opening of many stations keeps from drowning in its own words.

An OPEN of each of n stations is n * (n - 1) receptions, and on a segment, or a machine, that is slow for so many each of them may
be late. Up to ``SMALL`` stations nothing here makes a difference. Beyond,

1. *intervals*: an OPEN, or RCV, is repeated the less often the more stations there are, and whoever has been heard counts as
   present for as much longer (n / ``SMALL`` times);
2. *arrivals*: as long as new stations come, a set that lacks some is not proposed: until nobody new has come for ``GAPS`` times
   the longest gap between two arrivals, at most for ``ARRIVAL_WINDOWS`` windows;
3. *one proposes*: the lowest station present does, the others take its proposal. If it does not, each proposes by itself;
4. *patience*: a proposal stays as long as answers to it come. Stations that have come since join by votes;
5. *grace*: after an opening nobody is suspected before those who are slow have had time to start as well.

None of them touches what makes an opening safe (``opening.py``): they say when a proposal is issued, and which of those that may
be issued, never what may be started.

Sans-I/O; durations in nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SMALL: Final = 8
"""Stations; with so many, and fewer, everything is as configured."""
GAPS: Final = 4
ARRIVAL_WINDOWS: Final = 8
FOLLOW_WINDOWS: Final = 2
"""In a crowd, so long for the lowest station to propose before the others do it themselves."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The durations of one cluster's opening, by its size."""

    crowded: bool
    """More than ``SMALL`` stations."""
    interval_ns: int
    window_ns: int
    recover_ns: int
    grace_ns: int
    """What the window is longer than configured."""

    @classmethod
    def of(cls, stations: int, interval_ns: int, window_ns: int, recover_ns: int) -> Pace:
        """From what is configured: ``open_interval_ms``, ``open_window_ms``, ``recover_interval_ms``."""
        interval, window, recover = (ns * max(stations, SMALL) // SMALL for ns in (interval_ns, window_ns, recover_ns))
        return cls(stations > SMALL, interval, window, recover, window - window_ns)


class Arrivals:
    """When the stations of one opening were heard for the first time."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._last_ns = 0
        self._gap_ns = 0  # the longest between two arrivals

    def note(self, now: int, station: int) -> None:
        """It was heard."""
        if station in self._seen:
            return
        if self._seen:
            self._gap_ns = max(self._gap_ns, now - self._last_ns)
        self._seen.add(station)
        self._last_ns = now

    def calm_ns(self, pace: Pace, since_ns: int) -> int:
        """When, if nobody new comes, nobody will. since_ns: when there were enough; from then on the wait is bounded."""
        if not pace.crowded:
            return since_ns
        return min(self._last_ns + min(GAPS * self._gap_ns, pace.window_ns), since_ns + ARRIVAL_WINDOWS * pace.window_ns)
