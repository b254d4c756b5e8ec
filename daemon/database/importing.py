"""An SQLite file becomes the first copy of a database: looked through, laid out as copies are, at version 0."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, Final

import apsw

from ...proto.service.database.rows import RowsFailed
from ..durable import sync
from .applier import Applier
from .copy import FILE_MODE
from .errors import DatabaseError
from .guarding import MODULES, OWN_PREFIX, quoted, uneven
from .rows import SqliteRows

OWN_TABLES: Final = ("zenjun_meta", "zenjun_log", "zenjun_lease", "zenjun_gate")
"""Of a backup of a database: they are left out."""
_TABLES: Final = """
    SELECT l.name, l.type, s.sql FROM pragma_table_list l JOIN main.sqlite_schema s ON s.name = l.name AND s.type = 'table'
    WHERE l.schema = 'main' ORDER BY l.name"""
_KEY: Final = "SELECT name, upper(type), \"notnull\" FROM pragma_table_xinfo(?, 'main') WHERE pk > 0 ORDER BY pk"
_COLLATIONS: Final = """
    SELECT x.name FROM pragma_index_list(?, 'main') l JOIN pragma_index_xinfo(l.name, 'main') x
    WHERE l.origin = 'pk' AND x.key AND upper(x.coll) <> 'BINARY'"""


class ImportRefused(Exception):
    """The file cannot become a database; one line says why."""


def imported(source: Path, target: Path, uuid: bytes) -> None:
    """Make a copy at version 0 of what *source* has, on the disk. The source, which is nobody else's, is changed. Raises
    ImportRefused, OSError."""
    part = target.with_name(target.name + ".part")
    for suffix in ("", "-wal", "-shm"):
        part.with_name(part.name + suffix).unlink(missing_ok=True)
    try:
        with contextlib.closing(apsw.Connection(str(source))) as connection:
            _check(connection)
            for table in OWN_TABLES:
                connection.execute(f"DROP TABLE IF EXISTS {table}")
            connection.execute("PRAGMA page_size = 4096; PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute("VACUUM INTO ?", (str(part),))
        applier = Applier.open(part)
        try:
            SqliteRows(applier, uuid).create(uuid)
            applier.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        finally:
            applier.close()
    except (apsw.Error, DatabaseError, RowsFailed) as error:
        raise ImportRefused(f"it cannot be read: {error}") from error
    finally:
        for suffix in ("-wal", "-shm"):
            part.with_name(part.name + suffix).unlink(missing_ok=True)
    part.chmod(FILE_MODE)
    sync(part)
    part.rename(target)
    sync(target.parent)


def _check(connection: apsw.Connection) -> None:
    """Raises ImportRefused for what copies would not keep equal."""
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    connection.execute("PRAGMA journal_mode = DELETE; PRAGMA foreign_keys = OFF").fetchall()
    if (encoding := connection.pragma("encoding")) != "UTF-8":
        raise ImportRefused(f"its encoding is {encoding}, not UTF-8")
    found: list[Any] = connection.execute("PRAGMA quick_check(1)").fetchall()
    if found != [("ok",)]:
        raise ImportRefused(f"it is damaged: {found[0][0]}")
    violated: list[Any] = connection.execute("PRAGMA foreign_key_check").fetchall()
    if violated:
        raise ImportRefused(f"a foreign key is violated: {violated[0][0]} refers to rows of {violated[0][2]} that are not there")
    tables: list[Any] = connection.execute(_TABLES).fetchall()
    for name, kind, sql in tables:
        if name.lower().startswith(OWN_PREFIX) and name not in OWN_TABLES:
            raise ImportRefused(f"table {name}: names that begin with {OWN_PREFIX} are zenjun's")
        if kind == "virtual" and not any(f"using {module}" in " ".join(sql.lower().split()) for module in MODULES):
            raise ImportRefused(f"table {name}: of virtual tables only {' and '.join(sorted(MODULES))} can be replicated")
        if kind == "table" and name not in OWN_TABLES:
            _check_key(connection, name)
    if reason := uneven(connection):
        raise ImportRefused(reason)


def _check_key(connection: apsw.Connection, table: str) -> None:
    key: list[Any] = connection.execute(_KEY, (table,)).fetchall()
    if not key:
        if connection.execute("SELECT 1 FROM pragma_table_xinfo(?, 'main') WHERE lower(name) = '_rowid_'", (table,)).fetchall():
            raise ImportRefused(f"table {table}: it has no key, and a column with the name _rowid_")
        return
    if len(key) == 1 and key[0][1] == "INTEGER":
        return
    for column, kind, notnull in key:
        if not kind:
            raise ImportRefused(f"{table}.{column}: a column of a key needs a type")
        if notnull:
            continue
        if connection.execute(f"SELECT 1 FROM main.{quoted(table)} WHERE {quoted(column)} IS NULL LIMIT 1").fetchall():
            raise ImportRefused(f"{table}.{column}: NULL in a key")
    collated: list[Any] = connection.execute(_COLLATIONS, (table,)).fetchall()
    if collated:
        raise ImportRefused(f"{table}.{collated[0][0]}: the collation of a key has to be BINARY")
