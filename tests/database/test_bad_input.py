"""What programs and stations send that is not what it should be, line by line as the design lists it.

Messages of a group are in ``test_machine.py`` (malformed, strangers, the future, other epochs and databases), the format of
changesets in ``test_changesets.py``, what a transaction does not say in ``test_vector.py``, names in ``test_files.py``, files in
``test_importing.py``, transactions that stay open in ``test_ageing.py``, programs that go in ``test_waiting.py``.

Limits: databases in ``test_catalogue.py``, rows that are read in ``test_driver.py``, sessions in ``test_zones.py``, the longest
transaction and 256 connections in ``tests/e2e/test_database_long.py``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
from zenjun.daemon.database.applier import Applier
from zenjun.daemon.database.branch import Branch
from zenjun.daemon.database.errors import InternalError, NotSupportedError, error_of
from zenjun.daemon.database.rows import SqliteRows
from zenjun.proto.service.database.messages import Segment, encode_body
from zenjun.proto.service.database.rows import Verdict

from ..rules import rule

SCHEMA = "CREATE TABLE t(id INTEGER PRIMARY KEY, a REAL, b)"


@pytest.fixture
def rows(tmp_path: Path) -> Iterator[SqliteRows]:
    """A copy at a site, with a table."""
    rows = SqliteRows(Applier.open(tmp_path / "shop.db"), bytes(16))
    rows.create(bytes(16))
    rows.connection.execute(SCHEMA)
    yield rows
    rows.applier.close()


def verdict(rows: SqliteRows, *segments: tuple[Segment, bytes]) -> Verdict:
    """Of a body at a site, which is as it was afterwards."""
    rows.connection.execute("BEGIN IMMEDIATE")
    try:
        return rows.apply(encode_body(segments))
    finally:
        rows.connection.execute("ROLLBACK")


def change(table: str, *values: int) -> bytes:
    """A changeset that inserts a row whose first column is the key."""
    head = b"T" + bytes([len(values), 1, *[0] * (len(values) - 1)]) + table.encode() + b"\0"
    return head + b"\x12\0" + b"".join(b"\x01" + struct.pack(">q", value) for value in values)


REFUSED = (
    "ATTACH 'other.db' AS other",
    "PRAGMA writable_schema = ON",
    "SELECT load_extension('x')",
    "INSERT INTO t VALUES(1, 2, 3)",
    "CREATE TABLE x AS SELECT 1",
    "CREATE TABLE x(id); CREATE TABLE y(id)",
    "CREATE VIRTUAL TABLE x USING csv(filename='/etc/passwd')",
    "DROP TABLE zenjun_log",
    "CREATE INDEX x ON zenjun_meta(epoch)",
    "CREATE TRIGGER x AFTER INSERT ON zenjun_log BEGIN SELECT 1; END",
    "ALTER TABLE zenjun_meta ADD COLUMN x",
    "CREATE TABLE zenjun_x(id)",
    "CREATE TABLE x(a CHECK(a > random()))",
    "CREATE INDEX x ON t(random())",
    "CREATE INDEX x ON t(exp(a))",
    "CREATE INDEX x ON t(b) WHERE sin(a) > 0",
    "CREATE TABLE x(a, b AS (pow(a, 2)) STORED)",
    "CREATE TABLE x(a CHECK(tan(a) > 0))",
    "ALTER TABLE t ADD COLUMN x AS (log(a))",
    "CREATE INDEX x ON t(mine(a))",
    "CREATE TABLE x(a UNIQUE ON CONFLICT IGNORE)",
    "CREATE TABLE x(id INTEGER PRIMARY KEY, a, b, UNIQUE(a, b) ON CONFLICT /* the row there goes */ REPLACE)",
    "CREATE TABLE x(id INTEGER PRIMARY KEY ON CONFLICT REPLACE)",
    "CREATE TABLE x(a TEXT, PRIMARY KEY(a) ON CONFLICT IGNORE) WITHOUT ROWID",
    "CREATE TABLE x(a UNIQUE ON CONFLICT FAIL)",
    "CREATE TABLE x(a UNIQUE ON CONFLICT ROLLBACK, b REFERENCES x(a))",
    "VACUUM",
    "BEGIN",
    "COMMIT",
    "",
)


@rule("B7", "B8")
@pytest.mark.parametrize("sql", REFUSED)
def test_a_change_of_the_schema_that_is_refused(rows: SqliteRows, sql: str) -> None:
    """At the origin with an exception, and by every site with the same verdict, in case an origin does not refuse it."""
    assert verdict(rows, (Segment.SQL, sql.encode())) is Verdict.IMAGE
    with Branch(rows.connection.filename) as branch:
        branch.writer.create_scalar_function("mine", abs, 1, deterministic=True)  # type: ignore[arg-type]
        branch.begin()
        branch.execute("INSERT INTO t VALUES(7, 1.0, 'kept')")
        with pytest.raises((NotSupportedError, apsw.Error)):
            branch.change_schema(sql)
        assert [kind for kind, _ in branch.segments() if kind is Segment.SQL] == []
        assert branch.execute("SELECT b FROM t").fetchall() == [("kept",)]
        branch.end()


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE INDEX x ON t(lower(b), abs(a))",
        "CREATE TABLE x(a, b AS (upper(a) || length(a)) VIRTUAL, CHECK(a IS NOT NULL AND json_valid(a)))",
        "CREATE TABLE x(a DEFAULT (random()), b DEFAULT CURRENT_TIMESTAMP)",
        "CREATE TRIGGER x AFTER INSERT ON t BEGIN INSERT INTO later VALUES(sin(new.a)); END",
        "CREATE TABLE x(a REFERENCES later(id))",
        "CREATE VIEW x AS SELECT sin(a), random() FROM t",
        "CREATE TABLE x(id INTEGER PRIMARY KEY, a UNIQUE ON CONFLICT ABORT, b NOT NULL ON CONFLICT REPLACE DEFAULT 'IGNORE')",
        "CREATE TABLE x(a TEXT PRIMARY KEY, b REFERENCES x(a), c UNIQUE, CHECK(b <> c) ON CONFLICT ROLLBACK) WITHOUT ROWID",
        "CREATE TRIGGER x AFTER INSERT ON t BEGIN INSERT OR IGNORE INTO later VALUES(1); END",
        "CREATE UNIQUE INDEX x ON t(a, lower(b)) WHERE a > 0",
    ],
)
def test_a_change_of_the_schema_that_is_not(rows: SqliteRows, sql: str) -> None:
    """What the origin computes is in the changeset, however it is computed; and names may be of tables that come later."""
    assert verdict(rows, (Segment.SQL, sql.encode())) is Verdict.DONE
    with Branch(rows.connection.filename) as branch:
        branch.begin()
        branch.change_schema(sql)
        assert branch.segments() == [(Segment.SQL, sql.encode())]
        branch.end()


@rule("B8")
@pytest.mark.parametrize(
    "changeset",
    [
        change("t", 1, 2),
        change("t", 1, 2, 3, 4),
        change("nowhere", 1, 2, 3),
        change("zenjun_log", 1, 2, 3, 4, 5),
        change("sqlite_schema", 1, 2, 3, 4, 5),
        change("t", 1, 2, 3)[:-1],
        change("t", 1, 2, 3).replace(b"\x12", b"\x13"),
        b"P" + change("t", 1, 2, 3)[1:],
        b"\xff",
    ],
)
def test_a_changeset_that_does_not_fit(rows: SqliteRows, changeset: bytes) -> None:
    assert verdict(rows, (Segment.CHANGESET, changeset)) is Verdict.IMAGE
    assert isinstance(error_of("image", ""), InternalError)


def test_what_fits_is_applied(rows: SqliteRows) -> None:
    """The tests above reject for their reason."""
    assert verdict(rows, (Segment.CHANGESET, change("t", 1, 2, 3))) is Verdict.DONE


def test_a_body_that_is_none(rows: SqliteRows) -> None:
    for body in (b"\x01", b"\x01\0\0\0\5abc", b"\x09\0\0\0\0", encode_body([(Segment.SQL, b"\xff")])):
        rows.connection.execute("BEGIN IMMEDIATE")
        assert rows.apply(body) is Verdict.IMAGE
        rows.connection.execute("ROLLBACK")
