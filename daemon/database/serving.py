"""The socket for programs that use databases."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from ...proto.service.database.machine import Answer, Durability
from ...proto.service.database.messages import BODY_MAX, HASH_BYTES, READS_MAX, Txid, Write, decode, is_write, txid_of
from ...proto.service.database.parts import PART_BYTES
from ...proto.service.database.rows import Verdict
from ...proto.service.database.zones import COPIES
from ..jsonframes import Frame, FrameError
from ..programs import Program, Refused, seconds_of
from .files import CATALOGUE, is_name
from .forcing import force_open, plan_of_force
from .leases import COUNT_MAX
from .process import Process
from .site import Site
from .unanimous import MODES
from .waiting import NotHere, Undecided
from .wire import FRAME_MAX, TIMEOUT_S, UNDER_WAY_MAX, VERSION, Commit, beside, pack_version, to_bytes, unpack_commit

TEXTS: Final = {
    Verdict.STALE: "its snapshot is too old, or from before the database was opened anew",
    Verdict.SCHEMA: "the schema has changed since its snapshot",
    Verdict.NO_QUORUM: "too few sites are active",
    Verdict.BUSY: "too much waits for the program that has the database alone",
    Verdict.CONFLICT: "another transaction has written a row that this one writes",
    Verdict.READ: "another transaction has written what this one has read",
    Verdict.CONSTRAINT: "a constraint is violated, now that other transactions have come before",
    Verdict.IMAGE: "the rows or the schema are not those that it was made on",
}


class Client(Program):
    """One program."""

    version = VERSION
    frame_max = FRAME_MAX
    under_way_max = UNDER_WAY_MAX

    def __init__(self, process: Process, uid: int) -> None:
        super().__init__()
        self._process = process
        self._uid = uid
        self._locks: dict[Txid, Site] = {}
        self._pieces: tuple[Txid, bytearray, int] | None = None
        """Of the transaction that is given in pieces, and the bytes taken for it in the process's room."""
        self._reading: Site | None = None
        """What this program has waited to read."""
        self._sessions: set[int] = set()
        """At other stations."""
        self._upload: Path | None = None
        """A file that has come, or a part of it."""

    def hello(self) -> Frame:
        config = self._process.config
        return {"station": config.station.id, "stations": config.cluster.stations, "cluster": config.cluster.name}

    def ended(self) -> None:
        self._drop_pieces()
        self._end_upload()
        for session in list(self._sessions):
            self._end_session(session)
        if self._reading is not None:
            self._reading.began(self)
        for txid, site in self._locks.items():
            site.waiting.end_lock(txid)

    # ---- transactions that are given whole

    def binary(self, body: bytes) -> None:
        """A commit. What can be sent at once needs no task."""
        if not self.is_greeted:
            raise FrameError("the first frame is no hello")
        try:
            asked = unpack_commit(body)
        except ValueError as error:
            raise FrameError(str(error)) from None
        site = self._process.sites.get(asked.name)
        is_usual = not asked.again and asked.name != CATALOGUE and len(asked.data) <= PART_BYTES and is_write(asked.data)
        if site is not None and is_usual and self._process.distant.began(txid_of(asked.data)) is None:
            self._drop_pieces()
            told = partial(self._on_answer, asked, site, time.monotonic() + asked.seconds)
            if site.waiting.start(asked.data, asked.durability, asked.seconds, told):
                self.begin_taskless()
                return
        self.begin(asked.number, self._commit_slowly(asked, asked.seconds, again=asked.again))

    def _on_answer(self, asked: Commit, site: Site, deadline: float, answer: Answer | None) -> None:
        """None: it has not come in time."""
        self.end_taskless()
        if not self.is_here:
            return
        if answer is not None and answer.verdict is Verdict.UNDECIDED:
            self.begin(asked.number, self._commit_slowly(asked, max(0.0, deadline - time.monotonic()), again=True))
            return
        self._locks.pop(txid_of(asked.data), None)
        if answer is None:
            self.refuse(asked.number, _undecided(site.why_not()))
        elif answer.verdict is not Verdict.DONE:
            self.refuse(asked.number, _not_committed(answer.verdict))
        else:
            self.write_bytes(pack_version(asked.number, answer.version))

    async def _commit_slowly(self, asked: Commit, seconds: float, *, again: bool) -> Frame:
        write = decode(asked.data)
        if not isinstance(write, Write):
            raise Refused("malformed", "what is to be committed is no transaction")
        return await self._do_commit(
            {
                "db": asked.name,
                "txid": write.txid.encode(),
                "epoch": write.epoch,
                "snapshot": write.snapshot,
                "reads": b"".join(write.reads),
                "body": write.body,
                "durability": asked.durability.value,
                "timeout": seconds,
                "again": again,
            }
        )

    # ---- of one database

    def _site(self, frame: Frame) -> Site:
        return self._process.site(str(frame.get("db") or ""))

    async def _do_open(self, frame: Frame) -> Frame:
        """Where the database is used: a file here, or at a distance. here: only a file will do."""
        seconds = seconds_of(frame, TIMEOUT_S)
        name = str(frame.get("db") or "")
        site = self._site(frame) if frame.get("here") is True else await self._process.place_of(name, seconds)
        if site is None:
            return {"distant": True}
        if not await site.until(lambda: not site.is_blank, seconds):
            raise Refused("no-copy", f"this station has no copy of {site.name} yet: {site.step}")
        path = site.files.link
        return {"path": str(path), "uuid": site.uuid.hex(), "version": site.position.version, "mode": site.mode}

    async def _do_readable(self, frame: Frame) -> Frame:
        """Wait until the copy here serves reads: in mode unanimous it does not while a transaction is committed. ``began`` says
        that the snapshot is taken."""
        site = self._site(frame)
        self._reading = site
        if not await site.readable(self, seconds_of(frame, TIMEOUT_S)):
            raise Refused("no-quorum", f"the copy here serves no reads: {site.why_not()}")
        return {"version": site.position.version}

    async def _do_began(self, frame: Frame) -> Frame:
        self._site(frame).began(self)
        return {}

    async def _do_piece(self, frame: Frame) -> Frame:
        """A piece of a long transaction, whose ``commit`` comes after the last one. number: from 0, which begins it anew; then
        bytes: of all pieces, BODY_MAX if it is missing."""
        txid, number, data = _txid(frame), frame.get("number"), to_bytes(frame.get("body"))
        if number == 0:
            self._drop_pieces()
            size = frame.get("bytes", BODY_MAX)
            if type(size) is not int or not 0 <= size <= BODY_MAX:
                raise Refused("too-large", f"a transaction changes {BODY_MAX} bytes at most")
            await self._take_room(size, seconds_of(frame, TIMEOUT_S))
            self._drop_pieces()  # of another request that waited, too
            self._pieces = (txid, bytearray(), size)
        if self._pieces is None or self._pieces[0] != txid:
            raise Refused("malformed", "the first piece is missing")
        held, size = self._pieces[1:]
        if len(held) + len(data) > size:
            self._drop_pieces()
            raise Refused("too-large", f"the pieces have more than {size} bytes; a transaction changes {BODY_MAX} bytes at most")
        held.extend(data)
        return {"bytes": len(held)}

    async def _take_room(self, size: int, seconds: float) -> None:
        """Raises Refused: other long transactions take all the room."""
        if not await self._process.room.take(size, seconds):
            raise Refused("busy", "not committed: other programs of this station have long transactions under way")

    def _drop_pieces(self) -> None:
        if self._pieces is not None:
            self._process.room.give(self._pieces[2])
            self._pieces = None

    async def _take_pieces(self, frame: Frame, seconds: float) -> tuple[bytes, int]:
        """What a transaction has besides its own frame, and the bytes taken for it in the process's room."""
        if frame.get("pieces") is None:
            self._drop_pieces()
            size = len(frame["body"]) if type(frame.get("body")) in (str, bytes) else 0
            if size <= PART_BYTES:
                return b"", 0
            await self._take_room(size, seconds)
            return b"", size
        if self._pieces is None or self._pieces[0] != _txid(frame) or len(self._pieces[1]) != frame["pieces"]:
            self._drop_pieces()
            raise Refused("malformed", "pieces of the transaction are missing")
        (_, held, size), self._pieces = self._pieces, None
        return bytes(held), size

    async def _do_commit(self, frame: Frame) -> Frame:
        site = self._site(frame)
        if site.name == CATALOGUE:
            raise Refused("not-permitted", "the catalogue is changed by zenjun db create and drop")
        seconds = seconds_of(frame, TIMEOUT_S)
        pieces, taken = await self._take_pieces(frame, seconds)
        try:
            write, durability = _write(frame, pieces)
        except BaseException:
            self._process.room.give(taken)
            raise
        try:
            again, began = frame.get("again") is True, self._process.distant.began(write.txid)
            answer = await site.waiting.commit(write, durability, seconds, again=again, began=began)
        except NotHere as error:
            raise Refused("no-quorum", f"not committed: {error}") from None
        except Undecided as error:
            raise _undecided(str(error)) from None
        finally:
            self._locks.pop(write.txid, None)
            if taken:
                site.soon(self._give_room(site, write.txid, taken))
        if answer.verdict is not Verdict.DONE:
            raise _not_committed(answer.verdict)
        return {"version": answer.version}

    async def _give_room(self, site: Site, txid: Txid, size: int) -> None:
        """When the site does not hold the transaction any more, whether or not its program has waited for that."""
        while site.is_sending(txid) and not site.closed:
            await site.until(lambda: not site.is_sending(txid), TIMEOUT_S)
        self._process.room.give(size)

    async def _do_lease(self, frame: Frame) -> Frame:
        """Ids of a table for one program alone."""
        site, table, count = self._site(frame), frame.get("table"), frame.get("count")
        if type(table) is not str or type(count) is not int or not 0 < count <= COUNT_MAX or site.name == CATALOGUE:
            raise Refused("malformed", f"a lease needs a table and a count of 1 to {COUNT_MAX}")
        try:
            first = await site.waiting.lease(self._process.txid(), table, count, seconds_of(frame, TIMEOUT_S))
        except (NotHere, Undecided) as error:
            raise Refused("no-quorum", str(error)) from None
        if first is None:
            raise Refused("image", f"{table[:80]} has no automatic ids")
        return {"first": first, "count": count}

    async def _do_lock(self, frame: Frame) -> Frame:
        site, txid = self._site(frame), _txid(frame)
        if site.name == CATALOGUE:
            raise Refused("not-permitted", "the catalogue is changed by zenjun db create and drop")
        try:
            version = await site.waiting.lock(txid, seconds_of(frame, TIMEOUT_S))
        except NotHere as error:
            raise Refused("no-quorum" if not site.can_write else "busy", str(error)) from None
        self._locks[txid] = site
        return {"version": version}

    async def _do_unlock(self, frame: Frame) -> Frame:
        txid = _txid(frame)
        site = self._locks.pop(txid, None)
        if site is not None:
            await site.waiting.unlock(txid)
        return {}

    async def _do_barrier(self, frame: Frame) -> Frame:
        """Everything that was acknowledged before is here."""
        durable = _durability(frame) is not Durability.MEMORY
        try:
            return {"version": await self._site(frame).waiting.barrier(seconds_of(frame, TIMEOUT_S), durable=durable)}
        except NotHere as error:
            raise Refused("no-quorum", str(error)) from None

    async def _do_reach(self, frame: Frame) -> Frame:
        """Wait until the copy here has a version; with an epoch: until enough disks have it."""
        site, wanted, epoch = self._site(frame), frame.get("version"), frame.get("epoch")
        if type(wanted) is not int or (epoch is not None and type(epoch) is not int):
            raise Refused("malformed", "version is a number, and so is epoch if it is given")
        if type(epoch) is int:
            try:
                await site.waiting.durable(epoch, wanted, seconds_of(frame, TIMEOUT_S))
            except NotHere as error:
                raise Refused("no-quorum", str(error)) from None
        elif not await site.until(lambda: site.position.version >= wanted, seconds_of(frame, TIMEOUT_S)):
            raise Refused("timeout", f"this station is at version {site.position.version}: {site.step}")
        return {"version": site.position.version}

    async def _do_fresh(self, frame: Frame) -> Frame:
        """For how many seconds the copy here has been without quorum; null: since the start."""
        return {"seconds": self._site(frame).stale_s()}

    # ---- at a distance

    def _elsewhere(self, frame: Frame) -> tuple[str, Sequence[int]]:
        """The database's uuid and its stations. Raises Refused."""
        facts = self._process.facts(str(frame.get("db") or ""))
        return facts["uuid"], facts["sites"]

    async def _do_session(self, frame: Frame) -> Frame:
        """A session at the nearest station where the database is active."""
        uuid, sites = self._elsewhere(frame)
        begun = await self._process.distant.begin(uuid, sites, seconds_of(frame, TIMEOUT_S))
        if begun is None:
            why = self._process.distant.machine.refused() or f"none of the stations {', '.join(map(str, sites))} is active"
            raise Refused("no-quorum", f"this station has no copy in use, and {why}")
        session, at = begun
        self._sessions.add(session)
        return {"session": session, "station": at[0], "client": at[1]}

    def _session_of(self, frame: Frame) -> int:
        session = frame.get("session")
        if session not in self._sessions:
            raise Refused("session-lost", "the session is over")
        return int(session)

    async def _do_call(self, frame: Frame) -> Frame:
        session, body = self._session_of(frame), frame.get("body")
        if type(body) is not str:
            raise Refused("malformed", "a call has a body")
        seconds = seconds_of(frame, TIMEOUT_S)
        return {"reply": (await self._process.distant.call(session, body.encode(), seconds)).decode()}

    async def _do_end_session(self, frame: Frame) -> Frame:
        self._end_session(self._session_of(frame))
        return {}

    def _end_session(self, session: int) -> None:
        self._sessions.discard(session)
        self._process.distant.end(session)

    async def _do_outcome(self, frame: Frame) -> Frame:
        """What became of a transaction whose session was lost."""
        uuid, sites = self._elsewhere(frame)
        at, txid, snapshot = frame.get("at"), str(frame.get("txid")), frame.get("snapshot")
        if type(at) is not list or len(at) != 2 or type(snapshot) is not int:
            raise Refused("malformed", "an outcome needs at, txid and snapshot")
        question = {"db": frame["db"], "txid": txid, "snapshot": snapshot, "at": at}
        seconds = seconds_of(frame, TIMEOUT_S)
        reply = await self._process.distant.outcome((at[0], at[1]), uuid, sites, question, seconds)
        if "error" in reply:
            raise _undecided(reply["error"].get("text"))
        return {"version": reply["ok"]["version"]}

    # ---- of all

    async def _do_list(self, frame: Frame) -> Frame:
        return {"databases": [self._process.facts(name) for name in self._process.names() if name != CATALOGUE]}

    async def _do_status(self, frame: Frame) -> Frame:
        return self._process.status(str(frame["db"]) if frame.get("db") else None, len(self.connections))

    async def _do_create(self, frame: Frame) -> Frame:
        self._need_operator()
        name = str(frame.get("db") or "")
        if not is_name(name) or name == CATALOGUE:
            raise Refused("name", f"{name[:80]!r} is no name for a database: a-z 0-9 - _, 48 characters at most, not {CATALOGUE}")
        if (mode := str(frame.get("mode", Site.mode))) not in MODES:
            raise Refused("malformed", f"mode is one of {', '.join(MODES)}")
        zones, copies = frame.get("zones", []), frame.get("copies", COPIES)
        if type(zones) is not list or not all(type(zone) is str for zone in zones) or type(copies) is not int or copies < 1:
            raise Refused("malformed", "zones are names, and copies a number of at least 1")
        try:
            await self._process.create(name, seconds_of(frame, TIMEOUT_S), self._upload, mode, zones, copies)
        finally:
            self._end_upload()
        return {}

    async def _do_scrub(self, frame: Frame) -> Frame:
        """Compare all rows with those of the other stations."""
        self._need_operator()
        try:
            return await self._site(frame).scrubs.ask(seconds_of(frame, TIMEOUT_S))
        except NotHere as error:
            raise Refused("no-quorum", str(error)) from None

    async def _do_upload(self, frame: Frame) -> Frame:
        """A piece of an SQLite file, for ``create`` or ``restore``. number: from 0, which begins it anew."""
        self._need_operator()
        data = to_bytes(frame.get("body"))
        if frame.get("number") == 0:
            self._end_upload()
            self._upload = self._process.root / f"upload-{os.urandom(8).hex()}.part"
        if self._upload is None:
            raise Refused("malformed", "the first piece is missing")
        try:
            await asyncio.to_thread(_append, self._upload, data)
        except OSError as error:
            self._end_upload()
            raise Refused("file", f"the file cannot be taken: {error.strerror}") from None
        return {}

    def _end_upload(self) -> None:
        upload, self._upload = self._upload, None
        if upload is not None:
            for suffix in ("", "-journal", "-wal", "-shm"):
                upload.with_name(upload.name + suffix).unlink(missing_ok=True)

    async def _do_restore(self, frame: Frame) -> Frame:
        self._need_operator()
        name = str(frame.get("db") or "")
        if name == CATALOGUE:
            raise Refused("not-permitted", "the catalogue stays as it is")
        if self._upload is None:
            raise Refused("malformed", "restore needs a file")
        try:
            await self._process.restore(name, seconds_of(frame, TIMEOUT_S), self._upload)
        finally:
            self._end_upload()
        return {}

    async def _do_force_open(self, frame: Frame) -> Frame:
        """Open a database without enough stations. plan: only say what would become of it."""
        self._need_operator()
        site = self._site(frame)
        plan = plan_of_force(site)
        if frame.get("plan") is not True:
            try:
                await force_open(site, seconds_of(frame, TIMEOUT_S))
            except NotHere as error:
                raise Refused("no-quorum", str(error)) from None
        return plan

    async def _do_drop(self, frame: Frame) -> Frame:
        self._need_operator()
        name = str(frame.get("db") or "")
        if name == CATALOGUE:
            raise Refused("not-permitted", "the catalogue stays")
        await self._process.drop(name, seconds_of(frame, TIMEOUT_S))
        return {}

    def _need_operator(self) -> None:
        if self._uid not in (0, os.geteuid()):
            raise Refused("not-permitted", "that is for root and the daemon's user")


