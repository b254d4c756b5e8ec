"""Automatic ids: from blocks that no other program has, whoever commits first."""

from __future__ import annotations

import random
from collections.abc import Iterator

import apsw
import pytest
from zenjun import db
from zenjun.daemon.database import leases
from zenjun.daemon.database.driver.connection import Connection
from zenjun.daemon.database.leases import apply_lease, automatic, encode_lease

from ..rules import rule
from .station import Station
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


@pytest.fixture
def certified(table: Local, monkeypatch: pytest.MonkeyPatch) -> Station:
    station = Station(table.files, table.rows)
    monkeypatch.setattr(Connection, "_ask", lambda self, do, *, seconds=None, **arguments: station.ask(do, **arguments))
    return station


@rule("K2", "K7")
def test_who_only_inserts_reads_nothing_of_the_table(certified: Station) -> None:
    """Ten programs insert on one snapshot, use their ids, and all commit; without blocks one does. Who has read the table, or the
    row that another one changes, is rejected all the same."""
    programs = [db.connect("shop") for _ in range(10)]
    for expected in (10, 1):
        for c in programs:
            c.execute("BEGIN")
            key = c.execute(INSERT).lastrowid
            c.execute("UPDATE a SET v = v || ? WHERE id = ?", (key, key))
            assert c.execute("SELECT v FROM a WHERE id = ?", (key,)).fetchall() == [(f"x{key}",)]
        done = 0
        for c in programs:
            try:
                c.commit()
                done += 1
            except db.Error as error:
                assert isinstance(error, db.SerializationError | db.IntegrityError)
        assert done == expected
        certified.has_leases = False
        for c in programs:
            c._keys._blocks.clear()
    certified.has_leases = True
    one, two = programs[:2]
    for query in ("SELECT max(id) FROM a", "SELECT count(*) FROM a", "SELECT v FROM a WHERE id = 1"):
        one.execute("BEGIN")
        one.execute(query).fetchall()
        one.execute(INSERT)
        two.execute("UPDATE a SET v = v || '!' WHERE id = 1")
        two.execute(INSERT)
        two.commit()
        with pytest.raises(db.SerializationError):
            one.commit()
    for c in programs:
        c.close()


@rule("H1", "K7")
def test_blocks_before_a_change_of_the_schema(certified: Station) -> None:
    """The program's own blocks are versions between its snapshot and the lock, and nothing that it must see; others' are more."""
    with db.connect("shop") as c:
        for key in range(3):
            c.execute(INSERT)
            c.execute("UPDATE t SET v = 'z' WHERE id = ?", (key,))
        c.execute("CREATE TABLE more(x)")
        c.execute("INSERT INTO more SELECT id FROM a")
    c.close()
    assert certified.rows.query("SELECT count(*) FROM more") == [(4,)]
    with db.connect("shop") as c, db.connect("shop") as other:
        c.execute(INSERT)
        other.execute("INSERT INTO t VALUES(50, 'x')")
        other.commit()
        with pytest.raises(db.SerializationError):
            c.execute("DROP TABLE more")
        c.rollback()
    c.close()
    other.close()


@rule("K7")
@pytest.mark.parametrize("seed", range(4))
def test_blocks_in_any_order(certified: Station, seed: int) -> None:
    """Programs that insert, count, delete the highest row, insert far above, roll back: what each has seen is what a serial
    history has at its place, and no two rows ever have one id."""
    r = random.Random(seed)
    programs = [db.connect("shop") for _ in range(3)]
    serial = {key for (key,) in certified.rows.query("SELECT id FROM a")}
    ever, own = set(serial), {0}
    under_way: dict[int, tuple[list[int], set[int], int | None]] = {}
    committed = 0
    for _ in range(250):
        n = r.randrange(len(programs))
        c = programs[n]
        keys, gone, counted = under_way.setdefault(n, ([], set(), None))
        step = r.choice(["insert"] * 4 + ["far", "delete", "count", "commit", "commit", "rollback"])
        if step == "insert":
            key = c.execute(INSERT).lastrowid
            assert key is not None and (key not in ever or own & set(keys))
            keys.append(key)
            ever.add(key)
        elif step == "far" and r.random() < 0.3:
            keys.append(max(ever | own) + r.randint(1, 500))
            own.add(keys[-1])
            c.execute("INSERT INTO a VALUES(?, 'far')", (keys[-1],))
        elif step == "delete" and not keys:
            ((last,),) = c.execute("SELECT max(id) FROM a").fetchall()
            if last is not None and last not in gone:
                gone.add(last)
                c.execute("DELETE FROM a WHERE id = ?", (last,))
        elif step == "count" and not keys and not gone:
            ((counted,),) = c.execute("SELECT count(*) FROM a").fetchall()
            under_way[n] = (keys, gone, counted)
        elif step == "rollback":
            c.rollback()
            del under_way[n]
        elif step == "commit":
            try:
                c.commit()
                assert not (keys or gone) or counted in (None, len(serial)), "it has read what is there at its place"
                assert gone <= serial and not serial & set(keys)
                serial = (serial | set(keys)) - gone
                committed += bool(keys)
            except db.SerializationError:
                pass
            except db.IntegrityError:
                assert own & set(keys), "an id that a program gave by itself, or SQLite above it"
            del under_way[n]
    assert committed > 10
    assert {key for (key,) in certified.rows.query("SELECT id FROM a")} == serial
    for c in programs:
        c.close()
