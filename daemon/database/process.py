"""The process: the databases of a station. One of them, the catalogue, says which others there are."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from ...proto.service.database.certify import table_hash
from ...proto.service.database.machine import Durability
from ...proto.service.database.messages import BODY_MAX, Segment, Txid, Write, encode_body
from ...proto.service.database.roll import Sites
from ...proto.service.database.rows import RowsFailed, Verdict
from ...proto.service.database.zones import COPIES, Zones, parse_zone
from ..client import ClientError, Event, NotReachable, connect
from ..client.aio import Connection
from ..config import Config
from ..observe import Journal
from ..programs import Refused
from ..release import version
from .branch import Branch
from .distant import Distant
from .files import CATALOGUE, Files
from .importing import ImportRefused, imported
from .life import BEAT_S, Life
from .room import Room
from .site import Site
from .unanimous import MODES
from .waiting import NotHere, Undecided

FOLDER: Final = "db"
DATABASES_MAX: Final = 64
LONG_BYTES_MAX: Final = 4 * BODY_MAX
"""Of long transactions that programs of this station have under way."""
RETRY_S: Final = 0.5
PREPARED_S: Final = 86_400.0
"""For that long a file that was given for a database may wait for it."""
HERE_S: Final = 2.0
"""A program waits so long for the copy of its own station, before it uses another one."""
FAILED_STEPS: Final = ("failed", "refused")
TRIES: Final = 10
"""Of a change of the catalogue that another station's comes before."""


class OrderLost(ClientError):
    """The order has ended for this station; a new connection is another member."""


class Elsewhere(NamedTuple):
    """A database that this station has no copy of."""

    name: str
    uuid: bytes
    mode: str
    sites: tuple[int, ...]

    def facts(self, active: list[int]) -> dict[str, Any]:
        """For the status. active: stations where it is."""
        return {
            "name": self.name,
            "mode": self.mode,
            "uuid": self.uuid.hex(),
            "step": "not at this station",
            "active_sites": active,
            "sites": list(self.sites),
            "elsewhere": True,
        }