def _undecided(why: object) -> Refused:
    return Refused("undecided", f"not decided in time: {why}; it may be committed, or may still be")


def _not_committed(verdict: Verdict) -> Refused:
    return Refused(verdict.value, f"not committed: {TEXTS.get(verdict, verdict.value)}")


def _append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def _txid(frame: Frame) -> Txid:
    return Txid.decode(to_bytes(frame.get("txid")))


def _durability(frame: Frame) -> Durability:
    try:
        return Durability(frame.get("durability", Durability.MAJORITY.value))
    except ValueError:
        raise Refused("malformed", f"durability is one of {', '.join(d.value for d in Durability)}") from None


def _write(frame: Frame, pieces: bytes) -> tuple[Write, Durability]:
    epoch, snapshot = frame.get("epoch"), frame.get("snapshot")
    if type(epoch) is not int or type(snapshot) is not int or not 0 <= epoch < 1 << 64 or not 0 <= snapshot < 1 << 64:
        raise Refused("malformed", "a transaction needs epoch and snapshot")
    reads, body = to_bytes(frame.get("reads", "")), pieces + to_bytes(frame.get("body"))
    if len(reads) % HASH_BYTES or len(reads) > READS_MAX * HASH_BYTES:
        raise Refused("malformed", f"reads are at most {READS_MAX} hashes of {HASH_BYTES} bytes")
    if len(body) > BODY_MAX:
        raise Refused("too-large", f"a transaction changes {BODY_MAX} bytes at most, not {len(body)}")
    hashes = tuple(reads[i : i + HASH_BYTES] for i in range(0, len(reads), HASH_BYTES))
    return Write(_txid(frame), epoch, snapshot, hashes, body), _durability(frame)


def socket_of(listen: str, daemon_socket: str) -> Path:
    """Where programs find the process: the option, or beside the daemon's socket."""
    return Path(listen or beside(daemon_socket))
