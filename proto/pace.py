"""How an opening of many stations avoids overload by its own OPENs.

One OPEN of each of n stations is n * (n - 1) receptions. On a segment or a machine that is slow for that number, each of them may
be late. Up to ``SMALL`` stations this file changes nothing. Beyond,

1. *intervals*: an OPEN, or RCV, is repeated less often with more stations, and a station that was heard counts as present for
   longer (n / ``SMALL`` times);
2. *arrivals*: while new stations arrive, a set that lacks some is not proposed: until no new one has arrived for ``GAPS`` times
   the longest gap between two arrivals, at most for ``ARRIVAL_WINDOWS`` windows;
3. *one proposes*: the lowest station present does, the others take its proposal. If it does not, each proposes by itself;
4. *patience*: a proposal stays as long as answers to it arrive. Stations that have arrived since join by votes;
5. *grace*: after an opening no station is suspected before the slow ones have had time to start.

None of them affects the safety of an opening (``opening.py``): they decide when a proposal is issued, and which of the allowed
ones, never what may be started.

Sans-I/O; durations in nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SMALL: Final = 8
"""Number of stations; up to this number everything is as configured."""
GAPS: Final = 4
ARRIVAL_WINDOWS: Final = 8
FOLLOW_WINDOWS: Final = 2
"""With many stations, the time for the lowest one to propose before the others do."""


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
        """Time at which, without a new station, no more are expected. since_ns: when there were enough; from then on the wait is
        bounded."""
        if not pace.crowded:
            return since_ns
        return min(self._last_ns + min(GAPS * self._gap_ns, pace.window_ns), since_ns + ARRIVAL_WINDOWS * pace.window_ns)
