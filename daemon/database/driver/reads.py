"""What a statement reads: rows that are found by their whole key, else tables.

SQLite says how it runs a statement (EXPLAIN). A cursor that is only ever moved to one row, by a key whose parts are parameters or
literals, reads that row, however the statement is run at another time. Everything else reads the table: a scan, a range, a key
that is computed, and whatever is not understood.

Two kinds of look-ups are no reads. One that ends the statement when it finds something is the check of a key that is to be
unique, and one of a foreign key: every site checks them again when the changeset is applied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

import apsw

from ....proto.service.database.certify import table_hash
from ....proto.service.database.changeset import encoded_integer, row_hash, varint
from ..numbering import column_of
from .statements import is_about_schema

__all__ = ["Reads"]

Bindings: TypeAlias = Sequence[Any] | Mapping[str, Any] | None
CACHE_MAX: Final = 1000
"""Statements whose programs are kept."""
COPIES_MAX: Final = 4
"""How far a register's value is followed."""


def _words(text: str) -> list[str]:
    return text.split()


_NOTHING: Final = _words("""
    Init Goto Halt HaltIfNull Transaction OpenRead OpenWrite ReopenIdx OpenEphemeral OpenAutoindex OpenPseudo Close Noop Explain
    Trace IsNull NotNull IsNullOrType If IfNot IfPos IfNotZero Once Eq Ne Lt Le Gt Ge ElseEq Jump Compare ZeroOrNull SeekRowid
    NotExists SeekGE SeekGT SeekLE SeekLT SeekHit SeekScan IdxGT IdxGE IdxLT IdxLE Found NotFound NoConflict IfNoHope Rewind
    Last Next Prev Sort DeferredSeek FinishSeek NullRow Insert Delete IdxInsert IdxDelete ResultRow ResetCount FkCounter FkIfZero
    FkCheck Program CollSeq CursorHint TypeCheck Expire ColumnsUsed SorterInsert SorterOpen SorterSort SorterNext Permutation
    ReleaseReg Filter FilterAdd IfSmaller IfSizeBetween TableLock ResetSorter Return RowSetAdd RowSetTest Affinity MustBeInt
    IfEmpty Clear
""")
_FIRST: Final = _words("SoftNull Gosub InitCoroutine EndCoroutine Yield AddImm Cast RealAffinity AggFinal DecrJumpZero MemMax")
_SECOND: Final = _words("""
    Variable Integer Int64 Real String8 String Blob BeginSubrtn Rowid RowData IdxRowid NewRowid Sequence Count Not BitNot IsTrue
    SCopy IntCopy Param OffsetLimit SetSubtype GetSubtype ClrSubtype
""")
_THIRD: Final = _words("""
    Column Add Subtract Multiply Divide Remainder Concat BitAnd BitOr ShiftLeft ShiftRight And Or MakeRecord Function PureFunc
    AggStep AggStep1 RowSetRead
""")
_SCANS: Final = frozenset(
    _words("""
    Rewind Last Next Prev Sort SeekGT SeekLE SeekLT SeekScan SeekHit IdxLT IdxLE IdxGE Count IfSmaller IfSizeBetween Clear IfEmpty
    """)
)
"""What makes a cursor's reads the table."""
_POSITIONED: Final = _SCANS | frozenset(
    _words("""
    OpenRead OpenWrite ReopenIdx SeekRowid NotExists SeekGE IdxGT Found NotFound NoConflict IfNoHope Close Column Rowid IdxRowid
    DeferredSeek Insert Delete IdxInsert IdxDelete RowData
    """)
)
_CHANGES: Final = frozenset({"Delete", "IdxDelete"})
"""What removes a row, or changes one."""
_LAST_NUMBER: Final = "last_insert_rowid("
_OPENS: Final = frozenset({"OpenRead", "OpenWrite", "ReopenIdx"})
_UNIQUE_HALTS: Final = frozenset({1555, 2067, 2579})
"""PRIMARY KEY, UNIQUE, rowid: the statement fails if the row is there."""
_FOREIGN_HALT: Final = 787


class Op(NamedTuple):
    """One instruction of SQLite's program."""

    name: str
    p1: int
    p2: int
    p3: int
    p4: Any


