"""Databases in mode unanimous on real daemons: what one station has committed, no other one shows without it."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections.abc import Iterator

import pytest
from zenjun.daemon.database.errors import Error
from zenjun.daemon.database.life import LIFE_S
from zenjun.db import NoQuorum, SerializationError

from ..rules import rule
from ..timing import in_time
from .cluster import wait_for
from .test_database import Databases, databases

pytestmark = pytest.mark.lab


@pytest.fixture
def shop() -> Iterator[Databases]:
    """A database in this mode at three stations."""
    with databases() as up:
        made = up.run(1, "db", "create", "shop", "--mode", "unanimous")
        assert made.returncode == 0, made
        up.until_equal()
        yield up


@rule("N1", "N2", "N5")
def test_what_is_committed_is_seen_everywhere_at_once(shop: Databases) -> None:
    """A plain read at another station, without a barrier, sees every commit that has returned."""
    with contextlib.closing(shop.connect(1)) as one, contextlib.closing(shop.connect(2)) as two:
        one.execute("CREATE TABLE item(id INTEGER PRIMARY KEY, n INTEGER)")
        one.execute("INSERT INTO item VALUES(1, 0)")
        one.commit()
        for n in range(1, 26):
            writer, reader = (one, two) if n % 2 else (two, one)
            writer.execute("UPDATE item SET n = ?", (n,))
            writer.commit()
            assert reader.execute("SELECT n FROM item").fetchone() == (n,)
            reader.rollback()
        one.execute("BEGIN EXCLUSIVE")
        assert two.execute("SELECT n FROM item").fetchone() == (25,), "who only has the lock hides nothing"
        two.rollback()
        one.execute("UPDATE item SET n = 26")
        one.commit()
        assert two.execute("SELECT n FROM item").fetchone() == (26,)
        two.execute("UPDATE item SET n = 27")
        one.execute("UPDATE item SET n = 28")
        one.commit()
        with pytest.raises(SerializationError):
            two.commit()
    _readers_among_writers(shop)
    listed = json.loads(shop.run(3, "db", "list", "--json").stdout)
    assert [(each["mode"], each["open"]) for each in listed] == [("unanimous", True)]
    assert "mode unanimous, serves reads" in shop.run(2, "db", "status", "shop").stdout


def _readers_among_writers(shop: Databases) -> None:
    """With transactions one after the other, a program that reads has its turn between two of them."""
    stop = threading.Event()

    def write(station: int) -> None:
        with contextlib.closing(shop.connect(station)) as c:
            while not stop.is_set():
                c.run(lambda c: c.execute("UPDATE item SET n = n + 1"), tries=1000)

    threads = [threading.Thread(target=write, args=(station,)) for station in (1, 2, 1)]
    for thread in threads:
        thread.start()
    try:
        deadline = time.monotonic() + 60
        seen = [number(shop, 3, timeout=60)]
        while len(seen) < 10 or seen[-1] == seen[0]:
            seen.append(number(shop, 3, timeout=60))
            in_time(time.monotonic() < deadline, f"ten turns, of {seen}")
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert seen == sorted(seen)


class Update:
    """A transaction that commits in a thread of its own."""

    def __init__(self, shop: Databases, station: int, n: int) -> None:
        self.error: Error | None = None
        self._shop, self._station, self._n = shop, station, n
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            with contextlib.closing(self._shop.connect(self._station, timeout=60)) as c:
                c.execute("UPDATE item SET n = ?", (self._n,))
                c.commit()
        except Error as error:
            self.error = error

    @property
    def is_under_way(self) -> bool:
        return self._thread.is_alive()

    def wait(self) -> None:
        self._thread.join(60)
        assert not self.is_under_way


def is_open(shop: Databases, station: int) -> bool:
    """Whether a station serves reads; while it does not answer it is asked again."""
    return bool(wait_for(lambda: shop.facts(station), f"station {station} answers", 30)["open"])


def number(shop: Databases, station: int, timeout: float = 30.0) -> int:
    """What a program reads at a station."""
    with contextlib.closing(shop.connect(station, timeout=timeout)) as c:
        ((n,),) = c.execute("SELECT n FROM item").fetchall()
    return int(n)


@rule("N2", "N3", "N5", "N6", "N8")
def test_a_site_is_killed_in_the_middle_of_an_update(shop: Databases) -> None:
    """An update waits for a site that does not answer, and so do readers, for no time in particular; it goes on when the view has
    removed the site. When the origin itself is killed, its lock ends with it. Who comes back has what was committed."""
    with contextlib.closing(shop.connect(1)) as c:
        c.execute("CREATE TABLE item(id INTEGER PRIMARY KEY, n INTEGER)")
        c.execute("INSERT INTO item VALUES(1, 0)")
        c.commit()
    with contextlib.closing(shop.connect(3, timeout=0.5)) as c:
        wait_for(lambda: is_open(shop, 3), "it shows what it has", 30)
        c.execute("SELECT n FROM item")
        c.rollback()
        shop.processes[3].send_signal(signal.SIGSTOP)
        time.sleep(1.2 * LIFE_S)
        with pytest.raises(NoQuorum):
            c.execute("SELECT n FROM item")
    update = Update(shop, 1, 1)
    wait_for(lambda: not is_open(shop, 2) and not is_open(shop, 1), "the others show nothing", 30)
    with pytest.raises(NoQuorum, match=r"stations \[3\] have not agreed yet"):
        number(shop, 2, timeout=2.0)
    assert update.is_under_way
    shop.kill(3)
    update.wait()
    assert update.error is None
    assert [number(shop, station) for station in (1, 2)] == [1, 1]
    shop.start(3)
    shop.until_equal()
    assert number(shop, 3) == 1

    shop.processes[3].send_signal(signal.SIGSTOP)
    update = Update(shop, 1, 2)
    wait_for(lambda: not is_open(shop, 2), "station 2 shows nothing", 30)
    shop.kill(1)
    shop.processes[3].send_signal(signal.SIGCONT)
    wait_for(lambda: is_open(shop, 2), "the lock has ended with its owner", 30)
    assert number(shop, 2) == number(shop, 3) == 1, "nothing had been written"
    shop.start(1)
    update.wait()
    shop.until_equal()
    found = {number(shop, station) for station in (1, 2, 3)}
    assert found == {1} if update.error is not None else {2}
