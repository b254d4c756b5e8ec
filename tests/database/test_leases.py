"""Automatic ids: from blocks that no other program has, whoever commits first."""

from __future__ import annotations

from collections.abc import Iterator

import apsw
import pytest
from zenjun import db
from zenjun.daemon.database import leases
from zenjun.daemon.database.leases import apply_lease, automatic, encode_lease

from ..rules import rule
from .test_driver import Local, local

__all__ = ["local"]

INSERT = "INSERT INTO a(v) VALUES('x')"


@pytest.fixture
def file() -> Iterator[apsw.Connection]:
    connection = apsw.Connection(":memory:")
    connection.execute(leases.SCHEMA + "CREATE TABLE a(id INTEGER PRIMARY KEY AUTOINCREMENT, v)")
    yield connection
    connection.close()


def blocks(file: apsw.Connection) -> list[tuple[int, int]]:
    return list(file.execute("SELECT first, count FROM zenjun_lease ORDER BY version"))


@rule("K7")
def test_blocks_are_above_rows_and_other_blocks(file: apsw.Connection) -> None:
    assert apply_lease(file, 1, encode_lease("a", 10)) and apply_lease(file, 2, encode_lease("a", 5))
    file.execute("INSERT INTO a VALUES(40, 'x')")
    assert apply_lease(file, 3, encode_lease("a", 1))
    file.execute("UPDATE a SET id = 50; DELETE FROM a WHERE id = 60")
    assert apply_lease(file, 4, encode_lease("a", 1))
    file.execute("DELETE FROM a")
    assert apply_lease(file, 5, encode_lease("a", 1))
    assert blocks(file) == [(1, 10), (11, 5), (41, 1), (51, 1), (52, 1)]


def test_what_is_no_lease_is_refused(file: apsw.Connection) -> None:
    file.execute(
        "CREATE TABLE plain(id INTEGER PRIMARY KEY); CREATE TABLE word(a /* autoincrement */); CREATE VIEW v AS SELECT 1"
    )
    assert automatic(file) == {"a"}
    for table in ("plain", "word", "v", "nowhere", "zenjun_lease", "sqlite_sequence"):
        assert not apply_lease(file, 1, encode_lease(table, 1)), table
    for data in (b"", b"abc", encode_lease("a", 0), encode_lease("a", leases.COUNT_MAX + 1), encode_lease("", 1) + b"\xff"):
        assert not apply_lease(file, 1, data)
    file.execute("INSERT INTO a VALUES(?, 'x')", (leases.ID_MAX - 5,))
    assert not apply_lease(file, 1, encode_lease("a", 10)) and blocks(file) == []


def test_old_leases_are_forgotten_but_the_last_of_each_table(file: apsw.Connection) -> None:
    file.execute("CREATE TABLE b(id INTEGER PRIMARY KEY AUTOINCREMENT)")
    assert apply_lease(file, 1, encode_lease("b", 1))
    for version in (2, 3, leases.KEPT_VERSIONS + 5):
        assert apply_lease(file, version, encode_lease("a", 1))
    assert blocks(file) == [(1, 1), (3, 1)]


@pytest.fixture
def table(local: Local) -> Local:
    with db.connect("shop") as c:
        c.execute("CREATE TABLE a(id INTEGER PRIMARY KEY AUTOINCREMENT, v)")
        c.execute("CREATE TABLE log(id INTEGER PRIMARY KEY AUTOINCREMENT, v)")
        c.execute("CREATE TRIGGER tr AFTER UPDATE ON t BEGIN INSERT INTO log(v) VALUES(new.id); END")
        c.execute(INSERT)
        assert not local.asked.count("lease"), "it has the database alone"
    c.close()
    return local


@rule("K7")
def test_two_programs_take_different_ids(table: Local) -> None:
    """On the same snapshot, and one after another; each asks for ids when the other has inserted above its own."""
    one, two = db.connect("shop"), db.connect("shop")
    ids = [c.execute(INSERT).lastrowid for c in (one, two)]
    assert ids == [2, 102]
    one.commit()
    two.commit()
    assert one.execute(INSERT).lastrowid == 202 and one.execute(INSERT).lastrowid == 203
    one.rollback()
    assert one.execute(INSERT).lastrowid == 204, "what was taken is not used again"
    one.commit()
    for _ in range(3):
        one.execute(INSERT)
        one.commit()
    assert table.asked.count("lease") == 3
    assert one.execute("INSERT INTO a VALUES(1000, 'y')").lastrowid == 1000
    assert one.execute(INSERT).lastrowid == 1001
    one.commit()
    assert one.execute(INSERT).lastrowid is not None and one.execute("SELECT count(DISTINCT id), count(*) FROM a").fetchone() == (
        10,
        10,
    )
    one.close()
    two.close()


@rule("K7")
def test_triggers_many_rows_and_other_statements(table: Local) -> None:
    c, other = db.connect("shop"), db.connect("shop")
    c.execute("UPDATE t SET v = 'z' WHERE id = 1")
    other.execute("UPDATE t SET v = 'z' WHERE id = 2")
    c.commit()
    other.commit()
    assert c.execute("SELECT id FROM log ORDER BY id").fetchall() == [(1,), (101,)]
    c.executemany("INSERT INTO a(v) VALUES(?)", [("m",)] * 350)
    assert c.execute("SELECT count(*), max(id) - min(id) < 400 FROM a WHERE v = 'm'").fetchone() == (350, 1)
    assert table.asked.count("lease") == 5, "100, then 200, then 400"
    c.execute("SELECT 1; ").fetchall()
    c.commit()
    assert c.execute("INSERT INTO t VALUES(77, 'no ids')").lastrowid == 77 and table.asked.count("lease") == 5
    c.execute("DELETE FROM a")
    c.commit()
    c.close()
    other.close()


def test_without_the_others_sqlite_takes_an_id(table: Local) -> None:
    """And certification decides."""
    table.no_leases = True
    with db.connect("shop") as c:
        assert c.execute(INSERT).lastrowid == 2
        assert c.execute(INSERT).lastrowid == 3
    assert table.asked.count("lease") <= 2
    c.close()
