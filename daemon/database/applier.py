"""The one connection of a site that writes the database: transactions that the order has committed, applied row by row.

Whether a transaction applies is part of its verdict, which all sites must come to alike, so nothing may depend on the station:
triggers and foreign-key actions are off (what they did at the origin is in the changeset), conflicts abort, and a changeset whose
tables are not exactly those of the schema is refused, for SQLite would leave out what it does not know and report success.
docs/database.md has the rules.
"""

from __future__ import annotations

import contextlib
import ctypes
import stat
from enum import Enum
from pathlib import Path
from time import monotonic, sleep
from typing import Final, Self

import apsw

from ...proto.service.database.changeset import summary
from . import vfs
from .errors import InternalError, OperationalError
from .guarding import is_recorded
from .leases import automatic
from .numbering import column_of, highest_number
from .plain import Plain

__all__ = ["PAUSE_MAX_S", "PAUSE_S", "WAL_BYTES_MAX", "Applied", "Applier"]

PAGE_BYTES: Final = 4096
WAL_BYTES_MAX: Final = 64 << 20
"""From this size on the applier pauses, so that the WAL can start again from its beginning."""
PAUSE_S: Final = 0.1
"""The first such pause at most. It has to be longer than most transactions; a longer one that is open keeps the WAL growing."""
PAUSE_MAX_S: Final = 1.0
"""One after others in vain, of which each is twice as long as the one before."""
_RETRY_S: Final = 0.002
_BUSY_MS: Final = 5000
"""How long to wait while another process recovers the WAL, or looks at it as it does."""
_FLAGS: Final = apsw.SQLITE_CHANGESETAPPLY_NOSAVEPOINT | apsw.SQLITE_CHANGESETAPPLY_FKNOACTION


class Applied(Enum):
    """What became of a changeset."""

    DONE = "done"
    CONSTRAINT = "constraint"
    """UNIQUE, NOT NULL, CHECK or a foreign key is violated: another transaction came between."""
    IMAGE = "image"
    """A row is missing or its values are others, or the schema is another one: not what the origin had before it."""


_REASONS: Final = {
    apsw.SQLITE_CHANGESET_DATA: Applied.IMAGE,
    apsw.SQLITE_CHANGESET_NOTFOUND: Applied.IMAGE,
    apsw.SQLITE_CHANGESET_CONFLICT: Applied.CONSTRAINT,
    apsw.SQLITE_CHANGESET_CONSTRAINT: Applied.CONSTRAINT,
    apsw.SQLITE_CHANGESET_FOREIGN_KEY: Applied.CONSTRAINT,
}
_ABORT: Final[int] = apsw.SQLITE_CHANGESET_ABORT


