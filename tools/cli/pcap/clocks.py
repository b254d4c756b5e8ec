"""``zenjun pcap clocks``."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from ....proto import wire
from ...pcap.frames.lookup import captures
from ...pcap.frames.text import Style, fold, seconds, span
from ..common import Failure, plural, say
from .options import ethertype_option, reading, stations

if TYPE_CHECKING:  # what needs numpy is imported when it is used: --help does without
    from ...pcap.look.clocks import Alignment, Estimate

WHO = "pcap clocks"


def _row(made: Alignment, station: int, own_ns: int) -> dict[str, Any]:
    low, high = made.interval_ns(made.reference, station, own_ns - round(made.rough[station]))
    offset, doubt = made.offset_ns(station, own_ns)[0], made.uncertainty_ns(station, own_ns)[0]

    def plain(value: float) -> float | None:
        return round(float(value), 1) if abs(value) < float("inf") else None

    return {
        "time_ns": own_ns,
        "offset_ns": plain(offset),
        "uncertainty_ns": plain(doubt),
        "low_ns": plain(low[0]),
        "high_ns": plain(high[0]),
    }


def report(found: Estimate, points: int) -> dict[str, Any]:
    """What is known, as JSON has it. Offsets are the station's clock minus the reference's, at ``points`` times of its clock."""
    made = found.alignment
    start, end = made.span_ns()
    out: dict[str, Any] = {
        "reference": made.reference,
        "begin_ns": start,
        "end_ns": end,
        "rate_ppm": made.rate_ppm,
        "steps_ns": list(made.breaks_ns),
        "stations": [],
        "pairs": [{"from": a, "to": b, "pdus": count} for (a, b), count in sorted(made.pairs.items())],
        "problems": found.problems,
    }
    for station in made.stations:
        drift = made.drift(station)
        times = [start + (end - start) * k // max(1, points - 1) + round(made.rough[station]) for k in range(points)]
        out["stations"].append(
            {
                "station": station,
                "aligned": made.aligned(station),
                "points": [_row(made, station, time) for time in times],
                "drift_ppm": None if drift is None else round(drift.ppm, 3),
                "drift_low_ppm": None if drift is None else round(drift.low, 3),
                "drift_high_ppm": None if drift is None else round(drift.high, 3),
            }
        )
    for station in sorted(set(found.marks) - set(made.stations)):
        out["stations"].append({"station": station, "aligned": False, "points": [], "drift_ppm": None})
    return out


def _bound(row: dict[str, Any]) -> str:
    """An offset, or what little is known of it."""
    if row["offset_ns"] is not None:
        return f"{span(round(row['offset_ns']))} ± {span(round(row['uncertainty_ns']))}"
    if row["high_ns"] is not None:
        return f"at most {span(round(row['high_ns']))} (nothing was heard the other way)"
    if row["low_ns"] is not None:
        return f"at least {span(round(row['low_ns']))} (nothing was heard the other way)"
    return "not known"


def _print(known: dict[str, Any], verbose: bool, style: Style) -> None:
    reference = known["reference"]
    passed = span(known["end_ns"] - known["begin_ns"])
    lines = [[f"offsets from the clock of station {reference}", f"from {seconds(known['begin_ns'])}", f"over {passed}"]]
    for entry in known["stations"]:
        if entry["station"] == reference:
            continue
        pieces = [f"station {entry['station']}"]
        if not entry["points"]:
            pieces.append("no PDU in common with another station")
        elif verbose and entry["aligned"]:
            pieces += [f"{seconds(row['time_ns'])}: {_bound(row)}" for row in entry["points"]]
        else:
            pieces.append(_bound(entry["points"][len(entry["points"]) // 2]))
        if entry["drift_ppm"] is not None:
            low, high = entry["drift_low_ppm"], entry["drift_high_ppm"]
            pieces.append(f"drift {entry['drift_ppm']:+.2f} ppm (between {low:+.2f} and {high:+.2f})")
        lines.append(pieces)
    if verbose:
        lines += [[f"station {p['from']} to {p['to']}", plural(p["pdus"], "PDU")] for p in known["pairs"]]
    for pieces in lines:
        if verbose and len(pieces) > 4:
            click.echo(pieces[0])
            for piece in pieces[1:]:
                click.echo(f"    {piece}")
        else:
            click.echo(fold(pieces, style.width))
    from ...pcap.look.clocks import RATE_PPM

    if known["rate_ppm"] > RATE_PPM:
        click.echo(f"a clock was slewed: up to {known['rate_ppm']:.0f} ppm of drift were allowed for")
    for moment in known["steps_ns"]:
        click.echo(f"at {seconds(moment)} a clock was set, or a capture lacks frames: before and after that are aligned apart")


@click.command(
    "clocks",
    epilog="""\b
Examples:
  zenjun pcap clocks frames                       offsets between the stations' clocks
  zenjun pcap clocks s1.pcapng s2.pcapng --json   for a program
  zenjun pcap show frames --align                 use them

\b
Exit status:
  0  all stations' clocks are aligned
  1  not all, or a file cannot be read to its end
  2  wrong usage""",
)
@click.argument("files", nargs=-1, required=True, type=click.Path(), metavar="FILE...")
@click.option("--station", "of_stations", multiple=True, metavar="N=FILE", help="That file is this station's (may be repeated).")
@click.option("--reference", type=click.IntRange(1, wire.STATIONS_MAX), help="Station whose clock is the common one.")
@click.option(
    "--drift-max",
    type=click.FloatRange(0, 100_000),
    metavar="PPM",
    help="How fast two clocks can drift apart.  [default: 200]",
)
@click.option("--points", type=click.IntRange(1, 100_000), default=11, show_default=True, help="At how many times (-v, --json).")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option("-v", "--verbose", is_flag=True, help="Offsets over time, and what they come from.")
@ethertype_option
@click.pass_context
def clocks(
    context: click.Context,
    files: tuple[str, ...],
    of_stations: tuple[str, ...],
    reference: int | None,
    drift_max: float | None,
    points: int,
    as_json: bool,
    verbose: bool,
    ethertype: int,
) -> None:
    """Estimate how far the clocks of the capturing machines are apart, from the PDUs themselves.

    A PDU cannot be received before it was sent: those of one direction bound the difference from above, those of the other from
    below. The true offset lies within the uncertainty, whatever the delays.
    """
    chosen, given = stations(of_stations)
    if chosen:
        raise click.UsageError("--station names the station of a capture file: --station N=FILE")
    with reading(WHO):
        from ...pcap.look.clocks import RATE_PPM, ClockError, estimate

        rate_ppm = RATE_PPM if drift_max is None else drift_max
        try:
            told: list[str] = []
            sources = captures(files, given, ethertype, remarks=told)
            for remark in told:
                say(f"zenjun {WHO}: {remark}")
            found = estimate(sources, ethertype, rate_ppm=rate_ppm, reference=reference)
        except ClockError as error:
            raise Failure(str(error), command=WHO) from None
    known = report(found, points)
    if as_json:
        click.echo(json.dumps(known))
    else:
        _print(known, verbose, Style.of(sys.stdout))
    for problem in found.problems:
        say(f"zenjun {WHO}: {problem}")
    good = all(entry["aligned"] for entry in known["stations"]) and not known["steps_ns"]
    context.exit(0 if good and not found.problems else 1)
