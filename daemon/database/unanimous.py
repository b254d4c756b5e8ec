"""A database in mode unanimous at this station: its copy serves reads only while no site commits (docs/database.md)."""

from __future__ import annotations

import time
from typing import Any, Final

from ...proto.service.database.machine import Machine
from ...proto.service.database.unanimous import Unanimous
from .copy import GatedRows
from .site import Site

READERS_S: Final = 0.1
"""A transaction waits that long for programs that have waited for the one before to begin to read."""


class UnanimousSite(Site):
    """As the others, with the machine and the copy of its mode."""

    mode = "unanimous"
    machine_class = Unanimous
    rows_class = GatedRows

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._readers: set[object] = set()
        """Programs that wait to read, and those that have been told to, and have not said yet that they have begun."""
        self._owes_since: float | None = None

    @property
    def is_open(self) -> bool:
        return isinstance(self.machine, Unanimous) and self.machine.is_open

    async def readable(self, program: object, seconds: float) -> bool:
        """Wait until a program may begin to read; ``began`` has to follow."""
        self._readers.add(program)
        self._count_readers()
        if await super().readable(program, seconds):
            return True
        self.began(program)
        return False

    def began(self, program: object) -> None:
        """The program has its snapshot, or has gone."""
        if program in self._readers:
            self._readers.discard(program)
            self._count_readers()
            if not self._readers:
                self.soon(self._grant())

    def _count_readers(self) -> None:
        if isinstance(self.machine, Unanimous):
            self.machine.has_readers = bool(self._readers)

    async def _grant(self) -> None:
        if isinstance(self.machine, Unanimous) and self.machine.owes_grant:
            await self.act(self.machine.grant)

    async def turn(self, machine: Machine) -> None:
        """A station that has lost its quorum serves no reads, before the group knows."""
        quorum = self.quorum()
        if isinstance(machine, Unanimous) and machine.quorum != quorum:
            await self.act(machine.on_quorum, quorum)
        if not isinstance(machine, Unanimous) or not machine.owes_grant:
            self._owes_since = None
        elif self._owes_since is None:
            self._owes_since = time.monotonic()
        elif time.monotonic() - self._owes_since > READERS_S:
            self._owes_since = None
            await self._grant()

    def facts(self) -> dict[str, Any]:
        return super().facts() | {"waits_for": self.waits_for()}

    def waits_for(self) -> list[int]:
        """Stations that the transaction which has the lock waits for."""
        machine = self.machine
        if not isinstance(machine, Unanimous) or machine.shared is None:
            return []
        return machine.waited_for(machine.shared)

    def why_not(self) -> str:
        waits = self.waits_for() if self.can_write else []
        return f"stations {waits} have not agreed yet" if waits else super().why_not()


MODES = {site.mode: site for site in (Site, UnanimousSite)}
"""The kinds of databases, by the word for ``zenjun db create --mode``."""
