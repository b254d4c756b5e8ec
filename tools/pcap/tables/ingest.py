"""Captures to the Parquet tables ``frames``, ``pdus`` and ``files`` (schema.py): one task per split, which decodes and writes its
own parts. What Spark would do in between, moving rows into the JVM and out again, costs six times as much.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ....proto import wire
from ..frames.files import Capture, Split
from ..spark.session import Session
from ..work.progress import Progress, amount, tracked
from .manifest import Manifest, part_name

if TYPE_CHECKING:
    from .parts import Written

TABLES: Final = ("frames", "pdus")

_SPLITS_OF_A_TASK_MAX: Final = 8
_TASKS_OF_A_CORE: Final = 4


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
    threads of this process. Damaged files: what precedes the damage is used, and ``Result.problems`` reports it. If it fails or
    is interrupted, the parts of this run are removed. Raises IngestError, FilesError, SessionError."""
    from . import parts  # Arrow, too: a JVM is started before

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
        task = partial(parts.write_split, tables=TABLES, out=str(out), ethertype=ethertype)
        written = _by_spark(session, splits, task, progress) if session is not None else _by_threads(splits, task, progress)
        _account(result, written)
        manifest.add(captures)
        result.all = manifest.captures
        parts.write_files(result.all, out)
        manifest.save()
    except OSError as error:
        _remove(out, splits, whole=fresh)
        raise IngestError(parts.said(error, str(out))) from None
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
