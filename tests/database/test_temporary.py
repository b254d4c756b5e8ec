"""Temporary tables that have the names of others: what a statement reads, and what stays at this station."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from zenjun import db
from zenjun.proto.service.database.certify import table_hash
from zenjun.proto.service.database.changeset import row_hash

from ..rules import rule
from .test_driver import Local, local

__all__ = ["local"]


@pytest.fixture
def c(local: Local) -> Iterator[db.Connection]:
    """It begins with a temporary table, before it has looked at anything else."""
    with contextlib.closing(db.connect("shop", autocommit=True)) as other:
        other.execute("CREATE TABLE other(a)")
        other.execute("CREATE TABLE k(a TEXT NOT NULL, b TEXT NOT NULL, v, PRIMARY KEY(a, b))")
        other.execute("CREATE INDEX i ON t(v)")
    with contextlib.closing(db.connect("shop", autocommit=True)) as connection:
        connection.execute("CREATE TEMP TABLE k(b TEXT NOT NULL, a TEXT NOT NULL, PRIMARY KEY(b, a))")
        connection.execute("CREATE TEMP TABLE t(id INTEGER PRIMARY KEY, v)")
        connection.execute("BEGIN")
        yield connection


@rule("K2")
def test_a_name_means_another_table_when_the_temporary_one_is_gone(local: Local, c: db.Connection) -> None:
    """The same text was a read of the temporary table before."""
    query = "SELECT count(*) FROM t"
    assert c.execute(query).fetchall() == [(0,)]
    c.execute("DROP TABLE t")
    assert c.execute(query).fetchall() == [(3,)]
    c.execute("INSERT INTO t VALUES(9, 'x')")
    c.commit()
    assert table_hash("t") in local.reads


@rule("K2")
def test_a_trigger_of_a_temporary_table_reads(local: Local, c: db.Connection) -> None:
    insert = "INSERT INTO t(v) VALUES('x')"
    c.execute(insert)
    c.execute(
        "CREATE TEMP TRIGGER r AFTER INSERT ON t BEGIN UPDATE t SET v = (SELECT count(*) FROM other) WHERE id = new.id; END"
    )
    c.execute(insert)
    c.execute("INSERT INTO main.t VALUES(9, 'x')")
    c.commit()
    assert table_hash("other") in local.reads


@rule("K2")
def test_the_key_is_that_of_the_table_and_not_of_its_shadow(local: Local, c: db.Connection) -> None:
    c.execute("SELECT v FROM main.k WHERE a = 'x' AND b = 'y'").fetchall()
    c.execute("INSERT INTO main.t VALUES(9, 'x')")
    c.commit()
    assert local.reads == {row_hash("k", (b"\x03\x01x", b"\x03\x01y"))}


def test_a_shadow_without_the_index_of_the_table(local: Local, c: db.Connection) -> None:
    assert c.execute("SELECT id FROM main.t WHERE v = 'b'").fetchall() == [(2,)]


@rule("B7")
def test_a_virtual_table_is_not_made_in_temp_at_all_sites(local: Local) -> None:
    """It would be of the applier's connection: what ``t`` means there would depend on when its process began."""
    with contextlib.closing(db.connect("shop", autocommit=True)) as c:
        with pytest.raises(db.NotSupportedError):
            c.execute("CREATE VIRTUAL TABLE temp.t USING fts5(v)")
        c.execute("DROP TABLE t")


@rule("B7")
@pytest.mark.parametrize("sql", ["UPDATE f_content SET c0 = 'x'", "DELETE FROM f_data", "DROP TABLE f_content"])
def test_what_a_virtual_table_keeps_is_written_by_its_module_alone(local: Local, sql: str) -> None:
    """Otherwise SQLite calls the copy damaged, and so does every other site of its own."""
    with contextlib.closing(db.connect("shop", autocommit=True)) as c:
        c.execute("CREATE VIRTUAL TABLE f USING fts5(body)")
        c.execute("INSERT INTO f VALUES('one two')")
        with pytest.raises(db.OperationalError, match="may not be"):
            c.execute(sql)
        c.execute("UPDATE f SET body = 'three'")
        c.execute("ALTER TABLE f RENAME TO g")
        assert c.execute("SELECT body FROM g WHERE g MATCH 'three'").fetchall() == [("three",)]
        assert local.rows.damage() == ""
        c.execute("DROP TABLE g")
