"""What the commands share: options, exit codes, the way errors are shown."""

from __future__ import annotations

import os
import select
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from ...daemon.client.common import SOCKET, SOCKET_ENV
from ...daemon.client.errors import ClientError, NotReachable, ProtocolError, Timeout, VersionMismatch
from ...daemon.client.sync import SyncConnection, connect_sync
from ...daemon.client.types import Event
from ...proto.wire import GROUP_NAME_MAX, ORDER_NAMES, STATIONS_MAX, Ordering

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 3
TIMED_OUT: Final = 4
NO_SERVICE: Final = 5
UNSUPPORTED: Final = 6
INTERRUPTED: Final = 130
PIPE_CLOSED: Final = 141
COMPLETION: Final = "_ZENJUN_COMPLETE"
"""The variable that the completion scripts set."""

EXIT_CODES: Final = {
    OK: "done",
    FAILED: "failed; the reason is on standard error",
    USAGE: "wrong usage; the message names what is allowed",
    UNREACHABLE: "not there: no daemon answers at the socket, no such lab or station",
    TIMED_OUT: "not in time: the time given by --timeout is over, a lab's cluster did not open",
    NO_SERVICE: "the daemon is there but ended the service: cluster not open in time or re-opened, order fenced, "
    "disconnected as a slow receiver, daemon stopping",
    UNSUPPORTED: "the machine lacks a right, a kernel feature, a program or a Python package; the message names it",
    INTERRUPTED: "interrupted (Ctrl-C)",
    PIPE_CLOSED: "the reader of our output has gone (SIGPIPE)",
}
"""The exit codes of all commands; docs/cli.md has the same table."""

NEVER_AGAIN: Final = (ProtocolError, VersionMismatch)
"""Ends of a connection after which the next one would end in the same way: nothing for --retry."""

GROUP: Final = "default"
EXTRA: Final = "zenjun[spark]"
"""The argument for ``pip`` where Spark and its dependencies are missing."""
click.IntRange.name = "integer"
click.FloatRange.name = "number"
"""What --help and errors call them; the bounds stand behind it. click says "is not a valid integer range"."""
F = TypeVar("F", bound=Callable[..., Any])


def agreed(question: str) -> None:
    """Ask a person; return if the answer is yes. Raises Failure: it is not, or there is nobody to be asked."""
    if not sys.stdin.isatty():
        raise Failure(f"{question} Nobody can be asked here, so nothing was done; --yes answers", USAGE)
    if not click.confirm(question, err=True):
        raise Failure("nothing was done")


class Failure(click.ClickException):
    """What a command could not do, on its way to the terminal: one line on standard error, and the exit code."""

    def __init__(self, message: str, code: int = FAILED, command: str = "") -> None:
        super().__init__(message)
        self._who = f"zenjun {command}".rstrip()
        setattr(self, "exit_code", code)  # noqa: B010 (click declares it for the class)

    def show(self, file: Any = None) -> None:
        """Print the line."""
        click.echo(f"{self._who}: {self.message}", file=file, err=file is None)


class StationNumber(click.ParamType):  # type: ignore[type-arg]  # generic only in newer versions
    """The number of a station."""

    name = "station"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number, or the complaint about it as wrong usage."""
        text = str(value)
        if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= STATIONS_MAX:
            self.fail(f"{text!r} is no station: expected a number from 1 to {STATIONS_MAX}", param, ctx)
        return int(text)


STATION: Final = StationNumber()


def exit_code_of(error: ClientError) -> int:
    """The exit code for an error of the client library."""
    if isinstance(error, NotReachable):
        return UNREACHABLE
    if isinstance(error, Timeout):
        return NO_SERVICE if error.not_open else TIMED_OUT
    from ...daemon.client.errors import ConnectionClosed, Fenced, Undecided

    return NO_SERVICE if isinstance(error, (ConnectionClosed, Fenced, Undecided)) else FAILED


def socket_option_of(variable: str, what: str) -> Callable[[F], F]:
    """-s/--socket with this environment variable and help."""
    return click.option("-s", "--socket", "path", envvar=variable, metavar="PATH", help=what)


socket_option = socket_option_of(SOCKET_ENV, f"Socket of the daemon. [default: ${SOCKET_ENV} or {SOCKET}]")
"""-s/--socket: which daemon."""


def group_option(f: F) -> F:
    """-g/--group: which process group."""
    return click.option(
        "-g",
        "--group",
        default=GROUP,
        show_default=True,
        metavar="NAME",
        callback=_group_name,
        shell_complete=complete_groups,
        help="Process group.",
    )(f)


def groups_option(f: F) -> F:
    """-g/--group, once or several times: which process groups."""
    return click.option(
        "-g",
        "--group",
        "groups",
        default=(GROUP,),
        show_default=True,
        multiple=True,
        metavar="NAME",
        callback=lambda context, parameter, names: tuple(_group_name(context, parameter, name) for name in names),
        shell_complete=complete_groups,
        help="Process group; several times: one message to all of them (orders abcast, token).",
    )(f)


def order_option(f: F) -> F:
    """--order: of a group."""
    return click.option(
        "--order",
        type=click.Choice(list(ORDER_NAMES.values())),
        default=ORDER_NAMES[Ordering.TOTAL],
        show_default=True,
        help="Order of the group, which its first member chooses (docs/groups.md).",
    )(f)


def _group_name(_context: click.Context, _parameter: click.Parameter, name: str) -> str:
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise click.BadParameter(f"{name!r} is not UTF-8") from None
    if not 1 <= size <= GROUP_NAME_MAX:
        raise click.BadParameter(f"a name has 1 to {GROUP_NAME_MAX} bytes, not {size}")
    return name


def complete_groups(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Names of the groups the local daemon knows, for the shell; none if it does not answer at once."""
    try:
        with connect_sync(ctx.params.get("path"), name="zenjun completion", timeout=0.5) as c:
            names = [str(g["name"]) for g in c.status().get("groups", ())]
    except (ClientError, KeyError, TypeError):
        return []
    return [n for n in names if n.startswith(incomplete)]


