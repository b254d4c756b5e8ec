"""Programs at all stations while processes and stations are killed: what they are told, against what is in the databases.

A customer has two rows. A withdrawal reads both and changes one, so that the rows have to be certified against what was read; the
customer may not be overdrawn. Each change is also an entry of a journal, with which the balances must agree in every snapshot.
A register is counted up; a linearizable read is never older than what was acknowledged before it began.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable

import pytest
from zenjun.daemon.database.errors import Error, NoQuorum, NotReachable, SerializationError, Undecided
from zenjun.db import Connection

from ..rules import rule
from .cluster import wait_for
from .test_database import Databases, databases

pytestmark = [pytest.mark.lab, pytest.mark.slow]

CUSTOMERS = 4
BEGIN = 100
LOAD_S = 15.0


class History:
    """What programs have done, and what is wrong with it."""

    def __init__(self, up: Databases, seed: int) -> None:
        self.up = up
        self.r = random.Random(seed)
        self.wrong: list[str] = []
        self.acknowledged: set[int] = set()
        self.rejected: set[int] = set()
        self.counted: set[int] = set()
        """Values of the register that were acknowledged."""
        self.register = 0
        """Highest value that was acknowledged."""
        self.reads = 0
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
            c.commit()
        self.up.until_equal()

    # ---- programs

    def start(self) -> None:
        for station in (1, 2, 3):
            for k, program in enumerate((self.pay, self.count, self.look, self.look_newest)):
                self._begin(program, station, station * 10 + k)

    def _begin(self, program: Callable[[Connection, random.Random], None], station: int, number: int) -> None:
        def run() -> None:
            r = random.Random(number)
            options = {"read": "linearizable"} if program == self.look_newest else {}
            while not self._stop.is_set():
                try:
                    with contextlib.closing(self.up.connect(station, timeout=5.0, **options)) as c:
                        while not self._stop.is_set():
                            program(c, r)
                except (NoQuorum, NotReachable):
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
        except (SerializationError, NoQuorum) as error:
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
        except (SerializationError, Undecided):
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

    # ---- the end

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
            if lost := self.acknowledged - there:
                self.wrong.append(f"station {station}: {len(lost)} acknowledged transactions are lost")
            if ghosts := self.rejected & there:
                self.wrong.append(f"station {station}: {len(ghosts)} rejected transactions are there")
            if value < self.register:
                self.wrong.append(f"station {station}: the register has {value}, and {self.register} was acknowledged")


def judged(c: Connection) -> list[str]:
    """What is wrong with a snapshot."""
    balances = dict(c.execute("SELECT id, bal FROM part").fetchall())
    moved = dict(c.execute("SELECT part, sum(amount) FROM journal GROUP BY part").fetchall())
    wrong = [f"part {k}: {v} is not what the journal has" for k, v in balances.items() if v != BEGIN + moved.get(k, 0)]
    both = ((k, balances[2 * k] + balances[2 * k + 1]) for k in range(CUSTOMERS))
    return wrong + [f"customer {k} is overdrawn: {total}" for k, total in both if total < 0]


LEAST = 20
"""Acknowledged transactions, and steps of each kind, below which a history says nothing."""


def _load(history: History, seconds: float, faults: bool, least: int = 0) -> None:
    """Let programs run, killing one thing after another, and longer if fewer than ``least`` of anything were done; 60 s more at
    most. Ends early if something is wrong."""
    up, r = history.up, history.r
    until = time.monotonic() + seconds
    history.start()
    try:
        while not history.wrong and (time.monotonic() < until or (history.least() < least and time.monotonic() < until + 60)):
            time.sleep(0.3 if not faults else r.uniform(0.5, 1.5))
            if faults:
                station = r.choice((1, 2, 3))
                if r.random() < 0.7:
                    up.kill(station)
                    time.sleep(r.uniform(0.0, 0.5))
                    up.start(station)
                else:
                    up.kill_station(station)
                    time.sleep(r.uniform(0.0, 0.5))
                    up.start_station(station)
                wait_for(lambda station=station: up.facts(station).get("active"), f"station {station} is back", 60)  # type: ignore[misc]
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
