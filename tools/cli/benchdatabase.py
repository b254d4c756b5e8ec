"""``zenjun bench database``: what transactions cost, beside other databases."""

from __future__ import annotations

from functools import partial

import click

from ..bench.databases import DatabasePlan, render_databases, run
from ..bench.db_systems import PEERS, SYSTEMS
from .benchcommon import measured, there, words


@click.command(
    epilog="""\b
Examples:
  zenjun bench database
  zenjun bench database --peers '' --repeat 1 --rejoin-mb 0
  zenjun bench database --json > databases.jsonl

\b
Exit status: as zenjun bench.""",
)
@click.option("-n", "--stations", type=click.IntRange(3, 8), default=3, show_default=True, help="Stations in the lab.")
@click.option("--seconds", type=click.FloatRange(0.2, 60), default=3.0, show_default=True, help="Length of each measurement.")
@click.option("--repeat", type=click.IntRange(1, 100), default=3, show_default=True, help="How often everything is measured.")
@click.option(
    "--peers",
    metavar="NAME,…",
    callback=words(PEERS),
    default=",".join(PEERS),
    show_default=True,
    help="Other databases in the same lab.",
)
@click.option(
    "--rejoin-mb",
    type=click.IntRange(0, 10_000),
    default=1000,
    show_default=True,
    help="Size of a database to which a station comes back while others write, once a call; 0: without. Each station needs six "
    "times of it on the disk.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON line a measurement, as they end, instead of the table.")
def database(stations: int, seconds: float, repeat: int, peers: tuple[str, ...], rejoin_mb: int, as_json: bool) -> None:
    """Update and read rows: one client, 64 clients at all stations, 200 updates a second while frames are lost, and while a
    station dies or comes back.

    PostgreSQL 15 has synchronous standbys (ANY 1), MariaDB has Galera, etcd has keys in place of rows, dqlite is the
    demonstration server of its Go client. All are Debian's; PostgreSQL needs psycopg2, MariaDB PyMySQL. sqlite3 reads the same
    file as zenjun.
    """
    for name in PEERS:
        peers = there(peers, name, SYSTEMS[name].missing)
    plan = DatabasePlan(stations, seconds, repeat, peers, rejoin_mb=rejoin_mb)
    measured(partial(run, plan), plan.lines(), lambda row: str(row["what"]), render_databases, as_json)
