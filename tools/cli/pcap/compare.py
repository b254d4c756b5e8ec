"""``zenjun pcap compare``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from ....proto import wire
from ...pcap.frames.lookup import captures
from ...pcap.frames.text import Style, fold, span
from ...pcap.look.show import Printer
from ..common import plural, say
from .options import ethertype_option, one_clock, reading, stations

if TYPE_CHECKING:  # what needs numpy is imported when it is used: --help does without
    from ...pcap.look.compare import Comparison, Side

WHO = "pcap compare"
_QUANTILES = (0.0, 0.5, 0.9, 0.99, 1.0)


def _kind(number: int) -> str:
    return wire.Kind(number).name if number in set(wire.Kind) else f"kind {number}"


def _side(this: Side) -> dict[str, Any]:
    only = [{"kind": _kind(kind), "src": src, "pdus": count} for (kind, src), count in sorted(this.only.items())]
    return {
        "files": [c.path for c in this.files],
        "station": this.station or None,
        "pdus": this.pdus,
        "damaged": this.damaged,
        "returned": this.returned,
        "begin_ns": this.first_ns,
        "end_ns": this.last_ns,
        "only": only,
        "first_only": [
            dict(zip(("file", "frame"), (this.place(i)[0].path, this.place(i)[1]), strict=True)) for i in this.first_only
        ],
        "sent": this.sent,
        "lost": this.lost,
    }


def _delays(found: Comparison) -> list[int] | None:
    """Least, median, 9 of 10, 99 of 100, greatest."""
    import numpy as np

    if found.least_ns is None or found.greatest_ns is None:
        return None
    inner = [int(q) for q in np.quantile(found.delays_ns, _QUANTILES[1:-1])]
    return [found.least_ns, *inner, found.greatest_ns]


def as_json(found: Comparison) -> dict[str, Any]:
    """Everything, for programs."""
    order = found.order
    return {
        "same": found.same,
        "a": _side(found.a),
        "b": _side(found.b),
        "both": found.both,
        "order": {"common": order.common, "late": order.late, "late_of_source": order.late_of_source},
        "delays_ns": dict(zip(("least", "median", "p90", "p99", "greatest"), _delays(found) or (), strict=False)),
    }


def _only(name: str, this: Side) -> list[str]:
    pieces = [f"only in {name}: {plural(this.only.total(), 'PDU')}"]
    by_kind: dict[int, list[tuple[int, int]]] = {}
    for (kind, src), count in sorted(this.only.items()):
        by_kind.setdefault(kind, []).append((src, count))
    for kind, sources in by_kind.items():
        pieces.append(f"{_kind(kind)} " + ", ".join(f"{count:,} of {src}" for src, count in sources))
    return pieces


def _lines(found: Comparison) -> Iterator[list[str]]:
    for name, this in (("A", found.a), ("B", found.b)):
        about = [f"{name}: {this.name}", f"station {this.station or '?'}", plural(this.pdus, "PDU")]
        if this.damaged:
            about.append(f"{this.damaged:,} damaged")
        if this.returned:
            about.append(f"{this.returned:,} own ones that came back are left out")
        if this.first_ns is not None and this.last_ns is not None:
            about.append(f"over {span(this.last_ns - this.first_ns)}")
        yield about
    yield [f"in both: {plural(found.both, 'PDU')}"]
    yield _only("A", found.a)
    yield _only("B", found.b)
    order = found.order
    if not order.late:
        yield ["order: the same"]
    else:
        yield [
            f"order: {order.late:,} of {order.common:,} come later in A than one that follows them in B",
            f"{order.late_of_source:,} after one of the same source" if order.late_of_source else "each source's are in order",
        ]
    if (delays := _delays(found)) is not None:
        names = ("least", "median", "90 %", "99 %", "greatest")
        yield ["B after A:", *(f"{name} {span(value)}" for name, value in zip(names, delays, strict=True))]
    for sender, receiver in ((found.a, found.b), (found.b, found.a)):
        if sender.sent:
            share = 100 * sender.lost / sender.sent
            yield [
                f"lost from station {sender.station} to {receiver.station}: {sender.lost:,} of {sender.sent:,} frames",
                f"{share:.2f} %",
            ]


def _differences(found: Comparison, ethertype: int, count: int, style: Style) -> None:
    """The first differences with the frames around them."""
    from ...pcap.look.compare import around

    printer = Printer(sys.stdout, style)
    shown = [
        (f"only in {name}", this, index) for name, this in (("A", found.a), ("B", found.b)) for index in this.first_only[:count]
    ]
    if found.order.late_of_source and found.order.first is not None:
        shown.append(("first out of its source's order, in A", found.a, found.order.first[0]))
        shown.append(("the same in B", found.b, found.order.first[1]))
    for title, this, index in shown:
        capture, number = this.place(index)
        click.echo()
        click.echo(f"{title}: {capture.name}, frame {number}")
        for one, frame in around(this, index, ethertype):
            sys.stdout.write(style.paint("> ", "1") if one else "  ")
            printer.show(frame)


@click.command(
    "compare",
    epilog="""\b
