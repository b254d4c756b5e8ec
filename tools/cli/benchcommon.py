"""What the commands of ``zenjun bench`` share: lists as options, the bar, how a call ends."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..bench.cell import BenchError
from ..lab import LabError
from .common import FAILED, INTERRUPTED
from .labcommon import exit_code_of

Callback = Callable[[click.Context, click.Parameter, str], Any]
Row = dict[str, Any]


def words(allowed: tuple[str, ...]) -> Callback:
    """A comma-separated list of words out of a few."""

    def convert(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[str, ...]:
        chosen = tuple(value.split(",")) if value else ()
        if not set(chosen) <= set(allowed):
            raise click.BadParameter(f"each must be one of {', '.join(allowed)}")
        return chosen

    return convert


def tables(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for value in values:
        key, equals, text = value.partition("=")
        table, dot, name = key.partition(".")
        if not equals or not dot or not name:
            raise click.BadParameter(f"{value!r} is not like table.option=value")
        parsed: Any = text
        with contextlib.suppress(ValueError):
            parsed = json.loads(text)
        found.setdefault(table, {})[name] = parsed
    return found


def _stop(_number: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


@contextlib.contextmanager
def progress(total: int) -> Iterator[Progress | None]:
    """A bar on standard error, if that is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        progress.add_task("", total=total)
        yield progress


def guarded(work: Callable[[], None]) -> int:
    """Run a benchmark; its exit code. SIGTERM ends it as Ctrl-C does: with everything it has started."""
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        work()
    except (BenchError, LabError) as error:
        click.echo(f"zenjun bench: {error}", err=True)
        return exit_code_of(error) if isinstance(error, LabError) else FAILED
    except KeyboardInterrupt:
        click.echo("zenjun bench: interrupted", err=True)
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


def there(peers: tuple[str, ...], name: str, missing: Callable[[], str | None]) -> tuple[str, ...]:
    """The peers without ``name`` if this machine lacks what it needs; a word about that."""
    if name in peers and (what := missing()):
        click.echo(f"zenjun bench: leaving {name} out: {what}", err=True)
        return tuple(p for p in peers if p != name)
    return peers


def measured(
    run: Callable[[Callable[[Row], None], Callable[[str], None]], None],
    total: int,
    which: Callable[[Row], str],
    render: Callable[[Sequence[Row]], str],
    as_json: bool,
) -> NoReturn:
    """Run a benchmark that reports lines, show them, or their tables in the end, and exit.

    run: called with two functions: one takes a line, the other gets the name of each system that begins. which: the words for a
    line with a problem.
    """
    rows: list[Row] = []

    def work() -> None:
        with progress(total) as bar:

            def starting(what: str) -> None:
                if bar is not None:
                    bar.update(bar.task_ids[0], description=what)

            def report(row: Row) -> None:
                rows.append(row)
                if as_json:
                    click.echo(json.dumps(row))
                if bar is not None:
                    bar.advance(bar.task_ids[0])
                for problem in row["problems"]:
                    click.echo(f"zenjun bench: {row['system']}, {which(row)}: {problem}", err=True)

            run(report, starting)

    code = guarded(work)
    if not code and not as_json:
        click.echo(render(rows))
    sys.exit(code or (FAILED if any(not r["ok"] for r in rows if r["system"].startswith("zenjun")) else 0))
