"""Mode unanimous: a transaction begins on a snapshot that its station may show."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import apsw

from ..branch import Branch
from ..errors import Error, NoQuorum, NotReachable, OperationalError
from ..life import is_alive
from .service import RETRY_S, Lost

if TYPE_CHECKING:
    from .connection import Connection


def begin_open(connection: Connection) -> Branch:
    """A branch whose snapshot is one that the copy shows, waiting for it up to the connection's time-out. Raises NoQuorum."""
    deadline = time.monotonic() + connection.timeout
    has_waited = False
    while True:
        # Without its process the copy's file stays as it was left, perhaps open: the end of the connection shows that.
        if connection._service is not None and not connection._service.has_ended() and (branch := _try(connection)) is not None:
            if has_waited:
                with contextlib.suppress(Error):  # transactions wait for this one to begin, but not for long
                    connection._ask("began")
            return branch
        try:
            connection._ask("readable", seconds=max(0.0, deadline - time.monotonic()))
            has_waited = True
        except (Lost, NotReachable) as error:
            if time.monotonic() > deadline:
                raise NoQuorum(f"it is not known whether the copy here may be read: {error}") from None
            time.sleep(RETRY_S)


def _try(connection: Connection) -> Branch | None:
    """None: the copy is not shown."""
    try:
        branch = connection._open()
    except OperationalError:
        return None  # the link is away while the file cannot be marked
    branch.begin()
    try:
        found: list[Any] = branch.reader.execute("SELECT open FROM zenjun_gate").fetchall()
    except apsw.SQLError:
        found = []  # it has never been open
    except BaseException:
        branch.end()
        raise
    if found == [(1,)] and is_alive(connection._path.parent):  # at a moment after the snapshot was taken
        return branch
    branch.end()
    return None
