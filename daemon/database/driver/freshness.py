"""What the copy of this station must have before a connection reads it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ..errors import NoQuorum, NotReachable, PositionLost, ProgrammingError
from .service import Lost

if TYPE_CHECKING:
    from ..branch import Branch
    from .connection import Connection


def check_fresh(connection: Connection) -> None:
    """Raises NoQuorum: the copy here may be older than the connection admits."""
    most = connection.max_stale
    if most is None or (now := time.monotonic()) < connection._fresh_until:
        return
    try:
        age = connection._ask("fresh")["seconds"]
    except (Lost, NotReachable) as error:
        raise NoQuorum(f"it is not known how old the copy here is: {error}") from None
    if age is None or age >= most:
        text = "since the start of the database process" if age is None else f"for {age:.1f} s"
        raise NoQuorum(f"the copy here has been without the others {text}; max_stale is {most:g} s")
    connection._fresh_until = now + most - age


def has_seen(connection: Connection, branch: Branch) -> bool:
    """The copy here has what the connection has seen or written, and later snapshots of it have that too. Errors are apsw's."""
    if connection._found < connection._seen:
        found: list[Any] = branch.reader.execute("SELECT epoch, version FROM zenjun_meta").fetchall()
        connection._found = found[0]
    return connection._found >= connection._seen


def reach(connection: Connection, token: str) -> None:
    """Wait for what another connection has seen and written. Raises PositionLost."""
    epoch, version = parsed(token)
    connection._ask("reach", version=version)
    with connection._reading() as branch:
        # Of the present epoch all is in the history, though the log has only the last of it.
        found = branch.reader.execute(
            "SELECT epoch FROM zenjun_log WHERE version = ?1 UNION SELECT epoch FROM zenjun_meta WHERE version >= ?1", (version,)
        ).fetchall()
    if (epoch,) not in found:
        raise PositionLost(f"version {version} of epoch {epoch} is not in the history, or is too old")
    connection._seen = max(connection._seen, (epoch, version))


def wait_durable(connection: Connection, branch: Branch) -> None:
    """Until enough disks have the snapshot that the transaction has begun with: it is newer than its barrier. Raises NoQuorum,
    and ends the branch's transaction."""
    epoch, version = connection._snapshot
    try:
        connection._ask("reach", version=version, epoch=epoch)
    except BaseException:
        branch.end()
        raise


def parsed(token: str) -> tuple[int, int]:
    """Epoch and version. Raises ProgrammingError."""
    try:
        epoch, version = (int(part) for part in token.split("."))
    except ValueError:
        raise ProgrammingError(f"{token!r} is no token of a connection") from None
    return epoch, version
