"""Rule V7: in an instance that a changed configuration has opened, what programs send waits until the programs of all members are
in their groups again, so that it reaches all of them (docs/changing.md).

The driver holds its programs while ``holds``, and says READY in the order behind what puts its own programs into their groups.
Sans-I/O.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

GATHER_NS: Final = 3_000_000_000
"""Programs are held no longer for members that do not say READY."""


class Gathering:
    """One station's."""

    def __init__(self) -> None:
        self._awaited: set[int] = set()
        """Members that have not said READY in this instance."""
        self._until_ns = 0

    @property
    def holds(self) -> bool:
        """Programs' messages wait."""
        return bool(self._awaited)

    def begin(self, now: int, members: Iterable[int]) -> None:
        """An instance that a changed configuration has opened begins, of these stations."""
        self._awaited = set(members)
        self._until_ns = now + GATHER_NS

    def end(self) -> None:
        """The instance has ended, or the next one waits for nobody."""
        self._awaited.clear()

    def ready(self, station: int) -> None:
        """READY of this member was delivered."""
        self._awaited.discard(station)

    def members(self, members: Iterable[int]) -> None:
        """Only these are members from here on."""
        self._awaited &= set(members)

    def look(self, now: int) -> set[int]:
        """Members that have been waited for long enough, and are not any more; nobody: the time is not over."""
        if now < self._until_ns:
            return set()
        given_up, self._awaited = self._awaited, set()
        return given_up
