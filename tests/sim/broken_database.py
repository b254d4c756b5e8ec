"""Parts of the database that break a rule each. The docstring of each begins with the rule (docs/database.md)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import apsw
from zenjun.daemon.database import applier as applying
from zenjun.daemon.database.applier import Applied, Applier
from zenjun.proto.service.base import Place, Source
from zenjun.proto.service.database.certify import Certifier, Shared
from zenjun.proto.service.database.machine import Durability, Given, Machine
from zenjun.proto.service.database.messages import (
    SEGMENT_HEAD_BYTES,
    Active,
    Lock,
    Position,
    Segment,
    Stand,
    Txid,
    Write,
    encode_body,
)
from zenjun.proto.service.database.roll import Opening, Roll, Sites
from zenjun.proto.service.database.rows import Rows, Verdict
from zenjun.proto.service.database.window import Window

from . import database as sim
from .database import Copy, Site, World

# ---- certification


class Blind(Certifier):
    """K1: nothing that was committed since the snapshot counts."""

    def conflicts(self, window: Window, write: Write, written: Any) -> Verdict | None:
        return None


class NoConflicts(Machine):
    certifier_class = Blind


class TooStrict(Certifier):
    """K1: what the snapshot has counts as newer."""

    def is_newer(self, window: Window, keys: Iterable[bytes], snapshot: int) -> bool:
        return any(window.writer(key) >= snapshot for key in keys)


class SeesEqual(Machine):
    certifier_class = TooStrict


class Skewed(Certifier):
    """K2: what was read does not count."""

    def reads(self, write: Write) -> tuple[bytes, ...]:
        return ()


class ReadsIgnored(Machine):
    certifier_class = Skewed


class EmptyWindow(Machine):
    """K3: a joiner knows nothing of what was written before."""

    def restore(self, given: Given) -> list[Any]:
        given.shared.window = Window(0, given.shared.window.versions_max)
        return super().restore(given)


class ShortMemory(Certifier):
    """K3: what is older than the window knows is let through."""

    def early(self, shared: Shared, version: int, write: Write, enough: bool) -> Verdict | None:
        found = super().early(shared, version, write, enough)
        return None if found is Verdict.STALE and write.epoch == shared.epoch and write.snapshot >= shared.schema else found


class NoHorizon(Machine):
    certifier_class = ShortMemory


class Twice(Copy):
    """K4: a transaction that is sent again is decided again."""

    def version_of(self, txid: Txid) -> int | None:
        return None


class NoQuorum(Certifier):
    """K5: whoever is active commits."""

    def early(self, shared: Shared, version: int, write: Write, enough: bool) -> Verdict | None:
        return super().early(shared, version, write, True)


class CommitsAlone(Machine):
    certifier_class = NoQuorum


class PartsKept(Machine):
    """K6: parts from before the place of a WANT count."""

    def drop_parts(self, shared: Shared) -> None:
        pass


class PartsForgotten(Machine):
    """K6: parts that have become void are not sent again."""

    def drop_parts(self, shared: Shared) -> None:
        shared.parts.clear()


class PartsTwice(Machine):
    """K6: a transaction is sent again though nothing of it is void."""

    def drop_parts(self, shared: Shared) -> None:
        shared.parts.clear()
        self._emit_all(self.long.again())


# ---- rows


class WithTriggers(Applier):
    """B8: triggers act again at the applier."""

    def __init__(self, connection: apsw.Connection) -> None:
        super().__init__(connection)
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 1)


class TriggersOn(Copy):
    applier_class = WithTriggers


class WithActions(Applier):
    """B8: foreign-key actions act again at the applier."""

    def apply(self, changeset: bytes) -> Applied:
        flags = applying._FLAGS
        applying._FLAGS = flags & ~apsw.SQLITE_CHANGESETAPPLY_FKNOACTION  # type: ignore[misc]
        try:
            return super().apply(changeset)
        finally:
            applying._FLAGS = flags  # type: ignore[misc]


class CascadesOn(Copy):
    applier_class = WithActions


class TwoFiles(sim.Disk):
    """D2: rows and position are not in one transaction."""

    def cut(self, r: Any) -> None:
        rows, position = r.choice(self.images), r.choice(self.images)
        super().cut(r)
        if not rows[1] or not position[1]:
            return
        made, other = apsw.Connection(":memory:"), apsw.Connection(":memory:")
        made.deserialize("main", rows[1])
        other.deserialize("main", position[1])
        made.execute("DELETE FROM zenjun_meta; DELETE FROM zenjun_log")
        for table, columns in (("zenjun_meta", 6), ("zenjun_log", 5)):
            rows_there = other.execute(f"SELECT * FROM {table}").fetchall()
            made.executemany(f"INSERT INTO {table} VALUES({', '.join('?' * columns)})", rows_there)
        self.images = [(position[0], made.serialize("main") or b"")]


class ForgetsLeases(Copy):
    """K7: ids are given above those that rows have, whoever has a lease."""

    def apply(self, body: bytes, version: int = 0) -> Verdict:
        self.connection.execute("DELETE FROM zenjun_lease")
        return super().apply(body, version)


class OfItsOrigin(Certifier):
    """K8: rows keep the numbers that they have at their origin."""

    def numbered(self, rows: Rows, body: bytes) -> tuple[bytes, bool]:
        super().numbered(rows, body)
        return encode_body([(Segment.CHANGESET, body[SEGMENT_HEAD_BYTES:])]), True


class KeepsNumbers(Machine):
    certifier_class = OfItsOrigin


class LikeOthers(Certifier):
    """K8: what was written under the number that a row gets is in conflict with it."""

    def numbered(self, rows: Rows, body: bytes) -> tuple[bytes, bool]:
        return super().numbered(rows, body)[0], False


class ConflictsInNumbers(Machine):
    certifier_class = LikeOthers


class RemembersNumbers(Copy):
    """K8: a site gives the numbers above those that it has ever seen."""

    def __init__(self, *arguments: Any) -> None:
        self.seen: dict[str, int] = {}
        super().__init__(*arguments)

    def highest(self, table: str) -> int | None:
        found = super().highest(table)
        if found is not None:
            found = self.seen[table] = max(found, self.seen.get(table, 0))
        return found


# ---- durability and reads


class AnswersEarly(Machine):
    """D1: a program is told before the disks have it."""

    def _is_durable(self, version: int, durability: Durability) -> bool:
        return True


class CountsItself(Machine):
    """D5: a site takes what it has committed for what its disk has."""

    def _is_durable(self, version: int, durability: Durability) -> bool:
        self._reports.on_disk = self.rows.position().version
        return super()._is_durable(version, durability)


class SaysNothing(Machine):
    """D5: a site reports only what nobody waits for."""

    def _report_awaited(self, shared: Shared) -> None:
        pass

    def report(self) -> list[Any]:
        return super().report() if not self._reports.is_awaited else self._take()


class NoBarrier(World):
    """D3: a read begins at once."""

    def read(self, site: Site) -> None:
        if site.connected and site.machine.shared is not None:
            self.history.on_read(site, site.rows.position().version, self.history.acknowledged_version())


class WaitsForAll(Machine):
    """D6: a commit waits for the disks of all active sites, whatever was asked for."""

    def _is_durable(self, version: int, durability: Durability) -> bool:
        return super()._is_durable(version, Durability.ALL)


class StaysActive(Machine):
    """D6: a site whose disk is full says nothing, and counts as active for as long as it is a member."""

    def _give_up(self, reason: str, *, is_damaged: bool = False) -> None:
        self.has_failed = True
        self._stop_following()


# ---- opening


class Lonely(Roll):
    """Q2: any site opens the database."""

    def opening(self, sites: Sites) -> Opening | None:
        here = frozenset(station for station, _ in self.stands)
        return super().opening(Sites(here & sites.stations))


class OpensAlone(Machine):
    roll_class = Lonely


class Hasty(Roll):
    """Q8: blank sites begin without the file."""

    def opening(self, sites: Sites) -> Opening | None:
        return super().opening(sites._replace(from_file=False))


class WithoutTheFile(Machine):
    roll_class = Hasty


class Longest(Roll):
    """Q4: the greatest version wins, whatever its epoch."""

    @staticmethod
    def winner(speakers: dict[Source, Stand]) -> Position:
        return max(speakers.values(), key=lambda stand: (stand.position.version, stand.position.epoch)).position


class ByVersion(Machine):
    roll_class = Longest


class Alike(Roll):
    """Q7: sites with any releases of SQLite decide together."""

    @staticmethod
    def fits(release: int, other: int) -> bool:
        return True


class AnyRelease(Machine):
    roll_class = Alike


class Credulous(Roll):
    """Q5: what a site has said of itself before an opening counts after it."""

    def is_present(self, epoch: int) -> bool:
        return bool(self.active())


class OldActiveCounts(Machine):
    """Q5, Q6: and the site itself gives up for it, as one that is not accepted."""

    roll_class = Credulous

    def is_outdated(self, active: Active, shared: Shared) -> bool:
        return False


class LeavesForOldActive(Machine):
    """Q6: only the latter."""

    def is_outdated(self, active: Active, shared: Shared) -> bool:
        return False


# ---- the schema's lock


class OldSchema(Certifier):
    """H2: what was made for an older schema is let through."""

    def early(self, shared: Shared, version: int, write: Write, enough: bool) -> Verdict | None:
        found = super().early(shared, version, write, enough)
        return None if found is Verdict.SCHEMA else found


class SchemaIgnored(Machine):
    certifier_class = OldSchema


class LockIgnored(Machine):
    """H1: others commit while the lock is held."""

    def _write(self, shared: Shared, source: Source, write: Write) -> None:
        locks = shared.locks
        if locks and locks[0][1].txid != write.txid:
            shared.locks = []
            super()._write(shared, source, write)
            shared.locks = locks
        else:
            super()._write(shared, source, write)


class LockSurvives(Machine):
    """H3: the lock of a service that has gone stays."""

    def _end_lock(self, shared: Shared, ended: list[Lock]) -> None:
        here = {source for source, lock in shared.locks if lock in ended and source in self.members}
        super()._end_lock(shared, [lock for source, lock in shared.locks if lock in ended and source in here])


# ---- state transfer


class KeepsBranch(World):
    """W2: a site keeps what it has, and gets the versions behind it."""

    def goes_on(self, donor: apsw.Connection, site: Site) -> bool:
        return not site.rows.blank()


class TrustsItself(World):
    """W3: a copy that was found to be damaged goes on by the log."""

    def install(self, site: Site, image: bytes, given: Given) -> None:
        site.machine.distrusts = False
        super().install(site, image, given)


class SumsLater(World):
    """W3: rows are summed when there is time."""

    def pinned(self, site: Site) -> apsw.Connection:
        self.sum_one()
        return Later(site)  # type: ignore[return-value]


class Later:
    """The rows as they are when they are asked for."""

    def __init__(self, site: Site) -> None:
        self.execute = lambda *words: site.rows.connection.execute(*words)

    def close(self) -> None:
        pass


class NobodyLeaves(Machine):
    """W3: a site whose rows differ goes on."""

    def _compare_sums(self, shared: Shared) -> None:
        shared.scrub.sums = {}


class GivesOld(World):
    """W1: a donor gives the state that it has at hand, from before the WANT."""

    def given(self, site: Site, place: Place) -> tuple[Given, bytes]:
        given, _ = super().given(site, place)
        return given, site.rows.disk.images[0][1] or site.rows.image()


class FitsAll(Machine):
    """W1: a state that answers an earlier WANT is taken."""

    def fits(self, given: Given) -> bool:
        return self._kept is not None


class Overtakes(Machine):
    """W4: what came last is followed before what was kept earlier."""

    def catch_up(self) -> list[Any]:
        if self._kept is not None and self._behind is not None:
            self._kept._items.rotate(1)
        return super().catch_up()


PARTS: dict[str, dict[str, Any]] = {
    **{
        c.__name__: {"machine": c}
        for c in (NoConflicts, SeesEqual, ReadsIgnored, EmptyWindow, NoHorizon, CommitsAlone, AnswersEarly)
    },
    **{c.__name__: {"machine": c} for c in (CountsItself, SaysNothing)},
    **{c.__name__: {"machine": c} for c in (OpensAlone, ByVersion, AnyRelease, WithoutTheFile)},
    **{c.__name__: {"machine": c} for c in (OldActiveCounts, LeavesForOldActive)},
    **{c.__name__: {"machine": c} for c in (SchemaIgnored, LockIgnored, LockSurvives, FitsAll, Overtakes)},
    **{c.__name__: {"machine": c} for c in (PartsKept, PartsForgotten, PartsTwice, NobodyLeaves)},
    **{c.__name__: {"machine": c} for c in (KeepsNumbers, ConflictsInNumbers)},
    **{c.__name__: {"copy": c} for c in (Twice, TriggersOn, CascadesOn, ForgetsLeases, RemembersNumbers)},
    "TwoFiles": {"disk": TwoFiles},
    **{c.__name__: {"world": c} for c in (NoBarrier, KeepsBranch, GivesOld, TrustsItself, SumsLater)},
}
"""Broken rule to what a world is made of in place of the honest parts."""