def _span(op: Op) -> tuple[int, int] | None:
    """The registers that an instruction writes: first, and number."""
    return _WRITES[op.name](op) if op.name in _WRITES else None


_WRITES: Final[dict[str, Callable[[Op], tuple[int, int] | None]]] = {
    **dict.fromkeys(_NOTHING, lambda op: None),
    **dict.fromkeys(_FIRST, lambda op: (op.p1, 1)),
    **dict.fromkeys(_SECOND, lambda op: (op.p2, 1)),
    **dict.fromkeys(_THIRD, lambda op: (op.p3, 1)),
    "Null": lambda op: (op.p2, max(1, op.p3 - op.p2 + 1)),
    "Copy": lambda op: (op.p2, op.p3 + 1),
    "Move": lambda op: (op.p2, op.p3),
}
"""Every instruction that is understood."""


@dataclass(frozen=True, slots=True)
class Table:
    """What is known of a table."""

    name: str
    key: tuple[tuple[str, str], ...]
    """Columns of the key in the order of the columns, with their types in capitals; empty: the rowid."""
    is_numbered: bool = False
    """The key is the rowid."""


@dataclass(frozen=True, slots=True)
class Index:
    """A b-tree that is searched by columns."""

    columns: tuple[str, ...]
    is_key: bool
    """It is the declared key's, and compares bytes."""


class Parameter(NamedTuple):
    """A value that is bound."""

    number: int
    kind: str
    """Type of the column that it is compared with; empty: the rowid."""


@dataclass(slots=True)
class Found:
    """What a statement reads, before its parameters are bound."""

    tables: set[str] = field(default_factory=set)
    rows: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    """Table, and the key: values, and parameters."""
    is_all: bool = False
    """It may read anything."""
    names: tuple[str | None, ...] = ()
    """Of the parameters."""
    only_inserts: bool = False
    """It does nothing but insert rows of one table with numbers that SQLite picks."""
    number: int = 0
    """The parameter that may be that number instead; 0: none."""


class Schema:
    """B-trees of a database by their root pages."""

    def __init__(self, connection: apsw.Connection) -> None:
        self.tables: dict[str, Table] = {}
        self.roots: dict[int, tuple[Table, Index | None]] = {}
        query = "SELECT type, name, tbl_name, rootpage FROM main.sqlite_schema WHERE rootpage > 0 ORDER BY type DESC"
        objects: list[Any] = connection.execute(query).fetchall()
        for kind, name, of, root in objects:
            if kind == "table":
                key = connection.execute(_KEY, (name,)).fetchall()
                is_numbered = column_of(connection, name) is not None
                self.tables[name] = table = Table(name, tuple((str(c), str(t)) for c, t in key), is_numbered)
                ((without_rowid,),) = connection.execute(_WITHOUT_ROWID, (name,)).fetchall()
                self.roots[root] = (table, self._index(connection, of, None) if without_rowid else None)
            elif of in self.tables:
                self.roots[root] = (self.tables[of], self._index(connection, of, name))
        self.roots[1] = (Table("sqlite_schema", ()), None)

    @staticmethod
    def _index(connection: apsw.Connection, table: str, name: str | None) -> Index:
        """name: None: the b-tree of a table without rowid, which is its key's."""
        if name is None:
            query = "SELECT name FROM pragma_index_list(?, 'main') WHERE origin = 'pk'"
            keys: list[Any] = connection.execute(query, (table,)).fetchall()
            name = str(keys[0][0])
        query = "SELECT name, coll FROM pragma_index_xinfo(?, 'main') WHERE key ORDER BY seqno"
        columns = connection.execute(query, (name,)).fetchall()
        query = "SELECT \"unique\", origin, partial FROM pragma_index_list(?, 'main') WHERE name = ?"
        ((unique, origin, partial),) = connection.execute(query, (table, name)).fetchall()
        is_key = bool(unique) and origin == "pk" and not partial and all(collation == "BINARY" for _, collation in columns)
        return Index(tuple(str(column) for column, _ in columns), is_key)


_KEY: Final = "SELECT name, upper(type) FROM pragma_table_xinfo(?, 'main') WHERE pk > 0 ORDER BY cid"
_WITHOUT_ROWID: Final = "SELECT wr FROM pragma_table_list WHERE schema = 'main' AND name = ?"


