"""A site's copy in SQLite, as the machine wants it: rows, position and history in one file, changed in one transaction.

In another file, or in another transaction, they would differ after a power cut: a commit in WAL mode is atomic for one database
only.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Final

import apsw

from ...proto.service.database.messages import (
    SEGMENT_HEAD_BYTES,
    Position,
    Segment,
    Txid,
    decode_body,
    first_digest,
    is_one_changeset,
    is_unchecked,
)
from ...proto.service.database.rows import Entry, RowsDamaged, RowsFailed, Verdict
from ..timing import Timing
from . import leases
from .applier import Applied, Applier
from .errors import DatabaseError, InternalError
from .guarding import SchemaGuard, uneven
from .leases import apply_lease

__all__ = ["LOG_VERSIONS_MIN", "SqliteRows"]

LOG_VERSIONS_MIN: Final = 1000
"""Versions whose entries are kept."""
LOG_BYTES_MAX: Final = 256 << 20
"""Bytes of their bodies; of the oldest ones beyond that the ids are kept, and the bodies are not."""
_SCHEMA: Final = (
    """
CREATE TABLE zenjun_meta(
    one INTEGER PRIMARY KEY CHECK(one = 1), uuid BLOB, epoch INTEGER, version INTEGER, digest BLOB, format INTEGER) STRICT;
