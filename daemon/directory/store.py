"""The directory's rows in SQLite: one file, one writer, readers that see what was last committed.

A transaction holds the rows of a batch of messages together with place and sums, so that nothing is applied twice. A read
transaction is a frozen copy at one place, which is what state transfer needs.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from ...proto.service.directory.canon import encode, load
from ...proto.service.directory.copying import CHUNK_BYTES, KeyedRow, begins_chunk
from ...proto.service.directory.draft import place_key
from ...proto.service.directory.entries import NOWHERE, Place
from ...proto.service.directory.state import State
from ...proto.service.directory.store import SUMMED, Table
from ...proto.service.directory.sums import sums_of
from ..durable import sync

FILE: Final = "directory.db"
APPLICATION_ID: Final = 0x5A444952
"""Marks the file as ours (``ZDIR``)."""
FORMAT: Final = 2
SCAN_ROWS: Final = 256
"""Rows that a scan reads at once, after a first look at ``SCAN_FIRST``; between two such reads rows may be written."""
SCAN_FIRST: Final = 4
KEPT_MAX: Final = 10_000
"""Rows that a transaction keeps before SQLite gets them."""
BUILD_KIB: Final = 16 * 1024
"""Memory of SQLite while a whole copy comes."""
CARRY_ROWS: Final = 2000
"""Rows written after which the pages of SQLite's log are carried over to the file. A row touches at most one page of the table
and of each of two indices, so the log has at most some 24 MiB if no reader holds an older state."""
_SUMMED: Final = ",".join(str(int(table)) for table in sorted(SUMMED))
_NO_PLACE: Final = place_key(NOWHERE)
MARK: Final = "!"
"""Begins what a row of a full copy has in place of a place: it is less than every place, so no delta has it."""
_SCHEMA: Final = """
CREATE TABLE rows (
    tbl INTEGER NOT NULL, key TEXT NOT NULL, row BLOB NOT NULL, place TEXT NOT NULL, bucket INTEGER NOT NULL,
    PRIMARY KEY (tbl, key)
) WITHOUT ROWID;
CREATE TABLE owner (what BLOB NOT NULL);
"""
_INDICES: Final = f"""
CREATE INDEX IF NOT EXISTS rows_changed ON rows (place) WHERE bucket >= 0 AND place > '{_NO_PLACE}';
CREATE INDEX IF NOT EXISTS rows_first ON rows (tbl, key) WHERE bucket = 0;
"""
"""Indices of the summed rows: by place, of those that were written since a full copy came; and of those that begin a chunk.
bucket is 0 of these, 1 of other summed rows, -1 of the rest."""


class StoreError(Exception):
    """The file cannot be used; the text is one line for the operator."""


def what_to_do(path: Path, error: Exception) -> str:
    """One line for the operator: what the disk has said, and what helps."""
    code = error.errno if isinstance(error, OSError) else getattr(error, "sqlite_errorcode", None)
    if code in (errno.ENOSPC, errno.EDQUOT) if isinstance(error, OSError) else code == sqlite3.SQLITE_FULL:
        return f"{path}: {error}: make room in {path.parent}"
    return f"{path}: {error}: see what the kernel says of the disk of {path.parent}"


_Layer: TypeAlias = dict[Table, dict[str, tuple[bytes, Place] | None]]
"""Rows that were written, by table and key; None: removed."""


class Rows:
    """Rows on one connection to the file."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def get(self, table: Table, key: str) -> bytes | None:
        found = self.connection.execute("SELECT row FROM rows WHERE tbl = ? AND key = ?", (int(table), key)).fetchone()
        return found[0] if found else None

    def put(self, table: Table, key: str, row: bytes, place: Place) -> None:
        raise TypeError("these rows are only read")

    def delete(self, table: Table, key: str) -> None:
        raise TypeError("these rows are only read")

    def scan(self, table: Table, start: str, end: str) -> Iterator[tuple[str, bytes]]:
        query = "SELECT key, row FROM rows WHERE tbl = ? AND key >= ? AND key < ? ORDER BY key LIMIT ?"
        wanted = SCAN_FIRST
        while True:
            found = self.connection.execute(query, (int(table), start, end, wanted)).fetchall()
            yield from found
            if len(found) < wanted:
                return
            start = found[-1][0] + "\0"
            wanted = SCAN_ROWS

    def count(self, table: Table) -> int:
        return int(self.connection.execute("SELECT count(*) FROM rows WHERE tbl = ?", (int(table),)).fetchone()[0])

    # ---- for state transfer

    def changed_since(self, place: Place) -> Iterator[KeyedRow]:
        """The summed rows written after a place."""
        query = f"SELECT tbl, key, row FROM rows WHERE bucket >= 0 AND place > '{_NO_PLACE}' AND place > ?"
        for table, key, row in self.connection.execute(query, (place_key(place),)):
            yield KeyedRow(Table(table), key, row)

    def summed(self) -> Iterator[tuple[Table, str, bytes]]:
        """All summed rows."""
        for table in sorted(SUMMED):
            for key, row in self.connection.execute("SELECT key, row FROM rows WHERE tbl = ?", (int(table),)):
                yield table, key, row

    def chunk_bounds(self) -> list[tuple[Table, str]]:
        """Where chunks of the summed rows begin; behind it, the end of the last one."""
        query = "SELECT tbl, key FROM rows WHERE bucket = 0 ORDER BY tbl, key"
        starts = [(Table(table), key) for table, key in self.connection.execute(query)]
        return [(min(SUMMED), ""), *starts, (max(SUMMED), "\x7f")]

    def chunks(self, bounds: list[tuple[Table, str]], at: int) -> Iterator[bytes]:
        """The chunks from one bound to the next: one, if it is not many bytes."""
        query = """SELECT tbl || char(9) || key || char(9) || CAST(row AS TEXT) FROM rows
                   WHERE (tbl, key) >= (?, ?) AND (tbl, key) < (?, ?) ORDER BY tbl, key"""
        lines: list[str] = []
        size = 0
        for (line,) in self.connection.execute(query, (*bounds[at], *bounds[at + 1])):
            lines.append(line)
            size += len(line)
            if size > CHUNK_BYTES:
                yield "\n".join(lines).encode("ascii")
                lines, size = [], 0
        if lines:
            yield "\n".join(lines).encode("ascii")

    def close(self) -> None:
        self.connection.close()


