"""What the commands of ``zenjun lab`` share: which lab, which stations, progress, tables, exit codes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

import click
from rich.console import Console

from ..lab import Lab, LabError, LabNotFound, LabTimeout, LabUnsupported, Station
from .common import FAILED, TIMED_OUT, UNREACHABLE, UNSUPPORTED
from .impairments import Quantity

_EXIT_CODES: Final[dict[type[LabError], int]] = {
    LabNotFound: UNREACHABLE,
    LabUnsupported: UNSUPPORTED,
    LabTimeout: TIMED_OUT,
}


F = TypeVar("F", bound=Callable[..., Any])


def exit_code_of(error: LabError) -> int:
    """The exit code for an error of the lab."""
    return next((code for kind, code in _EXIT_CODES.items() if isinstance(error, kind)), FAILED)


def parse_stations(text: str) -> list[int] | None:
    """``1,3-5`` → [1, 3, 4, 5]; ``all`` → None. Raises ValueError."""
    if text == "all":
        return None
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"{text!r} names no stations: write 2 or 1,3 or 1-3 or all")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


STATIONS = Quantity("stations", parse_stations)


def name_option(function: F) -> F:
    return click.option(
        "--name", default="default", show_default=True, envvar="ZENJUN_LAB", show_envvar=True, help="Which lab.", metavar="NAME"
    )(function)


def stations_option(*, required: bool = False, text: str = "Stations: 2 or 1,3 or 1-3 or all.") -> Callable[[F], F]:
    def decorate(function: F) -> F:
        return click.option("-s", "--station", "stations", type=STATIONS, required=required, help=text)(function)

    return decorate


def link_option(text: str = "On this link alone.", default: int | None = None) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        shown = default is not None
        return click.option("--link", "on", type=click.IntRange(1, 4), default=default, show_default=shown, help=text)(function)

    return decorate


@contextlib.contextmanager
def progress(text: str) -> Iterator[None]:
    """A spinner on standard error while the block runs; nothing when that is no terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(text):
        yield


def show_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Aligned columns of plain text; the terminal may break lines that are too long for it, nothing is left out."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(columns, *texts, strict=True)]
    for number, line in enumerate((columns, *texts)):
        text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        click.echo(text if number else click.style(text, bold=True))


def chosen_stations(lab: Lab, stations: list[int] | None) -> list[Station]:
    return [lab.station(number) for number in (lab.stations if stations is None else stations)]
