"""A station that was away comes back to a large database while programs at the others write, for ``zenjun bench database``."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from ...daemon.database.driver import connect
from ...daemon.database.driver.service import Service
from ...daemon.database.errors import Error
from ...daemon.database.wire import PIECE_BYTES, to_text
from .cell import BenchError, Json
from .db_systems import OurDatabase

NAME: Final = "large"
ROW_BYTES: Final = 1000
ROWS_OF_MB: Final = 1000
SHARE: Final = 10
"""One row in so many is changed while the station is away."""
PASSES: Final = 2
"""So often: rows before and after are then more than the history keeps, so pages have to come."""
ROWS_AT_ONCE: Final = 8000
CLIENTS: Final = 32
POLL_S: Final = 0.1
LIMIT_S: Final = 300.0


def rejoin(system: OurDatabase, size_mb: int, load: Callable[[int], Json], starting: Callable[[str], None]) -> Iterator[Json]:
    """Two lines: what the others commit while the station is away; the same from the start of its process until it is active,
    with the bytes of the file for each second of that. load: a measurement with so many programs at the others. Raises
    BenchError, LabError."""
    last = max(system.lab.stations)
    starting(f"{system.name}: a database of {size_mb} MB")
    try:
        _create(system, size_mb)
        system.end_database(last)
        _change(system, size_mb)
        starting(f"{system.name}: a station is away")
        yield {"what": f"update, {CLIENTS} clients, a station is away", **load(CLIENTS)}
        starting(f"{system.name}: it comes back")
        size = Path(system.file(1, NAME)).stat().st_size
        with _Return(system, last) as back:
            windows = [load(CLIENTS)]
            while back.took_s is None and time.monotonic() - back.began < LIMIT_S:
                windows.append(load(CLIENTS))
    except (Error, OSError, sqlite3.Error) as error:
        raise BenchError(f"{type(error).__name__}: {error}") from error
    problems = {problem for window in windows for problem in window["problems"]}
    row: Json = {"what": f"the same while it comes back to {size_mb} MB", "count": sum(w["count"] for w in windows)}
    row["per_s"] = round(sum(w["per_s"] for w in windows) / len(windows), 1)
    if back.took_s is None:
        problems.add(f"it is not active after {LIMIT_S:g} s")
    else:
        row |= {"took_s": round(back.took_s, 1), "mb_per_s": round(size / back.took_s / 1e6, 1)}
    yield {**row, "load": os.getloadavg()[0], "ok": not problems, "problems": sorted(problems)}


def _create(system: OurDatabase, size_mb: int) -> None:
    """Of a file, which all stations get."""
    path = system.folder.with_name(f"{system.folder.name}-{NAME}.db")
    try:
        with closing(sqlite3.connect(path)) as file, file:
            file.execute("CREATE TABLE large(id INTEGER PRIMARY KEY, v INTEGER NOT NULL, body BLOB NOT NULL)")
            rows = ((key, os.urandom(ROW_BYTES)) for key in range(size_mb * ROWS_OF_MB))
            file.executemany("INSERT INTO large VALUES(?, 0, ?)", rows)
        with closing(Service(system.target(1), timeout=LIMIT_S)) as service:
            with path.open("rb") as data:
                for number, piece in enumerate(iter(lambda: data.read(PIECE_BYTES), b"")):
                    service.ask("upload", timeout=LIMIT_S, number=number, body=to_text(piece))
            path.unlink()
            service.ask("create", timeout=LIMIT_S, db=NAME)
    finally:
        path.unlink(missing_ok=True)


def _change(system: OurDatabase, size_mb: int) -> None:
    """Other bytes in the first rows."""
    rows = size_mb * ROWS_OF_MB // SHARE
    with closing(connect(NAME, socket=system.target(1), timeout=LIMIT_S, isolation="snapshot")) as c:
        for _ in range(PASSES):
            for first in range(0, rows, ROWS_AT_ONCE):
                end = min(rows, first + ROWS_AT_ONCE)
                c.execute("UPDATE large SET v = v + 1, body = randomblob(?) WHERE id >= ? AND id < ?", (ROW_BYTES, first, end))
                c.commit()


class _Return:
    """The station's process, started, and watched in a thread until its copy is active."""

    def __init__(self, system: OurDatabase, station: int) -> None:
        self._system, self._station = system, station
        self.began = time.monotonic()
        self.took_s: float | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> _Return:
        self._system.start_database(self._station)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(POLL_S):
            with contextlib.suppress(Error), closing(Service(self._system.target(self._station), timeout=5.0)) as service:
                found: list[dict[str, Any]] = service.ask("status", timeout=5.0, db=NAME)["databases"]
                if found[0].get("active"):
                    self.took_s = time.monotonic() - self.began
                    return