class Writing(Rows):
    """The connections of the one that writes. Its caller has one thread at a time in it, besides ``write_out``.

    What is written goes through layers: the rows of the batch under way, which can be rolled back; those that are ``settled`` and
    that SQLite has not got; those that ``write_out`` gives it. So a batch costs no call of SQLite, and a row that is written
    often is given to it once. Each way of reading knows all layers.

    Within ``begin`` and ``commit`` there is one transaction of SQLite, and a batch is written into it.
    """

    def __init__(self, connection: sqlite3.Connection, reading: sqlite3.Connection | None = None) -> None:
        """reading: for reads outside a transaction, so that they do not wait for ``write_out``."""
        super().__init__(connection)
        self._reading = Rows(reading if reading is not None else connection)
        self._batch: _Layer = {}
        self._settled: _Layer = {}
        self._going: _Layer = {}
        self._out = False
        """``_going`` is committed."""
        self._kept = self._kept_bytes = 0
        """Rows in ``_batch``."""
        self._settled_bytes = self._going_bytes = 0
        self._closed = False
        self._inside = False
        """Between ``begin`` and ``commit``."""
        self._lock = threading.Lock()
        """Held by who writes what was taken."""
        self._layers = threading.Lock()
        """Held while rows go from one layer to another."""
        self.pending = 0
        """Rows that are settled and that SQLite has not got; one that was written twice may count twice, here and in
        ``pending_bytes``."""
        self.written = 0
        """Rows since the last carrying over."""

    @property
    def pending_bytes(self) -> int:
        return self._settled_bytes + self._going_bytes

    @property
    def dirty(self) -> bool:
        """Something has been written since the last commit, or ``settle``."""
        return bool(self._batch) or self._inside

    def get(self, table: Table, key: str) -> bytes | None:
        new = self._batch.get(table)
        if new is not None and key in new:
            found = new[key]
            return found[0] if found is not None else None
        if self._inside:
            return super().get(table, key)
        return self.settled(table, key, self._reading)

    def settled(self, table: Table, key: str, reader: Rows) -> bytes | None:
        """A row as it was when ``settle`` was called last. reader: a connection of the caller's."""
        for layer in (self._settled, self._going):
            new = layer.get(table)
            if new is not None and key in new:
                found = new[key]
                return found[0] if found is not None else None
        return reader.get(table, key)

    def put(self, table: Table, key: str, row: bytes, place: Place) -> None:
        self._batch.setdefault(table, {})[key] = (row, place)
        self._kept += 1
        self._kept_bytes += len(row)
        if self._kept >= KEPT_MAX and self._inside:
            self._hand_over()

    def delete(self, table: Table, key: str) -> None:
        self._batch.setdefault(table, {})[key] = None
        self._kept += 1

    def scan(self, table: Table, start: str, end: str) -> Iterator[tuple[str, bytes]]:
        if self._inside:
            self._hand_over()
            return super().scan(table, start, end)
        new: dict[str, tuple[bytes, Place] | None] = {}
        with self._layers:  # before SQLite is read: what goes there meanwhile is in both
            for layer in (self._going, self._settled, self._batch):
                for key, found in layer.get(table, {}).items():
                    if start <= key < end:
                        new[key] = found
        stored = self._reading.scan(table, start, end)
        return _merged(stored, new) if new else stored

    def count(self, table: Table) -> int:
        if self._inside:
            self._hand_over()
        else:
            self.flush()
        return super().count(table)

    # ---- a transaction

    def begin(self) -> None:
        """Begin a transaction. What is settled is committed before."""
        self.flush()
        self.connection.execute("BEGIN IMMEDIATE")
        self._inside = True

    def commit(self) -> None:
        """The rows are the operating system's then; ``File.sync`` brings them to the disk."""
        if not self._inside:
            self.begin()
        try:
            self._hand_over()
            self.connection.execute("COMMIT")
        except BaseException:
            # SQLite ends a transaction that it cannot commit, or leaves it open: reads would miss what is settled.
            self.roll_back()
            raise
        self._inside = False

    def roll_back(self) -> None:
        """Nothing has been written since the last commit, or ``settle``."""
        self._batch.clear()
        self._kept = self._kept_bytes = 0
        if self._inside and self.connection.in_transaction:
            self.connection.execute("ROLLBACK")
        self._inside = False

    def _hand_over(self) -> None:
        """Pass the batch's rows to SQLite; the transaction continues."""
        self._kept = self._kept_bytes = 0
        new, self._batch = self._batch, {}
        self._write(new)

    def _write(self, new: _Layer) -> None:
        gone, rows = [], []
        for table, by_key in new.items():
            summed = table in SUMMED
            for key, found in by_key.items():
                if found is None:
                    gone.append((int(table), key))
                else:
                    first = -1 if not summed else 0 if begins_chunk(table, key) else 1
                    rows.append((int(table), key, found[0], place_key(found[1]), first))
        self.written += len(gone) + len(rows)
        if gone:
            self.connection.executemany("DELETE FROM rows WHERE tbl = ? AND key = ?", gone)
        if rows:
            self.connection.executemany("INSERT OR REPLACE INTO rows VALUES (?, ?, ?, ?, ?)", rows)

    # ---- a whole copy, in a new file

    def load(self, rows: Sequence[KeyedRow], mark: str) -> None:
        """Within a transaction: write rows as they come, in turn as far as possible; ``mark`` is in place of their places."""
        values = [(table, key, row, mark, 0 if begins_chunk(table, key) else 1) for table, key, row in rows]
        self.connection.executemany("INSERT OR REPLACE INTO rows VALUES (?, ?, ?, ?, ?)", values)

    def complete(self, dropped: Sequence[str]) -> None:
        """All rows are here: remove those with these marks, and make the indices."""
        if dropped:
            self.connection.execute("CREATE TEMP TABLE IF NOT EXISTS dropped (mark TEXT PRIMARY KEY)")
            self.connection.executemany("INSERT OR IGNORE INTO dropped VALUES (?)", ((mark,) for mark in dropped))
            self.connection.execute("DELETE FROM rows WHERE place IN (SELECT mark FROM dropped)")
        for statement in _INDICES.strip().splitlines():
            self.connection.execute(statement)

    # ---- without one: what is settled, and written later

    def settle(self) -> None:
        """The batch is complete: nothing of it is rolled back any more."""
        batch, self._batch = self._batch, {}
        with self._layers:
            self.pending += self._kept
            self._settled_bytes += self._kept_bytes
            self._kept = self._kept_bytes = 0
            _put_over(self._settled, batch)

    def take(self) -> None:
        """What is settled now is what ``write_out`` writes. Not while it runs."""
        with self._layers:
            settled, self._settled = self._settled, {}
            if self._going and not self._out:
                _put_over(self._going, settled)  # the last ``write_out`` has failed
                self._going_bytes += self._settled_bytes
            else:
                self._going = settled
                self._going_bytes = self._settled_bytes
            self._settled_bytes = 0
            self._out = False

    def write_out(self) -> None:
        """In any thread: commit what was taken. Raises what SQLite raises; nothing is lost then, and it can be called again."""
        with self._lock:
            if self._closed or not self._going:
                return
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                self._write(self._going)
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                raise
            self._out = True

    def written_out(self) -> None:
        """``write_out`` has returned. A ``flush`` during its sync may have taken more since, and failed: that stays."""
        with self._layers:
            if self._out:
                self._going, self._going_bytes = {}, 0
            self.pending = sum(map(len, (*self._settled.values(), *self._going.values())))

    def flush(self) -> None:
        """Commit all that is settled, here and now. Waits for a ``write_out`` that runs. Raises what SQLite raises."""
        if self._settled or self._going:
            with self._lock:
                self.take()
            self.write_out()
            self.written_out()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._reading.close()
            super().close()


