"""``zenjun pcap check``: verdicts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..common import FAILED, OK, UNREACHABLE, UNSUPPORTED, USAGE, Failure, lacking_extra, plural, say
from .options import NO_SPARK, chosen_master, ethertype_option, import_large, little, master_option, places_option, said

if TYPE_CHECKING:
    from ...pcap.judge.evidence import Where
    from ...pcap.judge.judgement import Judgement

COMMAND = "pcap check"


@click.command("check")
@click.argument("captures", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILES|DIR...")
@places_option
@master_option(none=True, by_size=True)
@click.option(
    "--work",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="New or empty folder where the tables go, and stay. [default: a temporary one, removed at the end]",
)
@ethertype_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check(
    captures: tuple[Path, ...],
    places: dict[str, int],
    master: str,
    work: Path | None,
    ethertype: int,
    as_json: bool,
) -> int:
    """Judge from the captures of all stations whether the cluster kept its guarantees: the same total order everywhere, each
    sender's order, causality, nothing lost, doubled or invented, views at one place, equal digests.

    FILES are captures (pcap, pcapng, also .gz and .zst) or folders of them; or one DIR of tables made by 'zenjun pcap ingest'.
    For each guarantee broken the first divergence is shown, with the frames around it.

    \b
    Examples:
      zenjun pcap check frames                     a folder with one capture for each station
      zenjun pcap check s1.pcap s2.pcap s3.pcap    the same, by name
      zenjun pcap check tables --json              tables made before, for another program
      zenjun pcap check --master "local[*]" frames  by Spark, however little there is

    Exit code 1 if a guarantee was broken (or a file is damaged), 3 if there was nothing to judge.
    """
    from ...pcap.work.progress import Progress

    with Progress() as progress:
        judgement, problems = _run(captures, places, master, work, ethertype, progress)
    if as_json:
        click.echo(json.dumps(judgement.as_dict() | {"damaged": problems}))
    else:
        _captures(judgement)
        _table(judgement)
        _broken(judgement)
        for note in judgement.notes:
            click.echo(f"note: {note}")
    return _code(judgement, problems)


def _run(
    captures: Sequence[Path], places: dict[str, int], master: str, work: Path | None, ethertype: int, progress: Any
) -> tuple[Judgement, list[str]]:
    from ...pcap.work.interrupts import held

    master = chosen_master(master, captures)

    try:
        with held():
            from ...pcap.frames.files import FilesError
            from ...pcap.judge.api import check as judge
            from ...pcap.spark.java import JavaError
            from ...pcap.spark.session import Session, SessionError, is_local
    except ImportError as error:
        raise lacking_extra(error, COMMAND) from None
    try:
        with _folder(work) as folder:
            if master == NO_SPARK:
                import_large()
                return judge(captures, folder, None, progress, stations_given=places, ethertype=ethertype)
            with Session(master, progress=progress, small=is_local(master) and little(captures)) as session:
                import_large()  # while the JVM starts
                return judge(captures, folder, session, progress, stations_given=places, ethertype=ethertype)
    except FilesError as error:
        raise Failure(str(error), USAGE, COMMAND) from None
    except JavaError as error:
        raise Failure(str(error), UNSUPPORTED, COMMAND) from None
    except ImportError as error:
        raise lacking_extra(error, COMMAND) from None
    except SessionError as error:
        raise Failure(str(error), FAILED, COMMAND) from None
    except OSError as error:
        raise Failure(said(error), FAILED, COMMAND) from None


@contextmanager
def _folder(work: Path | None) -> Iterator[Path]:
    if work is not None:
        work.mkdir(parents=True, exist_ok=True)
        if any(work.iterdir()):  # tables of other captures would be judged with these
            raise Failure(
                f"--work {work}: is not empty; choose a new folder (tables made before: zenjun {COMMAND} {work})", USAGE, COMMAND
            )
        yield work
        return
    from ...pcap.work import scratch

    with scratch.folder("check") as folder:
        yield folder


# ---- output ----


_NAMES_MAX = 8
"""Files of one station that are named one by one."""


def _captures(judgement: Judgement) -> None:
    """Which file was taken for which station."""
    for station, group in groupby(judgement.captures, key=lambda c: c["station"]):
        paths = [c["path"] for c in group]
        if len(paths) == 1:
            click.echo(f"station {station}: {paths[0]}")
            continue
        click.echo(f"station {station}: {len(paths)} files, taken for one capture:")
        shown = paths if len(paths) <= _NAMES_MAX else [*paths[: _NAMES_MAX - 1], f"… and {len(paths) - _NAMES_MAX + 1} more"]
        for path in shown:
            click.echo(f"  {path}")


def _table(judgement: Judgement) -> None:
    from rich.table import Table

    from ...pcap.judge.judgement import TITLES
    from ..output import Output

    console = Output(highlight=False, soft_wrap=True)
    rows = []
    for name, verdict in judgement.verdicts.items():
        guarantee, unit = TITLES[name]
        state = {True: "kept", False: "BROKEN", None: "not judged"}[verdict.kept]
        count = len(verdict.violations) + verdict.more
        compared = f"{verdict.compared:,} {unit}" if verdict.compared else "nothing to compare"
        rows.append((state, guarantee, compared, f"{count:,} violations" if count > 1 else "1 violation" if count else ""))
    if not console.is_terminal:
        widths = [max(len(row[k]) for row in rows) for k in range(4)]
        for row in rows:
            click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    colours = {"kept": "green", "BROKEN": "bold red", "not judged": "yellow"}
    for row in rows:
        table.add_row(f"[{colours[row[0]]}]{row[0]}[/]", *row[1:])
    console.print(table)


def _broken(judgement: Judgement) -> None:
    for verdict in judgement.verdicts.values():
        for violation in verdict.violations:
            click.echo(f"\n{verdict.name}: {violation.text}")
            for where in violation.evidence:
                click.echo(f"  {_frame(where)}")
        if verdict.violations and verdict.more:
            click.echo(f"  … and {plural(verdict.more, 'more violation')}, following from these or like them")


def _frame(where: Where) -> str:
    note = f"{where.note}: " if where.note else ""
    return f"{note}{where.path or f'file {where.file}'}, frame {where.frame}" + (f"\n    {where.text}" if where.text else "")


def _code(judgement: Judgement, problems: Sequence[str]) -> int:
    if judgement.kept is None:
        say(f"zenjun {COMMAND}: there was nothing to judge: no station's capture shows it delivering anything")
        return UNREACHABLE
    if problems:
        say(f"zenjun {COMMAND}: {plural(len(problems), 'file')} with problems, see above; the rest was judged")
    return FAILED if problems or not judgement.kept else OK