CREATE TABLE zenjun_log(version INTEGER PRIMARY KEY, epoch INTEGER, digest BLOB, txid BLOB UNIQUE, body BLOB) STRICT;
"""
    + leases.SCHEMA
)
_GATE: Final = """
CREATE TABLE IF NOT EXISTS zenjun_gate(one INTEGER PRIMARY KEY CHECK(one = 1), open INTEGER) STRICT;
INSERT INTO zenjun_gate VALUES(1, {0}) ON CONFLICT DO UPDATE SET open = {0};
"""
"""Mode unanimous: reads are served. No part of what the sites have alike."""
_FORMAT: Final = 1
_APPLIED: Final = {Applied.DONE: Verdict.DONE, Applied.CONSTRAINT: Verdict.CONSTRAINT, Applied.IMAGE: Verdict.IMAGE}


class SqliteRows:
    """The copy on a connection of the applier."""

    def __init__(self, applier: Applier, uuid: bytes, log_versions: int = LOG_VERSIONS_MIN) -> None:
        """uuid: drawn for the database if this copy turns out to be the first. RowsFailed: the file is not ours, or cannot be
        read."""
        self.applier, self.log_versions = applier, log_versions
        self.connection = applier.connection
        self._uuid = uuid
        self._position: Position | None = None
        self._is_batch = False
        self.applied = Timing()
        """What batches that made versions took, with their decisions and without the disk."""
        self._unlogged: list[Entry] = []
        """What the transaction that is open has to note at its end: position and history, once for all of its entries."""
        self._ids: dict[bytes, int] = {}
        """The versions of the entries that are kept, by transaction, the oldest first."""
        self._bodies: deque[tuple[int, int]] = deque()
        """Version and size of the bodies that are kept."""
        with self._guarded():
            query = "SELECT count(*) FROM main.sqlite_schema WHERE name = 'zenjun_meta'"
            if self._one(query):
                uuid, epoch, version, digest, format_ = self._row("SELECT uuid, epoch, version, digest, format FROM zenjun_meta")
                if format_ != _FORMAT:
                    raise RowsFailed(f"format {format_} of the file is not known; this release knows {_FORMAT}")
                self._uuid, self._position = uuid, Position(epoch, version, digest)
                query = "SELECT version, length(body) FROM zenjun_log WHERE body IS NOT NULL ORDER BY version"
                self._bodies.extend(self.connection.execute(query))
                self._ids.update(self.connection.execute("SELECT txid, version FROM zenjun_log ORDER BY version"))
        self._body_bytes = sum(size for _, size in self._bodies)

    def blank(self) -> bool:
        return self._position is None

    def uuid(self) -> bytes:
        return self._uuid

    def position(self) -> Position:
        if self._position is None:
            raise RowsFailed("there is no database yet")
        return self._position

    def create(self, uuid: bytes) -> None:
        position = Position(0, 0, first_digest(uuid))
        with self._guarded(), self._transaction():
            self.connection.execute(_SCHEMA + self.more())
            self.connection.execute("INSERT INTO zenjun_meta VALUES(1, ?, ?, ?, ?, ?)", (uuid, *position, _FORMAT))
        self._uuid, self._position = uuid, position

    def more(self) -> str:
        """Statements that belong to an empty database of this kind, besides our own."""
        return ""

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """What is written within is one transaction of SQLite, unless ``flush`` ends it before. Each entry is still written
        wholly or not at all. Raises RowsFailed: what was written since the last ``flush`` may be lost, whatever ``position``
        says; the copy is to be opened again."""
        self._is_batch, before, began = True, self._position, time.perf_counter()
        try:
            yield
            self.flush()
            if self._position is not before:
                self.applied.add(time.perf_counter() - began)
        finally:
            self._is_batch = self.applier.knows_schema = False
            self._unlogged.clear()
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")

    def flush(self) -> None:
        """Let others see what a batch has written so far. Raises RowsFailed."""
        if self.connection.in_transaction:
            with self._guarded():
                self._commit()

    def write(self, entry: Entry) -> Verdict:
        unchecked = is_unchecked(entry.body)
        if unchecked:
            self.flush()
        with self._guarded():
            if unchecked:
                self.connection.pragma("foreign_keys", False)  # it has no effect within a transaction
            try:
                if not self.connection.in_transaction:
                    self.connection.execute("BEGIN IMMEDIATE")
                verdict = self._write(entry, unchecked)
                if unchecked or not self._is_batch:
                    self._commit()
            except BaseException:
                self._unlogged.clear()
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                raise
            finally:
                if unchecked:
                    self.connection.pragma("foreign_keys", True)
        if verdict is Verdict.DONE:
            self._position = entry.position
            self._ids[entry.txid.encode()] = version = entry.position.version
            while next(iter(self._ids.values())) <= version - self.log_versions:
                del self._ids[next(iter(self._ids))]
        return verdict

    def _write(self, entry: Entry, unchecked: bool) -> Verdict:
        """Within the transaction that is open."""
        if self._is_batch and not self.applier.knows_schema:  # a batch may have no entries, as most have that say what is synced
            self.applier.look()
            self.applier.knows_schema = True
        if is_whole := not is_one_changeset(entry.body):  # a changeset is applied wholly or not at all by itself
            self.connection.execute("SAVEPOINT zenjun_entry")
        verdict = self.apply(entry.body, entry.position.version)
        if verdict is Verdict.DONE and unchecked and not self._keys_hold():
            verdict = Verdict.CONSTRAINT
        if verdict is Verdict.DONE:
            self._unlogged.append(entry)
        elif is_whole:
            self.connection.execute("ROLLBACK TO zenjun_entry")
            self.applier.look()
        if is_whole:
            self.connection.execute("RELEASE zenjun_entry")
        return verdict

    def apply(self, body: bytes, version: int = 0) -> Verdict:
        """The segments of a body, one after another, in the transaction that is open. version: the one that it makes."""
        if is_one_changeset(body):
            return _APPLIED[self.applier.apply(body[SEGMENT_HEAD_BYTES:])]
        try:
            segments = decode_body(body)
        except ValueError:
            return Verdict.IMAGE
        for kind, data in segments:
            if kind is Segment.CHANGESET:
                applied = self.applier.apply(data)
                if applied is not Applied.DONE:
                    return _APPLIED[applied]
            elif kind is Segment.LEASE:
                if not apply_lease(self.connection, version, data):
                    return Verdict.IMAGE
            elif kind is Segment.NUMBERED or (kind is Segment.SQL and not self._change_schema(data)):
                return Verdict.IMAGE  # what is numbered has its numbers when it comes here (rule K8)
        return Verdict.DONE

    def highest(self, table: str) -> int | None:
        with self._guarded():
            return self.applier.highest(table)

    def gate(self, is_open: bool) -> None:
        with self._guarded(), self._transaction():
            self.connection.execute(_GATE.format(int(is_open)))

    def _keys_hold(self) -> bool:
        """All foreign keys of all rows."""
        try:
            return not self.connection.execute("PRAGMA foreign_key_check").fetchall()
        except apsw.SQLError:  # it refers to columns that are no key
            return False

    def version_of(self, txid: Txid) -> int | None:
        return self._ids.get(txid.encode())

    def digest_at(self, version: int) -> bytes | None:
        if self._position is None or version <= self._position.version - self.log_versions:
            return None  # at all sites: what a batch has not noted yet is not cleared away yet either
        for entry in self._unlogged:
            if entry.position.version == version:
                return entry.position.digest
        with self._guarded():
            found: bytes | None = self._one("SELECT max(digest) FROM zenjun_log WHERE version = ?", version)
        return found

    def _change_schema(self, data: bytes) -> bool:
        """Whether the statement changed the schema; one that is not allowed, or fails, fails at all sites alike."""
        try:
            sql = data.decode()
        except UnicodeDecodeError:
            return False
        guard = SchemaGuard(sql)
        if not guard.is_schema:
            return False
        cursor = self.connection.cursor()
        cursor.exec_trace = guard.trace
        self.connection.set_authorizer(guard)
        try:
            cursor.execute(sql)
        except (apsw.SQLError, apsw.AuthError, apsw.ConstraintError, apsw.ExecTraceAbort):
            return False
        finally:
            self.connection.set_authorizer(None)
            cursor.close(True)
        self.applier.look()
        return not uneven(self.connection)

    def _commit(self) -> None:
        """End the transaction that is open, with the position and the entries that belong to it."""
        if self._unlogged:
            self._log(self._unlogged)
            self._unlogged = []
        self.connection.execute("COMMIT")

    def _log(self, entries: Sequence[Entry]) -> None:
        last = entries[-1].position
        self.connection.execute(
            "UPDATE zenjun_meta SET epoch = ?, version = ?, digest = ?", (last.epoch, last.version, last.digest)
        )
        oldest = last.version - self.log_versions
        # First: a transaction that is too old to be known may have come again among these.
        self.connection.execute("DELETE FROM zenjun_log WHERE version <= ?", (oldest,))
        kept = [e for e in entries if e.position.version > oldest]
        values = [(e.position.version, e.position.epoch, e.position.digest, e.txid.encode(), e.body) for e in kept]
        self.connection.executemany("INSERT INTO zenjun_log VALUES(?, ?, ?, ?, ?)", values)
        self._bodies.extend((e.position.version, len(e.body)) for e in entries)
        self._body_bytes += sum(len(e.body) for e in entries)
        while self._bodies and (self._body_bytes > LOG_BYTES_MAX or self._bodies[0][0] <= oldest):
            version, size = self._bodies.popleft()
            self._body_bytes -= size
            if version > oldest:
                self.connection.execute("UPDATE zenjun_log SET body = NULL WHERE version = ?", (version,))

    def _row(self, query: str, *bindings: Any) -> tuple[Any, ...]:
        (row,) = self.connection.execute(query, bindings).fetchall()
        return row

    def _one(self, query: str, *bindings: Any) -> Any:
        return self._row(query, *bindings)[0]

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self.flush()
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.connection.execute("COMMIT")
        finally:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")

    def _guarded(self) -> _Guarded:
        return _GUARDED


class _Guarded:
    """An error that SQLite reports about the file ends the use of this copy."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, apsw.CorruptError | InternalError):
            raise RowsDamaged(str(error)) from error
        if isinstance(error, apsw.Error | DatabaseError):
            raise RowsFailed(str(error)) from error


_GUARDED: Final = _Guarded()
