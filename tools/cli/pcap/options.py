"""Options that commands of this folder share, and what they make of the files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ....proto import wire
from ..common import Failure, say

if TYPE_CHECKING:
    from ...pcap.lookup import Capture, Correction

F = TypeVar("F", bound=Callable[..., Any])


def ethertype(_context: click.Context, _option: click.Parameter, text: str) -> int:
    """Callback: the EtherType that a text says."""
    try:
        value = int(text, 0)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no number; write it like 0x88b5") from None
    if not 0x0600 <= value <= 0xFFFF:
        raise click.BadParameter(f"{text} is not in 0x0600..0xffff")
    return value


def ethertype_option(f: F) -> F:
    """--ethertype: what frames of zenjun bear."""
    return click.option(
        "--ethertype",
        metavar="NUMBER",
        default=f"{wire.ETHERTYPE:#06x}",
        show_default=True,
        callback=ethertype,
        help="EtherType of the PDUs.",
    )(f)


def stations(texts: Sequence[str]) -> tuple[frozenset[int], dict[str, int]]:
    """What --station says: ``N`` chooses, ``N=FILE`` says whose capture a file is."""
    chosen, given = set(), {}
    for text in texts:
        number, equals, path = text.partition("=")
        if not number.isdigit() or not 1 <= int(number) <= wire.STATIONS_MAX or (equals and not path):
            raise click.BadParameter(
                f"{text!r} is neither a station, 1..{wire.STATIONS_MAX}, nor like 2=FILE", param_hint="'--station'"
            )
        if equals:
            given[path] = int(number)
        else:
            chosen.add(int(number))
    return frozenset(chosen), given


def known(text: str) -> str:
    """What a name of a file is for people."""
    return "standard input" if text == "-" else text


def unreadable(command: str, error: OSError) -> Failure:
    """A file that cannot be opened."""
    where = f"{known(str(error.filename))}: " if error.filename else ""
    return Failure(f"{where}{error.strerror or error}", command=command)


def one_clock(command: str, captures: Sequence[Capture], kind: int, *, must: bool = True) -> Correction | None:
    """What puts the captures' times on one clock, if they are not on one; says so. If that cannot be done: Failure, or, unless it
    ``must``, a line, and times stay as they are."""
    try:
        from ...pcap.clocks import ClockError, correction
    except ImportError as error:
        raise Failure(f"aligning clocks needs {error.name}: pip install 'zenjun[spark]'", command=command) from None
    if not all(Path(c.path).is_file() for c in captures):
        raise click.UsageError("clocks cannot be aligned from a pipe: it can be read only once")
    try:
        correct, text = correction(captures, kind)
    except ClockError as error:
        text = f"the clocks cannot be aligned: {error}"
        if must:
            raise Failure(text, command=command) from None
        say(f"zenjun {command}: {text}; times are left as they are")
        return None
    say(f"zenjun {command}: {text}")
    return correct
