"""Programs at all stations while processes and stations are killed: what they are told, against what is in the databases.

A customer has two rows. A withdrawal reads both and changes one, so that the rows have to be certified against what was read; the
customer may not be overdrawn. Each change is also an entry of a journal, with which the balances must agree in every snapshot.
A register is counted up; a linearizable read is never older than what was acknowledged before it began. Lists are appended to and
read, and judged for cycles (``cycles``); ids are automatic, and unique; of several programs that want a UNIQUE value one has it;
tables are made among all that. Now and then all stations are killed at once.

For as long as one likes: python -m tests.e2e.test_database_histories --seconds 1500 --keep FOLDER
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import random
import shutil
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from zenjun.daemon.database.errors import (
    Error,
    IntegrityError,
    NoQuorum,
    NotCommitted,
    NotReachable,
    SerializationError,
    Undecided,
)  # fmt: skip
from zenjun.db import Connection

from ..rules import rule
from .cluster import wait_for
from .cycles import FAILED, OK, Txn, violations
from .test_database import Databases, databases

pytestmark = [pytest.mark.lab, pytest.mark.judge, pytest.mark.slow]

CUSTOMERS = 4
LISTS = 6
LIST_VALUES = 60
"""In a list; then another one takes its place, so that transactions stay short however long it runs."""
BACK_S = 240.0
"""For a process or station to start, and to be active: on a machine with much else to do an interpreter takes a minute."""
TELL_S = 15.0
"""Between two lines of what has been done."""
BEGIN = 100
LOAD_S = 15.0


class History:
    """What programs have done, and what is wrong with it."""

    def __init__(self, up: Databases, seed: int, *, has_all: bool = False) -> None:
        """has_all: with lists, automatic ids and tables."""
        self.up, self.has_all = up, has_all
        self.txns: list[Txn] = []
        self.values = itertools.count(1)
        self.lists = list(range(LISTS))
        """Those that are appended to."""
        self.ids: dict[int, int] = {}
        """Automatic ids that were acknowledged, with their values."""
        self.wanted = itertools.count()
        """Three programs want each value."""
        self.claimed: dict[int, int] = {}
        """Values of which one may be there that were acknowledged, with their rows."""
        self.tables: set[int] = set()
        """Numbers of the tables that were acknowledged."""
        self.r = random.Random(seed)
        self.wrong: list[str] = []
        self.acknowledged: set[int] = set()
        self.rejected: set[int] = set()
        self.counted: set[int] = set()
        """Values of the register that were acknowledged."""
        self.register = 0
        """Highest value that was acknowledged."""
        self.reads = 0
        self.killed = 0
        """Processes and stations."""
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def create(self) -> None:
        with contextlib.closing(self.up.connect(1)) as c:
            c.execute("CREATE TABLE part(id INTEGER PRIMARY KEY, bal INTEGER NOT NULL)")
            c.execute("CREATE TABLE journal(id INTEGER PRIMARY KEY, part INTEGER NOT NULL, amount INTEGER NOT NULL)")
            c.execute("CREATE TABLE register(id INTEGER PRIMARY KEY, v INTEGER NOT NULL)")
            c.executemany("INSERT INTO part VALUES(?, ?)", [(k, BEGIN) for k in range(2 * CUSTOMERS)])
            c.execute("INSERT INTO register VALUES(1, 0)")
            c.execute("CREATE TABLE list(id INTEGER PRIMARY KEY, v TEXT NOT NULL)")
            c.execute("CREATE TABLE auto(id INTEGER PRIMARY KEY AUTOINCREMENT, v INTEGER NOT NULL)")
            c.execute("CREATE TABLE claim(id INTEGER PRIMARY KEY, v INTEGER NOT NULL UNIQUE)")
            c.commit()
        self.up.until_equal()

    # ---- programs

    def start(self) -> None:
        more = (self.append, self.append_newest, self.number, self.claim) if self.has_all else ()
        for station in (1, 2, 3):
            for k, program in enumerate((self.pay, self.count, self.look, self.look_newest, *more)):
                self._begin(program, station, station * 10 + k)
        if self.has_all:
            self._begin(self.make, 1, 99)

    def _begin(self, program: Callable[[Connection, random.Random], None], station: int, number: int) -> None:
        def run() -> None:
            r = random.Random(number)
            options = {"read": "linearizable"} if program in (self.look_newest, self.append_newest) else {}
            while not self._stop.is_set():
                try:
                    with contextlib.closing(self.up.connect(station, timeout=5.0, **options)) as c:
                        while not self._stop.is_set():
                            program(c, r)
                except (NoQuorum, NotReachable, NotCommitted):  # the last: of a session at a distance
                    time.sleep(0.1)
                except Error as error:
                    # A process that is killed ends what is asked of it.
                    if error.code or "database process" not in str(error):
                        self.wrong.append(f"station {station}: {type(error).__name__} {error.code}: {error}")
                        return
                except Exception as error:
                    self.wrong.append(f"station {station}: {type(error).__name__}: {error}")
                    return

        thread = threading.Thread(target=run)
        thread.start()
        self._threads.append(thread)

    def pay(self, c: Connection, r: random.Random) -> None:
        """Withdraw what the customer has in both rows together, from one of them; or pay in."""
        number, customer, side = r.randrange(1 << 40), r.randrange(CUSTOMERS), r.randrange(2)
        amount = r.randint(-150, 80)
        mine = 2 * customer + side
        try:
            total = sum(
                bal
                for part in (2 * customer, 2 * customer + 1)
                for (bal,) in c.execute("SELECT bal FROM part WHERE id = ?", (part,)).fetchall()
            )
            if total + amount < 0:
                c.rollback()
                return
            c.execute("UPDATE part SET bal = bal + ? WHERE id = ?", (amount, mine))
            c.execute("INSERT INTO journal VALUES(?, ?, ?)", (number, mine, amount))
            c.commit()
        except Undecided:
            return
        except (SerializationError, NoQuorum, NotCommitted) as error:
            with self._lock:
                self.rejected.add(number)
            if isinstance(error, NoQuorum):
                raise
            return
        with self._lock:
            self.acknowledged.add(number)

    def count(self, c: Connection, r: random.Random) -> None:
        ((value,),) = c.execute("SELECT v FROM register WHERE id = 1").fetchall()
        try:
            c.execute("UPDATE register SET v = ? WHERE id = 1", (value + 1,))
            c.commit()
        except (SerializationError, NotCommitted, Undecided):
            return
        with self._lock:
            if value + 1 in self.counted:
                self.wrong.append(f"value {value + 1} of the register was acknowledged twice")
            self.counted.add(value + 1)
            # A value can be seen before its program has heard that it is committed, so a later one may be acknowledged first.
            self.register = max(self.register, value + 1)

    def look(self, c: Connection, r: random.Random) -> None:
        """A snapshot: no customer overdrawn, balances as the journal has them."""
        time.sleep(0.02)
        self.wrong += judged(c)
        c.rollback()

    def look_newest(self, c: Connection, r: random.Random) -> None:
        time.sleep(0.01)
        with self._lock:
            before = self.register
        ((value,),) = c.execute("SELECT v FROM register WHERE id = 1").fetchall()
        c.rollback()
        self.reads += 1
        if value < before:
            self.wrong.append(f"a linearizable read saw {value} after {before} was acknowledged")

    def append_newest(self, c: Connection, r: random.Random) -> None:
        self.append(c, r)

    def append(self, c: Connection, r: random.Random) -> None:
        """Read some lists, and append to some."""
        time.sleep(0.02)
        txn = Txn(f"{threading.get_ident()} {id(c):x}", time.monotonic())
        with self._lock:
            self.txns.append(txn)
        try:
            for key in r.sample(self.lists, r.randint(1, 3)):
                found = c.execute("SELECT v FROM list WHERE id = ?", (key,)).fetchall()
                values = tuple(map(int, found[0][0].split())) if found else ()
                txn.reads.append((key, values))
                if len(values) >= LIST_VALUES:
                    with self._lock:
                        if key in self.lists:
                            self.lists[self.lists.index(key)] = max(self.lists) + 1
                if r.random() < 0.5:
                    txn.appends[key] = [next(self.values) for _ in range(r.randint(1, 2))]
                    for value in txn.appends[key]:
                        sql = "INSERT INTO list VALUES(?, ?) ON CONFLICT(id) DO UPDATE SET v = v || excluded.v"
                        c.execute(sql, (key, f"{value} "))
            txn.is_newest = bool(txn.appends) or c.read == "linearizable"
            c.commit()
            txn.outcome = OK
        except (SerializationError, NotCommitted):
            txn.outcome = FAILED
        except Undecided:
            pass
        finally:
            txn.ended = time.monotonic()

    def number(self, c: Connection, r: random.Random) -> None:
        """An id that the database picks."""
        time.sleep(0.02)
        value = next(self.values)
        try:
            key = c.execute("INSERT INTO auto(v) VALUES(?)", (value,)).lastrowid
            c.commit()
        except (SerializationError, IntegrityError, NotCommitted, Undecided):  # without a block an id may be another's
            return
        with self._lock:
            if key is None or key in self.ids:
                self.wrong.append(f"the id {key} was given twice")
            else:
                self.ids[key] = value

    def claim(self, c: Connection, r: random.Random) -> None:
        """A value that others want, too."""
        time.sleep(0.02)
        value, key = next(self.wanted) // 3, next(self.values)
        try:
            c.execute("INSERT INTO claim VALUES(?, ?)", (key, value))
            c.commit()
        except (SerializationError, IntegrityError, NotCommitted, Undecided):
            c.rollback()
            return
        with self._lock:
            if value in self.claimed:
                self.wrong.append(f"the value {value} was given twice")
            self.claimed[value] = key

    def make(self, c: Connection, r: random.Random) -> None:
        """A table, and a row of it; at most a hundred, so that the schema stays small."""
        time.sleep(0.5)
        if (number := len(self.tables)) >= 100:
            return
        try:
            c.execute("INSERT INTO auto(v) VALUES(0)")
            c.execute(f"CREATE TABLE IF NOT EXISTS made{number}(id INTEGER PRIMARY KEY)")
            c.execute(f"INSERT OR IGNORE INTO made{number} VALUES(1)")
            c.commit()
        except (SerializationError, IntegrityError, NotCommitted, Undecided):  # without a block an id may be another's
            return
        self.tables.add(number)

    # ---- the end

    def judge_more(self, station: int, c: Connection) -> None:
        """Lists, automatic ids, tables."""
        there = dict(c.execute("SELECT id, v FROM auto WHERE v > 0").fetchall())
        if len(set(there.values())) != len(there):
            self.wrong.append(f"station {station}: a row with an automatic id is there twice")
        if lost := {key for key, value in self.ids.items() if there.get(key) != value}:
            self.wrong.append(f"station {station}: {len(lost)} rows with automatic ids are lost")
        claims = dict(c.execute("SELECT v, id FROM claim").fetchall())
        if lost := {value for value, key in self.claimed.items() if claims.get(value) != key}:
            self.wrong.append(f"station {station}: {len(lost)} values that were given are lost, or another's")
        for number in self.tables:
            if c.execute(f"SELECT count(*) FROM made{number}").fetchall() != [(1,)]:
                self.wrong.append(f"station {station}: table {number} is not as it was made")
        lists = {key: tuple(map(int, text.split())) for key, text in c.execute("SELECT id, v FROM list").fetchall()}
        self.wrong += [f"station {station}: {text}" for text in violations(self.txns, lists)]

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in self._threads)

    def least(self) -> int:
        """Of what was done rarest, how often."""
        return min(len(self.acknowledged), self.register, self.reads)

    def judge(self) -> None:
        """All works again: equal copies, with what was acknowledged and without what was rejected."""
        self.up.until_equal()
        for station in (1, 2, 3):
            with contextlib.closing(self.up.connect(station)) as c:
                self.wrong += judged(c)
                there = {number for (number,) in c.execute("SELECT id FROM journal")}
                ((value,),) = c.execute("SELECT v FROM register").fetchall()
                if self.has_all:
                    self.judge_more(station, c)
            if lost := self.acknowledged - there:
                self.wrong.append(f"station {station}: {len(lost)} acknowledged transactions are lost")
            if ghosts := self.rejected & there:
                self.wrong.append(f"station {station}: {len(ghosts)} rejected transactions are there")
            if value < self.register:
                self.wrong.append(f"station {station}: the register has {value}, and {self.register} was acknowledged")


def keep(history: History, folder: Path) -> None:
    """What programs saw and what is in the databases, for who wants to judge it again."""
    folder.mkdir(parents=True, exist_ok=True)
    facts = {
        "wrong": history.wrong, "acknowledged": sorted(history.acknowledged), "rejected": sorted(history.rejected),
        "counted": sorted(history.counted), "ids": history.ids, "claimed": history.claimed, "tables": sorted(history.tables),
        "kills": history.killed, "reads": history.reads, "transactions": [asdict(txn) for txn in history.txns],
    }  # fmt: skip
    (folder / "history.json").write_text(json.dumps(facts))
    for number, station in history.up.lab.stations.items():
        shutil.copytree(station.state_directory / "db", folder / f"station-{number}", symlinks=True, dirs_exist_ok=True)
        for log in station.directory.glob("*.log"):
            shutil.copy(log, folder / f"station-{number}" / log.name)


def judged(c: Connection) -> list[str]:
    """What is wrong with a snapshot."""
    balances = dict(c.execute("SELECT id, bal FROM part").fetchall())
    moved = dict(c.execute("SELECT part, sum(amount) FROM journal GROUP BY part").fetchall())
    wrong = [f"part {k}: {v} is not what the journal has" for k, v in balances.items() if v != BEGIN + moved.get(k, 0)]
    both = ((k, balances[2 * k] + balances[2 * k + 1]) for k in range(CUSTOMERS))
    return wrong + [f"customer {k} is overdrawn: {total}" for k, total in both if total < 0]


LEAST = 20
"""Acknowledged transactions, and steps of each kind, below which a history says nothing."""


def _load(history: History, seconds: float, faults: bool, least: int = 0, tell: Callable[[], None] = lambda: None) -> None:
    """Let programs run, killing one thing after another, and longer if fewer than ``least`` of anything were done; 60 s more at
    most. Ends early if something is wrong. tell: called now and then."""
    up, r = history.up, history.r
    told = time.monotonic()
    until = time.monotonic() + seconds
    history.start()
    try:
        while not history.wrong and (time.monotonic() < until or (history.least() < least and time.monotonic() < until + 60)):
            time.sleep(0.3 if not faults else r.uniform(0.5, 1.5))
            if time.monotonic() > told + TELL_S:
                told = time.monotonic()
                tell()
            if faults:
                station = r.choice((1, 2, 3))
                hit = (1, 2, 3) if history.has_all and r.random() < 0.1 else (station,)
                history.killed += len(hit)
                is_process = len(hit) == 1 and r.random() < 0.7
                for each in hit:
                    (up.kill if is_process else up.kill_station)(each)
                time.sleep(r.uniform(0.0, 0.5))
                for each in hit:
                    (up.start if is_process else up.start_station)(each)
                for each in hit:
                    wait_for(lambda each=each: up.facts(each).get("active"), f"station {each} is back", BACK_S)  # type: ignore[misc]
    finally:
        history.stop()


@rule("K2", "D1", "D3")
def test_what_programs_are_told_is_true() -> None:
    with databases() as up:
        up.ask(1, "create", db="shop")
        history = History(up, 60)
        history.create()
        _load(history, LOAD_S, faults=True, least=LEAST)
        history.judge()
        assert not history.wrong, "\n".join(history.wrong[:20])
        assert history.least() >= LEAST


@rule("K2", "D1", "D3")
@pytest.mark.parametrize("variant", ["reads-ignored", "answers-at-once", "no-barrier"])
def test_a_broken_rule_is_seen(variant: str) -> None:
    """The same programs, without faults, find processes that break a rule."""
    with databases(variant=variant) as up:
        with contextlib.suppress(Error):
            up.ask(1, "create", db="shop")
        history = History(up, 61)
        history.create()
        _load(history, 60.0, faults=False)
        if not history.wrong:
            history.judge()
        assert history.wrong


def test_a_slow_station_breaks_nothing() -> None:
    """What the broken processes have in common is not what is seen."""
    with databases(variant="slow") as up:
        up.ask(1, "create", db="shop")
        history = History(up, 62)
        history.create()
        _load(history, 8.0, faults=False)
        history.judge()
        assert not history.wrong, "\n".join(history.wrong[:20])


def main() -> None:
    parser = argparse.ArgumentParser(description="Histories of real database processes, under faults.")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=60)
    parser.add_argument("--keep", type=Path, help="Folder for what programs saw and what the databases have at the end.")
    arguments = parser.parse_args()
    began = time.monotonic()

    def tell(word: str = "running") -> None:
        committed = sum(txn.outcome == OK for txn in history.txns)
        print(
            f"{time.monotonic() - began:.0f} s, {word}: {history.killed} kills, {len(history.acknowledged)} payments, "
            f"{history.register} counts, {history.reads} linearizable reads, {committed} of {len(history.txns)} transactions on "
            f"lists, {len(history.ids)} automatic ids, {len(history.claimed)} unique values, {len(history.tables)} tables",
            flush=True,
        )

    with databases() as up:
        up.ask(1, "create", db="shop")
        history = History(up, arguments.seed, has_all=True)
        history.create()
        try:
            _load(history, arguments.seconds, faults=True, tell=tell)
            tell("judging")
            history.judge()
        finally:
            if arguments.keep is not None:
                keep(history, arguments.keep)
    tell("done")
    print("\n".join(history.wrong[:20]) or "nothing is wrong")
    sys.exit(bool(history.wrong))


if __name__ == "__main__":
    main()
