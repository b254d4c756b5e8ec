"""``zenjun bench groups``: what groups of orders token and abcast cost beside total."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from ..bench.groups import ORDERS, WHAT, GroupsPlan, render, run
from .benchcommon import measured, tables, words


@click.command(
    epilog="""\b
Examples:
  zenjun bench groups
  zenjun bench groups --what lone --count 50
  zenjun bench groups --what pairs,full --orders total,token --repeat 3

\b
Exit status: as zenjun bench.""",
)
@click.option("-n", "--stations", type=click.IntRange(4, 16), default=8, show_default=True, help="Stations in the lab.")
@click.option("--what", metavar="WHAT,…", callback=words(WHAT), default=",".join(WHAT), show_default=True, help="See above.")
@click.option(
    "--orders",
    metavar="ORDER,…",
    callback=words(ORDERS),
    default=",".join(ORDERS),
    show_default=True,
    help="Orders of the groups.",
)
@click.option("--count", type=click.IntRange(1, 1000), default=20, show_default=True, help="Lone messages in each cell.")
@click.option("--seconds", type=click.FloatRange(0.5, 60), default=3.0, show_default=True, help="Length of each other window.")
@click.option("--repeat", type=click.IntRange(1, 100), default=1, show_default=True, help="How often everything is measured.")
@click.option(
    "--option",
    "options",
    multiple=True,
    callback=tables,
    metavar="TABLE.NAME=VALUE",
    help="An option of our daemons' configuration; may be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON line a run, as they end, instead of the tables.")
def groups(
    stations: int,
    what: tuple[str, ...],
    orders: tuple[str, ...],
    count: int,
    seconds: float,
    repeat: int,
    options: dict[str, dict[str, Any]],
    as_json: bool,
) -> None:
    """Measure groups of orders token and abcast beside total, in one lab.

    lone: one message at a time to a group of 1, 2, … stations, from inside: frames received by all stations, time until it is
    done, processor time of all daemons; from which size of the group total is cheaper. latency: one message under way in a group
    of three, time to delivery. steady: 1,000 messages per second to a group of three, and what a station outside has of it,
    beside no messages at all. pairs: disjoint pairs at full speed. full: three senders in a group of three at full speed. kill: a
    station outside the group is killed; the longest pause inside. All but lone use the load program in C of zenjun bench.
    """
    plan = GroupsPlan(stations, what, orders, count, seconds, repeat, options)
    measured(partial(run, plan), plan.runs(), lambda row: f"{row['what']} {row['order']} {row['group']}", render, as_json)
