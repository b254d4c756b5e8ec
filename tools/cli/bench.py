"""``zenjun bench``: measure zenjun, and others beside it, in a lab of network namespaces on this machine."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

import click

from ..bench.cell import LEVELS, Cell
from ..bench.failover import KIND, Failover
from ..bench.failover import render as render_failover
from ..bench.failover import run as run_failover
from ..bench.groups import KIND as GROUPS
from ..bench.groups import render as render_groups
from ..bench.links import KIND as LINKS
from ..bench.links import render as render_links
from ..bench.names import KIND as NAMES
from ..bench.names_table import render_names
from ..bench.plan import MODES, PEERS, RAW_STATIONS_MAX, Plan, run
from ..bench.programs import KIND as PROGRAMS
from ..bench.programs import render as render_programs
from ..bench.systems import Corosync
from ..bench.table import BUS, render, size_name
from ..bench.trust import KIND as TRUST
from ..bench.trust import render as render_trust
from .benchcommon import Callback, guarded, measured, progress, tables, there, words
from .benchdatabase import database
from .benchgroups import groups
from .benchlinks import links
from .benchnames import directory
from .benchprograms import programs
from .benchtrust import trust
from .common import FAILED, Failure
from .lazy import Overview

SIZE_MIN: Final = 33
SIZE_MAX: Final = 16 * 1024 * 1024
LOSS_MAX: Final = 0.5


def _numbers(low: int, high: int) -> Callback:
    """A comma-separated list of whole numbers within bounds."""

    def convert(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[int, ...]:
        try:
            numbers = tuple(int(part) for part in value.split(","))
        except ValueError:
            raise click.BadParameter(f"{value!r} is not a list of whole numbers") from None
        if not all(low <= n <= high for n in numbers):
            raise click.BadParameter(f"each must be between {low} and {high}")
        return numbers

    return convert


def _shares(_context: click.Context, _parameter: click.Parameter, value: str | None) -> tuple[float, ...] | None:
    """A comma-separated list of percentages (1%) or fractions (0.01)."""
    if value is None:
        return None
    try:
        shares = tuple(float(p.rstrip("%")) / (100 if p.endswith("%") else 1) for p in value.split(","))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of percentages like 1% or fractions like 0.01") from None
    if not all(0 <= s <= LOSS_MAX for s in shares):
        raise click.BadParameter(f"each must be between 0% and {LOSS_MAX:.0%}")
    return shares


@click.group(
    cls=Overview,
    invoke_without_command=True,
    epilog="""\b
Examples:
  zenjun bench --quick                         a first impression in half a minute
  zenjun bench --quick --peers corosync --raw  the same, with something to compare it with
  zenjun bench --peers corosync --raw --repeat 5 --out r.jsonl --table
  zenjun bench --stations 5 --mode throughput --size 1300 --loss 0,1%,5%
  zenjun bench --medium bus --mode throughput --table   what the paper's recovery costs beside the selective one
  zenjun bench links                           one of two links fails; two links against one
  zenjun bench trust                           what keys, links and frame sizes cost, each with its bound
  zenjun bench groups                          orders token and abcast beside total, by the size of the group
  zenjun bench programs                        what the client libraries cost in Python
  zenjun bench failover                        a station is killed and comes back: how long until that is known
  zenjun bench directory                       names set, looked up and watched, beside etcd
  zenjun bench database                        rows updated and read, beside etcd, dqlite, PostgreSQL, MariaDB
  zenjun bench table r.jsonl                   the tables of docs/performance.md from saved lines

