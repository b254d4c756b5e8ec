"""The tables that a replay of the captures gives (schema.py), and what joins of them tell.

``derive`` makes them: one task for each station, as its capture has to be replayed in order; on a cluster the workers must see
the files. ``read`` and the functions after it give Spark DataFrames.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ...proto import wire
from . import schema

if TYPE_CHECKING:
    from .files import Capture
    from .progress import Progress
    from .replay import Totals
    from .session import Session

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
    from .progress import amount

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


def write_files(captures: Iterable[Capture], out: Path) -> None:
    """The table ``files``, where no ingest has made it. Raises OSError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    made = schema.arrow("files")
    rows = [{name: getattr(capture, name) for name in made.names} for capture in captures]
    (out / "files").mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=made), out / "files" / "part-0.parquet")


# ---- for notebooks and reports ----


def read(spark: Any, folder: Path | str, table: str) -> Any:
    """A table as a DataFrame; an empty one if nothing was ever written to it."""
    return schema.read(spark, folder, table)


def message_lives(spark: Any, folder: Path | str) -> Any:
    """One row per message and station that has it, as a DataFrame:

    station, src, incarnation, seq, index, first_seq, group, client, size; sent_ns (by the source's clock, null without its
    capture), seen_ns, ordered_ns, preack_ns, acked_ns (by the station's clock); pdus: PDUs that carry it; shared: messages in the
    last of them; frames, frame_bytes: transmissions of these PDUs by all stations whose captures are there, and their bytes;
    retransmissions: frames beyond one for each PDU; received: copies that reached this station; lost: copies that others sent and
    that did not reach it. Costs of PDUs that carry several messages are not divided."""
    for table in ("messages", "order", "transmissions"):
        read(spark, folder, table).createOrReplaceTempView(f"zj_{table}")
    return spark.sql(_LIVES)


_LIVES: Final = """
WITH wire AS (
  SELECT src, incarnation, seq, sum(sent) AS sent, max(bytes / (sent + received)) AS size
  FROM zj_transmissions WHERE kind = 1 GROUP BY src, incarnation, seq
), here AS (
  SELECT station, src, incarnation, seq, sum(sent) AS sent, sum(received) AS received
  FROM zj_transmissions WHERE kind = 1 GROUP BY station, src, incarnation, seq
), parts AS (
  SELECT station, src, incarnation, seq, index, explode(sequence(coalesce(first_seq, seq), seq)) AS part FROM zj_messages
), cost AS (
  SELECT p.station, p.src, p.incarnation, p.seq, p.index, count(*) AS pdus, sum(w.sent) AS frames,
         cast(sum(w.sent * w.size) AS bigint) AS frame_bytes, sum(greatest(w.sent - 1, 0)) AS retransmissions,
         sum(coalesce(h.received, 0)) AS received,
         sum(CASE WHEN p.station = p.src THEN 0
                  ELSE greatest(w.sent - coalesce(h.sent, 0) - coalesce(h.received, 0), 0) END) AS lost
  FROM parts p
  LEFT JOIN wire w ON w.src = p.src AND w.incarnation = p.incarnation AND w.seq = p.part
  LEFT JOIN here h ON h.station = p.station AND h.src = p.src AND h.incarnation = p.incarnation AND h.seq = p.part
  GROUP BY p.station, p.src, p.incarnation, p.seq, p.index
)
SELECT m.station, m.src, m.incarnation, m.seq, m.index, m.first_seq, m.group, m.client, m.size,
       s.sent_ns, o.seen_ns, o.ordered_ns, o.preack_ns, o.acked_ns,
       c.pdus, o.messages AS shared, c.frames, c.frame_bytes, c.retransmissions, c.received, c.lost
FROM zj_messages m
JOIN zj_order o ON o.station = m.station AND o.src = m.src AND o.incarnation = m.incarnation AND o.seq = m.seq
LEFT JOIN zj_order s ON s.station = m.src AND s.src = m.src AND s.incarnation = m.incarnation
                    AND s.seq = coalesce(m.first_seq, m.seq)
JOIN cost c ON c.station = m.station AND c.src = m.src AND c.incarnation = m.incarnation AND c.seq = m.seq
           AND c.index = m.index
"""
