"""Limit on the growth of numbers that other stations report: instance numbers, and the last eighth of the incarnations.

Both can be used up for good, because a number that is believed becomes durable. So not a frame decides how far they grow, but
time. A station that is really behind, because its state was lost, catches up in seconds; an attacker that tries to use up all
numbers has to send for hours.

Sans-I/O.
"""

from __future__ import annotations

from typing import Final

from .openpdu import INCARNATION_MAX

NUMBERS_PER_S: Final = 65_536
"""So many numbers are believed in a second, and in one go. A busy cluster uses one or two a second."""
FREE_INCARNATIONS: Final = INCARNATION_MAX // 8 * 7
"""Up to here an incarnation may be anything: a daemon that has lost its state takes one from the clock."""
S_NS: Final = 1_000_000_000


class Belief:
    """A bucket of numbers that fills with time."""

    def __init__(self) -> None:
        self._full_ns = 0  # when it is full again

    def within(self, now: int, known: int, reported: int) -> int:
        """What is believed: ``reported``, or as far from ``known`` towards it as time allows; never less than ``known``."""
        room = NUMBERS_PER_S - max(0, self._full_ns - now) * NUMBERS_PER_S // S_NS
        taken = max(0, min(reported - known, room))
        self._full_ns = max(now, self._full_ns) + taken * S_NS // NUMBERS_PER_S
        return known + taken


class Lives:
    """Which incarnations are believed, for each station by itself."""

    def __init__(self) -> None:
        self._of: dict[int, Belief] = {}

    def believes(self, now: int, station: int, known: int, reported: int) -> bool:
        """May this station's incarnation be ``reported``, where ``known`` was the last one? All or nothing: it is a name."""
        free = max(FREE_INCARNATIONS, known)
        if reported <= free:
            return True
        if reported - free > NUMBERS_PER_S:
            return False
        return self._of.setdefault(station, Belief()).within(now, free, reported) == reported
