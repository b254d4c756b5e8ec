"""What a site in trouble costs the others, in virtual time: the machines of three sites, each at its own pace.

A message has its place 0.2 ms after it was sent. A site takes one after another, and its disk syncs what it has: how long both
take is the site's. Programs at stations 1 and 2 commit at a fixed rate, whatever becomes of earlier transactions. Station 3 is
well, or slow, or its disk is full, or it has lost its disk and gets the state (``TROUBLES``). Rows are numbers: SQLite would only
add its own time.
"""

from __future__ import annotations

import heapq
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from zenjun.daemon.database.syncing import LATE_S
from zenjun.proto.service.base import Effect, Emit, Place, Source
from zenjun.proto.service.database.effects import Answer, Failed, Give
from zenjun.proto.service.database.machine import Durability, Given, Machine
from zenjun.proto.service.database.messages import Position, Segment, Txid, Write, encode_body, epoch_txid, first_digest
from zenjun.proto.service.database.roll import Sites
from zenjun.proto.service.database.rows import Entry, RowsFailed, Verdict

MS: Final = 1_000_000
S: Final = 1_000 * MS
ORDER_NS: Final = 200_000
APPLY_NS: Final = 100_000
"""For one message at a site that is well; there are about five for a transaction."""
SYNC_NS: Final = MS // 3
"""A fast disk: whatever a commit waits for besides counts the more."""
SLOW: Final = 100
"""A slow site takes so many times as long for everything."""
FREEZE_NS: Final = 1 * MS
"""Of the donor's own time, to pin a snapshot."""
TRANSFER_NS: Final = 200 * MS
AGAIN_NS: Final = 100 * MS
"""After a failure, until the copy is opened again."""
EVERY_NS: Final = 5 * MS
"""Between two transactions of a station."""
WARM_NS: Final = 100 * MS
"""Before the trouble begins."""
LONG_NS: Final = 1000 * MS
TROUBLES: Final = ("none", "slow", "full", "rebuilding")


