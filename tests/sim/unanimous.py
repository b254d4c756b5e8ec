"""The replicated database in mode unanimous, over the same order, faults and programs as ``database.py``.

Besides what holds for any database, programs read copies without asking: whatever a copy shows has all that was told to be
committed, and is on enough disks.

``python -m tests.sim.unanimous FIRST COUNT`` runs many seeds and prints those that fail.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from zenjun.proto.service.base import Effect, Emit, Place
from zenjun.proto.service.database.machine import Answer
from zenjun.proto.service.database.messages import Part, Write, decode
from zenjun.proto.service.database.rows import Verdict
from zenjun.proto.service.database.unanimous import Unanimous

from . import database as sim
from .database_history import CHECKERS as ALL
from .database_plan import Plan
from .histories import run_seeds
from .violation import Violation

CHECKERS: Final = ALL | {"old", "disks", "closed", "gate"}
"""
old     what a copy shows has all that was told to be committed
disks   what was told to be committed is on the disks of all active sites
closed  when data are sent no active site shows anything
gate    in the end all copies show what they have
"""


class Copy(sim.Copy):
    """It shows nothing before the machine says so."""

    def __init__(self, disk: sim.Disk, uuid: bytes) -> None:
        super().__init__(disk, uuid)
        if not self.blank():
            self.gate(is_open=False)

    def shows(self) -> bool:
        """As a program would see it."""
        if self.blank() or not self.connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'zenjun_gate'").fetchall():
            return False
        return self.connection.execute("SELECT open FROM zenjun_gate").fetchall() == [(1,)]


class World(sim.World):
    """A run."""

    rounds = 180
    """Transactions come to rest one after the other."""

    def __init__(self, plan: Plan, **parts: Any) -> None:
        super().__init__(plan, **{"machine": Unanimous, "copy": Copy, **parts})

    def carry_out(self, site: sim.Site, effects: list[Effect], place: Place = (0, 0, 0)) -> None:
        for effect in effects:
            message = decode(effect.data) if isinstance(effect, Emit) else None
            if isinstance(message, Write) or (isinstance(message, Part) and message.number == 0):
                self._check_closed(site)
        super().carry_out(site, effects, place)

    def _check_closed(self, site: sim.Site) -> None:
        shared = site.machine.shared
        for other in self.live.values():
            is_there = shared is not None and other.connected and other.machine.me in shared.active & self.members
            if is_there and self.shows(other):
                raise Violation("closed", f"site {site.station} sends data while site {other.station} shows what it has")

    @staticmethod
    def shows(site: sim.Site) -> bool:
        rows = site.rows
        assert isinstance(rows, Copy)
        return rows.shows()

    def answered(self, site: sim.Site, answer: Answer) -> None:
        shared = site.machine.shared
        super().answered(site, answer)
        if answer.verdict is not Verdict.DONE:
            return
        self.history.promise(answer.txid, answer.version)
        for other in self.live.values():
            is_there = shared is not None and other.connected and other.machine.me in shared.active & self.members
            if is_there and other.rows.disk.images[0][0] < answer.version:
                raise Violation("disks", f"{answer.txid} is told to be committed, and not on the disk of site {other.station}")

    def look(self, site: sim.Site) -> None:
        """A program reads what a copy shows. A site that is cut off and does not know it may show what is old."""
        if not self.shows(site):
            self.met["waits"] += 1
            return
        self.met["looks"] += 1
        if not site.connected:
            raise Violation("old", f"site {site.station} shows what it has, and knows that it is cut off")
        if site.machine.me in self.members:
            self.history.on_look(site)

    def pass_time(self) -> None:
        """Programs that have waited read first, and then the site grants."""
        super().pass_time()
        for _, site in sorted(self.live.items()):
            machine = site.machine
            if isinstance(machine, Unanimous) and site.connected:
                if machine.owes_grant:
                    self.met["reads first"] += 1
                    self.look(site)
                self.carry_out(site, machine.grant())
                machine.has_readers = not self.is_resting and self.r.random() < 0.5

    def step(self) -> None:
        super().step()
        for _, site in sorted(self.live.items()):
            self.look(site)

    def rot(self) -> None:
        """As in the other mode; but a transaction takes longer, and one that is under way would meet the damage first."""
        if not any(site.drafts or site.undecided for site in self.live.values()):
            super().rot()

    def heal(self) -> None:
        super().heal()
        for station, site in sorted(self.live.items()):
            if not self.shows(site):
                raise Violation("gate", f"site {station} shows nothing in the end")


def simulate(seed: int, plan: Plan | None = None, **parts: Any) -> Violation | None:
    """Run one seed, as ``database.simulate`` does."""
    return sim.simulate(seed, plan, **{"world": World, **parts})


if __name__ == "__main__":
    sys.exit(run_seeds(simulate, sys.argv[1:]))
