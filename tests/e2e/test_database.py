"""Replicated databases on real daemons: writers at all stations, processes that are killed, copies that are transferred."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from zenjun.daemon.database.driver.service import Service
from zenjun.daemon.database.errors import Error
from zenjun.db import Connection, IntegrityError, NoQuorum, SerializationError, connect
from zenjun.tools.bench.measure import cpu_ns
from zenjun.tools.lab import Lab

from ..rules import rule
from .cluster import Options, cluster, wait_for

pytestmark = pytest.mark.lab


class Databases:
    """Three stations with a database process at each."""

    def __init__(self, lab: Lab, variant: str = "") -> None:
        """variant: a broken one (``broken_databases``)."""
        self.lab, self.variant = lab, variant
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def socket(self, station: int) -> str:
        return str(self.lab.station(station).directory / "db.sock")

    def log(self, station: int) -> Path:
        return self.lab.station(station).directory / "db.log"

    def start(self, station: int, file_bytes_max: int = 0, failing: str = "") -> None:
        """file_bytes_max: no file of the process may grow above it (0: no bound), as if the disk were full. failing: a variant of
        ``failing_disks``."""
        at = self.lab.station(station)
        module = ["tests.e2e.broken_databases", self.variant] if self.variant else ["zenjun.daemon.database"]
        module = ["tests.e2e.failing_disks", failing] if failing else module
        argv = [sys.executable, "-m", *module, "--config", str(at.config_path)]
        if file_bytes_max:
            argv = ["prlimit", f"--fsize={file_bytes_max}", *argv]
        with self.log(station).open("ab") as log:
            self.processes[station] = subprocess.Popen(argv, env=at.environment(), stdout=log, stderr=log)

    def stop(self, station: int) -> int:
        self.processes[station].terminate()
        return self.processes[station].wait(60)

    def kill(self, station: int) -> None:
        self.processes[station].kill()
        self.processes[station].wait(60)

    def kill_station(self, station: int) -> None:
        """As a machine that loses power: the daemon and the process at once."""
        daemon = self.lab.station(station).daemon
        assert daemon is not None
        daemon.send_signal(signal.SIGKILL)
        self.kill(station)
        daemon.wait(60)

    def start_station(self, station: int) -> None:
        self.lab.station(station).start_daemon()
        self.start(station)

    def ask(self, station: int, do: str, timeout: float = 30.0, **arguments: Any) -> dict[str, Any]:
        service = Service(self.socket(station), timeout=timeout)
        try:
            return service.ask(do, timeout=timeout, **arguments)
        finally:
            service.close()

    def connect(self, station: int, name: str = "shop", **options: Any) -> Connection:
        return connect(name, socket=self.socket(station), **options)

    def facts(self, station: int, name: str = "shop") -> dict[str, Any]:
        """What a process says of a database; empty while it does not answer."""
        try:
            (found,) = self.ask(station, "status", timeout=5, db=name)["databases"]
        except Error:
            return {}
        return dict(found)

    def until_equal(self, stations: tuple[int, ...] = (1, 2, 3), name: str = "shop", timeout_s: float = 60.0) -> dict[str, Any]:
        """Wait until these are active, on disk, and equal; what the first of them says."""

        def equal() -> dict[str, Any]:
            all_ = [self.facts(station, name) for station in stations]
            if not all(f.get("active") and f["active_sites"] == list(stations) for f in all_):
                return {}
            same = len({(f["epoch"], f["version"], f["digest"]) for f in all_}) == 1
            durable = all(f["synced"].get(str(s)) == f["version"] for f in all_ for s in stations)
            return all_[0] if same and durable else {}

        return wait_for(equal, f"equal databases at {stations}", timeout_s)

    def run(self, station: int, *words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """``zenjun …`` at a station."""
        argv = [sys.executable, "-c", "from zenjun.tools.command import main; main()", *words]
        at = self.lab.station(station)
        return subprocess.run(argv, env=at.environment(), input=stdin, capture_output=True, text=True, timeout=60, check=False)


@contextlib.contextmanager
def databases(
    stations: int = 3, variant: str = "", *, options: Options | None = None, starts: tuple[int, ...] = ()
) -> Iterator[Databases]:
    """starts: stations with a process from the beginning on; none: all."""
    with cluster(stations, options=options) as lab:
        up = Databases(lab, variant)
        try:
            starts = starts or tuple(range(1, stations + 1))
            for station in starts:
                up.start(station)
            up.until_equal(starts, "zenjun")
            yield up
        except BaseException as error:
            for station in range(1, stations + 1):
                with contextlib.suppress(OSError):
                    error.add_note(f"db.log {station}:\n" + "\n".join(up.log(station).read_text().splitlines()[-15:]))
            raise
        finally:
            for process in up.processes.values():
                process.kill()
                process.wait(60)


@pytest.fixture
def shop() -> Iterator[Databases]:
    """A database at three stations."""
    with databases() as up:
        up.ask(1, "create", db="shop")
        up.until_equal()
        yield up


def test_three_stations_write_and_one_is_killed(shop: Databases) -> None:
    """All write at the same time; the process of one is killed in mid-write and comes back; all copies are equal."""
    with shop.connect(1) as c:
        c.execute("CREATE TABLE item(id INTEGER PRIMARY KEY, n INTEGER NOT NULL, who TEXT NOT NULL)")
        c.execute("CREATE TABLE total(id INTEGER PRIMARY KEY, n INTEGER NOT NULL)")
        c.execute("INSERT INTO total VALUES(1, 0)")
    stop = threading.Event()
    done = {1: 0, 2: 0, 3: 0}
    failed: list[BaseException] = []

    def write(station: int) -> None:
        try:
            with contextlib.closing(shop.connect(station)) as c:
                while not stop.is_set():
                    k = done[station]

                    def add(c: Connection, k: int = k) -> None:
                        c.execute("INSERT INTO item VALUES(?, ?, ?)", (station * 1_000_000 + k, k, f"station {station}"))
                        c.execute("UPDATE total SET n = n + 1 WHERE id = 1")

                    c.run(add, tries=100)
                    done[station] += 1
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(station,)) for station in done]
    for thread in threads:
        thread.start()
    try:
        wait_for(lambda: failed or min(done.values()) >= 20, "all have written", 60)
        shop.kill(3)
        before = done[1], done[2]
        wait_for(lambda: failed or (done[1] > before[0] + 10 and done[2] > before[1] + 10), "the others go on", 60)
        shop.start(3)
        back = done[3]
        wait_for(lambda: failed or done[3] > back + 5, "the third writes again", 60)
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert not failed
    shop.until_equal()
    for station in (1, 2, 3):
        with contextlib.closing(shop.connect(station)) as c:
            assert c.execute("SELECT count(*) FROM item").fetchone() == (sum(done.values()),)
            assert c.execute("SELECT n FROM total").fetchone() == (sum(done.values()),)
            assert c.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_commands(shop: Databases) -> None:
    """As a new user would: tables, rows, files, wrong arguments."""
    made = shop.run(1, "sql", "shop", "CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT NOT NULL)")
    assert (made.returncode, made.stderr) == (0, "")
    assert shop.run(2, "sql", "shop", "-c", "INSERT INTO item VALUES(1, 'bolt'), (2, 'nut')").returncode == 0
    read = shop.run(3, "sql", "shop", "--read", "linearizable", "SELECT * FROM item ORDER BY id")
    assert (read.stdout, read.returncode) == ("1\tbolt\n2\tnut\n", 0)
    rows = shop.run(1, "sql", "shop", "--json", stdin="SELECT count(*) AS n FROM item; SELECT name FROM item WHERE id = 2;")
    assert [json.loads(line) for line in rows.stdout.splitlines()] == [{"n": 2}, {"name": "nut"}]
    assert shop.run(1, "sql", "shop", ".tables").stdout == "item\n"
    assert shop.run(1, "sql", "shop", ".schema item").stdout.startswith("CREATE TABLE item(")
    dumped = shop.run(1, "sql", "shop", ".dump").stdout
    assert "'bolt'" in dumped and "zenjun_" not in dumped
    with (shop.lab.station(1).directory / "more.csv").open("w") as file:
        file.write("id,name\n3,screw\n4,washer\n")
    assert shop.run(1, "sql", "shop", f".import {file.name} item").stdout == "2 rows\n"
    with (shop.lab.station(1).directory / "rows.csv").open("w") as rows_alone:
        rows_alone.write("5,bar\n6,rod\n")
    said_what_is_wrong(shop, rows_alone.name)
    table = shop.run(2, "sql", "shop", "--format", "table", "--read", "linearizable", "SELECT id, name FROM item")
    assert "washer" in table.stdout and "name" in table.stdout
    listed = json.loads(shop.run(1, "db", "list", "--json").stdout)
    assert [(each["name"], each["active_sites"]) for each in listed] == [("shop", [1, 2, 3])]
    assert "shop: active" in shop.run(2, "db", "status").stdout
    where = shop.run(2, "db", "where", "shop").stdout.strip()
    with contextlib.closing(
        apsw.Connection(f"file:{where}?mode=ro", flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
    ) as c:
        assert c.execute("SELECT count(*) FROM item").fetchall() == [(4,)]
    assert shop.run(2, "db", "check", "shop").stdout == "shop: no damage\n"
    copy = shop.lab.station(1).directory / "copy.db"
    assert shop.run(1, "db", "backup", "shop", str(copy)).returncode == 0 and copy.stat().st_size
    assert shop.run(1, "db", "backup", "shop", str(copy)).returncode == 1

    for words, code, text in (
        (("db", "create", "shop"), 1, "there is a database 'shop' already"),
        (("db", "create", "No Name"), 2, "is no name for a database"),
        (("db", "nothing"), 2, "no such command"),
        (("sql", "nowhere", "SELECT 1"), 1, "no database 'nowhere'"),
        (("sql", "shop", "SELECT nonsense"), 1, "no such column: nonsense"),
        (("sql", "shop", "INSERT INTO item VALUES(1, 'again')"), 1, "UNIQUE constraint failed"),
        (("sql", "shop", "ATTACH 'x' AS y"), 1, "ATTACH"),
        (("sql", "shop", "INSERT INTO zenjun_meta(one) VALUES(2)"), 1, "not a table of the program's"),
        (("sql", "zenjun", "DELETE FROM databases"), 1, "zenjun db create and drop"),
        (("sql", "shop", "--csv", "--json", "SELECT 1"), 2, "one of"),
        (("sql", "shop", "-s", "/nowhere/db.sock", "SELECT 1"), 3, "is zenjun-db running?"),
        (("db", "create", "other", "--from", file.name), 1, "more.csv: not an SQLite database"),
        (("db", "restore", "shop", file.name, "--yes"), 1, "more.csv: not an SQLite database"),
        (("db", "restore", "shop", "/nowhere/file"), 1, "/nowhere/file: there is no such file"),
        (("db", "drop", "shop"), 2, "Nobody can be asked here"),
    ):
        found = shop.run(1, *words)
        assert found.returncode == code and text in found.stderr and not found.stdout, (words, found)
    for answer in (b"n\n", b"\n"):
        terminal, theirs = pty.openpty()
        os.write(terminal, answer)
        argv = [sys.executable, "-c", "from zenjun.tools.command import main; main()", "db", "drop", "shop"]
        asked = subprocess.run(
            argv, env=shop.lab.station(1).environment(), stdin=theirs, capture_output=True, timeout=60, check=False
        )
        os.close(terminal)
        os.close(theirs)
        assert asked.returncode == 1 and b"nothing was done" in asked.stderr, asked
    assert shop.facts(1)["active"]
    assert shop.run(3, "db", "drop", "shop", "--yes").returncode == 0
    wait_for(lambda: not shop.facts(1), "it is gone at station 1", 20)
    gone = shop.lab.station(1).state_directory / "db" / "shop"
    wait_for(lambda: not gone.exists(), "its files are gone", 20)


def said_what_is_wrong(shop: Databases, rows_alone: str) -> None:
    """Which of several statements failed; a file of rows without names of columns."""
    script = "INSERT INTO item VALUES(9, 'nail');\n-- the next one is wrong\n\nSELECT * FROM nowhere;\nDELETE FROM item;\n"
    for words, stdin, text in (
        ((), script, "line 4 of standard input: no such table: nowhere"),
        (("DELETE FROM item WHERE id = 9", "SELECT 1; SELECT * FROM nowhere"), None, "statement 3: no such table: nowhere"),
        (("SELECT * FROM nowhere",), None, "sql: no such table: nowhere"),
        (
            (f".import {rows_alone} item",),
            None,
            "the first line of the file names columns, and item has no '5' (it has id, name)",
        ),
        ((f".import {rows_alone} nowhere",), None, "there is no table nowhere"),
        ((), "SELECT 1;\n.tables\n\nSELECT 2;\n .import\n", ".import: .help shows what there is"),
        ((), ".tables\nSELECT\n  1;\n.tables\nSELECT * FROM nowhere;\n", "line 5 of standard input: no such table: nowhere"),
        (("BEGIN", "DELETE FROM item"), None, "the transaction has no COMMIT: nothing of it is kept"),
    ):
        found = shop.run(1, "sql", "shop", *words, stdin=stdin)
        assert found.returncode == 1 and text in found.stderr, found


def test_prompt(shop: Databases) -> None:
    """On a terminal it asks, goes on after a mistake, and shows tables."""
    at = shop.lab.station(1)
    terminal, theirs = pty.openpty()
    argv = [sys.executable, "-c", "from zenjun.tools.command import main; main()", "sql", "shop"]
    environment = {**at.environment(), "HOME": str(at.directory), "TERM": "dumb"}
    process = subprocess.Popen(argv, env=environment, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    shown = b""

    def says(text: bytes, deadline_s: float = 60.0) -> None:
        nonlocal shown
        until = time.monotonic() + deadline_s
        while text not in shown:
            left = until - time.monotonic()
            assert left > 0 and select.select([terminal], [], [], left)[0], f"{text!r} is not in {shown!r}"
            shown += os.read(terminal, 4096)
        shown = shown.partition(text)[2]

    try:
        says(b"shop> ")
        for line, *expected in (
            (b"CREATE TABLE item(id INTEGER PRIMARY KEY,\n", b"    . "),
            (b"name TEXT);\n", b"shop> "),
            (b"BEGIN; INSERT INTO item VALUES(1, 'bolt');\n", b"1 row changed", b"shop* "),
            (b"nonsense;\n", b"syntax error", b"shop* "),
            (b"COMMIT;\n", b"shop> "),
            (b"SELECT name FROM item;\n", b"bolt", b"shop> "),
            (b".tables\n", b"item", b"shop> "),
            (b"BEGIN; INSERT INTO item VALUES(2, 'nut');\n", b"shop* "),
        ):
            os.write(terminal, line)
            for text in expected:
                says(text)
        # Ctrl-C ends a statement that would run for hours; the prompt and the transaction stay.
        os.write(terminal, b"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n;\n")
        used_ns = cpu_ns(process.pid)
        wait_for(lambda: cpu_ns(process.pid) > used_ns + 500_000_000, "the statement runs", 60)
        process.send_signal(signal.SIGINT)
        says(b"interrupted")
        says(b"shop* ")
        os.write(terminal, b"COMMIT; SELECT count(*) FROM item;\n")
        says(b"2")
        says(b"shop> ")
        os.write(terminal, b".quit\n")
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait(60)
        os.close(terminal)


def test_a_full_disk_takes_one_station_out(shop: Databases) -> None:
    """The others go on; when there is room again it gets what it lacks."""
    with contextlib.closing(shop.connect(1)) as c:
        c.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, body BLOB)")
        c.commit()
        shop.until_equal()
        shop.stop(3)
        shop.start(3, file_bytes_max=300_000)
        shop.until_equal()
        for i in range(40):
            c.execute("INSERT INTO t VALUES(?, ?)", (i, bytes(20_000)))
            c.commit()
        wait_for(lambda: shop.facts(3)["counters"].get("failed"), "station 3 has failed", 60)
        assert shop.facts(1)["active_sites"] == [1, 2]
        assert "active" not in shop.facts(3)["step"]
        shop.stop(3)
        shop.start(3)
        shop.until_equal()


@rule("K1", "K2", "H1", "H2")
def test_programs_that_collide(shop: Databases) -> None:
    """Of two that write the same row, or read what the other wrote, one is told so, and does it again."""
    with contextlib.closing(shop.connect(1)) as one, contextlib.closing(shop.connect(2)) as two:
        one.executescript("CREATE TABLE acct(id INTEGER PRIMARY KEY, bal INTEGER CHECK(bal >= 0)); CREATE TABLE sums(n INTEGER);")
        one.executemany("INSERT INTO acct VALUES(?, ?)", [(1, 100), (2, 50), (3, 0)])
        one.commit()
        shop.until_equal()

        two.execute("UPDATE acct SET bal = bal - 10 WHERE id = 1")
        one.execute("UPDATE acct SET bal = bal - 30 WHERE id = 1")
        one.commit()
        with pytest.raises(SerializationError) as conflict:
            two.commit()
        assert (conflict.value.code, conflict.value.sqlstate, conflict.value.retryable) == ("conflict", "40001", True)
        assert not two.in_transaction

        def pay(c: Connection) -> int:
            ((balance,),) = c.execute("SELECT bal FROM acct WHERE id = 1").fetchall()
            c.execute("UPDATE acct SET bal = ? WHERE id = 1", (balance - 10,))
            return int(balance)

        shop.until_equal()
        assert two.run(pay) == 70
        shop.until_equal()

        # One reads all, the other writes a row that it has not read itself: rejected under serializable alone.
        for isolation, fails in (("serializable", True), ("snapshot", False)):
            with contextlib.closing(shop.connect(3, isolation=isolation)) as three:
                three.execute("INSERT INTO sums SELECT sum(bal) FROM acct")
                one.execute("UPDATE acct SET bal = bal + 1 WHERE id = 3")
                one.commit()
                if fails:
                    with pytest.raises(SerializationError) as read:
                        three.commit()
                    assert read.value.code == "read"
                else:
                    three.commit()
            shop.until_equal()

        # A row of its own, found by its key, is no reason.
        two.execute("SELECT bal FROM acct WHERE id = 2").fetchall()
        two.execute("UPDATE acct SET bal = bal + 5 WHERE id = 2")
        one.execute("UPDATE acct SET bal = bal + 5 WHERE id = 3")
        one.commit()
        two.commit()
        shop.until_equal()

        # The schema changes under a transaction that was begun before.
        two.execute("INSERT INTO acct VALUES(7, 1)")
        one.execute("ALTER TABLE acct ADD COLUMN note TEXT")
        one.execute("UPDATE acct SET note = 'first' WHERE id = 1")
        one.commit()
        with pytest.raises(SerializationError) as schema:
            two.commit()
        assert schema.value.code == "schema"
        shop.until_equal()
        with pytest.raises(IntegrityError):
            two.execute("INSERT INTO acct(id, bal) VALUES(8, -1)")
        two.rollback()
        assert two.execute("SELECT note FROM acct WHERE id = 1").fetchone() == ("first",)
        two.rollback()

        # What one has written another one sees that is given its token.
        one.execute("UPDATE acct SET bal = 1000 WHERE id = 2")
        one.commit()
        with contextlib.closing(shop.connect(3, at_least=one.token())) as three:
            assert three.execute("SELECT bal FROM acct WHERE id = 2").fetchone() == (1000,)
    shop.until_equal()


@pytest.mark.slow
@rule("W2", "K5")
def test_stations_that_come_back(shop: Databases) -> None:
    """By the log, by pages, without quorum, and after all were killed: nothing that was committed is lost."""
    with contextlib.closing(shop.connect(1)) as c:
        c.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, body BLOB)")
        c.executemany("INSERT INTO t VALUES(?, ?)", [(i, bytes(1000)) for i in range(2000)])
        c.commit()
        shop.until_equal()

        shop.kill_station(3)
        for i in range(2000, 2020):
            c.execute("INSERT INTO t VALUES(?, ?)", (i, b"later"))
            c.commit()
        shop.start_station(3)
        shop.until_equal()
        assert shop.facts(3)["counters"].get("transfers_log") == 1, "the log was enough"

        shop.kill_station(2)
        folder = shop.lab.station(2).state_directory / "db"
        shutil.rmtree(folder)
        shop.start_station(2)
        shop.until_equal(name="zenjun")
        shop.until_equal()
        assert shop.facts(2)["counters"].get("transfers_pages") == 1, "a new disk gets all pages"

        shop.kill_station(2)
        shop.kill_station(3)
        wait_for(lambda: not shop.facts(1)["can_write"], "station 1 is alone", 30)
        assert c.execute("SELECT count(*) FROM t").fetchone() == (2020,), "reading goes on"
        c.rollback()
        c.timeout = 1.0
        c.execute("INSERT INTO t VALUES(-1, NULL)")
        with pytest.raises(NoQuorum):
            c.commit()
        c.timeout = 30.0
    shop.kill_station(1)
    for station in (1, 2, 3):
        shop.start_station(station)
    shop.until_equal()
    for station in (1, 2, 3):
        with contextlib.closing(shop.connect(station)) as c:
            assert c.execute("SELECT count(*), min(id) FROM t").fetchone() == (2020, 0)
