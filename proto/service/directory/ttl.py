"""Leases at the process that they belong to: when they expire (rules M1, M2).

Only a lease with a ``ttl`` needs a clock, the process's monotonic one. A process that has been stopped, or starved, first reads
what its programs have sent meanwhile, and then starts the ttl of each lease again: its own pause does not show that a program has
died.
"""

from __future__ import annotations

from typing import Final

from ...timers import NEVER

PAUSE_NS: Final = 250_000_000
"""A turn that comes this much later than asked for is one after a pause."""
TURN_NS: Final = 100_000_000
"""While there are leases with a ttl the process has a turn at least this often."""


class Ttls:
    """The leases of one process, by number."""

    def __init__(self) -> None:
        self._leases: dict[int, tuple[int, int]] = {}
        """number: (ttl, when it ends); ttl 0: with its connection only."""
        self._turn_ns = -1
        """Time of the last turn, -1: there was none."""

    def __len__(self) -> int:
        return len(self._leases)

    def add(self, now_ns: int, number: int, ttl_ns: int = 0) -> None:
        """A program has asked for a lease."""
        self._leases[number] = (ttl_ns, now_ns + ttl_ns if ttl_ns else NEVER)

    def renew(self, now_ns: int, number: int) -> bool:
        """Renew a lease. False: there is no such lease."""
        found = self._leases.get(number)
        if found is None:
            return False
        self.add(now_ns, number, found[0])
        return True

    def remove(self, number: int) -> None:
        """The program has given it back, or its connection is closed. The caller sends END."""
        self._leases.pop(number, None)

    def next_turn(self) -> int:
        """When ``on_turn`` has to be called at the latest, monotonic nanoseconds."""
        earliest = min((end for _, end in self._leases.values()), default=NEVER)
        if earliest == NEVER or self._turn_ns < 0:
            return earliest
        return min(self._turn_ns + TURN_NS, earliest)

    def on_turn(self, now_ns: int) -> list[int]:
        """The numbers of leases that have ended now, sorted; the caller sends END. Call it when all received data is read: what
        is unread may be a renewal."""
        late = 0 <= self._turn_ns < now_ns - TURN_NS - PAUSE_NS
        self._turn_ns = now_ns
        if late:
            for number, (ttl, _) in self._leases.items():
                self.add(now_ns, number, ttl)
        ended = sorted(number for number, (_, end) in self._leases.items() if end <= now_ns)
        for number in ended:
            del self._leases[number]
        return ended
