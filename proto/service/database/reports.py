"""What a site says of its disk, and when: a report is a message that wakes every station, so it is sent at once only if another
site may wait for it (rule D5)."""

from __future__ import annotations

from collections import deque

from ..base import Effect, Source
from .certify import Shared
from .effects import Answer, Durability, Reached
from .messages import Barrier, Message, Synced, Txid
from .roll import Sites
from .rows import Rows, Verdict


class Reports:
    """This site's disk, in the present epoch."""

    def __init__(self) -> None:
        self.on_disk = 0
        """The last version that is there, as far as is known."""
        self.said = 0
        """The last one that has been reported."""
        self._asked = 0
        """Somebody waits for a report that it is there."""
        self._others: deque[int] = deque()
        """Versions of programs elsewhere that have not been reported."""

    @property
    def owes(self) -> bool:
        """Something has not been reported."""
        return self.on_disk > self.said

    def on_version(self, version: int) -> None:
        """A program of another site has made a version."""
        if version > self.said:
            self._others.append(version)

    def ask(self, version: int) -> None:
        """Another site waits until this version is known to be there."""
        self._asked = max(self._asked, version)

    @property
    def is_awaited(self) -> bool:
        """What the disk has is to be reported at once: a program of another site waits for it, or somebody has asked."""
        return self.said < self._asked <= self.on_disk or (bool(self._others) and self._others[0] <= self.on_disk)

    def say(self) -> int:
        """The version to be reported now."""
        self.said = self.on_disk
        while self._others and self._others[0] <= self.said:
            self._others.popleft()
        return self.said


class Reporting:
    """The part of a site's machine that knows of disks."""

    me: Source
    sites: Sites
    rows: Rows

    def __init__(self) -> None:
        self.members: frozenset[Source] = frozenset()
        self.shared: Shared | None = None
        """State that all following sites share; None: this site does not follow."""
        self._durable: dict[Txid, tuple[Durability, int]] = {}
        """This site's committed transactions that wait for disks, with their versions."""
        self._reports = Reports()
        self._effects: list[Effect] = []

    def _emit(self, message: Message) -> None:
        raise NotImplementedError

    def _take(self) -> list[Effect]:
        raise NotImplementedError

    def durable_version(self) -> int:
        """What a sufficient set of disks has: it is in every later opening."""
        return self._durable_at(Durability.MAJORITY)

    # ---- reports

    def on_synced(self, version: int) -> list[Effect]:
        """This site's disk has everything up to this version. It is reported now if somebody waits for that; otherwise the host
        calls ``report`` while ``owes_report``."""
        if self.shared is not None:
            self._reports.on_disk = max(self._reports.on_disk, version)
            self._settle()
            self._report_awaited(self.shared)
        return self._take()

    @property
    def owes_report(self) -> bool:
        """Others have not been told what the disk here has."""
        return self.shared is not None and self._reports.owes

    def report(self) -> list[Effect]:
        """A while after ``on_synced``: what nobody has waited for."""
        if self.shared is not None and self._reports.owes:
            self._report(self.shared)
        return self._take()

    def ask_reports(self) -> list[Effect]:
        """Somebody here waits for the disk of a transaction's own site: all report at once what they have."""
        if self.shared is not None:
            self._emit(Barrier(0))
        return self._take()

    def _barrier(self, shared: Shared, source: Source, barrier: Barrier) -> None:
        """Who reads behind it waits for disks as well, perhaps. Number 0: only for them."""
        version = self.rows.position().version
        if source != self.me:
            self._reports.ask(version)
            self._report_awaited(shared)
        elif barrier.number:
            self._effects.append(Reached(barrier.number, version))

    def _report_awaited(self, shared: Shared) -> None:
        if self._reports.is_awaited:
            self._report(shared)

    def _report(self, shared: Shared) -> None:
        self._emit(Synced(shared.epoch, self._reports.say()))

    # ---- what is on the disks

    def _is_durable(self, version: int, durability: Durability) -> bool:
        if durability is Durability.MEMORY:
            return True
        shared = self.shared
        if shared is None:
            return False
        on_disk = {source for source, synced in shared.synced.items() if synced >= version and source in self.members}
        if self._reports.on_disk >= version:
            on_disk.add(self.me)  # its report need not come back
        if durability is Durability.ALL and not shared.active <= on_disk:
            return False
        return self.sites.sufficient(station for station, _ in on_disk)  # for ALL as well: few may be active by now

    def _settle(self) -> None:
        """Answer the programs whose transactions are on enough disks now."""
        reached: dict[Durability, int] = {}
        for txid, (durability, version) in list(self._durable.items()):
            if durability not in reached:
                reached[durability] = self._durable_at(durability)
            if version <= reached[durability]:
                del self._durable[txid]
                self._effects.append(Answer(txid, Verdict.DONE, version))

    def _durable_at(self, durability: Durability) -> int:
        """The last version that is so durable; 0: none is. What a version is on, each one before it is on as well."""
        if self.shared is None:
            return 0
        synced = {v for s, v in self.shared.synced.items() if s in self.members} | {self._reports.on_disk}
        return next((v for v in sorted(synced, reverse=True) if v and self._is_durable(v, durability)), 0)