class Frame:
    """The program of a statement, or of a trigger that it runs."""

    def __init__(self, ops: list[Op], is_main: bool) -> None:
        self.ops, self.is_main = ops, is_main
        self.cursors: dict[int, set[int]] = {}
        """Cursor to root pages, of the database itself."""
        self.writers: dict[int, list[Op]] = {}
        """Register to what writes it."""
        for op in ops:
            if op.name in _OPENS and op.p3 == 0:
                self.cursors.setdefault(op.p1, set()).add(op.p2)
            first, number = _span(op) or (0, 0)
            for register in range(first, first + number):
                self.writers.setdefault(register, []).append(op)

    def is_foreign_key(self, ops: Sequence[tuple[int, Op]]) -> bool:
        """What a cursor does, by place, is the check of a foreign key, as SQLite makes it (fkey.c: ``fkLookupParent``): the row
        is looked up once; what follows at once, if it is not there, is the violation, and then the cursor's end."""
        if [op.name for _, op in ops] not in (["OpenRead", "NotExists", "Close"], ["OpenRead", "Found", "Close"]):
            return False
        (_, _), (look_up, op), (close, _) = ops
        between = self.ops[look_up + 1 : close]
        if op.name == "NotExists" and [each.name for each in between[:1]] == ["Goto"]:
            del between[0]
        return len(between) == 1 and (between[0].name == "FkCounter" or between[0][:2] == ("Halt", _FOREIGN_HALT))

    def value(self, register: int, kind: str, depth: int = 0) -> Any:
        """What a register has: a value, or a Parameter; None: not known before the statement runs."""
        writers = self.writers.get(register, [])
        if len(writers) != 1:
            return None
        op = writers[0]
        if op.name == "Variable":
            return Parameter(op.p1, kind)
        if op.name == "Integer":
            return op.p1 if _fits(op.p1, kind) else None
        if op.name == "Int64":
            return int(op.p4) if _fits(int(op.p4), kind) else None
        if op.name == "String8":
            return op.p4 if _fits(op.p4, kind) else None
        if (op.name == "SCopy" or (op.name == "Copy" and op.p3 == 0)) and depth < COPIES_MAX:
            return self.value(op.p1, kind, depth + 1)
        return None


def _fits(value: object, kind: str) -> bool:
    """The value is stored, and compared, as it is: its type is the column's."""
    if kind == "" or "INT" in kind:
        return type(value) is int and -(1 << 63) <= value < 1 << 63
    if "CHAR" in kind or "CLOB" in kind or "TEXT" in kind:
        return type(value) is str
    return "BLOB" in kind and type(value) is bytes


