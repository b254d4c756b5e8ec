"""The replicated database over an abstract total order, on real SQLite in memory.

One sequence of messages and views in place of the core. At each station a service takes it at its own pace, with a copy whose
disk keeps, after a power cut, some prefix of what was committed, at least what was synced. Services crash, are cut off and come
again, disks fail or are new, the instance is opened anew. Programs run transactions on snapshots, change the schema under the
lock, and read behind barriers. A reference (``database_history.py``) runs every committed transaction's statements again, one
after another, and judges verdicts, copies and what programs are told. Then everything works again, and it must come to rest.

``python -m tests.sim.database FIRST COUNT`` runs many seeds and prints those that fail.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import apsw
from zenjun.daemon.database.applier import Applier
from zenjun.daemon.database.rows import SqliteRows
from zenjun.proto.service.base import Effect, Emit, Place, Source
from zenjun.proto.service.database.certify import Shared
from zenjun.proto.service.database.machine import (
    Answer,
    Durability,
    Failed,
    Give,
    Given,
    Granted,
    Machine,
    Reached,
)
from zenjun.proto.service.database.messages import Position, Txid, Write
from zenjun.proto.service.database.roll import Sites
from zenjun.proto.service.database.rows import Entry, RowsFailed, Verdict
from zenjun.proto.service.database.scrub import Compared, Sum
from zenjun.proto.service.database.window import Window

from . import database_load as load
from .database_history import Begun, History
from .database_plan import Item, Plan
from .histories import run_seeds, violation_of
from .violation import Violation

S: Final = 1_000_000_000


class Disk:
    """A station's: what a power cut leaves is one of the images from the last synced one on."""

    def __init__(self) -> None:
        self.images: list[tuple[int, bytes]] = [(0, b"")]
        """(version, file) as of each commit since the last sync; empty: no file."""

    def sync(self) -> int:
        del self.images[:-1]
        return self.images[-1][0]

    def cut(self, r: random.Random) -> None:
        self.images = [r.choice(self.images)]


class Copy(SqliteRows):
    """A station's copy. Every commit leaves an image on its disk."""

    applier_class: type[Applier] = Applier
    log_max = 200
    """Versions whose entries are kept; of the first ones the reference could not tell where they come from."""

    def __init__(self, disk: Disk, uuid: bytes) -> None:
        self.disk, self.fails = disk, False
        self.on_write: Callable[[Entry], None] = lambda entry: None
        connection = apsw.Connection(":memory:")
        if image := disk.images[-1][1]:
            connection.deserialize("main", image)
        super().__init__(self.applier_class(connection), uuid, self.log_max)

    def image(self) -> bytes:
        return self.connection.serialize("main") or b""

    def create(self, uuid: bytes, rows: str = load.SCHEMA) -> None:
        super().create(uuid)
        self.connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 1)
        self.connection.execute(rows)
        self.connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
        self.keep()

    def write(self, entry: Entry) -> Verdict:
        if self.fails:
            raise RowsFailed("disk full")
        verdict = super().write(entry)
        if verdict is Verdict.DONE:
            self.on_write(entry)
            self.keep()
        return verdict

    def keep(self) -> None:
        self.disk.images.append((self.position().version, self.image()))


class Site:
    """A service at a station."""

    def __init__(self, world: World, station: int, rows: Copy) -> None:
        self.world, self.station, self.rows = world, station, rows
        rows.on_write = self.committed
        self.cursor = 0
        self.connected = False
        self.machine: Machine = world.machine_class(
            (station, 0), world.sites, rows, release=world.release(), open_wait_ns=world.plan.open_wait_ns
        )
        self.machine.long.part_bytes = world.plan.part_bytes
        self.machine.catch_up_max = world.plan.catch_up_max
        self.machine.distrusts = station in world.distrusted
        self.drafts: dict[Txid, tuple[load.Draft, Durability]] = {}
        """Under way."""
        self.undecided: list[tuple[load.Draft, Durability]] = []
        self.locking: dict[Txid, bool] = {}
        """Locks that were asked for, and whether they are held."""
        self.ids: list[int] = []
        """Of ``auto``, which nobody else has."""
        self.said = (0, 0)
        """What it has said of its disk last: epoch, version."""
        self.barriers: dict[int, int] = {}
        """Under way: number, and the newest version that had been acknowledged when it began."""

    def committed(self, entry: Entry) -> None:
        self.world.history.on_commit(self, entry)

    def connect(self, client: int) -> None:
        """Join the group as a new member, which sees what comes from its view on."""
        self.machine.me = (self.station, client)
        self.said = (0, 0)
        self.connected = True
        self.cursor = len(self.world.log)


