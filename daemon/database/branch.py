"""A branch: a program's transaction on a snapshot of the database, private until the order has decided it.

Any number of branches write side by side, in one process and in several, while the applier commits and checkpoints. What a branch
changed is a changeset: rows before and after, of all tables. It travels, is certified at every site, and comes back through the
applier. The branch itself never changes the file. docs/database.md has the rules; those named here are its.

Not thread-safe: one thread at a time uses a branch. Not to be used after a fork in the child.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeAlias
from urllib.parse import quote
from weakref import WeakSet, finalize, ref

import apsw

from ...proto.service.database.messages import Segment
from . import vfs
from .errors import IntegrityError, NotSupportedError, OperationalError, ProgrammingError
from .guarding import Guard, Looking, SchemaGuard, is_recorded, quoted, refuse_pragma, uneven
from .savepoints import Savepoints, parsed

__all__ = ["BUSY_TIMEOUT_MS", "Bindings", "Branch"]

Bindings: TypeAlias = Sequence[Any] | Mapping[str, Any] | None
Columns: TypeAlias = tuple[tuple[Any, ...], ...]
"""Name and declared type of each."""
BUSY_TIMEOUT_MS: Final = 2000
"""How long to wait for a snapshot while another process recovers the WAL."""
POSITION: Final = "SELECT epoch, version FROM zenjun_meta"
"""Asked with each snapshot."""
PROGRESS_STEPS: Final = 100_000
"""Of SQLite's machine, about a millisecond, between two turns of the interpreter."""

_NULLABLE_KEYS: Final = """
    SELECT t.name, k.name
    FROM main.sqlite_schema t JOIN pragma_table_info(t.name, 'main') k
    WHERE t.type = 'table' AND k.pk > 0 AND NOT k."notnull" AND upper(k.type) <> 'INTEGER'
    ORDER BY t.name, k.pk"""


def columns_of(cursor: apsw.Cursor, sql: str, bindings: Bindings) -> Columns:
    """The columns of a statement that this cursor has begun. Not before: then they are those of the schema for which it was
    prepared, and apsw keeps them."""
    try:
        return cursor.get_description()
    except apsw.ExecutionCompleteError:
        found: list[Columns] = []  # no rows, or no columns

    def trace(cursor: apsw.Cursor, sql: str, bindings: object) -> bool:
        found.append(cursor.get_description())
        return False

    other = cursor.connection.cursor()
    other.exec_trace = trace
    with contextlib.suppress(apsw.ExecTraceAbort):
        other.execute(sql, bindings)
    return found[0]


def _close(writer: apsw.Connection, reader: apsw.Connection) -> None:
    """The writer before the reader, whose lock keeps what it reads."""
    writer.close(True)
    reader.close(True)


