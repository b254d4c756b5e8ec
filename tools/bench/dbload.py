"""The load of ``zenjun bench database`` at one station: threads with a connection each, on rows of their own.

Reads one JSON line a measurement, answers with one. ``do``: ``fill``, ``update``, ``read`` (a row by its key), ``scan`` (the sum
of a column), ``watched`` (updates whose longest gap counts). ``rate``: updates are due so often, of all threads together, and
their times count from then on.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from .etcdwire import PUT, RANGE, EtcdError, Http2, inner, put_request, range_request
from .nameload import figures

ROWS: Final = 10_000
THREADS_MAX: Final = 64
TABLE: Final = "CREATE TABLE t(id INTEGER PRIMARY KEY, v INTEGER NOT NULL, filler VARCHAR(100) NOT NULL)"
SCAN: Final = "SELECT sum(v) FROM t"
SYSTEMS: Final = ("zenjun", "sqlite3", "etcd", "dqlite", "postgresql", "mariadb")
FILLER: Final = "x" * 100
TIMEOUT_S: Final = 30.0
RECV_BYTES: Final = 64 * 1024
LOCKED_S: Final = 0.01
"""Before the next try at most."""
CALLS_MAX: Final = 200
"""Of one connection to etcd under way, so that they fit into what it takes at once."""

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
            values = ", ".join(f"({key}, 0, '{FILLER}')" for key in range(first, first + 1000))
            self._cursor.execute(f"INSERT INTO t VALUES {values}")

    def close(self) -> None:
        self._connection.close()


class Keys(Program):
    """The same on etcd: a key is a row, and an update puts its value without reading what was there."""

    def __init__(self, target: str, line: Json, first: int) -> None:
        host, _, port = target.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._http = Http2(target)
        self._first, self._turn = first, 0
        self.step = self._read if line["do"] == "read" else self._update

    def _call(self, path: str, messages: Sequence[bytes]) -> list[bytes]:
        """The answers to calls that are under way at the same time. Raises EtcdError, OSError."""
        answers: dict[int, bytes | None] = {}

        def came(number: int, data: bytes | None) -> None:
            answers.setdefault(number, data)  # after it the stream ends

        for number, message in enumerate(messages):
            self._http.call(path, message, partial(came, number))
        self._flush()
        while len(answers) < len(messages):
            if not (data := self._socket.recv(RECV_BYTES)):
                raise EtcdError("etcd has closed the connection")
            self._http.receive(data)
            self._flush()
        found = [answers[number] for number in range(len(messages))]
        whole = [answer for answer in found if answer is not None]
        if len(whole) < len(found):
            raise EtcdError(f"{path}: refused")
        return whole

    def _flush(self) -> None:
        if data := self._http.take():
            self._socket.sendall(data)

    def _update(self) -> None:
        self._call(PUT, [put_request(b"t/%d" % self._key(), f"{self._turn} {FILLER}".encode())])

    def _read(self) -> None:
        (answer,) = self._call(RANGE, [range_request(b"t/%d" % self._key(), serializable=True)])
        if not inner(answer, 2, 5):
            raise ValueError("the key is not there")

    def fill(self) -> None:
        for first in range(0, ROWS, CALLS_MAX):
            keys = range(first, min(ROWS, first + CALLS_MAX))
            self._call(PUT, [put_request(b"t/%d" % key, f"0 {FILLER}".encode()) for key in keys])

    def close(self) -> None:
        self._socket.close()


class Demo(Program):
    """The same on dqlite-demo, a server with one table, by HTTP: an update replaces the row of a key."""

    def __init__(self, target: str, line: Json, first: int) -> None:
        self._http = http.client.HTTPConnection(target, timeout=TIMEOUT_S)
        self._first, self._turn = first, 0
        self.step = self._read if line["do"] == "read" else self._update

    def _ask(self, method: str, key: int, value: str | None = None) -> None:
        """While others write it says that the database is locked: again, then, until it is not."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            self._http.request(method, f"/t{key}", value)
            answer = self._http.getresponse().read()
            if not answer.startswith(b"Error"):
                return
            if b"locked" not in answer or time.monotonic() > deadline:
                raise ValueError(answer.decode(errors="replace"))
            time.sleep(random.uniform(0, LOCKED_S))

    def _update(self) -> None:
        self._ask("PUT", self._key(), f"{self._turn} {FILLER}")

    def _read(self) -> None:
        self._ask("GET", self._key())

    def fill(self) -> None:
        """The rows that a program reads at station 2, not all: each is a transaction."""
        for key in range(THREADS_MAX * 32, THREADS_MAX * 32 + 32):
            self._ask("PUT", key, f"0 {FILLER}")

    def close(self) -> None:
        self._http.close()


KINDS: Final[dict[str, Callable[[str, Json, int], Program]]] = {"etcd": Keys, "dqlite": Demo}


def run(programs: list[Program], start_ns: int, seconds: float, rate: float = 0.0) -> Json:
    """Each program does one thing after the other. ``gap_us``: the longest time in which none ended something. rate: they take
    turns, so many a second, and all that are due within the time count, from when they are due."""
    end_ns = start_ns + int(seconds * 1e9)
    ended: list[list[tuple[int, int]]] = [[] for _ in programs]
    problems: list[str] = []

    def one(number: int, program: Program, mine: list[tuple[int, int]]) -> None:
        turns = itertools.count(number, len(programs))
        try:
            while True:
                due = start_ns + int(next(turns) / rate * 1e9) if rate else start_ns
                time.sleep(max(0.0, (due - time.monotonic_ns()) / 1e9))
                began = due if rate else time.monotonic_ns()
                if began >= end_ns:
                    return
                program.step()
                mine.append((time.monotonic_ns(), began))
        except Exception as error:
            problems.append(f"{type(error).__name__}: {error}"[:200])

    threads = [threading.Thread(target=one, args=each) for each in zip(itertools.count(), programs, ended, strict=False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    times = sorted(each for mine in ended for each in mine if rate or each[0] <= end_ns)
    moments = [start_ns, *(min(now, end_ns) for now, _ in times), end_ns]
    gap = max(b - a for a, b in itertools.pairwise(moments))
    found = figures([now - began for now, began in times], seconds)
    return {**found, "gap_us": round(gap / 1e3, 1), "problems": sorted(set(problems))[:3]}


def work(system: str, target: str, number: int, line: Json) -> Json:
    count = int(line.get("threads", 1))
    kind = KINDS.get(system, partial(Program, system))
    programs = [kind(target, line, ((number - 1) * THREADS_MAX + k) * 32) for k in range(count)]
    try:
        if line["do"] == "fill":
            programs[0].fill()
            return {}
        for program in programs:
            program.step()
        print("WARM", flush=True)
        start = json.loads(sys.stdin.readline())
        return run(programs, start["start_ns"], line["seconds"], line.get("rate", 0.0))
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
