"""The tables that a replay of the captures gives (schema.py): one task for each station, as its capture has to be replayed in
order; on a cluster the workers must see the files.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ....proto import wire

if TYPE_CHECKING:
    from ..frames.files import Capture
    from ..spark.session import Session
    from ..work.progress import Progress
    from .replay import Totals

DERIVED: Final = ("order", "messages", "transmissions", "views", "instances", "announced", "control", "control_rates", "findings")
_Task = tuple[int, tuple[tuple[int, str], ...], int]
"""Station, (number, path) of its captures in order of time, own address or 0."""


def tasks(captures: Iterable[Capture], stations: Iterable[int] | None = None) -> list[_Task]:
    """What is to be replayed: one entry for each station that has captures, or each of *stations*."""
    by: dict[int, list[Capture]] = {}
    for capture in captures:
        if capture.station:
            by.setdefault(capture.station, []).append(capture)
    wanted = set(by) if stations is None else set(stations) & set(by)
    out = []
    for station in sorted(wanted):
        mine = sorted(by[station], key=lambda c: (c.first_ns is None, c.first_ns or 0, c.path))
        out.append((station, tuple((c.file, c.path) for c in mine), next((c.own_mac for c in mine if c.own_mac), 0)))
    return out


def _one(task: _Task, out: str, ethertype: int, on_bytes: Callable[[int], None] | None = None) -> Totals:
    from .replay import replay

    station, captures, own_mac = task
    try:
        return replay(captures, station, out, ethertype=ethertype, own_mac=own_mac, on_bytes=on_bytes)
    except OSError as error:  # Arrow's errors of files are OSErrors too
        if error.errno == errno.ENOSPC or "No space left" in str(error):
            raise OSError(errno.ENOSPC, "no space left on the disk", out) from None
        raise


def _or_error(task: _Task, out: str, ethertype: int) -> Totals | OSError:
    """In a task of Spark, which makes one long text of what is raised."""
    try:
        return _one(task, out, ethertype)
    except OSError as error:
        return error


def derive(
    captures: Sequence[Capture],
    out: Path | str,
    session: Session | None = None,
    progress: Progress | None = None,
    *,
    ethertype: int = wire.ETHERTYPE,
    stations: Iterable[int] | None = None,
) -> list[Totals]:
    """Write the tables of ``DERIVED`` for all stations of *captures* (``files.gather``), or for *stations*, in place of what is
    there of them. session: whose tasks do it; None: threads of this process. If it fails, what it has written is removed. Raises
    OSError, SessionError."""
    todo = tasks(captures, stations)
    made = [Path(out) / table / f"station={station}" for station, _, _ in todo for table in DERIVED]
    try:
        for folder in made:
            shutil.rmtree(folder, ignore_errors=True)
        if session is not None:
            with session.job("replaying captures") as spark:
                path, number = str(out), ethertype
                rdd = spark.sparkContext.parallelize(todo, max(1, len(todo)))
                found = rdd.map(lambda task: _or_error(task, path, number)).collect()
            if (error := next((f for f in found if isinstance(f, OSError)), None)) is not None:
                raise error
            return list(found)
        return _threads(todo, str(out), ethertype, sum(c.bytes for c in captures), progress)
    except BaseException:
        for folder in made:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _threads(todo: Sequence[_Task], out: str, ethertype: int, total: int, progress: Progress | None) -> list[Totals]:
    """C and Arrow run without Python's lock."""
    from ..work.progress import amount

    done, lock, stop = 0, threading.Lock(), threading.Event()
    if progress is not None:
        progress.phase("replaying captures", unit=amount)

    def step(count: int) -> None:
        nonlocal done
        if stop.is_set():
            raise InterruptedError
        with lock:
            done += count
        if progress is not None:
            progress.at(min(done, total), total)

    with ThreadPoolExecutor(max_workers=max(1, min(len(todo), os.cpu_count() or 1))) as pool:
        try:
            return list(pool.map(lambda task: _one(task, out, ethertype, step), todo))
        except BaseException:
            stop.set()  # or the end of the program waits for the others
            raise
