"""A station whose disk or library cannot be relied on, beside two others: what it does not know it does not promise."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import apsw
import pytest
from zenjun.daemon.database.wire import to_text
from zenjun.db import Connection, InternalError, NotReachable, ProgrammingError, SerializationError
from zenjun.proto.service.database.messages import Segment, Txid, encode_body

from ..rules import rule
from .cluster import wait_for
from .test_database import Databases, shop

__all__ = ["shop"]

pytestmark = [pytest.mark.lab, pytest.mark.slow]


def generation(shop: Databases, station: int) -> str:
    """The file in use."""
    return (shop.lab.station(station).state_directory / "db" / "shop.db").readlink().name


READ_ONLY = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI


def count(shop: Databases, station: int) -> int:
    with contextlib.closing(shop.connect(station)) as c:
        ((n,),) = c.execute("SELECT count(*) FROM t").fetchall()
    return int(n)


def begun(shop: Databases, failing: str) -> tuple[Connection, Path]:
    """A table with a row, and station 3 with this fault; the switch for its syncs."""
    c = shop.connect(1)
    c.execute("CREATE TABLE t(id INTEGER PRIMARY KEY)")
    c.execute("INSERT INTO t VALUES(1)")
    c.commit()
    shop.until_equal()
    shop.stop(3)
    shop.start(3, failing=failing)
    shop.until_equal()
    return c, shop.lab.station(3).state_directory / "fail-sync"


def insert(c: Connection, key: int) -> None:
    c.execute("INSERT INTO t VALUES(?)", (key,))
    c.commit()


@rule("D4")
def test_after_a_failed_sync_all_is_written_anew(shop: Databases) -> None:
    """To a new file; also if the process ends before it has done so, and the next one finds a sync that works."""
    c, switch = begun(shop, "sync-fails")
    before = generation(shop, 3)
    switch.touch()
    insert(c, 2)
    wait_for(lambda: shop.facts(3)["counters"].get("failed"), "station 3 has failed", 60)
    shop.until_equal()
    after = generation(shop, 3)
    assert after != before and count(shop, 3) == 2
    assert "all of it is in a new file" in shop.log(3).read_text()

    switch.touch()
    insert(c, 3)
    wait_for(lambda: shop.facts(3)["counters"].get("failed") == 2, "station 3 has failed again", 60)
    shop.kill(3)
    assert generation(shop, 3) == after, "it had no time"
    shop.start(3)
    shop.until_equal()
    assert generation(shop, 3) != after and count(shop, 3) == 3
    again = generation(shop, 3)
    shop.kill(3)
    shop.start(3)
    shop.until_equal()
    assert generation(shop, 3) == again, "nothing is in doubt any more"
    c.close()


@rule("D4")
def test_a_process_that_is_killed_during_a_sync(shop: Databases) -> None:
    """The next one brings what it has written to the disk once more, before it says that it is there."""
    c, switch = begun(shop, "killed-in-sync")
    before = generation(shop, 3)
    switch.touch()
    insert(c, 2)
    assert shop.processes[3].wait(60) == -9
    assert "a sync failed or was cut off" not in shop.log(3).read_text()
    shop.start(3)
    shop.until_equal()
    assert "shop: a sync failed or was cut off by a kill; it is done again" in shop.log(3).read_text()
    assert generation(shop, 3) == before and count(shop, 3) == 2
    c.close()


@rule("Q7")
def test_another_release_of_sqlite(shop: Databases) -> None:
    """It does not take part and says why; its copy can be read, and its programs use another one; the others go on."""
    c = shop.connect(1)
    c.execute("CREATE TABLE t(id INTEGER PRIMARY KEY)")
    insert(c, 1)
    shop.until_equal()
    shop.stop(3)
    shop.start(3, failing="other-release")

    def refused() -> dict[str, Any]:
        facts = shop.facts(3)
        return facts if facts.get("step", "").startswith("refused: the active sites have SQLite 3.") else {}

    wait_for(refused, "station 3 is refused", 60)
    insert(c, 2)
    assert shop.facts(1)["active_sites"] == [1, 2]

    def elsewhere() -> bool:
        """The site at station 3 asks again and again to be let in; meanwhile its programs may find none, or its own copy."""
        with contextlib.suppress(NotReachable):
            return count(shop, 3) == 2
        return False

    wait_for(elsewhere, "a program at station 3 uses another site", 90)
    path = shop.ask(3, "open", db="shop", here=True)["path"]
    with contextlib.closing(apsw.Connection(f"file:{path}?mode=ro", flags=READ_ONLY)) as old:
        assert old.execute("SELECT count(*) FROM t").fetchall() == [(1,)]
    shop.stop(3)
    shop.start(3)
    shop.until_equal()
    assert count(shop, 3) == 2
    c.close()


@rule("W3")
def test_a_flipped_byte_is_found_and_mended(shop: Databases) -> None:
    """In a row's content, of which SQLite says nothing; and in a page that it cannot read any more."""
    with contextlib.closing(shop.connect(1)) as c:
        c.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, name TEXT)")
        c.executemany("INSERT INTO t VALUES(?, ?)", [(i, f"a name that is row number {i}") for i in range(300)])
        c.commit()
    shop.until_equal()
    fine = shop.run(1, "db", "scrub", "shop")
    assert (fine.returncode, fine.stderr) == (0, "") and "is equal at stations 1, 2, 3" in fine.stdout
    for number in (1, 2):
        shop.stop(3)
        path = (shop.lab.station(3).state_directory / "db" / "shop.db").resolve()
        with contextlib.closing(apsw.Connection(str(path))) as file:
            assert file.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall() == [(0, 0, 0)]
        data = bytearray(path.read_bytes())
        # The one in a leaf of the table; the other is in the log, on pages of another kind.
        (at,) = (m.start() for m in re.finditer(b"row number 77", data) if data[m.start() - m.start() % 4096] == 0x0D)
        if number == 1:
            data[at] ^= 1
        else:
            data[at - at % 4096] = 0  # what kind of page it is
        path.write_bytes(data)
        shop.start(3)
        if number == 1:
            shop.until_equal()
            with contextlib.closing(shop.connect(3)) as c:
                assert c.execute("SELECT name FROM t WHERE id = 77").fetchone() == ("a name that is sow number 77",)
            found = shop.run(1, "db", "scrub", "shop")
            assert found.returncode == 1 and "the copy at station 3 is damaged" in found.stderr, found
            wait_for(lambda: shop.facts(3)["counters"].get("damaged"), "station 3 knows", 20)
        shop.until_equal()
        with contextlib.closing(shop.connect(3)) as c:
            assert c.execute("SELECT name FROM t WHERE id = 77").fetchone() == ("a name that is row number 77",)
        assert (path.parent / f"bad-{number}.db").exists()
    log = shop.log(3).read_text()
    assert "comparison of all rows: the copy is damaged" in log and "another copy has come" in log and "is damaged" in log
    assert "comparison of all rows: the copy at station 3 was damaged" in shop.log(1).read_text()
    assert shop.run(2, "db", "scrub", "shop").returncode == 0
    assert "last comparison of all rows: equal" in shop.run(2, "db", "status", "shop").stdout


