"""A station that has nothing gets a directory of many names while others change it; and again, after a few changes."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ...daemon.directory.copy import Copy, FullBuilding, Seen
from ...daemon.directory.store import File
from ...daemon.names import calls, connect_directory_sync
from ...proto.service.directory import copying
from ...proto.service.directory.canon import encode as canonical
from ...proto.service.directory.copying import KeyedRow
from ...proto.service.directory.entries import NOWHERE, Entry, Target, entry_row
from ...proto.service.directory.store import Table
from ...proto.service.stateapi import Offer
from ..lab import Lab
from .cell import BenchError, Json
from .names_systems import OurNames, resident_mb

BATCH: Final = 500
JOIN_S: Final = 300.0
STEADY_S: Final = 3.0
PUT_RATE: Final = 200.0
CHANGES: Final = 1000
WHO: Final = (1, 1)
"""Of a process that was; its place is before those of any instance."""


def fill(lab: Lab, stations: list[int], names: int) -> float:
    """Give these stations, whose processes do not run, the same directory. Returns the seconds that it took."""
    began = time.monotonic()
    first = lab.station(stations[0]).state_directory
    copy = Copy(File(first, f"lab-{lab.name}", stations[0]))
    copy.apply([Seen((1, 1, 0), (WHO,), (WHO,))])
    rows = [*copy.rows.changed_since(NOWHERE), *(KeyedRow(Table.ENTRY, *_named(number)) for number in range(names))]
    building = FullBuilding(copy)
    building.chunk(copying.HEAD, copying.encode_head(copy.state))
    for at in range(0, len(rows), BATCH):
        building.chunk(b"%d" % at, copying.encode_rows(rows[at : at + BATCH]))
    building.end()
    building.commit(Offer(copy.state.place, WHO, False, None, -1, -1))
    copy.rows.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = copy.file.path
    copy.rows.close()
    for station in stations[1:]:
        folder = lab.station(station).state_directory
        folder.mkdir(parents=True, exist_ok=True)
        _copy(data, folder / data.name, canonical({"c": f"lab-{lab.name}", "n": station}))
    return time.monotonic() - began


def _named(number: int) -> tuple[str, bytes]:
    """A name and its row."""
    target = Target(f"tcp://10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}:5432")
    entry = Entry(f"host-{number}.example", "user:root", (1, 1, 0), targets=(target,))
    return entry.name, entry_row(entry)


def _copy(source: Path, target: Path, owner: bytes) -> None:
    shutil.copyfile(source, target)
    with contextlib.closing(sqlite3.connect(target)) as rows, rows:
        rows.execute("UPDATE owner SET what = ?", (owner,))


class Puts:
    """Updates at a rate, by a thread; how long each took."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._stop = threading.Event()
        self.times_ms: list[float] = []

    def _run(self) -> None:
        with connect_directory_sync(self._path, timeout=60.0, keep=False) as d:
            due = time.monotonic()
            while not self._stop.is_set():
                began = time.monotonic()
                d.update(calls.set_of("bench.busy", ["tcp://10.0.0.7:5432"]), wait="memory")
                self.times_ms.append((time.monotonic() - began) * 1e3)
                due = max(due + 1 / PUT_RATE, began)
                time.sleep(max(0.0, due - time.monotonic()))

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def figures(self) -> Json:
        found = sorted(self.times_ms)
        if not found:
            raise BenchError("no update came through")
        pick = {"p50_ms": 0.5, "p99_ms": 0.99, "max_ms": 1.0}
        return {name: round(found[min(len(found) - 1, int(share * len(found)))], 2) for name, share in pick.items()}


def measure_joiner(ours: OurNames, names: int) -> Json:
    """Stations but the last have the names; the last one joins with nothing, and once more after ``CHANGES`` changes."""
    lab = ours.lab
    *others, last = sorted(lab.stations)
    for station in lab.stations.values():
        station.write_config()
        for old in station.state_directory.glob("directory.*"):  # of the measurements before
            old.unlink()
    filled_s = fill(lab, others, names - 1)  # and the one that changes: 1,000,000 is the most that a directory has
    for station in lab.stations.values():
        station.start_daemon()
    lab.wait_open(JOIN_S)
    began = time.monotonic()
    for number in others:
        ours.start_one(number)
    for number in others:
        ours.wait_active(number, JOIN_S)
    checked_s = time.monotonic() - began
    before, meanwhile = Puts(ours.target(1)), Puts(ours.target(1))
    with before.running():
        time.sleep(STEADY_S)
    with meanwhile.running():
        began = time.monotonic()
        ours.start_one(last)
        ours.wait_active(last, JOIN_S)
        joined_s = time.monotonic() - began
    with connect_directory_sync(ours.target(last), timeout=60) as d:
        have = d.status()["names"]
    memory = {str(number): resident_mb(ours.pids[number]) for number in lab.stations}
    ours.stop_one(last)
    with connect_directory_sync(ours.target(1), timeout=60) as d:
        for number in range(CHANGES):
            d.update(calls.set_of(f"host-{number}.example", ["tcp://10.9.9.9:1"]), wait="memory")
    ours.start_one(last)
    own_check_s, active_s = ours.wait_active(last, JOIN_S)
    with connect_directory_sync(ours.target(last), timeout=60) as d:
        started = d.lookup("host-0.example").addresses
    file = Path(lab.station(1).state_directory) / "directory.db"
    steady, during = before.figures(), meanwhile.figures()
    problems = [] if have >= names else [f"the joiner has {have} names of {names}"]
    problems += [] if started == ("tcp://10.9.9.9:1",) else ["the joiner has not the last changes"]
    return {
        "filled_s": round(filled_s, 1),
        "checked_s": round(checked_s, 2),
        "joined_s": round(joined_s, 2),
        "own_check_s": round(own_check_s, 2),
        "again_s": round(active_s - own_check_s, 2),
        "updates_before": steady,
        "updates_meanwhile": during,
        "resident_mb": memory,
        "file_mb": round(file.stat().st_size / 1e6, 1),
        "ok": not problems,
        "problems": problems,
    }