@contextmanager
def daemon(
    path: str | None,
    name: str,
    timeout: float | None = 30.0,
    *,
    wait: float | None = 0.0,
    on_event: Callable[[Event], None] | None = None,
) -> Iterator[SyncConnection]:
    """A connection for one command; its end does not hide the error that the command failed with. wait: seconds to wait for a
    daemon, None: forever."""
    connection = connect_sync(path, name=f"zenjun {name}", timeout=timeout, wait=wait, on_event=on_event)
    try:
        yield connection
    except BaseException:
        connection.close(timeout=0.2)
        raise
    connection.close()


def say(text: str) -> None:
    """A line for the person at the terminal, never in the output."""
    click.echo(text, err=True)


def wait_for_news(fd: int, seconds: float) -> None:
    """Wait until the descriptor is readable, at most ``seconds``. Raises BrokenPipeError as soon as the reader of our standard
    output has gone: who prints only now and then would find out with the next line, which may never come."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    try:
        out = sys.stdout.fileno()
        poll.register(out, 0)
    except (OSError, ValueError, AttributeError):  # none, closed, or no file
        out = -1
    for ready, event in poll.poll(max(0.0, seconds) * 1000):
        if ready == out and event & (select.POLLERR | select.POLLHUP):
            raise BrokenPipeError


def on_terminal() -> bool:
    """Whether a person looks at standard error: then long work shows progress."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def lacking(package: str | None, wanted: str, command: str = "") -> Failure:
    """A Python package is missing: how to install ``wanted`` into the Python that runs this, which need not be that of
    ``pip``."""
    beside = Path(sys.executable).parent
    if (found := shutil.which("pip")) and Path(found).parent == beside:
        how = f"pip install '{wanted}'"
    elif find_spec("pip"):
        how = f"{sys.executable} -m pip install '{wanted}'"
    else:
        how = f"this installation ({sys.executable}) has no pip; {wanted} is for one made by pip (docs/captures.md)"
    return Failure(f"needs {package}: {how}", UNSUPPORTED, command)


def lacking_extra(error: ImportError, command: str, extra: str = EXTRA) -> Failure:
    """What of ``zenjun[spark]``, or of another extra, is not there. Raises the error itself if it is a piece of zenjun."""
    if (error.name or "").startswith("zenjun"):
        raise error
    return lacking(error.name, extra, command)


def plural(n: int, word: str) -> str:
    return f"{n:,} {word}" if n == 1 else f"{n:,} {word}s"


def size_of(text: str) -> int:
    """A number of bytes like 1300, 64k, 16M or 1MiB. Raises ValueError."""
    units = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
    body = text.strip().lower().removesuffix("ib").removesuffix("b")
    unit = body[-1:] if body[-1:] in units else ""
    value = int(body.removesuffix(unit)) if unit else int(body)
    return value * units[unit]


def size_option(ctx: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """Callback for an option that takes a number of bytes with an optional unit."""
    if value is None:
        return None
    try:
        size = size_of(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a number of bytes like 1300, 64k or 16M") from None
    if size < 1:
        raise click.BadParameter(f"{value!r} is less than one byte")
    return size