def test_a_program_that_sends_nonsense(shop: Databases) -> None:
    """All sites reject it alike, or its process does, with the reason; the database goes on."""
    c = shop.connect(1)
    c.execute("CREATE TABLE t(id INTEGER PRIMARY KEY)")
    insert(c, 1)
    good = shop.until_equal()
    txid: dict[str, Any] = {"txid": to_text(Txid(1, 2, 3, 4).encode())}
    write = {"db": "shop", **txid, "epoch": good["epoch"], "snapshot": good["version"]}
    for asked, kind in (
        ({**write, "body": to_text(b"\xff")}, InternalError),
        (
            {**write, "body": to_text(encode_body([(Segment.CHANGESET, b"T\x01\x01nowhere\0\x12\0\x01" + bytes(8))]))},
            InternalError,
        ),
        ({**write, "body": to_text(encode_body([(Segment.SQL, b"DROP TABLE t")]))}, SerializationError),
        ({**write, "body": "", "pieces": 5}, ProgrammingError),
        ({**write, "body": "no base64"}, ProgrammingError),
        ({**write, "body": "", "reads": to_text(b"odd")}, ProgrammingError),
        ({**write, "body": "", "snapshot": -1}, ProgrammingError),
        ({**write, "body": "", "snapshot": good["version"] + 9}, SerializationError),
        ({**write, "body": "", "epoch": good["epoch"] + 9}, SerializationError),
        ({**write, "body": "", "txid": to_text(b"short")}, ProgrammingError),
        ({**write, "body": "", "durability": "none"}, ProgrammingError),
        ({**write, "body": "", "db": "nowhere"}, ProgrammingError),
    ):
        with pytest.raises(kind):
            shop.ask(2, "commit", **asked)
    with pytest.raises(ProgrammingError, match="first piece"):
        shop.ask(2, "piece", **txid, number=1, body="")
    insert(c, 2)
    assert shop.until_equal()["version"] == good["version"] + 1 and count(shop, 3) == 2
    c.close()
