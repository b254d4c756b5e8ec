"""Captures to the Parquet tables ``frames``, ``pdus`` and ``files`` (schema.py): one task per split, which decodes and writes its
own parts. What Spark would do in between, moving rows into the JVM and out again, costs six times as much.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from ....proto import wire
from ..frames.files import Capture, Split
from ..spark.session import Session
from ..work.progress import Progress, amount, tracked
from . import schema
from .decode import Columns, Decoder
from .manifest import Manifest, part_name

TABLES: Final = ("frames", "pdus")
_SPLITS_OF_A_TASK_MAX: Final = 8
_TASKS_OF_A_CORE: Final = 4
_ROWS_OF_A_GROUP: Final = 1 << 18
_RISING: Final = frozenset({"frame", "offset", "time_ns", "seq", "clock", "position"})
"""Columns whose differences are small: kept as such."""
_MANY_VALUES: Final = frozenset({"check", "digest", "captured", "wire", "length", "ack", "pack"})
"""Columns for which a dictionary is built in vain."""
_STATISTICS: Final = ("frame", "time_ns", "direction", "kind", "src", "instance", "problem", "ethertype")


class IngestError(Exception):
    """The tables could not be written; the text is for people."""


@dataclass
class Result:
    """What one run did."""

    out: Path
    captures: list[Capture]
    """The files of this run."""
    all: list[Capture]
    """The files of this and all earlier runs."""
    frames: int = 0
    pdus: int = 0
    bytes: int = 0
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)
    """One line each, with file and offset."""

    @property
    def stations(self) -> list[int]:
        """Those that got new rows."""
        return sorted({c.station for c in self.captures if c.splits})


@dataclass(frozen=True, slots=True)
class Written:
    """What one task did; ``error``: why it could not write."""

    file: int
    number: int
    frames: int = 0
    pdus: int = 0
    problem: str | None = None
    error: str | None = None


def write_split(split: Split, out: str, ethertype: int) -> Written:
    """Decode one split and write its parts, each appearing under its name only when it is whole. The folders must exist."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = [Columns(t, schema.arrow(t).names, {"file": split.file}) for t in TABLES]
    parts = {t: _Part(Path(out) / t / f"station={split.station}", part_name(split.file, split.number)) for t in TABLES}
    rows = dict.fromkeys(TABLES, 0)
    decoder = Decoder(split, columns, ethertype)
    try:
        for table, batch in decoder:
            rows[table] += batch.num_rows
            parts[table].add(pa, pq, table, batch)
        for part in parts.values():
            part.finish(pa)
    except OSError as error:  # Arrow's errors of files are OSErrors too
        return Written(split.file, split.number, error=_why(error, out))
    finally:
        for part in parts.values():
            part.drop()
    return Written(split.file, split.number, rows["frames"], rows["pdus"], decoder.problem)


