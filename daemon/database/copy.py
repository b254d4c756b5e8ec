"""A site's copy in a file: opened and checked, frozen for another site, filled from another site's."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import apsw

from ...proto.service.database.messages import BODY_MAX, DIGEST_BYTES, Position, Txid
from ...proto.service.database.roll import NOTHING
from ...proto.service.database.rows import Entry, RowsDamaged, RowsFailed
from ..durable import sync
from . import vfs
from .applier import PAUSE_MAX_S, PAUSE_S, WAL_BYTES_MAX, Applier
from .errors import DatabaseError
from .files import Files, remove
from .pages import Read
from .rows import SqliteRows

FILE_MODE: Final = 0o640
SPARE_BYTES: Final = 4 * WAL_BYTES_MAX
"""What a disk keeps for the commits of its own site while a copy for another one is made, or an eighth of a small one: a copy
that fills it would take this site out of use as well."""
WAL_HEAD_BYTES: Final = 32
FRAME_HEAD_BYTES: Final = 24
"""Of a page in the WAL."""
AHEAD_BYTES: Final = 256 * 1024
"""Zeros that the WAL gets behind its frames at a time. A commit then writes to what the file has already, and its sync waits for
the bytes only, not for the file system's journal as well: half as long (docs/performance.md)."""
AHEAD_MIN_BYTES: Final = 64 * 1024
"""What is left of them when there are to be more."""
CHUNK_BYTES: Final = 256 * 1024
PATIENCE_S: Final = 5.0
STEP_PAGES: Final = 2048
"""Pages that are copied at once for another site. After each step the thread waits for the interpreter, up to 5 ms where the
loop is busy."""
_ENTRY: Final = struct.Struct(f"!QQ{DIGEST_BYTES}s16sI")
_OF_ROWS: Final = re.compile(
    r"NULL value in |\S+ value in |CHECK constraint failed in |malformed inverted index |unable to validate |fts5: |In RTree "
)
"""Findings of quick_check that do not come from pages which cannot be what they are."""
_CATALOGUE: Final = """
CREATE TABLE databases(name TEXT PRIMARY KEY NOT NULL, uuid BLOB NOT NULL, options TEXT NOT NULL) STRICT, WITHOUT ROWID;
"""