\b
Exit status: 0 every cell of ours was measured and all stations delivered the same sequence; 1 one was not;
2 wrong usage; 4 the lab did not start in time; 6 this machine cannot make one; 130 interrupted (all that was started has
been ended).""",
)
@click.option("-n", "--stations", type=click.IntRange(2, 16), default=3, show_default=True, help="Stations in the lab.")
@click.option("--senders", default="all", show_default=True, metavar="N|all", help="How many of them send.")
@click.option(
    "--size",
    "sizes",
    metavar="N,…",
    callback=_numbers(SIZE_MIN, SIZE_MAX),
    default="64,1300,65536",
    show_default=True,
    help="Message sizes, bytes.",
)
@click.option(
    "--light-size",
    "light_sizes",
    metavar="N,…",
    callback=_numbers(SIZE_MIN, SIZE_MAX),
    default="64,1300",
    show_default=True,
    help="Message sizes in the modes rate, closed and idle.",
)
@click.option("--level", type=click.Choice(LEVELS), help="Level of delivery.  [default: preack; medium bus: ack]")
@click.option(
    "--medium",
    type=click.Choice(["switched", "bus"]),
    default="switched",
    show_default=True,
    help="bus: in a lab that is one, medium bus beside medium switched.",
)
@click.option(
    "--loss",
    "losses",
    metavar="P%,…",
    callback=_shares,
    help="Random frame loss at every station's input.  [default: 0,1%; medium bus: 0,0.1%,1%,5%]",
)
@click.option(
    "--mode",
    "modes",
    metavar="MODE,…",
    callback=words(MODES),
    default=",".join(MODES),
    show_default=True,
    help="throughput: all senders at full speed. rate: 1,000 messages per second in all. closed: one at a time. idle: none.",
)
@click.option("--seconds", type=click.FloatRange(0.2, 600), default=3.0, show_default=True, help="Length of each window.")
@click.option("--repeat", type=click.IntRange(1, 100), default=3, show_default=True, help="How often everything is run.")
@click.option(
    "--tries",
    type=click.IntRange(1, 20),
    default=3,
    show_default=True,
    help="Runs of a cell at most, until the machine was quiet.",
)
@click.option(
    "--quiet",
    "quiet_cores",
    type=click.FloatRange(0, 64),
    default=0.2,
    show_default=True,
    help="Quiet: other programs used at most this number of cores.",
)
@click.option("--mtu", type=click.IntRange(576, 9000), default=1500, show_default=True, help="Of the lab's segment, bytes.")
@click.option(
    "--peers",
    metavar="NAME,…",
    callback=words(PEERS),
    default="",
    help="Other systems in the same lab: corosync (default, and sched_rr: no).",
)
@click.option("--raw", is_flag=True, help="The bare AF_PACKET program in the same lab: the limit.")
@click.option("--floor", is_flag=True, help="Bare stations in modes rate and closed: the same frames, no protocol.")
@click.option("--keyed", is_flag=True, help="zenjun with a key of 32 bytes as well: authenticated, and encrypted.")
@click.option("--no-ours", is_flag=True, help="Leave zenjun itself out.")
@click.option(
    "--option",
    "options",
    multiple=True,
    callback=tables,
    metavar="TABLE.NAME=VALUE",
    help="An option of our daemons' configuration; may be repeated.",
)
@click.option(
    "--out", type=click.Path(dir_okay=False, writable=True, path_type=Path), help="Append the lines to this file instead."
)
@click.option("--quick", is_flag=True, help="64 and 1300 B, 1 s windows, once, no loss.")
@click.option("--table", "as_table", is_flag=True, help="Print the tables (markdown) at the end.")
@click.pass_context
def bench(
    context: click.Context,
    stations: int,
    senders: str,
    sizes: tuple[int, ...],
    light_sizes: tuple[int, ...],
    level: str | None,
    medium: str,
    losses: tuple[float, ...] | None,
    modes: tuple[str, ...],
    seconds: float,
    repeat: int,
    tries: int,
    quiet_cores: float,
    mtu: int,
    peers: tuple[str, ...],
    raw: bool,
    floor: bool,
    keyed: bool,
    no_ours: bool,
    options: dict[str, dict[str, Any]],
    out: Path | None,
    quick: bool,
    as_table: bool,
) -> None:
    """Measure throughput, latency and CPU in a lab on this machine; one JSON line per cell.

    What is run beside each other is compared; figures of different calls are not comparable on a shared machine. The members
    of a line are explained in docs/performance.md.
    """
    if context.invoked_subcommand is not None:
        return
    number = stations if senders == "all" else int(senders) if senders.isdigit() else 0
    if not 1 <= number <= stations:
        raise click.BadParameter(f"{senders!r} is neither 'all' nor a number from 1 to {stations}", param_hint="--senders")
    if raw and (stations > RAW_STATIONS_MAX or number < 2):
        raise click.UsageError(f"--raw needs at most {RAW_STATIONS_MAX} stations and at least 2 senders")
    if medium == "bus" and level not in (None, "ack"):
        raise click.UsageError(f"--level {level}: a bus delivers at level ack only")
    if medium == "bus" and keyed:
        raise click.UsageError("--keyed needs a switched network: a bus takes a key of 16 bytes")
    peers = there(peers, "corosync", Corosync.missing)
    plan = Plan(
        stations=stations,
        senders=number,
        sizes=sizes,
        light_sizes=light_sizes,
        level=level or ("ack" if medium == "bus" else "preack"),
        medium=medium,
        losses=losses or ((0.0, 0.001, 0.01, 0.05) if medium == "bus" else (0.0, 0.01)),
        modes=modes,
        mtu=mtu,
        seconds=seconds,
        repeat=repeat,
        tries=tries,
        quiet_cores=quiet_cores,
        peers=peers,
        raw=raw,
        floor=floor,
        keyed=keyed,
        ours=not no_ours,
        options=options,
    )
    if quick:
        plan = plan.quick()
    command = shlex.join(["zenjun", *sys.argv[1:]])
    sys.exit(_run(plan, out, command if as_table else None))


def _run(plan: Plan, out: Path | None, table_command: str | None) -> int:
    rows: list[dict[str, Any]] = []

    def work() -> None:
        with contextlib.ExitStack() as stack:
            stream: IO[str] = stack.enter_context(out.open("a")) if out is not None else sys.stdout
            bar = stack.enter_context(progress(plan.cells()))

            def starting(system: str, cell: Cell) -> None:
                loss = f", {cell.loss:.3g} loss" if cell.loss else ""
                words = f"{system}: {cell.mode}, {size_name(cell.size)}{loss}"
                if bar is not None:
                    bar.update(bar.task_ids[0], description=words)
                elif out is not None:
                    click.echo(words, err=True)

            def report(row: dict[str, Any]) -> None:
                rows.append(row)
                stream.write(json.dumps(row) + "\n")
                stream.flush()
                if bar is not None:
                    bar.advance(bar.task_ids[0])
                for problem in row["problems"]:
                    click.echo(f"zenjun bench: {row['system']}, {row['mode']}, {row['size']} B: {problem}", err=True)

            run(plan, report, starting)

    if code := guarded(work):
        return code
    if table_command is not None:
        click.echo(render(rows, table_command))
    return FAILED if any(not r["ok"] for r in rows if r["system"] in ("zenjun", BUS, "raw", "floor")) else 0


@bench.command(
    epilog="""\b
