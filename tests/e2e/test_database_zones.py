"""Databases that not every station has: programs of the others use them in a session at the nearest primary."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator

import pytest
from zenjun.daemon.database.driver.distant import DistantConnection
from zenjun.daemon.database.errors import Error
from zenjun.db import Connection, IntegrityError, NotCommitted, NotSupportedError, OperationalError, ProgrammingError

from ..rules import rule
from .cluster import wait_for
from .test_database import Databases, databases

pytestmark = pytest.mark.lab

ZONES = {"database": {"zones": ["north=1,2", "south=4,3"]}}


@pytest.fixture
def plant() -> Iterator[Databases]:
    """Five stations in three zones, a database at the first of each."""
    with databases(5, options=ZONES) as up:
        made = up.run(2, "db", "create", "shop")
        assert (made.returncode, made.stdout) == (0, "shop is created\n"), made
        up.until_equal((1, 4, 5))
        yield up


def at(c: Connection) -> int | None:
    """The station where its statements run; None: here."""
    return c.station if isinstance(c, DistantConnection) else None


@rule("Z2", "Z3", "Z4", "Z5")
def test_every_station_uses_the_database(plant: Databases) -> None:
    _as_everywhere(plant)
    _primary_dies(plant)
    _misuse(plant)


def _as_everywhere(up: Databases) -> None:
    """The same statements give the same at a station with a copy and at one without."""
    assert (
        up.run(3, "sql", "shop", "CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT UNIQUE, data BLOB, x REAL)").returncode == 0
    )
    with contextlib.closing(up.connect(1)) as here, contextlib.closing(up.connect(2)) as there:
        assert (at(here), at(there)) == (None, 1), "its own zone's"
        rows = [(k, f"name {k}", bytes(300), k / 7) for k in range(1000)]
        there.executemany("INSERT INTO item VALUES(?, ?, ?, ?)", rows)
        assert there.in_transaction and here.execute("SELECT count(*) FROM item").fetchone() == (0,)
        there.commit()
        here.rollback()
        for c in (here, there):
            assert c.execute("SELECT * FROM item WHERE id >= 2 ORDER BY id").fetchall() == rows[2:], "more than one batch"
            c.rollback()
            cursor = c.execute("SELECT id, name FROM item WHERE name = :n", {"n": "name 3"})
            assert (cursor.fetchall(), [d[0] for d in cursor.description or ()]) == ([(3, "name 3")], ["id", "name"])
            with pytest.raises(IntegrityError):
                c.execute("INSERT INTO item VALUES(3, 'x', NULL, NULL)")
            c.rollback()
            with pytest.raises(OperationalError, match="no such table"):
                c.execute("SELECT * FROM absent")
            c.rollback()
            with pytest.raises(TypeError):
                c.execute("SELECT ?", (object(),))
            c.rollback()
            assert c.run(lambda c: c.execute("UPDATE item SET x = x + 1 WHERE id < 2").rowcount) == 2
        there.autocommit = True
        assert there.execute("UPDATE item SET name = 'changed' WHERE id = 5").rowcount == 1
        assert not there.in_transaction
        numbered = there.execute("INSERT INTO item(name) VALUES('has the next number')").lastrowid
        assert there.execute("SELECT max(id) FROM item WHERE id = ?", (numbered,)).fetchall() == [(1000,)]
        assert list(there.iterdump())[-1] == "COMMIT;"
        with contextlib.closing(up.connect(1, at_least=there.token())) as c:
            assert c.execute("SELECT name FROM item WHERE id = 5").fetchone() == ("changed",)
        first = next(there.watch("item", since=2, timeout=30))
        assert (first.table, first.op, first.new and first.new["data"]) == ("item", "INSERT", bytes(300))
    dumped = up.run(3, "sql", "shop", ".dump").stdout
    assert dumped == up.run(4, "sql", "shop", ".dump").stdout and "changed" in dumped
    listed = json.loads(up.run(2, "db", "list", "--json").stdout)
    assert [(each["name"], each["sites"], each.get("elsewhere")) for each in listed] == [("shop", [1, 4, 5], True)]
    assert "zone south" in up.run(3, "db", "status").stdout


def _primary_dies(up: Databases) -> None:
    """Programs that lose the station where their statements run go on at another one; nothing acknowledged is lost."""
    stop = threading.Event()
    done: dict[int, list[int]] = {2: [], 3: []}
    wrong: list[BaseException] = []

    def write(station: int) -> None:
        try:
            with contextlib.closing(up.connect(station)) as c:
                for n in range(station * 1_000_000, 1 << 62):
                    if stop.is_set():
                        return

                    def insert(c: Connection, n: int = n) -> None:
                        c.execute("INSERT INTO item VALUES(?, ?, NULL, 0)", (n, f"w {n}"))

                    c.run(insert, tries=100)
                    done[station].append(n)
        except BaseException as error:
            wrong.append(error)

    with contextlib.closing(up.connect(2)) as open_one:
        open_one.execute("INSERT INTO item VALUES(-1, 'lost', NULL, 0)")
        threads = [threading.Thread(target=write, args=(station,)) for station in done]
        for thread in threads:
            thread.start()
        try:
            wait_for(lambda: wrong or min(map(len, done.values())) >= 10, "both write", 60)
            up.kill(1)
            before = len(done[2])
            wait_for(lambda: wrong or len(done[2]) > before + 10, "it goes on elsewhere", 60)
            up.start(1)
        finally:
            stop.set()
            for thread in threads:
                thread.join(60)
        assert not wrong
        with pytest.raises(NotCommitted):
            open_one.execute("SELECT 1")
        assert open_one.execute("SELECT count(*) FROM item WHERE id = -1").fetchone() == (0,)
        assert at(open_one) in (1, 4)
    up.until_equal((1, 4, 5))
    for station in (1, 2, 3, 4, 5):
        with contextlib.closing(up.connect(station)) as c:
            there = {k for (k,) in c.execute("SELECT id FROM item WHERE id >= 1000000")}
            assert there == {*done[2], *done[3]}


def _misuse(up: Databases) -> None:
    with contextlib.closing(up.connect(2)) as c:
        for wrong in ("PRAGMA soft_heap_limit = 1", "PRAGMA temp_store_directory = '/tmp'", "ATTACH '/etc/passwd' AS a"):
            with pytest.raises((NotSupportedError, OperationalError)):
                c.execute(wrong)
            c.rollback()
        with pytest.raises(NotSupportedError, match="another station"):
            c.create_function("f", 1, lambda x: x)
        with pytest.raises(NotSupportedError, match="no copy in use"):
            c.backup("/tmp/nowhere.db")
    with pytest.raises(ProgrammingError, match="no database"):
        up.connect(2, "nothing")
    for words, text in (
        (("db", "where", "shop"), "no copy of shop"),
        (("db", "create", "x", "--zones", "west"), "no zone 'west'"),
        (("db", "create", "shop"), "already"),
        (("db", "force-open", "shop", "--yes"), "no copy of shop"),
    ):
        found = up.run(2, *words)
        assert found.returncode != 0 and text in found.stderr, found
    # A session costs its station a place: those of a program that has gone are free again.
    opened = [up.connect(2) for _ in range(5)]
    assert up.ask(1, "status")["distance"]["sessions_here"] == 5
    for c in opened:
        c.close()
    wait_for(lambda: up.ask(1, "status")["distance"]["sessions_here"] == 0, "the sessions are over")
    assert up.run(3, "db", "drop", "shop", "--yes").returncode == 0
    wait_for(lambda: not up.ask(4, "list")["databases"], "it is dropped everywhere")


@rule("Z1")
def test_other_zones_are_refused() -> None:
    """A station whose zones differ takes no part, and says why."""
    with databases(3, options={"database": {"zones": ["north=1,2"]}}, starts=(1, 2)) as up:
        config = up.lab.station(3).config_path
        config.write_text(config.read_text().replace("north=1,2", "north=2,1"))
        up.start(3)
        step = ""

        def is_refused() -> bool:
            nonlocal step
            with contextlib.suppress(Error):
                step = up.ask(3, "status")["step"]
            return step.startswith("refused")

        wait_for(is_refused, "it is refused", 60)
        assert "north=2,1" in step and "north=1,2" in step
        assert up.ask(1, "status")["step"] == "in the order"
        time.sleep(0.2)
        assert up.facts(1, "zenjun")["active_sites"] == [1, 2]
        up.stop(3)
        config.write_text(config.read_text().replace("north=2,1", "north=1,2"))
        up.start(3)
        up.until_equal((1, 2, 3), "zenjun")