class Reads:
    """Of statements on one connection."""

    def __init__(
        self,
        connection: apsw.Connection,
        has_temporary: Callable[[], bool] = lambda: False,
        schema_version: Callable[[], int] | None = None,
    ) -> None:
        """has_temporary: there are temporary tables, so that what a name means changes without another schema. schema_version:
        as SQLite's pragma."""
        self._connection, self._has_temporary = connection, has_temporary
        self._schema_version = schema_version or (lambda: int(str(connection.pragma("schema_version"))))
        self._schema: Schema | None = None
        self._version = -1
        self._is_present = False
        """The schema is the one of the transaction."""
        self._found: dict[str, Found] = {}

    def begin(self) -> None:
        """Another transaction begins, perhaps with another schema."""
        self._is_present = False

    def of(self, sql: str, bindings: Bindings = None) -> Iterator[bytes]:
        """Hashes of the rows and tables that a statement reads (``certify``). The statement has been prepared before."""
        found = self._find(sql, bindings)
        if found.is_all:
            yield from map(table_hash, self._tables())
            return
        yield from map(table_hash, found.tables)
        for table, key in found.rows:
            values = [_bound(part, found.names, bindings) for part in key]
            yield table_hash(table) if None in values else row_hash(table, tuple(_encoded(value) for value in values))

    def tables_of(self, sql: str, bindings: Bindings = None) -> Iterator[bytes]:
        """Hashes of all tables that a statement has to do with: it failed, and the program knows."""
        found = self._find(sql, bindings)
        yield from map(table_hash, self._tables() if found.is_all else found.tables | {table for table, _ in found.rows})
        if not found.tables and not found.rows:
            yield from map(table_hash, self._tables())

    def only_inserts(self, sql: str, bindings: Bindings = None) -> bool:
        """The statement does nothing but insert rows of one table with numbers that SQLite picks, and reads nothing of it. So
        what it has done does not depend on what else is there, but for these numbers. It has been prepared before."""
        found = self._find(sql, bindings)
        return found.only_inserts and (not found.number or _parameter(found.number, found.names, bindings) is None)

    def _tables(self) -> list[str]:
        return list(self._schema.tables) if self._schema is not None else []

    def _find(self, sql: str, bindings: Bindings) -> Found:
        if not self._is_present or self._schema is None:
            version = self._schema_version()
            if version != self._version or self._schema is None:
                self._schema, self._version = Schema(self._connection), version
                self._found.clear()
            self._is_present = True
        found = None if self._has_temporary() else self._found.get(sql)
        if found is None:
            if len(self._found) >= CACHE_MAX:
                self._found.clear()
            self._found[sql] = found = self._explain(sql, bindings, self._schema)
        return found

    def _explain(self, sql: str, bindings: Bindings, schema: Schema) -> Found:
        frames: list[list[Op]] = []
        found = Found()
        if is_about_schema(sql):
            return found  # and EXPLAIN would run it

        def trace(cursor: apsw.Cursor, sql: str, bindings: object) -> bool:
            found.names = tuple(cursor.bindings_names)
            return True

        cursor = self._connection.cursor()
        cursor.exec_trace = trace
        # Not from the cache of statements: an EXPLAIN that was prepared for another schema is shown as it was then.
        program: list[Any] = cursor.execute(f"EXPLAIN {sql}", bindings, can_cache=False).fetchall()
        for _, name, p1, p2, p3, p4, *_ in program:
            if name == "Init":
                frames.append([])
            frames[-1].append(Op(name, p1, p2, p3, p4))
        ops = [op for frame in frames for op in frame]
        if any(op.name.startswith("V") and op.name != "Variable" for op in ops):
            found.is_all = True  # a virtual table: its content is in others
            return found
        for op in ops:
            if op.name == "Clear":  # a whole b-tree, without a cursor
                found.is_all |= op.p1 not in schema.roots
                found.tables |= {schema.roots[op.p1][0].name} if op.p1 in schema.roots else set()
        is_known = all(op.name in _WRITES for op in ops)
        for number, each in enumerate(frames):
            frame = Frame(_without_sequence(each, schema), number == 0)
            for k, roots in frame.cursors.items():
                self._cursor(schema, frame, k, roots, is_known, found)
            if is_known and len(frames) == 1:  # without triggers
                _inserts(schema, frame, found)
        return found

    @staticmethod
    def _cursor(schema: Schema, frame: Frame, cursor: int, roots: set[int], is_known: bool, found: Found) -> None:
        if not roots <= schema.roots.keys():
            found.is_all = True
            return
        if len(roots) != 1:
            found.tables |= {schema.roots[root][0].name for root in roots}
            return
        table, index = schema.roots[next(iter(roots))]
        ops = [(i, op) for i, op in enumerate(frame.ops) if op.p1 == cursor and op.name in _POSITIONED]
        names = {op.name for _, op in ops}
        if not is_known or table.name == "sqlite_schema" or names & _SCANS:
            found.tables.add(table.name)
            return
        if frame.is_foreign_key(ops):
            return
        for i, op in ops:
            following = frame.ops[i + 1] if i + 1 < len(frame.ops) else op
            fails = following.name == "Halt" and following.p1 in _UNIQUE_HALTS
            if op.name in ("SeekRowid", "NotExists"):
                if not fails:
                    _by_rowid(schema, frame, table, op, found)
            elif op.name in ("SeekGE", "Found", "NotFound", "NoConflict", "IfNoHope"):
                exact = any(o.name == "IdxGT" and o.p3 == op.p3 and o.p4 == op.p4 for _, o in ops)
                if op.name == "SeekGE" and not exact:
                    found.tables.add(table.name)
                elif not (op.name == "NoConflict" and fails):
                    _by_key(frame, table, index, op, found)


