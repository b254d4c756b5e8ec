"""``zenjun evaluate``."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from ...daemon.client import ClientError
from ..evaluate import exchanges
from ..evaluate.dona import Point
from ..evaluate.experiments import Run
from ..lab import LabError
from ..pcap.work import scratch
from .common import FAILED, UNSUPPORTED, Failure, lacking_extra, say
from .labcommon import exit_code_of
from .lazy import Overview

T = TypeVar("T")
U = TypeVar("U")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "evaluation.md"


@click.group(cls=Overview, epilog="What is measured, and how: docs/evaluation.md.")
def evaluate() -> None:
    """Measure what the papers claim, from captures of a lab on this machine.

    \b
    Examples:
      zenjun evaluate to      the TO paper's counts on a bus
      zenjun evaluate dona    the DONA paper's cost formulas
      zenjun evaluate token   the table of the paper on token-host ordering
      zenjun evaluate dona4   those of the paper on replicated databases
    """


def _sizes(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[int, ...]:
    low, dash, high = value.partition("-")
    try:
        sizes = tuple(range(int(low), int(high if dash else low) + 1))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not like 2-8") from None
    if not sizes or not 2 <= sizes[0] <= sizes[-1] <= 16:
        raise click.BadParameter("between 2 and 16 stations")
    return sizes


@evaluate.command("all", epilog="Exit codes: 0 as the papers say · 1 not so · others as of zenjun lab. Takes about four minutes.")
@click.option("-n", "--stations", "sizes", default="2-8", show_default=True, callback=_sizes, help="Sizes of the cluster.")
@click.option(
    "--repeat", type=click.IntRange(1, 1000), default=20, show_default=True, help="Lone messages for each size and mode."
)
@click.option("--write", is_flag=True, help="Put tables and plots into docs/evaluation.md of this checkout.")
@click.option("--keep", type=click.Path(file_okay=False, path_type=Path), help="Keep captures and tables in this folder.")
def everything(sizes: tuple[int, ...], repeat: int, write: bool, keep: Path | None) -> int:
    """Measure all numbers of the papers that can be measured: labs run, their captures are counted in Spark.

    \b
    Examples:
      zenjun evaluate all                 the tables
      zenjun evaluate all --write         the same into docs/evaluation.md, with plots
      zenjun evaluate all -n 3 --keep .   for one size, and the captures and tables to look at
    """
    try:
        for name in ("pyspark", "pyarrow", "matplotlib"):  # before minutes of labs
            importlib.import_module(name)
        from ..evaluate import study
        from ..pcap.spark import java, session
        from ..pcap.tables import ingest
    except ImportError as error:
        raise lacking_extra(error, "evaluate all") from None
    with scratch.folder("evaluate") as temporary:
        folder = keep or temporary
        try:
            java.find()
            recorded = study.record(sizes, repeat, folder / "captures", say)
            with session.Session() as spark:
                counted = study.count(recorded, folder / "tables", spark, say)
        except LabError as error:
            raise Failure(str(error), exit_code_of(error)) from None
        except java.JavaError as error:
            raise Failure(str(error), UNSUPPORTED) from None
        except (session.SessionError, ingest.IngestError, LookupError) as error:
            raise Failure(str(error), FAILED) from None
    for name, made in study.blocks(counted).items():
        click.echo(f"## {name}\n\n{made}\n")
    if write:
        study.write(counted, PAGE)
    for problem in counted.problems:
        say(f"not as it should be: {problem}")
    return FAILED if counted.problems else 0


@evaluate.command("dona", epilog="Exit codes: 0 done · others as of zenjun lab.")
@click.option("--write", is_flag=True, help="Put table and plots into docs/evaluation.md of this checkout.")
@click.option("--measure", is_flag=True, help="Run a lab, and put points from its captures beside the formulas.")
@click.option("--keep", type=click.Path(file_okay=False, path_type=Path), help="Keep captures and tables in this folder.")
def dona(write: bool, measure: bool, keep: Path | None) -> int:
    """Compute the messages of a directory in zones: of a manager, and in the whole network, against zones and locality (DONA
    paper on terminal management, section 3). With --measure a lab of ten stations plays it, and its captures are counted.

    \b
    Examples:
      zenjun evaluate dona                    the table, with the points that were measured last
      zenjun evaluate dona --measure --write  the same into docs/evaluation.md, with figures 3.1 and 3.2 and measured points
    """
    try:
        from ..evaluate import dona_page

        points = _dona_points(keep) if measure else dona_page.stored(PAGE)
        click.echo(dona_page.table(points))
        if write:
            if measure:
                dona_page.store(PAGE, points)
            dona_page.write(PAGE, points)
    except ImportError as error:
        raise lacking_extra(error, "evaluate dona") from None
    return 0


def _dona_points(keep: Path | None) -> Sequence[Point]:
    from ..evaluate import dona_counts, dona_lab

    asked, counted = _measured(lambda folder: dona_lab.record(dona_lab.NODES, dona_lab.POINTS, folder), dona_counts.sent, keep)
    return [dona_counts.point(one, counted[0, k]) for k, one in enumerate(asked)]


def _measured(record: Callable[[Path], tuple[Run, T]], count: Callable[[Any, Any], U], keep: Path | None) -> tuple[T, U]:
    """Record a run, and count its captures in Spark: what was asked of it, and what was counted. Raises Failure."""
    from ..evaluate import study
    from ..pcap.spark import java, session
    from ..pcap.tables import ingest

    with scratch.folder("evaluate") as temporary:
        folder = keep or temporary
        try:
            java.find()
            run, asked = record(folder / "captures")
            say("counting")
            with session.Session() as spark:
                return asked, count(spark.spark, [(run, study.tables_of(run, folder / "tables"))])
        except LabError as error:
            raise Failure(str(error), exit_code_of(error)) from None
        except java.JavaError as error:
            raise Failure(str(error), UNSUPPORTED) from None
        except (session.SessionError, ingest.IngestError, ClientError, TimeoutError) as error:
            raise Failure(str(error), FAILED) from None


@evaluate.command("dona4", epilog="Exit codes: 0 done · 1 a request cost something else · others as of zenjun lab.")
@click.option("--write", is_flag=True, help="Put tables and plot into docs/evaluation.md of this checkout.")
@click.option("--measure", is_flag=True, help="Run a lab, and put points from its captures beside the formulas.")
@click.option(
    "--requests", type=click.IntRange(10, 10_000), default=2000, show_default=True, help="Requests of each phase of the lab."
)
@click.option("--keep", type=click.Path(file_okay=False, path_type=Path), help="Keep captures and tables in this folder.")
def dona4(write: bool, measure: bool, requests: int, keep: Path | None) -> int:
    """Compute the messages for a request to a directory of data, in zones and in full distribution (paper on replicated
    databases, table 4.2). With --measure a lab of ten stations plays it, and its captures are counted request by request.

    \b
    Examples:
      zenjun evaluate dona4                    the tables, with the points that were measured last
      zenjun evaluate dona4 --measure --write  the same into docs/evaluation.md, with figure 4.2 and measured points
    """
    try:
        from ..evaluate import dona4_lab, dona4_page, dona_counts

        points = dona4_page.stored(PAGE)
        if measure:
            asked, counted = _measured(lambda folder: dona4_lab.record(folder, requests), dona_counts.sizes, keep)
            points = [dona4_page.point(one, counted[0, k]) for k, one in enumerate(asked)]
        click.echo(dona4_page.table(points))
        if write:
            if measure:
                dona4_page.store(PAGE, points)
            dona4_page.write(PAGE, points)
    except ImportError as error:
        raise lacking_extra(error, "evaluate dona4") from None
    return 0 if all(point.exact for point in points) else FAILED


@evaluate.command("token", epilog="Exit codes: 0 as the paper says · 1 not so · others as of zenjun lab.")
@click.option("-n", "--stations", "sizes", default="2-8", show_default=True, callback=_sizes, help="Sizes of the group.")
@click.option("--repeat", type=click.IntRange(1, 1000), default=3, show_default=True, help="Messages for each cell of the table.")
@click.option("--write", is_flag=True, help="Put the tables into docs/evaluation.md of this checkout.")
@click.option("--keep", type=click.Path(file_okay=False, path_type=Path), help="Keep the captures in this folder.")
def token(sizes: tuple[int, ...], repeat: int, write: bool, keep: Path | None) -> int:
    """Count the messages of one multicast to a group: 3N for ABCAST, 2N + n - 2 for token-host ordering, of N stations n with a
    token (paper on token-host ordering, section 4). From outside the group as in the paper, and from inside.

    
    Examples:
      zenjun evaluate token                   the table, for groups of 2 to 8 stations
      zenjun evaluate token -n 3 --keep .     one row, and the captures to look at
    """
    from ..evaluate import results
    from ..evaluate import token as tokens

    with scratch.folder("evaluate") as temporary:
        try:
            counted = tokens.measure(sizes, repeat, (keep or temporary) / "token")
        except LabError as error:
            raise Failure(str(error), exit_code_of(error)) from None
        except (ClientError, TimeoutError) as error:
            raise Failure(str(error), FAILED) from None
    made = tokens.block(counted, sizes, repeat)
    click.echo(made)
    if write:
        PAGE.write_text(results.refresh(PAGE.read_text(), {"token": made}))
    wrong = counted.problems(repeat, tokens.settings(sizes))
    for problem in wrong:
        say(f"not as the paper says: {problem}")
    return FAILED if wrong else 0


@evaluate.command("to", epilog="Exit codes: 0 as the paper says · 1 not so · others as of zenjun lab.")
@click.option("-n", "--stations", "sizes", default="2-8", show_default=True, callback=_sizes, help="Sizes of the cluster.")
@click.option("--repeat", type=click.IntRange(1, 1000), default=20, show_default=True, help="Messages for each.")
@click.option("--keep", type=click.Path(file_okay=False, path_type=Path), help="Keep the captures in this folder.")
def to(sizes: tuple[int, ...], repeat: int, keep: Path | None) -> int:
    """Measure PDUs and rounds to acknowledge one PDU on a bus: best case, and every reception answered at once (TO paper,
    section 4).

    \b
    Examples:
      zenjun evaluate to                  the table, for 2 to 8 stations
      zenjun evaluate to -n 3 --keep .    one row, and the captures to look at
    """
    results = {}
    wrong = []
    with scratch.folder("evaluate") as temporary:
        folder = keep or temporary
        for n in sizes:
            try:
                merged, each = (
                    exchanges.measure(n, mode, repeat, folder / f"to-{n}-{'each' if mode else 'merged'}")
                    for mode in (False, True)
                )
            except LabError as error:
                raise Failure(str(error), exit_code_of(error)) from None
            except ValueError as error:
                raise Failure(f"n = {n}: {error}", FAILED) from None
            results[n] = (merged, each)
            if problem := exchanges.as_claimed(n, merged, each):
                wrong.append(problem)
            say(f"n = {n} measured")
    made = exchanges.table(results)
    click.echo(made)
    for problem in wrong:
        say(f"not as the paper says: {problem}")
    return FAILED if wrong else 0
