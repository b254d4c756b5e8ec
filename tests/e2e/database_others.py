"""``python -m tests.e2e.database_others [--seconds S] [--mib N] [--rounds R] [--states S,...]``, as root: what a station in
trouble costs the others (rule D6).

Programs at stations 1 and 2 of three commit rows of their own, 200 a second together; a commit counts from when it was due. In
turns station 3 is well, takes 0.2 s for whatever the order brings, is well, has a full disk, is well, and has lost its disk, so
that it gets a copy of N MiB. No turn begins before the programs have made up for what the change before it held up, and the
station has been as it is for ``SETTLE_S``. Prints the times of the commits in each turn, how many a second, and the p99 to the
mean of the turns beside it in which station 3 is well, with the load of the machine, which is most of what differs from one call
to the next. Besides: the longest that a write of 4 KiB with its sync took on the same disk meanwhile, which all stations of this
lab share: what the disk itself makes everybody wait for is no cost of the station's.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from zenjun.db import Connection

from .cluster import wait_for
from .test_database import Databases, databases

THREADS: Final = 16
"""At each of the two stations: so many that one which waits does not keep others from being due."""
RATE: Final = 200.0
FULL_BYTES: Final = 300_000
ROW_BYTES: Final = 1_000_000
BEHIND_S: Final = 0.05
"""A program that is no later than that has made up for what held it up."""
SETTLE_S: Final = 2.0
PROBE_S: Final = 0.05
STATES: Final = ("slow", "full", "rebuilding")


class Load:
    """The commits of all threads."""

    def __init__(self, shop: Databases) -> None:
        self._shop = shop
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._times: list[float] = []
        self._due = [time.monotonic()] * (2 * THREADS)
        """When each program's next commit is due."""
        self.errors: list[str] = []
        self._threads = [threading.Thread(target=self._run, args=(1 + n % 2, n)) for n in range(2 * THREADS)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def _run(self, station: int, row: int) -> None:
        with contextlib.closing(self._shop.connect(station, autocommit=True)) as c:
            due = time.monotonic() + row / RATE
            while not self._stop.is_set():
                self._due[row] = due
                time.sleep(max(0.0, due - time.monotonic()))
                try:
                    c.execute("UPDATE t SET v = v + 1 WHERE id = ?", (row,))
                except Exception as error:
                    self.errors.append(f"station {station}: {error}")
                with self._lock:
                    self._times.append(time.monotonic() - due)
                due += 2 * THREADS / RATE

    def settled(self) -> None:
        """Wait until nothing is left of what the last change held up."""
        wait_for(lambda: min(self._due) > time.monotonic() - BEHIND_S, "the programs have made up for it", 120)
        time.sleep(SETTLE_S)
        wait_for(lambda: min(self._due) > time.monotonic() - BEHIND_S, "the programs are in time", 120)

    def during(self, over: Callable[[], bool]) -> list[float]:
        """Seconds that each commit took until it is so."""
        with self._lock:
            self._times.clear()
        while not over():
            time.sleep(0.05)
        with self._lock:
            return sorted(self._times)


class Disk:
    """How long the disk takes, a thread that writes and syncs now and then."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "disk.probe"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.longest_s = 0.0

    def __enter__(self) -> Disk:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with self._path.open("wb", buffering=0) as file:
            while not self._stop.wait(PROBE_S):
                began = time.monotonic()
                file.write(bytes(4096))
                os.fdatasync(file.fileno())
                self.longest_s = max(self.longest_s, time.monotonic() - began)
        self._path.unlink()


class Turn(NamedTuple):
    """What was measured while station 3 was in one state."""

    name: str
    times: list[float]
    """Seconds, sorted."""
    took_s: float
    load: float
    disk_s: float
    """The longest write and sync of ``Disk``."""

    def at(self, percent: int) -> float:
        """Milliseconds that so many of a hundred commits took at most."""
        return self.times[len(self.times) * percent // 100] * 1000


def fill(c: Connection, mib: int) -> None:
    for first in range(0, mib, 50):
        c.executemany("INSERT INTO big VALUES(?, zeroblob(?))", [(k, ROW_BYTES) for k in range(first, min(mib, first + 50))])
        c.commit()


class Turns:
    """The turns of one call."""

    def __init__(self, shop: Databases, load: Load, seconds: float) -> None:
        self._shop, self._load, self._seconds = shop, load, seconds
        self.made: list[Turn] = []
        self.failed = 0
        """Times that the full disk has made the site fail."""
        self.copies_s: list[float] = []
        """What the copies took."""

    def _turn(self, name: str, over: Callable[[], bool] | None = None) -> None:
        began = time.monotonic()
        with Disk(self._shop.lab.station(1).state_directory) as disk:
            times = self._load.during(over or (lambda: time.monotonic() > began + self._seconds))
        self.made.append(Turn(name, times, time.monotonic() - began, os.getloadavg()[0], disk.longest_s))

    def _again(self, variant: str = "", file_bytes_max: int = 0) -> None:
        shop = self._shop
        shop.stop(3)
        shop.variant = variant
        shop.start(3, file_bytes_max)
        if file_bytes_max:
            wait_for(lambda: shop.facts(3).get("counters", {}).get("failed"), "the disk is full", 60)
        else:
            wait_for(lambda: shop.facts(3).get("active"), "it is active", 60)
        self._load.settled()

    def slow(self) -> None:
        self._again("slow")
        self._turn("slow")
        self._again()

    def full(self) -> None:
        self._again(file_bytes_max=FULL_BYTES)
        self._turn("full")
        self.failed += self._shop.facts(3)["counters"].get("failed", 0)
        self._again()

    def rebuilding(self) -> None:
        shop = self._shop
        shop.stop(3)
        shutil.rmtree(shop.lab.station(3).state_directory / "db" / "shop")
        self._load.settled()
        shop.start(3)
        began = time.monotonic()
        self._turn("rebuilding", lambda: bool(shop.facts(3).get("active")) or time.monotonic() - began > 300)
        self.copies_s.append(time.monotonic() - began)
        self._load.settled()

    def run(self, state: str) -> None:
        """A turn in this state between two of a station that is well."""
        self._load.settled()
        self._turn("well")
        getattr(self, state)()
        self._turn("well")

    def lines(self) -> Iterator[str]:
        for n, turn in enumerate(self.made):
            text = f"{turn.name:<10} {len(turn.times):>5} commits, {len(turn.times) / turn.took_s:5.1f}/s, "
            text += f"p50 {turn.at(50):6.1f} ms, "
            text += f"p99 {turn.at(99):6.1f} ms, longest {turn.times[-1] * 1000:6.1f} ms, "
            text += f"disk {turn.disk_s * 1000:.0f} ms, load {turn.load:.1f}"
            if turn.name != "well":
                beside = statistics.mean(self.made[k].at(99) for k in (n - 1, n + 1))
                text += f": {turn.at(99) / beside:.2f} times the p99 of the turns beside it"
            yield text


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.database_others", description="the p99 of the others")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each turn")
    parser.add_argument("--mib", type=int, default=400, help="of the copy that is rebuilt")
    parser.add_argument("--states", default=",".join(STATES), help="what station 3 is at, in turns")
    parser.add_argument("--rounds", type=int, default=1, help="how often all turns are made")
    options = parser.parse_args(argv)
    if wrong := set(options.states.split(",")) - set(STATES):
        parser.error(f"no state: {', '.join(sorted(wrong))}")
    with databases() as shop:
        shop.ask(1, "create", db="shop", timeout=60)
        with contextlib.closing(shop.connect(1)) as c:
            c.executescript("CREATE TABLE t(id INTEGER PRIMARY KEY, v INTEGER); CREATE TABLE big(id INTEGER PRIMARY KEY, b BLOB)")
            c.executemany("INSERT INTO t VALUES(?, 0)", [(row,) for row in range(2 * THREADS)])
            c.commit()
            shop.until_equal()
            with Load(shop) as load:
                turns = Turns(shop, load, options.seconds)
                for number in range(options.rounds):
                    for state in options.states.split(","):
                        if state == "rebuilding" and not number:
                            fill(c, options.mib)
                        turns.run(state)
    for text in turns.lines():
        print(text)
    took = ", ".join(f"{seconds:.1f}" for seconds in turns.copies_s)
    print(f"the full disk failed {turns.failed} times; copies of {options.mib} MiB took {took} s; errors: {load.errors[:3]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