Examples:
  zenjun pcap compare s1.pcapng s2.pcapng      what station 2 did not get of station 1, and the other way
  zenjun pcap compare before after.pcap --quiet && echo the same

\b
PDUs are compared by their bytes, as often as they are there: what was sent twice and received once is missing once.

\b
Exit status:
  0  the same PDUs, each as often, and those of each source in the same order
  1  not the same, or a file cannot be read to its end
  2  wrong usage""",
)
@click.argument("a", type=click.Path())
@click.argument("b", type=click.Path())
@click.option("--station", "of_stations", multiple=True, metavar="N=FILE", help="That file is this station's (may be repeated).")
@click.option("--align/--no-align", default=True, help="Put the times of two stations on one clock.  [default: align]")
@click.option(
    "--count", type=click.IntRange(0, 5), default=3, show_default=True, metavar="N", help="Differences shown with frames."
)
@click.option("-q", "--quiet", is_flag=True, help="Only the exit code.")
@click.option("--json", "as_object", is_flag=True, help="One JSON object.")
@ethertype_option
@click.pass_context
def compare(
    context: click.Context,
    a: str,
    b: str,
    of_stations: tuple[str, ...],
    align: bool,
    count: int,
    quiet: bool,
    as_object: bool,
    ethertype: int,
) -> None:
    """Compare two captures, of two stations or of one: PDUs that only one has, their order, how much later, losses each way.

    A and B are files, or folders with the files of one station.
    """
    _, given = stations(of_stations)
    if "-" in (a, b):
        raise click.UsageError("captures are read several times: give files, not a pipe")
    with reading(WHO):
        from ...pcap.look.compare import compare as comparison
        from ...pcap.look.compare import side

        try:
            told: list[str] = []
            sides = [side(path, captures([path], given, ethertype, remarks=told)) for path in (a, b)]
            for remark in told:
                say(f"zenjun {WHO}: {remark}")
            every = [c for s in sides for c in s.files]
            two = sides[0].station and sides[1].station and sides[0].station != sides[1].station
            correct = one_clock(WHO, every, ethertype, must=False) if align and two else None
            found = comparison(sides[0], sides[1], ethertype=ethertype, correct=correct)
        except ValueError as error:
            raise click.UsageError(str(error)) from None
    if as_object:
        click.echo(json.dumps(as_json(found)))
    elif not quiet:
        style = Style.of(sys.stdout)
        for pieces in _lines(found):
            click.echo(fold(pieces, style.width))
        _differences(found, ethertype, count, style)
    for note in found.notes.lines:
        say(f"zenjun {WHO}: {note}")
    context.exit(0 if found.same and not found.notes.damaged else 1)
