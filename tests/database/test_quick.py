"""SELECTs of their own that a connection has run before: they are not looked at again, and read what others see."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator

import pytest
from zenjun import db
from zenjun.daemon.database.branch import Bindings
from zenjun.daemon.database.driver import connection as driver
from zenjun.daemon.database.driver import quick

from .test_driver import Local, local

__all__ = ["local"]
READ = "SELECT id, v FROM t WHERE id = ?"


@pytest.fixture
def c(local: Local) -> Iterator[db.Connection]:
    with contextlib.closing(db.connect("shop", autocommit=True)) as c:
        c.execute("SELECT 1").fetchall()  # it opens the file
        yield c


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements that were not looked at."""
    done: list[str] = []
    real = quick.read_quickly

    def read(connection: db.Connection, cursor: db.Cursor, sql: str, bindings: Bindings) -> bool:
        found = real(connection, cursor, sql, bindings)
        done.extend([sql] if found else [])
        return found

    monkeypatch.setattr(driver, "read_quickly", read)
    return done


def test_the_same_as_sqlite3(c: db.Connection, quickly: list[str], local: Local) -> None:
    with contextlib.closing(sqlite3.connect(f"file:{local.files.link}?mode=ro", uri=True)) as other:
        for sql, values in ((READ, (2,)), (READ, (77,)), ("SELECT count(*) AS n FROM t", ()), ("SELECT :a + 1", {"a": 4})):
            wanted = other.execute(sql, values).fetchall()
            for _ in range(3):
                cursor = c.execute(sql, values)
                names = [column[0] for column in cursor.description or ()]
                assert cursor.fetchall() == wanted and names == [d[0] for d in other.execute(sql, values).description]
                assert cursor.rowcount == -1 and cursor.fetchone() is None
    assert len(quickly) == 9  # the second of READ is the first one's text
    c.row_factory = lambda cursor, row: dict(zip([d[0] for d in cursor.description or ()], row, strict=True))
    assert c.execute(READ, (1,)).fetchall() == [{"id": 1, "v": "a"}] == c.execute(READ, (1,)).fetchmany(5)
    cursor = c.execute("SELECT id FROM t ORDER BY id")
    assert cursor.fetchone() == {"id": 1} and cursor.fetchall() == [{"id": 2}, {"id": 3}]


def test_what_others_commit_is_seen(c: db.Connection, quickly: list[str]) -> None:
    assert c.execute("SELECT * FROM t WHERE id = 1").fetchall() == [(1, "a")]
    with contextlib.closing(db.connect("shop", autocommit=True)) as other:
        other.execute("UPDATE t SET v = 'x' WHERE id = 1")
        assert c.execute("SELECT * FROM t WHERE id = 1").fetchall() == [(1, "x")]
        other.execute("ALTER TABLE t ADD COLUMN w DEFAULT 7")
        cursor = c.execute("SELECT * FROM t WHERE id = 1")
        assert cursor.fetchall() == [(1, "x", 7)] and [d[0] for d in cursor.description or ()] == ["id", "v", "w"]
        assert len(quickly) == 2
        other.execute("DROP TABLE t")
        for _ in range(2):
            with pytest.raises(db.OperationalError, match="no such table"):
                c.execute("SELECT * FROM t WHERE id = 1")
        other.execute("CREATE VIEW t AS SELECT 5 AS five")
    assert c.execute("SELECT * FROM t WHERE five = 5").fetchall() == [(5,)]


def test_in_a_transaction_its_snapshot_counts(c: db.Connection, quickly: list[str]) -> None:
    c.execute(READ, (1,))
    c.execute("BEGIN")
    assert c.execute(READ, (1,)).fetchall() == [(1, "a")]
    with contextlib.closing(db.connect("shop", autocommit=True)) as other:
        other.execute("UPDATE t SET v = 'x' WHERE id = 1")
    assert c.execute(READ, (1,)).fetchall() == [(1, "a")] and not quickly
    c.execute("ROLLBACK")
    c.autocommit = False
    assert c.execute(READ, (1,)).fetchall() == [(1, "x")] and c.in_transaction and not quickly


def test_a_temporary_table_comes_before_one_of_the_database(c: db.Connection, quickly: list[str]) -> None:
    for _ in range(2):
        assert c.execute("SELECT count(*) FROM t").fetchone() == (3,)
    c.execute("CREATE TEMP TABLE t(id)")
    assert c.execute("SELECT count(*) FROM t").fetchone() == (0,) and len(quickly) == 1


def test_a_function_may_read(c: db.Connection) -> None:
    """With the same connection, and the same text."""

    def deep(number: int) -> int:
        return 0 if number == 0 else 1 + int(c.execute("SELECT deep(?)", (number - 1,)).fetchall()[0][0])

    c.create_function("deep", 1, deep)
    for _ in range(2):
        assert c.execute("SELECT deep(3)").fetchall() == [(3,)]


def test_an_error_is_the_drivers(c: db.Connection, quickly: list[str]) -> None:
    c.execute(READ, (1,))
    with pytest.raises(db.ProgrammingError):
        c.execute(READ, (1, 2))
    assert c.execute(READ, (3,)).fetchall() == [(3, "c")]
    c.create_function("fails", 1, lambda value: 1 // value)
    assert c.execute("SELECT fails(?)", (1,)).fetchall() == [(1,)]
    with pytest.raises(ZeroDivisionError):
        c.execute("SELECT fails(?)", (0,))
    assert c.execute("SELECT fails(?)", (1,)).fetchall() == [(1,)]


def test_another_file_is_looked_for(c: db.Connection, quickly: list[str], local: Local) -> None:
    """A copy that came takes the place of the one that was read."""
    from zenjun.daemon.database.copy import rewritten

    c.execute(READ, (1,))
    old = local.rows
    local.rows = rewritten(old, bytes(16))
    old.close()
    with contextlib.closing(db.connect("shop", autocommit=True)) as other:
        other.execute("UPDATE t SET v = 'new' WHERE id = 1")
    assert c.execute(READ, (1,)).fetchall() == [(1, "new")] and not quickly
    assert c.execute(READ, (2,)).fetchall() == [(2, "b")]
    local.files.link.unlink()
    with pytest.raises(db.OperationalError, match="dropped"):
        c.execute(READ, (1,))
