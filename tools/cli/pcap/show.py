"""``zenjun pcap show``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ....proto import wire
from ...pcap.frames.lookup import Capture, Notes, Selection, captures, first_time, merged
from ...pcap.frames.text import Style
from ...pcap.look.show import Printer, When, moment, numbers
from ...pcap.look.show import show as print_frames
from ..common import Failure, say
from .options import ethertype_option, kinds_option, one_clock, reading, stations

WHO = "pcap show"


def _moment(_context: click.Context, _option: click.Parameter, text: str | None) -> When | None:
    try:
        return None if text is None else moment(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _numbers(_context: click.Context, _option: click.Parameter, text: str | None) -> tuple[int, int] | None:
    try:
        return None if text is None else numbers(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _set_times(wanted: Selection, sources: list[Capture], since: When | None, until: When | None) -> None:
    """Turns moments into what the filter takes."""
    moments = [when for when in (since, until) if when is not None]
    begin = first_time(sources, wanted.ethertype) if any(when.counts_from != "epoch" for when in moments) else None
    if begin is None and moments and all(when.counts_from == "begin" for when in moments):
        # A pipe: the filter finds out where it begins.
        wanted.relative = True
        wanted.since_ns = since.ns if since else None
        wanted.until_ns = until.ns if until else None
        return
    wanted.since_ns = since.absolute(begin) if since else None
    wanted.until_ns = until.absolute(begin) if until else None


@click.command(
    "show",
    epilog="""\b
Examples:
  zenjun pcap show frames                                  all stations' captures, by time
  zenjun pcap show frames --kind nak --since 12:34:56 -v   who missed what, all fields
  zenjun pcap show s1.pcapng --src 2 --seq 100-120 --until +1.5
  zenjun pcap show s1.pcapng --bad -x                      damaged PDUs, with their bytes
  tcpdump -i eth0 -w - -U ether proto 0x88b5 | zenjun pcap show -

\b
Times: 1.5 or +250ms after the first PDU, 12:34:56 on the capture's first day, 2026-01-31T12:34:56.789 (local; Z, +01:00),
@1769859296.5 (seconds since 1970).

\b
Exit status:
  0  all that matches was printed
  1  a file cannot be read, or not to its end; all others were
  2  wrong usage""",
)
@click.argument("files", nargs=-1, required=True, type=click.Path(allow_dash=True), metavar="FILE...")
@kinds_option
@click.option(
    "--src",
    "sources",
    multiple=True,
    type=click.IntRange(1, wire.STATIONS_MAX),
    help="Only PDUs of this source (may be repeated).",
)
@click.option(
    "--station",
    "of_stations",
    multiple=True,
    metavar="N[=FILE]",
    help="Only captures of this station; with =FILE: that file is this station's (may be repeated).",
)
@click.option("--direction", type=click.Choice(["in", "out"]), help="Only received, or only sent frames.")
@click.option("--seq", "seqs", metavar="A[-B]", callback=_numbers, help="Only these numbers of a stream (others: next ones).")
@click.option("--incarnation", type=click.IntRange(0, 2**32 - 1), help="Only PDUs of this incarnation of their source.")
@click.option("--instance", type=click.IntRange(0, 2**32 - 1), help="Only PDUs sent in this instance.")
@click.option("--group", metavar="NAME", help="Only DATA with a message of this process group.")
@click.option("--text", metavar="TEXT", help="Only PDUs whose payload has this text.")
@click.option("--cluster", metavar="NAME", help="Only PDUs of this cluster.")
@click.option("--since", metavar="TIME", callback=_moment, help="Not what was before; see below.")
@click.option("--until", metavar="TIME", callback=_moment, help="Not what was after.")
@click.option("--bad", is_flag=True, help="Only PDUs that are damaged, cut or otherwise wrong.")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="Stop after N PDUs.")
@click.option("--relative", is_flag=True, help="Times since the first PDU shown.")
@click.option("--align", is_flag=True, help="Put all times on one clock first, as 'zenjun pcap clocks' finds it.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per PDU, with every field.")
@click.option("-v", "--verbose", is_flag=True, help="All fields of every PDU, one line each.")
@click.option("-x", "--hex", "as_bytes", is_flag=True, help="The frame's bytes.")
@ethertype_option
@click.pass_context
def show(
    context: click.Context,
    files: tuple[str, ...],
    kinds: tuple[str, ...],
    sources: tuple[int, ...],
    of_stations: tuple[str, ...],
    direction: str | None,
    seqs: tuple[int, int] | None,
    incarnation: int | None,
    instance: int | None,
    group: str | None,
    text: str | None,
    cluster: str | None,
    since: When | None,
    until: When | None,
    bad: bool,
    count: int | None,
    relative: bool,
    align: bool,
    as_json: bool,
    verbose: bool,
    as_bytes: bool,
    ethertype: int,
) -> None:
    """Print PDUs of captures as text, one line each (pcap, pcapng; gzip and zstd; - is standard input; folders are searched).

    Files are merged by time. A line has the time, the capturing station, whether it received or sent the frame, the PDU's source
    with its incarnation, the kind, its number in the stream (for PDUs outside it the next one), instance, clock, the ack and pack
    vectors, flags, and what the kind adds; what is wrong with it in capitals.

    For captures, with all filters. To watch an interface: 'zenjun sniff -i IFACE'.
    """
    chosen, given = stations(of_stations)
    wanted = Selection(
        ethertype,
        frozenset(wire.Kind[kind.upper()] for kind in kinds),
        frozenset(sources),
        seqs=seqs,
        incarnation=incarnation,
        instance=instance,
        cluster=None if cluster is None else wire.cluster_id(cluster),
        group=None if group is None else wire.group_id(group),
        text=None if text is None else text.encode(),
        bad=bad,
        direction={None: None, "in": 1, "out": 2}[direction],
    )
    if text == "":
        raise click.UsageError("--text: an empty text is in every PDU")
    notes = Notes()
    with reading(WHO):
        sources_all = captures(files, given, ethertype, pipes=True, remarks=notes.lines)
        found = [c for c in sources_all if not chosen or c.station in chosen]
        if not found:
            raise Failure(f"no capture is of station {', '.join(map(str, sorted(chosen)))}", command=WHO)
        try:
            _set_times(wanted, found, since, until)
        except ValueError as error:
            raise click.UsageError(str(error)) from None
        correct = one_clock(WHO, found, ethertype) if align else None
        printer = Printer(sys.stdout, Style.of(sys.stdout), verbose, as_bytes, as_json, relative)
        waiting = None if all(Path(c.path).is_file() for c in found) else sys.stdout.flush
        print_frames(merged(found, wanted, notes, correct, waiting), printer, count)
        sys.stdout.flush()
    for note in notes.lines:
        say(f"zenjun {WHO}: {note}")
    context.exit(1 if notes.damaged else 0)
