"""The load of ``zenjun bench database`` at one station: threads with a connection each, on rows of their own.

Reads one JSON line a measurement, answers with one. ``do``: ``fill``, ``update``, ``read`` (a row by its key), ``scan`` (the sum
of a column), ``watched`` (updates whose longest gap counts).
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from .nameload import figures

ROWS: Final = 10_000
THREADS_MAX: Final = 64
TABLE: Final = "CREATE TABLE t(id INTEGER PRIMARY KEY, v INTEGER NOT NULL, filler VARCHAR(100) NOT NULL)"
SCAN: Final = "SELECT sum(v) FROM t"
SYSTEMS: Final = ("zenjun", "sqlite3", "postgresql", "mariadb")

Json = dict[str, Any]


def opened(system: str, target: str, durability: str) -> Any:
    """A connection in autocommit mode. target: of zenjun the process's socket, of sqlite3 the file, else HOST:PORT."""
    if system == "zenjun":
        from ...daemon.database.driver import connect

        return connect("bench", socket=target, durability=durability, autocommit=True)
    if system == "sqlite3":
        import sqlite3

        return sqlite3.connect(f"file:{target}?mode=ro", uri=True, isolation_level=None, check_same_thread=False)
    host, _, port = target.rpartition(":")
    if system == "postgresql":
        import psycopg2

        connection = psycopg2.connect(host=host, port=int(port), user="postgres", dbname="postgres")
        connection.autocommit = True
        return connection
    import pymysql

    return pymysql.connect(host=host, port=int(port), user="bench", database="bench", autocommit=True)


class Program:
    """One connection, and what it does again and again."""

    def __init__(self, system: str, target: str, line: Json, first: int) -> None:
        self._connection = opened(system, target, line.get("durability", "majority-disk"))
        self._cursor = self._connection.cursor()
        self._place = "?" if system in ("zenjun", "sqlite3") else "%s"
        self._first, self._turn = first, 0
        self.step: Callable[[], None] = {"read": self._read, "scan": self._scan}.get(line["do"], self._update)

    def _key(self) -> int:
        """Rows are those of this program alone, as long as there are as many."""
        self._turn += 1
        return (self._first + self._turn % 32) % ROWS

    def _update(self) -> None:
        self._cursor.execute(f"UPDATE t SET v = v + 1 WHERE id = {self._place}", (self._key(),))

    def _read(self) -> None:
        self._cursor.execute(f"SELECT v FROM t WHERE id = {self._place}", (self._key(),))
        if len(self._cursor.fetchall()) != 1:
            raise ValueError("the row is not there")

    def _scan(self) -> None:
        self._cursor.execute(SCAN)
        self._cursor.fetchall()

    def fill(self) -> None:
        self._cursor.execute(TABLE)
        for first in range(0, ROWS, 1000):
            values = ", ".join(f"({key}, 0, '{'x' * 100}')" for key in range(first, first + 1000))
            self._cursor.execute(f"INSERT INTO t VALUES {values}")

    def close(self) -> None:
        self._connection.close()


def closed_loop(programs: list[Program], start_ns: int, seconds: float) -> Json:
    """Each program does one thing after the other. ``gap_us``: the longest time in which none ended something."""
    end_ns = start_ns + int(seconds * 1e9)
    ended: list[list[tuple[int, int]]] = [[] for _ in programs]
    problems: list[str] = []

    def run(program: Program, mine: list[tuple[int, int]]) -> None:
        time.sleep(max(0.0, (start_ns - time.monotonic_ns()) / 1e9))
        try:
            while (began := time.monotonic_ns()) < end_ns:
                program.step()
                mine.append((time.monotonic_ns(), began))
        except Exception as error:
            problems.append(f"{type(error).__name__}: {error}"[:200])

    threads = [threading.Thread(target=run, args=each) for each in zip(programs, ended, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    times = sorted(each for mine in ended for each in mine if each[0] <= end_ns)
    moments = [start_ns, *(now for now, _ in times), end_ns]
    gap = max(b - a for a, b in itertools.pairwise(moments))
    found = figures([now - began for now, began in times], seconds)
    return {**found, "gap_us": round(gap / 1e3, 1), "problems": sorted(set(problems))[:3]}


def work(system: str, target: str, number: int, line: Json) -> Json:
    count = int(line.get("threads", 1))
    programs = [Program(system, target, line, ((number - 1) * THREADS_MAX + k) * 32) for k in range(count)]
    try:
        if line["do"] == "fill":
            programs[0].fill()
            return {}
        for program in programs:
            program.step()
        print("WARM", flush=True)
        start = json.loads(sys.stdin.readline())
        return closed_loop(programs, start["start_ns"], line["seconds"])
    finally:
        for program in programs:
            program.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="dbload", description="The load of zenjun bench database at one station.")
    parser.add_argument("--system", choices=SYSTEMS, required=True)
    parser.add_argument("--target", required=True, help="socket of zenjun-db, file of sqlite3, HOST:PORT of the others")
    parser.add_argument("--number", type=int, required=True, help="of the station")
    arguments = parser.parse_args()
    print("READY", flush=True)
    while line := sys.stdin.readline():
        print("RESULT " + json.dumps(work(arguments.system, arguments.target, arguments.number, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
