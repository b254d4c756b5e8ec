"""``zenjun bench programs``: what the client libraries cost in Python."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from ..bench.programs import ProgramsPlan, render, run
from ..bench.pyload import INTERFACES, WHAT
from .benchcommon import measured, tables, words


@click.command(
    epilog="""\b
Examples:
  zenjun bench programs
  zenjun bench programs --what batch,iterate --interfaces asyncio,uvloop --repeat 5
  zenjun bench programs -n 3 --size 1300

\b
Exit status: as zenjun bench.""",
)
@click.option("-n", "--stations", type=click.IntRange(1, 16), default=1, show_default=True, help="Stations in the lab.")
@click.option("--what", metavar="WHAT,…", callback=words(WHAT), default=",".join(WHAT), show_default=True, help="See above.")
@click.option(
    "--interfaces",
    metavar="NAME,…",
    callback=words(INTERFACES),
    default=",".join(INTERFACES),
    show_default=True,
    help="The blocking library; that for asyncio, with asyncio's loop or with uvloop.",
)
@click.option("--size", type=click.IntRange(8, 65536), default=64, show_default=True, help="Message size, bytes.")
@click.option("--seconds", type=click.FloatRange(0.2, 60), default=2.0, show_default=True, help="Length of each window.")
@click.option("--repeat", type=click.IntRange(1, 100), default=3, show_default=True, help="How often everything is measured.")
@click.option(
    "--option",
    "options",
    multiple=True,
    callback=tables,
    metavar="TABLE.NAME=VALUE",
    help="An option of our daemons' configuration; may be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON line a run, as they end, instead of the table.")
def programs(
    stations: int,
    what: tuple[str, ...],
    interfaces: tuple[str, ...],
    size: int,
    seconds: float,
    repeat: int,
    options: dict[str, dict[str, Any]],
    as_json: bool,
) -> None:
    """Measure what the client libraries cost in Python: one program at a station, in the ways that programs are written.

    own: it sends as fast as it can and gets its own messages. send: it sends only. batch, iterate: it receives what another
    program sends, by recv_batch or one by one. closed: one message at a time, each until it has reached level preack. The
    program's processor time for a message says what it could do with a core for itself.
    """
    plan = ProgramsPlan(stations, what, interfaces, size, seconds, repeat, options)
    measured(partial(run, plan), plan.runs(), lambda row: f"{row['what']}, {row['interface']}", render, as_json)
