"""A program's connection to a replicated database.

Reads go to the file of this station. A transaction that writes does so on a branch, and is sent when it commits. docs/database.md
says what a program can rely on.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import apsw

from ....proto.service.database.certify import table_hash
from ....proto.service.database.distance import CALL_MAX
from ....proto.service.database.messages import BODY_MAX, READS_MAX, Txid
from ..branch import Bindings, Branch, columns_of
from ..errors import (
    DataError,
    Error,
    OperationalError,
    PositionLost,
    ProgrammingError,
    SerializationError,
)
from . import ageing
from .ageing import TooOld, watch
from .cursor import Cursor
from .dump import dump
from .freshness import check_fresh, reach, wait_durable
from .gate import begin_open
from .keys import Keys
from .lone import Lone
from .mapping import aggregate, mapped
from .quick import read_alone, read_quickly
from .raising import Raising
from .reads import Reads
from .sending import pause, send
from .service import Lost, Service
from .statements import Kind, foreign_keys_of, is_exclusive, kind_of, split, words_of
from .watching import Change, changes

_T = TypeVar("_T")
TRIES: Final = 10
"""Of a transaction that others come before, all together."""
ISOLATIONS: Final = ("serializable", "snapshot")
READS: Final = ("local", "linearizable")
DURABILITIES: Final = ("memory", "majority-disk", "all-disk")


class Elsewhere(Exception):
    """This station has no copy in use: a session at another one has to do."""


class Connection(Raising):
    """One connection, for one thread. Made by ``connect``."""

    def __init__(
        self, name: str, *, isolation: str, read: str, durability: str, timeout: float, autocommit: bool, socket: str | None,
        at_least: str | None, max_stale: float | None = None, here: bool = False,
    ) -> None:  # fmt: skip
        """here: only a copy at this station will do. Raises Elsewhere."""
        for what, value, values in (
            ("isolation", isolation, ISOLATIONS), ("read", read, READS), ("durability", durability, DURABILITIES),
        ):  # fmt: skip
            if value not in values:
                raise ProgrammingError(f"{what} is one of {', '.join(values)}, not {value!r}")
        self.name, self.isolation, self.read, self.durability, self.timeout = name, isolation, read, durability, timeout
        self.row_factory: Callable[[Cursor, tuple[Any, ...]], Any] | None = None
        self.max_stale = max_stale
        """Seconds without quorum after which reads fail; None: never."""
        self._fresh_until = -math.inf
        """So long reads need not ask whether the copy here is fresh."""
        self._foreign_keys = True
        self._autocommit = autocommit
        self._socket = socket
        self._closed = False
        self._service: Service | None = None
        self._path, self._link = Path(), ""
        """The link, and its name as a text."""
        self._pointed = ""
        """What the link names, of which the branch is."""
        self._branch: Branch | None = None
        self._reads: Reads | None = None
        self._known: set[str] = set()
        """Texts that are one SELECT (``quick``)."""
        self._functions: list[tuple[Any, ...]] = []
        self._explicit = False
        """A BEGIN of the program's has begun the transaction."""
        self._began = 0.0
        self._mutex = threading.RLock()
        """Held while the connection is in use: another thread ends a transaction that is too old."""
        self._is_committing = False
        self._has_expired = False
        """That thread has ended the transaction, and the program does not know it yet."""
        self._touched = False
        """Something has been run in the transaction."""
        self._snapshot = (0, 0)
        """Epoch and version of the transaction's snapshot."""
        self._read_set: set[bytes] = set()
        self._keys = Keys(self)
        self._lone = Lone(self)
        self._lock: Txid | None = None
        self._has_read = False
        """Statements of their own have read since."""
        self._seen = (0, 0)
        """The newest epoch and version that this connection has seen or written."""
        self._found = (0, 0)
        """The copy here has had this position."""
        self._start = (secrets.randbits(32), secrets.randbits(32))
        self._number = 0
        self._own_txid: Txid | None = None
        """Of the present transaction, if a program of another station has drawn it; then the driver runs for that program."""
        opened = self._ask("open", here=here or None)
        if opened.get("distant"):
            self._service, service = None, self._service
            if service is not None:
                service.close()
            raise Elsewhere
        self._is_confined = here
        self._path, self._link = Path(opened["path"]), opened["path"]
        self._is_gated = opened.get("mode") == "unanimous"
        if at_least is not None:
            reach(self, at_least)
        watch.add(self)

    # ---- PEP 249

    def cursor(self) -> Cursor:
        self._check()
        return Cursor(self)

    def execute(self, sql: str, parameters: Bindings = ()) -> Cursor:
        """``cursor().execute(…)``."""
        return self.cursor().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Iterable[Bindings]) -> Cursor:
        """``cursor().executemany(…)``."""
        return self.cursor().executemany(sql, parameters)

    def executescript(self, script: str) -> Cursor:
        """``cursor().executescript(…)``."""
        return self.cursor().executescript(script)

    def commit(self) -> None:
        """Commit the transaction, if there is one, and return when it is as durable as the connection wants. Whatever it raises,
        the transaction is over: SerializationError (another one came before: run it again), IntegrityError, NoQuorum (nothing is
        committed), Undecided (not known)."""
        with self._mutex:
            self._check()
            self._check_age()
            if self._branch is None or self._branch.begun is None:
                return
            self._is_committing = True
            try:
                self._commit(self._branch)
            finally:
                self._is_committing = False
                self._end()

    def rollback(self) -> None:
        """End the transaction, if there is one; nothing of it is left."""
        self._check()
        self._abandon()

    def close(self) -> None:
        """Close; an open transaction is rolled back. Again: nothing happens."""
        if self._closed:
            return
        self._closed = True
        watch.remove(self)
        with self._mutex:
            with contextlib.suppress(Error):
                self._end()
            if self._branch is not None:
                self._branch.close()
        if self._service is not None:
            self._service.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """As with ``sqlite3``: commit, or roll back if there was an exception. The connection stays open."""
        if kind is None:
            self.commit()
        else:
            self.rollback()

    # ---- more

    @property
    def autocommit(self) -> bool:
        """Statements outside of BEGIN are transactions of their own."""
        return self._autocommit

    @autocommit.setter
    def autocommit(self, value: bool) -> None:
        self._check()
        if self.in_transaction:
            self.commit()
        self._autocommit = value

    @property
    def in_transaction(self) -> bool:
        return self._branch is not None and self._branch.begun is not None

    def run(self, function: Callable[[Self], _T], *, tries: int = TRIES) -> _T:
        """Call ``function(connection)`` in a transaction, and commit; again, as often as ``tries``, if another transaction came
        before. So it may run more than once, and must do nothing besides that cannot be repeated. Returns what it returned."""

        def once() -> _T:
            self.rollback()
            self._begin()
            result = function(self)
            self.commit()
            return result

        return self._again(once, tries)

    def _begin(self) -> None:
        with self._mutex:
            self._start_transaction(explicit=True)

    def _again(self, once: Callable[[], _T], tries: int = TRIES) -> _T:
        """A whole transaction, tried again when another one came before. What it was in when it failed is given up."""
        for number in range(1, tries + 1):
            try:
                return once()
            except Error as error:
                self._abandon()
                if not error.retryable or number == tries:
                    raise
            except BaseException:
                self._abandon()
                raise
            pause(number)
        raise ProgrammingError("tries is at least 1")

    def token(self) -> str:
        """What this connection has seen and written: for ``at_least`` of another one, perhaps at another station."""
        if self._has_read and not self.in_transaction:
            self._start_transaction(explicit=False)  # what statements of their own have seen is not newer than this
            self._end()
        return f"{self._seen[0]}.{self._seen[1]}"

    def create_function(self, name: str, narg: int, func: Callable[..., Any] | None, *, deterministic: bool = False) -> None:
        """A function for this connection's statements, not for what sites compute themselves (indexes, generated columns)."""
        self._check()
        self._add_function("create_scalar_function", name, func, narg, deterministic=deterministic)

    def create_aggregate(self, name: str, n_arg: int, aggregate_class: Callable[[], Any] | None) -> None:
        """As ``sqlite3`` has it: objects of the class with ``step`` and ``finalize``."""
        self._check()
        self._add_function("create_aggregate_function", name, aggregate(aggregate_class), n_arg)

    def _add_function(self, how: str, *arguments: Any, **options: Any) -> None:
        self._functions.append((how, arguments, options))
        if self._branch is not None:
            for connection in (self._branch.reader, self._branch.writer):
                getattr(connection, how)(*arguments, **options)

    def watch(self, *tables: str, since: int | None = None, timeout: float | None = None) -> Iterator[Change]:
        """What is committed, change by change and in order, none missing, as it comes to this station.

        tables:  only of these; without any, changes of the schema as well.
        since:   a version: what followed it. Default: what follows now.
        timeout: seconds until the end, if nothing comes; None: there is no end.
        Raises WatchGap: what followed is no longer in the history here (the last 1,000 versions), or the version was left behind.
        """
        options: dict[str, Any] = {"isolation": "snapshot", "read": "local", "durability": "memory", "autocommit": True}
        other = Connection(self.name, **options, timeout=self.timeout, socket=self._socket, at_least=None)
        try:
            yield from changes(other, tables, since, timeout)
        finally:
            other.close()

    def iterdump(self) -> Iterator[str]:
        """The statements that make the database again."""
        with self._reading() as branch, self._mapped():
            yield from dump(branch.reader)

    def backup(self, target: str | Path) -> None:
        """Copy the database as it is now to another file."""
        with self._reading() as branch, self._mapped():
            other = apsw.Connection(str(target))
            try:
                with other.backup("main", branch.reader, "main") as backup:
                    backup.step()
            finally:
                other.close()

    def split(self, script: str) -> Iterator[str]:
        """The statements of a script; the last one need not be complete."""
        return split(script)

    # ---- the process

    def _ask(self, do: str, *, seconds: float | None = None, **arguments: Any) -> dict[str, Any]:
        """An answer of the process. Raises NotReachable, Lost, and what it refuses with."""
        if self._service is None:
            self._service = Service(self._socket, timeout=self.timeout)
        try:
            return self._service.ask(do, db=self.name, timeout=self.timeout if seconds is None else seconds, **arguments)
        except Lost:
            self._service.close()
            self._service = None
            raise

    # ---- transactions

    def _open(self) -> Branch:
        """The branch of the present file; another one if a new copy has taken its place."""
        try:
            pointed = os.readlink(self._link)  # noqa: PTH115 (a transaction of 50 us does not make Path objects)
        except OSError as error:
            raise OperationalError(f"{self._path}: {error.strerror}: the database is dropped, or not here yet") from None
        if self._branch is None or pointed != self._pointed:
            before, self._branch = self._branch, None
            if before is not None:
                before.close()
            branch = self._branch = Branch(self._path.parent / pointed, before)
            self._pointed = pointed
            if self._is_confined:
                branch.confine(CALL_MAX)
            self._reads = Reads(branch.writer, lambda: branch.has_temporary, branch.schema_version)
            for how, arguments, options in self._functions:
                for connection in (self._branch.reader, self._branch.writer):
                    getattr(connection, how)(*arguments, **options)
        return self._branch

    def _start_transaction(self, *, explicit: bool) -> Branch:
        barrier: int | None = None
        if self.read == "linearizable":
            barrier = int(self._ask("barrier", durability=self.durability)["version"])
        else:
            check_fresh(self)
        branch = begin_open(self) if self._is_gated else self._open()
        self._explicit, self._began, self._touched = explicit, time.monotonic(), False
        branch.checks_keys = self._foreign_keys
        if not self._is_gated:
            branch.begin()
        self._read_set.clear()
        if self._reads is not None:
            self._reads.begin()
        epoch, version = branch.position
        self._snapshot = (epoch, version)
        if self._snapshot < self._seen:
            branch.end()
            raise PositionLost(f"the copy here is at version {version} of epoch {epoch}, before what this connection has seen")
        if barrier is not None and version > barrier and self.durability != "memory":
            wait_durable(self, branch)
        self._seen = self._found = self._snapshot
        self._keys.begin(epoch)
        self._has_read = False
        return branch

    def _end(self) -> None:
        """End the transaction, whatever has become of it, and the lock."""
        if self._lock is not None:
            lock, self._lock = self._lock, None
            with contextlib.suppress(Error):
                self._ask("unlock", txid=lock.encode())
        if self._branch is not None:
            self._branch.end()
        self._explicit = False
        self._read_set.clear()

    def _check(self) -> None:
        if self._closed:
            raise ProgrammingError("the connection is closed")

    def _check_age(self) -> None:
        """The program learns once that its transaction is over."""
        if self._has_expired or self._is_old():
            self._has_expired = False
            self._end()
            raise TooOld

    def _ended_or(self, error: Error) -> Error:
        """What the program gets for this error: a statement that was interrupted has ended its transaction, and rows of one that
        has ended are gone."""
        if isinstance(error, TooOld):
            self._end()
        return TooOld() if self._has_expired else error

    def _abandon(self) -> None:
        with self._mutex:
            self._has_expired = False
            self._end()

    def _is_old(self) -> bool:
        return self.in_transaction and time.monotonic() - self._began > ageing.TRANSACTION_S

    def _end_if_old(self) -> None:
        """In another thread. A statement that runs is interrupted; a commit is not, it has a time-out of its own."""
        if not self._is_old():
            return
        if not self._mutex.acquire(blocking=False):
            branch = self._branch
            if branch is not None and not self._is_committing:
                branch.interrupt()
            return
        try:
            if not self._closed and self._is_old():
                lock, self._lock = self._lock, None  # its end is asked by the program's next call
                self._end()
                self._lock = lock
                self._has_expired = True
        finally:
            self._mutex.release()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Branch]:
        """The transaction that is open, or one for this."""
        self._check()
        if self.in_transaction and self._branch is not None:
            began, self._began = self._began, math.inf  # in the middle another snapshot would not be noticed
            try:
                yield self._branch
            finally:
                self._began = began
            return
        branch = self._start_transaction(explicit=False)
        self._began = math.inf  # as long as it takes
        try:
            yield branch
        finally:
            self._end()

    def _txid(self) -> Txid:
        if self._own_txid is not None:
            return self._own_txid
        self._number += 1
        station = self._service.station if self._service is not None else 0
        return Txid(station, *self._start, self._number)

    def _commit(self, branch: Branch) -> None:
        with self._mapped():
            segments = branch.segments()
            if not segments:
                branch.keep()
                return
        body = self._lone.body(segments)
        if len(body) > BODY_MAX:
            raise DataError(f"the transaction changes {len(body)} bytes, before and after together; {BODY_MAX} are allowed")
        reads = self._sent_reads()
        txid = self._lock or self._txid()
        if not branch.has_temporary:
            branch.end()  # the log cannot begin anew before the snapshot has ended, and this one need not wait for others
        version = send(
            self,
            {
                "txid": txid.encode(),
                "epoch": self._snapshot[0],
                "snapshot": self._snapshot[1],
                "reads": b"".join(sorted(reads)),
                "durability": self.durability,
            },
            body,
        )
        self._lock = None
        self._lone.committed(txid, version)
        self._seen = max(self._seen, (self._snapshot[0], version))
        with contextlib.suppress(apsw.Error, Error):  # it is committed: an error would say that it is not
            branch.keep()

    def _sent_reads(self) -> set[bytes]:
        if self._lock is None and self.isolation == "snapshot":
            return set()
        if self._lock is None and len(self._read_set) <= READS_MAX:
            return self._read_set
        # Too many rows: their tables. Which these are is not kept, so all. Who has the database alone may have lost that without
        # knowing it (rule H3): while it holds nothing is newer, and afterwards everything that is counts.
        assert self._branch is not None
        names: list[Any] = self._branch.reader.execute("SELECT name FROM main.sqlite_schema WHERE type = 'table'").fetchall()
        return {table_hash(name) for (name,) in names}

    # ---- statements

    def _execute(self, cursor: Cursor, sql: str, bindings: Bindings) -> None:
        if sql in self._known and read_quickly(self, cursor, sql, bindings):
            return
        kind = kind_of(sql)
        if kind is Kind.ROLLBACK:
            self.rollback()
            return
        with self._mutex:
            self._check_age()
            try:
                self._run(cursor, kind, sql, bindings)
            except Error as error:
                raise self._ended_or(error) from error.__cause__

    def _run(self, cursor: Cursor, kind: Kind, sql: str, bindings: Bindings) -> None:
        if (value := foreign_keys_of(sql)) is not None:
            self._set_foreign_keys(cursor, value)
        elif kind is Kind.BEGIN:
            if self.in_transaction:
                raise OperationalError("cannot start a transaction within a transaction")
            self._start_transaction(explicit=True)
            if is_exclusive(sql):
                self._take_lock()
        elif kind is Kind.COMMIT:
            self.commit()
        elif kind is Kind.EMPTY:
            return
        elif self.in_transaction:
            self._in_transaction(cursor, kind, sql, bindings)
        elif (not self._autocommit and kind is not Kind.READ) or not self._autocommit:
            self._start_transaction(explicit=False)
            self._in_transaction(cursor, kind, sql, bindings)
        elif kind is not Kind.READ or not read_alone(self, cursor, sql, bindings):
            self._alone(lambda: self._in_transaction(cursor, kind, sql, bindings), cursor)

    def _set_foreign_keys(self, cursor: Cursor, value: str) -> None:
        """As with SQLite it has no effect within a transaction."""
        if not value:
            cursor.description = (("foreign_keys", *[None] * 6),)
            cursor._rows = iter([(int(self._foreign_keys),)])
        elif not self.in_transaction:
            self._foreign_keys = value in ("ON", "YES", "TRUE", "1")

    def _execute_many(self, cursor: Cursor, sql: str, many: Iterable[Bindings]) -> None:
        kind = kind_of(sql)
        if kind is not Kind.WRITE and words_of(sql)[:1] != ("WITH",):
            raise ProgrammingError("executemany is for INSERT, UPDATE, DELETE and REPLACE")

        def run(each: Iterable[Bindings] = many) -> None:
            changed = 0
            for bindings in each:
                self._check_age()
                self._in_transaction(cursor, Kind.WRITE, sql, bindings)
                changed += max(0, cursor.rowcount)
            cursor.rowcount = changed

        with self._mutex:
            self._check_age()
            if self.in_transaction or not self._autocommit:
                if not self.in_transaction:
                    self._start_transaction(explicit=False)
                run()
            else:
                kept = list(many)
                self._alone(lambda: run(kept), cursor)

    def _alone(self, run: Callable[[], None], cursor: Cursor) -> None:
        """A transaction of its own, tried again when another one came before."""
        for number in range(1, TRIES + 1):
            self._start_transaction(explicit=False)
            self._lone.begin()
            try:
                run()
                with self._mapped():
                    cursor._rows = iter(list(cursor._rows))
                self.commit()
                self._lone.settle(cursor)
                return
            except Error as error:
                if not error.retryable or number == TRIES:
                    raise
            finally:
                self._lone.end()
                self._end()
            pause(number)

    def _in_transaction(self, cursor: Cursor, kind: Kind, sql: str, bindings: Bindings) -> None:
        branch = self._branch
        assert branch is not None
        if kind is Kind.SCHEMA and not branch.is_temporary(sql):
            self._change_schema(branch, sql, bindings)
            return
        try:
            if kind is Kind.SAVEPOINT:
                branch.savepoint(sql)
            elif kind is not Kind.READ or branch.is_writing or not self._read(branch, cursor, sql, bindings):
                self._write(branch, cursor, sql, bindings)
        except apsw.ConstraintError as error:
            # The program has learned of rows that are there, or are not.
            self._note(sql, bindings, failed=True)
            branch.changed = 0
            raise mapped(error) from error
        except apsw.Error as error:
            raise mapped(error) from error
        self._touched = True

    def _read(self, branch: Branch, cursor: Cursor, sql: str, bindings: Bindings) -> bool:
        """Run it on the reader; False: it is not only a read, or names what is only on the writer, or may."""
        if branch.has_temporary:
            return False
        writes = False

        def trace(each: apsw.Cursor, text: str, values: object) -> bool:
            nonlocal writes
            writes = not each.is_readonly
            return not writes and self._is_one(sql, text)

        each = branch.read(trace)
        try:
            each.execute(sql, bindings)
        except apsw.ExecTraceAbort:
            if writes:
                return False
            raise ProgrammingError("one statement at a time: executescript runs several") from None
        except apsw.SQLError:
            return False  # it may be a temporary table, and the writer will tell
        cursor._rows, cursor._described = each, columns_of(each, sql, bindings)
        self._note(sql, bindings)
        return True

    def _write(self, branch: Branch, cursor: Cursor, sql: str, bindings: Bindings) -> None:
        wanting: list[str] = []

        def trace(each: apsw.Cursor, text: str, values: object) -> bool:
            nonlocal wanting
            cursor._described = each.get_description()
            # Who has the database alone needs no ids of its own; what is prepared now may insert by triggers, too.
            wanting = [] if self._lock is not None or each.is_readonly else self._keys.wanting(branch, sql)
            return not wanting and self._is_one(sql, text)

        word = "".join(words_of(sql, 1))
        changes_temporary = word in ("ALTER", "CREATE", "DROP")
        if changes_temporary:
            self._note(sql, bindings)  # afterwards it is an error
        try:
            each = branch.execute(sql, bindings, trace)
        except apsw.ExecTraceAbort:
            if wanting:
                self._keys.arm(branch, wanting)
                self._write(branch, cursor, sql, bindings)
                return
            raise ProgrammingError("one statement at a time: executescript runs several") from None
        cursor._rows = each
        if word in ("INSERT", "REPLACE", "UPDATE", "DELETE") or (word == "WITH" and not branch.only_reads):
            if cursor.description is not None:
                cursor._rows = iter(each.fetchall())  # RETURNING: it is done when its rows are read
            cursor.rowcount = branch.changed = branch.writer.changes()
            if word in ("INSERT", "REPLACE"):
                cursor.lastrowid = branch.writer.last_insert_rowid()
                branch.reader.set_last_insert_rowid(cursor.lastrowid)
        self._keys.used(branch)
        if not changes_temporary:
            self._note(sql, bindings)  # not before: an EXPLAIN counts as a statement that changes nothing
            self._lone.ran(sql, bindings)

    @staticmethod
    def _is_one(sql: str, text: str) -> bool:
        """The statement that begins is the whole text, but for blanks and comments."""
        return len(text) == len(sql) or kind_of(sql[len(text) :]) is Kind.EMPTY or not sql.startswith(text)

    def _note(self, sql: str, bindings: Bindings, *, failed: bool = False) -> None:
        """What the transaction has read. Statements on their own that only read are not sent, and need not be looked at."""
        branch = self._branch
        if branch is None or self._reads is None or self.isolation == "snapshot" or self._lock is not None:
            return
        if (not self._explicit and self._autocommit and not branch.is_writing) or words_of(sql, 1) == ("EXPLAIN",):
            return
        self._read_set.update(self._reads.tables_of(sql, bindings) if failed else self._reads.of(sql, bindings))

    # ---- the schema

    def _change_schema(self, branch: Branch, sql: str, bindings: Bindings) -> None:
        self._take_lock()
        with self._mapped():
            branch.change_schema(sql, bindings)
        self._touched = True

    def _take_lock(self) -> None:
        """Have the database alone until the transaction ends. What it has seen must be what is there then."""
        if self._lock is not None:
            return
        txid = self._txid()
        version = int(self._ask("lock", txid=txid.encode())["version"])
        self._lock = txid
        if version == self._snapshot[1] + self._keys.leases:
            return  # nothing else has come between
        if self._touched:
            error = SerializationError("another transaction came before this one had the database alone")
            error.code = "schema"
            raise error
        branch, explicit = self._branch, self._explicit
        assert branch is not None
        branch.end()
        self._start_transaction(explicit=explicit)

    @contextlib.contextmanager
    def _mapped(self) -> Iterator[None]:
        """SQLite's errors as PEP 249 has them."""
        try:
            yield
        except apsw.Error as error:
            raise mapped(error) from error
