"""``zenjun pcap ingest``: captures to Parquet tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..common import FAILED, OK, UNSUPPORTED, USAGE, Failure, lacking_extra, plural, say
from .options import NO_SPARK, ethertype_option, import_large, little, master_option, places_option, said

if TYPE_CHECKING:
    from ...pcap.spark.session import Session
    from ...pcap.tables.ingest import Result
    from ...pcap.work.progress import Progress

COMMAND = "pcap ingest"


@click.command("ingest")
@click.argument("captures", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILES...")
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="DIR", help="Where the tables go.")
@places_option
@master_option(none=True)
@ethertype_option
def ingest(captures: tuple[Path, ...], out: Path, places: dict[str, int], master: str, ethertype: int) -> int:
    """Turn captures into Parquet tables, partitioned by station: frames, PDUs, and the order, messages, views and more that a
    replay of each station's capture gives.

    FILES are pcap or pcapng files (also .gz and .zst) of all stations, or folders of them. A DIR of an earlier run is added to:
    what has been read already is passed over, and a file that has grown is read on from where it ended.

    \b
    Examples:
      zenjun pcap ingest frames --out tables
      zenjun pcap ingest --station 3=eth0.pcap s1.pcap s2.pcap eth0.pcap --out tables

    Exit code 1 if some file was damaged; what was good of it, and all others, are in the tables.
    """
    from ...pcap.work.interrupts import held

    try:
        with held():
            from ...pcap.frames import files
            from ...pcap.spark import java
            from ...pcap.spark import session as sparks
            from ...pcap.tables import ingest as work
            from ...pcap.work.progress import Progress

        with Progress() as progress:
            result = _run(captures, out, places, master, ethertype, progress)
    except ImportError as error:
        raise lacking_extra(error, COMMAND) from None
    except files.FilesError as error:
        raise Failure(str(error), USAGE, COMMAND) from None
    except java.JavaError as error:
        raise Failure(str(error), UNSUPPORTED, COMMAND) from None
    except (sparks.SessionError, work.IngestError) as error:
        raise Failure(str(error), FAILED, COMMAND) from None
    except OSError as error:
        raise Failure(said(error), FAILED, COMMAND) from None
    return _report(result)


def _run(captures: Sequence[Path], out: Path, places: dict[str, int], master: str, ethertype: int, progress: Progress) -> Result:
    from ...pcap.spark.session import Session, is_local

    if master == NO_SPARK:
        return _work(captures, out, places, ethertype, progress, None)
    small = is_local(master) and little(captures)
    with Session(master, progress=progress, small=small) as session:  # comes up while the captures are looked into
        return _work(captures, out, places, ethertype, progress, session)


def _work(
    captures: Sequence[Path],
    out: Path,
    places: dict[str, int],
    ethertype: int,
    progress: Progress,
    session: Session | None,
) -> Result:
    """Scan, decode, and replay the stations of which there is something new."""
    from ...pcap import tables
    from ...pcap.frames.files import remarks
    from ...pcap.tables import ingest as work
    from ...pcap.tables.manifest import Manifest
    from ...pcap.work.progress import amount

    import_large()
    progress.phase("looking into the captures", unit=amount)
    manifest = Manifest.load(out, ethertype)
    pending = manifest.pending(captures, stations_given=places, on_bytes=progress.at)
    for capture in pending:
        if capture.problem is not None:
            progress.note(capture.problem)
    for remark in remarks(pending):
        progress.note(remark)
    result = work.ingest(pending, out, session, progress, ethertype=ethertype, manifest=manifest)
    # Also those that an interrupted run has left without.
    without = {c.station for c in result.all if c.splits_before and not (out / "transmissions" / f"station={c.station}").exists()}
    if todo := without | set(result.stations):
        tables.derive(result.all, out, session, progress, ethertype=ethertype, stations=todo)
    return result


def _report(result: Result) -> int:
    """The summary, and the exit code."""
    from ...pcap.work.progress import amount

    if not result.captures:
        say(f"zenjun pcap ingest: nothing new for {result.out}")
        return OK
    cut = sum(capture.truncated for capture in result.captures)
    click.echo(
        f"{result.out}: {plural(len(result.captures), 'file')}, {plural(result.frames, 'frame')}, {plural(result.pdus, 'PDU')} of"
        f" stations {' '.join(map(str, result.stations)) or '-'}, {amount(result.bytes)} decoded in {result.seconds:.1f} s"
        + (f"; {plural(cut, 'file')} ended within a record" if cut else "")
    )
    if result.problems:
        say(f"zenjun pcap ingest: {plural(len(result.problems), 'file')} with problems, see above")
        return FAILED
    return OK
