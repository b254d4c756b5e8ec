"""Blocks of ids for AUTOINCREMENT tables. Each is an entry of the history, so no two programs have an id in common.

Without them programs at two stations would both take the highest id that they see, and 1, and the second to commit would be
rejected. SQLite's automatic id is above all that it sees, so a block can be used while nobody has inserted above its ids.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import apsw

from .guarding import is_recorded, quoted

SCHEMA: Final = """
CREATE TABLE zenjun_lease(version INTEGER PRIMARY KEY, tbl TEXT NOT NULL, first INTEGER NOT NULL, count INTEGER NOT NULL) STRICT;
CREATE INDEX zenjun_lease_tbl ON zenjun_lease(tbl, version);
"""
KEPT_VERSIONS: Final = 1000
"""For that long a lease can be looked up by its version; the last one of each table stays."""
COUNT_MAX: Final = 100_000
ID_MAX: Final = (1 << 63) - 1
_COUNT: Final = struct.Struct("!I")
_OLD: Final = """
    DELETE FROM zenjun_lease WHERE version <= ?
    AND version < (SELECT max(version) FROM zenjun_lease other WHERE other.tbl = zenjun_lease.tbl)"""


def encode_lease(table: str, count: int) -> bytes:
    """The segment of a body that asks for ids."""
    return _COUNT.pack(count) + table.encode()


def apply_lease(connection: apsw.Connection, version: int, data: bytes) -> bool:
    """Give the ids above those that rows have and those that are leased, in the transaction that is open. False: it is no lease,
    the table has no automatic ids, or there are no more. All sites come to the same."""
    try:
        (count,) = _COUNT.unpack_from(data)
        table = data[_COUNT.size :].decode()
    except (struct.error, UnicodeDecodeError):
        return False
    if not 0 < count <= COUNT_MAX or table not in automatic(connection):
        return False
    leased: list[Any] = connection.execute("SELECT max(first + count) FROM zenjun_lease WHERE tbl = ?", (table,)).fetchall()
    first = max(highest(connection, table) + 1, leased[0][0] or 1)
    if first > ID_MAX - count:
        return False
    connection.execute("INSERT INTO zenjun_lease VALUES(?, ?, ?, ?)", (version, table, first, count))
    connection.execute(_OLD, (version - KEPT_VERSIONS,))
    return True


def highest(connection: apsw.Connection, table: str) -> int:
    """The id that the next automatic one is above."""
    found: list[Any] = connection.execute(
        f"SELECT max((SELECT coalesce(max(seq), 0) FROM main.sqlite_sequence WHERE name = ?), "
        f"(SELECT coalesce(max(_rowid_), 0) FROM main.{quoted(table)}))",
        (table,),
    ).fetchall()
    return int(found[0][0])


def automatic(connection: apsw.Connection) -> set[str]:
    """The program's tables whose ids are automatic (AUTOINCREMENT)."""
    query = "SELECT name FROM main.sqlite_schema WHERE type = 'table' AND sql LIKE '%autoincrement%'"
    found: list[Any] = connection.execute(query).fetchall()
    return {table for (table,) in found if is_recorded(table) and _has_sequence(connection, table)}


def _has_sequence(connection: apsw.Connection, table: str) -> bool:
    """The word may be in a comment, or be a name: SQLite knows."""
    columns: list[Any] = connection.execute("SELECT name FROM pragma_table_info(?, 'main') WHERE pk", (table,)).fetchall()
    return any(connection.column_metadata("main", table, column)[4] for (column,) in columns)
