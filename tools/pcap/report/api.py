"""``zenjun pcap report`` without its command line: captures, or a folder of tables, to what the page shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ....proto import wire
from ..frames.files import Capture, FilesError, remarks
from ..judge import api as checking
from ..judge.evidence import Where
from ..judge.judgement import TITLES, Judgement
from ..tables import ingest
from ..tables.manifest import Manifest
from ..work.progress import Progress, amount
from .render import Frames, Report, Verdict
from .summary import Clock, Tables, clocks_of

if TYPE_CHECKING:
    from ..spark.session import Session


def make(
    names: Sequence[Path],
    work: Path,
    session: Session,
    progress: Progress,
    *,
    stations_given: Mapping[str, int] | None = None,
    ethertype: int = wire.ETHERTYPE,
    one_clock: bool = False,
) -> tuple[Report, Judgement, list[str]]:
    """Everything the page needs but its queries: tables of *names* in *work* (or the one folder of tables that *names* is),
    judged; clocks aligned from the captures, unless ``one_clock`` is set.

    Third result: files with problems, one line each. Raises FilesError, IngestError, SessionError, OSError.
    """
    folder = work
    if len(names) == 1 and checking.is_tables(names[0]):
        folder = names[0]
    elif any(checking.is_tables(name) for name in names):
        raise FilesError("give either captures or one folder of tables")
    else:
        _ingest(names, work, session, progress, stations_given, ethertype)
    judgement, problems = checking.check([folder], folder, session, progress, ethertype=ethertype)
    captures = Manifest.load(folder, ethertype).captures
    clocks = {} if one_clock else _clocks(captures, ethertype, progress)
    said = remarks(captures)
    for remark in said:
        progress.note(remark)
    made = Report(Tables(session.spark, folder, clocks), verdicts(judgement), note=progress.phase, remarks=said)
    return made, judgement, problems


def _ingest(
    names: Sequence[Path],
    work: Path,
    session: Session,
    progress: Progress,
    stations_given: Mapping[str, int] | None,
    ethertype: int,
) -> None:
    progress.phase("looking into the captures", unit=amount)
    manifest = Manifest.load(work, ethertype)
    captures = manifest.pending(names, stations_given=stations_given, on_bytes=progress.at)
    # Threads decode while a Spark of ours comes up; on a cluster its tasks do it.
    ingest.ingest(captures, work, None if session.local else session, progress, ethertype=ethertype, manifest=manifest)


def _clocks(captures: Sequence[Capture], ethertype: int, progress: Progress) -> dict[int, Clock]:
    """From the captures, if they are still there; unknown where they are not, or do not show it."""
    from ..frames import lookup
    from ..look import clocks

    spans: dict[int, tuple[int, int]] = {}
    for c in captures:
        if c.station and c.first_ns is not None and c.last_ns is not None:
            low, high = spans.get(c.station, (c.first_ns, c.last_ns))
            spans[c.station] = (min(low, c.first_ns), max(high, c.last_ns))
    if len(spans) < 2:
        return {}
    progress.phase("aligning clocks")
    try:
        files = [lookup.Capture(c.path, c.station, c.own_mac) for c in captures if c.station in spans]
        return clocks_of(clocks.estimate(files, ethertype), spans)
    except (clocks.ClockError, OSError) as error:
        progress.note(f"clocks are not aligned: {error}")
        return {station: Clock((), None) for station in spans}


def verdicts(judgement: Judgement) -> list[Verdict]:
    """As the page shows them."""
    out = []
    for name, verdict in judgement.verdicts.items():
        guarantee, unit = TITLES[name]
        count = len(verdict.violations) + verdict.more
        words = f"{verdict.compared:,} {unit}" if verdict.compared else "nothing to compare"
        if count:
            words += f"; {count:,} violation{'s' if count > 1 else ''}"
        evidence = tuple((violation.text, _frames(violation.evidence)) for violation in verdict.violations)
        out.append(Verdict(guarantee, verdict.kept, words, evidence))
    return out


def _frames(places: Sequence[Where]) -> tuple[Frames, ...]:
    """A table for each station; rows that are evidence by themselves stand out."""
    out = []
    for station in sorted({place.station for place in places}):
        mine = sorted((p for p in places if p.station == station), key=lambda p: (p.time_ns or 0, p.file, p.frame))
        rows = tuple((p.note or None, Path(p.path).name or f"file {p.file}", p.frame, p.text or None) for p in mine)
        heads = ("what", "file", "frame", "PDU")
        out.append(Frames(f"Frames at station {station}", heads, rows, tuple(k for k, p in enumerate(mine) if p.note)))
    return tuple(out)