class FileRows(SqliteRows):
    """The copy in a file."""

    def __init__(self, files: Files, uuid: bytes, path: Path) -> None:
        """Open the file. RowsFailed: it cannot be opened, or is not ours."""
        self.files, self.path = files, path
        self._frames = 0
        """Of the WAL that are in use: the file stays as long as it has once been."""
        self._ready_to = 0
        """Bytes of the WAL's file, as far as is known."""
        self._grown_at = WAL_BYTES_MAX
        """Bytes of them, from which on ``tend`` has something to do."""
        self._in_vain = 0
        """Pauses since the WAL has begun last."""
        self._held_since: float | None = None
        """When the first of these ended; time.monotonic."""
        try:
            if not path.exists():
                path.touch(FILE_MODE)
                path.chmod(FILE_MODE)  # whatever the umask; -wal and -shm get the same
            applier = Applier.open(path)
            sync(path.parent)
        except (DatabaseError, OSError) as error:
            raise RowsFailed(str(error)) from error
        try:
            applier.connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)  # it would not tell of a sync that fails
            super().__init__(applier, uuid)
            self._frame_bytes = FRAME_HEAD_BYTES + int(self.connection.pragma("page_size"))
            if self.wal.exists():
                self._frames = self.wal.stat().st_size // self._frame_bytes  # at most; the next commit tells
            self.connection.set_wal_hook(self._on_commit)
        except RowsFailed:
            applier.close()
            raise

    @property
    def wal(self) -> Path:
        return self.path.with_name(self.path.name + "-wal")

    def damage(self) -> str:
        """What SQLite finds wrong with the file; empty: nothing. What it may find with the rows of all sites alike (a CHECK, an
        index of FTS5) is no damage: giving the file up for it, all would. A comparison with the others tells."""
        try:
            found = self.connection.execute("PRAGMA quick_check").fetchall()
        except (apsw.CorruptError, apsw.NotADBError) as error:
            return str(error)
        except apsw.Error as error:
            raise RowsFailed(str(error)) from error
        return next((str(text) for (text,) in found if text != "ok" and not _OF_ROWS.match(str(text))), "")

    def tend(self, syncing: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        """Let the WAL begin again when it has grown. syncing: around what syncs. Raises RowsFailed."""
        try:
            if self.has_grown():
                with self._guarded(), syncing():
                    self._tend()
        except OSError as error:
            raise RowsFailed(str(error)) from error

    def backfill(self, syncing: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        """What takes long of ``tend``, in any thread, while commits go on: bring the WAL's frames into the file, as far as
        readers permit. Raises RowsFailed."""
        try:
            other = apsw.Connection(str(self.path), flags=apsw.SQLITE_OPEN_READWRITE)
            with contextlib.closing(other):
                other.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
                other.pragma("schema_version")  # without a read it does not know that there is a WAL
                with syncing(), contextlib.suppress(apsw.BusyError):
                    other.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except (apsw.Error, OSError) as error:
            raise RowsFailed(f"cannot checkpoint: {error}") from error

    def has_grown(self) -> bool:
        """There is something to ``tend``."""
        return self._frames * self._frame_bytes > self._grown_at

    def _on_commit(self, connection: apsw.Connection, name: str, frames: int) -> int:
        self._frames = frames
        if (end := WAL_HEAD_BYTES + frames * self._frame_bytes) + AHEAD_MIN_BYTES > self._ready_to:
            self._write_ahead(end)
        return apsw.SQLITE_OK

    def _write_ahead(self, end: int) -> None:
        """Have the WAL's file reach beyond the end of its frames. What is there is no frame to SQLite, as what is left of an
        earlier round. In the thread that commits, so nothing is written there meanwhile."""
        try:
            fd = os.open(self.wal, os.O_WRONLY | os.O_CLOEXEC)
            try:
                size = os.fstat(fd).st_size
                if size < end + AHEAD_MIN_BYTES:
                    at = max(size, end)
                    size = at + os.pwrite(fd, bytes(AHEAD_BYTES), at)
            finally:
                os.close(fd)
        except OSError:  # the next commits make room for themselves, or cannot
            size = end + AHEAD_BYTES
        self._ready_to = size

    def _tend(self) -> None:
        if self.applier.restart_wal(min(PAUSE_MAX_S, PAUSE_S * 2**self._in_vain)):
            self._frames, self._grown_at = 0, WAL_BYTES_MAX
            self._in_vain, self._held_since = 0, None
        else:
            # A reader needs it: not again at once, for the applier stands still meanwhile. Where transactions overlap all the
            # time, only a pause longer than they are helps, and each time the log is longer by a share of itself: a transaction
            # of a minute costs few pauses.
            size = self._frames * self._frame_bytes
            self._grown_at = size + max(WAL_BYTES_MAX, size) // 4
            self._in_vain += 1
            self._held_since = self._held_since or time.monotonic()

    @property
    def held_s(self) -> float:
        """For how long readers' snapshots have kept the WAL from beginning again, seconds."""
        return 0.0 if (since := self._held_since) is None else time.monotonic() - since

    def log_begin(self) -> int:
        """The first version whose entry is kept; 0: none is."""
        with self._guarded():
            return self._one("SELECT min(version) FROM zenjun_log") or 0

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Rows as of the last version. Raises RowsFailed."""
        with self._guarded():
            found: list[tuple[Any, ...]] = self.connection.execute(sql).fetchall()
        return found

    def finish(self, syncing: Callable[[], AbstractContextManager[None]]) -> None:
        """Bring the WAL into the file, as far as readers permit, and close."""
        try:
            with contextlib.suppress(RowsFailed, OSError), self._guarded(), syncing():  # the WAL has it all
                self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        finally:
            self.close()

    def close(self) -> None:
        """The WAL stays as it is."""
        self.applier.close()


class CatalogueRows(FileRows):
    """The copy of the catalogue, which has its table from version 0 on."""

    def more(self) -> str:
        return _CATALOGUE


class GatedRows(FileRows):
    """The copy of a database in mode unanimous: it serves reads only while the machine says so."""

    def __init__(self, files: Files, uuid: bytes, path: Path) -> None:
        super().__init__(files, uuid, path)
        try:
            if not self.blank():
                self.gate(is_open=False)
        except RowsFailed as failure:
            self.close()
            raise RowsFailed(str(failure)) from failure

    def gate(self, is_open: bool) -> None:
        try:
            super().gate(is_open)
        except RowsFailed:
            # Say so without the disk's space: programs look at the link before each transaction.
            with suppress(OSError):
                self.files.shut()
            raise


def open_copy(files: Files, uuid: bytes, kind: type[FileRows] = FileRows) -> tuple[FileRows, str]:
    """The copy that is here; if it is damaged it is kept under another name, and a blank one begun, which stays out of use until
    another site's copy has come. The other value says so."""
    try:
        path = files.open()
        try:
            rows = kind(files, uuid, path)
            why = rows.damage()
            if not why:
                return rows, ""
            rows.close()
        except RowsFailed as failure:
            cause = getattr(failure.__cause__, "__cause__", None)
            if not isinstance(failure, RowsDamaged) and not isinstance(cause, apsw.NotADBError | apsw.CorruptError):
                raise
            why = str(failure)
        files.distrust(why)  # a blank copy instead must not count as one that never had anything
        kept = files.set_aside(path)
        return kind(files, uuid, path), f"{path} is damaged ({why}): it is {kept} now, and a blank one is begun"
    except OSError as error:
        raise RowsFailed(str(error)) from error


class Frozen:
    """A copy at one place, for another site: entries of the log if the other's history goes on from there, else pages."""

    def __init__(self, rows: FileRows, have: Position, state: bytes) -> None:
        """Pin a snapshot, in the thread of the applier. state: what belongs to the rows (``given``)."""
        self.have, self.state = have, state
        self.answers: dict[int, bytes] = {}
        """The other site's to sums of pages, by the numbers of their pieces."""
        self.copied = rows.files.folder / f"{have.version}-{os.urandom(4).hex()}.part"
        """The file as of the snapshot, once ``copying`` has ended."""
        uri = f"file:{quote(str(rows.path))}?mode=ro"
        self.reader = apsw.Connection(uri, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
        self.reader.execute("BEGIN")
        query = """
            SELECT 1 FROM zenjun_log WHERE version = ? AND epoch = ? AND digest = ?
            AND NOT EXISTS (SELECT 1 FROM zenjun_log WHERE version > ? AND body IS NULL)"""
        self.goes_on = bool(self.reader.execute(query, (have.version, have.epoch, have.digest, have.version)).fetchall())

    def entries(self) -> Iterator[bytes]:
        """The entries of the log that the other site lacks, in pieces."""
        query = "SELECT epoch, version, digest, txid, body FROM zenjun_log WHERE version > ? ORDER BY version"
        piece = b""
        for epoch, version, digest, txid, body in self.reader.execute(query, (self.have.version,)):
            piece += encode_entry(Entry(Position(epoch, version, digest), Txid.decode(txid), body))
            if len(piece) >= CHUNK_BYTES:
                yield piece
                piece = b""
        yield piece

    def copying(self, spare: int = 0) -> Iterator[None]:
        """Make ``copied``; the snapshot is not held any more then. Yields every ``PATIENCE_S``: a large file takes long, and
        the other site hears nothing meanwhile. spare: bytes that the disk keeps. Raises OSError: they are not there."""
        page_bytes = int(self.reader.pragma("page_size"))
        self._need(int(self.reader.pragma("page_count")) * page_bytes, spare)
        target = apsw.Connection(str(self.copied))
        target.pragma("synchronous", "OFF")
        try:
            # From this connection: from another one every commit of the applier would begin the copy anew.
            with target.backup("main", self.reader, "main") as backup:
                due = time.monotonic() + PATIENCE_S
                while not backup.done:
                    backup.step(STEP_PAGES)
                    self._need(backup.remaining * page_bytes, spare)
                    if time.monotonic() >= due:
                        yield
                        due = time.monotonic() + PATIENCE_S
        finally:
            target.close()
        self.reader.close(True)  # the WAL would grow for as long as the other site takes

    def _need(self, size: int, spare: int) -> None:
        """Raises OSError: the disk has not so many bytes left. spare: besides, but no more than an eighth of the disk."""
        disk = os.statvfs(self.copied.parent)
        size += min(spare, disk.f_blocks * disk.f_frsize // 8)
        if (free := disk.f_bavail * disk.f_frsize) < size:
            mib = f"{free >> 20} MiB are free, {size >> 20} MiB are needed"
            raise OSError(errno.ENOSPC, f"no room for a copy beside the database: {mib}", str(self.copied.parent))

    def close(self) -> None:
        """Once; the snapshot is not needed any more."""
        self.reader.close(True)
        remove(self.copied)


def rewritten(rows: FileRows, uuid: bytes) -> FileRows:
    """The same copy in another file, on the disk. After a sync that failed it is not known what of this one is there: Linux takes
    for written what it could not write, and a later sync says nothing of it. Raises RowsFailed; then ``rows`` is as it was."""
    try:
        frozen = Frozen(rows, NOTHING, b"")
        try:
            for _ in frozen.copying():
                pass
            return install(rows.files, frozen.copied, uuid, type(rows))
        finally:
            frozen.close()
    except (apsw.Error, OSError) as error:
        raise RowsFailed(f"cannot write {rows.path} anew: {error}") from error


def install(files: Files, part: Path, uuid: bytes, kind: type[FileRows]) -> FileRows:
    """Make a file this site's copy, on the disk. Raises OSError, RowsFailed."""
    sync(part)
    path = files.next()
    part.rename(path)
    path.chmod(FILE_MODE)
    sync(path.parent)
    rows = kind(files, uuid, path)
    try:
        if why := rows.damage():
            raise RowsFailed(f"the copy that came is damaged: {why}")
        files.point(path)
    except BaseException:
        rows.close()
        raise
    return rows


def bases(rows: FileRows) -> list[Read]:
    """The files of this site that have pages of another site's copy, perhaps: its own one, and the last that was damaged."""
    with contextlib.suppress(apsw.Error):  # without it more pages come
        rows.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
    size = rows.path.stat().st_size
    found: list[Read] = [lambda at, number: vfs.read(rows.connection, at, max(0, min(number, size - at)))]
    return found + [partial(_read, damaged) for damaged in rows.files.damaged()[:1]]


def _read(path: Path, at: int, size: int) -> bytes:
    with path.open("rb") as file:
        file.seek(at)
        return file.read(size)


def encode_entry(entry: Entry) -> bytes:
    return _ENTRY.pack(*entry.position, entry.txid.encode(), len(entry.body)) + entry.body


class Entries:
    """Cuts a stream of bytes into entries."""

    def __init__(self) -> None:
        self._rest = bytearray()

    @property
    def is_cut(self) -> bool:
        """The last entry is not complete."""
        return bool(self._rest)

    def feed(self, data: bytes) -> Iterator[Entry]:
        """The entries that are complete now. Raises ValueError: one is longer than any may be."""
        self._rest += data
        while len(self._rest) >= _ENTRY.size:
            epoch, version, digest, txid, size = _ENTRY.unpack_from(self._rest)
            if size > BODY_MAX:
                raise ValueError(f"an entry of {size} bytes")
            end = _ENTRY.size + size
            if len(self._rest) < end:
                return
            yield Entry(Position(epoch, version, digest), Txid.decode(txid), bytes(self._rest[_ENTRY.size : end]))
            del self._rest[:end]
