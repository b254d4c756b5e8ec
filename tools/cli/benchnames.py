"""``zenjun bench directory``: what names cost, beside etcd."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import click

from ..bench.names import MODES, NamesPlan, run
from ..bench.names_systems import PEERS, EtcdNames
from ..bench.names_table import render_names
from .benchcommon import measured, tables, there, words


@click.command(
    epilog="""\b
Examples:
  zenjun bench directory
  zenjun bench directory --peers '' --repeat 1
  zenjun bench directory --repeat 0 --names 1000000
  zenjun bench directory --json > names.jsonl; zenjun bench table names.jsonl

\b
Exit status: as zenjun bench.""",
)
@click.option("-n", "--stations", type=click.IntRange(3, 8), default=3, show_default=True, help="Stations in the lab.")
@click.option("--seconds", type=click.FloatRange(0.2, 60), default=1.5, show_default=True, help="Length of each measurement.")
@click.option("--repeat", type=click.IntRange(0, 100), default=3, show_default=True, help="How often everything is measured.")
@click.option(
    "--names",
    type=click.IntRange(0, 1_000_000),
    default=0,
    show_default=True,
    help="A station joins a directory of this number of names.",
)
@click.option(
    "--peers",
    metavar="NAME,…",
    callback=words(PEERS),
    default="etcd",
    show_default=True,
    help="Other systems in the same lab, with their defaults.",
)
@click.option(
    "--modes",
    metavar="MODE,…",
    callback=words(MODES),
    default=",".join(MODES),
    show_default=True,
    help="Values of directory.update, measured in turns.",
)
@click.option(
    "--option",
    "options",
    multiple=True,
    callback=tables,
    metavar="TABLE.NAME=VALUE",
    help="An option of our daemons' configuration; may be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON line a measurement, as they end, instead of the tables.")
def directory(
    stations: int,
    seconds: float,
    repeat: int,
    names: int,
    peers: tuple[str, ...],
    modes: tuple[str, ...],
    options: Mapping[str, Mapping[str, Any]],
    as_json: bool,
) -> None:
    """Set, look up and watch names: latency one at a time, rate with 64 calls of each program under way.

    etcd's put is on the disks of a majority: it is compared with --wait disk. Its serializable reads are compared with
    look-ups, its linearizable ones with fresh look-ups.
    """
    plan = NamesPlan(stations, seconds, repeat, there(peers, "etcd", EtcdNames.missing), names, modes, options)
    measured(partial(run, plan), plan.lines(), lambda row: str(row["what"]), render_names, as_json)
