"""The reference: every version that any site has, by a serial replay, and what must hold of verdicts, copies and answers.

Versions are named by their digest, so several pasts may stand side by side; no two of them may be what programs were promised.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import apsw
from zenjun.proto.service.database.certify import Shared, Written
from zenjun.proto.service.database.machine import Answer, Durability
from zenjun.proto.service.database.messages import Position, Txid, Write, decode, epoch_txid, first_digest
from zenjun.proto.service.database.rows import Entry, Verdict
from zenjun.proto.service.database.scrub import Compared

from . import database_load as load
from .violation import Violation

if TYPE_CHECKING:
    from .database import Site, World
    from .database_plan import Item

CHECKERS: Final = frozenset(
    "fork serial rows verdict shared once told durable quorum release linearizable lock lease scrub rest".split()  # noqa: SIM905
)
"""
fork          one epoch and version has one history
serial        a committed transaction returns what it did when it is run after those before it
rows          a copy has the rows of its version
verdict       all sites decide alike, and reject for a reason
shared        all who follow are alike at each place
once          a transaction is in a history once
told          what was told is so
durable       what was acknowledged as durable is in every later epoch
quorum        who commits suffices
release       who decides in one epoch has one release of SQLite
linearizable  a read behind a barrier sees what was acknowledged before
lock          who has the database alone sees nothing committed between
lease         no two programs have an id in common
scrub         a comparison of rows finds the copy that is damaged, and no other
rest          in the end all are active and equal, and everything has an answer
"""


@dataclass(slots=True)
class Version:
    """One version of one history."""

    position: Position
    parent: Version | None
    txid: Txid
    written: Written
    image: bytes
    """Of the reference's database."""
    content: bytes
    opened: bool = False
    """It is the first entry of an epoch."""
    leased: frozenset[int] = field(default_factory=frozenset)
    """Ids of ``auto`` that programs have."""
    txids: frozenset[Txid] = field(default_factory=frozenset)
    """All that are in its history."""

    def since(self, version: int) -> list[Version]:
        """The versions behind this number, this one included."""
        found: list[Version] = []
        at: Version | None = self
        while at is not None and at.position.version > version:
            found.append(at)
            at = at.parent
        return found


@dataclass(slots=True)
class Begun:
    """What a program was told of a transaction."""

    verdict: Verdict
    durability: Durability


