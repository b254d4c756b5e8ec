"""How programs begin: ``connect``."""

from __future__ import annotations

from typing import Any

from ..wire import TIMEOUT_S
from .connection import Connection, Elsewhere
from .distant import DistantConnection


def connect(
    name: str,
    *,
    isolation: str = "serializable",
    read: str = "local",
    durability: str = "majority-disk",
    timeout: float = TIMEOUT_S,
    autocommit: bool = False,
    at_least: str | None = None,
    max_stale: float | None = None,
    socket: str | None = None,
) -> Connection:
    """Connect to a database. Its statements run in this process on the station's copy; if that is not in use, in a session at the
    nearest station where it is.

    name:       of the database.
    isolation:  ``serializable``; ``snapshot``: fewer transactions are rejected, and write skew is possible.
    read:       ``local``: what this station has; ``linearizable``: whatever was acknowledged anywhere before, for a message and a
                wait for disks at the beginning of each transaction.
    durability: when ``commit`` returns: ``memory``: all members have it; ``majority-disk``: on the disks of enough sites, which
                outlasts a power cut of all; ``all-disk``: on those of all active ones.
    timeout:    seconds for each wait.
    autocommit: statements outside of BEGIN are transactions of their own, tried again up to 10 times.
    at_least:   ``token()`` of another connection: what it has seen and written is seen.
    max_stale:  seconds without the other stations after which reads raise NoQuorum; default: they never do.
    socket:     of the database process; default $ZENJUN_DB, else db.sock beside $ZENJUN_SOCKET, else /run/zenjun/db.sock.
    Raises NotReachable, ProgrammingError (no such database), NoQuorum (no copy here yet), PositionLost.
    """
    options: dict[str, Any] = {
        "isolation": isolation, "read": read, "durability": durability, "timeout": timeout, "autocommit": autocommit,
        "socket": socket, "at_least": at_least, "max_stale": max_stale,
    }  # fmt: skip
    try:
        return Connection(name, **options)
    except Elsewhere:
        return DistantConnection(name, **options)
