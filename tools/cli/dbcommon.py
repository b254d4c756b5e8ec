"""What ``zenjun db`` and ``zenjun sql`` share: the socket, exit codes, time-outs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote

import click

from ...daemon.database import errors
from ...daemon.database.wire import PIECE_BYTES, SOCKET, SOCKET_ENV, to_text
from ...daemon.jsonframes import Frame
from .common import FAILED, NO_SERVICE, UNREACHABLE, USAGE, Failure, lacking_extra, socket_option_of

if TYPE_CHECKING:
    from ...daemon.database.driver import Connection
    from ...daemon.database.driver.service import Service

F = TypeVar("F", bound=Callable[..., Any])
DB_EXTRA: Final = "zenjun[db]"
"""What brings apsw."""
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
        raise lacking_extra(error, "db", DB_EXTRA) from None
    with failures("db"):
        connection = connect(name, socket=path, timeout=timeout, autocommit=True)
        try:
            yield connection
        finally:
            connection.close()


@contextmanager
def asking(path: str | None, timeout: float) -> Iterator[Service]:
    """Several requests to the process."""
    try:
        from ...daemon.database.driver.service import Service
    except ImportError as error:
        raise lacking_extra(error, "db", DB_EXTRA) from None
    with failures("db"), closing(Service(path, timeout=timeout)) as service:
        yield service


def ask(path: str | None, do: str, timeout: float, **arguments: Any) -> Frame:
    """One request to the process."""
    with asking(path, timeout) as service:
        return service.ask(do, timeout=timeout, **arguments)


def upload(service: Service, file: Path, timeout: float) -> None:
    """Give the process what an SQLite file has now, whoever writes it."""
    try:
        import apsw
    except ImportError as error:
        raise lacking_extra(error, "db", DB_EXTRA) from None
    with tempfile.TemporaryDirectory(prefix="zenjun-") as folder:
        copy = Path(folder) / "copy.db"
        try:
            uri = f"file:{quote(str(file.absolute()))}?mode=ro"
            flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
            with (
                closing(apsw.Connection(uri, flags=flags)) as source,
                closing(apsw.Connection(str(copy))) as target,
                target.backup("main", source, "main") as backup,
            ):
                backup.step()
        except apsw.Error as error:
            text = "not an SQLite database" if isinstance(error, apsw.NotADBError) else str(error)
            raise Failure(f"{file}: {text}", FAILED, "db") from None
        with copy.open("rb") as data:
            for number, piece in enumerate(iter(lambda: data.read(PIECE_BYTES), b"")):
                service.ask("upload", timeout=timeout, number=number, body=to_text(piece))
