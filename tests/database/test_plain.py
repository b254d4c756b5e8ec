"""Statements that are kept apply short transactions as SQLite itself does: the same verdict, and the same rows."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import apsw
import pytest
from zenjun.daemon.database.applier import Applied, Applier
from zenjun.daemon.database.errors import OperationalError
from zenjun.daemon.database.guarding import is_recorded
from zenjun.daemon.database.plain import Plain, Statement
from zenjun.proto.service.database.changeset import FEW_MAX, Change, Op, Table, summary

from ..rules import rule
from .rig import commit, content

SCHEMA = """
CREATE TABLE t(id INTEGER PRIMARY KEY, a, b TEXT UNIQUE, c REAL CHECK(c IS NULL OR c < 90), g AS (a || 'x'));
CREATE TABLE "odd name"(x TEXT COLLATE NOCASE, "y ""z" BLOB, n INT, PRIMARY KEY("y ""z", x)) WITHOUT ROWID;
CREATE TABLE keyless(a, b);
CREATE TABLE parent(id INTEGER PRIMARY KEY, a);
CREATE TABLE child(id INTEGER PRIMARY KEY, p REFERENCES PARENT(id) ON DELETE CASCADE, a);
CREATE TABLE counted(id INTEGER PRIMARY KEY AUTOINCREMENT, a INTEGER NOT NULL ON CONFLICT IGNORE);
INSERT INTO parent VALUES(1, 1), (2, 2);
"""
TABLES = {
    "t": ("id", "a", "b", "c"), '"odd name"': ("x", '"y ""z"', "n"), "keyless": ("a", "b"), "parent": ("id", "a"),
    "child": ("id", "p", "a"), "counted": ("id", "a"),
}  # fmt: skip
VALUES = (None, 0, 1, 2, 3, -1, 1 << 40, 1.5, 95.0, "", "a", "A", "1", "é\0b", b"", b"\0a")


class Native(Plain):
    """No statements are kept."""

    def statements(self, changes: Iterable[Change]) -> list[Statement]:
        return []


class NotFoundIgnored(Plain):
    """B8: a statement that finds no such row counts as one that has changed it."""

    def statements(self, changes: Iterable[Change]) -> list[Statement]:
        found = super().statements(changes)
        return [(sql, values, False) for sql, values, _ in found]


class HalfDone(Plain):
    """What has been done counts for nothing, also if it was all of it."""

    def is_whole(self, changes: Sequence[Change]) -> bool:
        return False

    def run(self, statements: Sequence[Statement]) -> bool:
        super().run(statements)
        return False


class Counting(Plain):
    ran: ClassVar[Counter[bool]] = Counter()

    def run(self, statements: list[Statement]) -> bool:  # type: ignore[override]
        done = super().run(statements)
        self.ran[done] += 1
        return done


def copy(kind: type[Plain]) -> Applier:
    connection = apsw.Connection(":memory:")
    connection.execute(SCHEMA)
    applier = Applier(connection)
    applier._plain = kind(connection)
    return applier


def statement(r: random.Random) -> tuple[str, list[object]]:
    table, columns = r.choice(list(TABLES.items()))
    column, other = r.choice(columns), r.choice(columns)
    match r.randrange(4):
        case 0 | 1:
            return f"INSERT INTO {table}({', '.join(columns)}) VALUES({', '.join('?' * len(columns))})", r.choices(
                VALUES, k=len(columns)
            )
        case 2:
            return f"UPDATE {table} SET {column} = ? WHERE {other} IS (SELECT {other} FROM {table} LIMIT 1)", [r.choice(VALUES)]
        case _:
            return f"DELETE FROM {table} WHERE {other} IS (SELECT {other} FROM {table} LIMIT 1)", []


def changeset(origin: apsw.Connection, r: random.Random) -> bytes:
    """What some statements come to at an origin that has other rows, or the same."""
    with contextlib.closing(apsw.Session(origin, "main")) as session:
        session.config(apsw.SQLITE_SESSION_OBJCONFIG_ROWID, True)
        session.table_filter(is_recorded)
        session.attach()
        for _ in range(r.choice((1, 1, 2, 5))):
            sql, values = statement(r)
            with contextlib.suppress(apsw.ConstraintError, apsw.MismatchError):
                origin.execute(sql, values)
        return session.changeset()


def differences(kind: type[Plain], seed: int, rounds: int = 100) -> list[str]:
    """Random changesets, mostly of an earlier version, at a copy of this kind and at one with SQLite's way alone."""
    r = random.Random(seed)
    fast, native = copy(kind), copy(Native)
    images = [native.connection.serialize("main") or b""]
    for _ in range(rounds):
        origin = apsw.Connection(":memory:")
        origin.deserialize("main", r.choice(images))
        origin.pragma("foreign_keys", r.random() < 0.5)
        changes = changeset(origin, r)
        origin.close()
        verdicts = commit(fast, changes), commit(native, changes)
        if verdicts[0] is not verdicts[1] or content(fast.connection, ()) != content(native.connection, ()):
            return [f"{changes!r}: {verdicts}"]
        images = [*images[-3:], native.connection.serialize("main") or b""]
    return []