class History:
    """Checkers of one run."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.drafts: dict[Txid, load.Draft] = {}
        self.versions: dict[bytes, Version] = {}
        self.at: Item | None = None
        """The item that a site is reading."""
        self.told: dict[Txid, Begun] = {}
        self._numbers: dict[tuple[int, int], bytes] = {}
        self._verdicts: dict[tuple[object, Txid], tuple[object, int]] = {}
        self._shared: dict[object, tuple[object, int]] = {}
        self._acknowledged: dict[Txid, int] = {}
        """Those that every later epoch must have, and their version."""
        self._seen: dict[int, bytes] = {}
        """Last digest that was checked, by station."""

    # ---- versions

    def on_commit(self, site: Site, entry: Entry) -> None:
        """A site makes a version."""
        shared = site.machine.shared
        if shared is not None and site.machine.release != shared.release:
            text = f"site {site.station} commits version {entry.position.version} with another release than the active sites"
            raise Violation("release", text)
        if entry.body and shared is not None and not self.world.sites.sufficient(station for station, _ in shared.active):
            raise Violation(
                "quorum", f"site {site.station} commits version {entry.position.version} with {sorted(shared.active)}"
            )

    def on_item(self, site: Site, item: Item) -> None:
        """A site has read an item."""
        if self.world.live.get(site.station) is not site:
            return
        shared = site.machine.shared
        if shared is not None:
            self._check_versions(site)
            self._check_shared(site, item, shared)

    def _check_versions(self, site: Site) -> None:
        """The versions that this site has made since the last time, or been given."""
        position = site.rows.position()
        if self._seen.get(site.station) == position.digest:
            return
        self._seen[site.station] = position.digest
        last = self._enter(site, position)
        found = load.content(site.rows.connection)
        if found != last.content:
            raise Violation("rows", f"site {site.station} has other rows than version {position.version} in a serial replay")

    def _enter(self, site: Site, position: Position) -> Version:
        """This version, with those before it that are new."""
        if (known := self.versions.get(position.digest)) is not None:
            return known
        query = "SELECT epoch, version, digest, txid, body FROM zenjun_log WHERE version = ?"
        rows: list[Any] = site.rows.connection.execute(query, (position.version,)).fetchall()
        if not rows:
            return self._first(site, position)
        epoch, version, digest, txid_bytes, body = rows[0]
        if (epoch, version, digest) != tuple(position):
            raise Violation("rows", f"site {site.station} is at {position[:2]}, but its history ends at {epoch, version}")
        before: list[Any] = site.rows.connection.execute(query, (position.version - 1,)).fetchall()
        parent = self._enter(site, Position(*before[0][:3])) if before else self._first(site, None)
        number = int.from_bytes
        txid = Txid(*(number(txid_bytes[i : i + 4], "big") for i in range(0, 16, 4)))
        return self._add(site, position, parent, txid, body)

    def _first(self, site: Site, position: Position | None) -> Version:
        """Version 0 of the database."""

        digest = first_digest(site.rows.uuid())
        if position is not None and position.digest != digest:
            raise Violation("rows", f"site {site.station} is at {position}, of which its file says nothing")
        if digest not in self.versions:
            connection = apsw.Connection(":memory:")
            connection.execute(load.SCHEMA + (load.FIRST if self.world.first is not None else ""))
            image = connection.serialize("main") or b""
            made = Version(Position(0, 0, digest), None, epoch_txid(0), Written(b""), image, load.content(connection))
            connection.close()
            self.versions[digest] = made
        return self.versions[digest]

    def _add(self, site: Site, position: Position, parent: Version, txid: Txid, body: bytes) -> Version:
        other = self._numbers.setdefault(position[:2], position.digest)
        if other != position.digest:
            raise Violation("fork", f"two histories have version {position.version} in epoch {position.epoch}")
        opened = txid.station == 0
        if not opened and txid in parent.txids:
            raise Violation("once", f"{txid} is committed twice")
        image, content = parent.image, parent.content
        if opened:
            self._check_opening(site, position, parent)
        else:
            image, content = self._replay(site, position, parent, txid)
        made = Version(position, parent, txid, Written(body), image, content, opened, parent.leased, parent.txids | {txid})
        if ids := self.ids_of(site, position.version):
            if made.leased & set(ids):
                raise Violation(
                    "lease", f"version {position.version} leases {ids}, of which {sorted(made.leased & set(ids))} are leased"
                )
            made.leased |= set(ids)
        self.versions[position.digest] = made
        return made

    @staticmethod
    def ids_of(site: Site, version: int) -> list[int]:
        """The ids that this version leases."""
        query = "SELECT first, count FROM zenjun_lease WHERE version = ?"
        rows: list[Any] = site.rows.connection.execute(query, (version,)).fetchall()
        return [k for first, count in rows for k in range(first, first + count)]

    def _replay(self, site: Site, position: Position, parent: Version, txid: Txid) -> tuple[bytes, bytes]:
        draft = self.drafts[txid]
        told = self.told.get(txid)
        if told is not None and told.verdict is not Verdict.DONE:
            raise Violation("told", f"{txid} was told {told.verdict.value}, and is committed by site {site.station}")
        if load.tables_and_rows(draft.body).changes_schema and draft.snapshot != parent.position.version:
            raise Violation("lock", f"{txid} had the database alone at version {draft.snapshot}, and makes {position.version}")
        connection = load.load(parent.image)
        returned = load.execute(connection, draft.statements)
        if returned != draft.returned:
            text = f"version {position.version}: {draft.statements} returned {draft.returned}, in a serial replay {returned}"
            raise Violation("serial", text)
        image, content = connection.serialize("main") or b"", load.content(connection)
        connection.close()
        return image, content

    def _check_opening(self, site: Site, position: Position, parent: Version) -> None:
        lost = sorted(set(self._acknowledged) - parent.txids)
        if lost:
            text = f"epoch {position.epoch}, opened with version {parent.position.version}, has not {lost[0]}, which was durable"
            raise Violation("durable", text, (site.station,))

    # ---- what all have alike

    def _check_shared(self, site: Site, item: Item, shared: Shared) -> None:
        for other in self.world.live.values():
            if other.connected and other.machine.me in shared.active and other.machine.release != shared.release:
                raise Violation("release", f"site {other.station} is active with another release than that of its epoch")
        state = (
            shared.epoch,
            shared.release,
            sorted(shared.active),
            shared.window.horizon,
            shared.window.entries(),
            shared.schema,
            [lock.txid for _, lock in shared.locks],
            [write.txid for _, write in shared.waiting],
            sorted(shared.check.items()),
            shared.parts.facts(),
            (shared.scrub.number, sorted(shared.scrub.sums.items())),
            site.rows.position(),
            shared.agreement.copy(),
        )
        first, station = self._shared.setdefault(item.place, (state, site.station))
        if state != first:
            what = next(i for i, (a, b) in enumerate(zip(state, first, strict=True)) if a != b)  # type: ignore[call-overload]
            raise Violation("shared", f"sites {station} and {site.station} differ at {item.place} in {what}: {first} {state}")

    # ---- verdicts and answers

    def on_answer(self, site: Site, draft: load.Draft, answer: Answer, durability: Durability) -> None:
        position = site.rows.position()
        here = self.versions.get(position.digest) or self._enter(site, position)
        self.told[draft.txid] = Begun(answer.verdict, durability)
        if answer.verdict is Verdict.DONE:
            if draft.txid not in here.txids:
                raise Violation("told", f"{draft.txid} was told done, and site {site.station} has it not")
            if durability is not Durability.MEMORY:
                self._acknowledged[draft.txid] = answer.version
            return
        if draft.txid in here.txids:
            raise Violation("told", f"{draft.txid} was told {answer.verdict.value}, and site {site.station} has it")
        self._check_reason(site, draft, answer.verdict, here, answer.version)

    def _check_reason(self, site: Site, draft: load.Draft, verdict: Verdict, here: Version, version: int) -> None:
        """Nothing is rejected without a reason. What waited for a lock is rejected at a later version than it is told."""
        since = [v for v in here.since(draft.snapshot) if v.position.version <= version]
        written = load.tables_and_rows(draft.body)
        is_numbered = load.is_numbered(draft.statements)
        rows = set().union(*(v.written.rows for v in since)) if since else set()
        tables = set().union(*(v.written.tables for v in since)) if since else set()
        shared = site.machine.shared
        if verdict is Verdict.CONFLICT:
            good = bool(rows & written.rows) and not is_numbered
        elif verdict is Verdict.READ:
            good = bool((rows | tables) & set(draft.reads))
        elif verdict is Verdict.STALE:
            good = len(since) > self.world.plan.versions_max or any(v.opened for v in since) or draft.epoch != here.position.epoch
        elif verdict is Verdict.SCHEMA:
            good = any(v.written.changes_schema or v.opened for v in since) or written.changes_schema
        elif verdict is Verdict.CONSTRAINT:
            at = next((v for v in here.since(-1) if v.position.version <= version), here)
            returned, body = load.run(at.image, draft.statements)
            good = returned != draft.returned if is_numbered else (returned, body) != (draft.returned, draft.body)
        elif verdict is Verdict.NO_QUORUM:
            good = shared is not None
        else:
            good = verdict is Verdict.BUSY
        if not good:
            raise Violation("verdict", f"{draft.txid} is rejected, {verdict.value}, without a reason: {draft.statements}")

    def acknowledged_version(self) -> int:
        """The newest one that a program was told to be durable."""
        return max(self._acknowledged.values(), default=0)

    def has_acknowledged(self, digest: bytes, synced: int) -> bool:
        """A copy has all that was acknowledged, on its disk."""
        version = self.versions.get(digest)
        return version is not None and set(self._acknowledged) <= version.txids and synced >= self.acknowledged_version()

    def promise(self, txid: Txid, version: int) -> None:
        """Every later epoch must have this one."""
        self._acknowledged[txid] = version

    def on_look(self, site: Site) -> None:
        """Mode unanimous: a program reads the copy of a site, as it is now. All that was told to be committed is in it; and it is
        never lost."""
        here = self._enter(site, site.rows.position())
        missing = set(self._acknowledged) - here.txids
        if missing:
            raise Violation("old", f"site {site.station} shows version {here.position.version}, without {min(missing)}")
        for version in here.since(self.acknowledged_version()):
            if version.txid.station:
                self.promise(version.txid, version.position.version)

    def on_read(self, site: Site, version: int, before: int) -> None:
        """A read begins on this version; ``before`` was acknowledged when it was asked for."""
        self.world.met["read behind a barrier"] += 1
        if version < before:
            raise Violation("linearizable", f"site {site.station} reads version {version}, {before} was acknowledged before")

    def on_compared(self, site: Site, compared: Compared) -> None:
        """All have said what they have."""
        found = sorted(station for station, _ in compared.outside)
        if compared.tied or found != ([] if self.world.rotten is None else [self.world.rotten]):
            raise Violation("scrub", f"site {site.station}: {compared}, and the damaged copy is that of {self.world.rotten}")

    def on_rest(self) -> None:
        if self.world.rotten is not None:
            raise Violation("scrub", f"the copy of site {self.world.rotten} is damaged, and nobody has found it")
        live = [site for _, site in sorted(self.world.live.items())]
        idle = [site.station for site in live if not site.machine.is_active]
        if idle or len(live) < len(self.world.disks):
            raise Violation("rest", f"sites {idle} of {[s.station for s in live]} are not active")
        positions = {site.rows.position() for site in live}
        if len(positions) > 1:
            raise Violation("rest", f"the copies are at {sorted(positions)}")
        for site in live:
            if site.drafts or site.undecided:
                raise Violation("rest", f"site {site.station} has no answer for {[*site.drafts, *site.undecided][0]}")
            self._seen.pop(site.station, None)
            self._check_versions(site)
        missing = set(self._acknowledged) - self.versions[live[0].rows.position().digest].txids
        if missing:
            raise Violation("durable", f"{min(missing)} was durable and is gone")


__all__ = ["CHECKERS", "Begun", "History", "Version", "Write", "decode"]
