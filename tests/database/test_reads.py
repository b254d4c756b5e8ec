"""What a statement reads: by example, and against random changes of everything else."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from typing import Any, Final

import apsw
import pytest
from zenjun.daemon.database.driver.reads import Reads
from zenjun.daemon.database.driver.statements import Kind, kind_of
from zenjun.proto.service.database.certify import table_hash
from zenjun.proto.service.database.changeset import row_hash

from ..rules import rule

SCHEMA: Final = """
CREATE TABLE a(id INTEGER PRIMARY KEY, b INTEGER, c TEXT);
CREATE INDEX ab ON a(b);
CREATE TABLE t(k TEXT PRIMARY KEY NOT NULL, v);
CREATE TABLE w(x INTEGER, y TEXT, v, PRIMARY KEY(y, x)) WITHOUT ROWID;
CREATE TABLE l(x);
CREATE TABLE n(k TEXT COLLATE NOCASE PRIMARY KEY NOT NULL, v);
CREATE TABLE seen(id INTEGER PRIMARY KEY, n);
CREATE TRIGGER counted AFTER INSERT ON l BEGIN UPDATE seen SET n = n + 1 WHERE id = 1; END;
"""
TABLES: Final = ("a", "t", "w", "l", "n", "seen")


def _integer(value: int) -> bytes:
    return b"\x01" + value.to_bytes(8, "big", signed=True)


def _text(value: str) -> bytes:
    return b"\x03" + bytes([len(value)]) + value.encode()


NAMES: Final = {
    **{table_hash(table): table for table in TABLES},
    row_hash("a", (_integer(5),)): "a 5",
    row_hash("a", (_integer(-1),)): "a -1",
    row_hash("t", (_text("hi"),)): "t hi",
    row_hash("w", (_integer(5), _text("hi"))): "w 5 hi",
}


@pytest.fixture
def connection() -> apsw.Connection:
    found = apsw.Connection(":memory:")
    found.execute(SCHEMA)
    return found


@pytest.mark.parametrize(
    ("sql", "bindings", "expected"),
    [
        ("SELECT * FROM a WHERE id = ?", (5,), "a 5"),
        ("SELECT * FROM a WHERE id = :x", {"x": 5}, "a 5"),
        ("SELECT * FROM a WHERE id = -1", (), "a -1"),
        ("SELECT * FROM a WHERE id = ?", ("5",), "a"),
        ("SELECT * FROM a WHERE id = ?", (5.0,), "a"),
        ("SELECT * FROM a WHERE id = ? + 1", (4,), "a"),
        ("SELECT * FROM a WHERE id > ?", (5,), "a"),
        ("SELECT * FROM a WHERE b = ?", (5,), "a"),
        ("SELECT count(*) FROM a", (), "a"),
        ("UPDATE a SET b = b + 1 WHERE id = ?", (5,), "a 5"),
        ("DELETE FROM a WHERE id = 5", (), "a 5"),
        ("DELETE FROM a", (), "a"),
        ("INSERT INTO a VALUES(?, 1, 2)", (5,), ""),
        ("INSERT INTO a(b) VALUES(1)", (), ""),
        ("INSERT INTO a SELECT id, 1, 2 FROM seen", (), "seen"),
        ("SELECT * FROM t WHERE k = ?", ("hi",), "t hi"),
        ("SELECT * FROM t WHERE k = 'hi'", (), "t hi"),
        ("SELECT * FROM t WHERE k = ?", (5,), "t"),
        ("SELECT * FROM t WHERE rowid = ?", (5,), "t"),
        ("INSERT OR REPLACE INTO t VALUES(?, 1)", ("hi",), "t hi"),
        ("SELECT * FROM w WHERE x = ? AND y = ?", (5, "hi"), "w 5 hi"),
        ("SELECT * FROM w WHERE y = ?", ("hi",), "w"),
        ("SELECT * FROM n WHERE k = ?", ("hi",), "n"),
        ("INSERT INTO l VALUES(1)", (), "seen"),
        ("SELECT * FROM a, t WHERE a.id = 5 AND t.k = a.c", (), "a 5, t"),
        ("SELECT 1", (), ""),
    ],
)
def test_by_example(connection: apsw.Connection, sql: str, bindings: Any, expected: str) -> None:
    reads = Reads(connection)
    for _ in range(2):  # the second time its program is known
        found = {NAMES[each] for each in reads.of(sql, bindings)}
        assert found == set(filter(None, expected.split(", ")))


def test_a_plan_is_not_kept_over_a_change_of_the_schema(connection: apsw.Connection) -> None:
    reads = Reads(connection)
    assert {NAMES[h] for h in reads.of("SELECT v FROM t WHERE k = ?", ("hi",))} == {"t hi"}
    connection.execute("DROP TABLE t; CREATE TABLE t(k, v)")
    reads.begin()
    assert {NAMES[h] for h in reads.of("SELECT v FROM t WHERE k = ?", ("hi",))} == {"t"}


def test_a_virtual_table_reads_everything(connection: apsw.Connection) -> None:
    connection.execute("CREATE VIRTUAL TABLE f USING fts5(x)")
    assert {table_hash(name) for name in TABLES} <= set(Reads(connection).of("SELECT * FROM f WHERE f MATCH 'x'"))


STATEMENTS: Final = (
    ("SELECT b, c FROM a WHERE id = ?", 1),
    ("SELECT v FROM t WHERE k = ?", 2),
    ("SELECT v FROM w WHERE x = ? AND y = ?", 3),
    ("SELECT a.b, t.v FROM a JOIN t ON t.k = ? WHERE a.id = ?", 4),
    ("SELECT coalesce((SELECT b FROM a WHERE id = ?), 'none')", 1),
    ("SELECT v FROM t WHERE k = ? AND v > 3", 2),
    ("SELECT b FROM a WHERE id = ? OR id = 2", 1),
    ("SELECT id FROM a WHERE id IN (?, 3)", 1),
)


def test_what_is_not_read_does_not_matter() -> None:
    """A statement that reads rows only gives the same, whatever happens to all others."""
    r = random.Random(60)
    judged = 0
    for _ in range(300):
        connection = apsw.Connection(":memory:")
        connection.execute(SCHEMA)
        _fill(r, connection)
        sql, kind = r.choice(STATEMENTS)
        key, word = r.randint(1, 5), r.choice("xyz")
        bindings: tuple[Any, ...] = {1: (key,), 2: (word,), 3: (key, word), 4: (word, key)}[kind]
        read = set(Reads(connection).of(sql, bindings))
        before = connection.execute(sql, bindings).fetchall()
        rows = {row_hash("a", (_integer(k),)): k for k in range(-1, 9)}
        _change(r, connection, read, {rows[h] for h in read if h in rows})
        assert connection.execute(sql, bindings).fetchall() == before, (sql, bindings)
        judged += bool(read) and not read & {table_hash("a"), table_hash("t"), table_hash("w")}
    assert judged > 100


def _fill(r: random.Random, connection: apsw.Connection) -> None:
    for k in range(1, 6):
        if r.random() < 0.7:
            connection.execute("INSERT INTO a VALUES(?, ?, ?)", (k, r.randint(1, 9), r.choice("xyz")))
        for y in "xyz":
            if r.random() < 0.5:
                connection.execute("INSERT INTO w VALUES(?, ?, ?)", (k, y, r.randint(1, 9)))
    for word in "xyz":
        if r.random() < 0.7:
            connection.execute("INSERT INTO t VALUES(?, ?)", (word, r.randint(1, 9)))


def _change(r: random.Random, connection: apsw.Connection, read: set[bytes], ids: Iterable[int]) -> None:
    """Change rows of tables that were not read, and rows that were not."""
    if table_hash("a") not in read:
        for k in set(range(1, 7)) - set(ids):
            connection.execute("INSERT OR REPLACE INTO a VALUES(?, ?, ?)", (k, r.randint(10, 19), "q"))
    for word in "xyz":
        if not read & {table_hash("t"), row_hash("t", (_text(word),))}:
            connection.execute("INSERT OR REPLACE INTO t VALUES(?, ?)", (word, r.randint(10, 19)))
        for x in range(1, 7):
            if not read & {table_hash("w"), row_hash("w", (_integer(x), _text(word)))}:
                connection.execute("INSERT OR REPLACE INTO w VALUES(?, ?, ?)", (x, word, r.randint(10, 19)))


REFERRING: Final = """
CREATE TABLE p(id INTEGER PRIMARY KEY, n TEXT UNIQUE NOT NULL);
CREATE TABLE k(k TEXT PRIMARY KEY NOT NULL, v);
CREATE TABLE w(x INTEGER, y TEXT, v, PRIMARY KEY(y, x)) WITHOUT ROWID;
CREATE TABLE i(id INTEGER PRIMARY KEY, b INTEGER, c TEXT);
CREATE INDEX ib ON i(b);
CREATE UNIQUE INDEX ic ON i(c);
CREATE TABLE ch(
    id INTEGER PRIMARY KEY AUTOINCREMENT, p INTEGER REFERENCES p(id) ON DELETE CASCADE,
    q TEXT REFERENCES k(k) ON UPDATE SET NULL, v
);
CREATE TABLE late(id INTEGER PRIMARY KEY, y TEXT, x INTEGER, FOREIGN KEY(y, x) REFERENCES w(y, x) DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE up(id INTEGER PRIMARY KEY, up INTEGER REFERENCES up(id), k TEXT REFERENCES k(k));
CREATE TABLE lg(t);
CREATE TRIGGER tr AFTER UPDATE ON i BEGIN INSERT INTO lg SELECT v FROM k WHERE k = new.c; END;
"""
KEYS: Final = {"p": "id", "k": "k", "w": "y", "i": "c", "ch": "q", "lg": "t", "late": "y", "up": "up"}


@pytest.fixture
def referring() -> apsw.Connection:
    found = apsw.Connection(":memory:")
    found.pragma("foreign_keys", True)
    found.execute(REFERRING)
    return found


def _tables_read(reads: Reads, sql: str, bindings: Any) -> set[str]:
    """Those that are read, as a whole or rows of them."""
    hashes = {table_hash(table): table for table in KEYS}
    found = {hashes[each] for each in reads.of(sql, bindings) if each in hashes}
    return found | {table for table, _ in reads._find(sql, bindings).rows}


@rule("K2")
@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("INSERT INTO ch(p, q) VALUES(?, ?)", ""),
        ("INSERT INTO late(y, x) VALUES(?, ?)", ""),
        ("INSERT INTO up VALUES(?, ?, 'a')", ""),
        ("UPDATE up SET up = ? WHERE id = ?", "up"),
        ("INSERT INTO ch(p) SELECT ? WHERE ? IN (SELECT k FROM k)", "k"),
        ("INSERT INTO ch(p) SELECT ? WHERE ? NOT IN (SELECT id FROM p)", "p"),
        ("INSERT INTO ch(p, v) VALUES(?, ? IN (SELECT k FROM k))", "k"),
        ("INSERT INTO late(y, x) SELECT 'a', 2 WHERE (?, ?) IN (SELECT y, x FROM w)", "w"),
        ("UPDATE up SET k = 'b' WHERE id = ? AND ? IN (SELECT id FROM up)", "up"),
    ],
)
def test_a_look_up_is_no_check_of_a_foreign_key(referring: apsw.Connection, sql: str, expected: str) -> None:
    """Every site checks foreign keys again, but not a condition of the statement on the same table."""
    assert _tables_read(Reads(referring), sql, ("a", "a")) == set(expected.split())


def _statement(r: random.Random) -> str:
    def table() -> tuple[str, str]:
        return r.choice(list(KEYS.items()))

    def value() -> str:
        of, key = table()
        return r.choice((
            f"(SELECT {key} FROM {of})", f"(SELECT {key} FROM {of} WHERE {key} = ?)", "(SELECT v FROM k WHERE k = ?)",
            "(SELECT n FROM p WHERE id = ?)", "(SELECT max(x) FROM w)", "(SELECT x FROM w WHERE y = ? AND x = ?)",
            "(SELECT count(*) FROM i)",
        ))  # fmt: skip

    of, key = table()
    condition = r.choice((
        f"? IN {value()}", f"? NOT IN {value()}", f"EXISTS (SELECT 1 FROM {of} WHERE {key} = ?)",
        f"NOT EXISTS (SELECT 1 FROM {of} WHERE {key} = ?)", f"{value()} IS ?", "(?, ?) IN (SELECT y, x FROM w)",
    ))  # fmt: skip
    return r.choice((
        f"INSERT INTO ch(p, q, v) SELECT ?, ?, ? WHERE {condition}", f"UPDATE ch SET v = ? WHERE id = ? AND {condition}",
        f"DELETE FROM p WHERE id = ? AND {condition}", f"UPDATE i SET b = b + 1 WHERE c = ? AND {condition}",
        f"SELECT * FROM k WHERE k = ? AND {condition}", f"INSERT OR IGNORE INTO k VALUES(?, {value()})",
        f"UPDATE k SET k = ? WHERE k = ? AND {condition}", f"INSERT INTO ch(p, q) VALUES(?, {value()})",
        f"INSERT INTO late(y, x) SELECT ?, ? WHERE {condition}", f"UPDATE up SET up = ?, k = ? WHERE id = ? AND {condition}",
        f"DELETE FROM w WHERE y = ? AND {condition}",
    ))  # fmt: skip


@rule("K2")
def test_no_table_is_missed(referring: apsw.Connection) -> None:
    """Random statements: each table after a FROM is read, or rows of it."""
    r, reads = random.Random(7), Reads(referring)
    missed = {}
    for _ in range(3000):
        sql = _statement(r)
        bindings = tuple(r.choice((1, "a")) for _ in range(sql.count("?")))
        if reads._find(sql, bindings).is_all:
            continue
        lacking = set(re.findall(r"FROM (\w+)", sql)) - _tables_read(reads, sql, bindings)
        if lacking:
            missed[sql] = lacking
    assert not missed


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ("SELECT 1", Kind.READ),
        (" -- a remark\n /* and\nanother */ select 1", Kind.READ),
        ("", Kind.EMPTY),
        (" ; -- nothing", Kind.EMPTY),
        ("insert into t values(1)", Kind.WRITE),
        ("CREATE TABLE t(x)", Kind.SCHEMA),
        ("CREATE TEMP TABLE t(x)", Kind.WRITE),
        ("create temporary view v as select 1", Kind.WRITE),
        ("BEGIN", Kind.BEGIN),
        ("END", Kind.COMMIT),
        ("ROLLBACK", Kind.ROLLBACK),
        ("ROLLBACK TO s", Kind.SAVEPOINT),
        ("rollback transaction to savepoint s", Kind.SAVEPOINT),
        ("SAVEPOINT s", Kind.SAVEPOINT),
        ("'no statement'", Kind.WRITE),
    ],
)
def test_kinds_of_statements(sql: str, kind: Kind) -> None:
    assert kind_of(sql) is kind