def _without_sequence(ops: list[Op], schema: Schema) -> list[Op]:
    """A program without what it does with ``sqlite_sequence``, for which it uses the cursor of the table again. The last
    automatic id is no read: no changeset has it, and two rows with one id collide by their key."""
    kept: list[Op] = []
    cursor: int | None = None
    for op in ops:
        if op.name in _OPENS and op.p2 in schema.roots and schema.roots[op.p2][0].name == "sqlite_sequence":
            cursor = op.p1
        elif op.name in _OPENS and op.p1 == cursor:
            cursor = None
            kept.append(op)
        elif cursor is None or op.p1 != cursor or op.name not in _POSITIONED:
            kept.append(op)
        elif op.name == "Close":
            cursor = None
    return kept


def _inserts(schema: Schema, frame: Frame, found: Found) -> None:
    """Whether a program without triggers only inserts (``Found.only_inserts``), of which it is known what it reads."""
    ops = [op for op in frame.ops if op.p1 in frame.cursors]
    inserts = [op for op in ops if op.name == "Insert"]
    changes = {op.name for op in ops} & _CHANGES or {op.name for op in frame.ops} & {"ResultRow", "Clear"}
    if len(inserts) != 1 or changes or any(str(op.p4).startswith(_LAST_NUMBER) for op in frame.ops):
        return
    (insert,) = inserts
    tables = [schema.roots[root][0] for root in frame.cursors[insert.p1] if root in schema.roots]
    read = found.tables | {name for name, _ in found.rows}
    if len(tables) != 1 or not tables[0].is_numbered or tables[0].name in read:
        return
    writers = frame.writers.get(insert.p3, [])
    picks = [op for op in writers if op.name == "NewRowid" and op.p1 == insert.p1 and op.p3 == 0]  # p3: AUTOINCREMENT
    given = [op.p1 for op in writers if op.name == "Variable"]
    if len(picks) == 1 and len(given) <= 1 and len(writers) == 1 + len(given):
        found.only_inserts, found.number = not found.is_all, given[0] if given else 0


def _by_rowid(schema: Schema, frame: Frame, table: Table, op: Op, found: Found) -> None:
    """A row is looked up by the number in a register."""
    writers = frame.writers.get(op.p3, [])
    if writers and all(w.name in ("IdxRowid", "Rowid") and len(frame.cursors.get(w.p1, ())) == 1 for w in writers):
        roots = {root for w in writers for root in frame.cursors[w.p1]}
        if {schema.roots[root][0].name for root in roots if root in schema.roots} == {table.name}:
            return  # the row that another cursor of this table has found, where it is judged
    value = frame.value(op.p3, "") if frame.is_main else None
    if value is None or not table.is_numbered:
        found.tables.add(table.name)
    else:
        found.rows.append((table.name, (value,)))


def _by_key(frame: Frame, table: Table, index: Index | None, op: Op, found: Found) -> None:
    """A row is looked up by the values in some registers."""
    number = int(op.p4) if str(op.p4).isdigit() else 0
    if not frame.is_main or index is None or not index.is_key or number != len(index.columns):
        found.tables.add(table.name)
        return
    kinds = dict(table.key)
    values = {
        column: frame.value(op.p3 + i, kinds[column]) if kinds.get(column) else None for i, column in enumerate(index.columns)
    }
    key = tuple(values.get(column) for column, _ in table.key)
    if None in key:
        found.tables.add(table.name)
    else:
        found.rows.append((table.name, key))


def _parameter(number: int, names: tuple[str | None, ...], bindings: Bindings) -> Any:
    """The value of a parameter. Without one it is NULL."""
    try:
        return bindings[names[number - 1] or ""] if isinstance(bindings, Mapping) else (bindings or ())[number - 1]
    except (KeyError, IndexError):
        return None


def _bound(part: Any, names: tuple[str | None, ...], bindings: Bindings) -> Any:
    """The value of a part of a key; None: it is not of the column's type."""
    if not isinstance(part, Parameter):
        return part
    value = _parameter(part.number, names, bindings)
    return value if _fits(value, part.kind) else None


def _encoded(value: int | str | bytes) -> bytes:
    """A value as a changeset has it."""
    if isinstance(value, int):
        return encoded_integer(value)
    kind, data = (b"\x03", value.encode()) if isinstance(value, str) else (b"\x04", value)
    return kind + varint(len(data)) + data
