"""``zenjun bench links``: what the loss of a link costs, and what a second one brings."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from ..bench.links import CUTS, MODES, LinksPlan, render, run
from .benchcommon import measured, tables, words


@click.command(
    epilog="""\b
Examples:
  zenjun bench links
  zenjun bench links --cuts switch --modes auto --mbit 0
  zenjun bench links --cuts '' --mbit 200 --repeat 3

\b
Exit status: as zenjun bench.""",
)
@click.option("-n", "--stations", type=click.IntRange(2, 16), default=3, show_default=True, help="Stations in the lab.")
@click.option(
    "--cuts",
    metavar="CUT,…",
    callback=words(tuple(CUTS)),
    default=",".join(CUTS),
    show_default=True,
    help="What fails on link 1.",
)
@click.option(
    "--modes", metavar="MODE,…", callback=words(MODES), default="auto,passive", show_default=True, help="Values of links.mode."
)
@click.option("--size", type=click.IntRange(40, 65536), default=64, show_default=True, help="Message size, bytes.")
@click.option(
    "--mbit",
    type=click.IntRange(0, 10_000),
    default=200,
    show_default=True,
    help="Limit of each link for the rates; 0: no rates.",
)
@click.option("--repeat", type=click.IntRange(1, 100), default=1, show_default=True, help="How often everything is measured.")
@click.option(
    "--option",
    "options",
    multiple=True,
    callback=tables,
    metavar="TABLE.NAME=VALUE",
    help="An option of our daemons' configuration; may be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON line a run, as they end, instead of the table.")
def links(
    stations: int,
    cuts: tuple[str, ...],
    modes: tuple[str, ...],
    size: int,
    mbit: int,
    repeat: int,
    options: dict[str, dict[str, Any]],
    as_json: bool,
) -> None:
    """Fail one of two links under load and heal it; measure what two limited links carry against one.

    A cut is silent: the switch forwards nothing, station 2 gets nothing of station 1, or the cable of station 1 is out. Measured
    is the longest time without a delivery at any station, at 1,000 messages per second and as fast as it goes, and whether the
    members changed.
    """
    plan = LinksPlan(stations, cuts, modes if cuts else (), (1000.0, 0.0), size, mbit, repeat, options)
    measured(partial(run, plan), plan.runs(), lambda row: str(row["what"]), render, as_json)
