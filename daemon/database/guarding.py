"""What a statement on a branch may do: SQLite's authorizer.

A changeset carries rows of ordinary tables. Whatever else a statement changes would be lost without a word when the branch ends,
so it is refused when the statement is prepared, with the reason.
"""

from __future__ import annotations

import contextlib
from functools import cache
from itertools import pairwise
from typing import Any, Final

import apsw

OWN_PREFIX: Final = "zenjun_"
"""Tables of ours: position, log, leases."""
_UNRECORDED: Final = ("sqlite_", OWN_PREFIX)
_OK: Final[int] = apsw.SQLITE_OK
_DENY: Final[int] = apsw.SQLITE_DENY

_SCHEMA: Final = frozenset(
    {
        apsw.SQLITE_CREATE_INDEX,
        apsw.SQLITE_CREATE_TABLE,
        apsw.SQLITE_CREATE_TRIGGER,
        apsw.SQLITE_CREATE_VIEW,
        apsw.SQLITE_CREATE_VTABLE,
        apsw.SQLITE_DROP_INDEX,
        apsw.SQLITE_DROP_TABLE,
        apsw.SQLITE_DROP_TRIGGER,
        apsw.SQLITE_DROP_VIEW,
        apsw.SQLITE_DROP_VTABLE,
    }
)
_SCHEMA_TABLES: Final = frozenset({"sqlite_master", "sqlite_schema"})
_NO_SCHEMA: Final = "the schema cannot be changed on a branch: a changeset has rows only"
_ROWS: Final = {apsw.SQLITE_INSERT: "INSERT", apsw.SQLITE_UPDATE: "UPDATE", apsw.SQLITE_DELETE: "DELETE"}
MODULES: Final = frozenset({"fts5", "rtree"})
"""Virtual tables whose content is in ordinary ones."""
PRAGMAS: Final = frozenset(
    [
        "application_id",
        "collation_list",
        "compile_options",
        "data_version",
        "database_list",
        "defer_foreign_keys",
        "encoding",
        "foreign_key_check",
        "foreign_key_list",
        "foreign_keys",
        "freelist_count",
        "function_list",
        "index_info",
        "index_list",
        "index_xinfo",
        "integrity_check",
        "module_list",
        "page_count",
        "page_size",
        "pragma_list",
        "quick_check",
        "schema_version",
        "table_info",
        "table_list",
        "table_xinfo",
        "user_version",
    ]
)
"""What a program of another station may ask for: nothing that reaches beyond its transaction."""
_SCHEMA_WORDS: Final = frozenset({"ALTER", "CREATE", "DROP"})
_NOT_IN_SCHEMA: Final = frozenset(
    {
        apsw.SQLITE_CREATE_TEMP_INDEX,
        apsw.SQLITE_CREATE_TEMP_TABLE,
        apsw.SQLITE_CREATE_TEMP_TRIGGER,
        apsw.SQLITE_CREATE_TEMP_VIEW,
        apsw.SQLITE_DROP_TEMP_INDEX,
        apsw.SQLITE_DROP_TEMP_TABLE,
        apsw.SQLITE_DROP_TEMP_TRIGGER,
        apsw.SQLITE_DROP_TEMP_VIEW,
        apsw.SQLITE_PRAGMA,
        apsw.SQLITE_SAVEPOINT,
        apsw.SQLITE_TRANSACTION,
    }
)
_NEVER: Final = {apsw.SQLITE_ATTACH: "ATTACH", apsw.SQLITE_DETACH: "DETACH"}


_READING: Final = frozenset({apsw.SQLITE_FUNCTION, apsw.SQLITE_READ, apsw.SQLITE_RECURSIVE, apsw.SQLITE_SELECT})
"""What is never refused here, and most of what is asked: a changeset alone asks ten times."""
_LIBM: Final = frozenset(
    [
        "acos",
        "acosh",
        "asin",
        "asinh",
        "atan",
        "atan2",
        "atanh",
        "cos",
        "cosh",
        "exp",
        "ln",
        "log",
        "log10",
        "log2",
        "pow",
        "power",
        "sin",
        "sinh",
        "tan",
        "tanh",
    ]
)
"""Functions whose last bits differ between C libraries."""
_OE_ABORT: Final = 2
"""In SQLite's programs (sqliteInt.h): undo the statement, and nothing else."""
_TABLES: Final = """
    SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"""


