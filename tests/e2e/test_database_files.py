"""Databases that begin with a file, are replaced by a backup, or open with the one copy that is left."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time

import apsw
import pytest
from zenjun.db import NoQuorum

from ..rules import rule
from .cluster import wait_for
from .test_database import Databases, databases, shop

__all__ = ["shop"]

pytestmark = [pytest.mark.lab, pytest.mark.slow]
ROWS = 3000


@rule("Q8")
def test_a_database_from_a_file() -> None:
    """All stations get what it has, also one that was away when it was replaced by a backup."""
    with databases() as up:
        folder = up.lab.station(1).directory
        source = folder / "old.sqlite"
        with contextlib.closing(apsw.Connection(str(source))) as c:
            c.execute("PRAGMA journal_mode = WAL; CREATE TABLE t(id INTEGER PRIMARY KEY AUTOINCREMENT, body TEXT)").fetchall()
            c.execute("CREATE TABLE nokey(a); CREATE VIRTUAL TABLE f USING fts5(body); INSERT INTO f VALUES('one two')")
            with c:
                c.executemany("INSERT INTO t(body) VALUES(?)", [(f"row {i} " * 20,) for i in range(ROWS)])
            made = up.run(1, "db", "create", "shop", "--from", str(source))
        assert (made.returncode, made.stderr) == (0, ""), "another program has it open"
        up.until_equal()
        for station in (1, 2, 3):
            with contextlib.closing(up.connect(station)) as c:
                assert c.execute("SELECT count(*), min(body) FROM t").fetchone() == (ROWS, "row 0 " * 20)
                assert c.execute("SELECT count(*) FROM f('two')").fetchone() == (1,)
        with contextlib.closing(up.connect(2)) as c:
            c.execute("INSERT INTO t(body) VALUES('new')")
            assert c.execute("SELECT max(id) FROM t").fetchone() == (ROWS + 1,)
            c.commit()
        up.until_equal()
        backup = folder / "backup.db"
        assert up.run(1, "db", "backup", "shop", str(backup)).returncode == 0
        with contextlib.closing(up.connect(2)) as c:
            c.execute("DELETE FROM t")
            c.commit()
        up.until_equal()
        up.stop(3)
        restored = up.run(1, "db", "restore", "shop", str(backup), "--yes", "-t", "10")
        assert restored.returncode == 1 and "stations 3 do not have it on their disks yet" in restored.stderr, restored
        up.start(3)
        up.until_equal()
        for station in (1, 2, 3):
            with contextlib.closing(up.connect(station)) as c:
                assert c.execute("SELECT count(*), max(id) FROM t").fetchone() == (ROWS + 1, ROWS + 1)
        assert up.run(2, "db", "restore", "shop", str(backup), "--yes").returncode == 0
        up.until_equal()

        bad = folder / "bad.sqlite"
        with contextlib.closing(apsw.Connection(str(bad))) as c:
            c.execute("CREATE TABLE k(k TEXT PRIMARY KEY); INSERT INTO k VALUES(NULL)")
        for words, code, text in (
            (("db", "create", "other", "--from", str(bad)), 1, "k.k: NULL in a key"),
            (("db", "restore", "shop", str(bad), "--yes"), 1, "nothing has been done"),
            (("db", "create", "shop", "--from", str(source)), 1, "there is a database 'shop' already"),
            (("db", "create", "other", "--from", "/nowhere"), 1, "/nowhere"),
            (("db", "restore", "nowhere", str(source), "--yes"), 1, "no database 'nowhere'"),
        ):
            found = up.run(1, *words)
            assert found.returncode == code and text in found.stderr, (words, found)
        assert not list((up.lab.station(1).state_directory / "db").glob("upload-*")), "what came is removed"
        assert not list((up.lab.station(1).state_directory / "db").glob("*.first*"))


@rule("Q9")
def test_an_operator_opens_what_is_left(shop: Databases) -> None:
    """Two of three disks are lost: nothing opens, until an operator wants it; then there are three again."""
    with contextlib.closing(shop.connect(1)) as c:
        c.execute("CREATE TABLE t(id INTEGER PRIMARY KEY)")
        c.execute("INSERT INTO t VALUES(1)")
        c.commit()
    version = shop.until_equal()["version"]
    refused = shop.run(1, "db", "force-open", "shop", "--yes")
    assert refused.returncode == 1 and "is open: stations 1, 2, 3 are active" in refused.stderr
    for station in (1, 2, 3):
        shop.stop(station)
    for station in (1, 2):
        shutil.rmtree(shop.lab.station(station).state_directory / "db")
    for station in (1, 2, 3):
        shop.start(station)
    for name in ("zenjun", "shop"):
        wait_for(lambda name=name: len(shop.facts(3, name).get("members", [])) == 3, "all serve it", 60)  # type: ignore[misc]
        assert not shop.facts(3, name)["active"]
        forced = shop.run(3, "db", "force-open", name, "--yes")
        assert forced.returncode == 0 and "whatever was committed later is lost" in forced.stderr, forced
        shop.until_equal(name=name)
    assert f"version {version} of station 3" in forced.stdout
    for station in (1, 2, 3):
        with contextlib.closing(shop.connect(station)) as c:
            assert c.execute("SELECT * FROM t").fetchall() == [(k,) for k in range(1, station + 1)]
            c.execute("INSERT INTO t VALUES(?)", (station + 1,))
            c.commit()
        shop.until_equal()


def test_changes_come_and_old_copies_are_told(shop: Databases) -> None:
    """A program at another station sees every change once; one that admits no old copy is told when the others are gone."""
    with contextlib.closing(shop.connect(1)) as c:
        c.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, body BLOB)")
        c.commit()
        version = shop.until_equal()["version"]
        with contextlib.closing(shop.connect(3)) as watcher:
            changes = watcher.watch("t", since=version, timeout=60)
            for k in range(20):
                c.execute("INSERT INTO t VALUES(?, x'00')", (k,))
                c.commit()
                change = next(changes)
                assert (change.version, change.op, change.new) == (version + k + 1, "INSERT", {"id": k, "body": b"\0"})
    with contextlib.closing(shop.connect(3, max_stale=3.0)) as c:
        assert c.execute("SELECT count(*) FROM t").fetchone() == (20,)
        c.rollback()
        shop.kill_station(1)
        shop.kill_station(2)
        with pytest.raises(NoQuorum, match="max_stale is 3 s"):
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                c.execute("SELECT count(*) FROM t").fetchone()
                c.rollback()
                time.sleep(0.1)
    with contextlib.closing(shop.connect(3)) as c:
        assert c.execute("SELECT count(*) FROM t").fetchone() == (20,), "others read on"


@rule("K7", "K8")
def test_automatic_ids_do_not_collide(shop: Databases) -> None:
    """Three stations insert at the same time, and none of them is told to do it again. Rows of a table without a key are numbered
    without a gap."""
    with contextlib.closing(shop.connect(1)) as c:
        c.execute("CREATE TABLE t(id INTEGER PRIMARY KEY AUTOINCREMENT, station INTEGER)")
        c.execute("CREATE TABLE n(station INTEGER, k INTEGER)")
        c.commit()
    shop.until_equal()
    ids: dict[int, list[int | None]] = {1: [], 2: [], 3: []}
    numbers: dict[int, list[int | None]] = {1: [], 2: [], 3: []}
    failed: list[BaseException] = []

    def insert(station: int) -> None:
        try:
            lone = shop.connect(station, autocommit=True)
            with contextlib.closing(lone), contextlib.closing(shop.connect(station, isolation="snapshot")) as c:
                for k in range(30):
                    ids[station].append(c.execute("INSERT INTO t(station) VALUES(?)", (station,)).lastrowid)
                    c.commit()
                    numbers[station].append(lone.execute("INSERT INTO n VALUES(?, ?)", (station, k)).lastrowid)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=insert, args=(station,)) for station in ids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failed and len({k for each in ids.values() for k in each}) == 90
    shop.until_equal()
    with contextlib.closing(shop.connect(2)) as c:
        for station, taken in ids.items():
            found = [k for (k,) in c.execute("SELECT id FROM t WHERE station = ? ORDER BY id", (station,))]
            assert found == sorted(k for k in taken if k)
            there = c.execute("SELECT rowid FROM n WHERE station = ? ORDER BY k", (station,)).fetchall()
            assert [number for (number,) in there] == numbers[station]
        assert c.execute("SELECT min(rowid), max(rowid), count(*) FROM n").fetchone() == (1, 90, 90)
    assert sum(shop.facts(station)["counters"].get("verdict_conflict", 0) for station in ids) == 0