class Applier:
    """A connection that applies changesets, with what it knows of the schema. It belongs to one thread."""

    def __init__(self, connection: apsw.Connection) -> None:
        """The connection of a file that ``open`` has made, or one in memory."""
        connection.pragma("foreign_keys", True)
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
        self.connection = connection
        self.knows_schema = False
        """The schema changes by what its holder tells alone, who calls ``look``."""
        self._version = -1
        self._keys: dict[str, tuple[int, ...] | None] = {}
        self._plain = Plain(connection)
        self._numbers: dict[str, str | None] = {}
        """The column with the numbers of a table's rows, as far as it has been asked for; None: it has none to pick."""

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the database for applying; a missing file is created. No other connection may write or checkpoint it. Commits are
        not synced (``synchronous = NORMAL``): the caller that reports durability syncs the WAL. Raises OperationalError."""
        vfs.load()  # the SQLite that branches use, or none
        try:
            connection = apsw.Connection(str(path))
        except apsw.Error as error:
            raise OperationalError(f"{path}: {error}") from error
        with contextlib.ExitStack() as opened:
            opened.callback(connection.close, True)
            try:
                connection.set_busy_timeout(_BUSY_MS)
                # These two have an effect only while the file is empty.
                connection.pragma("page_size", PAGE_BYTES)
                connection.pragma("auto_vacuum", "INCREMENTAL")
                if connection.pragma("journal_mode", "WAL") != "wal":
                    raise OperationalError(f"{path}: the file system cannot do WAL mode")
                connection.pragma("synchronous", "NORMAL")
                connection.wal_autocheckpoint(0)
                # The WAL stays when the last connection closes: branches that open then could not make one.
                one = ctypes.c_int(1)
                connection.file_control("main", apsw.SQLITE_FCNTL_PERSIST_WAL, ctypes.addressof(one))
                connection.pragma("schema_version")
                _share(path)
                applier = cls(connection)
            except apsw.Error as error:
                raise OperationalError(f"{path}: {error}") from error
            opened.pop_all()
        return applier

    def close(self) -> None:
        """Close the connection; an open transaction is rolled back. WAL and ``-shm`` stay."""
        self.connection.close(True)

    def apply(self, changeset: bytes) -> Applied:
        """Apply a changeset within the transaction that is open, wholly or not at all. Only the bytes and the rows there decide
        the result. Raises OperationalError or InternalError if the file cannot be written or is damaged: then the site has
        failed, and the transaction has to be rolled back."""
        try:
            about = summary(changeset)
        except ValueError:
            return Applied.IMAGE
        try:
            if not self.knows_schema:
                self.look()
            if not all(self._key(table.name) == table.key for table in about.tables):
                return Applied.IMAGE
            plain = self._plain.statements(about.few)
            if plain and self._plain.is_whole(about.few) and self._plain.run(plain):
                return Applied.DONE
            self.connection.execute("SAVEPOINT zenjun_apply")
            found = []
            if not plain or not self._plain.run(plain):
                if plain:
                    self.connection.execute("ROLLBACK TO zenjun_apply")
                found = self._apply_all(changeset)
            self.connection.execute("RELEASE zenjun_apply")
        except (apsw.CorruptError, apsw.NotADBError) as error:
            raise InternalError(f"the database is damaged: {error}") from error
        except apsw.Error as error:
            raise OperationalError(f"cannot apply: {error}") from error
        return found[0] if found else Applied.DONE

    def _apply_all(self, changeset: bytes) -> list[Applied]:
        """SQLite's own way, in the savepoint that is open; what it gives is not empty if nothing is applied."""
        found: list[Applied] = []

        def on_conflict(reason: int, change: apsw.TableChange) -> int:
            found.append(_REASONS[reason])
            return _ABORT

        try:
            apsw.Changeset.apply(changeset, self.connection, conflict=on_conflict, flags=_FLAGS)
        except (apsw.AbortError, apsw.ConstraintError):  # the latter for foreign keys
            if not found:
                raise
            self.connection.execute("ROLLBACK TO zenjun_apply")
        return found

    def look(self) -> None:
        """The schema may be another one."""
        version = self.connection.pragma("schema_version")
        if version != self._version:
            self._version = version
            self._keys.clear()
            self._numbers.clear()
            self._plain.forget()

    def highest(self, table: str) -> int | None:
        """See ``proto.service.database.rows.Rows``. Errors are apsw's."""
        if not self.knows_schema:
            self.look()
        if table not in self._numbers:
            # Ids of AUTOINCREMENT tables are used once, and others may have those above the highest row (rule K7).
            found = None if table in automatic(self.connection) else column_of(self.connection, table)
            self._numbers[table] = found
        column = self._numbers[table]
        return None if column is None else highest_number(self.connection, table, column)

    def _key(self, table: str) -> tuple[int, ...] | None:
        """What a changeset has to have as the key of this table, by column; None: no table of the program's. Generated columns
        are not in changesets, and a table without a key has its rowid in front."""
        if table not in self._keys:
            self._keys[table] = self._read_key(table) if is_recorded(table) else None
        return self._keys[table]

    def _read_key(self, table: str) -> tuple[int, ...] | None:
        query = "SELECT 1 FROM pragma_table_list WHERE schema = 'main' AND name = ? AND type IN ('table', 'shadow')"
        if not self.connection.execute(query, (table,)).fetchall():
            return None
        query = "SELECT pk FROM pragma_table_xinfo(?, 'main') WHERE hidden = 0 ORDER BY cid"
        key = tuple(pk for (pk,) in self.connection.execute(query, (table,)))
        return key if any(key) else (1, *key)

    def restart_wal(self, pause_s: float = PAUSE_S) -> bool:
        """Bring the WAL's frames into the file, and if possible let the next commit begin the WAL again, waiting at most
        *pause_s* for the readers that need it. Without commits meanwhile, readers that begin need the file only. Whether it was
        possible."""
        until = monotonic() + pause_s
        # No time-out of its own: while it waits it would hold a lock that readers which begin want.
        self.connection.set_busy_timeout(0)
        try:
            while True:
                with contextlib.suppress(apsw.BusyError):
                    self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
                    return True
                if monotonic() >= until:
                    return False
                sleep(_RETRY_S)
        except apsw.Error as error:
            raise OperationalError(f"cannot checkpoint: {error}") from error
        finally:
            self.connection.set_busy_timeout(_BUSY_MS)


def _share(path: Path) -> None:
    """Let the group of the file write its ``-shm``, whose mode SQLite copies from the file. A reader that may not write there
    finds no free read mark, and gets no snapshot."""
    shm = path.with_name(path.name + "-shm")
    mode = stat.S_IMODE(shm.stat().st_mode)
    wanted = mode | (stat.S_IWGRP if mode & stat.S_IRGRP else 0)
    if wanted != mode:
        shm.chmod(wanted)