class World:
    """A run. ``run`` raises Violation."""

    rounds = 60
    """In which it comes to rest when everything works again."""

    def __init__(self, plan: Plan, **parts: Any) -> None:
        """parts: classes to be used in place of the honest ones."""
        self.plan = plan
        self.r = random.Random(plan.seed ^ 0xDA7A)
        self.machine_class: type[Machine] = self._machine(parts.get("machine", Machine), plan)
        self.copy_class: type[Copy] = parts.get("copy", Copy)
        disk_class: type[Disk] = parts.get("disk", Disk)
        stations = frozenset(range(1, plan.stations + 1))
        self.sites = Sites(stations)
        if plan.required and plan.stations > 1:
            self.sites = Sites(stations, frozenset({1}), 2)
        self.sites = self.sites._replace(from_file=plan.from_file)
        self.first: bytes | None = None
        """The uuid of the file that it begins with."""
        self.now = 0
        self.clock = 1 << 32
        self.log: list[Item] = []
        self.members: frozenset[Source] = frozenset()
        self.pending: list[tuple[Site, Source, bytes]] = []
        self.transfers: list[tuple[Source, Source, Given, bytes]] = []
        """(from, to, state, rows) on the way."""
        self.sums: list[tuple[Site, int, apsw.Connection]] = []
        """Rows that are still to be summed, as they were at the place."""
        self.rotten: int | None = None
        """The station whose copy is damaged."""
        self.distrusted: set[int] = set()
        """Stations whose copies were found to be."""
        self.disks = {k: disk_class() for k in sorted(stations)}
        self.live: dict[int, Site] = {}
        self.clients = dict.fromkeys(sorted(stations), 0)
        self.numbers = 0
        self.forgot: int | None = None
        """The station whose disk was new last."""
        self.is_resting = False
        """Everything works again."""
        self.history = History(self)
        self.trace: list[str] = []
        self.met: Counter[str] = Counter()

    @staticmethod
    def _machine(base: type[Machine], plan: Plan) -> type[Machine]:
        """With a window of the plan's size."""

        class Sized(base):  # type: ignore[valid-type, misc]
            def window(self, version: int) -> Window:
                made: Window = super().window(version)
                made.versions_max = plan.versions_max
                return made

        return Sized

    # ---- the order

    def append(self, source: Source, data: bytes | None) -> None:
        self.clock += self.r.randint(1, 3)
        place = (self.clock, source[0], 0 if data is not None else 65535)
        self.log.append(Item(place, source, data, self.members))
        self.trace.append(f"{place} {source} {data[:1].hex() if data else sorted(self.members)}")

    def order_one(self) -> None:
        """Give one waiting message its place; each sender's in their order."""
        if self.pending:
            chosen = self.r.choice(list(dict.fromkeys(id(site) for site, *_ in self.pending)))
            i = next(i for i, (site, *_) in enumerate(self.pending) if id(site) == chosen)
            _, source, data = self.pending.pop(i)
            if source in self.members:
                self.append(source, data)

    def view(self, members: set[Source]) -> None:
        self.members = frozenset(members)
        self.append(min(members, default=(1, 0)), None)

    def advance(self, site: Site, count: int) -> None:
        """A site reads its next items."""
        while count and self.live.get(site.station) is site and site.connected and site.cursor < len(self.log):
            item = self.log[site.cursor]
            if item.data is None and site.machine.me not in item.members:
                return  # it is out, and will be told
            site.cursor += 1
            count -= 1
            self.history.at = item
            if item.data is None:
                self.carry_out(site, site.machine.on_view(item.place, item.members), item.place)
            else:
                self.carry_out(site, site.machine.on_message(item.place, item.source, item.data), item.place)
                self.met["part dropped"] += site.machine.dropped.pop("part", 0)
            self.history.on_item(site, item)

    # ---- effects

    def carry_out(self, site: Site, effects: list[Effect], place: Place = (0, 0, 0)) -> None:
        for effect in effects:
            if isinstance(effect, Emit):
                if site.connected:
                    self.pending.append((site, site.machine.me, effect.data))
            elif isinstance(effect, Answer):
                self.answered(site, effect)
            elif isinstance(effect, Give):
                self.transfers.append((site.machine.me, effect.to, *self.given(site, place)))
            elif isinstance(effect, Granted):
                self.granted(site, effect)
            elif isinstance(effect, Reached):
                self.history.on_read(site, effect.version, site.barriers.pop(effect.number, 0))
            elif isinstance(effect, Sum):
                self.sums.append((site, effect.number, self.pinned(site)))
            elif isinstance(effect, Compared):
                self.met["scrub"] += 1
                self.history.on_compared(site, effect)
            elif isinstance(effect, Failed):
                self.met["failed"] += 1
                if effect.is_damaged:
                    self.distrusted.add(site.station)
                self.crash(site.station)
                return

    def given(self, site: Site, place: Place) -> tuple[Given, bytes]:
        """The state that a donor gives: as it is now."""
        return site.machine.give(place), site.rows.image()

    def answered(self, site: Site, answer: Answer) -> None:
        draft, durability = site.drafts.pop(answer.txid)
        self.met[answer.verdict.value] += 1
        if answer.verdict is Verdict.UNDECIDED:
            site.undecided.append((draft, durability))
        else:
            self.history.on_answer(site, draft, answer, durability)
            if answer.verdict is Verdict.DONE:
                site.ids += self.history.ids_of(site, answer.version)

    def granted(self, site: Site, granted: Granted) -> None:
        """A program has the database alone, and changes its schema; or gives up."""
        if granted.txid not in site.locking:
            return
        site.locking[granted.txid] = True
        self.met["granted"] += 1
        if self.r.random() < 0.3:
            self.carry_out(site, site.machine.unlock(granted.txid))
            del site.locking[granted.txid]

    # ---- programs

    def txid(self, site: Site) -> Txid:
        self.numbers += 1
        return Txid(site.station, 1, site.machine.me[1], self.numbers)

    def transact(self, site: Site) -> None:
        """A program begins a transaction on the site's last version; it is sent now, or later."""
        shared = site.machine.shared
        if shared is None or len(site.drafts) > 3:
            return
        statements, reads = load.draw(self.r, self.plan.kinds)
        position = site.rows.position()
        returned, body = load.run(site.rows.disk.images[-1][1], statements)
        if body:
            txid = self.txid(site)
            draft = load.Draft(txid, shared.epoch, position.version, statements, returned, reads, body, position.digest)
            self.submit(site, draft, self.r.choice(list(Durability)))

    def lease(self, site: Site) -> None:
        """A program wants ids; or inserts a row with one of its own."""
        shared = site.machine.shared
        if shared is None or len(site.drafts) > 3:
            return
        position = site.rows.position()
        statements: tuple[load.Statement, ...] = ()
        returned: list[Any] = []
        body = load.lease_body(self.r.randint(1, 3))
        if site.ids and self.r.random() < 0.6:
            statements = (("INSERT INTO auto VALUES(?, ?)", (site.ids.pop(0), site.station)),)
            returned, body = load.run(site.rows.disk.images[-1][1], statements)
        if body:
            txid = self.txid(site)
            draft = load.Draft(txid, shared.epoch, position.version, statements, returned, (), body, position.digest)
            self.submit(site, draft, self.r.choice(list(Durability)))

    def submit(self, site: Site, draft: load.Draft, durability: Durability) -> None:
        self.history.drafts[draft.txid] = draft
        site.drafts[draft.txid] = (draft, durability)
        write = Write(draft.txid, draft.epoch, draft.snapshot, draft.reads, draft.body)
        self.carry_out(site, site.machine.submit(write, durability))

    def again(self, site: Site) -> None:
        """Who does not know what became of a transaction sends it again under its id."""
        if site.undecided and site.machine.shared is not None:
            self.met["again"] += 1
            self.submit(site, *site.undecided.pop())

    def change_schema(self, site: Site) -> None:
        """Ask for the lock; or, holding it, change the schema."""
        held = [txid for txid, has in site.locking.items() if has]
        if not held:
            txid = self.txid(site)
            site.locking[txid] = False
            self.carry_out(site, site.machine.lock(txid))
            return
        shared = site.machine.shared
        txid = held[0]
        del site.locking[txid]
        if shared is not None:
            name = f"x{txid.number}"
            sql = self.r.choice([f"CREATE TABLE {name}(id INTEGER PRIMARY KEY)", f"ALTER TABLE kid ADD COLUMN {name}"])
            position = site.rows.position()
            reads = load.all_tables(site.rows.connection)  # it may have lost the lock, and not know it
            draft = load.Draft(
                txid, shared.epoch, position.version, ((sql, ()),), [[]], reads, load.schema_body(sql), position.digest
            )
            self.submit(site, draft, Durability.MAJORITY)

    def read(self, site: Site) -> None:
        """A read that must see whatever was acknowledged before it began."""
        if site.connected and site.machine.shared is not None and not site.barriers:
            self.numbers += 1
            site.barriers[self.numbers] = self.history.acknowledged_version()
            self.carry_out(site, site.machine.barrier(self.numbers))

    # ---- comparisons of all rows

    def scrub(self, site: Site) -> None:
        if site.connected and site.machine.is_active:
            self.numbers += 1
            self.carry_out(site, site.machine.scrub(self.numbers))

    def pinned(self, site: Site) -> apsw.Connection:
        """The rows as they are now."""
        connection = apsw.Connection(":memory:")
        connection.deserialize("main", site.rows.image())
        return connection

    def sum_one(self) -> None:
        """A site has summed its rows."""
        if self.sums:
            site, number, connection = self.sums.pop(self.r.randrange(len(self.sums)))
            if self.live.get(site.station) is site and site.connected:
                self.carry_out(site, site.machine.on_sum(number, load.content(connection)))
            connection.close()

    def rot(self) -> None:
        """A row changes that nobody has written, at one station of three or more."""
        sites = [site for _, site in sorted(self.live.items())]
        if len(sites) > 2 and all(site.machine.is_active for site in sites):
            site, other = self.r.sample(sites, 2)
            self.rotten = site.station
            site.rows.connection.execute("INSERT INTO total(id, v) VALUES(-1000, 7)")
            site.rows.disk.images = [(site.rows.position().version, site.rows.image())]
            self.scrub(other)

    # ---- disks and state transfer

    def sync(self, site: Site) -> None:
        version = site.rows.disk.sync()
        shared = site.machine.shared
        if site.connected and version and shared is not None and site.said != (shared.epoch, version):
            site.said = (shared.epoch, version)
            self.carry_out(site, site.machine.on_synced(version))
        elif site.connected and shared is not None and site.machine.owes_report:
            self.met["reported later"] += 1
            self.carry_out(site, site.machine.report())

    def deliver(self) -> None:
        """A state arrives; unless its donor went before it was sent, or the other has gone."""
        if not self.transfers:
            return
        donor, to, given, image = self.transfers.pop(self.r.randrange(len(self.transfers)))
        site = self.live.get(to[0])
        if site is None or site.machine.me != to or not site.connected:
            return
        if site.cursor == 0 or self.log[site.cursor - 1].place < given.place:
            self.transfers.append((donor, to, given, image))  # it has not come to its own WANT yet
            return
        if donor not in self.members and self.r.random() < 0.5:
            self.met["donor gone"] += 1
            return
        if site.machine.shared is None and site.machine.fits(given):
            self.met["transfer"] += 1
            self.install(site, image, given)
            self.carry_out(site, site.machine.restore(given))

    def install(self, site: Site, image: bytes, given: Given) -> None:
        """What is missing here comes from the donor's log, if it goes on from here; else all pages, in one step and synced: what
        was left behind is gone."""
        donor = apsw.Connection(":memory:")
        donor.deserialize("main", image)
        if self.goes_on(donor, site):
            self.met["log"] += 1
            query = "SELECT epoch, version, digest, txid, body FROM zenjun_log WHERE version > ? ORDER BY version"
            rows: list[Any] = donor.execute(query, (site.rows.position().version,)).fetchall()
            for epoch, version, digest, txid, body in rows:
                numbers = (int.from_bytes(txid[i : i + 4], "big") for i in range(0, 16, 4))
                try:
                    SqliteRows.write(site.rows, Entry(Position(epoch, version, digest), Txid(*numbers), body))
                except RowsFailed as failure:
                    raise Violation("rows", f"site {site.station}: version {version} of the log: {failure}") from failure
                site.rows.keep()
        else:
            old = site.rows
            old.connection.close()
            old.disk.images = [(0, image)]
            site.rows = self.copy_class(old.disk, old.uuid())
            site.rows.on_write = site.committed
            old.disk.images = [(site.rows.position().version, image)]
            self.distrusted.discard(site.station)
            if self.rotten == site.station:
                self.met["mended"] += 1
                self.rotten = None
        site.machine.rows = site.rows

    def goes_on(self, donor: apsw.Connection, site: Site) -> bool:
        """The donor's history has the last version that is here."""
        rows = site.rows
        if rows.blank() or site.machine.distrusts:
            return False
        query = "SELECT digest FROM zenjun_log WHERE version = ?"
        return donor.execute(query, (rows.position().version,)).fetchall() == [(rows.position().digest,)]

    # ---- faults

    def start(self, station: int) -> None:
        """The service starts, or a service that was cut off comes again."""
        site = self.live.get(station)
        if site is None:
            site = Site(self, station, self.copy_class(self.disks[station], self.r.randbytes(16)))
            self.live[station] = site
        self.clients[station] += 1
        site.connect(self.clients[station])
        self.view(set(self.members) | {site.machine.me})

    def release(self) -> int:
        """Of SQLite, for a service that starts."""
        releases = self.plan.releases
        return releases[0] if self.is_resting or len(set(releases)) == 1 else self.r.choice(releases)

    def crash(self, station: int) -> None:
        """The process ends; what it has committed stays."""
        site = self.live.pop(station)
        site.rows.connection.close()
        self.pending = [entry for entry in self.pending if entry[0] is not site or self.r.random() < 0.5]
        if site.connected and site.machine.me in self.members:
            self.view(set(self.members) - {site.machine.me})

    def power(self, station: int) -> None:
        """A power cut at one station."""
        if station in self.live:
            self.crash(station)
        self.disks[station].cut(self.r)

    def expel(self, site: Site) -> None:
        """The others have gone on without it; it is told in time."""
        self.view(set(self.members) - {site.machine.me})
        self.pending = [entry for entry in self.pending if entry[0] is not site]
        if self.r.random() < 0.5:
            self.advance(site, self.r.randint(1, 4))
        self.lose(site)

    def lose(self, site: Site) -> None:
        site.connected = False
        site.barriers.clear()
        site.locking.clear()
        self.carry_out(site, site.machine.on_lost())

    def reopen(self) -> None:
        """The instance is opened anew: all hear the old one to its end, then nobody is active."""
        sites = [site for _, site in sorted(self.live.items()) if site.connected]
        for site in sites:
            self.advance(site, -1)
        self.pending.clear()
        for site in [s for s in sites if self.live.get(s.station) is s]:
            self.lose(site)
        self.members = frozenset()
        for site in [s for s in sites if self.live.get(s.station) is s]:
            self.start(site.station)

    def fault(self) -> None:
        kind = self.r.choice(self.plan.faulty)
        connected = [site for _, site in sorted(self.live.items()) if site.connected]
        if not connected:
            return
        site = self.r.choice(connected)
        self.met[kind] += 1
        self.trace.append(f"{kind} {site.station}")
        if kind == "crash":
            self.crash(site.station)
        elif kind == "power":
            self.power(site.station)
        elif kind == "power-all":
            for station in self.disks:
                self.power(station)
        elif kind == "expel":
            self.expel(site)
        elif kind == "reopen":
            self.reopen()
        elif kind == "disk":
            site.rows.fails = True
        elif self.may_forget(site.station):
            self.power(site.station)
            self.disks[site.station].images = [(0, b"")]

    def may_forget(self, station: int) -> bool:
        """A new disk takes promises with it. The others have them as long as it was one disk of three or more, and until it has
        everything again no second one is lost."""
        if self.plan.stations < 3 or self.sites.required:
            return False
        if self.forgot is not None:
            site = self.live.get(self.forgot)
            if site is None or not site.machine.is_active:
                return False
            if not self.history.has_acknowledged(site.rows.position().digest, site.rows.disk.images[0][0]):
                return False
        self.forgot = station
        return True

    # ---- the run

    def step(self) -> None:
        r, plan = self.r, self.plan
        sites = [site for _, site in sorted(self.live.items())]
        x = r.random()
        if x < plan.faults:
            self.fault()
        elif x < plan.faults + plan.locks and sites:
            self.change_schema(r.choice(sites))
        else:
            choices: list[Callable[[], None]] = [self.deliver, self.pass_time, self.sum_one, self.sum_one]
            if sites:
                site = r.choice(sites)
                choices += [lambda: self.transact(site)] * 4
                choices += [lambda: self.read(site), lambda: self.again(site), lambda: self.scrub(site), lambda: self.lease(site)]
            r.choice(choices)()
        for _ in range(r.randint(0, 3)):
            self.order_one()
        away = [s for s in self.disks if s not in self.live or not self.live[s].connected]
        if away and r.random() < plan.back:
            self.start(r.choice(away))
        for site in [site for _, site in sorted(self.live.items())]:
            if r.random() > plan.lag:
                self.advance(site, r.randint(1, 4))
            if self.live.get(site.station) is site and site.connected:
                self.catch_up(site)
            if self.live.get(site.station) is site and r.random() < plan.syncs:
                self.sync(site)

    def catch_up(self, site: Site) -> None:
        """One step of it."""
        if site.machine.is_catching_up:
            self.met["catching up"] += 1
            self.carry_out(site, site.machine.catch_up())

    def pass_time(self) -> None:
        self.now += self.r.choice([S // 10, S, 3 * S])
        for site in [site for _, site in sorted(self.live.items()) if site.connected]:
            due = site.machine.next_deadline_ns()
            if due is not None and due <= self.now:
                self.carry_out(site, site.machine.on_timer(self.now))

    def settle(self, rounds: int) -> None:
        """What is under way arrives, and time passes."""
        for _ in range(rounds):
            self.pass_time()
            while self.pending:
                self.order_one()
            for site in list(self.live.values()):
                self.advance(site, -1)
                while site.machine.is_catching_up and self.live.get(site.station) is site:
                    self.catch_up(site)
            for _ in range(len(self.transfers)):
                self.deliver()

    def create(self) -> None:
        """``zenjun db create`` returns when all sites have the empty database on their disks; before that nothing is promised."""
        self.is_resting = True
        stations = list(self.disks)
        if self.plan.from_file:
            stations = self.r.sample(stations, len(stations))
            self.first = self.r.randbytes(16)
            made = self.copy_class(self.disks[stations[-1]], self.first)
            made.connection.execute(load.SCHEMA + load.FIRST)
            made.create(self.first, "")
            made.disk.images = made.disk.images[-1:]
        for station in stations:
            self.start(station)
            if self.plan.from_file:
                self.settle(6)
        while not all(site.machine.is_active for site in self.live.values()):
            self.settle(1)
        for site in self.live.values():
            self.sync(site)
        self.is_resting = False

    def run(self) -> None:
        self.create()
        for _ in range(self.plan.steps):
            self.step()
        self.heal()

    def heal(self) -> None:
        """Everything works again: it comes to rest, with all copies equal."""
        self.is_resting = True
        for site in list(self.live.values()):
            site.rows.fails = False
            if site.machine.release != self.plan.releases[0]:
                self.met["other release"] += 1
                self.crash(site.station)
                continue
            for txid in list(site.locking):
                self.carry_out(site, site.machine.unlock(txid))
            site.locking.clear()
        for round_ in range(self.rounds):
            for station in self.disks:
                if station not in self.live or not self.live[station].connected:
                    self.start(station)
            for _ in range(3):
                self.pass_time()
            while self.pending:
                self.order_one()
            for _ in range(len(self.transfers)):
                self.deliver()
            while self.sums:
                self.sum_one()
            if round_ == self.rounds - 15 and self.plan.rots:
                self.rot()
            for site in [site for _, site in sorted(self.live.items())]:
                self.advance(site, -1)
                while site.machine.is_catching_up and self.live.get(site.station) is site:
                    self.catch_up(site)
                if self.live.get(site.station) is site:
                    self.sync(site)
                    if round_ < self.rounds - 20:
                        self.again(site)
        self.history.on_rest()


def simulate(seed: int, plan: Plan | None = None, **parts: Any) -> Violation | None:
    """Run one seed. The violation has the plan and the end of the trace as notes."""
    world_class = parts.pop("world", World)
    return violation_of(world_class(plan or Plan.draw(seed), **parts), 12)


__all__ = ["Begun", "Copy", "Disk", "Shared", "Site", "World", "replace", "simulate"]

if __name__ == "__main__":
    sys.exit(run_seeds(simulate, sys.argv[1:]))
