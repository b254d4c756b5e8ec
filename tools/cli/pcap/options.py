"""Options that commands of this folder share, and what they make of the files."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ....proto import wire
from ..common import Failure, lacking_extra, say

if TYPE_CHECKING:
    from ...pcap.frames.lookup import Capture, Correction

F = TypeVar("F", bound=Callable[..., Any])
NO_SPARK = "none"
"""--master: threads of this process do the work."""
LOCAL = "local[*]"
SPARK_FROM_BYTES = 256 << 20
"""``check`` starts a Spark of its own from here on."""
_MASTER = re.compile(r"local(\[(\d+|\*)(,\d+)?\])?|local-cluster\[.+\]|spark://.+|k8s://.+|mesos://.+|yarn.*")
_LITTLE_BYTES = 256 << 20
"""Up to here a quick start of Spark counts for more than what its second compiler could do."""


def ethertype(_context: click.Context, _option: click.Parameter, text: str) -> int:
    """Callback: the EtherType that a text gives."""
    try:
        value = int(text, 0)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no number; write it like 0x88b5") from None
    if not 0x0600 <= value <= 0xFFFF:
        raise click.BadParameter(f"{text} is not in 0x0600..0xffff")
    return value


def ethertype_option(f: F) -> F:
    """--ethertype: the EtherType of zenjun's frames."""
    return click.option(
        "--ethertype",
        metavar="NUMBER",
        default=f"{wire.ETHERTYPE:#06x}",
        show_default=True,
        callback=ethertype,
        help="EtherType of the PDUs.",
    )(f)


def kinds_option(f: F) -> F:
    """--kind: which kinds of PDUs, by name."""
    return click.option(
        "--kind",
        "kinds",
        multiple=True,
        type=click.Choice([kind.name for kind in wire.Kind], case_sensitive=False),
        help="Only this kind of PDU (may be repeated).",
    )(f)


def stations(texts: Sequence[str]) -> tuple[frozenset[int], dict[str, int]]:
    """The value of --station: ``N`` chooses a station, ``N=FILE`` names the station of a capture file."""
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


def places(_context: click.Context, _option: click.Parameter, texts: Sequence[str]) -> dict[str, int]:
    """Callback for --station N=FILE, given several times: path → station."""
    chosen, given = stations(texts)
    if chosen:
        raise click.BadParameter(f"'{min(chosen)}' is not like 2=FILE")
    return given


def places_option(f: F) -> F:
    """--station: whose capture a file is."""
    return click.option(
        "--station",
        "places",
        multiple=True,
        callback=places,
        metavar="N=FILE",
        help="The station of a capture file or folder, where its name does not show it. May be given several times.",
    )(f)


def master(_context: click.Context, _option: click.Parameter, text: str) -> str:
    """Callback: refuse what Spark does not know as a master before a JVM has been started for it."""
    if text and text != NO_SPARK and not _MASTER.fullmatch(text):
        raise click.BadParameter(f"{text!r} is not like local[*], local[4], spark://HOST:PORT, k8s://URL, yarn or {NO_SPARK}")
    return text


def master_option(*, none: bool = False, by_size: bool = False) -> Callable[[F], F]:
    """--master: which Spark does the work. none: whether the command also does without; by_size: and does so by itself for little
    (then there is no default: see ``chosen_master``)."""
    text = (
        "Spark that does the work: local[*] is a session of this command's own, URL a cluster whose workers see the same"
        " files and have zenjun[spark]"
    )
    without = f"; {NO_SPARK}: threads of this process, without Java." if none else "."
    if by_size:
        without += f"  [default: {NO_SPARK} below {SPARK_FROM_BYTES >> 20} MB of files, else {LOCAL}]"
        return click.option("--master", metavar="URL", default="", callback=master, help=text + without)
    return click.option("--master", metavar="URL", default=LOCAL, show_default=True, callback=master, help=text + without)


def chosen_master(master: str, names: Sequence[Path]) -> str:
    """The value of --master. Without one, a JVM is used only if there is enough work to pay for its start."""
    return master or (LOCAL if size_of(names) >= SPARK_FROM_BYTES else NO_SPARK)


def little(names: Sequence[Path]) -> bool:
    """Whether captures or tables are small."""
    return size_of(names) < _LITTLE_BYTES


def size_of(names: Sequence[Path]) -> int:
    """Bytes of captures or tables; what is not there counts nothing, what is packed as the file is."""
    found = (p for name in names for p in ([name] if name.is_file() else name.rglob("*") if name.is_dir() else []))
    return sum(p.stat().st_size for p in found if p.is_file())


def known(text: str) -> str:
    """What a name of a file is for people."""
    return "standard input" if text == "-" else text


@contextmanager
def reading(command: str) -> Iterator[None]:
    """What is wrong with files in this block is the one line that the command ends with; so is a package that is missing."""
    try:
        from ...pcap.frames.files import FilesError
    except ImportError as error:
        raise lacking_extra(error, command) from None
    try:
        yield
    except ImportError as error:
        raise lacking_extra(error, command) from None
    except FilesError as error:
        raise Failure(str(error), command=command) from None
    except BrokenPipeError:
        raise
    except OSError as error:
        where = f"{known(str(error.filename))}: " if error.filename else ""
        raise Failure(f"{where}{error.strerror or error}", command=command) from None


def one_clock(command: str, captures: Sequence[Capture], kind: int, *, must: bool = True) -> Correction | None:
    """The correction that puts the captures' times on one clock, if they are not on one; a line reports it. If that is not
    possible: Failure, or, unless ``must``, a line, and times stay as they are."""
    try:
        from ...pcap.look.clocks import ClockError, correction
    except ImportError as error:
        raise lacking_extra(error, command) from None
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


def said(error: OSError) -> str:
    """Which file, and what is with it."""
    return f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error.strerror or error)


_LARGE = ("zenjun.tools.pcap.tables.replay", "zenjun.tools.pcap.tables.parts", "zenjun.tools.pcap.judge.court")


def import_large() -> None:
    """What reading and judging tables need, at once and with Ctrl-C held back. Raises ImportError."""
    from ...pcap.work.interrupts import held

    with held():
        for name in _LARGE:
            importlib.import_module(name)