class Process:
    """Everything but the socket for programs."""

    def __init__(self, config: Config, root: Path, journal: Journal, socket: str = "") -> None:
        """socket: for programs, where this process finds itself."""
        self.config, self.root, self.journal = config, root, journal
        self.stations = self._sites_of(range(1, config.cluster.stations + 1))
        self.sites: dict[str, Site] = {}
        self.elsewhere: dict[str, Elsewhere] = {}
        """Databases without a copy here."""
        self.distant = Distant(self, Zones(config.cluster.stations, dict(map(parse_zone, config.database.zones))), socket)
        self._prepared: set[Site] = set()
        """Those whose file has been opened, as far as it can be: not to be served before, for that opens it as well."""
        self._options: dict[str, dict[str, Any]] = {}
        """What the catalogue says of each database."""
        self.room = Room(LONG_BYTES_MAX)
        self.step = "waiting for zenjund"
        self._txid = (config.station.id, int(time.time()) & 0xFFFFFFFF, secrets.randbits(32))
        self._number = 0
        self._connection: Connection | None = None
        self._serving: dict[str, asyncio.Task[None]] = {}
        self._lost: asyncio.Future[None] | None = None
        self._ended = asyncio.Event()
        self._looking = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self.catalogue = self._add(CATALOGUE, secrets.token_bytes(16))
        self.catalogue.on_version = lambda: self._soon(self._look())

    def _sites_of(self, stations: Iterable[int]) -> Sites:
        """Which of these stations decide: more than half; or the cluster's quorum, if they have all that it requires."""
        here, required = frozenset(stations), frozenset(self.config.cluster.required_stations)
        quorum = self.config.cluster.quorum if required else 0
        return Sites(here, required, quorum) if required <= here and quorum <= len(here) else Sites(here)

    def _add(self, name: str, uuid: bytes, options: Mapping[str, Any] | None = None) -> Site:
        known = options or {}
        stations = self._sites_of(known["sites"]) if "sites" in known else self.stations
        site = MODES[known.get("mode", Site.mode)](
            name,
            Files(self.root, name),
            stations._replace(from_file="from" in known),
            self.journal,
            uuid,
            self.config.database.scrub_hours * 3600.0,
        )
        site.quorum = self.has_quorum
        if name != CATALOGUE:
            site.may_replace = lambda: self.catalogue.follows
        self.sites[name] = site
        return site

    def has_quorum(self) -> bool:
        return self._connection is not None and self._connection.quorum

    def txid(self) -> Txid:
        """One more transaction of this process itself."""
        self._number += 1
        return Txid(*self._txid, self._number)

    # ---- the life of the process

    async def run(self) -> None:
        """Serve all databases, with one connection to zenjund after the other."""
        try:
            while True:
                try:
                    options: dict[str, Any] = {"name": "zenjun-db", "wait": None, "on_event": self._on_event}
                    async with connect(self.config.station.socket, **options) as connection:
                        await self._session(connection)
                except NotReachable:
                    raise
                except ClientError as error:
                    self.journal.warning("zenjund", f"{error}; trying again")
                self.step = "waiting for zenjund"
                await asyncio.sleep(RETRY_S)
        finally:
            for site in self.sites.values():
                await site.close()

    async def _live(self) -> None:
        """Show that the loop runs, for the programs of databases in mode unanimous."""
        life = Life(self.root)
        while True:
            life.beat()
            await asyncio.sleep(BEAT_S)

    async def open(self) -> None:
        """Open what is here, once, before programs ask: it can be read before there is an order."""
        self._soon(self._live())
        await self._prepare(self.catalogue)
        await self._look()

    async def _prepare(self, site: Site) -> None:
        try:
            await asyncio.to_thread(site.prepare)
        except (RowsFailed, OSError) as error:
            site.step = f"failed: {error}"
            self.journal.error("failed", f"database {site.name}: {error}")
        self._prepared.add(site)

    async def _session(self, connection: Connection) -> None:
        self._connection = connection
        self._lost = asyncio.get_running_loop().create_future()
        self._ended.clear()
        self.step = "in the order"
        besides: list[asyncio.Task[Any]] = []
        try:
            besides = [asyncio.create_task(each) for each in (self._ended.wait(), self.distant.serve(connection), self._admit())]
            await asyncio.wait([self._lost, *besides], return_when=asyncio.FIRST_COMPLETED)
            if self._lost.done():
                raise OrderLost("this station has left the order")
        finally:
            self._connection = None
            tasks, self._serving = [*self._serving.values(), *besides], {}
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            self._lost.cancel()
        for error in ended:
            if isinstance(error, Exception):
                raise error

    async def _admit(self) -> None:
        """Serve the databases while this station's zones are those of the others."""
        while True:
            refused = self.distant.machine.refused()
            if self.distant.admitted:
                self.step = "in the order"
                for site in list(self.sites.values()):
                    self._serve(site)
            elif refused and self.step != f"refused: {refused}":
                self.step = f"refused: {refused}"
                self.journal.error("refused", f"this station takes no part: {refused}")
                tasks, self._serving = list(self._serving.values()), {}
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                for site in self.sites.values():
                    site.step = self.step
            await self.distant.changed()

    def _serve(self, site: Site) -> None:
        connection = self._connection
        if connection is None or site.name in self._serving or site not in self._prepared or not self.distant.admitted:
            return
        task = asyncio.create_task(site.serve(connection))
        self._serving[site.name] = task
        task.add_done_callback(lambda task: None if task.cancelled() else self._ended.set())

    def _on_event(self, event: Event) -> None:
        """Within the loop, at once."""
        if event.name in ("expelled", "reopened", "fenced") and self._lost is not None and not self._lost.done():
            self._lost.set_result(None)

    def _soon(self, what: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- the catalogue

    async def _look(self) -> None:
        """Begin with databases that the catalogue has, end with those that it has no more. The copy here may be an old one unless
        it follows the history: then nothing is removed for it."""
        async with self._looking:
            follows = self.catalogue.follows
            try:
                rows = await self.catalogue.query("SELECT name, uuid, options FROM databases ORDER BY name")
            except NotHere as error:
                if not self.catalogue.is_blank:
                    self.journal.error("catalogue", str(error))
                return
            follows = follows and self.catalogue.follows
            self._options = {name: json.loads(options) for name, _, options in rows}
            wanted: dict[str, bytes] = {}
            elsewhere: dict[str, Elsewhere] = {}
            for name, uuid, _ in rows:
                sites = tuple(self._options[name].get("sites", self.stations.stations))
                if self.config.station.id in sites:
                    wanted[name] = uuid
                else:
                    elsewhere[name] = Elsewhere(name, uuid, self._options[name].get("mode", Site.mode), sites)
            self.elsewhere = elsewhere
            for name, site in list(self.sites.items()):
                if follows and name != CATALOGUE and wanted.get(name) != site.uuid:
                    await self._drop(site)
            if follows:
                await asyncio.to_thread(self._clean, {self.prepared(name, uuid) for name, uuid, _ in rows})
            for name, uuid in wanted.items():
                if name not in self.sites:
                    site = self._add(name, uuid, self._options[name])
                    await asyncio.to_thread(self._adopt, site)
                    await self._prepare(site)
                    self._serve(site)

    def prepared(self, name: str, uuid: bytes) -> Path:
        """Where the first copy of a database waits until the catalogue has it."""
        return self.root / f"{name}.{uuid.hex()}.first"

    def _clean(self, wanted: set[Path]) -> None:
        """Remove files that were prepared long ago, for databases that did not come about."""
        old = time.time() - PREPARED_S
        for path in [*self.root.glob("*.first*"), *self.root.glob("upload-*")]:
            with contextlib.suppress(OSError):
                if path not in wanted and path.stat().st_mtime < old:
                    path.unlink()

    def _adopt(self, site: Site) -> None:
        try:
            site.files.adopt(self.prepared(site.name, site.uuid))
        except OSError as error:
            self.journal.error("failed", f"database {site.name}: {error}")

    async def _drop(self, site: Site) -> None:
        del self.sites[site.name]
        self._prepared.discard(site)
        if (task := self._serving.pop(site.name, None)) is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await site.close()
        self.journal.info("dropped", f"database {site.name} is dropped")
        try:
            await asyncio.to_thread(site.files.remove)
        except OSError as error:
            self.journal.error("dropped", f"database {site.name}: {error}")

    def site(self, name: str) -> Site:
        """Raises Refused."""
        if (site := self.sites.get(name)) is not None:
            return site
        if (other := self.elsewhere.get(name)) is not None:
            stations = ", ".join(map(str, other.sites))
            raise Refused("elsewhere", f"this station has no copy of {name}: do that at one of the stations {stations}")
        raise Refused("no-database", f"there is no database {name[:80]!r}: zenjun db list shows which there are")

    def facts(self, name: str) -> dict[str, Any]:
        """Of one database. Raises Refused."""
        if (other := self.elsewhere.get(name)) is not None:
            return other.facts(sorted(self.distant.machine.active(other.uuid.hex())))
        return self.site(name).facts()

    def names(self) -> list[str]:
        """Of all databases."""
        return sorted({*self.sites, *self.elsewhere})

    def status(self, name: str | None, programs: int) -> dict[str, Any]:
        """The answer to the request ``status``. name: None: of all databases. programs: the number connected. Raises Refused."""
        return {
            "version": version(),
            "station": self.config.station.id,
            "cluster": self.config.cluster.name,
            "step": self.step,
            "quorum": self.has_quorum(),
            "programs": programs,
            "distance": self.distant.facts(),
            "databases": [self.facts(each) for each in ([name] if name is not None else self.names())],
        }

    async def create(
        self, name: str, seconds: float, source: Path | None = None, mode: str = Site.mode, zones: Sequence[str] = (),
        copies: int = COPIES,
    ) -> None:  # fmt: skip
        """Make a database, empty or of what an SQLite file has, and return when all its stations have it on their disks. zones:
        where it is, at so many stations of each; none: in all. Raises Refused."""
        deadline = time.monotonic() + seconds
        options: dict[str, Any] = {} if mode == Site.mode else {"mode": mode}
        known = self.distant.machine.zones
        try:
            sites = known.sites(copies, zones)
        except KeyError as error:
            raise Refused("name", f"there is no zone {error.args[0]!r}: there are {', '.join(known.zones)}") from None
        if set(sites) != self.stations.stations:
            options["sites"] = list(sites)
        if name in self.names():
            raise Refused("exists", f"there is a database {name!r} already")
        await self.catalogue.until(lambda: not self.catalogue.is_blank, seconds)
        try:
            count = len(await self.catalogue.query("SELECT name FROM databases"))
        except NotHere as error:
            raise Refused("no-quorum", f"nothing has been done: {self.catalogue.why_not()}: {error}") from None
        if count >= DATABASES_MAX:
            raise Refused("full", f"there are {count} databases, as many as there may be")
        await self._begin("INSERT INTO databases(uuid, options, name) VALUES(?, ?, ?)", name, deadline, source, options)

    async def restore(self, name: str, seconds: float, source: Path) -> None:
        """Put what an SQLite file has in the place of a database, at all stations. Raises Refused."""
        self.site(name)
        deadline = time.monotonic() + seconds
        options = {key: value for key, value in self._options.get(name, {}).items() if key != "from"}
        await self._begin("UPDATE databases SET uuid = ?, options = ? WHERE name = ?", name, deadline, source, options)

    async def _begin(self, sql: str, name: str, deadline: float, source: Path | None, options: dict[str, Any]) -> None:
        """A change of the catalogue with which a database begins, and wait until it is everywhere. Raises Refused."""
        uuid = secrets.token_bytes(16)
        prepared = self.prepared(name, uuid)
        if source is not None:
            if self.config.station.id not in options.get("sites", self.stations.stations):
                stations = ", ".join(map(str, options["sites"]))
                raise Refused("elsewhere", f"{name} is not to be at this station: do that at one of the stations {stations}")
            try:
                await asyncio.to_thread(imported, source, prepared, uuid)
            except (ImportRefused, OSError) as error:
                raise Refused("file", f"nothing has been done: the file cannot become a database: {error}") from None
            options = options | {"from": self.config.station.id}
        try:
            await self._change(sql, (uuid, json.dumps(options), name), max(0.0, deadline - time.monotonic()))
        except Refused as refused:
            if refused.code != "undecided":
                prepared.unlink(missing_ok=True)
            raise
        site = await self._appeared(name, uuid, deadline)
        if site is None:
            whole = self.distant.until(lambda: self.distant.machine.is_whole(uuid.hex()), max(0.0, deadline - time.monotonic()))
            if not await whole:
                stations = ", ".join(map(str, options["sites"]))
                raise Refused("not-everywhere", f"{name} is created, but stations {stations} do not have it on their disks yet")
        for each in (self.catalogue, *([site] if site is not None else [])):
            if not await each.until(lambda each=each: _is_everywhere(each), max(0.0, deadline - time.monotonic())):  # type: ignore[misc]
                facts = each.facts()
                have = {int(s) for s, v in facts["synced"].items() if v and int(s) in facts["active_sites"]}
                missing = ", ".join(map(str, sorted(each.sites.stations - have)))
                text = (
                    f"{name} is created, but stations {missing} do not have it on their disks yet: wait for them before its use"
                )
                raise Refused("not-everywhere", text)

    async def _appeared(self, name: str, uuid: bytes, deadline: float) -> Site | None:
        """None: it is not at this station."""
        while name not in self.sites or self.sites[name].uuid != uuid:
            if name in self.elsewhere and self.elsewhere[name].uuid == uuid:
                return None
            if time.monotonic() > deadline:
                raise Refused("timeout", f"{name} is created, but it is not open here yet")
            await asyncio.sleep(RETRY_S / 10)
        return self.sites[name]

    async def place_of(self, name: str, seconds: float) -> Site | None:
        """Where a program of this station uses a database: here if the copy is active, or will be in a moment, or if it can be
        read and none is active elsewhere; None: at a distance (rule Z3). Raises Refused."""
        if (site := self.sites.get(name)) is None:
            self.facts(name)
            return None
        others = self.distant.machine
        if site.active or name == CATALOGUE:
            return site

        def elsewhere() -> bool:
            return others.nearest(site.uuid.hex(), site.sites.stations) is not None

        await site.until(lambda: site.active or site.step.startswith(FAILED_STEPS), min(seconds, HERE_S))
        # A copy that may be used no longer says nothing of the others; they have not spoken just after this process has begun.
        begun = time.monotonic()
        while not site.active and not elsewhere() and (waited := time.monotonic() - begun) < seconds:
            if not site.is_blank and (self.distant.admitted or waited > HERE_S):
                break
            await asyncio.sleep(RETRY_S / 10)
        if site.active or not elsewhere():
            return site
        return None

    async def drop(self, name: str, seconds: float) -> None:
        """Raises Refused."""
        self.facts(name)
        await self._change("DELETE FROM databases WHERE name = ?", (name,), seconds)

    async def _change(self, sql: str, bindings: tuple[Any, ...], seconds: float) -> None:
        """A change of the catalogue. Raises Refused."""
        deadline = time.monotonic() + seconds
        site = self.catalogue
        for _ in range(TRIES):
            left = max(0.0, deadline - time.monotonic())
            if not await site.until(lambda: site.can_write and not site.is_blank, left):
                raise Refused("no-quorum", f"nothing has been done: {site.why_not()}")
            write = await asyncio.to_thread(self._written, sql, bindings)
            try:
                answer = await site.waiting.commit(write, Durability.MAJORITY, max(0.0, deadline - time.monotonic()))
            except NotHere as error:
                raise Refused("no-quorum", f"nothing has been done: {error}") from None
            except Undecided as error:
                raise Refused("undecided", f"it may have been done: {error}") from None
            if answer.verdict is Verdict.DONE:
                return
        raise Refused("conflict", f"others change the catalogue all the time ({answer.verdict.value})")

    def _written(self, sql: str, bindings: tuple[Any, ...]) -> Write:
        """A statement on a branch of the catalogue. Raises Refused if it violates a constraint, or makes one database too many:
        those that are made at the same time are counted as well."""
        import apsw

        with Branch(self.catalogue.files.link.resolve()) as branch:
            branch.begin()
            epoch, version = branch.position
            try:
                branch.execute(sql, bindings)
            except apsw.ConstraintError:
                raise Refused("exists", f"there is a database {bindings[-1]!r} already") from None
            found: list[Any] = branch.execute("SELECT count(*) FROM databases").fetchall()
            if (count := int(found[0][0])) > DATABASES_MAX:
                raise Refused("full", f"there are {count - 1} databases, as many as there may be")
            body = encode_body([(Segment.CHANGESET, branch.changeset())])
            branch.end()
        return Write(self.txid(), epoch, version, (table_hash("databases"),), body)


def _is_everywhere(site: Site) -> bool:
    """All stations of the database are active, and have it on their disks."""
    facts = site.facts()
    return facts["active_sites"] == facts["sites"] and all(facts["synced"].get(str(s), 0) for s in facts["sites"])
