"""``zenjun pcap check`` without its command line: captures, or a folder of tables, to a judgement."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ....proto import wire
from .. import tables
from ..frames import files
from ..frames.files import Capture, FilesError
from ..spark.session import Session
from ..tables.manifest import Manifest
from ..work.progress import Progress, amount
from .evidence import Source, dropped
from .judgement import Judgement


def is_tables(path: Path) -> bool:
    """Whether a folder holds tables (``zenjun pcap ingest``) and not captures."""
    return path.is_dir() and any((path / table).is_dir() for table in ("files", "order", "pdus", "views"))


def sources_of(captures: Iterable[Capture]) -> dict[int, Source]:
    """What the verdicts want to know of the captures."""
    return {
        c.file: Source(
            c.file,
            c.path,
            c.station,
            c.own_mac,
            c.last_ns,
            not (c.truncated or c.problem or c.cut),
            dropped(c.path, c.frames) if c.station else None,
        )
        for c in captures
    }


def check(
    names: Sequence[Path],
    work: Path,
    session: Session | None = None,
    progress: Progress | None = None,
    *,
    stations_given: Mapping[str, int] | None = None,
    ethertype: int = wire.ETHERTYPE,
) -> tuple[Judgement, list[str]]:
    """Judge captures, whose tables then lie in *work*, or one folder of tables, to which those that are missing are added.

    session: whose tasks do the work; None: threads of this process. Second result: files with problems, one line each; what is
    good in them has been used. Raises FilesError, SessionError, OSError."""
    from ..tables import parts  # Arrow, too: a JVM is started before
    from . import links
    from .court import judge

    progress = progress or Progress(quiet=True)
    if len(names) == 1 and is_tables(names[0]):
        folder = names[0]
        captures = _recorded(folder, ethertype)
        missing = {c.station for c in captures if c.station} - _replayed(folder)
    elif any(is_tables(name) for name in names):
        raise FilesError("give either captures or one folder of tables")
    else:
        folder = work
        progress.phase("looking into the captures", unit=amount)
        captures = files.gather(names, stations_given=stations_given, ethertype=ethertype, on_bytes=progress.at)
        missing = {c.station for c in captures if c.station and c.ours}
        parts.write_files(captures, folder)
    problems = [c.problem for c in captures if c.problem is not None]
    for problem in problems:
        progress.note(problem)
    if missing:
        usable = [c for c in captures if c.station and c.ours]
        # On one machine threads replay the captures while Spark is still coming up.
        workers = None if session is None or session.local else session
        tables.derive(usable, folder, workers, progress, ethertype=ethertype, stations=missing)
    sources = sources_of(captures)
    if session is None:
        progress.phase("comparing", unit=lambda n: f"{n:.0f} parts")
        judgement = judge(folder, sources, ethertype=ethertype, on_done=progress.at)
    else:
        with session.job("comparing") as spark:
            judgement = judge(folder, sources, spark, ethertype=ethertype)
    judgement.verdicts |= links.judge(captures, ethertype)
    judgement.notes += files.remarks(captures)
    for mine in files.by_station(captures).values():
        judgement.captures += [{"station": c.station, "path": c.path, "told": c.told} for c in mine]
    return judgement, problems


def _recorded(folder: Path, ethertype: int) -> list[Capture]:
    """The captures that tables come from; none if they are only known by name, or not at all."""
    try:
        return Manifest.load(folder, ethertype).captures
    except FilesError:
        from ..tables import parts

    kept = ("path", "file", "station", "frames", "first_ns", "last_ns", "truncated", "cut", "problem")
    return [Capture(**{name: row[name] for name in kept if name in row}) for row in parts.read_files(folder)]


def _replayed(folder: Path) -> set[int]:
    return {int(p.parent.name.partition("=")[2]) for p in (folder / "transmissions").glob("station=*/*.parquet")}
