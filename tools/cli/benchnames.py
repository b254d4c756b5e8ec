"""``zenjun bench directory``: what names cost, beside etcd."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import click

from ..bench.names import NamesPlan, run
from ..bench.names_systems import PEERS, EtcdNames
from ..bench.names_table import render_names
from .benchcommon import guarded, progress, tables, words
from .common import FAILED


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
    "--names", type=click.IntRange(0, 1_000_000), default=0, show_default=True, help="A station joins a directory of so many."
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
    options: Mapping[str, Mapping[str, Any]],
    as_json: bool,
) -> None:
    """Set, look up and watch names: latency one at a time, rate with 64 calls of each program under way.

    etcd's put is on the disks of a majority: it stands beside ``--wait disk``. Its serializable reads stand beside look-ups, its
    linearizable ones beside fresh look-ups.
    """
    if "etcd" in peers and (missing := EtcdNames.missing()):
        click.echo(f"zenjun bench: leaving etcd out: {missing}", err=True)
        peers = ()
    plan = NamesPlan(stations, seconds, repeat, peers, names, options)
    rows: list[dict[str, Any]] = []

    def work() -> None:
        with progress(plan.lines()) as bar:

            def starting(what: str) -> None:
                if bar is not None:
                    bar.update(bar.task_ids[0], description=what)

            def report(row: dict[str, Any]) -> None:
                rows.append(row)
                if as_json:
                    click.echo(json.dumps(row))
                if bar is not None:
                    bar.advance(bar.task_ids[0])
                for problem in row["problems"]:
                    click.echo(f"zenjun bench: {row['system']}, {row['what']}: {problem}", err=True)

            run(plan, report, starting)

    code = guarded(work)
    if not code and not as_json:
        click.echo(render_names(rows))
    sys.exit(code or (FAILED if any(not r["ok"] for r in rows if r["system"].startswith("zenjun")) else 0))
