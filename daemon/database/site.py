"""One database at this station: a member of its group that runs the machine on what comes, in the thread of the applier."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast

import apsw

from ...proto.service.base import Effect, Emit, Place, Source
from ...proto.service.database.fate import fate
from ...proto.service.database.given import encode_given
from ...proto.service.database.machine import Answer, Durability, Failed, Give, Granted, Machine, Reached
from ...proto.service.database.messages import PART_HEAD_BYTES, Position, Txid, Want, decode, is_common
from ...proto.service.database.parts import PART_BYTES
from ...proto.service.database.roll import NOTHING, Sites
from ...proto.service.database.rows import RowsDamaged, RowsFailed
from ...proto.service.database.scrub import Compared, Sum
from ..client import ClientError, Message, View
from ..client.aio import Connection, Group
from ..observe import Journal
from .copy import SPARE_BYTES, CatalogueRows, FileRows, Frozen, open_copy, rewritten
from .doubt import Doubt, Doubts
from .facts import facts_of
from .files import CATALOGUE, Files
from .jobs import Changes, Jobs, together
from .keeping import STEP, CatchingUp, FileKept
from .moving import Kind, Piece, Receiving, Sending
from .outbox import Outbox
from .scrubbing import Scrubs, Summing, pin
from .syncing import Syncing
from .waiting import NotHere, Waiting, undone
from .walfile import ContentLost, write_again

GROUP: Final = "zenjun.db"
BATCH_MAX: Final = 64
"""Messages that the machine takes at once; what programs wait for comes after them."""
SHORT_BYTES_MAX: Final = 64 * 1024
"""Of messages that are taken in the loop's own thread."""
TURN_S: Final = 0.05
BROKEN_S: Final = 10.0
"""After a failure of the copy, until it is opened again."""
LEAVE_S: Final = 2.0
"""For what is still to be sent."""
STALLED_S: Final = 30.0
"""Without a piece of the state that was asked for: it is asked for again."""
CHECK_S: Final = 10.0
"""After the last commit, until the sites compare their positions."""
CHECK_VERSIONS: Final = 256


class SiteFailed(Exception):
    """The copy here cannot be used; one line for the operator."""


@dataclass(frozen=True, slots=True)
class _Give(Effect):
    """A frozen copy for another site."""

    frozen: Frozen
    to: Source
    place: Place


