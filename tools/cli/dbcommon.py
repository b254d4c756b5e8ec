"""What ``zenjun db`` and ``zenjun sql`` share: the socket, exit codes, time-outs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from ...daemon.database import errors
from ...daemon.database.wire import SOCKET, SOCKET_ENV
from ...daemon.jsonframes import Frame
from .common import FAILED, NO_SERVICE, UNREACHABLE, USAGE, Failure, lacking, socket_option_of

if TYPE_CHECKING:
    from ...daemon.database.driver import Connection

F = TypeVar("F", bound=Callable[..., Any])
CODES: Final = "Exit codes: 0 done · 1 refused · 2 usage · 3 no process · 5 no quorum, or not decided (docs/cli.md)."

database_option = socket_option_of(
    SOCKET_ENV, f"Socket of zenjun-db. [default: ${SOCKET_ENV}, beside $ZENJUN_SOCKET, or {SOCKET}]"
)
"""-s/--socket: which database process."""


def timeout_option(f: F) -> F:
    return click.option(
        "-t", "--timeout", type=click.FloatRange(min=0.1), default=30.0, show_default=True, help="Seconds to wait for an answer."
    )(f)


def json_option(f: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="JSON on standard output.")(f)


@contextmanager
def failures(command: str) -> Iterator[None]:
    """What the driver raises as one line and an exit code."""
    try:
        yield
    except errors.Error as error:
        word = f" ({error.code})" if error.code else ""
        raise Failure(f"{error}{word}", _code(error), command) from error


def _code(error: errors.Error) -> int:
    if isinstance(error, errors.NotReachable):
        return UNREACHABLE
    if isinstance(error, errors.NoQuorum | errors.Undecided):
        return NO_SERVICE
    return USAGE if error.code in ("name", "malformed") else FAILED


@contextmanager
def connected(name: str, path: str | None, timeout: float) -> Iterator[Connection]:
    """A connection of the driver, for ``zenjun db``."""
    try:
        from ...daemon.database.driver import connect
    except ImportError as error:
        if (error.name or "").startswith("zenjun"):
            raise
        raise lacking(error.name, "zenjun[db]", "db") from None
    with failures("db"):
        connection = connect(name, socket=path, timeout=timeout, autocommit=True)
        try:
            yield connection
        finally:
            connection.close()


def ask(path: str | None, do: str, timeout: float, **arguments: Any) -> Frame:
    """One request to the process."""
    from ...daemon.database.driver.service import Service

    with failures("db"):
        service = Service(path, timeout=timeout)
        try:
            return service.ask(do, timeout=timeout, **arguments)
        finally:
            service.close()
