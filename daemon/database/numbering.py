"""Numbers as the keys of rows: SQLite picks them above the highest one, and so does each site for rows that are inserted by a
statement which is a transaction of its own (rule K8)."""

from __future__ import annotations

from typing import Any, Final

import apsw

from .guarding import is_recorded, quoted

__all__ = ["column_of", "highest_number"]

_TABLE: Final = "SELECT 1 FROM pragma_table_list WHERE schema = 'main' AND name = ? AND type = 'table' AND NOT wr"
_COLUMNS: Final = "SELECT name, pk, upper(type) FROM pragma_table_xinfo(?, 'main')"
_KEY_INDEX: Final = "SELECT 1 FROM pragma_index_list(?, 'main') WHERE origin = 'pk'"
_ROWID: Final = "_rowid_"


def column_of(connection: apsw.Connection, table: str) -> str | None:
    """The column with the number of this table's rows, which is their key: ``_rowid_`` of a table without a key. None: their key
    is another one."""
    if not is_recorded(table) or not connection.execute(_TABLE, (table,)).fetchall():
        return None
    columns: list[Any] = connection.execute(_COLUMNS, (table,)).fetchall()
    key = [(str(name), kind) for name, pk, kind in columns if pk]
    if not key:
        return None if _ROWID in {str(name).lower() for name, *_ in columns} else _ROWID
    if key[0][1] != "INTEGER" or connection.execute(_KEY_INDEX, (table,)).fetchall():
        return None  # also INTEGER PRIMARY KEY DESC, which SQLite keeps apart from the number
    return key[0][0]


def highest_number(connection: apsw.Connection, table: str, column: str) -> int:
    """The highest number of its rows, 0 without rows."""
    found: list[Any] = connection.execute(f"SELECT max({quoted(column)}) FROM main.{quoted(table)}").fetchall()
    return int(found[0][0] or 0)