Examples:
  zenjun bench failover
  zenjun bench failover -n 5 --repeat 3 --json > failover.jsonl
  zenjun bench failover --peers '' --option cluster.fail_timeout_ms=200

\b
Exit status: as zenjun bench.""",
)
@click.option("-n", "--stations", type=click.IntRange(3, 16), default=3, show_default=True, help="Stations in the lab.")
@click.option(
    "--rate",
    type=click.FloatRange(10, 100_000),
    default=1000.0,
    show_default=True,
    help="Messages per second of all survivors together.",
)
@click.option("--size", type=click.IntRange(SIZE_MIN, 65536), default=64, show_default=True, help="Message size, bytes.")
@click.option("--level", type=click.Choice(LEVELS), default="preack", show_default=True, help="Level of delivery.")
@click.option("--repeat", type=click.IntRange(1, 100), default=5, show_default=True, help="Runs of each system.")
@click.option(
    "--peers",
    metavar="NAME,…",
    callback=words(PEERS),
    default="corosync",
    show_default=True,
    help="Other systems in the same lab, with their defaults.",
)
@click.option("--fast/--no-fast", default=True, show_default=True, help="Run zenjun with its lowest useful setting as well.")
@click.option(
    "--option",
    "options",
    multiple=True,
    callback=tables,
    metavar="TABLE.NAME=VALUE",
    help="An option of our daemons' configuration; may be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON line a run, as they end, instead of the table.")
def failover(
    stations: int,
    rate: float,
    size: int,
    level: str,
    repeat: int,
    peers: tuple[str, ...],
    fast: bool,
    options: dict[str, dict[str, Any]],
    as_json: bool,
) -> None:
    """Kill the last of the stations (SIGKILL) under a light load of the others, and start it again.

    Measured until the last survivor's program gets the view without the station, and, from the start of its process, the view
    with it. Gaps: the longest time without a delivery at any survivor while it was dead, came back, and before. All survivors
    must have delivered the same sequence.
    """
    plan = Failover(stations, rate, size, level, repeat, there(peers, "corosync", Corosync.missing), fast, options)
    measured(partial(run_failover, plan), plan.runs(), lambda row: f"run {row['repeat']}", render_failover, as_json)


@bench.command("table")
@click.argument("files", nargs=-1, required=True, type=click.File("r"))
def show_table(files: tuple[IO[str], ...]) -> None:
    """The tables of docs/performance.md (markdown) from saved lines of earlier calls.

    \b
    Example: zenjun bench table results.jsonl
    """
    rows = []
    for file in files:
        for number, line in enumerate(file, 1):
            try:
                rows.append(json.loads(line))
            except ValueError:
                raise Failure(f"{file.name}, line {number}: no JSON object") from None
    killed = [r for r in rows if r.get("bench") == KIND]
    names = [r for r in rows if r.get("bench") == NAMES]
    windows = [r for r in rows if r.get("bench") not in (KIND, NAMES, LINKS, GROUPS, TRUST, PROGRAMS)]
    cut = [r for r in rows if r.get("bench") == LINKS]
    grouped = [r for r in rows if r.get("bench") == GROUPS]
    trusted = [r for r in rows if r.get("bench") == TRUST]
    written = [r for r in rows if r.get("bench") == PROGRAMS]
    if windows or not (killed or names or cut or grouped or trusted or written):
        click.echo(render(windows))
    if names:
        click.echo(render_names(names))
    if killed:
        click.echo(render_failover(killed))
    if cut:
        click.echo(render_links(cut))
    if grouped:
        click.echo(render_groups(grouped))
    if trusted:
        click.echo(render_trust(trusted))
    if written:
        click.echo(render_programs(written))


bench.add_command(directory)
bench.add_command(links)
bench.add_command(trust)
bench.add_command(groups)
bench.add_command(programs)
bench.add_command(database)
