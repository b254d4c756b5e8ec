"""PEP 249, line by line, where ``test_driver.py`` does not have it. Where the driver is as ``sqlite3`` instead, this says so."""

from __future__ import annotations

import pytest
from zenjun import db

from .test_driver import Local, local

__all__ = ["local"]

EXCEPTIONS = {
    "Warning": "Exception", "Error": "Exception", "InterfaceError": "Error", "DatabaseError": "Error",
    "DataError": "DatabaseError",
    "OperationalError": "DatabaseError", "IntegrityError": "DatabaseError", "InternalError": "DatabaseError",
    "ProgrammingError": "DatabaseError", "NotSupportedError": "DatabaseError",
}  # fmt: skip


def test_exceptions(local: Local) -> None:
    """Their layout, and as attributes of connections."""
    c = db.connect("shop")
    for name, base in EXCEPTIONS.items():
        found = getattr(db, name)
        assert found.__base__.__name__ == base and getattr(c, name) is found
    with pytest.raises(c.OperationalError):
        c.execute("SELECT nonsense")
    c.close()


def test_connections(local: Local) -> None:
    c = db.connect("shop")
    c.commit()
    c.rollback()
    one, two = c.cursor(), c.cursor()
    one.execute("INSERT INTO t VALUES(9, 'i')")
    assert two.execute("SELECT v FROM t WHERE id = 9").fetchone() == ("i",), "cursors of a connection are in one transaction"
    c.rollback()
    assert two.execute("SELECT v FROM t WHERE id = 9").fetchone() is None
    one.execute("INSERT INTO t VALUES(9, 'i')")
    c.close()
    for call in (c.cursor, c.commit, c.rollback, one.fetchone, one.fetchall, lambda: one.execute("SELECT 1")):
        with pytest.raises(db.Error):
            call()
    other = db.connect("shop")
    assert other.execute("SELECT v FROM t WHERE id = 9").fetchone() is None, "what was not committed is rolled back"
    other.close()


def test_cursors(local: Local) -> None:
    c = db.connect("shop")
    cursor = c.cursor()
    assert cursor.connection is c and cursor.arraysize == 1 and cursor.description is None and cursor.rowcount == -1
    assert not hasattr(cursor, "callproc") and not hasattr(cursor, "nextset"), "optional, and SQLite has neither"
    cursor.setinputsizes([1])
    cursor.setoutputsize(10, 0)
    columns = cursor.execute("SELECT id, v, NULL FROM t ORDER BY id").description or ()
    assert [(d[0], len(d)) for d in columns] == [("id", 7), ("v", 7), ("NULL", 7)]
    kinds = [d[1] for d in columns]
    assert kinds[0] == db.NUMBER and kinds[1] == db.STRING
    cursor.arraysize = 2
    assert cursor.fetchmany() == [(1, "a", None), (2, "b", None)]
    assert cursor.fetchmany(2) == [(3, "c", None)] and cursor.fetchmany() == [] and cursor.fetchall() == []
    assert [row for (row,) in c.execute("SELECT v FROM t ORDER BY id")] == ["a", "b", "c"], "an iterator"
    assert cursor.executemany("UPDATE t SET v = ? WHERE id = ?", [("x", 1), ("y", 2)]).rowcount == 2
    assert cursor.execute("DELETE FROM t WHERE id > 1").rowcount == 2 and cursor.description is None
    assert cursor.fetchone() is None and cursor.fetchall() == [], "no Error where there can be no rows: as sqlite3 has it"
    assert c.cursor().fetchone() is None
    cursor.close()
    for call in (cursor.fetchone, cursor.fetchall, cursor.fetchmany, lambda: cursor.execute("SELECT 1")):
        with pytest.raises(db.Error):
            call()
    c.close()


def test_values(local: Local) -> None:
    c = db.connect("shop")
    values = (None, 1, 1.5, "text", db.Binary(b"\0bytes"))
    assert c.execute("SELECT ?, ?, ?, ?, ?", values).fetchone() == values
    assert db.DateFromTicks(0).year in (1969, 1970) and db.TimestampFromTicks(0).microsecond == 0
    assert (db.Date(2026, 1, 2).month, db.Time(3, 4, 5).minute, db.Timestamp(2026, 1, 2, 3, 4, 5).second) == (1, 4, 5)
    c.close()