@rule("B8")
def test_the_same_verdict_and_the_same_rows() -> None:
    Counting.ran.clear()
    for seed in range(6):
        assert not differences(Counting, seed)
    assert Counting.ran[True] > 50 and Counting.ran[False] > 4, Counting.ran


@rule("B8")
def test_a_row_that_is_not_there_counts() -> None:
    assert any(differences(NotFoundIgnored, seed) for seed in range(6))


@rule("B8")
def test_what_is_given_up_is_undone() -> None:
    for seed in range(3):
        assert not differences(HalfDone, seed)


@rule("B8")
@pytest.mark.parametrize(
    ("sql", "by_rowid"),
    [
        ("id INTEGER PRIMARY KEY", True),
        ("id integer PRIMARY KEY AUTOINCREMENT", True),
        ("id INTEGER PRIMARY KEY DESC", False),
        ("id INT PRIMARY KEY NOT NULL", False),
        ("id INTEGER COLLATE NOCASE, PRIMARY KEY(id COLLATE BINARY)", True),
        ("id INTEGER NOT NULL, v, PRIMARY KEY(id, v)", False),
    ],
)
def test_a_statement_that_needs_no_savepoint(sql: str, by_rowid: bool) -> None:
    """With its key it finds one row at most."""
    for end in ("", " WITHOUT ROWID"):
        connection = apsw.Connection(":memory:")
        with contextlib.suppress(apsw.SQLError):  # AUTOINCREMENT needs a rowid
            connection.execute(f"CREATE TABLE t({sql}){end}")
            plain = Plain(connection)
            columns: list[Any] = connection.execute("SELECT pk FROM pragma_table_info('t') ORDER BY cid").fetchall()
            key = tuple(pk for (pk,) in columns)
            change = Change(Table("t", key), Op.DELETE, tuple(b"\x01" + bytes(8) for _ in key), ())
            assert plain.statements([change])
            assert plain.is_whole([change]) == (by_rowid and not end) and not plain.is_whole([change, change])


def test_a_schema_that_changes() -> None:
    """A table with a foreign key, or another column, is another table."""
    applier = copy(Plain)
    with contextlib.closing(apsw.Session(applier.connection, "main")) as session:
        session.attach("t")
        applier.connection.execute("INSERT INTO t(id) VALUES(7)")
        changes = session.changeset()
    applier.connection.execute("DELETE FROM t")
    assert commit(applier, changes) is Applied.DONE
    applier.connection.execute("DELETE FROM t; CREATE TABLE late(id INTEGER PRIMARY KEY, t REFERENCES T)")
    applier.look()
    assert not applier._plain.statements(summary(changes).few), "t is what a foreign key refers to"
    applier.connection.execute("DROP TABLE late; ALTER TABLE t ADD COLUMN more")
    assert commit(applier, changes) is Applied.IMAGE


def test_what_sqlite_would_not_make() -> None:
    """A change that is none, of another key, or of a part of a row: SQLite's own way says what it comes to."""
    table = Table("counted", (1, 0))
    one, two, nothing = b"\1" + bytes(8), b"\1" + bytes(7) + b"\1", b"\0"
    applier = copy(Plain)
    for op, old, new in (
        (Op.UPDATE, (one, nothing), (nothing, nothing)),
        (Op.UPDATE, (one, nothing), (nothing, two)),
        (Op.UPDATE, (one, two), (nothing, nothing)),
        (Op.UPDATE, (one, two), (two, one)),
    ):
        assert not applier._plain.statements([Change(table, op, old, new)]), (op, old, new)
        data = b"T\2\1\0counted\0" + bytes([op, 0]) + b"".join((*old, *new))
        assert summary(data).few and commit(applier, data) in Applied
    assert applier._plain.statements([Change(table, Op.UPDATE, (one, two), (nothing, one))])
    for op in (Op.INSERT, Op.DELETE):  # what SQLite takes for damage of the file
        assert commit(applier, b"T\2\1\0counted\0" + bytes([op, 0]) + one + nothing) is Applied.IMAGE


def test_a_long_transaction_is_sqlites() -> None:
    applier = copy(Plain)
    with contextlib.closing(apsw.Session(applier.connection, "main")) as session:
        session.attach("counted")
        applier.connection.executemany("INSERT INTO counted(a) VALUES(?)", [(k,) for k in range(FEW_MAX + 1)])
        changes = session.changeset()
    assert summary(changes).few == ()
    applier.connection.execute("DELETE FROM counted")
    assert commit(applier, changes) is Applied.DONE
    assert len(content(applier.connection)["counted"]) == FEW_MAX + 1


def test_a_constraint_that_ends_the_transaction() -> None:
    """ON CONFLICT ROLLBACK takes what came before in the batch as well: the copy is given up, as with SQLite's way."""
    for kind in (Plain, Native):
        applier = copy(kind)
        applier.connection.execute("CREATE TABLE u(id INTEGER PRIMARY KEY, a UNIQUE ON CONFLICT ROLLBACK)")
        with contextlib.closing(apsw.Session(applier.connection, "main")) as session:
            session.attach("u")
            applier.connection.execute("INSERT INTO u VALUES(1, 1)")
            changes = session.changeset()
        applier.connection.execute("UPDATE u SET id = 2; BEGIN")
        with pytest.raises(OperationalError):
            applier.apply(changes)
        assert not applier.connection.in_transaction
