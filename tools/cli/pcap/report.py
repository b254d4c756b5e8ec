"""``zenjun pcap report``."""

from __future__ import annotations

import os
import re
from pathlib import Path

import click

from ..common import FAILED, OK, UNSUPPORTED, USAGE, Failure, lacking_extra, say
from .options import NO_SPARK, ethertype_option, import_large, little, master_option, places_option

COMMAND = "pcap report"
_MESSAGE = re.compile(r"(\d+)(?:\.(\d+))?:(\d+)(?::\d+)?")


def message_option(_context: click.Context, _option: click.Parameter, text: str | None) -> tuple[int, int, int | None] | None:
    """Callback: SRC:SEQ or SRC.INCARNATION:SEQ, an index of the message in its PDU is allowed and makes no difference."""
    if text is None:
        return None
    found = _MESSAGE.fullmatch(text)
    if found is None:
        raise click.BadParameter(f"{text!r} is not like 2:17 or 2.1000:17, source and number of a PDU")
    source, incarnation, seq = found.groups()
    return int(source), int(seq), int(incarnation) if incarnation else None


@click.command(
    "report",
    epilog="Exit codes: 0 written, all guarantees kept · 1 written, one is broken or a capture damaged · others: docs/cli.md.",
)
@click.argument("captures", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILES...|DIR")
@click.option(
    "--out", required=True, type=click.Path(dir_okay=False, path_type=Path), metavar="PAGE", help="The HTML file to write."
)
@click.option(
    "--message", metavar="SRC:SEQ", callback=message_option, help="Draw the way of this message. [default: the slowest ones]"
)
@click.option("--title", metavar="TEXT", help="Heading of the page.")
@click.option(
    "--one-clock", is_flag=True, help="All captures were taken on one machine (a lab): times are compared as they are, exactly."
)
@places_option
@master_option()
@click.option("--work", type=click.Path(file_okay=False, path_type=Path), metavar="DIR", help="Keep the tables in this folder.")
@ethertype_option
def report(
    captures: tuple[Path, ...], out: Path, message: tuple[int, int, int | None] | None, title: str | None, one_clock: bool,
    places: dict[str, int], master: str, work: Path | None, ethertype: int,
) -> int:  # fmt: skip
    """Write one HTML page: verdicts, members over time, latencies, throughput, losses, the way of one message, and anomalies.

    FILES are captures of all stations, or folders of them; DIR is a folder of tables (zenjun pcap ingest). The page works
    offline, needs no script and asks for nothing.

    \b
    Examples:
      zenjun pcap report frames --out report.html
      zenjun pcap report --one-clock --message 2:17 frames --out report.html
      zenjun pcap report tables --out report.html
    """
    try:
        return _write(captures, out, message, title, one_clock, places, master, work, ethertype)
    except ImportError as error:
        raise lacking_extra(error, COMMAND) from None


def _write(
    captures: tuple[Path, ...], out: Path, message: tuple[int, int, int | None] | None, title: str | None, one_clock: bool,
    places: dict[str, int], master: str, work: Path | None, ethertype: int,
) -> int:  # fmt: skip
    if master == NO_SPARK:
        raise click.UsageError("the report is counted in Spark: --master local[*], or a cluster")
    if not os.access(out.parent, os.W_OK):  # before much is counted
        raise click.UsageError(f"--out {out}: {out.parent} is no folder that can be written to")
    from ...pcap.work.interrupts import held

    with held():
        from ...pcap.frames import files
        from ...pcap.report import api as reporting
        from ...pcap.report import page
        from ...pcap.spark import java
        from ...pcap.spark import session as sparks
        from ...pcap.tables import ingest
        from ...pcap.work import scratch
        from ...pcap.work.progress import Progress

    with Progress() as progress, scratch.folder("report") as folder:
        try:
            with sparks.Session(master, progress=progress, small=sparks.is_local(master) and little(captures)) as session:
                import_large()
                made, judgement, problems = reporting.make(
                    captures, work or folder / "tables", session, progress,
                    stations_given=places, ethertype=ethertype, one_clock=one_clock,
                )  # fmt: skip
                made.message, made.title = message, title or made.title
                with session.job("counting"):
                    text = made.html()
            page.write(text, out)
        except files.FilesError as error:
            raise Failure(str(error), USAGE, COMMAND) from None
        except java.JavaError as error:
            raise Failure(str(error), UNSUPPORTED, COMMAND) from None
        except (sparks.SessionError, ingest.IngestError, page.NoSuchMessage) as error:
            raise Failure(str(error), FAILED, COMMAND) from None
    unjudged = sum(verdict.kept is None for verdict in judgement.verdicts.values())
    kept = f"no guarantee broken, {unjudged} not judged" if unjudged else "all guarantees kept"
    state = {True: kept, False: "a guarantee is BROKEN", None: "nothing to judge"}[judgement.kept]
    say(f"{out}: {state}, {len(text) / 1e6:.1f} MB")
    return FAILED if problems or judgement.kept is False else OK
