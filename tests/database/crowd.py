"""Programs that are killed in the middle write side by side; what came of it equals a serial replay of their statements.

    python -m tests.database.crowd FOLDER --seconds 75 [--programs 8] [--threads 1] [--seed N] [--blind]

One process stands for the order and a site: it certifies transactions (first committer wins, by rows written and read), applies
them, and checkpoints in all modes. The others run transactions on branches. Every one that was committed comes with its
statements and what these returned. In the end the statements are run again, one transaction after another in the order of their
versions, on a copy of the first database: each must return the same, and the databases must be equal. Prints counts as JSON;
``--blind`` commits what has read old rows.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import pickle
import random
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import apsw
from zenjun.daemon.database.applier import Applied, Applier
from zenjun.daemon.database.branch import Branch
from zenjun.daemon.database.errors import IntegrityError
from zenjun.proto.service.database.changeset import parse

from ..stalls import found
from ..timing import in_time
from .pages import MODES
from .rig import content

Statement: TypeAlias = tuple[str, tuple[Any, ...]]
Read: TypeAlias = tuple[Any, ...]
"""(table, key…): a row; (table,): all of it."""
ACCOUNTS: Final = 200
SCHEMA: Final = """
CREATE TABLE meta(v INTEGER); INSERT INTO meta VALUES(0);
CREATE TABLE acct(id INTEGER PRIMARY KEY, bal INTEGER CHECK(bal >= 0));
CREATE TABLE hist(n INTEGER PRIMARY KEY, id, old, new);
CREATE TRIGGER tr AFTER UPDATE OF bal ON acct BEGIN INSERT INTO hist VALUES(abs(random()), new.id, old.bal, new.bal); END;
CREATE TABLE par(id INTEGER PRIMARY KEY, x UNIQUE);
CREATE TABLE kid(id INTEGER PRIMARY KEY, p REFERENCES par(id) ON DELETE CASCADE, v);
CREATE TABLE uq(id INTEGER PRIMARY KEY, u INT UNIQUE);
CREATE TABLE wr(k TEXT, j INT, v BLOB, PRIMARY KEY(k, j)) WITHOUT ROWID;
CREATE TABLE nokey(a, b);
CREATE VIRTUAL TABLE ft USING fts5(t);
"""
_SIZE: Final = struct.Struct("<I")
PATIENCE_S: Final = 120.0
"""For a process to begin, or to end its last transactions, on a busy machine."""


class Commit(NamedTuple):
    """What a program sends for its transaction."""

    version: int
    """Of its snapshot."""
    reads: tuple[Read, ...]
    changeset: bytes
    statements: tuple[Statement, ...]
    returned: list[Any]


def receive(connection: socket.socket) -> Any:
    """Raises EOFError when the other end is gone."""

    def whole(count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            if not (part := connection.recv(count - len(data))):
                raise EOFError
            data += part
        return bytes(data)

    return pickle.loads(whole(_SIZE.unpack(whole(_SIZE.size))[0]))


def send(connection: socket.socket, value: Any) -> None:
    data = pickle.dumps(value)
    connection.sendall(_SIZE.pack(len(data)) + data)


# ---- programs


def draw(r: random.Random) -> tuple[tuple[Statement, ...], tuple[Read, ...]]:
    """A transaction, and what it reads."""
    kind = r.random()
    if kind < 0.45:
        a, b = r.sample(range(ACCOUNTS), 2)
        read = "SELECT bal FROM acct WHERE id = ?"
        return ((read, (a,)), (read, (b,)), ("transfer", (a, b, r.randrange(20)))), (("acct", a), ("acct", b))
    if kind < 0.55:
        insert = "INSERT INTO par VALUES(?, ?) ON CONFLICT DO NOTHING"
        return ((insert, (r.randrange(60), r.randrange(40))), ("SELECT count(*) FROM par", ())), (("par",),)
    if kind < 0.65:
        return (("DELETE FROM par WHERE id = ?", (r.randrange(60),)),), (("par",), ("kid",))
    if kind < 0.75:
        values = (r.randrange(200), r.randrange(60), f"v{r.randrange(99)}")
        return (("INSERT OR REPLACE INTO kid VALUES(?, ?, ?)", values),), (("kid",), ("par",))
    if kind < 0.82:
        update = ("UPDATE OR IGNORE uq SET u = ? WHERE id = ?", (r.randrange(300), r.randrange(100)))
        return (update, ("INSERT OR IGNORE INTO uq VALUES(?, ?)", (r.randrange(100), r.randrange(300)))), (("uq",),)
    if kind < 0.9:
        k, j = f"k{r.randrange(20)}", r.randrange(10)
        return (
            ("INSERT INTO wr VALUES(?, ?, 'x') ON CONFLICT DO UPDATE SET v = v || excluded.v", (k, j)),
            ("SAVEPOINT s", ()),
            ("DELETE FROM wr WHERE k = ?", (k,)),
            ("ROLLBACK TO s", ()),
            ("SELECT length(v) FROM wr WHERE k = ? AND j = ?", (k, j)),
        ), (("wr", k, j),)
    if kind < 0.95:
        return (("INSERT INTO nokey(rowid, a, b) VALUES(?, ?, 'n')", (r.randrange(1 << 40), r.random())),), ()
    words = " ".join(f"w{r.randrange(50)}" for _ in range(8))
    reads = tuple((f"ft_{part}",) for part in ("data", "content", "docsize", "idx"))
    return (("INSERT INTO ft(t) VALUES(?)", (words,)), ("SELECT count(*) FROM ft('w1')", ())), reads


def execute(target: apsw.Connection | Branch, statements: tuple[Statement, ...]) -> list[Any]:
    """What each statement returned."""
    found: list[Any] = []
    for sql, bindings in statements:
        if sql == "transfer":
            a, b, amount = bindings
            if enough := found[0][0][0] >= amount:
                target.execute("UPDATE acct SET bal = bal - ? WHERE id = ?", (amount, a)).fetchall()
                target.execute("UPDATE acct SET bal = bal + ? WHERE id = ?", (amount, b)).fetchall()
            found.append(enough)
            continue
        try:
            found.append(target.execute(sql, bindings).fetchall())
        except apsw.ConstraintError:
            found.append("constraint")
    return found


def program(folder: Path, seed: int, until: float) -> None:
    """Transactions, until the time comes; now and then a new branch, and a pause in the middle."""
    r = random.Random(seed)
    with contextlib.suppress(EOFError, ConnectionError), socket.socket(socket.AF_UNIX) as site:
        site.connect(str(folder / "site"))
        while time.monotonic() < until:
            with Branch(folder / "crowd.db") as branch:
                for _ in range(40):
                    transact(branch, r, site)


def transact(branch: Branch, r: random.Random, site: socket.socket) -> None:
    statements, reads = draw(r)
    branch.begin()
    version: Any = branch.reader.execute("SELECT v FROM meta").fetchall()[0][0]
    returned = execute(branch, statements)
    if r.random() < 0.05:
        time.sleep(r.random() * 0.05)
    changeset = b""
    with contextlib.suppress(IntegrityError):
        changeset = branch.changeset()
    if changeset:
        send(site, Commit(version, reads, changeset, statements, returned))
        verdict = receive(site)
        if verdict == "done":
            branch.keep()
    branch.end()


# ---- the site


class Site:
    """Certifies, applies, checkpoints."""

    def __init__(self, folder: Path, *, blind: bool) -> None:
        self.path = folder / "crowd.db"
        self.applier = Applier.open(self.path)
        self.checkpointer = apsw.Connection(str(self.path))
        self.checkpointer.pragma("synchronous", "OFF")
        self.blind = blind
        self.version = 0
        self.writers: dict[Read, int] = {}
        """The last version that wrote a row, or a table."""
        self.counts: Counter[str] = Counter()
        self.is_ended = False
        self.history: list[tuple[tuple[Statement, ...], list[Any]]] = []

    def decide(self, commit: Commit) -> str:
        rows = set()
        for change in parse(commit.changeset):
            rows |= {(change.table.name,), (change.table.name, *map(_value, change.key))}
        if any(self.writers.get(row, 0) > commit.version for row in rows if len(row) > 1):
            return "conflict"
        if not self.blind and any(self.writers.get(read, 0) > commit.version for read in commit.reads):
            return "read"
        connection = self.applier.connection
        connection.execute("BEGIN IMMEDIATE")
        applied = self.applier.apply(commit.changeset)
        if applied is not Applied.DONE:
            connection.execute("ROLLBACK")
            return str(applied.value)
        connection.execute("UPDATE meta SET v = v + 1; COMMIT")
        self.version += 1
        self.writers.update(dict.fromkeys(rows, self.version))
        self.history.append((commit.statements, commit.returned))
        return "done"

    def checkpoint(self, r: random.Random) -> None:
        mode = r.choice((MODES[0], *MODES))
        try:
            self.checkpointer.wal_checkpoint(mode=mode)
            self.counts[f"checkpoint {mode}"] += 1
        except apsw.BusyError:
            self.counts["checkpoint busy"] += 1

    def serve(self, folder: Path, seed: int) -> None:
        """Until SIGTERM."""
        signal.signal(signal.SIGTERM, lambda number, frame: setattr(self, "is_ended", True))
        r = random.Random(seed)
        last = time.monotonic()
        with selectors.DefaultSelector() as selector, socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(folder / "begun"))
            listening.listen(64)
            (folder / "begun").rename(folder / "site")  # who sees it can connect
            selector.register(listening, selectors.EVENT_READ)
            while not self.is_ended:
                for key, _ in selector.select(0.1):
                    if key.fileobj is listening:
                        selector.register(listening.accept()[0], selectors.EVENT_READ)
                        continue
                    connection = key.fileobj
                    assert isinstance(connection, socket.socket)
                    try:
                        verdict = self.decide(receive(connection))
                        self.counts[verdict] += 1
                        send(connection, verdict)
                    except (EOFError, ConnectionError):
                        selector.unregister(connection)
                        connection.close()
                if time.monotonic() - last > 0.03:
                    last = time.monotonic()
                    self.checkpoint(r)
        with (folder / "history").open("wb") as file:
            pickle.dump((self.version, self.counts, self.history), file)
        self.checkpointer.close()
        self.applier.close()


def _value(encoded: bytes) -> Any:
    """Integers and text, as ``draw`` names rows."""
    if encoded[0] == 1:
        return int.from_bytes(encoded[1:], "big", signed=True)
    return encoded[2:].decode() if encoded[0] == 3 else encoded


# ---- the run


def prepare(folder: Path) -> None:
    applier = Applier.open(folder / "crowd.db")
    connection = applier.connection
    with connection:
        connection.execute(SCHEMA)
        connection.executemany("INSERT INTO acct VALUES(?, 100)", ((i,) for i in range(ACCOUNTS)))
        connection.executemany("INSERT INTO uq VALUES(?, ?)", ((i, i) for i in range(50)))
    applier.restart_wal()
    applier.close()
    shutil.copy(folder / "crowd.db", folder / "serial.db")


def run(folder: Path, seconds: float, *, programs: int = 8, threads: int = 1, seed: int = 1, blind: bool = False) -> Counter[str]:
    """What was met. Raises AssertionError at a difference."""
    prepare(folder)
    r = random.Random(seed)

    def start(*options: object) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "tests.database.crowd", folder, "--seed", r.randrange(1 << 30), *options]
        return subprocess.Popen([str(word) for word in argv])

    site = start("--site", *["--blind"] * blind)
    crowd: list[subprocess.Popen[bytes]] = []
    kills = 0
    try:
        begun = time.monotonic()
        while not (folder / "site").exists():
            assert site.poll() is None, "the site has ended by itself"
            in_time(time.monotonic() < begun + PATIENCE_S, "the site has not started")
            time.sleep(0.01)
        until = time.monotonic() + seconds
        options = ("--program", "--until", until, "--threads", threads)
        crowd = [start(*options) for _ in range(programs)]
        while time.monotonic() < until - 1:
            time.sleep(r.random() * 4 / programs)
            i = r.randrange(programs)
            has_ended = crowd[i].poll() is not None
            if time.monotonic() >= until:  # it took so long to get there
                break
            assert not has_ended, "a program has ended by itself"
            crowd[i].kill()
            crowd[i].wait()
            kills += 1
            crowd[i] = start(*options)
        assert [p.wait(PATIENCE_S) for p in crowd] == [0] * programs
        site.terminate()
        assert site.wait(PATIENCE_S) == 0
    finally:
        for process in (site, *crowd):
            process.kill()
            process.wait()
    counts = judge(folder)
    counts["kills"] = kills
    return counts


def judge(folder: Path) -> Counter[str]:
    """The serial replay. Rowids of ``hist`` are random, and FTS5 groups its rows in its own way."""
    with (folder / "history").open("rb") as file:
        version, counts, history = pickle.load(file)
    applied, serial = (Applier.open(folder / name).connection for name in ("crowd.db", "serial.db"))
    serial.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 1)
    for number, (statements, returned) in enumerate(history, 1):
        serial.execute("BEGIN")
        again = execute(serial, statements)
        found(again == returned, f"version {number}, {statements}: {returned} on the branch, {again} in the replay")
        serial.execute("UPDATE meta SET v = v + 1; COMMIT")
    queries = ("SELECT id, old, new FROM hist ORDER BY 1, 2, 3, n IS NULL", "SELECT rowid, t FROM ft('w1 OR w7') ORDER BY 1")
    for query in queries:
        found(sorted(applied.execute(query)) == sorted(serial.execute(query)), query)
    without = ("sqlite_", "hist", "ft_")
    found(content(applied, without) == content(serial, without), "rows are others than in the replay")
    assert applied.execute("SELECT v FROM meta").fetchall() == [(version,)] == [(len(history),)]
    assert applied.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert applied.execute("PRAGMA foreign_key_check").fetchall() == []
    applied.close()
    serial.close()
    return Counter(counts)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=75)
    parser.add_argument("--programs", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--blind", action="store_true")
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    for name in ("site", "program"):
        parser.add_argument(f"--{name}", action="store_true", help=argparse.SUPPRESS)
    o = parser.parse_args()
    if o.site:
        Site(o.folder, blind=o.blind).serve(o.folder, o.seed)
    elif o.program:
        running = [threading.Thread(target=program, args=(o.folder, o.seed + i, o.until)) for i in range(o.threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    else:
        shutil.rmtree(o.folder, ignore_errors=True)
        o.folder.mkdir(parents=True)
        options = {"programs": o.programs, "threads": o.threads, "seed": o.seed, "blind": o.blind}
        print(json.dumps(run(o.folder, o.seconds, **options)))


if __name__ == "__main__":
    main()