class Branch:
    """One transaction after another on a database in WAL mode. ``begin``, any number of ``execute``, ``changeset``, then ``keep``
    if it was committed, and ``end``."""

    def __init__(self, path: Path | str, before: Branch | None = None, *, busy_timeout_ms: int = BUSY_TIMEOUT_MS) -> None:
        """Open the database read-only. The file has to be there, in WAL mode; its ``-shm`` has to be writable. before: the one,
        closed, that the same program had of another copy.

        Raises OperationalError if the file cannot be opened, NotSupportedError if it is not in WAL mode or SQLite is too old.
        """
        vfs.load()
        self.path = str(path)
        uri = f"file:{quote(self.path)}"
        self._guard = Guard()
        self._cursors: WeakSet[apsw.Cursor] = WeakSet()
        self._alone: apsw.Cursor | None = None
        """For ``read_alone``; None: it is in use, or has failed, or has not been needed yet."""
        self.only_reads = False
        """The statement under way on the writer, or the last one, changes nothing."""
        self.changed: int = 0 if before is None else before.changed
        """Rows that the program's last INSERT, UPDATE or DELETE changed."""
        self._counted = 0
        """What SQLite has for that where the statement under way on the writer begins."""
        self._not_counted: int = 0 if before is None else -before.total_changed
        """What is not the program's of the rows changed on the writer; less what it changed on another branch before."""
        self._total: int | None = None
        """Once it is closed."""
        self._session: apsw.Session | None = None
        self._writing = False
        """The writer has a transaction, as far as we have begun one."""
        self._segments: list[tuple[Segment, bytes]] = []
        """What was done before the last change of the schema."""
        self._begun: vfs.Begun | None = None
        self._prepared = False
        self._may_commit = False
        self.checks_keys = True
        """Foreign keys hold after each statement, or at the end; it counts from the next transaction on."""
        self._checks = False
        """The writer does."""
        self._savepoints = Savepoints()
        self._nullable: tuple[int, dict[str, list[str]]] = (-1, {})
        with contextlib.ExitStack() as opened:
            try:
                self.reader = apsw.Connection(f"{uri}?mode=ro", flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
                opened.callback(self.reader.close, True)
                self.reader.set_busy_timeout(busy_timeout_ms)
                # Reading opens WAL and -shm. Of a database in another mode no -shm must be made.
                if (mode := self.reader.pragma("journal_mode")) != "wal":
                    raise NotSupportedError(f"{self.path}: journal mode {mode}, not wal")
                self.reader.execute("PRAGMA schema_version").fetchall()
                self.writer = apsw.Connection(uri, flags=apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_URI, vfs=vfs.NAME)
                opened.callback(self.writer.close, True)
                vfs.bind(self.writer, self.reader, POSITION)
            except apsw.Error as error:
                raise OperationalError(f"{self.path}: {error}{_descriptors()}") from error
            for connection in (self.reader, self.writer):
                # Now and then the interpreter has its turn, which raises KeyboardInterrupt in a statement that takes long.
                connection.set_progress_handler(lambda: False, PROGRESS_STEPS)
            self._hook()
            opened.pop_all()
        # Who forgets to close: the writer has statements of the reader, so their order is not to be the garbage collector's.
        self._ends = finalize(self, _close, self.writer, self.reader)

    def _hook(self) -> None:
        """What SQLite calls."""
        self_ = ref(self)  # what a hook holds, its connection holds, and that is held until it is closed

        def changed(*_: object) -> int:
            return 0 if (branch := self_()) is None else branch.changed

        def changes(*_: object) -> int:
            return 0 if (branch := self_()) is None else branch._changes()

        def total_changes(*_: object) -> int:
            return 0 if (branch := self_()) is None else branch.total_changed

        # A statement of its own that only reads runs on the reader, which has changed nothing itself. On the writer an
        # EXPLAIN counts as a statement that changes nothing, and we change some rows besides.
        self.reader.create_scalar_function("changes", changed, 0)
        self.writer.create_scalar_function("changes", changes, 0)
        for connection in (self.reader, self.writer):
            connection.create_scalar_function("total_changes", total_changes, 0)
        self.writer.set_commit_hook(lambda: (branch := self_()) is None or not branch._may_commit)
        self.writer.set_authorizer(self._guard)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def begun(self) -> vfs.Begun | None:
        """The snapshot, None: no transaction."""
        return self._begun

    @property
    def position(self) -> tuple[int, int]:
        """Epoch and version of the snapshot. Errors are apsw's: the file has none."""
        if self._begun is not None and self._begun.facts is not None:
            return self._begun.facts
        found: list[Any] = self.reader.execute(POSITION).fetchall()
        epoch, version = found[0]
        return epoch, version

    def schema_version(self) -> int:
        """SQLite's number of the schema that the transaction sees."""
        if self._begun is not None and not self.changes_schema:
            return self._begun.schema
        return int(str(self.writer.pragma("schema_version")))

    def _changes(self) -> int:
        """``changes()`` in the statement under way; in a trigger, once a statement of it has changed rows, as SQLite has it."""
        counted = self.writer.changes()
        return self.changed if self.only_reads or counted == self._counted else counted

    @property
    def total_changed(self) -> int:
        """``total_changes()``: rows that the program's statements have changed, by triggers too, whatever became of them."""
        return self._total if self._total is not None else self.writer.total_changes() - self._not_counted

    @property
    def is_writing(self) -> bool:
        """Something may have been changed since ``begin``."""
        return self._writing

    def begin(self) -> vfs.Begun:
        """Pin the newest snapshot. ``reader`` shows it from now on, and so does ``execute``. OperationalError: none was to be had
        in time, or the file cannot be read."""
        if self._begun is not None:
            raise ProgrammingError("the branch has a transaction")
        try:
            self._begun = vfs.begin(self.writer)
        except apsw.Error as error:
            raise OperationalError(f"{self.path}: no snapshot: {error}") from error
        return self._begun

    def read(self, trace: Callable[..., bool]) -> apsw.Cursor:
        """A cursor of ``reader``, for statements that only read what the transaction has begun with. ``end`` closes it."""
        cursor = self.reader.cursor()
        cursor.exec_trace = trace
        self._cursors.add(cursor)
        return cursor

    def read_alone(self, sql: str, bindings: Bindings = None) -> tuple[list[tuple[Any, ...]], Columns]:
        """The rows of one statement that writes nothing, on the newest snapshot, while there is no transaction; and the names and
        declared types of their columns."""
        alone, self._alone = self._alone or self.reader.cursor(), None  # a function in the statement may read as well
        alone.execute(sql, bindings)
        columns = columns_of(alone, sql, bindings)
        rows: list[tuple[Any, ...]] = alone.fetchall()
        self._alone = alone
        return rows, columns

    @property
    def changes_schema(self) -> bool:
        """The transaction has changed the schema."""
        return any(kind is Segment.SQL for kind, _ in self._segments)

    def execute(self, sql: str, bindings: Bindings = None, trace: Callable[..., bool] | None = None) -> apsw.Cursor:
        """Run statements on the branch; rows come from the cursor. Raises NotSupportedError for what no changeset can carry (DDL,
        ATTACH, tables of SQLite or of ours) and for statements that begin or end transactions; OperationalError if an earlier
        statement has ended the transaction (ON CONFLICT ROLLBACK). What else is wrong is apsw's exception."""
        self._open_write()
        self._guard.refusal = ""
        self._guard.inserted.clear()
        cursor = self.writer.cursor()

        def traced(each: apsw.Cursor, text: str, values: object) -> bool:
            self.only_reads = each.is_readonly
            runs = trace is None or trace(each, text, values)
            self._counted = self.writer.changes()
            return runs

        cursor.exec_trace = traced
        self._cursors.add(cursor)
        try:
            cursor.execute(sql, bindings)
        except apsw.AuthError as error:
            raise NotSupportedError(self._guard.refusal or str(error)) from error
        return cursor

    @property
    def has_temporary(self) -> bool:
        """The program has had temporary tables or views. ``reader`` knows none, and may have a table of the same name."""
        return self._guard.has_temporary

    def is_temporary(self, sql: str) -> bool:
        """A CREATE, ALTER or DROP that changes temporary tables alone, whether it says so or not. ``execute`` runs it: no other
        site has them, and one of them may have the name of a table of the database."""
        if not self.has_temporary:
            return False
        looking = Looking()
        cursor = self.writer.cursor()
        cursor.exec_trace = lambda *_: False
        self.writer.set_authorizer(looking)
        try:
            with contextlib.suppress(apsw.ExecTraceAbort):
                cursor.execute(sql, can_cache=False)
        except apsw.Error:
            return False  # running it tells why
        finally:
            self.writer.set_authorizer(self._guard)
            cursor.close(True)
        return looking.databases == {"temp"}

    @property
    def inserted(self) -> set[str]:
        """Tables of the database that the last statement inserts rows into; empty if SQLite had prepared it before."""
        return self._guard.inserted

    def set_sequence(self, table: str, last: int) -> None:
        """Have the next automatic id of an AUTOINCREMENT table be above this one, in this transaction."""
        self._guard.is_own, before = True, self.writer.total_changes()
        try:
            self.writer.execute("UPDATE main.sqlite_sequence SET seq = ? WHERE name = ?", (last, table))
            if not self.writer.changes():
                self.writer.execute("INSERT INTO main.sqlite_sequence(name, seq) VALUES(?, ?)", (table, last))
        finally:
            self._guard.is_own = False
            self._not_counted += self.writer.total_changes() - before

    def changeset(self) -> bytes:
        """What was changed since ``begin``, rows before and after; empty if nothing. The transaction continues.

        Raises IntegrityError if a deferred foreign key is violated, or a row has NULL in its key, which no changeset can carry.
        """
        if self._session is None:
            return b""
        self._require_transaction()
        if self.writer.status(apsw.SQLITE_DBSTATUS_DEFERRED_FKS)[0]:
            raise IntegrityError("FOREIGN KEY constraint failed")
        self._refuse_null_keys()
        self._guard.is_own = True  # the session prepares statements
        try:
            changes: bytes = self._session.changeset()
        finally:
            self._guard.is_own = False
        return changes

    def change_schema(self, sql: str, bindings: Bindings = None) -> None:
        """Run one statement that changes the schema: tables, indexes, views and triggers. It travels as it is, and is the same at
        all sites only while its program has the database alone. Raises NotSupportedError for what they would refuse; what else
        is wrong is apsw's exception, and the transaction goes on."""
        if bindings:
            raise NotSupportedError("a statement that changes the schema has no parameters")
        guard = SchemaGuard(sql)
        if not guard.is_schema:
            raise NotSupportedError("not a statement that changes the schema")
        self._open_write()
        self._cut()
        cursor = self.writer.cursor()
        cursor.exec_trace = guard.trace
        self._run("SAVEPOINT zenjun_schema")
        self.writer.set_authorizer(guard)
        try:
            cursor.execute(sql)
            self.writer.set_authorizer(None)
            if reason := uneven(self.writer):
                self.writer.execute("ROLLBACK TO zenjun_schema")
                raise NotSupportedError(reason)
        except (apsw.AuthError, apsw.ExecTraceAbort) as error:
            raise NotSupportedError("a change of the schema that not every site would make alike, or more than one") from error
        finally:
            self.writer.set_authorizer(self._guard)
            cursor.close(True)
            self._run("RELEASE zenjun_schema")
        self._segments.append((Segment.SQL, sql.encode()))

    def _cut(self) -> None:
        """What has been recorded is a part of the body; another one begins."""
        before = self.changeset()
        self._close_session()
        if before:
            self._segments.append((Segment.CHANGESET, before))

    def savepoint(self, sql: str) -> None:
        """SAVEPOINT, RELEASE and ROLLBACK TO. NotSupportedError: rows were changed before the savepoint, and the schema after it,
        so that the changes cannot be told apart."""
        if (found := parsed(sql)) is None:
            raise NotSupportedError("SAVEPOINT, RELEASE or ROLLBACK TO, and a name: nothing else")
        word, name = found
        self._open_write()
        if word == "SAVEPOINT":
            if self.changes_schema:
                self._cut()
            self.execute(sql)
            self._savepoints.begin(name, len(self._segments), is_clean=self._session is None or self._session.is_empty)
            return
        savepoint = self._savepoints.find(name)
        if word == "ROLLBACK" and savepoint is not None and len(self._segments) > savepoint.segments:
            if not savepoint.is_clean:
                raise NotSupportedError(f"ROLLBACK TO {name}: rows were changed before it, and the schema after it")
            self._close_session()
            del self._segments[savepoint.segments :]
        self.execute(sql)
        if savepoint is not None:
            self._savepoints.end(savepoint, is_released=word == "RELEASE")

    def segments(self) -> list[tuple[Segment, bytes]]:
        """The body of the transaction: changesets, and between them changes of the schema. Errors are those of ``changeset``."""
        last = self.changeset()
        unchecked = [(Segment.UNCHECKED, b"")] if self.changes_schema and not self._checks else []
        return [*unchecked, *self._segments, *([(Segment.CHANGESET, last)] if last else [])]

    def confine(self, length_max: int) -> None:
        """For a program of another station: no pragma that concerns more than this transaction, no value above *length_max*
        bytes."""
        self._guard.is_confined = True
        self.reader.set_authorizer(lambda action, first, *_: refuse_pragma(action, first))
        for connection in (self.reader, self.writer):
            connection.limit(apsw.SQLITE_LIMIT_LENGTH, length_max)

    def keep(self) -> None:
        """The transaction was committed by the order: its temporary tables stay as it left them. What it did to the database is
        seen until ``end``, and then through the applier. Without temporary tables nothing is to be kept, and nothing is written.
        Errors are apsw's: they are not kept, because the program's disk is full."""
        if not self._writing:
            return
        self._require_transaction()
        if not self.has_temporary:
            return
        self._close_session()
        self._savepoints.clear()
        self._writing = False
        self._may_commit = True
        try:
            self._run("COMMIT")
        finally:
            self._may_commit = False

    def interrupt(self) -> None:
        """Have a statement that runs in another thread fail with apsw.InterruptError."""
        self.reader.interrupt()
        self.writer.interrupt()

    def end(self) -> None:
        """End the transaction; what was not kept is gone, temporary tables' rows included. Without a transaction nothing happens.
        Cursors are closed."""
        if self._begun is None:
            return
        self._close_session()
        self._writing = False
        self._segments = []
        self._savepoints.clear()
        for cursor in list(self._cursors):
            cursor.close(True)
        self._cursors.clear()
        self._guard.is_own = True
        try:
            vfs.end(self.writer)
        finally:
            self._guard.is_own = False
        self._begun = None

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # what has not been opened cannot be closed
            self.close()

    def close(self) -> None:
        """Close both connections, whatever state they are in. Again: nothing happens."""
        self._close_session()
        self._begun = None
        self._total = self.total_changed
        self._ends.detach()
        _close(self.writer, self.reader)

    def _open_write(self) -> None:
        """Begin the write transaction and record from here on, unless that has been done since ``begin``."""
        if self._begun is None:
            raise ProgrammingError("the branch has no transaction")
        if self._writing:
            self._require_transaction()
            if self._session is None:
                self._record()
            return
        if not self._prepared:
            self.writer.limit(apsw.SQLITE_LIMIT_ATTACHED, 0)
            self.writer.wal_autocheckpoint(0)
            # What a virtual table keeps in ordinary ones is written by its module alone: with other content every site's copy is
            # a damaged one, as SQLite sees it.
            self.writer.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
            self._prepared = True
        if self._checks != self.checks_keys:
            self.writer.pragma("foreign_keys", self.checks_keys)
            self._checks = self.checks_keys
        self._run("BEGIN IMMEDIATE")
        self._writing = True
        self._record()

    def _record(self) -> None:
        self._session = session = apsw.Session(self.writer, "main")
        session.config(apsw.SQLITE_SESSION_OBJCONFIG_ROWID, True)
        session.table_filter(is_recorded)
        session.attach()

    def _run(self, sql: str) -> None:
        """A statement of our own that begins or ends the writer's transaction."""
        self._guard.is_own = True
        try:
            self.writer.execute(sql)
        finally:
            self._guard.is_own = False

    def _require_transaction(self) -> None:
        if not self.writer.in_transaction:
            raise OperationalError("a statement has ended the transaction (ON CONFLICT ROLLBACK)")

    def _close_session(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def _refuse_null_keys(self) -> None:
        """SQLite admits NULL in a declared key, and a session leaves such rows out: the program would be promised a row that is
        nowhere."""
        version = self.schema_version()
        if self._nullable[0] != version:
            tables: dict[str, list[str]] = {}
            for table, column in self.writer.execute(_NULLABLE_KEYS):
                tables.setdefault(table, []).append(column)
            self._nullable = (version, tables)
        for table, columns in self._nullable[1].items():
            if table not in self._guard.written:
                continue
            condition = " OR ".join(f"{quoted(column)} IS NULL" for column in columns)
            if self.writer.execute(f"SELECT 1 FROM main.{quoted(table)} WHERE {condition} LIMIT 1").fetchall():
                names = ", ".join(f"{table}.{column}" for column in columns)
                raise IntegrityError(f"NULL in the key ({names}): declare it NOT NULL")


def _descriptors() -> str:
    """The reason that SQLite does not give: the program has no file descriptor left."""
    try:
        os.close(os.dup(2))
    except OSError as error:
        return f": {error.strerror}; a connection takes about six (ulimit -n)"
    return ""
