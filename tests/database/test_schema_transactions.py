"""Transactions that change the schema and rows: with savepoints, and without foreign keys until their end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from zenjun import db
from zenjun.daemon.database.driver.connection import Connection
from zenjun.daemon.database.driver.statements import foreign_keys_of
from zenjun.daemon.database.savepoints import Savepoints, parsed
from zenjun.proto.service.database.certify import Written
from zenjun.proto.service.database.messages import Segment, decode_body, encode_body

from ..rules import rule
from .rig import content
from .station import Station

TABLES = """
CREATE TABLE par(id INTEGER PRIMARY KEY, v);
CREATE TABLE kid(id INTEGER PRIMARY KEY, p INTEGER REFERENCES par(id) ON DELETE CASCADE);
INSERT INTO par VALUES(1, 'a'), (2, 'b');
INSERT INTO kid VALUES(10, 1), (20, 2)"""
REMAKE = """
CREATE TABLE new_par(id INTEGER PRIMARY KEY, v TEXT NOT NULL);
INSERT INTO new_par SELECT id, v FROM par;
DROP TABLE par;
ALTER TABLE new_par RENAME TO par"""


@pytest.fixture
def station(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Station]:
    here = Station.new(tmp_path, "shop")
    monkeypatch.setattr(Connection, "_ask", lambda self, do, *, seconds=None, **arguments: here.ask(do, **arguments))
    with db.connect("shop") as c:
        c.executescript(TABLES)
    c.close()
    yield here
    here.rows.close()


@pytest.fixture
def c(station: Station) -> Iterator[db.Connection]:
    with contextlib.closing(db.connect("shop", autocommit=True)) as connection:
        yield connection


def kinds(station: Station) -> list[Segment]:
    return [kind for kind, _ in decode_body(station.last)]


@rule("H1")
def test_a_table_is_made_again_under_its_references(station: Station, c: db.Connection) -> None:
    """As Django does it: with foreign keys the rows that refer to it would go with the old table, at every site."""
    assert c.execute("PRAGMA foreign_keys").fetchall() == [(1,)]
    c.execute("PRAGMA foreign_keys = OFF")
    c.execute("BEGIN")
    c.execute("PRAGMA foreign_keys = ON")
    assert c.execute("PRAGMA foreign_keys").fetchall() == [(0,)], "not within a transaction"
    c.executescript(REMAKE)
    assert c.execute("PRAGMA foreign_key_check").fetchall() == []
    c.commit()
    assert kinds(station)[0] is Segment.UNCHECKED
    assert c.execute("SELECT * FROM kid").fetchall() == [(10, 1), (20, 2)]
    c.execute("PRAGMA foreign_keys(on)")
    c.execute("DELETE FROM par WHERE id = 1")
    assert c.execute("SELECT * FROM kid").fetchall() == [(20, 2)], "the applier's are on again"
    c.executescript("BEGIN;" + REMAKE + "; COMMIT")
    assert Segment.UNCHECKED not in kinds(station) and c.execute("SELECT count(*) FROM kid").fetchall() == [(0,)]


@rule("H1")
def test_what_is_violated_at_the_end_is_rejected(station: Station, c: db.Connection) -> None:
    """By all sites; rows alone are looked at as always."""
    before = content(station.rows.connection)
    c.execute("PRAGMA foreign_keys = OFF")
    for statements in (
        ["DROP TABLE par"], ["CREATE TABLE x(y)", "INSERT INTO kid VALUES(30, 3)"],
        ["CREATE TABLE x(y REFERENCES par(v))", "INSERT INTO x VALUES('a')"], ["INSERT INTO kid VALUES(30, 3)"],
    ):  # fmt: skip
        c.execute("BEGIN")
        for statement in statements:
            c.execute(statement)
        with pytest.raises(db.IntegrityError):
            c.commit()
        assert station.rows.connection.pragma("foreign_keys") == 1
    assert content(station.rows.connection) == before


def test_only_a_change_of_the_schema_does_without_them(station: Station) -> None:
    off, rows, sql = (Segment.UNCHECKED, b""), (Segment.CHANGESET, b""), (Segment.SQL, b"CREATE TABLE x(y)")
    assert Written(encode_body([off, sql])).changes_schema
    for wrong in ([off], [off, rows], [sql, off], [off, off, sql]):
        with pytest.raises(ValueError):
            Written(encode_body(wrong))


@pytest.mark.parametrize(
    ("statements", "rows", "tables"),
    [
        ("CREATE TABLE x(y); SAVEPOINT s; INSERT INTO par VALUES(3, 'c'); ROLLBACK TO s", [1, 2], "x"),
        ("CREATE TABLE x(y); INSERT INTO par VALUES(3, 0); SAVEPOINT s; DELETE FROM par; ROLLBACK TO s", [1, 2, 3], "x"),
        ('SAVEPOINT "S"; CREATE TABLE x(y); ROLLBACK TO s; INSERT INTO par VALUES(3, 0); RELEASE s', [1, 2, 3], ""),
        ("CREATE TABLE x(y); SAVEPOINT a; CREATE TABLE z(y); SAVEPOINT b; DELETE FROM par; ROLLBACK TO b", [1, 2], "xz"),
        ("CREATE TABLE x(y); SAVEPOINT a; CREATE TABLE z(y); SAVEPOINT b; DELETE FROM par; ROLLBACK TO a", [1, 2], "x"),
        ("CREATE TABLE x(y); SAVEPOINT a; INSERT INTO par VALUES(3, 0); RELEASE a; DELETE FROM par WHERE id < 2", [2, 3], "x"),
        ("SAVEPOINT a; INSERT INTO par VALUES(3, 0); SAVEPOINT a; INSERT INTO par VALUES(4, 0); ROLLBACK TO a", [1, 2, 3], ""),
        ("CREATE TABLE x(y); SAVEPOINT a; DROP TABLE x; ROLLBACK TO a; ROLLBACK TO a; INSERT INTO x VALUES(1)", [1, 2], "x"),
    ],
)  # fmt: skip
def test_savepoints(station: Station, c: db.Connection, statements: str, rows: list[int], tables: str) -> None:
    """What is committed is what the program saw."""
    c.execute("BEGIN")
    c.executescript(statements)
    names = "SELECT name FROM sqlite_schema WHERE length(name) = 1 ORDER BY name"
    seen = [c.execute("SELECT id FROM par ORDER BY id").fetchall(), c.execute(names).fetchall()]
    c.commit()
    assert seen == [c.execute("SELECT id FROM par ORDER BY id").fetchall(), c.execute(names).fetchall()]
    assert seen == [[(key,) for key in rows], [(name,) for name in tables]]


def test_a_savepoint_that_cannot_be_kept_apart(station: Station, c: db.Connection) -> None:
    """Rows before it, the schema after it: refused, and the transaction goes on."""
    c.execute("BEGIN")
    c.executescript("INSERT INTO par VALUES(3, 0); SAVEPOINT a; INSERT INTO par VALUES(4, 0); CREATE TABLE x(y)")
    with pytest.raises(db.NotSupportedError, match="ROLLBACK TO a: rows were changed before it"):
        c.execute("ROLLBACK TO a")
    with pytest.raises(db.NotSupportedError, match="nothing else"):
        c.execute("SAVEPOINT s; DELETE FROM par")
    with pytest.raises(db.OperationalError, match="no such savepoint"):
        c.execute("ROLLBACK TO b")
    c.execute("RELEASE a")
    c.commit()
    assert c.execute("SELECT count(*) FROM par").fetchall() == [(4,)]


def test_names_of_savepoints() -> None:
    assert parsed('SAVEPOINT "a ""b"') == ("SAVEPOINT", 'a "b') and parsed("release savepoint x;") == ("RELEASE", "x")
    assert parsed("ROLLBACK TRANSACTION TO SAVEPOINT 'q'") == ("ROLLBACK", "q") and parsed("ROLLBACK TO [q r]") == (
        "ROLLBACK",
        "q r",
    )
    assert parsed("SAVEPOINT") is None and parsed("SAVEPOINT a; SELECT 1") is None
    assert [foreign_keys_of(s) for s in ("PRAGMA foreign_keys", "pragma foreign_keys=off;", "PRAGMA foreign_keys(1)")] == [
        "",
        "OFF",
        "1",
    ]
    assert foreign_keys_of("PRAGMA foreign_key_check") is None and foreign_keys_of("SELECT 1") is None
    assert Savepoints().find("a") is None


def test_aggregates_of_the_program(c: db.Connection) -> None:
    class Longest:
        def __init__(self) -> None:
            self.found = ""

        def step(self, value: str) -> None:
            self.found = max(self.found, value, key=len)

        def finalize(self) -> str:
            return self.found

    c.create_aggregate("longest", 1, Longest)
    assert c.execute("SELECT longest(v) FROM (SELECT 'a' AS v UNION SELECT 'abc' UNION SELECT 'ab')").fetchall() == [("abc",)]
    c.execute("UPDATE par SET v = (SELECT longest(v) FROM par)")
    c.create_aggregate("longest", 1, None)
    with pytest.raises(db.OperationalError, match="longest"):
        c.execute("SELECT longest(v) FROM par").fetchall()


@rule("H3")
@pytest.mark.parametrize("isolation", ["serializable", "snapshot"])
def test_a_lock_that_has_ended_leaves_no_gap(station: Station, c: db.Connection, isolation: str) -> None:
    """The service has gone and come back: what others have committed meanwhile counts, whatever the transaction has read."""
    with contextlib.closing(db.connect("shop", isolation=isolation, autocommit=True)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        ((number,),) = holder.execute("SELECT count(*) FROM par").fetchall()
        station.shared.locks = []
        c.execute("INSERT INTO par VALUES(3, 'c')")
        holder.execute("UPDATE kid SET p = ? WHERE id = 10", (number,))
        with pytest.raises(db.SerializationError) as error:
            holder.commit()
        assert error.value.code == "read"
        holder.execute("BEGIN EXCLUSIVE")
        holder.execute("UPDATE kid SET p = (SELECT count(*) - 1 FROM par) WHERE id = 10")
        holder.commit()
        assert station.rows.query("SELECT p FROM kid WHERE id = 10") == [(2,)]
        holder.execute("BEGIN EXCLUSIVE")
        holder.execute("UPDATE kid SET p = 1 WHERE id = 10")
        station.shared.locks = []
        holder.commit()
        assert station.rows.query("SELECT p FROM kid WHERE id = 10") == [(1,)], "nothing came between"
