"""A database as statements that make it again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import apsw

from ..guarding import quoted

_TABLES: Final = """
    SELECT l.name, l.type, s.sql FROM pragma_table_list l JOIN main.sqlite_schema s ON s.name = l.name
    WHERE l.schema = 'main' AND l.type IN ('table', 'virtual') AND l.name NOT LIKE 'sqlite\\_%' ESCAPE '\\'
      AND l.name NOT LIKE 'zenjun\\_%' ESCAPE '\\' ORDER BY s.rowid"""
_COLUMNS: Final = "SELECT name FROM pragma_table_xinfo(?, 'main') WHERE hidden = 0 ORDER BY cid"
_REST: Final = """
    SELECT sql FROM main.sqlite_schema WHERE type <> 'table' AND sql IS NOT NULL
      AND tbl_name NOT LIKE 'zenjun\\_%' ESCAPE '\\' ORDER BY rowid"""


def dump(connection: apsw.Connection) -> Iterator[str]:
    """One statement after another, in one transaction: tables, rows, then indexes, views and triggers."""
    yield "BEGIN;"
    yield "PRAGMA defer_foreign_keys = ON;"
    tables: list[Any] = connection.execute(_TABLES).fetchall()
    for name, kind, sql in tables:
        yield f"{sql};"
        columns: list[Any] = connection.execute(_COLUMNS, (name,)).fetchall()
        listed = ", ".join(quoted(column) for (column,) in columns)
        rows = "rowid, " if kind == "virtual" else ""
        for row in connection.execute(f"SELECT {rows}{listed} FROM main.{quoted(name)}"):
            values = ", ".join(apsw.format_sql_value(value) for value in row)
            yield f"INSERT INTO {quoted(name)}({rows}{listed}) VALUES({values});"
    rest: list[Any] = connection.execute(_REST).fetchall()
    for (sql,) in rest:
        yield f"{sql};"
    yield "COMMIT;"