def _put_over(layer: _Layer, newer: _Layer) -> None:
    for table, rows in newer.items():
        below = layer.get(table)
        if below is None:
            layer[table] = rows
        else:
            below.update(rows)


def _merged(stored: Iterator[tuple[str, bytes]], new: dict[str, tuple[bytes, Place] | None]) -> Iterator[tuple[str, bytes]]:
    """Rows of SQLite with newer ones over them, in the order of their keys."""
    over = iter(sorted(new))
    following = next(over, None)
    for key, row in stored:
        while following is not None and following < key:
            if (found := new[following]) is not None:
                yield following, found[0]
            following = next(over, None)
        if key not in new:
            yield key, row
    while following is not None:
        if (found := new[following]) is not None:
            yield following, found[0]
        following = next(over, None)


class File:
    """The file of one station of one cluster.

    Raises StoreError from ``open``: it cannot be opened, or it belongs to another cluster or station (a copied folder).
    """

    def __init__(self, folder: Path, cluster: str, station: int, name: str = FILE) -> None:
        self.path = folder / name
        self._owner = encode({"c": cluster, "n": station})
        self.moved = ""
        """Where a file that could not be used was moved to by ``open``."""
        self.why = ""
        """Why it could not be used."""
        self.failed = False
        """A sync has failed: it is unknown what of the file is on disk, and another sync does not tell. ``rewritten`` repairs
        it."""
        self._log = -1
        """Descriptor of SQLite's log; -1: not open."""
        self._disk = threading.Lock()
        """Held by who syncs, carries over, or puts another file in this one's place."""

    def open(self) -> Writing:
        """The file, checked: its rows have the stored sums (rule S4). A damaged one is moved away and a blank one started."""
        try:
            self.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            rows, self.why = self._checked()
            if rows is None:
                self.moved = str(self._move_away())
                rows, why = self._checked()
                if rows is None:
                    raise StoreError(f"cannot use {self.path}: {why}")
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"cannot use {self.path}: {error}") from error
        return rows

    def sync(self) -> None:
        """Return when all that was committed before this call is on disk. May run beside the one that writes. Raises OSError.

        A commit has written its pages to the log, and the log is read from its beginning after a crash: to have it on disk is
        enough. Pages that are no longer there were synced, with the file, before they were written over.
        """
        with self._disk:
            if self.failed:
                raise OSError(errno.EIO, "an earlier sync failed")
            try:
                if self._log < 0:
                    self._log = os.open(self._log_path, os.O_RDWR | os.O_CLOEXEC)
                    self._sync_folder()
                os.fdatasync(self._log)
            except OSError:
                # Linux reports pages that it could not write once, and treats them as written from then on.
                self.failed = True
                raise

    def _sync_folder(self) -> None:
        sync(self.path.parent)

    def carry_over(self) -> None:
        """Copy the log's pages to the file, as far as no reader holds an older state, so that the log can start again. May run
        beside the writer. Raises what SQLite raises."""
        with self._disk, contextlib.closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)")

    @property
    def _log_path(self) -> Path:
        return self.path.with_name(f"{self.path.name}-wal")

    def _forget_log(self) -> None:
        if self._log >= 0:
            os.close(self._log)
            self._log = -1

    def reader(self) -> Rows:
        """Another connection, that only reads."""
        connection = sqlite3.connect(f"file:{self.path}?mode=ro", uri=True, isolation_level=None, check_same_thread=False)
        return Rows(connection)

    def leases_by_zone(self) -> dict[str, int]:
        """Number of leases by the zone of their names, those that wait for an exclusive name too. Raises what SQLite raises."""
        # A key of LEASE is the lease, a blank, and the name.
        query = """SELECT json_extract(CAST(e.row AS TEXT), '$.z'), count(*) FROM rows l
                   JOIN rows e ON e.tbl = ? AND e.key = substr(l.key, instr(l.key, ' ') + 1) WHERE l.tbl = ? GROUP BY 1"""
        with contextlib.closing(self.reader()) as rows:
            return dict(rows.connection.execute(query, (int(Table.ENTRY), int(Table.LEASE))))

    def frozen(self) -> Rows:
        """A copy at the place of the last commit, until it is closed."""
        rows = self.reader()
        rows.connection.execute("BEGIN")
        rows.get(Table.META, "state")  # a read transaction begins with its first read
        return rows

    def fresh(self) -> Writing:
        """A blank file beside this one, for a state that is being built."""
        path = self._beside
        self._remove(path)
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        for option in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = -{BUILD_KIB}"):
            connection.execute(f"PRAGMA {option}")
        rows = Writing(connection)
        self._make(rows)
        return rows

    def replace(self, old: Writing, new: Writing) -> Writing:
        """Put the file of ``fresh``, whose transaction is committed, in the place of this one. It is on disk then."""
        return self._replace(old, new, self._beside)

    def _replace(self, old: Writing, new: Writing, path: Path) -> Writing:
        new.close()
        sync(path)
        with self._disk:
            old.close()
            self._forget_log()
            # A crash before the end of this leaves no file at all: a log is nothing without its file.
            self._remove(self.path)
            path.rename(self.path)
            self._sync_folder()
            self.failed = False
            return self._connect(self.path)

    def rewritten(self, old: Writing) -> Writing:
        """Write all rows again, to a new file, and sync it. No other write happens meanwhile. Raises OSError, and what SQLite
        raises."""
        old.flush()
        path = self.path.with_suffix(".again")  # a state may be coming into the file of ``fresh``
        self._remove(path)
        old.connection.execute("VACUUM INTO ?", (str(path),))
        sync(path)
        new = self._connect(path)
        if damage := self._damage(new):
            new.close()
            raise OSError(errno.EIO, f"the rows cannot be written anew: {damage}")
        return self._replace(old, new, path)

    # ---- within

    def _checked(self) -> tuple[Writing | None, str]:
        """The file, or what is wrong with its content. Raises OSError, StoreError, and OperationalError of SQLite for what is no
        damage: a right that is missing, a full disk."""
        rows: Writing | None = None
        try:
            rows = self._connect(self.path)
            damage = self._damage(rows)
        except sqlite3.OperationalError:
            raise
        except (sqlite3.DatabaseError, ValueError, TypeError, KeyError) as error:
            damage = str(error) or type(error).__name__
        if not damage:
            return rows, ""
        if rows is not None:
            rows.close()
        return None, damage

    @property
    def _beside(self) -> Path:
        return self.path.with_suffix(".new")

    def _connect(self, path: Path) -> Writing:
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10.0)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            # ``carry_over`` does it, and the one that writes waits for no disk.
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            reading = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10.0)
        except BaseException:
            connection.close()
            raise
        return Writing(connection, reading)

    def _make(self, rows: Writing) -> None:
        rows.connection.executescript(_SCHEMA)
        rows.connection.execute("INSERT INTO owner VALUES (?)", (self._owner,))
        rows.connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        rows.connection.execute(f"PRAGMA user_version = {FORMAT}")

    def _damage(self, rows: Writing) -> str:
        """What is wrong with the content; makes the tables of a new file. Raises StoreError for another's file."""
        run = rows.connection.execute
        if not run("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            self._make(rows)
            rows.complete(())
            return ""
        if run("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
            raise StoreError(f"{self.path} is no file of zenjun-directory")
        if (version := run("PRAGMA user_version").fetchone()[0]) == 1:
            self._upgrade(rows)
        elif version != FORMAT:
            raise StoreError(f"{self.path} has format {version}; this program knows format {FORMAT}")
        (owner,) = run("SELECT what FROM owner").fetchone()
        if owner != self._owner:
            was, own = load(owner), load(self._owner)
            raise StoreError(
                f"{self.path} belongs to station {was['n']} of cluster {was['c']!r}; this is station {own['n']} of cluster "
                f"{own['c']!r}. If the folder was copied, remove the file: the others have the state"
            )
        verdict = run("PRAGMA quick_check(1)").fetchone()[0]
        return self._wrong_sums(rows) if verdict == "ok" else str(verdict)

    @staticmethod
    def _upgrade(rows: Writing) -> None:
        """From format 1, whose chunks began elsewhere."""
        rows.connection.create_function("first", 2, lambda table, key: 0 if begins_chunk(table, key) else 1)
        rows.begin()
        rows.connection.execute("DROP INDEX rows_place")
        rows.connection.execute("DROP INDEX rows_bucket")
        rows.connection.execute("UPDATE rows SET bucket = first(tbl, key) WHERE bucket >= 0")
        rows.complete(())
        rows.connection.execute(f"PRAGMA user_version = {FORMAT}")
        rows.commit()

    @staticmethod
    def _wrong_sums(rows: Writing) -> str:
        """Compute the sums of all rows again, and compare them with the stored ones."""
        try:
            stored = State(rows)
            found = sums_of(rows.summed())
        except (ValueError, TypeError, KeyError, IndexError) as error:
            return f"a row that cannot be read ({type(error).__name__}: {error})"
        return "" if found == (stored.main, stored.rest) else "the sums over its rows are not those that it says"

    def _move_away(self) -> Path:
        number = 1
        while (target := self.path.with_name(f"{self.path.name}.bad-{number}")).exists():
            number += 1
        self.path.rename(target)
        self._remove(self.path)
        return target

    @staticmethod
    def _remove(path: Path) -> None:
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                path.with_name(path.name + suffix).unlink()
