"""``zenjun pcap follow``."""

from __future__ import annotations

import json
import sys

import click

from ...pcap.frames.lookup import Notes, captures
from ...pcap.frames.text import Style
from ...pcap.look.follow import FollowError, Name, add_levels, as_json, name
from ...pcap.look.follow import follow as life_of
from ...pcap.look.sequence import ASCII, UNICODE, diagram, summary
from ..common import USAGE, Failure, say
from .options import ethertype_option, one_clock, reading, stations

WHO = "pcap follow"


def _signs() -> bool:
    """Whether the output can take lines and arrows."""
    try:
        "●─▶◀◎✗│µ".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _wanted(words: tuple[str, ...], text: str | None) -> tuple[Name | bytes, list[str]]:
    """The message that is meant, and the files."""
    if text is not None:
        if not text:
            raise click.UsageError("--text: an empty text is in every PDU")
        if not words:
            raise click.UsageError("no capture given")
        return text.encode(), list(words)
    if len(words) < 2:
        raise click.UsageError("a message and captures are expected: zenjun pcap follow 2:17 frames")
    try:
        return name(words[0]), list(words[1:])
    except ValueError as error:
        raise click.UsageError(str(error)) from None


@click.command(
    "follow",
    epilog="""\b
Examples:
  zenjun pcap follow 2:17 frames                     PDU 17 of station 2's stream
  zenjun pcap follow 2.367131199:17:0 frames         of this incarnation of the station; its first message
  zenjun pcap follow --text 'order 4711' frames      the PDU that has this text

\b
Exit status:
  0  it was found
  1  no such message, or a file cannot be read to its end
  2  wrong usage, or more than one matches""",
)
@click.argument("words", nargs=-1, required=True, type=click.Path(), metavar="MESSAGE FILE...")
@click.option("--text", metavar="TEXT", help="The message is the one with this text; then no MESSAGE is given.")
@click.option("--station", "of_stations", multiple=True, metavar="N=FILE", help="That file is this station's (may be repeated).")
@click.option("--align/--no-align", default=True, help="Put the stations' times on one clock.  [default: align]")
@click.option("--levels/--no-levels", default=True, help="Show when it reached each level; reads all.  [default: levels]")
@click.option("--json", "as_object", is_flag=True, help="One JSON object.")
@ethertype_option
@click.pass_context
def follow(
    context: click.Context,
    words: tuple[str, ...],
    text: str | None,
    of_stations: tuple[str, ...],
    align: bool,
    levels: bool,
    as_object: bool,
    ethertype: int,
) -> None:
    """Show what happened to one message at every station: each transmission and where it arrived, the stations that asked for it,
    that sent it again, and that acknowledged it and when, the levels it reached, and its neighbours in the order.

    MESSAGE is SRC:SEQ, the source and the number of its PDU; SRC.INCARNATION:SEQ if that is not enough; with :INDEX one of the
    messages in it, from 0.
    """
    wanted, paths = _wanted(words, text)
    chosen, given = stations(of_stations)
    if chosen:
        raise click.UsageError("--station names the station of a capture file: --station N=FILE")
    if "-" in paths:
        raise click.UsageError("captures are read several times: give files, not a pipe")
    notes = Notes()
    style = Style.of(sys.stdout)
    with reading(WHO):
        from ...pcap.frames.files import remarks, scan

        try:
            found = captures(paths, given, ethertype, remarks=notes.lines)
            notes.lines += remarks([scan(c.path, station=c.station, ethertype=ethertype) for c in found if c.station])
            several = len({c.station for c in found}) > 1
            correct = one_clock(WHO, found, ethertype, must=False) if align and several else None
            life = life_of(found, wanted, ethertype=ethertype, correct=correct, notes=notes)
            if levels:
                add_levels(life, found, ethertype=ethertype, correct=correct)
                if not life.levels:
                    say(f"zenjun {WHO}: these captures do not show its place in the order, nor which levels it reached")
        except FollowError as error:
            raise Failure(str(error), USAGE if "\n" in str(error) else 1, command=WHO) from None
    if as_object:
        click.echo(json.dumps(as_json(life)))
    else:
        signs = UNICODE if _signs() else ASCII
        for line in [*summary(life, style), "", *diagram(life, style, signs)]:
            click.echo(line if signs is UNICODE else line.replace("µ", "u"))
    for note in dict.fromkeys(notes.lines):
        say(f"zenjun {WHO}: {note}")
    context.exit(1 if notes.damaged else 0)
