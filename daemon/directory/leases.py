"""Leases of this process (rules M1 to M4): those that its programs hold, and their events."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from ...proto.service.directory.draft import Change
from ...proto.service.directory.entries import NOWHERE, Place, Who
from ...proto.service.directory.operations import Register
from ...proto.service.directory.ttl import Ttls

Tell = Callable[[int, str, Place], None]
"""Reports to the program of a lease: its number; ``held``, ``lost``, ``in-doubt`` or ``ended``; with ``held`` the entry's
version, which of an exclusive name is the fencing number."""


class Lease:
    """One lease of a program here."""

    def __init__(self, number: int, operation: Register, roles: tuple[str, ...], tell: Tell) -> None:
        self.number = number
        self.operation = operation
        self.roles = roles
        self.tell = tell
        self.held = False
        self.doubted = False
        """Its program has heard ``in-doubt``, and nothing since."""

    def turn(self, held: bool, version: Place) -> None:
        """The name has the lease, with this version, or has it no more."""
        if self.held != held or self.doubted:
            self.held, self.doubted = held, False
            self.tell(self.number, "held" if held else "lost", version if held else NOWHERE)


class Leases:
    """All leases of this process, by number. A number is not used twice by a process."""

    def __init__(self, numbers: Iterator[int] | None = None) -> None:
        """numbers: of the leases, where several such objects are in one process."""
        self.ttls = Ttls()
        self._leases: dict[int, Lease] = {}
        self._numbers = count(1) if numbers is None else numbers

    def __len__(self) -> int:
        return len(self._leases)

    def number(self) -> int:
        return next(self._numbers)

    def add(self, lease: Lease, now_ns: int, ttl_ns: int) -> None:
        self._leases[lease.number] = lease
        self.ttls.add(now_ns, lease.number, ttl_ns)

    def get(self, number: int) -> Lease | None:
        return self._leases.get(number)

    def remove(self, number: int) -> bool:
        """Its program has given it back, or is gone. False: there is none."""
        self.ttls.remove(number)
        return self._leases.pop(number, None) is not None

    def expired(self, now_ns: int) -> list[int]:
        """Leases that were not renewed for their ttl."""
        ended = self.ttls.on_turn(now_ns)
        for number in ended:
            lease = self._leases.pop(number, None)
            if lease is not None:
                lease.tell(number, "ended", NOWHERE)
        return ended

    def in_doubt(self) -> None:
        """This station may be without the others: who holds a name alone must reckon with a second holder."""
        for number, lease in self._leases.items():
            if lease.held and lease.operation.exclusive:
                lease.doubted = True
                lease.tell(number, "in-doubt", NOWHERE)

    @property
    def doubted(self) -> bool:
        """A program does not know whether it still has its name."""
        return any(lease.doubted for lease in self._leases.values())

    def all(self) -> list[Lease]:
        return list(self._leases.values())

    def on_changes(self, changes: tuple[Change, ...], me: Who) -> None:
        """Report to programs which of their leases have the name, and which have lost it."""
        mine = f"{me[0]}.{me[1]}."
        for change in changes:
            old, new = _numbers(change.old, mine), _numbers(change.new, mine)
            for number in old ^ new:
                lease = self._leases.get(number)
                if lease is not None and change.new is not None:
                    lease.turn(number in new, change.new.version)
                elif lease is not None:
                    lease.turn(False, NOWHERE)


def _numbers(entry: Any, mine: str) -> set[int]:
    if entry is None:
        return set()
    return {int(t.until[len(mine) :]) for t in entry.targets if t.until.startswith(mine)}
