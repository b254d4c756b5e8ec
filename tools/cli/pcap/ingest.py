"""``zenjun pcap ingest``: captures to Parquet tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from ....proto import wire
from ...pcap import files, java
from ...pcap import ingest as work
from ...pcap import session as sparks
from ...pcap.manifest import Manifest
from ...pcap.progress import Progress, amount
from ..common import FAILED, OK, UNSUPPORTED, USAGE, Failure, plural, say

COMMAND = "pcap ingest"


def station_option(ctx: click.Context, parameter: click.Parameter, value: Sequence[str]) -> dict[str, int]:
    """Callback for --station N=FILE, given several times: path → station."""
    given: dict[str, int] = {}
    for text in value:
        number, mark, path = text.partition("=")
        if not mark or not number.isdigit() or not path or not 1 <= int(number) <= wire.STATIONS_MAX:
            raise click.BadParameter(f"{text!r} is not N=FILE with N from 1 to {wire.STATIONS_MAX}")
        given[path] = int(number)
    return given


def ethertype_option(ctx: click.Context, parameter: click.Parameter, value: str) -> int:
    """Callback for --ethertype: a number, also hexadecimal."""
    try:
        number = int(value, 0)
    except ValueError:
        number = 0
    if not 0x0600 <= number <= 0xFFFF:
        raise click.BadParameter(f"{value!r} is not an EtherType: 0x0600 to 0xffff")
    return number


@click.command("ingest")
@click.argument("captures", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILES...")
@click.option(
    "--out", required=True, type=click.Path(file_okay=False, path_type=Path), metavar="DIR", help="Where the tables go."
)
@click.option(
    "--station",
    "stations",
    multiple=True,
    callback=station_option,
    metavar="N=FILE",
    help="Whose capture a file or folder is, where its name does not tell. May be given several times.",
)
@click.option("--master", metavar="URL", help="Spark cluster to do it on; its workers need zenjun[spark].")
@click.option(
    "--ethertype",
    default=f"{wire.ETHERTYPE:#06x}",
    show_default=True,
    callback=ethertype_option,
    metavar="TYPE",
    help="Of the PDUs.",
)
def ingest(captures: tuple[Path, ...], out: Path, stations: dict[str, int], master: str | None, ethertype: int) -> int:
    """Turn captures into Parquet tables, partitioned by station.

    FILES are pcap or pcapng files (also .gz and .zst) of all stations, or folders of them. A DIR of an earlier run is added to:
    what has been read already is passed over, and a file that has grown is read on from where it ended.

    \b
    Examples:
      zenjun pcap ingest frames --out tables
      zenjun pcap ingest --station 3=eth0.pcap s1.pcap s2.pcap eth0.pcap --out tables

    Exit code 1 if some file was damaged; what was good of it, and all others, are in the tables.
    """
    with Progress() as progress:
        try:
            result = run(captures, out, stations, master, ethertype, progress)
        except files.FilesError as error:
            raise Failure(str(error), USAGE, COMMAND) from None
        except java.JavaError as error:
            raise Failure(str(error), UNSUPPORTED, COMMAND) from None
        except (sparks.SessionError, work.IngestError) as error:
            raise Failure(str(error), FAILED, COMMAND) from None
    return report(result)


def run(
    captures: Sequence[Path], out: Path, stations: dict[str, int], master: str | None, ethertype: int, progress: Progress
) -> work.Result:
    """Scan, then decode: by threads of this process, which on one machine is quicker than by Spark, or on the cluster named."""
    progress.phase("looking into the captures", unit=amount)
    manifest = Manifest.load(out, ethertype)
    pending = manifest.pending(captures, stations_given=stations, on_bytes=progress.at)
    for capture in pending:
        if capture.problem is not None:
            progress.note(capture.problem)
    if master is None:
        return work.ingest(pending, out, None, progress, ethertype=ethertype, manifest=manifest)
    with sparks.Session(master, progress=progress) as session:
        return work.ingest(pending, out, session, progress, ethertype=ethertype, manifest=manifest)


def report(result: work.Result) -> int:
    """The summary, and the exit code."""
    cut = sum(capture.truncated for capture in result.captures)
    click.echo(
        f"{result.out}: {plural(len(result.captures), 'file')}, {plural(result.frames, 'frame')}, {plural(result.pdus, 'PDU')} of"
        f" stations {' '.join(map(str, result.stations)) or '-'}, {amount(result.bytes)} in {result.seconds:.1f} s"
        + (f"; {plural(cut, 'file')} ended within a record" if cut else "")
    )
    if not result.captures:
        say("zenjun pcap ingest: nothing new")
    if result.problems:
        say(f"zenjun pcap ingest: {plural(len(result.problems), 'file')} with problems, see above")
        return FAILED
    return OK