@cache
def _alike() -> frozenset[str]:
    """Functions that give the same at every site: SQLite's own, deterministic, without the C library."""
    connection = apsw.Connection(":memory:")
    found = connection.execute("SELECT name FROM pragma_function_list WHERE builtin AND flags & 0x800").fetchall()
    connection.close()
    return frozenset(str(name) for (name,) in found) - _LIBM


def uneven(connection: apsw.Connection) -> str:
    """Why sites would not do alike what this schema has each of them do by itself; empty: they would. SQLite's authorizer does
    not see all of it, so the programs of an INSERT and an UPDATE of each table are looked at: for functions that need not give
    the same everywhere, and for keys that do something else about a row which is there already than fail."""
    names: set[str] = set()
    hasty: set[str] = set()
    # What triggers and defaults compute is in changesets.
    triggers = connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, -1)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    try:
        for (table,) in connection.execute(_TABLES).fetchall():
            query = "SELECT name FROM pragma_table_xinfo(?, 'main') WHERE hidden = 0"
            columns = [quoted(str(column)) for (column,) in connection.execute(query, (table,))]
            sets = ", ".join(f"{column} = ?" for column in columns)
            values = f"({', '.join(columns)}) VALUES({', '.join('?' * len(columns))})"
            whole = f"main.{quoted(str(table))}"
            for sql in (f"INSERT INTO {whole}{values}", f"UPDATE {whole} SET {sets}"):
                with contextlib.suppress(apsw.SQLError):  # of a foreign key's table that comes later: then it is looked at again
                    program = connection.execute(f"EXPLAIN {sql}", (None,) * len(columns), can_cache=False).fetchall()
                    names.update(str(op[5]).partition("(")[0].lower() for op in program if op[1] in ("Function", "PureFunc"))
                    if sql.startswith("INSERT") and not _aborts(program):
                        hasty.add(str(table))
    finally:
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, triggers)
    if found := names - _alike():
        return f"{', '.join(sorted(found))}: not in what every site computes itself (indexes, generated columns, CHECK)"
    if hasty:
        return (
            f"table {', '.join(sorted(hasty))}: PRIMARY KEY and UNIQUE without ON CONFLICT: each site would act on it by itself. "
            "Say it in the statement: INSERT OR IGNORE, INSERT OR REPLACE"
        )
    return ""


def _aborts(program: list[Any]) -> bool:
    """Whether each look-up of an INSERT for a row that is there already ends the statement, and undoes it."""
    written = {op[2] for op in program if op[1] == "OpenWrite"}
    return all(
        following[1] == "Halt" and following[3] == _OE_ABORT
        for op, following in pairwise(program)
        if op[1] in ("NotExists", "NoConflict") and op[2] in written
    )


def quoted(name: str) -> str:
    """A name as SQL has it, whatever it is."""
    return '"' + name.replace('"', '""') + '"'


def is_recorded(table: str) -> bool:
    """Changes of this table are in a changeset."""
    return not table.lower().startswith(_UNRECORDED)


def refuse_pragma(action: int, name: str | None) -> int:
    """For an authorizer: whether a program of another station may use this pragma."""
    return _DENY if action == apsw.SQLITE_PRAGMA and (name or "").lower() not in PRAGMAS else _OK


