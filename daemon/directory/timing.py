"""Whose clock differs."""

from __future__ import annotations

from typing import Final

CLOCK_OFF_S: Final = 5
"""A clock that is so far off is named (rule T2)."""


class Clocks:
    """Wall clocks of the other stations beside this one's, by their DUE: whole seconds, sent up to a second late."""

    def __init__(self) -> None:
        self.offsets: dict[int, int] = {}
        """Seconds by which a station's clock was ahead of this one's at its last report; negative: behind."""

    def on_due(self, station: int, said: int, now: float) -> int:
        """A station's clock has reached ``said`` when this one's shows ``now``, both seconds since 1970. Returns how far it is
        off if it has not been so far off before, else 0."""
        before = self.offsets.get(station, 0)
        offset = self.offsets[station] = said - int(now)
        return offset if abs(offset) >= CLOCK_OFF_S > abs(before) else 0

    def wrong(self) -> list[int]:
        """Stations whose clock is off."""
        return sorted(station for station, offset in self.offsets.items() if abs(offset) >= CLOCK_OFF_S)
