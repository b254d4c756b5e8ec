"""Changes as they come, none missing; and reads that fail when the copy is too old."""

from __future__ import annotations

from typing import Any

import pytest
from zenjun import db

from .test_driver import Local, local

__all__ = ["local"]


@pytest.fixture(autouse=True)
def late(local: Local) -> None:
    local.is_late = True


def test_changes_in_order(local: Local) -> None:
    with db.connect("shop") as c:
        c.execute("CREATE TABLE nokey(a)")
        c.execute("INSERT INTO nokey VALUES('x')")
        c.execute("UPDATE t SET v = 'new' WHERE id = 2")
        c.execute("DELETE FROM t WHERE id = 3")
    found = list(c.watch(since=1, timeout=0.0))
    assert found == [
        db.Change(2, "", "SCHEMA", {}, None, {"sql": "CREATE TABLE nokey(a)"}),
        db.Change(2, "nokey", "INSERT", {"rowid": 1}, None, {"rowid": 1, "a": "x"}),
        db.Change(2, "t", "UPDATE", {"id": 2}, {"id": 2, "v": "b"}, {"v": "new"}),
        db.Change(2, "t", "DELETE", {"id": 3}, {"id": 3, "v": "c"}, None),
    ]
    assert [change.table for change in c.watch("nokey", since=0, timeout=0.0)] == ["nokey"]
    assert [change.version for change in c.watch("t", since=0, timeout=0.0)] == [1, 1, 1, 2, 2]
    c.close()


def test_what_follows_now(local: Local) -> None:
    with db.connect("shop") as c:
        changes = c.watch("t", timeout=20.0)
        local.until = lambda version: insert(c, version * 100)
        assert next(changes).key == {"id": 200} and next(changes).key == {"id": 300}
    c.close()


def test_a_gap_is_told(local: Local) -> None:
    with db.connect("shop") as c:
        for number in range(4):
            c.execute("INSERT INTO t VALUES(?, 'more')", (number + 10,))
            c.commit()
        local.rows.connection.execute("DELETE FROM zenjun_log WHERE version < 3")
        with pytest.raises(db.WatchGap, match="version 2 is no longer"):
            next(c.watch(since=1, timeout=0.0))
        assert next(c.watch(since=2, timeout=0.0)).version == 3
        changes = c.watch(since=3, timeout=0.0)
        assert next(changes).version == 4
        changes = c.watch(timeout=20.0)

        def opened_anew(version: int) -> None:
            local.rows.connection.execute("UPDATE zenjun_log SET digest = zeroblob(16) WHERE version = 5")
            insert(c, 99)

        local.until = opened_anew
        with pytest.raises(db.WatchGap, match="left behind"):
            next(changes)
        local.rows.connection.execute("UPDATE zenjun_log SET body = NULL WHERE version = 4")
        with pytest.raises(db.WatchGap, match="version 4 is no longer"):
            list(c.watch(since=3, timeout=0.0))
    c.close()


def insert(c: db.Connection, key: int) -> None:
    c.execute("INSERT INTO t VALUES(?, 'more')", (key,))
    c.commit()


@pytest.mark.parametrize("autocommit", [False, True])
def test_a_copy_that_is_too_old(local: Local, autocommit: bool) -> None:
    """The process is asked now and then, not by each read."""
    local.stale = 0.0
    c = db.connect("shop", max_stale=1000.0, autocommit=autocommit)
    for _ in range(3):
        assert c.execute("SELECT count(*) FROM t").fetchone() == (3,)
        c.rollback()
    assert local.asked.count("fresh") == 1
    c.close()
    for stale, text in ((1000.5, "for 1000.5 s; max_stale is 1000 s"), (None, "since the start")):
        local.stale = stale
        c = db.connect("shop", max_stale=1000.0, autocommit=autocommit)
        for sql in ("SELECT count(*) FROM t", "INSERT INTO t VALUES(9, 'x')"):
            with pytest.raises(db.NoQuorum, match=text):
                c.execute(sql)
        c.close()
    local.stale = db.NotReachable("gone")
    with pytest.raises(db.NoQuorum, match="it is not known how old"):
        db.connect("shop", max_stale=1000.0, autocommit=autocommit).execute("SELECT 1")
    assert isinstance(local.stale, Exception) and db.connect("shop").execute("SELECT 1").fetchone() == (1,)


def test_types(local: Local) -> None:
    changes: Any = db.connect("shop").watch(since=0, timeout=0.0)
    assert next(changes)._fields == ("version", "table", "op", "key", "old", "new")