class NumberedRows:
    """A history; what a transaction writes is in its body alone."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.is_full = False

    def blank(self) -> bool:
        return not self.entries

    def uuid(self) -> bytes:
        return bytes(16)

    def position(self) -> Position:
        return self.entries[-1].position

    def create(self, uuid: bytes) -> None:
        self.entries = [Entry(Position(0, 0, first_digest(uuid)), epoch_txid(0), b"")]

    def write(self, entry: Entry) -> Verdict:
        if self.is_full:
            raise RowsFailed("disk full")
        self.entries.append(entry)
        return Verdict.DONE

    def highest(self, table: str) -> int | None:
        return None

    def gate(self, is_open: bool) -> None:
        pass

    def version_of(self, txid: Txid) -> int | None:
        return next((entry.position.version for entry in reversed(self.entries[-50:]) if entry.txid == txid), None)

    def digest_at(self, version: int) -> bytes | None:
        return self.entries[version].position.digest if version < len(self.entries) else None


class Site:
    """A service, its thread and its disk."""

    def __init__(self, me: Source, machine: Machine, rows: NumberedRows) -> None:
        self.me, self.machine, self.rows = me, machine, rows
        self.factor = 1
        self.at: Place = (0, 0, 0)
        """The last place that it has taken."""
        self.jobs: deque[tuple[int, Callable[[], Sequence[Effect]]]] = deque()
        """Time that each takes, and what it does."""
        self.is_busy = self.is_syncing = False
        self.said = 0
        self.reports = False
        """What it owes is reported later."""


class Pace:
    """One run. ``latencies``: of the transactions of stations 1 and 2 that began after ``WARM_NS``."""

    def __init__(
        self, trouble: str, durability: Durability, machine: type[Machine] = Machine, *, donor_waits: bool = False
    ) -> None:
        self.trouble, self.durability, self.machine_class, self.donor_waits = trouble, durability, machine, donor_waits
        self.now = 0
        self.clock = 1 << 32
        self.queue: list[tuple[int, int, Callable[[], None]]] = []
        self.sites: dict[Source, Site] = {}
        self.began: dict[Txid, int] = {}
        self.latencies: list[int] = []
        self.transfers = 0
        self.rejected: list[Verdict] = []
        self._number = 0

    # ---- time

    def after(self, ns: int, what: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self.queue, (self.now + ns, self._number, what))

    def run(self) -> list[int]:
        """The latencies, in ns; of what is never answered the time until the end."""
        for station in (1, 2, 3):
            self.join((station, 1), NumberedRows())
        for station in (1, 2):
            self.after(50 * MS + station * MS, lambda station=station: self.program(station))  # type: ignore[misc]
        self.after(WARM_NS, self.begin_trouble)
        while self.queue and self.queue[0][0] < LONG_NS:
            self.now, _, what = heapq.heappop(self.queue)
            what()
        return self.latencies + [LONG_NS - began for began in self.began.values() if WARM_NS <= began < LONG_NS - 100 * MS]

    # ---- the order

    def place(self, what: Callable[[Site, Place], Sequence[Effect]], source: Source) -> None:
        self.clock += 1
        place = (self.clock, source[0], 0)
        for site in self.sites.values():
            self.work(site, APPLY_NS, lambda site=site: self.take(site, place, what))  # type: ignore[misc]

    def take(self, site: Site, place: Place, what: Callable[[Site, Place], Sequence[Effect]]) -> Sequence[Effect]:
        site.at = place
        return what(site, place)

    def view(self) -> None:
        members = frozenset(self.sites)
        self.place(lambda site, place: site.machine.on_view(place, members), min(members))

    def join(self, me: Source, rows: NumberedRows) -> None:
        machine = self.machine_class(me, Sites(frozenset({1, 2, 3})), rows, open_wait_ns=0)
        self.sites[me] = Site(me, machine, rows)
        self.view()

    def leave(self, me: Source) -> None:
        if self.sites.pop(me, None) is not None:
            self.view()

    # ---- a site

    def work(self, site: Site, ns: int, job: Callable[[], Sequence[Effect]]) -> None:
        site.jobs.append((ns, job))
        if not site.is_busy:
            self.next_job(site)

    def next_job(self, site: Site) -> None:
        site.is_busy = bool(site.jobs)
        if site.jobs:
            ns, job = site.jobs.popleft()
            self.after(ns * site.factor, lambda: self.done(site, job))

    def done(self, site: Site, job: Callable[[], Sequence[Effect]]) -> None:
        if self.sites.get(site.me) is site:
            self.carry_out(site, job())
            if site.machine.is_catching_up:
                self.work(site, 10 * APPLY_NS, site.machine.catch_up)
            self.sync(site)
            self.next_job(site)

    def sync(self, site: Site) -> None:
        """In a thread of its own, of all that is there."""
        if site.is_syncing or site.machine.shared is None or site.rows.position().version <= site.said:
            return
        site.is_syncing, version = True, site.rows.position().version

        def synced() -> None:
            site.is_syncing, site.said = False, version
            if self.sites.get(site.me) is site:
                self.carry_out(site, site.machine.on_synced(version))
                self.report_later(site)
                self.sync(site)

        self.after(SYNC_NS * site.factor, synced)

    def report_later(self, site: Site) -> None:
        """As ``daemon/database/syncing.py``."""

        def report() -> None:
            site.reports = False
            if self.sites.get(site.me) is site:
                self.work(site, APPLY_NS // 10, site.machine.report)

        if site.machine.owes_report and not site.reports:
            site.reports = True
            self.after(int(LATE_S * S), report)

    def carry_out(self, site: Site, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Emit):
                self.after(ORDER_NS, lambda data=effect.data: self.sent(site.me, data))  # type: ignore[misc]
            elif isinstance(effect, Answer):
                began = self.began.pop(effect.txid)
                if effect.verdict is not Verdict.DONE:
                    self.rejected.append(effect.verdict)
                elif began >= WARM_NS:
                    self.latencies.append(self.now - began)
            elif isinstance(effect, Give):
                self.give(site, effect.to)
            elif isinstance(effect, Failed):
                self.after(ORDER_NS * 2, lambda: self.leave(site.me))
                self.after(AGAIN_NS, lambda: self.back(site))

    def sent(self, source: Source, data: bytes) -> None:
        if source in self.sites:
            self.place(lambda site, place: site.machine.on_message(place, source, data), source)

    def give(self, site: Site, to: Source) -> None:
        """The copy is sent beside everything else, once its snapshot is pinned."""
        given, entries = site.machine.give(site.at), list(site.rows.entries)
        self.work(site, TRANSFER_NS if self.donor_waits else FREEZE_NS, list[Effect])
        self.after(TRANSFER_NS, lambda: self.came(to, given, entries))

    def came(self, to: Source, given: Given, entries: list[Entry]) -> None:
        if (site := self.sites.get(to)) is not None and site.machine.wanted_from == given.place:
            self.transfers += 1
            site.rows.entries = entries
            self.work(site, APPLY_NS, lambda: site.machine.restore(given))

    # ---- programs and troubles

    def program(self, station: int) -> None:
        """It commits a row of its own."""
        self.after(EVERY_NS, lambda: self.program(station))
        site = self.sites[station, 1]
        self._number += 1
        txid = Txid(station, 1, 1, self._number)
        if not site.machine.is_active:
            return
        changeset = b"T\x01\x01t\0\x12\0\x01" + struct.pack(">q", self._number)
        body = encode_body([(Segment.CHANGESET, changeset)])
        epoch, version, _ = site.rows.position()
        self.began[txid] = self.now
        self.carry_out(site, site.machine.submit(Write(txid, epoch, version, (), body), self.durability))

    def begin_trouble(self) -> None:
        site = self.sites[3, 1]
        if self.trouble == "slow":
            site.factor = SLOW
        elif self.trouble == "full":
            site.rows.is_full = True
        elif self.trouble == "rebuilding":
            self.leave(site.me)
            self.after(AGAIN_NS, lambda: self.join((3, 2), NumberedRows()))

    def back(self, site: Site) -> None:
        """It tries again, and its disk is as full as it was."""
        self.join((3, site.me[1] + 1), site.rows)


def p99(latencies: Sequence[Any]) -> int:
    return int(sorted(latencies)[len(latencies) * 99 // 100])