class _Part:
    """One Parquet file that is being written."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path, self._temporary = folder / name, folder / f".{name}.tmp"
        self._writer: Any = None
        self._batches: list[Any] = []
        self._rows = 0

    def add(self, pa: Any, pq: Any, table: str, batch: Any) -> None:
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._temporary, schema.arrow(table), **_options(batch.schema))
        # What the batches say of nulls is less strict than the table's schema.
        self._batches.append(pa.RecordBatch.from_arrays(batch.columns, schema=schema.arrow(table)))
        self._rows += batch.num_rows
        if self._rows >= _ROWS_OF_A_GROUP:
            self._flush(pa)

    def _flush(self, pa: Any) -> None:
        if self._batches:
            self._writer.write_table(pa.Table.from_batches(self._batches), row_group_size=2 * _ROWS_OF_A_GROUP)
        self._batches, self._rows = [], 0

    def finish(self, pa: Any) -> None:
        if self._writer is not None:
            self._flush(pa)
            self._writer.close()
            self._temporary.replace(self._path)

    def drop(self) -> None:
        if self._writer is not None:
            self._temporary.unlink(missing_ok=True)


def _options(made: Any) -> dict[str, Any]:
    names = list(made.names)
    deltas = {name: "DELTA_BINARY_PACKED" for name in names if name in _RISING}
    deltas |= {f"{name}.list.element": "DELTA_BINARY_PACKED" for name in ("ack", "pack") if name in names}
    return {
        "compression": "zstd",
        "compression_level": 1,
        "use_dictionary": [name for name in names if name not in _RISING | _MANY_VALUES],
        "column_encoding": deltas,
        "write_statistics": [name for name in _STATISTICS if name in names],
    }


def _why(error: OSError, out: str) -> str:
    full = error.errno == errno.ENOSPC or "No space left" in str(error)
    if full:
        return f"{out}: no space left on the disk"
    return f"{error.filename or out}: {error.strerror or error}"


def ingest(
    captures: Sequence[Capture],
    out: Path,
    session: Session | None = None,
    progress: Progress | None = None,
    *,
    ethertype: int = wire.ETHERTYPE,
    manifest: Manifest | None = None,
) -> Result:
    """Write the tables frames, pdus and files of *captures* under *out*, a new folder or one of earlier runs.

    captures: as ``files.gather`` gives them, or ``Manifest.pending`` for what is new since. session: whose tasks do it; None:
    threads of this process. Damaged files: what stands before the damage is used, and ``Result.problems`` tells.
    If it fails or is interrupted, the parts of this run are removed. Raises IngestError, FilesError, SessionError."""
    progress = progress or Progress(quiet=True)
    begun = time.monotonic()
    manifest = manifest or Manifest.load(out, ethertype)
    fresh = not out.exists()
    result = Result(out, list(captures), [])
    splits = [split for capture in captures for split in capture.splits]
    try:
        manifest.tidy(TABLES)
        for capture in captures:
            for table in TABLES:
                if capture.splits:
                    (out / table / f"station={capture.station}").mkdir(parents=True, exist_ok=True)
        out.mkdir(parents=True, exist_ok=True)
        task = partial(write_split, out=str(out), ethertype=ethertype)
        written = _by_spark(session, splits, task, progress) if session is not None else _by_threads(splits, task, progress)
        _account(result, written)
        manifest.add(captures)
        result.all = manifest.captures
        _write_files(out, result.all)
        manifest.save()
    except OSError as error:
        _remove(out, splits, whole=fresh)
        raise IngestError(_why(error, str(out))) from None
    except BaseException:
        _remove(out, splits, whole=fresh)
        raise
    result.seconds = time.monotonic() - begun
    return result


def _account(result: Result, written: Iterable[Written]) -> None:
    for done in written:
        if done.error is not None:
            raise IngestError(done.error)
        result.frames += done.frames
        result.pdus += done.pdus
    result.bytes = sum(capture.bytes for capture in result.captures)
    result.problems = [capture.problem for capture in result.captures if capture.problem is not None]


def _by_threads(splits: Sequence[Split], task: Callable[[Split], Written], progress: Progress) -> list[Written]:
    """C and Arrow run without Python's lock."""
    done: list[Written] = []
    progress.phase("decoding", noun="splits")
    pool = ThreadPoolExecutor(max_workers=os.cpu_count() or 1)
    try:
        waiting = {pool.submit(task, split) for split in splits}
        while waiting:
            ready, waiting = wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED)
            for future in ready:
                done.append(future.result())
                if done[-1].error is not None:
                    raise IngestError(done[-1].error)
            progress.at(len(done), len(splits))
    finally:
        pool.shutdown(cancel_futures=True)
    return done


def _by_spark(session: Session, splits: Sequence[Split], task: Callable[[Split], Written], progress: Progress) -> list[Written]:
    spark = session.wait()
    if not splits:
        return []
    context = spark.sparkContext
    # A task costs Spark and its Python worker as much as a split does us, so several splits make one; yet enough tasks that all
    # cores end together.
    size = min(_SPLITS_OF_A_TASK_MAX, max(1, len(splits) // (_TASKS_OF_A_CORE * context.defaultParallelism)))
    groups = [list(splits[at : at + size]) for at in range(0, len(splits), size)]
    progress.phase(f"decoding {amount(sum((split.end or 0) - split.start for split in splits))}", noun="tasks")
    with tracked(context, progress, "decoding captures", say=False):
        found: list[list[Written]] = context.parallelize(groups, len(groups)).map(partial(_each, task)).collect()
    return [written for group in found for written in group]


def _each(task: Callable[[Split], Written], splits: Sequence[Split]) -> list[Written]:
    """One after the other, until one cannot write."""
    done: list[Written] = []
    for split in splits:
        done.append(task(split))
        if done[-1].error is not None:
            break
    return done


def _write_files(out: Path, captures: Sequence[Capture]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    made = schema.arrow("files")
    folder = out / "files"
    folder.mkdir(exist_ok=True)
    rows = [{name: getattr(capture, name) for name in made.names} for capture in captures]
    temporary = folder / ".part-0.tmp"
    pq.write_table(pa.Table.from_pylist(rows, schema=made), temporary)
    temporary.replace(folder / "part-0.parquet")


def _remove(out: Path, splits: Sequence[Split], *, whole: bool) -> None:
    """Of a run that failed: everything, or what it added to an older folder."""
    if whole:
        shutil.rmtree(out, ignore_errors=True)
        return
    for split in splits:
        for table in TABLES:
            folder = out / table / f"station={split.station}"
            name = part_name(split.file, split.number)
            (folder / name).unlink(missing_ok=True)
            (folder / f".{name}.tmp").unlink(missing_ok=True)
