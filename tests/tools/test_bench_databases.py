"""``zenjun bench database``: its load on a file, the table, and a call in a lab."""

from __future__ import annotations

import json
import socket
import sqlite3
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from zenjun.tools.bench import db_systems, dbload, etcdwire
from zenjun.tools.bench.databases import DatabasePlan, render_databases, run
from zenjun.tools.bench.db_systems import MariaDb, OurDatabase, Postgres


@pytest.fixture
def path(tmp_path: Path) -> str:
    with sqlite3.connect(tmp_path / "x.db") as file:
        file.execute(dbload.TABLE)
        file.executemany("INSERT INTO t VALUES(?, 2, 'x')", ((key,) for key in range(dbload.ROWS)))
    file.close()
    return str(tmp_path / "x.db")


def test_the_load(path: str) -> None:
    """Two threads read for a moment; what one cannot do is reported."""
    argv = [sys.executable, "-m", "zenjun.tools.bench.dbload", "--system", "sqlite3", "--target", path, "--number", "2"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "READY\n"
        for do in ("read", "scan"):
            process.stdin.write(json.dumps({"do": do, "threads": 2, "seconds": 0.2}) + "\n")
            process.stdin.flush()
            assert process.stdout.readline() == "WARM\n"
            process.stdin.write(json.dumps({"start_ns": time.monotonic_ns()}) + "\n")
            process.stdin.flush()
            found = json.loads(process.stdout.readline().removeprefix("RESULT "))
            assert found["problems"] == [] and found["gap_us"] > 0
        process.stdin.close()


def test_programs_have_rows_of_their_own() -> None:
    keys = [{(first * 32 + turn) % dbload.ROWS for turn in range(32)} for first in range(3 * dbload.THREADS_MAX)]
    assert len(set.union(*keys)) == sum(map(len, keys)), "at three stations"


def test_what_fails_is_reported(path: str) -> None:
    line: dict[str, Any] = {"do": "update"}
    program = dbload.Program("sqlite3", path, line, 0)
    found = dbload.run([program], time.monotonic_ns(), 0.1)
    program.close()
    assert found["problems"] == ["OperationalError: attempt to write a readonly database"] and found["count"] == 0
    assert found["gap_us"] == pytest.approx(1e5)


def test_programs_take_turns_at_a_rate() -> None:
    """A slow program's updates count from when they were due; the others' do not wait for it."""

    class Slow(dbload.Program):
        def __init__(self, seconds: float) -> None:
            self.step = lambda: time.sleep(seconds)

    found = dbload.run([Slow(0.0), Slow(0.15)], time.monotonic_ns(), 0.5, 20.0)
    assert found["count"] == 10 and not found["problems"]
    assert found["max_us"] >= 350_000, "five of 150 ms in half a second"
    assert found["p50_us"] < found["max_us"]


class FakeEtcd(threading.Thread):
    """Answers each request of a connection with a value."""

    def __init__(self) -> None:
        super().__init__()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.asked = 0
        self.start()

    def run(self) -> None:
        answer = etcdwire.field(2, etcdwire.field(5, b"7"))
        with self.listener, self.listener.accept()[0] as connection:
            rest = b""
            while data := connection.recv(65536):
                rest = (rest + data).removeprefix(etcdwire.PREFACE)
                while len(rest) >= 9 and len(rest) >= 9 + (size := int.from_bytes(rest[:3], "big")):
                    kind, stream, rest = rest[3], int.from_bytes(rest[5:9], "big"), rest[9 + size :]
                    if kind == etcdwire.DATA:
                        self.asked += 1
                        message = struct.pack(">BI", 0, len(answer)) + answer
                        connection.sendall(etcdwire._frame(etcdwire.DATA, 0, stream, message))
                        connection.sendall(etcdwire._frame(etcdwire.HEADERS, etcdwire.END_STREAM, stream, b""))


def test_the_load_on_keys() -> None:
    """What it asks of etcd, with an etcd that has every key."""
    etcd = FakeEtcd()
    host, port = etcd.listener.getsockname()
    program = dbload.Keys(f"{host}:{port}", {"do": "read"}, 0)
    program.fill()
    program.step()
    program._update()
    program.close()
    etcd.join(20)
    assert etcd.asked == dbload.ROWS + 2


def test_what_is_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(db_systems, "POSTGRES", tmp_path)
    monkeypatch.setattr(db_systems, "GALERA", tmp_path / "none")
    assert "apt-get install postgresql-15" in str(Postgres.missing()) and "galera-4" in str(MariaDb.missing())


def test_the_table() -> None:
    plan = DatabasePlan(peers=("postgresql",))
    row = {"what": "update", "version": "v", "machine": "m", "fsync_us": 900.0, "load": 1.0, "per_s": 1000.0, "p50_us": 950.0}
    rows = [{**row, "system": "postgresql"}, {**row, "system": "zenjun"}, {**row, "system": "zenjun", "p50_us": 1050.0}]
    text = render_databases(rows)
    assert text.splitlines()[-2:] == [
        "| update | zenjun | 1,000 | – | 1,000 | – | – | – |",
        "| update | postgresql | 950 | – | 1,000 | – | – | – |",
    ]
    assert "A write and its fsync: 900 µs. Load average 1.0 to 1.0." in text and render_databases([]) == "No lines.\n"
    assert plan.lines() == 3 * (len(plan.measurements(OurDatabase)) + len(plan.measurements(Postgres)) + 2)


@pytest.mark.lab
@pytest.mark.slow
def test_a_call_in_a_lab() -> None:
    rows: list[dict[str, Any]] = []
    plan = DatabasePlan(seconds=0.3, repeat=1, dying_s=3.0, paced_s=0.5, rejoin_mb=2)
    run(plan, rows.append)
    assert [r["problems"] for r in rows if not r["ok"]] == [] and len(rows) == plan.lines()
    assert {r["system"] for r in rows} == {"zenjun", "sqlite3"}
    assert all(r["count"] > 0 for r in rows)
