"""Short transactions on simple tables, applied by statements that are kept.

``sqlite3changeset_apply`` reads the schema and prepares its statements anew in each call, which is most of what a transaction of
one row costs. The statements here are those that it makes (sqlite3session.c: ``sessionInsertRow``, ``sessionUpdateFind``,
``sessionDeleteRow``): one row by its key, with the other values that were there before. They count only if every one of them does
what it is to do. Whatever else happens is undone, and SQLite's own way decides, so that a verdict is always that of SQLite.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

import apsw

from ...proto.service.database.changeset import Change, Op
from .errors import OperationalError
from .guarding import quoted

__all__ = ["Plain"]

Statement: TypeAlias = tuple[str, tuple[int | float | str | bytes | None, ...], bool]
"""SQL, values, and whether it is to change a row."""
TEXTS_MAX: Final = 1000
_NOT_RECORDED: Final = b"\0"
_INTEGER: Final = struct.Struct("!xq")
_FLOAT: Final = struct.Struct("!xd")
_SIMPLE: Final = """
    SELECT 1 FROM pragma_table_list WHERE schema = 'main' AND name = ?1 AND type = 'table'
        AND NOT EXISTS (SELECT 1 FROM pragma_foreign_key_list(?1, 'main'))
        AND NOT EXISTS (SELECT 1 FROM main.sqlite_schema s JOIN pragma_foreign_key_list(s.name, 'main') f
            WHERE s.type = 'table' AND lower(f."table") = lower(?1))"""
"""No foreign key begins or ends here: what they check, and what they must not do, is SQLite's own matter."""
_BY_ROWID: Final = """
    SELECT 1 FROM pragma_table_list t JOIN pragma_table_xinfo(?1, 'main') c
    WHERE t.schema = 'main' AND t.name = ?1 AND NOT t.wr AND c.pk = 1 AND upper(c.type) = 'INTEGER'
        AND NOT EXISTS (SELECT 1 FROM pragma_index_list(?1, 'main') WHERE origin = 'pk')"""
"""Its key is an INTEGER PRIMARY KEY that is the rowid: no index has it."""


class Plain:
    """The statements of one connection. What it knows of tables holds until ``forget``."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._columns: dict[str, tuple[str, ...]] = {}
        """Of each table, quoted; empty: it is not simple."""
        self._by_rowid: dict[str, bool] = {}
        """Tables whose key is the rowid: it is that of one row at most."""
        self._texts: dict[tuple[str, Op, bytes], tuple[str, tuple[int, ...]] | None] = {}
        """Statements by table, kind of change, and types of the values before and afterwards; with the places of their values
        among these. None: SQLite makes no such change."""

    def forget(self) -> None:
        """The schema is another one."""
        self._columns.clear()
        self._by_rowid.clear()
        self._texts.clear()

    def statements(self, changes: Iterable[Change]) -> list[Statement]:
        """What does these changes, whose tables and keys are those of the schema; empty: nothing here does."""
        found: list[Statement] = []
        for change in changes:
            columns = self._columns_of(change)
            if not columns:
                return []
            try:
                statement = self._statement(change, columns)
            except UnicodeDecodeError:
                return []
            if statement is None:
                return []
            found.append(statement)
        return found

    def is_whole(self, changes: Sequence[Change]) -> bool:
        """What ``statements`` gives for these does all that it is to do, or nothing. With a key of another collation than its
        column's a statement may find two rows, and do half of it."""
        return len(changes) == 1 and self._by_rowid.get(changes[0].table.name, False)

    def run(self, statements: Sequence[Statement]) -> bool:
        """In the transaction that is open. False: not all of them did what they were to do, and the others have to be undone.
        Errors are apsw's. Raises OperationalError if a constraint has ended the transaction (ON CONFLICT ROLLBACK)."""
        for sql, values, changes_one in statements:
            try:
                self._connection.execute(sql, values)
            except apsw.ConstraintError as error:
                if not self._connection.in_transaction:
                    raise OperationalError(f"cannot apply: {error}") from error
                return False
            if changes_one and self._connection.changes() != 1:
                return False
        return True

    def _columns_of(self, change: Change) -> tuple[str, ...]:
        name = change.table.name
        if (columns := self._columns.get(name)) is None:
            columns = ()
            if self._connection.execute(_SIMPLE, (name,)).fetchall():
                query = "SELECT name FROM pragma_table_xinfo(?, 'main') WHERE hidden = 0 ORDER BY cid"
                columns = tuple(quoted(str(column)) for (column,) in self._connection.execute(query, (name,)))
            if len(columns) != len(change.table.key):  # the rowid is its key
                columns = ()
            self._columns[name] = columns
            self._by_rowid[name] = bool(columns) and bool(self._connection.execute(_BY_ROWID, (name,)).fetchall())
        return columns

    def _statement(self, change: Change, columns: tuple[str, ...]) -> Statement | None:
        values = (*change.old, *change.new)
        key = (change.table.name, change.op, bytes([value[0] for value in values]))
        if key not in self._texts:
            if len(self._texts) >= TEXTS_MAX:
                self._texts.clear()
            self._texts[key] = _text(change, columns)
        if (found := self._texts[key]) is None:
            return None
        sql, places = found
        return sql, tuple([_value(values[place]) for place in places]), change.op is not Op.INSERT


def _is_usual(change: Change, old: set[int], new: set[int]) -> bool:
    """It is as SQLite makes it: of a row that changes its key and some others, before and afterwards."""
    if change.op is not Op.UPDATE:
        return True  # whole, as has been checked
    key = {i for i, place in enumerate(change.table.key) if place}
    return bool(new) and not new & key and old == new | key


def _text(change: Change, columns: tuple[str, ...]) -> tuple[str, tuple[int, ...]] | None:
    """The statement, and which of the values before and afterwards, counted together, it has one after another."""
    old = [i for i, value in enumerate(change.old) if value != _NOT_RECORDED]
    new = [i for i, value in enumerate(change.new) if value != _NOT_RECORDED]
    if not _is_usual(change, set(old), set(new)):
        return None
    places = (*(len(change.old) + i for i in new), *old)
    table, key = f"main.{quoted(change.table.name)}", change.table.key
    if change.op is Op.INSERT:
        return f"INSERT INTO {table}({', '.join(columns[i] for i in new)}) VALUES({', '.join('?' * len(new))})", places
    where = " AND ".join(f"{columns[i]} {'=' if key[i] else 'IS'} ?" for i in old)
    if change.op is Op.DELETE:
        return f"DELETE FROM {table} WHERE {where}", places
    return f"UPDATE {table} SET {', '.join(f'{columns[i]} = ?' for i in new)} WHERE {where}", places


def _value(encoded: bytes) -> int | float | str | bytes | None:
    """Of a changeset, whose form has been checked. Raises UnicodeDecodeError."""
    kind = encoded[0]
    if kind == 1:
        (number,) = _INTEGER.unpack(encoded)
        return int(number)
    if kind == 5:
        return None
    if kind == 2:
        (real,) = _FLOAT.unpack(encoded)
        return float(real)
    at = 1
    while encoded[at] & 0x80:
        at += 1
    return encoded[at + 1 :].decode() if kind == 3 else encoded[at + 1 :]
