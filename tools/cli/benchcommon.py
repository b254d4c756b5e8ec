"""What the commands of ``zenjun bench`` share: lists as options, the bar, how a call ends."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..bench.cell import BenchError
from ..lab import LabError
from .common import FAILED, INTERRUPTED
from .labcommon import exit_code_of

Callback = Callable[[click.Context, click.Parameter, str], Any]


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