class Site:
    """Everything of one database but the socket for programs."""

    mode = "replicated"
    machine_class: type[Machine] = Machine
    rows_class: type[FileRows] = FileRows

    def __init__(self, name: str, files: Files, sites: Sites, journal: Journal, uuid: bytes, scrub_s: float = 0.0) -> None:
        self.name, self.files, self.sites, self.journal, self.uuid = name, files, sites, journal, uuid
        self.machine: Machine | None = None
        self.counters: Counter[str] = Counter()
        self.step = "waiting for zenjund"
        """What it is at, for people."""
        self.position: Position = NOTHING
        self._tended: Position = NOTHING
        """Of the copy here."""
        self.on_version: Callable[[], None] = lambda: None
        """Called in the loop when the copy has another version, and when it begins to follow."""
        self.may_replace: Callable[[], bool] = lambda: True
        """It is known that a file of another database of this name is of no use any more."""
        self.receiving: Receiving | None = None
        self.sending: dict[Source, Sending] = {}
        self.quorum: Callable[[], bool] = lambda: False
        self.closed = False
        self.message_max = 0
        """Bytes that zenjund takes in one message."""
        self._rows: FileRows | None = None
        self._jobs = Jobs(f"db-{name}")
        self.waiting = Waiting(self)
        self.scrubs = Scrubs(self, scrub_s)
        self.syncing = Syncing(self)
        self._changes = Changes()
        self._unsaid: tuple[Position, bool] = (NOTHING, False)
        self._out = Outbox()
        self._pieces: deque[Piece] = deque()
        self._pumping = asyncio.Lock()
        self._piece_at = 0.0
        self._catching_up = CatchingUp(self)
        self._compared: tuple[int, float] = (0, 0.0)
        self._fresh_at: float | None = None
        """When the site was last active, with quorum."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failure = ""
        self._doubts: Doubts | None = None
        """Whether it is known what is on the disk."""
        self._failing = asyncio.Event()

    # ---- what others may ask

    @property
    def follows(self) -> bool:
        """The copy here is the history's as far as it has come."""
        return self.machine is not None and self.machine.shared is not None

    @property
    def active(self) -> bool:
        return self.machine is not None and self.machine.is_active

    def is_sending(self, txid: Txid) -> bool:
        """A long transaction of a program here is not complete in the order."""
        return self.machine is not None and txid in self.machine.long

    @property
    def can_write(self) -> bool:
        return self.machine is not None and self.machine.can_write and self.quorum()

    def stale_s(self) -> float | None:
        """Seconds since the copy here was that of the active sites; None: it has not been yet."""
        now = time.monotonic()
        if self.active and self.quorum():
            self._fresh_at = now
        return None if self._fresh_at is None else now - self._fresh_at

    @property
    def is_open(self) -> bool:
        """Reads are served."""
        return not self.is_blank

    async def readable(self, program: object, seconds: float) -> bool:
        """Wait until a program may begin to read."""
        return await self.until(lambda: self.is_open, seconds)

    def began(self, program: object) -> None:
        """The program that was told so has begun."""

    @property
    def is_whole(self) -> bool:
        """All sites are active, and have the database on their disks."""
        shared = self.machine.shared if self.machine is not None else None
        if shared is None or {station for station, _ in shared.active} != self.sites.stations:
            return False
        on_disk = {station for (station, _), version in shared.synced.items() if version}
        return on_disk >= self.sites.stations

    @property
    def is_blank(self) -> bool:
        """There is nothing to be read yet."""
        return self.position == NOTHING

    def facts(self) -> dict[str, Any]:
        """For the status."""
        return facts_of(self, self._rows.wal if self._rows is not None else None)

    # ---- the life of the site

    async def serve(self, connection: Connection) -> None:
        """Be a site, until the connection ends. Raises ClientError."""
        while True:
            try:
                await self._session(connection)
            except SiteFailed as failure:
                self.counters["failed"] += 1
                self.step = f"failed: {failure}"
                self.journal.error("failed", f"database {self.name}: {failure}; trying again in {BROKEN_S:g} s")
            await asyncio.sleep(BROKEN_S)

    async def _session(self, connection: Connection) -> None:
        self.step = "opening the file"
        me = (connection.welcome.station, connection.welcome.client)
        self.message_max = connection.welcome.message_max
        try:
            await self.work(self._open, me)
        except RowsFailed as failure:
            raise SiteFailed(str(failure)) from failure
        self._out = Outbox()
        self.syncing.begin()
        self._failing.clear()
        self.step = "waiting for the others"
        groups: list[Group] = []
        try:
            beside = await connection.join(f"{GROUP}.{self.name}.state", order="op", timeout=None)
            groups.append(beside)
            group = await connection.join(f"{GROUP}.{self.name}", timeout=None)
            groups.append(group)
            await together(
                self._read(group), self._read_pieces(beside), self._out.run(connection, group, beside), self._turns(),
                self.syncing.run(), self._until_failed(), first=SiteFailed,
            )  # fmt: skip
        finally:
            await self._leave(groups)

    async def _until_failed(self) -> None:
        """Raise SiteFailed when the copy is given up, once the others have been told."""
        await self._failing.wait()
        deadline = time.monotonic() + LEAVE_S
        while not self._out.queue.empty() and time.monotonic() < deadline:
            await asyncio.sleep(TURN_S)
        raise SiteFailed(self._failure)

    async def _leave(self, groups: Sequence[Group]) -> None:
        machine = self.machine
        if machine is not None:
            self.carry_out(await self.work(machine.on_lost), sends=False)
        self.waiting.order_lost()
        self.scrubs.order_lost()
        self._pieces.clear()
        if self.receiving is not None:
            await self.work(self.receiving.abort)
            self.receiving = None
        for group in groups:
            with contextlib.suppress(ClientError, RuntimeError):
                await group.leave()
        if machine is not None and machine.has_failed:
            self.machine = None
            if self._rows is not None:
                await self.work(self._rows.close)
                self._rows = None
        self._changes.tell()

    async def close(self) -> None:
        """Once, when nothing serves it any more."""
        self.closed = True
        if self._rows is not None:
            await self.work(self._rows.finish, self.doubts.syncing)
            self._rows = None
        self.machine = None
        if self._doubts is not None:
            self._doubts.close()
        self._jobs.close()
        self.syncing.close()
        self._changes.tell()

    @property
    def rows(self) -> FileRows | None:
        """The copy that is open."""
        return self._rows

    @property
    def is_free(self) -> bool:
        """``submit`` may be called."""
        return self._jobs.is_free

    async def work(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run something in the thread that has the copy, after what it was given before."""
        return await self._jobs.run(function, *arguments)

    async def act(self, function: Callable[..., Sequence[Effect]], *arguments: Any, is_short: bool = False) -> None:
        """An input of the machine, and what it wants then: both, whether or not the caller is still there afterwards."""
        await self._jobs.run_whole(self.carry_out, function, *arguments, is_short=is_short)

    def act_now(self, function: Callable[..., Sequence[Effect]], *arguments: Any) -> None:
        """``act``, of what is short, while ``is_free``."""
        self.carry_out(self._jobs.run_now(function, *arguments))

    def _is_short(self, items: Sequence[Message | View]) -> bool:
        """These change some rows at most: nobody has the database alone, and may change the schema."""
        shared = self.machine.shared if self.machine is not None else None
        if shared is None or shared.locks:
            return False
        size = 0
        for item in items:
            if isinstance(item, View) or not is_common(item.data):
                return False
            size += len(item.data)
        return size <= SHORT_BYTES_MAX

    # ---- in the thread of the applier

    def prepare(self) -> None:
        """Open the file before there is an order: it can be read. Raises RowsFailed."""
        if self._rows is None:
            self._settle_doubt()
            kind = CatalogueRows if self.name == CATALOGUE else self.rows_class
            self._rows, damaged = open_copy(self.files, self.uuid, kind)
            if damaged:
                self.journal.warning("damaged", damaged)
            if not self._rows.blank() and self.name != CATALOGUE and self._rows.uuid() != self.uuid:
                self._rows.close()  # another database of this name, which was dropped while this station was away
                if not self.may_replace():
                    self._rows = None
                    raise RowsFailed(f"the list of databases may be an old one: {self.files.folder} has another {self.name}")
                self.files.remove()
                if self._doubts is not None:  # its file is gone with the others
                    self._doubts.close()
                    self._doubts = None
                self._rows, _ = open_copy(self.files, self.uuid, kind)
            self.position = NOTHING if self._rows.blank() else self._rows.position()

    @property
    def doubts(self) -> Doubts:
        """Raises RowsFailed: the folder cannot be used."""
        try:
            if self._doubts is None:
                self.files.folder.mkdir(mode=0o750, exist_ok=True)
                self._doubts = Doubts(self.files.folder)
        except OSError as error:
            raise RowsFailed(f"{self.files.folder}: {error.strerror}") from error
        return self._doubts

    def _settle_doubt(self) -> None:
        """A sync has failed, or its process was killed in it and it may have failed: bring what was written to the disk again.
        Raises OSError."""
        doubts, path = self.doubts, self.files.present()
        has_failed = doubts.has_failed
        if doubts.found is not Doubt.SYNCING and not has_failed:
            return
        try:
            if path.with_name(path.name + "-wal").exists():
                write_again(path)
                self.journal.info("synced", f"database {self.name}: a sync failed or was cut off by a kill; it is done again")
        except ContentLost as lost:
            self._distrust(str(lost))
        except OSError as error:
            doubts.failed()
            self.journal.error("sync", f"{path}: {error.strerror}")
            return
        if not has_failed or self.files.distrusted:  # what has failed is written to another file as well
            doubts.settled()

    def _open(self, me: Source) -> None:
        self.prepare()
        rows = self._rows
        assert rows is not None
        if self.doubts.has_failed:
            if not rows.blank():
                self._rows = rewritten(rows, self.uuid)
                rows.close()
                rows = self._rows
                self.journal.info("rewritten", f"database {self.name}: all of it is in a new file, {rows.path}")
            self.doubts.settled()
        if self.machine is None:
            release = apsw.SQLITE_VERSION_NUMBER
            self.machine = self.machine_class(me, self.sites, rows, release=release)
            self.machine.keeping, self.machine.catch_up_max = partial(FileKept, self.files.folder, SPARE_BYTES), STEP
        self.machine.me = me
        self.machine.distrusts = bool(self.files.distrusted)
        self.machine.long.part_bytes = min(PART_BYTES, self.message_max - PART_HEAD_BYTES)

    def _take(self, items: Sequence[Message | View]) -> list[Effect]:
        return self.batched(lambda machine, rows, effects: self._feed(machine, rows, items, effects))

    def batched(self, run: Callable[[Machine, FileRows, list[Effect]], None]) -> list[Effect]:
        """What the machine commits in this is one transaction of SQLite; programs hear of it afterwards."""
        machine, rows = self.machine, self._rows
        assert machine is not None and rows is not None
        effects: list[Effect] = []
        try:
            with rows.batch():
                run(machine, rows, effects)
        except RowsFailed as failure:
            return undone(effects) + machine.fail(str(failure), is_damaged=isinstance(failure, RowsDamaged))
        if machine.has_failed:  # in the middle of the batch, of which nothing is in the file then
            return undone(effects)
        return effects + self._after(machine, rows)

    def _feed(self, machine: Machine, rows: FileRows, items: Sequence[Message | View], effects: list[Effect]) -> None:
        for item in items:
            if isinstance(item, View):
                found = machine.on_view(item.place, frozenset((m.station, m.client) for m in item.members))
                wanted = None
            else:
                found = machine.on_message(item.place, (item.station, item.client), item.data)
                wanted = decode(item.data) if any(isinstance(effect, Give) for effect in found) else None
            for effect in found:
                if isinstance(effect, Give) and isinstance(wanted, Want):
                    rows.flush()
                    effects += self._freeze(machine, rows, item.place, effect.to, wanted.position)
                elif isinstance(effect, Sum):
                    rows.flush()
                    effects.append(pin(rows, effect.number))
                else:
                    effects.append(effect)

    def _after(self, machine: Machine, rows: FileRows) -> list[Effect]:
        try:
            self.position = NOTHING if rows.blank() else rows.position()
        except RowsFailed as failure:
            return machine.fail(str(failure), is_damaged=isinstance(failure, RowsDamaged))
        return []

    async def _tend(self, rows: FileRows) -> None:
        """Let the WAL begin again. Most of that is done beside the commits."""
        try:
            await asyncio.to_thread(rows.backfill, self.doubts.syncing)
        except RowsFailed as failure:
            if rows is self._rows and self.machine is not None:
                await self.act(self.machine.fail, str(failure))
            return
        await self.act(self._restart_wal)

    def _restart_wal(self) -> list[Effect]:
        machine, rows = self.machine, self._rows  # as of now: a job before this one may have put another copy in place
        if machine is None or rows is None:
            return []
        try:
            rows.tend(self.doubts.syncing)
        except RowsFailed as failure:
            return machine.fail(str(failure), is_damaged=isinstance(failure, RowsDamaged))
        return []

    def _freeze(self, machine: Machine, rows: FileRows, place: Place, to: Source, have: Position) -> list[Effect]:
        try:
            return [_Give(Frozen(rows, have, encode_given(machine.give(place))), to, place)]
        except apsw.Error as error:
            self.journal.warning("freeze", f"database {self.name}: no snapshot for station {to[0]}: {error}")
            return []

    def _take_piece(self, piece: Piece) -> list[Effect]:
        machine, rows = self.machine, self._rows
        assert machine is not None and rows is not None
        if self.receiving is None or self.receiving.place != piece.place:
            if self.receiving is not None:
                self.receiving.abort()
            self.receiving = Receiving(piece.place)
        try:
            came = self.receiving.take(piece, rows)
        except RowsFailed as failure:
            self.receiving.abort()
            self.receiving = None
            return machine.fail(str(failure), is_damaged=isinstance(failure, RowsDamaged))
        if came is None:
            return []
        receiving, self.receiving = self.receiving, None
        new, given = came
        if new is not rows:
            self._replace(rows)
            self._rows = machine.rows = new
            self.counters["transfers_pages"] += 1
            text = f"{receiving.came_bytes} bytes came, {receiving.same_bytes} bytes of pages were here"
            self.journal.info("came", f"database {self.name}: another copy: {text}")
        else:
            self.counters["transfers_log"] += 1
        return self.batched(lambda machine, rows, effects: effects.extend(machine.restore(given)))

    def _replace(self, rows: FileRows) -> None:
        """Another copy has come; one that was found to be damaged is kept beside it."""
        is_blank = rows.blank()
        rows.close()
        try:
            if (reason := self.files.distrusted) and rows.path.exists() and not is_blank:
                kept = self.files.set_aside(rows.path)
                self.journal.warning(
                    "mended", f"database {self.name}: another copy has come; the damaged one is {kept}: {reason}"
                )
            self.files.trust()
        except OSError as error:
            self.journal.error("mended", f"database {self.name}: {error}")

    # ---- the order

    async def _read(self, group: Group) -> None:
        while True:
            items = [item for item in await group.recv_items(timeout=None) if isinstance(item, Message | View)]
            for at in range(0, len(items), BATCH_MAX):
                if at:
                    await asyncio.sleep(0)  # what is done here and now must not keep others waiting
                batch = items[at : at + BATCH_MAX]
                await self.act(self._take, batch, is_short=self._is_short(batch))
                if self._pieces:
                    await self._pump()

    async def _read_pieces(self, group: Group) -> None:
        while True:
            for message in await group.recv_batch(timeout=None):
                piece = Piece.decode(message.data)
                if piece is None or self.machine is None or piece.to != self.machine.me:
                    continue
                if piece.kind is Kind.ACK:
                    source = (message.station, message.client)
                    if source in self.sending and self.sending[source].place == piece.place:
                        self.sending[source].on_ack(piece.number, piece.data)
                else:
                    self._pieces.append(piece._replace(to=(message.station, message.client)))
            await self._pump()

    async def _pump(self) -> None:
        """Take the pieces that belong to the state which is waited for. The first may come before the WANT has come back."""
        async with self._pumping:
            while self._pieces and self.machine is not None:
                wanted, piece = self.machine.wanted_from, self._pieces[0]
                if wanted is None and not self.follows:
                    return
                if wanted is not None and piece.place > wanted:
                    return
                self._pieces.popleft()
                if wanted is None or piece.place < wanted:
                    continue
                await self.act(self._take_piece, piece)
                self._piece_at = time.monotonic()  # the last one takes long: all of the file is looked at
                answer = self.receiving.answer if self.receiving is not None else b""
                self._out.put_beside(Piece(Kind.ACK, piece.to, piece.place, piece.number, answer).encode())

    # ---- effects

    def submit(self, data: bytes, durability: Durability) -> None:
        """Give the machine an encoded transaction, while ``is_free``. Nothing else changes by that, and there is nothing to look
        at: a program's request comes as often as a message of the order."""
        assert self.machine is not None
        effects = self.machine.submit_encoded(data, durability)
        if all(type(effect) is Emit for effect in effects):
            for effect in effects:
                self._out.put(cast(Emit, effect).data)
        else:
            self.carry_out(effects)

    def carry_out(self, effects: Sequence[Effect], *, sends: bool = True) -> None:
        failed = ""
        for effect in effects:
            if isinstance(effect, Emit):
                if sends:
                    self._out.put(effect.data)
            elif isinstance(effect, Answer | Granted | Reached):
                self.waiting.on_effect(effect)
            elif isinstance(effect, _Give):
                self._give(effect)
            elif isinstance(effect, Summing) and self.machine is not None:
                self.soon(self.scrubs.run(effect, self.machine))
            elif isinstance(effect, Compared):
                self.scrubs.on_compared(effect)
            elif isinstance(effect, Failed):
                failed = effect.reason
                if effect.is_damaged:
                    self._distrust(failed)
        self._look()
        if failed:
            self._failure = failed
            self._failing.set()

    def _distrust(self, reason: str) -> None:
        self.journal.error("damaged", f"database {self.name}: {reason}: another station's copy is needed")
        try:
            self.files.distrust(reason)
        except OSError as error:
            self.journal.error("damaged", f"database {self.name}: {error}")

    def _look(self) -> None:
        """What has changed with the last inputs."""
        machine = self.machine
        if machine is None:
            return
        step = (
            "active" if machine.is_active
            else f"refused: {machine.unlike}" if machine.unlike
            else "catching up" if self._catching_up.runs or machine.is_catching_up
            else "becoming active" if machine.shared is not None
            else "getting the state" if machine.wanted_from is not None
            else f"waiting for enough sites; here are {', '.join(str(s) for s, _ in sorted(machine.members)) or 'none'}"
        )  # fmt: skip
        if step != self.step:
            self.step = step
            say = self.journal.warning if machine.unlike else self.journal.info
            say("step", f"database {self.name}: {step}", version=self.position.version)
            if machine.wanted_from is not None:
                self._piece_at = time.monotonic()
        self._catching_up.look()
        if machine.shared is not None:
            self.syncing.look(self.position)
        (position, followed), self._unsaid = self._unsaid, (self.position, self.follows)
        if self.position != position:
            self._compared = (self._compared[0], time.monotonic())
        if self.position != position or self.follows > followed:
            self.on_version()
        self._changes.tell()

    def soon(self, what: Coroutine[Any, Any, None]) -> None:
        """Run it beside everything else."""
        task = asyncio.get_running_loop().create_task(what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _give(self, effect: _Give) -> None:
        if (before := self.sending.pop(effect.to, None)) is not None:
            before.on_ack(1 << 62)  # an earlier question's answer goes nowhere
        sending = Sending(effect.frozen, effect.to, effect.place, self.message_max, lambda data: self._out.put_beside(data))
        self.sending[effect.to] = sending
        self.soon(self._send_copy(sending))

    async def _send_copy(self, sending: Sending) -> None:
        what = "the log" if sending.frozen.goes_on else "pages"
        text = f"database {self.name}: {what} for station {sending.to[0]}"
        try:
            done = await sending.run()
            self.journal.info("gave" if done else "gave-up", f"{text}: {sending.sent_bytes} bytes{'' if done else ', no answer'}")
        except (apsw.Error, OSError) as error:
            self.journal.warning("gave-up", f"{text}: {error}")
        finally:
            if self.sending.get(sending.to) is sending:
                del self.sending[sending.to]

    # ---- time

    async def _turns(self) -> None:
        while True:
            await asyncio.sleep(TURN_S)
            machine = self.machine
            if machine is None:
                continue
            self.stale_s()
            now = time.monotonic_ns()
            due = machine.next_deadline_ns()
            if due is not None and due <= now:
                await self.act(machine.on_timer, now)
            is_waiting = machine.wanted_from is not None and not self._pumping.locked()
            late = is_waiting and time.monotonic() - self._piece_at > STALLED_S
            if late or machine.has_lost:
                self._piece_at = time.monotonic()
                await self.act(machine.ask_again)
            if (rows := self._rows) is not None and self.position != self._tended and rows.has_grown():
                self._tended = self.position  # a WAL that has been long stays so; there is nothing to do without commits
                await self._tend(rows)
            await self.turn(machine)
            await self._compare(machine)
            await self.scrubs.turn(machine)

    async def turn(self, machine: Machine) -> None:
        """What a mode does now and then besides."""

    async def _compare(self, machine: Machine) -> None:
        """The lowest active site has all of them compare their positions, now and then."""
        shared = machine.shared
        if shared is None or machine.me != min(shared.active, default=None) or shared.check:
            return
        version, since = self._compared
        ahead = self.position.version - version
        if ahead >= CHECK_VERSIONS or (ahead and time.monotonic() - since > CHECK_S):
            self._compared = (self.position.version, time.monotonic())
            await self.act(machine.compare)

    # ---- for programs

    async def until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until it holds; False: not in time."""
        return await self._changes.until(lambda: self.closed or condition(), seconds) and not self.closed

    def why_not(self) -> str:
        """Why nothing is committed here now."""
        if not self.quorum():
            return "this station is not in the order, or has no quorum"
        if self.machine is not None and self.machine.shared is not None:
            active = sorted({s for s, _ in self.machine.shared.active})
            return (
                f"the active sites {active} of {sorted(self.sites.stations)} are too few" if not self.can_write else "no answer"
            )
        return self.step

    def durable(self) -> int:
        return self.machine.durable_version() if self.machine is not None else 0

    def look_for(self, txid: Txid, snapshot: int, at: Source) -> int | None:
        """What became of a transaction on this snapshot (``fate``). In the thread of the applier. Raises NotHere."""
        if self.machine is None or self.machine.shared is None:
            raise NotHere(self.step)
        found = fate(self.machine, txid, at)
        if found == 0 and self.log_begin() > snapshot + 1:
            raise NotHere("the history does not go back so far")
        return found

    def log_begin(self) -> int:
        """The first version whose entry is kept here. In the thread of the applier."""
        return self._rows.log_begin() if self._rows is not None else 1 << 63

    async def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Rows of the copy as it is. Raises NotHere."""

        def run() -> list[tuple[Any, ...]]:
            if self._rows is None or self._rows.blank():
                raise NotHere("there is no copy here")  # no rows would say that there are none
            return self._rows.query(sql)

        try:
            found: list[tuple[Any, ...]] = await self.work(run)
        except RowsFailed as failure:
            raise NotHere(str(failure)) from failure
        return found