class Guard:
    """The authorizer of one branch."""

    def __init__(self) -> None:
        self.is_confined = False
        """The program is at another station: a pragma that concerns this process is refused."""
        self.is_own = False
        """A statement of the branch itself is being prepared."""
        self.refusal = ""
        """Why the last statement was refused."""
        self.has_temporary = False
        """The program has had a temporary table or view."""
        self.inserted: set[str] = set()
        """Tables of the database that rows are inserted into by what has been prepared since this was emptied."""
        self.written: set[str] = set()
        """Tables of the database that a statement has ever been prepared to write. It only grows: a statement that SQLite has
        prepared already does not come here again."""

    def __call__(self, action: int, first: str | None, second: str | None, database: str | None, cause: str | None) -> int:
        if action in _READING:
            return _OK
        if not self.is_own and (reason := self._refuse(action, first or "", second or "", database or "")):
            self.refusal = self.refusal or reason
            return _DENY
        if self.is_confined and not self.is_own and refuse_pragma(action, first) != _OK:
            self.refusal = self.refusal or f"PRAGMA {first}: not at a distance"
            return _DENY
        if action in _ROWS and database == "main":
            self.written.add(first or "")
            if action == apsw.SQLITE_INSERT:
                self.inserted.add(first or "")
        if action in (apsw.SQLITE_CREATE_TEMP_TABLE, apsw.SQLITE_CREATE_TEMP_VIEW):
            self.has_temporary = True
        return _OK

    @staticmethod
    def _refuse(action: int, first: str, second: str, database: str) -> str:
        """The reason against it; empty: none."""
        if action == apsw.SQLITE_TRANSACTION:
            return f"{first}: the branch begins and ends its transaction itself"
        if action in _NEVER:
            return f"{_NEVER[action]}: not on a replicated database"
        if action in (apsw.SQLITE_ANALYZE, apsw.SQLITE_REINDEX) and database == "main":
            return f"{'ANALYZE' if action == apsw.SQLITE_ANALYZE else 'REINDEX'}: would be done at this station only"
        if database == "main" and (action in _SCHEMA or (action in _ROWS and first.lower() in _SCHEMA_TABLES)):
            return _NO_SCHEMA
        if action == apsw.SQLITE_ALTER_TABLE and first == "main":
            return _NO_SCHEMA
        if action in _ROWS and database == "main" and not is_recorded(first):
            return f"{_ROWS[action]} {first}: not a table of the program's"
        return ""


class Looking:
    """The authorizer for a statement that is prepared to see what it changes, and not run."""

    def __init__(self) -> None:
        self.databases: set[str] = set()
        """Whose tables it writes, those of the schema included."""

    def __call__(self, action: int, first: str | None, second: str | None, database: str | None, cause: str | None) -> int:
        if action in _ROWS and database:
            self.databases.add(database)
        return _OK


class SchemaGuard:
    """One statement that changes the schema, at all sites: tables, indexes, views and triggers of the program's, and nothing
    else. Rows that it made would be in no changeset, so CREATE TABLE ... AS is refused as well."""

    def __init__(self, sql: str) -> None:
        words = [*sql.upper().split(maxsplit=2), "", ""]
        self.word = words[0]
        """What it begins with."""
        self.is_virtual = words[:2] == ["CREATE", "VIRTUAL"]
        """The module runs statements of its own."""
        self.count = 0

    @property
    def is_schema(self) -> bool:
        return self.word in _SCHEMA_WORDS

    def __call__(self, action: int, first: str | None, second: str | None, database: str | None, cause: str | None) -> int:
        """The authorizer."""
        if action == apsw.SQLITE_CREATE_VTABLE and (second or "").lower() not in MODULES:
            return _DENY
        if action in _SCHEMA and database == "temp":  # it would be of the applier's connection, and gone with it
            return _DENY
        if action in _NEVER or (not self.is_virtual and action in _NOT_IN_SCHEMA):
            return _DENY
        if action == apsw.SQLITE_ALTER_TABLE and first == "temp":
            return _DENY
        if action == apsw.SQLITE_SELECT and self.word == "CREATE" and not self.is_virtual:
            return _DENY
        if (first or "").lower().startswith(OWN_PREFIX) or (second or "").lower().startswith(OWN_PREFIX):
            return _DENY
        return _OK

    def trace(self, cursor: apsw.Cursor, sql: str, bindings: object) -> bool:
        """Before each statement is run: there is one."""
        self.count += 1
        return self.count == 1
