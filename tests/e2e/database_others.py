"""``python -m tests.e2e.database_others [--seconds S] [--mib N]``, as root: what a station in trouble costs the others (rule D6).

Programs at stations 1 and 2 of three commit rows of their own, 200 a second together; a commit counts from when it was due. In
turns station 3 is well, takes 0.2 s for whatever the order brings, is well, has a full disk, is well, and has lost its disk, so
that it gets a copy of N MiB. Prints the times of the commits in each turn, and its p99 to the mean of those before and after it,
with the load of the machine, which is most of what differs from one call to the next.
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
from collections.abc import Callable
from typing import Final

from zenjun.db import Connection

from .test_database import Databases, databases

THREADS: Final = 4
"""At each of the two stations."""
RATE: Final = 200.0
FULL_BYTES: Final = 300_000
ROW_BYTES: Final = 1_000_000


class Load:
    """The commits of all threads."""

    def __init__(self, shop: Databases) -> None:
        self._shop = shop
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._times: list[float] = []
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
                time.sleep(max(0.0, due - time.monotonic()))
                try:
                    c.execute("UPDATE t SET v = v + 1 WHERE id = ?", (row,))
                except Exception as error:
                    self.errors.append(f"station {station}: {error}")
                with self._lock:
                    self._times.append(time.monotonic() - due)
                due += 2 * THREADS / RATE

    def during(self, over: Callable[[], bool]) -> list[float]:
        """Seconds that each commit took until it is so."""
        with self._lock:
            self._times.clear()
        while not over():
            time.sleep(0.05)
        with self._lock:
            return sorted(self._times)


def fill(c: Connection, mib: int) -> None:
    for first in range(0, mib, 50):
        c.executemany("INSERT INTO big VALUES(?, zeroblob(?))", [(k, ROW_BYTES) for k in range(first, min(mib, first + 50))])
        c.commit()


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.database_others", description="the p99 of the others")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each turn")
    parser.add_argument("--mib", type=int, default=400, help="of the copy that is rebuilt")
    options = parser.parse_args(argv)
    turns: list[tuple[str, list[float], float]] = []
    with databases() as shop:
        shop.ask(1, "create", db="shop", timeout=60)
        with contextlib.closing(shop.connect(1)) as c:
            c.executescript("CREATE TABLE t(id INTEGER PRIMARY KEY, v INTEGER); CREATE TABLE big(id INTEGER PRIMARY KEY, b BLOB)")
            c.executemany("INSERT INTO t VALUES(?, 0)", [(row,) for row in range(2 * THREADS)])
            c.commit()
            shop.until_equal()
            with Load(shop) as load:

                def turn(name: str, over: Callable[[], bool] | None = None) -> None:
                    until = time.monotonic() + options.seconds
                    found = load.during(over or (lambda: time.monotonic() > until))
                    turns.append((name, found, os.getloadavg()[0]))

                def again(variant: str = "", file_bytes_max: int = 0) -> None:
                    shop.stop(3)
                    shop.variant = variant
                    shop.start(3, file_bytes_max)
                    time.sleep(3)

                turn("well")
                again("slow")
                turn("slow")
                again()
                turn("well")
                again(file_bytes_max=FULL_BYTES)
                turn("full")
                failed = shop.facts(3)["counters"].get("failed", 0)
                again()
                fill(c, options.mib)
                time.sleep(5)
                turn("well")
                shop.stop(3)
                shutil.rmtree(shop.lab.station(3).state_directory / "db" / "shop")
                shop.start(3)
                began = time.monotonic()
                turn("rebuilding", lambda: bool(shop.facts(3).get("active")) or time.monotonic() - began > 300)
                took = time.monotonic() - began
                turn("well")
    for n, (name, times, load_1) in enumerate(turns):
        p50, p99 = (times[len(times) * share // 100] * 1000 for share in (50, 99))
        text = f"{name:<10} {len(times):>5} commits, p50 {p50:6.1f} ms, p99 {p99:6.1f} ms, load {load_1:.1f}"
        if name != "well":
            beside = statistics.mean(turns[k][1][len(turns[k][1]) * 99 // 100] * 1000 for k in (n - 1, n + 1))
            text += f": {p99 / beside:.2f} times the p99 of the turns beside it"
        print(text)
    print(f"the full disk failed {failed} times; the copy of {options.mib} MiB took {took:.1f} s; errors: {load.errors[:3]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
