"""``zenjun bench trust``: what keys, links and frame sizes cost, each figure with its bound."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from ..bench.plan import PEERS
from ..bench.systems import Corosync
from ..bench.trust import CUTS, PARTS, TrustPlan, render, run
from .benchcommon import measured, tables, there, words


@click.command(
    epilog="""\b
Examples:
  zenjun bench trust
  zenjun bench trust --parts key --repeat 5
  zenjun bench trust --parts cut,mtu --peers corosync --json > trust.jsonl

\b
Exit status: as zenjun bench; a bound that is not reached is no error.""",
)
@click.option("-n", "--stations", type=click.IntRange(2, 16), default=3, show_default=True, help="Stations in the lab.")
@click.option(
    "--parts",
    metavar="PART,…",
    callback=words(PARTS),
    default=",".join(PARTS),
    show_default=True,
    help="What is measured: costs of a key, over one link and (both) over two; rate of two links; cuts of a link; changes of the "
    "key; a smaller MTU.",
)
@click.option(
    "--cuts",
    metavar="CUT,…",
    callback=words(tuple(CUTS)),
    default=",".join(CUTS),
    show_default=True,
    help="What fails on link 1.",
)
@click.option("--mbit", type=click.IntRange(1, 10_000), default=200, show_default=True, help="Limit of each link for the rates.")
@click.option("--seconds", type=click.FloatRange(0.2, 600), default=2.0, show_default=True, help="Length of each window.")
@click.option("--repeat", type=click.IntRange(1, 100), default=3, show_default=True, help="Turns of each part.")
@click.option(
    "--peers",
    metavar="NAME,…",
    callback=words(PEERS),
    default="",
    help="Other systems in the same labs: corosync (two knet links; without and with AES-256 and SHA-256).",
)
@click.option(
    "--realtime",
    is_flag=True,
    help="In the part cut, daemons and programs have real-time priority: a gap is not the wait for a processor that others use.",
)
@click.option(
    "--option",
    "options",
    multiple=True,
    callback=tables,
    metavar="TABLE.NAME=VALUE",
    help="An option of our daemons' configuration; may be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON line a run, as they end, instead of the table.")
def trust(
    stations: int,
    parts: tuple[str, ...],
    cuts: tuple[str, ...],
    mbit: int,
    seconds: float,
    repeat: int,
    peers: tuple[str, ...],
    realtime: bool,
    options: dict[str, dict[str, Any]],
    as_json: bool,
) -> None:
    """Measure what keys, links and frame sizes cost, and print each figure beside its bound.

    What is compared takes turns, and ratios are those within a turn: on a machine that others use as well only these count. A
    gap is the longest time without a delivery at any station, the column "against" what it was in the seconds before.
    """
    plan = TrustPlan(stations, parts, cuts, mbit, seconds, repeat, there(peers, "corosync", Corosync.missing), realtime, options)
    measured(partial(run, plan), plan.runs(), lambda row: f"{row['what']}, turn {row['repeat']}", render, as_json)
